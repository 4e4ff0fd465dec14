"""Groups of the core's codes, for masks over its columns: `np.isin(tree.api, ALLOCATOR_CALLS)`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from torchtraceap._core import (
    ApiClass,
    EventKind,
    gives_memory_back,
    is_allocator_call,
    is_copy_call,
    is_host_memory_call,
    is_synchronisation,
)

__all__ = [
    "ALLOCATOR_CALLS",
    "API_KINDS",
    "COPY_CALLS",
    "HOST_MEMORY_CALLS",
    "LAUNCHES",
    "MEMORY_RETURNS",
    "SYNCHRONISATIONS",
    "ApiClass",
    "EventKind",
]

Codes = npt.NDArray[np.uint8]


def _api_classes(holds: Callable[[ApiClass], bool]) -> Codes:
    return np.array([api for api in ApiClass if holds(api)], dtype=np.uint8)


API_KINDS = (EventKind.RUNTIME, EventKind.DRIVER)
"""Kinds of runtime and driver calls, the only rows whose `tree.api` is not NONE."""
SYNCHRONISATIONS = _api_classes(is_synchronisation)
"""The host waits until GPU work is done."""
COPY_CALLS = _api_classes(is_copy_call)
"""Calls that copy memory, those that wait for the copy and those that need not."""
ALLOCATOR_CALLS = _api_classes(is_allocator_call)
"""Device or pinned memory is taken, mapped or given back."""
MEMORY_RETURNS = _api_classes(gives_memory_back)
"""Allocator calls that give memory back."""
HOST_MEMORY_CALLS = _api_classes(is_host_memory_call)
"""Allocator calls for pinned memory of the host."""
LAUNCHES = np.array(
    [
        ApiClass.KERNEL_LAUNCH,
        ApiClass.GRAPH_LAUNCH,
        ApiClass.COPY,
        ApiClass.ASYNC_COPY,
        ApiClass.MEMSET,
    ],
    dtype=np.uint8,
)
"""Calls that give the GPU work: kernels, graphs of them, copies, memsets."""
