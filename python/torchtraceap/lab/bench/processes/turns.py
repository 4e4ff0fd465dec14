"""Fresh processes of several programs whose measured steps take turns, one step of each at a time.

Note [Turns]: a machine that others share is faster now and slower in the next tenth of a second,
so that two runs one behind the other meet different machines. Two steps one behind the other meet
the same. So the two processes of a pair live at the same time, and a referee lets one of them make
its next step while the other waits: never do both compute. Who goes first is drawn for every
exchange of two steps. Waiting is not timed, and the GPU is waited for behind each step. Both take
part by the loop of `measured`, warm-up included; a program without it cannot. Programs that keep
no more than one processor busy share one: two processors are never equally disturbed by what else
runs.

The referee listens at a socket in a folder of its own. A process sends its side when its loop
begins, then waits for `GO` before each step and sends `DONE` behind it; its end closes the socket.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import string
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from torchtraceap.core import Array
from torchtraceap.lab.bench.measured import DONE, GO, PROCESSOR, SIDE, TURNS
from torchtraceap.lab.bench.processes.cleaner import working_folder
from torchtraceap.lab.bench.processes.programs import ProgramError, ProgramRun

__all__ = ["can_take_turns", "run_together"]

_POLL_S = 0.05
_ONE_PROCESSOR = 1.1
"""Ratio of processor time to wall time up to which a program is taken to need one processor."""


def can_take_turns(runs: Sequence[ProgramRun | None]) -> bool:
    """Return True if all programs reported steps in their last runs, so that they can take
    turns."""
    return all(run is not None and run.by_steps for run in runs)


def run_together(
    programs: Sequence[Callable[[Mapping[str, str | None]], ProgramRun]],
    before: Sequence[ProgramRun],
    seed: int,
) -> tuple[list[ProgramRun], Array]:
    """Run programs at the same time, step by step in turn.

    Args:
        programs: Functions that run a program in a fresh process with the given variables, by
            which it takes part, and return its run.
        before: A run of each alone, which says whether one processor is enough for all.
        seed: Decides who goes first in each exchange of steps, and the processor.

    Returns:
        The runs, and the steps that stood next to each other behind all warm-ups, in ns, int64
        `[exchanges, programs]`.

    Raises:
        ProgramError: One failed, or there was no exchange behind the warm-up.
    """
    letters = string.ascii_uppercase[: len(programs)]
    processor = None
    shared = all(run.cpu_ns <= _ONE_PROCESSOR * run.wall_ns for run in before)
    if shared and hasattr(os, "sched_getaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        processor = str(usable[seed % len(usable)])
    with (
        working_folder() as folder,
        socket.socket(socket.AF_UNIX) as listener,
        ThreadPoolExecutor(len(programs)) as pool,
    ):
        place = f"{folder}/referee"
        listener.bind(place)
        listener.listen()
        started = {
            letter: pool.submit(run, {TURNS: place, SIDE: letter, PROCESSOR: processor})
            for letter, run in zip(letters, programs, strict=True)
        }
        try:
            _give_turns(listener, letters, seed, lambda letter: not started[letter].done())
        finally:
            listener.close()
        runs = [each.result() for each in started.values()]
    first = max(run.warmup for run in runs)
    last = min(len(run.all_step_ns) for run in runs)
    if last <= first or not can_take_turns(runs):
        raise ProgramError("the steps of the programs could not take turns")
    steps = np.array([run.all_step_ns[first:last] for run in runs], np.int64).T
    return runs, np.maximum(steps, 1)


def _give_turns(
    listener: socket.socket, sides: Sequence[str], seed: int, is_running: Callable[[str], bool]
) -> None:
    """Let processes run their steps in turn until all have left.

    A process that ends without a step never comes to the listener, so `is_running` says of a side
    whether its process still runs.
    """
    rng = random.Random(seed)
    with contextlib.ExitStack() as at_the_end:
        ends = _accept_sides(listener, sides, is_running)
        for end in ends.values():
            at_the_end.enter_context(end)
        while ends:
            for side in rng.sample(sides, len(sides)):
                if side not in ends:
                    continue
                answer = b""
                with contextlib.suppress(OSError):
                    ends[side].sendall(GO)
                    answer = ends[side].recv(1)
                if answer != DONE:
                    ends.pop(side).close()


def _accept_sides(
    listener: socket.socket, sides: Sequence[str], is_running: Callable[[str], bool]
) -> dict[str, socket.socket]:
    found: dict[str, socket.socket] = {}
    listener.settimeout(_POLL_S)
    while missing := [side for side in sides if side not in found]:
        try:
            end, _ = listener.accept()
        except TimeoutError:
            if not any(is_running(side) for side in missing):
                break
            continue
        end.settimeout(None)
        side = end.recv(1).decode("ascii", "replace")
        if side not in sides or side in found:  # a second loop of the same process
            end.close()
            continue
        found[side] = end
    return found
