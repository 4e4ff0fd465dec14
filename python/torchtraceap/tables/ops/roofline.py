"""How fast operators run, and how fast the device could run them.

Every GPU event goes to the innermost operator above it that has a model, so that none counts
twice. What one call of that operator computes and moves comes from `torchtraceap.ops.models`, what
the device can do from `torchtraceap.ops.devices`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import JsonCodes, TextCodes, encode_texts
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.ops.devices import Device
from torchtraceap.ops.models import Work, family_of
from torchtraceap.tables.catalog import Option, PageView, TableSpec, check_choice
from torchtraceap.tables.gpu.recorded_device import chosen_device
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.ops.calls import (
    MOST_KERNELS,
    Calls,
    GpuCalls,
    KindOfCall,
    Texts,
    reason_of,
)
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "attainable_ns", "build_roofline", "computing_type", "peak_of"]

_NO_TEXTS: Texts = (None, None, None, None)
_COMPAT = (None, "tracelens")
# Data of up to so many times the L2 cache can still gain from it visibly.
_CACHED = 4
_ON_THE_DEVICE = (_core.CopyDirection.DEVICE_TO_DEVICE, _core.CopyDirection.UNKNOWN)
_SHOWS_TF32 = re.compile(r"tf32|s1688|xf32|_S_MX_|_S_B_X_", re.IGNORECASE)
_SHOWS_FP32 = re.compile(
    r"sgemm|scudnn|_simt_|gemv|f32f32_f32f32|dot_kernel|winograd", re.IGNORECASE
)
_PER_CALL_NOTE = "flops, bytes and roofline_ns are of one call."
_BYTES_NOTE = "Bytes count each tensor once: they are the least that must move."


@dataclass(frozen=True, slots=True)
class _Attainable:
    """What a device needs for some work, at least."""

    ns: float = float("nan")
    bound: str | None = None
    peak: str | None = None


@dataclass
class _Rates:
    """The device of a trace, or why there is none."""

    device: Device | None
    note: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


def build_roofline(
    part: RankTrace, device: Any = None, by: str = "args", compat: str | None = None
) -> ColumnTable:
    """FLOPs, bytes, achieved and attainable rates of operators.

    Args:
        part: The rank.
        device: A name of the device database or a `Device`; by default what the trace says.
        by: "args" (a row per operator and unique arguments), "family", or "call" (every call; in
            a trace without GPU events those of the CPU, with host time and without rates).
        compat: "tracelens" for the FLOPs and bytes of TraceLens's models; these have no peaks.

    Raises:
        OptionError: An unknown choice, or a device that is not known.
    """
    check_choice("by", by, TABLE.views)
    if compat not in _COMPAT:
        raise OptionError(f"compat must be tracelens or left out, not {compat!r}")
    rates = _rates_of(part, device)
    calls = Calls(part, compat)
    on_gpu = GpuCalls(part, calls)
    if not len(on_gpu.rows) and by == "call":
        return _host_table(calls)
    rows = _RowTable(part, calls, on_gpu, rates)
    return rows.by_family() if by == "family" else rows.by_arguments(each_call=by == "call")


def attainable_ns(work: Work, device: Device, kernels: Sequence[str] = ()) -> tuple[float, str]:
    """The least time for some work on a device, ns, and what bounds it.

    Args:
        work: FLOPs and bytes.
        device: With its peak rates.
        kernels: Names of the kernels, which tell tf32 from fp32.

    Returns:
        NaN and an empty text where the device has no rate for the type.
    """
    found = _attainable(work, device, kernels)
    return found.ns, found.bound or ""


# ------------------------------------------------------------------------------- the device


def _rates_of(part: RankTrace, device: Any) -> _Rates:
    found, note = chosen_device(part, device)
    return _Rates(None, note) if found is None else _described(found, note)


def _described(device: Device, note: str) -> _Rates:
    facts = {
        "device": device.name,
        "device_id": device.id,
        "bandwidth_tbps": device.bandwidth / 1e12,
        "matrix_tflops": {name: rate / 1e12 for name, rate in device.matrix.items()},
        "vector_tflops": {name: rate / 1e12 for name, rate in device.vector.items()},
        "device_sources": dict(device.sources),
    }
    return _Rates(device, note, facts)


def peak_of(work: Work, device: Device, kernels: Sequence[str]) -> tuple[float, str] | None:
    """flop/s for the type of some work, and what it is called; None if there is no such rate."""
    label = computing_type(work, device, kernels)
    if work.unit != "vector" and label in device.matrix:
        return device.matrix[label], f"{label} matrix"
    rate = device.vector.get(label)
    return None if rate is None else (rate, f"{label} vector")


def computing_type(work: Work, device: Device, kernels: Sequence[str]) -> str:
    """The type in which some work is computed: its own, or tf32 where that stands in for fp32."""
    is_matrix_fp32 = work.unit != "vector" and work.dtype == "fp32"
    return "tf32" if is_matrix_fp32 and _uses_tf32(work, device, kernels) else work.dtype


def _uses_tf32(work: Work, device: Device, kernels: Sequence[str]) -> bool:
    """By the kernels' names; where they say nothing, if the call allows it."""
    if "tf32" not in device.matrix:
        return False
    if any(_SHOWS_TF32.search(name) for name in kernels):
        return True
    if any(_SHOWS_FP32.search(name) for name in kernels):
        return False
    return work.allow_tf32 is True


