"""`quality_of` and the table `quality`: what a recording can be trusted for, of all its ranks.

The core establishes it rank by rank when it builds the tree (cpp/traceap/tree/recording.hpp) and
leaves what can't be trusted out of timelines, idle causes and costs. Here the ranks are put
together with what reading the files told: for the summary, the first screen, and everything that
compares two recordings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchtraceap import _core
from torchtraceap.core.columns import encode_texts
from torchtraceap.core.formatting import format_count, format_ns, format_share
from torchtraceap.core.intervals import covered_ns
from torchtraceap.core.results import Quality, QualityNote
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.catalog import TableSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "TABLE",
    "build_quality",
    "is_unrecorded",
    "quality_of",
    "quality_of_both",
    "recording_line",
    "why_not_comparable",
]

_OF_LOADING = ("some_steps", "several_processes", "several_jobs")
"""Codes of what choosing and reading files can tell of the quality."""
_LEAST_RECORDED = 0.98
"""The share of the profiled time, and of the launches: with less, times of two recordings are not
those of the same work. Rules call a cost of the rest of it material."""

_LAUNCHING = (
    _core.ApiClass.KERNEL_LAUNCH,
    _core.ApiClass.GRAPH_LAUNCH,
    _core.ApiClass.COPY,
    _core.ApiClass.ASYNC_COPY,
)

_LEAST_JUDGED = 0.02
"""The share of the profiled time with less than which nothing is said of the whole, as in the core
(`is_unrecorded`)."""


def quality_of(trace: Ranks) -> Quality:
    """Return what the recording lacks and what was left out of it; computed once.

    Returns:
        The recorded share of the profiled time in [0, 1], summed over the ranks, and a note for
        each fault, times in ns on the clock of the rank's GPU.
    """
    return trace.cached("quality", lambda: _build(trace))


def _build(trace: Ranks) -> Quality:
    notes = [
        QualityNote(entry.code, None, entry.count, None, None, entry.message)
        for entry in trace.diagnostics
        if entry.code in _OF_LOADING
    ]
    profiled_ns = missing_ns = 0
    for rank in trace.ranks:
        notes += [
            QualityNote(n.code, rank.rank, n.count, n.start_ns, n.end_ns, n.message)
            for n in rank.tree.recording_notes
        ]
        start_ns, end_ns = rank.tree.profiled
        profiled_ns += end_ns - start_ns
        missing_ns += total(covered_ns(rank.tree.missing, np.array([start_ns, end_ns])))
    share = 1.0 - missing_ns / profiled_ns if missing_ns else 1.0
    codes = {note.code for note in notes}
    comparable = (
        min(share, 1.0 - _lost_launches(trace, notes)) >= _LEAST_RECORDED and "no_load" not in codes
    )
    return Quality(comparable, max(0.0, share), tuple(notes))


def _lost_launches(trace: Ranks, notes: Sequence[QualityNote]) -> float:
    """Return the share of the launches and copies whose work lacks its record: what would have run
    behind the end of the recording is missing at no time of it."""
    lost = sum(note.count for note in notes if note.code == "launches_without_gpu_work")
    if not lost:
        return 0.0
    launched = sum(int(np.isin(rank.tree.api, _LAUNCHING).sum()) for rank in trace.ranks)
    return lost / launched


def is_unrecorded(trace: Ranks) -> bool:
    """Return True if there is hardly any time to judge."""
    profiled_ns = sum(
        end_ns - start_ns for start_ns, end_ns in (r.tree.profiled for r in trace.ranks)
    )
    judged_ns = sum(rank.profiled_ns for rank in trace.ranks)
    return judged_ns < _LEAST_JUDGED * profiled_ns


def why_not_comparable(trace: Ranks) -> str | None:
    """Return why the times say nothing beside those of another recording; None if they do."""
    quality = quality_of(trace)
    if quality.comparable:
        return None
    for note in quality.notes:
        if note.code == "no_load":
            return note.message
    if quality.recorded_share >= _LEAST_RECORDED:
        return f"GPU work lacks its records: {recording_line(trace)}"
    share = format_share(quality.recorded_share)
    return f"only {share} of the profiled GPU time is recorded: {recording_line(trace)}"


def recording_line(trace: Ranks) -> str:
    """Return what a person has to know of the recording first, such as "2 of 32 steps have GPU
    records; 3 impossible durations left out"; empty where it is fine."""
    quality = quality_of(trace)
    notes = quality.notes
    counts: dict[str, int] = {}
    for note in notes:
        counts[note.code] = counts.get(note.code, 0) + note.count
    # What is lost comes before what was left out.
    ordered = sorted(counts, key=lambda code: code != "launches_without_gpu_work")
    return "; ".join(_said(code, counts[code], trace) for code in ordered)


