"""Calls of operators that were recorded into CUDA graphs, for the GPU work that replays them.

A replayed kernel counts for the operator that launched it at the capture, with the arguments that
it had there: the shapes of a graph do not change. What a serving engine says of its batch is said
at the replay. Where no capture is known, the name of a kernel may tell its shapes.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.ops.models import model_of
from torchtraceap.ops.models.kernel_shapes import (
    KernelLaunch,
    counts_threads,
    product_of_kernel,
)
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.ops.calls import MOST_KERNELS, Calls, KindOfCall, kind_of_call
from torchtraceap.tables.serving.attribution import Attribution
from torchtraceap.tables.serving.iterations import batch_of, served_iterations
from torchtraceap.tables.serving.nodes import graph_nodes
from torchtraceap.trace.ranks import RankTrace

__all__ = ["ReplayedCalls"]


def _sizes(text: str) -> tuple[int, ...]:
    """Return the sizes of a grid or a block; empty where the text is something else."""
    try:
        sizes = json.loads(text)
    except ValueError:
        return ()
    if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
        return ()
    return tuple(sizes)


class ReplayedCalls:
    """The calls behind the replayed GPU events of a rank.

    Attributes:
        events: int64: index in `tree.gpu_rows` of those with an operator in a capture, or with
            shapes in their name.
        call: int64 `[events]`: the call of each, from 0.
        kind: int64 `[calls]`: index in `kinds`.
        kinds: Calls of one name with the same arguments.
    """

    def __init__(self, part: RankTrace, known: Attribution) -> None:
        events = np.flatnonzero(known.captured_part >= 0)
        source, rows = known.captured_part[events], known.captured_row[events]
        target = np.full(len(events), -1, dtype=np.int64)
        kind = target.copy()
        captured = [Calls(each, launched_only=False) for each in known.captures]
        for number, (each, calls) in enumerate(zip(known.captures, captured, strict=True)):
            own = np.flatnonzero(source == number)
            op = each.tree.op[rows[own]].astype(np.int64)
            own, op = own[op != _core.NO_ROW], op[op != _core.NO_ROW]
            modeled = _core.innermost_marked(each.table, each.tree, calls.has_work[:-1])[op]
            target[own] = np.where(modeled != _core.NO_ROW, modeled, op)
            kind[own] = calls.group[np.searchsorted(calls.rows, target[own])]
        found = target >= 0
        self.events: Array = events[found]
        source, target, kind = source[found], target[found], kind[found]
        event_rows = part.tree.gpu_rows[self.events].astype(np.int64)
        launches = part.tree.launch[event_rows].astype(np.int64)
        self._calls = Groups(launches, source, target)
        self.call: Array = self._calls.index
        first = self._calls.first
        batch = self._batches(part, captured, source[first], kind[first], self.events[first])
        groups = Groups(source[first], kind[first], batch)
        self.kind: Array = groups.index
        names = part.table.name[event_rows]
        self.kinds: list[KindOfCall] = []
        for group in groups.first.tolist():
            base = captured[int(source[first[group]])].kinds[int(kind[first[group]])]
            codes = dict.fromkeys(names[self._calls.rows(group)].tolist())
            kernels = tuple(part.table.strings[code] for code in codes)[:MOST_KERNELS]
            said = part.table.strings[batch[group]] if batch[group] >= 0 else None
            self.kinds.append(kind_of_call(base.name, base.texts, kernels, said))
        self._add_named(part, known)

    def _add_named(self, part: RankTrace, known: Attribution) -> None:
        """Add the replayed kernels whose names tell of a product, each a call."""
        iterations, table = served_iterations(part), part.table
        rows = np.zeros(len(iterations) + 1, dtype=np.int64)
        is_most = np.ones(len(rows), dtype=bool)
        for number, (mark, phase) in enumerate(
            zip(iterations.marks, iterations.phase, strict=True)
        ):
            rows[number] = (mark.graph_batch or batch_of(mark) or 0) if mark is not None else 0
            # A prompt is cut for its last product: its rows are not those of the batch.
            is_most[number] = phase != "decode"
        events = np.flatnonzero(graph_nodes(part).replayed & (known.captured_part < 0))
        event_rows = part.tree.gpu_rows[events].astype(np.int64)
        names, own = table.name[event_rows].astype(np.int64), iterations.of_event[events]
        launched = [table.text_codes(key, event_rows) for key in ("grid", "block")]
        codes = [column[0].astype(np.int64) for column in launched]
        groups = Groups(names, rows[own], is_most[own].astype(np.int64), *codes)
        place = np.full(len(groups), -1, dtype=np.int64)
        counts = [device.sm_count for device in table.devices if device.sm_count]
        launches = []
        for first in groups.first.tolist():
            grid, block = (
                _sizes(texts[code[first]]) if code[first] >= 0 else ()
                for code, (_, texts) in zip(codes, launched, strict=True)
            )
            name = table.strings[names[first]]
            launches.append(KernelLaunch(name, grid, block, min(counts, default=None)))
        threads = counts_threads(launches)
        for group, first in enumerate(groups.first.tolist()):
            launch = replace(launches[group], counts_threads=threads)
            product = product_of_kernel(
                launch, int(rows[own[first]]), is_most=bool(is_most[own[first]])
            )
            if product is None:
                continue
            place[group] = len(self.kinds)
            dims = None
            if product.is_exact:
                dims = json.dumps([[product.rows[0], product.k], [product.n[0], product.k]])
            why_not = "" if product.work else f"the kernel's name tells no k, but {product}"
            name = launch.name
            self.kinds.append(
                KindOfCall(
                    canonical_name(name), (dims, None, None, None), (name,), product.work, why_not
                )
            )
        told = place[groups.index] >= 0
        calls = len(self.kind) + np.arange(int(told.sum()))
        self.events = np.concatenate([self.events, events[told]])
        self.call = np.concatenate([self.call, calls])
        self.kind = np.concatenate([self.kind, place[groups.index][told]])

    @staticmethod
    def _batches(
        part: RankTrace, captured: list[Calls], source: Array, kind: Array, events: Array
    ) -> Array:
        """Return the name of the iteration around each call whose model asks for it, int64, else
        -1."""
        entries = [[model_of(each.name) for each in calls.kinds] for calls in captured]
        asks = [[entry is not None and entry.needs_batch for entry in part] for part in entries]
        iterations = served_iterations(part)
        marked = part.tree.iteration_spans()[2].astype(np.int64)
        names = np.full(len(iterations) + 1, -1, dtype=np.int64)
        if iterations.source == "annotations":
            names[:-1] = part.table.name[marked]
        found = names[iterations.of_event[events]]
        wanted = [asks[one][other] for one, other in zip(source, kind, strict=True)]
        batch: Array = np.where(np.array(wanted, dtype=bool), found, -1)
        return batch
