"""A counter of retired instructions, by Linux's `perf_event_open`.

Instructions hardly depend on what else runs on a machine, which makes them the quietest measure of
work. Many machines that are shared do not count them, or not for everybody: `why_not` says so.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

__all__ = ["EventCounter"]

HARDWARE, RETIRED_INSTRUCTIONS = 0, 1
"""Type and number of the event, as linux/perf_event.h names them."""
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_ATTRIBUTES = struct.Struct("=IIQQQQQ16x")
"""`perf_event_attr`, first version: type, size, config, period, sample type, format, flags."""
_FORMAT = 1 | 2
"""Reads give the times for which the event was enabled and counted, too."""
_FLAGS = 1 << 1 | 1 << 5 | 1 << 6
"""Inherited by new threads and processes; neither the kernel nor a hypervisor is counted."""
_CLOSE_ON_EXEC = 8
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"


class EventCounter:
    """A count of what all threads of this process, and all that they start, do from now on."""

    def __init__(self, kind: int = HARDWARE, event: int = RETIRED_INSTRUCTIONS) -> None:
        """Begin to count an event; by default, retired instructions of the user's code."""
        self._files: list[int] = []
        self.why_not = ""
        """A sentence about why nothing is counted; empty if it is."""
        try:
            self._open(kind, event, _threads())
        except OSError as error:
            self.close()
            self.why_not = f"instructions are not counted: {_reason(error)}"

    def _open(self, kind: int, event: int, threads: Sequence[int]) -> None:
        number = _SYSTEM_CALL.get(os.uname().machine)
        if number is None:
            raise OSError(errno.ENOSYS, "unknown processor")
        call = ctypes.CDLL(None, use_errno=True).syscall
        given = _ATTRIBUTES.pack(kind, _ATTRIBUTES.size, event, 0, 0, _FORMAT, _FLAGS)
        for thread in threads:
            file = call(number, given, thread, -1, -1, ctypes.c_ulong(_CLOSE_ON_EXEC))
            code = ctypes.get_errno()
            if file >= 0:
                self._files.append(file)
            elif code != errno.ESRCH:  # the thread has ended meanwhile
                raise OSError(code, os.strerror(code))

    def read(self) -> int | None:
        """Return the number of events so far; None if they are not counted."""
        if not self._files:
            return None
        total = 0.0
        for file in self._files:
            value, enabled, running = struct.unpack("=QQQ", os.read(file, 24))
            # A processor with few counters lets events take turns.
            total += value * enabled / running if 0 < running < enabled else value
        return round(total)

    def close(self) -> None:
        """End the count."""
        while self._files:
            os.close(self._files.pop())


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def _reason(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        level = ""
        try:
            with open(_PARANOID, encoding="ascii") as file:
                level = f" (kernel.perf_event_paranoid is {file.read(8).strip()}, 2 or less allows)"
        except (OSError, ValueError):
            pass
        return f"this machine or container does not allow perf_event_open{level}"
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return "this machine has no counter for them, as most virtual ones"
    if error.errno == errno.ENOSYS:
        return "this system has no perf_event_open"
    return f"perf_event_open failed ({error.strerror})"
