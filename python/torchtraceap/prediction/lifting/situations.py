"""What of a call its host times depend on: its name, the one before, and what lies between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtraceap.models.families import family_of
from torchtraceap.prediction.capture.calls import Call, Phase

__all__ = ["UNKNOWN_CROSSING", "Situation", "crossing", "situations"]

UNKNOWN_CROSSING = "modules ?"
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

    def classes(self, quantity: str) -> tuple[str, ...]:
        """Classes that one of its times belongs to (`host.QUANTITIES`), the widest first."""
        if quantity != "before":
            return "", family_of(self.name), self.name
        own = f"{self.phase.value} {self.crossing}".strip()
        by_name = f"{own} {self.name}"
        return "", self.phase.value, own, by_name, f"{by_name} < {self.last}"


def crossing(
    phase: Phase,
    left: Sequence[str] | None,
    entered: Sequence[str] | None,
    *,
    is_same_node: bool,
) -> str:
    """What lies between two calls: how many modules were left and entered, or an autograd node.

    Args:
        phase: Of the second call.
        left: Modules around the first; None where they are not known.
        entered: Modules around the second.
        is_same_node: The same autograd node makes both.

    Returns:
        "modules 0" to "modules 5" (5 or more) in the forward pass, "modules ?" where they are not
        known; "node" or "same node" in the backward pass; "" in the optimiser.
    """
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
        )
        yield Situation(call.name, "" if last is None else last.name, call.phase, between)
        last = call
