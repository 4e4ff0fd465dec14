"""Detects what a step can be captured from by the content of a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

from torchtraceap.errors import MissingFileError, OptionError, ParseError
from torchtraceap.lab.prediction.capture.calls import Capture
from torchtraceap.lab.prediction.capture.dispatch import capture_step
from torchtraceap.lab.prediction.capture.execution import capture_execution_trace
from torchtraceap.lab.prediction.capture.gpu_trace import CapturedProfile, capture_gpu_trace
from torchtraceap.lab.prediction.capture.profile import capture_profile
from torchtraceap.lab.workloads.workload import find_workload
from torchtraceap.trace import load, open_text

__all__ = ["Captured", "capture_source", "execution_traces_in"]

Captured: TypeAlias = "Capture | CapturedProfile"
_LONGEST_HEAD = 1 << 16
"""Number of characters in which an execution trace identifies itself."""


def capture_source(
    source: str, rank: int | None = None, batch: int | None = None, ranks: int | None = None
) -> tuple[str, Captured]:
    """Return the kind of a source and a captured step.

    Args:
        source: `FILE.py:FUNCTION`, or the path of a profile or an execution trace.
        rank: Rank of a profile of several; by default the first.
        batch: New leading dimension of a recorded step's inputs.
        ranks: Number of ranks if an execution trace with collectives doesn't tell it.

    Returns:
        "workload", "cpu_profile" or "execution_trace" with a `Capture`, or "gpu_trace" with a
        `CapturedProfile`.

    Raises:
        OptionError: The source is none of these.
        MissingFileError: There is no such file.
        CaptureError: No step can be captured of it; the message says why.
    """
    path = Path(source)
    if not path.exists():
        if ":" not in source:
            raise MissingFileError(f"no such file: {source}")
        return "workload", capture_step(find_workload(source))
    if path.suffix == ".py":
        raise OptionError(f"{source}: which function? A workload is {source}:FUNCTION")
    if path.is_file() and _is_execution_trace(path):
        return "execution_trace", capture_execution_trace(path, batch, ranks)
    part = load(source).rank(rank)
    if len(part.tree.gpu_rows):
        return "gpu_trace", capture_gpu_trace(part, batch)
    return "cpu_profile", capture_profile(part, batch)


def execution_traces_in(source: str) -> list[Path]:
    """Return the execution traces in a folder, sorted by the last number in their names."""
    path = Path(source)
    if not path.is_dir():
        return []
    files = [each for each in path.iterdir() if ".json" in each.name and each.is_file()]
    found = [each for each in files if not each.name.startswith(".") and _is_execution_trace(each)]
    return sorted(found, key=_number)


def _number(path: Path) -> tuple[int, str]:
    numbers = re.findall(r"[0-9]{1,9}", path.name)
    return (int(numbers[-1]) if numbers else -1, path.name)


def _is_execution_trace(path: Path) -> bool:
    """Return whether a file has a list of nodes instead of events."""
    try:
        with open_text(path) as text:
            head = text.head(_LONGEST_HEAD)
    except ParseError:
        return False
    nodes, events = head.find('"nodes"'), head.find('"traceEvents"')
    return nodes >= 0 and (events < 0 or nodes < events)
