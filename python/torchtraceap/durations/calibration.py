"""What the user's own kernels say of the models: ratios of measured over estimated time.

A *kind* is what is asked alike (one operator with the same arguments, one copy of the same size);
a *class* is what a model is likely to miss in the same way (all bf16 products of a device). How
far the ratios of a class can be trusted depends on how many kinds it has: calls of one kind repeat
each other.

Note [Shrinking]: the model's interval says how far its logarithm may be off, a deviation `s`. Half
of that variance is taken to be common to a class, half to be each kind's own. Both halves are the
prior that the kinds of the trace move: the common part by the median of their ratios, the other by
their spread, which counts against `_PRIOR_KINDS` kinds of the prior. So one kind moves a class
little, twenty decide it, and an interval is never narrower than they support.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torchtraceap.durations.estimate import Estimate, Estimates
from torchtraceap.records import dataclass
from torchtraceap.rendering import Shown

__all__ = [
    "Calibration",
    "ClassRatio",
    "KindTimes",
    "calibrate",
    "fit_calibration",
    "kernel_class",
]

FloatArray = npt.NDArray[np.float64]

TAIL = 1.2816
"""Standard deviations of a normal distribution to either side that hold 80 %."""
_COMMON_SHARE = 0.5
_PRIOR_KINDS = 4.0
# Variance of a median over that of a mean, for normal values.
_MEDIAN_COST = np.pi / 2
# Calls of one kind: what clocks, caches and neighbours change from call to call. Traces where
# kinds repeat say it themselves; with no repetition it is taken to be the first, never below the
# second.
_REPEATS_SD, _LEAST_SD = 0.1, 0.02
_ENOUGH_CALLS = 3
_FEW_KINDS = 5
_BY_TYPE = ("gemm", "grouped_gemm", "attention", "convolution")


def kernel_class(family: str, dtype: str) -> str:
    """The class of a kernel: its family, with the type where that decides which units compute."""
    return f"{family} {dtype}".strip() if family.startswith(_BY_TYPE) else family


@dataclass(frozen=True, slots=True)
class KindTimes(Shown):
    """Kinds that were measured and estimated; all sequences have one entry per kind."""

    kinds: Sequence[Hashable]
    classes: Sequence[str]
    measured_ns: FloatArray
    """Median over the calls."""
    spread: FloatArray
    """Standard deviation of the logarithm over the calls; NaN where there are too few."""
    calls: npt.NDArray[np.int64]
    estimates: Estimates

    @classmethod
    def pooled(cls, parts: Sequence[KindTimes]) -> KindTimes:
        """Those of several ranks: a kind that several have is one kind, not several.

        Its time is the median of theirs, weighted alike; its calls are those of all.
        """
        places: dict[Hashable, list[int]] = {}
        for place, kind in enumerate(kind for part in parts for kind in part.kinds):
            places.setdefault(kind, []).append(place)
        first = np.array([rows[0] for rows in places.values()], dtype=np.int64)
        classes = [name for part in parts for name in part.classes]
        columns = (
            np.concatenate([np.empty(0), *(getattr(part, name) for part in parts)])
            for name in ("measured_ns", "spread", "calls")
        )
        measured, spread, calls = columns
        groups = [np.array(rows, dtype=np.int64) for rows in places.values()]
        return cls(
            kinds=list(places),
            classes=[classes[row] for row in first.tolist()],
            measured_ns=np.array([np.median(measured[rows]) for rows in groups]),
            spread=np.array([np.median(spread[rows]) for rows in groups]),
            calls=np.array([calls[rows].sum() for rows in groups], dtype=np.int64),
            estimates=Estimates.joined([part.estimates for part in parts]).take(first),
        )


@dataclass(frozen=True, slots=True)
class ClassRatio(Shown):
    """Measured over estimated time of one class."""

    name: str
    median: float
    """Of the kinds."""
    low: float
    """A tenth of the kinds had less."""
    high: float
    kinds: int
    calls: int
    ratio: float
    """What an estimate is multiplied with: the median, as far as so many kinds support it."""
    deviation: float
    """Standard deviation of the logarithm of a new kind's ratio around it."""

    @property
    def is_few(self) -> bool:
        """Too few kinds to rely on: the ratio stays near that of the model."""
        return self.kinds < _FEW_KINDS


@dataclass(frozen=True, slots=True)
class _KindRatio:
    log_ratio: float
    """Against the class's own ratio."""
    variance: float
    repeats: float
    """Standard deviation from call to call."""


class Measured(Protocol):
    """What has kernels with measured and estimated times: a `torchtraceap.Trace`."""

    def kind_times(self, rank: int | None = None) -> KindTimes: ...


