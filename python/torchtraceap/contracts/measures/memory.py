"""The most memory that the caching allocator had handed out, from its `[memory]` events."""

from __future__ import annotations

import numpy as np

from torchtraceap.contracts.measures.events import CountedEvents, UnknownMeasureError
from torchtraceap.tables.gpu.memory import MemoryEvents
from torchtraceap.trace.ranks import RankTrace

__all__ = ["peak_allocated_bytes"]


def peak_allocated_bytes(part: RankTrace) -> CountedEvents:
    """Return the bytes allocated on one device after each change; on the host if no other device
    has events."""
    events = MemoryEvents(part)
    if not len(events.rows):
        raise UnknownMeasureError(
            "the trace has no [memory] events; record it with profile_memory=True"
        )
    types = events.device_type.to_list()
    is_host = np.array([kind == "cpu" for kind in types], dtype=bool)
    chosen = is_host if is_host.all() else ~is_host
    known = ~np.ma.getmaskarray(events.allocated)
    if not known[chosen].all():
        raise UnknownMeasureError(
            "the trace says how much memory was taken, and not how much was held; torch says so "
            "since 1.12"
        )
    rows = events.rows[chosen].astype(np.int64)
    held = np.ma.getdata(events.allocated)[chosen].astype(np.int64)
    note = "of the host's memory, as no other device has events" if is_host.all() else ""
    return CountedEvents(part, rows, held, is_level=True, note=note)
