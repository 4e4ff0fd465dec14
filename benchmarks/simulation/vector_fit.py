"""Fits products on vector units to sums over the products of whole models (NeuSight's test rows).

Such a sum holds more than kernels, which is fitted beside the model and left out of what is
shipped: the start that the host sees of every call, for batches through `torch.matmul` a longer
one, and the copies that it makes of operands that lie transposed. A row may be slower than others
of its GPU by what slows all of its sums alike (a clock that had to rise first, a neighbour); no
row is faster than its GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

import gemm_fit
import neusight_rows
from torchtraceap.ops.devices import Device, load_devices
from torchtraceap.ops.durations import gemm
from trace_kernels import Kernels

KINDS = ("FC", "BMM")
NO_SCALE = gemm.Scale(0.0, (0.0, 0.0), (0.0, 0.0), 0, "")
# Where the search begins: logarithms of start (us), flat, cache, balance, memory (what element-wise
# kernels take), start of k, start of a batch (us); and how far a number may go from there without
# proof.
BEGIN = np.log([8.0, 1.1, 0.3, 0.3, 1.2, 32.0, 25.0])
LOOSE = 0.5
HELD_BEGIN = 0.3
# How far the logarithm of a GPU's times lies from the model's: a deviation of its own, which costs
# as that of a normal distribution; and the values that are tried.
DEVICE_SD = 0.25
DEVIATIONS = np.linspace(-0.6, 0.6, 121)
# What slows all sums of a row counts for less than what each of them misses.
ROW_PENALTY = 0.5


def of_vector_units(rows: Kernels) -> Kernels:
    """Products of traces with known sizes in fp32 without tensor cores."""
    chosen = [bool(s) and p == "fp32 vector" for s, p in zip(rows.shape, rows.peak, strict=True)]
    return rows.take(np.flatnonzero(chosen))


@dataclass(frozen=True, slots=True)
class Sums:
    """The products of one kind, FC or BMM, of n rows."""

    rows: Sequence[neusight_rows.Row]
    measured: np.ndarray
    """ms `[n]`."""
    row: np.ndarray
    """Of each product: which row it is of, `[p]`."""
    products: np.ndarray
    """batch, m, n, k and how often, `[p, 5]`."""
    copied: np.ndarray
    """Bytes that are read and written to make operands contiguous, `[n]`."""

    @classmethod
    def of(cls, rows: Sequence[neusight_rows.Row], kind: str) -> Sums:
        listed = [neusight_rows.products_of(row, kind) for row in rows]
        return cls(
            rows,
            np.array([row.measured[kind] for row in rows]),
            np.repeat(np.arange(len(rows)), [len(one) for one in listed]),
            np.concatenate(listed),
            np.array([neusight_rows.copied_bytes(row, kind) for row in rows]),
        )


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model of single products and batches, and what the sums hold beside it."""

    model: gemm.VectorModel
    batch_start_ns: float
    """Of a batch that `torch.matmul` was asked for."""
    deviations: Mapping[str, float]
    """By name of the device: logarithm of its times over the model's."""

    def plain_ms(self, sums: Sums) -> np.ndarray:
        """Sums by the model alone, ms `[n]`."""
        ns, bandwidth = np.empty(len(sums.products)), np.empty(len(sums.rows))
        asks = np.array([neusight_rows.asks_matmul(row) for row in sums.rows])
        for device, rows in _by_device(sums.rows):
            here = np.isin(sums.row, rows)
            ns[here] = self.model.predict(sums.products[here, :4], device)
            bandwidth[rows] = device.bandwidth
        longer = asks[sums.row] & (sums.products[:, 0] > 1)
        ns += np.where(longer, self.batch_start_ns - self.model.start_ns, 0.0)
        whole = np.bincount(sums.row, sums.products[:, 4] * ns, len(sums.rows))
        return np.asarray(whole / 1e6 + 1e3 * self.model.memory * sums.copied / bandwidth)

    def ms(self, rows: Sequence[neusight_rows.Row], kind: str) -> np.ndarray:
        """Sums of a kind, with the deviations of the devices that were fitted to."""
        own = [self.deviations.get(row.device.name, 0.0) for row in rows]
        return self.plain_ms(Sums.of(rows, kind)) * np.exp(own)


