"""`simulate` and `explain-idle`: documents, tables, options, and what waits for what."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_samples as samples

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.core.codes import EventKind
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.base import Change, EditedGraph, default_edits, edit_names
from torchtraceap.simulation.edits.view import views
from torchtraceap.simulation.run import SimulatedRun

WriteTrace = Callable[..., Path]
MS = 1_000_000


@pytest.fixture
def slow(write_trace: WriteTrace) -> Path:
    return samples.slow_loader(steps=6).write(write_trace([]))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(list(arguments)) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


# ------------------------------------------------------------------------------------ simulate


def test_the_document_has_steps_times_and_edits(
    slow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = answer(capsys, "simulate", str(slow), "--json")
    assert document["schema"] == "torchtraceap.simulation/1"
    # The first of six steps is the warm-up.
    assert [step["name"] for step in document["steps"]] == [
        f"ProfilerStep#{i}" for i in range(1, 6)
    ]
    for step in document["steps"]:
        assert step["measured_ns"] == pytest.approx(100 * MS, rel=0.005)
        assert abs(step["replayed_ns"] - 100 * MS) <= MS
    assert document["measured_ns"] == pytest.approx(100 * MS, rel=0.001)
    assert document["per_step"]
    trust = document["trust"]
    assert trust["supports_prediction"] and not trust["reason"]
    assert trust["iteration_error"] == pytest.approx(
        document["replayed_ns"] / document["measured_ns"] - 1, abs=1e-6
    )
    assert set(trust["held_out"]) == {"error", "median_error", "baseline_error", "noise", "steps"}
    assert trust["sensitivity"]["host_share"] == pytest.approx(1, abs=0.1)
    assert [edit["edit"] for edit in document["edits"]] == list(default_edits())
    for edit in document["edits"]:
        times = [edit[key] for key in ("low_ns", "predicted_ns", "high_ns")]
        if edit["predicted_ns"] is None:
            assert times == [None] * 3
            assert edit["note"]
        else:
            assert all(type(ns) is int for ns in times)
            assert times == sorted(times)
            assert times[0] >= 0


def test_edits_are_answered_in_the_order_in_which_they_are_named(
    slow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["pin_memory", "loader_workers=2", "loader_workers=8"]
    options = [part for name in names for part in ("--edit", name)]
    document = answer(capsys, "simulate", str(slow), *options, "--json")
    assert [edit["edit"] for edit in document["edits"]] == names
    pinned, two, eight = document["edits"]
    assert pinned["predicted_ns"] is None
    assert "copies" in pinned["note"]
    assert eight["predicted_ns"] <= two["predicted_ns"] < 100 * MS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bogus", "no edit is called 'bogus'"),
        ("loader_workers=none", "loader_workers"),
        ("remove_host_sync=3", "remove_host_sync takes no value"),
        ("device", "device needs a value"),
    ],
)
def test_an_unknown_edit_is_said_and_the_others_are_answered(
    slow: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    arguments = ["simulate", str(slow), "--edit", name, "--edit", "loader_workers=4", "--json"]
    assert main(arguments) == 2
    shown = capsys.readouterr()
    wrong, right = json.loads(shown.out)["edits"]
    assert wrong["predicted_ns"] is None
    assert words in wrong["note"]
    assert right["predicted_ns"] < 100 * MS
    assert words in shown.err
    assert len(shown.err.splitlines()) == 1
    assert "Traceback" not in shown.err


def test_an_edit_that_does_not_apply_is_no_error(
    slow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = answer(capsys, "simulate", str(slow), "--edit", "merge_collectives", "--json")
    (edit,) = document["edits"]
    assert edit["predicted_ns"] is None
    assert "collectives" in edit["note"]


def test_the_table_says_the_replay_first(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(slow), "--edit", "loader_workers=4", "--plan"]) == 0
    text = capsys.readouterr().out
    places = [
        text.index(part)
        for part in ("Simulation check: unseen steps", "Edits, each by itself", "Plan, each on top")
    ]
    assert places == sorted(places)
    assert "loader_workers=4" in text
    assert "100 ms" in text


def test_the_plan_is_shown_when_asked_for(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(slow), "--edit", "loader_workers=4"]) == 0
    assert "Plan" not in capsys.readouterr().out
    assert main(["simulate", str(slow), "--edit", "remove_host_sync", "--plan"]) == 0
    assert "No edit saves more than the steps vary" in capsys.readouterr().out


def test_the_list_names_every_edit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == edit_names()
    document = answer(capsys, "simulate", "--list", "--json")
    assert document == {"edits": edit_names(), "default": list(default_edits())}


def test_a_trace_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate"]) == 2
    assert "needs a trace" in capsys.readouterr().err


@pytest.mark.parametrize("maker", [samples.host_only, samples.healthy])
def test_traces_with_nothing_to_fix_are_answered(
    write_trace: WriteTrace,
    capsys: pytest.CaptureFixture[str],
    maker: Callable[[], samples.TraceMaker],
) -> None:
    path = maker().write(write_trace([]))
    assert answer(capsys, "simulate", str(path), "--json")["plan"] == []
    assert main(["simulate", str(path), "--plan"]) == 0


class Cached:
    """A user's own edit: batches are there already."""

    name = "cached"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        change = Change()
        for view in views(run):
            rows = view.rows_named("__next__", EventKind.USER_ANNOTATION)
            view.set_host_work(change, rows, 0)
        return EditedGraph(change)


