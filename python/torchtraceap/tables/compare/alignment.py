"""Two traces prepared for comparison: ranks are paired, and steps are cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns
from torchtraceap.core.records import dataclass
from torchtraceap.tables.quality import quality_of_both
from torchtraceap.tables.serving.iterations import served_iterations
from torchtraceap.tables.steps.iterations import UNMARKED, apart_notes
from torchtraceap.tables.steps.pieces import (
    Bounds,
    Cut,
    cut,
    join_arrays,
    median_ns,
    whole_step_bounds,
    whole_steps,
)

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["Comparison", "Side", "compare"]

SLOW_STEP = 1.5
"""A step longer than this times the median is slow, as in TraceLens and traceml."""


@dataclass(frozen=True, slots=True)
class Side:
    """One recording: its compared ranks cut into steps, which are numbered over all ranks."""

    recording: Ranks
    """All ranks, those without a partner included."""
    cuts: tuple[Cut, ...]
    bounds: tuple[Bounds, ...]

    @property
    def first_step(self) -> Array:
        """The number of each rank's first step, int64 `[ranks]`."""
        counts = [len(bounds) for bounds in self.bounds]
        return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)

    @property
    def durations(self) -> Array:
        """The durations of steps, int64 `[steps]` in ns."""
        return join_arrays([part.durations for part in self.cuts], np.int64)

    @property
    def step(self) -> Array:
        """The number of each piece's step, int64 `[pieces]`."""
        firsts = self.first_step
        return join_arrays(
            [c.step + first for c, first in zip(self.cuts, firsts, strict=True)], np.int64
        )

    def column(self, name: str, dtype: Any) -> Array:
        """Return a column of the pieces over all ranks."""
        return join_arrays([getattr(part, name) for part in self.cuts], dtype)

    @property
    def has_gpu(self) -> bool:
        return any(len(part.part.tree.gpu_rows) for part in self.cuts)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides with the same ranks in the same order."""

    before: Side
    after: Side
    basis: str
    """"whole steps", "inferred steps" or "profiled range"."""
    notes: list[str] = field(default_factory=list)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.before, self.after

    @property
    def step_ns(self) -> tuple[int, int]:
        """The median step of each side in ns."""
        return median_ns(self.before.durations), median_ns(self.after.durations)

    @property
    def difference_ns(self) -> int:
        return self.step_ns[1] - self.step_ns[0]


def compare(before: Ranks, after: Ranks) -> Comparison:
    """Pair the ranks, choose the steps to compare and cut them into pieces."""
    notes: list[str] = []
    by_number = {part.rank: part for part in after.ranks}
    pairs = [(part, by_number[part.rank]) for part in before.ranks if part.rank in by_number]
    if len(before.ranks) == len(after.ranks) == 1:
        pairs = [(before.ranks[0], after.ranks[0])]
    elif not pairs:
        pairs = list(zip(before.ranks, after.ranks, strict=False))
        notes.append("No rank is in both; they are paired in order.")
    left = len(before.ranks) + len(after.ranks) - 2 * len(pairs)
    if left:
        notes.append(f"{left} ranks have no partner in the other and are left out.")
    trees = [part.tree for pair in pairs for part in pair]
    have_steps = all(tree.steps for tree in trees)
    inferred = any(tree.steps_inferred for tree in trees)
    basis = "profiled range"
    served = have_steps and all(map(_is_served, (part for pair in pairs for part in pair)))
    if have_steps:
        basis = "inferred steps" if inferred and not served else "whole steps"
    sides = []
    for recording, parts in zip((before, after), zip(*pairs, strict=True), strict=True):
        bounds = tuple(
            _step_bounds(part, served=served) if have_steps else [part.tree.profiled]
            for part in parts
        )
        sides.append(Side(recording, tuple(map(cut, parts, bounds)), bounds))
    comparison = Comparison(sides[0], sides[1], basis, notes)
    _, why_not = quality_of_both(before, after)
    if why_not:
        notes.insert(0, f"{why_not[0].upper()}{why_not[1:]}. What is recorded is compared.")
    notes[:0] = _describe(comparison, pairs)
    return comparison


def _is_served(part: RankTrace) -> bool:
    """Return whether the steps are iterations that a serving engine marked, with GPU work."""
    steps = part.tree.steps
    if all(step.kind == UNMARKED for step in steps):
        return False
    served = served_iterations(part)
    return len(served) == len(steps) and bool(served.has_gpu.any())


def _step_bounds(part: RankTrace, *, served: bool) -> Bounds:
    """Return the ranges of whole steps on the host; of iterations of a serving engine those of
    their work on the GPU, which the host runs ahead of."""
    if not served:
        return whole_step_bounds(part)
    work_ns = served_iterations(part).work_ns
    ran = work_ns[work_ns[:, 1] > work_ns[:, 0]]
    return [(int(begin), int(end)) for begin, end in ran[whole_steps(len(ran))]]


def _describe(comparison: Comparison, pairs: Sequence[tuple[RankTrace, RankTrace]]) -> list[str]:
    step_ns, difference = comparison.step_ns, comparison.difference_ns
    counts = [len(side.durations) for side in comparison.sides]
    what = "profiled range" if comparison.basis == "profiled range" else "median step"
    change = f" ({100 * difference / step_ns[0]:+.1f} %)" if step_ns[0] else ""
    notes = [
        f"The {what} takes {format_ns(step_ns[0])} before and {format_ns(step_ns[1])} after: "
        f"{'+' if difference > 0 else ''}{format_ns(difference)}{change}; rows sum to it."
    ]
    if comparison.basis == "profiled range":
        steps = [any(part.tree.steps for part in parts) for parts in zip(*pairs, strict=True)]
        whose = "Neither has" if not any(steps) else "Only one of the two has"
        notes.append(f"{whose} steps: the whole profiled ranges are compared, whatever they hold.")
    else:
        inferred = comparison.basis == "inferred steps"
        how = "; steps were inferred from a repeated pattern" if inferred else ""
        notes.append(
            f"Whole steps: {counts[0]} before, {counts[1]} after (the first and last of a rank are "
            f"left out where it has more than two){how}."
        )
        served = all(map(_is_served, (part for pair in pairs for part in pair)))
        if served:
            notes.append("Steps are iterations of the engine: their work on the GPU is compared.")
        for when, parts in zip(("Before", "After"), zip(*pairs, strict=True), strict=True):
            kept = [] if served else apart_notes(parts, "is compared")
            notes += [f"{when}: {note}" for note in kept]
        slow = [
            int(np.sum(s.durations > SLOW_STEP * np.median(s.durations))) for s in comparison.sides
        ]
        if any(slow):
            notes.append(
                f"Steps longer than {SLOW_STEP} times the median (warm-up, checkpoints): "
                f"{slow[0]} before, {slow[1]} after; medians do not follow them."
            )
    return notes + _mismatch_notes(comparison, pairs)


def _mismatch_notes(
    comparison: Comparison, pairs: Sequence[tuple[RankTrace, RankTrace]]
) -> list[str]:
    notes = []
    gpu = [side.has_gpu for side in comparison.sides]
    if not any(gpu):
        notes.append("No GPU events in either: the time is that of the main thread.")
    elif not all(gpu):
        lacking = "before" if gpu[1] else "after"
        notes.append(
            f"The trace {lacking} has no GPU events: its time is that of the main thread and has "
            "no counterpart in the other."
        )
    names = [
        sorted({device.name for part in parts for device in part.table.devices if device.name})
        for parts in zip(*pairs, strict=True)
    ]
    if all(names) and names[0] != names[1]:
        notes.append(
            f"Different devices: {', '.join(names[0])} before, {', '.join(names[1])} after."
        )
    empty = [not any(len(part.table) for part in parts) for parts in zip(*pairs, strict=True)]
    notes += [
        f"The trace {when} holds no events."
        for when, is_empty in zip(("before", "after"), empty, strict=True)
        if is_empty
    ]
    return notes
