"""GPU work against what the duration models expect of it, and what that says of the models.

Models answer in this order: tables of measurements (products, copies, collectives); the work of an
operator over the peaks of the device; other kernels of the trace (Note [Own kernels]); the launch
alone. A unit of a known family always gets an answer. See docs/durations.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import JsonCodes, encode_texts
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.core.threads import map_on_threads
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.calibration import (
    TAIL,
    Calibration,
    KindTimes,
    fit_calibration,
    kernel_class,
)
from torchtraceap.ops.durations.collectives import estimate_collective
from torchtraceap.ops.durations.copies import estimate_copy
from torchtraceap.ops.durations.estimate import Estimate, Estimates, UnknownDurationError
from torchtraceap.ops.durations.families import estimate_works
from torchtraceap.ops.durations.operators import estimate_measured
from torchtraceap.ops.models import Work
from torchtraceap.tables.catalog import Option, TableSpec, check_choice
from torchtraceap.tables.gpu.gpu_events import masked_integers
from torchtraceap.tables.gpu.recorded_device import chosen_device, computing_type
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.ops.gpu_work import GpuWork, Kind, own_estimates
from torchtraceap.trace.ranks import RankTrace

__all__ = ["METHODS", "TABLE", "Expectation", "build_expected", "kind_times"]

METHODS = ("table", "work", "own", "launch", "none")
"""Sources of an estimate: measured tables, work over peaks, own kernels, the launch."""
_TABLE, _WORK, _OWN, _LAUNCH, _NONE = range(5)
# A collective in one rank's trace lasts from its own arrival: waiting for the last of the other
# ranks is in the measured time and in no table. A stated guess.
_WAITING = 10.0
# A thread of a grid moves a few numbers: bytes for each, and how far that is off. Stated guesses.
_THREAD_BYTES, _THREAD_START_NS, _LAUNCH_FACTOR = 24.0, 2500.0, 8.0
_ANY_NS, _ANY_FACTOR = 8000.0, 12.0
# From one device to another: own kernels by the ratio of the memories' rates, a stated guess; what
# a calibration says, as far as ratios of models were off on GPUs that they had not seen (11 to 16 %
# of fp32 kernels, docs/durations.md).
_OTHER_DEVICE_SD, _OTHER_MODEL_SD = 0.35, 0.15


class Expectation:
    """The expected time of every unit of a rank's GPU work.

    Args:
        part: The rank.
        device: A name of the device database or a `Device`; by default what the trace says.
        calibration: Ratios to apply to models, such as `fitted()` of this or another trace.
        known: bool `[units]`: units that others may be estimated from; by default all.
    """

    def __init__(
        self,
        part: RankTrace,
        device: Any = None,
        calibration: Calibration | None = None,
        known: Array | None = None,
    ) -> None:
        self.work, self._part = GpuWork(part), part
        self.device, self.note = chosen_device(part, device)
        self._recorded = chosen_device(part)[0]
        self._calibration, self._known = calibration, known

    @cached_property
    def _answers(self) -> _ModelAnswers:
        return _ModelAnswers(self.work.kinds, self.device)

    @property
    def classes(self) -> list[str]:
        """Names of what is calibrated together, `[kinds]`."""
        return self._answers.classes

    @cached_property
    def method(self) -> Array:
        """int64 `[units]`: index in `METHODS`."""
        own = np.isfinite(self._own.ns)
        rest = np.where([kind.family != "other" for kind in self.work.kinds], _LAUNCH, _NONE)
        found = np.where(own, _OWN, rest[self.work.kind])
        by_model = self._answers.method[self.work.kind]
        return np.where(by_model != _NONE, by_model, found)

    @cached_property
    def estimates(self) -> Estimates:
        """The estimate of each unit."""
        kinds, kind = self.work.kinds, self.work.kind
        by_model = self._answers.estimates
        if self._calibration is not None:
            by_model = Estimates.from_list(
                self._calibration.apply(by_model[at], self.classes[at], one.key, _op_of(one))
                for at, one in enumerate(kinds)
            )
            if self.is_elsewhere:
                by_model = _widened(by_model, _OTHER_MODEL_SD)
        nothing = Estimates.unknown(len(self.work), "no operator, name or family tells it")
        launches = self._answers.launches.take(kind)
        which = np.array([0, 0, 1, 2, 3])[self.method]
        return Estimates.choose(which, [by_model.take(kind), self._own, launches, nothing])

    @cached_property
    def _own(self) -> Estimates:
        own = own_estimates(self.work, self._known)
        there, here = self.device, self._recorded
        if there is None or here is None or not self.is_elsewhere:
            return own
        wider = _widened(own, _OTHER_DEVICE_SD)
        ratio = here.bandwidth / there.bandwidth
        says = f", by the rates of the memories of {here.name} and {there.name}"
        return Estimates(
            wider.ns * ratio,
            wider.low_ns * ratio,
            wider.high_ns * ratio,
            wider.source,
            tuple(source + says for source in wider.sources),
        )

    @property
    def is_elsewhere(self) -> bool:
        """True if another device is asked for than the one that the trace says."""
        there, here = self.device, self._recorded
        return there is not None and here is not None and there.id != here.id

    @cached_property
    def inside(self) -> Array:
        """bool `[units]`: the measured time lies in the interval."""
        found = self.estimates
        return (self.work.ns >= found.low_ns) & (self.work.ns <= found.high_ns)

    def kind_times(self) -> KindTimes:
        """Return measured and (not calibrated) estimated times of the kinds that a model knows."""
        work, units = self.work, np.arange(len(self.work))
        usable = (self._answers.method[work.kind] != _NONE) & (work.ns > 0)
        if self._known is not None:
            usable &= self._known
        units = units[usable]
        groups = Groups(work.kind[units])
        kinds = work.kind[units][groups.first]
        log_ns = np.log(work.ns[units].astype(np.float64))
        off = np.abs(log_ns - groups.median(log_ns)[groups.index])
        return KindTimes(
            kinds=[work.kinds[kind].key for kind in kinds.tolist()],
            classes=[self.classes[kind] for kind in kinds.tolist()],
            measured_ns=groups.median(work.ns[units]),
            spread=groups.quantile(off, 0.8) / TAIL,
            calls=groups.count,
            estimates=self._answers.estimates.take(kinds),
            names=[_op_of(work.kinds[kind]) for kind in kinds.tolist()],
        )

    def fitted(self) -> Calibration:
        """Return the ratios of this rank's measured to estimated times, on its own device."""
        if self.is_elsewhere:
            return Expectation(self._part, known=self._known).fitted()
        return fit_calibration(self.kind_times())


