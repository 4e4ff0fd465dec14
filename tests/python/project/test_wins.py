"""The pairs of examples/wins: the bad side is found and breaks its contract, the good one holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a prediction runs the model")

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.lab.bench.runs.child import TRACED_STEPS
from torchtraceap.simulation.simulate import simulate

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks/wins"))
sys.path.insert(0, str(ROOT / "benchmarks"))

from measure import ALL, WINS, Win, judge, recorded, table  # noqa: E402
from measure import Row as MeasuredRow  # noqa: E402

CONTRACT = WINS / "contract.yaml"
DEVICE = "H100-SXM"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Both sides of each pair, predicted."""
    folder, found = tmp_path_factory.mktemp("wins"), {}
    for win in ALL:
        for side in ("bad", "good"):
            target = folder / f"{win.name}_{side}.json.gz"
            ttap.predict(win.source(side), device=DEVICE).write_trace(target)
            found[win.name, side] = target
    return found


Traces = dict[tuple[str, str], Path]


@pytest.fixture(scope="module")
def rows(traces: Traces) -> dict[str, MeasuredRow]:
    found = {}
    for win in ALL:
        bad, good = (judge(win, traces[win.name, side], timed=True) for side in ("bad", "good"))
        found[win.name] = MeasuredRow(
            win.name, win.section, win.finding, "predicted", DEVICE, bad, good
        )
    return found


@pytest.mark.slow  # starts processes that import torch
@pytest.mark.parametrize("win", ALL, ids=lambda win: win.name)
def test_the_fault_is_found_in_the_bad_side_alone(win: Win, rows: dict[str, MeasuredRow]) -> None:
    row = rows[win.name]
    assert row.bad.found and not row.good.found
    assert row.bad.cost_share >= 0.02


@pytest.mark.parametrize("win", ALL, ids=lambda win: win.name)
def test_the_bad_side_breaks_the_contract_by_a_count(
    win: Win, rows: dict[str, MeasuredRow]
) -> None:
    row = rows[win.name]
    assert not row.bad.passed and "findings" in row.bad.broken
    assert len(row.bad.broken) >= 2  # a count, too
    assert row.bad.first_event
    assert row.good.passed and not row.good.open
    assert not row.bad.open


@pytest.mark.parametrize("win", ALL, ids=lambda win: win.name)
def test_the_good_side_is_faster_and_the_saving_has_its_sign(
    win: Win, rows: dict[str, MeasuredRow]
) -> None:
    row = rows[win.name]
    assert row.true_ns is not None and row.true_ns > 0
    assert row.bad.saving_ns is not None
    low, best, high = row.bad.saving_ns
    assert 0 <= low <= best <= high
    assert best > 0


@pytest.mark.parametrize("name", ["zero_grad", "scalar_copy"])
def test_where_the_edit_is_the_fix_its_price_is_the_difference(
    name: str, rows: dict[str, MeasuredRow]
) -> None:
    row = rows[name]
    assert row.true_ns is not None and row.bad.saving_ns is not None
    assert row.bad.saving_method == "simulated"
    assert row.bad.saving_ns[1] == pytest.approx(row.true_ns, rel=0.1)


def test_the_command_line_fails_the_bad_side_at_its_first_wait(
    traces: Traces, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--contract", str(CONTRACT), "--name", "scalar_copy", "--json"]
    assert main(["check", str(traces["scalar_copy", "bad"]), *options]) == 1
    results = json.loads(capsys.readouterr().out)["results"]
    syncs = next(each for each in results if each["key"] == "syncs")
    assert syncs["status"] == "failed"
    assert syncs["first_event"]["name"] == "cudaStreamSynchronize"
    assert main(["check", str(traces["scalar_copy", "good"]), *options]) == 0


def test_small_copies_can_stay_and_be_left_or_go(traces: Traces) -> None:
    trace = ttap.load(traces["scalar_copy", "bad"])
    found = simulate(trace, ["no_small_copies"])
    (edit,) = found.edits
    assert edit.predicted_ns is not None and edit.low_ns is not None and edit.high_ns is not None
    assert edit.low_ns <= edit.predicted_ns <= edit.high_ns < found.measured_ns
    assert "36 small uploads" in edit.note
    without = simulate(ttap.load(traces["scalar_copy", "good"]), ["no_small_copies"])
    assert without.edits[0].predicted_ns is None


def test_the_table_has_a_line_for_each(rows: dict[str, MeasuredRow]) -> None:
    text = table(rows.values())
    assert len(text.splitlines()) == 2 + len(ALL)
    assert "not found" not in text and "fails" not in text


@pytest.mark.parametrize("win", ALL, ids=lambda win: win.name)
def test_the_page_names_every_pair_with_its_finding(win: Win) -> None:
    page = (ROOT / "docs/results/wins.md").read_text("utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {win.name} | {DEVICE}"))
    assert f"`{win.finding}`" in line


# ----------------------------------------------------------------------------- run on the CPU


@pytest.mark.slow
def test_waits_are_counted_on_a_cpu_too(tmp_path: Path) -> None:
    checks = next(win for win in ALL if win.name == "checks")
    bad, good = (judge(checks, path, timed=False) for path in recorded(checks, "cpu", tmp_path))
    assert bad.broken == {"syncs": 3 * TRACED_STEPS}
    assert good.passed and good.measured["syncs"] == 0
