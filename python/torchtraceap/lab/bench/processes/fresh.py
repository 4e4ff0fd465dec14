"""Programs run in fresh processes: nothing of one run is left when the next one begins.

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

__all__ = ["STARTED", "Finished", "ProgramError", "check_success", "last_line", "run_fresh"]

STARTED = "TORCHTRACEAP_STARTED"
"""When a process was started, in ns of the machine's monotonic clock, which it shares with us."""

_MOST_OUTPUT = 4 << 20
"""Bytes of what a program prints that are kept, from the end."""
_TOLD = 300
"""Characters of an error that a sentence takes up."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended."""

    returncode: int
    """Negative: the signal that ended it."""
    wall_ns: int
    """From just before its start until it had ended."""
    max_rss_bytes: int
    """`ru_maxrss` of it or the largest process that it waited for. Linux counts from the start of a
    process on, when it still was a copy of ours: what is not larger than our own is a bound."""
    stdout: str
    stderr: str
    timed_out: bool = False
    cpu_ns: int = 0
    """Of all its threads, and of the processes that it waited for."""

    @property
    def ok(self) -> bool:
        return self.returncode == 0 and not self.timed_out

    @property
    def reason(self) -> str:
        """Why it failed, in a few words; empty if it did not."""
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
    """A program that was to be measured failed; `finished` has what it printed."""

    def __init__(self, message: str, finished: Finished | None = None) -> None:
        super().__init__(message)
        self.finished = finished


def run_fresh(
    argv: Sequence[str],
    *,
    cwd: PathLike | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float | None = None,
) -> Finished:
    """Runs a program to its end, with nothing to read from standard input.

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
        process = _started(argv, cwd, {STARTED: str(began_ns), **(env or {})}, out, err)
        ended = _Ending(process, began_ns)
        try:
            timed_out = not ended.wait(timeout_s)
        finally:  # also when we are interrupted
            ended.kill()
        return Finished(
            returncode=ended.returncode,
            wall_ns=ended.wall_ns,
            max_rss_bytes=ended.max_rss_bytes,
            stdout=_tail(out),
            stderr=_tail(err),
            timed_out=timed_out,
            cpu_ns=ended.cpu_ns,
        )


def check_success(finished: Finished, what: str) -> Finished:
    """The same, if the program ended well.

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
    """The last line with something in it: of a traceback, the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_TOLD] if lines else ""


def _started(
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
    """Waits for a process on a thread, so that its end is noted when it happens."""

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
        """Whether it ended in time."""
        return self._ended.wait(timeout_s)

    def kill(self) -> None:
        """Kills what is left of the group, then reaps its leader; see Note [Groups]."""
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
