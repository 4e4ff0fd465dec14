"""From a recorded file to its diagnosis; the rest of the package is imported on first use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtraceap.results import Diagnosis
    from torchtraceap.trace import Trace

__all__ = ["analyse", "gpu_note"]

NO_GPU_NOTE = (
    "\nNo GPU work was recorded, so every signal of the GPU is missing: its idle time, copies and "
    "kernels could not be judged."
)


def analyse(path: Path) -> tuple[Trace, Diagnosis]:
    """Loads and diagnoses one trace file.

    Raises:
        torchtraceap.errors.ParseError: the file holds no event.
    """
    from torchtraceap.diagnose import build_diagnosis
    from torchtraceap.trace import load

    trace = load(path)
    return trace, build_diagnosis(trace)


def gpu_note(diagnosis: Diagnosis) -> str:
    """A sentence for a recording without any GPU event, else nothing."""
    return NO_GPU_NOTE if diagnosis.summary.events.gpu == 0 else ""
