"""Fits the curves that `torchtraceap.ops.durations.collectives` evaluates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchtraceap.ops.durations.collectives import Curve

__all__ = ["fit_curve", "isotonic", "medians_by_size"]

FloatArray = npt.NDArray[np.float64]


def isotonic(values: npt.ArrayLike) -> FloatArray:
    """The nearest non-decreasing sequence (pool adjacent violators, least squares)."""
    means: list[float] = []
    counts: list[int] = []
    for value in np.asarray(values, dtype=np.float64).tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            mean, count = means.pop(), counts.pop()
            total = counts[-1] + count
            means[-1] = (means[-1] * counts[-1] + mean * count) / total
            counts[-1] = total
    return np.repeat(means, counts).astype(np.float64)


def medians_by_size(
    sizes: npt.ArrayLike, ns: npt.ArrayLike, per_octave: int | None = None
) -> tuple[FloatArray, FloatArray]:
    """One time per size, or per bin of `per_octave` bins to a doubling; both medians."""
    size, time = np.asarray(sizes, dtype=np.float64), np.asarray(ns, dtype=np.float64)
    key = size if per_octave is None else np.round(np.log2(size) * per_octave)
    groups = [key == one for one in np.unique(key)]
    middle = np.array([np.median(size[group]) for group in groups])
    return middle, np.array([np.median(time[group]) for group in groups])


def fit_curve(
    sizes: npt.ArrayLike,
    ns: npt.ArrayLike,
    *,
    tolerance: float = 0.0,
    per_octave: int | None = None,
) -> Curve:
    """A curve through measured times.

    Args:
        sizes: Positive, in any order; a size may occur several times.
        ns: Positive times.
        tolerance: Leave out knots that the others tell within this relative error.
        per_octave: Take medians over bins, for noisy measurements of many sizes.

    Raises:
        ValueError: Nothing was measured, or a size or a time is not positive.
    """
    size, time = medians_by_size(sizes, ns, per_octave)
    if size.size == 0 or size[0] <= 0 or time.min() <= 0:
        raise ValueError("a curve needs positive sizes and times")
    time = np.exp(isotonic(np.log(time)))
    kept = _knots(size, time, tolerance) if tolerance else np.arange(size.size)
    return Curve(size[kept], time[kept])


def _knots(size: FloatArray, time: FloatArray, tolerance: float) -> npt.NDArray[np.intp]:
    """Rows that tell all others within the tolerance (Ramer, Douglas and Peucker)."""
    kept = {0, size.size - 1}
    pieces = [(0, size.size - 1)]
    while pieces:
        low, high = pieces.pop()
        if high - low < 2:
            continue
        inner = slice(low + 1, high)
        line = np.interp(size[inner], size[[low, high]], time[[low, high]])
        error = np.abs(line / time[inner] - 1.0)
        worst = int(np.argmax(error))
        if error[worst] > tolerance:
            middle = low + 1 + worst
            kept.add(middle)
            pieces += [(low, middle), (middle, high)]
    return np.array(sorted(kept), dtype=np.intp)
