"""Train `v2`: losses, pseudo-labels, validation, and the file of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from torchtraceap.core import Array, PathLike
from torchtraceap.datasets import TYPES, Sample, load_samples
from torchtraceap.diagnosis import TOKEN_CODES, TOKEN_NUMBERS, TokenInputs, TokenView, write_weights
from torchtraceap.errors import OptionError
from torchtraceap.lab.training.figures import clear_windows, platt
from torchtraceap.lab.training.loop import Fitted, PairLearner, Processes, fit_and_save, step_seed
from torchtraceap.lab.training.settings import LoopSettings, RunOptions, Trained, take
from torchtraceap.lab.training.v2_data import (
    Augmentation,
    Targets,
    Traces,
    aligned_targets,
    augment_features,
    augment_tokens,
    event_targets,
    make_batch,
    pairs_of,
    supervised_targets,
)
from torchtraceap.lab.training.v2_net import Scores, TokenBatch, V2Net, V2Shape
from torchtraceap.lab.training.weak_labels import (
    LostTime,
    forest_scores,
    load_labeled,
    load_lost,
    pseudo_targets,
    ranks,
    twin_distances,
)
from torchtraceap.tables import feature_names

__all__ = ["V2Learner", "V2Settings", "train"]

TRACKS = ("S", "W", "Z")
_TRACES_AT_ONCE = 16  # without gradients


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
    """Exponent of the focal loss: windows that are clear already count less by it."""
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
    """Tracks W and Z: the part of the suspected windows that is taken as positive."""
    dropped: float = 0.3
    """The part of them up to which windows are left out."""
    forest: float = 0.0
    """Weight of the isolation forest beside the distance to the twin."""
    rounds: tuple[int, ...] = (4, 8)
    """Epochs before which pseudo-labels are made anew from what the network says."""

    def __post_init__(self) -> None:
        if self.track not in TRACKS:
            raise OptionError(f"[v2]: track {self.track!r} is none of {', '.join(TRACKS)}")
        if self.validated not in self.grids or min(self.grids) < 2:
            raise OptionError("[v2]: `validated` has to be one of `grids`, of 2 windows or more")
        smallest = min(self.batch, self.layers, self.heads)
        if self.width % self.heads or self.tokens < 0 or smallest < 1:
            raise OptionError(f"[v2]: these sizes make no sense: {self}")
        if not 0 < self.positive <= self.dropped < 1 or not 0 <= self.forest <= 1:
            raise OptionError("[v2]: 0 < positive <= dropped < 1 and 0 <= forest <= 1 have to hold")
        if not 0 < self.hidden < 1 or self.pretrain < 0:
            raise OptionError("[v2]: 0 < hidden < 1 and 0 <= pretrain have to hold")

    @property
    def view(self) -> TokenView:
        return TokenView(self.names, self.relative)


class V2Learner(PairLearner):
    """The network `v2` with its data, a `loop.Learner`.

    Args:
        samples: By number of windows, traces of the splits train and validation; the grid
            `validated` is among them.
        names: Names of the F window features.
        settings: Settings of the network and its losses.
        augmentation: The spread of changes of traces.
        seed: Seed of everything that is drawn.
        processes: The group of processes, and which one this is.
        lost: Times that traces with a fault lose: by labels on track S (for events), by alignment
            on W.

    Raises:
        OptionError: A split has no trace.
    """

    module: V2Net

    def __init__(
        self,
        samples: Mapping[int, Sequence[Sample]],
        names: Sequence[str],
        settings: V2Settings,
        augmentation: Augmentation,
        seed: int = 0,
        processes: Processes | None = None,
        lost: Mapping[str, LostTime] | None = None,
    ) -> None:
        self.settings, self.augmentation = settings, augmentation
        self.names = list(names)
        self.lost = dict(lost or {})
        self.grids = sorted(samples)
        self.train = {grid: _split(samples[grid], "train", settings) for grid in self.grids}
        self.held_out = _split(samples[settings.validated], "validation", settings)
        super().__init__(
            pairs_of(self.train[settings.validated].samples),
            self.held_out.samples,
            batch=settings.batch,
            seed=seed,
            processes=processes,
        )
        self.module = self._make_module().to(self.processes.device)
        self.pseudo: dict[int, list[Array]] = {}
        self.round = -1

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
        return {
            grid: [
                supervised_targets(sample)
                if self.settings.track == "S"
                else aligned_targets(sample, self.lost.get(sample.id))
                for sample in traces.samples
            ]
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
        """Return scores of the suspected traces, from distances to twins and an isolation
        forest."""
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

    def _targets(self, grid: int) -> list[Targets]:
        """Return targets from pseudo-labels; the type of a trace is that of its windows."""
        traces, settings = self.train[grid], self.settings
        labels = pseudo_targets(self.pseudo[grid], settings.positive, settings.dropped)
        by_place = dict(zip(self._suspected(traces), zip(*labels, strict=True), strict=True))
        has_types = settings.track == "W"
        found = []
        for i, sample in enumerate(traces.samples):
            target, weight = by_place.get(i, (np.zeros(grid), np.ones(grid)))
            types = np.zeros((len(target), len(TYPES)), dtype=np.float32)
            if has_types and sample.type in TYPES:
                types[:, TYPES.index(sample.type)] = target
            types_weight = (weight[:, None] * np.ones_like(types) * has_types).astype(np.float32)
            found.append(
                Targets(
                    any=target.astype(np.float32),
                    weight=weight.astype(np.float32),
                    types=types,
                    types_weight=types_weight,
                    severity=None,
                )
            )
        return found

    # --------------------------------------------------------------------------- loop.Learner

    def begin(self, epoch: int) -> None:
        """Draw the pairs of an epoch, and make pseudo-labels where a new round begins."""
        current = sum(epoch >= first for first in self.settings.rounds)
        if not self._is_known and current != self.round:
            for grid, traces in self.train.items():
                if current == 0:
                    self.pseudo[grid] = self._first_scores(traces)
                    continue
                every = self.logits(traces)
                said = ranks([every[i] for i in self._suspected(traces)])
                before = ranks(self.pseudo[grid])
                self.pseudo[grid] = [(a + b) / 2 for a, b in zip(before, said, strict=True)]
            self.round = current
            self._pseudo_targets = {grid: self._targets(grid) for grid in self.train}
        super().begin(epoch)

    def loss(self, epoch: int, step: int) -> tuple[Tensor, float]:
        rng = np.random.default_rng(step_seed(self.seed, epoch, step, 2))
        grid = int(rng.choice(self.grids))
        pairs = self.share(step)
        if not pairs:
            return torch.zeros((), device=self.processes.device), 0.0
        places = [place for pair in pairs for place in pair]
        features, tokens, events = self._batch(grid, places, epoch)
        if epoch < self.settings.pretrain:
            hidden = rng.random(features.shape[:2]) < self.settings.hidden
            place = torch.from_numpy(hidden).to(self.processes.device)
            error = self.module.reconstruction_error(features, place)
            return error.sum(), float(len(places))
        scores = self.module(features, tokens)
        targets = self._known if self._is_known else self._pseudo_targets
        labels = [float(self.train[grid].samples[place].label) for place in places]
        loss = self._losses(scores, [targets[grid][place] for place in places], labels)
        loss = loss + self.settings.rank * self._ranking(scores, targets[grid], pairs)
        if self.settings.events and tokens is not None and scores.tokens is not None:
            # The mean over the events of each trace, summed over traces.
            trace = tokens.window // features.shape[1]
            count = torch.bincount(trace, minlength=len(features)).clamp(min=1)
            losses = F.binary_cross_entropy_with_logits(scores.tokens, events, reduction="none")
            loss = loss + self.settings.events * (losses / count[trace]).sum()
        return loss, float(len(places))

    def _batch(
        self, grid: int, places: Sequence[int], epoch: int
    ) -> tuple[Tensor, TokenBatch | None, Tensor]:
        """Return features and tokens, and float32 `[N]`: 1 for the events that are in lost time."""
        traces, features = self.train[grid], []
        tokens: list[TokenInputs | None] = []
        events = [np.zeros(0, dtype=np.float32)]
        for place in places:
            rng = np.random.default_rng(step_seed(self.seed, epoch, grid, place, 3))
            features.append(
                augment_features(
                    traces.features[place], self.names, self.scale, self.augmentation, rng
                )
            )
            found = traces.tokens[place]
            if found is None:
                tokens.append(None)
                continue
            changed, kept = augment_tokens(found, self.augmentation, rng)
            tokens.append(changed)
            events.append(self._events[grid][place][kept])
        device = self.processes.device
        batch = make_batch(features, tokens, device)
        return *batch, torch.from_numpy(np.concatenate(events)).to(device)

    def _losses(
        self, scores: Scores, targets: Sequence[Targets], labels: Sequence[float]
    ) -> Tensor:
        """Return losses summed over traces, each the mean over its windows."""
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
        """Return the loss of order: lost windows of a trace belong above its others, and above
        those of its twin."""
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

    def logits(self, traces: Traces) -> list[Array]:
        """Return the logits of windows without any change, float32 `[W]` of each trace."""
        self.module.eval()
        found: list[Array] = []
        with torch.no_grad():
            for first in range(0, len(traces.samples), _TRACES_AT_ONCE):
                part = slice(first, first + _TRACES_AT_ONCE)
                batch = make_batch(
                    traces.features[part], traces.tokens[part], self.processes.device
                )
                found += list(self.module(*batch).any.cpu().numpy())
        return found

    def validation_logits(self) -> list[Array]:
        return self.logits(self.held_out)

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
        """Write the weights, with what is needed to use them."""
        clear = clear_windows(self.validation_logits(), self.validation)
        arrays = {
            name: value.detach().cpu().numpy()
            for name, value in self.module.state_dict().items()
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
        write_weights(path, {**arrays, "calibration": np.asarray(platt(*clear))}, about)


def _split(samples: Sequence[Sample], split: str, settings: V2Settings) -> Traces:
    found = [sample for sample in samples if sample.split == split]
    if not found:
        raise OptionError(f"the data set has no trace in the split {split!r}")
    return Traces.of(found, settings.view)


def train(
    dataset: PathLike, out: PathLike, tables: Mapping[str, Any], **run: Unpack[RunOptions]
) -> Trained:
    """Train `v2`; see `training.train`. `tables` has `[v2]`, `[augmentation]` and `[loop]`."""
    settings = take(V2Settings, tables, "v2")
    augmentation = take(Augmentation, tables, "augmentation")
    loop = take(LoopSettings, tables, "loop")
    learned_from = partial(
        load_samples, dataset, splits=("train", "validation"), tokens=settings.tokens
    )
    samples = {grid: learned_from(windows=grid) for grid in settings.grids}
    if settings.between:
        samples |= {g - 1: learned_from(windows=g, between=True) for g in settings.grids}
    lost: dict[str, LostTime] = {}
    if settings.track == "W" and settings.aligned:
        lost = load_lost(dataset)
    elif settings.track == "S" and settings.events:
        lost = load_labeled(dataset)
    return fit_and_save(
        lambda group: V2Learner(
            samples, feature_names(), settings, augmentation, run["seed"], group, lost
        ),
        loop,
        out,
        **run,
    )
