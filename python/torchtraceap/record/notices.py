"""Errors and warnings of the recording side, and the diagnosis of what it recorded.

Recording is a guest in somebody's training run, so telling of a problem never raises.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchtraceap.errors import TraceError

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.trace.trace import Trace

__all__ = ["RecordingError", "RecordingWarning", "analyse", "report_problem", "show"]

logger = logging.getLogger("torchtraceap.record")
logger.addHandler(logging.NullHandler())


class RecordingError(TraceError, RuntimeError):
    """The recorder is used in a way that cannot give a trace, such as inside another recording."""


class RecordingWarning(UserWarning):
    """A recording is missing, shorter than asked for, or could not be analysed."""


def report_problem(message: str, error: BaseException | None = None) -> None:
    """Log a problem and shows it as a `RecordingWarning`.

    Stays silent towards the caller even where warnings are turned into errors: the log has it.
    """
    logger.warning(message, exc_info=error)
    text = message if error is None else f"{message}: {type(error).__name__}: {error}"
    with contextlib.suppress(RecordingWarning):
        warnings.warn(text, RecordingWarning, stacklevel=3)


def analyse(path: Path, others: Sequence[Path] = ()) -> tuple[Trace, Diagnosis]:
    """Load and diagnoses a trace file, with those of other ranks as far as they can be read.

    Raises:
        torchtraceap.errors.ParseError: the file holds no event.
    """
    from torchtraceap.diagnosis.diagnose import build_diagnosis
    from torchtraceap.trace.loader import load

    try:
        trace = load([path, *others])
    except TraceError as error:
        if not others:
            raise
        report_problem("the ranks could not be read together; this is rank 0 alone", error)
        trace = load(path)
    return trace, build_diagnosis(trace)


def show(diagnosis: Diagnosis, path: Path) -> None:
    """Write the terminal report to standard output, in colour on a terminal or in a notebook.

    Args:
        diagnosis: What is shown.
        path: Where the trace is: a file, or the folder of several ranks.
    """
    from rich.console import Console

    from torchtraceap.core.formatting import replace_controls
    from torchtraceap.report.terminal import DEFAULT_WIDTH, print_report

    console = Console()
    if not (console.is_terminal or console.is_jupyter):
        console = Console(width=DEFAULT_WIDTH)
    print_report(diagnosis, console)
    text = replace_controls(f"trace     {path}")
    console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)
