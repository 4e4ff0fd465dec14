"""Recordings next to `torch.profiler`, from a training loop to a diagnosis.

torch is imported when a recording starts, never with this package.
"""

from __future__ import annotations

from torchtraceap.record.notices import RecordingError, RecordingWarning
from torchtraceap.record.session import Recording, profile
from torchtraceap.record.trace_handler import TraceHandler, on_trace_ready

__all__ = [
    "Recording",
    "RecordingError",
    "RecordingWarning",
    "TraceHandler",
    "on_trace_ready",
    "profile",
]
