"""Runs as graphs: what steps are, chains of one step, trust, bad input, waits between streams."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wait_programs import Program, make_program

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import SchemaError
from torchtraceap.simulation.edits.view import views
from torchtraceap.simulation.profiler_overhead import ProfilerOverhead, estimate_unprofiled
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.trust import held_out_ns, trust_of
from torchtraceap.tables.steps.iterations import counted_steps, iterations_of, step_time

WriteTrace = Callable[..., Path]
Event = dict[str, Any]


def host(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur} | (
        {"args": args} if args else {}
    )


def launch(
    name: str, call: float, ts: float, dur: float, correlation: int, stream: int = 7
) -> list[Event]:
    args = {"device": 0, "stream": stream, "correlation": correlation}
    kernel = host(name, ts, dur, "kernel", stream) | {"pid": 0, "args": args}
    return [host("cudaLaunchKernel", call, 5, "cuda_runtime", correlation=correlation), kernel]


def step(number: int, ts: float, dur: float) -> Event:
    return host(f"ProfilerStep#{number}", ts, dur, "user_annotation")


def one_step(host_us: float, gpu_us: float) -> list[Event]:
    """A step that launches one kernel and doesn't wait for it."""
    return [step(1, 0, host_us), *launch("gemm", 10, 20, gpu_us, 1)]


def run_of(path: Path) -> SimulatedRun:
    return SimulatedRun(ttap.load(path))


# ------------------------------------------------------------------------------- chains


@pytest.mark.parametrize(("host_us", "gpu_us"), [(100, 30), (100, 400)])
def test_a_single_step_is_as_slow_as_its_slower_side(
    write_trace: WriteTrace, host_us: float, gpu_us: float
) -> None:
    run = run_of(write_trace(one_step(host_us, gpu_us)))
    assert run.steady_ns() == 1000 * max(host_us, gpu_us)


def test_a_chain_shows_what_an_edit_does_to_the_steady_state(write_trace: WriteTrace) -> None:
    run = run_of(write_trace(one_step(100, 400)))
    delta = _core.GraphDelta()
    (view,) = views(run)
    edges = view.duration_edges(view.gpu_rows).astype(np.uint32)
    delta.set_lags(edges, [250_000])
    assert run.steady_ns(delta) == 250_000
    delta.set_lags(edges, [1_000])
    assert run.steady_ns(delta) == 100_000


def test_several_steps_are_taken_as_recorded(write_trace: WriteTrace) -> None:
    events = [event for k in range(5) for event in one_step_at(k)]
    run = run_of(write_trace(events))
    assert [s.name for s in run.chosen_steps] == [f"ProfilerStep#{k}" for k in range(1, 5)]
    assert run.measured_ns.tolist() == run.lengths_ns()[0].tolist() == [200_000] * 5
    assert run.steady_ns() == 200_000


def one_step_at(k: int) -> list[Event]:
    return [step(k, 200 * k, 200), *launch("gemm", 200 * k + 10, 200 * k + 20, 150, k + 1)]


def test_a_thread_that_only_asks_ends_no_iteration(write_trace: WriteTrace) -> None:
    asking = [host("cudaEventQuery", 50.0 * k, 3, "cuda_runtime", tid=99) for k in range(40)]
    run = run_of(write_trace([*one_step(100, 30), *asking]))
    (only,) = run.steps
    assert run.graph.time_ns[only.work].max() == run.measured_ns[0] == 100_000


def ahead(steps: int = 4, host_us: float = 100, gpu_us: float = 400) -> list[Event]:
    """Steps whose host hands the work over and goes on, with the GPU ever further behind."""
    events, done = [], 0.0
    for k in range(steps):
        begin = max(host_us * k + 20, done)
        events += [step(k + 5, host_us * k, host_us)]
        events += launch("gemm", host_us * k + 10, begin, gpu_us, k + 1)
        done = begin + gpu_us
    return events


def test_a_step_takes_what_its_work_takes_not_what_the_host_hands_over(
    write_trace: WriteTrace,
) -> None:
    trace = ttap.load(write_trace(ahead()))
    run = SimulatedRun(trace)
    assert run.measured_ns.tolist() == [420_000, 400_000, 400_000, 400_000]
    assert iterations_of(trace.ranks[0]).length_ns.tolist() == run.measured_ns.tolist()
    assert iterations_of(trace.ranks[0]).host_ns.tolist() == [100_000] * 4
    time = step_time(trace.ranks)
    assert time is not None
    assert (time.measured_ns, time.median_ns, time.host_ns) == (405_000, 400_000, 100_000)


