"""Recordings next to `torch.profiler`, from a training loop to a diagnosis.

torch is imported when a recording starts, never with this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.record.export import DESCRIPTION as DESCRIPTION
    from torchtraceap.record.export import as_nccl_records as as_nccl_records
    from torchtraceap.record.export import copy_without_private_data as copy_without_private_data
    from torchtraceap.record.notices import RecordingError as RecordingError
    from torchtraceap.record.notices import RecordingWarning as RecordingWarning
    from torchtraceap.record.session import Recording as Recording
    from torchtraceap.record.session import profile as profile
    from torchtraceap.record.torch_access import EMULATED as EMULATED
    from torchtraceap.record.torch_access import import_torch as import_torch
    from torchtraceap.record.trace_handler import TraceHandler as TraceHandler
    from torchtraceap.record.trace_handler import on_trace_ready as on_trace_ready
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".export": ("DESCRIPTION", "as_nccl_records", "copy_without_private_data"),
            ".notices": ("RecordingError", "RecordingWarning"),
            ".session": ("Recording", "profile"),
            ".torch_access": ("EMULATED", "import_torch"),
            ".trace_handler": ("TraceHandler", "on_trace_ready"),
        },
    )
