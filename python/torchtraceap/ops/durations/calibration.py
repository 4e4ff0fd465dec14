"""What the user's own kernels say of the models: ratios of measured over estimated time.

A *kind* is what is asked alike (one operator with the same arguments, one copy of the same size);
a *class* is what a model is likely to miss in the same way (all bf16 products of a device). How
far the ratios of a class can be trusted depends on how many kinds it has: calls of one kind repeat
each other.

Note [Likeness]
The model's interval says how far its logarithm may be off, a deviation `s`. Of that variance a part
is common to a class (`_CLASS`), a part is that of its kernels of one size and fades within a factor
of e (`_SIZE`), a part is that of one operator (`_OPERATOR`), and the rest is each kind's own. So
what large kernels say of small ones, whose time is mostly their start, is little, and a ratio moves
from 1 as far as kinds that are alike support it: the best linear estimate under these covariances
(kriging), in which a kind that is far from the others counts less (Student's distribution). The
spread of what remains counts against `_PRIOR_KINDS` kinds of the model's.

Of another program's kernels less can be told (`of_other_program`): traces of a program have in
common what its shapes, neighbours and clocks do. The parts were chosen on the public traces, each
calibrated by the other programs on its device (docs/durations.md).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable
from torchtraceap.ops.durations.estimate import Estimate, Estimates

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
# See Note [Likeness]: shares of the variance, and the logarithm within which size counts.
_CLASS, _SIZE, _OPERATOR, _OWN = 0.15, 0.35, 0.15, 0.4
_SIZES_ALIKE = 1.0
_OF_OTHER_PROGRAM = 0.55
_PRIOR_KINDS = 4.0
# What a kind that is measured well may be off all the same; degrees of freedom of Student's
# distribution, and how often its weights are found anew.
_LEAST_OWN, _FREEDOM, _ROUNDS = 0.05, 3.0, 3
# Kinds of a class that are looked at, spread over the sizes.
_MOST_KINDS = 200
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
class KindTimes(Renderable):
    """Kinds that were measured and estimated; all sequences have one entry per kind."""

    kinds: Sequence[Hashable]
    classes: Sequence[str]
    measured_ns: FloatArray
    """Median over the calls."""
    spread: FloatArray
    """Standard deviation of the logarithm over the calls; NaN where there are too few."""
    calls: npt.NDArray[np.int64]
    estimates: Estimates
    names: Sequence[str] = ()
    """Of the operators, "" where there is none; empty: of none of them."""

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
        names = [name for part in parts for name in part.names or [""] * len(part.kinds)]
        return cls(
            kinds=list(places),
            classes=[classes[row] for row in first.tolist()],
            measured_ns=np.array([np.median(measured[rows]) for rows in groups]),
            spread=np.array([np.median(spread[rows]) for rows in groups]),
            calls=np.array([calls[rows].sum() for rows in groups], dtype=np.int64),
            estimates=Estimates.joined([part.estimates for part in parts]).take(first),
            names=[names[row] for row in first.tolist()],
        )


@dataclass(frozen=True, slots=True)
class ClassRatio(Renderable):
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
    """What an estimate of the kinds' middle size is multiplied with, as far as they support it."""
    deviation: float
    """Standard deviation of the logarithm of such a new kind's ratio around it."""

    @property
    def is_few(self) -> bool:
        """Too few kinds to rely on: the ratio stays near that of the model."""
        return self.kinds < _FEW_KINDS


@dataclass(frozen=True, slots=True)
class _KindRatio:
    log_ratio: float
    """Against what the class says of it."""
    variance: float
    repeats: float
    """Standard deviation from call to call."""


