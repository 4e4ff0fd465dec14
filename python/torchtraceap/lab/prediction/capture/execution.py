"""Captures a step from a PyTorch execution trace.

Nodes are like the operators of a profile in another notation, without times: they become
consecutive events and are captured as a CPU profile (`profile.py`).

Note [Who takes part]: a c10d operator takes its process group as an object, which no file holds.
The number of ranks follows from the list of groups at the begin of newer files, from the splits of
an all-to-all, or from the ratio of output to input of an all-gather. If no collective tells it, the
caller has to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core import FP32, DType, PathLike, parse_dtype
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Capture, CaptureError, Collective
from torchtraceap.lab.prediction.capture.profile import capture_profile
from torchtraceap.ops import collective_kind
from torchtraceap.trace import Access, Arguments, Node, RankTrace, event_table, read_nodes

__all__ = ["capture_execution_trace", "collectives_by_node"]

_ANNOTATION = 7
"""Scope of RecordFunction."""
_TICK_NS = 1000
_C10D, _COMMS, _GROUPS = "c10d::", "record_param_comms", "## process_group:init ##"
_NO_EXCHANGES = ("barrier", "monitored_barrier_")
_GROUP = "default_pg"
_TENSOR = re.compile(r"Tensor\(([^()]*)\)")
_MOST_RANKS = 1 << 20


def capture_execution_trace(
    path: PathLike, batch: int | None = None, ranks: int | None = None
) -> Capture:
    """Return the calls of a steady step of an execution trace.

    Args:
        path: Written by `torch.profiler.ExecutionTraceObserver`, of a run on a CPU or a GPU.
        batch: New leading dimension of the inputs; None keeps it.
        ranks: Number of ranks if the file doesn't tell it.

    Raises:
        MissingFileError: There is no such file.
        ParseError: The file is no execution trace, or damaged.
        CaptureError: No operator with its arguments is recorded.
        OptionError: The batch, or the ranks of collectives, are ambiguous.
    """
    file = read_nodes(Path(path), with_arguments=True)
    if not any(node.arguments and node.arguments.types for node in file.nodes):
        raise CaptureError(f"{path}: no operator with its arguments is recorded")
    begins, ends = _nested(file.nodes)
    part = RankTrace(_events(file.nodes, begins, ends, str(path)), None)
    rows = {index: row for row, index in enumerate(np.argsort(begins).tolist())}
    found = collectives_by_node(file.nodes)
    if ranks is None and any(not each.group and each.peer is None for each in found.values()):
        raise OptionError(
            "the execution trace has collectives and does not say among how many ranks: "
            "--world-size says it, or a folder with the traces of all ranks"
        )
    exchanges = {}
    for index, node in enumerate(file.nodes):
        if node.node in found:
            group = found[node.node].group or tuple(range(ranks or 1))
            exchanges[rows[index]] = replace(found[node.node], group=group)
    waits = _FirstUses(file.nodes, rows, exchanges)
    capture = capture_profile(part, batch, exchanges=exchanges, waits=waits.first_use)
    return replace(capture, notes=(*file.notes, *capture.notes))


class _FirstUses:
    """Finds the first use of a collective's result, which waits for it."""

    def __init__(
        self, nodes: Sequence[Node], rows: Mapping[int, int], exchanges: Mapping[int, Collective]
    ) -> None:
        self._nodes = {rows[index]: node for index, node in enumerate(nodes)}
        self._exchanges = exchanges
        self._writes: dict[int, int] = {}

    def first_use(self, first: int, last: int) -> int | None:
        """Return the `id` of the latest collective whose result these rows are the first to use."""
        if first in self._exchanges:
            node = self._nodes[first]
            for row in range(first, last):
                written = self._nodes[row].outputs
                self._writes |= {each.storage: self._exchanges[first].id for each in written}
            # An operator that returns nothing but a handle writes its first argument.
            if not node.outputs:
                own = (each for each in node.inputs if each.argument == 0)
                self._writes |= {each.storage: self._exchanges[first].id for each in own}
            return None
        used = [
            self._writes.pop(each.storage)
            for row in range(first, last)
            for each in (*self._nodes[row].inputs, *self._nodes[row].outputs)
            if each.storage in self._writes
        ]
        return max(used, default=None)


