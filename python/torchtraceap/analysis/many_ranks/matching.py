"""`match_collectives`: what every table over several ranks starts from.

Note [Waiting and transfer]: no rank's part in an all-reduce moves data before the last rank has
come, so a part of duration d that began w before the last one waited w and transferred d - w. With
w bounded by d, wait + transfer = duration holds exactly for every part, and transfer is the
common end minus the latest start wherever the rank was still there by then. (On a public DLRM set
96 % of the time in NCCL kernels is waiting.) Starts are compared on clocks that were aligned by
the *ends* of collectives, so lateness is never taken for a clock offset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap import _core
from torchtraceap.aliases import Array

if TYPE_CHECKING:
    from torchtraceap.ranks import Ranks, RankTrace

__all__ = ["MatchedCollectives", "match_collectives", "rank_collectives", "recorded_bounds"]

POINT_TO_POINT = ("send", "recv")
WEAK_KINDS = ("unknown", "send_recv")
"""Kinds that a kernel's name alone gives: another rank may know better."""

# tensorboard_trace_handler's file names: host_pid.time.pt.trace.json[.gz]
_HOST_IN_NAME = re.compile(r"^(?P<host>.+)_\d+\.\d+\.pt\.trace\.json(?:\.gz)?$")


def match_collectives(trace: Ranks) -> MatchedCollectives:
    """Matches the collectives of all ranks and aligns their clocks. O(n) in practice."""
    return MatchedCollectives(trace, rank_collectives(trace))


def rank_collectives(trace: Ranks) -> _core.RankCollectives:
    """The matches and clocks as the core gives them; made once for a trace."""
    return trace.remember(
        "collectives",
        lambda: _core.collectives([(rank.table, rank.tree, rank.rank) for rank in trace.ranks]),
    )


def recorded_bounds(rank: RankTrace) -> tuple[int, int]:
    """First start and last end of what has a time and a duration, on the rank's own clock."""
    table = rank.table
    rows = np.flatnonzero((table.flags & 3) == 3)
    if not len(rows):
        return 0, 0
    return int(table.ts_ns[rows[0]]), int((table.ts_ns[rows] + table.dur_ns[rows]).max())


