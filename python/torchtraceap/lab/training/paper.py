"""Trains `paper`: pairs of a trace with a fault and its twin, by the losses of the paper."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.writing import replacing
from torchtraceap.datasets.samples import load_samples
from torchtraceap.diagnosis.scoring.paper import (
    CELLS,
    UNKNOWN_PLATFORM,
    PaperConfig,
    TraceTokens,
    join_traces,
)
from torchtraceap.diagnosis.scoring.text_encoders import TextEncoder, text_encoder
from torchtraceap.diagnosis.scoring.v2 import squash
from torchtraceap.errors import OptionError
from torchtraceap.lab.training.figures import window_figures
from torchtraceap.lab.training.loop import Fitted, fit_and_save, step_seed
from torchtraceap.lab.training.paper_losses import PairWindows, PaperLosses
from torchtraceap.lab.training.paper_net import PaperNet, batch_of
from torchtraceap.lab.training.processes import Processes, joined_processes
from torchtraceap.lab.training.pseudo_labels import pseudo_targets, ranks, twin_distances
from torchtraceap.lab.training.result import Trained
from torchtraceap.lab.training.settings import LoopSettings, take
from torchtraceap.lab.training.v2_data import pairs_of

__all__ = ["PaperLearner", "PaperSettings", "train"]


@dataclass(frozen=True)
class PaperSettings:
    """`[paper]` in a file: the network's parts and sizes; `PaperConfig` says what they mean."""

    cell: str = "adapter+transformer+relation"
    """Of Table 5; one of `CELLS`."""
    text_encoder: str = "hash"
    width: int = 128
    layers: int = 6
    heads: int = 8
    feed_forward: int = 1024
    position: str = "clamped"
    cap: int = 128
    """Events of a window, in training and afterwards."""
    windows: int = 100
    batch: int = 8
    """Pairs in a step."""
    pairs: int = 0
    """Drawn anew for each epoch; 0: all."""

    def __post_init__(self) -> None:
        if self.cell not in CELLS:
            raise OptionError(f"[paper]: cell {self.cell!r} is none of {', '.join(CELLS)}")
        if min(self.windows, self.batch, self.cap) < 1 or self.pairs < 0:
            raise OptionError(f"[paper]: these settings make no sense: {self}")

    def config(self, platforms: tuple[str, ...], encoder: TextEncoder) -> PaperConfig:
        return PaperConfig(
            text_encoder=self.text_encoder,
            text_width=encoder.width,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            feed_forward=self.feed_forward,
            platforms=platforms,
            position=self.position,
            cap=self.cap,
            **CELLS[self.cell],
        )


