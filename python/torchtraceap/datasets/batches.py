"""A data set for torch, a trace at a time or in batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from torchtraceap.core.aliases import PathLike
from torchtraceap.datasets.samples import Sample, load_samples
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.tables.windows import Tokens

__all__ = ["Batch", "EventBatch", "WindowDataset", "collate", "load", "loader"]

_COLUMNS = ("kind", "class_code", "flags", "start_ns", "dur_ns", "position", "delay_code",
            "duration_code", "stream", "stream_role", "bytes", "grid_blocks", "queue_depth",
            "stream_gap_ns", "launch_dur_ns")  # fmt: skip
_NAMES = ("name", "cpu_name")


@dataclass(frozen=True)
class EventBatch:
    """Events of all windows of a batch behind each other, without padding."""

    offsets: Tensor
    """int64 `[B * W + 1]`: where the events of each window begin."""
    columns: dict[str, Tensor]
    """`[n]` each, by the names of `Tokens`: int64, and float32 for `position`; `name` and
    `cpu_name` are indices of `names`."""
    names: tuple[str, ...]
    """Canonical names of the whole batch."""


@dataclass(frozen=True)
class Batch:
    """B traces of W windows; T types, F features."""

    ids: tuple[str, ...]
    values: Tensor
    """float32 `[B, W, F]`."""
    zscores: Tensor
    """float32 `[B, W, F]`."""
    evidence: Tensor
    """float32 `[B, W, T + 1]`."""
    cost: Tensor
    """float32 `[B, W, T]`."""
    positive: Tensor
    """bool `[B, W]`."""
    ignore: Tensor
    """bool `[B, W]`."""
    label: Tensor
    """bool `[B]`: the trace has a fault."""
    events: EventBatch | None


class WindowDataset(Dataset[Sample]):
    """Samples by number, as torch's loaders ask for them."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = tuple(samples)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> Sample:
        return self.samples[place]


def load(
    dataset: PathLike,
    *,
    splits: Iterable[str] | None = None,
    windows: int = 100,
    tokens: int = 0,
    jobs: int = 1,
) -> WindowDataset:
    """The traces of a data set for torch; see `load_samples` for the arguments and errors."""
    return WindowDataset(
        load_samples(dataset, splits=splits, windows=windows, tokens=tokens, jobs=jobs)
    )


def loader(
    dataset: WindowDataset,
    *,
    batch: int = 8,
    shuffle: bool = False,
    seed: int = 0,
    workers: int = 0,
) -> DataLoader[Batch]:
    """Batches of traces.

    Args:
        dataset: The result of `load`.
        batch: Traces of a batch; the last one may have fewer.
        shuffle: Draw a new order for each epoch.
        seed: The same gives the same orders, however many workers there are.
        workers: Processes that put batches together; 0: none.

    Raises:
        OptionError: A number that makes no sense.
    """
    if batch < 1 or workers < 0:
        raise OptionError(f"batches of {batch} traces by {workers} workers make no sense")
    return DataLoader(
        dataset,
        batch_size=batch,
        shuffle=shuffle,
        num_workers=workers,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(seed),
    )


def collate(samples: Sequence[Sample]) -> Batch:
    """One batch of samples that have the same number of windows.

    Raises:
        SchemaError: They have not, or only some have events.
    """
    if len({len(sample.positive) for sample in samples}) > 1:
        raise SchemaError("traces of a batch need the same number of windows")
    events = [sample.tokens for sample in samples if sample.tokens is not None]
    if events and len(events) < len(samples):
        raise SchemaError("either all traces of a batch have events, or none")
    return Batch(
        ids=tuple(sample.id for sample in samples),
        values=_stack(samples, "values"),
        zscores=_stack(samples, "zscores"),
        evidence=_stack(samples, "evidence"),
        cost=_stack(samples, "cost"),
        positive=_stack(samples, "positive"),
        ignore=_stack(samples, "ignore"),
        label=torch.tensor([sample.label for sample in samples]),
        events=_events(events) if events else None,
    )


def _stack(samples: Sequence[Sample], name: str) -> Tensor:
    return torch.from_numpy(np.stack([getattr(sample, name) for sample in samples]))


def _events(found: Sequence[Tokens]) -> EventBatch:
    lengths = [np.diff(tokens.offsets.astype(np.int64)) for tokens in found]
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.concatenate(lengths))])
    names = dict.fromkeys(name for tokens in found for name in tokens.names)
    places = {name: place for place, name in enumerate(names)}
    # The number of each name of a trace in the batch.
    renumbered = [np.array([places[name] for name in tokens.names], np.int64) for tokens in found]
    columns: dict[str, Tensor] = {}
    for name in (*_COLUMNS, *_NAMES):
        parts = [getattr(tokens, name) for tokens in found]
        if name in _NAMES:
            parts = [own[part] for own, part in zip(renumbered, parts, strict=True)]
        joined = np.concatenate(parts)
        floats = joined.dtype.kind == "f"
        columns[name] = torch.from_numpy(joined if floats else joined.astype(np.int64))
    return EventBatch(torch.from_numpy(offsets), columns, tuple(places))
