"""`mixed_precision`, `channels_last` and `device`: the same kernels, faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from torchtraceap import _core
from torchtraceap._core import CopyDirection, EventKind, GpuClass
from torchtraceap.aliases import Array
from torchtraceap.analysis.roofline import attainable_ns
from torchtraceap.devices import Device, device_named
from torchtraceap.errors import OptionError
from torchtraceap.models import OpCall, Work, family_of
from torchtraceap.simulation.edits import lookups
from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.parts import parts_of
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.edits.works import works_of
from torchtraceap.simulation.registry import register
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.sums import total
from torchtraceap.units import counted, format_ns

__all__ = ["ChannelsLast", "MixedPrecision", "OtherDevice"]

_NO_DEVICE = "the trace doesn't say which GPU it was recorded on, or that GPU is not known here"
_HALF = ("bf16", "fp16")
_PRODUCTS = ("gemm", "grouped_gemm", "convolution_forward", "convolution_backward")
_ON_MATRIX_UNITS = r"tf32|h884|s884|h1688|s1688|16816|hmma|fp16|bf16|half|hgemm"


@register(
    "mixed_precision",
    value="bf16|fp16|tf32",
    default=True,
    fixes=("fp32_matmul",),
    instead=("fp32_matmul=tf32",),
)
class MixedPrecision:
    """Products and convolutions in fp32 run on matrix units, in bf16, fp16 or tf32.

    Best: their time falls as the device's attainable time for the same work does, and other fp32
    kernels move half the bytes (not for tf32). Cautious: half of the first saving, nothing else:
    small products don't reach the peaks, and casts come in between. Products whose work is not
    known from the trace (convolutions without their strides) take at best the ratio of the peaks,
    and cautiously as long as now.
    """

    def __init__(self, dtype: str | None = None) -> None:
        if dtype is not None and dtype.lower() not in (*_HALF, "tf32"):
            raise OptionError(f"mixed_precision: bf16, fp16 or tf32, not {dtype!r}")
        self._wanted = (dtype.lower(),) if dtype else _HALF
        self.name = f"mixed_precision={self._wanted[0]}" if dtype else "mixed_precision"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        products, before_ns, after_ns, unknown = 0, 0.0, 0.0, 0
        reason = "no product or convolution in fp32 of known shapes is in the trace"
        for view in views(run):
            device = view.device
            dtype = self._dtype_of(device)
            if device is None or dtype is None:
                reason = _NO_DEVICE if device is None else _no_type(device, self._wanted)
                continue
            ratio_of = partial(_product_ratio, device, dtype)
            rows, ratio = _ratios(view, ratio_of)
            view.scale_gpu(best, rows, ratio)
            view.scale_gpu(cautious, rows, (1 + ratio) / 2)
            guessed = _products_of_unknown_work(view)
            peaks = np.full(len(guessed), device.vector.get("fp32", np.nan) / device.matrix[dtype])
            guessed, peaks = guessed[peaks < 1], peaks[peaks < 1]
            view.scale_gpu(best, guessed, peaks)
            rows, ratio = np.append(rows, guessed), np.append(ratio, peaks)
            unknown += len(guessed)
            lengths = view.table.dur_ns[rows]
            products += len(rows)
            before_ns, after_ns = before_ns + lengths.sum(), after_ns + (lengths * ratio).sum()
            if dtype in _HALF:
                view.scale_gpu(best, *_ratios(view, _other_in_fp32))
        if not products:
            raise NotApplicableError(reason)
        note = (
            f"{products} fp32 kernels of products and convolutions take {format_ns(int(after_ns))} "
            f"at best instead of {format_ns(int(before_ns))}"
        )
        if unknown:
            note += f"; the work of {unknown} is not recorded: theirs is the ratio of the peaks"
        return EditedGraph(best, cautious, source="ratio of attainable times", note=note)

    def _dtype_of(self, device: Device | None) -> str | None:
        """The first wanted type that the device has matrix units for."""
        if device is None:
            return None
        return next((dtype for dtype in self._wanted if dtype in device.matrix), None)


def _no_type(device: Device, wanted: tuple[str, ...]) -> str:
    return f"{device.name} has no matrix units for {' or '.join(wanted)}"


def _product_ratio(device: Device, dtype: str, work: Work, call: OpCall) -> float:
    """New time over old; 1 for what is no product in fp32."""
    if work.unit != "matrix" or work.dtype != "fp32":
        return 1.0
    old_ns, _ = attainable_ns(work, device, call.kernels)
    if dtype == "tf32":
        new_ns, _ = attainable_ns(replace(work, allow_tf32=True), device, ("tf32",))
    else:
        read, written = work.bytes_read / 2, work.bytes_written / 2
        half = replace(work, dtype=dtype, bytes_read=read, bytes_written=written)
        new_ns, _ = attainable_ns(half, device)
    return min(1.0, new_ns / old_ns) if old_ns > 0 and new_ns > 0 else 1.0


def _products_of_unknown_work(view: RankView) -> Array:
    """Kernels of products and convolutions with fp32 inputs that no model gives numbers for."""
    rows = view.gpu_class(GpuClass.COMPUTE)
    operator = view.tree.op[rows]
    rows = rows[(operator != _core.NO_ROW) & (works_of(view).kind_of[rows] < 0)]
    operator = view.tree.op[rows]
    names, place = np.unique(view.table.name[operator], return_inverse=True)
    product = np.array([family_of(view.names[n]) in _PRODUCTS for n in names.tolist()], dtype=bool)
    rows, operator = rows[product[place]], operator[product[place]]
    codes, types = view.table.text_codes("Input type", operator)
    in_fp32 = np.array(
        [*('"float"' in t and "Half" not in t and "BFloat16" not in t for t in types), False]
    )
    rows = rows[in_fp32[codes]]
    chosen: Array = rows[~view.has_name(_ON_MATRIX_UNITS)[rows]]
    return chosen


def _other_in_fp32(work: Work, _: OpCall) -> float:
    return 0.5 if work.dtype == "fp32" and work.unit != "matrix" else 1.0


def _ratios(view: RankView, ratio_of: Callable[[Work, OpCall], float]) -> tuple[Array, Array]:
    """Compute kernels whose ratio is not 1, and their ratios."""
    works = works_of(view)
    rows = view.gpu_class(GpuClass.COMPUTE)
    kinds = works.kind_of[rows]
    rows, kinds = rows[kinds >= 0], kinds[kinds >= 0]
    table = np.ones(len(works.kinds))
    for kind in np.unique(kinds).tolist():
        table[kind] = ratio_of(works.work(kind), works.call(kind))
    ratio = table[kinds]
    return rows[ratio != 1], ratio[ratio != 1]


@register("channels_last", default=True, fixes=("layout_conversion",))
class ChannelsLast:
    """Kernels that only turn tensors between NCHW and NHWC are gone.

    Cautious: one for each step stays, that of the input.
    """

    name = "channels_last"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        count = gone_ns = 0
        for view in views(run):
            rows = view.gpu_rows[view.has_name(_LAYOUT)[view.gpu_rows]]
            rows = rows[view.is_kind(EventKind.KERNEL)[rows]]
            _, first = np.unique(view.step_of(rows), return_index=True)
            _without(view, best, rows)
            _without(view, cautious, np.delete(rows, first))
            count, gone_ns = count + len(rows), gone_ns + total(view.table.dur_ns[rows])
        if not count:
            raise NotApplicableError("no kernel only converts between NCHW and NHWC")
        return EditedGraph(
            best,
            cautious,
            note=f"gone: {counted(count, 'layout conversion')} of {format_ns(gone_ns)}",
        )


# As the rule of layout_conversion; a conversion inside a convolution carries other words too.
_LAYOUT = (
    r"nchwtonhwc|nhwctonchw|nchwtofoldednhwc|foldednhwctonhwc|nhwctofoldednhwc|nhwcaddpadding|"
    r"nchwaddpadding|transpose_nchw2cnhw|transpose_cnhw2nchw|transpose_packed_mn2nm|"
    r"batched_transpose_|transpose_readwrite"
)


def _without(view: RankView, change: Change, rows: Array) -> None:
    view.remove_gpu(change, rows)
    calls = view.launch_of(rows)
    view.set_host_work(change, np.unique(calls[calls >= 0]), 0)


# ------------------------------------------------------------------------- another device

FLOOR_NS = 2_000
"""Of a kernel's time, what starting and ending it takes on any GPU."""


