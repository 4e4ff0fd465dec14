"""Search for the batch size beyond which more samples per step stop paying off.

Note [Knee]: a step takes about t(b) = a + c b for a batch of b: a fixed part and a part for each
sample. The line is Theil and Sen's through the measured sizes. Samples per second, b / t(b), only
rise with b, so the best that can be had is that of the largest size under the memory ceiling, or
1 / c without one. The knee is the smallest batch that reaches 95 % of it. Sizes are doubled until
the knee lies among those measured, the memory ends, or there were enough of them.

Note [Memory of a size]: before a size is tried, a line through the memory of those before says
whether it can fit. What runs out of memory all the same does so in a process of its own, and ends
the doubling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core import Result, dataclass, progress_stage
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.runs.child import Spec
from torchtraceap.lab.bench.runs.config import Protocol, WorkloadConfig
from torchtraceap.lab.bench.runs.run import WorkloadError, run_process
from torchtraceap.lab.bench.statistics import scipy_stats

__all__ = ["BatchSearch", "Measure", "Point", "measure_batches", "robust_line", "search_batch"]

REACHED = 0.95
"""The share of the best rate in samples per second that defines the knee."""
_LEAST_SIZES, _MOST_SIZES = 4, 12
_MOST_BATCH = 1 << 20


@dataclass(frozen=True, slots=True)
class Point(Result):
    """A measured batch size."""

    batch: int
    step_ns: float
    """The median fenced step."""
    memory_bytes: int
    """Peak memory of the process: reserved on the GPU, else resident."""

    @property
    def samples_per_s(self) -> float:
        return self.batch * 1e9 / self.step_ns


@dataclass(frozen=True, slots=True)
class BatchSearch(Result):
    """The result of a search; see Note [Knee]."""

    batch: int
    """The knee, or the largest measured size if that is smaller."""
    why: str
    fixed_ns: float
    """The fixed part a of the line, at least 0."""
    sample_ns: float
    """The slope c of the line."""
    best_samples_per_s: float
    """The rate of the line at the largest allowed size."""
    memory_ceiling_bytes: int | None
    largest_batch: int | None
    """The largest size under the memory ceiling by a line through the memory; None without a
    ceiling, or if none is in sight."""
    points: tuple[Point, ...]
    stopped_at: int | None
    """The size that did not fit, if one was tried or excluded."""


Measure = Callable[[int], Point]
"""Function that measures a batch size, or raises `WorkloadError` of the kind "out of memory"."""


def search_batch(
    measure: Measure, *, start: int = 1, memory_ceiling_bytes: int | None = None
) -> BatchSearch:
    """Double the batch, fit a line, and return the knee.

    Args:
        measure: Measures one size.
        start: The first size.
        memory_ceiling_bytes: Memory that a process may take.

    Raises:
        OptionError: Not even the first size fits.
        WorkloadError: It failed for another reason than memory.
    """
    if start < 1:
        raise OptionError(f"a batch of {start} makes no sense")
    points: list[Point] = []
    batch, stopped = start, None
    while len(points) < _MOST_SIZES and batch <= _MOST_BATCH:
        largest = _largest(points, memory_ceiling_bytes)
        if largest is not None and batch > largest:
            stopped = batch
            break
        point = _try_size(measure, batch, memory_ceiling_bytes)
        if point is None:
            stopped = batch
            break
        points.append(point)
        if len(points) >= _LEAST_SIZES and _knee(points, None) <= batch:
            break
        batch *= 2
    if not points:
        raise OptionError(f"a batch of {start} does not fit into the memory that there is")
    found = _search_result(points, memory_ceiling_bytes, stopped)
    if all(point.batch != found.batch for point in points):
        confirmed = _try_size(measure, found.batch, memory_ceiling_bytes)
        if confirmed is not None:
            points = sorted([*points, confirmed], key=lambda point: point.batch)
            return replace(found, points=tuple(points))
        below = max(point.batch for point in points if point.batch < found.batch)
        return replace(found, batch=below, why=f"{found.batch} did not fit")
    return found


def _try_size(measure: Measure, batch: int, ceiling: int | None) -> Point | None:
    """Measure a size; None if memory runs out, or if it takes more than the ceiling."""
    try:
        point = measure(batch)
    except WorkloadError as error:
        if error.kind != "out of memory":
            raise
        return None
    return None if ceiling is not None and point.memory_bytes > ceiling else point


def robust_line(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[float, float]:
    """Return intercept and slope of the Theil-Sen line through two or more places, which outliers
    do not move."""
    line = scipy_stats().theilslopes(np.asarray(y, np.float64), x, method="joint")
    return float(line.intercept), float(line.slope)


def _largest(points: list[Point], ceiling: int | None) -> int | None:
    """Return the largest batch under the ceiling, by a line through the memory."""
    if ceiling is None or len(points) < 2:
        return None
    batches = [point.batch for point in points]
    base, each = robust_line(batches, [point.memory_bytes for point in points])
    if each <= 0:  # no growth in sight
        return None
    return max(max(batches), math.floor((ceiling - base) / each))


def _line(points: list[Point]) -> tuple[float, float]:
    """Return the fixed part a (at least 0) and the slope c."""
    if len(points) == 1:
        return 0.0, points[0].step_ns / points[0].batch
    a, c = robust_line([p.batch for p in points], [p.step_ns for p in points])
    return max(0.0, a), c


def _knee(points: list[Point], largest: int | None) -> int:
    """Return the knee of Note [Knee]; beyond all sizes if steps take no longer with larger
    batches."""
    a, c = _line(points)
    if c <= 0:
        return _MOST_BATCH if largest is None else largest
    best = 1 / c if largest is None else largest / (a + c * largest)
    wanted = REACHED * best  # b / (a + c b) >= wanted
    knee = math.ceil(wanted * a / (1 - wanted * c) - 1e-9)
    return max(min(point.batch for point in points), knee)


def _search_result(points: list[Point], ceiling: int | None, stopped: int | None) -> BatchSearch:
    measured = max(point.batch for point in points)
    by_ceiling = _largest(points, ceiling)
    allowed = by_ceiling
    if stopped is not None and (by_ceiling is None or by_ceiling >= stopped):
        allowed = measured  # sizes between that and the one that did not fit may not fit either
    a, c = _line(points)
    knee, top = _knee(points, allowed), measured if allowed is None else allowed
    best = 1 / c if allowed is None and c > 0 else top / (a + c * top)
    reached = f"{100 * REACHED:.0f} %"
    batch, why = knee, f"the smallest that reaches {reached} of the best samples per second"
    if knee > measured and allowed is None:
        batch, why = measured, "the largest that was tried: samples per second still rise with it"
    return BatchSearch(
        batch=batch,
        why=why,
        fixed_ns=a,
        sample_ns=c,
        best_samples_per_s=best * 1e9,
        memory_ceiling_bytes=ceiling,
        largest_batch=by_ceiling,
        points=tuple(points),
        stopped_at=stopped,
    )


def measure_batches(asked: WorkloadConfig, protocol: Protocol, folder: Path) -> Measure:
    """Measure sizes of a workload, each in one fresh process."""

    def measure(batch: int) -> Point:
        sized = replace(asked, batch=batch)
        spec = Spec(**asdict(sized), steps=protocol.steps, warmup=protocol.warmup)
        with progress_stage(f"measuring {asked.name} with a batch of {batch}"):
            result = run_process(spec, protocol.timeout_s, folder)
        memory: dict[str, Any] = result["memory"]
        reserved = memory["reserved_peak_bytes"]
        peak = memory["rss_peak_bytes"] if reserved is None else reserved
        return Point(batch, float(median(result["times"]["fenced"])), int(peak))

    return measure
