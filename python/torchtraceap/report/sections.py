"""The tables of a trace as sections of the page: each with one sentence, views and charts.

A section is a row of `SECTIONS`; each table names its views there. A section that has nothing to
show becomes a sentence with the reason.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from torchtraceap.core.formatting import (
    format_bytes,
    format_count,
    format_ns,
    format_part,
    format_percent,
    one_line,
    pluralize,
)
from torchtraceap.core.records import dataclass
from torchtraceap.report import charts
from torchtraceap.report.document import compressed_json, table_data
from torchtraceap.tables.catalog import TABLES, table_spec
from torchtraceap.tables.steps.iterations import is_served

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["SECTIONS", "Section", "Sections", "build_sections"]

MAX_ROWS = 1000  # rows of a table in the page
MAX_ROWS_IN_ALL = 2400  # rows of one table over all ranks
MAX_BYTES = 400_000  # bytes of all tables, compressed; base64 adds a third
FEWEST_ROWS = 50

ChartOf = Callable[["ColumnTable", "RankTrace", int], "charts.Chart | None"]
"""Takes a table, its rank, and the rows of a table that the page now has room for."""
FLAME_NODES = 2  # nodes of a flame graph for each such row


@dataclass(frozen=True, slots=True)
class Section:
    """One subject; its views are those of the tables that name it."""

    key: str
    title: str
    lead: Callable[[ColumnTable], str]
    """The one sentence that the closed section shows, from the first view with rows."""
    charts: Mapping[str, ChartOf] = field(default_factory=dict)
    """Charts by the label of the view for which they are drawn."""


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of a page."""

    heads: list[dict[str, Any]]
    """Titles, sentences and views, read first."""
    tables: bytes
    """Tables and charts, compressed: read when a section is opened."""
    absent: list[dict[str, str]]
    """Sections with nothing to show, with the reason."""


def build_sections(trace: Ranks, ranks: Sequence[RankTrace]) -> Sections:
    """Make all sections of a trace, with the tables of the given ranks."""
    numbers = [part.rank if len(trace.ranks) > 1 else None for part in ranks]
    specs = [table_spec(name) for name in TABLES]
    heads: list[dict[str, Any]] = []
    tables: Tables = {}
    absent = []
    for section in SECTIONS:
        if section.key == "ranks" and len(trace.ranks) < 2:
            continue
        if section.key == "serving" and not all(map(is_served, ranks)):
            continue
        views = []
        for spec in specs:
            per_rank = numbers if spec.per_rank else numbers[:1]
            for view in spec.page:
                if view.section == section.key:
                    parts = [spec.make(trace, rank=rank, **view.options) for rank in per_rank]
                    views.append((view, parts))
        kept = [(view, parts) for view, parts in views if any(p.num_rows for p in parts)]
        if not kept:
            notes = [note for _, parts in views for part in parts for note in part.notes]
            absent.append({"title": section.title, "why": one_line(notes[0] if notes else "", 300)})
            continue
        leads = [one_line(section.lead(t), 300) if t.num_rows else "" for t in kept[0][1]]
        shown = [
            {
                "key": view.label,
                "label": view.label,
                "hint": view.hint,
                "find": view.find,
                "meter": view.meter,
            }
            for view, _ in kept
        ]
        heads.append(
            {
                "key": section.key,
                "title": section.title,
                "open": False,
                "leads": leads,
                "views": shown,
            }
        )
        tables[section.key] = [(section.charts.get(view.label), parts) for view, parts in kept]
    return Sections(heads, _pack_tables(tables, ranks), absent)


Tables = dict[str, list[tuple["ChartOf | None", list["ColumnTable"]]]]
"""The chart of each view and its table of each rank, by section."""


