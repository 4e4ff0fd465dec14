"""Load the input of a command, with a progress bar if it takes long."""

from __future__ import annotations

import argparse
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


def load(paths: Sequence[str], threads: int) -> Trace:
    from torchtraceap.trace.load import load

    given: Any = paths[0] if len(paths) == 1 else list(paths)
    size = sum(_size_of(path) for path in paths)
    if size < PROGRESS_BYTES or not sys.stderr.isatty():
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


def _size_of(path: str) -> int:
    """Return the weighed bytes of a file, or of the files of a folder; 0 for what cannot be looked
    at."""
    try:
        if os.path.isdir(path):
            return sum(_size_of(entry.path) for entry in os.scandir(path))
        weight = 1 if path.lower().endswith(".json") else COMPRESSED_WEIGHT
        return os.stat(path).st_size * weight
    except OSError:
        return 0


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
