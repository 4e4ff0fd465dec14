"""Steps whose batches come late: single-process data loading."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any, ClassVar

from torch.utils.data import DataLoader

from torchtraceap.lab.collection.workloads.models import Batch
from torchtraceap.lab.collection.workloads.samples import StoredSamples, WholeBatches
from torchtraceap.lab.collection.workloads.steps import WORKERS, Step, register

__all__: list[str] = []

_PREFETCHED = 2
_EPOCH = 2
"""Batches, of a loader that is made anew for each."""


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
        """The source of batches."""
        return iter(self.loader(0 if self.bad else self.context.workers))

    def loader(self, workers: int, *, persistent: bool = True) -> DataLoader[Any]:
        """Of decoded samples."""
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
        """The next of the loader."""
        self.data.passes = self.context.decode_passes * self.level
        self.fetched += 1
        return next(self.samples)  # type: ignore[arg-type]

    def close(self) -> None:
        """The worker processes end with the iterator."""
        self.samples = None


@register("decode_in_main")
class _DecodeInMain(_Loading):
    """num_workers=0: the training process decodes every sample itself."""


@register("collate_in_main")
class _CollateInMain(_Loading):
    """num_workers=0 with a collate function that decodes the whole batch."""

    decode_here = False


@register("one_slow_worker")
class _OneSlowWorker(_Loading):
    """One worker, which is slower than the training step."""

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
    """Worker processes that are started anew for every short epoch."""

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
    """Samples that only one worker at a time may decode."""

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
    """A Python generator in the training process that makes the batches."""

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
    """num_workers=0, and nothing to do: the batches are there."""

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
