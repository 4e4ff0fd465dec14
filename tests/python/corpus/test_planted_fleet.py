"""A corpus of traces with planted faults tells what was planted: hours, order, weeks, nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "scaling"))

from fleet import measure


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return measure(tmp_path_factory.mktemp("fleet"), runs=150, seed=1, jobs=1)


def test_every_run_is_read(judged: dict[str, Any]) -> None:
    assert (judged["runs"], judged["failed"]) == (150, 0)


def test_hours_and_their_order_are_those_that_were_planted(judged: dict[str, Any]) -> None:
    assert abs(judged["worst_error"]) <= 0.05
    assert judged["tau"] >= 0.95


def test_nothing_begins_and_no_host_is_bad_but_what_was_planted(judged: dict[str, Any]) -> None:
    assert judged["trends_not_planted"] == []
    assert judged["hosts_not_planted"] == []


@pytest.mark.slow
def test_a_thousand_runs_tell_weeks_teams_and_nodes(tmp_path: Path) -> None:
    judged = measure(tmp_path, runs=1000, seed=2)
    assert abs(judged["worst_error"]) <= 0.05
    assert judged["tau"] >= 0.95
    assert judged["onset_weeks_right"] == judged["onset_teams_right"] == judged["onsets"]
    assert judged["bad_hosts_found"] == judged["bad_hosts"]
    assert judged["trends_not_planted"] == judged["hosts_not_planted"] == []
