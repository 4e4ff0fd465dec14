"""Streams selected by the host and the waits between them.

Note [Points]: a point in a stream, such as an event, is the set of calls that end before it, given
by their indices in the step. In the next step indices count back from its first call, so that -1 is
the last call of the previous step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from torchtraceap.lab.prediction.capture.calls import COMPUTE, Collective, TensorInfo

__all__ = ["Streams"]


class Streams:
    """The streams of one process."""

    def __init__(self) -> None:
        self.current = COMPUTE
        self._last: dict[str, int] = {}
        """Last call on each stream, without collectives that run beside it."""
        self._before: int | None = None
        """Last call of the stream before its latest one."""
        self._waits: dict[str, set[int]] = {}
        """Calls that the next work of a stream waits for."""
        self._collectives: set[int] = set()
        self._unfinished: dict[int, int] = {}
        """Pending collectives by the storage that they write."""

    @contextmanager
    def select(self, stream: str) -> Iterator[None]:
        """Select a stream within the context."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def point(self, stream: str) -> frozenset[int]:
        """Return the current point of a stream; see Note [Points]."""
        last = {self._last[stream]} if stream in self._last else set()
        return frozenset(last | self._waits.get(stream, set()))

    def wait(self, stream: str, point: Collection[int]) -> None:
        """Make later work of a stream wait for a point."""
        self._waits.setdefault(stream, set()).update(point)
        self._unfinished = {
            storage: index for storage, index in self._unfinished.items() if index not in point
        }

    def add_call(
        self, index: int, tensors: Iterable[TensorInfo]
    ) -> tuple[int | None, tuple[int, ...]]:
        """Add a call to the current stream.

        Args:
            index: Index of the call.
            tensors: Tensors that it reads or writes.

        Returns:
            The collective that it waits for, and other calls.
        """
        waits = self._waits.pop(self.current, set())
        for tensor in tensors:
            if tensor.storage in self._unfinished:
                waits.add(self._unfinished.pop(tensor.storage))
        self._before = self._last.get(self.current)
        self._last[self.current] = index
        latest = max((each for each in waits & self._collectives if each >= 0), default=None)
        return latest, tuple(sorted(waits - {latest}))

    def start_collective(
        self, collective: Collective, writes: Iterable[TensorInfo], *, waits: bool
    ) -> None:
        """Start a collective with the latest call of the current stream.

        Args:
            collective: The collective.
            writes: Tensors that it writes.
            waits: True if the stream waits for it, rather than the first use of its result.
        """
        self._collectives.add(collective.id)
        if waits:
            self.wait(self.current, [collective.id])
            return
        self._unfinished.update((tensor.storage, collective.id) for tensor in writes)
        del self._last[self.current]
        if self._before is not None:
            self._last[self.current] = self._before

    def end_step(self, calls: int) -> None:
        """End a step of so many calls; see Note [Points]. Older calls are done."""

        def back(points: set[int]) -> set[int]:
            return {index - calls for index in points if index >= 0}

        self._last = {name: last - calls for name, last in self._last.items() if last >= 0}
        self._waits = {stream: back(waits) for stream, waits in self._waits.items()}
        self._collectives = back(self._collectives)
        self._unfinished = {
            storage: index - calls for storage, index in self._unfinished.items() if index >= 0
        }
