"""Which rank keeps the others waiting: the core's analysis/collectives/lateness.cpp tells how."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap import _core
from torchtraceap.tables.ranks.matching import rank_collectives

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks

__all__ = ["peer_views", "rank_lateness"]


def rank_lateness(trace: Ranks) -> _core.Lateness:
    """By rank; measured once for a trace. A rank is late that costs the others a material time."""
    return trace.cached(
        "lateness",
        lambda: rank_collectives(trace).lateness(material_share=_core.MATERIAL_SHARE),
    )


def peer_views(trace: Ranks) -> list[_core.PeerView]:
    """What the traces of the other ranks say of each rank, for the rules."""
    return rank_collectives(trace).peer_views(rank_lateness(trace))
