"""Load the input of a command, with a progress bar if it takes long."""

from __future__ import annotations

import argparse
import contextlib
import os
import stat
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtraceap.trace.trace import Trace

__all__ = ["load", "stdin_path"]

# Files together larger than this show a progress bar: smaller ones are read before a person could
# look at one. A compressed byte counts for six, which is less than traces shrink by (10 to 35).
PROGRESS_BYTES = 50_000_000
COMPRESSED_WEIGHT = 6


def load(
    paths: Sequence[str], options: argparse.Namespace | None = None, phase: str | None = None
) -> Trace:
    """Load a trace, or the iterations of one phase of it, as options say (`parser.add_reading`)."""
    trace = _load(paths, options.threads if options else 0)
    if options and options.steps is not None:
        trace = trace.in_steps(options.steps)
    return trace if phase is None else trace.in_phase(phase)


def _load(paths: Sequence[str], threads: int) -> Trace:
    from torchtraceap.trace.loader import load

    given: Any = paths[0] if len(paths) == 1 else list(paths)
    if not sys.stderr.isatty() or _size_of(paths) < PROGRESS_BYTES:
        # A callback all the same: it lets Ctrl-C through while the core reads.
        return load(given, threads=threads, progress=lambda done, total: None)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return load(given, threads=threads, progress=update)


def _size_of(paths: Sequence[str]) -> int:
    """Return the weighed bytes of the files that paths stand for; 0 for what cannot be looked
    at."""
    from torchtraceap.trace.files import list_trace_files

    size = 0
    for path in list_trace_files(paths):
        with contextlib.suppress(OSError):
            size += path.stat().st_size * (1 if path.suffix == ".json" else COMPRESSED_WEIGHT)
    return size


STANDARD_INPUT = "/dev/stdin"


def stdin_path() -> str:
    """Return the path of what comes through standard input, which can be read more than once: a
    pipe is written into a file without a name first, which takes its place.

    Raises:
        ArgumentTypeError: Nothing comes through it.
    """
    if sys.stdin.isatty():
        raise argparse.ArgumentTypeError("- is standard input: pipe a trace into it")
    descriptor = sys.stdin.fileno()
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        import shutil
        import tempfile

        with tempfile.TemporaryFile() as whole, os.fdopen(descriptor, "rb", closefd=False) as pipe:
            shutil.copyfileobj(pipe, whole, 1 << 20)
            whole.flush()
            os.dup2(whole.fileno(), descriptor)
    return STANDARD_INPUT
