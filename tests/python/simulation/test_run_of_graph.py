"""Runs that no trace stands behind: iterations, edits, and the trace that such a run would be."""

from __future__ import annotations

import numpy as np
import pytest

from torchtraceap import _core
from torchtraceap.errors import SchemaError
from torchtraceap.simulation.edits.base import Change, EditedGraph, default_edits
from torchtraceap.simulation.graph_builder import STREAM, GraphBuilder, Work
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.simulate import Simulation
from torchtraceap.trace.event_columns import event_table
from torchtraceap.trace.ranks import Ranks, RankTrace

STEPS, HOST_NS, GPU_NS, DELAY_NS = 4, 1_000_000, 3_000_000, 5_000


class Machine:
    """Ranks whose host launches one kernel a step, which takes longer than the host's step."""

    def __init__(self, gpu_ns: tuple[int, ...]) -> None:
        builder = GraphBuilder()
        self.hosts: list[Work] = []
        self.kernels: list[Work] = []
        for rank, length_ns in enumerate(gpu_ns):
            host, stream = builder.add_lane(rank=rank), builder.add_lane(STREAM, rank=rank)
            names = np.zeros(STEPS)
            calls = builder.add_work(host, np.full(STEPS, HOST_NS), names=names)
            work = builder.add_work(stream, np.full(STEPS, length_ns), names=names + 1)
            builder.add_edges(calls.end, work.begin, DELAY_NS, kind="launch")
            self.hosts.append(calls)
            self.kernels.append(work)
        self.built = builder.build()
        self.points = self.built.points

    def run(self) -> SimulatedRun:
        steps = [
            (rank, f"step {number}", begin, end)
            for rank, host in enumerate(self.hosts)
            for number, (begin, end) in enumerate(
                zip(self.points(host.begin).tolist(), self.points(host.end).tolist(), strict=True)
            )
        ]
        return SimulatedRun.of_graph(self.built.graph, steps)

    def trace(self) -> Ranks:
        """What a profiler would write of it."""
        return Ranks(self._rank(rank) for rank in range(len(self.hosts)))

    def _rank(self, rank: int) -> RankTrace:
        times, parts = self.built.graph.time_ns, (self.hosts[rank], self.kernels[rank])
        begin = np.concatenate([times[self.points(work.begin)] for work in parts])
        end = np.concatenate([times[self.points(work.end)] for work in parts])
        host = (begin[:STEPS], end[:STEPS])
        ids = [*range(1, STEPS + 1)]
        none = [None] * STEPS
        table = event_table(
            [f"ProfilerStep#{i}" for i in ids] + ["cudaLaunchKernel"] * STEPS + ["gemm"] * STEPS,
            np.concatenate([host[0], host[1] - 1_000, begin[STEPS:]]),
            np.concatenate([host[1] - host[0], np.full(STEPS, 1_000), (end - begin)[STEPS:]]),
            category=["user_annotation"] * STEPS + ["cuda_runtime"] * STEPS + ["kernel"] * STEPS,
            pid=[1] * 2 * STEPS + [0] * STEPS,
            tid=[1] * 2 * STEPS + [7] * STEPS,
            args={
                "correlation": [*none, *ids, *ids],
                "stream": [*none, *none, *[7] * STEPS],
                "device": [*none, *none, *[0] * STEPS],
            },
        )
        return RankTrace(table, rank)


def test_iterations_are_those_of_the_gpu_where_it_is_behind() -> None:
    run = Machine((GPU_NS,)).run()
    first = HOST_NS + DELAY_NS + GPU_NS
    assert run.measured_ns.tolist() == [first, *[GPU_NS] * (STEPS - 1)]
    assert run.per_step
    assert run.steady_ns() == GPU_NS


def test_ranks_have_steps_of_their_own() -> None:
    run = Machine((GPU_NS, 2 * GPU_NS)).run()
    assert [len(steps) for steps in run.steps_by_rank] == [STEPS, STEPS]
    assert run.steady_ns() == 1.5 * GPU_NS


def test_a_run_of_a_graph_is_the_run_of_its_trace() -> None:
    machine = Machine((GPU_NS,))
    ours, recorded = machine.run(), SimulatedRun(machine.trace())
    assert ours.measured_ns.tolist() == recorded.measured_ns.tolist()


class Faster:
    """Kernels take half of their time."""

    name = "faster"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def apply(self, run: SimulatedRun) -> EditedGraph:
        change = Change()
        edges = run.edges_of("execution")
        change.set_lags(edges, run.cost_ns[edges] / 2)
        return EditedGraph(change)


def test_edits_change_what_no_trace_stands_behind() -> None:
    machine = Machine((GPU_NS,))
    run = machine.run()
    simulation = Simulation(run, [Faster(machine), *default_edits()])
    assert simulation.measured_ns == round((HOST_NS + DELAY_NS + STEPS * GPU_NS) / STEPS)
    faster, *others = simulation.edits
    assert faster.predicted_ns is not None, faster.note
    assert faster.predicted_ns == pytest.approx(simulation.measured_ns / 2, rel=0.01)
    assert not any(outcome.applies for outcome in others)


@pytest.mark.parametrize(
    "step", [(1, "a", 0, 1), (-1, "a", 0, 1), (0, "a", 0, 99), (0, "a", -1, 1), (0, "a", 3, 1)]
)
def test_steps_that_the_graph_does_not_have(step: tuple[int, str, int, int]) -> None:
    graph = Machine((GPU_NS,)).built.graph
    with pytest.raises(SchemaError, match="step a"):
        SimulatedRun.of_graph(graph, [step])


def test_a_graph_without_steps_counts_as_a_whole() -> None:
    graph = Machine((GPU_NS,)).built.graph
    run = SimulatedRun.of_graph(graph, [])
    assert not run.per_step
    assert run.steady_ns() == HOST_NS + DELAY_NS + STEPS * GPU_NS


def test_an_empty_graph_has_no_iteration() -> None:
    run = SimulatedRun.of_graph(GraphBuilder().build().graph, [])
    assert run.steady_ns() == 0
    assert len(_core.replay(run.graph)) == 0
