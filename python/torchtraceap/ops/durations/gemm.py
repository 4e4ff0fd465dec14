"""Estimate matrix products on any GPU from products that were measured on some.

On matrix units (Note [Products on matrix units]) the time is a roofline times a correction learned
from measured products. Its features depend on the device only through peaks and sizes, so that it
can be evaluated for other devices and types. On vector units (fp32) the time is a roofline with the
cost of tiles and short sums. Both are in `data/gemm.json`, made by
benchmarks/simulation/fit_durations.py.

Note [Products on matrix units]
Regression trees predict the logarithm of measured over roofline time, which is mostly due to tiles
that do not fill the last wave of multiprocessors. They were fitted to the bf16 linear layers of
H100 and H200, timed back to back with operands in L2. A kernel in a trace takes `start_ns` more,
which was fitted to traces. Another device or type uses the correction of H100 with its own peaks,
reduced to the share that products reach in traces of its architecture and type, or else to the mean
share; times bound by memory or launching stay the same. Fast kernels cannot load operands whose
rows do not begin at multiples of 16 bytes; these take a factor. Each share and factor has its own
error.

Note [Narrow loads]
Asynchronous copies to shared memory move at least 4 bytes. Operands of 2-byte elements whose rows
begin at odd elements are loaded element by element, by kernels that multiply with instructions of
half the depth and do not overlap copies and stores: tiles are loaded, multiplied and stored in
turn, and 2-byte elements fill half of a lane's path, so that memory takes twice as long. Since
Hopper such instructions reach 62 % of the peak. No such product was measured; the interval is a
guess.
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
    resolve_device,
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
    "derated_device",
    "estimate_gemm",
    "estimate_gemms",
    "gemm_features",
    "gemm_model_from_json",
    "load_products",
    "product_kinds",
]

FloatArray = npt.NDArray[np.float64]

_DATA = Path(__file__).with_name("data") / "gemm.json"
LAUNCH_NS = 3000.0
"""Launch time in ns of products that are timed back to back."""
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
# Tiles with exchanged roles of rows and columns, as used for few rows.
_NARROW_TILES = ((64, 8), (64, 16), (64, 32), (128, 32), (128, 160), (128, 192))
_WIDTHS = (48, 96, 192, 320)
# Tiles whose time is a feature, with k in one part or split over several blocks.
_TIMED_TILES = ((64, 64), (64, 128), (128, 128), (128, 256), (64, 256))
_SPLITS = (1, 2, 4, 8)
# Tiles of kernels with clusters of blocks, which leave some multiprocessors unused or pair them.
_CLUSTERED_TILES = ((128, 128), (128, 256), (64, 256), (256, 128))
_CLUSTER_SHARES = (10 / 11, 1 / 2)
# Rate at which tiles are read over the rate of the memory, as most reads hit L2.
_L2_GAIN = 1.6
# Intervals are wider beyond twice the largest or half the smallest measured product.
_MARGIN = 2.0
_WIDER_OUTSIDE = 2.0
# The widest interval to either side: a factor of ten means that almost nothing is known.
_WIDEST = np.log(10.0)
# Device and type whose trees are used for devices without their own.
_REFERENCE = ("h100_sxm", "bf16")
# Fast kernels load 16 bytes at once.
_LOAD_BYTES = 16
_NARROW = 64
# The next five belong to Note [Narrow loads].
_LEAST_COPY = 4
_NARROW_TILE = 64
_HALF_DEPTH, _OLD_ON_NEW, _HALF_PATH = 0.5, 0.62, 0.5
_NARROW_FACTOR = 1.8
_NARROW_SAYS = "rows of 2-byte elements at odd places: loaded, multiplied, stored in turn at rates"
# Side of a block's tile and step of m and n on vector units, and the least part of k in one block.
_VECTOR_TILE = 64
_VECTOR_GRID = 32
_LEAST_PART = 256


def base_ns(shapes: npt.ArrayLike, dtype: str, device: Device) -> FloatArray:
    """Return the launch time plus the roofline time in ns, float64 `[n]`.

    Args:
        shapes: `[n, 4]`: batch, m, n and k of each product.
        dtype: Type of computation; operands and result have the same width.
        device: GPU whose peaks are used.

    Raises:
        UnknownDurationError: The device has no such peak.
    """
    batch, m, n, k = np.asarray(shapes, dtype=np.float64).reshape(-1, 4).T
    compute = 2.0 * batch * m * n * k / peak_rate(device, dtype)
    moved = element_bytes(dtype) * batch * (m * k + k * n + m * n) / device.bandwidth
    return np.asarray(LAUNCH_NS + 1e9 * np.maximum(compute, moved))


def gemm_features(shapes: npt.ArrayLike, dtype: str, device: Device) -> FloatArray:
    """Return the dimensionless features of the correction, float64 `[n, features]`.

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
    # Features are rounded so that the last digit of a logarithm never decides a comparison.
    return np.round(np.column_stack(columns), 6)


