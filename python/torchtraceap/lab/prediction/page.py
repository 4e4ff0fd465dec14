"""Predictions as a self-contained HTML page with steps, memory and timelines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core import (
    GPU_PARTS,
    Array,
    check_target,
    format_bytes,
    format_ns,
    one_line,
    write_text,
)
from torchtraceap.lab.prediction.text import BOUND_LABELS, step_shares
from torchtraceap.report import Segment, compressed_json, render_document, table_data

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.result import Prediction, StepMemory
    from torchtraceap.trace import RankTrace

__all__ = ["render_predictions", "write_prediction_page"]

SCRIPT_PARTS = ("basics", "unpack", "charts", "tables", "tree", "sections", "compare")
MAX_ROWS = 1500
MAX_LANES = 8
BINS = 900  # of a timeline: what is shorter than one is drawn as long
_MEMORY = {
    "parameters": "compute",
    "gradients": "communication",
    "optimizer": "memcpy",
    "activations": "host_wait",
}
_PHASES = {
    _core.Phase.FORWARD: "host_forward",
    _core.Phase.BACKWARD: "host_backward",
    _core.Phase.OPTIMIZER: "host_optimizer",
    _core.Phase.INPUT: "data_loading",
}
_LANES = {
    "host_forward": "forward",
    "host_backward": "backward",
    "host_optimizer": "optimizer",
    "host_other": "other host work",
    "compute": "computation",
    "communication": "collectives",
    "memcpy": "copies",
    "data_loading": "loading",
}


def write_prediction_page(found: Sequence[Prediction], path: Path, inputs: Sequence[str]) -> None:
    """Write predictions to an HTML page.

    Args:
        found: Devices and strategies; at least one.
        path: Path of the page.
        inputs: Files that were read.

    Raises:
        OptionError: `path` is one of the files that were read.
        OutputError: Writing fails.
    """
    check_target(path, inputs)
    write_text(path, render_predictions(found), inputs=inputs)


def render_predictions(found: Sequence[Prediction]) -> str:
    """Render predictions as a page; equal predictions give equal text."""
    ordered = sorted(found, key=lambda each: each.unprofiled.predicted_ns)
    best = ordered[0]
    first = "The fastest step takes" if len(ordered) > 1 else "A step takes"
    device = one_line(best.device, 60)
    low, high = format_ns(best.unprofiled.low_ns), format_ns(best.unprofiled.high_ns)
    labels = []
    for each in ordered:
        parts = [each.device]
        if each.world_size > 1:
            parts.append(f"{each.world_size} GPUs, {each.strategy or 'ddp'}")
        if each.dtype:
            parts.append(each.dtype)
        labels.append(one_line(" · ".join(parts), 160))
    notes = [
        one_line(note, 600)
        for note in dict.fromkeys(note for each in ordered for note in each.notes)
    ]
    views = [
        {"key": str(place), "label": label, "hint": "", "find": "", "meter": ""}
        for place, label in enumerate(labels)
    ]
    head = {
        "key": "ops",
        "title": "Operators",
        "open": True,
        "leads": ["GPU time of each launching operator with the same shapes, 8 of 10 between"],
        "views": views,
    }
    tables = [[{**table_data(each.table(), most_rows=MAX_ROWS), "chart": None}] for each in ordered]
    rows = _rows(ordered)
    lanes = _lanes(best.trace.ranks[0])
    drawn = {fill for _, runs in lanes for fill, _, _ in runs}
    return render_document(
        "prediction.html",
        SCRIPT_PARTS,
        {
            "texts": {"title": "Predicted steps", "facts": "", "labels": labels, "notes": notes},
            "sections": [head],
            "absent": [],
        },
        {"tables": compressed_json({"ops": tables})},
        headline=f"{first} {format_ns(best.unprofiled.predicted_ns)} on {device}",
        explanation=f"9 of 10 between {low} and {high} · bound by {BOUND_LABELS[best.bound_by]}",
        rows=rows,
        keys=_legend(segment for row in rows for segment in row["segments"]),
        memory_keys=_legend(segment for row in rows for segment in row["memory"]),
        lanes=[{"label": label, "runs": runs} for label, runs in lanes],
        lane_keys=[(fill, label) for fill, label in _LANES.items() if fill in drawn],
        sections=[head],
        notes=len(notes),
    )


def _rows(found: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return what the template says of each prediction; bars share the scale of the page.

    Memory is the peak of each kind; these need not coincide.
    """
    longest = max(max(each.step.high_ns, each.step.predicted_ns) for each in found)
    needs = [each.memory_bytes for each in found]
    sizes = [{} if need is None else need.to_dict() for need in needs]
    most = max(sum(own.get(name, 0) for name in _MEMORY) for own in sizes) or 1
    rows = []
    for each, need, own in zip(found, needs, sizes, strict=True):
        step = each.step
        segments = [
            Segment(key, label, ns, ns / longest, key == "unknown", format_ns(ns))
            for key, label, ns in step_shares(each)
            if ns > 0
        ]
        memory = [
            Segment(fill, name, own[name], own[name] / most, False, format_bytes(own[name]))
            for name, fill in _MEMORY.items()
            if own.get(name)
        ]
        rows.append(
            {
                "time": format_ns(step.predicted_ns),
                "between": f"{format_ns(step.low_ns)} to {format_ns(step.high_ns)}",
                "facts": f"while profiled ({format_ns(each.unprofiled.predicted_ns)} otherwise), "
                f"bound by {BOUND_LABELS[each.bound_by]}",
                "segments": segments,
                "low_share": step.low_ns / longest,
                "high_share": step.high_ns / longest,
                "memory": memory,
                "memory_text": "" if need is None else _memory_text(each, need),
            }
        )
    return rows