@dataclass(frozen=True, repr=False)
class Calibration(Shown):
    """Ratios of a trace's measured to estimated times, to be handed to the functions that ask.

    Shows itself as a table of them, with the number of kinds and calls behind each.
    """

    classes: Mapping[str, ClassRatio]
    """By name, the most kinds first."""
    kinds: Mapping[Hashable, _KindRatio]

    def applied(self, estimate: Estimate, name: str, kind: Hashable = None) -> Estimate:
        """An estimate as this trace would have it.

        Args:
            estimate: Of a model.
            name: Its class (`kernel_class`).
            kind: The very kind of call, if the trace may hold it.

        Returns:
            The estimate itself where the trace has nothing of the class.
        """
        found = self.classes.get(name)
        if found is None or not np.isfinite(estimate.ns):
            return estimate
        log_ns, variance = np.log(estimate.ns * found.ratio), found.deviation**2
        says = f"x {found.ratio:.2f}: {_count(found.kinds, 'kind')} of this trace's {name}"
        own = self.kinds.get(kind) if kind is not None else None
        if own is not None:
            weight = variance / (variance + own.variance)
            log_ns += weight * own.log_ratio
            variance = (1.0 - weight) * variance + own.repeats**2
            says = "this very call in the trace, and " + says
        factor = float(np.exp(TAIL * np.sqrt(variance)))
        ns = float(np.exp(log_ns))
        return Estimate(ns, ns / factor, ns * factor, f"{estimate.source}; {says}")

    def to_dict(self) -> dict[str, Any]:
        """The ratios as plain values."""
        return {
            name: {
                "ratio": one.ratio, "median": one.median, "low": one.low, "high": one.high,
                "kinds": one.kinds, "calls": one.calls, "deviation": one.deviation,
                "is_few": one.is_few,
            }
            for name, one in self.classes.items()
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"Calibration(classes={len(self.classes)}, kinds={len(self.kinds)})"


def calibrate(trace: Measured, rank: int | None = None) -> Calibration:
    """Measured over estimated times of a trace's own kernels, by class.

    Args:
        trace: A loaded trace.
        rank: Only this one of several ranks.
    """
    return fit_calibration(trace.kind_times(rank))


def fit_calibration(times: KindTimes) -> Calibration:
    """The ratios of kinds that were measured and estimated; see Note [Shrinking]."""
    estimates = times.estimates
    usable = np.isfinite(estimates.ns) & (estimates.low_ns > 0) & (times.measured_ns > 0)
    low_ns, high_ns = (np.where(usable, x, 1.0) for x in (estimates.low_ns, estimates.high_ns))
    deviation = _deviation(low_ns, high_ns)
    plain = np.where(usable, times.measured_ns, 1.0) / np.where(usable, estimates.ns, 1.0)
    log_ratio = np.log(plain)
    members: dict[str, list[int]] = {}
    for place in np.flatnonzero(usable).tolist():
        members.setdefault(times.classes[place], []).append(place)
    classes: dict[str, ClassRatio] = {}
    kinds: dict[Hashable, _KindRatio] = {}
    for name, places in sorted(members.items(), key=lambda item: (-len(item[1]), item[0])):
        rows = np.array(places)
        common, spread = _posterior(log_ratio[rows], deviation[rows])
        low, median, high = np.quantile(plain[rows], (0.1, 0.5, 0.9)).tolist()
        classes[name] = ClassRatio(
            name, median, low, high, len(rows), int(times.calls[rows].sum()),
            float(np.exp(common)), spread,
        )  # fmt: skip
        repeats = _repeats(times.spread[rows], times.calls[rows])
        for place in places:
            calls = float(times.calls[place])
            kinds[times.kinds[place]] = _KindRatio(
                float(log_ratio[place] - common), _MEDIAN_COST * repeats**2 / calls, repeats
            )
    return Calibration(MappingProxyType(classes), MappingProxyType(kinds))


def _deviation(low_ns: Any, high_ns: Any) -> Any:
    """Of the logarithm, by an interval."""
    return np.maximum(np.log(high_ns / low_ns) / (2.0 * TAIL), _LEAST_SD)


def _posterior(log_ratios: FloatArray, deviations: FloatArray) -> tuple[float, float]:
    """The common part of a class, and the deviation of a new kind around it."""
    prior = float(np.median(deviations)) ** 2
    count = len(log_ratios)
    median = float(np.median(log_ratios))
    seen = (np.quantile(np.abs(log_ratios - median), 0.8) / TAIL) ** 2
    own = (_PRIOR_KINDS * (1 - _COMMON_SHARE) * prior + count * seen) / (_PRIOR_KINDS + count)
    doubt, common = _MEDIAN_COST * own / count, _COMMON_SHARE * prior
    weight = common / (common + doubt)
    # The tails of Student's distribution where the spread rests on few kinds.
    wider = 1.0 + (TAIL**2 + 1.0) / (4.0 * (_PRIOR_KINDS + count))
    return weight * median, wider * float(np.sqrt(own + (1 - weight) * common))


def _repeats(spread: FloatArray, calls: npt.NDArray[np.int64]) -> float:
    told = spread[(calls >= _ENOUGH_CALLS) & np.isfinite(spread)]
    return max(float(np.median(told)), _LEAST_SD) if len(told) else _REPEATS_SD


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