def _timed_tiles(
    shape: FloatArray, dtype: str, device: Device, base: FloatArray
) -> list[FloatArray]:
    """Return the time of whole waves of tiles over the roofline for each tile and split of k."""
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
    """Return the logarithms of the tiles per multiprocessor and of the padding of the last wave."""
    if not device.multiprocessors:
        raise UnknownDurationError(f"how many multiprocessors {device.name} has is not known")
    waves = tiles / device.multiprocessors
    return [np.log2(waves), np.log2(np.ceil(waves) / waves)]


@dataclass(frozen=True, slots=True)
class GemmModel:
    """Fitted correction for one device and type."""

    device: Device
    dtype: str
    trees: BoostedTrees
    largest: tuple[float, ...]
    """Largest measured batch, m, n and k."""
    smallest: tuple[float, ...]
    """Smallest measured batch, m, n and k."""
    source: str

    def covers(self, shapes: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return bool `[n]`: True for rows of (m, n, k) within a factor of two of measured ones."""
        shape = np.asarray(shapes, dtype=np.float64).reshape(-1, 3)
        low, high = np.array(self.smallest[1:]) / _MARGIN, np.array(self.largest[1:]) * _MARGIN
        return np.asarray(((shape >= low) & (shape <= high)).all(axis=1))

    def predict(self, shapes: npt.ArrayLike) -> FloatArray:
        """Return the times in ns of rows of (batch, m, n, k), executed back to back."""
        features = gemm_features(shapes, self.dtype, self.device)
        base = base_ns(shapes, self.dtype, self.device)
        return np.asarray(base * np.exp(self.trees.predict(features)))


@dataclass(frozen=True, slots=True)
class Scale:
    """Logarithms of measured over estimated time and their spread."""

    middle: float
    """Logarithm of the factor on the peak of H100 (for an architecture and type) or on the time."""
    small: tuple[float, float]
    """10th and 90th percentile of the residuals where the kernel's startup is the larger part."""
    large: tuple[float, float]
    """The same percentiles for all other products."""
    rows: int
    says: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """Scales that carry the trees over to any device; see Note [Products on matrix units]."""

    start_ns: float
    scales: Mapping[str, Scale]
    """Scales by compute capability and type, such as "8.0 tf32"; "amd" for all other AMD devices,
    "" for all others."""
    kinds: tuple[Scale, ...]
    """Additional scales of the kinds 1, 2, ... of `product_kinds`."""

    def scale_of(self, device: Device, dtype: str) -> Scale:
        """Return the scale of a device and type; fp16 uses that of bf16."""
        kind = "bf16" if dtype == "fp16" else dtype
        own = self.scales.get(f"{device.architecture} {kind}")
        return own or self.scales.get(device.vendor) or self.scales[""]


@dataclass(frozen=True, slots=True)
class VectorModel:
    """Model of products without matrix units: fp32, and fp64 at its own rate.

    Computing takes 2 batch m n (k + `k_start`) / peak, with m and n in whole steps of 32, times the
    device's factor `flat` + `cache` x (peak over the rate at which memory feeds blocks that fit
    into L2) + `balance` x log(flops per byte over 12), because boards with less memory bandwidth
    and power per flop/s reach less of their peak. Moving takes `memory` x bytes / bandwidth. The
    time is the startup time plus the root of the sum of both squares.
    """

    start_ns: float
    flat: float
    cache: float
    balance: float
    memory: float
    k_start: float
    known: Mapping[str, Scale]
    """Additional scale by id of a measured device; "" for all others."""

    def predict(self, shapes: npt.ArrayLike, device: Device, dtype: str = "fp32") -> FloatArray:
        """Return the times in ns of rows of (batch, m, n, k), without the scale of the device."""
        batch, m, n, k = np.asarray(shapes, dtype=np.float64).reshape(-1, 4).T
        rate = device.vector.get(dtype) or device.vector["fp32"]
        grid = [np.ceil(size / _VECTOR_GRID) * _VECTOR_GRID for size in (m, n)]
        even = 2.0 * batch * grid[0] * grid[1] * (k + self.k_start) / rate
        # With fewer blocks than multiprocessors, one block on one multiprocessor bounds the time.
        processors = max(device.multiprocessors, 1)
        tiles = batch * np.ceil(m / _VECTOR_TILE) * np.ceil(n / _VECTOR_TILE)
        parts = np.clip(processors / tiles, 1.0, np.maximum(k / _LEAST_PART, 1.0))
        one_block = 2.0 * _VECTOR_TILE**2 * (k / parts + self.k_start) / (rate / processors)
        computing = np.maximum(even, one_block)
        size = element_bytes(dtype) * batch * (m * k + k * n + m * n)
        moving = self.memory * size / device.bandwidth
        return np.asarray(
            self.start_ns + 1e9 * np.hypot(self.factor(device, rate) * computing, moving)
        )

    def factor(self, device: Device, rate: float) -> float:
        """Return the factor by which a device stays below its peak `rate` in flop/s."""
        side = np.sqrt(max(device.l2_bytes, 1 << 20) / 12.0)
        cache = self.cache * 20.0 * rate / (side * device.bandwidth)
        balance = self.balance * np.log(max(rate / device.bandwidth / 12.0, 1.0))
        return float(self.flat + cache + balance)

    def scale_of(self, device: Device) -> Scale:
        """Return the scale of a device."""
        return self.known.get(device.id) or self.known[""]


@dataclass(frozen=True, slots=True)
class Products:
    """Shipped models of matrix products."""

    models: tuple[GemmModel, ...]
    transfer: Transfer
    vector: VectorModel


@cache
def load_products() -> Products:
    """Load the shipped models; they are read once per process."""
    document = json.loads(_DATA.read_text(encoding="utf-8"))
    transfer, vector = document["transfer"], document["vector"]
    numbers = ("start_ns", "flat", "cache", "balance", "memory", "k_start")
    return Products(
        models=tuple(map(gemm_model_from_json, document["models"])),
        transfer=Transfer(
            start_ns=float(transfer["start_ns"]),
            scales={name: _scale_from_json(scale) for name, scale in transfer["scales"].items()},
            kinds=tuple(map(_scale_from_json, transfer["kinds"])),
        ),
        vector=VectorModel(
            **{name: float(vector[name]) for name in numbers},
            known={name: _scale_from_json(scale) for name, scale in vector["known"].items()},
        ),
    )


def gemm_model_from_json(entry: Mapping[str, Any]) -> GemmModel:
    """Read one model from its JSON form."""
    return GemmModel(
        device=resolve_device(entry["device"]),
        dtype=entry["dtype"],
        trees=BoostedTrees.from_json(entry["trees"]),
        largest=tuple(entry["largest"]),
        smallest=tuple(entry["smallest"]),
        source=entry["says"],
    )


def _scale_from_json(entry: Mapping[str, Any]) -> Scale:
    ends = {name: (float(entry[name][0]), float(entry[name][1])) for name in ("small", "large")}
    return Scale(float(entry["middle"]), ends["small"], ends["large"], entry["rows"], entry["says"])


def estimate_gemm(
    m: int, n: int, k: int, dtype: str, device: str | Device, batch: int = 1
) -> Estimate:
    """Estimate one product of (batch) m x k by k x n; see `estimate_gemms`."""
    return estimate_gemms([[batch, m, n, k]], dtype, device)[0]


def estimate_gemms(
    shapes: npt.ArrayLike,
    dtype: str,
    device: str | Device,
    *,
    products: Products | None = None,
) -> Estimates:
    """Estimate matrix products, each as one kernel of a trace.

    Args:
        shapes: `[n, 4]`: batch, m, n and k of each product.
        dtype: Type in which all compute: fp32 (without tensor cores), tf32, fp16, bf16, fp8, ...
        device: A GPU by name or id.
        products: Models to use instead of those shipped.

    Raises:
        UnknownDurationError: The device or type is unknown, or a size is below 1.
    """
    chip = resolve_device(device)
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
        found = _estimate_on_matrix_units(shape, label, chip, table)
    else:
        model, scale = table.vector, table.vector.scale_of(chip)
        running = (model.predict(shape, chip, dtype) - model.start_ns) * np.exp(scale.middle)
        which = np.zeros(len(shape), dtype=np.int64)
        found = _with_intervals(running, model.start_ns, which, (scale,), (scale.says,))
    if not stand_in:
        return found
    said = tuple(f"{source}; at the rate of {stand_in}" for source in found.sources)
    return replace(found, sources=said)


def _estimate_on_matrix_units(
    shape: FloatArray, dtype: str, chip: Device, table: Products
) -> Estimates:
    measured = {(model.device.id, model.dtype): model for model in table.models}
    own = measured.get((chip.id, "bf16" if dtype == "fp16" else dtype))
    model = own or measured[_REFERENCE]
    scale = table.transfer.scale_of(chip, dtype)
    which = product_kinds(shape, dtype, chip)
    scales = (scale, *table.transfer.kinds)
    above = np.array([0.0, *(one.middle for one in scales[1:])])[which]
    at_peak = replace(model, device=derated_device(chip, scale.middle), dtype=dtype)
    running = at_peak.predict(shape) * np.exp(above)
    source = model.source if own else f"{model.source}, read with the peaks of {chip.name}"
    source = f"{source}; {scale.says}"
    sources = (source, *(f"{source}; {one.says}" for one in table.transfer.kinds))
    wide = np.where(model.covers(shape[:, 1:]), 1.0, _WIDER_OUTSIDE)
    start = table.transfer.start_ns
    found = _with_intervals(running, start, which, scales, sources, wide)
    narrow = narrow_loads(shape, dtype)
    if not narrow.any():
        return found
    narrow_ns = start + _narrow_load_ns(shape, dtype, chip)
    slow = Estimates.within_factor(narrow_ns, _NARROW_FACTOR, f"{_NARROW_SAYS} of {chip.name}")
    return Estimates.choose(narrow & (slow.ns > found.ns), [found, slow])


def derated_device(chip: Device, missed: float) -> Device:
    """Return the device with slower matrix units; `missed` is the logarithm of the factor."""
    share = float(np.exp(-missed))
    return replace(chip, matrix={name: share * rate for name, rate in chip.matrix.items()})


def narrow_loads(shape: FloatArray, dtype: str) -> npt.NDArray[np.bool_]:
    """Return bool `[n]`: which products need element-wise loads; see Note [Narrow loads]."""
    step = _LEAST_COPY / element_bytes(dtype)
    return _unaligned_rows(shape, step) & (step > 1)


def _unaligned_rows(shape: FloatArray, step: float) -> npt.NDArray[np.bool_]:
    """Return bool `[n]`: no layout of the operands starts all rows at multiples of `step` elements.

    Products of a matrix and a vector are never unaligned.
    """
    _, m, n, k = shape.T
    odd_m, odd_n, odd_k = (size % step != 0 for size in (m, n, k))
    return np.asarray((m != 1) & (n != 1) & (odd_n | (odd_k & odd_m)))


def _narrow_load_ns(shape: FloatArray, dtype: str, chip: Device) -> FloatArray:
    """Return the ns of tiles that are loaded, multiplied and stored in turn, without startup."""
    batch, m, n, k = shape.T
    rows, width = (np.ceil(size / _NARROW_TILE) * _NARROW_TILE for size in (m, n))
    # On these architectures the peak is that of warpgroup instructions.
    is_warpgroup = chip.vendor == "nvidia" and chip.architecture in ("9.0", "10.0", "10.3")
    rate = peak_rate(chip, dtype) * _HALF_DEPTH * (_OLD_ON_NEW if is_warpgroup else 1.0)
    moved = element_bytes(dtype) * batch * (m * k + k * n + m * n)
    computing, moving = 2.0 * batch * rows * width * k / rate, moved / chip.bandwidth
    return np.asarray(1e9 * (computing + moving / _HALF_PATH))


def product_kinds(shape: FloatArray, dtype: str, device: Device) -> npt.NDArray[np.int64]:
    """Classify products, int64 `[n]`.

    0 is a single product, 1 a batch, 2 a batch of products narrower than a tile, 3 a product whose
    rows cannot all begin at multiples of 16 bytes, and 4 is kind 2 on AMD's matrix cores.
    """
    batch, m, n, _ = shape.T
    unaligned = _unaligned_rows(shape, _LOAD_BYTES / element_bytes(dtype))
    narrow = 4 if device.vendor == "amd" else 2
    many = np.where(np.minimum(m, n) < _NARROW, narrow, 1)
    return np.where(unaligned, 3, np.where(batch > 1, many, 0)).astype(np.int64)


def _with_intervals(
    running: FloatArray,
    start_ns: float,
    which: npt.NDArray[np.integer[Any]],
    scales: Sequence[Scale],
    sources: tuple[str, ...],
    wide: FloatArray | float = 1.0,
) -> Estimates:
    """Add the startup time and the interval of the scale `which` of each row."""
    ns = running + start_ns
    region = np.where(running < start_ns, 0, 1)
    ends = np.array([[scale.small, scale.large] for scale in scales])[which, region]
    factors = np.exp(np.clip(np.multiply(ends.T, wide), -_WIDEST, _WIDEST))
    return Estimates(ns, ns * factors[0], ns * factors[1], which.astype(np.int32), sources)
