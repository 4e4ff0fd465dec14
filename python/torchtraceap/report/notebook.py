"""Results in Jupyter: small tables, the bar and a timeline. Every text from a trace is escaped.

Notebooks keep no style sheet of ours, so colors stand on the elements, and text has the color of
the notebook, light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap.core.formatting import format_ns, format_part, format_percent, one_line
from torchtraceap.diagnosis.verdict import parts_over_time
from torchtraceap.report.document import TEMPLATES
from torchtraceap.report.page import MAX_RANKS, PageSource, strip
from torchtraceap.report.result_tables import tables_of
from torchtraceap.report.view import ReportView, Segment, before_after, build_view

if TYPE_CHECKING:
    from torchtraceap.core.results import Finding, Summary
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
"""Pieces of a timeline; each has the color of the part with most of its time."""
MAX_STRIPS = 5  # findings with a line of the timeline
MAX_TREE = 60_000  # characters of a tree
LEAST_SHARE = 0.001  # a part with less is left out of the bar
BOX = "max-width:1000px"
SMALL = "font-size:85%;opacity:.75"


# ------------------------------------------------------------------------------------- results


def result_html(result: object) -> str:
    """Show any result by its tables."""
    return _box("".join(map(_table_html, tables_of(result))))


def tree_html(tree: TreeView) -> str:
    """Show the listing of a tree, cut to the length that a notebook takes."""
    text = str(tree)
    more = "\n..." if len(text) > MAX_TREE else ""
    return _box(f"<pre>{escape(text[:MAX_TREE] + more)}</pre>")


def summary_html(summary: Summary) -> str:
    """Show the bar of GPU time, then the tables."""
    timeline = summary.timeline
    parts = (
        ("compute", format_part("compute"), timeline.compute_ns),
        ("communication", format_part("communication"), timeline.exposed_communication_ns),
        ("memcpy", format_part("memcpy"), timeline.exposed_memcpy_ns),
        ("unknown", "idle", timeline.idle_ns),
    )
    segments = [Segment(key, label, ns, timeline.share(ns), False) for key, label, ns in parts]
    return _box(_bar(segments) + "".join(map(_table_html, tables_of(summary))))


def trace_html(trace: Ranks) -> str:
    """Show a timeline of each rank, then the tables of the summary."""
    drawn = _timelines(trace.ranks[:MAX_RANKS])
    return _box(drawn + "".join(map(_table_html, tables_of(trace))))


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """Show the verdict, the bar, timelines of the ranks, places of findings, and the findings."""
    view = build_view(diagnosis)
    source = PageSource.build(diagnosis, view)
    verdict = (
        f'<p style="font-size:130%;font-weight:600;margin:.2em 0">{escape(view.headline)}</p>'
        f"<p>{escape(view.explanation)} · {escape(view.sureness)}</p>"
        + (f"<p>Recording: {escape(view.recording)}.</p>" if view.recording else "")
    )
    drawn = _timelines([source.rank(number) for number in source.shown])
    places = ""
    for number, entry in enumerate(view.findings[:MAX_STRIPS]):
        title = f"{entry.number}  {entry.finding.title}"
        if view.ranks > 1:  # the rank that pays most
            title += f" (on rank {source.rank(source.dearest_rank(number)).rank})"
        rects = (_rect(left, width, _color("finding")) for left, width in strip(source, number))
        places += f'<span style="{SMALL}">{escape(one_line(title, 120))}</span>'
        places += _svg(8, f"Places of {title}", "".join(rects))
    return _box(verdict + _bar(view.segments) + drawn + places + _findings(view))


def finding_html(finding: Finding) -> str:
    """Show the cost of a finding, its reason, and the code of the fix."""
    (table,) = tables_of(finding)
    lines = "".join(f"<p>{escape(line)}</p>" for line in table.note.splitlines())
    code = f"<pre>{escape(finding.code)}</pre>" if finding.code else ""
    return _box(f"<p><b>{escape(table.title)}</b></p>{lines}{code}")


def simulation_html(simulation: Simulation) -> str:
    """Show two bars for each edit that applies, then the tables."""
    parts = []
    for edit in simulation.edits:
        if edit.predicted_ns is None:
            continue
        bars = before_after(
            edit.edit,
            simulation.measured_ns,
            edit.predicted_ns,
            edit.low_ns or 0,
            edit.high_ns or 0,
        )
        between = bars.high_share - bars.low_share
        mark = (
            f'<rect x="{bars.low_share * 100:.3f}%" y="35%" width="{between * 100:.3f}%" '
            'height="30%" fill="currentColor"></rect>'
        )
        now = _rect(0, bars.before_share, _color("launch_latency"))
        then = _rect(0, bars.after_share, _color("compute")) + mark
        says = f"{bars.label}: {bars.before} now, {bars.after} then ({bars.between})"
        drawn = _svg(12, f"now {bars.before}", now) + _svg(12, f"then {bars.after}", then)
        parts.append(f"<p>{escape(says)}</p>{drawn}")
    return _box("".join(parts) + "".join(map(_table_html, tables_of(simulation))))


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
    parts = [f"<p>{escape(view.replay)}.</p>" if view.replay else ""]
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
        missing = ((entry.title, entry.note) for entry in view.unchecked)
        table = _table(("could not be checked", "missing in the trace"), missing)
        parts.append(f"<details><summary>Not checked</summary>{table}</details>")
    return "".join(parts)


# -------------------------------------------------------------------------------------- drawing


@cache
def _colors() -> dict[str, str]:
    """Return the color of each part in the page's light theme."""
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    named: dict[str, str] = {}
    for name, value in re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6})", style):
        named.setdefault(name, value)
    fills = re.findall(r"\.fill-(\w+) \{ fill: var\((--[\w-]+)\)", style)
    return {part: named[name] for part, name in fills}


