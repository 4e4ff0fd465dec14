"""Runs of programs in fresh processes, so that nothing of one run is left for the next, measured by
the steps that they report or else as a whole.

Note [Groups]: a program leads a process group of its own. When it has ended, or its time is over,
what is left of the group is killed: a worker that stays behind would disturb what is measured next.
The group is killed while its leader is not yet reaped, so its number can't be another's by then.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import IO, Any

from torchtraceap.core import PathLike, dataclass, read_json, replacing_stream
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.lab.bench.measured import FREE, STARTED, STEPS, STEPS_SCHEMA, TRACE, TURNS
from torchtraceap.lab.bench.processes.cleaner import marked, working_folder
from torchtraceap.record import copy_without_private_data

__all__ = [
    "ProgramError",
    "ProgramResult",
    "ProgramRun",
    "check_success",
    "last_line",
    "read_steps",
    "record_program",
    "run_fresh",
    "run_program",
    "shorten_command",
    "trace_program",
]

_MOST_OUTPUT = 4 << 20
"""The largest number of bytes of a program's output that are kept, from the end."""
_TOLD = 300
"""The largest number of characters of an error that a message quotes."""
_INJECTED_FOLDER = Path(__file__).resolve().with_name("injected")
"""A folder for the `PYTHONPATH` of a program, whose code records the program as a whole."""
_WHOLE = "TORCHTRACEAP_WHOLE"
"""Name of the variable with the path to which `sitecustomize.py` in that folder writes its
recording."""
_QUIET: dict[str, str | None] = {STEPS: None, FREE: None, TRACE: None, _WHOLE: None, TURNS: None}
"""Variables to clear, because a program that measures others must not pass on its own
instructions."""


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


@dataclass(frozen=True)
class ProgramRun:
    """One run of a program in a fresh process."""

    step_ns: tuple[int, ...]
    """Times of the steps after the warm-up; the time of the whole program if it reports no
    steps."""
    wall_ns: int
    """Wall time of the whole process."""
    max_rss_bytes: int
    """Peak memory of the process that reported steps, by its own count; else `ProgramResult`'s."""
    by_steps: bool = True
    """True if the program reports its steps; else its whole wall time was measured."""
    all_step_ns: tuple[int, ...] = ()
    """Times of all steps, warm-up included."""
    warmup: int = 0
    """Number of warm-up steps in `all_step_ns`."""
    cpu_ns: int = 0
    """Processor time of all threads."""
    first_step_after_ns: int | None = None
    """Time from the start of the process to the end of its first step; None if it reports none."""
    work: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """What all steps spent besides time, warm-up included: "cpu" (ns of all threads) and
    "instructions"; what is not known is absent."""
    no_instructions: str = ""
    """A sentence about why instructions are not known."""

    @cached_property
    def median_ns(self) -> int:
        """The median step, by which programs are compared."""
        return round(median(self.step_ns))


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
        cwd: Its folder; None for that of this process.
        env: Environment variables beyond those of this process; None takes one away.
        timeout_s: The time after which it is killed with all that it started.

    Returns:
        The end of the program; a failure or a time-out is no error here.

    Raises:
        OptionError: There is no such program or folder, or it can't be run.
    """
    if not argv:
        raise OptionError("there is no program to run")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began_ns = time.perf_counter_ns()
        variables: dict[str, str | None] = {**os.environ, STARTED: str(began_ns), **(env or {})}
        variables |= marked()
        try:
            process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env={name: value for name, value in variables.items() if value is not None},
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
        watcher = _Watcher(process, began_ns)
        try:
            timed_out = not watcher.ended.wait(timeout_s)
        finally:  # also on an interrupt
            watcher.kill()
        return ProgramResult(
            returncode=process.returncode,
            wall_ns=watcher.wall_ns,
            max_rss_bytes=watcher.max_rss_bytes,
            stdout=_tail(out),
            stderr=_tail(err),
            timed_out=timed_out,
            cpu_ns=watcher.cpu_ns,
        )


class _Watcher(threading.Thread):
    """A thread that waits for a process, so that its end is noted when it happens."""

    def __init__(self, process: subprocess.Popen[bytes], began_ns: int) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._began_ns = began_ns
        self._may_reap = threading.Event()
        self.ended = threading.Event()
        self.wall_ns = self.max_rss_bytes = self.cpu_ns = 0
        self.start()

    def kill(self) -> None:
        """Kill what is left of the group, then reap its leader; see Note [Groups]."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._may_reap.set()
        self.join()

    def run(self) -> None:
        pid = self._process.pid
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self.wall_ns = time.perf_counter_ns() - self._began_ns
        self.ended.set()
        self._may_reap.wait()
        _, status, usage = os.wait4(pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self.max_rss_bytes = usage.ru_maxrss * 1024
        self.cpu_ns = round(1e9 * (usage.ru_utime + usage.ru_stime))


def _tail(stream: IO[bytes]) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - _MOST_OUTPUT))
    return stream.read().decode("utf-8", errors="replace")


def check_success(finished: ProgramResult, what: str) -> None:
    """Check that a program succeeded, which the message calls `what`.

    Raises:
        ProgramError: It failed, or its time was over.
    """
    if not finished.ok:
        raise ProgramError(f"{what} failed ({finished.reason})", finished)


