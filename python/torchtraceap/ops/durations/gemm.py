"""Matrix products: how long one takes on any GPU, from what was measured on some.

Matrix units (Note [Products on matrix units]): a roofline times a correction learned from measured
products, in whose features only the device's peaks and sizes occur, so that it can be read for
other devices and types. Vector units (fp32): a roofline with what tiles and short sums cost. Both
are `data/gemm.json`, made by benchmarks/simulation/fit_durations.py.

Note [Products on matrix units]
What the roofline misses, tiles that do not fill the last wave of multiprocessors above all, is in
the logarithm of measured over roofline time, for which regression trees are fitted to the bf16
linear layers of H100 and H200. Those were timed one after the other with their operands in L2.
A kernel of a trace takes `start_ns` more, which traces tell. Another device or type takes the
correction of H100 with its own peaks, of which its products reach a share that traces tell for its
architecture and type, else the mean of others: what memory or the launch bounds stays as it is.
Operands whose rows do not begin at multiples of 16 bytes cannot be loaded by the fast kernels, and
take a factor. Each share and factor has its own spread of what it missed.

Note [Narrow loads]
Copies to shared memory that run beside the products take 4 bytes at least. Operands of 2-byte
elements whose rows begin at odd elements are loaded one element after the other, by kernels that
multiply with instructions of half the depth and neither copy nor store meanwhile: tiles are loaded,
multiplied and stored in turn, and 2-byte elements fill half of a lane's path, so that memory takes
twice as long. Since Hopper such instructions reach 62 % of the peak. No product was measured for
this; the interval is a guess.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.estimate import (
    Estimate,
    Estimates,
    UnknownDurationError,
    element_bytes,
    peak_rate,
    the_device,
)
from torchtraceap.ops.durations.families import usable_rate
from torchtraceap.ops.durations.trees import BoostedTrees

__all__ = [
    "GemmModel",
    "Products",
    "Scale",
    "Transfer",
    "VectorModel",
    "base_ns",
    "estimate_gemm",
    "estimate_gemms",
    "gemm_features",
    "load_models",
    "load_products",
    "model_from",
    "product_kinds",
    "reaching",
]

FloatArray = npt.NDArray[np.float64]

_DATA = Path(__file__).with_name("data") / "gemm.json"
LAUNCH_NS = 3000.0  # of products timed one after the other
# Output tiles (rows x columns) of the kernels that libraries choose from.
_TILES = (
    (64, 64),
    (64, 128),
    (128, 64),
    (128, 128),
    (128, 192),
    (128, 256),
    (192, 128),
    (256, 128),
)
# With the roles of rows and columns exchanged, as for few rows.
_NARROW_TILES = ((64, 8), (64, 16), (64, 32), (128, 32), (128, 160), (128, 192))
_WIDTHS = (48, 96, 192, 320)
# Tiles whose time is estimated, with k in one part or split over several blocks.
_TIMED_TILES = ((64, 64), (64, 128), (128, 128), (128, 256), (64, 256))
_SPLITS = (1, 2, 4, 8)
# Clusters of blocks leave some multiprocessors unused, or pair them.
_CLUSTERED_TILES = ((128, 128), (128, 256), (64, 256), (256, 128))
_CLUSTER_SHARES = (10 / 11, 1 / 2)
# Rate at which tiles are read, over that of the memory: most reads find L2.
_L2_GAIN = 1.6
# Beyond twice the largest or half the smallest product that was measured, intervals are wider.
_MARGIN = 2.0
_WIDER_OUTSIDE = 2.0
# No interval reaches further to a side: ten times is as good as nothing known.
_WIDEST = np.log(10.0)
# The trees that are read for devices without their own.
_REFERENCE = ("h100_sxm", "bf16")
# Fast kernels load 16 bytes at once.
_LOAD_BYTES = 16
_NARROW = 64
# See Note [Narrow loads].
_LEAST_COPY = 4
_NARROW_TILE = 64
_HALF_DEPTH, _OLD_ON_NEW, _HALF_PATH = 0.5, 0.62, 0.5
_NARROW_FACTOR = 1.8
_NARROW_SAYS = "rows of 2-byte elements at odd places: loaded, multiplied, stored in turn at rates"
# What the blocks of a product on vector units compute at once, along m and n, and the least part
# of k that a block of its own gets.
_VECTOR_TILE = 64
_VECTOR_GRID = 32
_LEAST_PART = 256


def base_ns(shapes: npt.ArrayLike, dtype: str, device: Device) -> FloatArray:
    """Launch plus roofline, in ns.

    Args:
        shapes: Rows of (batch, m, n, k).
        dtype: In which it computes; operands and result have the same width.
        device: Whose peaks count.

    Raises:
        UnknownDurationError: The device has no such peak.
    """
    batch, m, n, k = np.asarray(shapes, dtype=np.float64).reshape(-1, 4).T
    compute = 2.0 * batch * m * n * k / peak_rate(device, dtype)
    moved = element_bytes(dtype) * batch * (m * k + k * n + m * n) / device.bandwidth
    return np.asarray(LAUNCH_NS + 1e9 * np.maximum(compute, moved))


def gemm_features(shapes: npt.ArrayLike, dtype: str, device: Device) -> FloatArray:
    """What the correction is read from: one row per product, all columns without units.

    Logarithms are to base 2; waves are output tiles per multiprocessor.
    """
    shape = np.asarray(shapes, dtype=np.float64).reshape(-1, 4)
    batch, m, n, k = shape.T
    base = base_ns(shape, dtype, device)
    compute = 2e9 * batch * m * n * k / peak_rate(device, dtype)
    moved = 1e9 * element_bytes(dtype) * batch * (m * k + k * n + m * n) / device.bandwidth
    columns = [
        np.log2(m), np.log2(n), np.log2(k), np.log2(batch), np.log2(compute / LAUNCH_NS),
        np.log2(moved / LAUNCH_NS), np.log2(compute / moved), np.log2(base),
        np.log2(m * n), np.log2(n * k), np.log2(m * k), np.log2(n / m), np.log2(k / m),
        np.log2(n / k), m % 2, (m - 1) % 64, n % 256,
    ]  # fmt: skip
    for rows, width in _TILES:
        columns += _waves(batch * np.ceil(m / rows) * np.ceil(n / width), device)
    for rows, width in _NARROW_TILES:
        columns += _waves(batch * np.ceil(n / rows) * np.ceil(m / width), device)
    columns += [np.ceil(m / rows) * rows / m for rows in (64, 128, 192, 256)]
    columns += [np.ceil(n / width) * width / n for width in _WIDTHS]
    columns += [np.log2(moved / (device.l2_bytes or 1)), k % 512, np.ceil(k / 64)]
    columns += _timed_tiles(shape, dtype, device, base)
    for rows, width in _CLUSTERED_TILES:
        tiles = batch * np.ceil(m / rows) * np.ceil(n / width)
        for share in _CLUSTER_SHARES:
            columns += _waves(tiles / share, device)[1:]
    for rows, width in ((128, 128), (128, 256), (64, 128), (64, 64)):
        columns.append(batch * np.ceil(m / rows) * np.ceil(n / width) % device.multiprocessors)
    # Rounded, so that the last digit of a logarithm never decides which side of a cut a row is on.
    return np.round(np.column_stack(columns), 6)


def _timed_tiles(
    shape: FloatArray, dtype: str, device: Device, base: FloatArray
) -> list[FloatArray]:
    """Time of whole waves of tiles, over the roofline, for each tile and split of k."""
    batch, m, n, k = shape.T
    rate = peak_rate(device, dtype) / device.multiprocessors
    found = []
    for rows, width in _TIMED_TILES:
        tiles = batch * np.ceil(m / rows) * np.ceil(n / width)
        reading = element_bytes(dtype) * (rows + width) * k * tiles / device.bandwidth / _L2_GAIN
        for parts in _SPLITS:
            waves = np.ceil(tiles * parts / device.multiprocessors)
            computing = waves * 2.0 * rows * width * (k / parts) / rate
            time = LAUNCH_NS + 1e9 * np.maximum(computing, reading)
            found.append(np.log2(time / base))
    return found


def _waves(tiles: FloatArray, device: Device) -> list[FloatArray]:
    """Tiles per multiprocessor, and the share of the last wave that has nothing to do."""
    if not device.multiprocessors:
        raise UnknownDurationError(f"how many multiprocessors {device.name} has is not known")
    waves = tiles / device.multiprocessors
    return [np.log2(waves), np.log2(np.ceil(waves) / waves)]


@dataclass(frozen=True, slots=True)
class GemmModel:
    """The correction for one device and type."""

    device: Device
    dtype: str
    trees: BoostedTrees
    largest: tuple[float, ...]
    """Of batch, m, n, k that were measured."""
    smallest: tuple[float, ...]
    source: str

    def covers(self, shapes: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """bool `[n]`: rows of (m, n, k) within a factor of two of those measured."""
        shape = np.asarray(shapes, dtype=np.float64).reshape(-1, 3)
        low, high = np.array(self.smallest[1:]) / _MARGIN, np.array(self.largest[1:]) * _MARGIN
        return np.asarray(((shape >= low) & (shape <= high)).all(axis=1))

    def predict(self, shapes: npt.ArrayLike) -> FloatArray:
        """Times in ns of rows of (batch, m, n, k), one after the other as they were measured."""
        features = gemm_features(shapes, self.dtype, self.device)
        base = base_ns(shapes, self.dtype, self.device)
        return np.asarray(base * np.exp(self.trees.predict(features)))


@dataclass(frozen=True, slots=True)
class Scale:
    """Time over what a model says; logarithms."""

    middle: float
    """Of an architecture and type: how much less of the peak is reached than by H100; else of the
    time."""
    small: tuple[float, float]
    """10th and 90th percentile of what remains when the middle is taken off, where the start of
    the kernel is the larger part."""
    large: tuple[float, float]
    """As `small`, elsewhere."""
    rows: int
    says: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """From the trees to kernels of traces on any device; Note [Products on matrix units]."""

    start_ns: float
    scales: Mapping[str, Scale]
    """By compute capability and type, such as "8.0 tf32"; "amd" for others of its, "" for all
    others."""
    kinds: tuple[Scale, ...]
    """By number less one, as `product_kinds` counts them; above that."""

    def scale_of(self, device: Device, dtype: str) -> Scale:
        """16-bit types are one."""
        kind = "bf16" if dtype == "fp16" else dtype
        own = self.scales.get(f"{device.architecture} {kind}")
        return own or self.scales.get(device.vendor) or self.scales[""]


@dataclass(frozen=True, slots=True)
class VectorModel:
    """Products without matrix units: fp32, and fp64 at its own rate.

    Computing takes 2 batch m n (k + `k_start`) / peak, m and n in whole steps of 32, times the
    device's factor: `flat` + `cache` x (peak over the rate at which memory feeds blocks that fit
    into L2) + `balance` x log(flops per byte over 12), for boards reach less of their peak the
    less memory and power they have for it. Moving takes `memory` x bytes / bandwidth. The time is
    the start and the root of the sum of both squares.
    """

    start_ns: float
    flat: float
    cache: float
    balance: float
    memory: float
    k_start: float
    known: Mapping[str, Scale]
    """What a measured device takes above that; "" for all others."""

    def predict(self, shapes: npt.ArrayLike, device: Device, dtype: str = "fp32") -> FloatArray:
        """Times in ns of rows of (batch, m, n, k), without the scale of the device."""
        batch, m, n, k = np.asarray(shapes, dtype=np.float64).reshape(-1, 4).T
        rate = device.vector.get(dtype) or device.vector["fp32"]
        grid = [np.ceil(size / _VECTOR_GRID) * _VECTOR_GRID for size in (m, n)]
        even = 2.0 * batch * grid[0] * grid[1] * (k + self.k_start) / rate
        computing = np.maximum(even, self._one_block(batch, m, n, k, device, rate))
        size = element_bytes(dtype) * batch * (m * k + k * n + m * n)
        moving = self.memory * size / device.bandwidth
        return np.asarray(
            self.start_ns + 1e9 * np.hypot(self.factor(device, rate) * computing, moving)
        )

    def factor(self, device: Device, rate: float) -> float:
        """How far a device stays below its peak."""
        side = np.sqrt(max(device.l2_bytes, 1 << 20) / 12.0)
        cache = self.cache * 20.0 * rate / (side * device.bandwidth)
        balance = self.balance * np.log(max(rate / device.bandwidth / 12.0, 1.0))
        return float(self.flat + cache + balance)

    def _one_block(
        self,
        batch: FloatArray,
        m: FloatArray,
        n: FloatArray,
        k: FloatArray,
        device: Device,
        rate: float,
    ) -> FloatArray:
        """Time of one block where there are fewer of them than multiprocessors, s."""
        processors = max(device.multiprocessors, 1)
        tiles = batch * np.ceil(m / _VECTOR_TILE) * np.ceil(n / _VECTOR_TILE)
        parts = np.clip(processors / tiles, 1.0, np.maximum(k / _LEAST_PART, 1.0))
        work = 2.0 * _VECTOR_TILE**2 * (k / parts + self.k_start)
        return np.asarray(work / (rate / processors))

    def scale_of(self, device: Device) -> Scale:
        return self.known.get(device.id) or self.known[""]


@dataclass(frozen=True, slots=True)
class Products:
    """All that is shipped."""

    models: tuple[GemmModel, ...]
    transfer: Transfer
    vector: VectorModel


@cache
def load_products() -> Products:
    """The shipped models; read once per process."""
    document = json.loads(_DATA.read_text(encoding="utf-8"))
    models = tuple(map(model_from, document["models"]))
    return Products(models, _transfer(document["transfer"]), _vector(document["vector"]))


def model_from(entry: Mapping[str, Any]) -> GemmModel:
    """Reads one model's text form."""
    return GemmModel(
        device=the_device(entry["device"]),
        dtype=entry["dtype"],
        trees=BoostedTrees.from_json(entry["trees"]),
        largest=tuple(entry["largest"]),
        smallest=tuple(entry["smallest"]),
        source=entry["says"],
    )


