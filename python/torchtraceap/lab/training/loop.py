"""The loop that trains networks: epochs, checkpoints, validation, early end, logs.

Note [Exact resumption]: what a step draws depends on the seed, the epoch and the step alone (torch
is seeded anew at each), and a checkpoint holds parameters, moments of the optimizer and the place.
So training that was broken off anywhere ends with the same bits as one that was not.

Note [Equal to one process]: every process takes its share of each batch, and gradients are summed
over processes and divided by the weight of the whole batch. That is the gradient of one process
with the whole batch, whatever the shares weigh. All gradients go in one all-reduce: the networks
have a few million parameters, and ones that a batch does not reach need no special care.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, Unpack

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchtraceap.core import Array, PathLike, progress_stage, replacing
from torchtraceap.datasets import Sample
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.lab.training.figures import window_figures, write_logs
from torchtraceap.lab.training.settings import LoopSettings, RunOptions, Trained

__all__ = [
    "CHECKPOINT",
    "WEIGHTS",
    "Fitted",
    "Learner",
    "PairLearner",
    "Processes",
    "fit",
    "fit_and_save",
    "join_processes",
    "step_seed",
]


CHECKPOINT = "checkpoint.safetensors"
WEIGHTS = "weights.safetensors"
_VERSION = 1


class Learner(Protocol):
    """A network with its data, as the loop trains it."""

    module: nn.Module
    """The parameters, and buffers that belong to them."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Settings and data in JSON: a checkpoint is of these and goes on with no others."""

    def begin(self, epoch: int) -> None:
        """Prepare an epoch before its first step, and before its next one after a break: draw the
        order of the data, make new pseudo-labels. Depends on the module and `epoch` alone."""

    def steps(self, epoch: int) -> int:
        """Batches in an epoch, the same in all processes."""

    def loss(self, epoch: int, step: int) -> tuple[Tensor, float]:
        """The sum of losses over this process's share of a batch, and the weight of the share."""

    def validate(self) -> dict[str, float]:
        """Figures of the validation split; the first is the criterion, higher is better."""

    def state(self) -> dict[str, Tensor]:
        """Further tensors of a checkpoint, such as pseudo-labels."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over the result of `state`."""

    def save(self, path: Path, fitted: Fitted) -> None:
        """Write the weights, with what is needed to use them."""


class PairLearner(Learner):
    """The part of a learner that batches of pairs of traces, and windows with labels, have in
    common.

    Args:
        pairs: Places of traces that belong together.
        validation: The traces of the validation split.
        batch: Pairs in a step.
        seed: Seed of everything that is drawn.
        processes: The group of processes, and which one this is.
        drawn: Pairs that are drawn for an epoch; None: all.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[int, ...]],
        validation: Sequence[Sample],
        *,
        batch: int,
        seed: int,
        processes: Processes | None,
        drawn: int | None = None,
    ) -> None:
        self.pairs, self.validation, self.batch, self.seed = pairs, validation, batch, seed
        self.processes = processes or Processes()
        self.drawn = min(drawn or len(pairs), len(pairs))
        self.order: list[tuple[int, ...]] = []

    def begin(self, epoch: int) -> None:
        rng = np.random.default_rng(step_seed(self.seed, epoch, 1))
        self.order = [self.pairs[i] for i in rng.permutation(len(self.pairs))[: self.drawn]]

    def steps(self, epoch: int) -> int:
        return -(-self.drawn // self.batch)

    def share(self, step: int) -> Sequence[tuple[int, ...]]:
        """Return the pairs of a batch that this process takes."""
        return self.processes.share(self.order[step * self.batch : (step + 1) * self.batch])

    def validation_logits(self) -> list[Array]:
        """Return the logits of the windows of the validation traces, float32 `[W]` each."""
        raise NotImplementedError

    def validate(self) -> dict[str, float]:
        return window_figures(self.validation_logits(), self.validation)

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over nothing."""


@dataclass
class Fitted:
    """The place that training has reached, and its figures."""

    finished: bool = False
    """False where the time was up: it can be resumed."""
    epoch: int = 0
    step: int = 0
    """The next step of the epoch."""
    best_epoch: int = -1
    best: float = -math.inf
    loss_sum: float = 0.0
    weight_sum: float = 0.0
    records: list[dict[str, float]] = field(default_factory=list)
    """One for each epoch: epoch, loss, seconds and the validation figures."""

    def best_figures(self) -> dict[str, float]:
        """The record of the best epoch, without when it was."""
        best = self.records[self.best_epoch]
        return {name: value for name, value in best.items() if name != "wall_time_s"}


