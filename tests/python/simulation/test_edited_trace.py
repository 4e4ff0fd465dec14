"""Replays back as traces: the times of every event, what is gone and new, and files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from fix_programs import NCCL, FlawedProgram
from gpu_traces import GpuTrace
from test_edit_changes import CASES, late_job

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.cli import main
from torchtraceap.core.codes import EventKind
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.simulation.edited_trace import edited_ranks, edited_trace
from torchtraceap.simulation.edits import fusion, graphs
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NewEvent,
    NotApplicableError,
    default_edits,
    make_edit,
)
from torchtraceap.simulation.edits.view import views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.simulate import simulate
from torchtraceap.tables.steps.iterations import held_up_row
from torchtraceap.trace.ranks import Ranks

WriteTrace = Callable[..., Path]
GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def unedited(trace: Ranks) -> Ranks:
    run = SimulatedRun(trace)
    return Ranks(edited_ranks(run, Change(), run.replay()))


def as_text(trace: Ranks) -> list[bytes]:
    return [_core.trace_json(rank.table) for rank in trace.ranks]


def named(trace: Ranks) -> dict[str, tuple[int, int]]:
    """Start and duration, us, of the last event of each name."""
    table = trace.ranks[0].table
    times = zip(table.ts_ns.tolist(), table.dur_ns.tolist(), strict=True)
    return {
        table.name_of(row): (ts // 1000, dur // 1000)
        for row, (ts, dur) in enumerate(times)
        if table.kind[row] != EventKind.METADATA
    }


def edited(trace: Ranks, change: Change) -> Ranks:
    run = SimulatedRun(trace)
    return Ranks(edited_ranks(run, change, run.replay(change.delta())))


# ------------------------------------------------------------------------- without an edit


@pytest.mark.parametrize("name", CASES)
def test_without_an_edit_a_trace_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    make, _ = CASES[name]
    trace = make(tmp_path)
    assert as_text(unedited(trace)) == as_text(trace)


def test_without_an_edit_real_traces_come_back_as_they_were(bundled: Path) -> None:
    for path in (bundled, GOLDEN / "healthy_training" / "trace.json"):
        trace = ttap.load(path)
        assert as_text(unedited(trace)) == as_text(trace)


def odd_events() -> list[dict[str, Any]]:
    """What has no points in the graph, or no times that a column holds."""
    made = GpuTrace()
    made.op("aten::mm", 100, 50).memory(120, 512)
    made.launch("gemm", (105, 5), (130, 30))
    both = {"pid": 1, "tid": 1, "cat": "cpu_op"}
    made.raw({"ph": "B", "name": "opened", "ts": 200, **both})
    made.raw({"ph": "B", "name": "inner", "ts": 210, **both})
    made.raw({"ph": "E", "ts": 220.5, **both}).raw({"ph": "E", "ts": 230, **both})
    made.raw({"ph": "E", "ts": 300, **both}).raw({"ph": "B", "name": "open", "ts": 310, **both})
    made.raw({"ph": "C", "name": "power", "pid": 9, "tid": "c", "ts": 141, "args": {"W": 3.5}})
    arrow = {"id": 7, "cat": "ac2g", "name": "ac2g"}
    made.raw({"ph": "s", "pid": 1, "tid": 1, "ts": 105, **arrow})
    made.raw({"ph": "f", "bp": "e", "pid": 0, "tid": 7, "ts": 130, **arrow})
    span = {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "pid": 0, "tid": 7}
    made.raw({**span, "ts": 130, "dur": 30})
    made.raw(
        {"ph": "X", "cat": "Trace", "name": "all", "pid": "Spans", "tid": "x", "ts": 90, "dur": 250}
    )
    made.raw(
        {"ph": "X", "cat": "overhead", "name": "late", "pid": 1, "tid": 1, "ts": 400, "dur": -3}
    )
    made.raw(
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 5, "args": {"name": "py"}}
    )
    return made.events


def test_odd_events_come_back_as_they_were(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(odd_events()))
    again = unedited(trace)
    assert as_text(again) == as_text(trace)
    before, after = trace.ranks[0].table, again.ranks[0].table
    assert [d.code for d in after.diagnostics] == ["unmatched_begin", "unmatched_end"]
    assert after.dur_ns.tolist() == before.dur_ns.tolist()


def test_a_key_that_came_twice_does_not_hold_an_event_where_it_was(tmp_path: Path) -> None:
    """Its text stands as it was, times included, until it moves."""
    path = tmp_path / "trace.json"
    twice = '{"ph":"X","cat":"cpu_op","name":"b","pid":1,"tid":1,"ts":9,"ts":200,"dur":20,'
    twice += '"args":{"k":1,"k":2}}'
    first = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":100,"dur":50}'
    path.write_text(f'{{"traceEvents":[{first},{twice}]}}', encoding="utf-8")
    trace = ttap.load(path)
    assert as_text(unedited(trace)) == as_text(trace)
    change = Change()
    view = views(SimulatedRun(trace))[0]
    view.set_host_work(change, view.rows_named("^a$", EventKind.CPU_OP), 10_000)
    table = _core.read_trace_bytes(as_text(edited(trace, change))[0], "again")
    assert (table.ts_ns.tolist(), table.dur_ns.tolist()) == ([100_000, 160_000], [10_000, 20_000])
    assert json.loads(table.event_json(1))["args"] == {"k": 2}


# ------------------------------------------------------------------------- with edits


def _forms(run: SimulatedRun, name: str) -> list[Change]:
    try:
        graph = make_edit(name).apply(run)
    except NotApplicableError:
        return []
    return [change for change in (graph.best, graph.cautious) if change is not None]


def _check_step(run: SimulatedRun, change: Change) -> None:
    """The written trace, read again, takes what the replay says; steps keep their names, and no
    GPU event loses its launch."""
    replayed = run.replay(change.delta())
    written = Ranks(edited_ranks(run, change, replayed))
    again = SimulatedRun(written)
    replayed_ns, read_ns = run.lengths_ns([change.delta()])[0], again.measured_ns
    same = np.ones(len(read_ns), dtype=bool)
    if [held_up_row(part) for part in again.ranks] != [held_up_row(part) for part in run.ranks]:
        # A launch that an edit puts ahead of what its work needs looks held up when read again.
        same = np.diff([step.rank for step in again.steps], prepend=-1) == 0
    assert read_ns[same].tolist() == replayed_ns[same].tolist()
    for part, was in zip(written.ranks, run.trace.ranks, strict=True):
        assert [step.name for step in part.tree.steps] == [step.name for step in was.tree.steps]
        lost = [int((r.tree.launch[r.tree.gpu_rows] == _core.NO_ROW).sum()) for r in (part, was)]
        assert lost[0] <= lost[1]
        assert part.table.metadata == was.table.metadata


@pytest.mark.parametrize("name", CASES)
def test_a_written_trace_takes_what_its_replay_says(name: str, tmp_path: Path) -> None:
    make, edits = CASES[name]
    run = SimulatedRun(make(tmp_path))
    with patch.object(fusion, "FEWEST_KERNELS", 6), patch.object(graphs, "FEWEST_LAUNCHES", 3):
        for edit in edits:
            for change in _forms(run, edit):
                _check_step(run, change)


def test_every_edit_of_a_real_trace_is_written_as_replayed(bundled: Path) -> None:
    run = SimulatedRun(ttap.load(bundled))
    tried = [_forms(run, edit) for edit in default_edits()]
    assert sum(map(bool, tried)) >= 5
    for changes in tried:
        for change in changes:
            _check_step(run, change)


def test_steps_that_nothing_marks_are_marked(write_trace: WriteTrace) -> None:
    """A graph takes out what repeats, by which they were told."""
    program = FlawedProgram()
    for _ in range(12):
        for i in range(4):
            with program.range(f"aten::op{i}"):
                program.launch(f"kernel{i}", 40)
        with program.range("Optimizer.step#SGD.step", "user_annotation"):
            program.launch("update", 20)
        program.work(30)
    trace = ttap.load(write_trace(program.document()))
    run = SimulatedRun(trace)
    assert run.ranks[0].tree.steps_inferred
    with patch.object(graphs, "FEWEST_LAUNCHES", 3):
        (best, *_) = _forms(run, "cuda_graph")
    written = Ranks(edited_ranks(run, best, run.replay(best.delta())))
    tree = written.ranks[0].tree
    assert not tree.steps_inferred
    assert len(tree.steps) == len(run.steps) - 1
    replayed = run.lengths_ns([best.delta()])[0, :-1]
    assert SimulatedRun(written).measured_ns.tolist() == replayed.tolist()
    assert as_text(unedited(trace)) == as_text(trace)


def test_ranges_that_were_nested_still_are(bundled: Path) -> None:
    run = SimulatedRun(ttap.load(bundled))
    (change,) = _forms(run, "loader_workers=4")[:1]
    table = edited_ranks(run, change, run.replay(change.delta()))[0].table
    tree = _core.build_tree(table)
    assert not [d for d in tree.diagnostics if "overlap" in d.code]
    assert (table.dur_ns >= 0).all()


def test_what_has_no_points_moves_with_what_is_around_it(write_trace: WriteTrace) -> None:
    events = odd_events()
    trace = ttap.load(write_trace(events))
    run = SimulatedRun(trace)
    view = views(run)[0]
    change = Change()
    # mm takes 15 us less before its call, and the kernel half of its time.
    call = int(view.calls[0])
    change.set_lags(view.edges_into(view.begin_of[[call]], "program_order"), 0)
    view.scale_gpu(change, view.gpu_rows, 0.5)
    times = named(edited(trace, change))
    assert times["aten::mm"] == (100, 45)
    assert times["cudaLaunchKernel"][0] == 100
    assert times["gemm"] == (125, 15)
    assert times["[memory]"][0] == 115
    assert times["step"] == times["gemm"]
    assert times["ac2g"][0] == 125
    assert times["opened"] == (195, 30)
    assert times["inner"] == (205, 10)
    assert times["all"][0] == 90
    assert times["process_name" if "process_name" in times else "open"]
    assert times["power"][0] in range(126, 142)


def test_arrows_stay_at_the_ends_of_what_they_join(write_trace: WriteTrace) -> None:
    made = GpuTrace()
    for i in range(3):
        made.launch(f"k{i}", (100 + 50 * i, 5), (120 + 50 * i, 20))
        arrow = {"id": i + 1, "cat": "ac2g", "name": "ac2g"}
        made.raw({"ph": "s", "pid": 1, "tid": 1, "ts": 100 + 50 * i, **arrow})
        made.raw({"ph": "f", "bp": "e", "pid": 0, "tid": 7, "ts": 120 + 50 * i, **arrow})
    trace = ttap.load(write_trace(made.events))
    run = SimulatedRun(trace)
    view = views(run)[0]
    change = Change()
    view.remove_gpu(change, view.gpu_rows[1:2])
    view.remove_calls(change, view.calls[1:2])
    table = edited(trace, change).ranks[0].table
    flows = [json.loads(table.event_json(r)) for r in np.flatnonzero(table.kind == EventKind.FLOW)]
    assert sorted(flow["id"] for flow in flows) == [1, 1, 3, 3]
    starts = {(e["tid"], e["ts"]) for e in flows}
    rows = np.flatnonzero(table.complete)
    tracks = [int(table.tracks[table.track[row]].tid) for row in rows]
    assert starts == set(zip(tracks, (table.ts_ns[rows] / 1e3).tolist(), strict=True))


def test_what_an_edit_takes_out_is_gone_with_what_lies_in_it(write_trace: WriteTrace) -> None:
    made = GpuTrace()
    made.op("zero_grad", 100, 100).op("inside", 120, 50).memory(130, 64).memory(250, 64)
    made.launch("fill", (125, 5), (135, 20)).op("after", 300, 50)
    trace = ttap.load(write_trace(made.events))
    view = views(SimulatedRun(trace))[0]
    change = Change()
    view.remove_calls(change, view.rows_named("zero_grad", EventKind.CPU_OP))
    view.remove_gpu(change, view.gpu_rows)
    times = named(edited(trace, change))
    assert times == {"[memory]": (150, 0), "after": (200, 50)}


def test_gpu_work_whose_call_is_gone_belongs_to_the_launch_before(write_trace: WriteTrace) -> None:
    made = GpuTrace()
    for i in range(3):
        made.launch(f"k{i}", (100 + 50 * i, 5), (120 + 50 * i, 20))
    trace = ttap.load(write_trace(made.events))
    view = views(SimulatedRun(trace))[0]
    change = Change()
    view.remove_calls(change, view.calls[1:])
    rank = edited(trace, change).ranks[0]
    assert rank.table.correlation[rank.tree.gpu_rows].tolist() == [101, 101, 101]


def test_a_graph_is_launched_by_a_call_of_its_own(tmp_path: Path) -> None:
    run = SimulatedRun(CASES["launching"][0](tmp_path))
    with patch.object(graphs, "FEWEST_LAUNCHES", 3):
        best = _forms(run, "cuda_graph")[0]
    (launch, *_) = best.inserted
    assert launch.name == "cudaGraphLaunch"
    (rank,) = edited_ranks(run, best, run.replay(best.delta()))
    names = np.array([rank.table.name_of(row) for row in range(len(rank.table))])
    calls = np.flatnonzero(names == "cudaGraphLaunch")
    assert len(calls) == len(best.inserted)
    assert len(rank.tree.launched_rows) == len(rank.tree.gpu_rows)
    launched = np.diff(rank.tree.launched_offsets.astype(np.int64))[calls]
    assert launched.tolist() == [len(event.launches) for event in best.inserted]


def test_a_fetch_becomes_one_of_a_loader_with_workers(tmp_path: Path) -> None:
    run = SimulatedRun(CASES["loading"][0](tmp_path))
    best = _forms(run, "loader_workers=2")[0]
    (rank,) = edited_ranks(run, best, run.replay(best.delta()))
    names = {rank.table.name_of(row) for row in range(len(rank.table))}
    assert any("_MultiProcessing" in name for name in names)
    assert not any("_SingleProcess" in name for name in names)


def test_a_merged_collective_has_the_elements_of_all(tmp_path: Path) -> None:
    run = SimulatedRun(CASES["exchanging"][0](tmp_path))
    best = _forms(run, "merge_collectives")[0]
    before = run.ranks[0].table.int_column("In msg nelems")[0].sum()
    (rank,) = edited_ranks(run, best, run.replay(best.delta()))
    assert rank.table.int_column("In msg nelems")[0].sum() == before
    assert len(rank.tree.gpu_rows) < len(run.ranks[0].tree.gpu_rows)


def test_work_that_moves_beside_other_work_gets_a_stream_of_its_own(
    write_trace: WriteTrace,
) -> None:
    program = FlawedProgram()
    with program.step(1):
        program.launch("a", 100)
        program.launch(NCCL, 300)
        program.launch("b", 100)
    trace = ttap.load(write_trace(program.document()))
    run = SimulatedRun(trace)
    view = views(run)[0]
    first, reduce, second = view.gpu_rows.tolist()
    change = Change()
    change.drop(view.edges_into(view.begin_of[[second]], "stream_order"))
    change.add(view.end_of[[first]], view.begin_of[[second]], 1_000)
    rank = edited(trace, change).ranks[0]
    streams = {rank.table.name_of(row): int(rank.table.stream[row]) for row in rank.tree.gpu_rows}
    assert streams == {"a": 7, "b": 7, NCCL: 8}
    starts = {rank.table.name_of(row): int(rank.table.ts_ns[row]) for row in rank.tree.gpu_rows}
    assert starts[NCCL] == view.table.ts_ns[reduce]
    assert starts["b"] == starts["a"] + 101_000
    assert (rank.tree.launch[rank.tree.gpu_rows] != _core.NO_ROW).all()
    names = {track.tid: track.thread_name for track in rank.table.tracks}
    assert names["8"] == "stream 8 (next to stream 7)"


def test_an_event_can_be_brought_in_between_any_two_points(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(GpuTrace().op("a", 100, 50).op("b", 200, 50, k="v").events))
    run = SimulatedRun(trace)
    begin, end = int(run.graph.end_of(0)[0]), int(run.graph.begin_of(0)[1])
    change = Change()
    change.insert(NewEvent(0, "between", begin, end, like=1, args={"more": 3}))
    table = edited(trace, change).ranks[0].table
    row = next(row for row in range(len(table)) if table.name_of(row) == "between")
    assert (int(table.ts_ns[row]), int(table.dur_ns[row])) == (150_000, 50_000)
    assert json.loads(table.args_json(row)) == {"k": "v", "more": 3}


def test_clocks_that_disagree_are_put_right_with_an_edit(write_trace: WriteTrace) -> None:
    """GPU events are written on the clock of the host: launches keep the usual delay."""
    program = FlawedProgram()
    for number in range(3):
        with program.step(number):
            for _ in range(5):
                program.launch("gemm", 100)
            program.synchronize()
    document = program.document()
    for event in document["traceEvents"]:
        event["ts"] -= 2_000 if event["pid"] == 0 else 0
    trace = ttap.load(write_trace(document))
    run = SimulatedRun(trace)
    assert run.ranks[0].tree.launch_delay_correction_ns > 0
    view = views(run)[0]
    change = Change()
    view.scale_gpu(change, view.gpu_rows, 0.5)
    written = edited(trace, change)
    assert written.ranks[0].tree.launch_delay_correction_ns == 0
    assert SimulatedRun(written).steady_ns() == run.steady_ns(change.delta())
    assert as_text(unedited(trace)) == as_text(trace)


def test_ranks_that_meet_are_written_as_they_meet(tmp_path: Path) -> None:
    trace = late_job(0, 3_000, 200, 0)(tmp_path)
    run = SimulatedRun(trace)
    assert as_text(unedited(trace)) == as_text(trace)
    for change in _forms(run, "straggler_to_median"):
        _check_step(run, change)


# ------------------------------------------------------------------------- simulations, files


class _Half:
    """Kernels take half of their time, or at least three quarters."""

    name = "half"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        for view in views(run):
            view.scale_gpu(best, view.gpu_rows, 0.5)
            view.scale_gpu(cautious, view.gpu_rows, 0.75)
        return EditedGraph(best, cautious)


def _busy(steps: int = 4) -> dict[str, Any]:
    program = FlawedProgram()
    for number in range(steps):
        with program.step(number):
            program.launch("gemm", 900 + number)
            program.synchronize()
    return program.document()


def test_a_step_of_the_written_trace_takes_what_is_predicted(write_trace: WriteTrace) -> None:
    run = SimulatedRun(ttap.load(write_trace(_busy())))
    graph = _Half().apply(run)
    best, cautious = (edited_trace(run, graph, form=f) for f in ("best", "cautious"))
    assert (best.form, cautious.form) == ("best", "cautious")
    assert best.step_ns == run.steady_ns(graph.best.delta())
    assert cautious.step_ns == run.steady_ns(graph.cautious.delta())
    for wanted_ns in (best.step_ns + 1_000, cautious.step_ns - 1_000):
        between = edited_trace(run, graph, predicted_ns=wanted_ns)
        assert between.form is None
        assert between.step_ns == pytest.approx(wanted_ns, rel=1e-4)
        assert "as predicted" in between.note
    beyond = edited_trace(run, graph, predicted_ns=2 * float(run.measured_ns.max()))
    assert "no way between replays has the predicted" in beyond.note
    none = edited_trace(run, None)
    assert none.form is None
    assert none.step_ns == run.mean_ns(run.measured_ns)


def test_a_simulation_writes_its_edits_together(write_trace: WriteTrace, tmp_path: Path) -> None:
    trace = ttap.load(write_trace(_busy()))
    simulation = simulate(trace, [_Half()])
    written = simulation.edited_trace(["half"], form="best")
    again = simulate(Ranks(written.ranks), [])
    assert again.measured_ns == round(written.step_ns)
    assert again.measured_ns < simulation.measured_ns
    (path,) = written.write_trace(tmp_path / "half.json.gz")
    assert simulate(ttap.load(path), []).measured_ns == again.measured_ns
    assert as_text(simulation.edited_trace([])) == as_text(trace)
    with pytest.raises(OptionError, match="nothing"):
        simulation.edited_trace(["nothing"])


def test_of_a_part_that_was_simulated_the_whole_is_written(write_trace: WriteTrace) -> None:
    from torchtraceap.simulation.excerpt import simulated_run
    from torchtraceap.simulation.simulate import Simulation

    trace = ttap.load(write_trace(_busy(40)))
    run = simulated_run(trace, most_events=40, least_steps=2)
    assert len(run.ranks[0].table) < len(trace.ranks[0].table)
    written = Simulation(run, [_Half()], trace).edited_trace(["half"])
    assert len(written.ranks[0].table) == len(trace.ranks[0].table)
    assert len(written.ranks[0].tree.steps) == 40


def test_ranks_are_written_as_a_folder_of_files(tmp_path: Path) -> None:
    trace = late_job(0, 3_000, 200, 0)(tmp_path)
    written = edited_trace(SimulatedRun(trace), None)
    out = tmp_path / "out"
    files = written.write_trace(out)
    assert [file.name for file in files] == [f"rank{rank}.json.gz" for rank in range(4)]
    assert as_text(ttap.load(out)) == as_text(trace)
    assert written.write_trace(out) == files
    (out / "other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(OptionError, match="one more rank"):
        written.write_trace(out)
    with pytest.raises(OptionError, match="as a folder"):
        written.write_trace(tmp_path / "all.json")
    with pytest.raises(OptionError, match=r"one more rank|was read"):
        written.write_trace(tmp_path / "job")


def test_simulate_writes_a_trace(
    write_trace: WriteTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = CASES["loading"][0](tmp_path).ranks[0].path
    out = tmp_path / "out.json.gz"
    words = ["simulate", path, "--edit", "loader_workers=2", "--edit", "channels_last"]
    assert main([*words, "--trace", str(out), "--form", "cautious"]) == 0
    error = capsys.readouterr().err
    assert f"wrote {out}" in error
    assert "at least" in error
    assert "not in it" in error
    with gzip.open(out) as stream:
        assert json.load(stream)["traceEvents"]
    assert main(["summary", str(out)]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "{folder}/out.txt"], "must end in .json or .json.gz"),
        (["--trace", "{trace}"], "this file was read"),
        (["--trace", "{folder}/none/out.json"], "does not exist"),
        (["--form", "best"], "needs --trace"),
        (["--edit", "channels_last", "--trace", "{folder}/out.json"], "no edit applies"),
    ],
)
def test_a_trace_that_can_not_be_written_is_said_in_one_line(
    words: list[str],
    message: str,
    write_trace: WriteTrace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_trace(_busy())
    given = [word.format(folder=tmp_path, trace=path) for word in words]
    assert main(["simulate", str(path), *given]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


# ------------------------------------------------------------------------- the core's checks


def test_tables_are_edited_by_columns_of_their_length(write_trace: WriteTrace) -> None:
    table = ttap.load(write_trace(_busy(1))).ranks[0].table
    columns = {
        "ts_ns": table.ts_ns,
        "dur_ns": table.dur_ns,
        "kept": np.ones(len(table), dtype=bool),
        "correlation": table.correlation,
    }
    for name in columns:
        with pytest.raises(SchemaError, match=name):
            _core.edit_table(table, **{**columns, name: columns[name][:1]})  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="more_events"):
        _core.edit_table(table, **columns, more_events=["[]"])  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="at most"):
        _core.edit_table(table, **{**columns, "ts_ns": table.ts_ns + 2**62})  # type: ignore[arg-type]


def test_times_of_rows_are_of_one_graph(write_trace: WriteTrace) -> None:
    run = SimulatedRun(ttap.load(write_trace(_busy(1))))
    table, times = run.ranks[0].table, run.replay()
    with pytest.raises(SchemaError, match="no rank 3"):
        _core.row_times(run.graph, 3, table, times)
    with pytest.raises(SchemaError, match="one time for each"):
        _core.row_times(run.graph, 0, table, times[:1])
    other = ttap.load(write_trace(_busy(2), "other.json")).ranks[0].table
    with pytest.raises(SchemaError, match="another table"):
        _core.row_times(run.graph, 0, other, times)
    with pytest.raises(SchemaError, match="gpu_shift_ns"):
        _core.row_times(run.graph, 0, table, times, gpu_shift_ns=2**62)
    with pytest.raises(SchemaError, match="kept"):
        _core.without_loose_flows(table, np.ones(1, dtype=bool))


def test_times_at_the_end_of_all_times_stay_within_them(write_trace: WriteTrace) -> None:
    far = 2.29e15
    made = GpuTrace().op("first", -far, 10).op("last", far, 10)
    trace = ttap.load(write_trace(made.events))
    assert as_text(unedited(trace)) == as_text(trace)
    change = Change()
    change.set_lags(np.arange(len(SimulatedRun(trace).cost_ns)), 2_290_000_000_000_000_000)
    table = edited(trace, change).ranks[0].table
    assert (np.abs(table.ts_ns) <= 2_300_000_000_000_000_000).all()
