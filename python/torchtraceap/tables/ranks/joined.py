"""`join_ranks`: the ranks that one graph of dependencies can run through."""

from __future__ import annotations

from collections.abc import Sequence

from torchtraceap import _core
from torchtraceap.core.formatting import format_ns
from torchtraceap.core.records import dataclass
from torchtraceap.tables.ranks.matching import rank_collectives
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["JoinedRanks", "join_ranks"]


@dataclass(frozen=True, slots=True)
class JoinedRanks:
    """Ranks whose clocks can be compared, and where they meet."""

    parts: list[RankTrace]
    places: list[int]
    """Index of each in the trace."""
    offsets_ns: list[int]
    """Added to a rank's times: the common clock."""
    meetings: _core.Meetings | None
    """Matched collectives whose end needs every member; None where there is one rank."""
    notes: list[str]

    @property
    def as_arguments(self) -> list[tuple[_core.EventTable, _core.EventTree, int]]:
        """As the core's graphs take them."""
        pairs = zip(self.parts, self.offsets_ns, strict=True)
        return [(part.table, part.tree, offset) for part, offset in pairs]


def join_ranks(trace: Ranks) -> JoinedRanks:
    """The largest set of ranks that share collectives; the notes say which are left out."""
    if len(trace.ranks) == 1:
        return JoinedRanks([trace.ranks[0]], [0], [0], None, [])
    matched = rank_collectives(trace)
    clocks = matched.clocks
    components = [clock.component for clock in clocks]
    chosen = max(dict.fromkeys(components), key=components.count)
    places = [i for i, component in enumerate(components) if component == chosen]
    parts = [trace.ranks[place] for place in places]
    offsets = [_offset_ns(clocks[i], trace.ranks[i], matched.clock_epoch_ns) for i in places]
    notes = _rank_notes(trace, parts, [clocks[i] for i in places])
    return JoinedRanks(parts, places, offsets, matched.meetings(places), notes)


def _offset_ns(clock: _core.ClockFit, part: RankTrace, epoch_ns: int) -> int:
    """What to add to the times of a rank; a drift is taken at the middle of its profiled time."""
    if not clock.applied:
        return 0
    middle_ns = sum(part.tree.profiled) // 2
    return -round(clock.offset_ns + clock.drift * (middle_ns - epoch_ns))


def _rank_notes(
    trace: Ranks, parts: Sequence[RankTrace], clocks: Sequence[_core.ClockFit]
) -> list[str]:
    notes = []
    if len(parts) < len(trace.ranks):
        notes.append(
            f"{len(parts)} of {len(trace.ranks)} ranks are taken together: the others share no "
            "collective with them, so their clocks can't be compared."
        )
    if len(parts) > 1:
        residual = max(clock.residual_ns for clock in clocks)
        notes.append(
            "A collective moves data once its last rank has begun: where others wait, the path "
            f"goes on with what made that rank late. Clocks agree to {format_ns(residual)}."
        )
    return notes
