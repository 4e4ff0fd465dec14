"""Fits what `durations.gemm` knows beside its trees: scales of other devices, and vector units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import neusight_rows
from torchtraceap.devices import load_devices
from torchtraceap.durations import gemm
from trace_kernels import Kernels

# A scale of its own needs so many kinds of products, the larger part of whose time is not start.
FEWEST = 6
# What the mean scale counts for against that of an architecture, and no factor against that of
# a kind of products (few traces have them): in traces. For sums of a device: in rows.
HELD_SCALE = 0.5
HELD_KIND = 3.0
HELD_DEVICE = 2.0
# No interval is narrower to either side than kernels of one shape differ between runs.
LEAST = 0.08
# Beyond these quantiles lie the tenths that an interval leaves out, for n values: wider for few.
ENDS = (0.1, 0.9)
NO_SCALE = gemm.Scale(0.0, (0.0, 0.0), (0.0, 0.0), 0, "")
KINDS = {1: "a batch", 2: "a batch of narrow products", 3: "operands not aligned to 16 bytes"}
# Where the search for the model of vector units begins: start (us), flat, cache, balance, memory,
# start of k; and how far a number may go from there without proof.
BEGIN = np.log([8.0, 1.1, 0.3, 0.3, 1.44, 24.0])
LOOSE = 0.5
HELD_BEGIN = 0.1
# What slows a whole run (its clock) slows all of its sums; a row may be so much slower for less.
ROW_PENALTY = 0.5


def of_matrix_units(rows: Kernels) -> Kernels:
    """Products of traces with known sizes on tensor or matrix cores."""
    chosen = [bool(s) and p.endswith("matrix") for s, p in zip(rows.shape, rows.peak, strict=True)]
    return rows.take(np.flatnonzero(chosen))


def of_vector_units(rows: Kernels) -> Kernels:
    chosen = [bool(s) and p == "fp32 vector" for s, p in zip(rows.shape, rows.peak, strict=True)]
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
    weight = _even(rows.source)
    start = _start(rows, trees, which == 0, weight)
    left = np.log(np.maximum(rows.ns - start, 0.2 * rows.ns) / trees)
    large = trees > start
    keys = np.array([_key(d, p) for d, p in zip(rows.device, rows.peak, strict=True)])
    middles = {}
    for key in np.unique(keys):
        own = (which == 0) & large & (keys == key)
        if own.sum() >= FEWEST:
            middles[str(key)] = _quantile(left[own], weight[own], 0.5)
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
        ends = [_ends(apart, weight, own & region, own) for region in (begins, ~begins)]
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
    return _quantile(left[own], weight[own], 0.5) if own.sum() >= FEWEST else 0.0


def _kinds_said(key: str) -> str:
    capability, dtype = key.split()
    return f"scaled as {dtype} products of compute capability {capability} in public traces"


def _key(device: str, peak: str) -> str:
    dtype = peak.split()[0]
    return f"{load_devices()[device].architecture} {'bf16' if dtype == 'fp16' else dtype}"


def _ends(
    missed: np.ndarray, weight: np.ndarray, rows: np.ndarray, instead: np.ndarray
) -> tuple[float, float]:
    """10th and 90th percentile; of others where there are too few, wider for few."""
    chosen = rows if rows.sum() >= FEWEST else instead
    if not chosen.any():
        return -0.7, 0.7
    low, high = (_quantile(missed[chosen], weight[chosen], share) for share in ENDS)
    wider = 1.0 + 2.0 / chosen.sum()
    return float(min(wider * low, -LEAST)), float(max(wider * high, LEAST))


def _start(rows: Kernels, trees: np.ndarray, plain: np.ndarray, weight: np.ndarray) -> float:
    """What small products take above the trees: the median of the differences."""
    small = plain & (trees < 2.0 * gemm.LAUNCH_NS)
    if small.sum() < FEWEST:
        return 2500.0
    return max(0.0, _quantile((rows.ns - trees)[small], weight[small], 0.5))


def _even(source: np.ndarray) -> np.ndarray:
    _, number, count = np.unique(source, return_inverse=True, return_counts=True)
    return 1.0 / np.sqrt(count[number])


def _quantile(values: np.ndarray, weight: np.ndarray, share: float) -> float:
    order = np.argsort(values)
    places = np.cumsum(weight[order]) - weight[order] / 2.0
    return float(np.interp(share * weight.sum(), places, values[order]))


# Vector units -----------------------------------------------------------------------------------


def sums_of(rows: Sequence[neusight_rows.Row], kind: str) -> list[np.ndarray]:
    """For each row its products: batch, m, n, k and how often."""
    return [neusight_rows.products_of(row, kind) for row in rows]


def vector_model(numbers: np.ndarray) -> gemm.VectorModel:
    start, flat, cache, balance, memory, k_start = np.exp(numbers).tolist()
    known = {"": (NO_SCALE, NO_SCALE)}
    return gemm.VectorModel(1e3 * start, flat, cache, balance, memory, k_start, known)


def summed_ms(
    model: gemm.VectorModel, rows: Sequence[neusight_rows.Row], products: Sequence[np.ndarray]
) -> np.ndarray:
    return np.array(
        [
            float((one[:, 4] * model.predict(one[:, :4], row.device)).sum()) / 1e6
            for row, one in zip(rows, products, strict=True)
        ]
    )


def fit_vector(rows: Sequence[neusight_rows.Row]) -> gemm.VectorModel:
    """One model of single products and batches, from sums over the products of whole models."""
    from scipy.optimize import minimize

    kinds = [(np.array([row.measured[kind] for row in rows]), sums_of(rows, kind))
             for kind in ("FC", "BMM")]  # fmt: skip

    def loss(numbers: np.ndarray) -> float:
        model = vector_model(numbers)
        errors = [
            np.log(measured / summed_ms(model, rows, products)) for measured, products in kinds
        ]
        slower = np.stack([np.zeros(len(rows)), *errors])
        rest = sum(np.abs(error - slower) for error in errors) + ROW_PENALTY * np.abs(slower)
        held = HELD_BEGIN * (((numbers - BEGIN) / LOOSE) ** 2).sum()
        return float(np.min(rest, axis=0).sum() + held)

    settings = {"maxiter": 700, "maxfev": 900, "xatol": 1e-3, "fatol": 1e-3}
    return vector_model(minimize(loss, BEGIN, method="Nelder-Mead", options=settings).x)


def device_scales(
    model: gemm.VectorModel, rows: Sequence[neusight_rows.Row], kind: str
) -> dict[str, float]:
    """By id of the device: logarithm of measured over modelled sums, held towards none."""
    measured = np.array([row.measured[kind] for row in rows])
    error = np.log(measured / summed_ms(model, rows, sums_of(rows, kind)))
    names = np.array([row.device.id or row.device.name for row in rows])
    found = {}
    for name in np.unique(names):
        own = error[names == name]
        found[str(name)] = float(np.median(own)) * len(own) / (len(own) + HELD_DEVICE)
    return found


def vector_of_traces(rows: Sequence[neusight_rows.Row], traces: Kernels) -> gemm.VectorModel:
    """The model of sums with the start of a kernel in a trace; intervals as traces' products of
    fp32 tell them, wider by what devices differ where the device was not measured."""
    model = fit_vector(rows)
    shape, ns = shapes_of(traces), np.empty(len(traces))
    for name in np.unique(traces.device):
        here = traces.device == name
        ns[here] = model.predict(shape[here], load_devices()[name]) - model.start_ns
    weight = _even(traces.source)
    small = ns < 2.0 * gemm.LAUNCH_NS
    start = max(0.0, _quantile((traces.ns - ns)[small], weight[small], 0.5))
    error = np.log(traces.ns / (ns + start))
    every = np.ones(len(error), dtype=bool)
    ends = [_ends(error, weight, region, every) for region in (ns < start, ns >= start)]
    by_kind = [device_scales(model, rows, kind) for kind in ("FC", "BMM")]
    said = "sums over the products of whole models (sitar-lab/NeuSight)"

    def scale(kind: int, name: str) -> gemm.Scale:
        middles = by_kind[kind]
        spread = 0.0 if name else 1.28 * float(np.std(list(middles.values())))
        where = "" if name else "; mean of other GPUs"
        return gemm.Scale(
            middles.get(name, 0.0), (ends[0][0] - spread, ends[0][1] + spread),
            (ends[1][0] - spread, ends[1][1] + spread), len(rows), f"fitted to {said}{where}",
        )  # fmt: skip

    names = ["", *(name for name in by_kind[0] if name in load_devices())]
    return replace(
        model, start_ns=start, known={name: (scale(0, name), scale(1, name)) for name in names}
    )
