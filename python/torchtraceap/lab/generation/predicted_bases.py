"""`PredictedBases`: runs that are predicted for workloads, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.datasets.types import TASKS
from torchtraceap.errors import OptionError
from torchtraceap.lab.generation.bases import Base
from torchtraceap.lab.prediction.lowering.step import LoweredStep
from torchtraceap.lab.prediction.predictor import lower_steps
from torchtraceap.lab.prediction.sources import captured_step
from torchtraceap.lab.prediction.timeline import (
    Recording,
    rank_trace,
    schedule_steps,
    stream_waits,
)
from torchtraceap.lab.prediction.timeline.profilers import PROFILERS, Profiler, rewrite_for_profiler
from torchtraceap.ops.devices import device_named
from torchtraceap.tables.detection import present_findings
from torchtraceap.trace.ranks import Ranks, RankTrace

if TYPE_CHECKING:
    from torchtraceap.lab.generation.workloads import Drawn

__all__ = ["PredictedBases"]

_DRAWS = 8
_BOUND_BY_THE_GPU = 0.65
"""Of bases, those that the host shall keep up with: without that most would be bound by the host,
and no fault that makes the host late could be put into them."""


class PredictedBases:
    """One for each unit.

    Args:
        seed: The same gives the same runs.
        tasks: Of the workloads; none: all.
        of_many: Each is of several ranks, or ranks can be made of it.
        by_copies: If it is of several ranks, each has the whole model.
        families: Networks that they may be of; empty: all.
    """

    def __init__(
        self,
        seed: int,
        tasks: Sequence[str],
        *,
        of_many: bool = False,
        by_copies: bool = False,
        families: Collection[str] = (),
    ) -> None:
        self._seed, self._tasks = seed, tuple(tasks) or TASKS
        self._families = families
        self._of_many, self._by_copies = of_many, by_copies
        self._kept: tuple[int, Base] | None = None

    def of(self, unit: int, place: int) -> Base:
        """That of a unit."""
        if self._kept is None or self._kept[0] != unit:
            self._kept = unit, self._predict(unit)
        return self._kept[1]

    def _predict(self, unit: int) -> Base:
        """Of what can be run without values, the first that is drawn."""
        from torchtraceap.lab.generation.workloads import drawn_workload
        from torchtraceap.lab.prediction.capture import CaptureError

        task = self._tasks[unit % len(self._tasks)]
        for turn in range(_DRAWS):
            rng = random.Random(f"{self._seed}/base/{unit}/{turn}")
            drawn = drawn_workload(
                task, rng, is_trained=self._of_many or None, by_copies=self._by_copies,
                families=self._families,
            )  # fmt: skip
            profiler = PROFILERS[rng.choice(list(PROFILERS))]
            seed, keeps_up = rng.getrandbits(32), rng.random() < _BOUND_BY_THE_GPU
            with suppress(CaptureError, OptionError):
                return _as_wished(drawn, profiler, seed, keeps_up=keeps_up)
        raise OptionError(f"no workload of the task {task} could be run")


def _as_wished(drawn: Drawn, profiler: Profiler, seed: int, *, keeps_up: bool) -> Base:
    """A run of it; if the host shall keep up, of the first heavier one with which it does."""
    base = _run(drawn, profiler, seed)
    while keeps_up and "cpu_bound" in base.types and (heavier := drawn.heavier()):
        drawn = heavier
        base = _run(drawn, profiler, seed)
    return base


def _run(drawn: Drawn, profiler: Profiler, seed: int) -> Base:
    device = device_named(drawn.device)
    captured = captured_step(
        drawn.make, None, loss=None, optimizer=None, dtype=drawn.dtype, batch=None,
        world_size=drawn.world_size, strategy=drawn.strategy, device=device,
    )  # fmt: skip
    step = lower_steps(captured.captures[:1], device)[0]
    times = schedule_steps([step], [0] * drawn.world_size, count=drawn.steps)[0]
    newest = rank_trace(step, times, Recording(device, 0, drawn.world_size, seed))
    part = RankTrace(rewrite_for_profiler(newest.table, profiler), newest.rank)
    types = frozenset(present_findings(Ranks([part])))
    return Base(
        part, drawn.name, "lifted", drawn.task, types,
        drawn.strategy, drawn.world_size, profiler.torch, _waits(step, part, drawn.steps),
    )  # fmt: skip


def _waits(step: LoweredStep, part: RankTrace, steps: int) -> Array:
    """int64 `[n, 2]`: see `Base.waits`. Calls that launch have their numbers in order."""
    pairs = np.array(stream_waits(step), dtype=np.int64).reshape(-1, 2)
    count = sum(1 for _ in step.works())
    places = (pairs[None] + count * np.arange(steps)[:, None, None]).reshape(-1, 2)
    places = places[((places >= 0) & (places < count * steps)).all(axis=1)]
    numbers = np.sort(part.table.correlation[part.tree.linked_gpu_rows].astype(np.int64))
    found: Array = numbers[places]
    return found
