"""Steps that lose time by data: batches that come late, uploads from the wrong memory, and copies
between host and device. `lab/generation/faults.py` describes each fault by name.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from torchtraceap.lab.collection.workloads.models import Batch, StoredSamples, WholeBatches
from torchtraceap.lab.collection.workloads.steps import (
    PIECES,
    SITES,
    WORKERS,
    LayerStep,
    Step,
    register,
)

__all__: list[str] = []

_PREFETCHED = 2
_EPOCH = 2
"""Batches of a loader that is made anew for each epoch."""
_VALUES = 1 << 19
"""Values of a layer's output that are looked at, at level 1."""
_TARGETS = 96
"""Small tensors that come with a batch."""


# ------------------------------------------------------------------------- loading


@register("decode_in_main")
class _Loading(Step):
    cost = "fetches"
    parts = ("fetch",)
    levels = 3
    decode_here: ClassVar[bool] = True

    def prepare(self) -> None:
        passes = self.context.decode_passes
        self.data = StoredSamples(self.batches, passes, decode_here=self.decode_here)
        self.fetched = 0
        self.samples: Iterator[Batch] | None = self.begin()

    def begin(self) -> Iterator[Batch]:
        """Return the source of batches."""
        return iter(self.loader(0 if self.bad else self.context.workers))

    def loader(self, workers: int, *, persistent: bool = True) -> DataLoader[Any]:
        """Return a loader of decoded samples."""
        of_workers: dict[str, Any] = {
            "persistent_workers": persistent,
            "prefetch_factor": _PREFETCHED,
            "multiprocessing_context": WORKERS,
        }
        return DataLoader(
            self.data,
            batch_size=self.context.scale.batch,
            num_workers=workers,
            collate_fn=self.data.collate,
            pin_memory=self.context.on_gpu,
            **(of_workers if workers else {}),
        )

    def fetch(self) -> Batch:
        """Return the next batch of the loader."""
        self.data.passes = self.context.decode_passes * self.level
        self.fetched += 1
        return next(self.samples)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the worker processes, which end with the iterator."""
        self.samples = None


@register("collate_in_main")
class _CollateInMain(_Loading):
    decode_here = False


@register("one_slow_worker")
class _OneSlowWorker(_Loading):
    levels = 1

    def prepare(self) -> None:
        super().prepare()
        self.samples = None
        self.data.passes = 3 * self.context.decode_passes if self.bad else 1
        self.samples = iter(self.loader(1 if self.bad else self.context.workers))

    def fetch(self) -> Batch:
        return next(self.samples)  # type: ignore[arg-type]


@register("recreated_loader")
class _RecreatedLoader(_Loading):
    levels = 1

    def begin(self) -> Iterator[Batch]:
        return iter(self.loader(self.context.workers, persistent=not self.bad))

    def fetch(self) -> Batch:
        if self.bad and self.fetched and self.fetched % _EPOCH == 0:
            self.samples = None  # the old workers end before new ones start
            self.samples = self.begin()
        return super().fetch()


@register("locked_samples")
class _LockedSamples(_Loading):
    levels = 1

    def begin(self) -> Iterator[Batch]:
        if self.bad:
            self.data.lock = multiprocessing.get_context(WORKERS).Lock()
            self.data.passes = 3 * self.context.decode_passes
        return iter(self.loader(self.context.workers))

    def fetch(self) -> Batch:
        return next(self.samples)  # type: ignore[arg-type]


@register("generator_input")
class _GeneratorInput(_Loading):
    def begin(self) -> Iterator[Batch]:
        return self._generated() if self.bad else super().begin()

    def _generated(self) -> Iterator[Batch]:
        size, place = self.context.scale.batch, 0
        while True:
            batch = self.data.collate([self.data[place + i] for i in range(size)])
            place += size
            if self.context.on_gpu:
                batch = {key: value.pin_memory() for key, value in batch.items()}
            yield batch


@register("ready_batches")
class _ReadyBatches(_Loading):
    levels = 1

    def begin(self) -> Iterator[Batch]:
        workers = 0 if self.bad else self.context.workers
        of_workers = {"persistent_workers": True, "multiprocessing_context": WORKERS}
        return iter(
            DataLoader(
                WholeBatches(self.batches),
                batch_size=None,
                num_workers=workers,
                pin_memory=self.context.on_gpu,
                **(of_workers if workers else {}),
            )
        )


# ------------------------------------------------------------------------- no memory pin


class _Upload(Step):
    cost = "uploads"
    parts = ("upload",)

    def prepare(self) -> None:
        if not self.bad:
            super().prepare()

    def upload(self, batch: Batch) -> Batch:
        return self.blocking_upload(batch) if self.bad else super().upload(batch)


@register("pageable_workers")
class _PageableWorkers(_Upload):
    def prepare(self) -> None:
        self.loader: Any = iter(
            DataLoader(
                WholeBatches(self.batches),
                batch_size=None,
                num_workers=self.context.workers,
                persistent_workers=True,
                multiprocessing_context=WORKERS,
                pin_memory=self.context.on_gpu and not self.bad,
            )
        )

    def fetch(self) -> Batch:
        batch: Batch = next(self.loader)
        return batch

    def close(self) -> None:
        self.loader = None


@register("blocking_upload")
class _BlockingUpload(_Upload):
    def prepare(self) -> None:
        Step.prepare(self)


@register("upload_from_numpy")
class _UploadFromNumpy(_Upload):
    def blocking_upload(self, batch: Batch) -> Batch:
        arrays = {key: value.numpy() for key, value in batch.items()}
        device = self.context.device
        return {key: torch.from_numpy(array).to(device) for key, array in arrays.items()}


@register("uploads_by_sample")
class _UploadsBySample(_Upload):
    def blocking_upload(self, batch: Batch) -> Batch:
        device = self.context.device
        return {
            key: torch.cat([piece.to(device) for piece in value.chunk(PIECES)])
            for key, value in batch.items()
        }


@register("small_targets")
class _SmallTargets(_Upload):
    levels = 4

    def upload(self, batch: Batch) -> Batch:
        inputs = Step.upload(self, batch)
        targets = torch.arange(8.0 * _TARGETS * self.level)
        if self.bad:
            pieces = [piece.clone().to(self.context.device) for piece in targets.split(8)]
        else:
            packed = targets.pin_memory() if self.context.on_gpu else targets
            pieces = list(packed.to(self.context.device, non_blocking=True).split(8))
        self.targets = pieces
        return inputs

    def prepare(self) -> None:
        Step.prepare(self)


@register("small_constants")
class _SmallConstants(_Upload):
    def prepare(self) -> None:
        Step.prepare(self)
        self.constant = torch.tensor([0.5]).to(self.context.device)

    def upload(self, batch: Batch) -> Batch:
        inputs = Step.upload(self, batch)
        if self.bad:
            self.constant = torch.tensor([0.5]).to(self.context.device, non_blocking=True)
        return inputs


# ------------------------------------------------------------------------- copies in the step


class _Layers(LayerStep):
    """A step that keeps the latest statistics of layers."""

    cost = "copies"

    def prepare(self) -> None:
        self.statistics: list[Any] = []
        super().prepare()

    def keep(self, value: Any) -> None:
        self.statistics.append(value)
        del self.statistics[: -2 * SITES]


@register("activations_to_host")
class _ActivationsToHost(_Layers):
    levels = 4

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        part = x.detach().flatten()[: _VALUES * self.level]
        self.keep((part.cpu() if self.bad else part).abs().amax())
        return x


@register("layers_on_host")
class _LayersOnHost(_Layers):
    def at_layer(self, place: int, x: Tensor) -> Tensor:
        if not self.bad:
            return x.clamp(-1e4, 1e4)
        return x.cpu().clamp(-1e4, 1e4).to(x.device)


@register("item_per_layer")
class _ItemPerLayer(_Layers):
    levels = 8

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        for _ in range(self.level):
            value = x.detach().abs().amax()
            self.keep(value.item() if self.bad else value)
        return x


@register("metrics_in_numpy")
class _MetricsInNumpy(Step):
    cost = "copies"
    parts = ("finish",)
    levels = 8

    def finish(self, scores: Tensor) -> None:
        pieces = scores.flatten(1)[:, :4096].chunk(4 * self.level)
        for piece in pieces:
            if self.bad:
                array = piece.float().cpu().numpy()
                self.best = torch.from_numpy(array.argsort(1)[:, -8:].copy()).to(scores.device)
            else:
                self.best = piece.argsort(1)[:, -8:]


@register("average_on_host")
class _AverageOnHost(Step):
    cost = "copies"
    parts = ("finish",)

    def prepare(self) -> None:
        super().prepare()
        weights = [p.detach() for p in self.model.parameters()]
        self.average = [w.cpu().clone() if self.bad else w.clone() for w in weights]

    def finish(self, scores: Tensor) -> None:
        weights: list[Tensor] = [p.detach() for p in self.model.parameters()]
        if self.bad:
            weights = [w.cpu() for w in weights]
        torch._foreach_lerp_(self.average, weights, 0.01)


@register("offloaded_activations")
class _OffloadedActivations(Step):
    cost = "copies"
    parts = ("forward", "backward")

    def forward(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        if not self.bad:
            return super().forward(inputs)

        def pack(x: Tensor) -> tuple[Tensor, torch.device]:
            return x.cpu() if x.device.type != "cpu" else x.clone(), x.device

        def unpack(kept: tuple[Tensor, torch.device]) -> Tensor:
            return kept[0].to(kept[1])

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return super().forward(inputs)


@register("outputs_as_lists")
class _OutputsAsLists(Step):
    cost = "copies"
    parts = ("finish",)
    levels = 4

    def finish(self, scores: Tensor) -> None:
        rows = scores.flatten(1)[:, : 256 * self.level]
        if self.bad:
            self.above = [sum(value > 0 for value in row.tolist()) for row in rows]
        else:
            self.above = (rows > 0).sum(1)


@register("one_item")
class _OneItem(Step):
    cost = "copies"
    parts = ("finish",)

    def finish(self, scores: Tensor) -> None:
        last = getattr(self, "last", None)
        self.last = scores.mean()
        if self.bad and last is not None:
            self.logged = last.item()


@register("outputs_home")
class _OutputsHome(Step):
    cost = "copies"
    parts = ("finish",)

    def finish(self, scores: Tensor) -> None:
        part = scores.flatten()[:4096]
        self.kept = part.to("cpu", non_blocking=True) if self.bad else part.clone()
