"""Recording: next to `torch.profiler`, from a training loop to a diagnosis.

torch is imported when a recording starts, never with this package.
"""

from __future__ import annotations

from torchtraceap.collect.handler import TraceHandler, on_trace_ready
from torchtraceap.collect.notices import RecordingError, RecordingWarning
from torchtraceap.collect.session import Recording, profile

__all__ = [
    "Recording",
    "RecordingError",
    "RecordingWarning",
    "TraceHandler",
    "on_trace_ready",
    "profile",
]
