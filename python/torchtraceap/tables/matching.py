"""Collectives matched across ranks: common clocks, late ranks, ranks joined, ranks in one file."""

from __future__ import annotations

import os
import re
from functools import cached_property
from operator import add
from pathlib import Path

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import distinct
from torchtraceap.errors import OptionError
from torchtraceap.tables.serving.annotations import with_messages
from torchtraceap.tables.serving.capture import find_captures
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "JoinedRanks",
    "MatchedCollectives",
    "join_ranks",
    "match_collectives",
    "merge_ranks",
    "peer_views",
    "rank_collectives",
    "rank_lateness",
]


# tensorboard_trace_handler's file names: host_pid.time.pt.trace.json[.gz]
_HOST_IN_NAME = re.compile(r"^(?P<host>.+)_\d+\.\d+\.pt\.trace\.json(?:\.gz)?$")


def match_collectives(trace: Ranks) -> MatchedCollectives:
    """Match the collectives of all ranks and align their clocks. O(n) in practice."""
    return MatchedCollectives(trace, rank_collectives(trace))


def rank_collectives(trace: Ranks) -> _core.RankCollectives:
    """Return the matches and clocks as the core gives them; made once for a trace."""
    return trace.cached(
        "collectives",
        lambda: _core.collectives([(*_noted(rank), rank.rank) for rank in trace.ranks]),
    )


def _noted(part: RankTrace) -> tuple[_core.EventTable, _core.EventTree]:
    return with_messages(part, find_captures(part.path))


@dataclass(frozen=True)
class MatchedCollectives:
    """Columns by part (one rank's share in one match), sorted by match, then rank."""

    trace: Ranks
    core: _core.RankCollectives

    @property
    def matches(self) -> int:
        return self.core.matches

    def streams_of(self, index: int, rows: Array) -> Array:
        """Return the streams of GPU events of a rank, int64; NO_ID where none is recorded."""
        streams: Array = _noted(self.trace.ranks[index])[0].stream[rows]
        return streams

    # The core hands out new lists each time: asked for by match, that would be quadratic.

    @cached_property
    def groups(self) -> list[_core.ProcessGroup]:
        """The process groups, as `group_of` counts them."""
        return self.core.groups

    @cached_property
    def clocks(self) -> list[_core.ClockFit]:
        """The clock of each rank."""
        return self.core.clocks

    @cached_property
    def duration_ns(self) -> Array:
        return self.core.end_ns - self.core.start_ns

    @cached_property
    def transfer_ns(self) -> Array:
        """int64 `[parts]`: duration - wait."""
        transfer: Array = self.duration_ns - self.core.wait_ns
        return transfer

    @cached_property
    def kinds(self) -> list[str]:
        """The kind of each match, by the ranks that know it; send_recv for a matched pair."""
        names = _core.collective_kind_names()
        return [names[kind] for kind in self.core.kind_of.tolist()]

    @cached_property
    def parts_by_match(self) -> list[slice]:
        first, count = self.core.first.tolist(), self.core.count.tolist()
        pairs = zip(first, map(add, first, count), strict=True)
        return [slice(begin, end) for begin, end in pairs]

    @cached_property
    def rank_numbers(self) -> list[int]:
        """The number of each rank; its place where the trace does not say."""
        return [i if rank.rank is None else rank.rank for i, rank in enumerate(self.trace.ranks)]

    @cached_property
    def expected_ranks(self) -> list[list[int]]:
        """The ranks of each group, as recorded, else all of the trace that use it."""
        return self.core.expected_ranks

    @cached_property
    def world_size(self) -> int | None:
        """The largest size of the world that a file names."""
        sizes = [rank.world_size for rank in self.trace.ranks if rank.world_size is not None]
        return max(sizes, default=None)

    @cached_property
    def absent_ranks(self) -> list[int]:
        """Ranks of the job without a file."""
        return sorted(set(range(min(self.world_size or 0, 1 << 20))) - set(self.rank_numbers))

    def group_size(self, match: int) -> int | None:
        """Return the ranks in the group; None where a file that is missing could have joined."""
        number = int(self.core.group_of[match])
        group = self.groups[number]
        if group.size:
            return group.size
        return None if self.absent_ranks else len(self.expected_ranks[number])

    @cached_property
    def missing_ranks(self) -> list[list[int]]:
        """The ranks of each match's group (of the pair, for send and recv) without a part.

        Equal ones are the same object: in a large job there are few, and each is long.
        """
        missing = self.core.missing_ranks()
        lists = missing.lists
        return [lists[number] for number in missing.list_of.tolist()]

    @cached_property
    def recorded_ns(self) -> Array:
        """int64 `[ranks, 2]`: start and end of each file, on the common clock."""
        return self.core.recorded_ns

    @cached_property
    def nodes(self) -> list[str | None]:
        """The machine of each rank; None where the trace does not tell.

        The host name that tensorboard_trace_handler puts into file names tells; else rank and the
        number of GPUs that each machine shows, if every rank sits on the GPU which that predicts.
        """
        hosts = [_HOST_IN_NAME.match(Path(rank.path).name) for rank in self.trace.ranks]
        if all(hosts):
            return [match["host"] for match in hosts if match]
        counts = {len(rank.table.devices) for rank in self.trace.ranks}
        per_node = counts.pop() if len(counts) == 1 else 0
        if per_node < 2:
            return [None] * len(hosts)
        for number, rank in zip(self.rank_numbers, self.trace.ranks, strict=True):
            devices = distinct(rank.table.device[rank.tree.gpu_rows])
            if devices.tolist() != [number % per_node]:
                return [None] * len(hosts)
        return [f"node {number // per_node}" for number in self.rank_numbers]


