"""The virtual GPU predicts a step of a model on a GPU where it never ran.

The data flow: a workload is captured without computing it (capture/), on one rank of each kind
(parallel/); lowered to what a GPU would launch, with host and GPU times (lowering/); scheduled and
written as events (timeline/); and returned as a `Prediction` (predictor.py).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.lowering.loop import Loading
    from torchtraceap.lab.prediction.predictor import predict
    from torchtraceap.lab.prediction.result import Prediction

__all__ = ["Loading", "Prediction", "predict"]

_MODULES = {"Loading": "lowering.loop", "Prediction": "result", "predict": "predictor"}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