def load_models() -> tuple[GemmModel, ...]:
    """The shipped corrections."""
    return load_products().models


def _transfer(entry: Mapping[str, Any]) -> Transfer:
    return Transfer(
        start_ns=float(entry["start_ns"]),
        scales={name: _scale(scale) for name, scale in entry["scales"].items()},
        kinds=tuple(map(_scale, entry["kinds"])),
    )


def _scale(entry: Mapping[str, Any]) -> Scale:
    ends = {name: (float(entry[name][0]), float(entry[name][1])) for name in ("small", "large")}
    return Scale(float(entry["middle"]), ends["small"], ends["large"], entry["rows"], entry["says"])


def _vector(entry: Mapping[str, Any]) -> VectorModel:
    known = {name: _scale(scale) for name, scale in entry["known"].items()}
    numbers = ("start_ns", "flat", "cache", "balance", "memory", "k_start")
    return VectorModel(**{name: float(entry[name]) for name in numbers}, known=known)


def estimate_gemm(
    m: int,
    n: int,
    k: int,
    dtype: str,
    device: str | Device,
    batch: int = 1,
    *,
    products: Products | None = None,
) -> Estimate:
    """How long a product of (batch) m x k by k x n takes on the GPU; see `estimate_gemms`.

    Args:
        m: Rows of the left operand: of a linear layer, all but the last of the input's sizes.
        n: Columns of the right operand: of a linear layer, the output features.
        k: The size summed over.
        dtype: fp32 (without tensor cores), tf32, fp16, bf16, fp8, ...
        device: A GPU by name or id.
        batch: Products at once.
        products: Other models than those shipped.

    Raises:
        UnknownDurationError: An unknown device or type, or a size below 1.
    """
    return estimate_gemms([[batch, m, n, k]], dtype, device, products=products)[0]


