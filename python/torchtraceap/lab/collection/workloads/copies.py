"""Steps that copy too much between host and device, or from the wrong memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from torchtraceap.lab.collection.workloads.models import Batch
from torchtraceap.lab.collection.workloads.samples import WholeBatches
from torchtraceap.lab.collection.workloads.steps import PIECES, SITES, WORKERS, Step, register

__all__: list[str] = []

_VALUES = 1 << 19
"""Of a layer's output that are looked at, at level 1."""
_TARGETS = 96
"""Small tensors that come with a batch."""


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
    """DataLoader workers with pin_memory=False and a blocking copy to the device."""

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
    """Pinned memory, but a blocking copy on the stream that computes."""

    def prepare(self) -> None:
        Step.prepare(self)


@register("upload_from_numpy")
class _UploadFromNumpy(_Upload):
    """Arrays in ordinary host memory, copied to the device when they are needed."""

    def blocking_upload(self, batch: Batch) -> Batch:
        arrays = {key: value.numpy() for key, value in batch.items()}
        device = self.context.device
        return {key: torch.from_numpy(array).to(device) for key, array in arrays.items()}


@register("uploads_by_sample")
class _UploadsBySample(_Upload):
    """Every few samples copied to the device on their own from ordinary host memory."""

    def blocking_upload(self, batch: Batch) -> Batch:
        device = self.context.device
        return {
            key: torch.cat([piece.to(device) for piece in value.chunk(PIECES)])
            for key, value in batch.items()
        }


@register("small_targets")
class _SmallTargets(_Upload):
    """Targets as many small tensors, each copied to the device on its own."""

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
    """A constant of a few bytes from ordinary host memory in every step, as in its twin's setup."""

    def prepare(self) -> None:
        Step.prepare(self)
        self.constant = torch.tensor([0.5]).to(self.context.device)

    def upload(self, batch: Batch) -> Batch:
        inputs = Step.upload(self, batch)
        if self.bad:
            self.constant = torch.tensor([0.5]).to(self.context.device, non_blocking=True)
        return inputs


# ------------------------------------------------------------------------- copies in the step


class _Layers(Step):
    """Something at the outputs of some layers."""

    cost = "copies"
    parts = ("layer",)

    def prepare(self) -> None:
        super().prepare()
        self.statistics: list[Any] = []
        self.hook_layers(self._hook)

    def _hook(self, place: int, x: Tensor) -> Tensor:
        with self.marked("layer"):
            x = self.at_layer(place, x)
        del self.statistics[: -2 * SITES]
        return x

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        """What goes on in the layer's place."""
        raise NotImplementedError


@register("activations_to_host")
class _ActivationsToHost(_Layers):
    """Activations copied to the host after layers, for statistics."""

    levels = 4

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        part = x.detach().flatten()[: _VALUES * self.level]
        self.statistics.append((part.cpu() if self.bad else part).abs().amax())
        return x


@register("layers_on_host")
class _LayersOnHost(_Layers):
    """A function of layers' outputs that is computed on the host, with copies back and forth."""

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        if not self.bad:
            return x.clamp(-1e4, 1e4)
        return x.cpu().clamp(-1e4, 1e4).to(x.device)


@register("item_per_layer")
class _ItemPerLayer(_Layers):
    """A value read by `.item()` after layers."""

    levels = 8

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        for _ in range(self.level):
            value = x.detach().abs().amax()
            self.statistics.append(value.item() if self.bad else value)
        return x


@register("metrics_in_numpy")
class _MetricsInNumpy(Step):
    """A few samples' scores at a time copied to the host and ranked by NumPy."""

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
    """The running average of the weights kept on the host: all weights copied in every step."""

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
    """What the backward pass needs is kept in the host's ordinary memory."""

    cost = "copies"
    parts = ("forward", "backward")

    def forward(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        if not self.bad:
            return super().forward(inputs)
        with torch.autograd.graph.saved_tensors_hooks(_packed, _unpacked):
            return super().forward(inputs)


def _packed(x: Tensor) -> tuple[Tensor, torch.device]:
    return x.cpu() if x.device.type != "cpu" else x.clone(), x.device


def _unpacked(kept: tuple[Tensor, torch.device]) -> Tensor:
    return kept[0].to(kept[1])


@register("outputs_as_lists")
class _OutputsAsLists(Step):
    """Scores taken apart as Python lists."""

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
    """One value read at the end of each step, as for a log, one step late."""

    cost = "copies"
    parts = ("finish",)

    def finish(self, scores: Tensor) -> None:
        last = getattr(self, "last", None)
        self.last = scores.mean()
        if self.bad and last is not None:
            self.logged = last.item()


@register("outputs_home")
class _OutputsHome(Step):
    """Some outputs copied to pinned memory of the host, without waiting."""

    cost = "copies"
    parts = ("finish",)

    def finish(self, scores: Tensor) -> None:
        part = scores.flatten()[:4096]
        self.kept = part.to("cpu", non_blocking=True) if self.bad else part.clone()
