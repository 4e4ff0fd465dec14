"""What workloads use of PyTorch, and which of them to run in a given time."""

from __future__ import annotations

import itertools
import json
import random
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torchtraceap._core", reason="torchtraceap._core is not built")

from torchtraceap import cli
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench import coverage
from torchtraceap.lab.bench import selection as selecting
from torchtraceap.lab.bench.coverage import Coverage, WorkloadCoverage, stored_coverage
from torchtraceap.lab.bench.selection import Candidate, select
from torchtraceap.lab.workloads import registry
from torchtraceap.ops.models.families import FAMILIES

OWN = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return torch.nn.functional.relu(self.layer(x)).double()

def small(batch=3):
    return {"model": Net(), "inputs": (torch.randn(batch, 4),), "loss": lambda out: out.sum()}

def forward_only():
    return {"model": Net(), "inputs": (torch.randn(3, 4),)}
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return f"{path}:small"


@pytest.fixture(scope="module")
def measured(own: str) -> Coverage:
    return coverage.measure_coverage([own, own.replace("small", "forward_only")])


# ------------------------------------------------------------------------- coverage


@pytest.mark.slow  # starts processes that import torch
def test_functions_are_those_that_torchbench_counts(measured: Coverage) -> None:
    train = measured.rows[0]
    assert train.mode == "train"
    assert {"torch.nn.functional.relu", "torch._C._nn.linear"} <= set(train.functions)
    assert set(train.functions) <= set(measured.surface) and len(measured.surface) > 1000


def test_operators_count_by_type_and_direction(measured: Coverage) -> None:
    train, evaluated, forward_only = measured.rows
    assert {
        "aten::addmm float32 forward", "aten::relu float32 forward", "aten::mm float32 backward",
        "aten::threshold_backward float32 backward", "aten::_to_copy float64 backward",
    } <= set(train.ops)  # fmt: skip
    assert not any("backward" in op for op in evaluated.ops)
    assert not any(op.startswith("aten::linear ") for op in evaluated.ops), "made of others"
    assert evaluated.ops == forward_only.ops
    assert {"gemm", "activation"} <= set(train.families) <= set(FAMILIES)


def test_what_cannot_be_run_is_told_with_its_reason(measured: Coverage) -> None:
    (missing,) = measured.missing
    assert missing.mode == "train" and "no loss" in missing.reason


def test_a_file_gives_back_what_was_written(measured: Coverage, tmp_path: Path) -> None:
    path = tmp_path / "coverage.json"
    coverage.write_coverage(measured, path)
    assert coverage.read_coverage(path) == measured
    for text in ("", "{}", path.read_text().replace("coverage/1", "coverage/9")):
        path.write_text(text)
        with pytest.raises(OptionError, match=r"coverage\.json: can't be read"):
            coverage.read_coverage(path)


def test_stored_coverage_is_of_the_whole_suite() -> None:
    stored = stored_coverage()
    suite = {entry.name for entry in registry.workloads() if entry.source == "suite"}
    assert {(row.name, row.mode) for row in stored.rows} == {
        (name, mode) for name in suite for mode in ("train", "eval")
    }, "the command in docs/results/workloads.md makes it anew"
    assert not stored.missing
    for kind in coverage.KINDS:
        assert stored.covered(kind) and stored.uncovered(kind)
    assert all(row.made_s >= 0 and row.step_s >= 0 for row in stored.rows)


@pytest.mark.slow  # starts processes that import torch
def test_stored_coverage_is_what_is_measured() -> None:
    torch = pytest.importorskip("torch")
    stored = stored_coverage()
    if torch.__version__ != stored.torch:
        pytest.skip(f"it was measured by torch {stored.torch}")
    found = coverage.measure_coverage(["ncf", "sinkhorn"])
    kept = stored.restrict(["ncf", "sinkhorn"], ["train", "eval"])
    by_key = {(row.name, row.mode): row for row in kept.rows}
    for row in found.rows:
        assert row.functions == by_key[row.name, row.mode].functions
        assert row.ops == by_key[row.name, row.mode].ops


