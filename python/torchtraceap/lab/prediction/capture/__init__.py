"""The operators of one step, in the order in which the host calls them."""

from torchtraceap.lab.prediction.capture.calls import (
    Call,
    Capture,
    CaptureError,
    Phase,
    TensorInfo,
)
from torchtraceap.lab.prediction.capture.dispatch import capture_step
from torchtraceap.lab.prediction.capture.execution import capture_execution_trace
from torchtraceap.lab.prediction.capture.gpu_trace import CapturedProfile, capture_gpu_trace
from torchtraceap.lab.prediction.capture.profile import capture_profile
from torchtraceap.lab.prediction.capture.source import capture_source

__all__ = [
    "Call",
    "Capture",
    "CaptureError",
    "CapturedProfile",
    "Phase",
    "TensorInfo",
    "capture_execution_trace",
    "capture_gpu_trace",
    "capture_profile",
    "capture_source",
    "capture_step",
]
