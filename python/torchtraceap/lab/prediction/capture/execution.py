"""Captures a step from a PyTorch execution trace.

Nodes are like the operators of a profile in another notation, without times: they become
consecutive events and are captured as a CPU profile (`profile.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import PathLike
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Capture, CaptureError, Collective
from torchtraceap.lab.prediction.capture.exchanges import collectives_by_node, with_group
from torchtraceap.lab.prediction.capture.profile import capture_profile
from torchtraceap.trace.event_table import event_table
from torchtraceap.trace.execution.reader import Arguments, Node, read_nodes
from torchtraceap.trace.ranks import RankTrace

__all__ = ["capture_execution_trace"]

_ANNOTATION = 7
"""Scope of RecordFunction."""
_TICK_NS = 1000


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
    exchanges = _collectives_by_row(file.nodes, rows, ranks)
    waits = _FirstUses(file.nodes, rows, exchanges)
    capture = capture_profile(part, batch, exchanges=exchanges, waits=waits.first_use)
    return replace(capture, notes=(*file.notes, *capture.notes))


def _collectives_by_row(
    nodes: Sequence[Node], rows: Mapping[int, int], ranks: int | None
) -> dict[int, Collective]:
    """Return collectives by the row of their event."""
    found = collectives_by_node(nodes)
    if ranks is None and any(not each.group and each.peer is None for each in found.values()):
        raise OptionError(
            "the execution trace has collectives and does not say among how many ranks: "
            "--world-size says it, or a folder with the traces of all ranks"
        )
    return {
        rows[index]: with_group(found[node.node], ranks or 1)
        for index, node in enumerate(nodes)
        if node.node in found
    }


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


def _events(
    nodes: Sequence[Node], begins: Sequence[int], ends: Sequence[int], path: str
) -> _core.EventTable:
    """Return the nodes as an event table in which each encloses its children."""
    arguments = [_consistent(node.arguments) for node in nodes]
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
    for now, (index, is_end) in enumerate(_depth_first(roots, below)):
        (ends if is_end else begins)[index] = now * _TICK_NS
    return begins, ends


def _depth_first(roots: Sequence[int], below: dict[int, list[int]]) -> Iterator[tuple[int, bool]]:
    """Yield each node at its begin and at its end, depth first."""
    todo = [(index, False) for index in reversed(roots)]
    while todo:
        index, is_end = todo.pop()
        yield index, is_end
        if not is_end:
            todo.append((index, True))
            todo += [(child, False) for child in reversed(below.get(index, []))]


# ------------------------------------------------------------------------- in a profile's words


def _consistent(arguments: Arguments | None) -> Arguments | None:
    """Return None if the lists of a node differ in length and can't be matched."""
    if arguments is None:
        return None
    lists = (arguments.values, arguments.shapes, arguments.types, arguments.strides)
    return arguments if len({len(each) for each in lists if each}) == 1 else None


def _map_arguments(
    change: Callable[[Any, Any], Any], types: Sequence[Any], of: Sequence[Any]
) -> list[Any]:
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
