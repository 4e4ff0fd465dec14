"""`iteration_parts`: iterations of a serving engine, cut by layer and role into what sums to them.

Note [Part]: an instant of an iteration belongs to one GPU event, whose role in its layer names it,
else to its bubble (the GPU waits for the iteration to begin) or to a gap between its kernels. Where
no layer was found, what the name of a kernel says stands for the role.
"""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import TextCodes, encode_texts
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import sum_by_index
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.serving.attribution import attribute
from torchtraceap.tables.serving.bubbles import bubbles_of
from torchtraceap.tables.serving.iterations import served_iterations
from torchtraceap.tables.serving.roles import kernel_kind
from torchtraceap.tables.steps.pieces import cut
from torchtraceap.trace.ranks import RankTrace

__all__ = ["BUBBLE", "GAP", "IterationParts", "event_places", "iteration_parts"]

BUBBLE, GAP = "bubble", "gap"


@dataclass(frozen=True, slots=True)
class IterationParts:
    """Parts of iterations, by iteration, layer and begin; arrays have one entry per part."""

    iteration: Array
    """int64."""
    layer: Array
    """int64: -1 outside of layers."""
    role: TextCodes
    """A role, a kind of kernel, `BUBBLE` or `GAP`."""
    ns: Array
    """int64: parts of an iteration sum to its `work_ns` exactly."""


def event_places(part: RankTrace) -> tuple[Array, TextCodes]:
    """Return the layer of each of `tree.gpu_rows`, -1 outside, and its role, else what its name
    says; kept."""
    return attribute(part).layer, part.cached("event roles", lambda: _event_roles(part))


def _event_roles(part: RankTrace) -> TextCodes:
    events, role = GpuEvents.of(part), attribute(part).role
    of_name = {code: kernel_kind(events.texts[code]) for code in np.unique(events.name).tolist()}
    texts = role.to_list()
    return encode_texts(
        of_name[code] if text is None else text
        for code, text in zip(events.name.tolist(), texts, strict=True)
    )


def iteration_parts(part: RankTrace) -> IterationParts:
    """Cut the iterations that ran on a GPU; kept. See Note [Part]. O(n log n)."""
    return part.cached("iteration parts", lambda: _build(part))


def _build(part: RankTrace) -> IterationParts:
    served = served_iterations(part)
    numbers = np.flatnonzero(served.work_ns[:, 1] > served.work_ns[:, 0])
    lengths = (served.work_ns[:, 1] - served.work_ns[:, 0])[numbers]
    pieces = cut(part, [(int(begin), int(end)) for begin, end in served.work_ns[numbers]])
    on_gpu = (pieces.row != _core.NO_ROW) & (pieces.kind < _core.step_part_names().index("host"))
    rows, step, ns = pieces.row[on_gpu], pieces.step[on_gpu].astype(np.int64), pieces.ns[on_gpu]
    events = np.searchsorted(part.tree.gpu_rows, rows)
    layers, roles = event_places(part)
    count = max(1, len(roles.texts))
    layer = layers[events]
    # Parts stand by iteration and layer, then by when the first kernel of each begins.
    key = ((step * (int(layer.max(initial=-1)) + 2)) + layer + 1) * count + roles.codes[events]
    keys, first, cell = np.unique(key, return_index=True, return_inverse=True)
    sums = sum_by_index(cell, ns, len(keys))
    begins = np.full(len(keys), np.iinfo(np.int64).max)
    np.minimum.at(begins, cell, events)
    order = np.lexsort((begins, layer[first], step[first]))
    of_step, chosen = step[first][order], first[order]
    busy = sum_by_index(of_step, sums[order], len(numbers))
    waits = np.zeros(len(served), dtype=np.int64)
    for each in bubbles_of(part, served):
        waits[each.iteration] += each.end_ns - each.start_ns
    bubble = np.minimum(waits[numbers], lengths - busy)
    texts = [*roles.texts, BUBBLE, GAP]
    every = np.arange(len(numbers))
    outside = np.full(len(numbers), -1, dtype=np.int64)
    step_of = np.concatenate([every, of_step, every])
    columns = (
        numbers[step_of],
        np.concatenate([outside, layer[chosen], outside]),
        np.concatenate(
            [
                np.full(len(numbers), len(texts) - 2),
                roles.codes[events][chosen],
                np.full(len(numbers), len(texts) - 1),
            ]
        ).astype(np.int32),
        np.concatenate([bubble, sums[order], lengths - busy - bubble]),
    )
    by_iteration = np.argsort(step_of, kind="stable")
    by_iteration = by_iteration[columns[3][by_iteration] > 0]
    iteration, of_layer, codes, lasting = (column[by_iteration] for column in columns)
    return IterationParts(iteration, of_layer, TextCodes(codes, texts), lasting)
