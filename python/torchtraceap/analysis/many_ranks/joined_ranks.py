"""`join_ranks`: the ranks that one graph of dependencies can run through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchtraceap import _core
from torchtraceap.analysis.many_ranks.matching import rank_collectives
from torchtraceap.ranks import Ranks, RankTrace
from torchtraceap.units import format_ns

__all__ = ["JoinedRanks", "join_ranks"]

_PAIRED_KINDS = ("send", "recv", "send_recv")


@dataclass(frozen=True, slots=True)
class JoinedRanks:
    """Ranks whose clocks can be compared, and where they meet."""

    parts: list[RankTrace]
    offsets_ns: list[int]
    """Added to a rank's times: the common clock."""
    collectives: list[list[tuple[int, int]]]
    """(index of the rank, GPU row) of the members of each matched collective."""
    notes: list[str]


def join_ranks(trace: Ranks) -> JoinedRanks:
    """The largest set of ranks that share collectives; the notes say which are left out."""
    if len(trace.ranks) == 1:
        return JoinedRanks([trace.ranks[0]], [0], [], [])
    matched = rank_collectives(trace)
    clocks = matched.clocks
    components = [clock.component for clock in clocks]
    chosen = max(dict.fromkeys(components), key=components.count)
    places = [i for i, component in enumerate(components) if component == chosen]
    index_of = {place: index for index, place in enumerate(places)}
    parts = [trace.ranks[place] for place in places]
    offsets = [_offset_ns(clocks[i], trace.ranks[i], matched.clock_epoch_ns) for i in places]
    notes = _rank_notes(trace, parts, [clocks[i] for i in places])
    return JoinedRanks(parts, offsets, list(_meetings(matched, index_of)), notes)


def _offset_ns(clock: _core.ClockFit, part: RankTrace, epoch_ns: int) -> int:
    """What to add to the times of a rank; a drift is taken at the middle of its profiled time."""
    if not clock.applied:
        return 0
    middle_ns = sum(part.tree.profiled) // 2
    return -round(clock.offset_ns + clock.drift * (middle_ns - epoch_ns))


def _meetings(
    matched: _core.RankCollectives, index_of: dict[int, int]
) -> Iterator[list[tuple[int, int]]]:
    """Matched collectives whose end needs every member."""
    synchronising = np.array(_core.synchronising_kinds())
    paired = np.isin(_core.collective_kind_names(), _PAIRED_KINDS)
    match, rank, row, kind = matched.match, matched.rank, matched.row, matched.kind
    for members in np.split(np.arange(len(match)), np.flatnonzero(np.diff(match)) + 1):
        if len(members) < 2:
            continue
        meets = synchronising[kind[members]].all()
        if not meets and not (len(members) == 2 and paired[kind[members]].all()):
            continue
        group = [(index_of.get(int(rank[m]), -1), int(row[m])) for m in members]
        yield [(index, event) for index, event in group if index >= 0 and event != _core.NO_ROW]


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
