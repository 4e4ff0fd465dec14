"""Calls in which the host waits for the GPU, or would wait if there were one.

Note [Waits]: what counts is a call of the runtime in which the host waits for GPU work:

- a synchronisation of a stream, the device or an event;
- a copy whose call returns when it is done (cudaMemcpy, hipMemcpyWithStream);
- an asynchronous copy from the GPU to pageable memory, which the driver makes wait. One whose
  synchronisation is the next call of the thread, as torch makes it, is counted with that, once.

The profiler waits for the device when it stops. That is outside of marked steps. Where there are
none it is the last such call if nothing is launched after it, and is left out; a program that waits
at its end as well has its own call before that one.

Note [Waits without a GPU]: there, operators tell that need a value on the host: `.item()`,
`nonzero`, boolean masks, `unique`. Each counts once, whatever it calls inside. Not counted is what
is on the host in a GPU run as well: what a data loader reads, the step counters of torch's
optimizers, and random seeds, that is `.item()` right behind `random_`. Copies to the host are not
seen: on a CPU nothing is copied.
"""

from __future__ import annotations

import re

import numpy as np

from torchtraceap import _core
from torchtraceap.contracts.measures.events import (
    KERNEL_LAUNCHES,
    CountedEvents,
    calls_of,
    check_calls,
    is_without_gpu,
    operators,
)
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import SYNCHRONISATIONS, ApiClass, EventKind
from torchtraceap.trace.ranks import RankTrace

__all__ = ["READING_OPERATORS", "syncs"]

READING_OPERATORS = frozenset(
    {
        "aten::item",
        "aten::_local_scalar_dense",
        "aten::is_nonzero",
        "aten::nonzero",
        "aten::masked_select",
        "aten::_unique2",
        "aten::_unique",
        "aten::equal",
        "aten::unique_dim",
        "aten::unique_consecutive",
        "aten::repeat_interleave",
    }
)
"""Operators of `host_sync_in_loop` (cpp/traceap/detect/rules/host_sync_in_loop.cpp)."""
_ON_HOST = re.compile(
    r"enumerate\(DataLoader\)#.*|Optimizer\.step#(?:Adadelta|Adafactor|Adagrad|Adam|AdamW|Adamax|ASGD"
    r"|NAdam|RAdam|RMSprop|Rprop|SGD|SparseAdam)(?:\.step)?",
    re.DOTALL,
)
"""Ranges whose tensors are on the host in a GPU run as well: data loaders, and the steps of torch's
optimizers, which read nothing on the host but counters that are there anyway."""
_OTHER_WORK = (ApiClass.COPY, ApiClass.ASYNC_COPY, ApiClass.MEMSET)
_CALLS_TO_SYNC = 6
"""The same limit as in cpp/traceap/detect/queries/host_queries.cpp."""
_WOULD_BE = (
    "there is no GPU in the trace: counted are operators that need a value on the host "
    "(.item(), nonzero, boolean masks, unique), each of which would wait for a GPU"
)


def syncs(part: RankTrace) -> CountedEvents:
    """Return the waits of the host. See Note [Waits] and Note [Waits without a GPU]."""
    if is_without_gpu(part):
        return _waits_without_gpu(part)
    check_calls(part)
    tree = part.tree
    waits = calls_of(part, SYNCHRONISATIONS)
    of_device = np.flatnonzero(tree.api[waits] == ApiClass.DEVICE_SYNC)
    is_marked = bool(tree.steps) and not tree.steps_inferred
    if len(of_device) and not is_marked:
        launched = calls_of(part, (*KERNEL_LAUNCHES, *_OTHER_WORK))
        last = of_device[-1]
        if not len(launched) or launched[-1] < waits[last]:
            waits = np.delete(waits, last)  # that of the profiler when it stops
    gpu = tree.gpu_rows
    read = gpu[
        (tree.copy_direction[gpu] == _core.CopyDirection.DEVICE_TO_HOST)
        & (tree.host_memory[gpu] == _core.HostMemory.PAGEABLE)
    ]
    calls = tree.launch[read]
    calls = calls[calls != _core.NO_ROW]
    reading = np.unique(calls[tree.api[calls] == ApiClass.ASYNC_COPY].astype(np.int64))
    reading = reading[~_is_synchronized(part, reading)]
    copies = np.concatenate([calls_of(part, (ApiClass.COPY,)), reading])
    note = f"{len(copies)} of them are copies that block" if len(copies) else ""
    return CountedEvents.of_rows(part, np.concatenate([waits, copies]), note)