def test_edits_of_ones_own_and_the_ways_in(slow: Path) -> None:
    simulation = ttap.simulate(slow, edits=[Cached()])
    (edit,) = simulation.edits
    assert edit.edit == "cached"
    assert edit.predicted_ns == 55 * MS  # the host's other work; the kernels take 52.8 ms
    again = ttap.load(slow).simulate(edits=[Cached()])
    assert again.to_dict() == simulation.to_dict()


# ------------------------------------------------------------------------------------ explain-idle


def test_the_chain_of_an_idle_interval_names_the_loader(slow: Path) -> None:
    trace = ttap.load(slow)
    start_ns, _ = trace.ranks[0].tree.profiled
    table = trace.explain_idle(start_ns + 120 * MS)
    assert table.facts["cause"] == "data_loading"
    # Nearly all of it is the operator inside, which says more than the range around it.
    assert table.facts["waits_for"] == "aten::stack"
    assert table.to_list("inside")[0] == samples.LOADER
    assert table["idle_ns"].sum() == table.facts["duration_ns"]
    assert table["idle_share"].sum() == pytest.approx(1.0)
    assert table.to_list("kind")[-1] == "launch"
    assert table.to_list("name")[-1] == "ampere_sgemm_128x64"
    # One thing after the other, without a gap.
    assert (table["start_ns"][1:] == table["end_ns"][:-1]).all()
    assert table["end_ns"][-1] == table.facts["idle_end_ns"]
    assert table["start_ns"][0] <= table.facts["idle_start_ns"]


def test_the_chain_goes_through_a_wait_of_the_host(write_trace: WriteTrace) -> None:
    maker = samples.TraceMaker()
    maker.host("cpu_op", "aten::mm", 0, 20)
    maker.gpu("kernel", "gemm", 10, 500, launch=2)
    maker.host("cuda_runtime", "cudaDeviceSynchronize", 30, 490)
    maker.host("cpu_op", "preprocess", 525, 400)
    maker.host("cpu_op", "aten::add", 930, 20)
    maker.gpu("kernel", "add", 945, 50, launch=932)
    trace = ttap.load(maker.write(write_trace([])))
    table = trace.explain_idle(600_000)
    assert table.facts["idle_start_ns"] == 510_000
    assert table.facts["idle_end_ns"] == 945_000
    assert table.facts["waits_for"] == "preprocess"
    kinds = table.to_list("kind")
    assert kinds[0] == "host_wait"
    assert kinds[-1] == "launch"
    assert "preprocess" in table.to_list("name")
    assert table["idle_ns"].sum() == 435_000


def test_a_busy_instant_and_a_trace_without_gpu_work_say_so(
    slow: Path, write_trace: WriteTrace
) -> None:
    trace = ttap.load(slow)
    start_ns, _ = trace.ranks[0].tree.profiled
    busy = trace.explain_idle(start_ns + 50 * MS)
    assert busy.num_rows == 0
    assert busy.notes == ("The GPU does not idle in this range.",)
    host = ttap.load(samples.host_only().write(write_trace([])))
    assert host.explain_idle(0, 10**15).notes == ("The trace holds no GPU work.",)
    with pytest.raises(OptionError, match="ends before it begins"):
        trace.explain_idle(5, 4)
    with pytest.raises(OptionError, match="no rank 7"):
        trace.explain_idle(5, rank=7)


def test_the_command_finds_an_instant_a_window_and_the_longest(
    slow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (["--at", "120"], ["--window", "20"], ["--window", "10", "--windows", "50"], []):
        document = answer(capsys, "explain-idle", str(slow), *place, "--json")
        assert document["waits_for"] == "aten::stack"
        assert document["rows"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--at", "1", "--window", "1"], "--at or --window, not both"),
        (["--at", "900"], "the profiled time is 600.000 ms long"),
        (["--window", "100"], "there are windows 0 to 99"),
        (["--at", "nan"], "--at nan"),
    ],
)
def test_places_outside_are_refused(
    slow: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["explain-idle", str(slow), *options]) == 2
    assert words in capsys.readouterr().err


def test_several_ranks_wait_for_each_other(tmp_path: Path) -> None:
    """Rank 0 idles while a collective waits for rank 1, whose host works."""
    for rank, late in ((0, 0), (1, 3000)):
        maker = samples.TraceMaker(rank=rank, world_size=2)
        for i in range(4):
            at = 10_000 * i
            maker.host("cpu_op", "c10d::allreduce_", at + 100 + late, 50)
            if late:
                maker.host("cpu_op", "slow_python", at + 50, late)
            end = at + 3500
            begin = at + 200 + late
            maker.gpu(
                "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin, end - begin,
                launch=at + 110 + late,
                **{"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float",
                   "Process Group Name": "0", "Group size": 2, "Process Group Ranks": "[0, 1]"},
            )  # fmt: skip
            maker.gpu("kernel", "next", at + 3600, 500, launch=at + 210 + late)
        maker.write(tmp_path / f"rank{rank}.json")
    trace = ttap.load(tmp_path)
    table = trace.explain_idle(3_550_000, rank=0)
    assert "rank" in table.shown
    assert table.num_rows
    assert table["idle_ns"].sum() == table.facts["duration_ns"]
