"""Reads the rows of a recorded step: the step itself, its calls and their arguments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.compat import (
    NotReplayableError,
    RecordedCall,
    call_from_texts,
    check_name,
    match_operator,
    text_of_args,
)
from torchtraceap.core import FP32, Array, DType, parse_dtype
from torchtraceap.errors import MissingDependencyError
from torchtraceap.lab.prediction.capture.batch_sizes import contiguous_strides
from torchtraceap.lab.prediction.capture.calls import Call, Phase, TensorInfo, Value
from torchtraceap.trace import RankTrace

__all__ = [
    "EVALUATE_FUNCTION",
    "NO_STORAGE",
    "gradients_of",
    "named_inputs",
    "phase_of",
    "recorded_call",
    "sequence_number",
    "steady_step",
    "with_location",
]

EVALUATE_FUNCTION = "autograd::engine::evaluate_function: "
"""Prefix of the names of autograd's own rows."""
NO_STORAGE = 0
"""Storage number of tensors whose shared memory is unknown."""
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_MODULE = "nn.Module: "


def steady_step(part: RankTrace) -> tuple[Array, int, tuple[str, ...]]:
    """Return the last step with the most common operators; the whole run if no steps are recorded.

    Returns:
        Host rows of the step by start, without input pipelines, int64; its length, ns; notes.
    """
    table, tree = part.table, part.tree
    rows = tree.host_rows.astype(np.int64)
    rows = rows[np.argsort(rows, kind="stable")]  # rows are sorted by start, longer first
    rows = rows[tree.phase[rows] != _core.Phase.INPUT]
    if tree.main_track is not None:
        # The backward pass may run on another thread than the step.
        is_backward = tree.phase[rows] == _core.Phase.BACKWARD
        rows = rows[(table.track[rows] == tree.main_track) | is_backward]
    if not tree.steps:
        begin, end = tree.profiled
        return rows, end - begin, ("no steps are recorded: the whole run is taken as one",)
    of_step = [rows[tree.step[rows] == place] for place in range(len(tree.steps))]
    is_op = table.kind == _core.EventKind.CPU_OP
    kinds = [hash(table.name[each[is_op[each]]].tobytes()) for each in of_step]
    usual = Counter(kinds).most_common(1)[0][0]
    chosen = len(kinds) - 1 - kinds[::-1].index(usual)
    step = tree.steps[chosen]
    return of_step[chosen], step.end_ns - step.start_ns, ()


def recorded_call(part: RankTrace, row: int) -> RecordedCall | None:
    """Return the operator with its arguments; None if they are not recorded."""
    try:
        return call_from_texts(part.table.name_of(row), text_of_args(part, row))
    except NotReplayableError:
        return None


def phase_of(part: RankTrace, row: int) -> Phase:
    """Return the phase of a row; what is neither backward nor optimizer counts as forward."""
    phase = part.tree.phase[row]
    if phase == _core.Phase.OPTIMIZER:
        return Phase.OPTIMIZER
    return Phase.BACKWARD if phase == _core.Phase.BACKWARD else Phase.FORWARD


def gradients_of(part: RankTrace, rows: Sequence[int]) -> dict[int, TensorInfo]:
    """Return the gradients accumulated into parameters by row, in order."""
    found = {}
    for row in rows:
        call = recorded_call(part, row) if part.table.name_of(row) == _ACCUMULATE else None
        given = _inputs(call) if call is not None else ()
        if given and isinstance(given[0], TensorInfo):
            found[row] = given[0]
    return found


def sequence_number(part: RankTrace, row: int) -> int | None:
    """Return the sequence number of the autograd node."""
    values, known = part.table.int_column("Sequence number", np.asarray([row]))
    return int(values[0]) if known[0] else None


def with_location(part: RankTrace, calls: list[Call], row: int) -> list[Call]:
    """Return the calls with the modules and the autograd node of the row."""
    modules: list[str] = []
    node = ""
    above = row
    while above != _core.NO_ROW:
        name = part.table.name_of(above)
        if name.startswith(_MODULE):
            modules.insert(0, re.sub(r"_\d+$", "", name.removeprefix(_MODULE)))
        elif name.startswith(EVALUATE_FUNCTION):
            node = node or name.removeprefix(EVALUATE_FUNCTION)
        above = int(part.tree.parent[above])
    sequence = sequence_number(part, row)
    return [
        replace(call, modules=tuple(modules) or call.modules, node=node, sequence=sequence)
        for call in calls
    ]


# ------------------------------------------------------------------------------------- arguments


def named_inputs(call: RecordedCall) -> dict[str, Value]:
    """Return arguments by the names of the matching schema, or by position if torch knows none."""
    inputs = _inputs(call)
    try:
        check_name(call.name)
        names = [argument.name for argument in match_operator(call).arguments]
    except (NotReplayableError, MissingDependencyError):
        names = []
    places = (names[k] if k < len(names) else str(k) for k in range(len(inputs)))
    return dict(zip(places, inputs, strict=True))


def _inputs(call: RecordedCall) -> tuple[Value, ...]:
    """Return arguments by position: tensors, lists of them, plain values, or None if unknown.

    Strides that were not recorded are those of a contiguous tensor. Lists of tensors carry no
    types: they are taken to have that of the first other tensor, else float32.
    """
    first = next((found for text in call.types if (found := parse_dtype(text))), FP32)
    inputs: list[Value] = []
    for place, text in enumerate(call.types):
        dims, strides = call.dims[place], call.strides[place] if call.strides else None
        dtype = parse_dtype(text)
        if dtype is not None and all(isinstance(size, int) for size in dims):
            inputs.append(_tensor(dims, strides, dtype))
        elif dims and all(isinstance(each, tuple) for each in dims):
            if not strides or len(strides) != len(dims):
                strides = [None] * len(dims)
            listed = zip(dims, strides, strict=True)
            inputs.append(tuple(_tensor(shape, stride, first) for shape, stride in listed))
        else:
            inputs.append(_plain(call.values[place]))
    return tuple(inputs)


def _tensor(shape: tuple[int, ...], strides: Any, dtype: DType) -> TensorInfo:
    if not isinstance(strides, tuple) or len(strides) != len(shape):
        strides = contiguous_strides(shape)
    return TensorInfo(shape, dtype, strides, NO_STORAGE)


def _plain(value: Any) -> Value:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, complex):
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else None