def last_line(text: str) -> str:
    """Return the last line that is not empty; in a traceback, that is the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_TOLD] if lines else ""


def shorten_command(argv: Sequence[str]) -> str:
    """Return the words of a program, shortened for a sentence."""
    words = " ".join(argv)
    return words if len(words) <= 120 else f"{words[:117]}..."


# ------------------------------------------------------------------------- measured programs


def run_program(
    argv: Sequence[str],
    cwd: PathLike | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float | None = None,
    *,
    free: bool = False,
    turns: Mapping[str, str | None] | None = None,
) -> ProgramRun:
    """Run a program in a fresh process, as `run_fresh` does, and time it.

    With `free` the GPU is waited for once, not behind each step. `turns` are variables by which its
    steps take turns with those of another program.

    Raises:
        OptionError: It can't be started.
        ProgramError: It failed, its time was over, or what it wrote of its steps can't be read.
    """
    with working_folder() as folder:
        target = folder / "steps.json"
        asked = {**_QUIET, STEPS: str(target), FREE: "1" if free else None}
        asked |= turns or {}
        finished = run_fresh(argv, cwd=cwd, env={**(env or {}), **asked}, timeout_s=timeout_s)
        check_success(finished, shorten_command(argv))
        document = read_steps(target) if target.exists() else None
    wall_ns, peak, cpu_ns = finished.wall_ns, finished.max_rss_bytes, finished.cpu_ns
    if document is None:
        return ProgramRun(
            (wall_ns,), wall_ns, peak, False, (wall_ns,), cpu_ns=cpu_ns, work={"cpu": (cpu_ns,)},
            no_instructions="instructions are counted by steps, and no steps were told",
        )  # fmt: skip
    steps = tuple(document["step_ns"])
    # A loop that ends within its warm-up still has a last step.
    warmup = min(document["warmup"], len(steps) - 1)
    peak = document.get("peak_rss_bytes") or peak
    first = document.get("first_step_after_ns")
    told = {"cpu": document.get("step_cpu_ns"), "instructions": document.get("step_instructions")}
    return ProgramRun(
        steps[warmup:], wall_ns, peak, True, steps, warmup, cpu_ns, first,
        {name: tuple(each) for name, each in told.items() if each and len(each) == len(steps)},
        document.get("no_instructions") or "",
    )  # fmt: skip


def read_steps(path: Path) -> dict[str, Any]:
    """Read what a program wrote about its steps (`torchtraceap.steps/1`).

    Raises:
        ProgramError: It is something else.
    """
    try:
        document = read_json(path)
        steps, warmup = document["step_ns"], document["warmup"]
        work = [*document.get("step_cpu_ns", ()), *document.get("step_instructions", ())]
        is_fine = (
            document["schema"] == STEPS_SCHEMA
            and bool(steps)
            and all(type(ns) is int and ns >= 0 for ns in [*steps, warmup, *work])
            and isinstance(document.get("no_instructions", ""), str)
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ProgramError(f"{path.name}: can't be read as {STEPS_SCHEMA} ({error})") from error
    if not is_fine:
        raise ProgramError(f"{path.name}: is not {STEPS_SCHEMA} with whole nanoseconds")
    return dict(document)


def trace_program(
    argv: Sequence[str],
    cwd: PathLike | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float | None = None,
    *,
    target: PathLike,
) -> Path | None:
    """Record a program as `record_program` does; None where it failed or there was nothing to
    record.

    Raises:
        OptionError: It can't be started.
        OutputError: The file can't be written.
    """
    return record_program(argv, cwd, env, timeout_s, target=target)[0]


def record_program(
    argv: Sequence[str],
    cwd: PathLike | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float | None = None,
    *,
    target: PathLike,
) -> tuple[Path | None, ProgramResult]:
    """Run a program in a fresh process, as `run_fresh` does, and record it without timing it.

    A program with `measured` has some of its steps recorded. Of another one everything is recorded
    from the import of torch to its end, in the first process alone; not if it has a profiler of its
    own.

    Returns:
        `target`, a `.json` or `.json.gz` file without what names a machine or a person, or None
        where the program failed or there was nothing to record; and how it ended.

    Raises:
        OptionError: It can't be started.
        OutputError: The file can't be written.
    """
    target = Path(target)
    with working_folder() as folder:
        steps, whole = folder / "steps.json.gz", folder / "whole.json"
        path = (env or {}).get("PYTHONPATH") or os.environ.get("PYTHONPATH")
        asked = {
            **_QUIET,
            TRACE: str(steps),
            _WHOLE: str(whole),
            "PYTHONPATH": os.pathsep.join([str(_INJECTED_FOLDER), *([path] if path else [])]),
        }
        finished = run_fresh(argv, cwd=cwd, env={**(env or {}), **asked}, timeout_s=timeout_s)
        if not finished.ok:
            return None, finished
        if steps.exists():  # its writer has sanitized it
            with replacing_stream(target) as stream, steps.open("rb") as source:
                shutil.copyfileobj(source, stream)
            return target, finished
        if not whole.exists() or not whole.stat().st_size:
            return None, finished
        with replacing_stream(target) as stream:
            holds_work = copy_without_private_data(whole, stream, use_gzip=target.suffix == ".gz")
        if not holds_work:
            target.unlink()
            return None, finished
        return target, finished
