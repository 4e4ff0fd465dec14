"""The rules on every rank, and one verdict for all of them.

This is the only place that runs the rules: `diagnose` merges what they say into findings, `diff`
compares what they say of two recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap import _core
from torchtraceap.core.threads import map_on_threads
from torchtraceap.tables.gpu.recorded_device import matrix_units

if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "PerRank",
    "detect",
    "excluded_types",
    "judge",
    "known",
    "present_findings",
    "surprisal",
    "verdicts_of",
]


_LEAST_SHARE = 1e-3
"""Mean share below which a finding is no rarer."""
PerRank = Sequence[tuple["RankTrace", _core.Finding]]
"""The finding of one rule on each rank."""


def detect(trace: Ranks) -> dict[str, PerRank]:
    """Return the finding of each rule on each rank, by type; computed once. Ranks see what the
    traces of the others tell of them."""
    return trace.cached("what the rules say", lambda: _detect(trace))


def _detect(trace: Ranks) -> dict[str, PerRank]:
    peers: Sequence[_core.PeerView | None] = [None] * len(trace.ranks)
    if len(trace.ranks) > 1:
        from torchtraceap.tables.matching import peer_views

        peers = peer_views(trace)

    def detect_one(index: int) -> list[_core.Finding]:
        rank, view = trace.ranks[index], peers[index]
        units = matrix_units(rank.table)
        return _core.detect(rank.table, rank.tree, peers=view, matrix_units=units)

    by_rank = map_on_threads(detect_one, range(len(trace.ranks)))
    return {
        parts[0].type: list(zip(trace.ranks, parts, strict=True))
        for parts in zip(*by_rank, strict=True)
    }


def present_findings(trace: Ranks) -> dict[str, PerRank]:
    """Return the findings of the types that are present, by type."""
    return {name: detect(trace)[name] for name, v in verdicts_of(trace).items() if v == "present"}


def excluded_types(trace: Ranks) -> frozenset[str]:
    """Return the types whose verdict is "absent"."""
    return frozenset(name for name, v in verdicts_of(trace).items() if v == "absent")


def verdicts_of(trace: Ranks) -> dict[str, str]:
    """Return one verdict for all ranks, by type; computed once."""

    def find() -> dict[str, str]:
        return {name: judge(parts) for name, parts in detect(trace).items()}

    return trace.cached("verdicts", find)


def known(parts: PerRank) -> PerRank:
    """Return the findings of the ranks whose trace has the signal."""
    return [(rank, found) for rank, found in parts if found.verdict != "unknown"]


def judge(parts: PerRank) -> str:
    """Return one verdict for all ranks: "present", "absent" or "unknown".

    A rule's word stands for a lone rank. For several, present means that a rank says so and that
    the summed cost is material; absent, that it stays immaterial even if the ranks that could not
    be checked were lost as a whole.
    """
    if len(parts) == 1:
        return parts[0][1].verdict
    material_ns = _core.MATERIAL_SHARE * sum(rank.profiled_ns for rank, _ in parts)
    checked = known(parts)
    cost_ns = sum(found.cost_ns for _, found in checked)
    if any(found.verdict == "present" for _, found in checked):
        if cost_ns >= material_ns:
            return "present"
    else:
        cost_ns = 0
    hidden_ns = sum(rank.profiled_ns for rank, found in parts if found.verdict == "unknown")
    if not checked or (hidden_ns and cost_ns + hidden_ns >= material_ns):
        return "unknown"
    return "absent"


def surprisal(shares: Array) -> Array:
    """Return how many bits findings tell of each window beyond what they tell of all, `[W, T]`.

    A finding that covers each window alike says nothing of one of them; one that covers a fiftieth
    of the time says much of the windows where it lies: the share of a window times its
    self-information, minus the binary logarithm of the mean share (Shannon 1948, section 6).

    Args:
        shares: float `[W, T]`: the part of each window that findings of each type cover.
    """
    if not shares.size:
        return np.zeros(shares.shape)
    rarity = -np.log2(np.clip(shares.mean(axis=0, dtype=np.float64), _LEAST_SHARE, 1.0))
    bits: Array = shares * rarity
    return bits
