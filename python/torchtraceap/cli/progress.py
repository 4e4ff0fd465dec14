"""A line on the terminal that says what takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from torchtraceap.core.progress import set_progress_listener

__all__ = ["show_stages"]

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
