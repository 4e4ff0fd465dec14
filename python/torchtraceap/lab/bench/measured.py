"""The function `measured`, which marks the loop whose steps a benchmark times.

Note [Protocol]: who measures a program starts it with environment variables, and the loop answers
in files.

- `TORCHTRACEAP_STEPS=FILE`: the times of all steps go there, as `torchtraceap.steps/1`, with the
  processor time and, where they are counted, the retired instructions of each.
- `TORCHTRACEAP_FREE=1`: one wait for the GPU before the first step behind the warm-up and one
  behind the last, instead of one behind each.
- `TORCHTRACEAP_TRACE=FILE`: some steps behind the warm-up are recorded there. Such a run is not
  timed.
- `TORCHTRACEAP_TURNS=SOCKET`: steps take turns with those of another program
  (lab/bench/processes/turns.py).

A step begins where the one before it ended: what the iterable takes for its next item counts too.

Note [Resident memory]: `ru_maxrss` of a process counts from when it was a copy of the one that
started it, and what PyTorch's libraries take is in it. So a process asks the kernel for the highest
mark of its own memory (`VmHWM`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import socket

__all__ = [
    "FREE",
    "STARTED",
    "STEPS",
    "STEPS_SCHEMA",
    "TRACE",
    "TURNS",
    "current_rss_bytes",
    "measured",
    "peak_rss_bytes",
]

STEPS = "TORCHTRACEAP_STEPS"
FREE = "TORCHTRACEAP_FREE"
TRACE = "TORCHTRACEAP_TRACE"
TURNS = "TORCHTRACEAP_TURNS"
SIDE, PROCESSOR = "TORCHTRACEAP_SIDE", "TORCHTRACEAP_PROCESSOR"
"""Names of the variables with the letter of a program that takes turns, and with the processor on
which it then runs."""
GO, DONE = b"g", b"d"
"""The words of the referee and of the process that takes turns."""
STARTED = "TORCHTRACEAP_STARTED"
"""Name of the variable with the start of the process, in ns of the machine's monotonic clock."""
STEPS_SCHEMA = "torchtraceap.steps/1"

_TRACED_STEPS = 8
_RANK = "RANK"
_STATUS = "/proc/self/status"

Item = TypeVar("Item")


class _Times:
    """Times of all measured loops of this process; a program may have one per epoch."""

    def __init__(self) -> None:
        self.step_ns: list[int] = []
        self.cpu_ns: list[int] = []
        self.instructions: list[int] = []
        self.no_instructions = ""
        self.warmup = 0
        self.first_step_ns: int | None = None
        self.traced = False


_times = _Times()


class _Work:
    """What this process spends on a step besides time: processor time of all threads, and
    instructions where they are counted. Not read while a step is timed."""

    def __init__(self) -> None:
        from torchtraceap.lab.bench.processes.instructions import EventCounter

        self._counter = EventCounter()
        _times.no_instructions = self._counter.why_not
        self.begin()

    def begin(self) -> None:
        self._instructions = self._counter.read()
        self._cpu_ns = time.process_time_ns()

    def end(self) -> None:
        """Note what was spent since the last `begin`."""
        now_ns, counted = time.process_time_ns(), self._counter.read()
        _times.cpu_ns.append(now_ns - self._cpu_ns)
        if counted is not None and self._instructions is not None:
            _times.instructions.append(counted - self._instructions)

    def close(self) -> None:
        self._counter.close()


def measured(iterable: Iterable[Item], warmup: int = 3) -> Iterator[Item]:
    """Iterate, and let a benchmark time each iteration of the loop.

    ```python
    for batch in ttap.measured(loader):
        train(batch)
    ```

    Outside of `torchtraceap bench` nothing is timed, and torch is not imported.

    Args:
        iterable: The items of the loop; use them in a `for` loop.
        warmup: Steps at the beginning that are not counted. Of a second loop in the same process
            all count.

    Yields:
        The items.
    """
    if os.environ.get(_RANK, "0") == "0":
        if target := os.environ.get(TRACE):
            return _traced_items(iterable, warmup, target)
        if target := os.environ.get(STEPS):
            return _timed_items(iterable, warmup, target)
    return iter(iterable)


