"""Multi-rank what-ifs on small jobs whose answers can be worked out by hand."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_job import Job, Work

from torchtraceap.errors import MissingFileError, OptionError, ParseError
from torchtraceap.lab.jobs import (
    build_schedule,
    ideal_work,
    operator_trace,
    read_operator_trace,
    what_if_stragglers,
)


def report_of(job: Job, **options: Any) -> Any:
    return what_if_stragglers(operator_trace(job.frame), **options)


def attributed(report: Any, by: str, column: str = "slowdown") -> dict[str, float]:
    table = report.attribution
    rows = zip(table["by"], table["member"], table[column], strict=True)
    return {member: value for kind, member, value in rows if kind == by}


SHAPES = [
    {"stages": 1, "replicas": 1},
    {"stages": 1, "replicas": 3},
    {"stages": 2, "replicas": 1},
    {"stages": 4, "replicas": 2, "microbatches": 6},
    {"stages": 2, "replicas": 2, "chunks": 2},
    {"stages": 4, "replicas": 2, "microbatches": 8, "chunks": 3},
    {"stages": 4, "replicas": 2, "microbatches": 8, "chunks": 2, "idle_exchanges": True},
    {"stages": 4, "replicas": 2, "microbatches": 8, "idle_exchanges": True},
    {"stages": 2, "replicas": 2, "microbatches": 4, "chunks": 2, "overlapped": True},
    {"stages": 3, "replicas": 2, "microbatches": 2, "steps": 3},
]


def uneven(replica: int, stage: int, batch: int) -> float:
    """Different for each replica, stage and micro-batch."""
    return 1.0 + 0.37 * replica + 0.11 * stage + 0.07 * (batch * 5 % 7)


def uneven_stages(replica: int, stage: int, batch: int) -> float:
    return 1.0 + 0.3 * stage + 0.1 * (batch % 3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("work", [1.0, uneven], ids=["even", "uneven"])
def test_the_schedule_explains_a_job_that_never_idles_without_need(
    shape: dict[str, Any], work: Work | float
) -> None:
    job = Job(**shape, forward=work, backward=work)
    schedule = build_schedule(operator_trace(job.frame))
    assert not schedule.notes
    times = schedule.replay()
    compute = np.isin(schedule.trace.op_type.to_numpy(), ["forward-compute", "backward-compute"])
    np.testing.assert_allclose(
        times.begin_ns[compute], schedule.trace.start_ns[compute], atol=1_000
    )
    np.testing.assert_allclose(schedule.step_ns(times), job.length * 1e9, atol=1_000)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_with_delays_a_replay_gives_the_recording(shape: dict[str, Any]) -> None:
    job = Job(**shape, forward=uneven, transfer=0.03)
    frame = job.frame
    frame["start_ts"] += 0.001 * (np.arange(len(frame)) % 5)  # launch delays everywhere
    schedule = build_schedule(operator_trace(frame))
    times = schedule.replay(delayed=True)
    np.testing.assert_array_equal(times.begin_ns, schedule.trace.start_ns)
    np.testing.assert_array_equal(times.end_ns, schedule.trace.end_ns)


def test_one_slow_replica() -> None:
    """Replica 1 takes twice as long: T = 2 m w, ideal 1.5 m w, beside equal collectives."""
    job = Job(1, 2, 4, forward=lambda r, *_: 1.0 + r, backward=lambda r, *_: 2.0 * (1 + r))
    report = report_of(job)
    fixed = 4 * 0.5 + 0.25  # gather, embedding, reduce-scatter and clipping, optimizer
    worst, ideal = 4 * 6.0 + fixed, 4 * 4.5 + fixed
    assert report.undelayed_ns == pytest.approx(worst * 1e9)
    assert report.ideal_ns == pytest.approx(ideal * 1e9)
    assert report.slowdown == pytest.approx(worst / ideal)
    assert report.delay_slowdown == pytest.approx(1.0)
    assert attributed(report, "dp_rank") == pytest.approx({"1": worst / ideal, "0": 1.0})
    assert attributed(report, "dp_rank", "recovered_share") == pytest.approx({"1": 1.0, "0": 0.0})
    assert report.worst_workers == (1,)
    assert report.worst_workers_share == pytest.approx(1.0)
    kinds = attributed(report, "op_type")
    assert kinds["backward-compute"] == pytest.approx((4 * (4.0 + 1.5) + fixed) / ideal)
    assert kinds["forward-compute"] == pytest.approx((4 * (2.0 + 3.0) + fixed) / ideal)
    assert kinds["optimizer"] == pytest.approx(1.0)


def test_slow_last_stage() -> None:
    """Two stages with (1, 1) and (2, 2): T = 1 + 4 m + 1, ideal (m + 1) 3."""
    m = 6
    job = Job(2, 1, m, forward=lambda r, s, b: 1.0 + s, backward=lambda r, s, b: 1.0 + s)
    report = report_of(job)
    fixed = 2 * 0.5 + 0.25
    assert report.undelayed_ns == pytest.approx((4 * m + 2 + fixed) * 1e9)
    assert report.ideal_ns == pytest.approx((3 * m + 3 + fixed) * 1e9)
    assert report.last_stage_share > 1.0  # the first stage alone is faster than the mean
    stages = attributed(report, "stage")
    assert stages["1"] > 1 > stages["0"]


def test_an_even_job_loses_nothing() -> None:
    report = report_of(Job(4, 2, 8, steps=2))
    assert report.slowdown == pytest.approx(1.0)
    assert report.wasted_share == pytest.approx(0.0)
    assert np.isnan(report.last_stage_share)
    assert report.to_dict()["last_stage_share"] is None


def test_ideal_takes_the_mean_of_compute_and_the_median_of_transfers() -> None:
    job = Job(1, 3, 2, forward=lambda r, *_: 1.0 + 9 * (r == 2), collective=0.5)
    schedule = build_schedule(operator_trace(job.frame))
    work = ideal_work(schedule)
    names = schedule.trace.op_type.to_numpy()
    assert work[names == "forward-compute"] == pytest.approx(4e9)
    assert work[names == "optimizer-clip-main-grad"] == pytest.approx(0.5e9)


def test_equal_replicas_take_the_time_of_one_and_their_collectives() -> None:
    alone, together = (
        build_schedule(operator_trace(Job(3, replicas, 6, forward=uneven_stages).frame))
        for replicas in (1, 4)
    )
    gather_and_scatter = 2 * 0.5e9
    np.testing.assert_allclose(
        together.step_ns(together.replay()),
        alone.step_ns(alone.replay()) + gather_and_scatter,
        atol=1_000,
    )


def test_waiting_is_not_work() -> None:
    """Of a receive that waits for its peer, only the transfer counts."""
    job = Job(2, 1, 1, forward=3.0, transfer=0.125)
    schedule = build_schedule(operator_trace(job.frame))
    names = schedule.trace.op_type.to_numpy()
    assert schedule.trace.duration_ns[names == "forward-recv"] == pytest.approx(3.125e9)
    assert schedule.work_ns[names == "forward-recv"] == pytest.approx(0.125e9)


@settings(max_examples=30, deadline=None)
@given(
    stages=st.integers(1, 4),
    replicas=st.integers(1, 3),
    rounds=st.integers(1, 3),
    chunks=st.integers(1, 3),
    idle=st.booleans(),
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([0.5, 2.0]),
)
def test_properties(
    stages: int, replicas: int, rounds: int, chunks: int, idle: bool, seed: int, scale: float
) -> None:
    chunks = chunks if stages > 1 else 1
    random = np.random.default_rng(seed)
    table = random.integers(1, 64, (2, replicas, stages, rounds * stages)) / 64
    job = Job(
        stages,
        replicas,
        rounds * stages,
        forward=lambda r, s, b: float(table[0, r, s, b]),
        backward=lambda r, s, b: float(table[1, r, s, b]),
        chunks=chunks,
        idle_exchanges=idle,
    )
    trace = operator_trace(job.frame)
    schedule = build_schedule(trace)
    assert not schedule.notes
    base = schedule.step_ns(schedule.replay())
    np.testing.assert_allclose(base, job.length * 1e9, atol=1_000)
    # The order of rows is irrelevant.
    shuffled = operator_trace(job.frame.sample(frac=1.0, random_state=seed))
    again = build_schedule(shuffled)
    np.testing.assert_array_equal(again.step_ns(again.replay()), base)
    # Twice the work takes twice the time.
    work = np.rint(schedule.work_ns * scale).astype(np.int64)
    np.testing.assert_allclose(schedule.step_ns(schedule.replay(work)), base * scale, atol=1_000)
    # Less work never takes longer.
    less = np.where(random.random(len(work)) < 0.5, schedule.work_ns // 2, schedule.work_ns)
    assert (schedule.step_ns(schedule.replay(less)) <= base).all()


def test_workers_can_be_asked_for() -> None:
    report = report_of(
        Job(2, 2, 4, forward=lambda r, s, b: 3.0 if (r, s) == (1, 0) else 1.0), by=["rank"]
    )
    workers = attributed(report, "rank")
    assert max(workers, key=lambda rank: workers[rank]) == "1"
    assert report.worst_workers == (1,)
    with pytest.raises(OptionError, match="'weekday'"):
        report_of(Job(), by=["weekday"])


def test_steps_may_differ_and_workers_may_be_missing() -> None:
    job = Job(2, 2, 4, steps=2)
    frame = job.frame
    gone = frame[(frame.step == 1) & (frame.dp_rank == 1) & (frame.stage == 1)].index
    schedule = build_schedule(operator_trace(frame.drop(gone)))
    assert any("no peer" in note for note in schedule.notes)
    step_ns = schedule.step_ns(schedule.replay())
    assert step_ns[0] == pytest.approx(job.length * 1e9)
    assert step_ns[1] <= step_ns[0]


def test_unknown_types_keep_their_place() -> None:
    job = Job(1, 1, 2)
    frame = job.frame
    last = (frame.start_ts + frame.duration).max()
    frame.loc[len(frame)] = {
        **frame.iloc[-1],
        "optype": "checkpoint",
        "start_ts": last,
        "duration": 5.0,
    }
    schedule = build_schedule(operator_trace(frame))
    assert any("checkpoint" in note for note in schedule.notes)
    assert schedule.step_ns(schedule.replay())[0] == pytest.approx((job.length + 5) * 1e9)


def test_contradicted_dependencies_are_counted() -> None:
    frame = Job(1, 1, 4).frame
    frame.loc[frame.optype == "optimizer", "start_ts"] -= 3.0
    schedule = build_schedule(operator_trace(frame))
    assert any("before what they need had ended" in note for note in schedule.notes)


def test_reading_files(tmp_path: Path) -> None:
    frame = Job(2, 2, 4, forward=uneven).frame
    plain, packed = tmp_path / "job.csv", tmp_path / "job.csv.gz"
    frame.to_csv(plain, index=False)
    with gzip.open(packed, "wt", encoding="utf-8") as file:
        frame.to_csv(file, index=False)
    files = [plain, packed]
    if pytest.importorskip("pyarrow", reason="Parquet needs pyarrow"):
        files.append(tmp_path / "job.parquet")
        frame.to_parquet(files[-1])
    answers = {what_if_stragglers(file).slowdown for file in files}
    assert len(answers) == 1
    only_needed = frame.drop(columns=["rank", "mb_id", "mc", "gmc"])
    assert what_if_stragglers(operator_trace(only_needed)).slowdown in answers


def changed(**columns: Any) -> pd.DataFrame:
    frame = Job(1, 1, 2).frame.astype({"duration": object, "step": object})
    for name, value in columns.items():
        frame.loc[3, name] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pd.DataFrame({"step": [1]}), "needs the columns dp_rank, stage"),
        (Job(1, 1, 2).frame.head(0), "0 operators"),
        (changed(duration=-1.0), "duration is negative in row 4"),
        (changed(duration=float("nan")), "duration must be a time in seconds; row 4"),
        (changed(duration="long"), "duration must be a number"),
        (changed(start_ts=1e18), "start_ts must be a time in seconds; row 4"),
        (changed(step=2.5), "step must be a whole number"),
        (changed(step=-1), "step must be a whole number"),
        (changed(optype=None), "optype is missing in row 4"),
    ],
)
def test_bad_tables_get_words(frame: pd.DataFrame, words: str) -> None:
    with pytest.raises(ParseError, match=words):
        operator_trace(frame)


def test_bad_files_get_words(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such file"):
        read_operator_trace(tmp_path / "absent.csv")
    for name, content in {
        "empty.csv": b"",
        "binary.csv": bytes(range(256)) * 8,
        "cut.csv.gz": gzip.compress(b"step,stage\n1,2\n" * 1000)[:40],
        "no.parquet": b"PAR1 no",
    }.items():
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(ParseError, match=name):
            read_operator_trace(file)
