"""Operators for the algorithm from the execution traces of all ranks.

An execution trace has no kernels: which operators launch how many is told by name
(`overheads.launches_by_name`), their times by durations/. Tensors are told apart by their storage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lin2024.overheads import is_marker
from lin2024.simulate import BaselineOp, Piece
from torchtraceap.errors import OptionError
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import UnknownDurationError, collective_kind, copy_ns, op_ns
from torchtraceap.ops.durations.collectives import estimate_collective
from torchtraceap.ops.durations.estimate import resolve_device
from torchtraceap.ops.models import OpCall
from torchtraceap.trace.execution.reader import Arguments, Node, NodeFile

__all__ = [
    "CallTree",
    "collective_of",
    "copy_direction",
    "gpu_time",
    "is_wait",
    "on_gpu",
    "op_call",
    "ops_of_ranks",
    "transfers_of_ranks",
]

_COMMUNICATION = "record_param_comms"
_USER_SCOPE = 7
# Of a launch whose operator no model knows, beside moving its tensors: small kernels of such
# operators took 3 to 8 us, by medians, in public traces of other recommendation jobs on V100, A100.
_UNKNOWN_NS = 5_000.0
_TENSOR = re.compile(r"Tensor\(([^()]*)\)")
_COPIES = ("aten::copy_", "aten::_local_scalar_dense")


class CallTree:
    """The nodes of one execution trace, by parent."""

    def __init__(self, file: NodeFile) -> None:
        """`file` as `read_nodes(path, with_arguments=True)` gives it.

        Raises:
            OptionError: It was read without arguments.
        """
        if any(node.arguments is None for node in file.nodes):
            raise OptionError("the execution trace was read without arguments")
        self._children: dict[int, list[Node]] = {}
        known = {node.node for node in file.nodes}
        for node in file.nodes:
            parent = node.parent if node.parent in known else -1
            self._children.setdefault(parent, []).append(node)
        self.roots = self._children.get(-1, [])
        self.top_level = sorted(self._tops(), key=lambda node: node.node)
        """Top-level operators in the order of their begin; see overheads.py."""

    def below(self, node: Node) -> Iterator[Node]:
        """The node and all below it, in order."""
        todo = [node]
        while todo:
            one = todo.pop()
            yield one
            todo += reversed(self.children(one))

    def children(self, node: Node) -> list[Node]:
        """Those directly below, in order."""
        return self._children.get(node.node, [])

    def _tops(self) -> Iterator[Node]:
        collectives = self._collectives_below()
        todo = list(self.roots)
        while todo:
            node = todo.pop()
            # An operator with several collectives has no place in the algorithm: those in it do.
            if (
                node.scope == _USER_SCOPE
                or is_marker(node.name)
                or collectives.get(node.node, 0) > 1
            ):
                todo += self.children(node)
            else:
                yield node

    def _collectives_below(self) -> dict[int, int]:
        """How many collectives there are in a node, where there are any."""
        counts: dict[int, int] = {}
        for node in reversed([node for root in self.roots for node in self.below(root)]):
            own = int(collective_of(node) is not None)
            count = own + sum(counts.get(child.node, 0) for child in self.children(node))
            if count:
                counts[node.node] = count
        return counts


def collective_of(node: Node) -> str | None:
    """Kind of the collective that a node is, or None."""
    if node.name != _COMMUNICATION:
        return None
    words = (value for value in _arguments(node).values if isinstance(value, str))
    return next((kind for word in words if (kind := collective_kind(word)) is not None), None)


def is_wait(node: Node) -> bool:
    """A collective is waited for."""
    return node.name == _COMMUNICATION and "wait" in _arguments(node).values


def on_gpu(node: Node) -> bool:
    """It reads or writes a tensor on a GPU that has elements."""
    return any(each.device.startswith("cuda") for each in (*node.inputs, *node.outputs))


def op_call(node: Node) -> OpCall:
    """The call as a Kineto trace would record it."""
    given = _arguments(node)
    dims: list[Any] = []
    types: list[Any] = []
    concrete: list[str] = []
    for place, text in enumerate(map(str, given.types)):
        shape = given.shapes[place] if place < len(given.shapes) else []
        value = given.values[place] if place < len(given.values) else ""
        tensors = _TENSOR.findall(text)
        dims.append(shape)
        if text.startswith("GenericList") and tensors:
            types.append((tensors + [tensors[-1]] * len(shape))[: len(shape)])
            concrete.append("")
        elif tensors:
            types.append(tensors[0])
            concrete.append("")
        elif text.startswith("GenericList"):
            types.append("ScalarList")
            concrete.append(str(value))
        else:
            types.append("" if text == "None" else "Scalar")
            concrete.append("" if value == "<None>" else str(value))
    return OpCall(node.name, dims, types, [[] for _ in dims], concrete)


def _arguments(node: Node) -> Arguments:
    return node.arguments or Arguments((), (), ())


def gpu_time(node: Node, launches: int, device: Device) -> float:
    """ns of all that a node launches itself, by durations/."""
    direction = copy_direction(node)
    if direction is not None:
        size = max(each.end - each.start for each in (*node.inputs, *node.outputs))
        copied = copy_ns(max(size, 1), direction, None, device)
        if copied is not None:
            return copied.ns
    found = op_ns(op_call(node), device, kernels=launches)
    if found is not None:
        return found.ns
    return launches * _UNKNOWN_NS + 1e9 * _bytes_moved(node) / device.bandwidth


def _bytes_moved(node: Node) -> int:
    """All that comes out, and of each input no more than that: tables are not read whole."""
    sizes = [[each.end - each.start for each in side] for side in (node.inputs, node.outputs)]
    written = sum(sizes[1])
    return written + sum(min(size, written) for size in sizes[0])


def copy_direction(node: Node) -> str | None:
    """Of a copy between host and GPU."""
    if node.name not in _COPIES:
        return None
    devices = [each.device.partition(":")[0] for each in node.inputs]
    if node.name == "aten::_local_scalar_dense":
        return "DtoH" if devices == ["cuda"] else None
    if len(devices) < 2 or devices[0] == devices[1]:
        return None
    return "HtoD" if devices[0] == "cuda" else "DtoH"


@dataclass(frozen=True, slots=True)
class _Transfer:
    kind: str
    size: int
    """Bytes of the larger of input and output."""


def ops_of_ranks(
    files: Sequence[NodeFile], device: str | Device, launches: Mapping[str, int]
) -> list[list[BaselineOp]]:
    """Operators of all ranks, with the times of their kernels and transfers.

    Args:
        files: Of each rank, read with arguments.
        device: A GPU by name or id.
        launches: By operator, as `launches_by_name` gives them.

    Raises:
        OptionError: Ranks differ in their collectives, or no model answers for one.
    """
    try:
        chip = resolve_device(device)
    except UnknownDurationError as error:
        raise OptionError(str(error)) from None
    trees = [CallTree(file) for file in files]
    transfers = transfers_of_ranks(trees, chip)
    return [_ops(tree, chip, launches, transfers) for tree in trees]


def _transfers(tree: CallTree, op: Node) -> Iterator[_Transfer]:
    for node in tree.below(op):
        kind = collective_of(node)
        if kind is not None:
            sizes = [sum(e.end - e.start for e in side) for side in (node.inputs, node.outputs)]
            yield _Transfer(kind, max(sizes))


def transfers_of_ranks(trees: Sequence[CallTree], device: Device) -> list[float]:
    """ns of each collective: of the largest part that any rank has in it.

    Raises:
        OptionError: Ranks differ in their collectives, or no model answers for one.
    """
    ranks = [[t for op in tree.top_level for t in _transfers(tree, op)] for tree in trees]
    kinds = [[transfer.kind for transfer in each] for each in ranks]
    if any(each != kinds[0] for each in kinds):
        raise OptionError("the execution traces of the ranks differ in their collectives")
    found = []
    for together in zip(*ranks, strict=True):
        size = max(1, *(transfer.size for transfer in together))
        try:
            found.append(estimate_collective(together[0].kind, size, len(ranks), device).ns)
        except UnknownDurationError as error:
            raise OptionError(f"a collective can't be estimated: {error}") from None
    return found


def _ops(
    tree: CallTree, device: Device, launches: Mapping[str, int], transfers: Sequence[float]
) -> list[BaselineOp]:
    found, number = [], 0
    for top in tree.top_level:
        pieces: list[Piece] = []
        op = BaselineOp(top.name, reads=frozenset(each.storage for each in top.inputs))
        for node in tree.below(top):
            count = launches.get(node.name, 0)
            if collective_of(node) is not None:
                pieces.append(Piece(transfers[number], is_collective=True))
                number += 1
                op = replace(op, writes=frozenset(each.storage for each in node.outputs))
            elif is_wait(node):
                op = replace(op, waits=True)
            elif count and on_gpu(node):
                pieces += [Piece(gpu_time(node, count, device) / count)] * count
                op = replace(op, blocks=op.blocks or _blocks(top, node))
        plain = top.name == "aten::copy_" and not tree.children(top)
        found.append(replace(op, pieces=tuple(pieces), is_plain_copy=plain))
    return found


def _blocks(top: Node, node: Node) -> bool:
    return top.name == "aten::to" and copy_direction(node) is not None
