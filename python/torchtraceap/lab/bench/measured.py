"""The function `measured`, which marks the loop whose steps a benchmark times.

Note [Protocol]: who measures a program starts it with environment variables, and the loop answers
in files.

- `TORCHTRACEAP_STEPS=FILE`: the times of all steps go there, as `torchtraceap.steps/1`.
- `TORCHTRACEAP_FREE=1`: one wait for the GPU before the first step behind the warm-up and one
  behind the last, instead of one behind each.
- `TORCHTRACEAP_TRACE=FILE`: some steps behind the warm-up are recorded there. Such a run is not
  timed.

- `TORCHTRACEAP_TURNS=SOCKET`: steps take turns with those of another program
  (lab/bench/processes/turns.py).

A step begins where the one before it ended: what the iterable takes for its next item counts too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any, TypeVar

__all__ = ["FREE", "STEPS", "STEPS_SCHEMA", "TRACE", "TURNS", "measured"]

STEPS = "TORCHTRACEAP_STEPS"
FREE = "TORCHTRACEAP_FREE"
TRACE = "TORCHTRACEAP_TRACE"
TURNS = "TORCHTRACEAP_TURNS"
STEPS_SCHEMA = "torchtraceap.steps/1"

_TRACED_STEPS = 8
_RANK = "RANK"

Item = TypeVar("Item")


class _Times:
    """Times of all measured loops of this process; a program may have one per epoch."""

    def __init__(self) -> None:
        self.step_ns: list[int] = []
        self.warmup = 0
        self.first_step_ns: int | None = None
        self.traced = False


_times = _Times()


def measured(iterable: Iterable[Item], warmup: int = 3) -> Iterator[Item]:
    """Iterate, and let a benchmark time each iteration of the loop.

    ```python
    for batch in ttap.measured(loader):
        train(batch)
    ```

    Outside of `torchtraceap bench` nothing is timed, and torch is not imported.

    Args:
        iterable: What the loop goes over; use the items in a `for` loop.
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
    if not steps:
        _times.warmup = max(0, warmup)
    turns = _connect_turns()
    _wait_for_gpu()
    last_ns = time.perf_counter_ns()
    try:
        if turns is not None:
            turns.wait()
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
                last_ns = now_ns
                if len(steps) == 1:
                    _times.first_step_ns = now_ns
            if turns is not None:
                turns.pass_on()
                turns.wait()
                last_ns = time.perf_counter_ns()
    finally:
        if turns is not None:
            turns.leave()
        if free and len(steps) > before:
            _wait_for_gpu()
            steps[-1] += time.perf_counter_ns() - last_ns
        if steps:
            _write(target, free)


def _connect_turns() -> Any:
    """Connect the first loop to the referee that decides whose turn it is."""
    path = os.environ.get(TURNS)
    if not path or _times.step_ns:
        return None
    from torchtraceap.lab.bench.processes.turns import connect_turns

    return connect_turns(path)


def _wait_for_gpu() -> None:
    """Wait for all work on the current device, if this process uses one."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.synchronize()


def _write(target: str, free: bool) -> None:
    import json

    from torchtraceap.core.writing import write_text
    from torchtraceap.lab.bench.processes.fresh import STARTED
    from torchtraceap.lab.bench.processes.memory import peak_rss_bytes

    document: dict[str, Any] = {
        "schema": STEPS_SCHEMA,
        "step_ns": _times.step_ns,
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
    from torchtraceap.record.session import profile

    wait, active = _recorded_steps(iterable, warmup)
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


def _recorded_steps(iterable: Iterable[Any], warmup: int) -> tuple[int, int]:
    """Return how many steps pass before the profiler warms up and how many are recorded; fewer if
    the loop is known to be short."""
    try:
        length = len(iterable)  # type: ignore[arg-type]
    except TypeError:
        return max(0, warmup), _TRACED_STEPS
    active = max(1, min(_TRACED_STEPS, length - warmup - 1))
    return max(0, min(warmup, length - active - 1)), active
