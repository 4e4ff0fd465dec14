"""Trains `v2`: losses, pseudo-labels, validation, and the file of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.datasets.samples import TYPES, load_samples
from torchtraceap.diagnosis.scoring.v2 import (
    TOKEN_CODES,
    TOKEN_NUMBERS,
    TokenInputs,
    TokenView,
)
from torchtraceap.diagnosis.scoring.weight_files import write_weights
from torchtraceap.errors import OptionError
from torchtraceap.lab.training.augment import Augmentation, changed_features, changed_tokens
from torchtraceap.lab.training.figures import platt, window_figures
from torchtraceap.lab.training.loop import Fitted, fit_and_save, step_seed
from torchtraceap.lab.training.lost_time import LostTime, load_labelled, load_lost
from torchtraceap.lab.training.processes import Processes, joined_processes
from torchtraceap.lab.training.pseudo_labels import (
    forest_scores,
    pseudo_targets,
    ranks,
    self_trained,
    twin_distances,
)
from torchtraceap.lab.training.result import Trained
from torchtraceap.lab.training.settings import LoopSettings, take
from torchtraceap.lab.training.v2_data import (
    Targets,
    Traces,
    aligned,
    event_targets,
    make_batch,
    pairs_of,
    supervised,
)
from torchtraceap.lab.training.v2_net import Scores, V2Net, V2Shape, WindowBatch
from torchtraceap.tables.windows import feature_names

__all__ = ["V2Learner", "V2Settings", "train"]

TRACKS = ("S", "W", "Z")


@dataclass(frozen=True)
class V2Settings:
    """`[v2]` in a file: the network, what it learns from, and the weights of its losses."""

    track: str = "S"
    grids: tuple[int, ...] = (50, 100, 200)
    validated: int = 100
    """The grid on which epochs are compared."""
    between: bool = False
    """Learn from the windows between the middles of others as well."""
    tokens: int = 0
    """Most events of a window; 0: a network of features alone."""
    names: bool = True
    """Events have names; otherwise classes alone."""
    relative: bool = False
    """Times and sizes of events are those relative to their class in the trace."""
    pooled: bool = True
    """Windows know their events; otherwise events count by their own logits alone."""
    width: int = 96
    layers: int = 4
    heads: int = 4
    token_width: int = 48
    token_layers: int = 2
    dropout: float = 0.2
    batch: int = 4
    """Pairs of a trace and its twin in a step."""
    focus: float = 0.0
    """Exponent of the focal loss: how much less windows count that are clear already."""
    rank: float = 1.0
    """Weight of the loss that orders the windows of a pair."""
    types: float = 1.0
    severity: float = 0.5
    trace: float = 0.2
    events: float = 0.0
    """Weight of the loss that tells events in lost time from others."""
    pretrain: int = 0
    """First epochs, in which windows that are hidden are told from the others, without labels."""
    hidden: float = 0.3
    """Share of the windows that are hidden then."""
    aligned: bool = True
    """Track W: lost time by the events of trace and twin; otherwise windows unlike the twin's."""
    positive: float = 0.15
    """Tracks W and Z: which part of the suspected windows is taken as positive."""
    dropped: float = 0.3
    """Up to which part of them is left out."""
    forest: float = 0.0
    """Weight of the isolation forest beside the distance to the twin."""
    rounds: tuple[int, ...] = (4, 8)
    """Epochs before which pseudo-labels are made anew from what the network says."""

    def __post_init__(self) -> None:
        if self.track not in TRACKS:
            raise OptionError(f"[v2]: track {self.track!r} is none of {', '.join(TRACKS)}")
        if self.validated not in self.grids or min(self.grids) < 2:
            raise OptionError("[v2]: `validated` has to be one of `grids`, of 2 windows or more")
        if (
            self.width % self.heads
            or self.tokens < 0
            or min(self.batch, self.layers, self.heads) < 1
        ):
            raise OptionError(f"[v2]: these sizes make no sense: {self}")
        if not 0 < self.positive <= self.dropped < 1 or not 0 <= self.forest <= 1:
            raise OptionError("[v2]: 0 < positive <= dropped < 1 and 0 <= forest <= 1 have to hold")
        if not 0 < self.hidden < 1 or self.pretrain < 0:
            raise OptionError("[v2]: 0 < hidden < 1 and 0 <= pretrain have to hold")

    @property
    def view(self) -> TokenView:
        return TokenView(self.names, self.relative)