def test_the_first_step_begins_where_earlier_work_ends(write_trace: WriteTrace) -> None:
    before = launch("warm", -50, -40, 70, 99)  # runs until 30 us
    from_before = launch("older", 0, -400, 300, 98)[1]  # its call was not recorded
    run = run_of(write_trace([*one_step(100, 30), *before, from_before]))
    assert run.measured_ns.tolist() == [70_000]


def test_the_first_step_begins_where_work_ends_that_was_not_recorded(
    write_trace: WriteTrace,
) -> None:
    """The host is 2 ms ahead of the GPU when the recording begins: no launch takes that long."""
    events = ahead()
    for event in events:
        if event["cat"] == "kernel":
            event["ts"] += 2_000
    run = run_of(write_trace(events))
    assert run.measured_ns.tolist() == [400_000] * 4
    assert run.measured_ns.tolist() == iterations_of(run.ranks[0]).length_ns.tolist()
    shorter = _core.GraphDelta()
    kernels = run.edges_of("execution")
    shorter.set_lags(kernels, run.cost_ns[kernels] // 2)
    assert run.lengths_ns([shorter]).tolist() == [[200_000] * 4]


def test_a_launch_of_usual_length_holds_nothing_up(write_trace: WriteTrace) -> None:
    events = ahead()
    for event in events:
        if event["cat"] == "kernel":
            event["ts"] += 80
    assert run_of(write_trace(events)).measured_ns.tolist() == [500_000, *[400_000] * 3]


@pytest.mark.parametrize(("size", "first_us"), [(10_000_000, 10_100), (60_000_000, 30_100)])
def test_the_first_step_begins_where_the_gpu_is_free_for_a_copy_that_its_call_awaits(
    write_trace: WriteTrace, size: int, first_us: int
) -> None:
    """20 ms go by in the call before the copy begins. The host may need 4 ms of them for the bytes
    of the small copy, and all of them for those of the large one, which then tells nothing."""
    call, copy = launch("Memcpy HtoD (Pageable -> Device)", 0, 20_000, 10_000, 1)
    call |= {"name": "cudaMemcpyAsync", "dur": 30_010.0}
    copy |= {"cat": "gpu_memcpy", "args": {**copy["args"], "bytes": size}}
    run = run_of(write_trace([step(5, 0, 30_100), call, copy]))
    assert run.measured_ns.tolist() == [first_us * 1_000]


def test_a_copy_whose_call_waits_for_earlier_work_is_held_up(write_trace: WriteTrace) -> None:
    """Its begin stays; in a steady state it takes what the host needs for its bytes."""
    events, at = [], 0.0
    for number, waits_us in enumerate((16_000.0, 0.0, 0.0)):
        call, copy = launch(
            "Memcpy HtoD (Pageable -> Device)", at, at + 4_000 + waits_us, 1_000, number + 1
        )
        call |= {"name": "cudaMemcpyAsync", "dur": 5_010.0 + waits_us}
        copy |= {"cat": "gpu_memcpy", "args": {**copy["args"], "bytes": 10_000_000}}
        events += [step(number, at, 5_050 + waits_us), call, copy]
        at += 5_100 + waits_us
    run = run_of(write_trace(events))
    copies = run.graph.begin_of(0)[run.ranks[0].tree.gpu_rows]
    assert run.graph.held[copies].tolist() == [1, 0, 0]
    assert run.measured_ns.tolist()[0] == 1_050_000
    assert run.replay().tolist() == run.graph.time_ns.tolist()
    assert run.steady_ns() == pytest.approx(5_100_000, rel=0.02)


def test_what_is_launched_in_a_step_ends_it_whatever_order_the_ends_have(
    write_trace: WriteTrace,
) -> None:
    """A long copy on another stream outlasts the next step: that one takes no time of its own."""
    events = [event for k in range(3) for event in one_step_at(k)]
    events += launch("copy", 12, 20, 500, 77, stream=8)
    run = run_of(write_trace(events))
    assert run.measured_ns.tolist() == [520_000, 0, 80_000]


def test_a_step_ends_where_the_call_begins_that_outlasts_it(write_trace: WriteTrace) -> None:
    """As where frames are recorded: the profiler's own `step` ends the mark and goes on."""
    call = host("torch/profiler/profiler.py(800): step", 90, 40, "python_function")
    trace = ttap.load(write_trace([*one_step(100, 30), call]))
    assert iterations_of(trace.ranks[0]).length_ns.tolist() == [90_000]
    assert SimulatedRun(trace).measured_ns.tolist() == [90_000]


def test_header_and_replay_agree_where_events_of_a_stream_overlap(write_trace: WriteTrace) -> None:
    """A graph cuts work that overlaps on a stream; what a step takes is one figure all the same."""
    events = [*one_step(50, 100), *launch("beside", 12, 30, 60, 2), host("aten::item", 60, 1)]
    events += launch("long", 14, 31, 200, 3) + launch("short", 16, 40, 20, 4)
    simulation = ttap.load(write_trace(events)).simulate(["remove_host_sync"])
    time = step_time(simulation.run.trace.ranks)
    assert time is not None and simulation.measured_ns == time.measured_ns == 231_000


def test_inferred_steps_are_steps(write_trace: WriteTrace) -> None:
    events = []
    for k in range(12):
        at = 1000.0 * k
        for number in range(6):
            events.append(host(f"aten::op{number}", at + 50 * number, 45))
            events += launch(
                "gemm", at + 50 * number + 10, at + 50 * number + 30, 20, 6 * k + number + 1
            )
        events.append(host("Optimizer.step#SGD.step", at + 400, 100, "user_annotation"))
    run = run_of(write_trace(events))
    part = run.ranks[0]
    assert part.tree.steps_inferred
    assert len(run.steps) == len(part.tree.steps) > 2
    assert run.per_step
    assert set(run.measured_ns[1:-1].tolist()) == {1_000_000}
    assert not run.steps[-1].counted  # it ends with its last event, not where another begins
    assert run.steady_ns() == 1_000_000
    assert run.measured_ns.tolist() == iterations_of(part).length_ns.tolist()


def test_steps_of_the_warm_up_do_not_count_where_two_remain(write_trace: WriteTrace) -> None:
    def steps(count: int) -> list[Event]:
        events = [*one_step_at(0)]
        events[0]["dur"] = 200.0
        events.append(host("cudaLibraryLoadData", 50, 140, "cuda_runtime"))
        return events + [event for k in range(1, count) for event in one_step_at(k)]

    parts = [ttap.load(write_trace(steps(count), f"{count}.json")).ranks[0] for count in (2, 5)]
    for part in parts:
        behind = [s.start_ns >= part.tree.warm_up.end_ns for s in part.tree.steps]
        expected = behind if sum(behind) >= 2 else [True] * len(behind)
        assert counted_steps(part).tolist() == expected
        assert [s.counted for s in SimulatedRun(ttap.load(part.path)).steps] == expected


# ------------------------------------------------------------------------------- idle threads


def waiting(events: list[Event]) -> list[Event]:
    """Two frames of a thread that waits from before the first event to behind the last, and one of
    a thread that waits for a while."""
    times = [event["ts"] for event in events], [event["ts"] + event["dur"] for event in events]
    first, last = min(times[0]) - 10, max(times[1]) + 10
    frame = {"ph": "X", "cat": "python_function", "pid": 1, "tid": 4711}
    return [
        frame | {"name": "threading.py(637): wait", "ts": first, "dur": last - first},
        frame | {"name": "threading.py(355): wait", "ts": first + 1, "dur": last - first - 2},
        frame | {"name": "threading.py(355): wait", "ts": first + 65, "dur": 80, "tid": 4712},
    ]


def without_steps() -> list[Event]:
    return [event for event in ahead() if not event["name"].startswith("ProfilerStep")]


def each_its_own() -> list[Event]:
    """What a step alone does is held out by what host work costs in general."""
    return [*ahead(gpu_us=20), *(host(f"aten::once_{k}", 100 * k + 60, 7 + k) for k in range(4))]


@pytest.mark.parametrize(
    "events",
    [
        ahead(),
        ahead(1),
        each_its_own(),
        without_steps(),
        [host("aten::mm", 0, 50), host("x", 60, 5)],
        [host("aten::mm", 0, 50)],
    ],
)
def test_a_thread_that_waits_changes_no_number(
    write_trace: WriteTrace, events: list[Event]
) -> None:
    found = []
    for name, more in (("a.json", []), ("b.json", waiting(events))):
        trace = ttap.load(write_trace([*events, *more], name))
        document = trace.simulate().to_dict()
        found.append((document, step_time(trace.ranks)))
    assert found[0] == found[1]


# ------------------------------------------------------------------------------- trust


def test_what_a_step_reacts_to(write_trace: WriteTrace) -> None:
    bound_by_gpu = trust_of(run_of(write_trace(ahead()))).sensitivity
    assert bound_by_gpu.gpu_share == pytest.approx(1, abs=0.02)
    assert bound_by_gpu.host_share == pytest.approx(0, abs=0.02)
    events = [event for k in range(4) for event in one_step_at(k)]
    bound_by_host = trust_of(run_of(write_trace(events))).sensitivity
    assert bound_by_host.host_share == pytest.approx(1, abs=0.02)
    assert bound_by_host.gpu_share == 0


def test_what_the_structure_leaves_out_is_an_error(write_trace: WriteTrace) -> None:
    events = []
    for k in range(9):
        base = 1000 * k
        late = 300 if k % 3 == 1 else 0  # nothing in the trace says why this one starts late
        events += [step(k, base, 990), *launch("gemm", base + 10, base + 20 + late, 100, k + 1)]
        wait = 25 + 100 + late
        events.append(host("cudaDeviceSynchronize", base + 18, wait - 15, "cuda_runtime"))
        events.append(host("aten::empty", base + wait + 10, 970 - wait))
    run = run_of(write_trace(events))
    assert min(run.step_errors) < -0.2
    assert -0.15 < trust_of(run).iteration_error < -0.05


def test_other_steps_predict_a_step_without_noise(write_trace: WriteTrace) -> None:
    run = run_of(write_trace([event for k in range(6) for event in one_step_at(k)]))
    held = trust_of(run).held_out
    assert held is not None
    assert (held.error, held.baseline_error, held.noise, held.steps) == (0, 0, 0, 5)


def test_a_step_of_its_own_length_is_not_predicted_from_itself(write_trace: WriteTrace) -> None:
    events, at = [], 0.0
    for k in range(7):
        length = 300 if k == 3 else 200
        events += [step(k, at, length), host("aten::mm", at + 10, length - 20)]
        at += length
    run = run_of(write_trace(events))
    tested, replayed = held_out_ns(run)
    assert tested.tolist() == list(range(1, 7))  # number 0 is the warm-up
    assert replayed[2] == pytest.approx(200_000, rel=0.01)


def test_one_step_can_not_be_held_out(write_trace: WriteTrace) -> None:
    trust = trust_of(run_of(write_trace(one_step(100, 30))))
    assert trust.held_out is None
    assert trust.held_out_note == "no two steps to compare"
    assert trust.supports_prediction


# ------------------------------------------------------------------------------- given dependencies


def test_known_dependencies_become_edges(write_trace: WriteTrace) -> None:
    path = write_trace([*launch("a", 0, 10, 50, 1), *launch("b", 20, 90, 50, 2, stream=8)])
    trace = ttap.load(path)
    first, second = trace.ranks[0].tree.gpu_rows.tolist()
    table = ColumnTable({"producer_row": np.array([first]), "consumer_row": np.array([second])})
    run = SimulatedRun(trace, dependencies={trace.ranks[0].rank: table})
    (edge,) = run.edges_of("tensor")
    assert run.graph.row[run.graph.source[edge]] == first
    back = ColumnTable({"producer_row": np.array([second]), "consumer_row": np.array([first])})
    contradicted = SimulatedRun(trace, dependencies={trace.ranks[0].rank: back})
    assert not len(contradicted.edges_of("tensor"))
    assert any("execution trace" in note for note in contradicted.notes)


# ------------------------------------------------------------------------------- bad input


def test_missing_things_are_said(write_trace: WriteTrace) -> None:
    orphan = launch("gemm", 0, 10, 50, 1)[1]
    run = run_of(write_trace([orphan]))
    assert any("no launch" in note for note in run.notes)
    assert any("no steps" in note for note in run.notes)
    assert trust_of(run).iteration_error == 0.0


def test_nothing_is_a_run_too(write_trace: WriteTrace) -> None:
    run = run_of(write_trace([host("x", 0, 0)]))
    assert run.measured_ns.tolist() == [0]
    assert run.steady_ns() == 0.0
    trust = trust_of(run)
    assert trust.iteration_error == 0.0
    assert not trust.supports_prediction
    assert "no iteration" in trust.reason


# ------------------------------------------------------------------------------- waits of streams


def found_waits(run: SimulatedRun) -> set[tuple[int, int]]:
    graph, table = run.graph, run.ranks[0].table
    edges = run.edges_of("stream_wait")
    edges = edges[graph.evidence[edges] == _core.evidence_names().index("inferred")]
    source = table.correlation[graph.row[graph.source[edges]]]
    destination = table.correlation[graph.row[run.destination[edges]]]
    return set(zip(source.tolist(), destination.tolist(), strict=True))


def recovery(write_trace: WriteTrace, seeds: range, scale: float) -> tuple[float, float]:
    """Precision and recall over programs whose waits are known by construction."""
    right = wrong = missed = 0
    for seed in seeds:
        program = make_program(seed, scale=scale)
        found = found_waits(run_of(write_trace(program.events)))
        right += len(found & program.truth)
        wrong += len(found - program.truth)
        missed += len(program.truth - found)
    return right / (right + wrong), right / (right + missed)


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0])
def test_waits_without_sync_rows_are_found(write_trace: WriteTrace, scale: float) -> None:
    precision, recall = recovery(write_trace, range(500, 530), scale)
    assert precision >= 0.95
    assert recall >= 0.9