@dataclass(frozen=True, slots=True)
class _Likeness:
    """The kinds of a class, for Note [Likeness]; arrays `[k]` but for the inverse, `[k, k]`."""

    log_ns: FloatArray
    """Of the estimates."""
    deviation: float
    """What the model's intervals of the class say, by their median."""
    names: npt.NDArray[np.str_]
    inverse: FloatArray
    """Of the covariance of their ratios."""
    weighted: FloatArray
    """The inverse times the ratios."""
    spread: float
    """Variance of what is each kind's own, over what the model's interval says."""
    transfer: float
    """Of how much of what is common is also another program's."""

    @classmethod
    def of(
        cls, log_ns: FloatArray, deviation: FloatArray, names: Sequence[str],
        log_ratio: FloatArray, transfer: float,
    ) -> _Likeness:  # fmt: skip
        """From the ratios of kinds that were measured."""
        operators, common = np.array(names, dtype=np.str_), float(np.median(deviation))
        alike = common**2 * _alike(log_ns, operators, log_ns, operators)
        own = _OWN * deviation**2 + _LEAST_OWN**2
        inverse = _inverse(alike, own)
        weighted = inverse @ log_ratio
        # Each kind against what the others say of it.
        seen = np.quantile(weighted**2 / np.diag(inverse), 0.8) / TAIL**2
        for _ in range(_ROUNDS):
            left = (log_ratio - alike @ weighted) ** 2 / own
            inverse = _inverse(alike, own * (_FREEDOM + left) / (_FREEDOM + 1.0))
            weighted = inverse @ log_ratio
        spread = (_PRIOR_KINDS + len(own) * float(seen)) / (_PRIOR_KINDS + len(own))
        # The tails of Student's distribution where the spread rests on few kinds.
        wider = 1.0 + (TAIL**2 + 1.0) / (4.0 * (_PRIOR_KINDS + len(own)))
        return cls(log_ns, common, operators, inverse, weighted, spread * wider**2, transfer)

    def ratio(self, log_ns: float, deviation: float, name: str) -> tuple[float, float]:
        """Logarithm of the ratio of another kind, and its variance."""
        asked = np.array([log_ns]), np.array([name], dtype=np.str_)
        (shares,) = _alike(*asked, self.log_ns, self.names)
        alike = self.transfer * self.deviation**2 * shares
        common = (_CLASS + _SIZE + _OPERATOR) * self.deviation**2
        own = (_OWN * deviation**2 + _LEAST_OWN**2) * self.spread
        left = max(common - float(alike @ self.inverse @ alike), 0.0)
        return float(alike @ self.weighted), left + own


def _inverse(common: FloatArray, own: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.inv(common + np.diag(own)), dtype=np.float64)


def _alike(
    log_ns: FloatArray,
    names: npt.NDArray[np.str_],
    other_ns: FloatArray,
    other_names: npt.NDArray[np.str_],
) -> FloatArray:
    """What share of the variance kinds of a class have in common, `[n, k]`."""
    near = np.exp(-0.5 * ((log_ns[:, None] - other_ns[None, :]) / _SIZES_ALIKE) ** 2)
    same = (names[:, None] == other_names[None, :]) & (names[:, None] != "")
    return np.asarray(_CLASS + _SIZE * near + _OPERATOR * near * same)


class Measured(Protocol):
    """What has kernels with measured and estimated times: a `torchtraceap.Trace`."""

    def kind_times(self, rank: int | None = None) -> KindTimes: ...


@dataclass(frozen=True, repr=False)
class Calibration(Renderable):
    """Ratios of a trace's measured to estimated times, to be handed to the functions that ask.

    Shows itself as a table of them, with the number of kinds and calls behind each.
    """

    classes: Mapping[str, ClassRatio]
    """By name, the most kinds first."""
    kinds: Mapping[Hashable, _KindRatio]
    likeness: Mapping[str, _Likeness]
    """By name of the class."""

    def applied(
        self, estimate: Estimate, name: str, kind: Hashable = None, op: str = ""
    ) -> Estimate:
        """An estimate as this trace would have it.

        Args:
            estimate: Of a model.
            name: Its class (`kernel_class`).
            kind: The very kind of call, if the trace may hold it.
            op: The operator, where it is known.

        Returns:
            The estimate itself where the trace has nothing of the class.
        """
        found = self.classes.get(name)
        if found is None or not np.isfinite(estimate.ns):
            return estimate
        deviation = float(_deviation(estimate.low_ns, estimate.high_ns))
        log_ns = float(np.log(estimate.ns))
        moved, variance = self.likeness[name].ratio(log_ns, deviation, op)
        log_ns += moved
        says = f"x {np.exp(moved):.2f}: {_count(found.kinds, 'kind')} of this trace's {name}"
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


