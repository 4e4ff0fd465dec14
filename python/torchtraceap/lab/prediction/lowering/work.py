"""GPU work and host times: the output of lowering and the input of timeline synthesis."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchtraceap.lab.prediction.capture.calls import COMPUTE, Collective
from torchtraceap.ops.durations import Estimate

__all__ = ["GpuWork", "HostTime", "OpTime", "WorkKind"]


class WorkKind(Enum):
    """What Kineto would call a piece of GPU work."""

    KERNEL = "kernel"
    MEMCPY = "gpu_memcpy"
    MEMSET = "gpu_memset"


@dataclass(frozen=True, slots=True)
class GpuWork:
    """A kernel, a copy or a memset."""

    name: str
    """As Kineto would name it."""
    kind: WorkKind
    estimate: Estimate
    """Its time, ns; of a collective that of the transfer, once all have begun."""
    bytes: int = 0
    """Of copies, memsets and collectives."""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    """Per thread."""
    shared_memory: int = 0
    """Bytes per block, static and dynamic."""
    collective: Collective | None = None
    also: tuple[Collective, ...] = ()
    """Others that are the same launch: sends and receives of a batch."""
    lane: str = COMPUTE
    """The stream it runs on, by its role: "compute", or the name of a process group."""

    host_waits: bool = False
    """The call that launches it returns when it is done."""

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """All that it does with other ranks."""
        return () if self.collective is None else (self.collective, *self.also)


@dataclass(frozen=True, slots=True)
class HostTime:
    """Host times around one operator, ns, of a run that is being profiled."""

    before: float
    """From the end of the operator before it: Python, modules, autograd."""
    to_launch: float
    """From its begin to its first launch; its whole time if it launches nothing."""
    launches: tuple[float, ...] = ()
    """Of each launch call."""
    between: float = 0.0
    """From the end of a launch to the next one of the same operator."""
    after: float = 0.0
    """From its last launch to its end."""

    @property
    def total_ns(self) -> float:
        """All of it."""
        gaps = self.between * max(len(self.launches) - 1, 0)
        return self.before + self.to_launch + sum(self.launches) + gaps + self.after


@dataclass(frozen=True, slots=True)
class OpTime:
    """Time of the GPU work of one operator."""

    estimate: Estimate
    is_known: bool
    """False: no model knows the operator; taken to move its tensors once."""
