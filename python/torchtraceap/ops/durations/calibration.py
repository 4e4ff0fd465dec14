"""Calibrate duration models by a trace's own kernels: ratios of measured over estimated time.

A *kind* is a set of equal calls (one operator with the same arguments, one copy of the same size).
A *class* is a set of kinds whose model errors are likely to be alike (all bf16 products on a
device). The number of kinds, not of calls, decides how far the ratios of a class can be trusted,
because calls of one kind repeat each other.

Note [Likeness]
The model's interval implies a standard deviation `s` of the logarithm of the time. Of that variance
a part is common to a class (`_CLASS`), a part is shared by its kernels of similar size and fades
within a factor of e (`_SIZE`), a part is shared by the calls of one operator (`_OPERATOR`), and the
rest is specific to each kind. Large kernels therefore say little about small ones, whose time is
mostly startup, and a ratio moves away from 1 only as far as similar kinds support it. The ratio is
the best linear estimate under these covariances (kriging) with outliers weighted down (Student's
distribution). The spread of the residuals is weighed against `_PRIOR_KINDS` kinds of the model.

The kernels of another program support less (`for_other_program`), because traces of one program
share shapes, neighboring kernels and clocks. The shares were chosen on the public traces, each
calibrated by the other programs on its device (docs/results/durations.md).
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
"""Standard deviations on either side of the mean that hold 80 % of a normal distribution."""
# Shares of the variance, and the logarithm of the size ratio within which they fade.
_CLASS, _SIZE, _OPERATOR, _OWN = 0.15, 0.35, 0.15, 0.4
_SIZES_ALIKE = 1.0
_OF_OTHER_PROGRAM = 0.55
_PRIOR_KINDS = 4.0
# The least deviation of a well-measured kind, the degrees of freedom of Student's distribution, and
# the number of times that its weights are recomputed.
_LEAST_OWN, _FREEDOM, _ROUNDS = 0.05, 3.0, 3
# The most kinds of a class that are used, spread over the sizes.
_MOST_KINDS = 200
# Variance of a median over that of a mean, for normal values.
_MEDIAN_COST = np.pi / 2
# Deviation between calls of one kind due to clocks, caches and neighboring kernels. It is measured
# where kinds repeat; otherwise the first value is used. It is never below the second value.
_REPEATS_SD, _LEAST_SD = 0.1, 0.02
_ENOUGH_CALLS = 3
_FEW_KINDS = 5
_BY_TYPE = ("gemm", "grouped_gemm", "attention", "convolution")


def kernel_class(family: str, dtype: str) -> str:
    """Return the class of a kernel: its family, plus the type where that decides the unit used."""
    return f"{family} {dtype}".strip() if family.startswith(_BY_TYPE) else family


@dataclass(frozen=True, slots=True)
class KindTimes(Renderable):
    """Measured and estimated times of kinds; all sequences have one entry per kind."""

    kinds: Sequence[Hashable]
    classes: Sequence[str]
    measured_ns: FloatArray
    """float64 `[kinds]`: median over the calls."""
    spread: FloatArray
    """float64 `[kinds]`: standard deviation of the logarithm; NaN where there are too few calls."""
    calls: npt.NDArray[np.int64]
    estimates: Estimates
    names: Sequence[str] = ()
    """Names of the operators, "" where there is none; an empty sequence means no names at all."""

    @classmethod
    def merge(cls, parts: Sequence[KindTimes]) -> KindTimes:
        """Merge the kinds of several ranks.

        A kind that occurs on several ranks becomes one: its time is the median over the ranks with
        equal weights, its number of calls is the sum.
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
            estimates=Estimates.concatenate([part.estimates for part in parts]).take(first),
            names=[names[row] for row in first.tolist()],
        )


@dataclass(frozen=True, slots=True)
class ClassRatio(Renderable):
    """Ratio of measured over estimated time of one class."""

    name: str
    median: float
    """Median over the kinds."""
    low: float
    """10th percentile over the kinds."""
    high: float
    """90th percentile over the kinds."""
    kinds: int
    calls: int
    ratio: float
    """Factor for an estimate of median size, as far as the kinds support it."""
    deviation: float
    """Standard deviation of the logarithm of a new kind's ratio around that factor."""

    @property
    def is_few(self) -> bool:
        """True if there are too few kinds to rely on; the ratio then stays near 1."""
        return self.kinds < _FEW_KINDS


@dataclass(frozen=True, slots=True)
class _KindRatio:
    """Ratio of one kind beyond what its class predicts."""

    log_ratio: float
    variance: float
    repeats: float
    """Standard deviation of the logarithm from call to call."""


