"""What-ifs on production traces of ByteDance against the answers published with them.

Source: ByteDance-Seed/StragglerAnalysis at 8efcd7f (Apache-2.0); docs/many_ranks.md has the data.
Every job in the folder is tested: `trace-NAME.csv.gz` with `result-NAME.json`, `ms-NAME.json` and
`mw-NAME.json`.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtraceap.core.table import ColumnTable
from torchtraceap.lab.jobs import (
    StragglerReport,
    build_schedule,
    read_operator_trace,
    what_if_stragglers,
)

ROOT = Path(__file__).resolve().parents[2]
ORACLES = Path(os.environ.get("TORCHTRACEAP_ORACLES", ROOT.parent / "shared" / "oracles"))
FOLDER = ORACLES / "bytedance_straggler"
JOBS = sorted(path.name.split("-", 1)[1].split(".")[0] for path in FOLDER.glob("trace-*.csv.gz"))
TOLERANCE = 0.01
RANK_CORRELATION = 0.95

pytestmark = pytest.mark.skipif(
    not JOBS, reason=f"no operator traces in {FOLDER}; set TORCHTRACEAP_ORACLES"
)
per_job = pytest.mark.parametrize("job", JOBS)


def trace_of(job: str) -> Path:
    return FOLDER / f"trace-{job}.csv.gz"


@cache
def report_of(job: str) -> StragglerReport:
    return what_if_stragglers(trace_of(job))


@cache
def published(job: str, kind: str = "result") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{kind}-{job}.json").read_text())
    return content


def rank_correlation(left: list[float], right: list[float]) -> float:
    """Spearman's, without ties."""
    first, second = (np.argsort(np.argsort(values)) for values in (left, right))
    return float(np.corrcoef(first, second)[0, 1])


def by_member(table: ColumnTable, by: str) -> dict[str, float]:
    rows = zip(table["by"], table["member"], table["slowdown"], strict=True)
    return {member: float(value) for kind, member, value in rows if kind == by}


@per_job
def test_a_replay_with_delays_is_the_recording(job: str) -> None:
    schedule = build_schedule(read_operator_trace(trace_of(job)))
    times = schedule.replay(delayed=True)
    np.testing.assert_allclose(times.end_ns, schedule.trace.end_ns, atol=1_000)


@per_job
def test_slowdown(job: str) -> None:
    report = report_of(job)
    assert report.slowdown == pytest.approx(published(job)["blocking_slowdown"], rel=TOLERANCE)
    assert report.delay_slowdown == pytest.approx(published(job)["launch_slowdown"], rel=TOLERANCE)


@per_job
@pytest.mark.parametrize(
    ("column", "key"),
    [
        ("measured_ns", "step_t_base"),
        ("undelayed_ns", "step_t_nodelay"),
        ("ideal_ns", "step_t_noblk"),
    ],
)
def test_step_times(job: str, column: str, key: str) -> None:
    steps = report_of(job).steps
    ours = dict(zip(steps["step"].tolist(), (steps[column] / 1e9).tolist(), strict=True))
    theirs = {int(step): seconds for step, seconds in published(job)[key].items()}
    assert ours == pytest.approx(theirs, rel=TOLERANCE)


@per_job
@pytest.mark.parametrize(
    ("by", "key"), [("dp_rank", "dp_rank"), ("stage", "stage"), ("op_type", "optype")]
)
def test_attribution(job: str, by: str, key: str) -> None:
    theirs = published(job)[f"blocking_decompose_by_{key}"]
    if theirs is None:
        pytest.skip("published only for jobs that lose 3 % or more")
    ours = by_member(report_of(job).attribution, by)
    assert ours == pytest.approx(theirs, rel=TOLERANCE)
    members = sorted(theirs)
    correlation = rank_correlation(
        [round(ours[m], 6) for m in members], [round(theirs[m], 6) for m in members]
    )
    assert correlation >= RANK_CORRELATION


@per_job
def test_metrics_of_location(job: str) -> None:
    report = report_of(job)
    assert report.last_stage_share == pytest.approx(published(job, "ms")["Ms"], abs=TOLERANCE)
    assert report.worst_workers_share == pytest.approx(published(job, "mw")["Mw"], abs=TOLERANCE)
