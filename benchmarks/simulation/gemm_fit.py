"""Fits how the trees of `durations.gemm` carry over to other devices and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchtraceap.devices import load_devices
from torchtraceap.durations import gemm
from trace_kernels import Kernels

# A scale of its own needs so many kinds of products, the larger part of whose time is not start.
FEWEST = 6
# What the mean scale counts for against that of an architecture, and no factor against that of
# a kind of products (few traces have them): in traces.
HELD_SCALE = 0.5
HELD_KIND = 3.0
# No interval is narrower to either side than kernels of one shape differ between runs.
LEAST = 0.08
# Beyond these quantiles lie the tenths that an interval leaves out, for n values: wider for few.
ENDS = (0.1, 0.9)
KINDS = {1: "a batch", 2: "a batch of narrow products", 3: "operands not aligned to 16 bytes"}


def of_matrix_units(rows: Kernels) -> Kernels:
    """Products of traces with known sizes on tensor or matrix cores."""
    chosen = [bool(s) and p.endswith("matrix") for s, p in zip(rows.shape, rows.peak, strict=True)]
    return rows.take(np.flatnonzero(chosen))


def shapes_of(rows: Kernels) -> np.ndarray:
    return np.array([text.split() for text in rows.shape], dtype=np.float64).reshape(-1, 4)


def by_trees(rows: Kernels, models: Sequence[gemm.GemmModel]) -> tuple[np.ndarray, np.ndarray]:
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
        model = replace(model, device=load_devices()[name], dtype=dtype)
        ns[here] = model.predict(shape[here])
        which[here] = gemm.product_kinds(shape[here], dtype)
    return ns, which


def fit_transfer(rows: Kernels, models: Sequence[gemm.GemmModel]) -> gemm.Transfer:
    """Start and scales from products of traces on matrix units."""
    trees, which = by_trees(rows, models)
    weight = even(rows.source)
    start = _start(rows, trees, which == 0, weight)
    left = np.log(np.maximum(rows.ns - start, 0.2 * rows.ns) / trees)
    large = trees > start
    keys = np.array([_key(d, p) for d, p in zip(rows.device, rows.peak, strict=True)])
    middles = {}
    for key in np.unique(keys):
        own = (which == 0) & large & (keys == key)
        if own.sum() >= FEWEST:
            middles[str(key)] = quantile(left[own], weight[own], 0.5)
    overall = float(np.median(list(middles.values()))) if middles else 0.0
    scale = np.array([middles.get(key, overall) for key in keys.tolist()])
    above = [0.0, *(_middle(left - scale, weight, large & (which == one)) for one in KINDS)]
    told = start + trees * np.exp(scale + np.array(above)[which])
    missed, begins = np.log(rows.ns / told), told < 2.0 * start

    def fitted(
        middle: float, own: np.ndarray, says: str, towards: float, held: float
    ) -> gemm.Scale:
        sources = len(np.unique(rows.source[own]))
        kept = (sources * middle + held * towards) / (sources + held)
        apart = missed + middle - kept
        ends = [ends_of(apart, weight, own & region, own) for region in (begins, ~begins)]
        return gemm.Scale(float(kept), ends[0], ends[1], int(own.sum()), says)

    plain = which == 0
    scales = {
        key: fitted(middle, plain & (keys == key), _kinds_said(key), overall, HELD_SCALE)
        for key, middle in middles.items()
    }
    mean = fitted(overall, plain, "mean scale of other GPUs and types", overall, HELD_SCALE)
    reach = max((abs(middle - overall) for middle in middles.values()), default=0.0)
    low, high = mean.large
    scales[""] = replace(mean, large=(low - reach, high + reach))
    kinds = tuple(
        fitted(
            above[one],
            which == one,
            f"{says} ({int((which == one).sum())} in traces)",
            0.0,
            HELD_KIND,
        )
        for one, says in KINDS.items()
    )
    return gemm.Transfer(start, scales, kinds)


def _middle(left: np.ndarray, weight: np.ndarray, own: np.ndarray) -> float:
    return quantile(left[own], weight[own], 0.5) if own.sum() >= FEWEST else 0.0


def _kinds_said(key: str) -> str:
    capability, dtype = key.split()
    return f"scaled as {dtype} products of compute capability {capability} in public traces"


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