def _row(name: str, *ops: str, mode: str = "train") -> WorkloadCoverage:
    return WorkloadCoverage(name, mode, (), ops, 0.1, 0.01)


def test_unions_and_what_one_alone_has() -> None:
    mm, add = "aten::mm float32 forward", "aten::add float32 forward"
    found = Coverage(
        "2", (), ("aten::add", "aten::mm", "aten::sin"), {},
        (_row("a", mm, add), _row("a", mm, mode="eval"), _row("b", add), _row("c", add)),
    )  # fmt: skip
    assert found.union("ops") == {mm, add}
    assert found.covered("ops") == {"aten::mm", "aten::add"}
    assert found.uncovered("ops") == ("aten::sin",)
    assert found.unique("ops") == {"a": (mm,)}
    assert found.restrict(["a"], ["eval"]).rows == (found.rows[1],)
    with pytest.raises(OptionError, match="functions, ops, families"):
        found.rows[0].of("kernels")


def test_findings_are_those_of_kept_diagnoses() -> None:
    def run(name: str, *types: str, read: bool = True) -> Any:
        diagnosis = {"findings": [{"type": each} for each in types]} if read else None
        return SimpleNamespace(name=name, config={"workload": name}, diagnosis=diagnosis)

    runs = [run("a", "small_copies"), run("a", "no_zero_grad"), run("b", read=False), run("c")]
    store: Any = SimpleNamespace(runs=lambda: runs)
    found = coverage.finding_types(store)
    assert found == {"a": ("no_zero_grad", "small_copies"), "c": ()}
    assert len(coverage.all_types()) > 8


# ------------------------------------------------------------------------- choosing


def _made(rng: random.Random, many: int) -> list[Candidate]:
    return [
        Candidate(
            f"w{place}", "train", rng.choice((1.0, 2.0, 3.0, 5.0)),
            frozenset(rng.sample("abcdefghij", rng.randint(1, 5))),
        )
        for place in range(many)
    ]  # fmt: skip


def _covered(chosen: Sequence[Candidate]) -> int:
    return len(frozenset().union(*(each.covers for each in chosen)))


def _choices(candidates: list[Candidate]) -> list[tuple[Candidate, ...]]:
    sizes = range(len(candidates) + 1)
    return [each for size in sizes for each in itertools.combinations(candidates, size)]


@pytest.mark.parametrize("seed", range(40))
def test_a_budget_is_kept_and_the_best_is_not_far(seed: int) -> None:
    rng = random.Random(seed)
    candidates, budget = _made(rng, 8), rng.choice((3.0, 6.0, 9.0))
    found = select(candidates, budget)
    fitting = [each for each in _choices(candidates) if sum(one.seconds for one in each) <= budget]
    best = max(map(_covered, fitting))
    assert found.seconds <= budget
    assert found.seconds == sum(each.seconds for each in found.chosen)
    assert sum(each.adds for each in found.chosen) == found.covered
    assert 0.316 * best <= found.covered <= best <= found.bound <= found.of


@pytest.mark.parametrize("seed", range(40))
def test_all_is_covered_at_a_price_not_far_from_the_least(seed: int) -> None:
    candidates = _made(random.Random(seed), 8)
    found = select(candidates)
    whole = _covered(candidates)
    least = min(
        sum(one.seconds for one in each) for each in _choices(candidates) if _covered(each) == whole
    )
    assert found.covered == found.of == found.bound == whole and found.share == 1
    assert least <= found.seconds <= (1 + 1.61) * least  # 1 + ln 5
    names = {each.name for each in found.chosen}
    chosen = [each for each in candidates if each.name in names]
    for left_out in chosen:
        assert _covered([each for each in chosen if each is not left_out]) < whole


def test_a_cheap_little_one_does_not_keep_out_the_great_one() -> None:
    little = Candidate("little", "train", 1.0, frozenset("ab"))
    great = Candidate("great", "train", 10.0, frozenset("cdefghijkl"))
    assert [each.name for each in select([little, great], 10.0).chosen] == ["great"]
    assert {each.name for each in select([little, great], 11.0).chosen} == {"little", "great"}


