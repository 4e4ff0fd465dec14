"""The events themselves as a table, and words for rows: their thread, step and phase."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, JsonCodes, TextCodes, recode
from torchtraceap.core.table import ColumnTable, MadeColumn, stack_ranks, take_rows
from torchtraceap.errors import OptionError
from torchtraceap.tables.catalog import Option, TableSpec
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "TABLE",
    "EventRows",
    "build_events",
    "event_text",
]


_SHOWN = ("row", "since_first_ns", "dur_ns", "kind", "name", "tid", "stream")
_GPU_KINDS = (_core.EventKind.KERNEL, _core.EventKind.GPU_MEMCPY, _core.EventKind.GPU_MEMSET)
_TIMED = 3  # flags of an event with a start and a duration


class EventRows(ColumnTable):
    """Events of one rank, or of several with a column `rank`.

    Numbers of a single rank are read-only views of the core's columns.
    """

    def __init__(
        self,
        columns: Mapping[str, MadeColumn],
        sources: Sequence[tuple[_core.EventTable, Array]],
        *,
        order: Array | None = None,
        notes: Sequence[str] = (),
        batches: Sequence[ColumnTable] = (),
    ) -> None:
        shown = ("rank", *_SHOWN) if "rank" in columns else _SHOWN
        super().__init__(columns, shown=shown, notes=notes, batches=batches)
        self.sources = tuple(sources)
        """The tables that the events are of, each with its rows."""
        self._order = order

    def arg(self, key: str) -> list[str | None]:
        """Return one key of `args` for every event: strings unescaped, other values as JSON."""
        parts = (TextCodes(*table.text_codes(key, rows)) for table, rows in self.sources)
        texts = self._in_order(np.concatenate([part.to_numpy() for part in parts]))
        plain: list[str | None] = texts.tolist()
        return plain

    def int_arg(self, key: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return one key of `args` as integers `[n]`, with a mask, True where there is one."""
        parts = [table.int_column(key, rows) for table, rows in self.sources]
        values, there = (np.concatenate(column) for column in zip(*parts, strict=True))
        return self._in_order(values), self._in_order(there)

    def _in_order(self, values: Array) -> Array:
        return values if self._order is None else values[self._order]


def build_events(
    part: RankTrace,
    *,
    name: str = "",
    kind: str = "",
    longest: bool = False,
    with_args: bool = False,
) -> EventRows:
    """Build the table of `Trace.events` for one rank.

    Returns:
        Columns of the data model; `since_first_ns` counts from the first complete event.

    Raises:
        OptionError: There is no such kind.
    """
    table = part.table
    kinds = _core.kind_names()
    if kind and kind not in kinds:
        raise OptionError(f"kind must be one of {', '.join(kinds)}, not {kind!r}")
    wanted = np.ones(len(table), dtype=bool)
    if kind:
        wanted &= table.kind == kinds.index(kind)
    if name:
        hits = [name.lower() in text.lower() for text in table.strings]
        wanted &= np.array(hits, dtype=bool)[table.name]
    rows = np.flatnonzero(wanted)
    if longest:
        rows = rows[np.argsort(-table.dur_ns[rows], kind="stable")]
    columns = _all_columns(table)
    if longest or len(rows) < len(table):
        columns = {column: partial(_some, whole, rows) for column, whole in columns.items()}
    columns = {"row": rows, **columns}
    if with_args:
        columns["args"] = JsonCodes(np.arange(len(rows), dtype=np.int32), _Arguments(table, rows))
    return EventRows(columns, [(table, rows)], notes=() if len(rows) else ("No event matches.",))


def event_text(event: dict[str, Any]) -> str:
    """Return an event, whose times are integers in ns, as JSON with exact microseconds."""
    times = {key: event[key] for key in ("ts", "dur") if key in event}
    rest = {key: value for key, value in event.items() if key not in times}
    written = (f',"{key}":{ns // 1000}.{ns % 1000:03d}' for key, ns in times.items())
    return json.dumps(rest)[:-1] + "".join(written) + "}"


