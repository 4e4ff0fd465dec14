"""Write labeled traces as a shard: rows of the tables, one file of each table.

Note [Nothing is lost]: what is a column of its own is taken out of an event's `args`; the rest of
them stays as JSON, of which a trace has few different texts. So the event table that is made of the
rows (decoding.py) has every event with all of its values, and everything computed from it is the
same. Times in the rows begin at 0, with the first event; `origin_ns` puts them back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind, GpuClass
from torchtraceap.core.aliases import Array
from torchtraceap.core.writing import write_files
from torchtraceap.datasets.arrow import (
    ARGUMENTS,
    LABEL_COLUMNS,
    TABLES,
    import_pyarrow,
    name_hash,
    schemas,
    write_to,
)
from torchtraceap.datasets.labels import GRIDS, TYPES, costs_of, window_costs, window_labels
from torchtraceap.errors import SchemaError
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.tables.windows import build_windows
from torchtraceap.trace.ranks import RankTrace, parse_recorded

__all__ = ["is_written", "write_shard"]

Label = dict[str, Any]

_COLUMNS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
"""Members of events that have columns of their own."""
_PREDICTED_BASE = re.compile(
    r"(?P<task>\w+): (?P<family>\w+), .*batch (?P<batch>\d+), .*?, (?P<mode>training|inference), "
    r"(?P<dtype>\w+) on "
)
"""The form of the names of predicted bases."""
_GPU_CLASSES = {GpuClass.COMMUNICATION: "communication", GpuClass.MEMCPY: "copy"}
_COMMUNICATION = {"lifted": "predicted", "lifted_event_space": "predicted",
                  "real_graph": "transformed", "event_space": "transformed"}  # fmt: skip
"""Origins of collectives, by the kind of the source of a trace."""


def write_shard(folder: Path, shard: str, traces: Iterable[tuple[Label, RankTrace]]) -> None:
    """Write the files of a shard, which appear together.

    Args:
        folder: The folder of the data set.
        shard: The files' name.
        traces: Labels as `generate` writes them, and traces.

    Raises:
        OutputError: They can't be written.
        SchemaError: A label has a type that no fault has, or a trace has too many tracks.
    """
    pa, _ = import_pyarrow()
    rows = [_encode_trace(part, label) for label, part in traces]
    names: dict[int, tuple[str, str]] = {}
    for each in rows:
        for number, named in each["names"].items():
            if names.setdefault(number, named)[0] != named[0]:
                raise SchemaError(f"two names have one hash: {named[0]!r}, {names[number][0]!r}")
    by_name = [
        {"hash": number, "name": name, "canonical": canonical_name(name), "class": of}
        for number, (name, of) in sorted(names.items(), key=lambda item: item[1])
    ]
    files = []
    # Traces come last: who finds them finds the rest too.
    for table in (*TABLES[1:], TABLES[0]):
        if table == "traces":
            groups = [
                pa.Table.from_pylist([each["traces"] for each in rows], schema=schemas()[table])
            ]
        elif table == "names":
            groups = [pa.Table.from_pylist(by_name, schema=schemas()[table])]
        else:
            groups = [each[table] for each in rows]
        files.append((f"{table}/{shard}.parquet", partial(write_to, table=table, groups=groups)))
    write_files(folder, files)


def is_written(folder: Path, shard: str) -> bool:
    """Return True if the shard is complete."""
    return all((folder / table / f"{shard}.parquet").is_file() for table in TABLES)


def _encode_trace(part: RankTrace, label: Label) -> dict[str, Any]:
    """Return the rows of one trace by table: Arrow tables, but for its row of `traces`, and for
    `names`, name and class by hash."""
    table, tree = part.table, part.tree
    timed = (table.flags & _core.HAS_TIME) != 0
    origin_ns = int(table.ts_ns[timed].min()) if timed.any() else 0
    events = parse_recorded(_core.trace_json(table), table.path)["traceEvents"]
    on_gpu = np.zeros(len(table), dtype=bool)
    on_gpu[tree.gpu_rows] = True
    names = _Names(part)
    gpu_events, host_events = (
        _event_rows(part, events, np.flatnonzero(rows), origin_ns, names, label["id"], kind)
        for kind, rows in (("gpu_events", on_gpu), ("host_events", ~on_gpu))
    )
    return {
        "traces": _trace_row(part, label, origin_ns, (len(gpu_events), len(host_events))),
        "gpu_events": gpu_events,
        "host_events": host_events,
        "windows": _windows(part, label, origin_ns),
        "names": names.known,
    }


class _Names:
    """Hashes of a trace's names, and what is known of each that is asked for."""

    def __init__(self, part: RankTrace) -> None:
        self._part, self.known = part, dict[int, tuple[str, str]]()

    def hashes(self, rows: Array) -> Array:
        """int64 `[n]`, of the names of rows."""
        table, tree = self._part.table, self._part.tree
        codes, first, place = np.unique(table.name[rows], return_index=True, return_inverse=True)
        found = np.zeros(len(codes), dtype=np.int64)
        for code, row in enumerate(rows[first].tolist()):
            name = table.name_of(row)
            kind = EventKind(int(table.kind[row])).name.lower()
            of = _GPU_CLASSES.get(GpuClass(int(tree.gpu_class[row])), kind)
            found[code] = name_hash(name)
            known = self.known.setdefault(int(found[code]), (name, of))
            if known[0] != name:
                raise SchemaError(f"two names have one hash: {name!r} and {known[0]!r}")
        hashes: Array = found[place]
        return hashes


