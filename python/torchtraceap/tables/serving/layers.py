"""`fold_layers`: the layers of a model in a sequence of kernels, without any help of the engine.

Note [Folding]: a model runs the same kernels once per layer, so their names repeat with a period. A
run is a stretch in which nearly every name equals that one period later; the longest one decides,
and what lies beside it is searched again, since dense layers may stand before those with experts. A
layer begins with a norm: of the norms of a period the one that leaves room for most whole layers.
The first and last layer often differ by a kernel that is fused elsewhere, and are aligned. Where a
period holds several attention calls between like parts (window and full attention take turns), each
part is a layer. An attention call beside the runs makes a layer of its own: a single dense one.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass

__all__ = ["KernelClasses", "fold_layers"]

_FEWEST_REPEATS = 3
_FEWEST_KERNELS = 4
"""The shortest period: a layer has at least a norm, two products and what lies between them."""
_SUBSTITUTED = 0.02
"""Share of the kernels of a run that may bear another name. Each makes two of the names differ from
those one period away."""
_LEAST_SHARE = 0.5
"""Share of the kernels that the longest run has to cover: something that repeats now and then is no
model."""
_LIKE = 0.7
"""Share of the kernels that two layers have in common, in order, though they are not equal."""
_MOST_CANDIDATES = 64
_MOST_TURNS = 4
"""Times that one kernel may occur in a period and still tell its length."""


@dataclass(frozen=True, slots=True)
class KernelClasses:
    """What the kernels of a sequence are; bool `[n]` each."""

    norm: Array
    attention: Array
    product: Array
    """Matrix products, grouped ones too."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Names that repeat: `end - begin` is at least `_FEWEST_REPEATS` times `period`."""

    begin: int
    end: int
    period: int


def fold_layers(names: Array, classes: KernelClasses) -> Array:
    """Find the layers of one pass through a model. See Note [Folding].

    Args:
        names: int64 `[n]`: a code for the name of each kernel, in order.
        classes: What the kernels are.

    Returns:
        int64 `[n]`: the layer of each kernel, from 0, and -1 outside of layers; all -1 where
        nothing repeats as layers do. O(n) for each of at most 64 periods that are tried.
    """
    layer = np.full(len(names), -1, dtype=np.int64)
    spans = _find_layers(names, classes, 0, len(names), first=True)
    if spans:
        spans = _add_single_layers(spans, classes, len(names))
    for number, (begin, end) in enumerate(spans):
        layer[begin:end] = number
    return layer


def _find_layers(
    names: Array, classes: KernelClasses, begin: int, end: int, *, first: bool
) -> list[tuple[int, int]]:
    """Return the bounds of the layers within [begin, end), in order."""
    run = _longest_run(names, begin, end)
    if run is None or not _is_model(run, names, classes, end - begin if first else 0):
        return []
    spans = [
        part
        for span in _whole_layers(names, classes, run, begin, end)
        for part in _parts_of(span, names, classes)
    ]
    if not spans:
        return []
    before = _find_layers(names, classes, begin, spans[0][0], first=False)
    behind = _find_layers(names, classes, spans[-1][1], end, first=False)
    return [*before, *spans, *behind]


def _longest_run(names: Array, begin: int, end: int) -> _Run | None:
    """Return the run that covers most; of runs that cover nearly the same, that of the shortest
    period."""
    part = names[begin:end]
    runs = []
    for period in _candidate_periods(part):
        # In the stretch with the largest sum, what lies on either side of a difference is worth it.
        worth = np.where(part[:-period] == part[period:], 1.0, -0.25 / _SUBSTITUTED)
        sums = np.concatenate(([0.0], np.cumsum(worth)))
        last = int(np.argmax(sums - np.minimum.accumulate(sums)))
        start = int(np.argmin(sums[: last + 1]))
        if last - start >= (_FEWEST_REPEATS - 1) * period:
            runs.append(_Run(begin + start, begin + last + period, period))
    if not runs:
        return None
    most = max(run.end - run.begin for run in runs)
    return min(
        (run for run in runs if run.end - run.begin >= most - run.period),
        key=lambda run: run.period,
    )


def _candidate_periods(names: Array) -> list[int]:
    """Return distances between equal names that occur often, those that would cover most first."""
    order = np.argsort(names, kind="stable")
    longest = len(names) // _FEWEST_REPEATS
    found = []
    for turns in range(1, _MOST_TURNS + 1):
        same = names[order[turns:]] == names[order[:-turns]]
        distance = (order[turns:] - order[:-turns])[same]
        found.append(distance[(distance >= _FEWEST_KERNELS) & (distance <= longest)])
    periods, counts = np.unique(np.concatenate(found), return_counts=True)
    often = counts >= _FEWEST_REPEATS - 1
    periods, counts = periods[often], counts[often]
    best = np.argsort(-(counts * periods), kind="stable")[:_MOST_CANDIDATES]
    return [int(period) for period in periods[best]]


