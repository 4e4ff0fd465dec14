"""Prediction of the kernels that a GPU would run in a step that was recorded on a CPU.

`lab/prediction/predictor.py` lowers the step: the operators that launch, and the kernels of each,
as torch launches them on a GPU of that name. It is found by name, since the product does not import
the lab.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import numpy as np

from torchtraceap.contracts.measures.events import UnknownMeasureError, counted_places, operators
from torchtraceap.core.codes import EventKind
from torchtraceap.errors import MissingDependencyError, TraceError
from torchtraceap.ops.devices import device_named
from torchtraceap.trace.ranks import RankTrace

__all__ = ["DEVICE", "launching_row", "predicted_launches"]

DEVICE = "A100 SXM4 80 GB"
"""The GPU whose kernels are counted. What is launched differs little between NVIDIA's."""


def predicted_launches(part: RankTrace) -> tuple[tuple[str, ...], str]:
    """Predict the kernels that a steady step of a CPU profile would launch; kept with the rank.

    Returns:
        The operator that launches each kernel, in their order, and a note on what that rests on.

    Raises:
        UnknownMeasureError: It can't be lowered: no shapes, no torch, compiled code.
    """
    return part.cached("predicted launches", lambda: _predict(part))


def _predict(part: RankTrace) -> tuple[tuple[str, ...], str]:
    codes, _ = part.table.text_codes("Input Dims", operators(part).rows)
    if not (codes >= 0).any():  # said here, as it needs no torch
        raise UnknownMeasureError(
            "there is no GPU in the trace, and operators have no shapes from which it could be "
            "told what they would launch; record it with record_shapes=True"
        )
    try:
        device = device_named(DEVICE)
        predictor = import_module("torchtraceap.lab.prediction.predictor")
        launching: tuple[str, ...] = predictor.launching_operators(part, device)
    except (TraceError, MissingDependencyError) as error:
        raise UnknownMeasureError(
            f"there is no GPU in the trace, and what it would launch can't be told: {error}"
        ) from error
    note = (
        "there is no GPU in the trace: counted are the kernels that a steady step would launch on "
        f"{device.name}, as predicted from its operators"
    )
    return launching, note


def launching_row(part: RankTrace, operators: Sequence[str], place: int) -> int | None:
    """Find the operator that would launch a kernel, by name and place: where the recorded step has
    as many of that name as launch in the predicted one, or each launches equally many.

    Returns:
        Its row in the first counted step; None where nothing tells it.

    Args:
        part: Recorded without a GPU.
        operators: The operator of each kernel of a step, in order.
        place: The place of the kernel in that order.
    """
    if not 0 <= place < len(operators):
        return None
    name = operators[place]
    table, tree = part.table, part.tree
    codes = [code for code, text in enumerate(table.strings) if text == name]
    is_named = np.isin(table.name, codes) & (table.kind == EventKind.CPU_OP)
    rows = np.flatnonzero(is_named)
    if tree.steps:
        rows = rows[tree.step[rows] == counted_places(part)[0]]
    parent = tree.parent[rows]
    # A call inside another one of the same name launches with it.
    inside = (parent < len(is_named)) & is_named[np.minimum(parent, len(is_named) - 1)]
    rows = rows[~inside]
    launched = sum(each == name for each in operators)
    if not len(rows) or launched % len(rows):
        return None
    before = sum(each == name for each in operators[:place])
    return int(rows[before // (launched // len(rows))])
