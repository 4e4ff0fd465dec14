"""A labeled trace as rows of the tables, and the trace again from its rows.

Note [Nothing is lost]: what is a column of its own is taken out of an event's `args`; the rest of
them stays as JSON, of which a trace has few different texts. So the event table that is made of the
rows has every event with all of its values, and everything computed from it is the same. Times in
the rows begin at 0, with the first event; `origin_ns` puts them back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind, GpuClass
from torchtraceap.core.aliases import Array
from torchtraceap.datasets.arrow import import_pyarrow, name_hash, schemas
from torchtraceap.datasets.labels import GRIDS, TYPES, costs_of, window_costs, window_labels
from torchtraceap.errors import SchemaError
from torchtraceap.tables.windows import build_windows
from torchtraceap.trace.event_table import Texts, Values, event_table
from torchtraceap.trace.ranks import RankTrace

__all__ = ["Rows", "decode_trace", "encode_trace", "label_of"]

Label = dict[str, Any]

_HOST = {"correlation": "correlation", "External id": "external_id",
         "Sequence number": "sequence_number", "Record function id": "record_function_id",
         "Ev Idx": "event_index", "Fwd thread id": "forward_thread_id", "Python id": "frame_id",
         "Python parent id": "parent_frame_id", "Addr": "address", "Bytes": "bytes",
         "Total Allocated": "bytes_allocated", "Total Reserved": "bytes_reserved"}  # fmt: skip
_GPU = {"correlation": "correlation", "External id": "external_id", "device": "device",
        "stream": "stream", "bytes": "bytes", "graph id": "graph_id",
        "graph node id": "graph_node_id"}  # fmt: skip
"""Arguments that are whole numbers, and their columns."""
_RATES = {"memory bandwidth (GB/s)": "bandwidth_gb_per_s"}
_SIZES = {"grid": "grid", "block": "block"}
_COLUMNS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
"""Members of events that have columns of their own."""
_NARROW = frozenset({"device"})
_PREDICTED_BASE = re.compile(
    r"(?P<task>\w+): (?P<family>\w+), .*batch (?P<batch>\d+), .*?, (?P<mode>training|inference), "
    r"(?P<dtype>\w+) on "
)
"""The form of the names of predicted bases."""
_GPU_CLASSES = {GpuClass.COMMUNICATION: "communication", GpuClass.MEMCPY: "copy"}


@dataclass(frozen=True)
class Rows:
    """The rows of one trace, by table."""

    trace: dict[str, Any]
    gpu_events: Any
    """Arrow tables."""
    host_events: Any
    windows: Any
    names: dict[int, tuple[str, str]]
    """Name and class by hash."""


def encode_trace(part: RankTrace, label: Label) -> Rows:
    """The rows of a trace.

    Args:
        part: The trace.
        label: The label as `generate` writes it; `costs` may hold intervals of several types.

    Raises:
        SchemaError: A label has an unknown type of fault, or the trace has too many tracks.
    """
    table, tree = part.table, part.tree
    timed = (table.flags & _core.HAS_TIME) != 0
    origin_ns = int(table.ts_ns[timed].min()) if timed.any() else 0
    events = json.loads(_core.trace_json(table))["traceEvents"]
    on_gpu = np.zeros(len(table), dtype=bool)
    on_gpu[tree.gpu_rows] = True
    names = _Names(part)
    both = [
        _event_rows(part, events, np.flatnonzero(rows), origin_ns, names, label["id"], kind)
        for kind, rows in (("gpu_events", on_gpu), ("host_events", ~on_gpu))
    ]
    trace = _trace_row(part, label, origin_ns, [len(rows) for rows in both])
    gpu_events, host_events = both
    return Rows(trace, gpu_events, host_events, _windows(part, label, origin_ns), names.known)


class _Names:
    """Hashes of a trace's names, and what is known of each that is asked for."""

    def __init__(self, part: RankTrace) -> None:
        self._part, self.known = part, dict[int, tuple[str, str]]()

    def hashes(self, rows: Array) -> Array:
        """int64 `[n]`, of the names of rows."""
        codes, first, place = np.unique(
            self._part.table.name[rows], return_index=True, return_inverse=True
        )
        if not len(codes):
            return np.zeros(0, dtype=np.int64)
        found = [self._hash(int(row)) for row in rows[first]]
        hashes: Array = np.array(found, dtype=np.int64)[place]
        return hashes

    def _hash(self, row: int) -> int:
        name = self._part.table.name_of(row)
        number = name_hash(name)
        known = self.known.setdefault(number, (name, self._class_of(row)))
        if known[0] != name:
            raise SchemaError(f"two names have one hash: {name!r} and {known[0]!r}")
        return number

    def _class_of(self, row: int) -> str:
        gpu_class = GpuClass(int(self._part.tree.gpu_class[row]))
        kind = EventKind(int(self._part.table.kind[row]))
        return _GPU_CLASSES.get(gpu_class, kind.name.lower())


