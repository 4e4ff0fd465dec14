"""The tables of a trace as sections of the page: each with one sentence, views and charts.

A section is a row of `SECTIONS`; one that has nothing to show becomes a sentence that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtraceap.report.page import charts
from torchtraceap.report.page.document import compressed_json
from torchtraceap.report.page.table_data import table_data
from torchtraceap.report.words import format_percent, one_line
from torchtraceap.units import counted, format_bytes, format_count, format_ns

if TYPE_CHECKING:
    from torchtraceap.ranks import RankTrace
    from torchtraceap.table import ColumnTable
    from torchtraceap.trace import Trace

__all__ = ["SECTIONS", "Section", "Sections", "View", "build_sections", "pack_tables"]

MAX_ROWS = 1000  # of a table in the page
MAX_ROWS_IN_ALL = 2400  # of one table over all ranks
MAX_BYTES = 400_000  # of all tables, compressed; base64 adds a third
FEWEST_ROWS = 50

Build = Callable[["Trace", "int | None"], "ColumnTable"]
ChartOf = Callable[["ColumnTable", "RankTrace"], "charts.Chart | None"]


@dataclass(frozen=True, slots=True)
class View:
    """One table of a section."""

    key: str
    label: str
    build: Build
    """From a trace and the number of a rank; None where the trace has one rank only."""
    hint: str = ""
    """What the columns mean, in a sentence."""
    find: str = ""
    """The column whose text a click looks for in the timeline."""
    meter: str = ""
    """The share that is drawn as well as written."""
    chart: ChartOf | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Views of one subject."""

    key: str
    title: str
    views: Sequence[View]
    lead: Callable[[ColumnTable], str]
    """The one sentence that the closed section shows, from the first view with rows."""
    per_rank: bool = True
    """A table per rank; else one for all ranks."""


@dataclass(frozen=True, slots=True)
class Sections:
    """What a page needs of its sections."""

    heads: list[dict[str, Any]]
    """Titles, sentences and views, read first."""
    tables: bytes
    """The tables and charts, compressed: read when a section is opened."""
    absent: list[dict[str, str]]
    """Sections with nothing to show, and why."""


def build_sections(trace: Trace, ranks: Sequence[RankTrace]) -> Sections:
    """All sections of a trace, with the tables of the given ranks."""
    numbers = [part.rank if len(trace.ranks) > 1 else None for part in ranks]
    heads, found, absent = [], {}, []
    for section in SECTIONS:
        if section.key == "ranks" and len(trace.ranks) < 2:
            continue
        chosen = numbers if section.per_rank else [None]
        views = [(view, [view.build(trace, n) for n in chosen]) for view in section.views]
        kept = [(view, parts) for view, parts in views if any(p.num_rows for p in parts)]
        if not kept:
            notes = [note for _, parts in views for part in parts for note in part.notes]
            absent.append({"title": section.title, "why": one_line(notes[0] if notes else "", 300)})
            continue
        heads.append(_head(section, kept))
        found[section.key] = kept
    return Sections(heads, pack_tables(found, ranks), absent)


Found = dict[str, list[tuple[View, list["ColumnTable"]]]]


def _head(section: Section, kept: Sequence[tuple[View, list[ColumnTable]]]) -> dict[str, Any]:
    first = kept[0][1]
    return {
        "key": section.key,
        "title": section.title,
        "open": False,
        "leads": [one_line(section.lead(table), 300) if table.num_rows else "" for table in first],
        "views": [
            {
                "key": view.key,
                "label": view.label,
                "hint": view.hint,
                "find": view.find,
                "meter": view.meter,
            }
            for view, _ in kept
        ],
    }