def estimate_gemms(
    shapes: npt.ArrayLike,
    dtype: str,
    device: str | Device,
    *,
    products: Products | None = None,
) -> Estimates:
    """How long products take, each as a kernel of a trace.

    Args:
        shapes: `[n, 4]`: batch, m, n, k of each.
        dtype: In which all compute.
        device: A GPU by name or id.
        products: Other models than those shipped.

    Raises:
        UnknownDurationError: An unknown device or type, or a size below 1.
    """
    chip = the_device(device)
    element_bytes(dtype)
    shape = np.asarray(shapes, dtype=np.float64).reshape(-1, 4)
    if len(shape) and not shape.min() >= 1:
        raise UnknownDurationError("a product needs sizes of 1 at least")
    table = load_products() if products is None else products
    rate, stand_in = usable_rate(chip, dtype, "matrix")
    if rate is None:
        raise UnknownDurationError(f"the peak rate of {chip.name} for {dtype} is not known")
    if not chip.multiprocessors:
        raise UnknownDurationError(f"how many multiprocessors {chip.name} has is not known")
    label = stand_in or dtype
    if label in chip.matrix:
        found = _on_matrix_units(shape, label, chip, table)
    else:
        found = _on_vector_units(shape, dtype, chip, table.vector)
    if not stand_in:
        return found
    said = tuple(f"{source}; at the rate of {stand_in}" for source in found.sources)
    return replace(found, sources=said)


