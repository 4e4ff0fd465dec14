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

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.ops.durations.calibration import Calibration as Calibration
    from torchtraceap.ops.durations.calibration import ClassRatio as ClassRatio
    from torchtraceap.ops.durations.calibration import calibrate as calibrate
    from torchtraceap.ops.durations.collectives import collective_kind as collective_kind
    from torchtraceap.ops.durations.embedding import EmbeddingTable as EmbeddingTable
    from torchtraceap.ops.durations.embedding import ReuseHistogram as ReuseHistogram
    from torchtraceap.ops.durations.estimate import Estimate as Estimate
    from torchtraceap.ops.durations.estimate import Estimates as Estimates
    from torchtraceap.ops.durations.estimate import UnknownDurationError as UnknownDurationError
    from torchtraceap.ops.durations.families import estimate_works as estimate_works
    from torchtraceap.ops.durations.inputs import dtype_label as dtype_label
    from torchtraceap.ops.durations.questions import attention_ns as attention_ns
    from torchtraceap.ops.durations.questions import collective_ns as collective_ns
    from torchtraceap.ops.durations.questions import copy_ns as copy_ns
    from torchtraceap.ops.durations.questions import elementwise_ns as elementwise_ns
    from torchtraceap.ops.durations.questions import embedding_bag_ns as embedding_bag_ns
    from torchtraceap.ops.durations.questions import gemm_ns as gemm_ns
    from torchtraceap.ops.durations.questions import layer_norm_ns as layer_norm_ns
    from torchtraceap.ops.durations.questions import op_ns as op_ns
    from torchtraceap.ops.durations.questions import softmax_ns as softmax_ns
    from torchtraceap.ops.durations.scaling import Ratio as Ratio
    from torchtraceap.ops.durations.scaling import estimate_ratio as estimate_ratio
    from torchtraceap.ops.durations.scaling import ratio as ratio
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".calibration": ("Calibration", "ClassRatio", "calibrate"),
            ".collectives": ("collective_kind",),
            ".embedding": ("EmbeddingTable", "ReuseHistogram"),
            ".estimate": ("Estimate", "Estimates", "UnknownDurationError"),
            ".families": ("estimate_works",),
            ".inputs": ("dtype_label",),
            ".questions": (
                "attention_ns",
                "collective_ns",
                "copy_ns",
                "elementwise_ns",
                "embedding_bag_ns",
                "gemm_ns",
                "layer_norm_ns",
                "op_ns",
                "softmax_ns",
            ),
            ".scaling": ("Ratio", "estimate_ratio", "ratio"),
        },
    )
