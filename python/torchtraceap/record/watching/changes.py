"""What is new since the last recording: findings that appear or go, and steps that got slower."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.records import dataclass

__all__ = ["Change", "Changes"]

ABSENT_TIMES = 2
"""A finding has gone when it is missing so often in a row: near a threshold it comes and goes."""
DRIFT = 0.10
"""Steps that take this much more or less have changed."""
SPREADS = 4.0
"""And more than so many median deviations of single steps, over the root of their number."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is new."""

    kind: str
    """"appeared", "gone" or "drift"."""
    text: str
    finding: str | None = None


class Changes:
    """Compares each recording with those before it."""

    def __init__(self) -> None:
        self._missing: dict[str, int] = {}
        """How often in a row a finding has been missing, of those that are known."""
        self._usual: tuple[float, float] | None = None

    def of_findings(self, findings: Sequence[dict[str, Any]], step: int) -> list[Change]:
        found = {finding["type"]: finding for finding in findings}
        changes = []
        for name, finding in found.items():
            if name not in self._missing:
                cost = format_share(finding["cost_share"])
                text = f"step {step}: {name} has appeared; it takes {cost} of the time"
                changes.append(Change("appeared", text, name))
            self._missing[name] = 0
        for name in [name for name in self._missing if name not in found]:
            self._missing[name] += 1
            if self._missing[name] >= ABSENT_TIMES:
                del self._missing[name]
                changes.append(Change("gone", f"step {step}: {name} has gone", name))
        return changes

    def of_steps(self, steps_s: Sequence[float], step: int) -> Change | None:
        """Whether steps take another time than they did.

        Args:
            steps_s: Those without a profiler since the last recording.
            step: Number of the last one.
        """
        if len(steps_s) < 5:
            return None
        now = median(steps_s)
        spread = median(abs(each - now) for each in steps_s) * 1.5 / len(steps_s) ** 0.5
        before, spread_before = self._usual or (now, spread)
        if self._usual is None:
            self._usual = (now, spread)
            return None
        apart = abs(now - before)
        if apart <= max(DRIFT * before, SPREADS * (spread**2 + spread_before**2) ** 0.5):
            return None
        self._usual = (now, spread)
        change = f"{now / before - 1:+.0%}".replace("%", " %")
        text = (
            f"step {step}: a step takes {format_ns(round(now * 1e9))}, {change} against "
            f"{format_ns(round(before * 1e9))} before"
        )
        return Change("drift", text)
