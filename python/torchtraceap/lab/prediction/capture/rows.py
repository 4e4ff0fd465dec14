"""Where a row of a trace stands: part of the step, modules, autograd node."""

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

__all__ = ["EVALUATES", "gradients_of", "phase_of", "placed", "recorded_call", "sequence_of"]

EVALUATES = "autograd::engine::evaluate_function: "
"""What the names of autograd's own rows begin with, before that of the node."""
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_MODULE = "nn.Module: "


def recorded_call(part: RankTrace, row: int) -> RecordedCall | None:
    """The operator with its arguments; None where they are not recorded."""
    try:
        return call_from_texts(part.table.name_of(row), text_of_args(part, row))
    except NotReplayableError:
        return None


def phase_of(part: RankTrace, row: int) -> Phase:
    """What is neither backward pass nor optimiser is forward pass."""
    phase = part.tree.phase[row]
    if phase == _core.Phase.OPTIMIZER:
        return Phase.OPTIMIZER
    return Phase.BACKWARD if phase == _core.Phase.BACKWARD else Phase.FORWARD


def gradients_of(part: RankTrace, rows: Sequence[int]) -> dict[int, TensorInfo]:
    """The gradients that the backward pass leaves with parameters, in its order, by row."""
    found = {}
    for row in rows:
        call = recorded_call(part, row) if part.table.name_of(row) == _ACCUMULATE else None
        given = recorded_inputs(call) if call is not None else ()
        if given and isinstance(given[0], TensorInfo):
            found[row] = given[0]
    return found


def sequence_of(part: RankTrace, row: int) -> int | None:
    """Number of the autograd node."""
    values, known = part.table.int_column("Sequence number", np.asarray([row]))
    return int(values[0]) if known[0] else None


def placed(part: RankTrace, calls: list[Call], row: int) -> list[Call]:
    """The calls with modules and autograd node of the row."""
    modules, node = _above(part, row)
    sequence = sequence_of(part, row)
    return [
        replace(call, modules=modules or call.modules, node=node, sequence=sequence)
        for call in calls
    ]


def _above(part: RankTrace, row: int) -> tuple[tuple[str, ...], str]:
    """Modules around a row, outermost first, and the autograd node that called it."""
    modules: list[str] = []
    node = ""
    while row != _core.NO_ROW:
        name = part.table.name_of(row)
        if name.startswith(_MODULE):
            modules.append(re.sub(r"_\d+$", "", name.removeprefix(_MODULE)))
        elif name.startswith(EVALUATES):
            node = node or name.removeprefix(EVALUATES)
        row = int(part.tree.parent[row])
    return tuple(reversed(modules)), node
