"""`add`: a labelled trace of one's own into a data set; `export`: a trace of it as a file.

Labels are JSON: what `generate` writes of a trace, or the intervals alone, in nanoseconds of the
trace's clock:

    {"intervals": [{"start_ns": 1500, "end_ns": 9500, "type": "high_memcpy"}]}

Any other key of a generated label may stand beside them (docs/generation.md). No intervals: the
trace is without a fault.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import PathLike
from torchtraceap.core.intervals import union
from torchtraceap.core.writing import naming, replacing, write_text
from torchtraceap.datasets.arrow import FORMAT
from torchtraceap.datasets.labels import CPU_SPLIT, TYPES
from torchtraceap.datasets.reader import ABOUT, DataSet, Run, is_dataset, labeled_runs
from torchtraceap.datasets.writer import write_shard
from torchtraceap.errors import MissingFileError, OptionError, SchemaError
from torchtraceap.lab.building.describe import describe
from torchtraceap.tables.gpu.recorded_device import recorded_device
from torchtraceap.trace.load import load
from torchtraceap.trace.ranks import RankTrace

__all__ = ["add", "add_labelled", "export"]

_WORD = re.compile(r"\w+")
_NO_NAME = re.compile(r"[^\w.]+")


def add(dataset: PathLike, trace: PathLike, labels: PathLike, *, split: str | None = None) -> str:
    """Adds a trace, as a shard of its own.

    Args:
        dataset: A data set, or a new or empty folder for one.
        trace: A file of one rank.
        labels: A file of JSON; see above.
        split: The one that it is in; None: what the labels say, else none.

    Returns:
        Its id: that of the labels, else the name of the file.

    Raises:
        MissingFileError: A file is not there.
        OptionError: The id is taken, its base is in another split, the trace has several ranks,
            it was collected on a CPU and is to be in a split of others, or a folder with something
            else in it.
        ParseError: The trace can't be read.
        SchemaError: The labels can't be read, or do not fit the trace.
    """
    known = _opened(Path(dataset))
    _check_split(split)
    ranks = load(trace).ranks
    if len(ranks) != 1:
        raise OptionError(f"{trace}: a file of one rank is needed, not of {len(ranks)}")
    given = _read(Path(labels))
    label = _completed(given, ranks[0], Path(trace), _split_of(given, split))
    _check_new(known, label)
    shard = f"{label['split'] or 'own'}-{label['id']}"
    write_shard(known.path, shard, [(label, ranks[0])])
    describe(known.path)
    return str(label["id"])


def add_labelled(dataset: PathLike, folder: PathLike, *, split: str | None = None) -> int:
    """Adds the traces of a folder that `generate` or `collect` made, a shard for each base.

    Args:
        dataset: A data set, or a new or empty folder for one.
        folder: Of the traces and their labels.
        split: The one that all of them are in; None: what the labels say.

    Returns:
        How many traces were added.

    Raises:
        MissingFileError: There is no such folder, or a trace is missing.
        OptionError: An id is taken, a base is in another split, or traces of a CPU are to be in a
            split of others.
        SchemaError: The labels can't be read.
    """
    target = _opened(Path(dataset))
    _check_split(split)
    by_base: dict[str, list[Run]] = {}
    for run in labeled_runs(folder):
        by_base.setdefault(run.labels[0]["source"]["base"], []).append(run)
    counts = [_add_base(target, base, runs, split) for base, runs in sorted(by_base.items())]
    describe(target.path)
    return sum(counts)


def _add_base(target: DataSet, base: str, runs: Sequence[Run], split: str | None) -> int:
    known = DataSet(target.path)
    traces = []
    for run in runs:
        for label, part in zip(run.labels, run.load().ranks, strict=True):
            own = {key: _flat(label[key]) for key in ("id", "run", "twin")}
            label = {**label, **own, "split": _split_of(label, split)}
            _check_new(known, label)
            traces.append((label, part))
    number = hashlib.blake2b(base.encode(), digest_size=4).hexdigest()
    write_shard(target.path, f"{traces[0][0]['split'] or 'own'}-{number}", traces)
    return len(traces)


def _flat(name: str | None) -> str | None:
    """Ids of ranks are paths in a folder of traces."""
    return None if name is None else name.replace("/", "-")


def export(dataset: PathLike, trace: str, out: PathLike) -> Path:
    """Writes a trace of a data set as a profiler would have, JSON or with the suffix .gz gzip.

    Raises:
        OptionError: There is no trace of that id.
        OutputError: It can't be written.
        SchemaError: The data set can't be read.
    """
    table = DataSet(dataset).table(trace)
    with replacing(out) as staged:
        _core.write_trace(table, staged)
    return Path(out)


def _opened(folder: Path) -> DataSet:
    """The data set, which is begun where there is none."""
    if not is_dataset(folder):
        _begin(folder)
    return DataSet(folder)


def _check_split(split: str | None) -> None:
    if split is not None and not _WORD.fullmatch(split):
        raise OptionError(f"a split is called by letters and digits, not {split!r}")


def _split_of(label: Mapping[str, Any], asked: str | None) -> str | None:
    """Traces that were collected on a CPU are no data of GPUs, whoever asks."""
    said: str | None = label.get("split")
    if said == CPU_SPLIT and asked not in (None, CPU_SPLIT):
        raise OptionError(
            f"{label.get('id')}: was collected on a CPU, so it is in the split {CPU_SPLIT!r} and "
            f"not in {asked!r}"
        )
    return asked or said


def _begin(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"{folder}: a data set, or a new or empty folder, is needed")
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / ABOUT, json.dumps({"format": FORMAT}, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any]:
    """The labels as they are given."""
    try:
        given = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise SchemaError(f"{path}: can't be read as JSON: {error}") from None
    label = {"intervals": given} if isinstance(given, list) else given
    if not isinstance(label, dict) or not isinstance(label.get("intervals"), list):
        raise SchemaError(f"{path}: an object with a list of `intervals` is needed")
    costs = _costs(label, path)
    return {**label, "costs": costs}


def _costs(label: Mapping[str, Any], path: Path) -> dict[str, list[list[int]]]:
    """Intervals by type."""
    found: dict[str, list[list[int]]] = {}
    for number, interval in enumerate(label["intervals"]):
        if isinstance(interval, dict):
            cells: list[Any] = [interval.get(key) for key in ("start_ns", "end_ns", "type")]
        else:
            cells = [*interval, label.get("type")] if isinstance(interval, list) else []
        where = f"{path}: interval {number}"
        if len(cells) != 3 or not all(type(cell) is int for cell in cells[:2]):
            raise SchemaError(f"{where} lacks its start and end in whole nanoseconds")
        start_ns, end_ns, name = cells
        if name not in TYPES:
            raise SchemaError(f"{where} has the type {name!r}, none of {', '.join(TYPES)}")
        if end_ns <= start_ns:
            raise SchemaError(f"{where} ends at {end_ns}, before it begins at {start_ns}")
        found.setdefault(name, []).append([start_ns, end_ns])
    return found


def _completed(
    given: Mapping[str, Any], part: RankTrace, path: Path, split: str | None
) -> dict[str, Any]:
    """The label with all that it may leave out."""
    _check_split(split)
    name = _NO_NAME.sub("_", str(given.get("id") or path.name.split(".")[0])) or "trace"
    costs = given["costs"]
    lengths = {of: _length_ns(intervals) for of, intervals in costs.items()}
    cost_ns = _length_ns([each for intervals in costs.values() for each in intervals])
    kind = max(lengths, key=lambda of: lengths[of], default=None)
    _check_inside(costs, part, path)
    device = next(filter(None, map(recorded_device, part.table.devices)), None)
    rest: dict[str, Any] = {
        "task": None, "device": device.name if device else None, "strategy": None,
        "world_size": part.world_size or 1, "rank": part.rank or 0, "profiler": None,
        "form": "recorded" if costs else "none", "decoy": False, "looks_like": kind,
        "late_rank": None, "role": None, "twin": None, "cost_ns": cost_ns,
        "severity": cost_ns / max(1, part.profiled_ns - cost_ns), "already": [], "seed": None,
        "licence": None, "source": {"kind": "recorded", "base": name},
    }  # fmt: skip
    return {**rest, **given, "id": name, "run": name, "type": kind, "split": split}


def _length_ns(intervals: Sequence[Sequence[int]]) -> int:
    disjoint = union([np.array(intervals, dtype=np.int64).reshape(-1, 2)])
    return int((disjoint[:, 1] - disjoint[:, 0]).sum())


def _check_inside(
    costs: Mapping[str, Sequence[Sequence[int]]], part: RankTrace, path: Path
) -> None:
    """Labels of another clock are a common mistake."""
    begin_ns, end_ns = part.tree.profiled
    for name, intervals in costs.items():
        for start, end in intervals:
            if end <= begin_ns or start >= end_ns:
                raise SchemaError(
                    f"{path}: the trace lasts from {begin_ns} to {end_ns} ns, and the interval "
                    f"[{start}, {end}] of {name} is outside"
                )


def _check_new(known: DataSet, label: Mapping[str, Any]) -> None:
    """Neither the id nor, in another split, the base is there already."""
    if label["id"] in known.entries:
        raise OptionError(f"{known.path}: has a trace {label['id']!r} already")
    source = label["source"]
    if not isinstance(source, dict) or not {"kind", "base"} <= source.keys():
        raise SchemaError('a `source` is an object such as {"kind": "recorded", "base": NAME}')
    for entry in known.entries.values():
        row = entry.row
        if row["base"] == source["base"] and row["split"] != label["split"]:
            raise OptionError(
                f"{known.path}: traces of the base {source['base']!r} are in the split "
                f"{row['split']}, so this one can't be in {label['split']}"
            )
