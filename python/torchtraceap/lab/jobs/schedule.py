"""Dependencies between the operators of a pipeline- and data-parallel training job.

Note [Rules]: what follows is the dependency model of Lin et al. (OSDI 2025), section 3, for
Megatron's schedules with and without interleaving. In each step, on each worker:

* Compute operators run one after the other; so do the exchanges of each of the four kinds (forward
  or backward, send or receive), and the collectives of the data-parallel stream.
* A send follows the compute operator whose result it carries. A receive precedes the compute
  operator that needs it, and is posted once the one before of its direction has ended; the first
  exchanges of the backward pass are posted before the last forward of the warm-up begins.
* Parameters of a model chunk are gathered before its first forward. After the last compute come, in
  this order: layer-norm gradients, embedding gradients, reduce-scatter of the gradients, clipping,
  the optimizer. Where the job overlaps the reduce-scatter (it then has separate all-reduces of
  gradients), that follows the last backward of its chunk instead.

Between workers, an exchange has its transfer once all of its members have begun: the k-th send of a
stage with the k-th receive of the next, collectives of replicas by type and order, the embedding
gradients of the first stage with those of the last, clipping over all workers.

Note [One schedule for many]: steps and replicas of a job run the same program. Instances (a step of
one replica) with the same operators in the same order share one template, in which what times must
decide is decided by the majority of the instances; its edges are copied to all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from torchtraceap import _core
from torchtraceap.core import Array
from torchtraceap.errors import ParseError, SchemaError
from torchtraceap.lab.jobs.op_trace import OperatorTrace

__all__ = ["COMMUNICATION", "EXCHANGES", "POINT_TO_POINT", "Schedule", "build_schedule"]

Pair = tuple[int, int]

FORWARD, BACKWARD = "forward-compute", "backward-compute"
POINT_TO_POINT = ("forward-send", "forward-recv", "backward-send", "backward-recv")
PARAMETERS, GRADIENTS = "params-all-gather", "grads-reduce-scatter"
SEPARATE, LAYER_NORM = "separate-grads-all-reduce", "layernorm-grads-all-reduce"
EMBEDDING, CLIPPING = "embedding-grads-all-reduce", "optimizer-clip-main-grad"
COLLECTION, OPTIMIZER = "gc", "optimizer"

EXCHANGES = frozenset([*POINT_TO_POINT, PARAMETERS, GRADIENTS, SEPARATE, EMBEDDING, CLIPPING])
"""Types whose members wait for each other; only the transfer time counts for them."""
COMMUNICATION = EXCHANGES | {LAYER_NORM}
"""Types that communicate; layer-norm gradients stay within a worker in these traces."""
KNOWN = COMMUNICATION | {FORWARD, BACKWARD, COLLECTION, OPTIMIZER}

CLOCK_NS = 50_000
"""The difference between the clocks of two workers below which two times count as the same."""
CONTRADICTION_NS = 10_000_000
"""An operator that begins this long before one that it needs has ended contradicts the
dependency."""


class _Lane:
    """The operators of one worker in a step: columns of the template by type, in order of start."""

    def __init__(self, columns: Array, types: Sequence[str]) -> None:
        self.columns = columns
        self.compute: list[int] = []
        self.of: dict[str, list[int]] = {}
        for column, name in zip(columns.tolist(), types, strict=True):
            self.of.setdefault(name, []).append(column)
            if name in (FORWARD, BACKWARD):
                self.compute.append(column)

    def get(self, name: str) -> list[int]:
        return self.of.get(name, [])


class _Template:
    """The dependencies and pairs of exchanges that instances with the same operators share.

    Args:
        start_ns: int64 `[instances, columns]`.
        end_ns: The same.
        stage: `[columns]`; compute operators first within a stage, in order of start.
        types: The type of each column.
        chunk: `[columns]`.
        place: `[columns]`: model chunk within the model, -1 unknown.
        stages: Number of pipeline stages of the job.
        places: Number of model chunks of the model.
        overlapped: The reduce-scatter of gradients runs beside the backward pass.
    """

    def __init__(
        self,
        start_ns: Array,
        end_ns: Array,
        stage: Array,
        types: Sequence[str],
        chunk: Array,
        place: Array,
        *,
        stages: int,
        places: int,
        overlapped: bool,
    ) -> None:
        self.start_ns, self.end_ns = start_ns, end_ns
        self.chunk, self.place, self.places = chunk, place, places
        self.edges: list[Pair] = []
        self.pairs: list[Pair] = []
        self.unpaired = 0
        self._real: dict[tuple[str, int], list[int]] = {}
        """Exchanges of a type on a stage that have a peer."""
        lanes: dict[int, _Lane] = {}
        for number in np.unique(stage).tolist():
            columns = np.flatnonzero(stage == number)
            lanes[number] = _Lane(columns, [types[c] for c in columns.tolist()])
        for number, lane in lanes.items():
            for stream in (lane.compute, *map(lane.get, POINT_TO_POINT)):
                self.edges += pairwise(stream)
            self.edges += pairwise([*lane.get(PARAMETERS), *lane.get(GRADIENTS)])
            for direction in ("forward", "backward"):
                for side in ("send", "recv"):
                    self._add_exchanges(number, lane, direction, side)
            self._add_order_of_step(lane, overlapped=overlapped)
            self._add_unknown(lane)
        for direction, towards in (("forward", 1), ("backward", -1)):
            for number in lanes:
                sends = self._real[(f"{direction}-send", number)]
                peer = (number + towards) % stages
                receives = self._real.get((f"{direction}-recv", peer), [])
                self.pairs += zip(sends, receives, strict=False)
                self.unpaired += abs(len(sends) - len(receives))

    def _add_exchanges(self, stage: int, lane: _Lane, direction: str, side: str) -> None:
        """Add the order of the exchanges of one kind and the compute operators of a direction."""
        name, compute = f"{direction}-{side}", lane.get(f"{direction}-compute")
        exchanges: list[int] = []
        for exchange in lane.get(name) if compute else []:
            # Profilers record exchanges at both ends of a step in which nothing is exchanged: in
            # most instances they lie before the first result or after the last need.
            if side == "recv":
                idle = self.start_ns[:, exchange] > self.start_ns[:, compute[-1]] + CLOCK_NS
            else:
                idle = self.end_ns[:, exchange] < self.end_ns[:, compute[0]] - CLOCK_NS
            if 2 * idle.sum() <= len(idle):
                exchanges.append(exchange)
        towards_output = (direction == "forward") == (side == "send")
        peers = self.place[compute] + (1 if towards_output else -1)
        has_peer = ((peers >= 0) & (peers < self.places)).tolist()
        real = self._real.setdefault((name, stage), [])
        for exchange, index in _assign(exchanges, has_peer, from_end=side == "recv"):
            if side == "send":
                self.edges.append((compute[index], exchange))
            else:
                self.edges.append((exchange, compute[index]))
                if index:
                    self.edges.append((compute[index - 1], exchange))
            if has_peer[index]:
                real.append(exchange)

    def _add_order_of_step(self, lane: _Lane, *, overlapped: bool) -> None:
        """Add the order of the first backward, of collectives and of the end of the step."""
        forward, backward = lane.get(FORWARD), lane.get(BACKWARD)
        place = lane.compute.index(backward[0]) if backward else 0
        before = lane.compute[max(place - 2, 0) : place]
        if len(before) == 2 and set(before) <= set(forward):
            for name in ("backward-recv", "backward-send"):
                self.edges += [(before[0], exchange) for exchange in lane.get(name)[:1]]
        # The last gather of a chunk comes before the chunk's first forward.
        for chunk, gather in {int(self.chunk[c]): c for c in lane.get(PARAMETERS)}.items():
            needs = [c for c in forward if chunk in (-1, self.chunk[c])]
            self.edges += [(gather, first) for first in needs[:1]]
        gradients = lane.get(GRADIENTS)
        last = [*lane.compute[-1:], *lane.get(COLLECTION)]
        tail = [*lane.get(LAYER_NORM), *lane.get(EMBEDDING)]
        tail += lane.get(SEPARATE) if overlapped else gradients
        tail += [*lane.get(CLIPPING), *lane.get(OPTIMIZER)]
        self.edges += pairwise(last)
        if overlapped:
            # The first reduce-scatter of a chunk follows the chunk's last backward.
            for chunk, scatter in {int(self.chunk[c]): c for c in gradients[::-1]}.items():
                makes = [c for c in backward if chunk in (-1, self.chunk[c])]
                self.edges += [(made, scatter) for made in makes[-1:]]
        self.edges += pairwise([*last[-1:], *tail])
        if overlapped:
            self.edges += [(c, tail[0]) for c in gradients[-1:] if tail]

    def _add_unknown(self, lane: _Lane) -> None:
        """Place other types between what ended before them and what began after, in most
        instances."""
        start_ns = np.median(self.start_ns[:, lane.columns], axis=0)
        end_ns = np.median(self.end_ns[:, lane.columns], axis=0)
        for name in lane.of.keys() - KNOWN:
            self.edges += pairwise(lane.of[name])
            for column in lane.of[name]:
                at = int(np.flatnonzero(lane.columns == column)[0])
                known = np.isin(lane.columns, lane.of[name], invert=True)
                before = np.flatnonzero(known & (end_ns <= start_ns[at]))
                after = np.flatnonzero(known & (start_ns >= end_ns[at]) & (end_ns > start_ns[at]))
                if len(before):
                    self.edges.append((int(lane.columns[before[end_ns[before].argmax()]]), column))
                if len(after):
                    self.edges.append((column, int(lane.columns[after[start_ns[after].argmin()]])))


def _assign(
    exchanges: Sequence[int], has_peer: Sequence[bool], *, from_end: bool
) -> Iterator[tuple[int, int]]:
    """Assign a compute operator to each exchange.

    Operators at the model's input or output need no exchange, yet some recordings have one for
    them. So exchanges that are too few for all operators leave out some of those: the first for
    receives, the last for sends.
    """
    chosen = list(range(len(has_peer)))
    surplus = len(chosen) - len(exchanges)
    spare = [index for index in chosen if not has_peer[index]]
    dropped = set(spare[:surplus] if from_end else spare[::-1][: max(surplus, 0)])
    if surplus > 0:
        chosen = [index for index in chosen if index not in dropped]
    return zip(exchanges, chosen, strict=False)


# ------------------------------------------------------------------------------ the whole job


class OperatorTimes(NamedTuple):
    """Times at which operators run in a replay, int64 `[operators]` in ns."""

    begin_ns: Array
    end_ns: Array


class Schedule:
    """A job as a graph that can be replayed with other durations. Built by `build_schedule`.

    Steps stand for themselves: each begins when it was recorded to begin.
    """

    def __init__(
        self, trace: OperatorTrace, edges: Array, meeting: Array, notes: Sequence[str]
    ) -> None:
        self.trace = trace
        self.notes = list(notes)
        self.sources, self.targets = edges
        """int64 `[dependencies]`: operators."""
        self.meeting = meeting
        """int64 `[operators]`: the exchange that each is part of, -1 for none."""
        self.exchanging: Array = meeting >= 0
        """bool `[operators]`."""
        self._first = np.flatnonzero(np.diff(trace.step, prepend=trace.step[0] - 1))
        self.steps: Array = trace.step[self._first]
        """int64 `[steps]`: their numbers."""
        self.step_index = np.repeat(
            np.arange(len(self.steps)), np.diff(np.append(self._first, len(trace)))
        )
        """int64 `[operators]`."""
        self.step_start_ns: Array = np.minimum.reduceat(trace.start_ns, self._first)
        members = np.flatnonzero(self.exchanging)
        latest = np.full(int(meeting.max(initial=-1)) + 1, np.iinfo(np.int64).min)
        np.maximum.at(latest, meeting[members], trace.start_ns[members])
        self.work_ns = trace.duration_ns.copy()
        """int64 `[operators]`: duration of a compute operator, transfer of an exchange."""
        self.work_ns[members] = self._without_contradictions(
            trace.end_ns[members] - latest[meeting[members]],
            "exchanges that ended before all of their members had begun",
        )
        ready = self.step_start_ns[self.step_index]
        np.maximum.at(ready, self.targets, trace.end_ns[self.sources])
        self.delay_ns = self._without_contradictions(
            trace.start_ns - ready, "operators that began before what they need had ended"
        )
        """int64 `[operators]`: from when all that it needs was done until it began."""
        self._build_graph()

    def _without_contradictions(self, spans_ns: Array, what: str) -> Array:
        """Replace spans that no clock error explains by zero, with a note."""
        wrong = spans_ns <= -CONTRADICTION_NS
        if wrong.any():
            limit_ms = CONTRADICTION_NS // 1_000_000
            self.notes.append(f"{int(wrong.sum()):,} {what}, by {limit_ms} ms or more; taken as 0.")
        return np.where(wrong, 0, spans_ns)

    def _build_graph(self) -> None:
        """Build the graph whose nodes are operators, then meetings, then the beginnings of
        steps."""
        operators, meetings = len(self.trace), int(self.meeting.max(initial=-1)) + 1
        members = np.flatnonzero(self.exchanging)
        meets = operators + self.meeting[members]
        has_source = np.zeros(operators, dtype=bool)
        has_source[self.targets] = True
        roots = np.flatnonzero(~has_source)
        steps = operators + meetings + self.step_index[roots]
        sources = [2 * self.sources + 1, 2 * steps + 1, 2 * members, 2 * meets + 1]
        targets = [2 * self.targets, 2 * roots, 2 * meets, 2 * members + 1]
        after = np.cumsum([len(part) for part in sources])
        source, target = np.concatenate(sources), np.concatenate(targets)
        nodes = operators + meetings + len(self.steps)
        duration = np.zeros(nodes, dtype=np.int64)
        duration[:operators] = np.where(self.exchanging, 0, self.work_ns)
        lag = np.zeros(len(source), dtype=np.int64)
        lag[after[2] :] = self.work_ns[members]
        start = np.zeros(nodes, dtype=np.int64)
        start[operators + meetings :] = self.step_start_ns
        try:
            self.graph = _core.plain_graph(
                duration, source.astype(np.uint32), target.astype(np.uint32), lag, start_ns=start
            )
        except SchemaError as error:
            raise ParseError(f"the order of the operators contradicts itself: {error}") from None
        # The numbers of the nodes' own edges, then of the given ones, in the graph.
        own = 2 * np.arange(nodes, dtype=np.int64) + 1
        order = np.argsort(np.concatenate([own, target]), kind="stable")
        edge = np.empty(len(order), dtype=np.uint32)
        edge[order] = np.arange(len(order), dtype=np.uint32)
        self._work_edge = edge[:operators].copy()
        self._work_edge[members] = edge[nodes + after[2] :]
        self._delay_edge = edge[nodes : nodes + after[1]]
        self._delayed = np.concatenate([self.targets, roots])

    @cached_property
    def measured_step_ns(self) -> Array:
        """Recorded step times, int64 `[steps]` in ns."""
        return self.step_ns(OperatorTimes(self.trace.start_ns, self.trace.end_ns))

    def replay(
        self, work_ns: Array | None = None, *, delayed: Array | bool = False
    ) -> OperatorTimes:
        """Replay all steps.

        Args:
            work_ns: int64 `[operators]`: other durations and transfers; None: as recorded.
            delayed: Operators that begin as late after their dependencies as recorded: all, none
                or a mask. With all, a replay gives the recorded times.
        """
        delta = _core.GraphDelta()
        if work_ns is not None:
            changed = np.flatnonzero(work_ns != self.work_ns)
            delta.set_lags(self._work_edge[changed], work_ns[changed])
        if np.any(delayed):
            delay_ns = np.where(delayed, self.delay_ns, 0)[self._delayed]
            changed = np.flatnonzero(delay_ns)
            delta.set_lags(self._delay_edge[changed], delay_ns[changed])
        times = _core.replay(self.graph, delta)[: 2 * len(self.trace)]
        return OperatorTimes(times[::2], times[1::2])

    def step_ns(self, times: OperatorTimes) -> Array:
        """Return the time from the recorded start of each step to its last end, int64 `[steps]` in
        ns."""
        ends: Array = np.maximum.reduceat(times.end_ns, self._first)
        return ends - self.step_start_ns


def build_schedule(trace: OperatorTrace) -> Schedule:
    """Build the dependencies between all operators of all steps. See Note [Rules].

    Raises:
        ParseError: The operators' order contradicts itself.
    """
    texts = trace.op_type.texts
    op_type = trace.op_type.codes.astype(np.int64)
    is_compute = np.isin(op_type, [texts.index(t) for t in (FORWARD, BACKWARD) if t in texts])
    # Rows by (step, replica, stage): compute operators in order, then others by type.
    key = np.where(is_compute, -1, op_type)
    rows = np.lexsort((trace.start_ns, key, trace.stage, trace.dp_rank, trace.step))
    # The model chunk within the model; if it is not recorded, as Megatron numbers chunks.
    derived = np.maximum(trace.chunk, 0) * trace.stages + trace.stage
    place = np.where(trace.place >= 0, trace.place, np.where(is_compute, derived, -1))
    # The first operator of the pair to which each belongs.
    number = np.arange(len(trace), dtype=np.int64)
    edges, unpaired = [np.zeros((2, 0), dtype=np.int64)], 0
    for instances in _instances(trace, op_type, rows):
        first = instances[0]
        template = _Template(
            trace.start_ns[instances],
            trace.end_ns[instances],
            trace.stage[first],
            [texts[code] for code in op_type[first].tolist()],
            trace.chunk[first],
            place[first],
            stages=trace.stages,
            places=int(place.max()) + 1,
            overlapped=SEPARATE in texts,
        )
        unpaired += template.unpaired * len(instances)
        if template.pairs:
            sends, receives = np.array(template.pairs).T
            # A pair has the number of its send.
            number[instances[:, receives].ravel()] = instances[:, sends].ravel()
        if template.edges:
            before, after = np.array(template.edges).T
            edges.append(np.stack([instances[:, before].ravel(), instances[:, after].ravel()]))
    meeting = _meetings(trace, op_type, rows, key, number)
    notes = []
    if unpaired:
        notes.append(f"{unpaired:,} sends or receives have no peer and wait for nobody.")
    unknown = sorted({texts[code] for code in np.unique(op_type).tolist()} - KNOWN)
    if unknown:
        notes.append(
            f"Types that this model does not know were placed by their times: {', '.join(unknown)}."
        )
    return Schedule(trace, np.concatenate(edges, axis=1), meeting, notes)


def _meetings(
    trace: OperatorTrace, op_type: Array, rows: Array, key: Array, number: Array
) -> Array:
    """Return the exchange to which each operator belongs, or -1; int64 `[operators]`.

    Args:
        trace: The operators.
        op_type: The code of the type of each, int64 `[operators]`.
        rows: Operators by (step, replica, stage) and `key`, in order of start.
        key: The type of each; -1 for compute operators, which are counted together.
        number: The send of the pair to which each belongs, or the operator itself; changed here for
            collectives, which meet by type and order.
    """
    texts = trace.op_type.texts
    worker = (trace.step[rows], trace.dp_rank[rows], trace.stage[rows], key[rows])
    begins = np.flatnonzero(_is_new(worker))
    order = np.empty(len(rows), dtype=np.int64)
    order[rows] = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
    for name in EXCHANGES - set(POINT_TO_POINT):
        if name not in texts:
            continue
        members = np.flatnonzero(op_type == texts.index(name))
        keys = [order[members], trace.step[members]]
        if name == EMBEDDING:
            keys.append(trace.dp_rank[members])
        elif name != CLIPPING:
            keys.append(trace.stage[members])
        by_key = np.lexsort(keys)
        new = _is_new([each[by_key] for each in keys])
        number[members[by_key]] = members[by_key[np.flatnonzero(new)[np.cumsum(new) - 1]]]
    exchanging = np.isin(op_type, [i for i, t in enumerate(texts) if t in EXCHANGES])
    meeting = np.full(len(trace), -1, dtype=np.int64)
    meeting[exchanging] = np.unique(number[exchanging], return_inverse=True)[1]
    return meeting


def _instances(trace: OperatorTrace, op_type: Array, rows: Array) -> list[Array]:
    """Return the rows of instances with the same operators, `[instances, columns]`; see Note [One
    schedule for many]."""
    code = trace.stage * len(trace.op_type.texts) + op_type
    ordered = (code * (int(trace.chunk.max()) + 2) + trace.chunk + 1)[rows]
    new = np.diff(trace.step[rows], prepend=-1) | np.diff(trace.dp_rank[rows], prepend=-1)
    bounds = np.append(np.flatnonzero(new), len(rows))
    same: dict[bytes, list[int]] = {}
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        same.setdefault(ordered[begin:end].tobytes(), []).append(begin)
    return [
        rows[np.array(begins)[:, None] + np.arange(len(signature) // ordered.itemsize)]
        for signature, begins in same.items()
    ]


def _is_new(columns: Sequence[Array]) -> Array:
    """Return the rows that differ from the one before in any column, bool `[rows]`."""
    new = np.zeros(len(columns[0]), dtype=bool)
    for column in columns:
        new |= np.diff(column, prepend=column[0] - 1) != 0
    return new
