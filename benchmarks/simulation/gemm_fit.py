"""Fits how the trees of `durations.gemm` carry over to other devices and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchtraceap.ops.devices import load_devices
from torchtraceap.ops.durations import gemm
from trace_kernels import Kernels

# A scale of its own needs so many kinds of products, the larger part of whose time is not start.
FEWEST = 6
FEWEST_OF_KIND = 2
# What the mean scale counts for against that of an architecture, and no factor against that of
# a kind of products (few traces have them): in traces.
HELD_SCALE = 0.5
HELD_KIND = 1.0
# No interval is narrower to either side than kernels of one shape differ between runs.
LEAST = 0.08
# Beyond these quantiles lie the tenths that an interval leaves out, for n values: wider for few.
ENDS = (0.1, 0.9)
# Shares of the peak that are tried, as logarithms below it.
MISSED = np.linspace(-0.3, 1.2, 16)
KINDS = {
    1: "a batch",
    2: "a batch of narrow products",
    3: "operands not aligned to 16 bytes",
    4: "a batch of narrow products on AMD's matrix cores",
}


def of_matrix_units(rows: Kernels) -> Kernels:
    """Products of traces with known sizes on tensor or matrix cores."""
    chosen = [bool(s) and p.endswith("matrix") for s, p in zip(rows.shape, rows.peak, strict=True)]
    return rows.take(np.flatnonzero(chosen))


def shapes_of(rows: Kernels) -> np.ndarray:
    return np.array([text.split() for text in rows.shape], dtype=np.float64).reshape(-1, 4)


def by_trees(
    rows: Kernels, models: Sequence[gemm.GemmModel], missed: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Times of the trees that `gemm` would read for each row, and what kind of product it is."""
    known = {(model.device.id, model.dtype): model for model in models}
    shape, ns = shapes_of(rows), np.empty(len(rows))
    which = np.zeros(len(rows), dtype=np.int64)
    kinds = np.array([f"{d} {p.split()[0]}" for d, p in zip(rows.device, rows.peak, strict=True)])
    for kind in np.unique(kinds):
        name, dtype = kind.split()
        here = kinds == kind
        same = "bf16" if dtype == "fp16" else dtype
        model = known.get((name, same)) or known["h100_sxm", "bf16"]
        device = gemm.derated_device(load_devices()[name], missed)
        ns[here] = replace(model, device=device, dtype=dtype).predict(shape[here])
        which[here] = gemm.product_kinds(shape[here], dtype, device)
    return ns, which


def fit_transfer(rows: Kernels, models: Sequence[gemm.GemmModel]) -> gemm.Transfer:
    """Start, shares of the peak and factors from products of traces on matrix units."""
    at_peak, which = by_trees(rows, models)
    tried = np.log([by_trees(rows, models, missed)[0] for missed in MISSED]).T
    weight = even(rows.source)
    start = _start(rows, at_peak, which == 0, weight)
    taken = np.log(np.maximum(rows.ns - start, 0.2 * rows.ns))
    keys = np.array([_key(d, p) for d, p in zip(rows.device, rows.peak, strict=True)])
    middles = {}
    for key in np.unique(keys):
        own = (which == 0) & (at_peak > start) & (keys == key)
        if own.sum() >= FEWEST:
            middles[str(key)] = _missed(taken[own], tried[own], weight[own])
    kept, mean = _shares(middles, rows, which, keys)
    share = [kept.get(key, mean[amd]) for key, amd in zip(keys, rows.amd().tolist(), strict=True)]
    trees = np.exp([np.interp(one, MISSED, row) for one, row in zip(share, tried, strict=True)])
    left, large = taken - np.log(trees), trees > start
    above = [0.0, *(_above(left, weight, large & (which == one), rows) for one in KINDS)]
    told = start + trees * np.exp(np.array(above)[which])
    apart, begins = np.log(rows.ns / told), told < 2.0 * start

    def fitted(middle: float, own: np.ndarray, says: str) -> gemm.Scale:
        ends = [ends_of(apart, weight, own & region, own) for region in (begins, ~begins)]
        return gemm.Scale(float(middle), ends[0], ends[1], int(own.sum()), says)

    plain = which == 0
    scales = {
        key: fitted(middle, plain & (keys == key), _kinds_said(key)) for key, middle in kept.items()
    }
    for name, amd in (("", False), ("amd", True)):
        other = fitted(mean[amd], plain, "mean share of the peak of the maker's GPUs and types")
        reach = max((abs(middle - mean[amd]) for middle in kept.values()), default=0.0)
        low, high = other.large
        scales[name] = replace(other, large=(low - reach, high + reach))
    kinds = tuple(
        fitted(above[one], which == one, f"{says} ({int((which == one).sum())} in traces)")
        for one, says in KINDS.items()
    )
    return gemm.Transfer(start, scales, kinds)


