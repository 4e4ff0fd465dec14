"""The report of a diagnosis as one self-contained HTML page."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from torchtraceap.core import formatting
from torchtraceap.core.formatting import format_ns
from torchtraceap.report.page.document import render_document
from torchtraceap.report.page.page import MAX_STEPS, PageSource, pack_ranks, page_data, strip
from torchtraceap.report.page.sections import build_sections
from torchtraceap.report.page.timeline_data import MAX_BLOB_BYTES
from torchtraceap.report.view import ReportView, build_view

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis

__all__ = ["render_html"]

# In the order of their first use when the script runs.
SCRIPT_PARTS = (
    "basics",
    "unpack",
    "timeline",
    "colours",
    "view",
    "drawing",
    "overview",
    "pointer",
    "focus",
    "charts",
    "roofline",
    "flame",
    "tables",
    "sections",
    "lists",
    "start",
)


def render_html(diagnosis: Diagnosis) -> str:
    """The whole page. Pure: the same diagnosis gives the same text."""
    view = build_view(diagnosis)
    source = PageSource.build(diagnosis, view)
    blobs = pack_ranks(source, MAX_BLOB_BYTES // len(source.shown))
    sections = build_sections(diagnosis.trace, [source.rank(index) for index in source.shown])
    timelines = {f"timeline-{number}": blob.data for number, blob in enumerate(blobs)}
    return render_document(
        "report.html",
        SCRIPT_PARTS,
        page_data(source, blobs, sections),
        {**timelines, "tables": sections.tables},
        view=view,
        sections=sections,
        figures=_figures(view),
        diffs=[_code_diff(entry.code_before, entry.code_after) for entry in view.findings],
        strips=[strip(source, number) for number in range(len(view.findings))],
        idle_ns=sum(segment.time_ns for segment in view.idle),
        ranks=len(source.shown),
        scorer=formatting.one_line(diagnosis.scorer, 60),
        steps_cut=MAX_STEPS if len(view.steps) > MAX_STEPS else 0,
    )


def _figures(view: ReportView) -> list[tuple[str, str, str]]:
    """The few large numbers under the verdict: name, value, what it is of."""
    figures = []
    if view.step_ns is not None:
        figures.append(("Step", format_ns(view.step_ns), view.step_note))
    profiled = format_ns(view.profiled_ns)
    figures.append(("Profiled", profiled, "per rank, on average" if view.ranks > 1 else "in all"))
    if view.has_gpu:
        busy = format_ns(round(view.busy_share * view.profiled_ns))
        figures.append(("GPU busy", formatting.format_percent(view.busy_share), busy))
    if view.findings:
        first = view.findings[0]
        how = "simulated" if first.bars else "at most"
        note = f"{how}, by the first finding alone"
        figures.append(("To be saved", first.saves_short, note))
    return figures


def _code_diff(before: str, after: str) -> list[tuple[str, str]]:
    """Lines of both pieces of code as (element, text): del, ins, or span for those they share."""
    old, new = before.splitlines(), after.splitlines()
    lines: list[tuple[str, str]] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            lines += [("span", line) for line in new[j1:j2]]
            continue
        lines += [("del", line) for line in old[i1:i2]]
        lines += [("ins", line) for line in new[j1:j2]]
    return lines
