"""The rates of operators, and those that the device could reach.

Every GPU event goes to the innermost operator above it that has a model, so that none counts
twice. What one call of that operator computes and moves comes from `torchtraceap.ops.models`, what
the device can do from `torchtraceap.ops.devices`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.columns import JsonCodes, TextCodes, encode_texts
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.ops.devices import Device
from torchtraceap.ops.models import family_of
from torchtraceap.tables.catalog import Option, PageView, TableSpec, check_choice
from torchtraceap.tables.gpu.recorded_device import (
    UNATTAINABLE,
    Attainable,
    attainable,
    chosen_device,
    copies_over_a_link,
)
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.ops.calls import (
    MOST_KERNELS,
    Calls,
    GpuCalls,
    KindOfCall,
    Texts,
    reason_of,
)
from torchtraceap.tables.ops.replayed_calls import ReplayedCalls
from torchtraceap.tables.serving.attribution import Attribution, attribute
from torchtraceap.tables.serving.nodes import graph_nodes
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "build_roofline"]

_NO_TEXTS: Texts = (None, None, None, None)
_COMPAT = (None, "tracelens")
# Data of up to so many times the L2 cache can still gain from it visibly.
_CACHED = 4
_PER_CALL_NOTE = "flops, bytes and roofline_ns are per call."
_BYTES_NOTE = "Bytes count each tensor once: they are the least that must move."


def build_roofline(
    part: RankTrace,
    device: Any = None,
    by: str = "args",
    compat: str | None = None,
    capture: PathLike | None = None,
) -> ColumnTable:
    """Build the table of `Trace.roofline` for one rank.

    By call, a trace without GPU events has those of the CPU, with host time and without rates. The
    models of TraceLens have no peaks. Kernels of a CUDA graph count for the operators of its
    capture, where a trace of that is known; not with the models of TraceLens.

    Raises:
        OptionError: An unknown choice, a device that is not known, or nothing at `capture`.
    """
    check_choice("by", by, TABLE.views)
    if compat not in _COMPAT:
        raise OptionError(f"compat must be tracelens or left out, not {compat!r}")
    peaks, note = chosen_device(part, device)
    calls = Calls(part, compat)
    known = attribute(part, capture)
    has_graphs = compat is None and bool(graph_nodes(part).replayed.any())
    replayed = ReplayedCalls(part, known) if has_graphs else None
    on_gpu = GpuCalls(part, calls, (replayed.events, replayed.call) if replayed else None)
    if not len(on_gpu.rows) and by == "call":
        return _host_table(calls)
    rows = _RowTable(part, calls, on_gpu, replayed, known, peaks, note)
    return rows.by_family() if by == "family" else rows.by_arguments(each_call=by == "call")


# ------------------------------------------------------------------------------- the tables


class _RowTable:
    """Calls with GPU time, joined with their kind of call."""

    def __init__(
        self,
        part: RankTrace,
        calls: Calls,
        on_gpu: GpuCalls,
        replayed: ReplayedCalls | None,
        known: Attribution,
        device: Device | None,
        note: str,
    ) -> None:
        self._part, self._strings, self._on_gpu = part, calls.strings, on_gpu
        self._known, self._device, self._note = known, device, note
        self._kinds = [*calls.kinds, *(replayed.kinds if replayed else ())]
        kind_of_row = np.full(len(part.table) + 1, -1, dtype=np.int64)
        kind_of_row[calls.rows] = calls.group
        places = np.minimum(on_gpu.rows, len(part.table))
        self._has_work = calls.has_work[places]
        self._kind = kind_of_row[places]
        if replayed:
            own = np.flatnonzero(on_gpu.rows >= on_gpu.first_replayed)
            self._kind[own] = len(calls.kinds) + replayed.kind
            has_work = np.array([kind.work is not None for kind in replayed.kinds], dtype=bool)
            self._has_work[own] = has_work[replayed.kind]
        # Without an operator a kind has the names of launch and first event.
        names = part.table.name
        loose = np.flatnonzero(self._kind < 0)
        rows = on_gpu.rows[loose]
        has_row = rows < len(names)
        launch = np.full(len(loose), -1, dtype=np.int64)
        launch[has_row] = names[rows[has_row]]
        groups = Groups(launch, names[on_gpu.first_event[loose]].astype(np.int64))
        strings = calls.strings
        self._loose = ["" if code < 0 else strings[code] for code in launch[groups.first].tolist()]
        self._kind[loose] = len(self._kinds) + groups.index
        order = np.argsort(on_gpu.event_call, kind="stable")
        self._names = part.table.name[on_gpu.events[order]]
        self._starts = np.concatenate([[0], np.cumsum(on_gpu.count)])

    def by_arguments(self, *, each_call: bool) -> ColumnTable:
        own = np.arange(len(self._kind)) if each_call else np.zeros(len(self._kind), np.int64)
        groups = Groups(self._kind, self._has_work.astype(np.int64), own)
        rows = [self._row(groups, i) for i in range(len(groups))]
        columns = self._columns(groups, rows)
        if each_call:
            columns = {
                "row": np.ma.masked_greater_equal(
                    self._on_gpu.rows[groups.first], len(self._part.table)
                ),
                **columns,
            }
        order = np.argsort(-columns["gpu_ns"], kind="stable")
        shown = ("name", "family", "dims", "count", "gpu_ns", "tflops", "tbps", "bound",
                 "roofline_share", "warning", "why_not")  # fmt: skip
        facts, device = self._facts(columns), self._device
        notes = [self._note] if self._note else []
        if not len(self._on_gpu.rows):
            notes.append(
                "The trace has no GPU events; the view by call lists operators of the CPU."
            )
        else:
            share = (facts["modelled_share"] or 0) * 100
            notes += [_PER_CALL_NOTE, _BYTES_NOTE]
            notes.append(f"Models cover {share:.1f} % of the GPU's busy time.")
            if device is not None:
                notes.append(f"Peaks are those of {device.name}, dense.")
            if count := facts["above_roofline"]:
                lie = "row lies" if count == 1 else "rows lie"
                notes.append(f"{count} {lie} above the roofline; the column warning says why.")
        return ColumnTable(columns, shown=shown, facts=facts, notes=notes).take(order)

    def _row(self, groups: Groups, index: int) -> tuple[KindOfCall, Attainable]:
        first = int(groups.first[index])
        # Distinct names of the first call's GPU events, in order.
        ids = self._names[self._starts[first] : self._starts[first + 1]]
        strings = self._strings
        kernels = tuple(strings[i] for i in dict.fromkeys(ids.tolist()))[:MOST_KERNELS]
        kind = int(self._kind[first])
        if kind >= len(self._kinds):
            name = self._loose[kind - len(self._kinds)]
            why = "not below an operator" if name else "the trace does not hold its launch"
            return KindOfCall(name or "(no launch)", _NO_TEXTS, kernels, None, why), UNATTAINABLE
        call = self._kinds[kind]
        if not self._has_work[first]:
            why = reason_of(call) or "operators below it that have models are rows of their own"
            return KindOfCall(call.name, call.texts, kernels, None, why), UNATTAINABLE
        found = UNATTAINABLE
        if call.work is not None and self._device is not None:
            found = attainable(call.work, self._device, kernels)
        elif copies_over_a_link(kernels):
            found = (math.nan, "link", None)
        return KindOfCall(call.name, call.texts, kernels, call.work, ""), found

    def _columns(
        self, groups: Groups, rows: Sequence[tuple[KindOfCall, Attainable]]
    ) -> dict[str, Any]:
        works = [call.work for call, _ in rows]
        flops = _numbers(None if w is None else w.flops for w in works)
        moved = _numbers(None if w is None else w.bytes for w in works)
        gpu_ns = groups.sum(self._on_gpu.gpu_ns)
        seconds = np.where(gpu_ns > 0, gpu_ns / 1e9, np.nan)
        roofline_ns = np.array([ns for _, (ns, _, _) in rows], dtype=np.float64)
        busy_ns = total(self._on_gpu.exclusive_ns) or np.nan
        share = roofline_ns * groups.count / np.where(gpu_ns > 0, gpu_ns, np.nan)
        return {
            **_call_columns([call for call, _ in rows]),
            "kernel": encode_texts(call.kernels[0] if call.kernels else None for call, _ in rows),
            "count": groups.count,
            "flops": flops,
            "bytes": moved,
            "intensity": _ratio(flops, moved),
            "gpu_ns": gpu_ns,
            "gpu_median_ns": groups.median(self._on_gpu.gpu_ns),
            "tflops": flops * groups.count / seconds / 1e12,
            "tbps": moved * groups.count / seconds / 1e12,
            "peak": encode_texts(peak for _, (_, _, peak) in rows),
            "roofline_ns": roofline_ns,
            "bound": encode_texts(bound for _, (_, bound, _) in rows),
            "roofline_share": share,
            "busy_share": groups.sum(self._on_gpu.exclusive_ns) / busy_ns,
            "upper_bound": np.array([w is not None and w.upper_bound for w in works], dtype=bool),
            "attribution": self._known.of_groups(
                groups.index[self._on_gpu.event_call],
                self._part.table.dur_ns[self._on_gpu.events],
                len(groups),
            ),
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

    def _warning(self, call: KindOfCall, found: Attainable, share: float) -> str | None:
        """Return why a call can seem faster than its device; None if it does not."""
        device, work = self._device, call.work
        _, bound, peak = found
        if work is None or device is None or not share > 1:
            return None
        if work.upper_bound:
            reason = "the counted work is an upper bound"
        elif bound == "memory" and work.bytes < _CACHED * device.l2_bytes:
            reason = "part of the data came from the L2 cache"
        elif bound == "memory" and call.texts[2] is None:
            reason = "strides are not recorded, a broadcast input is smaller than counted"
        elif bound == "memory":
            reason = "part of the data came from a cache, or the device is another one"
        elif work.dtype == "fp32" and "tf32" in device.matrix and peak != "tf32 matrix":
            reason = "it may compute in tf32, which its kernels do not say"
        elif "convolution" in family_of(call.name, call.kernels):
            reason = "its algorithm (Winograd, FFT) multiplies less often than the definition"
        else:
            reason = "the model counts more than was done, or the device is another one"
        return f"above the roofline: {reason}"

    def by_family(self) -> ColumnTable:
        """Return sums over the rows by arguments."""
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
        of_device: dict[str, Any] = {}
        if device := self._device:
            of_device = {
                "device": device.name,
                "device_id": device.id,
                "bandwidth_tbps": device.bandwidth / 1e12,
                "matrix_tflops": {name: rate / 1e12 for name, rate in device.matrix.items()},
                "vector_tflops": {name: rate / 1e12 for name, rate in device.vector.items()},
                "device_sources": dict(device.sources),
            }
        return {
            "busy_ns": busy_ns,
            "modelled_share": float(columns["busy_share"][modelled].sum()) if busy_ns else None,
            "roofline_share": float(roofline[compared].sum()) / gpu_ns if gpu_ns else None,
            "above_roofline": int(np.sum(columns["roofline_share"][compared] > 1)),
            "device": None,
            **of_device,
        }


def _numbers(values: Iterable[float | None]) -> Array:
    return np.array([np.nan if value is None else float(value) for value in values], dtype=float)


def _ratio(upper: Array, lower: Array) -> Array:
    ratio: Array = upper / np.where(lower > 0, lower, np.nan)
    return ratio


def _sum_known(groups: Groups, values: Array) -> Array:
    """Return sums of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    total = groups.sum(np.where(known, values, 0.0))
    sums: Array = np.where(groups.sum(known.astype(np.int64)) > 0, total, np.nan)
    return sums


