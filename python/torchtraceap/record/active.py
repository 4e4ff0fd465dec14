"""The one recording that a process may run."""

from __future__ import annotations

import os
import threading
from typing import Any

from torchtraceap.record.notices import RecordingError
from torchtraceap.record.torch_access import end_injected_profile, profiler_is_running

__all__ = ["claim_profiler", "release_profiler"]


class ActiveRecording:
    """The one recording that a process may run, whoever wants it; a forked worker has none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._owner = ""

    def claim(self, owner: str) -> None:
        with self._lock:
            if self._process == os.getpid():
                raise RecordingError(
                    f"a {self._owner} is already recording in this process; the profiler of torch "
                    "records one thing at a time, so recordings cannot be nested or run side by "
                    "side in threads or tasks"
                )
            self._process, self._owner = os.getpid(), owner

    def release(self) -> None:
        with self._lock:
            self._process = 0


_active = ActiveRecording()


def claim_profiler(torch: Any, owner: str) -> None:
    """Takes the profiler of this process for one recording, until `release_profiler`.

    Args:
        torch: The module.
        owner: What records, such as "ttap.profile".

    Raises:
        RecordingError: It is in use.
    """
    _active.claim(owner)
    end_injected_profile()
    if profiler_is_running(torch):
        _active.release()
        raise RecordingError(
            f"another torch profiler is running in this process; a {owner} brings its own, so end "
            "the other one first (or give that one ttap.on_trace_ready)"
        )


def release_profiler() -> None:
    """Lets others record."""
    _active.release()
