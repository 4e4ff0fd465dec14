"""Series of kept runs, and where they step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtraceap.cli import main
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.bench.runs.history import (
    find_steps,
    histories,
    history_html,
    history_text,
    machine_of,
    sparkline,
)
from torchtraceap.lab.bench.runs.run_store import MeasuredRun, Samples, Store

pytest.importorskip("ruptures")
pytest.importorskip("pyarrow")


def series(count: int, steps: dict[int, float], sigma: float, seed: int) -> Any:
    generator = np.random.default_rng(seed)
    logs = 18 + sigma * generator.normal(size=count)
    logs += (generator.random(count) < 0.03) * generator.exponential(0.05, count)
    for place, change in steps.items():
        logs[place:] += np.log1p(change)
    return logs


def test_noise_alone_steps_in_at_most_one_series_of_ten() -> None:
    # Measured over 200 seeds each: at most 5 % of the series, at 20 runs of 1.5 % noise.
    found = [find_steps(series(n, {}, 0.015, seed)) for n in (10, 20, 40) for seed in range(20)]

    assert sum(map(bool, found)) <= 6


@pytest.mark.parametrize(
    ("count", "steps"),
    [(20, {10: 0.05}), (40, {20: 0.05}), (40, {12: 0.06, 28: -0.06}), (40, {35: 0.05})],
)
def test_steps_are_found_where_they_are(count: int, steps: dict[int, float]) -> None:
    hits = 0
    for seed in range(20):
        found = find_steps(series(count, steps, 0.01, seed))
        hits += len(found) == len(steps) and all(
            abs(a - b) <= 1 for a, b in zip(found, steps, strict=True)
        )

    assert hits >= 17


def test_a_run_that_stands_out_is_no_step() -> None:
    logs = series(30, {}, 0.005, 3)
    logs[11] += 0.5

    assert find_steps(logs) == []


def test_steps_below_the_minimal_effect_are_not_told() -> None:
    logs = series(60, {30: 0.01}, 0.001, 1)

    assert find_steps(logs, minimal_effect=0.02) == []
    assert find_steps(logs, minimal_effect=0.005) == [30]


@pytest.mark.parametrize("count", range(6))
def test_few_runs_have_no_steps(count: int) -> None:
    assert find_steps(series(count, {}, 0.01, count)) == []


def test_without_ruptures_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ruptures", None)

    with pytest.raises(MissingDependencyError, match=r"pip install 'torchtraceap\[bench\]'"):
        find_steps(series(20, {}, 0.01, 0))


def kept(store: Store, number: int, ns: float, **environment: Any) -> None:
    steps = [round(ns * (1 + 0.001 * i)) for i in range(5)]
    store.save(
        MeasuredRun(
            name=environment.pop("name", "net"),
            when=f"2026-11-{number + 1:02d}T10:00:00Z",
            config={"model": "net"},
            environment={
                "cpu": {"model": "A processor", "allowed_cores": 2},
                "gpus": [],
                "torch": {"version": "2.12" if number < 10 else "2.13"},
                "git": {"commit": f"{number:040x}"},
                "now": {"load": number},
                **environment,
            },
            metrics={},
            counts={},
            samples=Samples.of_processes([{"fenced": steps}]),
        )
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    draw = np.random.default_rng(5)
    for number in range(20):
        kept(made, number, 6.5e7 * (1.08 if number >= 10 else 1.0) * (1 + 0.003 * draw.normal()))
    return made


def test_a_history_tells_step_and_what_changed_with_it(store: Store) -> None:
    (found,) = histories(store.folder, name="net")

    (step,) = found.steps
    assert step.place == 10
    assert step.change == pytest.approx(0.08, abs=0.01)
    assert step.low < step.change < step.high
    changed = {entry["key"]: entry for entry in step.environment}
    assert changed["torch.version"] == {"key": "torch.version", "before": "2.12", "after": "2.13"}
    assert "git.commit" in changed
    assert not any(key.startswith("now") for key in changed)
    assert found.points[0].commit == f"{0:040x}"


def test_another_machine_is_another_series(store: Store) -> None:
    kept(store, 25, 5e7, cpu={"model": "Another", "allowed_cores": 2})

    found = histories(store.folder)

    assert sorted(len(each.points) for each in found) == [1, 20]
    assert machine_of({"cpu": {"model": "A"}, "gpus": [{"name": "G"}]}) == "A, G"


def test_names_that_are_not_kept_are_an_error(store: Store) -> None:
    with pytest.raises(OptionError, match="no run 'other'"):
        histories(store.folder, name="other")


def test_a_page_holds_no_script_and_escapes(tmp_path: Path) -> None:
    made = Store(tmp_path / "store")
    kept(made, 1, 5e7, name="<script>alert(1)</script>")

    page = history_html(histories(made.folder))

    assert "<script" not in page
    assert "<svg" in page


def test_the_command_prints_text_json_and_a_page(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["bench", "history", "net", "--store", str(store.folder)]) == 0
    text = capsys.readouterr().out
    assert "+8" in text
    assert "torch.version: 2.12 → 2.13" in text

    given = ["bench", "history", "--store", str(store.folder), "--json", "--html", str(page)]
    assert main(given) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "torchtraceap.history/1"
    assert document["series"][0]["steps"][0]["place"] == 10
    assert page.read_text("utf-8").startswith("<!doctype html>")

    assert main(["bench", "history", "--store", str(tmp_path / "none")]) == 2


def test_sparklines_have_a_bar_for_each_value() -> None:
    assert sparkline([1, 2, 3]) == "▁▅█" or len(sparkline([1, 2, 3])) == 3
    assert sparkline([]) == ""
    assert len(set(sparkline([4, 4]))) == 1
    assert len(sparkline(range(1000))) == 60


def test_text_of_few_runs_says_so(tmp_path: Path) -> None:
    made = Store(tmp_path / "store")
    kept(made, 1, 5e7)

    assert "too few runs" in history_text(histories(made.folder))