# ------------------------------------------------------------------------- events


def _events(
    nodes: Sequence[Node], begins: Sequence[int], ends: Sequence[int], path: str
) -> _core.EventTable:
    """Return the nodes as an event table in which each encloses its children."""
    arguments: list[Arguments | None] = []
    for node in nodes:
        of = node.arguments
        lists = () if of is None else (of.values, of.shapes, of.types, of.strides)
        # Lists of different lengths can't be matched.
        arguments.append(of if len({len(each) for each in lists if each}) == 1 else None)
    sequence = [node.sequence if node.sequence >= 0 else None for node in nodes]
    return event_table(
        [node.name for node in nodes],
        begins,
        [end - begin for begin, end in zip(begins, ends, strict=True)],
        category=["user_annotation" if node.scope == _ANNOTATION else "cpu_op" for node in nodes],
        pid=1,
        tid=[max(node.thread, 0) for node in nodes],
        args={
            "Input Dims": [
                each and _map_arguments(_dims, each.types, each.shapes) for each in arguments
            ],
            "Input type": [
                each and [_profile_type(text) for text in each.types] for each in arguments
            ],
            "Input Strides": [
                _map_arguments(_dims, each.types, each.strides) if each and each.strides else None
                for each in arguments
            ],
            "Concrete Inputs": [
                each and _map_arguments(_profile_value, each.types, each.values)
                for each in arguments
            ],
            "Sequence number": sequence,
            "Fwd thread id": [
                node.forward_thread if number is not None else None
                for node, number in zip(nodes, sequence, strict=True)
            ],
        },
        path=path,
    )


def _nested(nodes: Sequence[Node]) -> tuple[list[int], list[int]]:
    """Return when each node begins and ends."""
    place = {node.node: index for index, node in enumerate(nodes)}
    below: dict[int, list[int]] = {}
    roots = []
    for index, node in enumerate(nodes):
        above = place.get(node.parent)
        if above is None:
            roots.append(index)
        else:
            below.setdefault(above, []).append(index)
    begins, ends = [0] * len(nodes), [0] * len(nodes)
    todo = [(index, False) for index in reversed(roots)]
    now = 0
    while todo:
        index, is_end = todo.pop()
        (ends if is_end else begins)[index] = now
        now += _TICK_NS
        if not is_end:
            todo.append((index, True))
            todo += [(child, False) for child in reversed(below.get(index, []))]
    return begins, ends


def _map_arguments(
    change: Callable[[Any, Any], Any], types: Sequence[Any], of: Sequence[Any]
) -> list[Any]:
    """Return what a function of type and value gives for each argument."""
    return [change(text, value) for text, value in zip(types, of, strict=True)]


def _profile_type(given: Any) -> str:
    """Return the type as a profile writes it: element type, "TensorList", "Scalar" or empty."""
    text = str(given)
    if text.startswith("Tensor("):
        return "" if "nullptr" in text or "undefined" in text else text[len("Tensor(") : -1]
    if text.startswith("GenericList"):
        inner = text[len("GenericList[") : -1]
        has_tensors = "Tensor(" in inner
        if has_tensors and "None" in inner:
            return ""
        return "TensorList" if has_tensors else "ScalarList"
    return "Scalar" if text in ("Int", "Double", "Bool", "ComplexDouble") else ""


def _dims(text: Any, shape: Any) -> Any:
    """Return the shape of a tensor argument and an empty list for others."""
    return shape if _profile_type(text) not in ("", "Scalar", "ScalarList") else []


def _profile_value(text: Any, value: Any) -> str:
    """Format a value as a profile writes it."""
    kind = _profile_type(text)
    if kind == "ScalarList":
        inner = value if isinstance(value, list) else []
        return "[" + ", ".join(_scalar(each) for each in inner) + "]"
    if kind == "Scalar":
        return _scalar(value)
    return value if text == "String" and isinstance(value, str) else ""


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    return json.dumps(value) if isinstance(value, (int, float)) else ""