def kind_times(parts: Sequence[RankTrace]) -> KindTimes:
    """Return measured and estimated times of the kinds of several ranks."""
    return KindTimes.merge(map_on_threads(lambda part: Expectation(part).kind_times(), parts))


def _widened(estimates: Estimates, deviation: float) -> Estimates:
    """Add a deviation of the logarithm that is independent of what the intervals hold."""
    low, high = (
        np.exp(np.hypot(np.log(estimates.ns / bound), TAIL * deviation))
        for bound in (estimates.low_ns, estimates.high_ns)
    )
    return Estimates(
        estimates.ns,
        estimates.ns / low,
        estimates.ns * high,
        estimates.source,
        estimates.sources,
    )


class _ModelAnswers:
    """The answers of the models for each kind.

    Attributes:
        classes: Names of what is calibrated together, `[kinds]`.
        method: int64 `[kinds]`: `_TABLE`, `_WORK` or `_NONE`.
        estimates: `[kinds]`, NaN where no model answers.
        launches: `[kinds]`, from the grid alone: a guess with a wide interval.
    """

    def __init__(self, kinds: Sequence[Kind], device: Device | None) -> None:
        self.classes: list[str] = []
        types = []
        for kind in kinds:
            work = None if kind.call is None else kind.call.work
            dtype = "" if work is None else work.dtype
            if work is not None and kind.call is not None and device is not None:
                dtype = computing_type(work, device, kind.call.kernels)
            types.append(dtype)
            if kind.copy is not None:
                self.classes.append(" ".join(filter(None, (kind.family, *kind.copy[:2]))))
            elif kind.collective is not None:
                self.classes.append(f"{kind.family} {kind.collective.kind}")
            else:
                self.classes.append(kernel_class(kind.family, dtype))
        self.method = np.full(len(kinds), _NONE)
        threads = np.array([kind.threads for kind in kinds], dtype=np.float64)
        if device is None:
            self.estimates = Estimates.unknown(len(kinds), "the device is not known")
            self.launches = Estimates.within_factor(
                np.full(len(kinds), _ANY_NS), _ANY_FACTOR, "a kernel of any size on any device"
            )
            return
        by_work = _from_work(kinds, types, device)
        self.method[np.isfinite(by_work.ns)] = _WORK
        tables = [
            _from_table(kind, dtype, device) for kind, dtype in zip(kinds, types, strict=True)
        ]
        has_table = np.array([found is not None for found in tables], dtype=bool)
        self.method[has_table] = _TABLE
        nothing = Estimate(np.nan, np.nan, np.nan, "")
        self.estimates = Estimates.choose(
            np.where(has_table, 1, 0),
            [by_work, Estimates.from_list(found or nothing for found in tables)],
        )
        ns = _THREAD_START_NS + 1e9 * (threads * _THREAD_BYTES) / device.bandwidth
        known = np.isfinite(ns)
        self.launches = Estimates.within_factor(
            np.where(known, ns, _ANY_NS),
            np.where(known, _LAUNCH_FACTOR, _ANY_FACTOR),
            "the size of its launch alone",
        )