def _on_matrix_units(shape: FloatArray, dtype: str, chip: Device, table: Products) -> Estimates:
    measured = {(model.device.id, model.dtype): model for model in table.models}
    own = measured.get((chip.id, "bf16" if dtype == "fp16" else dtype))
    model = own or measured[_REFERENCE]
    scale = table.transfer.scale_of(chip, dtype)
    which = product_kinds(shape, dtype, chip)
    scales = (scale, *table.transfer.kinds)
    above = np.array([0.0, *(one.middle for one in scales[1:])])[which]
    at_peak = replace(model, device=reaching(chip, scale.middle), dtype=dtype)
    running = at_peak.predict(shape) * np.exp(above)
    kept = model.source if own else f"{model.source}, read with the peaks of {chip.name}"
    said = f"{kept}; {scale.says}"
    sources = (said, *(f"{said}; {one.says}" for one in table.transfer.kinds))
    wide = np.where(model.covers(shape[:, 1:]), 1.0, _WIDER_OUTSIDE)
    start = table.transfer.start_ns
    found = _with_ends(running, start, which, scales, sources, wide)
    narrow = narrow_loads(shape, dtype)
    if not narrow.any():
        return found
    slow = Estimates.around(
        start + _narrow_ns(shape, dtype, chip), _NARROW_FACTOR, f"{_NARROW_SAYS} of {chip.name}"
    )
    return Estimates.choose(narrow & (slow.ns > found.ns), [found, slow])