def _call_columns(calls: Sequence[KindOfCall]) -> dict[str, Any]:
    """Return name, family and arguments of calls."""
    columns: dict[str, Any] = {
        "name": encode_texts(call.name for call in calls),
        "family": encode_texts(family_of(call.name, call.kernels) for call in calls),
    }
    for place, name in enumerate(("dims", "dtypes", "strides", "concrete")):
        texts = encode_texts(call.texts[place] for call in calls)
        columns[name] = JsonCodes(texts.codes, texts.texts)
    return columns


def _host_table(calls: Calls) -> ColumnTable:
    """Return every operator of the CPU that has a model, with the time of its thread on it."""
    table = calls.part.table
    rows = calls.rows[calls.has_work[calls.rows]]
    kinds = [calls.kinds[index] for index in calls.group[calls.has_work[calls.rows]].tolist()]
    flops = _numbers(kind.work.flops if kind.work else None for kind in kinds)
    moved = _numbers(kind.work.bytes if kind.work else None for kind in kinds)
    columns: dict[str, Any] = {
        "row": rows.astype(np.int64),
        **_call_columns(kinds),
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
        Option(
            "capture",
            "--capture",
            "trace of the capture of CUDA graphs, or a folder with such",
            kind="path",
            metavar="PATH",
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