def _from_work(kinds: Sequence[Kind], types: Sequence[str], device: Device) -> Estimates:
    """Estimate kinds by their work over the peaks of a device."""
    works: list[Work | None] = []
    for kind in kinds:
        if kind.copy is None:
            works.append(None if kind.call is None else kind.call.work)
        else:
            direction, _, size = kind.copy
            works.append(Work(None, 0.0, size) if direction == "memset" and size > 0 else None)
    return estimate_works(
        [kind.family if work is not None else "communication"
         for kind, work in zip(kinds, works, strict=True)],
        np.array([np.nan if w is None or w.computed is None else w.computed for w in works]),
        np.array([np.nan if w is None else w.bytes for w in works]),
        types,
        device,
        units=["vector" if w is None else w.unit for w in works],
        kernels=np.array([kind.kernels for kind in kinds], dtype=np.float64),
        names=[kind.kernel for kind in kinds],
    )  # fmt: skip


def _from_table(kind: Kind, dtype: str, device: Device) -> Estimate | None:
    """Estimate a kind from tables of measurements; None where there is none for it."""
    try:
        if kind.copy is not None:
            direction, memory, size = kind.copy
            if direction == "memset" or not size > 0:
                return None
            if memory in ("Pinned", "Pageable"):
                return estimate_copy(size, direction, memory == "Pinned", device)
            pinned, pageable = (
                estimate_copy(size, direction, way, device) for way in (True, False)
            )
            # ROCm says "Host" of both.
            return Estimate(pageable.ns, pinned.low_ns, pageable.high_ns, pageable.source)
        if kind.collective is not None:
            collective = kind.collective
            if collective.size is None or collective.ranks < 2:
                return None
            found = estimate_collective(
                collective.kind, collective.size, collective.ranks, device, dtype=collective.dtype
            )
            says = f"{found.source}; how long this rank waits for the others is not known"
            return Estimate(found.ns, found.low_ns, found.high_ns * _WAITING, says)
        call = kind.op_call
        return None if call is None else estimate_measured(call, dtype, device, kind.kernels)
    except UnknownDurationError:
        return None