@dataclass(frozen=True, slots=True)
class JoinedRanks:
    """Ranks whose clocks can be compared, and where they meet."""

    parts: list[RankTrace]
    places: list[int]
    """The index of each in the trace."""
    offsets_ns: list[int]
    """The time in ns that is added to a rank's times for the common clock."""
    meetings: _core.Meetings | None
    """Matched collectives whose end needs every member; None where there is one rank."""
    notes: list[str]

    @property
    def as_arguments(self) -> list[tuple[_core.EventTable, _core.EventTree, int]]:
        """The ranks as the core's graphs take them."""
        pairs = zip(self.parts, self.offsets_ns, strict=True)
        return [(part.table, part.tree, offset) for part, offset in pairs]


def join_ranks(trace: Ranks, *, one_clock: bool = True) -> JoinedRanks:
    """Return the largest set of ranks that share collectives.

    Args:
        trace: One or several ranks.
        one_clock: Leave out ranks whose clocks can't be compared with these; else every set of
            ranks that share collectives belongs, as the pairs of a job of two pairs do.
    """
    if len(trace.ranks) == 1:
        return JoinedRanks([trace.ranks[0]], [0], [0], None, [])
    matched = rank_collectives(trace)
    clocks = matched.clocks
    components = [clock.component for clock in clocks]
    sets = sorted(dict.fromkeys(components), key=components.count, reverse=True)
    chosen = sets[:1] + [one for one in sets[1:] if not one_clock and components.count(one) > 1]
    places = [i for i, component in enumerate(components) if component in chosen]
    parts = [trace.ranks[place] for place in places]
    offsets = []
    for place, part in zip(places, parts, strict=True):
        clock = clocks[place]
        middle_ns = sum(part.tree.profiled) // 2  # a drift is taken there
        offset_ns = clock.offset_ns + clock.drift * (middle_ns - matched.clock_epoch_ns)
        offsets.append(-round(offset_ns) if clock.applied else 0)
    notes = []
    if len(parts) < len(trace.ranks):
        notes.append(
            f"{len(parts)} of {len(trace.ranks)} ranks are taken together: the others share no "
            "collective with them, so their clocks can't be compared."
        )
    if len(parts) > 1:
        residual_ns = max(clocks[place].residual_ns for place in places)
        notes.append(
            "A collective moves data once its last rank has begun: where others wait, the path "
            "goes on with what made that rank late. Clocks agree to "
            f"{format_ns(residual_ns)}"
            + (" within each set of ranks that share collectives." if len(chosen) > 1 else ".")
        )
    return JoinedRanks(parts, places, offsets, matched.meetings(places), notes)


def rank_lateness(trace: Ranks) -> _core.Lateness:
    """Return the lateness of each rank (cpp/traceap/analysis/collectives/lateness.hpp); once for a
    trace. A rank is late that costs the others a material time."""
    return trace.cached(
        "lateness",
        lambda: rank_collectives(trace).lateness(material_share=_core.MATERIAL_SHARE),
    )


def peer_views(trace: Ranks) -> list[_core.PeerView]:
    """Return for each rank what the traces of the others say of it, for the rules."""
    return rank_collectives(trace).peer_views(rank_lateness(trace))


def merge_ranks(trace: Ranks, path: str | os.PathLike[str]) -> MatchedCollectives:
    """Write every event of every rank as one trace for Perfetto, gzip for a name in ".gz".

    Clocks are aligned by the ends of collectives where they disagree by more than that can tell.
    Process names begin with their rank; process, correlation, flow and External ids are renumbered
    so that no two ranks share one. What was merged is written down, so that `load` takes the file
    for the ranks again.

    Args:
        trace: One or several ranks.
        path: Where to write it.

    Returns:
        The matched collectives, whose clocks say what was moved.

    Raises:
        OptionError: Another ending, or the path is that of a file that was read.
        OutputError: The file can't be written.
    """
    from torchtraceap.core.writing import check_target, replacing

    target = Path(path)
    if not target.name.lower().endswith((".json", ".json.gz")):
        raise OptionError(f"{target}: the name must end in .json or .json.gz")
    inputs = [rank.path for rank in trace.ranks]
    check_target(target, inputs)
    matched = match_collectives(trace)
    ranks = [
        (rank.table, number, clock.offset_ns, clock.drift)
        if clock.applied
        else (rank.table, number, 0, 0.0)
        for rank, number, clock in zip(
            trace.ranks, matched.rank_numbers, matched.clocks, strict=True
        )
    ]
    with replacing(target, inputs=inputs) as staged:
        _core.write_merged_trace(ranks, staged, epoch_ns=matched.core.clock_epoch_ns)
    return matched
