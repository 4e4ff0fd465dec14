"""Costs of watching a training, and the time at which it may take more.

Note [Budget]: four things cost a training time, and each is measured where it occurs.

- What runs inside of `step()`: starting and stopping the profiler, the export. By the clock.
- Steps under the profiler are slower: their sum less what as many typical steps take.
- A child process examines the trace at the lowest priority while the training goes on: what steps
  take longer meanwhile, and no more than the child's own CPU time.
- What is waited for at the end.

Noise counts as cost where it makes a step slower and never as a gain. A recording is begun when
the costs so far and those of one more stay within the budget's share of the time that has gone by;
so the interval stretches by itself where a recording is dear. Before the first one there is only a
guess, and a short training may end without any.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Sequence
from statistics import median

from torchtraceap.errors import OptionError

__all__ = ["Costs", "parse_budget", "parse_interval"]

TYPICAL_STEPS = 50
"""The latest steps without a profiler, whose median is a typical step."""
LEAST_TYPICAL = 5
"""Fewer steps don't say what is typical."""
GUESSED_S = 0.5
GUESSED_IMPORT_S = 2.0
"""torch's profiler imports the compiler at its first start (1.5 s with torch 2.13)."""
GUESSED_SLOWDOWN = 0.5
_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_interval(value: float | str) -> float:
    """Return the seconds of an interval such as "10m", "90s", "1.5h" or a number of seconds.

    Raises:
        OptionError: It is none, or not positive.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?\s*", str(value))
    seconds = float(found[1]) * _UNITS_S[found[2] or "s"] if found else 0.0
    if not 0 < seconds < 1e9:
        raise OptionError(f'every must be a time such as "10m", "90s" or "2h", not {value!r}')
    return seconds


def parse_budget(value: float) -> float:
    """Return the share of the time that watching may take.

    Raises:
        OptionError: It is no share.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise OptionError(f"budget must be a share above 0 and up to 1, not {value!r}")
    return float(value)


class Costs:
    """Keeps count of what watching took, in seconds. See Note [Budget].

    Args:
        budget: The share of the time that it may take.
        every_s: The shortest time between two recordings.
        steps: How many are recorded, warm-up included.
        began: When the watch began, by the clock that all times here come from.
    """

    def __init__(self, budget: float, every_s: float, steps: int, began: float) -> None:
        self.budget = budget
        self._every_s = every_s
        self._steps = steps
        self.began = began
        self._latest: float | None = None
        self._typical: deque[float] = deque(maxlen=TYPICAL_STEPS)
        self._of_recordings: list[float] = []
        self._at_begin = 0.0
        self.own_s = 0.0
        """Inside of `step()`."""
        self.slower_steps_s = 0.0
        self.examining_s = 0.0
        self.waiting_s = 0.0

    @property
    def total_s(self) -> float:
        return self.own_s + self.slower_steps_s + self.examining_s + self.waiting_s

    def share(self, now: float) -> float:
        """Return the share of the time since the watch began."""
        return self.total_s / max(now - self.began, self.total_s, 1e-9)

    @property
    def typical_s(self) -> float | None:
        """Seconds that a step takes without a profiler; None where too few were seen."""
        return median(self._typical) if len(self._typical) >= LEAST_TYPICAL else None

    def plain_step(self, seconds: float) -> None:
        self._typical.append(seconds)

    def begin(self, now: float) -> None:
        """Note that a recording begins."""
        self._latest = now
        self._at_begin = self.total_s

    def end(self) -> None:
        """Note that all that belongs to a recording is over."""
        self._of_recordings.append(self.total_s - self._at_begin)

    def add_recording(self, steps_s: Sequence[float]) -> None:
        """Add steps that ran under the profiler."""
        self.slower_steps_s += self._excess(steps_s)

    def add_examination(self, steps_s: Sequence[float], cpu_s: float) -> None:
        """Add steps that ran beside the child, and its CPU time."""
        self.examining_s += min(self._excess(steps_s), cpu_s)

    def _excess(self, steps_s: Sequence[float]) -> float:
        typical = self.typical_s
        return 0.0 if typical is None else max(0.0, sum(steps_s) - len(steps_s) * typical)

    @property
    def expected_s(self) -> float:
        """Seconds that the next recording costs: as the dearer of the last two; before that, a
        guess."""
        if self._of_recordings:
            return max(self._of_recordings[-2:])
        importing = 0.0 if "torch._inductor" in sys.modules else GUESSED_IMPORT_S
        slower = GUESSED_SLOWDOWN * self._steps * (self.typical_s or 0.0)
        return GUESSED_S + importing + slower

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the next recording may begin; not positive where it may."""
        by_budget = self.began + (self.total_s + self.expected_s) / self.budget
        first = self._latest is None
        by_interval = self.began if self._latest is None else self._latest + self._every_s
        if first and self.typical_s is None:
            return max(by_budget - now, 1e-9)
        return max(by_budget, by_interval) - now

    def postpone(self, now: float) -> None:
        """Let another interval go by, as the profiler is in use."""
        self._latest = now
