"""The savings from fixing a broken limit: the run is replayed with the fix (docs/simulation.md).

Note [Fixes of idle time]: why a GPU idles, or a step takes long, the rules tell. Of a limit on that
the fixes of the findings that are present are tried; where there are none, those of what usually
is the cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torchtraceap.contracts.measures.vocabulary import base_of
from torchtraceap.core.progress import progress_stage
from torchtraceap.errors import TraceError
from torchtraceap.tables.detection import present_findings
from torchtraceap.trace.ranks import Ranks

__all__ = ["Price", "fixes_of", "prices"]

_OF_IDLE = (
    "loader_workers=4",
    "remove_host_sync",
    "pin_memory",
    "cuda_graph",
    "no_allocator_calls",
)
_FIXES = {
    "gpu_idle": _OF_IDLE,
    "gpu_busy": _OF_IDLE,
    "step_time": _OF_IDLE,
    "gpu_time_per_step": ("fuse_pointwise", "no_casts", "channels_last"),
    "launches": ("cuda_graph",),
    "syncs": ("remove_host_sync",),
    "h2d_bytes": ("pin_memory=HtoD",),
    "d2h_bytes": ("pin_memory=DtoH",),
    "copied_bytes": ("pin_memory", "no_host_copies"),
    "exposed_memcpy": ("pin_memory",),
    "collectives": ("merge_collectives", "bucket_size_mb=25"),
    "exposed_communication": ("overlap_collectives",),
    "recompiles": ("no_recompilation",),
    "graph_breaks": ("merge_compiled_regions",),
    "allocator_calls": ("no_allocator_calls",),
}
"""Edits that stand for a fix, by key without suffix; the best of those that apply counts. See Note
[Fixes of idle time]."""
_NO_FIX = "no simulated edit stands for a fix of this"


class Price(NamedTuple):
    """The saving of a fix."""

    ns: int | None
    """Time saved per step if there are steps, else in the whole run; None if it is unknown."""
    note: str
    """The edit, or why there is no price."""


def fixes_of(trace: Ranks, key: str, types: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the edits that stand for a fix of a broken limit; for findings by their types."""
    if key == "findings":
        return _fixes_of_findings(types)
    fixes = _FIXES.get(base_of(key), ())
    if fixes is not _OF_IDLE:
        return fixes
    return _fixes_of_findings(present_findings(trace)) or fixes


def _fixes_of_findings(types: Iterable[str]) -> tuple[str, ...]:
    from torchtraceap.simulation.edits.base import edits_by_finding

    known = edits_by_finding()
    return tuple(dict.fromkeys(known[each][0] for each in types if each in known))


def prices(trace: Ranks, wanted: dict[str, tuple[str, ...]]) -> dict[str, Price]:
    """Return by key what the best of its edits saves; each edit is replayed alone, and once.

    Args:
        trace: Whose run is replayed.
        wanted: Edits by key.
    """
    from torchtraceap.simulation.simulate import simulate

    edits = list(dict.fromkeys(edit for each in wanted.values() for edit in each))
    if not edits:
        return dict.fromkeys(wanted, Price(None, _NO_FIX))
    try:
        with progress_stage("replaying the run with fixes"):
            simulation = simulate(trace, edits)
            measured_ns, outcomes = simulation.measured_ns, simulation.edits
    except TraceError as error:
        return dict.fromkeys(wanted, Price(None, f"the run can't be replayed: {error}"))
    saved = {}
    for outcome in outcomes:
        if outcome.predicted_ns is None:
            saved[outcome.edit] = Price(None, f"{outcome.edit}: {outcome.note}")
        else:
            note = f"{outcome.edit}: {outcome.note}" if outcome.note else outcome.edit
            saved[outcome.edit] = Price(measured_ns - outcome.predicted_ns, note)
    found = {}
    for key, tried in wanted.items():
        known = [saved[edit] for edit in tried if saved[edit].ns is not None]
        notes = "; ".join(saved[edit].note for edit in tried)
        found[key] = max(known, key=lambda price: price.ns or 0, default=Price(None, notes))
        if not tried:
            found[key] = Price(None, _NO_FIX)
    return found