def _is_synchronized(part: RankTrace, rows: Array) -> Array:
    """Return a mask of the rows, bool `[rows]`: the next call of the thread is a synchronisation,
    but for some between them that do nothing. Nesting is not asked: where times are rounded, a call
    may begin before its operator."""
    tree, track = part.tree, part.table.track
    calls = np.flatnonzero((tree.api != ApiClass.NONE) & part.table.complete)
    calls = calls[np.argsort(track[calls], kind="stable")]  # by thread, in order of time
    place = np.full(len(part.table), -1, dtype=np.int64)
    place[calls] = np.arange(len(calls))
    found = np.zeros(len(rows), dtype=bool)
    going = place[rows] >= 0
    for ahead in range(1, _CALLS_TO_SYNC + 1):
        at = place[rows] + ahead
        going &= at < len(calls)
        following = calls[np.where(going, at, 0)]
        going &= track[following] == track[rows]
        found |= going & np.isin(tree.api[following], SYNCHRONISATIONS)
        going &= np.isin(tree.api[following], (ApiClass.OTHER, ApiClass.EVENT_RECORD))
    return found


def _waits_without_gpu(part: RankTrace) -> CountedEvents:
    """Count operators that need a value on the host. See Note [Waits without a GPU]."""
    operators(part)
    table, tree, strings = part.table, part.tree, part.table.strings
    reads = np.array([text in READING_OPERATORS for text in strings], dtype=bool)[table.name]
    on_host = np.array([_ON_HOST.fullmatch(text) is not None for text in strings], dtype=bool)
    is_operator = (table.kind == EventKind.CPU_OP) & table.complete
    rows = np.flatnonzero(is_operator & reads)
    if not len(rows):
        return CountedEvents.of_rows(part, rows, _WOULD_BE)
    marked = reads & is_operator
    marked |= on_host[table.name] & (tree.host_position != _core.NO_ROW)
    around = _core.innermost_marked(table, tree, marked)
    parents = tree.parent[rows]
    above = np.where(
        parents == _core.NO_ROW, _core.NO_ROW, around[np.where(parents == _core.NO_ROW, 0, parents)]
    )
    # A call inside another such operator or a host range does not count by itself. But a
    # closure that an optimizer's step calls holds the forward and backward pass: what lies before
    # the end of a backward pass is no counter.
    is_own = above == _core.NO_ROW
    ranged = np.flatnonzero(~is_own)
    ranged = ranged[on_host[table.name[above[ranged]]]]
    backward = np.sort(table.ts_ns[tree.phase == _core.Phase.BACKWARD])
    ends = table.ts_ns[above[ranged]] + table.dur_ns[above[ranged]]
    next_backward = np.searchsorted(backward, table.ts_ns[rows[ranged]], side="right")
    is_own[ranged] = next_backward < np.searchsorted(backward, ends)
    rows = rows[is_own]
    return CountedEvents.of_rows(part, rows[~_is_seed(part, rows)], _WOULD_BE)


def _is_seed(part: RankTrace, rows: Array) -> Array:
    """Return a mask of the rows, bool `[rows]`: a number is read that was drawn right before, as
    samplers do on the host."""
    table, tree = part.table, part.tree
    host = tree.host_rows
    operators = host[table.kind[host] == EventKind.CPU_OP]  # by thread, in order of time
    parents = tree.parent[operators]
    marked = table.kind == EventKind.CPU_OP
    around = _core.innermost_marked(table, tree, marked)
    above = around[np.where(parents == _core.NO_ROW, 0, parents)]
    outer = operators[(parents == _core.NO_ROW) | (above == _core.NO_ROW)]
    place = np.full(len(table), -1, dtype=np.int64)
    place[outer] = np.arange(len(outer))
    here = place[rows]
    before = outer[np.maximum(here - 1, 0)] if len(outer) else np.zeros(len(rows), dtype=np.int64)
    draws = np.array([text == "aten::random_" for text in table.strings], dtype=bool)
    found: Array = (
        (here > 0) & (table.track[before] == table.track[rows]) & draws[table.name[before]]
    )
    return found