def _copies_over_a_link(kernels: Sequence[str]) -> bool:
    return any(_core.classify_copy(name)[0] not in _ON_THE_DEVICE for name in kernels)


def _attainable(work: Work, device: Device, kernels: Sequence[str]) -> _Attainable:
    if _copies_over_a_link(kernels):
        return _Attainable(bound="link")
    memory_ns = work.bytes / device.bandwidth * 1e9
    if not work.flops:
        return _Attainable(memory_ns, "memory")
    peak = peak_of(work, device, kernels)
    if peak is None:
        is_integer = work.unit == "vector" and work.dtype not in ("fp64", "fp32", "")
        return _Attainable(memory_ns, "memory") if is_integer else _Attainable()
    compute_ns = work.flops / peak[0] * 1e9
    bound = "compute" if compute_ns >= memory_ns else "memory"
    return _Attainable(max(compute_ns, memory_ns), bound, peak[1])


# ------------------------------------------------------------------------------- the tables


class _RowTable:
    """Calls with GPU time, joined with their kind of call."""

    def __init__(self, part: RankTrace, calls: Calls, on_gpu: GpuCalls, rates: _Rates) -> None:
        self._part, self._calls, self._on_gpu, self._rates = part, calls, on_gpu, rates
        kind_of_row = np.full(len(part.table) + 1, -1, dtype=np.int64)
        kind_of_row[calls.rows] = calls.group
        places = np.minimum(on_gpu.rows, len(part.table))
        self._has_work = calls.has_work[places]
        self._kind = self._kinds_of(kind_of_row[places])
        order = np.argsort(on_gpu.event_call, kind="stable")
        self._names = part.table.name[on_gpu.events[order]]
        self._starts = np.concatenate([[0], np.cumsum(on_gpu.count)])

    def _kinds_of(self, known: Array) -> Array:
        """Kinds of the calls' rows; without an operator, by names of launch and first event."""
        names = self._part.table.name
        loose = np.flatnonzero(known < 0)
        rows = self._on_gpu.rows[loose]
        has_row = rows < len(names)
        launch = np.full(len(loose), -1, dtype=np.int64)
        launch[has_row] = names[rows[has_row]]
        groups = Groups(launch, names[self._on_gpu.first_event[loose]].astype(np.int64))
        strings = self._calls.strings
        self._loose = ["" if code < 0 else strings[code] for code in launch[groups.first].tolist()]
        kind = known.copy()
        kind[loose] = len(self._calls.kinds) + groups.index
        return kind

    def by_arguments(self, *, each_call: bool) -> ColumnTable:
        own = np.arange(len(self._kind)) if each_call else np.zeros(len(self._kind), np.int64)
        groups = Groups(self._kind, self._has_work.astype(np.int64), own)
        rows = [self._row(groups, i) for i in range(len(groups))]
        columns = self._columns(groups, rows)
        if each_call:
            columns = {
                "row": _rows_or_absent(self._on_gpu.rows[groups.first], len(self._part.table)),
                **columns,
            }
        order = np.argsort(-columns["gpu_ns"], kind="stable")
        shown = ("name", "family", "dims", "count", "gpu_ns", "tflops", "tbps", "bound",
                 "roofline_share", "warning", "why_not")  # fmt: skip
        table = ColumnTable(
            columns, shown=shown, facts=self._facts(columns), notes=self._notes(columns)
        )
        return table.take(order)

    def _row(self, groups: Groups, index: int) -> tuple[KindOfCall, _Attainable]:
        first = int(groups.first[index])
        kernels = self._kernels(groups, index)
        kind = int(self._kind[first])
        if kind >= len(self._calls.kinds):
            name = self._loose[kind - len(self._calls.kinds)]
            why = "not below an operator" if name else "the trace does not hold its launch"
            return KindOfCall(name or "(no launch)", _NO_TEXTS, kernels, None, why), _Attainable()
        call = self._calls.kinds[kind]
        if not self._has_work[first]:
            why = reason_of(call) or "operators below it that have models are rows of their own"
            return KindOfCall(call.name, call.texts, kernels, None, why), _Attainable()
        device = self._rates.device
        found = _Attainable()
        if call.work is not None and device is not None:
            found = _attainable(call.work, device, kernels)
        elif _copies_over_a_link(kernels):
            found = _Attainable(bound="link")
        return KindOfCall(call.name, call.texts, kernels, call.work, ""), found

    def _kernels(self, groups: Groups, index: int) -> tuple[str, ...]:
        """Distinct names of the first call's GPU events, in order."""
        call = int(groups.first[index])
        ids = self._names[self._starts[call] : self._starts[call + 1]]
        return tuple(self._calls.strings[i] for i in dict.fromkeys(ids.tolist()))[:MOST_KERNELS]

    def _columns(
        self, groups: Groups, rows: Sequence[tuple[KindOfCall, _Attainable]]
    ) -> dict[str, Any]:
        works = [call.work for call, _ in rows]
        flops = _numbers(None if w is None else w.flops for w in works)
        moved = _numbers(None if w is None else w.bytes for w in works)
        gpu_ns = groups.sum(self._on_gpu.gpu_ns)
        seconds = np.where(gpu_ns > 0, gpu_ns / 1e9, np.nan)
        roofline_ns = np.array([found.ns for _, found in rows], dtype=np.float64)
        share = roofline_ns * groups.count / np.where(gpu_ns > 0, gpu_ns, np.nan)
        return {
            "name": encode_texts(call.name for call, _ in rows),
            "family": encode_texts(family_of(call.name, call.kernels) for call, _ in rows),
            "dims": _json_column(call.texts[0] for call, _ in rows),
            "dtypes": _json_column(call.texts[1] for call, _ in rows),
            "strides": _json_column(call.texts[2] for call, _ in rows),
            "concrete": _json_column(call.texts[3] for call, _ in rows),
            "kernel": encode_texts(call.kernels[0] if call.kernels else None for call, _ in rows),
            "count": groups.count,
            "flops": flops,
            "bytes": moved,
            "intensity": _ratio(flops, moved),
            "gpu_ns": gpu_ns,
            "gpu_median_ns": groups.median(self._on_gpu.gpu_ns),
            "tflops": flops * groups.count / seconds / 1e12,
            "tbps": moved * groups.count / seconds / 1e12,
            "peak": encode_texts(found.peak for _, found in rows),
            "roofline_ns": roofline_ns,
            "bound": encode_texts(found.bound for _, found in rows),
            "roofline_share": share,
            "busy_share": self._busy_share(groups),
            "upper_bound": np.array([w is not None and w.upper_bound for w in works], dtype=bool),
            "has_model": np.array([w is not None for w in works], dtype=bool),
            "why_not": encode_texts(call.why_not or None for call, _ in rows),
            "warning": encode_texts(
                self._warning(call, found, float(value))
                for (call, found), value in zip(rows, share, strict=True)
            ),
            "note": encode_texts(
                "; ".join(w.notes) if w is not None and w.notes else None for w in works
            ),
        }

    def _busy_share(self, groups: Groups) -> Array:
        busy_ns = total(self._on_gpu.exclusive_ns)
        shares: Array = groups.sum(self._on_gpu.exclusive_ns) / (busy_ns or np.nan)
        return shares

    def _warning(self, call: KindOfCall, found: _Attainable, share: float) -> str | None:
        """Why a call can seem faster than its device; never silent."""
        device, work = self._rates.device, call.work
        if work is None or device is None or not share > 1:
            return None
        if work.upper_bound:
            reason = "the counted work is an upper bound"
        elif found.bound == "memory" and work.bytes < _CACHED * device.l2_bytes:
            reason = "part of the data came from the L2 cache"
        elif found.bound == "memory" and call.texts[2] is None:
            reason = "strides are not recorded, a broadcast input is smaller than counted"
        elif found.bound == "memory":
            reason = "part of the data came from a cache, or the device is another one"
        elif work.dtype == "fp32" and "tf32" in device.matrix and found.peak != "tf32 matrix":
            reason = "it may compute in tf32, which its kernels do not say"
        elif "convolution" in family_of(call.name, call.kernels):
            reason = "its algorithm (Winograd, FFT) multiplies less often than the definition"
        else:
            reason = "the model counts more than was done, or the device is another one"
        return f"above the roofline: {reason}"

    def by_family(self) -> ColumnTable:
        """Sums over the rows by arguments."""
        rows = self.by_arguments(each_call=False)
        family = rows.column("family")
        assert isinstance(family, TextCodes)
        groups = Groups(family.codes.astype(np.int64))
        count, gpu_ns = groups.sum(rows["count"]), groups.sum(rows["gpu_ns"])
        modelled = rows["has_model"]
        modelled_ns = groups.sum(np.where(modelled, rows["gpu_ns"], 0))
        flops = _sum_known(groups, rows["flops"] * rows["count"])
        moved = _sum_known(groups, rows["bytes"] * rows["count"])
        compared = np.isfinite(rows["roofline_ns"])
        roofline = groups.sum(np.where(compared, rows["roofline_ns"] * rows["count"], 0.0))
        compared_ns = groups.sum(np.where(compared, rows["gpu_ns"], 0))
        seconds = np.where(modelled_ns > 0, modelled_ns / 1e9, np.nan)
        columns: dict[str, Any] = {
            "family": family.take(groups.first),
            "count": count,
            "gpu_ns": gpu_ns,
            "busy_share": groups.sum(rows["busy_share"]),
            "modelled_share": modelled_ns / np.where(gpu_ns > 0, gpu_ns, np.nan),
            "flops": flops,
            "bytes": moved,
            "intensity": _ratio(flops, moved),
            "tflops": flops / seconds / 1e12,
            "tbps": moved / seconds / 1e12,
            "roofline_ns": np.where(compared_ns > 0, roofline, np.nan),
            "roofline_share": roofline / np.where(compared_ns > 0, compared_ns, np.nan),
        }
        order = np.argsort(-gpu_ns, kind="stable")
        notes = [note for note in rows.notes if note != _PER_CALL_NOTE]
        return ColumnTable(columns, facts=rows.facts, notes=notes).take(order)

    def _facts(self, columns: dict[str, Any]) -> dict[str, Any]:
        modelled = columns["has_model"]
        busy_ns = total(self._on_gpu.exclusive_ns)
        compared = np.isfinite(columns["roofline_share"])
        gpu_ns = total(columns["gpu_ns"][compared])
        roofline = columns["roofline_ns"] * columns["count"]
        return {
            "busy_ns": busy_ns,
            "modelled_share": _share(float(columns["busy_share"][modelled].sum()), busy_ns),
            "roofline_share": float(roofline[compared].sum()) / gpu_ns if gpu_ns else None,
            "above_roofline": int(np.sum(columns["roofline_share"][compared] > 1)),
            "device": None,
            **self._rates.facts,
        }

    def _notes(self, columns: dict[str, Any]) -> list[str]:
        notes = [self._rates.note] if self._rates.note else []
        if not len(self._on_gpu.rows):
            return [
                *notes,
                "The trace has no GPU events; the view by call lists operators of the CPU.",
            ]
        notes += [_PER_CALL_NOTE, _BYTES_NOTE]
        facts = self._facts(columns)
        share = facts["modelled_share"]
        notes.append(f"Models cover {(share or 0) * 100:.1f} % of the GPU's busy time.")
        if self._rates.device is not None:
            notes.append(f"Peaks are those of {self._rates.device.name}, dense.")
        if facts["above_roofline"]:
            count = facts["above_roofline"]
            rows, lie = ("row", "lies") if count == 1 else ("rows", "lie")
            notes.append(f"{count} {rows} {lie} above the roofline; the column warning says why.")
        return notes