def fit_calibration(times: KindTimes, *, of_other_program: bool = False) -> Calibration:
    """The ratios of kinds that were measured and estimated; see Note [Likeness].

    Args:
        times: Of one program.
        of_other_program: It is used for another program than theirs.
    """
    estimates = times.estimates
    usable = np.isfinite(estimates.ns) & (estimates.low_ns > 0) & (times.measured_ns > 0)
    low_ns, high_ns = (np.where(usable, x, 1.0) for x in (estimates.low_ns, estimates.high_ns))
    deviation = _deviation(low_ns, high_ns)
    told = np.where(usable, estimates.ns, 1.0)
    plain = np.where(usable, times.measured_ns, 1.0) / told
    log_ratio, log_ns = np.log(plain), np.log(told)
    names = list(times.names) or [""] * len(times.kinds)
    members: dict[str, list[int]] = {}
    for place in np.flatnonzero(usable).tolist():
        members.setdefault(times.classes[place], []).append(place)
    classes: dict[str, ClassRatio] = {}
    kinds: dict[Hashable, _KindRatio] = {}
    likeness: dict[str, _Likeness] = {}
    transfer = _OF_OTHER_PROGRAM if of_other_program else 1.0
    for name, places in sorted(members.items(), key=lambda item: (-len(item[1]), item[0])):
        rows = np.array(places)
        some = _spread_over(rows, log_ns)
        found = likeness[name] = _Likeness.of(
            log_ns[some], deviation[some], [names[row] for row in some.tolist()],
            log_ratio[some], transfer,
        )  # fmt: skip
        low, median, high = np.quantile(plain[rows], (0.1, 0.5, 0.9)).tolist()
        middle = float(np.median(log_ns[rows])), float(np.median(deviation[rows]))
        moved, variance = found.ratio(*middle, "")
        classes[name] = ClassRatio(
            name, median, low, high, len(rows), int(times.calls[rows].sum()),
            float(np.exp(moved)), float(np.sqrt(variance)),
        )  # fmt: skip
        repeats = _repeats(times.spread[rows], times.calls[rows])
        for place in places:
            calls = float(times.calls[place])
            said, _ = found.ratio(float(log_ns[place]), float(deviation[place]), names[place])
            kinds[times.kinds[place]] = _KindRatio(
                float(log_ratio[place]) - said, _MEDIAN_COST * repeats**2 / calls, repeats
            )
    return Calibration(*(MappingProxyType(found) for found in (classes, kinds, likeness)))


def _spread_over(rows: npt.NDArray[np.int64], log_ns: FloatArray) -> npt.NDArray[np.int64]:
    """At most so many of them, of all sizes."""
    if len(rows) <= _MOST_KINDS:
        return rows
    chosen = np.linspace(0, len(rows) - 1, _MOST_KINDS).round().astype(np.int64)
    return rows[np.argsort(log_ns[rows], kind="stable")][chosen]


def _deviation(low_ns: Any, high_ns: Any) -> Any:
    """Of the logarithm, by an interval."""
    return np.maximum(np.log(high_ns / low_ns) / (2.0 * TAIL), _LEAST_SD)


def _repeats(spread: FloatArray, calls: npt.NDArray[np.int64]) -> float:
    told = spread[(calls >= _ENOUGH_CALLS) & np.isfinite(spread)]
    return max(float(np.median(told)), _LEAST_SD) if len(told) else _REPEATS_SD


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
