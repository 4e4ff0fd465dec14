"""The one recording that a process may run."""

from __future__ import annotations

import os
import threading
from typing import Any

from torchtraceap.collect.notices import RecordingError
from torchtraceap.collect.torch_access import profiler_is_running

__all__ = ["claim_profiler", "release_profiler"]


class ActiveRecording:
    """The one recording that a process may run; a forked worker has none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0

    def claim(self) -> None:
        with self._lock:
            if self._process == os.getpid():
                raise RecordingError(
                    "a ttap.profile is already recording in this process; the profiler of torch "
                    "records one thing at a time, so recordings cannot be nested or run side by "
                    "side in threads or tasks"
                )
            self._process = os.getpid()

    def release(self) -> None:
        with self._lock:
            self._process = 0


_active = ActiveRecording()


def claim_profiler(torch: Any) -> None:
    """Takes the profiler of this process for one recording, until `release_profiler`.

    Raises:
        RecordingError: It is in use.
    """
    _active.claim()
    if profiler_is_running(torch):
        _active.release()
        raise RecordingError(
            "another torch profiler is running in this process; ttap.profile brings its "
            "own, so end the other one first (or give that one ttap.on_trace_ready)"
        )


def release_profiler() -> None:
    _active.release()
