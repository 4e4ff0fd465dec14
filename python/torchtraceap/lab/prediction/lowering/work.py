"""GPU work and host times: the output of lowering and the input of timeline synthesis."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchtraceap.lab.prediction.capture.calls import COMPUTE, Collective
from torchtraceap.ops.durations import Estimate

__all__ = ["GpuWork", "HostTime", "OpTime", "WorkKind"]


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