@dataclass(frozen=True, slots=True)
class _Likeness:
    """Covariances of the `k` kinds of a class; see Note [Likeness]."""

    log_ns: FloatArray
    """`[k]`: logarithms of the estimates."""
    deviation: float
    """Median over the kinds of the deviation that the model's interval implies."""
    names: npt.NDArray[np.str_]
    """`[k]`: names of the operators."""
    inverse: FloatArray
    """`[k, k]`: inverse of the covariance of the ratios."""
    weighted: FloatArray
    """`[k]`: the inverse times the logarithms of the ratios."""
    spread: float
    """Observed variance specific to a kind over the variance that the model's interval implies."""
    transfer: float
    """Share of the common part that carries over to the program in question."""

    @classmethod
    def fit(
        cls, log_ns: FloatArray, deviation: FloatArray, names: Sequence[str],
        log_ratio: FloatArray, transfer: float,
    ) -> _Likeness:  # fmt: skip
        """Fit the likeness to the ratios of measured kinds, arrays `[k]`."""
        operators, common = np.array(names, dtype=np.str_), float(np.median(deviation))
        alike = common**2 * _alike(log_ns, operators, log_ns, operators)
        own = _OWN * deviation**2 + _LEAST_OWN**2
        inverse = _inverse(alike, own)
        weighted = inverse @ log_ratio
        # Leave-one-out residuals: each kind against the prediction from the others.
        seen = np.quantile(weighted**2 / np.diag(inverse), 0.8) / TAIL**2
        for _ in range(_ROUNDS):
            left = (log_ratio - alike @ weighted) ** 2 / own
            inverse = _inverse(alike, own * (_FREEDOM + left) / (_FREEDOM + 1.0))
            weighted = inverse @ log_ratio
        spread = (_PRIOR_KINDS + len(own) * float(seen)) / (_PRIOR_KINDS + len(own))
        # Student's distribution has wider tails if the spread rests on few kinds.
        wider = 1.0 + (TAIL**2 + 1.0) / (4.0 * (_PRIOR_KINDS + len(own)))
        return cls(log_ns, common, operators, inverse, weighted, spread * wider**2, transfer)

    def ratio(self, log_ns: float, deviation: float, name: str) -> tuple[float, float]:
        """Return the logarithm of the ratio of another kind, and its variance."""
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
    """Return the share of the variance that pairs of kinds have in common, `[n, k]`."""
    near = np.exp(-0.5 * ((log_ns[:, None] - other_ns[None, :]) / _SIZES_ALIKE) ** 2)
    same = (names[:, None] == other_names[None, :]) & (names[:, None] != "")
    return np.asarray(_CLASS + _SIZE * near + _OPERATOR * near * same)


class Measured(Protocol):
    """An object with measured and estimated kernel times, such as a `torchtraceap.Trace`."""

    def kind_times(self, rank: int | None = None) -> KindTimes: ...


@dataclass(frozen=True, repr=False)
class Calibration(Renderable):
    """Ratios of a trace's measured to estimated times, passed to functions that estimate.

    It is displayed as a table of the ratios with the number of kinds and calls behind each.
    """

    classes: Mapping[str, ClassRatio]
    """Ratios by name of the class, in descending order of the number of kinds."""
    kinds: Mapping[Hashable, _KindRatio]
    likeness: Mapping[str, _Likeness]
    """Covariances by name of the class."""

    def apply(self, estimate: Estimate, name: str, kind: Hashable = None, op: str = "") -> Estimate:
        """Correct an estimate by the ratios of this trace.

        Args:
            estimate: Estimate of a model.
            name: Name of its class (see `kernel_class`).
            kind: Kind of the call, if the trace may contain it.
            op: Name of the operator, if known.

        Returns:
            The corrected estimate, or the estimate itself if the trace has no kind of the class.
        """
        found = self.classes.get(name)
        if found is None or not np.isfinite(estimate.ns):
            return estimate
        deviation = float(_deviation(estimate.low_ns, estimate.high_ns))
        log_ns = float(np.log(estimate.ns))
        moved, variance = self.likeness[name].ratio(log_ns, deviation, op)
        log_ns += moved
        count = f"{found.kinds} kind{'' if found.kinds == 1 else 's'}"
        says = f"x {np.exp(moved):.2f}: {count} of this trace's {name}"
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
        """Return the ratios as plain values by class."""
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
    """Return the ratios of measured over estimated times of a trace's own kernels, by class.

    Args:
        trace: A loaded trace.
        rank: Rank to use; all ranks by default.
    """
    return fit_calibration(trace.kind_times(rank))


def fit_calibration(times: KindTimes, *, for_other_program: bool = False) -> Calibration:
    """Fit a calibration to measured and estimated times of kinds; see Note [Likeness].

    Args:
        times: Times of the kinds of one program.
        for_other_program: The calibration will be applied to a different program.
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
    transfer = _OF_OTHER_PROGRAM if for_other_program else 1.0
    for name, places in sorted(members.items(), key=lambda item: (-len(item[1]), item[0])):
        rows = np.array(places)
        some = _sample_kinds(rows, log_ns)
        found = likeness[name] = _Likeness.fit(
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
        spread = times.spread[rows]
        spread = spread[(times.calls[rows] >= _ENOUGH_CALLS) & np.isfinite(spread)]
        repeats = max(float(np.median(spread)), _LEAST_SD) if len(spread) else _REPEATS_SD
        for place in places:
            calls = float(times.calls[place])
            said, _ = found.ratio(float(log_ns[place]), float(deviation[place]), names[place])
            kinds[times.kinds[place]] = _KindRatio(
                float(log_ratio[place]) - said, _MEDIAN_COST * repeats**2 / calls, repeats
            )
    return Calibration(*(MappingProxyType(found) for found in (classes, kinds, likeness)))


def _sample_kinds(rows: npt.NDArray[np.int64], log_ns: FloatArray) -> npt.NDArray[np.int64]:
    """Return at most `_MOST_KINDS` of the rows, spread evenly over the sizes."""
    if len(rows) <= _MOST_KINDS:
        return rows
    chosen = np.linspace(0, len(rows) - 1, _MOST_KINDS).round().astype(np.int64)
    return rows[np.argsort(log_ns[rows], kind="stable")][chosen]


def _deviation(low_ns: Any, high_ns: Any) -> Any:
    """Return the standard deviation of the logarithm that an interval implies."""
    return np.maximum(np.log(high_ns / low_ns) / (2.0 * TAIL), _LEAST_SD)
