"""Runs of programs in fresh processes, so that nothing of one run is left for the next.

Note [Groups]: a program leads a process group of its own. When it has ended, or its time is over,
what is left of the group is killed: a worker that stays behind would disturb what is measured next.
The group is killed while its leader is not yet reaped, so its number can't be another's by then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError, TraceError

__all__ = ["STARTED", "ProgramError", "ProgramResult", "check_success", "last_line", "run_fresh"]

STARTED = "TORCHTRACEAP_STARTED"
"""Name of the variable with the start of the process, in ns of the machine's monotonic clock."""

_MOST_OUTPUT = 4 << 20
"""The largest number of bytes of a program's output that are kept, from the end."""
_TOLD = 300
"""The largest number of characters of an error that a message quotes."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The end of a program: exit code, times, memory and output."""

    returncode: int
    """The exit code; if negative, the signal that ended the program."""
    wall_ns: int
    """Time from just before the start until the end."""
    max_rss_bytes: int
    """`ru_maxrss` of the process or of the largest process that it waited for. Linux counts from
    the fork on, when the process is still a copy of ours, so a value up to our own size is only a
    bound."""
    stdout: str
    stderr: str
    timed_out: bool = False
    cpu_ns: int = 0
    """Processor time of all threads, and of the processes that it waited for."""

    @property
    def ok(self) -> bool:
        return self.returncode == 0 and not self.timed_out

    @property
    def reason(self) -> str:
        """The reason of the failure in a few words; empty if the program succeeded."""
        if self.timed_out:
            return f"its time of {self.wall_ns / 1e9:.0f} s was over"
        if self.ok:
            return ""
        ended = f"exit code {self.returncode}"
        if self.returncode < 0:
            with contextlib.suppress(ValueError):
                ended = signal.Signals(-self.returncode).name
        said = last_line(self.stderr)
        return f"{ended}: {said}" if said else ended


class ProgramError(TraceError, RuntimeError):
    """A measured program failed; `finished` holds its output."""

    def __init__(self, message: str, finished: ProgramResult | None = None) -> None:
        super().__init__(message)
        self.finished = finished


def run_fresh(
    argv: Sequence[str],
    *,
    cwd: PathLike | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float | None = None,
) -> ProgramResult:
    """Run a program to its end without standard input.

    Args:
        argv: The program and its arguments.
        cwd: Its folder [that of this process].
        env: Environment variables beyond those of this process; None takes one away.
        timeout_s: So long it may take; then it is killed with all that it started.

    Returns:
        How it ended; a failure or a time-out is no error here.

    Raises:
        OptionError: There is no such program or folder, or it can't be run.
    """
    if not argv:
        raise OptionError("there is no program to run")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began_ns = time.perf_counter_ns()
        process = _start(argv, cwd, {STARTED: str(began_ns), **(env or {})}, out, err)
        ended = _Ending(process, began_ns)
        try:
            timed_out = not ended.wait(timeout_s)
        finally:  # also on an interrupt
            ended.kill()
        return ProgramResult(
            returncode=ended.returncode,
            wall_ns=ended.wall_ns,
            max_rss_bytes=ended.max_rss_bytes,
            stdout=_tail(out),
            stderr=_tail(err),
            timed_out=timed_out,
            cpu_ns=ended.cpu_ns,
        )


def check_success(finished: ProgramResult, what: str) -> ProgramResult:
    """Return `finished` if the program succeeded.

    Args:
        finished: How it ended.
        what: What the message calls it.

    Raises:
        ProgramError: It failed, or its time was over.
    """
    if not finished.ok:
        raise ProgramError(f"{what} failed ({finished.reason})", finished)
    return finished


def last_line(text: str) -> str:
    """Return the last line that is not empty; in a traceback, that is the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_TOLD] if lines else ""


def _start(
    argv: Sequence[str],
    cwd: PathLike | None,
    variables: Mapping[str, str | None],
    out: IO[bytes],
    err: IO[bytes],
) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in {**os.environ, **variables}.items() if v is not None}
    try:
        return subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        if cwd is not None and not os.path.isdir(cwd):
            raise OptionError(f"{cwd}: there is no such folder") from error
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"{argv[0]}: can't be run: {reason}") from error


class _Ending:
    """A thread that waits for a process, so that its end is noted when it happens."""

    def __init__(self, process: subprocess.Popen[bytes], began_ns: int) -> None:
        self._process = process
        self._began_ns = began_ns
        self._may_reap = threading.Event()
        self.returncode = 0
        self.wall_ns = 0
        self.max_rss_bytes = self.cpu_ns = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait, and return True if the process ended in time."""
        return self._ended.wait(timeout_s)

    def kill(self) -> None:
        """Kill what is left of the group, then reap its leader; see Note [Groups]."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._may_reap.set()
        self._thread.join()

    def _watch(self) -> None:
        pid = self._process.pid
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self.wall_ns = time.perf_counter_ns() - self._began_ns
        self._ended.set()
        self._may_reap.wait()
        _, status, usage = os.wait4(pid, 0)
        self.returncode = self._process.returncode = os.waitstatus_to_exitcode(status)
        self.max_rss_bytes = usage.ru_maxrss * 1024
        self.cpu_ns = round(1e9 * (usage.ru_utime + usage.ru_stime))


def _tail(stream: IO[bytes]) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - _MOST_OUTPUT))
    return stream.read().decode("utf-8", errors="replace")
