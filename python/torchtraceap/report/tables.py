"""Tables for the terminal, for JSON and for files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.report.words import (
    cells,
    format_percent,
    headings,
    one_line,
)
from torchtraceap.units import format_bytes, format_count, format_ns

if TYPE_CHECKING:
    import pandas as pd

    from torchtraceap.ranks import RankTrace
    from torchtraceap.results import Summary, Timeline
    from torchtraceap.table import ColumnTable
    from torchtraceap.trace import Trace

__all__ = [
    "Table",
    "choose_events",
    "events_for_reading",
    "events_table",
    "render_table",
    "summary_tables",
    "table_for_reading",
    "tree_table",
    "write_csv",
    "write_parquet",
]

MIN_COLUMN = 12  # a column is cut down to this
MAX_NOTES = 10  # under a table for reading
JSON_ROWS = 20_000  # rows encoded at once


@dataclass(frozen=True, slots=True)
class Table:
    """Named columns and rows of plain values."""

    title: str
    columns: tuple[str, ...]
    rows: Iterable[Sequence[Any]]
    note: str = ""

    def write_json(self, stream: IO[str]) -> None:
        """Writes the document `torchtraceap.table/1`, a piece at a time."""
        head = {"schema": "torchtraceap.table/1", "columns": list(self.columns)}
        stream.write(json.dumps(head, separators=(",", ":"))[:-1] + ',"rows":[')
        first = True
        for piece in _pieces(self.rows, JSON_ROWS):
            text = json.dumps(piece, separators=(",", ":"), allow_nan=False)[1:-1]
            stream.write(text if first else "," + text)
            first = False
        stream.write("]}")


def _pieces(rows: Iterable[Sequence[Any]], size: int) -> Iterator[list[Sequence[Any]]]:
    piece: list[Sequence[Any]] = []
    for row in rows:
        piece.append(row)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece


def render_table(table: Table, *, bold: bool = False, width: int = 0) -> str:
    """A table for reading: numbers to the right, the first wide column cut to the width."""
    rows = [[str(cell) for cell in row] for row in table.rows]
    widths = [cells(name) for name in table.columns]
    for row in rows:
        widths = [max(w, cells(cell)) for w, cell in zip(widths, row, strict=True)]
    widths = _fit(widths, width)
    right = [bool(rows) and all(_is_figure(row[i]) for row in rows) for i in range(len(widths))]
    lines = [_row(table.columns, widths, right)]
    if bold:
        lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
    lines += [_row(row, widths, right) for row in rows]
    head = [table.title] if table.title else []
    return "\n".join([*head, *lines, *([table.note] if table.note else [])])


def _fit(widths: list[int], width: int) -> list[int]:
    """Takes what is too wide from the widest columns, each down to the next widest."""
    excess = sum(widths) + 2 * (len(widths) - 1) - width if width else 0
    fitted = list(widths)
    while excess > 0 and max(fitted, default=0) > MIN_COLUMN:
        fitted[fitted.index(max(fitted))] -= 1
        excess -= 1
    return fitted


def _is_figure(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "-−<—" or not text


def _row(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = []
    for text, width, to_right in zip(row, widths, right, strict=True):
        cut = text if cells(text) <= width else one_line(text, width)
        gap = " " * (width - cells(cut))
        parts.append(gap + cut if to_right else cut + gap)
    return "  ".join(parts).rstrip()


# ---------------------------------------------------------------------------------- any table


def table_for_reading(
    table: ColumnTable, *, limit: int | None = None, every_column: bool = False
) -> Table:
    """Any table as a person reads it: times, sizes and shares with units, the first rows."""
    names = table.columns if every_column else table.shown
    shown = table if limit is None else table.take(slice(0, limit))
    columns = [[_cell(name, value) for value in shown.to_list(name)] for name in names]
    left = table.num_rows - shown.num_rows
    rows = list(zip(*columns, strict=True))
    more = [f"{format_count(left)} more row{'s'[: left > 1]} (--limit, --csv)"] if left else []
    notes = [one_line(note, 400) for note in table.notes]
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"{len(notes) - MAX_NOTES} more notes (--json)"]
    note = "\n".join([*more, *notes])
    return Table("", headings(names), rows, note)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return one_line(", ".join(value), 60)
    if isinstance(value, (list, dict)):
        return one_line(json.dumps(value), 60)
    if isinstance(value, str):
        return one_line(value, 100)
    if name.endswith("_ns"):
        return format_ns(round(value))
    if name.endswith("_share"):
        return format_percent(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


# ---------------------------------------------------------------------------------- summary

_TIMELINE_HEAD = ("span", "busy", "compute", "exposed comm.", "exposed copies", "idle")


def _timeline_cells(timeline: Timeline) -> tuple[str, ...]:
    parts = (
        timeline.busy_ns,
        timeline.compute_ns,
        timeline.exposed_communication_ns,
        timeline.exposed_memcpy_ns,
        timeline.idle_ns,
    )
    return format_ns(timeline.span_ns), *(format_percent(timeline.share(ns)) for ns in parts)


def summary_tables(summary: Summary) -> list[Table]:
    """What `torchtraceap summary` prints."""
    return [
        _file_table(summary),
        Table("Events", ("category", "events"), _category_rows(summary)),
        Table("GPU time", ("of", *_TIMELINE_HEAD), _timeline_rows(summary)),
        *_diagnostic_tables(summary),
    ]


def _file_table(summary: Summary) -> Table:
    rows = [
        (one_line(f.path, 100), _or_dash(f.rank), _or_dash(f.world_size)) for f in summary.files
    ]
    events = summary.events
    note = (
        f"{format_count(events.total)} objects, {format_count(events.complete)} complete events, "
        f"{format_count(events.gpu)} on the GPU, {format_count(events.gpu_orphan)} of them "
        "without a launch"
    )
    return Table("", ("file", "rank", "world"), rows, note)


def _or_dash(value: object) -> str:
    return "—" if value is None else str(value)


def _category_rows(summary: Summary) -> list[tuple[str, str]]:
    ordered = sorted(summary.events.by_category.items(), key=lambda item: (-item[1], item[0]))
    shown = [(one_line(name, 40) or "(none)", format_count(count)) for name, count in ordered[:20]]
    rest = sum(count for _, count in ordered[20:])
    return [*shown, ("(others)", format_count(rest))] if rest else shown


MAX_STEP_ROWS = 20


def _timeline_rows(summary: Summary) -> list[tuple[str, ...]]:
    several = len(summary.ranks) > 1
    rows = [("all ranks" if several else "whole trace", *_timeline_cells(summary.timeline))]
    if several:
        rows += [(f"rank {r.rank}", *_timeline_cells(r.timeline)) for r in summary.ranks]
    for device in summary.devices if len(summary.devices) > 1 else ():
        where = f"rank {device.rank} " if several else ""
        name = one_line(f"{where}GPU {_or_dash(device.device)} {device.name or ''}", 40)
        rows.append((name, *_timeline_cells(device.timeline)))
    for step in summary.steps[:MAX_STEP_ROWS]:
        where = f"rank {step.rank} " if several else ""
        rows.append((one_line(where + step.name, 40), *_timeline_cells(step.timeline)))
    if len(summary.steps) > MAX_STEP_ROWS:
        more = len(summary.steps) - MAX_STEP_ROWS
        rows.append((f"{more} more steps", *[""] * len(_TIMELINE_HEAD)))
    return rows


def _diagnostic_tables(summary: Summary) -> list[Table]:
    if not summary.diagnostics:
        return []
    rows = [(format_count(d.count), d.code, one_line(d.message, 200)) for d in summary.diagnostics]
    return [Table("Quality of the data", ("count", "code", "what"), rows)]


# ---------------------------------------------------------------------------------- events

_READING = ("start", "duration", "kind", "name", "where")
_NUMBERS = ("ts_ns", "dur_ns", "device", "stream", "correlation", "external_id")


@dataclass(frozen=True, slots=True)
class ChosenEvents:
    """Rows of each rank, in the order in which they are shown."""

    trace: Trace
    parts: list[tuple[RankTrace, npt.NDArray[np.int64]]]
    several: bool
    with_args: bool


def choose_events(
    trace: Trace,
    *,
    rank: int | None = None,
    name: str = "",
    kind: str = "",
    longest: bool = False,
    limit: int | None = None,
    with_args: bool = False,
) -> ChosenEvents:
    """Picks events.

    Args:
        trace: Where from.
        rank: Only this rank.
        name: Only events whose name holds this, in any case.
        kind: Only events of this kind.
        longest: Order by duration, longest first.
        limit: At most so many, over all ranks together.
        with_args: Files get a column with the JSON of `args` too.
    """
    kinds = _core.kind_names()
    if kind and kind not in kinds:
        raise OptionError(f"--kind: there is no {kind!r}; there are {', '.join(kinds)}")
    ranks = trace.ranks if rank is None else (trace.rank(rank),)
    parts = [(part, _matching(part.table, name, kind, kinds)) for part in ranks]
    if longest:
        parts = [(p, rows[np.argsort(-p.table.dur_ns[rows], kind="stable")]) for p, rows in parts]
    if limit is not None:
        parts = _limited(parts, limit, longest)
    return ChosenEvents(trace, parts, len(trace.ranks) > 1, with_args)


def _matching(
    table: _core.EventTable, name: str, kind: str, kinds: Sequence[str]
) -> npt.NDArray[np.int64]:
    mask = np.ones(len(table), dtype=bool)
    if kind:
        mask &= table.kind == kinds.index(kind)
    if name:
        wanted = name.lower()
        hits = [i for i, text in enumerate(table.strings) if wanted in text.lower()]
        mask &= np.isin(table.name, np.array(hits, dtype=np.uint32))
    return np.flatnonzero(mask)


def _limited(
    parts: list[tuple[RankTrace, npt.NDArray[np.int64]]], limit: int, longest: bool
) -> list[tuple[RankTrace, npt.NDArray[np.int64]]]:
    """The first `limit` rows over all ranks; with `longest` the longest of all."""
    if not longest:
        kept, left = [], limit
        for part, rows in parts:
            kept.append((part, rows[:left]))
            left -= len(kept[-1][1])
        return kept
    lengths = np.concatenate([part.table.dur_ns[rows] for part, rows in parts])
    owner = np.repeat(np.arange(len(parts)), [len(rows) for _, rows in parts])
    best = np.argsort(-lengths, kind="stable")[:limit]
    counts = np.bincount(owner[best], minlength=len(parts))
    return [(part, rows[:n]) for (part, rows), n in zip(parts, counts, strict=True)]


def events_table(chosen: ChosenEvents) -> Table:
    """The chosen events with every column, for JSON."""
    lead = ("rank", "row") if chosen.several else ("row",)
    names = ("name", "category", "kind", "phase", "pid", "tid", *_NUMBERS, "args")
    return Table("events", (*lead, *names), _json_rows(chosen))


def _json_rows(chosen: ChosenEvents) -> Iterator[list[Any]]:
    kinds = _core.kind_names()
    for part, rows in chosen.parts:
        table = part.table
        strings, tracks = table.strings, table.tracks
        numbers = [_optional(table, name) for name in _NUMBERS]
        for row in rows.tolist():
            category = int(table.category[row])
            track = tracks[int(table.track[row])]
            lead = [part.rank, row] if chosen.several else [row]
            yield [
                *lead,
                strings[int(table.name[row])],
                None if category == _core.NO_STRING else strings[category],
                kinds[int(table.kind[row])],
                chr(int(table.phase[row])),
                track.pid,
                track.tid,
                *(
                    None if column[row] == absent else int(column[row])
                    for column, absent in numbers
                ),
                _args_of(table, row),
            ]


_SAFE_NESTING = 100  # far below Python's recursion limit


def _args_of(table: _core.EventTable, row: int) -> Any:
    """The `args`; as text where they are nested too deep for Python's reader and writer."""
    text = table.args_json(row)
    try:
        args = json.loads(text, strict=False)
        if text.count("[") + text.count("{") > _SAFE_NESTING:
            json.dumps([[[[args]]]])  # a row within rows
    except RecursionError:
        return text
    return args


