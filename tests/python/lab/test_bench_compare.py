"""Comparing two sides: pairs, looks, retries, resuming, suites, stored runs, the command line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtraceap.cli import main
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.comparison import suites as comparing_many
from torchtraceap.lab.bench.comparison.calibrate import build_calibration, estimate_noise
from torchtraceap.lab.bench.comparison.compare import compare
from torchtraceap.lab.bench.comparison.pairs import Pairs
from torchtraceap.lab.bench.comparison.report import comparison_lines
from torchtraceap.lab.bench.comparison.sides import open_sides, split_command, workload_program
from torchtraceap.lab.bench.comparison.stored_runs import compare_stored
from torchtraceap.lab.bench.comparison.suites import SuiteEntry, compare_many, read_suite
from torchtraceap.lab.bench.processes.programs import ProgramError
from torchtraceap.lab.bench.runs.run_store import MeasuredRun, Samples, Store
from torchtraceap.lab.bench.statistics.sequential import Plan, abba

INTERFACE = ["schema", "verdict", "change", "pairs", "alpha", "method", "counts", "causes"]
MS = 1_000_000


class Made:
    """A side whose runs take what a generator of numbers says."""

    def __init__(self, name: str, times: Iterator[float], calls: list[str] | None = None) -> None:
        self.name = name
        self.times = times
        self.calls = calls if calls is not None else []
        self.traced: Path | None = None

    def run(self) -> int:
        self.calls.append(self.name)
        value = next(self.times)
        if value < 0:
            raise ProgramError("crashed")
        return round(value)

    def trace(self) -> Path | None:
        return self.traced


def around(middle: float, noise: float, seed: int) -> Iterator[float]:
    generator = np.random.default_rng(seed)
    return (middle * np.exp(generator.normal(0, noise)) for _ in count())


def made(change: float, noise: float = 0.004) -> tuple[Made, Made]:
    return Made("a", around(MS, noise, 1)), Made("b", around(MS * (1 + change), noise, 2))


# ---------------------------------------------------------------------------------- compare


@pytest.mark.parametrize(
    ("change", "verdict"), [(0.05, "slower"), (-0.05, "faster"), (0.0, "equivalent")]
)
def test_verdict_and_its_document(change: float, verdict: str) -> None:
    found = compare(*made(change), reproduce="again")
    assert found.verdict == verdict
    document = json.loads(found.to_json())
    assert list(document)[: len(INTERFACE)] == INTERFACE
    assert document["schema"] == "torchtraceap.comparison/1"
    assert list(document["change"]) == ["best", "low", "high"]
    assert document["change"]["low"] <= change <= document["change"]["high"]
    assert document["pairs"] == len(document["pairs_ns"]) == len(document["orders"]) == 10
    assert set(document["rules"]) >= {"torchbench_7_percent", "asv", "blocks_mwu"}
    assert document["before"]["median_ns"] == pytest.approx(MS, rel=0.01)
    assert comparison_lines(found)[0].startswith(f"{verdict}: B ")


def test_noise_is_undecided_after_the_last_look() -> None:
    found = compare(*made(0.0, noise=0.3), looks=(4, 8))
    assert (found.verdict, found.pairs) == ("undecided", 8)
    assert [look.pairs for look in found.looks] == [4, 8]
    assert any("it can't say slower or faster" in note for note in found.notes)
    assert "undecided" in comparison_lines(found)[0]


def test_sides_run_in_the_order_of_the_coin_behind_a_pair_that_is_not_counted() -> None:
    calls: list[str] = []
    a = Made("a", iter([9 * MS, *[MS] * 10]), calls)
    b = Made("b", iter([9 * MS, *[MS] * 10]), calls)
    compare(a, b, looks=(10,), seed=3)
    first = abba(10, np.random.default_rng(3))
    assert calls == ["a", "b", *[name for a_first in first for name in ("ab" if a_first else "ba")]]
    assert (found := compare(*made(0.05), looks=(10,), seed=3)).to_dict()["orders"] == [
        "AB" if a_first else "BA" for a_first in first
    ]
    assert found.before_ns < 2 * MS


def test_a_run_that_fails_is_tried_once_more() -> None:
    times = iter([MS, -1, *[MS] * 10])
    assert compare(Made("a", times), Made("b", around(MS, 0, 1)), looks=(10,)).pairs == 10
    with pytest.raises(ProgramError, match=r"side B \(b\) failed twice: crashed"):
        compare(Made("a", around(MS, 0, 1)), Made("b", iter([MS, -1, -1])))


def test_a_comparison_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    kept = tmp_path / "pairs.jsonl"

    def breaking() -> Iterator[float]:
        yield from [MS] * 6
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(Made("a", breaking()), Made("b", around(MS, 0, 1)), looks=(10,), kept=kept)
    before = kept.read_text().splitlines()
    assert len(before) >= 4
    found = compare(*made(0.05), looks=(10,), kept=kept)
    after = kept.read_text().splitlines()
    assert after[: len(before)] == before
    assert len(after) == found.pairs == 10
    assert f"{len(before)} pairs are from a run that was interrupted" in found.notes
    with pytest.raises(OptionError, match="pairs of another comparison"):
        compare(*made(0.05), looks=(10,), seed=1, kept=kept)


@pytest.mark.parametrize("content", ["no json", "{}", '{"order": "AB"}', "[1]"])
def test_a_damaged_file_of_pairs_is_refused(tmp_path: Path, content: str) -> None:
    kept = tmp_path / "pairs.jsonl"
    kept.write_text(content)
    with pytest.raises(OptionError, match="holds no pairs of runs"):
        Pairs(*made(0.0), most=10, seed=0, kept=kept)


# ---------------------------------------------------------------------------------- evidence


def recorded(*calls: tuple[str, int], steps: int = 6) -> list[dict[str, Any]]:
    """A trace of a processor: each step makes the same calls, which take so many microseconds."""
    events: list[dict[str, Any]] = []
    length = sum(us for _, us in calls) + 10 * len(calls)
    for step in range(steps):
        at = 1000 + step * length
        events.append(event("user_annotation", f"ProfilerStep#{step}", at, length))
        for name, us in calls:
            events.append(event("cpu_op", name, at + 1, us))
            at += us + 10
    return events


def event(category: str, name: str, at: int, us: int) -> dict[str, Any]:
    where = {"ph": "X", "pid": 1, "tid": 1}
    return {**where, "cat": category, "name": name, "ts": at, "dur": us, "args": {}}


def test_counts_and_causes_come_from_both_traces(write_trace: Callable[..., Path]) -> None:
    a, b = made(0.0)
    first, second = ("aten::mm", 500), ("aten::add", 200)
    a.traced = write_trace(recorded(first, second), "a.json")
    b.traced = write_trace(recorded(first, second, ("aten::item", 300)), "b.json")
    found = compare(a, b)
    document = json.loads(found.to_json())
    assert document["counted_by"] == "step"
    assert {"key": "operators", "before": 2, "after": 3} in document["counts"]
    assert {"operators", "syncs"} <= set(document["counts_changed"])
    assert document["verdict"] == "equivalent"  # the clocks; counts are told all the same
    assert any(line.startswith("counts changed (a step): ") for line in comparison_lines(found))
    assert sum(cause["delta_ns"] for cause in document["causes"]) == pytest.approx(
        document["traced_difference_ns"], abs=1
    )
    assert "aten::item" in document["causes"][0]["name"]
    assert {"name", "delta_ns", "share"} <= document["causes"][0].keys()


def test_a_verdict_stands_without_traces(tmp_path: Path) -> None:
    a, b = made(0.05)
    a.traced = b.traced = tmp_path / "broken.json"
    a.traced.write_text("nothing")
    found = compare(a, b)
    assert found.verdict == "slower"
    assert any(note.startswith("no counts and no causes: ") for note in found.notes)
    missing = compare(*made(0.05))
    assert "no trace of side A and B: no counts and no causes" in missing.notes
    assert not compare(*made(0.05), causes=False).evidence.notes


# ------------------------------------------------------------------------------------ suites


def test_alarms_of_a_suite_take_more_looks_until_they_are_beyond_its_number() -> None:
    entries = [SuiteEntry(f"same {i}", *made(0.0), Plan()) for i in range(20)]
    entries.append(SuiteEntry("slow", *made(0.05), Plan()))
    found = compare_many(entries, causes=False).to_dict()
    assert found["schema"] == "torchtraceap.comparisons/1"
    assert (found["slower"], found["faster"]) == (["slow"], [])
    slow = found["comparisons"][-1]
    assert slow["q"] <= found["fdr"]
    assert slow["pairs"] > 10  # enough alone, not among 21
    assert [each["pairs"] for each in found["comparisons"][:-1]] == [10] * 20


@pytest.mark.slow  # starts processes that import torch
def test_an_alarm_that_the_suite_does_not_bear_out_is_undecided() -> None:
    plan = Plan(looks=(10,))
    entries = [SuiteEntry(f"same {i}", *made(0.0), plan) for i in range(40)]
    found = compare_many([*entries, SuiteEntry("slow", *made(0.05), plan)], causes=False)
    _, q, slow = found.comparisons[-1]
    assert q > 0.05
    assert slow.verdict == "undecided"
    assert any("alone this would be slower" in note for note in slow.notes)


def test_a_file_of_a_suite(tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_text('[[compare]]\nname = "x"\na = "true"\nb = "true"\nminimal_effect = "5%"\n')
    (only,) = read_suite(path)
    assert (only.name, only.a, only.minimal_effect) == ("x", "true", "5%")
    for wrong, why in {
        "": "a table",
        "a = 1": "a table",
        "[[compare]]\na = 'x'": "needs a and b",
        "[[compare]]\na = 'x'\nb = 'y'\nc = 'z'": "has 'c'",
        "[[compare]]\na = 'x'\nb = 1": "are texts",
        "[[compare]]\na = 'x'\nb = 'y'\n" * 2: "the same name",
        "[[": "is no TOML",
    }.items():
        path.write_text(wrong)
        with pytest.raises(OptionError, match=why):
            read_suite(path)
    assert comparing_many.FDR == 0.05


# ------------------------------------------------------------------------------- stored runs


def stored(store: Store, name: str, medians: list[float], **config: Any) -> str:
    processes = [{"fenced": [round(ns * factor) for factor in (0.99, 1, 1.01)]} for ns in medians]
    run = MeasuredRun(
        name=name,
        when="2026-01-01T00:00:00Z",
        config=config,
        environment={"python": "3"},
        metrics={},
        counts={"launches": len(config)},
        samples=Samples.of_processes(processes),
    )
    return store.save(run).id


def test_two_stored_runs_are_compared_without_pairs(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = Store(tmp_path)
    quick = [MS * (1 + i / 1000) for i in range(8)]
    a = store.load(stored(store, "one", quick))
    b = store.load(stored(store, "two", [ns * 1.1 for ns in quick], batch=2))
    found = compare_stored(a, b)
    document = json.loads(found.to_json())
    assert (document["verdict"], document["pairs"]) == ("slower", 0)
    assert document["change"]["best"] == pytest.approx(0.1, abs=0.01)
    assert "unpaired" in document["method"]
    assert any("can't be known" in note for note in document["notes"])
    assert any("configurations differ: batch" in note for note in document["notes"])
    assert document["counts"] == [{"key": "launches", "before": 0, "after": 1}]
    assert document["counts_changed"] == ["launches"]
    few = store.load(stored(store, "three", quick[:3]))
    assert compare_stored(a, few).verdict == "undecided"


# ------------------------------------------------------------------------------------- sides


def test_commands_are_split_without_a_shell() -> None:
    assert split_command("python 'a b.py' $X") == ["python", "a b.py", "$X"]
    for wrong in ("", "  ", "'open"):
        with pytest.raises(OptionError):
            split_command(wrong)


def test_a_revision_without_a_program_is_told() -> None:
    with pytest.raises(OptionError, match="say what runs in it"), open_sides("HEAD", "HEAD"):
        pass
    with (
        pytest.raises(OptionError, match="--setup is for revisions"),
        open_sides("true", "true", setup="make"),
    ):
        pass


def test_words_of_a_workload() -> None:
    *_, spec = workload_program("workload:resnet,compile,bf16,eval,batch=4,threads=1")
    chosen = json.loads(spec)
    assert chosen["workload"] == "resnet"
    assert (chosen["compiled"], chosen["precision"], chosen["mode"]) == (True, "bf16", "eval")
    assert (chosen["batch"], chosen["threads"]) == (4, 1)
    for wrong in ("workload:resnet,fast", "workload:resnet,batch=x", "workload:no_such_one"):
        with pytest.raises(OptionError):
            workload_program(wrong)


# ------------------------------------------------------------------------------ command line

PROGRAM = """
import json, os, random, sys
random.seed(os.getpid())
middle = float(sys.argv[1])
steps = [round(middle * random.gauss(1, 0.002)) for _ in range(9)]
target = os.environ.get("TORCHTRACEAP_STEPS")
if target:
    text = json.dumps({"schema": "torchtraceap.steps/1", "step_ns": steps, "warmup": 2})
    open(target, "w").write(text)
