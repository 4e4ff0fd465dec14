"""A process of the pool: it takes tasks from a pipe until that ends."""

from __future__ import annotations

import contextlib
import signal
from multiprocessing.connection import Connection

from torchtraceap.corpus.analyse import analyse

__all__ = ["serve"]


def serve(pipe: Connection) -> None:
    """Answer every task with its outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the builder ends its workers
    with contextlib.suppress(EOFError, OSError):  # the builder has ended
        while True:
            pipe.send(analyse(pipe.recv()))
