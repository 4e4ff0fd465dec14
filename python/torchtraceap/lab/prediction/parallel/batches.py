"""Splits a batch into equal microbatches for a pipeline."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.parallel.strategy import PIPELINE, Strategy
from torchtraceap.lab.workloads.workload import Workload

__all__ = ["microbatch_count", "split_batch"]

_PARTS_PER_STAGE = 4


def microbatch_count(workload: Workload, strategy: Strategy) -> int:
    """Return the number of microbatches: as requested, or up to 4 per stage.

    Raises:
        OptionError: The batch has no so many equal parts, or fewer than there are stages.
    """
    batch, stages = _batch(workload), strategy.size(PIPELINE)
    if strategy.microbatches is None:
        fit = range(min(batch, _PARTS_PER_STAGE * stages), stages - 1, -1)
        found = next((parts for parts in fit if batch % parts == 0), None)
        if found is None:
            raise OptionError(
                f"pp={stages} needs a batch of {stages} equal parts or more, not of {batch} rows"
            )
        return found
    parts = strategy.microbatches
    if parts < stages:
        raise OptionError(f"pp={stages} needs {stages} microbatches or more, not {parts}")
    if batch % parts:
        raise OptionError(f"a batch of {batch} has no {parts} equal parts")
    return parts


def _batch(workload: Workload) -> int:
    """Return the rows of the first input tensor."""
    leaves = tree_leaves(workload.inputs)
    rows = (leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim())
    found: int = next(rows, 1)
    return found


def split_batch(workload: Workload, parts: int) -> list[Workload]:
    """Return a workload for each microbatch, with its inputs and its targets in the loss."""
    batch = _batch(workload)
    return [
        replace(
            workload,
            inputs=tree_map(functools.partial(_rows, batch, parts, index), workload.inputs),
            loss=workload.loss and _loss_of(workload.loss, batch, parts, index),
        )
        for index in range(parts)
    ]


def _rows(batch: int, parts: int, index: int, value: Any) -> Any:
    """Return a microbatch's rows of a tensor that has rows for the whole batch."""
    if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[0] % batch:
        return value
    rows = value.shape[0] // parts
    return value.narrow(0, index * rows, rows)


def _loss_of(loss: Callable[..., Any], batch: int, parts: int, index: int) -> Callable[..., Any]:
    """Return the loss with a microbatch's rows of the targets in its closure, defaults or
    arguments."""
    rows = functools.partial(tree_map, functools.partial(_rows, batch, parts, index))
    if isinstance(loss, functools.partial):
        inner = _loss_of(loss.func, batch, parts, index)
        return functools.partial(inner, *rows(loss.args), **rows(loss.keywords))
    if not isinstance(loss, types.FunctionType):
        return loss
    cells = tuple(types.CellType(rows(cell.cell_contents)) for cell in loss.__closure__ or ())
    made = types.FunctionType(
        loss.__code__, loss.__globals__, loss.__name__, rows(loss.__defaults__), cells
    )
    made.__kwdefaults__ = rows(loss.__kwdefaults__)
    return made
