"""Estimate how long kernels, copies and collectives take, from measurements (docs/durations.md).

    >>> import torchtraceap as ttap
    >>> ttap.durations.collective_ns("all_reduce", 25 << 20, 8, "H100 SXM")
    >>> ttap.durations.gemm_ns(4096, 4096, 4096, "bf16", "H200")

Each answer has an interval that holds 8 of 10 cases and names its source. A function returns `None`
when no measurement is near enough: an unknown device, type or size never produces a guess.
`strict=True` raises `UnknownDurationError` with the reason instead. Invalid input, such as a size
below 1 or a name that several devices share, raises `OptionError`.

Sizes may be arrays of one length. The answer is then an `Estimates` of that length with NaN where a
single question would get `None`. A `calibration` (from `calibrate(trace)`) corrects the models by
the user's own kernels. Types are accepted in any spelling, including `torch.dtype` objects.

Names are imported on first use because a caller such as a simulation edit needs only one model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtraceap.ops.durations.calibration import Calibration, ClassRatio, calibrate
    from torchtraceap.ops.durations.collectives import collective_kind
    from torchtraceap.ops.durations.embedding import EmbeddingTable, ReuseHistogram
    from torchtraceap.ops.durations.estimate import Estimate, Estimates, UnknownDurationError
    from torchtraceap.ops.durations.families import estimate_works
    from torchtraceap.ops.durations.inputs import dtype_label
    from torchtraceap.ops.durations.questions import (
        attention_ns,
        collective_ns,
        copy_ns,
        elementwise_ns,
        embedding_bag_ns,
        gemm_ns,
        layer_norm_ns,
        op_ns,
        softmax_ns,
    )
    from torchtraceap.ops.durations.scaling import Ratio, estimate_ratio, ratio

_MODULES = {
    "Calibration": "calibration",
    "ClassRatio": "calibration",
    "EmbeddingTable": "embedding",
    "Estimate": "estimate",
    "Estimates": "estimate",
    "Ratio": "scaling",
    "ReuseHistogram": "embedding",
    "UnknownDurationError": "estimate",
    "attention_ns": "questions",
    "calibrate": "calibration",
    "collective_kind": "collectives",
    "collective_ns": "questions",
    "copy_ns": "questions",
    "dtype_label": "inputs",
    "elementwise_ns": "questions",
    "embedding_bag_ns": "questions",
    "estimate_ratio": "scaling",
    "estimate_works": "families",
    "gemm_ns": "questions",
    "layer_norm_ns": "questions",
    "op_ns": "questions",
    "ratio": "scaling",
    "softmax_ns": "questions",
}

__all__ = [
    "Calibration",
    "ClassRatio",
    "EmbeddingTable",
    "Estimate",
    "Estimates",
    "Ratio",
    "ReuseHistogram",
    "UnknownDurationError",
    "attention_ns",
    "calibrate",
    "collective_kind",
    "collective_ns",
    "copy_ns",
    "dtype_label",
    "elementwise_ns",
    "embedding_bag_ns",
    "estimate_ratio",
    "estimate_works",
    "gemm_ns",
    "layer_norm_ns",
    "op_ns",
    "ratio",
    "softmax_ns",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