def _all_columns(table: _core.EventTable) -> dict[str, MadeColumn]:
    """Return all events; what is more than a view of the core is made when it is asked for."""
    return {
        "ts_ns": table.ts_ns,
        "since_first_ns": lambda: table.ts_ns - _first_ns(table),
        "dur_ns": table.dur_ns,
        "name": lambda: TextCodes(table.name.view(np.int32), table.strings),
        "category": lambda: TextCodes(table.category.view(np.int32), table.strings),
        "kind": lambda: TextCodes(table.kind.view(np.int8), _core.kind_names()),
        "phase": lambda: _letters(table.phase),
        "flags": table.flags,
        "track": table.track,
        "pid": lambda: recode(table.track, [track.pid for track in table.tracks]),
        "tid": lambda: recode(table.track, [track.tid for track in table.tracks]),
        "device": lambda: _or_absent(table.device, -1),
        "stream": lambda: _or_absent(table.stream, _core.NO_ID),
        "correlation": lambda: _or_absent(table.correlation, _core.NO_ID),
        "external_id": lambda: _or_absent(table.external_id, _core.NO_ID),
        "graph_id": partial(_argument_of_gpu_work, table, "graph id"),
        "graph_node_id": partial(_argument_of_gpu_work, table, "graph node id"),
    }


def _first_ns(table: _core.EventTable) -> int:
    """Return the start of the first complete event; 0 if there is none."""
    timed = (table.flags & _TIMED) == _TIMED
    return int(table.ts_ns[timed.argmax()]) if timed.any() else 0


def _letters(codes: Array) -> TextCodes:
    """Return a column of character codes, with the letters that occur."""
    used = np.flatnonzero(np.bincount(codes, minlength=256))
    mapping = np.zeros(256, dtype=np.int16)
    mapping[used] = np.arange(len(used))
    return TextCodes(mapping[codes], [chr(code) for code in used])


def _stack_events(
    parts: Sequence[tuple[int | None, EventRows]], *, longest: bool = False, **_: object
) -> EventRows:
    """Put the events of several ranks under each other, or the longest of all of them first."""
    sources = [source for _, events in parts for source in events.sources]
    both = stack_ranks(parts, uniform=True)
    columns: dict[str, MadeColumn] = {column: partial(both.column, column) for column in both}
    if not longest:
        return EventRows(columns, sources, notes=both.notes, batches=both.batches)
    order = np.argsort(-both["dur_ns"], kind="stable")
    columns = {column: partial(_some, whole, order) for column, whole in columns.items()}
    return EventRows(columns, sources, order=order, notes=both.notes)


def _or_absent(values: Array, absent: int) -> Array:
    return np.ma.array(values, mask=values == absent)


def _argument_of_gpu_work(table: _core.EventTable, key: str) -> Array:
    """Return an argument that Kineto writes for GPU work alone, in order of the rows."""
    rows = np.flatnonzero(np.isin(table.kind, _GPU_KINDS))
    found, there = table.int_column(key, rows)
    values = np.zeros(len(table), dtype=np.int64)
    absent = np.ones(len(table), dtype=bool)
    values[rows], absent[rows] = found, ~there
    return np.ma.array(values, mask=absent)


def _some(column: MadeColumn, rows: Array) -> Column:
    made = column if isinstance(column, (np.ndarray, TextCodes)) else column()
    return take_rows(made, rows)


class _Arguments(Sequence[str]):
    """The `args` of some events as JSON text, read when asked for: all of them would be as large
    as the file."""

    def __init__(self, table: _core.EventTable, rows: Array) -> None:
        self._table = table
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> str:  # type: ignore[override]
        return self._table.args_json(int(self._rows[place]))


TABLE = TableSpec(
    build=build_events,
    stack=_stack_events,
    options=(
        Option("name", "--name", "only events whose name holds TEXT", metavar="TEXT", default=""),
        Option(
            "kind",
            "--kind",
            "only this kind, such as kernel or cpu_op",
            metavar="KIND",
            default="",
        ),
        Option("longest", "--longest", "longest first, not by time", kind="flag", default=False),
    ),
    json_options={"with_args": True},
    sql={"events": {}},
    first=("name", "dur_ns", "kind", "since_first_ns", "row"),
)
