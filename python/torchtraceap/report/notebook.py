"""Results in Jupyter: small tables, the bar and a timeline. Every text from a trace is escaped.

Notebooks keep no style sheet of ours, so colours stand on the elements, and text has the colour of
the notebook, light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns, format_percent, one_line
from torchtraceap.diagnosis.verdict import parts_over_time
from torchtraceap.report.page.document import TEMPLATES
from torchtraceap.report.page.page import MAX_RANKS, PageSource, strip
from torchtraceap.report.result_tables import tables_of
from torchtraceap.report.view import (
    HOST_LABELS,
    BeforeAfter,
    ReportView,
    Segment,
    before_after,
    build_view,
    label_of_part,
)

if TYPE_CHECKING:
    from torchtraceap.core.results import Finding, Summary, Timeline
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.report.tables import TextTable
    from torchtraceap.simulation.simulate import Simulation
    from torchtraceap.tables.tree import TreeView
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "diagnosis_html",
    "finding_html",
    "result_html",
    "simulation_html",
    "summary_html",
    "trace_html",
    "tree_html",
]

SLOTS = 480
"""Of a timeline: each shows what most of its time goes to."""
MAX_STRIPS = 5  # findings with a line of the timeline
MAX_TREE = 60_000  # characters of a tree
LEAST_SHARE = 0.001  # of a part in a legend
BOX = "max-width:1000px"
SMALL = "font-size:85%;opacity:.75"


# ------------------------------------------------------------------------------------- results


def result_html(result: object) -> str:
    """Any result by its tables."""
    return _box("".join(map(_table_html, tables_of(result))))


def tree_html(tree: TreeView) -> str:
    """The listing, as long as a notebook takes it."""
    text = str(tree)
    more = "\n..." if len(text) > MAX_TREE else ""
    return _box(f"<pre>{escape(text[:MAX_TREE] + more)}</pre>")


def summary_html(summary: Summary) -> str:
    """The bar of GPU time, then the tables."""
    parts = _timeline_segments(summary.timeline)
    return _box(_bar(parts) + "".join(map(_table_html, tables_of(summary))))


def trace_html(trace: Ranks) -> str:
    """What the ranks do over time, and what is in the trace."""
    drawn = _timelines(trace.ranks[:MAX_RANKS])
    return _box(drawn + "".join(map(_table_html, tables_of(trace))))


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """The verdict, the bar, what the ranks do over time and where findings lie, the findings."""
    view = build_view(diagnosis)
    source = PageSource.build(diagnosis, view)
    verdict = (
        f'<p style="font-size:130%;font-weight:600;margin:.2em 0">{escape(view.headline)}</p>'
        f"<p>{escape(view.explanation)} · {escape(view.sureness)}</p>"
        + (f"<p>Recording: {escape(view.recording)}.</p>" if view.recording else "")
    )
    drawn = _timelines([source.rank(number) for number in source.shown])
    places = "".join(_places(source, number) for number in range(len(view.findings))[:MAX_STRIPS])
    return _box(verdict + _bar(view.segments) + drawn + places + _findings(view))


def finding_html(finding: Finding) -> str:
    """What costs how much, why, and the code of the fix."""
    (told,) = tables_of(finding)
    lines = "".join(f"<p>{escape(line)}</p>" for line in told.note.splitlines())
    code = f"<pre>{escape(finding.code)}</pre>" if finding.code else ""
    return _box(f"<p><b>{escape(told.title)}</b></p>{lines}{code}")


def simulation_html(simulation: Simulation) -> str:
    """Two bars for each edit that applies, then the tables."""
    bars = [
        before_after(
            edit.edit,
            simulation.measured_ns,
            edit.predicted_ns,
            edit.low_ns or 0,
            edit.high_ns or 0,
        )
        for edit in simulation.edits
        if edit.predicted_ns is not None
    ]
    tables = "".join(map(_table_html, tables_of(simulation)))
    return _box("".join(map(_before_after, bars)) + tables)


# -------------------------------------------------------------------------------------- tables


def _box(inner: str) -> str:
    return f'<div style="{BOX}">{inner}</div>'


def _table_html(table: TextTable) -> str:
    title = f"<p><b>{escape(table.title)}</b></p>" if table.title else ""
    notes = "".join(f"<p>{escape(line)}</p>" for line in table.note.splitlines())
    return title + _table(table.columns, table.rows) + notes


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    if not head:
        return ""
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _findings(view: ReportView) -> str:
    parts = [f"<p>{escape(view.replay[0].upper() + view.replay[1:])}.</p>" if view.replay else ""]
    if view.findings:
        head = ("", "finding", "cost", "share", "saves", "sure")
        rows = (
            (
                entry.number,
                entry.finding.title,
                format_ns(entry.finding.cost_ns),
                format_percent(entry.finding.cost_share),
                entry.saves,
                entry.sureness,
            )
            for entry in view.findings
        )
        parts.append(_table(head, rows))
        parts += [
            f"<details><summary>{escape(entry.finding.title)}</summary>"
            f"<p>{escape(entry.finding.why)}</p><p>{escape(entry.fix)}</p>"
            f"<pre>{escape(entry.code_after)}</pre></details>"
            for entry in view.findings
        ]
    if view.unchecked:
        lacks = ((entry.title, entry.missing) for entry in view.unchecked)
        table = _table(("could not be checked", "missing in the trace"), lacks)
        parts.append(f"<details><summary>Not checked</summary>{table}</details>")
    return "".join(parts)


# -------------------------------------------------------------------------------------- drawing


@cache
def _colours() -> dict[str, str]:
    """The colour of each part, as the page has it in the light."""
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    named: dict[str, str] = {}
    for name, value in re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6})", style):
        named.setdefault(name, value)
    fills = re.findall(r"\.fill-(\w+) \{ fill: var\((--[\w-]+)\)", style)
    return {part: named[name] for part, name in fills}


def _colour(part: str) -> str:
    colours = _colours()
    return colours.get(part, colours["unknown"])


def _rect(left: float, width: float, colour: str, title: str = "") -> str:
    hint = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{left * 100:.3f}%" width="{width * 100:.3f}%" height="100%" fill="{colour}">'
        f"{hint}</rect>"
    )


def _svg(height: int, label: str, inner: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="100%" height="{height}" '
        f'style="display:block;margin:2px 0;border-radius:3px">{inner}</svg>'
    )


def _key(part: str, label: str) -> str:
    swatch = f'<span style="color:{_colour(part)}">■</span>'
    return f'<span style="white-space:nowrap;margin-right:1.2em">{swatch} {escape(label)}</span>'


def _bar(segments: Sequence[Segment]) -> str:
    """Where the time goes, with a legend."""
    told = [part for part in segments if part.share >= LEAST_SHARE]
    if not told:
        return ""
    rects, at = [], 0.0
    for part in told:
        idle = "idle: " if part.is_idle else ""
        label = f"{idle}{part.label} {format_percent(part.share)}"
        rects.append((_rect(at, part.share, _colour(part.key), label), _key(part.key, label)))
        at += part.share
    drawn = _svg(30, "Where the time goes", "".join(rect for rect, _ in rects))
    return drawn + f'<p style="{SMALL}">{" ".join(key for _, key in rects)}</p>'


def _timeline_segments(timeline: Timeline) -> list[Segment]:
    parts = (
        ("compute", timeline.compute_ns),
        ("communication", timeline.exposed_communication_ns),
        ("memcpy", timeline.exposed_memcpy_ns),
        ("unknown", timeline.idle_ns),
    )
    return [
        Segment(key, "idle" if key == "unknown" else label_of_part(key), ns, share, False)
        for key, ns in parts
        if (share := timeline.share(ns)) > 0
    ]


def _timelines(ranks: Sequence[RankTrace]) -> str:
    """What most of each moment goes to, rank by rank, each over its own profiled time."""
    lines = []
    for rank in ranks:
        whose = f"rank {rank.rank}: " if len(ranks) > 1 else ""
        if drawn := _timeline(rank):
            length = format_ns(rank.profiled_ns)
            said = f"{escape(whose)}what most of each moment goes to, {length} in all"
            lines.append(f'<span style="{SMALL}">{said}</span>{drawn}')
    return "".join(lines)


def _timeline(rank: RankTrace) -> str:
    low, high = rank.tree.profiled
    bounds = low + np.linspace(0, high - low, SLOTS + 1).astype(np.int64)
    parts = parts_over_time(rank, bounds) if high > low else {}
    if not any(part.any() for part in parts.values()):
        return ""
    keys = list(parts)
    own = HOST_LABELS if rank.computes_on_host else {}
    labels = [own.get(key, label_of_part(key)) for key in keys]
    stacked = np.stack([parts[key] for key in keys])
    runs = _runs(np.where(stacked.any(axis=0), stacked.argmax(axis=0), -1))
    rects = "".join(
        _rect(first / SLOTS, (last - first) / SLOTS, _colour(keys[code]), labels[code])
        for code, first, last in runs
        if code >= 0
    )
    return _svg(22, "Timeline: what most of each moment goes to", rects)


def _places(source: PageSource, number: int) -> str:
    """Where a finding lies in the profiled time of the rank that pays most for it."""
    entry = source.view.findings[number]
    title = f"{entry.number}  {entry.finding.title}"
    if source.view.ranks > 1:
        title += f" (on rank {source.rank(source.dearest_rank(number)).rank})"
    drawn = "".join(_rect(at, width, _colour("finding")) for at, width in strip(source, number))
    label = f'<span style="{SMALL}">{escape(one_line(title, 120))}</span>'
    return label + _svg(8, f"Places of {title}", drawn)


def _runs(codes: Array) -> list[tuple[int, int, int]]:
    """Neighbours of one code as (code, first, one past the last)."""
    first = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    last = np.r_[first[1:], len(codes)]
    return list(zip(codes[first].tolist(), first.tolist(), last.tolist(), strict=True))


def _before_after(bars: BeforeAfter) -> str:
    between = bars.high_share - bars.low_share
    mark = (
        f'<rect x="{bars.low_share * 100:.3f}%" y="35%" width="{between * 100:.3f}%" height="30%" '
        'fill="currentColor"></rect>'
    )
    now = _svg(12, f"now {bars.before}", _rect(0, bars.before_share, _colour("launch_latency")))
    then = _svg(12, f"then {bars.after}", _rect(0, bars.after_share, _colour("compute")) + mark)
    says = f"{bars.label}: {bars.before} now, {bars.after} then ({bars.between})"
    return f"<p>{escape(says)}</p>{now}{then}"
