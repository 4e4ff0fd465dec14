"""The report of a diagnosis as one self-contained HTML page.

Markup is rendered from templates (`document.py`); timelines and tables travel as compressed data,
and all text of a trace as JSON.
"""

from __future__ import annotations

import difflib
import shlex
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.formatting import format_ns, format_part, format_percent, one_line
from torchtraceap.core.intervals import union
from torchtraceap.core.records import dataclass
from torchtraceap.report.charts import PATH_FILLS
from torchtraceap.report.document import render_document
from torchtraceap.report.sections import Sections, build_sections
from torchtraceap.report.timeline_data import (
    MAX_BLOB_BYTES,
    LaneInput,
    pack_timeline,
)
from torchtraceap.report.view import FindingView, ReportView, build_view
from torchtraceap.tables.catalog import table_spec

if TYPE_CHECKING:
    from torchtraceap.core.results import Timeline
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.trace.ranks import RankTrace

__all__ = ["MAX_RANKS", "PageSource", "render_html", "strip"]

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
TIMELINE_KEYS = (
    (("w", "s"), "zoom in and out, as + and − do"),
    (("a", "d"), "move to the left and right, as ← and → do"),
    (("0",), "show everything"),
    (("f",), "fit the selected event, the range or the place"),
    (("m",), "mark it, or take the mark away"),
    (("n", "p"), "go to the next and the previous place"),
    (("/",), "find events by name"),
    (("Esc",), "clear what is chosen"),
)
"""Keys with what they do, for the dialog that lists them."""
# Timelines in one page: of more ranks, those with the largest findings are shown.
MAX_RANKS = 8
MAX_RANK_ROWS = 512
MAX_STEPS = 500  # rows of the table of steps
MAX_TEXT = 1200  # characters of a sentence that may quote a trace
STRIP_PIECES = 400  # resolution of the strip over a finding, about two pixels each
CAUSES = tuple(_core.idle_cause_names())

IntArray = npt.NDArray[np.int64]


def render_html(diagnosis: Diagnosis) -> str:
    """Render the page. Pure: the same diagnosis gives the same text."""
    view = build_view(diagnosis)
    source = PageSource.build(diagnosis, view)
    blobs = _pack_ranks(source)
    sections = build_sections(diagnosis.trace, [source.rank(index) for index in source.shown])
    timelines = {f"timeline-{number}": blob for number, (blob, _) in enumerate(blobs)}
    return render_document(
        "report.html",
        SCRIPT_PARTS,
        _page_data(source, [notes for _, notes in blobs], sections),
        {**timelines, "tables": sections.tables},
        view=view,
        sections=sections,
        figures=_figures(view),
        diffs=[_code_diff(entry) for entry in view.findings],
        timeline_keys=TIMELINE_KEYS,
        strips=[strip(source, number) for number in range(len(view.findings))],
        idle_ns=sum(segment.time_ns for segment in view.idle),
        ranks=len(source.shown),
        scorer=one_line(diagnosis.scorer, 60),
        steps_cut=MAX_STEPS if len(view.steps) > MAX_STEPS else 0,
    )


def _figures(view: ReportView) -> list[tuple[str, str, str]]:
    """Return the large numbers under the verdict: name, value, note."""
    figures = []
    if view.step_ns is not None:
        figures.append(("Step", format_ns(view.step_ns), view.step_note))
    profiled = format_ns(view.profiled_ns)
    figures.append(("Profiled", profiled, "per rank, on average" if view.ranks > 1 else "in total"))
    if view.has_gpu:
        busy = format_ns(round(view.busy_share * view.profiled_ns))
        figures.append(("GPU busy", format_percent(view.busy_share), busy))
    if view.findings:
        first = view.findings[0]
        note = f"{'simulated' if first.bars else 'at most'}, by the first finding alone"
        figures.append(("Savings", first.saves_short, note))
    return figures


def _code_diff(entry: FindingView) -> list[tuple[str, str]]:
    """Return lines of the code before and after as (element, text), the element del, ins or span
    for those that both have."""
    old, new = entry.code_before.splitlines(), entry.code_after.splitlines()
    lines: list[tuple[str, str]] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            lines += [("span", line) for line in new[j1:j2]]
            continue
        lines += [("del", line) for line in old[i1:i2]]
        lines += [("ins", line) for line in new[j1:j2]]
    return lines


