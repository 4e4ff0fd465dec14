"""Phase, modules, gradients and autograd node of a row of a trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchtraceap import _core
from torchtraceap.compat.replay.call import (
    NotReplayableError,
    RecordedCall,
    call_from_texts,
    text_of_args,
)
from torchtraceap.lab.prediction.capture.calls import Call, Phase, TensorInfo
from torchtraceap.lab.prediction.capture.recorded import recorded_inputs
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "EVALUATE_FUNCTION",
    "gradients_of",
    "phase_of",
    "recorded_call",
    "sequence_number",
    "with_location",
]

EVALUATE_FUNCTION = "autograd::engine::evaluate_function: "
"""Prefix of the names of autograd's own rows."""
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_MODULE = "nn.Module: "


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
        given = recorded_inputs(call) if call is not None else ()
        if given and isinstance(given[0], TensorInfo):
            found[row] = given[0]
    return found


def sequence_number(part: RankTrace, row: int) -> int | None:
    """Return the sequence number of the autograd node."""
    values, known = part.table.int_column("Sequence number", np.asarray([row]))
    return int(values[0]) if known[0] else None


def with_location(part: RankTrace, calls: list[Call], row: int) -> list[Call]:
    """Return the calls with the modules and the autograd node of the row."""
    modules, node = _location(part, row)
    sequence = sequence_number(part, row)
    return [
        replace(call, modules=modules or call.modules, node=node, sequence=sequence)
        for call in calls
    ]


def _location(part: RankTrace, row: int) -> tuple[tuple[str, ...], str]:
    """Return the modules around a row, outermost first, and the calling autograd node."""
    modules: list[str] = []
    node = ""
    while row != _core.NO_ROW:
        name = part.table.name_of(row)
        if name.startswith(_MODULE):
            modules.append(re.sub(r"_\d+$", "", name.removeprefix(_MODULE)))
        elif name.startswith(EVALUATE_FUNCTION):
            node = node or name.removeprefix(EVALUATE_FUNCTION)
        row = int(part.tree.parent[row])
    return tuple(reversed(modules)), node