def step_seed(seed: int, *place: int) -> int:
    """A seed of 63 bits for an epoch, a step or an item of it."""
    mixed = seed & 0xFFFFFFFFFFFFFFFF
    for part in place:  # splitmix64: neighboring places have unrelated seeds
        mixed = (mixed + 0x9E3779B97F4A7C15 * (part + 1)) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1


def fit(
    learner: Learner,
    settings: LoopSettings,
    out: PathLike,
    *,
    seed: int = 0,
    resume: bool = False,
    minutes: float | None = None,
    processes: Processes | None = None,
) -> Fitted:
    """Train until the last epoch, until validation stops getting better, or until time is up.

    The learner's module ends with the parameters of the best epoch; where time was up, with those
    of the best epoch until then.

    Args:
        learner: The network and its data.
        settings: How long and how fast.
        out: A folder that is there, for the checkpoint and the logs.
        seed: Seed of everything that is drawn.
        resume: Go on from the folder's checkpoint, where it has one.
        minutes: How long this call may take.
        processes: The group of processes, and which one this is.

    Raises:
        OptionError: The folder has a checkpoint and `resume` is not set, or `minutes` is not above
            0.
        SchemaError: The checkpoint is of other settings or data, or is damaged.
        OutputError: The folder can't be written.
    """
    return _Run(learner, settings, Path(out), seed, processes or Processes()).go(resume, minutes)


def fit_and_save(
    make: Callable[[Processes], Learner],
    settings: LoopSettings,
    out: PathLike,
    **run: Unpack[RunOptions],
) -> Trained:
    """Train as `fit` does in the group that torchrun started, and write the weights.

    Args:
        make: Makes the learner of a process. The first process alone writes weights.
        settings, out, run: As `fit` takes them, with its errors.
    """
    with join_processes() as group:
        learner = make(group)
        fitted = fit(learner, settings, out, processes=group, **run)
        if fitted.best_epoch < 0 or not group.is_first:
            return Trained(None, {}, fitted.finished)
        weights = Path(out) / WEIGHTS
        learner.save(weights, fitted)
        return Trained(weights, fitted.best_figures(), fitted.finished)


