"""A trace that comes through standard input."""

from __future__ import annotations

import argparse
import os
import stat
import sys

STANDARD_INPUT = "/dev/stdin"


def stdin_path() -> str:
    """The path of what comes through standard input, which can be read more than once: a pipe is
    written into a file without a name first, which takes its place.

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
