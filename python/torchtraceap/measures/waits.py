"""Where the host waits for the GPU, or would wait if there were one.

Note [Waits]: what counts is a call of the runtime in which the host waits for GPU work:

- a synchronisation of a stream, the device or an event;
- a copy whose call returns when it is done (cudaMemcpy, hipMemcpyWithStream), and an asynchronous
  copy from the GPU to pageable memory, which the driver makes wait. One whose synchronisation
  follows is counted with that, once.

The profiler waits for the device when it stops. That is outside of marked steps. Where there are
none it is the last such call if nothing is launched after it, and is left out; a program that waits
at its end as well has its own call before that one.

Note [Waits without a GPU]: there, operators tell that need a value on the host: `.item()`,
`nonzero`, boolean masks, `unique`. Each counts once, whatever it calls inside. Not counted are
those of a data loader and the step counters of torch's optimisers, whose tensors are on the host
in a GPU run as well. Copies to the host are not seen: on a CPU nothing is copied.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.aliases import Array
from torchtraceap.codes import SYNCHRONISATIONS, ApiClass, EventKind
from torchtraceap.measures.calls import KERNEL_LAUNCHES, calls_of, check_calls, operators
from torchtraceap.measures.found import Found, is_without_gpu
from torchtraceap.ranks import RankTrace

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
"""Those of `host_sync_in_loop` (cpp/traceap/detect/rules/host_sync_in_loop.cpp)."""
_OPTIMIZERS = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam",
               "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam")  # fmt: skip
"""Of torch: those whose step reads nothing on the host but counters that are there anyway."""
_CALLS_TO_SYNC = 6  # as in cpp/traceap/detect/queries/host_queries.cpp
_WOULD_BE = (
    "there is no GPU in the trace: counted are operators that need a value on the host "
    "(.item(), nonzero, boolean masks, unique), each of which would wait for a GPU"
)


def syncs(part: RankTrace) -> Found:
    """See Note [Waits] and Note [Waits without a GPU]."""
    if is_without_gpu(part):
        return _would_wait(part)
    check_calls(part)
    waits = calls_of(part, SYNCHRONISATIONS)
    waits = waits[~_is_profilers(part, waits)]
    copies = _blocking_copies(part)
    note = f"{len(copies)} of them are copies that block" if len(copies) else ""
    return Found.of_rows(part, np.concatenate([waits, copies]), note)


def _is_profilers(part: RankTrace, waits: Array) -> Array:
    """bool: the wait of the profiler when it stops, where no marked step tells its end."""
    tree = part.tree
    found = np.zeros(len(waits), dtype=bool)
    of_device = np.flatnonzero(tree.api[waits] == ApiClass.DEVICE_SYNC)
    is_marked = bool(tree.steps) and not tree.steps_inferred
    if not len(of_device) or is_marked:
        return found
    launched = calls_of(part, (*KERNEL_LAUNCHES, *_OTHER_WORK))
    last = of_device[-1]
    found[last] = not len(launched) or launched[-1] < waits[last]
    return found


_OTHER_WORK = (ApiClass.COPY, ApiClass.ASYNC_COPY, ApiClass.MEMSET)


def _blocking_copies(part: RankTrace) -> Array:
    """Calls of copies that block by themselves."""
    tree = part.tree
    blocking = calls_of(part, (ApiClass.COPY,))
    gpu = tree.gpu_rows
    read = gpu[
        (tree.copy_direction[gpu] == _core.CopyDirection.DEVICE_TO_HOST)
        & (tree.host_memory[gpu] == _core.HostMemory.PAGEABLE)
    ]
    calls = tree.launch[read]
    calls = calls[calls != _core.NO_ROW]
    calls = calls[tree.api[calls] == ApiClass.ASYNC_COPY]
    rows = np.unique(np.concatenate([blocking, calls.astype(np.int64)]))
    found: Array = rows[~_is_synchronised(part, rows)]
    return found


def _is_synchronised(part: RankTrace, rows: Array) -> Array:
    """bool: a synchronisation follows the call on its level of the stack, with at most some calls
    between them that do nothing."""
    tree, kinds = part.tree, part.table.kind
    found = np.zeros(len(rows), dtype=bool)
    here, at = np.arange(len(rows)), rows.astype(np.int64)
    between = (ApiClass.OTHER, ApiClass.EVENT_RECORD)
    for _ in range(_CALLS_TO_SYNC):
        siblings = _next_siblings(part, at)
        kept = siblings >= 0
        kept[kept] = np.isin(kinds[siblings[kept]], (EventKind.RUNTIME, EventKind.DRIVER))
        here, at = here[kept], siblings[kept]
        waits = np.isin(tree.api[at], SYNCHRONISATIONS)
        found[here[waits]] = True
        goes_on = ~waits & np.isin(tree.api[at], between)
        here, at = here[goes_on], at[goes_on]
        if not len(at):
            break
    return found


def _next_siblings(part: RankTrace, rows: Array) -> Array:
    """int64: the next row of the thread with the same parent; -1 if none."""
    tree, track = part.tree, part.table.track
    position = tree.host_position[rows]
    known = position != _core.NO_ROW
    behind = np.full(len(rows), len(tree.host_rows), dtype=np.int64)
    behind[known] = tree.subtree_end[position[known]]
    known &= behind < len(tree.host_rows)
    siblings = np.full(len(rows), -1, dtype=np.int64)
    siblings[known] = tree.host_rows[behind[known]]
    safe = np.maximum(siblings, 0)
    alike = (track[safe] == track[rows]) & (tree.parent[safe] == tree.parent[rows])
    found: Array = np.where(known & alike, siblings, -1)
    return found


def _would_wait(part: RankTrace) -> Found:
    operators(part)
    table, tree = part.table, part.tree
    strings = table.strings
    reads = np.array([text in READING_OPERATORS for text in strings], dtype=bool)
    on_host = np.array([_is_of_host(text) for text in strings], dtype=bool)
    is_operator = (table.kind == EventKind.CPU_OP) & table.complete
    rows = np.flatnonzero(is_operator & reads[table.name])
    if not len(rows):
        return Found.of_rows(part, rows, _WOULD_BE)
    marked = reads[table.name] & is_operator
    marked |= on_host[table.name] & (tree.host_position != _core.NO_ROW)
    around = _core.innermost_marked(table, tree, marked)
    parents = tree.parent[rows]
    above = around[np.where(parents == _core.NO_ROW, 0, parents)]
    above[parents == _core.NO_ROW] = _core.NO_ROW
    return Found.of_rows(part, rows[_is_own(part, rows, above, on_host)], _WOULD_BE)


def _is_own(part: RankTrace, rows: Array, above: Array, on_host: Array) -> Array:
    """bool: not inside another such operator, nor in a range of the host.

    A closure that an optimiser's step calls holds the forward and backward pass: what lies before
    the end of a backward pass is no counter.
    """
    table, tree = part.table, part.tree
    found = above == _core.NO_ROW
    ranged = np.flatnonzero(~found)
    ranged = ranged[on_host[table.name[above[ranged]]]]
    backward = np.sort(table.ts_ns[tree.phase == _core.Phase.BACKWARD])
    ends = table.ts_ns[above[ranged]] + table.dur_ns[above[ranged]]
    next_backward = np.searchsorted(backward, table.ts_ns[rows[ranged]], side="right")
    found[ranged] = next_backward < np.searchsorted(backward, ends)
    own: Array = found
    return own


def _is_of_host(name: str) -> bool:
    """A range whose tensors are on the host in a GPU run as well."""
    if name.startswith("enumerate(DataLoader)#"):
        return True
    optimizer = name.removeprefix("Optimizer.step#").removesuffix(".step")
    return name.startswith("Optimizer.step#") and optimizer in _OPTIMIZERS
