"""Calls of a GPU's runtime: launches and allocator calls; and operators, compilations."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.contracts.measures.events import (
    CountedEvents,
    UnknownMeasureError,
    has_runtime_calls,
    is_without_gpu,
)
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import ALLOCATOR_CALLS, ApiClass, EventKind
from torchtraceap.trace.ranks import RankTrace

__all__ = ["KERNEL_LAUNCHES", "allocator_calls", "launches", "operators", "recompiles"]

KERNEL_LAUNCHES = (ApiClass.KERNEL_LAUNCH, ApiClass.GRAPH_LAUNCH)
"""A graph is one launch, however many kernels it holds."""
NO_CALLS = (
    "the trace has no runtime calls; record it with ProfilerActivity.CUDA, on a machine with a GPU"
)
_NO_GPU = "nothing of a GPU is recorded"


def calls_of(part: RankTrace, classes: tuple[ApiClass, ...] | Array) -> Array:
    """Complete calls of these classes, by start."""
    return np.flatnonzero(np.isin(part.tree.api, classes) & part.table.complete)


def check_calls(part: RankTrace) -> None:
    """Raise UnknownMeasureError where there are no runtime calls."""
    if is_without_gpu(part):
        raise UnknownMeasureError(_NO_GPU)
    if not has_runtime_calls(part):
        raise UnknownMeasureError(NO_CALLS)


def launches(part: RankTrace) -> CountedEvents:
    """Calls that launch kernels or graphs, also those whose kernels were not recorded."""
    check_calls(part)
    return CountedEvents.of_rows(part, calls_of(part, KERNEL_LAUNCHES))


def allocator_calls(part: RankTrace) -> CountedEvents:
    """Calls that take memory from the driver, or give it back."""
    check_calls(part)
    return CountedEvents.of_rows(part, calls_of(part, ALLOCATOR_CALLS))


def operators(part: RankTrace) -> CountedEvents:
    """All calls of operators."""
    rows = np.flatnonzero((part.table.kind == EventKind.CPU_OP) & part.table.complete)
    if not len(rows):
        raise UnknownMeasureError("the trace has no operators; record it with ProfilerActivity.CPU")
    return CountedEvents.of_rows(part, rows)


def recompiles(part: RankTrace) -> CountedEvents:
    """Return what was compiled again."""
    operators(part)
    rows = part.cached("recompiled", lambda: _core.recompiled_rows(part.table, part.tree))
    return CountedEvents.of_rows(part, rows)
