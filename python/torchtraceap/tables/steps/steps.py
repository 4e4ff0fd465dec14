"""`build_steps`: every step, how unusual it is, what differs in it, and whether work slows down.

Note [Trend]: a clock or thermal drop makes the same kernel on the same shapes slower as time goes
on, and does so to most kernels alike. Each compute kernel is compared with the median of its own
group (name, grid, shapes of its operator), so what runs when does not matter; the median of these
ratios over slices of time, each kernel weighted by its length, is one series for the GPU. Its
slope is Theil and Sen's, its significance Mann and Kendall's test. Kernels that share the GPU with
communication or that change with their data move single groups, so most kernel time has to agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, encode_json, encode_texts
from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import sum_by_index
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.catalog import PageView, TableSpec
from torchtraceap.tables.grouping import Groups, repeat_keys
from torchtraceap.tables.steps.iterations import (
    UNMARKED,
    apart_notes,
    iterations_of,
    recorded_steps,
)
from torchtraceap.tables.steps.pieces import (
    NORMAL_MAD,
    Cells,
    Codebook,
    Cut,
    cut,
    first_idle_part,
    median_ns,
    part_titles,
    robust_sigma,
    whole_steps,
)

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "Trend", "build_steps", "kernel_trend", "repeat_variation"]

OUTLIER_SIGMAS = 3.5
"""Robust z from which a step is an outlier (Iglewicz and Hoaglin's bound)."""
OUTLIER_SHARE = 0.01
"""The share of the median below which nothing is an outlier, however even the other steps are."""
SLOW_STEP = 1.5
"""Times the median: the rule of traceml and of TraceLens' tutorial."""
MOST_CAUSES = 3
"""Pieces that are named for each step."""

FEWEST_REPEATS = 8
"""Calls of a kernel with the same grid and shapes that make a group to watch."""
FEWEST_SLICES, MOST_SLICES = 6, 64
DROP_SHARE = 0.10
"""Slower by this over the trace: a drop."""
AGREEING_SHARE = 0.75
"""The share of watched kernel time that has to become slower."""
WATCHED_SHARE = 0.20
"""The share of all compute time that has to repeat often enough to be watched."""
SIGNIFICANT = 0.01
"""Probability of chance (Mann-Kendall, two-sided) below which there is a trend."""


def build_steps(part: RankTrace) -> ColumnTable:
    """One row per step, in order of time; empty with a note where the trace has no steps. Steps
    whose GPU records are lost have no row; a note counts them.

    Columns: `name`, `start_ns`, `duration_ns` (of its range on the host), `iteration_ns` (host and
    GPU together: see Note [Iteration] in iterations.py); `kind` (phase of an iteration of a serving
    engine, such as "decode"; else "unmarked"); `whole` (not the first or last of three or more),
    `inferred`; the classes of GPU time and the idle causes, which sum to the duration; `z`
    (robust, against the whole steps of its kind), `outlier`, `slow` (above 1.5 times the median of
    its kind); `differs` (JSON: name and ns of what takes longest beyond the typical step).
    """
    steps = recorded_steps(part)
    bounds = [(step.start_ns, step.end_ns) for step in steps]
    pieces = cut(part, bounds)
    durations = pieces.durations
    recorded = np.array(part.tree.step_is_recorded, dtype=bool)
    whole = np.zeros(len(recorded), dtype=bool)
    whole[whole_steps(len(recorded))] = True
    whole = whole[recorded]
    kinds = [step.kind for step in steps]
    median = _median_by_kind(durations, whole, kinds)
    even = durations - median + (np.median(durations[whole]) if whole.any() else 0.0)
    z = _robust_z(even, whole)
    outlier = (np.abs(z) >= OUTLIER_SIGMAS) & (np.abs(durations - median) >= OUTLIER_SHARE * median)
    differs = _differences(pieces, whole, kinds)
    columns: dict[str, Column] = {
        "name": encode_texts(step.name for step in steps),
        "start_ns": np.asarray([start for start, _ in bounds], dtype=np.int64),
        "duration_ns": durations,
        "iteration_ns": iterations_of(part).length_ns[recorded],
        "kind": encode_texts(kinds),
        "whole": whole,
        "inferred": np.full(len(steps), part.tree.steps_inferred),
        **_timeline_columns(part, pieces, bounds),
        "z": z,
        "outlier": outlier,
        "slow": durations > SLOW_STEP * median,
        "differs": encode_json(differs),
        "what_differs": encode_texts(_as_text(parts) for parts in differs),
    }
    trend = kernel_trend(part)
    shown = ("name", "duration_ns", "compute_ns", "exposed_communication_ns", "exposed_memcpy_ns")
    return ColumnTable(
        columns,
        shown=(*shown, "idle_ns", "whole", "z", "outlier", "what_differs"),
        facts={"jitter": _jitter(even[whole], outlier[whole]), "trend": trend.to_dict()},
        notes=[
            *_notes(part, even, whole, outlier),
            *(f"A{note[1:]}" for note in apart_notes([part], "this table splits up")),
            *_kind_notes(durations, whole, kinds),
            *trend.notes(),
        ],
    )


# ---------------------------------------------------------------------------------- columns


def _timeline_columns(
    part: RankTrace, pieces: Cut, bounds: Sequence[tuple[int, int]]
) -> dict[str, Column]:
    """Classes of GPU time, and every idle cause; without GPU events all time is idle."""
    lines = _core.timelines(part.table, part.tree, list(bounds))
    fields = (
        "busy_ns",
        "idle_ns",
        "compute_ns",
        "communication_ns",
        "memcpy_ns",
        "exposed_communication_ns",
        "exposed_memcpy_ns",
    )
    columns: dict[str, Column] = {
        name: np.asarray([getattr(line, name) for line in lines], dtype=np.int64) for name in fields
    }
    names = _core.step_part_names()
    for kind in range(first_idle_part(), len(names)):
        mine = pieces.kind == kind
        columns[f"idle_{names[kind]}_ns"] = sum_by_index(
            pieces.step[mine], pieces.ns[mine], len(pieces.durations)
        )
    return columns


def _median_by_kind(durations: Array, whole: Array, kinds: Sequence[str]) -> Array:
    """Return the median of the whole steps of each step's kind, else of all: float64 `[steps]`."""
    median = np.full(len(durations), np.median(durations[whole]) if whole.any() else 0.0)
    kind = np.array(kinds)
    for name in set(kinds):
        of_kind = kind == name
        if (of_kind & whole).any():
            median[of_kind] = np.median(durations[of_kind & whole])
    return median


def _kind_notes(durations: Array, whole: Array, kinds: Sequence[str]) -> list[str]:
    """What the steps of each kind take, where there are several kinds."""
    names = sorted(set(kinds))
    if len(names) < 2:
        return []
    median = _median_by_kind(durations, whole, kinds)
    parts = [
        f"{kinds.count(name)} {name} ({format_ns(round(median[kinds.index(name)]))})"
        for name in names
    ]
    return [f"Steps by kind, with the median of each: {', '.join(parts)}."]


def _robust_z(durations: Array, whole: Array) -> Array:
    """(x - median) / robust sigma of the whole steps; NaN where these are too few or all equal."""
    if whole.sum() < 3 or (sigma := float(robust_sigma(durations[whole]))) == 0:
        return np.full(len(durations), np.nan)
    z: Array = (durations - np.median(durations[whole])) / sigma
    return z


def _differences(pieces: Cut, whole: Array, kinds: Sequence[str]) -> list[list[dict[str, Any]]]:
    """What each step has more of than the median of the whole ones of its kind, largest first."""
    book = Codebook()
    kind = pieces.kind.astype(np.int64)
    code = _owner_codes(pieces, book)
    keys, row = np.unique((code + 1) * len(part_titles()) + kind, return_inverse=True)
    names = _titles(keys, book)
    steps = len(pieces.durations)
    if not whole.any() or not len(keys):
        return [[] for _ in range(steps)]
    cells = Cells.of(row, pieces.step, pieces.ns, (len(keys), steps))
    excess = cells.ns - cells.of_steps(whole).medians()[cells.row]
    of_step_kind = np.array(kinds)[cells.step]
    for name in set(kinds):
        alike = whole & (np.array(kinds) == name)
        if alike.any() and not alike[whole].all():
            mine = of_step_kind == name
            excess[mine] = cells.ns[mine] - cells.of_steps(alike).medians()[cells.row[mine]]
    floor = OUTLIER_SHARE * np.median(pieces.durations[whole])
    found: list[list[dict[str, Any]]] = [[] for _ in range(steps)]
    for cell in np.lexsort((cells.row, -excess, cells.step)).tolist():
        of_step = found[cells.step[cell]]
        if excess[cell] > floor and len(of_step) < MOST_CAUSES:
            of_step.append({"name": names[cells.row[cell]], "delta_ns": round(excess[cell])})
    return found


def _owner_codes(pieces: Cut, book: Codebook) -> Array:
    """GPU work by the operator that owns it, else by kernel; the rest by what explains it."""
    codes = pieces.leaf_codes(book)
    gpu = np.flatnonzero(pieces.kind < first_idle_part() - 1)
    owner = pieces.part.tree.op[pieces.row[gpu]]
    owned = owner != _core.NO_ROW
    codes[gpu[owned]] = pieces.row_texts(owner[owned], book.host_code)
    return codes


def _titles(keys: Array, book: Codebook) -> list[str]:
    texts, titles, idle = book.texts(), part_titles(), first_idle_part()
    names = []
    for key in keys.tolist():
        code, kind = key // len(titles) - 1, key % len(titles)
        text = texts[code] if code >= 0 else ""
        if kind >= idle:
            names.append(f"{titles[kind]} ({text})" if text else titles[kind])
        else:
            names.append(text or "(no recorded call)")
    return names


def _as_text(parts: Sequence[dict[str, Any]]) -> str | None:
    return ", ".join(f"{p['name']} +{format_ns(p['delta_ns'])}" for p in parts) or None


# ---------------------------------------------------------------------------------- facts


def _jitter(durations: Array, outlier: Array) -> dict[str, Any]:
    """Return figures of how even the whole steps are; shares are of the median."""
    if not len(durations):
        return {"steps": 0}
    median = float(np.median(durations))
    mad = float(np.median(np.abs(durations - median)))
    p95 = float(np.quantile(durations, 0.95))
    scale = median or 1.0
    return {
        "steps": len(durations),
        "median_ns": median_ns(durations),
        "mean_ns": round(float(np.mean(durations))),
        "p95_ns": round(p95),
        "max_ns": int(durations.max()),
        "mad_ns": round(mad),
        "mad_share": mad / scale,
        "p95_over_median": p95 / scale,
        "outliers": int(outlier.sum()),
    }


def _notes(part: RankTrace, durations: Array, whole: Array, outlier: Array) -> list[str]:
    if not len(durations):
        return ["The trace has no steps: call `profiler.step()` at the end of each iteration."]
    notes = []
    lost = len(part.tree.steps) - len(durations)
    if lost:
        notes.append(f"{lost} of {len(part.tree.steps)} steps lack GPU records and have no row.")
    if any(step.kind != UNMARKED for step in part.tree.steps):
        notes.append("Each step is an iteration that the serving engine marked.")
    elif part.tree.steps_inferred:
        notes.append("No step is marked; these were inferred from a pattern that repeats.")
    if not whole.all():
        notes.append(
            "The first and last step are often cut off by the recording: medians leave them out."
        )
    if not len(part.tree.gpu_rows):
        notes.append("No GPU events: all time counts as idle; what differs is host time.")
    if whole.sum() < 3:
        notes.append("Fewer than three whole steps: outliers cannot be told.")
        return notes
    jitter = _jitter(durations[whole], outlier[whole])
    notes.append(
        f"{jitter['steps']} whole steps: median {format_ns(jitter['median_ns'])}, half of them "
        f"within {format_ns(jitter['mad_ns'])} of it ({format_share(jitter['mad_share'])}), "
        f"95 % below {format_ns(jitter['p95_ns'])}; {jitter['outliers']} outliers."
    )
    return notes


# ---------------------------------------------------------------------------------- trend


@dataclass(frozen=True, slots=True)
class Trend:
    """A verdict on the same kernels becoming slower over the trace."""

    verdict: str
    """"clock or thermal drop", "none" or "unknown"."""
    reason: str = ""
    """The reason why it is unknown."""
    change_share: float | None = None
    """Slope times the length of the trace: 0.1 is 10 % slower at the end."""
    p_value: float | None = None
    agreeing_share: float | None = None
    """The share of watched kernel time that changes in the same direction."""
    watched_share: float | None = None
    """The share of compute time that repeats often enough."""
    groups: int = 0
    """Kernels with one grid and one shape each."""

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def notes(self) -> list[str]:
        if self.verdict != "clock or thermal drop":
            return []
        assert self.change_share is not None and self.agreeing_share is not None
        return [
            f"The same kernels on the same shapes take {format_share(self.change_share)} longer "
            f"at the end than at the start ({format_share(self.agreeing_share)} of their time "
            "agrees): the GPU's clock dropped, by heat or a power limit."
        ]


def kernel_trend(part: RankTrace) -> Trend:
    """Trend of kernel times within groups of equal name, grid and shapes. O(n log n)."""
    rows = _compute_rows(part)
    if not len(rows):
        return Trend("unknown", "no compute kernels")
    table = part.table
    duration = table.dur_ns[rows].astype(np.float64)
    groups = Groups(*repeat_keys(part, rows))
    watched = (groups.count >= FEWEST_REPEATS)[groups.index]
    share = float(duration[watched].sum() / duration.sum())
    if share < WATCHED_SHARE:
        return Trend("unknown", "too few kernels repeat", watched_share=share)
    ratio = duration / groups.median(duration)[groups.index]
    time = table.ts_ns[rows].astype(np.float64)
    kept = (ratio[watched], time[watched], duration[watched])
    series = _series(*kept)
    if len(series) < FEWEST_SLICES:
        return Trend("unknown", "the kernels run in too few moments", watched_share=share)
    change = _theil_sen(series[:, 0], series[:, 1])
    p_value = _mann_kendall(series[:, 1])
    agreeing = _agreeing(groups.index[watched], *kept, change)
    drop = change > DROP_SHARE and p_value < SIGNIFICANT and agreeing >= AGREEING_SHARE
    return Trend(
        "clock or thermal drop" if drop else "none",
        change_share=change,
        p_value=p_value,
        agreeing_share=agreeing,
        watched_share=share,
        groups=int((groups.count >= FEWEST_REPEATS).sum()),
    )


def repeat_variation(part: RankTrace) -> float | None:
    """Return how much kernels with equal name, grid and shapes vary about the median of their
    group: robust sigma over median. None where too few repeat, or grids are not recorded.
    O(n log n)."""
    rows = _compute_rows(part)
    if not len(rows):
        return None
    duration = part.table.dur_ns[rows].astype(np.float64)
    keys = repeat_keys(part, rows)
    groups = Groups(*keys)
    watched = (groups.count >= FEWEST_REPEATS)[groups.index] & (keys[2] >= 0)
    if duration[watched].sum() < WATCHED_SHARE * duration.sum():
        return None
    apart = np.abs(duration / groups.median(duration)[groups.index] - 1)[watched]
    return NORMAL_MAD * float(np.median(apart))


def _compute_rows(part: RankTrace) -> Array:
    """Compute kernels that take time."""
    rows = part.tree.gpu_rows
    compute = part.tree.gpu_class[rows] == _core.GpuClass.COMPUTE
    kernel = part.table.kind[rows] == _core.EventKind.KERNEL
    chosen: Array = rows[compute & kernel & (part.table.dur_ns[rows] > 0)]
    return chosen


def _series(ratio: Array, time: Array, weight: Array) -> Array:
    """float64 `[slices, 2]`: time in [0, 1] and the weighted median of the ratios, for the slices
    of equal time in which enough kernels run."""
    span = time.max() - time.min()
    if span <= 0:
        return np.zeros((0, 2))
    place = (time - time.min()) / span
    slices = min(MOST_SLICES, max(1, len(ratio) // FEWEST_REPEATS))
    number = np.minimum((place * slices).astype(np.int64), slices - 1)
    order = np.lexsort((ratio, number))
    number, ratio, weight, place = (v[order] for v in (number, ratio, weight, place))
    starts = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    counts = np.diff(np.append(starts, len(number)))
    total = np.add.reduceat(weight, starts)
    before = np.cumsum(weight) - np.repeat(np.cumsum(total) - total, counts)
    half = np.flatnonzero(before >= np.repeat(total / 2, counts) * (1 - 1e-9))
    first = half[np.unique(np.searchsorted(starts, half, side="right"), return_index=True)[1]]
    middle = np.add.reduceat(place, starts) / counts
    series: Array = np.stack([middle, ratio[first]], axis=1)[counts >= 3]
    return series


def _theil_sen(time: Array, value: Array) -> float:
    """Median of the slopes between all pairs, as a share of the median value over time 0 to 1."""
    i, j = np.triu_indices(len(time), 1)
    apart = time[j] - time[i]
    slopes = (value[j] - value[i])[apart > 0] / apart[apart > 0]
    level = float(np.median(value))
    return float(np.median(slopes)) / level if len(slopes) and level else 0.0


def _mann_kendall(value: Array) -> float:
    """Two-sided p of no trend, by the normal approximation with ties."""
    n = len(value)
    i, j = np.triu_indices(n, 1)
    score = float(np.sign(value[j] - value[i]).sum())
    _, ties = np.unique(value, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if variance <= 0 or score == 0:
        return 1.0
    return erfc((abs(score) - 1) / sqrt(2 * variance))


def _agreeing(group: Array, ratio: Array, time: Array, weight: Array, change: float) -> float:
    """Share of kernel time in groups whose later half is slower (faster) by its median too."""
    groups = Groups(group)
    order = np.lexsort((time, groups.index))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    first = (np.cumsum(groups.count) - groups.count)[groups.index]
    half = 2 * groups.index + (rank - first >= groups.count[groups.index] / 2)
    halves = Groups(half)
    medians = np.empty(2 * len(groups))
    medians[half[halves.first]] = halves.median(ratio)
    moves = np.sign(medians[1::2] - medians[::2]) == np.sign(change)
    total = groups.sum(weight)
    return float(total[moves].sum() / total.sum())


TABLE = TableSpec(
    build=build_steps,
    sql={"steps": {}},
    page=(PageView("steps", "steps"),),
    first=("name", "duration_ns", "idle_ns", "compute_ns", "outlier", "what_differs"),
)