def test_equals_are_chosen_by_name_and_nothing_from_nothing() -> None:
    twins = [Candidate(name, "train", 1.0, frozenset("ab")) for name in ("b", "a")]
    assert [each.name for each in select(twins, 5.0).chosen] == ["a"]
    assert select([], 5.0).chosen == () and select([], None).share == 1
    free = Candidate("free", "train", 0.0, frozenset("a"))
    assert select([free], 1.0).covered == 1
    for budget in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(OptionError, match="budget"):
            select(twins, budget)
    with pytest.raises(OptionError, match="makes no sense"):
        select([Candidate("x", "train", float("nan"), frozenset())], 1.0)


def test_seconds_come_from_the_latest_kept_run() -> None:
    how = {"processes": 2, "steps": 10, "warmup": 3}
    assert selecting.seconds_of_run(4.0, 0.5, **how) == 3 * 4.0 + 2 * (2 + 20) * 0.5

    def run(first: int, **config: Any) -> dict[str, Any]:
        metrics = {"first_batch_ns": {"total": first}, "step_ns": {"median": 500_000_000}}
        base = {"workload": "a", "mode": "train", "device": "cpu", "compiled": False}
        return {"config": base | config, "metrics": metrics}

    runs = [run(10**9), run(4 * 10**9), run(9, device="cuda"), run(9, compiled=True)]
    found = selecting.measured_seconds(runs, **how)
    assert found == {("a", "train"): 3 * 4.0 + 2 * 22 * 0.5}


# ------------------------------------------------------------------------- command line


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No store is there."""
    monkeypatch.setenv("TORCHTRACEAP_BENCH", str(tmp_path / "no_store"))


def test_select_prints_its_choice_and_a_plan_that_run_reads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from torchtraceap.lab.bench.runs.config import read_plan

    plan = tmp_path / "plan.toml"
    asked = ["bench", "select", "--budget", "3m", "--json", "--plan", str(plan)]
    assert cli.main(asked) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "torchtraceap.selection/1" and document["by"] == "ops"
    assert document["budget_s"] == 180.0 and 0 < document["seconds"] <= 180.0
    assert 0 < document["covered"] <= document["bound"] <= document["of"]
    chosen = [(each["name"], each["mode"]) for each in document["chosen"]]
    assert tomllib.loads(plan.read_text())["run"]
    assert sorted((one.workload, one.mode) for one in read_plan(plan)) == sorted(chosen)


def test_select_says_how_much_of_what_is_covered(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "select", "ncf", "dlrm", "--mode", "train", "--by", "families"]) == 0
    printed = capsys.readouterr().out
    assert "100.0%" in printed and "dlrm" in printed
    assert cli.main(["bench", "select", "--budget", "soon"]) == 2
    assert "90s, 10m or 1h" in capsys.readouterr().err


def test_coverage_of_the_suite_needs_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "coverage", "resnet", "ncf", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in document["workloads"]} == {"resnet", "ncf"}
    assert "aten::convolution float32 forward" in document["workloads"][2]["ops"] + (
        document["workloads"][0]["ops"] + document["workloads"][3]["ops"]
    )
    union = document["union"]["functions"]
    assert union["share"] == union["covered"] / union["of"]
    assert len(union["uncovered"]) == union["of"] - union["covered"]
    assert document["findings"] == {"found": [], "of": list(coverage.all_types())}


def test_coverage_of_ones_own_is_measured(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "coverage", "ncf", own, "--mode", "train", "--by", "families"]) == 0
    printed = capsys.readouterr().out
    assert "own.py:small" in printed and "ncf" in printed and "All together" in printed
    assert "No workload here covers" in printed and "more." in printed
    assert cli.main(["bench", "coverage", "resnt"]) == 2
    assert "did you mean resnet" in capsys.readouterr().err
    assert cli.main(["bench", "coverage", "--write", "x.json"]) == 2
    assert cli.main(["bench", "coverage", "ncf", "--store", "not_there"]) == 2