@dataclass(frozen=True, slots=True)
class PageSource:
    """A diagnosis with the ranks of its intervals resolved to indices of `trace.ranks`."""

    diagnosis: Diagnosis
    view: ReportView
    owners: list[IntArray]
    """For each finding the index of each interval's rank, [n]."""
    shown: list[int]
    """Indices of the ranks that have a timeline."""

    @classmethod
    def build(cls, diagnosis: Diagnosis, view: ReportView) -> PageSource:
        """Resolve the ranks, and choose those with the largest findings for a timeline."""
        index = {rank.rank: i for i, rank in enumerate(diagnosis.trace.ranks)}
        count = len(diagnosis.trace.ranks)
        owners, total = [], np.zeros(count)
        for finding in diagnosis.findings:
            owner = np.array([index.get(r, 0) for r in finding.interval_ranks], dtype=np.int64)
            owners.append(owner)
            total += _cost_by_rank(finding.intervals, owner, count)
        dearest = np.argsort(-total, kind="stable")[:MAX_RANKS]
        return cls(diagnosis, view, owners, sorted(dearest.tolist()))

    def rank(self, index: int) -> RankTrace:
        return self.diagnosis.trace.ranks[index]

    def origin_ns(self, rank: int | None) -> int:
        """Return the start of the profiled time of a rank: zero of the page's clock."""
        ranks = self.diagnosis.trace.ranks
        found = next((entry for entry in ranks if entry.rank == rank), ranks[0])
        start_ns: int = found.tree.profiled[0]
        return start_ns

    def dearest_rank(self, number: int) -> int:
        """Return the index of the shown rank that pays most for a finding."""
        finding = self.diagnosis.findings[number]
        cost = _cost_by_rank(finding.intervals, self.owners[number], max(self.shown) + 1)
        return max(self.shown, key=lambda index: (cost[index], -index))


def _cost_by_rank(intervals: IntArray, owners: IntArray, count: int) -> npt.NDArray[np.float64]:
    lengths = (intervals[:, 1] - intervals[:, 0]).astype(np.float64)
    cost = np.bincount(owners, weights=lengths, minlength=count)
    return cost.astype(np.float64)


def strip(source: PageSource, number: int) -> list[tuple[float, float]]:
    """Return the places of a finding in the profiled time of its dearest rank, as shares of that
    time: (left, width)."""
    index = source.dearest_rank(number)
    low, high = source.rank(index).tree.profiled
    spans = source.diagnosis.findings[number].intervals[source.owners[number] == index]
    if not len(spans) or high <= low:
        return []
    shares = (np.clip(spans, low, high) - low) / float(high - low) * STRIP_PIECES
    pieces = np.stack([np.floor(shares[:, 0]), np.ceil(shares[:, 1])], axis=1).astype(np.int64)
    merged = union([pieces]).tolist()
    return [(a / STRIP_PIECES, (b - a) / STRIP_PIECES) for a, b in merged]


# ---------------------------------------------------------------------------------- timeline


def _pack_ranks(source: PageSource) -> list[tuple[bytes, list[str]]]:
    """Pack the timelines of the ranks shown, with notes on events that were left out."""
    path = table_spec("critical-path").make(source.diagnosis.trace, by="event")
    alone = len(source.diagnosis.trace.ranks) == 1
    blobs = []
    for index in source.shown:
        rank = source.rank(index)
        inputs = [_finding_lane(source, index)]
        if source.view.has_gpu:
            idle = _core.explain_idle(rank.table, rank.tree, bounds=rank.tree.profiled)
            cause = np.asarray(idle.cause, np.int64)
            start, end, labels = idle.start_ns, idle.end_ns, [format_part(name) for name in CAUSES]
            row = np.zeros_like(cause)
            inputs.append(LaneInput("idle", "GPU idle", start, end, labels, cause, row, cause))
        blobs.append(
            pack_timeline(
                rank.table,
                rank.tree,
                kind_names=_core.kind_names(),
                inputs=[*inputs, _path_lane(rank, path, alone=alone)],
                gpu=_core.gpu_intervals(rank.table, rank.tree),
                max_bytes=MAX_BLOB_BYTES // len(source.shown),
            )
        )
    return blobs


