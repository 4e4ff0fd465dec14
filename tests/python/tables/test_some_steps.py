"""Some steps of a trace as a trace of its own (`load(steps=...)`, `--steps`)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gpu_traces import GpuTrace

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.core.aliases import Steps
from torchtraceap.core.intervals import difference, union
from torchtraceap.errors import OptionError
from torchtraceap.tables.steps.iterations import iterations_of
from torchtraceap.trace.ranks import RankTrace

KERNELS = 3


def training(count: int, *, lag_us: float = 0.0, pause_us: float = 0.0, rank: int = 0) -> GpuTrace:
    """Steps of 100 us on the host with three kernels of 30 us, which run `lag_us` later; between
    two steps the host pauses."""
    made = GpuTrace()
    for number in range(count):
        begin = number * (100.0 + pause_us)
        made.host("user_annotation", f"ProfilerStep#{number + 3}", begin, 100.0)
        for place in range(KERNELS):
            at = begin + 30.0 * place
            made.op("aten::mm", at, 20.0)
            runs = (at + 5.0 + lag_us, 30.0)
            made.launch(f"gemm_{rank}_{number}_{place}", (at + 1.0, 3.0), runs)
    return made


def names(trace: ttap.Trace) -> list[str]:
    return [step.name for step in trace.ranks[0].tree.steps]


def judged(part: RankTrace) -> np.ndarray:
    """What of the profiled time is busy or idle."""
    return difference(
        np.array([part.tree.profiled]), union([part.tree.not_judged, part.tree.missing])
    )


def assert_part_of(part: ttap.Trace, whole: ttap.Trace) -> None:
    """The times of a part are those that the whole trace has for the same time."""
    for cut, rank in zip(part.ranks, whole.ranks, strict=True):
        spans = [rank.timeline(bounds=(int(start), int(end))) for start, end in judged(cut)]
        own = cut.profiled_timeline()
        for name in ("busy_ns", "idle_ns"):
            assert getattr(own, name) == sum(getattr(span, name) for span in spans), name
        steps = [step.name for step in rank.tree.steps]
        kept = np.isin(steps, [step.name for step in cut.tree.steps])
        lengths, in_whole = iterations_of(cut).length_ns, iterations_of(rank).length_ns[kept]
        behind = np.concatenate([[False], np.diff(np.flatnonzero(kept)) == 1])  # a step of the part
        assert lengths[behind].tolist() == in_whole[behind].tolist()
        assert (lengths <= in_whole).all()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (2, [2]),
        ("2", [2]),
        (-1, [7]),
        ("3:6", [3, 4, 5]),
        (slice(3, 6), [3, 4, 5]),
        (slice(0, 8, 3), [0, 3, 6]),
        (range(2, 4), [2, 3]),
        ("-3:", [5, 6, 7]),
        (":2", [0, 1]),
        (":", list(range(8))),
        ("0, 3:5, ProfilerStep#10", [0, 3, 4, 7]),
        ([6, "ProfilerStep#4", slice(1, 3)], [1, 2, 6]),
    ],
)
def test_steps_are_chosen_by_place_name_and_range(
    steps: Steps, expected: list[int], tmp_path: Path
) -> None:
    part = training(8).load(tmp_path).in_steps(steps)
    assert names(part) == [f"ProfilerStep#{place + 3}" for place in expected]
    assert len(part.kernels(by="event")) == KERNELS * len(expected)
    assert part.diagnostics[-1].code == "some_steps"
    assert part.diagnostics[-1].count == len(expected)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (8, r"it has no step 8; there are: 0 \(ProfilerStep#3\) to 7 \(ProfilerStep#10\)"),
        (-9, "it has no step -9"),
        ("3:9", "it has no step 8"),
        ("8:", "it has no step 8"),
        ("ProfilerStep#2", "it has no step 'ProfilerStep#2'"),
        ("3-6", "it has no step '3-6'"),
        ("5:3", "'5:3' chooses none of its 8 steps"),
        ("", "'' chooses none of its 8 steps"),
        ([], "chooses none"),
    ],
)
def test_steps_that_are_not_there_are_refused(
    steps: Steps, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = training(8).load(tmp_path)
    with pytest.raises(OptionError, match=message):
        trace.in_steps(steps)
    if isinstance(steps, str):
        assert main(["summary", str(tmp_path), f"--steps={steps}"]) == 2
        assert "steps" in capsys.readouterr().err


def test_a_trace_without_steps_has_none_to_choose(tmp_path: Path) -> None:
    trace = GpuTrace().launch("gemm", (0, 1), (2, 3)).load(tmp_path)
    with pytest.raises(OptionError, match="no step is marked or repeats"):
        trace.in_steps("0")


@pytest.mark.parametrize("lag_us", [0.0, 40.0, 130.0, 560.0])
@pytest.mark.parametrize("steps", ["2", "2:5", "1,4:6", "7"])
def test_times_are_those_of_the_whole(lag_us: float, steps: str, tmp_path: Path) -> None:
    whole = training(8, lag_us=lag_us, pause_us=17.0).load(tmp_path)
    part = whole.in_steps(steps)
    assert_part_of(part, whole)
    busy_ns = 30_000 * KERNELS * len(names(part))
    assert part.ranks[0].profiled_timeline().busy_ns == busy_ns  # all that the steps launched
    # Nothing of other steps counts, neither as work nor as idle time.
    assert part.ranks[0].profiled_ns == sum(iterations_of(part.ranks[0]).length_ns.tolist())


def test_work_of_the_step_before_is_no_idle_time(tmp_path: Path) -> None:
    whole = training(8, lag_us=90.0).load(tmp_path)
    diagnosis = whole.in_steps("5").diagnose()
    span_ns = (585_000, 685_000)  # from the end of one step's work to that of the next
    assert diagnosis.profiled_ns == span_ns[1] - span_ns[0]
    assert sum(diagnosis.idle_ns.values()) == whole.ranks[0].timeline(bounds=span_ns).idle_ns


def test_ranks_have_the_steps_of_equal_names(tmp_path: Path) -> None:
    paths = []
    for rank, first in ((0, 0), (1, 2)):
        made = training(6, rank=rank)
        made.events = [event for event in made.events if event["ts"] >= 100.0 * first]
        path = tmp_path / f"rank{rank}.json"
        info = {"distributedInfo": {"rank": rank, "world_size": 2}}
        path.write_text(json.dumps({"traceEvents": made.events, **info}))
        paths.append(path)
    whole = ttap.load(tmp_path)
    part = ttap.load(tmp_path, steps="3:5")
    assert [[step.name for step in rank.tree.steps] for rank in part.ranks] == [
        ["ProfilerStep#6", "ProfilerStep#7"]
    ] * 2
    assert_part_of(part, whole)
    with pytest.raises(OptionError, match="rank 1 has no step 'ProfilerStep#4'"):
        ttap.load(paths, steps="1:3")


def test_reports_say_that_only_some_steps_were_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training(8).load(tmp_path)
    assert main(["diagnose", str(tmp_path), "--steps", "3:6", "--no-color"]) == 0
    assert "3 of 8 steps were read (ProfilerStep#6 to ProfilerStep#8)" in capsys.readouterr().out
    assert main(["summary", str(tmp_path), "--steps", "0,3:6", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    (note,) = summary["quality"]["notes"]
    assert note["code"] == "some_steps"
    assert "with gaps" in note["message"]
    assert summary["quality"]["comparable"]


def test_a_part_can_be_written_and_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training(8).load(tmp_path)
    small = tmp_path / "small.json.gz"
    assert main(["convert", str(tmp_path / "trace.json"), str(small), "--steps", "3:6"]) == 0
    again = ttap.load(small)
    assert names(again) == ["ProfilerStep#6", "ProfilerStep#7", "ProfilerStep#8"]
    assert len(again.kernels(by="event")) == KERNELS * 3


def test_parts_of_real_traces_are_those_of_the_whole(corpus_file: Path) -> None:
    whole = ttap.load(corpus_file)
    count = min(len(rank.tree.steps) for rank in whole.ranks)
    for steps in [str(count // 2), "1:-1" if count > 2 else ":"] if count else []:
        assert_part_of(whole.in_steps(steps), whole)


def test_findings_of_all_steps_are_those_of_the_whole(bundled: Path) -> None:
    whole, part = ttap.load(bundled).diagnose(), ttap.load(bundled, steps=":").diagnose()
    assert part.verdicts == whole.verdicts
    assert part.further_verdicts == whole.further_verdicts
    assert [finding.type for finding in part.findings] == [f.type for f in whole.findings]
    for ours, theirs in zip(part.findings, whole.findings, strict=True):
        assert abs(ours.cost_share - theirs.cost_share) < 0.02


def test_a_part_of_a_step_that_shows_the_workload_elsewhere_is_diagnosed(tmp_path: Path) -> None:
    """What shows that a model is served lies in front of the steps that are read."""
    made = training(6)
    made.host("python_function", "vllm/worker.py(1): execute_model", -50.0, 20.0)
    diagnosis = made.load(tmp_path).in_steps("4").diagnose()
    assert diagnosis.profiled_ns > 0
