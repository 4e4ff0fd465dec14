"""The context that determines the host time of a call: its name, its predecessor, what lies
between."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torchtraceap.lab.prediction.capture.calls import Call, Phase
from torchtraceap.ops import family_of

__all__ = [
    "BEGIN",
    "UNKNOWN_CROSSING",
    "CallContext",
    "call_contexts",
    "crossing",
    "is_multi_tensor",
]

UNKNOWN_CROSSING = "modules ?"
BEGIN = "begin"
_NOTHING_BETWEEN = ("", "modules 0", UNKNOWN_CROSSING, "same node")
_FEW_TENSORS, _MANY_TENSORS = 20, 100
"""Numbers of tensors of a foreach operator: the fixed cost, and the number at the mean."""
_FOREACH = re.compile(r"::_foreach_")
_MULTI_TENSOR = re.compile(r"::_(foreach|fused)_|::_amp_foreach")
_MOST_MODULES = 5


@dataclass(frozen=True, slots=True)
class CallContext:
    """A call and what precedes it."""

    name: str
    last: str
    """Name of the previous call; empty for the first."""
    phase: Phase
    crossing: str
    """Boundary crossed before the call, see `crossing`."""
    tensors: int = 0
    """Number of tensors that a foreach or fused operator updates."""

    @property
    def single_tensor(self) -> CallContext:
        """The single-tensor variant of a foreach operator."""
        return replace(self, name=_FOREACH.sub("::", self.name), tensors=0)

    def scale(self, quantity: str) -> float:
        """Return the factor for the number of tensors of a foreach operator.

        Loops run in Python before an optimizer's first operator, and in C++ before the first
        launch.
        """
        in_loop = quantity == "to_launch" or (quantity == "before" and self.crossing == BEGIN)
        if not self.tensors or not in_loop:
            return 1.0
        return (self.tensors + _FEW_TENSORS) / (_MANY_TENSORS + _FEW_TENSORS)

    @property
    def is_in_loop(self) -> bool:
        """True in loops over parameters or read values, which have shorter gaps."""
        loops = self.phase is Phase.OPTIMIZER or self.name == "aten::_local_scalar_dense"
        return loops and self.name == self.last and self.crossing in _NOTHING_BETWEEN

    def classes(self, quantity: str) -> tuple[str, ...]:
        """Return the classes of one of its times (`host.QUANTITIES`), widest first."""
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
    """Return the boundary between two calls: modules left and entered, or an autograd node.

    Args:
        phase: Phase of the second call.
        left: Modules around the first; None where they are not known.
        entered: Modules around the second.
        is_same_node: True if one autograd node makes both.
        is_same_phase: True unless the backward pass or the optimizer begins with the second.

    Returns:
        "modules 0" to "modules 5" (5 or more) in the forward pass, "modules ?" where they are not
        known; "node" or "same node" in the backward pass; "" in the optimizer; "begin" where one of
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


def call_contexts(calls: Sequence[Call]) -> Iterator[CallContext]:
    """Yield the contexts of captured calls."""
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
        first = next(iter(call.inputs.values()), ()) if is_multi_tensor(call.name) else ()
        tensors = len(first) if isinstance(first, tuple) else 0
        name = "" if last is None else last.name
        yield CallContext(call.name, name, call.phase, between, tensors)
        last = call


def is_multi_tensor(name: str) -> bool:
    """Return whether an operator is foreach or fused, so that its host time grows with its
    tensors."""
    return _MULTI_TENSOR.search(name) is not None