def test_a_fork_and_its_joins(write_trace: WriteTrace) -> None:
    """As cuDNN does it: one record, a wait for each of its streams; a record and wait of each."""
    program = Program(random.Random(1))
    program.launch(7, 50)
    event = program.record(7)
    for stream in (20, 21, 22, 23):
        program.wait(stream, event)
    program.launch(7, 30)
    program.launch(20, 30)
    program.launch(21, 30)
    for stream in (20, 21, 22, 23):
        program.wait_stream(7, stream)
    program.launch(7, 30)
    found = found_waits(run_of(write_trace(program.events)))
    assert (1, 8) in found and (1, 9) in found
    assert found <= program.truth


def test_the_order_of_events_is_irrelevant(write_trace: WriteTrace) -> None:
    events = make_program(3).events
    straight = run_of(write_trace(events)).replay(with_residuals=False)
    shuffled = list(events)
    random.Random(5).shuffle(shuffled)
    again = run_of(write_trace(shuffled)).replay(with_residuals=False)
    np.testing.assert_array_equal(np.sort(straight), np.sort(again))


def test_json_of_a_program_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": make_program(1).events}))
    assert len(ttap.load(path).ranks[0].tree.gpu_rows) > 20


# ------------------------------------------------------------------------------- profiler


def test_what_recording_costs_is_taken_off_the_host(write_trace: WriteTrace) -> None:
    operators = [host("aten::add", 10.0 * k, 8) for k in range(10)]
    run = run_of(write_trace([step(1, 0, 100), *operators]))
    tax = ProfilerOverhead(operator_ns=1_000, frame_ns=0, call_ns=0, source="")
    estimate = estimate_unprofiled(run, tax)
    assert estimate.profiled_ns == 100_000
    assert estimate.events == 11
    # The first point of the thread has nothing before it, and begin and end pay a half each; the
    # first operator begins with the step.
    assert estimate.unprofiled_ns == 100_000 - 20 * 500


