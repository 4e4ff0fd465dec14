"""Matrix products: a roofline times a correction learned from measured products.

The roofline is a launch plus the longer of computing and moving. What it misses, tiles that do not
fill the last wave of multiprocessors above all, is in the logarithm of measured over roofline
time, for which regression trees are fitted per device and type (`data/gemm.json`; made by
benchmarks/simulation/fit_durations.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torchtraceap.devices import Device
from torchtraceap.durations.estimate import (
    Estimate,
    UnknownDurationError,
    element_bytes,
    peak_rate,
    the_device,
)
from torchtraceap.durations.trees import BoostedTrees

__all__ = ["GemmModel", "base_ns", "estimate_gemm", "gemm_features", "load_models"]

FloatArray = npt.NDArray[np.float64]

_DATA = Path(__file__).with_name("data") / "gemm.json"
LAUNCH_NS = 3000.0
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
# Note [Factors of intervals]: held-out weights are off by 3.3 %; products of a trace differ from
# those measured in layout, alignment and clocks.
_INTERVAL = 1.25
# Twice the largest and half the smallest product that was measured still count as measured.
_MARGIN = 2.0


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

    def covers(self, shape: Sequence[float]) -> bool:
        """Whether a product is within a factor of two of those measured."""
        return all(
            low / _MARGIN <= one <= high * _MARGIN
            for one, low, high in zip(shape, self.smallest, self.largest, strict=True)
        )

    def predict(self, shapes: npt.ArrayLike) -> FloatArray:
        """Times in ns of rows of (batch, m, n, k)."""
        features = gemm_features(shapes, self.dtype, self.device)
        base = base_ns(shapes, self.dtype, self.device)
        return np.asarray(base * np.exp(self.trees.predict(features)))


@cache
def load_models() -> tuple[GemmModel, ...]:
    """The shipped models; read once per process."""
    document = json.loads(_DATA.read_text(encoding="utf-8"))
    return tuple(
        GemmModel(
            device=the_device(entry["device"]),
            dtype=entry["dtype"],
            trees=BoostedTrees.from_json(entry["trees"]),
            largest=tuple(entry["largest"]),
            smallest=tuple(entry["smallest"]),
            source=entry["says"],
        )
        for entry in document["models"]
    )


def estimate_gemm(
    m: int,
    n: int,
    k: int,
    dtype: str,
    device: str | Device,
    batch: int = 1,
    *,
    models: Sequence[GemmModel] | None = None,
) -> Estimate:
    """How long a product of (batch) m x k by k x n takes on the GPU.

    Args:
        m: Rows of the left operand: of a linear layer, all but the last of the input's sizes.
        n: Columns of the right operand: of a linear layer, the output features.
        k: The size summed over.
        dtype: fp32, tf32, fp16, bf16, fp8, ...
        device: A GPU by name or id.
        batch: Products at once.
        models: Others than those shipped.

    Raises:
        UnknownDurationError: No model was fitted for this device, type and size.
    """
    chip = the_device(device)
    for model in load_models() if models is None else models:
        if model.device.id == chip.id and model.dtype == dtype:
            shape = (batch, m, n, k)
            if not model.covers(shape):
                sizes = " x ".join(map(str, shape))
                raise UnknownDurationError(f"{sizes} lies outside what was measured ({dtype})")
            ns = float(model.predict(np.array([shape]))[0])
            return Estimate.around(ns, _INTERVAL, model.source)
    raise UnknownDurationError(f"no measurements of {dtype} matrix products on {chip.name}")
