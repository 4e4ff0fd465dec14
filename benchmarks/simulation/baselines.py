"""Simpler models that ours are compared with; no product code uses them.

The sigmoid curves are those of Lin, Sun, Bhattacharyya and Owens, "Towards Universal Performance
Modeling for Machine Learning Training on Multi-GPU Platforms" (IEEE TPDS 2024), written from its
description.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchtraceap.ops.devices import Device

__all__ = [
    "AlphaBeta",
    "SigmoidCurve",
    "fit_alpha_beta",
    "fit_sigmoid",
    "log_log_ns",
    "roofline_ns",
]

FloatArray = npt.NDArray[np.float64]

_LATENCY_SLOPE = 0.1
_SATURATED = 0.95


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """Start-up time and rate, over all sizes."""

    alpha_ns: float
    ns_per_byte: float

    def at(self, sizes: npt.ArrayLike) -> FloatArray:
        return self.alpha_ns + self.ns_per_byte * np.asarray(sizes, dtype=np.float64)


def fit_alpha_beta(sizes: npt.ArrayLike, ns: npt.ArrayLike) -> AlphaBeta:
    """Least squares of the relative error, neither part negative."""
    size, time = np.asarray(sizes, dtype=np.float64), np.asarray(ns, dtype=np.float64)
    rows = np.column_stack([1.0 / time, size / time])
    alpha, beta = np.linalg.lstsq(rows, np.ones_like(time), rcond=None)[0]
    if alpha < 0:
        inverse = size / time
        return AlphaBeta(0.0, float(inverse.sum() / (inverse**2).sum()))
    if beta < 0:
        return AlphaBeta(float((1 / time).sum() / (1 / time**2).sum()), 0.0)
    return AlphaBeta(float(alpha), float(beta))


def log_log_ns(sizes: FloatArray, ns: FloatArray, wanted: npt.ArrayLike) -> FloatArray:
    """Straight lines in log-log between measured sizes."""
    return np.asarray(np.exp(np.interp(np.log(wanted), np.log(sizes), np.log(ns))))


@dataclass(frozen=True, slots=True)
class SigmoidCurve:
    """Three sections: constant time, log10(rate) a sigmoid of log2(size), constant rate."""

    first_log2: float
    """Below this size time is `floor_ns`."""
    last_log2: float
    """Above this size the rate is `peak` (byte/ns)."""
    floor_ns: float
    peak: float
    sigmoid: tuple[float, float, float, float]
    """Height, middle, steepness, offset."""

    def at(self, sizes: npt.ArrayLike) -> FloatArray:
        size = np.asarray(sizes, dtype=np.float64)
        x = np.log2(size)
        middle = size / 10.0 ** _sigmoid(np.array(self.sigmoid), x)
        flat = np.where(x < self.first_log2, self.floor_ns, middle)
        return np.where(x >= self.last_log2, size / self.peak, flat)


def fit_sigmoid(sizes: npt.ArrayLike, ns: npt.ArrayLike) -> SigmoidCurve:
    """The three sections of one table of ascending sizes, at least four of them.

    The first ends at the first size at which the centred relative slope of time exceeds a tenth;
    the last begins two sizes after the rate has reached 95 % of its peak.
    """
    size, time = np.asarray(sizes, dtype=np.float64), np.asarray(ns, dtype=np.float64)
    x, rate = np.log2(size), size / time
    slope = np.gradient(time, x) / time
    first = int(np.argmax(slope > _LATENCY_SLOPE)) if (slope > _LATENCY_SLOPE).any() else 0
    last = min(int(np.argmax(rate >= _SATURATED * rate.max())) + 2, size.size - 1)
    middle = slice(first, last + 1) if last - first >= 3 else slice(None)
    return SigmoidCurve(
        first_log2=float(x[first]),
        last_log2=float(x[last]),
        floor_ns=float(time[: first + 1].mean()),
        peak=float(rate.max()),
        sigmoid=_fit(x[middle], np.log10(rate[middle])),
    )


def _sigmoid(parameters: FloatArray, x: FloatArray) -> FloatArray:
    height, centre, steepness, offset = parameters
    z = np.clip(-steepness * (x - centre), -60.0, 60.0)
    return np.asarray(height / (1.0 + np.exp(z)) + offset)


def _fit(x: FloatArray, y: FloatArray) -> tuple[float, float, float, float]:
    """Levenberg and Marquardt from several starts; the best end."""
    spread, low = float(np.ptp(y)) or 1e-3, float(y.min())
    starts = [
        np.array([height * spread, centre, steepness, low - offset * spread])
        for height in (1.0, 1.5)
        for centre in np.quantile(x, [0.1, 0.3, 0.5, 0.7])
        for steepness in (0.2, 0.5)
        for offset in (0.0, 0.4)
    ]
    ends = [_descend(start, x, y) for start in starts]
    best = min(ends, key=lambda p: float(((_sigmoid(p, x) - y) ** 2).sum()))
    a, b, c, d = best.tolist()
    return a, b, c, d


def _descend(p: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    damping, error = 1e-2, _sigmoid(p, x) - y
    for _ in range(100):
        step = 1e-6 * np.maximum(np.abs(p), 1e-3)
        moved = [(_sigmoid(p + step * unit, x) - y - error) for unit in np.eye(p.size)]
        slope = np.column_stack(moved) / step
        normal = slope.T @ slope
        normal += damping * np.diag(np.maximum(np.diag(normal), 1e-12))
        trial = p - np.linalg.solve(normal, slope.T @ error)
        after = _sigmoid(trial, x) - y
        gained = float((error**2).sum() - (after**2).sum())
        if gained > 0:
            settled = gained < 1e-7 * float((error**2).sum())
            p, error, damping = trial, after, max(damping / 5.0, 1e-9)
            if settled:
                break
        else:
            damping *= 5.0
            if damping > 1e9:
                break
    return p


def roofline_ns(
    flops: npt.ArrayLike, moved: npt.ArrayLike, device: Device, unit: str
) -> FloatArray:
    """The longer of computing and moving at the device's peaks, in ns.

    Args:
        flops: Floating-point operations.
        moved: Bytes to and from memory.
        device: The GPU.
        unit: Which peak: "matrix bf16", "vector fp32", ...
    """
    rates, dtype = unit.split()
    peak = (device.matrix if rates == "matrix" else device.vector)[dtype]
    compute = np.asarray(flops, dtype=np.float64) / peak
    return np.asarray(np.maximum(compute, np.asarray(moved) / device.bandwidth) * 1e9)