def _by_device(rows: Sequence[neusight_rows.Row]) -> list[tuple[Device, np.ndarray]]:
    names = np.array([row.device.name for row in rows])
    groups = [np.flatnonzero(names == name) for name in np.unique(names)]
    return [(rows[group[0]].device, group) for group in groups]


def fit(rows: Sequence[neusight_rows.Row]) -> Fitted:
    """One model of both kinds of sums."""
    from scipy.optimize import minimize

    kinds = [Sums.of(rows, kind) for kind in KINDS]
    groups = _by_device(rows)

    def errors(numbers: np.ndarray) -> np.ndarray:
        model = _model(numbers)
        return np.stack([np.log(sums.measured / model.plain_ms(sums)) for sums in kinds])

    def loss(numbers: np.ndarray) -> float:
        missed = errors(numbers)
        held = HELD_BEGIN * (((numbers - BEGIN) / LOOSE) ** 2).sum()
        return float(sum(_deviation(missed[:, own])[1] for _, own in groups) + held)

    numbers, least = BEGIN, np.inf
    while True:  # from where the last search ended, as long as that helps
        found = minimize(loss, numbers, method="Powell", options={"xtol": 1e-3, "ftol": 1e-4})
        settings = {"maxfev": 1500, "xatol": 1e-3, "fatol": 1e-3, "adaptive": True}
        found = minimize(loss, found.x, method="Nelder-Mead", options=settings)
        if found.fun > least - 1e-2:
            break
        numbers, least = found.x, found.fun
    missed = errors(numbers)
    return replace(
        _model(numbers),
        deviations={device.name: _deviation(missed[:, own])[0] for device, own in groups},
    )


def _model(numbers: np.ndarray) -> Fitted:
    start, flat, cache, balance, memory, k_start, batch_start = np.exp(numbers).tolist()
    known = {"": NO_SCALE}
    model = gemm.VectorModel(1e3 * start, flat, cache, balance, memory, k_start, known)
    return Fitted(model, 1e3 * batch_start, {})


def _deviation(missed: np.ndarray) -> tuple[float, float]:
    """The deviation of a device that explains its errors at least cost, and that cost.

    Args:
        missed: `[kinds, rows]`: logarithms of measured over modelled time.
    """
    left = missed[:, :, None] - DEVIATIONS
    slower = np.maximum(np.stack([np.zeros_like(left[0]), *left]), 0.0)
    cost = sum(np.abs(one - slower) for one in left) + ROW_PENALTY * slower
    cost = cost.min(axis=0).sum(axis=0) + (DEVIATIONS / DEVICE_SD) ** 2 / 2.0
    best = int(cost.argmin())
    return float(DEVIATIONS[best]), float(cost[best])


def shipped_model(rows: Sequence[neusight_rows.Row], traces: Kernels) -> gemm.VectorModel:
    """The model of sums with the start of a kernel in a trace; intervals as traces' products of
    fp32 tell them, wider by what devices differ where the device was not measured."""
    fitted = fit(rows)
    model = fitted.model
    shape, ns = gemm_fit.shapes_of(traces), np.empty(len(traces))
    for name in np.unique(traces.device):
        here = traces.device == name
        ns[here] = model.predict(shape[here], load_devices()[name]) - model.start_ns
    weight = gemm_fit.even(traces.source)
    small = ns < 2.0 * gemm.LAUNCH_NS
    start = max(0.0, gemm_fit.quantile((traces.ns - ns)[small], weight[small], 0.5))
    error = np.log(traces.ns / (ns + start))
    every = np.ones(len(error), dtype=bool)
    small, large = (
        gemm_fit.ends_of(error, weight, region, every) for region in (ns < start, ns >= start)
    )
    spread = 1.28 * float(np.std(list(fitted.deviations.values())))
    said = "fitted to sums over the products of whole models (sitar-lab/NeuSight)"
    ids = {row.device.name: row.device.id for row in rows}
    known = {
        ids[name]: gemm.Scale(middle, small, large, len(rows), said)
        for name, middle in fitted.deviations.items()
        if ids[name] in load_devices()
    }
    wider = [(low - spread, high + spread) for low, high in (small, large)]
    known[""] = gemm.Scale(0.0, *wider, len(rows), f"{said}; mean of other GPUs")
    return replace(model, start_ns=start, known=known)
