"""Samples on the host: compressed ones, whose reading costs real work, and ready batches."""

from __future__ import annotations

import ctypes
import zlib
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchtraceap.lab.collection.workloads.models import Batch

__all__ = ["StoredSamples", "WholeBatches"]

_EPOCH = 1_000_000
"""Samples: no epoch ends while a step runs."""
_QUANTUM = 32.0
"""Stored samples are bytes; values are multiples of a part of one."""


class StoredSamples(Dataset[Any]):
    """Compressed samples, as image files are; reading one costs the host real work."""

    def __init__(self, batches: list[Batch], passes: int, *, decode_here: bool = True) -> None:
        self.passes, self.decode_here = passes, decode_here
        self.lock: Any = None
        """Held while a sample is decoded, where there is one."""
        self._layout = [(key, value.dtype, value.shape[1:]) for key, value in batches[0].items()]
        self._blobs = [
            [_stored(value[row]) for value in batch.values()]
            for batch in batches
            for row in range(len(next(iter(batch.values()))))
        ]

    def __len__(self) -> int:
        return _EPOCH

    def __getitem__(self, index: int) -> Any:
        blobs = self._blobs[index % len(self._blobs)]
        if not self.decode_here:
            return blobs
        if self.lock is None:
            return self.decode(blobs)
        with self.lock:
            return self.decode(blobs)

    def decode(self, blobs: list[bytes]) -> Batch:
        """One sample."""
        sample: Batch = {}
        for blob, (key, dtype, shape) in zip(blobs, self._layout, strict=True):
            for _ in range(self.passes):
                data = bytearray(zlib.decompress(blob))
            if dtype.is_floating_point:
                value = torch.frombuffer(data, dtype=torch.int8).to(dtype).div_(_QUANTUM)
            else:
                value = torch.frombuffer(data, dtype=dtype)
            sample[key] = value.reshape(shape)
        return sample

    def collate(self, samples: list[Any]) -> Batch:
        """A batch of decoded samples, or of others, which are decoded here."""
        decoded = samples if self.decode_here else [self.decode(blobs) for blobs in samples]
        return {key: torch.stack([s[key] for s in decoded]) for key, _, _ in self._layout}


def _stored(value: Tensor) -> bytes:
    if value.is_floating_point():
        value = (value * _QUANTUM).round().clamp(-127, 127).to(torch.int8)
    value = value.contiguous()
    data = ctypes.string_at(value.data_ptr(), value.numel() * value.element_size())
    return zlib.compress(data, 1)


class WholeBatches(Dataset[Batch]):
    """Ready batches in ordinary memory; fetching one costs next to nothing."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return _EPOCH

    def __getitem__(self, index: int) -> Batch:
        return self.batches[index % len(self.batches)]
