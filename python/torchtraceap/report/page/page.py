"""What the report needs beside markup: lanes of each rank, and JSON with all text of a trace."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core import formatting
from torchtraceap.core.records import dataclass
from torchtraceap.report.page.charts import PATH_FILLS
from torchtraceap.report.page.sections import Sections
from torchtraceap.report.page.timeline_data import (
    LaneInput,
    TimelineBlob,
    merge_intervals,
    pack_timeline,
)
from torchtraceap.report.view import IDLE_LABELS, FindingView, ReportView
from torchtraceap.tables.catalog import table_spec

if TYPE_CHECKING:
    from torchtraceap.core.results import Finding, RankTimeline, Step, Timeline
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.trace.ranks import RankTrace

__all__ = ["MAX_RANKS", "MAX_STEPS", "PageSource", "pack_ranks", "page_data", "strip"]

# Timelines in one page: of more ranks, those with the largest findings are shown.
MAX_RANKS = 8
MAX_RANK_ROWS = 512
MAX_STEPS = 500  # rows of the table of steps
MAX_TEXT = 1200  # characters of a sentence that may quote a trace
STRIP_PIECES = 400  # resolution of the strip over a finding, about two pixels each
CAUSES = tuple(IDLE_LABELS)

IntArray = npt.NDArray[np.int64]


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
        index = {rank.rank: i for i, rank in enumerate(diagnosis.trace.ranks)}
        owners = [
            np.array([index.get(r, 0) for r in f.interval_ranks], dtype=np.int64)
            for f in diagnosis.findings
        ]
        count = len(diagnosis.trace.ranks)
        costs = [_cost_by_rank(f.intervals, o, count) for f, o in _paired(diagnosis, owners)]
        total = np.sum(costs, axis=0) if costs else np.zeros(count)
        dearest = np.argsort(-total, kind="stable")[:MAX_RANKS]
        return cls(diagnosis, view, owners, sorted(dearest.tolist()))

    def rank(self, index: int) -> RankTrace:
        return self.diagnosis.trace.ranks[index]

    def origin_ns(self, rank: int | None) -> int:
        """Where the profiled time of a rank begins: zero of the page's clock."""
        ranks = self.diagnosis.trace.ranks
        found = next((entry for entry in ranks if entry.rank == rank), ranks[0])
        start_ns: int = found.tree.profiled[0]
        return start_ns

    def dearest_rank(self, number: int) -> int:
        """Of the ranks shown, the one that pays most for a finding."""
        finding = self.diagnosis.findings[number]
        cost = _cost_by_rank(finding.intervals, self.owners[number], max(self.shown) + 1)
        return max(self.shown, key=lambda index: (cost[index], -index))


def _paired(diagnosis: Diagnosis, owners: list[IntArray]) -> Any:
    return zip(diagnosis.findings, owners, strict=True)


def _cost_by_rank(intervals: IntArray, owners: IntArray, count: int) -> npt.NDArray[np.float64]:
    lengths = (intervals[:, 1] - intervals[:, 0]).astype(np.float64)
    cost = np.bincount(owners, weights=lengths, minlength=count)
    return cost.astype(np.float64)


def strip(source: PageSource, number: int) -> list[tuple[float, float]]:
    """Where a finding lies in the profiled time of its dearest rank: (left, width) shares."""
    index = source.dearest_rank(number)
    low, high = source.rank(index).tree.profiled
    spans = source.diagnosis.findings[number].intervals[source.owners[number] == index]
    if not len(spans) or high <= low:
        return []
    shares = (np.clip(spans, low, high) - low) / float(high - low) * STRIP_PIECES
    pieces = np.stack([np.floor(shares[:, 0]), np.ceil(shares[:, 1])], axis=1).astype(np.int64)
    merged = merge_intervals(pieces)
    return [(a / STRIP_PIECES, (b - a) / STRIP_PIECES) for a, b in merged.tolist() if b > a]


# ---------------------------------------------------------------------------------- timeline


def pack_ranks(source: PageSource, max_bytes: int) -> list[TimelineBlob]:
    """The timelines of the ranks shown."""
    path = table_spec("critical-path").make(source.diagnosis.trace, by="event")
    return [_pack_rank(source, index, path, max_bytes) for index in source.shown]


def _pack_rank(source: PageSource, index: int, path: ColumnTable, max_bytes: int) -> TimelineBlob:
    rank = source.rank(index)
    idle = [_idle_lane(rank)] if source.view.has_gpu else []
    alone = len(source.diagnosis.trace.ranks) == 1
    return pack_timeline(
        rank.table,
        rank.tree,
        kind_names=_core.kind_names(),
        inputs=[_finding_lane(source, index), *idle, _path_lane(rank, path, alone=alone)],
        gpu=_core.gpu_intervals(rank.table, rank.tree),
        max_bytes=max_bytes,
    )


