"""The process that is the command line: Ctrl-C ends it within a second, whatever it does at that
moment, and a line on the terminal says what takes long."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from torchtraceap.core.progress import set_progress_listener

__all__ = [
    "ignore_interrupts",
    "say_interrupted",
    "show_stages",
    "was_interrupted",
    "watch_interrupts",
]

GRACE_MS = 200
"""Time for threads that unwind by themselves, including their cleanup."""
_MESSAGE = "torchtraceap: interrupted\n"
_watched = False
_interrupted = False


def watch_interrupts() -> None:
    """End this process a moment after Ctrl-C if KeyboardInterrupt has not done so: one call of
    NumPy may take seconds, and so may freeing what a large trace takes. For a process that is the
    command line, not for one that calls `main`."""
    global _watched
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # ignored, as in the background of a script
    # Before anything large is imported: a library that starts makes errors of its own of it.
    signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _unraisable
    from torchtraceap import _core

    if _interrupted:  # meanwhile, where nothing could be raised
        raise KeyboardInterrupt
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _core.watch_interrupts(reader, GRACE_MS, _MESSAGE)
    _watched = True


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Ignore a KeyboardInterrupt where Python calls back, as when a module's lock is freed: it can
    raise nothing there. The watch then ends the process, and nobody needs a traceback."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def was_interrupted() -> bool:
    """Return True if Ctrl-C has come: an error may be what a library made of the
    KeyboardInterrupt."""
    return _interrupted


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on. The answer is out: what is left is the interpreter's own end, in
    which a signal would only replace the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def say_interrupted() -> None:
    """Say it once, whoever is first: the main thread or what watches it."""
    if not _watched:
        sys.stderr.write(_MESSAGE)
        return
    from torchtraceap import _core

    _core.say_interrupted()


PATIENCE_S = 1.0
"""Seconds before a stage is shown."""
REFRESH_S = 0.2


def show_stages() -> None:
    """Show stages from now on, if standard error is a terminal."""
    set_progress_listener(_StageLine(sys.stderr).run if sys.stderr.isatty() else None)


class _StageLine:
    """The line: the stage that began last, and for how long it runs; gone when all are done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._changed = threading.Condition()
        self._begun: dict[object, tuple[str, float]] = {}
        self._shown = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def run(self, name: str) -> Iterator[None]:
        token = object()
        with self._changed:
            self._begun[token] = name, time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._show, daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                del self._begun[token]
                if self._shown and not self._begun:
                    self._write("")

    def _show(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(REFRESH_S if self._begun else None)
                if self._begun:
                    name, start = next(reversed(self._begun.values()))
                    seconds = time.monotonic() - start
                    if seconds >= PATIENCE_S or self._shown:
                        self._write(f"{name}: {seconds:.0f} s")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r{text}\x1b[K")
        self._stream.flush()
        self._shown = bool(text)
