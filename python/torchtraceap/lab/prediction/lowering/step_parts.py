"""Host time around the calls of a step: the loop and the loader.

Within a step the hand-off to the autograd thread is the time before its first call ("backward
begin", see call_context.py), the loop over parameters that before the optimizer's first, and the
cost of `loss.item()` without waiting that of `aten::_local_scalar_dense`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, sqrt
from types import MappingProxyType

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import EventKind
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.lowering.host import HostModel
from torchtraceap.ops.durations import Estimate
from torchtraceap.trace.ranks import RankTrace

__all__ = ["PARTS", "StepPart", "recorded_parts", "step_parts"]

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "between_steps": "from the end of a step's range to the next one's begin",
        "begin_of_step": "from there to the first operator or call, without a loader",
        "end_of_step": "from the last operator or call to the end of the range",
        "zero_grad": "`zero_grad` that frees the gradients, for each parameter",
        "loader": "the next batch of a loader with workers, when it is there",
    }
)
"""Meaning of each part; times of the profiled host, ns."""
_TAIL = 1.2816
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_DDP = "DistributedDataParallel.forward"


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of the host time around a step's calls."""

    name: str
    estimate: Estimate
    """Duration, ns, and its source."""


def step_parts(
    model: HostModel, *, parameters: int = 0, has_loader: bool = False
) -> tuple[StepPart, ...]:
    """Return the parts around a step in order from the end of the previous one.

    Args:
        model: Host model of the machine.
        parameters: Number of parameters whose gradients `zero_grad` frees; 0 for inference.
        has_loader: A loader with workers delivers batches, in time.

    Raises:
        OptionError: Less than no parameters.
    """
    if parameters < 0:
        raise OptionError(f"a model can't have {parameters} parameters")
    counts = {
        "between_steps": 1,
        "loader": int(has_loader),
        "begin_of_step": 1,
        "zero_grad": parameters,
        "end_of_step": 1,
    }
    return tuple(_part(model, name, count) for name, count in counts.items() if count)


def _part(model: HostModel, name: str, count: int) -> StepPart:
    known = model.table.parts[name]
    factor = exp(float(model.factors[0]))
    spread = sqrt(float(model.covariance[0, 0]) + known.deviation**2)
    side = exp(_TAIL * spread)
    ns = known.ns * factor * count
    says = f"{PARTS[name]}: {known.machines} machines of public traces"
    return StepPart(name, Estimate(ns, ns / side, ns * side, says))


# -------------------------------------------------------------------------------------- traces


def recorded_parts(part: RankTrace) -> dict[str, float]:
    """Return medians over the steps of a trace, ns, for the parts of `PARTS` it shows."""
    table, tree = part.table, part.tree
    marked = [step for step in tree.steps if step.row is not None]
    if tree.main_track is None or not marked:
        return {}
    work = np.isin(table.kind, [EventKind.CPU_OP, EventKind.RUNTIME, EventKind.DRIVER])
    work &= table.track == tree.main_track
    found: dict[str, list[float]] = {name: [] for name in PARTS}
    pairs = pairwise(marked)
    found["between_steps"] = [float(b.start_ns - a.end_ns) for a, b in pairs]
    loads = _named(part, "enumerate(DataLoader)#_MultiProcessing")
    # A wrapper's work before the model's forward doesn't count for a step without a wrapper.
    is_plain = not len(_named(part, "enumerate(DataLoader)")) and not len(_named(part, _DDP))
    work[[step.row for step in marked if step.row is not None]] = False
    for step in marked:
        inside = np.flatnonzero(work & (table.ts_ns >= step.start_ns) & (table.ts_ns < step.end_ns))
        if len(inside):
            ends = table.ts_ns[inside] + table.dur_ns[inside]
            found["end_of_step"].append(float(step.end_ns - ends.max()))
            if is_plain:
                found["begin_of_step"].append(float(table.ts_ns[inside].min() - step.start_ns))
    found["loader"] = table.dur_ns[loads].astype(float).tolist()
    found["zero_grad"] = _zero_grads(part, len(marked))
    return {name: float(np.median(each)) for name, each in found.items() if each}


def _named(part: RankTrace, prefix: str) -> Array:
    """Return operators and annotations whose name has the prefix."""
    table = part.table
    begins = np.array([text.startswith(prefix) for text in table.strings], dtype=bool)
    kinds = np.isin(table.kind, [EventKind.CPU_OP, EventKind.USER_ANNOTATION])
    rows: Array = np.flatnonzero(begins[table.name] & kinds)
    return rows


def _zero_grads(part: RankTrace, steps: int) -> list[float]:
    """Return the time per parameter of calls that fill no tensors with zeros."""
    table, tree = part.table, part.tree
    parameters = len(_named(part, _ACCUMULATE)) / steps
    rows = [
        row
        for row in _named(part, "Optimizer.zero_grad#").tolist()
        if int(tree.subtree_end[tree.host_position[row]]) == int(tree.host_position[row]) + 1
    ]
    return [float(table.dur_ns[row]) / parameters for row in rows] if parameters else []