def _op_of(kind: Kind) -> str:
    """Return the operator; "" where there is none with known work."""
    return "" if kind.call is None else kind.call.name


# ------------------------------------------------------------------------------------ the table


def build_expected(
    part: RankTrace,
    device: Any = None,
    by: str = "args",
    calibrated: bool = False,
    calibration: Calibration | None = None,
) -> ColumnTable:
    """Build the table of `Trace.expected` for one rank.

    Returns:
        Columns as docs/durations.md lists them.

    Raises:
        OptionError: An unknown choice, or a device that is not known.
    """
    check_choice("by", by, TABLE.views)
    expectation = Expectation(part, device, calibration)
    if calibrated and calibration is None:
        expectation = Expectation(part, device, expectation.fitted())
    columns, shown = _VIEWS[by](expectation)
    work, method = expectation.work, expectation.method
    gpu_ns = total(work.ns)

    def share(mask: Array) -> float | None:
        return total(work.ns[mask]) / gpu_ns if gpu_ns else None

    elsewhere = expectation.is_elsewhere
    name = expectation.device.name if expectation.device else None
    answered, by_model = share(method != _NONE), share(method <= _WORK)
    inside = None if elsewhere else share(expectation.inside)
    facts = {
        "device": name,
        "gpu_ns": gpu_ns,
        "answered_share": answered,
        "model_share": by_model,
        "inside_share": inside,
        **{f"{way}_share": share(method == code) for code, way in enumerate(METHODS)},
    }
    notes = [expectation.note] if expectation.note else []
    said = (
        f"{(answered or 0) * 100:.0f} % of the GPU time has an estimate, "
        f"{(by_model or 0) * 100:.0f} % from a model"
    )
    if not len(work):
        notes.append("The trace has no GPU events.")
    elif elsewhere:
        notes.append(f"{said}: on {name}, where nothing of this was measured.")
    else:
        notes.append(
            f"{said}; the intervals, meant to hold 80 %, hold {(inside or 0) * 100:.0f} % of the "
            "time."
        )
    return ColumnTable(columns, shown=shown, facts=facts, notes=notes)


_View = tuple[dict[str, Any], tuple[str, ...]]
_TIMES = ("expected_ns", "low_ns", "high_ns")


def _by_args(expectation: Expectation) -> _View:
    work, found = expectation.work, expectation.estimates
    groups = Groups(work.kind)
    order = np.argsort(-groups.sum(work.ns), kind="stable")
    kinds = [work.kinds[i] for i in work.kind[groups.first][order].tolist()]
    first = groups.first[order]
    measured = groups.median(work.ns)[order]
    expected = {
        name: groups.median(values)[order]
        for name, values in zip(_TIMES, (found.ns, found.low_ns, found.high_ns), strict=True)
    }
    dims = encode_texts(kind.call.texts[0] if kind.call else None for kind in kinds)
    columns: dict[str, Any] = {
        "name": encode_texts(kind.name for kind in kinds),
        "family": encode_texts(kind.family for kind in kinds),
        "dims": JsonCodes(dims.codes, dims.texts),
        "kernel": encode_texts(kind.kernel for kind in kinds),
        "class": encode_texts(expectation.classes[i] for i in work.kind[first].tolist()),
        "count": groups.count[order],
        "gpu_ns": groups.sum(work.ns)[order],
        "median_ns": measured,
        **expected,
        "ratio": measured / expected["expected_ns"],
        "inside_share": _inside_share(expectation, groups)[order],
        "method": encode_texts(METHODS[i] for i in expectation.method[first].tolist()),
        "source": encode_texts(found.sources[i] for i in found.source[first].tolist()),
    }
    shown = ("name", "dims", "count", "gpu_ns", "median_ns", *_TIMES, "ratio", "method")
    return columns, shown