def test_a_step_that_waits_for_the_gpu_gains_nothing(write_trace: WriteTrace) -> None:
    run = run_of(write_trace([event for k in range(5) for event in gpu_bound_at(k)]))
    estimate = estimate_unprofiled(run, ProfilerOverhead(1_000, 0, 0, ""))
    assert estimate.unprofiled_ns == pytest.approx(estimate.profiled_ns, rel=0.02)


def gpu_bound_at(k: int) -> list[Event]:
    at = 500 * k
    return [
        step(k, at, 500),
        host("aten::mm", at + 5, 15),
        *launch("gemm", at + 10, at + 20, 450, k + 1),
        host("cudaDeviceSynchronize", at + 30, 445, "cuda_runtime"),
        host("aten::add", at + 476, 20),
    ]


# ------------------------------------------------------------------------- values from Python

MOST_NS = 2_300_000_000_000_000_000
BEYOND = (2**63 - 1, -(2**63), MOST_NS + 1, -MOST_NS - 1)


def two_nodes() -> _core.ExecutionGraph:
    return _core.plain_graph([100, 50], [0, 1], [1, 2], [0, 7])


@pytest.mark.parametrize("ns", BEYOND)
def test_lags_beyond_all_times_are_refused(ns: int) -> None:
    delta = _core.GraphDelta()
    for change in (
        lambda: delta.set_lags([0], [ns]),
        lambda: delta.add_all([0], [3], [ns]),
        lambda: _core.plain_graph([1, 1], [1], [2], [ns]),
    ):
        with pytest.raises(SchemaError, match=f"{MOST_NS} ns .*expected.*{ns}"):
            change()
    assert len(delta) == 0