def _finding_lane(source: PageSource, index: int) -> LaneInput:
    """Return the intervals of all findings on one rank, a line for each finding."""
    spans, codes = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)]
    for number, owners in enumerate(source.owners):
        mine = source.diagnosis.findings[number].intervals[owners == index]
        spans.append(mine)
        codes.append(np.full(len(mine), number, np.int64))
    span, code = np.concatenate(spans), np.concatenate(codes)
    titles = [finding.title for finding in source.diagnosis.findings]
    # A finding that this rank does not have takes no line.
    line = np.unique(code, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return LaneInput("finding", "findings", span[:, 0], span[:, 1], titles, code, line, code)


def _path_lane(rank: RankTrace, path: ColumnTable, *, alone: bool) -> LaneInput:
    """Return the critical path on a rank; neighbors of one cause are one piece."""
    if not alone:
        path = path.take(np.flatnonzero(path["rank"] == rank.rank))
    column, known = path.column("cause"), list(PATH_FILLS)
    texts, codes = (
        np.unique(path["cause"].astype(str), return_inverse=True)
        if isinstance(column, np.ndarray)
        else (column.texts, column.codes)
    )
    unknown = known.index("unknown")
    places = [known.index(text) if text in known else unknown for text in texts]
    cause = np.array([*places, unknown], np.int64)[codes]
    start, end = np.asarray(path["start_ns"], np.int64), np.asarray(path["end_ns"], np.int64)
    if not alone:
        shift = _clock_shift(rank, path, start)
        start, end = start - shift, end - shift
    first = np.flatnonzero(
        np.r_[True, (cause[1:] != cause[:-1]) | (start[1:] != end[:-1])][: len(cause)]
    )
    last = np.r_[first[1:], len(cause)] - 1
    start, end, cause = start[first], end[last] if len(cause) else end, cause[first]
    labels = [name.replace("_", " ") for name in PATH_FILLS]
    return LaneInput(
        "path", "critical path", start, end, labels, cause, np.zeros_like(cause), cause
    )


def _clock_shift(rank: RankTrace, path: ColumnTable, start: IntArray) -> int:
    """Return by how much the common clock of the ranks is ahead of that of one rank, ns.

    A segment never begins before its event: the least distance is the shift, as some segment
    begins with its event.
    """
    rows = np.ma.filled(np.ma.asarray(path["row"]), -1).astype(np.int64)
    on_host = np.isin(path["kind"], ("cpu_op", "user_annotation", "python_function", "runtime"))
    chosen = (rows >= 0) & on_host
    if not chosen.any():
        return 0
    return int((start[chosen] - np.asarray(rank.table.ts_ns)[rows[chosen]]).min())


# ---------------------------------------------------------------------------------- JSON


def _page_data(source: PageSource, notes: list[list[str]], sections: Sections) -> dict[str, Any]:
    """Return the JSON for the script, with all text of the trace."""
    view, summary = source.view, source.diagnosis.summary
    ranks = [source.rank(index).rank for index in source.shown]
    return {
        "texts": {
            "title": view.title,
            "facts": " · ".join(view.facts),
            # The name alone: a page is passed on, and the folders of its maker's machine are not.
            "gate": f"torchtraceap diagnose {shlex.quote(view.input_name)} --gate",
        },
        "operators": [part.label for part in view.operators],
        "causes": list(CAUSES),
        "path": list(PATH_FILLS.values()),
        "sections": sections.heads,
        "absent": sections.absent,
        "ranks": [
            {"name": rank, "label": _label(rank), "notes": of_rank}
            for rank, of_rank in zip(ranks, notes, strict=True)
        ],
        "rankRows": [
            {
                "name": rank.rank,
                "label": f"rank {_label(rank.rank)}",
                "ns": rank.timeline.span_ns,
                **_shares(rank.timeline),
            }
            for rank in summary.ranks[:MAX_RANK_ROWS]
        ],
        "findings": [_finding(source, number, f) for number, f in enumerate(view.findings)],
        "steps": [
            {
                "name": one_line(step.name, 80),
                "rank": step.rank,
                "at": step.start_ns - source.origin_ns(step.rank),
                "ns": step.duration_ns,
                **_shares(step.timeline),
            }
            for step in view.steps[:MAX_STEPS]
        ],
        "notes": [
            {"code": n.code, "count": n.count, "message": one_line(n.message, MAX_TEXT)}
            for n in view.notes
        ],
    }


def _label(rank: int | None) -> str:
    return "?" if rank is None else str(rank)


def _shares(timeline: Timeline) -> dict[str, float]:
    parts = {
        "compute": timeline.compute_ns,
        "communication": timeline.exposed_communication_ns,
        "memcpy": timeline.exposed_memcpy_ns,
        "busy": timeline.busy_ns,
    }
    return {name: round(timeline.share(ns), 4) for name, ns in parts.items()}


def _finding(source: PageSource, number: int, entry: FindingView) -> dict[str, Any]:
    finding, saving = entry.finding, entry.finding.saving
    about = ""
    if saving and saving.note:
        about = f"{'Simulated' if saving.simulated else 'The saving is a bound'}: {saving.note}"
    evidence = [
        {
            "name": one_line(event.name, 200),
            "rank": event.rank,
            "at": event.start_ns - source.origin_ns(event.rank),
            "ns": event.duration_ns,
        }
        for event in finding.evidence
    ]
    return {
        "title": finding.title,
        "type": finding.type,
        "saves": entry.saves,
        "fix": entry.fix,
        "why": one_line(finding.why, MAX_TEXT),
        "missing": one_line("; ".join(finding.missing_signals), MAX_TEXT),
        "saving": one_line(about, MAX_TEXT),
        "rank": source.rank(source.dearest_rank(number)).rank,
        "code": entry.code_after,
        "evidence": evidence,
    }