class _Run:
    """One call of `fit`."""

    def __init__(
        self, learner: Learner, settings: LoopSettings, out: Path, seed: int, processes: Processes
    ) -> None:
        self.learner, self.settings, self.out, self.seed = learner, settings, out, seed
        self.processes = processes
        self.named = dict(learner.module.named_parameters())
        self.optimizer = torch.optim.AdamW(
            self.named.values(), settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.fitted = Fitted()
        self.best: dict[str, Tensor] = {}
        self.saved_at = time.monotonic()

    def go(self, resume: bool, minutes: float | None) -> Fitted:
        if minutes is not None and not minutes > 0:
            raise OptionError(f"{minutes} minutes make no sense")
        until = math.inf if minutes is None else time.monotonic() + 60 * minutes
        if (self.out / CHECKPOINT).exists():
            if not resume:
                raise OptionError(
                    f"{self.out}: holds a checkpoint; resume it, or give a new folder"
                )
            self._restore(self.out / CHECKPOINT)
        while not self.fitted.finished:
            with progress_stage(f"epoch {self.fitted.epoch + 1} of up to {self.settings.epochs}"):
                if not self._epoch(until):
                    break
        if self.best:
            self.learner.module.load_state_dict(self.best)
        return self.fitted

    def _epoch(self, until: float) -> bool:
        """Return True if there was time for all steps of the epoch."""
        fitted, began = self.fitted, time.monotonic()
        self.learner.begin(fitted.epoch)
        steps = self.learner.steps(fitted.epoch)
        while fitted.step < steps:
            if self.processes.agree(time.monotonic() > until):
                self._save()
                return False
            self._step(steps)
            due = time.monotonic() - self.saved_at > self.settings.checkpoint_s
            if self.processes.agree(due):
                self._save()
        self._end_epoch(time.monotonic() - began)
        return True

    def _step(self, steps: int) -> None:
        fitted, settings = self.fitted, self.settings
        torch.manual_seed(step_seed(self.seed, fitted.epoch, fitted.step, self.processes.rank))
        done, warmup = (fitted.epoch + fitted.step / steps) / settings.epochs, settings.warmup
        if done < warmup:
            share = (done + 1e-3) / (warmup + 1e-3)
        else:
            share = 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * share
        self.learner.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss, weight = self.learner.loss(fitted.epoch, fitted.step)
        if weight > 0:
            loss.backward()
        self.processes.sum_gradients(self.named.values(), weight)
        nn.utils.clip_grad_norm_(self.named.values(), settings.clip)
        self.optimizer.step()
        loss_sum, weight_sum = self.processes.sum([float(loss.detach()), weight])
        fitted.loss_sum += loss_sum
        fitted.weight_sum += weight_sum
        fitted.step += 1

    def _end_epoch(self, seconds: float) -> None:
        fitted = self.fitted
        self.learner.module.eval()
        with torch.no_grad():
            figures = self.learner.validate()
        criterion = next(iter(figures.values()))
        if criterion > fitted.best or not self.best:
            fitted.best, fitted.best_epoch = criterion, fitted.epoch
            state = self.learner.module.state_dict()
            self.best = {name: tensor.detach().clone() for name, tensor in state.items()}
        fitted.records.append(
            {
                "epoch": fitted.epoch,
                "wall_time_s": time.time(),
                "seconds": seconds,
                "loss": fitted.loss_sum / max(fitted.weight_sum, 1e-12),
                **figures,
            }
        )
        fitted.epoch, fitted.step = fitted.epoch + 1, 0
        fitted.loss_sum = fitted.weight_sum = 0.0
        waited = fitted.epoch - 1 - fitted.best_epoch
        fitted.finished = fitted.epoch >= self.settings.epochs or waited >= self.settings.patience
        self._save()
        if self.processes.is_first:
            write_logs(self.out, fitted.records)

    def _save(self) -> None:
        from safetensors.torch import save_file

        self.saved_at = time.monotonic()
        if not self.processes.is_first:
            return
        tensors = {f"module.{k}": v for k, v in self.learner.module.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        tensors |= {f"learner.{k}": v for k, v in self.learner.state().items()}
        for name, parameter in self.named.items():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{moment}.{name}"] = value
        whole = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
        about = {"version": str(_VERSION), "fitted": json.dumps(asdict(self.fitted))}
        about["identity"] = self._identity()
        with replacing(self.out / CHECKPOINT) as staged:
            save_file(whole, staged, metadata=about)

    def _identity(self) -> str:
        about = {"settings": asdict(self.settings), "seed": self.seed, **self.learner.identity}
        return json.dumps(about, sort_keys=True)

    def _restore(self, place: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(place, "pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise SchemaError(f"{place}: can't be read as a checkpoint: {error}") from error
        if about.get("version") != str(_VERSION) or about.get("identity") != self._identity():
            raise SchemaError(f"{place}: is of other settings or data than these")
        try:
            self.fitted = Fitted(**json.loads(about["fitted"]))
            self.learner.module.load_state_dict(_below(tensors, "module."))
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise SchemaError(f"{place}: has no figures of a training: {error}") from error
        except RuntimeError as error:
            raise SchemaError(f"{place}: has parameters of other shapes") from error
        self.best = _below(tensors, "best.")
        self.learner.restore(_below(tensors, "learner."))
        moments = ("step", "exp_avg", "exp_avg_sq")
        for name, parameter in self.named.items():
            keys = {moment: f"optimizer.{moment}.{name}" for moment in moments}
            if tensors.keys() >= set(keys.values()):
                self.optimizer.state[parameter] = {
                    moment: tensors[key].to("cpu" if moment == "step" else parameter.device)
                    for moment, key in keys.items()
                }


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """The rank of this process in its group."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_first(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return the part of a batch that this process takes."""
        return items[self.rank :: self.size]

    def sum_gradients(self, parameters: Iterable[nn.Parameter], weight: float) -> float:
        """Make gradients those of the whole batch, see Note [Equal to one process]. A batch without
        weight has gradients of 0.

        Args:
            parameters: With the gradients of a sum of losses over this process's share.
            weight: The weight of this share.

        Returns:
            The weight of the whole batch.
        """
        used = list(parameters)
        for parameter in used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        parts = [parameter.grad.reshape(-1) for parameter in used]
        flat = torch.cat([*parts, torch.tensor([weight], device=parts[0].device)])
        if self.size > 1:
            dist.all_reduce(flat)
        total = float(flat[-1])
        flat = flat / total if total > 0 else torch.zeros_like(flat)
        start = 0
        for parameter in used:
            parameter.grad.copy_(flat[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
        return total

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each number summed over the processes."""
        if self.size == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(summed)
        return list(summed.tolist())

    def agree(self, decision: bool) -> bool:
        """Return the decision of the first process: clocks differ, and nobody may wait for who has
        left."""
        return bool(self.sum([float(decision and self.is_first)])[0])


@contextmanager
def join_processes() -> Iterator[Processes]:
    """The group that torchrun's environment variables describe, left at the end of the block.

    Raises:
        OptionError: The variables make no sense.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_RANK", "0"))
    except ValueError as error:
        raise OptionError(f"RANK, LOCAL_RANK or WORLD_SIZE is no number: {error}") from error
    if size == 1:
        yield Processes(device=device)
        return
    if device == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield Processes(rank, size, device)
    finally:
        dist.destroy_process_group()