def _by_class(expectation: Expectation) -> _View:
    """Return a row for each class, with the ratios that `durations.calibrate` gives."""
    work, found = expectation.work, expectation.estimates
    codes = {name: code for code, name in enumerate(dict.fromkeys(expectation.classes))}
    of_kind = np.array([codes[name] for name in expectation.classes], dtype=np.int64)
    groups = Groups(of_kind[work.kind], expectation.method)
    order = np.argsort(-groups.sum(work.ns), kind="stable")
    first = groups.first[order]
    names = [expectation.classes[i] for i in work.kind[first].tolist()]
    ratios = expectation.fitted().classes
    is_model = expectation.method[first] <= _WORK
    fits = [ratios.get(name) if model else None
            for name, model in zip(names, is_model.tolist(), strict=True)]  # fmt: skip
    columns: dict[str, Any] = {
        "class": encode_texts(names),
        "method": encode_texts(METHODS[i] for i in expectation.method[first].tolist()),
        "count": groups.count[order],
        "gpu_ns": groups.sum(work.ns)[order],
        "expected_ns": groups.sum(found.ns)[order],
        "inside_share": _inside_share(expectation, groups)[order],
        "kinds": masked_integers([None if fit is None else fit.kinds for fit in fits]),
        "median_ratio": _floats([None if fit is None else fit.median for fit in fits]),
        "low_ratio": _floats([None if fit is None else fit.low for fit in fits]),
        "high_ratio": _floats([None if fit is None else fit.high for fit in fits]),
        "applied_ratio": _floats([None if fit is None else fit.ratio for fit in fits]),
        "few": np.array([fit is not None and fit.is_few for fit in fits], dtype=bool),
    }
    return columns, tuple(columns)


def _by_event(expectation: Expectation) -> _View:
    """Return each GPU event; a call's time is split among its kernels as the measured time is."""
    work, found, events = expectation.work, expectation.estimates, expectation.work.events
    length = events.duration_ns
    sums = np.bincount(work.unit, weights=length, minlength=len(work))[work.unit]
    share = np.where(sums > 0, length / np.where(sums > 0, sums, 1.0), 1.0)
    columns: dict[str, Any] = {
        "row": events.rows,
        "name": events.names,
        "op": events.op,
        "start_ns": events.start_ns,
        "gpu_ns": length,
        **{
            name: values[work.unit] * share
            for name, values in zip(_TIMES, (found.ns, found.low_ns, found.high_ns), strict=True)
        },
        "method": encode_texts(METHODS[i] for i in expectation.method[work.unit].tolist()),
    }
    return columns, tuple(name for name in columns if name != "start_ns")


_VIEWS = {"args": _by_args, "class": _by_class, "event": _by_event}


def _inside_share(expectation: Expectation, groups: Groups) -> Array:
    """Return the share of units inside their interval, NaN for another device than the trace's."""
    shares = groups.mean(expectation.inside.astype(np.float64))
    return np.full(len(shares), np.nan) if expectation.is_elsewhere else shares


def _floats(values: list[float | None]) -> Array:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


TABLE = TableSpec(
    build=build_expected,
    views=("args", "class", "event"),
    options=(
        Option(
            "device", "--device", "what is expected on this device, such as 'H100 SXM'",
            metavar="NAME",
        ),
        Option(
            "calibrated",
            "--calibrated",
            "apply the ratios of the trace's own kernels",
            kind="flag",
            default=False,
        ),
    ),
    sql={"expected": {}, "expected_by_class": {"by": "class"}},
    first={
        "args": ("name", "dims", "gpu_ns", "expected_ns", "ratio", "median_ns"),
        "class": ("class", "gpu_ns", "expected_ns", "median_ratio"),
        "event": ("name", "gpu_ns", "expected_ns", "method", "row"),
    },
)  # fmt: skip