# ------------------------------------------------------------------------- collectives


def collectives_by_node(nodes: Sequence[Node]) -> dict[int, Collective]:
    """Return the collectives that nodes start, by id of the node; `group` is empty if unknown.

    A collective is the outermost node that tells of it: c10d's operator, else what the process
    group notes. Its `id` is that of the node.
    """
    known = {node.node: node for node in nodes}
    found = {}
    sizes = [0]
    for node in nodes:
        if node.name == _GROUPS and node.arguments:
            sizes += _group_sizes(node.arguments.values)
        kind = _kind(node)
        if kind is None:
            continue
        above = known.get(node.parent)
        while above is not None and above.name != _COMMS and not above.name.startswith(_C10D):
            above = known.get(above.parent)
        if above is None:
            found[node.node] = _collective(node, kind)
    world = max(sizes + [len(each.group) for each in found.values()])
    group = tuple(range(world))
    return {
        number: each if each.group or each.peer is not None else replace(each, group=group)
        for number, each in found.items()
    }


def _kind(node: Node) -> str | None:
    """Return Kineto's "Collective name" of a node, or None."""
    if node.name.startswith(_C10D):
        from torchtraceap.lab.prediction.capture.modes import collective_name

        own = node.name.removeprefix(_C10D)
        if own == "alltoall_base_":
            return "all_to_allv" if any(_size_lists(node)) else "all_to_all"
        return None if own in _NO_EXCHANGES else collective_name(own)
    if node.name != _COMMS or node.arguments is None:
        return None
    words = (value for value in node.arguments.values if isinstance(value, str))
    return next((word for word in words if collective_kind(word) is not None), None)


def _collective(node: Node, kind: str) -> Collective:
    arguments = node.arguments
    texts = map(str, arguments.types if arguments else ())
    names = (name for text in texts for name in _TENSOR.findall(text))
    dtype = next((dtype for name in names if (dtype := parse_dtype(name))), FP32)
    tensors = sorted({each.argument for each in node.inputs})
    sizes = [_elements(node.inputs, place, dtype) for place in tensors[:2]] or [0]
    if node.name == _COMMS:  # what goes in, and apart from it what comes out
        given = sum(_elements(node.inputs, place, dtype) for place in tensors)
        made = sum(_elements(node.outputs, p, dtype) for p in {a.argument for a in node.outputs})
        sizes = [made or given, given]
    written, read = sizes[0], sizes[-1]
    peer = None
    if kind in ("send", "recv") and arguments is not None:
        peer = next((value for value in arguments.values if type(value) is int), None)
    ranks = 0  # see Note [Who takes part]
    splits = [len(each) for each in _size_lists(node) if each]
    if kind == "all_to_allv" and splits:
        ranks = min(max(splits), _MOST_RANKS)
    elif collective_kind(kind) in ("all_gather", "reduce_scatter") and min(read, written) > 0:
        times, rest = divmod(max(read, written), min(read, written))
        ranks = times if rest == 0 and times <= _MOST_RANKS else 0
    group = tuple(range(ranks))
    return Collective(kind, group, _GROUP, read, written, dtype, node.node, peer=peer)


def _elements(accesses: Iterable[Access], argument: int, dtype: DType) -> int:
    size = sum(each.end - each.start for each in accesses if each.argument == argument)
    return size // dtype.size


def _size_lists(node: Node) -> list[list[Any]]:
    """Return the lists of sizes among the arguments."""
    values = node.arguments.values if node.arguments else ()
    return [each for each in values if isinstance(each, list) and all(type(n) is int for n in each)]


def _group_sizes(values: Iterable[Any]) -> list[int]:
    """Return the sizes of the process groups that a node lists."""
    sizes = []
    for text in values:
        try:
            groups = json.loads(text) if isinstance(text, str) else []
        except (ValueError, RecursionError):
            continue
        for group in groups if isinstance(groups, list) else []:
            size = group.get("group_size") if isinstance(group, dict) else None
            if type(size) is int and 0 < size <= _MOST_RANKS:
                sizes.append(size)
    return sizes