@pytest.mark.parametrize("ns", BEYOND)
def test_times_of_plain_nodes_beyond_all_times_are_refused(ns: int) -> None:
    with pytest.raises(SchemaError, match=f"start of node 1.*{MOST_NS} ns.*{ns}"):
        _core.plain_graph([1, 1], [], [], [], start_ns=[0, ns])
    with pytest.raises(SchemaError, match=f"duration of node 0.*{MOST_NS} ns.*{ns}"):
        _core.plain_graph([ns], [], [], [], start_ns=[0])


def test_the_longest_lag_still_replays_and_long_chains_end_at_64_bits() -> None:
    delta = _core.GraphDelta()
    delta.set_lags([0], [MOST_NS])
    assert _core.replay(two_nodes(), delta).max() > MOST_NS
    nodes = 8
    chain = _core.plain_graph(
        [MOST_NS] * nodes, np.arange(nodes - 1) * 2 + 1, np.arange(1, nodes) * 2, [0] * (nodes - 1)
    )
    times = _core.replay(chain)
    assert times[1] == MOST_NS
    assert times[-1] == 2**63 - 1
    assert (np.diff(times) >= 0).all()


def test_a_replay_takes_no_scale() -> None:
    with pytest.raises(TypeError):
        _core.replay(two_nodes(), scale=float("nan"))  # type: ignore[call-arg]