def _event_rows(
    part: RankTrace,
    events: Sequence[dict[str, Any]],
    rows: Array,
    origin_ns: int,
    names: _Names,
    trace: str,
    kind: str,
) -> Any:
    """Return an Arrow table of some rows of an event table."""
    pa, _ = import_pyarrow()
    table, tree, is_gpu = part.table, part.tree, kind == "gpu_events"
    flags = table.flags[rows]
    if len(table.tracks) >= 1 << 15:
        raise SchemaError(f"{table.path}: has {len(table.tracks)} threads and streams, too many")
    chosen = [events[row] for row in rows.tolist()]
    columns: dict[str, Any] = {
        "trace": [trace] * len(rows),
        "phase": [chr(code) for code in table.phase[rows].tolist()],
        "start_ns": _mask(table.ts_ns[rows] - origin_ns, (flags & _core.HAS_TIME) != 0),
        "dur_ns": _mask(table.dur_ns[rows], (flags & _core.HAS_DURATION) != 0),
        "name": names.hashes(rows),
        "kind": [EventKind(code).name.lower() for code in table.kind[rows].tolist()],
        "category": [event.get("cat") for event in chosen],
        "track": table.track[rows].astype(np.int16),
        **_arguments(chosen, is_gpu=is_gpu),
    }
    if is_gpu:
        launch, op = tree.launch[rows].astype(np.int64), tree.op[rows].astype(np.int64)
        launched, in_op = launch != _core.NO_ROW, op != _core.NO_ROW
        op_name = np.zeros(len(rows), dtype=np.int64)
        op_name[in_op] = names.hashes(op[in_op])
        calls = np.where(launched, launch, 0)
        roles = dict(enumerate(stream.role for stream in tree.streams))
        columns |= {
            "op_name": _mask(op_name, in_op),
            "launch_start_ns": _mask(table.ts_ns[calls] - origin_ns, launched),
            "launch_dur_ns": _mask(table.dur_ns[calls], launched),
            "stream_role": [roles.get(code) for code in tree.stream_of[rows].tolist()],
        }
    schema = schemas()[kind]
    return pa.table([_array(columns[field.name], field.type) for field in schema], schema=schema)


def _array(values: Any, type_: Any) -> Any:
    pa, _ = import_pyarrow()
    if isinstance(values, np.ma.MaskedArray):
        return pa.array(values.data, mask=np.ma.getmaskarray(values)).cast(type_)
    if pa.types.is_dictionary(type_):
        return pa.array(values, type=pa.string()).dictionary_encode()
    return pa.array(values, type=type_)


def _mask(values: Array, known: Array) -> Any:
    return np.ma.MaskedArray(values, mask=~known)


