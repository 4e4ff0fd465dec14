"""The records of a lowered step: operators, GPU work, and host times of its calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from torchtraceap.lab.prediction.capture.calls import (
    COMPUTE,
    Call,
    Collective,
    Phase,
    TensorInfo,
    Value,
    tensors_in,
)
from torchtraceap.ops import Device, Estimate

__all__ = [
    "BatchFetch",
    "GpuWork",
    "HostTime",
    "LaunchingOp",
    "Libraries",
    "LoopOverhead",
    "LoweredCall",
    "LoweredOp",
    "LoweredStep",
    "OpTime",
    "WorkKind",
    "libraries_of",
]

_WAITING = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"})
"""Operators that read GPU results back, so that the host waits."""


@dataclass(frozen=True, slots=True)
class Libraries:
    """The libraries of a build of torch."""

    convolution: str = "cudnn"
    """"cudnn" or "miopen"."""
    torch: tuple[int, int] = (2, 7)
    """Version of torch, which changes names and widths of kernels."""

    @property
    def for_amd(self) -> bool:
        return self.convolution == "miopen"


def libraries_of(device: Device) -> Libraries:
    """Return the libraries of a build for a device."""
    return Libraries("miopen" if device.vendor == "amd" else "cudnn")


@dataclass(frozen=True, slots=True)
class LaunchingOp:
    """An operator that launches GPU work."""

    name: str
    inputs: tuple[Value, ...]
    """Inputs by position, as far as known: tensors, lists of them, plain values."""
    outputs: tuple[Value, ...]
    phase: Phase
    modules: tuple[str, ...]
    call: int
    """Index of the captured call behind it."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Tensors among the inputs, including those in lists."""
        return tuple(tensors_in(self.inputs))

    def value(self, place: int) -> Value:
        """Return an input; None if it is not known."""
        return self.inputs[place] if place < len(self.inputs) else None


class WorkKind(Enum):
    """Kineto's category of a piece of GPU work."""

    KERNEL = "kernel"
    MEMCPY = "gpu_memcpy"
    MEMSET = "gpu_memset"


@dataclass(frozen=True, slots=True)
class GpuWork:
    """A kernel, a copy or a memset."""

    name: str
    """Kineto's name."""
    kind: WorkKind
    estimate: Estimate
    """Duration, ns; for a collective, of the transfer once all ranks have begun."""
    bytes: int = 0
    """Size of a copy, memset or collective."""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    """Registers per thread."""
    shared_memory: int = 0
    """Static and dynamic bytes per block."""
    collective: Collective | None = None
    others: tuple[Collective, ...] = ()
    """Further sends and receives of the same launch."""
    lane: str = COMPUTE
    """Role of its stream: "compute", or the name of a process group."""

    host_waits: bool = False
    """True if the launching call returns when it is done."""

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """All collectives of the launch."""
        return () if self.collective is None else (self.collective, *self.others)


@dataclass(frozen=True, slots=True)
class HostTime:
    """Host times around one operator, ns, of a run that is being profiled."""

    before: float
    """Time since the previous operator: Python, modules, autograd."""
    to_launch: float
    """Time to the first launch, or the whole time without launches."""
    launches: tuple[float, ...] = ()
    """Duration of each launch."""
    between: float = 0.0
    """Time between two launches of the operator."""
    after: float = 0.0
    """Time after the last launch."""

    @property
    def total_ns(self) -> float:
        """Sum of all times."""
        gaps = self.between * max(len(self.launches) - 1, 0)
        return self.before + self.to_launch + sum(self.launches) + gaps + self.after


@dataclass(frozen=True, slots=True)
class OpTime:
    """Time of the GPU work of one operator."""

    estimate: Estimate
    is_known: bool
    """False if no model knows the operator, which is taken to move its tensors once."""


@dataclass(frozen=True, slots=True)
class LoweredOp:
    """A launching operator with its work."""

    op: LaunchingOp
    works: tuple[GpuWork, ...]
    time: OpTime
    """Time of all its work; for a collective, of the transfer."""

    @property
    def host_waits(self) -> bool:
        """True if the host waits for its work."""
        return self.op.name in _WAITING or any(work.host_waits for work in self.works)


@dataclass(frozen=True, slots=True)
class LoweredCall:
    """A call with its launching operators."""

    call: Call
    ops: tuple[LoweredOp, ...]
    host: HostTime


@dataclass(frozen=True, slots=True)
class BatchFetch:
    """The fetch of the next batch from torch's DataLoader."""

    name: str
    """Name of the range around it."""
    host_ns: float
    """Duration if the batch is ready."""
    every_ns: float = 0.0
    """Interval between batches from the workers; 0 without workers."""
    ahead: int = 0
    """Number of prefetched batches."""
    ready: int = 1
    """Batches ready when the first step begins."""


@dataclass(frozen=True, slots=True)
class LoopOverhead:
    """Host time around the calls of a step, ns."""

    between_ns: float = 20_000.0
    """Time between the ranges of two steps."""
    begin_ns: float = 0.0
    """Time from the begin of the range, or the fetch, to the first call."""
    end_ns: float = 0.0
    """Time from the last call to the end of the range."""
    fetch: BatchFetch | None = None

    @property
    def total_ns(self) -> float:
        fetched = 0.0 if self.fetch is None else self.fetch.host_ns
        return self.between_ns + self.begin_ns + self.end_ns + fetched


@dataclass(frozen=True, slots=True)
class LoweredStep:
    """A lowered step of one rank."""

    calls: tuple[LoweredCall, ...]
    host_range: tuple[float, float] = (1.0, 1.0)
    """Range of the host times over 90 % of machines, as factors."""

    loop: LoopOverhead = LoopOverhead()
    slowdown: tuple[float, float] = (1.0, 1.0)
    """Factors of host and GPU times."""
    slowest_of: int | None = None
    """Kind of rank that this one is the slowest of."""

    @property
    def host_ns(self) -> float:
        """Host time of the step if it never waits."""
        return sum(call.host.total_ns for call in self.calls) + self.loop.total_ns

    def ops(self) -> Iterator[LoweredOp]:
        """Yield all launching operators in host order."""
        for call in self.calls:
            yield from call.ops

    def works(self) -> Iterator[GpuWork]:
        """Yield all GPU work in launch order."""
        for op in self.ops():
            yield from op.works
