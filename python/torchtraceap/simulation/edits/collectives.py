"""Edits of communication: overlap, merging, bucket size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchtraceap._core import EventKind, GpuClass, Phase
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns, pluralize
from torchtraceap.core.sums import distinct, total
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NotApplicableError,
)
from torchtraceap.simulation.edits.collective_parts import (
    RankParts,
    contend,
    measured_slowdown,
    parts_of,
    share_beside_computation,
)
from torchtraceap.simulation.edits.gpu_work import collective_ns
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.grouping import rows_by_key

__all__ = [
    "BalanceExchange",
    "BucketSize",
    "MergeCollectives",
    "NoBroadcastBuffers",
    "OverlapCollectives",
]

SMALL_BYTES = 64 << 10
SMALL_NS = 20_000
"""A collective is small below the one, or up to the other (the rules' bounds)."""
NO_DATA_BYTES = 4 << 10
"""Up to so many, 1 GB/s moves the data in 4 us: the time of a collective is latency."""
SHORTEST_RUN = 2
SURE_SHARE = 0.75
"""The share of a latency without a table that is surely latency. Assumed."""
_ELEMENTS = ("In msg nelems", "Out msg nelems")
_EXCHANGES = ("dispatch", "combine")
_NO_COLLECTIVES = "the trace has no collectives on the GPU"


class OverlapCollectives:
    """Computation goes on while collectives run on a stream of their own.

    Best: nothing waits for a collective until the optimizer, or the next step, begins; gradients
    that are exchanged behind the backward pass are sent as they become ready, evenly over it.
    Cautious: only collectives of gradients move, whose consumer is the optimizer, they start when
    they did, and computation beside them is slower, as they are beside computation.
    """

    name = "overlap_collectives"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        moved = sure = 0
        for parts in parts_of(run):
            every = np.arange(len(parts.rows))
            gradients = every[parts.is_gradient]
            # With an execution trace it is known what needs a result: those edges stay.
            certain = every if len(run.edges_of("tensor")) else gradients
            moved += _detach(run, parts, every, best)
            sure += _detach(run, parts, certain, cautious)
            _send_early(parts, gradients, best)
        if not any(len(parts.rows) for parts in parts_of(run)):
            raise NotApplicableError(_NO_COLLECTIVES)
        if not moved:
            raise NotApplicableError("no computation waits for a collective")
        contend(run, best, best=True)
        contend(run, cautious, best=False)
        _, slowdown, source = measured_slowdown(run)
        note = (
            f"{pluralize(moved, 'wait')} of computation for a collective can move to the next "
            f"optimizer or step, {sure} of them surely; during communication it takes up to "
            f"{slowdown:.2f} times as long ({source})"
        )
        return EditedGraph(best, cautious, of_collectives=True, source=source, note=note)


def _detach(run: SimulatedRun, parts: RankParts, places: Array, change: Change) -> int:
    """Remove the waits of computation for collectives, and return their number.

    A collective on the stream of the computation moves to a stream of its own: the kernel after
    it follows the computation before it.
    """
    view = parts.view
    ends = view.end_of[parts.rows[places]]
    edges = view.edges_from(ends, "stream_wait", "stream_order", "device_busy")
    target = run.graph.row[view.destination_of(edges)]
    is_compute = np.isin(view.tree.gpu_class[target], [GpuClass.COMPUTE, GpuClass.MEMCPY])
    edges, target = edges[is_compute], target[is_compute].astype(np.int64)
    consumer = _consumers(parts, places)
    of_edge = np.argsort(ends)[np.searchsorted(np.sort(ends), run.graph.source[edges])]
    later = view.begin_of[target] != np.where(consumer[of_edge] >= 0, consumer[of_edge], -1)
    edges, target = edges[later], target[later]
    change.drop(edges)
    stream, rows = view.tree.stream_of, view.gpu_rows
    kept = rows[view.tree.gpu_class[rows] != GpuClass.COMMUNICATION]
    on_stream = dict(rows_by_key(stream[kept]))
    for index, moved in rows_by_key(stream[target]):
        others = kept[on_stream[index]] if index in on_stream else kept[:0]
        place = np.searchsorted(others, target[moved])
        inner = place > 0
        change.add(view.end_of[others[place[inner] - 1]], view.begin_of[others[place[inner]]], 0)
    known = consumer >= 0
    change.add(ends[known], consumer[known], 0)
    return len(edges)


def _consumers(parts: RankParts, places: Array) -> Array:
    """Return the points where results are needed at the latest: the begin of the next work that
    the optimizer launched, or of the first of the next step; -1 where there is none."""
    view = parts.view
    rows = view.gpu_class(GpuClass.COMPUTE)
    phase = view.phase_of(rows)
    # Work without a launch lies in the step of the host at its time, which may be far ahead.
    step = np.where(view.launch_of(rows) >= 0, view.step_of(rows), -1)
    ends_ns = view.table.ts_ns[parts.rows[places]] + view.table.dur_ns[parts.rows[places]]
    first = np.searchsorted(view.table.ts_ns[rows], ends_ns)
    optimizer = np.flatnonzero(phase == Phase.OPTIMIZER)
    place = np.searchsorted(optimizer, first)
    needed = np.concatenate([optimizer, [len(rows)]])[place]
    steps, first_of_step = np.unique(step, return_index=True)
    # The first work of any later step, by step; none behind the last.
    earliest = np.minimum.accumulate(np.append(first_of_step, len(rows))[::-1])[::-1]
    next_step = earliest[np.searchsorted(steps, parts.step[places], side="right")]
    needed = np.minimum(needed, np.maximum(next_step, first))
    begins = np.concatenate([view.begin_of[rows].astype(np.int64), [-1]])
    points: Array = begins[needed]
    return points


def _send_early(parts: RankParts, gradients: Array, change: Change) -> None:
    """Make collectives after a backward pass begin as their share of it is done."""
    view = parts.view
    rows = view.gpu_class(GpuClass.COMPUTE)
    backward = rows[view.phase_of(rows) == Phase.BACKWARD]
    step = view.step_of(backward)
    in_step = dict(rows_by_key(step))
    for number, here in rows_by_key(parts.step[gradients]):
        if number not in in_step:
            continue
        work = backward[in_step[number]]
        done_ns = int((view.table.ts_ns[work] + view.table.dur_ns[work])[int(0.95 * len(work))])
        mine = gradients[here]
        late = mine[view.table.ts_ns[parts.rows[mine]] >= done_ns]
        if len(late) < SHORTEST_RUN:
            continue
        begins = view.begin_of[parts.rows[late]]
        change.drop(view.edges_into(begins, "launch", "stream_wait"))
        share = np.arange(1, len(late) + 1) * len(work) // len(late) - 1
        change.add(view.end_of[work[share]], begins, 0)


# ------------------------------------------------------------------------- merging


class MergeCollectives:
    """Small collectives that follow each other become one, as soon as the last is ready.

    Its time: the sum of theirs without the latency of all but one. Best: the host hands over one;
    cautious: the operators of all still run, but for their launches.
    """

    name = "merge_collectives"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        merged = _Merge(run)
        for parts in parts_of(run):
            small = (parts.size >= 0) & (parts.size < SMALL_BYTES)
            small |= (parts.size < 0) & (parts.transfer_ns <= SMALL_NS)
            for chosen in _runs(parts, small, np.inf):
                merged.merge(parts, chosen)
        if not merged.collectives:
            raise NotApplicableError(_why_not(run, "no small collectives follow each other"))
        return merged.result(f"small ones (under {SMALL_BYTES >> 10} KiB)")


class BucketSize:
    """Gradients are exchanged in buckets of this size: smaller collectives are merged, larger
    ones split and sent as their part of the backward pass is done. Cautious: one parameter holds
    most of the bytes, so that no piece is ready earlier.

    As in DDP a bucket is sent as soon as it holds that many bytes, and never splits a parameter: a
    collective of one gradient stays whole.
    """

    def __init__(self, megabytes: str | None = None) -> None:
        try:
            self.size = float(megabytes or 25) * (1 << 20)
        except ValueError:
            self.size = 0
        if not 0 < self.size < 1 << 50:
            raise OptionError(f"bucket_size_mb: a size in MiB, not {megabytes!r}")
        self.name = f"bucket_size_mb={megabytes or 25}"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        merged = _Merge(run)
        pieces = 0
        for parts in parts_of(run):
            usable = parts.is_gradient & (parts.size > 0)
            large = usable & (parts.size > self.size) & (parts.gradients != 1)
            for chosen in _runs(parts, usable & ~large, self.size):
                merged.merge(parts, chosen)
            for place in np.flatnonzero(large).tolist():
                pieces += merged.split(parts, place, self.size)
        if not merged.collectives and not pieces:
            reason = "no gradients of known size would be exchanged otherwise"
            raise NotApplicableError(_why_not(run, reason))
        return merged.result(f"buckets of {self.size / (1 << 20):g} MiB", pieces)


class BalanceExchange:
    """Ranks get even shares of the tokens: dispatch and combine take their transfer and no longer.

    Best: nobody waits. Cautious: the longer half of the waits gets as short as the median one,
    since some unevenness stays. For one rank: of several, what each computes decides.
    """

    name = "balance_exchange"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        if len(run.ranks) > 1:
            raise NotApplicableError("of several ranks straggler_to_median tells what waits cost")
        (parts,) = parts_of(run)
        exchange = np.isin(parts.kind, _EXCHANGES)
        waits = exchange & (parts.wait_ns > 0)
        if not waits.any():
            raise NotApplicableError("no dispatch or combine is known to wait")
        usual_ns = float(np.median(parts.wait_ns[exchange]))
        longer = waits & (parts.wait_ns > usual_ns)
        moves_ns = parts.transfer_ns - parts.wait_ns
        best, cautious = Change(), Change()
        parts.set_transfer(best, np.where(waits, moves_ns, np.nan))
        parts.set_transfer(cautious, np.where(longer, moves_ns + usual_ns, np.nan))
        all_ns = format_ns(total(parts.wait_ns[waits]))
        note = f"waits in {pluralize(int(waits.sum()), 'exchange')} of tokens: {all_ns} in total"
        return EditedGraph(best, cautious, of_collectives=False, note=note)


def _why_not(run: SimulatedRun, reason: str) -> str:
    return reason if any(len(parts.rows) for parts in parts_of(run)) else _NO_COLLECTIVES


def _runs(parts: RankParts, usable: Array, most_bytes: float) -> Iterator[Array]:
    """Yield consecutive collectives of one group, kind, step and phase, until they have some bytes
    in total, whose results nothing needs before the last begins."""
    view = parts.view
    # The begin of the first other work that waits for each collective.
    ends = view.end_of[parts.rows]
    edges = view.edges_from(ends, "stream_wait", "stream_order", "host_wait", "tensor")
    target = view.row_of(view.destination_of(edges))
    order = np.argsort(ends)
    owner = order[np.searchsorted(ends[order], view.source_of(edges))]
    other = view.tree.gpu_class[target] != GpuClass.COMMUNICATION
    needed_ns = np.full(len(parts.rows), np.iinfo(np.int64).max)
    np.minimum.at(needed_ns, owner[other], view.table.ts_ns[target[other]])
    keys = np.stack([parts.group, parts.step, parts.phase.astype(np.int64)])
    current: list[int] = []
    size = first_needed_ns = 0  # those of the current run
    for place in np.flatnonzero(usable).tolist():
        begin_ns = int(view.table.ts_ns[parts.rows[place]])
        own_size, own_needed_ns = max(int(parts.size[place]), 0), int(needed_ns[place])
        fits = bool(current) and place == current[-1] + 1
        if fits:
            same = bool((keys[:, place] == keys[:, current[0]]).all())
            fits = same and parts.kind[place] == parts.kind[current[0]]
            fits = fits and first_needed_ns >= begin_ns and size < most_bytes
        if not fits:
            if len(current) >= SHORTEST_RUN:
                yield np.array(current)
            current, size, first_needed_ns = [], 0, own_needed_ns
        current.append(place)
        size += own_size
        first_needed_ns = min(first_needed_ns, own_needed_ns)
    if len(current) >= SHORTEST_RUN:
        yield np.array(current)


class NoBroadcastBuffers:
    """`broadcast_buffers=False`: no buffers are sent before a forward pass."""

    name = "no_broadcast_buffers"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        change = Change()
        count = 0
        for parts in parts_of(run):
            view = parts.view
            forward = view.rows_named(
                r"^DistributedDataParallel\.forward", EventKind.CPU_OP, EventKind.USER_ANNOTATION
            )
            inside, _ = view.launched_inside(view.outermost(forward))
            chosen = np.isin(parts.rows, inside) & (parts.kind == "broadcast")
            parts.remove(change, np.flatnonzero(chosen), operators=True)
            count += int(chosen.sum())
        if not count:
            raise NotApplicableError("no forward pass of DistributedDataParallel broadcasts")
        return EditedGraph(change, note=f"gone: {pluralize(count, 'broadcast')}")


class _Merge:
    """The two variants of a change that merges or splits collectives."""

    def __init__(self, run: SimulatedRun) -> None:
        self.run = run
        self.best, self.cautious = Change(), Change()
        self.collectives = self.groups = 0
        self.sources: set[str] = set()
        self._beside: dict[int, Array] = {}
        """For each rank the share of its time in which the data of each collective, or of merged
        ones, moves beside computation."""

    def merge(self, parts: RankParts, places: Array) -> None:
        """Merge collectives into the last of them."""
        view, rows, graph = parts.view, parts.rows[places], self.run.graph
        sure_ns, most_ns = self._latency_ns(parts, places)
        moved_ns = parts.transfer_ns[places]
        # In the trace that is written the last collective has the elements of all.
        args = {}
        for key in _ELEMENTS:
            elements, known = view.table.int_column(key, rows=rows)
            if known.all():
                args[key] = total(elements)
        # All that waits for one of the others, after the last has begun, waits for the last.
        begun, end = view.begin_of[rows[-1]], view.end_of[rows[-1]]
        edges = view.edges_from(view.end_of[rows[:-1]], "stream_wait", "host_wait", "tensor")
        targets = distinct(view.destination_of(edges))
        later = graph.time_ns[targets] >= graph.time_ns[begun]
        targets = targets[later & (targets != begun)]
        for change, latency_ns in ((self.best, most_ns), (self.cautious, sure_ns)):
            parts.remove(change, places[:-1], operators=change is self.best)
            to_ns = np.full(len(parts.rows), np.nan)
            saved_ns = latency_ns * (len(places) - 1)
            to_ns[places[-1]] = max(float(moved_ns.sum()) - saved_ns, float(moved_ns.max()))
            parts.set_transfer(change, to_ns)
            change.add(np.full(len(targets), end), targets, 0)
            view.replace(change, rows[-1:], view.table.name_of(int(rows[-1])), args=args)
        if view.index not in self._beside:
            self._beside[view.index] = share_beside_computation(self.run, parts)
        share = self._beside[view.index]
        share[places[-1]] = (share[places] * moved_ns).sum() / max(moved_ns.sum(), 1)
        self.collectives += len(places)
        self.groups += 1

    def split(self, parts: RankParts, place: int, size: float) -> int:
        """Split a collective, and return the number of pieces. The last is ready when the whole
        was; at best hardly anything is left for it."""
        view = parts.view
        row = int(parts.rows[place])
        pieces = int(np.ceil(parts.size[place] / size))
        if parts.gradients[place] > 0:
            pieces = min(pieces, int(parts.gradients[place]))
        rows = view.gpu_class(GpuClass.COMPUTE)
        phase, step = view.phase_of(rows), view.step_of(rows)
        before = rows[(phase == Phase.BACKWARD) & (step == parts.step[place])]
        before = before[
            view.table.ts_ns[before] + view.table.dur_ns[before] <= view.table.ts_ns[row]
        ]
        if pieces < 2 or len(before) < pieces:
            return 0
        latency_ns, _ = self._latency_ns(parts, np.array([place]))
        moves_ns = max(float(parts.transfer_ns[place]) - latency_ns, 0.0)
        piece_ns = moves_ns / (pieces - 1) + latency_ns
        to_ns = np.full(len(parts.rows), np.nan)
        to_ns[place] = latency_ns
        done = before[np.arange(1, pieces) * len(before) // pieces - 1]
        behind = np.arange(pieces - 1, 0, -1) * piece_ns
        begin = np.full(pieces - 1, view.begin_of[row])
        self.best.add(view.end_of[done], begin, behind)
        parts.set_transfer(self.best, to_ns)
        return pieces

    def _latency_ns(self, parts: RankParts, places: Array) -> tuple[float, float]:
        """Return the least and most latency of a collective: of the shortest one of its group the
        share that tables give for its size, in their bounds; without tables all of it where it has
        hardly any data, else 20 us at most, of which a part is sure."""
        view = parts.view
        same = (parts.group == parts.group[places[0]]) & (parts.kind == parts.kind[places[0]])
        at = np.flatnonzero(same)[int(parts.transfer_ns[same].argmin())]
        shortest, size = float(parts.transfer_ns[at]), float(parts.size[at])
        kind, ranks = str(parts.kind[places[0]]), int(parts.group_size[places[0]])
        table = [collective_ns(kind, each, ranks, view.device) for each in (8.0, size)]
        if table[0] is None:
            self.sources.add("latency: the group's shortest collective")
            alone = shortest if 0 <= size <= NO_DATA_BYTES else min(shortest, SMALL_NS)
            return SURE_SHARE * alone, alone
        self.sources.add(table[0].source)
        bounds = table[0].low_ns, table[0].high_ns
        if table[1] is None or not 0 <= size < SMALL_BYTES:
            low, high = (min(ns, shortest) for ns in bounds)
        else:
            low, high = (shortest * min(1.0, ns / table[1].ns) for ns in bounds)
        return low, high

    def result(self, title: str, pieces: int = 0) -> EditedGraph:
        """Return the edit with its contention and its note."""
        contend(self.run, self.best, best=True, shares=self._beside)
        contend(self.run, self.cautious, best=False, shares=self._beside)
        words = []
        if self.collectives:
            words.append(f"{self.collectives} collectives become {self.groups}")
        if pieces:
            words.append(f"larger ones become {pieces} pieces at best, which overlap computation")
        note = f"{title}: {', '.join(words)}"
        source = "; ".join(sorted(self.sources))
        return EditedGraph(self.best, self.cautious, of_collectives=True, source=source, note=note)
