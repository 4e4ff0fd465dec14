"""Bytes that copies move, by direction."""

from __future__ import annotations

import numpy as np

from torchtraceap._core import CopyDirection
from torchtraceap.contracts.measures.events import CountedEvents, UnknownMeasureError, host_times
from torchtraceap.tables.gpu.copies import Copies
from torchtraceap.trace.ranks import RankTrace

__all__ = ["copied_bytes", "d2h_bytes", "h2d_bytes"]


def h2d_bytes(part: RankTrace) -> CountedEvents:
    """Return the bytes copied from the host to the GPU."""
    return _bytes(part, CopyDirection.HOST_TO_DEVICE)


def d2h_bytes(part: RankTrace) -> CountedEvents:
    """Return the bytes copied from the GPU to the host."""
    return _bytes(part, CopyDirection.DEVICE_TO_HOST)


def copied_bytes(part: RankTrace) -> CountedEvents:
    """Return the bytes of all copies."""
    return _bytes(part, None)


def _bytes(part: RankTrace, direction: CopyDirection | None) -> CountedEvents:
    if not len(part.tree.gpu_rows):
        raise UnknownMeasureError(
            "no GPU event is recorded, and copies with their sizes are GPU events; record with "
            "ProfilerActivity.CUDA, on a machine with a GPU"
        )
    copies = Copies(part)
    codes = copies.direction.codes
    chosen = np.flatnonzero(codes != 0 if direction is None else codes == direction)
    if direction is not None and (unknown := int((codes == CopyDirection.UNKNOWN).sum())):
        raise UnknownMeasureError(f"the direction of {unknown} copies is not recorded")
    sizes = copies.bytes[chosen]
    if (unsized := int(np.isnan(sizes).sum())) > 0:
        raise UnknownMeasureError(f"the sizes of {unsized} copies are not recorded")
    rows = copies.events.rows[chosen]
    order = np.argsort(host_times(part, rows), kind="stable")
    return CountedEvents(part, rows[order], sizes[order].astype(np.int64))