def _arguments(events: Sequence[dict[str, Any]], *, is_gpu: bool) -> dict[str, list[Any]]:
    """Return columns of the arguments and further members of events. See Note [Nothing is lost]."""
    takes = ARGUMENTS["gpu_events" if is_gpu else "host_events"]
    columns: dict[str, list[Any]] = {column: [] for column in takes.values()}
    rests: list[str | None] = []
    members: list[str | None] = []
    flows: list[int | None] = []
    for event in events:
        args = event.get("args")
        left = dict(args) if isinstance(args, dict) else {}
        for key, column in takes.items():
            columns[column].append(left.pop(key) if _fits(left.get(key), column) else None)
        rests.append(json.dumps(left) if left else None)
        more = {key: value for key, value in event.items() if key not in _COLUMNS}
        if not is_gpu:
            flows.append(more.pop("id") if _fits(more.get("id"), "flow_id") else None)
        members.append(json.dumps(more) if more else None)
    columns |= {"args": rests, "members": members}
    return columns if is_gpu else columns | {"flow_id": flows}


def _fits(value: Any, column: str) -> bool:
    """Return True if a column can hold the value of an argument as it is."""
    if column == "bandwidth_gb_per_s":
        return type(value) is float
    if column in ("grid", "block"):
        return type(value) is list and len(value) == 3 and all(_fits(v, "device") for v in value)
    largest = 2**31 if column == "device" else 2**63
    return type(value) is int and -largest <= value < largest


def _windows(part: RankTrace, label: Label, origin_ns: int) -> Any:
    """Return the labels of windows as an Arrow table."""
    pa, _ = import_pyarrow()
    columns: dict[str, list[Any]] = {name: [] for name in schemas()["windows"].names}
    for count in GRIDS:
        bounds_ns = build_windows(part, count=count).bounds_ns
        cost = window_costs(costs_of(label), bounds_ns)
        positive, ignore = window_labels(cost)
        columns["trace"] += [label["id"]] * count
        columns["n_w"] += [count] * count
        columns["i"] += range(count)
        columns["start_ns"] += (bounds_ns[:-1] - origin_ns).tolist()
        columns["end_ns"] += (bounds_ns[1:] - origin_ns).tolist()
        columns["positive"] += positive.tolist()
        columns["ignore"] += ignore.tolist()
        for name, share in zip(TYPES, cost.T, strict=True):
            columns[name] += share.tolist()
    schema = schemas()["windows"]
    return pa.table([_array(columns[f.name], f.type) for f in schema], schema=schema)


def _trace_row(
    part: RankTrace, label: Label, origin_ns: int, counts: tuple[int, int]
) -> dict[str, Any]:
    table, tree = part.table, part.tree
    said = _base_facts(label)
    start_ns, end_ns = tree.profiled
    costs = [
        {"type": name, "start_ns": begin - origin_ns, "end_ns": end - origin_ns}
        for name, intervals in costs_of(label).items()
        for begin, end in intervals.tolist()
    ]
    communication = None
    if (tree.gpu_class == GpuClass.COMMUNICATION).any():
        noted = label.get("collected")
        communication = _COMMUNICATION.get(label["source"]["kind"], "recorded")
        if isinstance(noted, dict) and noted.get("collectives"):
            communication = str(noted["collectives"])
    return {key: label.get(key) for key in LABEL_COLUMNS} | {
        "family": said.get("family"),
        "mode": said.get("mode"),
        "base": label["source"]["base"],
        "source": label["source"]["kind"],
        "communication_source": communication,
        "virtual_platform": bool(said.get("virtual")),
        "dtype": said.get("dtype"),
        "batch": int(said["batch"]) if "batch" in said else None,
        "label": label["type"] is not None,
        "costs": costs,
        "length_ns": end_ns - start_ns,
        "step_ns": [step.end_ns - step.start_ns for step in tree.steps],
        "steps": len(tree.steps),
        "gpu_event_count": counts[0],
        "host_event_count": counts[1],
        "origin_ns": origin_ns,
        "tracks": [{"pid": track.pid, "tid": track.tid} for track in table.tracks],
        "metadata": "{" + ", ".join(f"{json.dumps(k)}: {v}" for k, v in table.metadata) + "}",
    }


def _base_facts(label: Label) -> dict[str, Any]:
    """Return the name of a predicted base, or what was noted when a trace was collected."""
    source = label["source"]
    lifted = _PREDICTED_BASE.match(source["base"]) if source["kind"].startswith("lifted") else None
    if lifted:
        return {**lifted.groupdict(), "virtual": True}
    noted = label.get("collected")
    if source["kind"] != "collected" or not isinstance(noted, dict):
        return {}
    return {
        "family": source["base"],
        "mode": noted.get("mode"),
        "dtype": noted.get("precision"),
        "batch": noted["batch"],
        "virtual": noted.get("multiprocessors"),
    }
