"""`peer_views`: what the traces of other ranks say of each rank, for the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchtraceap import _core
from torchtraceap.aliases import Array
from torchtraceap.analysis.many_ranks.lateness import Lateness, measure_lateness
from torchtraceap.analysis.many_ranks.matching import MatchedCollectives, match_collectives
from torchtraceap.units import format_ns, format_share

if TYPE_CHECKING:
    from torchtraceap.ranks import Ranks

__all__ = ["peer_views"]

UNEVEN = 1.2
"""Largest over mean from which parts of an all-to-all count as uneven (TraceLens's bound)."""

_CAUSE_WORDS = {
    "compute": "compute kernels",
    "communication": "other collectives",
    "copies": "copies",
    "input": "input pipeline",
    "host": "host",
}


def peer_views(trace: Ranks) -> list[_core.PeerView | None]:
    """One for each rank; None where there is nothing to compare it with."""
    if len(trace.ranks) == 1:
        return [None]
    matched = match_collectives(trace)
    if not matched.comparable.any():
        return [None] * len(trace.ranks)
    late = measure_lateness(matched)
    verdicts = [late.verdict(i) for i in range(len(trace.ranks))]
    guilty = np.array([verdict == "straggler" for verdict in verdicts])
    facts = _facts(matched, late, verdicts)
    imbalance_ns, worst = _imbalance(matched)
    if worst is not None:
        facts["imbalance"] = f"{worst:.2f}"
    gain_ns = _gain(matched)
    by_late_rank = guilty[matched.latest_rank] & matched.comparable & matched.synchronising
    waited = np.where(by_late_rank[matched.core.match], matched.wait_ns, 0)
    views: list[_core.PeerView | None] = []
    for index, rank in enumerate(trace.ranks):
        chosen = np.flatnonzero(matched.core.rank == index)
        columns = (
            matched.core.row[chosen],
            waited[chosen],
            np.minimum(waited, gain_ns)[chosen],
            matched.wait_ns[chosen],
            imbalance_ns[chosen],
        )
        parts = list(zip(*(column.tolist() for column in columns), strict=True))
        compared = bool(late.compared[index])
        views.append(
            _core.PeerView(rank.table, parts, has_straggler=bool(guilty.any()), facts=facts)
            if compared or parts
            else None
        )
    return views


def _facts(matched: MatchedCollectives, late: Lateness, verdicts: list[str]) -> dict[str, str]:
    """About the rank that is latest of those that are late."""
    numbers = matched.rank_numbers
    unproven = [str(numbers[i]) for i, v in enumerate(verdicts) if v == "late, cause not proven"]
    facts = {"unproven": ", ".join(unproven[:4])} if unproven else {}
    guilty = [i for i, verdict in enumerate(verdicts) if verdict == "straggler"]
    if guilty:
        worst = max(guilty, key=lambda i: int(late.lateness_ns[i]))
        cause, share = late.main_cause(worst)
        facts |= {
            "late rank": str(numbers[worst]),
            "cause": _CAUSE_WORDS[cause],
            "lateness": format_ns(int(late.lateness_ns[worst])),
            "explained": format_share(share),
        }
    return facts


def _gain(matched: MatchedCollectives) -> Array:
    """int64 by part: how much sooner the last but one rank came than the last."""
    starts = matched.core.start_ns
    gain = np.zeros(matched.matches, dtype=np.int64)
    for match, part in enumerate(matched.parts_by_match):
        if part.stop - part.start > 1:
            ordered = np.partition(starts[part], -2)
            gain[match] = ordered[-1] - ordered[-2]
    by_part: Array = gain[matched.core.match]
    return by_part


def _imbalance(matched: MatchedCollectives) -> tuple[Array, float | None]:
    """Transfer by part that even parts would save, and the largest imbalance; None if unknown.

    By what each rank sends and receives: the fullest sets the time where bandwidth decides.
    """
    core = matched.core
    volume = np.zeros(len(core.match), dtype=np.int64)
    known = np.zeros(len(core.match), dtype=bool)
    for part, sent, received in core.splits:
        volume[part] = max(sum(sent), sum(received))
        known[part] = True
    lost = np.zeros(len(core.match), dtype=np.int64)
    worst: float | None = None
    for match, rows in enumerate(matched.parts_by_match):
        if not known[rows].all() or rows.stop - rows.start < 2:
            continue
        mean = float(volume[rows].mean())
        ratio = float(volume[rows].max()) / mean if mean else 1.0
        worst = max(worst or 1.0, ratio)
        if ratio > UNEVEN and matched.comparable[match]:
            lost[rows] = np.rint(matched.transfer_ns[rows] * (1 - 1 / ratio))
    return lost, worst