def _color(part: str) -> str:
    colors = _colors()
    return colors.get(part, colors["unknown"])


def _rect(left: float, width: float, color: str, title: str = "") -> str:
    hint = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{left * 100:.3f}%" width="{width * 100:.3f}%" height="100%" fill="{color}">'
        f"{hint}</rect>"
    )


def _svg(height: int, label: str, inner: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="100%" height="{height}" '
        f'style="display:block;margin:2px 0;border-radius:3px">{inner}</svg>'
    )


def _bar(segments: Sequence[Segment]) -> str:
    """Draw the parts of the time as a bar with a legend."""
    rects, keys, left = [], [], 0.0
    for part in segments:
        if part.share < LEAST_SHARE:
            continue
        idle = "idle: " if part.is_idle else ""
        label = f"{idle}{part.label} {format_percent(part.share)}"
        swatch = f'<span style="color:{_color(part.key)}">■</span>'
        rects.append(_rect(left, part.share, _color(part.key), label))
        keys.append(
            f'<span style="white-space:nowrap;margin-right:1.2em">{swatch} {escape(label)}</span>'
        )
        left += part.share
    if not rects:
        return ""
    drawn = _svg(30, "Where the time goes", "".join(rects))
    return drawn + f'<p style="{SMALL}">{" ".join(keys)}</p>'


def _timelines(ranks: Sequence[RankTrace]) -> str:
    """Draw the part with most of each moment, rank by rank, each over its own profiled time."""
    lines = []
    for rank in ranks:
        low, high = rank.tree.profiled
        bounds = low + np.linspace(0, high - low, SLOTS + 1).astype(np.int64)
        parts = parts_over_time(rank, bounds) if high > low else {}
        if not any(part.any() for part in parts.values()):
            continue
        keys = list(parts)
        stacked = np.stack([parts[key] for key in keys])
        codes = np.where(stacked.any(axis=0), stacked.argmax(axis=0), -1)
        first = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
        last = np.r_[first[1:], len(codes)]
        rects = []
        for code, begin, end in zip(
            codes[first].tolist(), first.tolist(), last.tolist(), strict=True
        ):
            if code >= 0:
                key = keys[code]
                width = (end - begin) / SLOTS
                rects.append(_rect(begin / SLOTS, width, _color(key), format_part(key)))
        whose = f"rank {rank.rank}: " if len(ranks) > 1 else ""
        length = format_ns(rank.profiled_ns)
        said = f"{escape(whose)}what most of each moment goes to, {length} in total"
        drawn = _svg(22, "Timeline: what most of each moment goes to", "".join(rects))
        lines.append(f'<span style="{SMALL}">{said}</span>{drawn}')
    return "".join(lines)