def _optional(table: _core.EventTable, name: str) -> tuple[npt.NDArray[Any], int | None]:
    """A column, and the value that stands for "absent" in it."""
    absent = {"device": -1, "ts_ns": None, "dur_ns": None}.get(name, _core.NO_ID)
    return getattr(table, name), absent


def events_for_reading(chosen: ChosenEvents) -> Table:
    """The chosen events with the columns that a person reads."""
    rows: list[tuple[str, ...]] = []
    kinds = _core.kind_names()
    for part, picked in chosen.parts:
        table = part.table
        origin = part.tree.profiled[0]
        for row in picked.tolist():
            rows.append(
                (
                    format_ns(int(table.ts_ns[row]) - origin),
                    format_ns(int(table.dur_ns[row])),
                    kinds[int(table.kind[row])],
                    one_line(table.name_of(row), 100),
                    _place(part, row, chosen.several),
                )
            )
    note = "" if rows else "no event matches"
    return Table("", _READING, rows, note)


def _place(part: RankTrace, row: int, several: bool) -> str:
    table = part.table
    where = f"rank {part.rank} " if several else ""
    stream = int(table.stream[row])
    if stream != _core.NO_ID:
        return f"{where}stream {stream}"
    track = table.tracks[int(table.track[row])]
    return where + one_line(f"thread {track.tid}", 40)


