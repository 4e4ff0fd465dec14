"""Host time of each captured call, from traces of real GPU runs.

Note [Classes]: each time (before a call, to its first launch, ...) has a mean for the call's name
in its context, as far as traces show it, shrunk towards the mean of its family, which is shrunk
towards the mean of all. The means are those of a typical machine.

Note [Factors]: a machine and its profiler scale all Python between calls by one factor, all
operators by another, and all launches by a third. Their spread over the traces is the uncertainty;
a trace from the machine (`calibrated`) removes it, a measurement on the machine's processor
(`probe`) reduces it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from math import exp, sqrt
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from torchtraceap.core import Array
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Capture
from torchtraceap.lab.prediction.lowering.recorded_host import (
    UNKNOWN_CROSSING,
    CallContext,
    RecordedCalls,
    call_contexts,
)
from torchtraceap.lab.prediction.lowering.step import HostTime
from torchtraceap.ops import Device

__all__ = [
    "GROUPS",
    "PROFILERS",
    "QUANTITIES",
    "TAIL",
    "HostModel",
    "HostTable",
    "HostTimes",
    "Machine",
    "PartMean",
    "is_recent",
    "log_ratios",
    "shipped_table",
    "weighted_median",
]

_DATA = Path(__file__).with_name("data") / "host_times.json"
PROFILERS: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {
        "none": (0.85, 0.85, 0.95),
        "plain": (1.0, 1.0, 1.0),
        "stack": (1.75, 1.6, 1.0),
        "full": (1.9, 1.6, 1.0),
    }
)
"""Host times relative to the profiler's defaults, by `GROUPS`.

They are measured with stacks and shapes, and with memory, modules and flops as well
(benchmarks/prediction/profiler_factor.py, torch 2.13 on a CPU); without a profiler, the middle of
published measurements (1.1 to 1.25 times in all).
"""
_OTHER_AGE = 0.2
_UNSEEN = 1e6
"""Variance of quantities that were not measured."""
TAIL = 1.6449
"""Standard deviations to either side that hold 90 % of a normal distribution."""
_SPREAD_SHARE = 0.75
"""Share of the factors' spread that sums of host times have.

With it the predictions for ten of eleven machines of the table, and for all models on a machine
calibrated by others, lie within the range (benchmarks/prediction/host_times.py). The eleventh takes
5.6 times the expected time.
"""
_COMMON_SPREAD = 1.0
"""Weight of the common spread on both sides, in machines."""

QUANTITIES = {
    "before": "gaps",
    "alone": "calls",
    "to_launch": "calls",
    "launch": "launches",
    "between": "calls",
    "after": "calls",
}
"""Factor of the machine that scales each time (Note [Factors]); "alone" is a call without
launches."""
GROUPS = ("gaps", "calls", "launches")


@dataclass(frozen=True, slots=True)
class Machine:
    """Factors of a machine relative to the means."""

    profiler: str
    """One of `PROFILERS`."""
    is_recent: bool
    """True for a recent GPU and therefore a recent processor; see `is_recent`."""
    factors: Array
    """Logarithms by `GROUPS`, float64 [3]."""


@dataclass(frozen=True, slots=True)
class PartMean:
    """Mean of a time around the calls of a step."""

    ns: float
    deviation: float
    """Deviation of its logarithm over machines."""
    machines: int


def is_recent(device: Device) -> bool:
    """Return whether a GPU is of 2022 or later: Ada, Hopper, CDNA 3 and newer."""
    first = {"nvidia": 8.9, "amd": 9.4}.get(device.vendor, np.inf)
    try:
        return float(device.architecture) >= first
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class HostTable:
    """Mean host times by class, ns, and their spread over machines."""

    means: Mapping[str, Mapping[str, float]]
    """Means by quantity and class."""
    crossings: Mapping[str, str]
    """Usual crossing before a call whose modules are unknown, by name."""
    machines: tuple[Machine, ...]
    """Machines behind the means."""
    model_covariance: Array
    """Covariance of log factors over models on one machine, float64 [3, 3]."""
    parts: Mapping[str, PartMean]
    """Times around a step's calls (loop.py)."""

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> HostTable:
        """Read a table from its JSON document."""
        return cls(
            means=text["means"],
            crossings=text["crossings"],
            machines=tuple(
                Machine(each["profiler"], each["is_recent"], np.array(each["factors"]))
                for each in text["machines"]
            ),
            model_covariance=np.array(text["model_covariance"]),
            parts={name: PartMean(**each) for name, each in text["parts"].items()},
        )

    def mean(self, quantity: str, situation: CallContext) -> float:
        """Return the mean of the narrowest known class, ns."""
        if quantity == "alone" and situation.tensors:
            # A foreach operator without launches is a loop on the host, over step counters.
            return situation.tensors * self.mean(quantity, situation.single_tensor)
        known = self.means[quantity]
        if situation.crossing == UNKNOWN_CROSSING:
            usual = self.crossings.get(situation.name, self.crossings[""])
            situation = replace(situation, crossing=usual)
        for key in reversed(situation.classes(quantity)):
            if key in known:
                return known[key] * situation.scale(quantity)
        return known[""] * situation.scale(quantity)


