"""Predicts the operators that launch kernels on a GPU for a step recorded on a CPU."""

from __future__ import annotations

from torchtraceap.lab.prediction.capture.profile import capture_profile
from torchtraceap.lab.prediction.lowering.lower import lower
from torchtraceap.lab.prediction.lowering.step import WorkKind
from torchtraceap.ops.devices import Device
from torchtraceap.trace.ranks import RankTrace

__all__ = ["launching_operators"]


def launching_operators(part: RankTrace, device: Device) -> tuple[str, ...]:
    """Return the operator that launches each kernel of a steady step, in order.

    Raises:
        MissingDependencyError: torch is absent; its rules take operators apart.
        TraceError: The step can't be lowered, as where shapes are missing or code is compiled.
    """
    lowered = lower(capture_profile(part), device)
    return tuple(
        op.op.name for op in lowered.ops() for work in op.works if work.kind is WorkKind.KERNEL
    )