def _frame(chosen: ChosenEvents) -> pd.DataFrame:
    import pandas as pd

    frames = []
    for part, rows in chosen.parts:
        frame = chosen.trace.events(part.rank if chosen.several else None).to_pandas(rows)
        frame.insert(0, "row", rows)
        if chosen.several:
            frame.insert(0, "rank", part.rank)
        if chosen.with_args:
            frame["args"] = [part.table.args_json(row) for row in rows.tolist()]
        frames.append(frame)
    if len(frames) == 1:
        return frames[0]
    return pd.concat([f.astype(dict.fromkeys(_texts(f), "str")) for f in frames], ignore_index=True)


def _texts(frame: pd.DataFrame) -> list[str]:
    return [name for name in frame.columns if str(frame[name].dtype) == "category"]


def write_csv(chosen: ChosenEvents, path: Path) -> None:
    """Writes the chosen events as CSV, UTF-8."""
    _frame(chosen).to_csv(path, index=False, lineterminator="\n", errors="replace")


def write_parquet(chosen: ChosenEvents, path: Path) -> None:
    """Writes the chosen events as Parquet; needs pyarrow."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "Parquet needs pyarrow: pip install 'torchtraceap[arrow]'"
        ) from None
    _frame(chosen).to_parquet(path, index=False)


# ---------------------------------------------------------------------------------- tree

_TREE_COLUMNS = (
    "row",
    "parent",
    "depth",
    "kind",
    "name",
    "start_ns",
    "duration_ns",
    "thread",
    "stream",
    "phase",
)


def tree_table(
    part: RankTrace,
    *,
    step: str | int | None = None,
    max_depth: int = 6,
    min_duration_ns: int = 0,
    kernels: bool = True,
) -> Table:
    """The tree of one rank as rows by time; a GPU event's parent is the call that launched it.

    Args:
        part: The rank.
        step: Only what starts in this step, by name or by place (0 is the first).
        max_depth: Deepest level of host calls.
        min_duration_ns: Leave shorter host events out.
        kernels: List GPU events too.
    """
    rows = _tree_rows(part, _step_bounds(part, step), max_depth, min_duration_ns, kernels)
    return Table("tree", _TREE_COLUMNS, _tree_cells(part, rows))


def _step_bounds(part: RankTrace, step: str | int | None) -> tuple[int, int] | None:
    if step is None:
        return None
    steps = part.tree.steps
    for place, candidate in enumerate(steps):
        if step in (candidate.name, place):
            return candidate.start_ns, candidate.end_ns
    known = ", ".join(candidate.name for candidate in steps[:8]) or "none"
    raise OptionError(f"no step {step!r} in this trace; there are: {known}")


def _tree_rows(
    part: RankTrace,
    bounds: tuple[int, int] | None,
    max_depth: int,
    min_duration_ns: int,
    kernels: bool,
) -> npt.NDArray[np.int64]:
    table, tree = part.table, part.tree
    host = tree.host_rows.astype(np.int64)
    keep = tree.depth[host] <= max_depth
    keep &= table.dur_ns[host] >= min_duration_ns
    rows = host[keep]
    if kernels:
        rows = np.concatenate([rows, tree.gpu_rows.astype(np.int64)])
    if bounds is not None:
        # A GPU event belongs to the step that launched it, whenever it runs.
        launch = tree.launch[rows].astype(np.int64)
        asked = np.where(launch == _core.NO_ROW, rows, launch)
        start = table.ts_ns[asked]
        rows = rows[(start >= bounds[0]) & (start < bounds[1])]
    return np.sort(rows)


def _tree_cells(part: RankTrace, rows: npt.NDArray[np.int64]) -> Iterator[list[Any]]:
    table, tree = part.table, part.tree
    strings, tracks = table.strings, table.tracks
    kinds, phases = _core.kind_names(), _core.phase_names()
    parent, launch, depth, phase = tree.parent, tree.launch, tree.depth, tree.phase
    gpu = tree.gpu_class
    for row in rows.tolist():
        on_gpu = bool(gpu[row])
        above = int(launch[row] if on_gpu else parent[row])
        stream = int(table.stream[row])
        yield [
            row,
            None if above == _core.NO_ROW else above,
            None if on_gpu else int(depth[row]),
            kinds[int(table.kind[row])],
            strings[int(table.name[row])],
            int(table.ts_ns[row]),
            int(table.dur_ns[row]),
            None if on_gpu else tracks[int(table.track[row])].tid,
            None if stream == _core.NO_ID else stream,
            phases[int(phase[row])],
        ]