def _pack_tables(tables: Tables, ranks: Sequence[RankTrace]) -> bytes:
    """Pack tables and charts by section, view and rank; with fewer rows where they are large."""
    most = max(FEWEST_ROWS, min(MAX_ROWS, MAX_ROWS_IN_ALL // max(1, len(ranks))))
    while True:
        packed: dict[str, Any] = {}
        for key, views in tables.items():
            packed[key] = []
            for chart, of_ranks in views:
                parts = []
                for table, rank in zip(of_ranks, ranks, strict=False):
                    data = table_data(table, most_rows=most, origin_ns=rank.tree.profiled[0])
                    drawn = chart(table, rank, most) if chart and table.num_rows else None
                    parts.append(data | {"chart": drawn})
                packed[key].append(parts)
        blob = compressed_json(packed)
        if len(blob) <= MAX_BYTES or most <= FEWEST_ROWS:
            return blob
        most = max(FEWEST_ROWS, int(most * min(0.7, 0.9 * MAX_BYTES / len(blob))))


# ---------------------------------------------------------------------------------- sentences


def _first(table: ColumnTable, *names: str) -> list[Any]:
    few = table.take(slice(0, 1))
    return [few.to_list(name)[0] for name in names]


def _top(table: ColumnTable, what: str, name: str, share: str = "busy_share") -> str:
    """Describe the first row and the number of rows."""
    first, part = _first(table, name, share)
    count = pluralize(table.num_rows, what)
    if not part:
        return count
    return f"{one_line(first or '', 80)} has {format_percent(part)} of the GPU's time; {count}"


def _modules_lead(table: ColumnTable) -> str:
    own, names = table.to_list("own_gpu_ns"), table.to_list("name")
    most = max(range(len(own)), key=lambda i: own[i] or 0)
    what = "recorded range" if table.facts.get("source") == "annotations" else "module"
    busy = table.facts.get("busy_ns")
    count = pluralize(table.num_rows, what)
    if not own[most] or not busy:
        return count
    share = format_percent(own[most] / busy)
    return f"{one_line(names[most] or '', 80)} has {share} of the GPU's time itself; {count}"


def _stacks_lead(table: ColumnTable) -> str:
    """Describe the stack with the most self time and the number of stacks."""
    name, caller, share = _first(table, "name", "caller", "self_share")
    count = pluralize(table.num_rows, "stack")
    if not share:
        return count
    below = f" below {one_line(caller, 80)}" if caller else ""
    whose = "the GPU's time" if table.facts["by"] == "gpu" else "the threads' time"
    return f"{one_line(name or '', 80)}{below} has {format_percent(share)} of {whose}; {count}"


def _roofline_lead(table: ColumnTable) -> str:
    facts = table.facts
    covered, reached = facts.get("modelled_share"), facts.get("roofline_share")
    if not covered:
        return "No operator that has GPU time could be modeled"
    lead = f"Models cover {format_percent(covered)} of the GPU's time"
    if reached is None:
        return f"{lead}; what the device could do is not known"
    return f"{lead}, which runs at {format_percent(reached)} of what {facts.get('device')} could do"


def _launches_lead(table: ColumnTable) -> str:
    facts = table.facts
    calls, host_ns = facts.get("calls") or 0, facts.get("host_ns") or 0
    lead = f"{pluralize(calls, 'call')} kept the host busy for {format_ns(host_ns)}"
    if short := facts.get("short"):
        return f"{lead}; {format_count(short)} GPU events are shorter than their call"
    return lead


def _memory_lead(table: ColumnTable) -> str:
    if "direction" not in table.columns:
        calls = sum(value or 0 for value in table.to_list("count"))
        return pluralize(calls, "allocator call")
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
        first = pluralize(table.num_rows, "thread")
    return (
        first if idle_ns == profiled_ns else f"While the GPU idles ({format_ns(idle_ns)}), {first}"
    )


def _steps_lead(table: ColumnTable) -> str:
    jitter = table.facts.get("jitter") or {}
    count, median = jitter.get("steps"), jitter.get("median_ns")
    if not count or not median:
        return pluralize(table.num_rows, "step")
    lead = f"Median {format_ns(round(median))} over {pluralize(count, 'whole step')}"
    if (outliers := jitter.get("outliers") or 0) > 0:
        return f"{lead}, {outliers} of them unusual"
    return lead


def _serving_lead(table: ColumnTable) -> str:
    count = pluralize(table.num_rows, "iteration")
    lengths = [ns or 0 for ns in table.to_list("length_ns")]
    phases = Counter(phase or "not known" for phase in table.to_list("phase"))
    kinds = ", ".join(f"{number} {phase}" for phase, number in phases.most_common())
    median = format_ns(round(statistics.median(lengths)))
    return f"{count} ({kinds}), median {median}"


def _collectives_lead(table: ColumnTable) -> str:
    share = table.facts.get("wait_share")
    lead = pluralize(table.num_rows, "collective")
    return lead if share is None else f"{lead}; {format_percent(share)} of their time is waiting"


def _ranks_lead(table: ColumnTable) -> str:
    late = table.to_list("lateness_ns")
    verdicts = [verdict or "" for verdict in table.to_list("verdict")]
    most = max(range(len(late)), key=lambda i: late[i] or 0)
    if all(verdict == "on time" for verdict in verdicts) or not late[most]:
        return f"{pluralize(table.num_rows, 'rank')}, none of them late"
    number, cause = table.to_list("rank")[most], table.to_list("cause")[most]
    because = f", because of its {cause}" if cause and verdicts[most] == "straggler" else ""
    return f"Rank {number} comes {format_ns(late[most])} late for collectives{because}"


def _path_lead(table: ColumnTable) -> str:
    shares = table.facts.get("bound_shares") or {}
    parts = [f"{format_part(key)} {format_percent(share)}" for key, share in shares.items()]
    return f"{format_ns(table.facts.get('total_ns') or 0)}: {', '.join(parts[:3])}"


# ---------------------------------------------------------------------------------- the sections

SECTIONS: tuple[Section, ...] = (
    Section("operators", "Operators", lambda table: _top(table, "operator", "name")),
    Section(
        "modules",
        "Modules",
        _modules_lead,
        {"outline": lambda table, _, rows: charts.module_flame(table, FLAME_NODES * rows)},
    ),
    Section(
        "stacks",
        "Flame graph",
        _stacks_lead,
        {
            label: lambda table, rank, rows: charts.stack_flame(table, rank, FLAME_NODES * rows)
            for label in ("GPU time", "host time")
        },
    ),
    Section("kernels", "Kernels", lambda table: _top(table, "kernel", "canonical")),
    Section(
        "roofline",
        "Roofline",
        _roofline_lead,
        {"by shapes": lambda table, rank, _: charts.roofline(table, rank)},
    ),
    Section("launches", "Launches", _launches_lead),
    Section("memory", "Copies and memory", _memory_lead),
    Section("host", "Host threads", _host_lead),
    Section(
        "steps",
        "Step times",
        _steps_lead,
        {"steps": lambda table, rank, _: charts.steps(table, rank.tree.profiled[0])},
    ),
    Section(
        "serving",
        "Serving",
        _serving_lead,
        {"iterations": lambda table, rank, _: charts.iterations(table, rank)},
    ),
    Section(
        "collectives",
        "Collectives",
        _collectives_lead,
        {"collectives": lambda table, *_: charts.collective_waits(table)},
    ),
    Section(
        "ranks",
        "Ranks compared",
        _ranks_lead,
        {
            "by rank": lambda table, *_: charts.lateness(table),
            "all-to-all": lambda table, *_: charts.rank_to_rank(table),
        },
    ),
    Section(
        "path",
        "Critical path",
        _path_lead,
        {"by cause": lambda table, *_: charts.path_shares(table)},
    ),
)