@dataclass(frozen=True)
class MatchedCollectives:
    """Columns by part (one rank's share in one match), sorted by match, then rank."""

    trace: Ranks
    core: _core.RankCollectives

    @property
    def matches(self) -> int:
        return self.core.matches

    # The core hands out new lists each time: asked for by match, that would be quadratic.

    @cached_property
    def groups(self) -> list[_core.ProcessGroup]:
        """Process groups, as `group_of` counts them."""
        return self.core.groups

    @cached_property
    def clocks(self) -> list[_core.ClockFit]:
        """One for each rank."""
        return self.core.clocks

    @cached_property
    def first(self) -> Array:
        """int64 `[matches]`: first part of each match."""
        return np.searchsorted(self.core.match, np.arange(self.matches))

    @cached_property
    def count(self) -> Array:
        """int64 `[matches]`: parts."""
        return np.bincount(self.core.match, minlength=self.matches)

    @cached_property
    def duration_ns(self) -> Array:
        return self.core.end_ns - self.core.start_ns

    @cached_property
    def latest_start_ns(self) -> Array:
        """int64 `[matches]`: when the last rank came, common clock."""
        return self._reduce(np.maximum, self.core.start_ns)

    @cached_property
    def comparable(self) -> Array:
        """bool `[matches]`: several ranks whose clocks can be compared."""
        component = np.array([clock.component for clock in self.clocks], dtype=np.int64)
        own = component[self.core.rank]
        same = self._reduce(np.minimum, own) == self._reduce(np.maximum, own)
        comparable: Array = (self.count > 1) & same
        return comparable

    @cached_property
    def wait_ns(self) -> Array:
        """int64 `[parts]`; 0 where nothing can be compared."""
        lead = self.latest_start_ns[self.core.match] - self.core.start_ns
        waits = np.where(self.comparable[self.core.match], np.minimum(lead, self.duration_ns), 0)
        return waits

    @cached_property
    def transfer_ns(self) -> Array:
        """int64 `[parts]`: duration - wait."""
        transfer: Array = self.duration_ns - self.wait_ns
        return transfer

    @cached_property
    def latest_rank(self) -> Array:
        """int64 `[matches]`: index of the rank that came last; -1 where nothing is comparable."""
        last = self.core.start_ns == self.latest_start_ns[self.core.match]
        index = np.where(last, self.core.rank.astype(np.int64), np.iinfo(np.int64).max)
        latest: Array = np.where(self.comparable, self._reduce(np.minimum, index), -1)
        return latest

    @cached_property
    def kinds(self) -> list[str]:
        """`[matches]`: the kind, by the ranks that know it; send_recv for a matched pair."""
        names = _core.collective_kind_names()
        own = [names[kind] for kind in self.core.kind.tolist()]
        return [self._kind_of(own[part]) for part in self.parts_by_match]

    @staticmethod
    def _kind_of(kinds: list[str]) -> str:
        if any(kind in POINT_TO_POINT for kind in kinds):
            return "send_recv" if len(kinds) > 1 else kinds[0]
        known = [kind for kind in kinds if kind not in WEAK_KINDS]
        if "all_to_all_v" in known:
            return "all_to_all_v"
        return known[0] if known else kinds[0]

    @cached_property
    def synchronising(self) -> Array:
        """bool `[matches]`: no rank leaves before every rank has come."""
        flags = zip(_core.collective_kind_names(), _core.synchronising_kinds(), strict=True)
        by_name = dict(flags)
        return np.array([by_name[kind] for kind in self.kinds], dtype=bool)

    @cached_property
    def parts_by_match(self) -> list[slice]:
        ends = self.first + self.count
        pairs = zip(self.first.tolist(), ends.tolist(), strict=True)
        return [slice(begin, end) for begin, end in pairs]

    @cached_property
    def rank_numbers(self) -> list[int]:
        """Number of each rank; its place where the trace does not say."""
        return [i if rank.rank is None else rank.rank for i, rank in enumerate(self.trace.ranks)]

    @cached_property
    def group_of(self) -> Array:
        """int64 `[matches]`: index in `groups`."""
        groups: Array = self.core.group[self.first].astype(np.int64)
        return groups

    @cached_property
    def expected_ranks(self) -> list[list[int]]:
        """Of each group: the ranks in it, as recorded, else all of the trace that use it."""
        used: list[set[int]] = [set() for _ in self.groups]
        numbers = self.rank_numbers
        pairs = np.unique(np.stack([self.core.group, self.core.rank]), axis=1).T.tolist()
        for group, rank in pairs:
            used[group].add(numbers[rank])
        pairs_known = zip(self.groups, used, strict=True)
        return [list(group.ranks) or sorted(seen) for group, seen in pairs_known]

    @cached_property
    def world_size(self) -> int | None:
        """The largest that a file names."""
        sizes = [rank.world_size for rank in self.trace.ranks if rank.world_size is not None]
        return max(sizes, default=None)

    @cached_property
    def absent_ranks(self) -> list[int]:
        """Ranks of the job without a file."""
        return sorted(set(range(min(self.world_size or 0, 1 << 20))) - set(self.rank_numbers))

    def group_size(self, match: int) -> int | None:
        """Ranks in the group; None where a file that is not there could have joined."""
        group = self.groups[int(self.group_of[match])]
        if group.size:
            return group.size
        return None if self.absent_ranks else len(self.expected_ranks[int(self.group_of[match])])

    @cached_property
    def missing_ranks(self) -> list[tuple[int, ...]]:
        """`[matches]`: ranks of the group (of the pair, for send and recv) without a part.

        Equal ones are the same object: in a large job there are few, and each is long.
        """
        numbers = self.rank_numbers
        ranks, peers = self.core.rank.tolist(), self.core.peer.tolist()
        cache: dict[tuple[int, tuple[int, ...], int | None], tuple[int, ...]] = {}
        result = []
        for match, part in enumerate(self.parts_by_match):
            group = int(self.group_of[match])
            here = tuple(ranks[part])
            pair = self.kinds[match] in (*POINT_TO_POINT, "send_recv")
            peer = peers[part.start] if pair and peers[part.start] != _core.NO_ID else None
            key = (group, here, peer)
            if key not in cache:
                members = self.expected_ranks[group]
                if peer is not None:
                    members = [] if len(here) > 1 else [peer]
                present = {numbers[rank] for rank in here}
                cache[key] = tuple(rank for rank in members if rank not in present)
            result.append(cache[key])
        return result

    @cached_property
    def recorded_ns(self) -> Array:
        """int64 `[ranks, 2]`: what each file covers, on the common clock."""
        bounds = np.array([recorded_bounds(rank) for rank in self.trace.ranks], dtype=np.int64)
        return bounds - self.offsets_ns[:, None]

    @cached_property
    def offsets_ns(self) -> Array:
        """int64 `[ranks]`: what was taken off each rank's times (at the middle of a drift)."""
        clocks = self.clocks
        return np.array([c.offset_ns if c.applied else 0 for c in clocks], dtype=np.int64)

    @cached_property
    def nodes(self) -> list[str | None]:
        """The machine of each rank; None where the trace does not tell.

        By the host name that tensorboard_trace_handler puts into file names; else by rank and the
        number of GPUs that each machine shows, if every rank sits on the GPU which that predicts.
        """
        hosts = [_HOST_IN_NAME.match(Path(rank.path).name) for rank in self.trace.ranks]
        if all(hosts):
            return [match["host"] for match in hosts if match]
        counts = {len(rank.table.devices) for rank in self.trace.ranks}
        per_node = counts.pop() if len(counts) == 1 else 0
        if per_node < 2 or not self._on_predicted_device(per_node):
            return [None] * len(hosts)
        return [f"node {number // per_node}" for number in self.rank_numbers]

    def _on_predicted_device(self, per_node: int) -> bool:
        for number, rank in zip(self.rank_numbers, self.trace.ranks, strict=True):
            rows = rank.tree.gpu_rows
            devices = np.unique(rank.table.device[rows])
            if devices.tolist() != [number % per_node]:
                return False
        return True

    def _reduce(self, function: np.ufunc, values: Array) -> Array:
        if not self.matches:
            return np.zeros(0, dtype=values.dtype)
        reduced: Array = function.reduceat(values, self.first)
        return reduced