@cache
def shipped_table() -> HostTable:
    """Return the table shipped with the package."""
    return HostTable.from_json(json.loads(_DATA.read_text("utf-8")))


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Expected host times of captured calls and their uncertainty."""

    calls: tuple[HostTime, ...]
    """Mean times of each call, whose sum is the expected time of a step."""
    range: tuple[float, float]
    """Factors of all times over 90 % of machines."""

    @property
    def total_ns(self) -> float:
        """Sum over all calls, including launches."""
        return sum(call.total_ns for call in self.calls)


def log_ratios(table: HostTable, recorded: Sequence[RecordedCalls]) -> Array:
    """Return log ratios of measured to expected times by `GROUPS`; NaN if not measured.

    The median over classes, weighted by the time that is expected of each: a few slow places of a
    model move it little.
    """
    found = np.full(len(GROUPS), np.nan)
    for place, group in enumerate(GROUPS):
        sums: dict[tuple[str, CallContext], list[float]] = {}
        for quantity in (each for each, of in QUANTITIES.items() if of == group):
            for calls in recorded:
                for index, value in zip(*calls.times(quantity), strict=True):
                    situation = calls.call_contexts[int(index)]
                    entry = sums.setdefault((quantity, situation), [0.0, 0.0])
                    entry[0] += float(value)
                    entry[1] += table.mean(quantity, situation)
        if sums:
            measured, expected = np.array(list(sums.values())).T
            found[place] = weighted_median(np.log(np.maximum(measured, 1) / expected), expected)
    return found


def weighted_median(values: Array, weights: Array) -> float:
    """Return the weighted median."""
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order]) / weights.sum()
    place = min(int(np.searchsorted(shares, 0.5)), len(order) - 1)
    return float(values[order][place])


class HostModel:
    """Host times of captured calls on a machine.

    One that was not measured is in the middle of the table's machines; those of another age count
    `_OTHER_AGE`. With a profiler theirs are taken off first, else they stay in, as traces are made.

    Args:
        device: The GPU, whose age tells that of the processor.
        profiler: One of `PROFILERS`, "none" for a step that nobody records; by default what public
            traces were recorded with, mostly all that there is.
        table: Means and spreads; by default those of the package.

    Raises:
        OptionError: Nobody knows such a profiler.
    """

    def __init__(
        self,
        device: Device | None = None,
        profiler: str | None = None,
        *,
        table: HostTable | None = None,
    ) -> None:
        if profiler is not None and profiler not in PROFILERS:
            raise OptionError(f"no profiler {profiler!r}; there are: {', '.join(PROFILERS)}")
        self.table = shipped_table() if table is None else table
        machines = self.table.machines
        rows = np.array([machine.factors for machine in machines])
        if profiler is not None:
            theirs = np.array([PROFILERS[machine.profiler] for machine in machines])
            rows = rows + np.log(np.array(PROFILERS[profiler]) / theirs)
        recent = None if device is None else is_recent(device)
        weights = np.array([1.0 if recent in (None, m.is_recent) else _OTHER_AGE for m in machines])
        weights /= weights.sum()
        # The median, since some public traces are of machines or builds several times slower.
        middle = np.array([weighted_median(column, weights) for column in rows.T])
        off = rows - middle
        count = 1 / float(weights @ weights)
        # The median itself is uncertain with so few machines.
        more = (count + 1) / max(count - 1, 1.0)
        self.factors: Array = middle
        """Log factors of the machine by `GROUPS`, float64 [3]."""
        self.covariance: Array = (off.T * weights) @ off * more
        """Covariance of the log factors, float64 [3, 3]."""
        self._deviations: Array | None = off * sqrt(more)
        """Deviations of the table's machines, float64 [machines, 3]; None for a measured one."""
        self._weights: Array = weights

    def times(self, capture: Capture, launches_per_call: Sequence[int]) -> HostTimes:
        """Return the host times of every call, including views.

        Args:
            capture: A captured step.
            launches_per_call: Number of launches of each call.

        Raises:
            OptionError: There are not as many numbers as calls, or one is negative.
        """
        if len(launches_per_call) != len(capture.calls):
            raise OptionError(
                f"{len(capture.calls)} calls need as many numbers of launches, "
                f"not {len(launches_per_call)}"
            )
        if any(count < 0 for count in launches_per_call):
            raise OptionError("a call can't make less than no launch")
        found = tuple(call_contexts(capture.calls))
        return self.times_of(found, launches_per_call)

    def calibrated(self, recorded: Iterable[RecordedCalls], *, deviation: float = 0.0) -> HostModel:
        """Return the model of the machine and profiler that recorded these calls.

        How much of what they take more or less is the machine's, and not their model's own, follows
        from how far models differ on one machine.

        Args:
            recorded: Calls from `recorded_calls`; without any the model stays unchanged.
            deviation: Of the logarithm of what they take to what the machine does, where they are
                of another one.
        """
        ratios = log_ratios(self.table, list(recorded))
        is_seen = np.isfinite(ratios)
        if not is_seen.any():
            return self
        noise = self.table.model_covariance + np.diag(np.where(is_seen, deviation**2, _UNSEEN))
        gain = self.covariance @ np.linalg.inv(self.covariance + noise)
        found = copy(self)
        found._deviations = None  # spread to either side alike is all that is known behind it
        found.factors = self.factors + gain @ np.where(is_seen, ratios - self.factors, 0.0)
        found.covariance = self.covariance - gain @ self.covariance
        return found

    def without_profiler(self, recorded_with: str) -> HostModel:
        """Return the model of the same machine if nobody records.

        Args:
            recorded_with: One of `PROFILERS`, that of the calls behind a calibrated model.
        """
        found = copy(self)
        found.factors = self.factors + np.log(
            np.array(PROFILERS["none"]) / np.array(PROFILERS[recorded_with])
        )
        return found

    def times_of(self, calls: Sequence[CallContext], launches_per_call: Sequence[int]) -> HostTimes:
        """Return host times for calls known by their contexts alone."""
        factor = dict(zip(GROUPS, np.exp(self.factors).tolist(), strict=True))
        known: dict[tuple[str, CallContext], float] = {}

        def mean(quantity: str, of: CallContext) -> float:
            if (quantity, of) not in known:
                known[quantity, of] = self.table.mean(quantity, of) * factor[QUANTITIES[quantity]]
            return known[quantity, of]

        times = tuple(
            HostTime(
                before=mean("before", call) if call.last else 0.0,
                to_launch=mean("to_launch" if count else "alone", call),
                launches=(mean("launch", call),) * count,
                between=mean("between", call) if count > 1 else 0.0,
                after=mean("after", call) if count else 0.0,
            )
            for call, count in zip(calls, launches_per_call, strict=True)
        )
        return HostTimes(times, self._range(times))

    def _range(self, times: Sequence[HostTime]) -> tuple[float, float]:
        """Return the 90 % range relative to the sum, by the factors' shares of it."""
        gaps = sum(time.before for time in times)
        launches = sum(sum(time.launches) for time in times)
        total = sum(time.total_ns for time in times)
        if total <= 0:
            return 1.0, 1.0
        shares = np.array([gaps, total - gaps - launches, launches]) / total
        of_models = float(shares @ self.table.model_covariance @ shares)
        below = above = sqrt(float(shares @ self.covariance @ shares))
        if self._deviations is not None:
            # Hosts that are several times slower than the middle are as common as those that are a
            # third faster: one deviation for both would allow for what no machine does.
            off = self._deviations @ shares
            count = 1 / float(self._weights @ self._weights)
            both = _COMMON_SPREAD * float(self._weights @ off**2)
            slower, faster = (count * self._weights * side for side in (off > 0, off <= 0))
            below, above = (
                sqrt(float(each @ off**2 + both) / float(each.sum() + _COMMON_SPREAD))
                for each in (faster, slower)
            )
        down, up = (_SPREAD_SHARE * sqrt(each**2 + of_models) for each in (below, above))
        return exp(-TAIL * down), exp(TAIL * up)
