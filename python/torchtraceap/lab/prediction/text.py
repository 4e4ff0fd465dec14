"""Formats predictions as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtraceap.core import (
    format_bytes,
    format_count,
    format_ns,
    format_part,
    format_percent,
    one_line,
)
from torchtraceap.report import TextTable

if TYPE_CHECKING:
    from torchtraceap.core import PredictedTime
    from torchtraceap.lab.prediction.result import Prediction

__all__ = ["BOUND_LABELS", "comparison_table", "prediction_tables", "step_shares"]

_MOST_OPS = 15
_WIDTH = 60
BOUND_LABELS = {
    "gpu": "the GPU",
    "host": "the host",
    "borderline": "the GPU or the host: too near to tell",
    "communication": "communication",
    "data": "batches: loading and copies",
}
_SIGNS = "█▒▓▚░"
_PARTS = {
    "compute": format_part("compute"),
    "communication": "exposed transfers",
    "communication_wait": "waits for ranks",
    "memcpy": format_part("memcpy"),
    "unknown": "idle",
}


def prediction_tables(found: Prediction) -> list[TextTable]:
    """Return tables of the step's parts, memory and operators."""
    tables = [_step_table(found)]
    if found.memory_bytes is not None:
        needs = [(name, format_bytes(size)) for name, size in found.memory_bytes.to_dict().items()]
        tables.append(TextTable(_memory_title(found), ("", "bytes"), needs))
    rows = [
        (
            op.name,
            " ".join("x".join(map(str, shape)) or "scalar" for shape in op.shapes[:3]),
            format_count(op.count),
            format_count(op.kernels),
            format_ns(op.gpu_ns),
            f"{format_ns(op.low_ns)} to {format_ns(op.high_ns)}",
            op.method,
        )
        for op in found.ops[:_MOST_OPS]
    ]
    left = len(found.ops) - len(rows)
    note = f"{format_count(left)} more in --json" if left > 0 else ""
    if found.unknown:
        names = ", ".join(op.name for op in found.unknown[:5])
        note += f"\nNo model knows these, they are taken to move their tensors once: {names}"
    columns = ("operator", "shapes", "calls", "kernels", "GPU time", "8 of 10 between", "by")
    tables.append(TextTable("Operators", columns, rows, note.strip(), first=(0, 4, 2)))
    return tables


def _memory_title(found: Prediction) -> str:
    fit = found.memory_fit
    return "Memory of its tensors" + ("" if fit is None else f": {fit.verdict}")


def _step_table(found: Prediction) -> TextTable:
    """Return the times of the step, with a bar of its parts and the notes."""
    step, gpu = found.step, found.gpu
    job = "" if found.world_size == 1 else f", {found.world_size} GPUs, {found.strategy or 'ddp'}"
    bound = BOUND_LABELS[found.bound_by]
    alone = found.unprofiled
    title = f"Step {format_ns(alone.predicted_ns)} on {found.device}{job}, bound by {bound}"
    rows = [
        ("step", format_ns(alone.predicted_ns), f"9 of 10 between {_span(alone)}"),
        ("while profiled", format_ns(step.predicted_ns), f"9 of 10 between {_span(step)}"),
        ("GPU busy", format_ns(gpu.busy_ns), _share(gpu.busy_ns, found)),
        ("host", format_ns(found.host_ns), "if it never waits"),
    ]
    met = found.communication
    if gpu.communication_ns:
        exposed = format_ns(met.exposed_transfer_ns), format_ns(met.exposed_wait_ns)
        rows += [
            ("transfers", format_ns(met.transfer_ns), f"{exposed[0]} without computation to hide"),
            ("waits for ranks", format_ns(met.wait_ns), f"{exposed[1]} without computation"),
        ]
    whole = max(step.predicted_ns, 1)
    parts = [
        (sign, word, ns) for sign, (_, word, ns) in zip(_SIGNS, step_shares(found), strict=True)
    ]
    bar = "".join(sign * round(_WIDTH * ns / whole) for sign, _, ns in parts)
    legend = "   ".join(
        f"{sign} {word} {format_percent(ns / whole)}" for sign, word, ns in parts if ns
    )
    notes = "\n".join(one_line(note, 400) for note in found.notes)
    return TextTable(title, ("", "time", ""), rows, f"{bar}\n{legend}\n{notes}")


def step_shares(found: Prediction) -> list[tuple[str, str, int]]:
    """Return the parts of the step as color on a page, label and ns."""
    gpu, met = found.gpu, found.communication
    exposed = met.exposed_transfer_ns, met.exposed_wait_ns, gpu.exposed_memcpy_ns
    times = max(gpu.busy_ns - sum(exposed), 0), *exposed, gpu.idle_ns
    return [(color, label, ns) for (color, label), ns in zip(_PARTS.items(), times, strict=True)]


def comparison_table(found: Sequence[Prediction]) -> TextTable:
    """Return a table of devices and strategies, fastest first, with bars to scale."""
    longest = max(each.unprofiled.predicted_ns for each in found)
    rows = [
        (
            each.device,
            each.strategy or "",
            format_ns(each.unprofiled.predicted_ns),
            _span(each.unprofiled),
            format_ns(each.step.predicted_ns),
            "█" * max(1, round(20 * each.unprofiled.predicted_ns / max(longest, 1))),
            _share(each.gpu.busy_ns, each),
            each.bound_by,
            "" if each.memory_bytes is None else format_bytes(each.memory_bytes.peak),
            "" if each.memory_fit is None else each.memory_fit.verdict,
        )
        for each in sorted(found, key=lambda each: each.unprofiled.predicted_ns)
    ]
    columns = (
        "device",
        "strategy",
        "step",
        "9 of 10 between",
        "while profiled",
        "",
        "GPU busy",
        "bound by",
        "memory",
        "of the GPU's",
    )
    return TextTable("", columns, rows, first=(0, 1, 2, 9, 3))


def _span(step: PredictedTime) -> str:
    return f"{format_ns(step.low_ns)} and {format_ns(step.high_ns)}"


def _share(ns: int, found: Prediction) -> str:
    return f"{format_percent(ns / max(found.step.predicted_ns, 1))} of the step"
