"""How many kernels a GPU would be given for a step that was recorded on a CPU.

The step is lifted (`prediction/lifting/`): the operators that launch, and the kernels of each, as
torch launches them on a GPU of that name. torch is needed, as its rules take operators apart.
"""

from __future__ import annotations

from torchtraceap.errors import MissingDependencyError, TraceError
from torchtraceap.measures.calls import operators
from torchtraceap.measures.found import UnknownMeasureError
from torchtraceap.ranks import RankTrace
from torchtraceap.records import dataclass

__all__ = ["DEVICE", "PredictedLaunches", "predicted_launches"]

DEVICE = "A100 SXM4 80 GB"
"""The GPU whose kernels are counted. What is launched differs little between NVIDIA's."""


@dataclass(frozen=True, slots=True)
class PredictedLaunches:
    """Of one steady step."""

    count: int
    """Kernels."""
    operators: tuple[str, ...]
    """The operator that launches each, in their order."""
    note: str


def predicted_launches(part: RankTrace) -> PredictedLaunches:
    """Kernels that a steady step of a CPU profile would launch; kept.

    Raises:
        UnknownMeasureError: It can't be lifted: no shapes, no torch, compiled code.
    """
    return part.remember("predicted launches", lambda: _predict(part))


def _predict(part: RankTrace) -> PredictedLaunches:
    codes, _ = part.table.text_codes("Input Dims", operators(part).rows)
    if not (codes >= 0).any():  # said here, as it needs no torch
        raise UnknownMeasureError(
            "there is no GPU in the trace, and operators have no shapes from which it could be "
            "told what they would launch; record it with record_shapes=True"
        )
    try:
        from torchtraceap.devices import device_named
        from torchtraceap.prediction.capture.profile import capture_profile
        from torchtraceap.prediction.lifting.lift import lift
        from torchtraceap.prediction.lifting.work import WorkKind

        device = device_named(DEVICE)
        lifted = lift(capture_profile(part), device)
    except (TraceError, MissingDependencyError) as error:
        raise UnknownMeasureError(
            f"there is no GPU in the trace, and what it would launch can't be told: {error}"
        ) from error
    launching = tuple(
        op.op.name for op in lifted.ops() for work in op.works if work.kind is WorkKind.KERNEL
    )
    note = (
        "there is no GPU in the trace: counted are the kernels that a steady step would launch on "
        f"{device.name}, as predicted from its operators"
    )
    return PredictedLaunches(len(launching), launching, note)