class V2Learner:
    """What `fit` trains for `v2`; a `loop.Learner`."""

    def __init__(
        self,
        samples: Mapping[int, Sequence[Any]],
        names: Sequence[str],
        settings: V2Settings,
        augmentation: Augmentation,
        seed: int = 0,
        processes: Processes | None = None,
        lost: Mapping[str, LostTime] | None = None,
    ) -> None:
        """
        Args:
            samples: Of each number of windows, `Sample` of the splits train and validation; the
                grid `validated` is among them.
            names: Of the F window features.
            settings: Of the network and its losses.
            augmentation: What is changed in traces.
            seed: Of everything that is drawn.
            processes: Of a group, which this is.
            lost: Of traces with a fault where they lose time: by labels on track S (for events), by
                alignment on W.

        Raises:
            OptionError: A split has no trace.
        """
        self.settings, self.augmentation, self.seed = settings, augmentation, seed
        self.names = list(names)
        self.processes = processes or Processes()
        self.lost = dict(lost or {})
        self.grids = sorted(samples)
        self.train = {grid: _split(samples[grid], "train", settings) for grid in self.grids}
        self.validation = _split(samples[settings.validated], "validation", settings)
        self.module = self._make_module().to(self.processes.device)
        self.pseudo: dict[int, list[Array]] = {}
        self.round = -1
        self.order: list[tuple[int, ...]] = []

    def _make_module(self) -> V2Net:
        settings = self.settings
        torch.manual_seed(step_seed(self.seed, 0))
        shape = V2Shape(
            features=2 * len(self.names),
            types=len(TYPES),
            token_codes=TOKEN_CODES if settings.tokens else (),
            token_numbers=TOKEN_NUMBERS,
            name_width=settings.view.name_width,
            token_width=settings.token_width,
            token_layers=settings.token_layers,
            width=settings.width,
            heads=settings.heads,
            layers=settings.layers,
        )
        module = V2Net(shape, settings.dropout, pretrained=settings.pretrain > 0)
        if module.tokens is not None and not settings.pooled:
            module.tokens.leave_windows()
        features = np.concatenate(self.train[settings.validated].features)
        mean, scale = features.mean(axis=0), features.std(axis=0)
        module.set_statistics(torch.from_numpy(mean), torch.from_numpy(scale))
        self.scale = np.maximum(scale, 1e-3)
        return module

    @cached_property
    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for grid, traces in sorted(self.train.items()):
            digest.update(f"{grid} {len(traces.samples)}".encode())
            for sample, features in zip(traces.samples, traces.features, strict=True):
                digest.update(sample.id.encode() + features.tobytes() + sample.cost.tobytes())
        return {
            "v2": asdict(self.settings),
            "augmentation": asdict(self.augmentation),
            "data": digest.hexdigest(),
        }

    # --------------------------------------------------------------------------- targets

    @property
    def _is_known(self) -> bool:
        """Lost time is known from the beginning, by labels or by alignment."""
        weak = self.settings.track == "W" and self.settings.aligned and self.lost
        return self.settings.track == "S" or bool(weak)

    @cached_property
    def _known(self) -> dict[int, list[Targets]]:
        def target(sample: Any) -> Targets:
            if self.settings.track == "S":
                return supervised(sample)
            return aligned(sample, self.lost.get(sample.id))

        return {
            grid: [target(sample) for sample in traces.samples]
            for grid, traces in self.train.items()
        }

    @cached_property
    def _events(self) -> dict[int, list[Array]]:
        return {
            grid: [event_targets(each, self.lost.get(each.id)) for each in traces.samples]
            for grid, traces in self.train.items()
        }

    def _suspected(self, traces: Traces) -> list[int]:
        """Traces that may hold a fault, as far as the track knows."""
        every = range(len(traces.samples))
        return [i for i in every if self.settings.track == "Z" or traces.samples[i].label]

    def _first_scores(self, traces: Traces) -> list[Array]:
        """Of the suspected traces, from distances to twins and from an isolation forest."""
        suspected = self._suspected(traces)
        half = traces.features[0].shape[1] // 2
        values = [each[:, :half] for each in traces.features]
        places = {sample.id: i for i, sample in enumerate(traces.samples)}
        twins = {i: places.get(traces.samples[i].twin or "") for i in suspected}
        known = {i: twin for i, twin in twins.items() if twin is not None}
        share = 1.0 if self.settings.track == "Z" or not known else self.settings.forest
        far = {} if share == 1.0 else twin_distances(values, known)
        by_twin = dict(zip(far, ranks(list(far.values())), strict=True)) if far else {}
        if share == 0.0 and len(by_twin) == len(suspected):
            return [by_twin[i] for i in suspected]
        good = [i for i in range(len(values)) if i not in set(suspected)]
        scores = forest_scores(values, good or range(len(values)), self.seed)
        by_forest = ranks([scores[i] for i in suspected])
        return [
            share * odd + (1 - share) * by_twin.get(i, odd)
            for i, odd in zip(suspected, by_forest, strict=True)
        ]

    def _make_pseudo(self, current: int) -> None:
        """The scores of a round, and with them the targets; see `Learner.begin`."""
        if current == self.round:
            return
        for grid, traces in self.train.items():
            if current == 0:
                self.pseudo[grid] = self._first_scores(traces)
            else:
                every = self.logits(traces)
                said = [every[i] for i in self._suspected(traces)]
                self.pseudo[grid] = self_trained(self.pseudo[grid], said)
        self.round = current
        self._pseudo_targets = {grid: self._targets(grid) for grid in self.train}

    def _targets(self, grid: int) -> list[Targets]:
        traces, settings = self.train[grid], self.settings
        suspected = self._suspected(traces)
        found = pseudo_targets(self.pseudo[grid], settings.positive, settings.dropped)
        by_place = dict(zip(suspected, zip(*found, strict=True), strict=True))
        return [
            self._weak(sample, *by_place.get(i, (np.zeros(grid), np.ones(grid))))
            for i, sample in enumerate(traces.samples)
        ]

    def _weak(self, sample: Any, target: Array, weight: Array) -> Targets:
        """Targets of a trace whose windows nobody labelled; its type is that of the trace."""
        types = np.zeros((len(target), len(TYPES)), dtype=np.float32)
        if self.settings.track == "W" and sample.type in TYPES:
            types[:, TYPES.index(sample.type)] = target
        types_weight = weight[:, None] * np.ones_like(types) * (self.settings.track == "W")
        one = np.float32
        return Targets(
            target.astype(one), weight.astype(one), types, types_weight.astype(one), None
        )

    # --------------------------------------------------------------------------- loop.Learner

    def begin(self, epoch: int) -> None:
        if not self._is_known:
            self._make_pseudo(sum(epoch >= first for first in self.settings.rounds))
        rng = np.random.default_rng(step_seed(self.seed, epoch, 1))
        pairs = pairs_of(self.train[self.settings.validated].samples)
        self.order = [pairs[i] for i in rng.permutation(len(pairs))]

    def steps(self, epoch: int) -> int:
        pairs = len(pairs_of(self.train[self.settings.validated].samples))
        return -(-pairs // self.settings.batch)

    def loss(self, epoch: int, step: int) -> tuple[Tensor, float]:
        rng = np.random.default_rng(step_seed(self.seed, epoch, step, 2))
        grid = int(rng.choice(self.grids))
        size = self.settings.batch
        pairs = self.processes.share(self.order[step * size : (step + 1) * size])
        if not pairs:
            return torch.zeros((), device=self.processes.device), 0.0
        places = [place for pair in pairs for place in pair]
        batch, events = self._batch(grid, places, epoch)
        if epoch < self.settings.pretrain:
            hidden = rng.random(batch.features.shape[:2]) < self.settings.hidden
            place = torch.from_numpy(hidden).to(self.processes.device)
            error = self.module.reconstruction_error(batch.features, place)
            return error.sum(), float(len(places))
        scores = self.module(batch)
        targets = self._known if self._is_known else self._pseudo_targets
        labels = [float(self.train[grid].samples[place].label) for place in places]
        loss = self._losses(scores, [targets[grid][place] for place in places], labels)
        loss = loss + self.settings.rank * self._ranking(scores, targets[grid], pairs)
        if self.settings.events and scores.tokens is not None:
            loss = loss + self.settings.events * self._of_events(scores.tokens, events, batch)
        return loss, float(len(places))

    def _batch(self, grid: int, places: Sequence[int], epoch: int) -> tuple[WindowBatch, Tensor]:
        """And float32 `[N]` of their events: which are in lost time."""
        traces, features = self.train[grid], []
        tokens: list[TokenInputs | None] = []
        events = [np.zeros(0, dtype=np.float32)]
        for place in places:
            rng = np.random.default_rng(step_seed(self.seed, epoch, grid, place, 3))
            features.append(
                changed_features(
                    traces.features[place], self.names, self.scale, self.augmentation, rng
                )
            )
            found = traces.tokens[place]
            if found is None:
                tokens.append(None)
                continue
            changed, kept = changed_tokens(found, self.augmentation, rng)
            tokens.append(changed)
            events.append(self._events[grid][place][kept])
        device = self.processes.device
        batch = make_batch(features, tokens, device)
        return batch, torch.from_numpy(np.concatenate(events)).to(device)

    def _losses(
        self, scores: Scores, targets: Sequence[Targets], labels: Sequence[float]
    ) -> Tensor:
        """Summed over traces, each the mean over its windows."""
        settings, device = self.settings, self.processes.device

        def stacked(name: str) -> Tensor:
            return torch.from_numpy(np.stack([getattr(each, name) for each in targets])).to(device)

        target, weight = stacked("any"), stacked("weight")
        plain = F.binary_cross_entropy_with_logits(scores.any, target, reduction="none")
        miss = (target - scores.any.sigmoid()).abs().detach() ** settings.focus
        loss = (plain * miss * weight).mean(1).sum()
        of_types = F.binary_cross_entropy_with_logits(
            scores.types, stacked("types"), stacked("types_weight"), reduction="none"
        )
        loss = loss + settings.types * of_types.sum(2).mean(1).sum()
        if self._is_known:
            lost = stacked("severity")
            huber = F.smooth_l1_loss(scores.severity, lost, reduction="none", beta=0.1)
            huber = huber * (weight > 0)
            loss = loss + settings.severity * huber.mean(1).sum()
        if settings.track != "Z":
            label = torch.tensor(labels, device=device)
            of_traces = F.binary_cross_entropy_with_logits(scores.trace, label, reduction="sum")
            loss = loss + settings.trace * of_traces
        return loss

    def _ranking(
        self, scores: Scores, targets: Sequence[Targets], pairs: Sequence[tuple[int, ...]]
    ) -> Tensor:
        """Lost windows of a trace belong above its others, and above those of its twin."""
        device, first = self.processes.device, 0
        loss = torch.zeros((), device=device)
        for pair in pairs:
            logits = scores.any[first : first + len(pair)].flatten()
            target, weight = (
                torch.from_numpy(np.concatenate([getattr(targets[i], name) for i in pair])).to(
                    device
                )
                for name in ("any", "weight")
            )
            high, low = logits[target == 1], logits[(target == 0) & (weight == 1)]
            if len(high) and len(low):
                loss = loss + len(pair) * F.softplus(low[None, :] - high[:, None]).mean()
            first += len(pair)
        return loss

    def _of_events(self, logits: Tensor, targets: Tensor, batch: WindowBatch) -> Tensor:
        """Summed over traces, each the mean over its events."""
        assert batch.tokens is not None
        traces, windows = batch.features.shape[:2]
        trace = batch.tokens.window // windows
        count = torch.bincount(trace, minlength=traces).clamp(min=1)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return (losses / count[trace]).sum()

    def logits(self, traces: Traces, size: int = 16) -> list[Array]:
        """Of the windows of each trace, float32 `[W]`, as they are: nothing is changed."""
        self.module.eval()
        found: list[Array] = []
        with torch.no_grad():
            for first in range(0, len(traces.samples), size):
                part = slice(first, first + size)
                batch = make_batch(
                    traces.features[part], traces.tokens[part], self.processes.device
                )
                found += list(self.module(batch).any.cpu().numpy())
        return found

    def validate(self) -> dict[str, float]:
        samples = self.validation.samples
        return window_figures(
            self.logits(self.validation),
            [sample.positive for sample in samples],
            [sample.ignore for sample in samples],
        )

    def state(self) -> dict[str, Tensor]:
        found = {"round": torch.tensor(self.round)}
        for grid, scores in self.pseudo.items():
            found[f"pseudo.{grid}"] = torch.from_numpy(np.stack(scores))
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.round = int(state["round"])
        self.pseudo = {
            int(name.partition(".")[2]): list(value.numpy())
            for name, value in state.items()
            if name.startswith("pseudo.")
        }
        if self.pseudo:
            self._pseudo_targets = {grid: self._targets(grid) for grid in self.train}

    # --------------------------------------------------------------------------- weights

    def save(self, path: Path, fitted: Fitted) -> None:
        """The weights, with what is needed to use them."""
        logits = np.concatenate(self.logits(self.validation))
        clear = ~np.concatenate([sample.ignore for sample in self.validation.samples])
        positive = np.concatenate([sample.positive for sample in self.validation.samples])
        calibration = np.asarray(platt(logits[clear], positive[clear]))
        state = self.module.state_dict()
        arrays = {
            name: value.detach().cpu().numpy()
            for name, value in state.items()
            if not name.startswith("pretraining.")
        }
        about = {
            "scorer": "v2",
            "version": f"1{self.settings.track}",
            "shape": self.module.shape.to_dict(),
            "types": TYPES,
            "features": self.names,
            "cap": self.settings.tokens,
            "view": asdict(self.settings.view),
            "settings": {**self.identity, "seed": self.seed},
            "validation": fitted.best_figures() if fitted.records else {},
        }
        write_weights(path, {**arrays, "calibration": calibration}, about)


def _split(samples: Sequence[Any], split: str, settings: V2Settings) -> Traces:
    found = [sample for sample in samples if sample.split == split]
    if not found:
        raise OptionError(f"the data set has no trace in the split {split!r}")
    return Traces.of(found, settings.view)


def _lost(dataset: PathLike, settings: V2Settings) -> dict[str, LostTime]:
    """As far as the track knows it, and needs it."""
    if settings.track == "W" and settings.aligned:
        return load_lost(dataset)
    return load_labelled(dataset) if settings.track == "S" and settings.events else {}


def train(
    dataset: PathLike,
    out: PathLike,
    tables: Mapping[str, Any],
    *,
    seed: int = 0,
    resume: bool = False,
    minutes: float | None = None,
) -> Trained:
    """Trains `v2`; see `training.train`. `tables` has `[v2]`, `[augmentation]` and `[loop]`."""
    settings = take(V2Settings, tables, "v2")
    augmentation = take(Augmentation, tables, "augmentation")
    loop = take(LoopSettings, tables, "loop")
    learned_from = partial(
        load_samples, dataset, splits=("train", "validation"), tokens=settings.tokens
    )
    samples = {grid: learned_from(windows=grid) for grid in settings.grids}
    if settings.between:
        samples |= {g - 1: learned_from(windows=g, between=True) for g in settings.grids}
    lost = _lost(dataset, settings)
    with joined_processes() as group:
        learner = V2Learner(samples, feature_names(), settings, augmentation, seed, group, lost)
        return fit_and_save(
            learner, loop, out, seed=seed, resume=resume, minutes=minutes, processes=group
        )
