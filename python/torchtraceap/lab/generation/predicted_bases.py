"""`PredictedBases`: runs that are predicted for small networks, drawn at random.

As they are drawn most networks are small, so that the GPU waits for the host; `Drawn.heavier` gives
the GPU more to do.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from torchtraceap.datasets import TASKS
from torchtraceap.errors import OptionError
from torchtraceap.lab.generation.bases import Base
from torchtraceap.lab.prediction.predictor import lower_steps
from torchtraceap.lab.prediction.sources import captured_step
from torchtraceap.lab.prediction.timeline import (
    Recording,
    rank_trace,
    schedule_steps,
    stream_waits,
)
from torchtraceap.lab.prediction.timeline.profilers import PROFILERS, Profiler, rewrite_for_profiler
from torchtraceap.lab.workloads.suite.networks import NETWORKS
from torchtraceap.ops import device_named
from torchtraceap.tables import present_findings
from torchtraceap.trace import Ranks, RankTrace

__all__ = ["Drawn", "PredictedBases", "draw_workload"]

_DRAWS = 8
_BOUND_BY_THE_GPU = 0.65
"""Share of bases with which the host shall keep up: without that most would be bound by the host,
and no fault that makes the host late could be injected into them."""
_DEVICES = ("V100 SXM2 32 GB", "A100 SXM4 80 GB", "A10", "L4", "H100 SXM5 80 GB",
            "H200 SXM 141 GB", "GeForce RTX 4090")  # fmt: skip
_TRAINED = 0.8
"""Share of workloads with a backward pass."""
_SHARED = 0.35
"""Share of these that ranks share by another strategy than copies of the whole model."""
_MOST_WIDTH, _MOST_BATCH = 512, 1024


@dataclass(frozen=True)
class Drawn:
    """A workload, and what it runs on."""

    task: str
    network: str
    width: int
    depth: int
    batch: int
    side: int
    """Pixels of an image's edge."""
    optimizer: str | None
    """None: there is no backward pass."""
    device: str
    dtype: str
    strategy: str | None
    """Strategy by which ranks share the work; None for one rank."""
    world_size: int

    @property
    def name(self) -> str:
        """A name that no other workload has."""
        way = "inference" if self.optimizer is None else "training"
        size = f"width {self.width}, depth {self.depth}, batch {self.batch}, {self.side} pixels"
        name = f"{self.task}: {self.network}, {size}, {way}, {self.dtype} on {self.device}"
        return name + (f", {self.strategy} of {self.world_size}" if self.strategy else "")

    @property
    def steps(self) -> int:
        """Number of steps that have as many events as a trace should have, or more."""
        return 24 if self.optimizer is None else 10

    def make(self) -> dict[str, Any]:
        """Make the workload."""
        return {
            "model": NETWORKS[self.task][self.network](self.width, self.depth),
            "inputs": (torch.randn(self.batch, 3, self.side, self.side),),
            "loss": None if self.optimizer is None else _loss,
            "optimizer": None if self.optimizer is None else _OPTIMIZERS[self.optimizer],
        }

    def heavier(self) -> Drawn | None:
        """Return the same launches with about ten times the work of the GPU; None beyond sizes in
        use."""
        if self.batch >= _MOST_BATCH and self.width >= _MOST_WIDTH:
            return None
        width, batch = min(2 * self.width, _MOST_WIDTH), min(4 * self.batch, _MOST_BATCH)
        return replace(self, width=width, batch=batch)


def _loss(outputs: Any) -> torch.Tensor:
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.stack([each.float().square().mean() for each in several]).sum()


_OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def draw_workload(
    task: str,
    rng: random.Random,
    *,
    is_trained: bool | None = None,
    by_copies: bool = False,
    networks: Collection[str] = (),
) -> Drawn:
    """Draw a workload of a task; the same generator gives the same.

    Args:
        task: The task.
        rng: Random numbers.
        is_trained: True for a backward pass; None: drawn as well.
        by_copies: True if no rank may have a part of the model only.
        networks: Names of networks to draw from; empty: all.
    """
    network = rng.choice([name for name in NETWORKS[task] if not networks or name in networks])
    width = rng.choice((32, 48, 64, 96, 128))
    depth = rng.randint(2, 5)
    batch = rng.choice((2, 4, 8, 16, 32, 64, 128, 256))
    side = rng.choice((96, 128, 192, 224, 288, 384))
    optimizer = rng.choice(list(_OPTIMIZERS))
    trained = rng.random() < _TRAINED if is_trained is None else is_trained
    device = rng.choice(_DEVICES)
    dtypes = ("fp32", "fp16") if device.startswith("V100") else ("fp32", "bf16", "bf16")
    dtype = rng.choice(dtypes)
    strategy, ranks = None, 1
    if trained and not by_copies and rng.random() < _SHARED:
        # Layers are split where they are those of a transformer.
        strategy = rng.choice(("fsdp2", "tp") if network.startswith("patch") else ("fsdp2",))
        ranks = rng.choice((2, 4, 4, 8))
    return Drawn(
        task, network, width, depth, batch, side, optimizer if trained else None,
        device, dtype, strategy, ranks,
    )  # fmt: skip


class PredictedBases:
    """A base for each unit.

    Args:
        seed: The same seed gives the same runs.
        tasks: Tasks of the workloads; empty: all.
        of_many: True if each is of several ranks, or ranks can be made of it.
        by_copies: True if each of several ranks has the whole model.
        networks: Names of networks to draw from; empty: all.
    """

    def __init__(
        self,
        seed: int,
        tasks: Sequence[str],
        *,
        of_many: bool = False,
        by_copies: bool = False,
        networks: Collection[str] = (),
    ) -> None:
        self._seed, self._tasks = seed, tuple(tasks) or TASKS
        self._networks = networks
        self._of_many, self._by_copies = of_many, by_copies
        self._kept: tuple[int, Base] | None = None

    def get(self, unit: int, place: int) -> Base:
        """Return the base of a unit, predicted once.

        Raises:
            OptionError: No workload that was drawn could be run.
        """
        if self._kept is None or self._kept[0] != unit:
            self._kept = unit, self._predict(unit)
        return self._kept[1]

    def _predict(self, unit: int) -> Base:
        """Return the first draw that can be run without values; if the host shall keep up, the
        first heavier one with which it does."""
        from torchtraceap.lab.prediction.capture import CaptureError

        task = self._tasks[unit % len(self._tasks)]
        for turn in range(_DRAWS):
            rng = random.Random(f"{self._seed}/base/{unit}/{turn}")
            drawn = draw_workload(
                task, rng, is_trained=self._of_many or None, by_copies=self._by_copies,
                networks=self._networks,
            )  # fmt: skip
            profiler = PROFILERS[rng.choice(list(PROFILERS))]
            seed, keeps_up = rng.getrandbits(32), rng.random() < _BOUND_BY_THE_GPU
            with suppress(CaptureError, OptionError):
                base = _run(drawn, profiler, seed)
                while keeps_up and "cpu_bound" in base.types and (heavier := drawn.heavier()):
                    drawn = heavier
                    base = _run(drawn, profiler, seed)
                return base
        raise OptionError(f"no workload of the task {task} could be run")


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
    # Calls that launch have their numbers in order.
    pairs = np.array(stream_waits(step), dtype=np.int64).reshape(-1, 2)
    count = sum(1 for _ in step.works())
    places = (pairs[None] + count * np.arange(drawn.steps)[:, None, None]).reshape(-1, 2)
    places = places[((places >= 0) & (places < count * drawn.steps)).all(axis=1)]
    numbers = np.sort(part.table.correlation[part.tree.linked_gpu_rows].astype(np.int64))
    types = frozenset(present_findings(Ranks([part])))
    return Base(
        part, drawn.name, "lifted", drawn.task, types,
        drawn.strategy, drawn.world_size, profiler.torch, numbers[places],
    )  # fmt: skip
