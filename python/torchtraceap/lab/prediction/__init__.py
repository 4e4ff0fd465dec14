"""The virtual GPU predicts a step of a model on a GPU where it never ran.

The data flow: a workload is captured without computing it (capture/), on one rank of each kind
(parallel/); lowered to what a GPU would launch, with host and GPU times (lowering/); scheduled and
written as events (timeline/); and returned as a `Prediction` (predictor.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.lowering.loop import Loading as Loading
    from torchtraceap.lab.prediction.predictor import predict as predict
    from torchtraceap.lab.prediction.result import Prediction as Prediction
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".lowering.loop": ("Loading",),
            ".predictor": ("predict",),
            ".result": ("Prediction",),
        },
    )
