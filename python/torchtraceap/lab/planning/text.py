"""Shows plans as text: the options, cost over time, what is too large, what is refused."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log
from typing import TYPE_CHECKING

from torchtraceap.core import format_bytes, format_count, format_ns, format_percent, one_line
from torchtraceap.lab.planning.result import PlanOption, TooLarge, TrainingPlan, cost_of
from torchtraceap.lab.prediction.text import BOUND_LABELS
from torchtraceap.report import TextTable

if TYPE_CHECKING:
    from torchtraceap.lab.memory import MemoryFit

__all__ = ["plan_tables"]

_WIDTH, _HEIGHT = 60, 12
"""Size of the drawing in characters."""
_MAX_ROWS, _MAX_TEXT = 15, 200


def plan_tables(found: TrainingPlan, *, limit: int = _MAX_ROWS) -> list[TextTable]:
    """Return tables of the options with a drawing, of what is too large and what is refused.

    Args:
        found: The plan.
        limit: The largest number of options.
    """
    shown = found.options[:limit]
    notes = [] if shown else ["nothing is possible"]
    if len(found.options) > limit:
        notes.append(f"and {len(found.options) - limit} more (--json)")
    outside = Counter(what for each in shown for what in each.unmeasured)
    if outside:
        said = "; ".join(what for what, _ in outside.most_common(4))
        notes.append(f"Outside of what was measured: {one_line(said, 2 * _MAX_TEXT)}")
    notes += [*found.would_change, *found.notes]
    priced = any(each.price is not None for each in shown)
    columns = (
        "", "GPUs", "strategy", "batch", "micro", "largest", "a step",
        f"{round(10 * found.coverage)} of 10 between", "tokens/s" if _has_tokens(shown) else
        "samples/s", "of peak", "the run", "price" if priced else "GPU hours", "memory", "bound by",
    )  # fmt: skip
    rows = [(_mark(place, each), *_cells(each)) for place, each in enumerate(shown, 1)]
    length = f"{found.tokens:.3g} tokens" if found.tokens else f"{found.samples:.3g} samples"
    title = f"{length}, the {'cheapest' if found.sorted_by == 'price' else 'fastest'} first"
    drawn = "\n".join(_drawing(shown))
    note = "\n".join(part for part in (drawn, *notes) if part)
    made = [TextTable(title, columns, rows, note, first=(0, 1, 2, 10, 11, 6, 12, 7))]
    if found.too_large:
        alike: dict[TooLarge, list[str]] = defaultdict(list)  # but for the number of GPUs
        for each in found.too_large:
            alike[replace(each, gpus=0)].append(str(each.gpus))
        large = [
            (
                f"{', '.join(gpus)} x {one_line(each.device, 40)}",
                one_line(each.strategy, _MAX_TEXT),
                *(format_bytes(size) for size in each.memory.to_dict().values()),
                each.memory_fit.verdict,
                one_line("; ".join(each.fits_with), _MAX_TEXT) or "nothing that was tried",
            )
            for each, gpus in alike.items()
        ]
        heads = (
            "GPUs", "strategy", "parameters", "gradients", "optimizer", "activations", "",
            "fits with",
        )  # fmt: skip
        made.append(TextTable("Too large", heads, large, first=(0, 6, 7, 1)))
    if found.refused:
        cells = [
            (
                f"{each.gpus} x {one_line(each.device, 40)}",
                one_line(each.strategy, _MAX_TEXT),
                one_line(each.reason, _MAX_TEXT),
            )
            for each in found.refused
        ]
        made.append(TextTable("Refused", ("GPUs", "strategy", "why"), cells))
    return made


def _has_tokens(options: Sequence[PlanOption]) -> bool:
    return bool(options) and all(each.tokens_per_second is not None for each in options)


def _mark(place: int, option: PlanOption) -> str:
    """Return the number of an option, with a star on the frontier."""
    return f"{place}{'*' if option.on_frontier else ''}"


def _cells(each: PlanOption) -> Iterator[str]:
    step = each.step
    rate = each.samples_per_second if each.tokens_per_second is None else each.tokens_per_second
    yield f"{each.gpus} x {one_line(each.device, 40)}"
    yield one_line(each.strategy, _MAX_TEXT)
    yield format_count(each.batch)
    yield format_count(each.micro_batch)
    yield "" if each.largest_micro_batch is None else format_count(each.largest_micro_batch)
    yield format_ns(step.predicted_ns)
    yield f"{format_ns(step.low_ns)} and {format_ns(step.high_ns)}"
    yield format_count(round(rate)) if rate >= 10 else f"{rate:.2g}"
    yield "" if each.utilization is None else format_percent(each.utilization)
    yield _duration(each.run_seconds)
    yield f"{cost_of(each):,.4g}" if cost_of(each) < 1e4 else f"{cost_of(each):,.0f}"
    yield _memory(each.memory_fit)
    yield BOUND_LABELS.get(each.bound_by, each.bound_by)


def _memory(fit: MemoryFit | None) -> str:
    return "not known" if fit is None else f"{format_bytes(fit.needed)}, {fit.verdict}"


def _duration(seconds: float) -> str:
    """Return a time in the largest unit of which it has two or more."""
    for unit, length in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.3g} s"


def _drawing(options: Sequence[PlanOption]) -> list[str]:
    """Draw the cost of runs over their time, both by factors; numbers are those of the options on
    the frontier, dots the others."""
    if len(options) < 2:
        return []
    points = [(log(each.run_seconds), log(cost_of(each))) for each in options]
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    cells = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    order = sorted(range(len(options)), key=lambda place: options[place].on_frontier)
    for place in order:
        x, y = points[place]
        column = round((_WIDTH - 3) * (x - left) / ((right - left) or 1.0))
        row = round((_HEIGHT - 1) * (high - y) / ((high - low) or 1.0))
        text = str(place + 1) if options[place].on_frontier else "."
        cells[row][column : column + len(text)] = text
    what = "price" if all(each.price is not None for each in options) else "GPU hours"
    times = [each.run_seconds for each in options]
    costs = [cost_of(each) for each in options]
    lines = [f"{what} of the run over its time; numbers: no faster option is as cheap"]
    ends = {0: f"{max(costs):,.4g}", _HEIGHT - 1: f"{min(costs):,.4g}"}
    wide = max(map(len, ends.values()))
    lines += [
        f"{ends.get(place, ''):>{wide}} |{''.join(row).rstrip()}" for place, row in enumerate(cells)
    ]
    first, last = _duration(min(times)), _duration(max(times))
    lines.append(f"{'':>{wide}} +{first}{last:>{_WIDTH - len(first)}}")
    return lines