def _finding_lane(source: PageSource, index: int) -> LaneInput:
    """The intervals of all findings on one rank, a line for each finding."""
    spans, codes = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)]
    for number, owners in enumerate(source.owners):
        mine = source.diagnosis.findings[number].intervals[owners == index]
        spans.append(mine)
        codes.append(np.full(len(mine), number, np.int64))
    span, code = np.concatenate(spans), np.concatenate(codes)
    titles = [finding.title for finding in source.diagnosis.findings]
    # Lines without holes: a finding that this rank does not have takes none.
    line = np.unique(code, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return LaneInput("finding", "findings", span[:, 0], span[:, 1], titles, code, line, code)


def _idle_lane(rank: RankTrace) -> LaneInput:
    """Idle intervals of the profiled time, coloured by cause."""
    idle = _core.explain_idle(rank.table, rank.tree, bounds=rank.tree.profiled)
    unknown = CAUSES.index("unknown")
    codes = [CAUSES.index(n) if n in CAUSES else unknown for n in _core.idle_cause_names()]
    cause = np.array(codes, np.int64)[np.asarray(idle.cause)]
    start, end = np.asarray(idle.start_ns), np.asarray(idle.end_ns)
    labels = list(IDLE_LABELS.values())
    return LaneInput("idle", "GPU idle", start, end, labels, cause, np.zeros_like(cause), cause)


def _path_lane(rank: RankTrace, path: ColumnTable, *, alone: bool) -> LaneInput:
    """What of the critical path runs on a rank; neighbours of one cause are one piece."""
    if not alone:
        path = path.take(np.flatnonzero(path["rank"] == rank.rank))
    cause = _path_causes(path)
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


def _path_causes(path: ColumnTable) -> IntArray:
    """Places in `PATH_FILLS`, one per segment."""
    column, known = path.column("cause"), list(PATH_FILLS)
    texts, codes = (
        np.unique(path["cause"].astype(str), return_inverse=True)
        if isinstance(column, np.ndarray)
        else (column.texts, column.codes)
    )
    unknown = known.index("unknown")
    places = [known.index(text) if text in known else unknown for text in texts]
    return np.array([*places, unknown], np.int64)[codes]


def _clock_shift(rank: RankTrace, path: ColumnTable, start: IntArray) -> int:
    """What the common clock of the ranks is ahead of that of one rank.

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


def page_data(source: PageSource, blobs: list[TimelineBlob], sections: Sections) -> dict[str, Any]:
    """What the script needs beside the columns; all text from the trace is in here."""
    view, summary = source.view, source.diagnosis.summary
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
            {"name": source.rank(i).rank, "label": _label(source.rank(i).rank), "notes": blob.notes}
            for i, blob in zip(source.shown, blobs, strict=True)
        ],
        "rankRows": [_rank_row(rank) for rank in summary.ranks[:MAX_RANK_ROWS]],
        "findings": [_finding(source, number, f) for number, f in enumerate(view.findings)],
        "steps": [_step(source, step) for step in view.steps[:MAX_STEPS]],
        "notes": [
            {"code": n.code, "count": n.count, "message": formatting.one_line(n.message, MAX_TEXT)}
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


def _rank_row(rank: RankTimeline) -> dict[str, Any]:
    row = {"name": rank.rank, "label": f"rank {_label(rank.rank)}", "ns": rank.timeline.span_ns}
    return row | _shares(rank.timeline)


def _step(source: PageSource, step: Step) -> dict[str, Any]:
    at = step.start_ns - source.origin_ns(step.rank)
    name = formatting.one_line(step.name, 80)
    entry = {"name": name, "rank": step.rank, "at": at, "ns": step.duration_ns}
    return entry | _shares(step.timeline)


def _about_saving(finding: Finding) -> str:
    """What was changed in the replay, or why there is only a bound."""
    saving = finding.saving
    if saving is None or not saving.note:
        return ""
    what = "Simulated" if saving.simulated else "The saving is a bound"
    return formatting.one_line(f"{what}: {saving.note}", MAX_TEXT)


def _finding(source: PageSource, number: int, entry: FindingView) -> dict[str, Any]:
    finding = entry.finding
    evidence = [
        {
            "name": formatting.one_line(event.name, 200),
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
        "why": formatting.one_line(finding.why, MAX_TEXT),
        "missing": formatting.one_line("; ".join(finding.missing_signals), MAX_TEXT),
        "saving": _about_saving(finding),
        "rank": source.rank(source.dearest_rank(number)).rank,
        "code": entry.code_after,
        "evidence": evidence,
    }
