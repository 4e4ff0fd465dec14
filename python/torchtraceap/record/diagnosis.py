"""From a recorded file to its diagnosis; the rest of the package is imported on first use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchtraceap.errors import TraceError
from torchtraceap.record.notices import report_problem

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.trace.trace import Trace

__all__ = ["analyse", "show"]


def analyse(path: Path, others: Sequence[Path] = ()) -> tuple[Trace, Diagnosis]:
    """Loads and diagnoses a trace file, with those of other ranks as far as they can be read.

    Raises:
        torchtraceap.errors.ParseError: the file holds no event.
    """
    from torchtraceap.diagnosis.diagnose import build_diagnosis
    from torchtraceap.trace.load import load

    try:
        trace = load([path, *others])
    except TraceError as error:
        if not others:
            raise
        report_problem("the ranks could not be read together; this is rank 0 alone", error)
        trace = load(path)
    return trace, build_diagnosis(trace)


def show(diagnosis: Diagnosis, path: Path) -> None:
    """Writes the terminal report to standard output, in colour on a terminal or in a notebook.

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