def _is_model(run: _Run, names: Array, classes: KernelClasses, length: int) -> bool:
    """Does a run hold what every layer of a model has? Attention tells a layer; products alone do
    not where fewer kernels repeat than a layer has."""
    one = slice(run.begin, run.begin + run.period)
    attends = bool(classes.attention[one].any())
    part = names[run.begin : run.end]
    repeats = (np.mean(part[:-lag] == part[lag:]) for lag in range(1, _FEWEST_KERNELS))
    short = any(share >= 1 - 2 * _SUBSTITUTED for share in repeats)
    works = attends or (bool(classes.product[one].any()) and not short)
    return works and run.end - run.begin >= _LEAST_SHARE * length


def _whole_layers(
    names: Array, classes: KernelClasses, run: _Run, begin: int, end: int
) -> list[tuple[int, int]]:
    """Return the bounds of the periods of a run that begin with a norm, edges aligned."""
    offsets = np.flatnonzero(classes.norm[run.begin : run.begin + run.period])
    best: list[tuple[int, int]] = []
    for offset in offsets.tolist() or [0]:
        first = run.begin + offset
        count = (run.end - first) // run.period
        spans = [(first + i * run.period, first + (i + 1) * run.period) for i in range(count)]
        if not spans:
            continue
        period = names[spans[0][0] : spans[0][1]]
        room = run.period + run.period // 4
        head = _aligned(period, names, max(begin, first - room), first, at_end=True)
        tail = _aligned(period, names, spans[-1][1], min(end, spans[-1][1] + room), at_end=False)
        spans = [*head, *spans, *tail]
        if len(spans) > len(best):
            best = spans
    return best


def _aligned(
    period: Array, names: Array, begin: int, end: int, *, at_end: bool
) -> list[tuple[int, int]]:
    """Return the bounds of a layer like `period` at the end or the begin of [begin, end), if there
    is one."""
    matcher = SequenceMatcher(None, period.tolist(), names[begin:end].tolist(), autojunk=False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size]
    if sum(block.size for block in blocks) < _LIKE * len(period):
        return []
    if at_end:
        return [(begin + blocks[0].b, end)]
    return [(begin, begin + blocks[-1].b + blocks[-1].size)]


def _attention_calls(classes: KernelClasses, begin: int, end: int) -> list[int]:
    """Return the first kernel of each attention call: a split one has several kernels, and no
    product lies between these."""
    calls = []
    inside = False
    for place in range(begin, end):
        if classes.attention[place]:
            if not inside:
                calls.append(place)
            inside = True
        elif classes.product[place]:
            inside = False
    return calls


def _norm_before(classes: KernelClasses, place: int, begin: int) -> int:
    """Return the last norm before a kernel, or `begin`."""
    norms = np.flatnonzero(classes.norm[begin:place])
    return begin + int(norms[-1]) if len(norms) else begin


def _parts_of(
    span: tuple[int, int], names: Array, classes: KernelClasses
) -> Iterator[tuple[int, int]]:
    """Give the layers of one period: several where like parts take turns."""
    begin, end = span
    calls = _attention_calls(classes, begin, end)
    cuts = [begin, *(_norm_before(classes, call, begin) for call in calls[1:]), end]
    parts = list(pairwise(cuts))
    first = names[parts[0][0] : parts[0][1]].tolist()
    for other_begin, other_end in parts[1:]:
        other = names[other_begin:other_end].tolist()
        if SequenceMatcher(None, first, other, autojunk=False).ratio() < _LIKE:
            yield span
            return
    yield from parts


def _add_single_layers(
    spans: list[tuple[int, int]], classes: KernelClasses, length: int
) -> list[tuple[int, int]]:
    """Add a layer for each attention call outside of the layers, where these have such calls."""
    if not classes.attention[spans[0][0] : spans[0][1]].any():
        return spans
    found: list[tuple[int, int]] = []
    longest = max(end - begin for begin, end in spans)
    gaps = zip(
        [0, *(end for _, end in spans)], [*(begin for begin, _ in spans), length], strict=True
    )
    for (begin, end), span in zip(gaps, [*spans, None], strict=True):
        calls = _attention_calls(classes, begin, end)
        starts = [_norm_before(classes, call, begin) for call in calls]
        ends = [*starts[1:], end][: len(starts)]
        # What follows the last layer of a model is none, so a lone one is as long as the others.
        found += [
            (start, min(stop, start + longest)) for start, stop in zip(starts, ends, strict=True)
        ]
        found += [span] if span else []
    return found
