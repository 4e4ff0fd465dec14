"""`mixed_precision` and `channels_last`: the same kernels, faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap._core import EventKind, GpuClass, Phase
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns, pluralize
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import distinct, total
from torchtraceap.errors import OptionError
from torchtraceap.ops.devices import Device
from torchtraceap.ops.models import Work, family_of
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NotApplicableError,
)
from torchtraceap.simulation.edits.gpu_work import (
    EventWorks,
    families_of,
    matrix_work_ns,
    works_of,
)
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.gpu.recorded_device import (
    attainable_ns,
    computing_type,
    matrix_units,
    plausible_devices,
)

__all__ = ["NO_DEVICE", "START_NS", "ChannelsLast", "MixedPrecision", "changed_ratios"]

NO_DEVICE = "the trace doesn't say which GPU it was recorded on, or that GPU is not known here"
_HALF = ("bf16", "fp16")
_PRODUCTS = ("gemm", "grouped_gemm", "convolution_forward", "convolution_backward")
START_NS = 1_000
"""Least time of a kernel: it starts and ends."""
CONVERTED = 0.5
"""Likely share of the inputs of products that is converted for them: weights are, in each step;
activations come in the new type from the operator before."""
_SQUARES = np.geomspace(16, 65_536, 49)
"""Rows of square products that a kernel of unknown work is compared with."""
CAST = 1.2
"""Host time of an operator that casts, in that of the usual operator with one kernel: the median of
11 public traces with such casts (hta, modded_nanogpt, segment_anything_fast, torchrec; 0.8 to
1.9)."""
_PLAIN_FLOAT = r"\bfloat\b"
_OTHER_TYPE = r"half|bfloat16|double|bf16|fp16"
_ON_MATRIX_UNITS = r"tf32|h884|s884|h1688|s1688|16816|hmma|fp16|bf16|half|hgemm"


class MixedPrecision:
    """Products and convolutions in fp32 run on matrix units, in bf16, fp16 or tf32.

    Their time falls as the model of such work says, in the bounds of what it missed elsewhere, and
    never below the device's attainable time. Best: other fp32 kernels move half the bytes (not for
    tf32). Cautious: each product first converts what it reads, in an operator of its own. Products
    whose work the trace does not show (no shapes, convolutions without their strides) are known by
    their kernels' names: at best they take the ratio of the peaks, at least as long as now. So are
    element-wise kernels, outside of the optimizer.

    Likely: products take what the model says, those of unknown work what it says of a square one
    that takes as long as they do; half of what they read is converted, by operators in the forward
    pass; element-wise kernels move half the bytes, but for the optimizer's. Autocast leaves norms,
    softmax, losses and reductions in fp32.
    """

    def __init__(self, dtype: str | None = None) -> None:
        if dtype is not None and dtype.lower() not in (*_HALF, "tf32"):
            raise OptionError(f"mixed_precision: bf16, fp16 or tf32, not {dtype!r}")
        self._wanted = (dtype.lower(),) if dtype else _HALF
        self.name = f"mixed_precision={self._wanted[0]}" if dtype else "mixed_precision"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious, likely = Change(), Change(), Change()
        products = unknown = 0
        before_ns = after_ns = 0.0
        nameless = False
        reason = "no product or convolution in fp32 is in the trace"
        for view in views(run):
            units = _units_of(view, self._wanted)
            if isinstance(units, str):
                reason = units
                continue
            known, low, high, usual = _known_products(view, units)
            view.scale_gpu(best, known, low)
            view.scale_gpu(cautious, known, high)
            view.scale_gpu(likely, known, usual)
            guessed = _products_of_unknown_work(view, units.device)
            peaks = _bounded_ratios(view, guessed, units.ratio)
            view.scale_gpu(best, guessed, peaks)
            view.scale_gpu(likely, guessed, _ratios_as_squares(view, guessed, units))
            for rows, ratio in ((known, low), (guessed, peaks)):
                lengths = view.table.dur_ns[rows]
                products += len(rows)
                before_ns += float(lengths.sum())
                after_ns += float((lengths * ratio).sum())
            unknown += len(guessed)
            nameless = nameless or units.device is None
            if units.dtype in _HALF:
                self._halve_others(view, best, cautious, likely, known, guessed)
        if not products:
            raise NotApplicableError(reason)
        note = (
            f"{products} fp32 kernels of products and convolutions take "
            f"{format_ns(int(after_ns))} at best instead of {format_ns(int(before_ns))}"
        )
        if unknown:
            note += (
                f"; the work of {unknown} is not recorded: at best theirs is the ratio of the "
                "peaks, at least nothing"
            )
        if nameless:
            note += "; the device is not known: its ratio is the least of its architecture"
        source = "model of products, in the bounds of its errors; else ratio of the peaks"
        return EditedGraph(best, cautious, (likely,), source=source, note=note)

    def _halve_others(
        self,
        view: RankView,
        best: Change,
        cautious: Change,
        likely: Change,
        known: Array,
        guessed: Array,
    ) -> None:
        """Halve the bytes of other kernels in fp32, and add the casts of the inputs of products."""
        works = works_of(view)
        kinds = works.kind_of[view.gpu_class(GpuClass.COMPUTE)]
        ratios = np.ones(len(works.kinds))
        for kind in distinct(kinds[kinds >= 0]).tolist():
            work = works.work(kind)
            if work.dtype == "fp32" and work.unit != "matrix":
                ratios[kind] = 0.5
        rows, ratio = changed_ratios(view, works, ratios)
        moves = families_of(view, rows) == "elementwise"
        moves &= view.phase_of(rows) != Phase.OPTIMIZER
        view.scale_gpu(best, rows, ratio)
        view.scale_gpu(likely, rows[moves], ratio[moves])
        # Element-wise kernels of unknown work, by their names, outside of the optimizer.
        named = view.gpu_class(GpuClass.COMPUTE)
        named = named[(works.kind_of[named] < 0) & (view.phase_of(named) != Phase.OPTIMIZER)]
        named = named[view.has_name(_PLAIN_FLOAT)[named] & ~view.has_name(_OTHER_TYPE)[named]]
        if len(named):
            named = named[families_of(view, named) == "elementwise"]
        for change in (best, likely):
            view.scale_gpu(change, named, _bounded_ratios(view, named, 0.5))
        products = np.concatenate([known, guessed])
        _call_casts(view, cautious, products)
        _call_casts(view, likely, products[view.phase_of(products) != Phase.BACKWARD])


@dataclass(frozen=True, slots=True)
class _Units:
    """Matrix units for a type."""

    dtype: str
    ratio: float
    """Time of a product in this type over that in plain fp32, by the peaks."""
    device: Device | None


def _units_of(view: RankView, wanted: tuple[str, ...]) -> _Units | str:
    """Return the units of the first wanted type that the device has, else a reason."""
    plausible = plausible_devices(view.table)
    if len(plausible) == 1:
        (device,) = plausible  # the whole device, where the trace is of a part
        plain = max(device.matrix.get("fp32", 0.0), device.vector.get("fp32", 0.0))
        dtype = next((dtype for dtype in wanted if dtype in device.matrix), None)
        if dtype is None or plain >= device.matrix[dtype]:
            return f"{device.name} has no matrix units for {' or '.join(wanted)}"
        return _Units(dtype, plain / device.matrix[dtype], view.device)
    # The least gain of matrix units on a device that the database lacks: by its architecture, else
    # as the rule for fp32 products reads the names of kernels.
    half, units = wanted[0] in _HALF, matrix_units(view.table)
    if units is not None:
        gain = units.half_ratio if half else units.tf32_ratio
    else:
        found = next(f for f in _core.detect(view.table, view.tree) if f.type == "fp32_matmul")
        _, ratio = found.facts.get("ratio", ("rate", 0.0))
        says_half = found.facts.get("precision", ("text", ""))[1] != "TF32"
        gain = float(ratio) if half == says_half else 0.0
    return _Units(wanted[0], 1 / gain, None) if gain > 1 else NO_DEVICE


def _known_products(view: RankView, units: _Units) -> tuple[Array, Array, Array, Array]:
    """Return kernels of products whose work is known, and new time over old at best, at least and
    likely."""
    works, rows = works_of(view), view.gpu_class(GpuClass.COMPUTE)
    kinds = works.kind_of[rows]
    chosen = [
        kind
        for kind in distinct(kinds[kinds >= 0]).tolist()
        if works.work(kind).unit == "matrix" and works.work(kind).dtype == "fp32"
    ]
    if units.device is None or not chosen:
        return rows[:0], *np.zeros((3, 0))
    table = np.ones((3, len(works.kinds)))
    table[:, chosen] = _ratios_of_products(view, works, chosen, units.dtype, units.device)
    low, high, usual = table[:, kinds]
    faster = (kinds >= 0) & (low < 1)
    rows, high = rows[faster], high[faster]
    low, usual = (_bounded_ratios(view, rows, each[faster]) for each in (low, usual))
    return rows, low, high, usual


def _ratios_of_products(
    view: RankView, works: EventWorks, kinds: list[int], dtype: str, device: Device
) -> Array:
    """Return new time over old, at best, at least and likely, float64 `[3, kinds]`.

    Both times are those of the family's model, so that its errors on this device cancel; the
    models of single products take longer to load than a diagnosis may.
    """
    old = [works.work(kind) for kind in kinds]
    calls = [works.kinds[kind] for kind in kinds]
    before = [computing_type(w, device, c.kernels) for w, c in zip(old, calls, strict=True)]
    new = [_in_type(work, dtype) for work in old]
    families = [family_of(call.name, call.kernels) for call in calls]
    old_ns, _, _ = matrix_work_ns(families, old, before, device)
    new_ns = matrix_work_ns(families, new, [dtype] * len(new), device)
    # The measured GPU time of a call of each kind.
    rows = view.gpu_class(GpuClass.COMPUTE)
    rows = rows[works.kind_of[rows] >= 0]
    kind_of = works.kind_of[rows]
    sums = np.bincount(kind_of, weights=view.table.dur_ns[rows], minlength=len(works.kinds))
    _, first = np.unique(view.tree.op[rows], return_index=True)
    count = np.bincount(kind_of[first], minlength=len(works.kinds))
    measured_ns = np.maximum(sums / np.maximum(count, 1), 1.0)[kinds]
    least_ns = np.array([attainable_ns(work, device, (dtype,))[0] for work in new])
    reads = np.array([work.bytes_read for work in old])
    convert_ns = 0.0 if dtype == "tf32" else reads * 1.5 / device.bandwidth * 1e9
    low = np.maximum(new_ns[1] / old_ns, least_ns / measured_ns)
    high = new_ns[2] / old_ns + convert_ns / measured_ns
    usual = np.maximum(new_ns[0] / old_ns, least_ns / measured_ns)
    usual += CONVERTED * convert_ns / measured_ns
    ratios: Array = np.nan_to_num(np.stack([low, high, usual]), nan=1.0, posinf=1.0)
    return ratios.clip(0.0, 1.0)


def _in_type(work: Work, dtype: str) -> Work:
    if dtype == "tf32":
        return replace(work, allow_tf32=True)
    read, written = work.bytes_read / 2, work.bytes_written / 2
    return replace(work, dtype=dtype, bytes_read=read, bytes_written=written)


def _call_casts(view: RankView, change: Change, rows: Array) -> None:
    """Make the host call an operator that casts before each that computes a product."""
    calls = distinct(view.launch_of(rows))
    operators = distinct(view.tree.op[calls[calls >= 0]])
    operators = operators[operators != _core.NO_ROW].astype(np.int64)
    edges = view.edges_into(view.begin_of[operators], "program_order")
    change.set_lags(edges, view.cost_of(edges) + CAST * view.operator_cost_ns)


def _bounded_ratios(view: RankView, rows: Array, ratio: npt.ArrayLike) -> Array:
    """Raise ratios to those that leave each kernel the time to start and end."""
    least = START_NS / np.maximum(view.table.dur_ns[rows], 1)
    bounded: Array = np.minimum(np.maximum(np.broadcast_to(ratio, rows.shape), least), 1.0)
    return bounded


def _products_of_unknown_work(view: RankView, device: Device | None) -> Array:
    """Return kernels that compute products or convolutions of fp32 data on ordinary units, by their
    own name or by that of an operator with fp32 inputs, where no model knows their work."""
    rows = view.gpu_class(GpuClass.COMPUTE)
    if device is not None:
        rows = rows[works_of(view).kind_of[rows] < 0]
    names, place = np.unique(view.table.name[rows], return_inverse=True)
    plain = np.array([_core.is_plain_fp32_product(view.names[n]) for n in names], dtype=bool)
    chosen: Array = rows[plain[place] | _of_operators_in_fp32(view, rows)]
    return chosen


def _of_operators_in_fp32(view: RankView, rows: Array) -> Array:
    """Return a mask of kernels of products with fp32 inputs, by their operators."""
    operator = view.tree.op[rows]
    known: Array = operator != _core.NO_ROW
    if not known.any():
        return known
    at = np.where(known, operator, operator[known.argmax()])
    names, place = np.unique(view.table.name[at], return_inverse=True)
    product = np.array([family_of(view.names[n]) in _PRODUCTS for n in names.tolist()], dtype=bool)
    codes, types = view.table.text_codes("Input type", at)
    in_fp32 = np.array(
        [*('"float"' in t and "Half" not in t and "BFloat16" not in t for t in types), False]
    )
    found: Array = known & product[place] & in_fp32[codes] & ~view.has_name(_ON_MATRIX_UNITS)[rows]
    return found


def _ratios_as_squares(view: RankView, rows: Array, units: _Units) -> Array:
    """Return new time over old of products of unknown work, as of square ones that take as long,
    with their weights converted; where the device is unknown the middle between no change and the
    ratio of the peaks."""
    device = units.device
    if device is None:
        return _bounded_ratios(view, rows, units.ratio**0.5)
    flops, elements = 2 * _SQUARES**3, _SQUARES**2
    old = [Work(f, 8 * e, 4 * e, unit="matrix") for f, e in zip(flops, elements, strict=True)]
    families = ["gemm"] * len(old)
    old_ns = matrix_work_ns(families, old, ["fp32"] * len(old), device)[0]
    new = [_in_type(work, units.dtype) for work in old]
    new_ns = matrix_work_ns(families, new, [units.dtype] * len(new), device)[0]
    if units.dtype != "tf32":
        new_ns += 6 * elements / device.bandwidth * 1e9
    before_ns = np.maximum(view.table.dur_ns[rows], 1)
    if not (np.isfinite(old_ns) & np.isfinite(new_ns)).all():
        return _bounded_ratios(view, rows, units.ratio**0.5)
    place = np.log(np.maximum.accumulate(old_ns))
    ratio = np.exp(np.interp(np.log(before_ns), place, np.log(new_ns / old_ns)))
    return _bounded_ratios(view, rows, np.maximum(ratio, units.ratio))


def changed_ratios(view: RankView, works: EventWorks, ratios: Array) -> tuple[Array, Array]:
    """Return compute kernels whose ratio, by kind of work, is not 1, and their ratios."""
    rows = view.gpu_class(GpuClass.COMPUTE)
    kinds = works.kind_of[rows]
    rows, ratio = rows[kinds >= 0], ratios[kinds[kinds >= 0]]
    return rows[ratio != 1], ratio[ratio != 1]


class ChannelsLast:
    """Remove kernels that only turn tensors between NCHW and NHWC; where the run computes on the
    host, such copies.

    Cautious: one for each step stays, that of the input.
    """

    name = "channels_last"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        count = gone_ns = 0
        for view in views(run):
            if view.part.computes_on_host:
                rows = view.evidence("layout_conversion")
                _, first = np.unique(view.tree.step[rows], return_index=True)
                view.set_host_work(best, rows, 0)
                view.set_host_work(cautious, np.delete(rows, first), 0)
                count, gone_ns = count + len(rows), gone_ns + total(view.work_ns(rows))
                continue
            rows = view.gpu_rows[view.has_name(_LAYOUT)[view.gpu_rows]]
            rows = rows[view.is_kind(EventKind.KERNEL)[rows]]
            _, first = np.unique(view.step_of(rows), return_index=True)
            _remove_kernels(view, best, rows)
            _remove_kernels(view, cautious, np.delete(rows, first))
            count, gone_ns = count + len(rows), gone_ns + total(view.table.dur_ns[rows])
        if not count:
            raise NotApplicableError("no kernel only converts between NCHW and NHWC")
        return EditedGraph(
            best,
            cautious,
            note=f"gone: {pluralize(count, 'layout conversion')} of {format_ns(gone_ns)}",
        )


# As in the rule layout_conversion; a conversion inside a convolution carries other words too.
_LAYOUT = (
    r"nchwtonhwc|nhwctonchw|nchwtofoldednhwc|foldednhwctonhwc|nhwctofoldednhwc|nhwcaddpadding|"
    r"nchwaddpadding|transpose_nchw2cnhw|transpose_cnhw2nchw|transpose_packed_mn2nm|"
    r"batched_transpose_|transpose_readwrite"
)


def _remove_kernels(view: RankView, change: Change, rows: Array) -> None:
    view.remove_gpu(change, rows)
    calls = view.launch_of(rows)
    view.set_host_work(change, distinct(calls[calls >= 0]), 0)