def _memory_text(found: Prediction, need: StepMemory) -> str:
    fit = found.memory_fit
    return f"{format_bytes(need.peak)} at once" + ("" if fit is None else f", {fit.verdict}")


def _legend(segments: Iterable[Segment]) -> list[Segment]:
    """Return one segment of each color for a legend."""
    return list({segment.key: segment for segment in segments}.values())


def _lanes(part: RankTrace) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """Return threads by phase and streams by class of work, over all steps.

    Each has a label and runs of one color: color, begin and length as shares of the range.
    """
    table, tree = part.table, part.tree
    ends = table.ts_ns + table.dur_ns
    is_gpu = tree.gpu_class != _core.GpuClass.NONE
    on_host = (table.kind == _core.EventKind.CPU_OP) | (table.kind == _core.EventKind.RUNTIME)
    on_host |= (table.kind == _core.EventKind.USER_ANNOTATION) & (tree.phase == _core.Phase.INPUT)
    names = _core.gpu_class_names()
    phases = [_PHASES.get(_core.Phase(phase), "host_other") for phase in tree.phase.tolist()]
    fills = np.array(
        [
            (names[code] if names[code] in GPU_PARTS else "compute") if gpu else phase
            for code, gpu, phase in zip(tree.gpu_class, is_gpu, phases, strict=True)
        ]
    )
    chosen = np.flatnonzero(on_host | is_gpu)
    if not len(chosen):
        return []
    begin = int(table.ts_ns[chosen].min())
    span = max(1, int(ends[chosen].max()) - begin)
    found: dict[str, list[list[tuple[str, float, float]]]] = {"thread": [], "stream": []}
    for track in np.unique(table.track[chosen]).tolist():
        rows = chosen[table.track[chosen] == track]
        shares = (table.ts_ns[rows] - begin) / span, (ends[rows] - begin) / span
        found["stream" if is_gpu[rows[0]] else "thread"].append(_runs(*shares, fills[rows]))
    return [
        (f"{kind} {number}", runs)
        for kind, lanes in found.items()
        for number, runs in enumerate(lanes, 1)
    ][:MAX_LANES]


def _runs(begin: Array, end: Array, fills: Array) -> list[tuple[str, float, float]]:
    """Merge events of one color into runs on a grid of bins."""
    colors = np.full(BINS, -1)
    known = dict.fromkeys(fills.tolist())
    codes = {fill: code for code, fill in enumerate(known)}
    first = np.minimum((begin * BINS).astype(np.int64), BINS - 1)
    last = np.maximum(np.minimum(np.ceil(end * BINS).astype(np.int64), BINS), first + 1)
    for a, b, fill in zip(first.tolist(), last.tolist(), fills.tolist(), strict=True):
        colors[a:b] = codes[fill]
    cuts = np.flatnonzero(np.diff(colors)) + 1
    edges = [0, *cuts.tolist(), BINS]
    by_code = list(known)
    return [
        (by_code[colors[a]], a / BINS, (b - a) / BINS) for a, b in pairwise(edges) if colors[a] >= 0
    ]
