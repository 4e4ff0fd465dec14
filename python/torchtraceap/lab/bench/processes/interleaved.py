"""Fresh processes of several programs at the same time, whose steps take turns (turns.py)."""

from __future__ import annotations

import socket
import string
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.lab.bench.processes.fresh import ProgramError
from torchtraceap.lab.bench.processes.programs import ProgramRun
from torchtraceap.lab.bench.processes.turns import Turn, free_processor, give_turns

__all__ = ["can_take_turns", "run_together"]

_ONE_PROCESSOR = 1.1
"""Ratio of processor time to wall time up to which a program is taken to need one processor."""


def can_take_turns(runs: Sequence[ProgramRun | None]) -> bool:
    """Return True if all programs reported steps in their last runs, so that they can take
    turns."""
    return all(run is not None and run.by_steps for run in runs)


def run_together(
    programs: Sequence[Callable[[Turn], ProgramRun]], before: Sequence[ProgramRun], seed: int
) -> tuple[list[ProgramRun], Array]:
    """Run programs at the same time, step by step in turn.

    Args:
        programs: Each runs a program in a fresh process that takes part, and gives back its run.
        before: A run of each alone, which says whether one processor is enough for all.
        seed: Of who goes first in each exchange of steps, and of the processor.

    Returns:
        Their runs, and what stood next to each other behind all warm-ups: ns of a step of each,
        int64 `[exchanges, programs]`.

    Raises:
        ProgramError: One failed, or there was no exchange behind the warm-up.
    """
    letters = string.ascii_uppercase[: len(programs)]
    alone = all(run.cpu_ns <= _ONE_PROCESSOR * run.wall_ns for run in before)
    processor = free_processor(seed) if alone else None
    with (
        tempfile.TemporaryDirectory(prefix="ttap-turns-") as folder,
        socket.socket(socket.AF_UNIX) as listener,
        ThreadPoolExecutor(len(programs)) as pool,
    ):
        place = f"{folder}/referee"
        listener.bind(place)
        listener.listen()
        started = {
            letter: pool.submit(run, Turn(place, letter, processor))
            for letter, run in zip(letters, programs, strict=True)
        }
        try:
            give_turns(listener, letters, seed, lambda letter: not started[letter].done())
        finally:
            listener.close()
        runs = [each.result() for each in started.values()]
    steps = _exchanges(runs)
    if not len(steps):
        raise ProgramError("the steps of the programs could not take turns")
    return runs, steps


def _exchanges(runs: Sequence[ProgramRun]) -> Array:
    first = max(run.warmup for run in runs)
    last = min(len(run.all_step_ns) for run in runs)
    told = all(run.by_steps for run in runs) and last > first
    steps = [run.all_step_ns[first:last] if told else () for run in runs]
    exchanged: Array = np.maximum(np.array(steps, np.int64).T, 1)
    return exchanged