def _said(code: str, count: int, trace: Ranks) -> str:
    many = format_count(count)
    plural = "" if count == 1 else "s"
    if code == "launches_without_gpu_work":
        return _lost(trace, f"{many} launch{'' if count == 1 else 'es'} without a GPU record")
    return {
        "impossible_duration": f"{many} impossible duration{plural} left out",
        "gpu_work_without_launch": f"{many} GPU record{plural} without a launch",
        "recording_start_skew": "the first collective waits for recordings that began later",
        "starts_inside_work": "begins inside work from before, of which nothing is recorded",
        "ends_inside_work": "ends inside work whose records are missing",
        "no_load": "hardly anything ran",
    }.get(code) or next(n.message for n in quality_of(trace).notes if n.code == code)


def _lost(trace: Ranks, launches: str) -> str:
    """Say what is lost, in steps where there are any."""
    flags = [flag for rank in trace.ranks for flag in rank.tree.step_is_recorded]
    of_ranks = ""
    if len(trace.ranks) > 1:
        lacking = [rank for rank in trace.ranks if _has_lost(rank)]
        of_ranks = (
            f" (rank{'s' * (len(lacking) > 1)} {', '.join(str(r.rank) for r in lacking[:8])})"
        )
    missing_ns = sum(total(r.tree.missing[:, 1] - r.tree.missing[:, 0]) for r in trace.ranks)
    if flags and not all(flags):
        recorded = f"{format_count(sum(flags))} of {format_count(len(flags))} steps"
        return f"{recorded} have GPU records{of_ranks}; {launches}"
    return f"{launches}{of_ranks}, {format_ns(missing_ns)} not recorded"


def _has_lost(rank: RankTrace) -> bool:
    return any(note.code == "launches_without_gpu_work" for note in rank.tree.recording_notes)


def quality_of_both(before: Ranks, after: Ranks) -> tuple[Quality, str | None]:
    """Return what two recordings can be trusted for beside each other, and why not, None where
    they can."""
    sides = (("before", before), ("after", after))
    reasons = [(when, why) for when, side in sides if (why := why_not_comparable(side))]
    both = [quality_of(side) for _, side in sides]
    quality = Quality(
        comparable=not reasons,
        recorded_share=min(each.recorded_share for each in both),
        notes=both[0].notes + both[1].notes,
    )
    why = "; ".join(f"{when}: {why}" for when, why in reasons)
    return quality, f"not comparable: {why}" if reasons else None


def build_quality(trace: Ranks) -> ColumnTable:
    """Build a table of the faults of the recording, by rank; empty where it is fine.

    Columns: `rank`, `code`, `count`, `start_ns` and `end_ns` (masked where no time can be told),
    `message`.
    """
    from torchtraceap.tables.gpu.gpu_events import masked_integers  # a diagnosis needs no table

    quality = quality_of(trace)
    notes = quality.notes
    return ColumnTable(
        {
            "rank": masked_integers([note.rank for note in notes]),
            "code": encode_texts(note.code for note in notes),
            "count": np.array([note.count for note in notes], dtype=np.int64),
            "start_ns": masked_integers([note.start_ns for note in notes]),
            "end_ns": masked_integers([note.end_ns for note in notes]),
            "message": encode_texts(note.message for note in notes),
        },
        facts={"comparable": quality.comparable, "recorded_share": quality.recorded_share},
        notes=[] if notes else ["The recording is fine: nothing is missing or left out."],
    )


TABLE = TableSpec(
    build=build_quality,
    per_rank=False,
    sql={"quality": {}},
    first=("code", "count", "message"),
)