class PaperLearner:
    """What the loop trains; see `loop.Learner`."""

    def __init__(
        self,
        samples: Sequence[Any],
        settings: PaperSettings,
        losses: PaperLosses,
        seed: int = 0,
        processes: Processes | None = None,
    ) -> None:
        """
        Args:
            samples: `Sample` of the splits train and validation on one grid, with tokens of the GPU
                alone.
            settings: Of the network.
            losses: Of a pair.
            seed: Of everything that is drawn.
            processes: Of a group, which this is.

        Raises:
            OptionError: A split has no trace, or no trace in "train" has its twin there.
        """
        self.settings, self.losses, self.seed = settings, losses, seed
        self.processes = processes or Processes()
        self.train = [sample for sample in samples if sample.split == "train"]
        self.validation = [sample for sample in samples if sample.split == "validation"]
        self.pairs = [pair for pair in pairs_of(self.train) if len(pair) == 2]
        if not self.pairs or not self.validation:
            raise OptionError('`paper` learns from pairs in "train", and needs a "validation"')
        self.events = {s.id: TraceTokens(s.tokens, s.device) for s in samples}
        self.encoder = text_encoder(settings.text_encoder)
        devices = sorted({sample.device for sample in self.train if sample.device})
        self.config = settings.config((UNKNOWN_PLATFORM, *devices), self.encoder)
        torch.manual_seed(step_seed(seed, 0))
        self.module = PaperNet(self.config).to(self.processes.device)
        self.order: list[tuple[int, ...]] = []

    @cached_property
    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for sample in self.train:
            tokens = self.events[sample.id].tokens
            digest.update(sample.id.encode() + tokens.duration_code.tobytes())
        return {
            "paper": asdict(self.settings),
            "losses": asdict(self.losses),
            "data": digest.hexdigest(),
        }

    @cached_property
    def _labels(self) -> dict[int, Tensor]:
        """Pseudo-labels of windows of traces with a fault, for the objective `twin`."""
        if self.losses.objective != "twin":
            return {}
        half = self.train[0].values.shape[1]
        values = [squash(s.values, s.zscores)[:, :half] for s in self.train]
        far = twin_distances(values, {pair[0]: pair[1] for pair in self.pairs})
        target, weight = pseudo_targets(ranks(list(far.values())), 0.08, 0.25)
        return {
            place: torch.from_numpy(np.where(counts > 0, one, np.nan).astype(np.float32))
            for place, one, counts in zip(far, target, weight, strict=True)
        }

    def begin(self, epoch: int) -> None:
        rng = np.random.default_rng(step_seed(self.seed, epoch, 1))
        self.order = [self.pairs[i] for i in rng.permutation(len(self.pairs))[: self._drawn]]

    @property
    def _drawn(self) -> int:
        return min(self.settings.pairs or len(self.pairs), len(self.pairs))

    def steps(self, epoch: int) -> int:
        return -(-self._drawn // self.settings.batch)

    def loss(self, epoch: int, step: int) -> tuple[Tensor, float]:
        size = self.settings.batch
        pairs = self.processes.share(self.order[step * size : (step + 1) * size])
        total = torch.zeros((), device=self.processes.device)
        if not pairs:
            return total, 0.0
        found = self._windows([self.train[place] for pair in pairs for place in pair])
        for i, (bad, _) in enumerate(pairs):
            told = self._labels.get(bad)
            marked = found[2 * i]._replace(labels=None if told is None else told.to(total.device))
            total = total + self.losses(found[2 * i + 1], marked)
        return total, float(len(pairs))

    def _windows(self, samples: Sequence[Any]) -> list[PairWindows]:
        inputs = join_traces([self.events[s.id] for s in samples], self.config, self.encoder)
        found = self.module(batch_of(inputs, str(self.processes.device)))
        lengths = np.diff(inputs.trace_offsets).tolist()
        parts = zip(found.scores.split(lengths), found.features.split(lengths), strict=True)
        return [PairWindows(scores, features) for scores, features in parts]

    def validate(self) -> dict[str, float]:
        return window_figures(
            self.logits(self.validation),
            [sample.positive for sample in self.validation],
            [sample.ignore for sample in self.validation],
        )

    def logits(self, samples: Sequence[Any], size: int = 8) -> list[Array]:
        """Of the windows of each trace, float32 `[W]`."""
        self.module.eval()
        found: list[Array] = []
        with torch.no_grad():
            for first in range(0, len(samples), size):
                parts = self._windows(samples[first : first + size])
                found += [torch.logit(part.scores, 1e-6).cpu().numpy() for part in parts]
        return found

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        pass

    def save(self, path: Path, fitted: Fitted) -> None:
        """The weights, as `scoring.paper.load` reads them."""
        import json

        from safetensors.numpy import save_file

        about = {
            **self.config.metadata(),
            "settings": json.dumps({**self.identity, "seed": self.seed}),
            "validation": json.dumps(fitted.best_figures()),
        }
        with replacing(path) as staged:
            save_file(self.module.arrays(), staged, metadata=about)


def train(
    dataset: PathLike,
    out: PathLike,
    tables: Mapping[str, Any],
    *,
    seed: int = 0,
    resume: bool = False,
    minutes: float | None = None,
) -> Trained:
    """Trains `paper`; see `training.train`. `tables` has `[paper]`, `[losses]` and `[loop]`."""
    settings = take(PaperSettings, tables, "paper")
    losses = take(PaperLosses, tables, "losses")
    loop = take(LoopSettings, tables, "loop")
    samples = load_samples(
        dataset,
        splits=("train", "validation"),
        windows=settings.windows,
        tokens=settings.cap,
        gpu_only=True,
    )
    with joined_processes() as group:
        learner = PaperLearner(samples, settings, losses, seed, group)
        return fit_and_save(
            learner, loop, out, seed=seed, resume=resume, minutes=minutes, processes=group
        )
