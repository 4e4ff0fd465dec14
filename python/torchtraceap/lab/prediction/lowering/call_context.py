"""What of a call its host times depend on: its name, the one before, and what lies between."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torchtraceap.lab.prediction.capture.calls import Call, Phase
from torchtraceap.ops.models.families import family_of

__all__ = ["BEGIN", "UNKNOWN_CROSSING", "Situation", "crossing", "is_by_tensors", "situations"]

UNKNOWN_CROSSING = "modules ?"
BEGIN = "begin"
_NOTHING_BETWEEN = ("", "modules 0", UNKNOWN_CROSSING, "same node")
_FEW_TENSORS, _MANY_TENSORS = 20, 100
"""Of a foreach operator: as many as take as long as all else in it, and those of a mean."""
_FOREACH = re.compile(r"::_foreach_")
_BY_TENSORS = re.compile(r"::_(foreach|fused)_|::_amp_foreach")
_MOST_MODULES = 5


@dataclass(frozen=True, slots=True)
class Situation:
    """A call and what comes before it."""

    name: str
    last: str
    """Name of the call before; empty for the first."""
    phase: Phase
    crossing: str
    """As `crossing` gives it."""
    tensors: int = 0
    """Of a foreach or fused operator: how many it updates."""

    @property
    def of_one(self) -> Situation:
        """Of a foreach operator the one that does the same to one tensor."""
        return replace(self, name=_FOREACH.sub("::", self.name), tensors=0)

    def scale(self, quantity: str) -> float:
        """What a foreach operator's time is multiplied with: loops over its tensors, in Python
        before the first one of an optimiser, inside each before it launches anything."""
        in_loop = quantity == "to_launch" or (quantity == "before" and self.crossing == BEGIN)
        if not self.tensors or not in_loop:
            return 1.0
        return (self.tensors + _FEW_TENSORS) / (_MANY_TENSORS + _FEW_TENSORS)

    @property
    def is_in_loop(self) -> bool:
        """Over parameters, or values that the host reads: gaps are shorter than others."""
        loops = self.phase is Phase.OPTIMIZER or self.name == "aten::_local_scalar_dense"
        return loops and self.name == self.last and self.crossing in _NOTHING_BETWEEN

    def classes(self, quantity: str) -> tuple[str, ...]:
        """Classes that one of its times belongs to (`host.QUANTITIES`), the widest first."""
        if quantity != "before":
            return "", family_of(self.name), self.name
        if self.is_in_loop:
            return "", "again", f"again {family_of(self.name)}", f"again {self.name}"
        own = f"{self.phase.value} {self.crossing or 'inside'}"
        by_name = f"{own} {self.name}"
        return "", self.phase.value, own, by_name, f"{by_name} < {self.last}"


def crossing(
    phase: Phase,
    left: Sequence[str] | None,
    entered: Sequence[str] | None,
    *,
    is_same_node: bool,
    is_same_phase: bool,
) -> str:
    """What lies between two calls: how many modules were left and entered, or an autograd node.

    Args:
        phase: Of the second call.
        left: Modules around the first; None where they are not known.
        entered: Modules around the second.
        is_same_node: The same autograd node makes both.
        is_same_phase: Neither the backward pass nor the optimiser begins with the second.

    Returns:
        "modules 0" to "modules 5" (5 or more) in the forward pass, "modules ?" where they are not
        known; "node" or "same node" in the backward pass; "" in the optimiser; "begin" where one of
        these two begins.
    """
    if phase is not Phase.FORWARD and not is_same_phase:
        return BEGIN
    if phase is Phase.OPTIMIZER:
        return ""
    if phase is Phase.BACKWARD:
        return "same node" if is_same_node else "node"
    if left is None or entered is None:
        return UNKNOWN_CROSSING
    shared = 0
    for one, other in zip(left, entered, strict=False):
        if one != other:
            break
        shared += 1
    return f"modules {min(len(left) + len(entered) - 2 * shared, _MOST_MODULES)}"


def situations(calls: Sequence[Call]) -> Iterator[Situation]:
    """Of the calls of a capture."""
    last: Call | None = None
    knows_modules = any(call.modules for call in calls)
    for call in calls:
        left = () if last is None else last.modules
        same = last is not None and (last.node, last.sequence) == (call.node, call.sequence)
        between = crossing(
            call.phase,
            left if knows_modules else None,
            call.modules if knows_modules else None,
            is_same_node=same,
            is_same_phase=last is not None and last.phase is call.phase,
        )
        name = "" if last is None else last.name
        yield Situation(call.name, name, call.phase, between, _tensors(call))
        last = call


def _tensors(call: Call) -> int:
    if not is_by_tensors(call.name):
        return 0
    first = next(iter(call.inputs.values()), ())
    return len(first) if isinstance(first, tuple) else 0


def is_by_tensors(name: str) -> bool:
    """A foreach or fused operator: its host time grows with its tensors."""
    return _BY_TENSORS.search(name) is not None
