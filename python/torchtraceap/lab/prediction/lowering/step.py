"""A lowered step: calls of the host with what each gives the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchtraceap.lab.prediction.capture.calls import Call
from torchtraceap.lab.prediction.lowering.launching_op import LaunchingOp
from torchtraceap.lab.prediction.lowering.work import GpuWork, HostTime, OpTime

__all__ = ["Around", "Fetch", "LoweredCall", "LoweredOp", "LoweredStep"]

_WAITING = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"})
"""Operators that read back what the GPU made: the host waits for it."""


@dataclass(frozen=True, slots=True)
class LoweredOp:
    """A launching operator with its work."""

    op: LaunchingOp
    works: tuple[GpuWork, ...]
    time: OpTime
    """Of all its work; of a collective that of the transfer."""

    @property
    def host_waits(self) -> bool:
        """Until its work is done."""
        return self.op.name in _WAITING or any(work.host_waits for work in self.works)


@dataclass(frozen=True, slots=True)
class LoweredCall:
    """A call with the operators that launch for it."""

    call: Call
    ops: tuple[LoweredOp, ...]
    host: HostTime


@dataclass(frozen=True, slots=True)
class Fetch:
    """The next batch taken from torch's DataLoader."""

    name: str
    """Of the range around it."""
    host_ns: float
    """What it takes if the batch is there."""
    every_ns: float = 0.0
    """Workers deliver a batch each time; 0 without workers."""
    ahead: int = 0
    """How many batches they may have made before these are taken."""
    ready: int = 1
    """Those that are there when the first step begins."""


@dataclass(frozen=True, slots=True)
class Around:
    """What the host does around the calls of a step, ns."""

    between_ns: float = 20_000.0
    """From the end of a step's range to the next one's begin."""
    begin_ns: float = 0.0
    """From the begin of the range, or the fetch, to the first call."""
    end_ns: float = 0.0
    """From the last call to the end of the range."""
    fetch: Fetch | None = None

    @property
    def total_ns(self) -> float:
        fetched = 0.0 if self.fetch is None else self.fetch.host_ns
        return self.between_ns + self.begin_ns + self.end_ns + fetched


@dataclass(frozen=True, slots=True)
class LoweredStep:
    """A step of one rank."""

    calls: tuple[LoweredCall, ...]
    host_range: tuple[float, float] = (1.0, 1.0)
    """90 of 100 machines take between these times the host times of the calls."""

    around: Around = Around()
    slower: tuple[float, float] = (1.0, 1.0)
    """What host and GPU take against these times."""
    beside: int | None = None
    """It is the step of the slowest of the ranks of that kind."""

    @property
    def host_ns(self) -> float:
        """What the host takes for the step if it never waits."""
        return sum(call.host.total_ns for call in self.calls) + self.around.total_ns

    def ops(self) -> Iterator[LoweredOp]:
        """All launching operators, in the order of the host."""
        for call in self.calls:
            yield from call.ops

    def works(self) -> Iterator[GpuWork]:
        """All GPU work, in the order in which it is launched."""
        for op in self.ops():
            yield from op.works
