"""The operators of one step, in the order in which the host calls them."""

from torchtraceap.prediction.capture.calls import Call, Capture, CaptureError, Phase, TensorInfo
from torchtraceap.prediction.capture.dispatch import capture_step
from torchtraceap.prediction.capture.profile import capture_profile

__all__ = [
    "Call",
    "Capture",
    "CaptureError",
    "Phase",
    "TensorInfo",
    "capture_profile",
    "capture_step",
]
