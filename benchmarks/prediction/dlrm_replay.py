"""Steps of all ranks from their execution traces: host times by class, GPU times by durations,
dependencies by tensors, replayed together.

An execution trace has tensors, so what waits for a collective is known: who reads what it wrote.
What it does not have is streams; side streams of the program are taken for the compute stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from lin2024.execution import (
    CallTree,
    collective_of,
    copy_direction,
    gpu_time,
    on_gpu,
    transfers_of_ranks,
)

from torchtraceap import _core
from torchtraceap.lab.prediction.capture.calls import Phase
from torchtraceap.lab.prediction.lowering.host import HostModel
from torchtraceap.lab.prediction.lowering.recorded_host import CallContext, call_name, crossing
from torchtraceap.lab.prediction.lowering.step import HostTime
from torchtraceap.ops.devices import Device
from torchtraceap.simulation.graph_builder import STREAM, THREAD, GraphBuilder
from torchtraceap.trace.execution.reader import Node, NodeFile

LAUNCH_TO_START_NS = 3_000
BETWEEN_WORK_NS = 1_000
RETURN_NS = 5_000
"""As the package lays out: docs/simulation_edits.md."""


@dataclass(frozen=True)
class HostCall:
    """A call of the host with the GPU work that it launches."""

    situation: CallContext
    pieces: tuple[tuple[float, Node], ...]
    """ns and node of each; a collective has NaN, the replay knows its time."""
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class RankTimes:
    """A replayed step of one rank, ns."""

    step_ns: float
    low_ns: float
    """90 % of hosts are between: the step is the host's, and so is its interval."""
    high_ns: float
    gpu_compute_ns: float
    """While anything but a collective runs."""


def host_calls(tree: CallTree, device: Device, launches: Mapping[str, int]) -> list[HostCall]:
    """Calls as a capture would have them, in the order of their begin."""
    found: list[tuple[Node, str, list[Node], str]] = []
    for top in tree.roots:
        _walk(tree, top, launches, found, ("", Phase.FORWARD))
    found.sort(key=lambda each: each[0].node)
    calls, last, last_grad, last_phase = [], "", "", Phase.FORWARD
    for _, name, inside, (grad, phase) in found:
        between = crossing(
            phase, None, None, is_same_node=grad == last_grad, is_same_phase=phase is last_phase
        )
        pieces: list[tuple[float, Node]] = []
        for each in inside:
            count = launches.get(each.name, 0)
            if collective_of(each) is not None:
                pieces.append((float("nan"), each))
            elif count and on_gpu(each):
                pieces += [(gpu_time(each, count, device) / count, each)] * count
        calls.append(
            HostCall(CallContext(name, last, phase, between), tuple(pieces), tuple(inside))
        )
        last, last_grad, last_phase = name, grad, phase
    return calls


def _walk(
    tree: CallTree, node: Node, launches: Mapping[str, int], found: list, around: tuple
) -> None:
    grad, phase = around
    if node.name.startswith("Optimizer.step#"):
        phase = Phase.OPTIMIZER
    elif node.name.startswith("autograd::engine"):
        grad, phase = str(node.node), Phase.BACKWARD
    name = call_name(node.name)
    if name is not None:
        found.append((node, name, list(tree.below(node)), (grad, phase)))
        return
    if launches.get(node.name):  # launches itself, and is no operator: an autograd node in C++
        found.append((node, node.name, [node], (grad, phase)))
    for child in tree.children(node):
        _walk(tree, child, launches, found, (grad, phase))


def replay(
    files: Sequence[NodeFile],
    device: Device,
    launches: Mapping[str, int],
    host: HostModel,
    begins_ns: Sequence[float],
) -> list[RankTimes]:
    """Steps of all ranks together, each from its own begin."""
    trees = [CallTree(file) for file in files]
    transfers = transfers_of_ranks(trees, device)
    ranks = [host_calls(tree, device, launches) for tree in trees]
    builder = GraphBuilder()
    runs = [
        _RankRun(builder, rank, calls, host, round(begin))
        for rank, (calls, begin) in enumerate(zip(ranks, begins_ns, strict=True))
    ]
    for transfer in transfers:
        for run in runs:
            run.to_next_collective()
        lanes = [run.communication for run in runs]
        work = builder.add_collective(lanes, round(transfer), gaps_ns=BETWEEN_WORK_NS)
        for run, begin, end in zip(runs, work.begin, work.end, strict=True):
            run.begin_collective(int(begin), int(end))
    for run in runs:
        run.to_next_collective()
    built = builder.build()
    times = _core.replay(built.graph)
    return [run.times(times, built) for run in runs]


