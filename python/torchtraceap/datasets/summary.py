"""Statistics of a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.datasets.arrow import TABLES, file_of, read_rows
from torchtraceap.datasets.labels import CPU_SPLIT, GRIDS
from torchtraceap.datasets.reader import DataSet

__all__ = ["statistics"]

Row = dict[str, Any]
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_GRID = 100
"""Windows of a trace whose labels are counted."""
_STARTS = ("start_ns", "trace")
_BOUNDS = ("trace", "n_w", "start_ns", "end_ns")


def statistics(dataset: DataSet) -> dict[str, Any]:
    """Return counts and quantiles, as JSON has them. Types count where they cost, twins do not.

    Traces that were collected on a CPU count in `cpu_traces` and in their split alone.
    """
    every = [entry.row for entry in dataset.entries.values()]
    rows = [row for row in every if row["split"] != CPU_SPLIT]
    faulty = [row for row in rows if row["type"] is not None]
    paths = [file_of(dataset.path, table, shard) for table in TABLES for shard in dataset.shards]
    return {
        "traces": len(rows),
        "cpu_traces": len(every) - len(rows),
        "runs": len({row["run"] for row in rows}),
        "bases": len({row["base"] for row in rows}),
        "bytes": sum(path.stat().st_size for path in paths if path.exists()),
        "splits": {
            split: {
                "traces": len(of),
                "bases": len({row["base"] for row in of}),
                "faulty": sum(row["label"] for row in of),
                "families": sorted({row["family"] for row in of if row["family"]}),
            }
            for split, of in _group_by(every, "split").items()
        },
        "tasks": _counts(rows, "task"),
        "sources": _counts(rows, "source"),
        "devices": _counts(rows, "device"),
        "dtypes": _counts(rows, "dtype"),
        "strategies": _counts(rows, "strategy"),
        "communication": _counts(rows, "communication_source"),
        "types": {
            name: {
                "traces": _counts(of, "task"),
                "positive_windows": _positive(dataset, of),
                "splits": _counts(of, "split"),
                "forms": _counts(of, "form"),
                "cost_share": _quantiles(
                    [
                        sum(cost["end_ns"] - cost["start_ns"] for cost in row["costs"])
                        / row["length_ns"]
                        if row["length_ns"]
                        else 0.0
                        for row in of
                    ]
                ),
            }
            for name, of in sorted(_group_by(faulty, "type").items())
        },
        "decoys": _counts([row for row in rows if row["decoy"]], "form"),
        "pair_slowdown": _quantiles([1 + row["severity"] for row in faulty if row["twin"]]),
        "length_ms": _quantiles([row["length_ns"] * 1e-6 for row in rows]),
        "kernels": {
            task: _quantiles([row["gpu_event_count"] for row in of])
            for task, of in _group_by(rows, "task").items()
        },
        "gpu_events_per_window": _events_per_window(dataset, {row["id"] for row in rows}),
    }


def _group_by(rows: Iterable[Row], key: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(_word(row[key]), []).append(row)
    return found


def _counts(rows: Iterable[Row], key: str) -> dict[str, int]:
    return dict(sorted(Counter(_word(row[key]) for row in rows).items()))


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.quantile(np.array(values, dtype=np.float64), _QUANTILES)
    return {
        f"p{share * 100:.0f}": round(float(v), 4)
        for share, v in zip(_QUANTILES, found, strict=True)
    }


def _positive(dataset: DataSet, rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of positive windows by task."""
    found: Counter[str] = Counter()
    for row in rows:
        windows = dataset.windows(row["id"])
        grid = windows.column("n_w").to_numpy() == _GRID
        positive = windows.column("positive").to_numpy(zero_copy_only=False)
        found[_word(row["task"])] += int((positive & grid).sum())
    return dict(sorted(found.items()))


def _events_per_window(dataset: DataSet, wanted: set[str]) -> dict[str, dict[str, float]]:
    """Return by grid the mean, median and 95 % quantile of events, and the share of
    empty windows."""
    counts: dict[int, list[Array]] = {grid: [] for grid in GRIDS}
    for shard in dataset.shards:
        events = read_rows(file_of(dataset.path, "gpu_events", shard), "gpu_events", _STARTS)
        windows = read_rows(file_of(dataset.path, "windows", shard), "windows", _BOUNDS)
        starts, owner = (_column(events, name) for name in _STARTS)
        bounds = [_column(windows, name) for name in _BOUNDS]
        for trace in sorted(wanted & set(bounds[0].tolist())):
            begins = starts[owner == trace]
            for grid in GRIDS:
                mine = (bounds[0] == trace) & (bounds[1] == grid)
                edges = np.append(bounds[2][mine], bounds[3][mine][-1:])
                counts[grid].append(np.histogram(begins, edges)[0])
    return {
        str(grid): {
            "mean": round(float(every.mean()), 2),
            "median": float(np.median(every)),
            "p95": float(np.quantile(every, 0.95)),
            "empty_share": round(float((every == 0).mean()), 4),
        }
        for grid, every in ((grid, np.concatenate(of)) for grid, of in counts.items() if of)
    }


def _column(rows: Any, name: str) -> Array:
    column = rows.column(name)
    found: Array = np.array(column.to_pylist()) if name == "trace" else column.to_numpy()
    return found