def _event_rows(
    part: RankTrace,
    events: Sequence[dict[str, Any]],
    rows: Array,
    origin_ns: int,
    names: _Names,
    trace: str,
    kind: str,
) -> Any:
    """An Arrow table of some rows of an event table."""
    pa, _ = import_pyarrow()
    table, is_gpu = part.table, kind == "gpu_events"
    flags = table.flags[rows]
    columns: dict[str, Any] = {
        "trace": [trace] * len(rows),
        "phase": [chr(code) for code in table.phase[rows].tolist()],
        "start_ns": _mask(table.ts_ns[rows] - origin_ns, (flags & _core.HAS_TIME) != 0),
        "dur_ns": _mask(table.dur_ns[rows], (flags & _core.HAS_DURATION) != 0),
        "name": names.hashes(rows),
        "kind": [EventKind(code).name.lower() for code in table.kind[rows].tolist()],
        "category": [events[row].get("cat") for row in rows.tolist()],
        "track": _tracks(table, rows),
    }
    chosen = [events[row] for row in rows.tolist()]
    columns |= _arguments(chosen, _GPU if is_gpu else _HOST, is_gpu=is_gpu)
    if is_gpu:
        columns |= _launches(part, rows, origin_ns, names)
    schema = schemas()[kind]
    arrays = [_array(pa, columns[field.name], field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def _array(pa: Any, values: Any, type_: Any) -> Any:
    if isinstance(values, np.ma.MaskedArray):
        return pa.array(values.data, mask=np.ma.getmaskarray(values)).cast(type_)
    if pa.types.is_dictionary(type_):
        return pa.array(values, type=pa.string()).dictionary_encode()
    return pa.array(values, type=type_)


def _mask(values: Array, known: Array) -> Any:
    return np.ma.MaskedArray(values, mask=~known)


def _tracks(table: _core.EventTable, rows: Array) -> Array:
    if len(table.tracks) >= 1 << 15:
        raise SchemaError(f"{table.path}: has {len(table.tracks)} threads and streams, too many")
    return table.track[rows].astype(np.int16)


def _arguments(
    events: Sequence[dict[str, Any]], numbers: Mapping[str, str], *, is_gpu: bool
) -> dict[str, list[Any]]:
    """Return columns of the arguments and further members of events. See Note [Nothing is lost]."""
    takes: list[tuple[str, str, Callable[[Any], bool]]] = [
        (key, column, _is_short if column in _NARROW else _is_whole)
        for key, column in numbers.items()
    ]
    if is_gpu:
        takes += [(key, column, _is_float) for key, column in _RATES.items()]
        takes += [(key, column, _is_size) for key, column in _SIZES.items()]
    columns: dict[str, list[Any]] = {column: [] for _, column, _ in takes}
    rests: list[str | None] = []
    members: list[str | None] = []
    flows: list[int | None] = []
    for event in events:
        args = event.get("args")
        left = dict(args) if isinstance(args, dict) else {}
        for key, column, fits in takes:
            value = left.get(key)
            columns[column].append(left.pop(key) if fits(value) else None)
        rests.append(json.dumps(left) if left else None)
        more = {key: value for key, value in event.items() if key not in _COLUMNS}
        if not is_gpu:
            flows.append(more.pop("id") if _is_whole(more.get("id")) else None)
        members.append(json.dumps(more) if more else None)
    columns |= {"args": rests, "members": members}
    return columns if is_gpu else columns | {"flow_id": flows}


def _is_whole(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_short(value: Any) -> bool:
    return type(value) is int and -(2**31) <= value < 2**31


def _is_float(value: Any) -> bool:
    return type(value) is float


def _is_size(value: Any) -> bool:
    return type(value) is list and len(value) == 3 and all(map(_is_short, value))


def _launches(part: RankTrace, rows: Array, origin_ns: int, names: _Names) -> dict[str, Any]:
    """Return the columns of what launched GPU events, and of the roles of their streams."""
    table, tree = part.table, part.tree
    launch, op = tree.launch[rows].astype(np.int64), tree.op[rows].astype(np.int64)
    launched, in_op = launch != _core.NO_ROW, op != _core.NO_ROW
    op_name = np.zeros(len(rows), dtype=np.int64)
    op_name[in_op] = names.hashes(op[in_op])
    calls = np.where(launched, launch, 0)
    roles = [stream.role for stream in tree.streams]
    return {
        "op_name": _mask(op_name, in_op),
        "launch_start_ns": _mask(table.ts_ns[calls] - origin_ns, launched),
        "launch_dur_ns": _mask(table.dur_ns[calls], launched),
        "stream_role": [_role(roles, code) for code in tree.stream_of[rows].tolist()],
    }


def _role(roles: Sequence[str], code: int) -> str | None:
    return roles[code] if code < len(roles) else None


def _windows(part: RankTrace, label: Label, origin_ns: int) -> Any:
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
    return pa.table([_array(pa, columns[f.name], f.type) for f in schema], schema=schema)


# ------------------------------------------------------------------------------ labels


def _trace_row(
    part: RankTrace, label: Label, origin_ns: int, counts: Sequence[int]
) -> dict[str, Any]:
    table, tree = part.table, part.tree
    base = label["source"]["base"]
    said = _base_facts(label)
    start_ns, end_ns = tree.profiled
    costs = [
        {"type": name, "start_ns": begin - origin_ns, "end_ns": end - origin_ns}
        for name, intervals in costs_of(label).items()
        for begin, end in intervals.tolist()
    ]
    has_collectives = bool((tree.gpu_class == GpuClass.COMMUNICATION).any())
    same = ("id", "split", "task", "device", "strategy", "world_size", "rank", "run", "profiler",
            "type", "form", "decoy", "looks_like", "late_rank", "role", "twin", "cost_ns",
            "severity", "already", "seed", "licence")  # fmt: skip
    return {key: label.get(key) for key in same} | {
        "family": said.get("family"),
        "mode": said.get("mode"),
        "base": base,
        "source": label["source"]["kind"],
        "communication_source": _communication(label) if has_collectives else None,
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


def _communication(label: Label) -> str:
    """Return the origin of collectives: a predicted run, one whose graph was changed, ..."""
    noted = label.get("collected")
    if isinstance(noted, dict) and noted.get("collectives"):
        return str(noted["collectives"])
    kinds = {"lifted": "predicted", "lifted_event_space": "predicted",
             "real_graph": "transformed", "event_space": "transformed"}  # fmt: skip
    return kinds.get(label["source"]["kind"], "recorded")


def label_of(row: Mapping[str, Any]) -> Label:
    """The label of a trace again, on the trace's clock, from its row."""
    origin_ns = row["origin_ns"]
    costs: dict[str, list[list[int]]] = {}
    for cost in row["costs"]:
        interval = [cost["start_ns"] + origin_ns, cost["end_ns"] + origin_ns]
        costs.setdefault(cost["type"], []).append(interval)
    same = ("id", "split", "task", "device", "strategy", "world_size", "rank", "run", "profiler",
            "type", "form", "decoy", "looks_like", "late_rank", "role", "twin", "cost_ns",
            "severity", "already", "seed", "licence", "steps")  # fmt: skip
    return {key: row[key] for key in same} | {
        "source": {"kind": row["source"], "base": row["base"]},
        "intervals": costs.get(row["type"], []),
        "costs": costs,
    }


# ------------------------------------------------------------------------------ back


def decode_trace(
    row: Mapping[str, Any], gpu: Any, host: Any, names: Mapping[int, str], path: str = ""
) -> _core.EventTable:
    """The event table of a trace.

    Args:
        row: The row of `traces`.
        gpu: Its rows of `gpu_events`, an Arrow table.
        host: Its rows of `host_events`.
        names: Names by hash.
        path: Stands for the file in messages.

    Raises:
        SchemaError: The rows do not belong together.
    """
    both = [_Part(gpu, _GPU | _RATES | _SIZES, {}), _Part(host, _HOST, {"id": "flow_id"})]
    tracks, track = row["tracks"], _join(both, "track")[0]
    if len(track) and not 0 <= track.min() <= track.max() < len(tracks):
        raise SchemaError(f"{path}: an event is beyond the {len(tracks)} tracks of the trace")
    starts, timed = _join(both, "start_ns")
    return event_table(
        _name_column(_join(both, "name")[0], names, path),
        np.where(timed, starts + row["origin_ns"], 0),
        _join(both, "dur_ns")[0],
        category=_texts([part.texts("category") for part in both]),
        pid=[tracks[code]["pid"] for code in track.tolist()],
        tid=[tracks[code]["tid"] for code in track.tolist()],
        phase=["X"] * len(gpu) + host.column("phase").to_pylist(),
        args=_values([(part, part.args) for part in both], "args"),
        members=_values([(part, part.members) for part in both], "members"),
        metadata=json.loads(row["metadata"]),
        path=path,
    )


class _Part:
    """Rows of GPU events, or of the others, as columns of an event table."""

    def __init__(self, rows: Any, args: Mapping[str, str], members: Mapping[str, str]) -> None:
        self.rows = rows
        self.args, self.members = args, members
        """Columns by key, of numbers."""

    def numbers(self, name: str) -> tuple[Array, Array]:
        """Values `[n]`, and which events have one."""
        column = self.rows.column(name)
        known: Array = column.is_valid().to_numpy()
        values: Array = column.fill_null(0).to_numpy()
        return values, known

    def texts(self, name: str) -> Texts:
        """A column of texts."""
        column = self.rows.column(name).combine_chunks()
        codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Texts(codes, column.dictionary.to_pylist())

    def column(self, name: str | None) -> Any:
        """A masked array of numbers, or a list of sizes; of nothing where there is no column."""
        if name is None:
            rows = len(self.rows)
            return _mask(np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=bool))
        if name in _SIZES.values():
            return self.rows.column(name).to_pylist()
        return _mask(*self.numbers(name))


def _join(parts: Iterable[_Part], name: str) -> tuple[Array, Array]:
    found = [part.numbers(name) for part in parts]
    return np.concatenate([v for v, _ in found]), np.concatenate([k for _, k in found])


def _name_column(hashes: Array, names: Mapping[int, str], path: str) -> Texts:
    unique, codes = np.unique(hashes, return_inverse=True)
    try:
        return Texts(codes, [names[number] for number in unique.tolist()])
    except KeyError as error:
        raise SchemaError(f"{path}: no name has the hash {error}") from None


def _texts(parts: Sequence[Texts]) -> Texts:
    """Columns of texts behind each other."""
    codes, texts = [], list[str]()
    for part in parts:
        codes.append(np.where(part.codes >= 0, part.codes + len(texts), -1))
        texts += part.texts
    return Texts(np.concatenate(codes), texts)


def _values(parts: Sequence[tuple[_Part, Mapping[str, str]]], rest: str) -> dict[str, Values]:
    """Columns by key: those of numbers, and what is left of the events as JSON."""
    keys = dict.fromkeys(key for _, columns in parts for key in columns)
    found: dict[str, Values] = {
        key: _numbers([part.column(columns.get(key)) for part, columns in parts]) for key in keys
    }
    for key, texts in _remaining_members(_texts([part.texts(rest) for part, _ in parts])).items():
        found[key] = _merge_texts(found[key], texts) if key in found else texts
    return found


def _numbers(cells: Sequence[Any]) -> Any:
    """Return the cells of both parts: numbers, or sizes as JSON."""
    if not any(isinstance(cell, list) for cell in cells):
        values = np.concatenate([cell.data for cell in cells])
        return _mask(values, ~np.concatenate([np.ma.getmaskarray(cell) for cell in cells]))
    return _encode_json([_json(value) for cell in cells for value in _to_list(cell)])


def _remaining_members(rests: Texts) -> dict[str, Texts]:
    """Columns of objects, by key."""
    objects = [json.loads(text) for text in rests.texts]
    found: dict[str, Texts] = {}
    for key in dict.fromkeys(key for each in objects for key in each):
        column = _encode_json([json.dumps(each[key]) if key in each else None for each in objects])
        codes = np.append(column.codes, -1)[rests.codes]
        found[key] = Texts(codes, column.texts, is_json=True)
    return found


def _merge_texts(numbers: Any, texts: Texts) -> Texts:
    """Values of a key that only some events have as a number."""
    if isinstance(numbers, Texts):
        cells = [numbers.texts[code] if code >= 0 else None for code in numbers.codes.tolist()]
    else:
        cells = [_json(value) for value in _to_list(numbers)]
    for place in np.flatnonzero(texts.codes >= 0).tolist():
        cells[place] = texts.texts[texts.codes[place]]
    return _encode_json(cells)


def _to_list(cell: Any) -> list[Any]:
    """Return a column as a list, with None for masked values."""
    values: list[Any] = cell if isinstance(cell, list) else cell.tolist()
    return values


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _encode_json(cells: Sequence[str | None]) -> Texts:
    """Few different texts of JSON."""
    number: dict[str | None, int] = {None: -1}
    for cell in cells:
        number.setdefault(cell, len(number) - 1)
    codes = np.array([number[cell] for cell in cells], dtype=np.int64)
    return Texts(codes, [text for text in number if text is not None], is_json=True)