@register("device", value="NAME", required=True)
class OtherDevice:
    """The same program on another GPU; the host stays.

    Products of matrices take the ratio of measured tables where there are such of both devices,
    other kernels of known work that of the times which both can attain; the rest lies between the
    ratios of memory bandwidth and of arithmetic. Copies follow the host link,
    collectives the link between GPUs. Best: no floor. Cautious: the first 2 us of a kernel stay,
    and where a link is unknown it stays as it is.
    """

    def __init__(self, name: str | None = None) -> None:
        self.device = device_named(name or "")
        self.name = f"device={name}"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        names = set()
        for view in views(run):
            old = view.device
            if old is None:
                raise NotApplicableError(_NO_DEVICE)
            names.add(old.name)
            self._compute(view, old, best, cautious)
            self._copies(view, old, best, cautious)
        for parts in parts_of(run):
            ratio = _link_ratio(parts.view.device, self.device, ("nvlink", "xgmi"))
            if ratio is not None:
                parts.set_transfer(best, parts.transfer_ns * ratio)
                parts.set_transfer(cautious, parts.transfer_ns * ratio)
        note = f"from {', '.join(sorted(names))} to {self.device.name}; the host stays as it is"
        source = "ratios of measured tables, else of attainable times"
        return EditedGraph(best, cautious, source=source, note=note)

    def _compute(self, view: RankView, old: Device, best: Change, cautious: Change) -> None:
        rows = view.gpu_class(GpuClass.COMPUTE)
        low, high = sorted(_plain_ratios(old, self.device))
        fast, slow = np.full(len(rows), low), np.full(len(rows), high)
        known, ratio = _ratios(view, partial(self._ratio, old))
        place = np.searchsorted(rows, known)
        fast[place] = slow[place] = ratio
        floor = np.minimum(FLOOR_NS / np.maximum(view.table.dur_ns[rows], 1), 1.0)
        view.scale_gpu(best, rows, fast)
        view.scale_gpu(cautious, rows, floor + (1 - floor) * slow)

    def _ratio(self, old: Device, work: Work, call: OpCall) -> float:
        measured = lookups.product_ratio(call, old, self.device)
        if measured is not None:
            return measured
        old_ns, _ = attainable_ns(work, old, call.kernels)
        new_ns, _ = attainable_ns(work, self.device, call.kernels)
        return new_ns / old_ns if old_ns > 0 and new_ns > 0 else 1.0

    def _copies(self, view: RankView, old: Device, best: Change, cautious: Change) -> None:
        ratio = _link_ratio(old, self.device, ("pcie",))
        rows = view.copies(CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST)
        if ratio is not None:
            view.scale_gpu(best, rows, ratio)
            view.scale_gpu(cautious, rows, max(ratio, 1.0))


def _plain_ratios(old: Device, new: Device) -> tuple[float, float]:
    """Time on the new over time on the old device: by memory, by arithmetic."""
    memory = old.bandwidth / new.bandwidth
    if "fp32" not in old.vector or "fp32" not in new.vector:
        return memory, memory
    return memory, old.vector["fp32"] / new.vector["fp32"]


def _link_ratio(old: Device | None, new: Device, kinds: tuple[str, ...]) -> float | None:
    for kind in kinds:
        if old is not None and kind in old.links and kind in new.links:
            return old.links[kind] / new.links[kind]
    return None
