"""Slices that overlap without nesting, spread over as many tracks as that takes."""

from __future__ import annotations

import heapq

import numpy as np

from torchtraceap.core.aliases import Array

__all__ = ["assign_lanes"]

_FREE = 2**64  # later than every end: whatever comes fits


def assign_lanes(start_ns: Array, end_ns: Array) -> Array:
    """The first lane of each slice on which it nests in what is still open there.

    Args:
        start_ns: int64 `[n]`, rising.
        end_ns: int64 `[n]`, none before its start.

    Returns:
        int64 `[n]`, from 0 without a gap.
    """
    lanes = _Lanes()
    slices = zip(start_ns.tolist(), end_ns.tolist(), strict=True)
    return np.fromiter((lanes.place(start, end) for start, end in slices), np.int64, len(start_ns))


class _Lanes:
    """What is open on each lane.

    A slice fits where the innermost open one ends no earlier. A tree of maxima over these ends
    finds the first such lane in log(lanes); a heap of all open ends says what has ended.
    """

    def __init__(self) -> None:
        self._size = 1  # leaves of the tree, a power of two
        self._latest = [_FREE] * 2  # node i has 2i and 2i + 1 below it, leaves come last
        self._open: list[list[int]] = []  # by lane: ends of open slices, the innermost last
        self._ends: list[tuple[int, int]] = []  # heap of (end, lane)

    def place(self, start: int, end: int) -> int:
        while self._ends and self._ends[0][0] <= start:
            _, lane = heapq.heappop(self._ends)
            ends = self._open[lane]
            ends.pop()
            self._set(lane, ends[-1] if ends else _FREE)
        lane = self._first_until(end)
        self._open[lane].append(end)
        heapq.heappush(self._ends, (end, lane))
        self._set(lane, end)
        return lane

    def _first_until(self, end: int) -> int:
        """The first lane that is free until `end`, a new one if no other is."""
        if self._latest[1] < end:
            self._grow()
        node = 1
        while node < self._size:
            node *= 2
            if self._latest[node] < end:
                node += 1
        lane = node - self._size
        if lane == len(self._open):
            self._open.append([])
        return lane

    def _set(self, lane: int, value: int) -> None:
        node = lane + self._size
        self._latest[node] = value
        while node > 1:
            node //= 2
            latest = max(self._latest[2 * node], self._latest[2 * node + 1])
            if self._latest[node] == latest:
                return
            self._latest[node] = latest

    def _grow(self) -> None:
        """Twice the lanes; the new ones are free."""
        leaves = self._latest[self._size :] + [_FREE] * self._size
        self._size *= 2
        self._latest = [0] * self._size + leaves
        for node in range(self._size - 1, 0, -1):
            self._latest[node] = max(self._latest[2 * node], self._latest[2 * node + 1])
