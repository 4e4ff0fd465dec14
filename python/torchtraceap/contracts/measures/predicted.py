"""Prediction of the kernels that a GPU would run in a step that was recorded on a CPU.

`lab/prediction/predictor.py` lowers the step: the operators that launch, and the kernels of each, as
torch launches them on a GPU of that name. It is found by name, since the product does not import
the lab.
"""

from __future__ import annotations

from importlib import import_module

from torchtraceap.contracts.measures.calls import operators
from torchtraceap.contracts.measures.events import UnknownMeasureError
from torchtraceap.core.records import dataclass
from torchtraceap.errors import MissingDependencyError, TraceError
from torchtraceap.ops.devices import device_named
from torchtraceap.trace.ranks import RankTrace

__all__ = ["DEVICE", "PredictedLaunches", "predicted_launches"]

DEVICE = "A100 SXM4 80 GB"
"""The GPU whose kernels are counted. What is launched differs little between NVIDIA's."""


@dataclass(frozen=True, slots=True)
class PredictedLaunches:
    """The launches of one steady step."""

    count: int
    """Kernels."""
    operators: tuple[str, ...]
    """The operator that launches each, in their order."""
    note: str


def predicted_launches(part: RankTrace) -> PredictedLaunches:
    """Kernels that a steady step of a CPU profile would launch; kept.

    Raises:
        UnknownMeasureError: It can't be lowered: no shapes, no torch, compiled code.
    """
    return part.cached("predicted launches", lambda: _predict(part))


def _predict(part: RankTrace) -> PredictedLaunches:
    codes, _ = part.table.text_codes("Input Dims", operators(part).rows)
    if not (codes >= 0).any():  # said here, as it needs no torch
        raise UnknownMeasureError(
            "there is no GPU in the trace, and operators have no shapes from which it could be "
            "told what they would launch; record it with record_shapes=True"
        )
    try:
        device = device_named(DEVICE)
        predictor = import_module("torchtraceap.lab.prediction.predictor")
        launching: tuple[str, ...] = predictor.launching_operators(part, device)
    except (TraceError, MissingDependencyError) as error:
        raise UnknownMeasureError(
            f"there is no GPU in the trace, and what it would launch can't be told: {error}"
        ) from error
    note = (
        "there is no GPU in the trace: counted are the kernels that a steady step would launch on "
        f"{device.name}, as predicted from its operators"
    )
    return PredictedLaunches(len(launching), launching, note)