def _timed_items(iterable: Iterable[Item], warmup: int, target: str) -> Iterator[Item]:
    free = os.environ.get(FREE) == "1"
    steps = _times.step_ns
    before = len(steps)
    referee = None if steps else _connect_referee()  # only the first loop takes turns
    if not steps:
        _times.warmup = max(0, warmup)
    _wait_for_gpu()
    work = _Work()
    last_ns = time.perf_counter_ns()
    try:
        if referee is not None:
            referee.recv(1)  # returns at once if there is no referee anymore
            work.begin()
            last_ns = time.perf_counter_ns()
        for item in iterable:
            try:
                yield item
            finally:  # the last step of a loop that breaks counts too
                # The first steps are always waited for, so that their work is not counted later.
                if not free or len(steps) < _times.warmup:
                    _wait_for_gpu()
                now_ns = time.perf_counter_ns()
                steps.append(now_ns - last_ns)
                work.end()
                work.begin()
                last_ns = time.perf_counter_ns()
                if len(steps) == 1:
                    _times.first_step_ns = now_ns
            if referee is not None:
                with contextlib.suppress(OSError):  # the referee has gone
                    referee.sendall(DONE)
                referee.recv(1)
                work.begin()
                last_ns = time.perf_counter_ns()
    finally:
        work.close()
        if referee is not None:
            referee.close()
        if free and len(steps) > before:
            _wait_for_gpu()
            steps[-1] += time.perf_counter_ns() - last_ns
        if steps:
            _write_steps(target, free)


def _connect_referee() -> socket.socket | None:
    """Connect to the referee that decides whose turn it is; None if there is none."""
    path = os.environ.get(TURNS)
    if not path:
        return None
    import socket

    processor = os.environ.get(PROCESSOR, "")
    try:
        if processor.isdecimal():
            os.sched_setaffinity(0, {int(processor)})
        referee = socket.socket(socket.AF_UNIX)
        referee.connect(path)
        referee.sendall(os.environ.get(SIDE, "?").encode("ascii"))
    except OSError:
        return None
    return referee


def _wait_for_gpu() -> None:
    """Wait for all work on the current device, if this process uses one."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.synchronize()


def _write_steps(target: str, free: bool) -> None:
    import json

    from torchtraceap.core import write_text

    document: dict[str, Any] = {
        "schema": STEPS_SCHEMA,
        "step_ns": _times.step_ns,
        "step_cpu_ns": _times.cpu_ns,
        "step_instructions": _times.instructions,
        "no_instructions": _times.no_instructions,
        "warmup": _times.warmup,
        "mode": "free" if free else "fenced",
        "peak_rss_bytes": peak_rss_bytes(),
    }
    started = os.environ.get(STARTED, "")
    if started.isdecimal() and _times.first_step_ns is not None:
        document["first_step_after_ns"] = _times.first_step_ns - int(started)
    write_text(target, json.dumps(document))


def _traced_items(iterable: Iterable[Item], warmup: int, target: str) -> Iterator[Item]:
    # Only the first loop is recorded, and only if torch is installed.
    if _times.traced or find_spec("torch") is None:
        yield from iterable
        return
    _times.traced = True
    from torchtraceap.record import profile

    wait, active = max(0, warmup), _TRACED_STEPS
    with contextlib.suppress(TypeError):  # fewer if the loop is known to be short
        length = len(iterable)  # type: ignore[arg-type]
        active = max(1, min(_TRACED_STEPS, length - warmup - 1))
        wait = max(0, min(warmup, length - active - 1))
    with profile(
        target, wait=wait, warmup=1, active=active, profile_memory=True, diagnose=False
    ) as recording:
        for item in iterable:
            try:
                yield item
            except GeneratorExit:  # the loop was left early, which is no failure
                recording.step()
                return
            recording.step()


def current_rss_bytes() -> int:
    """Return the resident memory of this process."""
    return _status_bytes("VmRSS") or peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process; see Note [Resident memory]."""
    import resource

    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status_bytes(name: str) -> int | None:
    """Return a value that `/proc/self/status` gives in units of 1024 bytes."""
    with contextlib.suppress(OSError), open(_STATUS, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