class _RankRun:
    """Adds one rank to the graph, up to one collective after the other."""

    def __init__(
        self,
        builder: GraphBuilder,
        rank: int,
        calls: Sequence[HostCall],
        host: HostModel,
        begin_ns: int,
    ) -> None:
        self.builder = builder
        self.host = builder.add_lane(THREAD, rank=rank)
        self.compute = builder.add_lane(STREAM, rank=rank, index=0)
        self.communication = builder.add_lane(STREAM, rank=rank, index=1)
        counts = [len(call.pieces) for call in calls]
        times = host.times_of([call.situation for call in calls], counts)
        self._interval = times.range
        self._todo = self._pieces(calls, times.calls)
        self._first = int(builder.add_work(self.host, [0], start_ns=begin_ns).begin[0])
        self._last_host = self._last_compute = -1
        self._waits: list[int] = []
        """Ends of collectives for which the next work on the compute stream waits."""
        self._pending: dict[int, int] = {}
        """End of the collective that writes a storage, while nothing has waited for it."""
        self._work: list[tuple[int, int]] = []
        self._at: tuple[Node, int] | None = None

    def _pieces(self, calls: Sequence[HostCall], times: Sequence[HostTime]):
        for call, time in zip(calls, times, strict=True):
            self._spend(time.before + (0.0 if call.pieces else time.to_launch))
            for node in call.nodes:
                self._note_reads(node)
            for number, (ns, node) in enumerate(call.pieces):
                self._spend((time.between if number else time.to_launch) + time.launches[number])
                yield ns, node
            self._spend(time.after)

    def _spend(self, ns: float) -> None:
        work = self.builder.add_work(self.host, [round(ns)])
        self._last_host = int(work.end[0])

    def _note_reads(self, node: Node) -> None:
        if collective_of(node) is not None:
            return
        for each in (*node.inputs, *node.outputs):
            end = self._pending.pop(each.storage, None)
            if end is not None and end not in self._waits:
                self._waits.append(end)

    def to_next_collective(self) -> None:
        """Adds what comes before the next collective, or all that is left."""
        for ns, node in self._todo:
            if collective_of(node) is not None:
                self._at = node, self._last_host
                return
            self._add_kernel(ns, node)
        self._at = None

    def _add_kernel(self, ns: float, node: Node) -> None:
        work = self.builder.add_work(self.compute, [round(ns)], gaps_ns=BETWEEN_WORK_NS)
        begin, end = int(work.begin[0]), int(work.end[0])
        self.builder.add_edges([self._last_host], [begin], LAUNCH_TO_START_NS, kind="launch")
        for waited in self._waits:
            self.builder.add_edges([waited], [begin], 0, kind="stream_wait")
        self._waits.clear()
        self._last_compute = end
        self._work.append((begin, end))
        if copy_direction(node) == "DtoH":
            back = self.builder.add_work(self.host, [0])
            self.builder.add_edges([end], back.begin, RETURN_NS, kind="host_wait")
            self._last_host = int(back.end[0])

    def begin_collective(self, begin: int, end: int) -> None:
        if self._at is None:
            raise ValueError("ranks differ in their collectives")
        node, launched = self._at
        self.builder.add_edges([launched], [begin], LAUNCH_TO_START_NS, kind="launch")
        if self._last_compute >= 0:
            self.builder.add_edges([self._last_compute], [begin], 0, kind="stream_wait")
        for each in node.outputs:
            self._pending[each.storage] = end

    def times(self, times: np.ndarray, built) -> RankTimes:
        points = built.points(np.array([self._first, self._last_host]))
        first, last = times[points].tolist()
        work = times[built.points(np.array(self._work))]
        step, (low, high) = float(last - first), self._interval
        compute = float((work[:, 1] - work[:, 0]).sum())
        return RankTimes(step, low * step, high * step, compute)