"""

Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def program(tmp_path: Path) -> Callable[[float], str]:
    """A command whose steps take what it is told, as it says."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return lambda ns: shlex.join([sys.executable, "-S", str(path), str(ns)])


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process."""

    def run(*words: str) -> tuple[int, dict[str, Any], str]:
        code = main(["bench", *words])
        told = capsys.readouterr()
        return (
            code,
            json.loads(told.out) if "--json" in words and told.out else {},
            (told.out + told.err),
        )

    return run


def test_two_commands(program: Callable[[float], str], bench: Run) -> None:
    quick, slow = program(MS), program(1.1 * MS)
    code, found, _ = bench("compare", quick, slow, "--no-causes", "--json")
    assert (code, found["verdict"], found["pairs"]) == (0, "slower", 10)
    assert found["before"]["name"] == quick
    assert found["reproduce"].startswith("torchtraceap bench compare ")
    code, _, text = bench("compare", quick, slow, "--no-causes", "--gate")
    assert code == 1
    assert text.startswith("slower: B takes ")
    assert bench("compare", slow, quick, "--no-causes", "--gate-undecided")[0] == 0
    few = ("--pairs", "3", "--no-causes")
    assert bench("compare", quick, slow, *few, "--gate")[0] == 0
    code, _, text = bench("compare", quick, slow, *few, "--gate-undecided")
    assert code == 1
    assert "undecided: 3 pairs can't say anything yet" in text


def test_a_side_that_fails_is_named(program: Callable[[float], str], bench: Run) -> None:
    broken = shlex.join([sys.executable, "-S", "-c", "import sys; sys.exit('no such thing')"])
    code, _, text = bench("compare", program(MS), broken, "--no-causes")
    assert code == 2
    assert "side B" in text
    assert "exit code 1: no such thing" in text
    hangs = shlex.join([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    code, _, text = bench("compare", hangs, broken, "--no-causes", "--timeout", "0.2")
    assert code == 2
    assert "side A" in text


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "true"],
        ["compare", "true", "true", "--minimal-effect", "2"],
        ["compare", "true", "true", "--alpha", "2"],
        ["compare", "true", "true", "--pairs", "0"],
        ["compare", "true", "true", "--setup", "make"],
        ["compare", "true", "true", "--"],
        ["compare", "true", "true", "--suite", "x.toml"],
        ["compare", "--suite", "no_such_file.toml"],
        ["compare", "no_such_program_here", "true"],
        ["calibrate", "true", "--runs", "20"],
        ["calibrate", "true", "--", "true"],
    ],
)
def test_what_cannot_be_used_is_one_sentence(words: list[str], bench: Run) -> None:
    code, _, text = bench(*words)
    assert code == 2
    assert "internal error" not in text
    assert len(text.splitlines()) <= 2


def test_a_store_keeps_the_verdict_and_never_mixes_times(
    program: Callable[[float], str], bench: Run, tmp_path: Path
) -> None:
    words = ("compare", program(MS), program(MS), "--no-causes", "--store", str(tmp_path / "kept"))
    assert bench(*words)[0] == 0
    assert bench(*words)[0] == 0
    kept = sorted(path.parent.name for path in tmp_path.glob("kept/comparisons/*/comparison.json"))
    assert len(kept) == 2
    assert kept[1] == f"{kept[0]}-2"


def test_two_stored_runs_by_their_ids(bench: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = Store(tmp_path)
    quick = [MS * (1 + i / 1000) for i in range(8)]
    a, b = stored(store, "one", quick), stored(store, "two", [ns * 1.1 for ns in quick])
    where = ("--store", str(tmp_path), "--json", "--gate")
    code, found, text = bench("compare", a, b[:12], *where)
    assert (code, found["verdict"]) == (1, "slower")
    other = stored(store, "three", quick, batch=2)
    assert bench("compare", a, other, "--store", str(tmp_path))[0] == 0
    assert bench("compare", a, other, "--store", str(tmp_path), "--gate-counts")[0] == 1
    code, _, text = bench("compare", a, "true", *where)
    assert code == 2
    assert "is no run" in text


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.invalid"]
    subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True)


def test_two_revisions_run_in_checkouts_of_their_own(
    bench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "--quiet")
    script = project / "bench.py"
    for factor in (1.0, 1.2):
        script.write_text(
            PROGRAM.replace("float(sys.argv[1])", f"{factor * MS} * os.path.exists('made')")
        )
        git(project, "add", ".")
        git(project, "commit", "--quiet", "-m", f"factor {factor}")
    script.write_text("not committed")
    monkeypatch.chdir(project)
    setup = shlex.join([sys.executable, "-S", "-c", "open('made', 'w').close()"])
    words = ("HEAD~1", "HEAD", "--no-causes", "--setup", setup, "--json")
    code, found, _ = bench("compare", *words, "--", sys.executable, "-S", "bench.py")
    assert (code, found["verdict"]) == (0, "slower")
    assert found["change"]["best"] == pytest.approx(0.2, abs=0.02)
    assert found["after"]["name"].startswith("HEAD (")
    assert script.read_text() == "not committed"
    assert not (project / "made").exists()
    trees = subprocess.run(["git", "worktree", "list"], capture_output=True, check=True)
    assert len(trees.stdout.splitlines()) == 1


def test_a_suite_on_the_command_line(
    program: Callable[[float], str], bench: Run, tmp_path: Path
) -> None:
    path = tmp_path / "suite.toml"
    quick, slow = json.dumps(program(MS)), json.dumps(program(1.1 * MS))
    path.write_text(
        f'[[compare]]\nname = "same"\na = {quick}\nb = {quick}\n'
        f'[[compare]]\nname = "slow"\na = {quick}\nb = {slow}\nminimal_effect = 0.05\n'
    )
    code, found, _ = bench("compare", "--suite", str(path), "--no-causes", "--gate", "--json")
    assert (code, found["slower"]) == (1, ["slow"])
    assert [each["minimal_effect"] for each in found["comparisons"]] == [0.02, 0.05]
    code, _, text = bench("compare", "--suite", str(path), "--no-causes", "--pairs", "2")
    assert code == 0
    assert "undecided" in text


# --------------------------------------------------------------------------------- calibrate


def test_calibration_of_recorded_runs() -> None:
    generator = np.random.default_rng(3)
    steps = [
        MS * np.exp(generator.normal(0, 0.004) + generator.normal(0, 0.001, 9)) for _ in range(100)
    ]
    found = build_calibration("made", steps, comparisons=200)
    document = json.loads(found.to_json())
    assert document["schema"] == "torchtraceap.calibration/1"
    assert document["false_alarms"]["value"] <= 0.02
    assert document["windows"] == 1
    by = {(row["rule"], row["effect"]): row for row in document["rows"]}
    assert by["ours", 0.03]["flagged"]["value"] > 0.98
    assert by["torchbench_7_percent", 0.03]["flagged"]["value"] == 0
    assert by["single_run_2_percent", 0.03]["flagged"]["value"] > 0.8
    assert 0 < document["least_effect"] < 0.02
    assert document["noise"]["run"] == pytest.approx(0.004, rel=0.3)
    with pytest.raises(OptionError, match="too few"):
        build_calibration("made", steps[:79])


def test_noise_tells_drift_from_runs() -> None:
    steady = estimate_noise([np.full(3, MS * (1 + 0.01 * (-1) ** run)) for run in range(50)])
    assert steady.drift == 0
    assert steady.lag_one < -0.9
    drifting = estimate_noise([np.array([MS * (1 + 0.001 * run)]) for run in range(50)])
    assert drifting.run < 0.001 < drifting.drift
    assert drifting.trend == pytest.approx(0.048, abs=0.002)
    assert drifting.step is None


def test_calibrate_on_the_command_line(program: Callable[[float], str], bench: Run) -> None:
    words = ("calibrate", program(MS), "--runs", "20", "--pairs", "10", "--comparisons", "50")
    code, found, _ = bench(*words, "--json")
    assert (code, found["runs"], found["looks"]) == (0, 20, [10])
    code, _, text = bench(*words)
    assert code == 0
    assert text.startswith("false alarms: ")