def pack_tables(found: Found, ranks: Sequence[RankTrace]) -> bytes:
    """Tables and charts by section, view and rank; with fewer rows where they are too large."""
    rows = max(FEWEST_ROWS, min(MAX_ROWS, MAX_ROWS_IN_ALL // max(1, len(ranks))))
    while True:
        packed = compressed_json(
            {
                key: [_parts(view, tables, ranks, rows) for view, tables in views]
                for key, views in found.items()
            }
        )
        if len(packed) <= MAX_BYTES or rows <= FEWEST_ROWS:
            return packed
        rows = max(FEWEST_ROWS, int(rows * min(0.7, 0.9 * MAX_BYTES / len(packed))))


def _parts(
    view: View, tables: Sequence[ColumnTable], ranks: Sequence[RankTrace], rows: int
) -> list[dict[str, Any]]:
    parts = []
    for table, rank in zip(tables, ranks, strict=False):
        data = table_data(table, most_rows=rows, origin_ns=rank.tree.profiled[0])
        data["chart"] = view.chart(table, rank) if view.chart and table.num_rows else None
        parts.append(data)
    return parts


# ---------------------------------------------------------------------------------- sentences


def _first(table: ColumnTable, *names: str) -> list[Any]:
    few = table.take(slice(0, 1))
    return [few.to_list(name)[0] for name in names]


def _top(table: ColumnTable, what: str, name: str, share: str = "busy_share") -> str:
    """The first row, and how many there are."""
    first, part = _first(table, name, share)
    count = counted(table.num_rows, what)
    if not part:
        return count
    return f"{one_line(first or '', 80)} has {format_percent(part)} of the GPU's time; {count}"


def _modules_lead(table: ColumnTable) -> str:
    own, names = table.to_list("own_gpu_ns"), table.to_list("name")
    most = max(range(len(own)), key=lambda i: own[i] or 0)
    what = "recorded range" if table.facts.get("source") == "annotations" else "module"
    busy = table.facts.get("busy_ns")
    count = counted(table.num_rows, what)
    if not own[most] or not busy:
        return count
    share = format_percent(own[most] / busy)
    return f"{one_line(names[most] or '', 80)} has {share} of the GPU's time itself; {count}"


def _roofline_lead(table: ColumnTable) -> str:
    facts = table.facts
    covered, reached = facts.get("modelled_share"), facts.get("roofline_share")
    if not covered:
        return "No operator that has GPU time could be modelled"
    lead = f"Models cover {format_percent(covered)} of the GPU's time"
    if reached is None:
        return f"{lead}; what the device could do is not known"
    return f"{lead}, which runs at {format_percent(reached)} of what {facts.get('device')} could do"


def _launches_lead(table: ColumnTable) -> str:
    facts = table.facts
    calls, host_ns = facts.get("calls") or 0, facts.get("host_ns") or 0
    lead = f"{counted(calls, 'call')} kept the host busy for {format_ns(host_ns)}"
    if short := facts.get("short"):
        return f"{lead}; {format_count(short)} GPU events are shorter than their call"
    return lead


def _memory_lead(table: ColumnTable) -> str:
    if "direction" not in table.columns:
        calls = sum(value or 0 for value in table.to_list("count"))
        return counted(calls, "allocator call")
    sizes, times = table.to_list("total_bytes"), table.to_list("time_ns")
    moved = f"{format_bytes(sum(size or 0 for size in sizes))} copied or set"
    return f"{moved} in {format_ns(round(sum(times)))}"


def _host_lead(table: ColumnTable) -> str:
    facts = table.facts
    idle_ns, profiled_ns = facts.get("idle_ns") or 0, facts.get("profiled_ns")
    first = one_line(_first(table, table.shown[0])[0] or "", 80)
    if "top_op" in table.columns and (op := _first(table, "top_op")[0]):
        first = f"{first} is mostly in {one_line(op, 80)}"
    elif "top_op" in table.columns:
        first = counted(table.num_rows, "thread")
    return (
        first if idle_ns == profiled_ns else f"While the GPU idles ({format_ns(idle_ns)}), {first}"
    )


def _steps_lead(table: ColumnTable) -> str:
    jitter = table.facts.get("jitter") or {}
    count, median = jitter.get("steps"), jitter.get("median_ns")
    if not count or not median:
        return counted(table.num_rows, "step")
    lead = f"Median {format_ns(round(median))} over {counted(count, 'whole step')}"
    if (outliers := jitter.get("outliers") or 0) > 0:
        return f"{lead}, {outliers} of them unusual"
    return lead


def _collectives_lead(table: ColumnTable) -> str:
    share = table.facts.get("wait_share")
    lead = counted(table.num_rows, "collective")
    return lead if share is None else f"{lead}; {format_percent(share)} of their time is waiting"


def _ranks_lead(table: ColumnTable) -> str:
    late = table.to_list("lateness_ns")
    verdicts = [verdict or "" for verdict in table.to_list("verdict")]
    most = max(range(len(late)), key=lambda i: late[i] or 0)
    if all(verdict == "on time" for verdict in verdicts) or not late[most]:
        return f"{counted(table.num_rows, 'rank')}, none of them late"
    number, cause = table.to_list("rank")[most], table.to_list("cause")[most]
    because = f", because of its {cause}" if cause and verdicts[most] == "straggler" else ""
    return f"Rank {number} comes {format_ns(late[most])} late for collectives{because}"


def _path_lead(table: ColumnTable) -> str:
    shares = table.facts.get("bound_shares") or {}
    names = {key: charts.BOUND_FILLS.get(key, ("", key))[1] for key in shares}
    parts = [f"{names[key]} {format_percent(share)}" for key, share in shares.items()]
    return f"{format_ns(table.facts.get('total_ns') or 0)}: {', '.join(parts[:3])}"


# ---------------------------------------------------------------------------------- the sections

_OWN_TIME = (
    "Exclusive: every instant of GPU time belongs to one event, so that the column sums to the "
    "time that the GPU is busy. Subtree: with everything launched below."
)

SECTIONS: tuple[Section, ...] = (
    Section(
        "operators",
        "Operators",
        (
            View(
                "name",
                "by name",
                lambda trace, rank: trace.ops(rank=rank),
                _OWN_TIME,
                find="name",
                meter="busy_share",
            ),
            View(
                "category",
                "by family",
                lambda trace, rank: trace.ops(by="category", rank=rank),
                meter="busy_share",
            ),
            View(
                "args",
                "by shapes",
                lambda trace, rank: trace.ops(by="args", rank=rank),
                _OWN_TIME,
                find="name",
                meter="busy_share",
            ),
        ),
        lambda table: _top(table, "operator", "name"),
    ),
    Section(
        "modules",
        "Modules",
        (
            View(
                "module",
                "outline",
                lambda trace, rank: trace.modules(rank=rank),
                "GPU time with and without (own) the modules below, backward included.",
                find="outline",
                meter="busy_share",
            ),
        ),
        _modules_lead,
    ),
    Section(
        "kernels",
        "Kernels",
        (
            View(
                "canonical",
                "by short name",
                lambda trace, rank: trace.kernels(by="canonical", rank=rank),
                "Names without template arguments and numbers; copies and memsets too.",
                meter="busy_share",
            ),
            View(
                "name",
                "by full name",
                lambda trace, rank: trace.kernels(rank=rank),
                find="name",
                meter="busy_share",
            ),
            View(
                "short",
                "short ones",
                lambda trace, rank: trace.short_kernels(rank=rank),
                meter="busy_share",
            ),
            View(
                "sequences",
                "sequences",
                lambda trace, rank: trace.sequences(rank=rank),
                "Kernels that follow each other over and over, and what fusing them would remove.",
            ),
        ),
        lambda table: _top(table, "kernel", "canonical"),
    ),
    Section(
        "roofline",
        "Roofline",
        (
            View(
                "args",
                "by shapes",
                lambda trace, rank: trace.roofline(rank=rank),
                find="name",
                meter="roofline_share",
                chart=lambda table, rank: charts.roofline(table, _device(rank)),
            ),
            View(
                "family",
                "by family",
                lambda trace, rank: trace.roofline(by="family", rank=rank),
                meter="roofline_share",
            ),
        ),
        _roofline_lead,
    ),
    Section(
        "launches",
        "Launches",
        (
            View(
                "call",
                "by call",
                lambda trace, rank: trace.launches(rank=rank),
                "Delay: from the call to the start on the GPU. Queue: launches that wait.",
                find="call",
            ),
            View("kernel", "by kernel", lambda trace, rank: trace.launches(by="kernel", rank=rank)),
            View("stream", "by stream", lambda trace, rank: trace.launches(by="stream", rank=rank)),
        ),
        _launches_lead,
    ),
    Section(
        "memory",
        "Copies and memory",
        (
            View(
                "direction",
                "copies",
                lambda trace, rank: trace.memory(rank=rank),
                "Exposed: while nothing else runs on the GPU.",
            ),
            View(
                "allocator",
                "allocator calls",
                lambda trace, rank: trace.memory(by="allocator", rank=rank),
                find="call",
            ),
        ),
        _memory_lead,
    ),
    Section(
        "host",
        "Host threads",
        (
            View("thread", "by thread", lambda trace, rank: trace.host(rank=rank)),
            View(
                "op",
                "by event",
                lambda trace, rank: trace.host(by="op", rank=rank),
                "Self time on the host, and the part of it in which the GPU had nothing to do.",
                find="name",
                meter="idle_share",
            ),
            View(
                "frame",
                "by Python frame",
                lambda trace, rank: trace.host(by="frame", rank=rank),
                find="name",
                meter="idle_share",
            ),
        ),
        _host_lead,
    ),
    Section(
        "steps",
        "Step times",
        (
            View(
                "step",
                "steps",
                lambda trace, rank: trace.steps(rank=rank),
                chart=lambda table, rank: charts.steps(table, rank.tree.profiled[0]),
            ),
        ),
        _steps_lead,
    ),
    Section(
        "collectives",
        "Collectives",
        (
            View(
                "collective",
                "collectives",
                lambda trace, _: trace.collectives(),
                "Transfer: from the last arrival to the end. Wait: what comes before it.",
                chart=lambda table, _: charts.collective_waits(table),
            ),
        ),
        _collectives_lead,
        per_rank=False,
    ),
    Section(
        "ranks",
        "Trace compared",
        (
            View(
                "rank",
                "by rank",
                lambda trace, _: trace.ranks_table(),
                chart=lambda table, _: charts.lateness(table),
            ),
            View(
                "op",
                "equal operators",
                lambda trace, _: trace.ranks_table(by="op"),
                find="name",
            ),
            View(
                "alltoall",
                "all-to-all",
                lambda trace, _: trace.ranks_table(by="alltoall"),
                meter="share",
                chart=lambda table, _: charts.rank_to_rank(table),
            ),
            View("clock", "clocks", lambda trace, _: trace.ranks_table(by="clock")),
        ),
        _ranks_lead,
        per_rank=False,
    ),
    Section(
        "path",
        "Critical path",
        (
            View(
                "cause",
                "by cause",
                lambda trace, _: trace.critical_path(),
                "The chain of work that decided when the time ended: making anything else faster "
                "gains nothing. It has a lane of its own in the timeline.",
                meter="time_share",
                chart=lambda table, _: charts.path_shares(table),
            ),
            View(
                "name",
                "by name",
                lambda trace, _: trace.critical_path(by="name"),
                find="name",
                meter="time_share",
            ),
        ),
        _path_lead,
        per_rank=False,
    ),
)


def _device(rank: RankTrace) -> str:
    return ", ".join(sorted({device.name for device in rank.table.devices if device.name}))