@pytest.mark.parametrize("ns", BEYOND)
def test_clock_offsets_beyond_all_times_are_refused(write_trace: WriteTrace, ns: int) -> None:
    (rank,) = ttap.load(write_trace(one_step(100, 30))).ranks
    with pytest.raises(SchemaError, match=f"offset_ns: .* expected, not {ns}"):
        _core.execution_graph([(rank.table, rank.tree, ns)])
    shifted = _core.execution_graph([(rank.table, rank.tree, 10**18)])
    plain = _core.execution_graph([(rank.table, rank.tree, 0)])
    assert (shifted.time_ns - plain.time_ns == 10**18).all()


# ------------------------------------------------------------------------------- batches


def test_a_batch_of_edits_gives_the_ends_of_single_replays(write_trace: WriteTrace) -> None:
    events = [event for k in range(5) for event in one_step_at(k)]
    run = run_of(write_trace(events))
    executions = run.edges_of("execution")
    slower, cut = _core.GraphDelta(), _core.GraphDelta()
    slower.set_lags(executions, run.cost_ns[executions] * 2)
    cut.drop_all(run.edges_of("launch"))
    work = [step.work for step in run.steps]
    offsets = np.cumsum([0, *map(len, work)])
    replayer = _core.BatchReplayer(run.graph, np.concatenate(work), offsets)
    for with_residuals in (True, False, True):
        ends, left_out = replayer.run([None, slower, cut, None], with_residuals=with_residuals)
        times = [run.replay(d, with_residuals=with_residuals) for d in (None, slower, cut, None)]
        assert ends[:, 0].tolist() == [[int(t[points].max()) for points in work] for t in times]
        assert left_out.tolist() == [0, 0, 0, 0]


