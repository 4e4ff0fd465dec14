"""Predictions as a self-contained HTML page with steps, memory and timelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core import formatting
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_bytes, format_ns
from torchtraceap.core.records import dataclass
from torchtraceap.core.writing import check_target, write_text
from torchtraceap.lab.prediction.text import BOUND_LABELS, step_shares
from torchtraceap.report.document import compressed_json, render_document, table_data
from torchtraceap.report.labels import GPU_LABELS
from torchtraceap.report.view import Segment

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.result import Prediction
    from torchtraceap.trace.ranks import RankTrace

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
    "host_optimizer": "optimiser",
    "host_other": "other host work",
    "compute": "computation",
    "communication": "collectives",
    "memcpy": "copies",
    "data_loading": "loading",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A prediction whose bars share the scale of the page."""

    time: str
    between: str
    facts: str
    segments: list[Segment]
    low_share: float
    high_share: float
    memory: list[Segment]
    memory_text: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A thread or stream as runs of one color."""

    label: str
    runs: list[tuple[str, float, float]]
    """Color, begin and length as shares of the range."""


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
    ordered = sorted(found, key=lambda each: each.step.predicted_ns)
    best = ordered[0]
    notes = [
        formatting.one_line(note, 600)
        for note in dict.fromkeys(note for each in ordered for note in each.notes)
    ]
    heads, tables = _sections(ordered)
    rows = [_row(each, ordered) for each in ordered]
    lanes = _lanes(best.trace.ranks[0])
    drawn = {fill for lane in lanes for fill, _, _ in lane.runs}
    return render_document(
        "prediction.html",
        SCRIPT_PARTS,
        {
            "texts": {
                "title": "Predicted steps",
                "facts": "",
                "labels": [_label(each) for each in ordered],
                "notes": notes,
            },
            "sections": heads,
            "absent": [],
        },
        {"tables": compressed_json(tables)},
        headline=_headline(best, len(ordered)),
        explanation=_explanation(best),
        rows=rows,
        keys=_legend(segment for row in rows for segment in row.segments),
        memory_keys=_legend(segment for row in rows for segment in row.memory),
        lanes=lanes,
        lane_keys=[(fill, label) for fill, label in _LANES.items() if fill in drawn],
        sections=heads,
        notes=len(notes),
    )


def _headline(best: Prediction, count: int) -> str:
    first = "The fastest step takes" if count > 1 else "A step takes"
    return f"{first} {format_ns(best.step.predicted_ns)} on {formatting.one_line(best.device, 60)}"


def _explanation(best: Prediction) -> str:
    low, high = format_ns(best.step.low_ns), format_ns(best.step.high_ns)
    return f"9 of 10 between {low} and {high} · bound by {BOUND_LABELS[best.bound_by]}"


def _label(found: Prediction) -> str:
    parts = [found.device]
    if found.world_size > 1:
        parts.append(f"{found.world_size} GPUs, {found.strategy or 'ddp'}")
    return formatting.one_line(" · ".join(parts + ([found.dtype] if found.dtype else [])), 160)


def _row(found: Prediction, every: Sequence[Prediction]) -> Row:
    longest = max(max(each.step.high_ns, each.step.predicted_ns) for each in every)
    step = found.step
    segments = [
        Segment(key, label, ns, ns / longest, key == "unknown", format_ns(ns))
        for key, label, ns in step_shares(found)
        if ns > 0
    ]
    memory, text = _memory(found, every)
    return Row(
        time=format_ns(step.predicted_ns),
        between=f"{format_ns(step.low_ns)} to {format_ns(step.high_ns)}",
        facts=f"bound by {BOUND_LABELS[found.bound_by]}",
        segments=segments,
        low_share=step.low_ns / longest,
        high_share=step.high_ns / longest,
        memory=memory,
        memory_text=text,
    )


def _memory(found: Prediction, every: Sequence[Prediction]) -> tuple[list[Segment], str]:
    """Return the peak of each kind of memory; they may not coincide."""
    need = found.memory_bytes
    if need is None:
        return [], ""
    sizes = need.to_dict()
    most = max(_size(each) for each in every)
    segments = [
        Segment(fill, name, sizes[name], sizes[name] / most, False, format_bytes(sizes[name]))
        for name, fill in _MEMORY.items()
        if sizes[name]
    ]
    return segments, f"{format_bytes(need.peak)} at once"


def _size(found: Prediction) -> int:
    need = found.memory_bytes
    return 1 if need is None else max(1, sum(need.to_dict()[name] for name in _MEMORY))


def _legend(segments: Iterator[Segment]) -> list[Segment]:
    """Return one segment of each color for a legend."""
    return list({segment.key: segment for segment in segments}.values())


# ---------------------------------------------------------------------------------- timeline


def _lanes(part: RankTrace) -> list[Lane]:
    """Return threads by phase and streams by class of work, over all steps."""
    table, tree = part.table, part.tree
    ends = table.ts_ns + table.dur_ns
    is_gpu = tree.gpu_class != _core.GpuClass.NONE
    on_host = (table.kind == _core.EventKind.CPU_OP) | (table.kind == _core.EventKind.RUNTIME)
    on_host |= (table.kind == _core.EventKind.USER_ANNOTATION) & (tree.phase == _core.Phase.INPUT)
    names = _core.gpu_class_names()
    phases = [_PHASES.get(_core.Phase(phase), "host_other") for phase in tree.phase.tolist()]
    fills = np.array(
        [
            (names[code] if names[code] in GPU_LABELS else "compute") if gpu else phase
            for code, gpu, phase in zip(tree.gpu_class, is_gpu, phases, strict=True)
        ]
    )
    chosen = np.flatnonzero(on_host | is_gpu)
    if not len(chosen):
        return []
    begin = int(table.ts_ns[chosen].min())
    span = max(1, int(ends[chosen].max()) - begin)
    lanes = []
    for track in np.unique(table.track[chosen]).tolist():
        rows = chosen[table.track[chosen] == track]
        shares = (table.ts_ns[rows] - begin) / span, (ends[rows] - begin) / span
        kind = "stream" if is_gpu[rows[0]] else "thread"
        lanes.append(Lane(kind, _runs(*shares, fills[rows])))
    return _numbered(lanes)[:MAX_LANES]


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


def _numbered(lanes: Sequence[Lane]) -> list[Lane]:
    """Number the lanes, threads before streams."""
    found = []
    for kind in ("thread", "stream"):
        own = [lane for lane in lanes if lane.label == kind]
        found += [Lane(f"{kind} {place + 1}", lane.runs) for place, lane in enumerate(own)]
    return found


# ---------------------------------------------------------------------------------- tables


def _sections(found: Sequence[Prediction]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the operator tables, one view for each prediction."""
    views = [
        {"key": str(place), "label": _label(each), "hint": "", "find": "", "meter": ""}
        for place, each in enumerate(found)
    ]
    head = {
        "key": "ops",
        "title": "Operators",
        "open": True,
        "leads": ["GPU time of each launching operator with the same shapes, 8 of 10 between"],
        "views": views,
    }
    tables = [[{**table_data(each.table(), most_rows=MAX_ROWS), "chart": None}] for each in found]
    return [head], {"ops": tables}