def reaching(chip: Device, missed: float) -> Device:
    """A device whose matrix units are slower, by this logarithm."""
    share = float(np.exp(-missed))
    return replace(chip, matrix={name: share * rate for name, rate in chip.matrix.items()})


def narrow_loads(shape: FloatArray, dtype: str) -> npt.NDArray[np.bool_]:
    """bool `[n]`: in no order do all rows begin at multiples of 4 bytes; see Note [Narrow loads]"""
    _, m, n, k = shape.T
    step = _LEAST_COPY / element_bytes(dtype)
    odd_m, odd_n, odd_k = (size % step != 0 for size in (m, n, k))
    vector = (m == 1) | (n == 1)
    return np.asarray(~vector & (odd_n | (odd_k & odd_m)) & (step > 1))


def _narrow_ns(shape: FloatArray, dtype: str, chip: Device) -> FloatArray:
    """Tiles that are loaded, multiplied and stored in turn; without the start."""
    batch, m, n, k = shape.T
    rows, width = (np.ceil(size / _NARROW_TILE) * _NARROW_TILE for size in (m, n))
    rate = peak_rate(chip, dtype) * _HALF_DEPTH * (_OLD_ON_NEW if _is_warpgroup(chip) else 1.0)
    moved = element_bytes(dtype) * batch * (m * k + k * n + m * n)
    computing, moving = 2.0 * batch * rows * width * k / rate, moved / chip.bandwidth
    return np.asarray(1e9 * (computing + moving / _HALF_PATH))


def _is_warpgroup(chip: Device) -> bool:
    """Its peak is that of instructions of four warps together."""
    return chip.vendor == "nvidia" and chip.architecture in ("9.0", "10.0", "10.3")


def product_kinds(shape: FloatArray, dtype: str, device: Device) -> npt.NDArray[np.int64]:
    """int64 `[n]`: 0; 1 batches; 2 batches of products narrower than a tile, 4 of these on AMD's
    matrix cores; 3 products in which no order of the operands' sizes lets all rows begin at
    multiples of 16 bytes."""
    batch, m, n, k = shape.T
    step = _LOAD_BYTES / element_bytes(dtype)
    odd_m, odd_n, odd_k = (size % step != 0 for size in (m, n, k))
    vector = (m == 1) | (n == 1)
    unaligned = ~vector & (odd_n | (odd_k & odd_m))
    narrow = 4 if device.vendor == "amd" else 2
    many = np.where(np.minimum(m, n) < _NARROW, narrow, 1)
    return np.where(unaligned, 3, np.where(batch > 1, many, 0)).astype(np.int64)


def _with_ends(
    running: FloatArray,
    start_ns: float,
    which: npt.NDArray[np.integer[Any]],
    scales: Sequence[Scale],
    sources: tuple[str, ...],
    wide: FloatArray | float = 1.0,
) -> Estimates:
    """Times with the start, and the intervals of the scale that each row has."""
    ns = running + start_ns
    region = np.where(running < start_ns, 0, 1)
    ends = np.array([[scale.small, scale.large] for scale in scales])[which, region]
    factors = np.exp(np.clip(np.multiply(ends.T, wide), -_WIDEST, _WIDEST))
    return Estimates(ns, ns * factors[0], ns * factors[1], which.astype(np.int32), sources)


def _on_vector_units(shape: FloatArray, dtype: str, chip: Device, model: VectorModel) -> Estimates:
    scale = model.scale_of(chip)
    running = (model.predict(shape, chip, dtype) - model.start_ns) * np.exp(scale.middle)
    which = np.zeros(len(shape), dtype=np.int64)
    return _with_ends(running, model.start_ns, which, (scale,), (scale.says,))
