"""The report as one self-contained HTML page.

Nothing from a trace becomes markup. Our own words are rendered by Jinja with autoescape; names,
paths and sentences that hold them travel as JSON or inside the gzipped columns, and the page shows
them through `textContent` and `fillText` alone. A content security policy allows exactly the one
script and the one style sheet of the page, by hash, and no request of any kind.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap._version import __version__
from torchtraceap.report import words
from torchtraceap.report.timeline_data import (
    MAX_BLOB_BYTES,
    LaneInput,
    TimelineBlob,
    merge_intervals,
    pack_timeline,
)
from torchtraceap.report.view import IDLE_LABELS, FindingView, ReportView, Segment, build_view
from torchtraceap.units import format_ns

if TYPE_CHECKING:
    from jinja2 import Template

    from torchtraceap.results import Diagnosis, RankTimeline, Step, Timeline
    from torchtraceap.trace import RankTrace

__all__ = ["render_html", "script_json"]

TEMPLATES = Path(__file__).with_name("templates")
# Timelines in one page: more ranks than this show the ones with the largest findings.
MAX_RANKS = 8
MAX_STEPS = 500  # rows of the table of steps
MAX_TEXT = 1200  # characters of a sentence that may quote a trace
STRIP_PIECES = 400  # resolution of the strip over a finding, about two pixels each
CAUSES = tuple(IDLE_LABELS)

# What JSON inside a script element must not hold: "</script>", "<!--", and the two line
# separators that are legal in JSON and not in older JavaScript.
_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def render_html(diagnosis: Diagnosis) -> str:
    """The whole page. Pure: the same diagnosis gives the same text."""
    view = build_view(diagnosis)
    ranks = _ranks_shown(diagnosis)
    per_rank = MAX_BLOB_BYTES // max(1, len(ranks))
    blobs = [_pack_rank(diagnosis, view, index, per_rank) for index in ranks]
    style, script = _asset("report.css"), _asset("report.js")
    return _template().render(
        view=view,
        version=__version__,
        policy=_policy(script, style),
        style=style,
        script=script,
        data=script_json(_page_data(diagnosis, view, ranks, blobs)),
        blobs=[base64.b64encode(blob.data).decode("ascii") for blob in blobs],
        bar=list(_bar(view.segments)),
        figures=_figures(view),
        diffs=[_code_diff(entry.code_before, entry.code_after) for entry in view.findings],
        strips=[_strip(diagnosis, entry) for entry in view.findings],
        idle_ns=sum(segment.time_ns for segment in view.idle),
        ranks=len(ranks),
        scorer=words.one_line(diagnosis.scorer, 60),
        steps_cut=MAX_STEPS if len(view.steps) > MAX_STEPS else 0,
        percent=lambda share: f"{max(0.0, share) * 100:.3f}".rstrip("0").rstrip("."),
        format_time=format_ns,
        format_percent=words.format_percent,
        format_count=words.format_count,
    )


@cache
def _asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_asset("report.html"))


def _policy(script: str, style: str) -> str:
    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")

    return (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; "
        f"style-src 'sha256-{digest(style)}'; base-uri 'none'; form-action 'none'"
    )


@dataclass(frozen=True, slots=True)
class _BarPart:
    segment: Segment
    left: float


def _bar(segments: Sequence[Segment]) -> Iterator[_BarPart]:
    left = 0.0
    for segment in segments:
        yield _BarPart(segment, left)
        left += segment.share


def _figures(view: ReportView) -> list[tuple[str, str, str]]:
    """The few large numbers under the verdict: name, value, what it is of."""
    figures = []
    if view.step_ns is not None:
        figures.append(("Step", format_ns(round(view.step_ns)), view.step_note))
    profiled = format_ns(view.profiled_ns)
    figures.append(("Profiled", profiled, "per rank, on average" if view.ranks > 1 else "in all"))
    if view.has_gpu:
        busy = format_ns(round(view.busy_share * view.profiled_ns))
        figures.append(("GPU busy", words.format_percent(view.busy_share), busy))
    if view.findings:
        first = view.findings[0]
        note = "at most, by the first finding alone"
        figures.append(("To be saved", first.saves_short, note))
    return figures


def _strip(diagnosis: Diagnosis, entry: FindingView) -> list[tuple[float, float]]:
    """Where a finding's intervals lie in its rank's profiled time: (left, width) shares."""
    rank = _first_rank(entry)
    low, high = _rank_of(diagnosis, rank).tree.profiled
    mine = np.array([r == rank for r in entry.finding.interval_ranks], dtype=bool)
    spans = entry.finding.intervals[mine]
    if not len(spans) or high <= low:
        return []
    shares = (np.clip(spans, low, high) - low) / float(high - low) * STRIP_PIECES
    pieces = np.stack([np.floor(shares[:, 0]), np.ceil(shares[:, 1])], axis=1).astype(np.int64)
    merged = merge_intervals(pieces)
    return [(a / STRIP_PIECES, (b - a) / STRIP_PIECES) for a, b in merged.tolist() if b > a]


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


def _first_rank(entry: FindingView) -> int | None:
    """The rank to show a finding on: the one that pays most."""
    ranks = entry.finding.interval_ranks
    if not ranks:
        return entry.finding.ranks[0] if entry.finding.ranks else None
    lengths = entry.finding.intervals[:, 1] - entry.finding.intervals[:, 0]
    cost: dict[int | None, int] = {}
    for rank, length in zip(ranks, lengths.tolist(), strict=True):
        cost[rank] = cost.get(rank, 0) + length
    return max(cost, key=lambda rank: (cost[rank], -(rank if rank is not None else -1)))


def _rank_of(diagnosis: Diagnosis, rank: int | None) -> RankTrace:
    ranks = diagnosis.trace.ranks
    return next((entry for entry in ranks if entry.rank == rank), ranks[0])


def _ranks_shown(diagnosis: Diagnosis) -> list[int]:
    """Indices of the ranks with a timeline of their own."""
    ranks = diagnosis.trace.ranks
    if len(ranks) <= MAX_RANKS:
        return list(range(len(ranks)))
    cost: dict[int | None, int] = {}
    for finding in diagnosis.findings:
        lengths = (finding.intervals[:, 1] - finding.intervals[:, 0]).tolist()
        for rank, length in zip(finding.interval_ranks, lengths, strict=True):
            cost[rank] = cost.get(rank, 0) + length
    order = sorted(range(len(ranks)), key=lambda i: (-cost.get(ranks[i].rank, 0), i))
    return sorted(order[:MAX_RANKS])


def _pack_rank(diagnosis: Diagnosis, view: ReportView, index: int, max_bytes: int) -> TimelineBlob:
    rank = diagnosis.trace.ranks[index]
    return pack_timeline(
        rank.table,
        rank.tree,
        kind_names=_core.kind_names(),
        inputs=[_finding_lane(rank, view), *([_idle_lane(rank)] if view.has_gpu else [])],
        gpu=_core.gpu_intervals(rank.table, rank.tree),
        max_bytes=max_bytes,
    )


def _finding_lane(rank: RankTrace, view: ReportView) -> LaneInput:
    """The intervals of all findings on one rank, a line for each finding."""
    spans, codes = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)]
    for number, entry in enumerate(view.findings):
        mine = np.array([r == rank.rank for r in entry.finding.interval_ranks], dtype=bool)
        spans.append(entry.finding.intervals[mine])
        codes.append(np.full(int(mine.sum()), number, np.int64))
    span, code = np.concatenate(spans), np.concatenate(codes)
    titles = [entry.finding.title for entry in view.findings]
    return LaneInput(
        "finding", "findings", span[:, 0], span[:, 1], titles, code, _dense(code), code
    )


def _idle_lane(rank: RankTrace) -> LaneInput:
    """Idle intervals of the profiled time, coloured by cause."""
    idle = _core.explain_idle(rank.table, rank.tree, bounds=rank.tree.profiled)
    unknown = CAUSES.index("unknown")
    codes = [CAUSES.index(n) if n in CAUSES else unknown for n in _core.idle_cause_names()]
    cause = np.array(codes, np.int64)[np.asarray(idle.cause)]
    start, end = np.asarray(idle.start_ns), np.asarray(idle.end_ns)
    labels = list(IDLE_LABELS.values())
    return LaneInput("idle", "GPU idle", start, end, labels, cause, np.zeros_like(cause), cause)


def _dense(code: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Line numbers without holes: findings that this rank does not have take no line."""
    return np.unique(code, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _page_data(
    diagnosis: Diagnosis, view: ReportView, ranks: list[int], blobs: list[TimelineBlob]
) -> dict[str, Any]:
    """What the script needs beside the columns; all text from the trace is in here."""
    entries = [diagnosis.trace.ranks[index] for index in ranks]
    return {
        "texts": {
            "title": view.title,
            "facts": " · ".join(view.facts),
            # The name alone: a page is passed on, and the folders of its maker's machine are not.
            "gate": f"torchtraceap diagnose {shlex.quote(view.input_name)} --gate",
        },
        "causes": list(CAUSES),
        "ranks": [
            {"name": entry.rank, "label": _rank_label(entry.rank, index), "notes": blob.notes}
            for entry, index, blob in zip(entries, ranks, blobs, strict=True)
        ],
        "rankRows": [
            _rank_row(diagnosis.summary.ranks[index], index)
            for index in range(len(diagnosis.summary.ranks))
        ],
        "findings": [_finding_data(diagnosis, entry) for entry in view.findings],
        "steps": [_step_data(diagnosis, step) for step in view.steps[:MAX_STEPS]],
        "notes": [
            {"code": n.code, "count": n.count, "message": words.one_line(n.message, MAX_TEXT)}
            for n in view.notes
        ],
    }


def _rank_label(rank: int | None, index: int) -> str:
    return str(index) if rank is None else str(rank)


def _shares(timeline: Timeline) -> dict[str, float]:
    parts = {
        "compute": timeline.compute_ns,
        "communication": timeline.exposed_communication_ns,
        "memcpy": timeline.exposed_memcpy_ns,
        "busy": timeline.busy_ns,
    }
    return {name: round(timeline.share(ns), 4) for name, ns in parts.items()}


def _rank_row(rank: RankTimeline, index: int) -> dict[str, Any]:
    label = f"rank {_rank_label(rank.rank, index)}"
    row = {"name": rank.rank, "label": label, "ns": rank.timeline.span_ns}
    return row | _shares(rank.timeline)


def _step_data(diagnosis: Diagnosis, step: Step) -> dict[str, Any]:
    origin = _rank_of(diagnosis, step.rank).tree.profiled[0]
    name = words.one_line(step.name, 80)
    at = {"name": name, "rank": step.rank, "at": step.start_ns - origin, "ns": step.duration_ns}
    return at | _shares(step.timeline)


def _finding_data(diagnosis: Diagnosis, entry: FindingView) -> dict[str, Any]:
    finding = entry.finding
    evidence = []
    for event in finding.evidence:
        origin = _rank_of(diagnosis, event.rank).tree.profiled[0]
        name = words.one_line(event.name, 200)
        at = event.start_ns - origin
        evidence.append({"name": name, "rank": event.rank, "at": at, "ns": event.duration_ns})
    return {
        "title": finding.title,
        "why": words.one_line(finding.why, MAX_TEXT),
        "missing": words.one_line("; ".join(finding.missing_signals), MAX_TEXT),
        "rank": _first_rank(entry),
        "code": entry.code_after,
        "evidence": evidence,
    }
