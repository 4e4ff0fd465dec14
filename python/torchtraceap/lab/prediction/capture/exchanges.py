"""Collectives of an execution trace: the nodes that start them, their ranks and sizes.

Note [Who takes part]: a c10d operator takes its process group as an object, which no file holds.
The number of ranks follows from the list of groups at the begin of newer files, from the splits of
an all-to-all, or from the ratio of output to input of an all-gather. If no collective tells it, the
caller has to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchtraceap.core.dtypes import FP32, DType, parse_dtype
from torchtraceap.lab.prediction.capture.calls import Collective
from torchtraceap.ops.durations import collective_kind
from torchtraceap.trace.execution.reader import Access, Node

__all__ = ["collectives_by_node", "with_group"]

_C10D, _COMMS, _GROUPS = "c10d::", "record_param_comms", "## process_group:init ##"
_NO_EXCHANGES = ("barrier", "monitored_barrier_")
_GROUP = "default_pg"
_TENSOR = re.compile(r"Tensor\(([^()]*)\)")
_MOST_RANKS = 1 << 20


def collectives_by_node(nodes: Sequence[Node]) -> dict[int, Collective]:
    """Return the collectives that nodes start, by id of the node; `group` is empty if unknown.

    A collective is the outermost node that tells of it: c10d's operator, else what the process
    group notes. Its `id` is that of the node.
    """
    known = {node.node: node for node in nodes}
    found = {}
    for node in nodes:
        kind = _kind(node)
        if kind is not None and not _is_inside(node, known):
            found[node.node] = _collective(node, kind)
    world = max([_world_of_groups(nodes), *(len(each.group) for each in found.values())])
    group = tuple(range(world))
    return {
        number: each if each.group or each.peer is not None else replace(each, group=group)
        for number, each in found.items()
    }


def with_group(exchange: Collective, ranks: int) -> Collective:
    """Return a collective with a group of so many ranks if its own is unknown."""
    return exchange if exchange.group else replace(exchange, group=tuple(range(ranks)))


def _kind(node: Node) -> str | None:
    """Return Kineto's "Collective name" of a node, or None."""
    if node.name.startswith(_C10D):
        from torchtraceap.lab.prediction.capture.collectives import collective_name

        own = node.name.removeprefix(_C10D)
        if own == "alltoall_base_":
            return "all_to_allv" if any(_size_lists(node)) else "all_to_all"
        return None if own in _NO_EXCHANGES else collective_name(own)
    if node.name != _COMMS or node.arguments is None:
        return None
    words = (value for value in node.arguments.values if isinstance(value, str))
    return next((word for word in words if collective_kind(word) is not None), None)


def _is_inside(node: Node, known: Mapping[int, Node]) -> bool:
    """Return whether an enclosing node describes the same collective."""
    above = known.get(node.parent)
    while above is not None:
        if above.name == _COMMS or above.name.startswith(_C10D):
            return True
        above = known.get(above.parent)
    return False


def _collective(node: Node, kind: str) -> Collective:
    dtype = _dtype(node)
    tensors = sorted({each.argument for each in node.inputs})
    sizes = [_elements(node.inputs, place, dtype) for place in tensors[:2]] or [0]
    if node.name == _COMMS:  # what goes in, and apart from it what comes out
        given = sum(_elements(node.inputs, place, dtype) for place in tensors)
        made = sum(_elements(node.outputs, p, dtype) for p in {a.argument for a in node.outputs})
        sizes = [made or given, given]
    written, read = sizes[0], sizes[-1]
    peer = _peer(node, kind)
    group = () if peer is not None else tuple(range(_ranks(node, kind, read, written)))
    return Collective(kind, group, _GROUP, read, written, dtype, node.node, peer=peer)


def _dtype(node: Node) -> DType:
    texts = map(str, node.arguments.types if node.arguments else ())
    names = (name for text in texts for name in _TENSOR.findall(text))
    return next((dtype for name in names if (dtype := parse_dtype(name))), FP32)


def _elements(accesses: Iterable[Access], argument: int, dtype: DType) -> int:
    size = sum(each.end - each.start for each in accesses if each.argument == argument)
    return size // dtype.size


def _size_lists(node: Node) -> list[list[Any]]:
    """Return the lists of sizes among the arguments."""
    values = node.arguments.values if node.arguments else ()
    return [each for each in values if isinstance(each, list) and all(type(n) is int for n in each)]


def _ranks(node: Node, kind: str, read: int, written: int) -> int:
    """Return the number of participating ranks, or 0; see Note [Who takes part]."""
    splits = [len(each) for each in _size_lists(node) if each]
    if kind == "all_to_allv" and splits:
        return min(max(splits), _MOST_RANKS)
    if collective_kind(kind) in ("all_gather", "reduce_scatter") and min(read, written) > 0:
        large, small = max(read, written), min(read, written)
        return large // small if large % small == 0 and large // small <= _MOST_RANKS else 0
    return 0


def _peer(node: Node, kind: str) -> int | None:
    """Return the other rank of a send or recv."""
    if kind not in ("send", "recv") or node.arguments is None:
        return None
    return next((value for value in node.arguments.values if type(value) is int), None)


def _world_of_groups(nodes: Sequence[Node]) -> int:
    """Return the size of the largest process group."""
    texts = (
        value
        for node in nodes
        if node.name == _GROUPS and node.arguments
        for value in node.arguments.values
    )
    sizes = [0]
    for text in texts:
        try:
            groups = json.loads(text) if isinstance(text, str) else []
        except ValueError:
            continue
        sizes += [
            size
            for group in (groups if isinstance(groups, list) else [])
            if isinstance(group, dict) and type(size := group.get("group_size")) is int
            if 0 < size <= _MOST_RANKS
        ]
    return max(sizes)
