"""Collectives of one rank, each once, by kind.

They are the core's: communication kernels, else the ranges of a CPU backend. Where a trace has
neither, as one of NCCL calls without GPU events, the host's own record of each call counts:
`record_param_comms`, else the operators of c10d.
"""

from __future__ import annotations

import re

import numpy as np

from torchtraceap import _core
from torchtraceap.contracts.measures.events import CountedEvents, UnknownMeasureError, host_times
from torchtraceap.contracts.measures.vocabulary import COLLECTIVES
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import EventKind
from torchtraceap.trace.ranks import RankTrace

__all__ = ["collective_bytes", "collectives"]

_RECORDED = "record_param_comms"
_BY_CALLS = "counted from the calls on the host, as no communication kernel is recorded"
_CORE_KINDS = {"all_to_all_v": "all_to_all"}
# Names of c10d operators and of "Collective name", without underscores and endings.
_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}
_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional")
_NO_COLLECTIVES = frozenset({"wait", "init", "end", "coalesced"})


def collectives(part: RankTrace) -> CountedEvents:
    """Count each collective of the rank."""
    core = _core_of(part)
    kinds, rows = core.kind, core.row.astype(np.int64)
    if not len(rows):
        return _from_calls(part)
    names = _core.collective_kind_names()
    known = [_CORE_KINDS.get(name, name) for name in names]
    places = np.array([COLLECTIVES.index(name) for name in known], dtype=np.int64)
    return _in_time_order(part, rows, np.ones(len(rows), dtype=np.int64), places[kinds])


def collective_bytes(part: RankTrace) -> CountedEvents:
    """Count the bytes of the whole message of each: what an all-gather has gathered, what a
    reduce-scatter is given, else the larger of input and output."""
    core = _core_of(part)
    rows = core.row.astype(np.int64)
    if not len(rows):
        if len(collectives(part).rows):
            raise UnknownMeasureError(
                "collectives are recorded on the host alone, whose sizes are not read"
            )
        return CountedEvents.of_rows(part, rows)
    names = _core.collective_kind_names()
    is_barrier = core.kind == names.index("barrier")
    sizes = np.where(is_barrier, 0, core.bytes)
    if (unsized := int((sizes == _core.NO_ID).sum())) > 0:
        raise UnknownMeasureError(f"the sizes of {unsized} collectives are not recorded")
    return _in_time_order(part, rows, sizes, None)


def _core_of(part: RankTrace) -> _core.RankCollectives:
    return part.cached(
        "own collectives", lambda: _core.collectives([(part.table, part.tree, part.rank)])
    )


def _in_time_order(
    part: RankTrace, rows: Array, amounts: Array, kinds: Array | None
) -> CountedEvents:
    order = np.argsort(host_times(part, rows), kind="stable")
    of_kinds = None if kinds is None else kinds[order]
    return CountedEvents(part, rows[order], amounts[order].astype(np.int64), COLLECTIVES, of_kinds)


def _from_calls(part: RankTrace) -> CountedEvents:
    """Count the host's own records of collectives, else the operators of c10d."""
    table = part.table
    operators = np.flatnonzero(table.complete & (table.kind == EventKind.CPU_OP))
    names = table.name[operators]
    recorded = operators[np.isin(names, [n for n, t in enumerate(table.strings) if t == _RECORDED])]
    if len(recorded):
        codes, texts = table.text_codes("Collective name", recorded)
        kinds = [_kind_of(texts[code]) if code >= 0 else None for code in codes.tolist()]
        rows = recorded
    else:
        by_string: list[str | None] = []
        for text in table.strings:
            space, _, operator = text.partition("::")
            kind = _kind_of(operator) if space in _NAMESPACES else None
            by_string.append(None if kind == "unknown" else kind)
        rows = operators[np.array([kind is not None for kind in by_string])[names]]
        kinds = [by_string[name] for name in table.name[rows].tolist()]
    kept = np.array([kind is not None for kind in kinds], dtype=bool)
    places = np.array([COLLECTIVES.index(kind) for kind in kinds if kind], dtype=np.int64)
    if not kept.any():
        # A trace of a GPU alone shows them as kernels; one that shows nothing is of no use.
        if not len(operators) and not len(part.tree.gpu_rows):
            raise UnknownMeasureError("the trace has neither GPU events nor operators")
        return CountedEvents.of_rows(part, np.zeros(0, dtype=np.int64))
    rows = rows[kept]
    ones = np.ones(len(rows), dtype=np.int64)
    return CountedEvents(part, rows, ones, COLLECTIVES, places, note=_BY_CALLS)


def _kind_of(text: str) -> str | None:
    """Return the kind of a "Collective name" such as "_allgather_base", or of an operator such as
    "allreduce_"; None if it starts no collective."""
    word = re.sub(r"[^a-z]", "", text.lower().removesuffix("_coalesced").removesuffix("_base"))
    if word in _NO_COLLECTIVES:
        return None
    return next((kind for start, kind in _KINDS.items() if word.startswith(start)), "unknown")