def test_a_batch_of_chains_gives_the_ends_of_every_copy(write_trace: WriteTrace) -> None:
    run = run_of(write_trace(one_step(100, 400)))
    faster = _core.GraphDelta()
    executions = run.edges_of("execution")
    faster.set_lags(executions, run.cost_ns[executions] // 4)
    (step,) = run.steps
    carries = [(step.end, step.begin, 0)]
    replayer = _core.BatchReplayer(run.graph, step.work, [0, len(step.work)], carries)
    ends, _ = replayer.run([None, faster], copies=3)
    assert ends.shape == (2, 3, 1)
    for delta, of_copies in zip((None, faster), ends[:, :, 0], strict=True):
        times = _core.replay_chain(run.graph, carries, 3, delta)
        assert of_copies.tolist() == times[:, step.work].max(axis=1).tolist()


def test_a_step_without_points_never_ends() -> None:
    ends, _ = _core.BatchReplayer(two_nodes(), [3], [0, 0, 1]).run([None])
    assert ends.tolist() == [[[_core.NEVER, 157]]]
    ends, left_out = _core.BatchReplayer(two_nodes(), [3], [0, 1]).run([])
    assert ends.shape == (0, 1, 1)
    assert left_out.shape == (0,)


def test_an_edge_that_closes_a_cycle_is_left_out_and_counted() -> None:
    delta = _core.GraphDelta()
    delta.add_all([3, 1], [0, 3], [10, 500])  # the first would make the first node wait for itself
    assert _core.closing_edges(two_nodes(), delta).tolist() == [0]
    ends, left_out = _core.BatchReplayer(two_nodes(), [3], [0, 1]).run([delta, None])
    assert (ends.tolist(), left_out.tolist()) == ([[[600]], [[157]]], [1, 0])
    assert _core.replay(two_nodes(), delta).tolist() == [0, 100, 107, 600]


@pytest.mark.parametrize(
    ("points", "offsets"), [([3], [0, 2]), ([3], [1, 1]), ([3], []), ([9], [0, 1]), ([-1], [0, 1])]
)
def test_work_outside_the_graph_is_refused(points: list[int], offsets: list[int]) -> None:
    with pytest.raises(SchemaError, match="work_"):
        _core.BatchReplayer(two_nodes(), points, offsets)


def test_edges_that_are_not_there_are_refused() -> None:
    delta = _core.GraphDelta()
    with pytest.raises(SchemaError, match="edges: there is none with the number -1"):
        delta.set_lags([-1], [0])
    with pytest.raises(SchemaError, match="edges: there is none with the number 4294967295"):
        delta.drop_all([2**32 - 1])
    with pytest.raises(SchemaError, match="one lag for each edge"):
        delta.set_lags([0, 1], [0])
    delta.drop_all([9])
    with pytest.raises(SchemaError, match="no edge 9"):
        _core.BatchReplayer(two_nodes(), [3], [0, 1]).run([delta])


# ------------------------------------------------------------------------------- held out


def held_out(run: SimulatedRun) -> Array:
    return _core.held_out_lags(run.graph, run.step_of_point, len(run.steps))


def test_held_out_a_step_costs_what_the_others_cost(write_trace: WriteTrace) -> None:
    events = []
    for k, gpu_us in enumerate((100, 110, 150, 120)):
        at = 400 * k
        events += [step(k, at, 380), *launch("gemm", at + 10, at + 20, gpu_us, 2 * k + 1)]
        if k == 2:
            events += launch("extra", at + 30, at + 20 + gpu_us, 40, 2 * k + 2)
    run = run_of(write_trace(events))
    lags = held_out(run)
    executions = run.edges_of("execution")
    assert run.cost_ns[executions].tolist() == [100_000, 110_000, 150_000, 40_000, 120_000]
    # The extra kernel is in no other step: it costs what kernels cost there.
    assert lags[executions].tolist() == [126_666, 123_333, 110_000, 110_000, 120_000]


def test_held_out_marks_are_the_same_whatever_their_number(write_trace: WriteTrace) -> None:
    events = [event for k in range(4) for event in [step(k, 400 * k, 300 + k)]]
    run = run_of(write_trace(events))
    lags = held_out(run)
    inside = [
        edge
        for edge in run.edges_of("program_order").tolist()
        if run.graph.is_end[run.destination[edge]]
    ]
    assert lags[inside].tolist() == [302_000, 301_666, 301_333, 301_000]


def test_held_out_outside_of_steps_nothing_changes(write_trace: WriteTrace) -> None:
    run = run_of(write_trace([event for k in range(3) for event in one_step_at(k)]))
    nowhere = np.full(len(run.graph), _core.NO_ROW, dtype=np.uint32)
    assert (_core.held_out_lags(run.graph, nowhere, 0) == run.cost_ns).all()
    with pytest.raises(SchemaError, match="no step 3"):
        _core.held_out_lags(run.graph, nowhere * 0 + 3, 3)
    with pytest.raises(SchemaError, match="one step for each point"):
        _core.held_out_lags(run.graph, nowhere[1:], 1)


def test_held_out_a_step_alone_knows_no_cost(write_trace: WriteTrace) -> None:
    run = run_of(write_trace(one_step(100, 400)))
    lags = held_out(run)
    inside = run.step_of_point[run.destination] == 0
    assert (lags[inside] == 0).all()