def _shares(
    middles: dict[str, float], rows: Kernels, which: np.ndarray, keys: np.ndarray
) -> tuple[dict[str, float], dict[bool, float]]:
    """By architecture and type, nearer to those of the maker the fewer programs have them; and the
    medians of AMD's and of the others."""
    on_amd = rows.amd()
    mean = {amd: _median_of(middles, keys[on_amd == amd]) for amd in (True, False)}
    kept = {}
    for key, middle in middles.items():
        own = (which == 0) & (keys == key)
        sources, others = len(np.unique(rows.source[own])), mean[bool(on_amd[own][0])]
        kept[key] = (sources * middle + HELD_SCALE * others) / (sources + HELD_SCALE)
    return kept, mean


def _median_of(middles: dict[str, float], keys: np.ndarray) -> float:
    """Of those of a maker; of all where there are none."""
    own = [middle for key, middle in middles.items() if key in keys] or list(middles.values())
    return float(np.median(own)) if own else 0.0


def _missed(taken: np.ndarray, tried: np.ndarray, weight: np.ndarray) -> float:
    """How far below the peak the median of the times is as the trees say."""
    off = [quantile(taken - column, weight, 0.5) for column in tried.T]
    return float(np.interp(0.0, -np.array(off), MISSED))


def _above(left: np.ndarray, weight: np.ndarray, own: np.ndarray, rows: Kernels) -> float:
    """The factor of a kind of products, the nearer to none the fewer programs have it."""
    sources = len(np.unique(rows.source[own]))
    if own.sum() < FEWEST_OF_KIND:
        return 0.0
    return quantile(left[own], weight[own], 0.5) * sources / (sources + HELD_KIND)


def _kinds_said(key: str) -> str:
    capability, dtype = key.split()
    return f"below its peak as {dtype} products of compute capability {capability} in public traces"


def _key(device: str, peak: str) -> str:
    dtype = peak.split()[0]
    return f"{load_devices()[device].architecture} {'bf16' if dtype == 'fp16' else dtype}"


def ends_of(
    missed: np.ndarray, weight: np.ndarray, rows: np.ndarray, instead: np.ndarray
) -> tuple[float, float]:
    """10th and 90th percentile; of others where there are too few, wider for few."""
    chosen = rows if rows.sum() >= FEWEST else instead
    if not chosen.any():
        return -0.7, 0.7
    low, high = (quantile(missed[chosen], weight[chosen], share) for share in ENDS)
    wider = 1.0 + 2.0 / chosen.sum()
    return float(min(wider * low, -LEAST)), float(max(wider * high, LEAST))


def _start(rows: Kernels, trees: np.ndarray, plain: np.ndarray, weight: np.ndarray) -> float:
    """What small products take above the trees: the median of the differences."""
    small = plain & (trees < 2.0 * gemm.LAUNCH_NS)
    if small.sum() < FEWEST:
        return 2500.0
    return max(0.0, quantile((rows.ns - trees)[small], weight[small], 0.5))


def even(source: np.ndarray) -> np.ndarray:
    _, number, count = np.unique(source, return_inverse=True, return_counts=True)
    return 1.0 / np.sqrt(count[number])


def quantile(values: np.ndarray, weight: np.ndarray, share: float) -> float:
    order = np.argsort(values)
    places = np.cumsum(weight[order]) - weight[order] / 2.0
    return float(np.interp(share * weight.sum(), places, values[order]))
