"""Finds GPU work that waits for work on other streams.

A work is identified by its place among the works of a step: negative places belong to the previous
step, those beyond the last to the next one.
"""

from __future__ import annotations

from collections import defaultdict

from torchtraceap.lab.prediction.lowering.step import LoweredCall, LoweredStep

__all__ = ["stream_waits"]


def stream_waits(step: LoweredStep) -> list[tuple[int, int]]:
    """Return pairs of works of which the second begins after the first has ended."""
    return _Waits(step).pairs


class _Waits:
    """Follows what each stream waits for through a step.

    Where the host says that what a stream is given from here on waits, the next work that it gets
    does; those behind it follow in the stream's order. A collective waits for what the stream from
    which it is started was given before, and the stream goes on beside it.
    """

    def __init__(self, step: LoweredStep) -> None:
        self._count = sum(1 for _ in step.works())
        self._of_collective = {
            each.id: place for place, work in enumerate(step.works()) for each in work.collectives
        }
        self._reached = _reached(step, self._of_collective)
        self._place = 0
        self._last: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._pending: dict[str, set[int]] = defaultdict(set)
        self.pairs: list[tuple[int, int]] = []
        for lowered in step.calls:
            self._follow(lowered)
        for stream, sources in self._pending.items():
            if stream in self._first:
                self._let_wait(self._count + self._first[stream], sources)

    def _follow(self, lowered: LoweredCall) -> None:
        call = lowered.call
        pending = self._pending[call.stream]
        if call.waits_for in self._of_collective:
            pending.add(self._of_collective[call.waits_for])
        for index in call.after:
            before = 0 if index >= 0 else self._count
            pending.update(place - before for place in self._reached[index])
        for op in lowered.ops:
            for work in op.works:
                self._let_wait(self._place, pending)
                if work.collective is None:
                    pending.clear()
                    self._last[call.stream] = self._place
                    self._first.setdefault(call.stream, self._place)
                elif call.stream in self._last:
                    self.pairs.append((self._last[call.stream], self._place))
                self._place += 1

    def _let_wait(self, place: int, sources: set[int]) -> None:
        self.pairs += [(source, place) for source in sorted(sources) if source != place]


def _reached(step: LoweredStep, of_collective: dict[int, int]) -> list[tuple[int, ...]]:
    """Return the last work of the stream and the started collective, by call."""
    found: list[tuple[int, ...]] = []
    last: dict[str, int] = {}
    place = 0
    for lowered in step.calls:
        for op in lowered.ops:
            for work in op.works:
                if work.collective is None:
                    last[lowered.call.stream] = place
                place += 1
        own = [last[lowered.call.stream]] if lowered.call.stream in last else []
        started = lowered.call.collective
        found.append((*own, *([of_collective[started.id]] if started else [])))
    return found