def _share(value: float, busy_ns: int) -> float | None:
    return value if busy_ns else None


def _rows_or_absent(rows: Array, events: int) -> np.ma.MaskedArray[Any, Any]:
    return np.ma.masked_greater_equal(rows, events)


def _numbers(values: Iterable[float | None]) -> Array:
    return np.array([np.nan if value is None else float(value) for value in values], dtype=float)


def _ratio(upper: Array, lower: Array) -> Array:
    ratio: Array = upper / np.where(lower > 0, lower, np.nan)
    return ratio


def _sum_known(groups: Groups, values: Array) -> Array:
    """Sums of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    total = groups.sum(np.where(known, values, 0.0))
    sums: Array = np.where(groups.sum(known.astype(np.int64)) > 0, total, np.nan)
    return sums


def _json_column(texts: Iterable[str | None]) -> JsonCodes:
    column = encode_texts(texts)
    return JsonCodes(column.codes, column.texts)


def _host_table(calls: Calls) -> ColumnTable:
    """Every operator of the CPU that has a model, with the time that its thread spent on it."""
    table = calls.part.table
    rows = calls.rows[calls.has_work[calls.rows]]
    kinds = [calls.kinds[index] for index in calls.group[calls.has_work[calls.rows]].tolist()]
    flops = _numbers(kind.work.flops if kind.work else None for kind in kinds)
    moved = _numbers(kind.work.bytes if kind.work else None for kind in kinds)
    columns: dict[str, Any] = {
        "row": rows.astype(np.int64),
        "name": encode_texts(kind.name for kind in kinds),
        "family": encode_texts(family_of(kind.name) for kind in kinds),
        "dims": _json_column(kind.texts[0] for kind in kinds),
        "dtypes": _json_column(kind.texts[1] for kind in kinds),
        "strides": _json_column(kind.texts[2] for kind in kinds),
        "concrete": _json_column(kind.texts[3] for kind in kinds),
        "flops": flops,
        "bytes": moved,
        "intensity": _ratio(flops, moved),
        "host_ns": table.dur_ns[rows],
    }
    note = (
        "The trace has no GPU events: these are operators of the CPU, with the time of their "
        "thread; nothing is compared with a peak."
    )
    shown = ("name", "family", "dims", "flops", "bytes", "intensity", "host_ns")
    return ColumnTable(columns, shown=shown, notes=[note])


_FIRST = ("name", "dims", "gpu_ns", "roofline_share", "bound", "tflops", "tbps", "count")

TABLE = TableSpec(
    build=build_roofline,
    views=("args", "family", "call"),
    options=(
        Option(
            "device", "--device", "a device of the database, such as A100-SXM4-80GB", metavar="NAME"
        ),
        Option(
            "compat", "--compat", "the numbers that TraceLens would give", choices=("tracelens",)
        ),
    ),
    sql={"roofline": {}},
    page=(
        PageView("roofline", "by shapes", find="name", meter="roofline_share"),
        PageView("roofline", "by family", {"by": "family"}, meter="roofline_share"),
    ),
    first={
        "args": _FIRST,
        "call": _FIRST,
        "family": ("family", "gpu_ns", "roofline_share", "tflops", "tbps", "count"),
    },
)
