"""Scorers: windows of every trace get scores in [0, 1], whoever gives them."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import report_samples as samples
from conftest import WriteTrace

import torchtraceap as ttap
from torchtraceap import _core, cli
from torchtraceap.core.results import PAPER_TYPES, Windows
from torchtraceap.diagnosis.scoring import (
    DEFAULT,
    NETWORKS,
    SCORERS,
    BatchScorer,
    label_of,
    load_scorer,
)
from torchtraceap.errors import MissingDependencyError, MissingFileError, OptionError
from torchtraceap.trace.event_columns import event_table
from torchtraceap.trace.ranks import RankTrace


def assert_scores(windows: Windows, count: int) -> None:
    assert len(windows.bounds_ns) == count + 1
    for scores in (windows.scores, *windows.types.values()):
        assert scores.shape == (count,)
        assert np.isfinite(scores).all()
        assert 0 <= scores.min() <= scores.max() <= 1
    assert set(PAPER_TYPES) <= set(windows.types)


@pytest.fixture
def slow(write_trace: WriteTrace) -> ttap.Trace:
    return ttap.load(samples.slow_loader().write(write_trace([])))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a scorer that this machine and checkout have what it needs for."""
    if request.param not in usable():
        pytest.skip(f"{request.param} needs torch, or weights that are not there")
    return str(request.param)


@cache
def usable() -> tuple[str, ...]:
    found = []
    for scorer in SCORERS:
        with suppress(MissingDependencyError, MissingFileError):
            found.append(load_scorer(scorer).name)
    return tuple(found)


@pytest.mark.parametrize("name", SCORERS, indirect=True)
@pytest.mark.parametrize("count", [1, 50, 200])
def test_every_scorer_scores_every_window(slow: ttap.Trace, name: str, count: int) -> None:
    assert_scores(slow.score(windows=count, scorer=name), count)


@pytest.mark.parametrize("name", SCORERS, indirect=True)
@pytest.mark.parametrize(
    "events",
    [
        samples.host_only().events,
        [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 0}],
        [{"ph": "M", "name": "x", "pid": 0, "tid": 7, "args": {"name": "python"}}],
        [{"ph": "X", "cat": "kernel", "name": "カーネル", "pid": 0, "tid": 7, "ts": 5, "dur": 9}],
        [{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 0, "tid": 7, "ts": -7, "dur": 2**50}],
    ],
    ids=["host-only", "no-time", "metadata", "non-ascii", "far"],
)
def test_odd_traces_get_scores_too(write_trace: WriteTrace, name: str, events: list) -> None:
    trace = ttap.load(write_trace(events))
    for count in (1, 100):
        assert_scores(trace.score(windows=count, scorer=name), count)


@pytest.mark.parametrize("name", SCORERS, indirect=True)
def test_a_platform_that_nobody_knows_gets_scores(write_trace: WriteTrace, name: str) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 5}
    document = {
        "deviceProperties": [{"id": 0, "name": "a device of tomorrow", "totalGlobalMem": 1}],
        "traceEvents": [kernel | {"ts": 10 * i} for i in range(50)],
    }
    assert_scores(ttap.load(write_trace(document)).score(windows=50, scorer=name), 50)


@pytest.fixture(scope="module")
def full() -> ttap.Trace:
    """A million kernels, for one window."""
    count = 1_000_000
    table = event_table(
        ts_ns=np.arange(count) * 2_000,
        dur_ns=np.full(count, 1_500),
        name=["gemm"] * count,
        category=["kernel"] * count,
        pid=[0] * count,
        tid=[7] * count,
    )
    return ttap.Trace([RankTrace(table, None)])


@pytest.mark.parametrize("name", SCORERS, indirect=True)
def test_a_million_events_in_a_window_get_a_score(full: ttap.Trace, name: str) -> None:
    assert_scores(full.score(windows=1, scorer=name), 1)


def test_a_diagnosis_has_the_scores_of_the_scorer_that_is_named(slow: ttap.Trace) -> None:
    for name in usable():
        diagnosis = slow.diagnose(windows=50, scorer=name)
        assert diagnosis.scorer == label_of(load_scorer(name))
        assert np.array_equal(diagnosis.windows.scores, slow.score(windows=50, scorer=name).scores)
    assert slow.diagnose().scorer == label_of(load_scorer(DEFAULT))


def test_an_unknown_scorer_is_told_the_names(slow: ttap.Trace) -> None:
    with pytest.raises(OptionError, match=r"no scorer 'evidense', did you mean 'evidence'\?"):
        slow.score(scorer="evidense")
    with pytest.raises(OptionError, match="scorers: evidence"):
        slow.diagnose(scorer="")
    with pytest.raises(OptionError, match="windows"):
        slow.score(windows=0)


@pytest.mark.parametrize("name", sorted(set(SCORERS) - set(NETWORKS)))
def test_a_scorer_without_a_network_runs_on_the_cpu_alone(slow: ttap.Trace, name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} has no network .* paper or v2"):
        slow.score(scorer=name, device="cuda")


@pytest.mark.parametrize("name", NETWORKS, indirect=True)
def test_a_device_that_is_not_there_is_refused(slow: ttap.Trace, name: str) -> None:
    with pytest.raises(OptionError, match="device is cpu or cuda, not abacus"):
        slow.score(scorer=name, device="abacus")
    try:
        on_gpu = slow.score(scorer=name, device="cuda")
    except OptionError as error:
        assert any(
            why in str(error)
            for why in ("TRACEAP_CUDA=ON", "this torch has no CUDA", "torch finds no GPU")
        )
    else:
        on_cpu = slow.score(scorer=name).scores
        np.testing.assert_allclose(on_gpu.scores, on_cpu, atol=1e-3)


def test_the_rules_are_asked_once(slow: ttap.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    found = slow.diagnose(scorer="evidence")
    monkeypatch.delattr(_core, "detect")
    assert np.array_equal(slow.score(scorer="evidence").scores > 0, found.windows.scores > 0)


# --- the command ---


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main([str(word) for word in words])
    return code, *capsys.readouterr()


def test_many_traces_are_scored_and_a_bad_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = samples.slow_loader().write(tmp_path / "good.json")
    healthy = samples.healthy().write(tmp_path / "healthy.json")
    code, out, error = run(
        capsys, "score", good, tmp_path / "none.json", healthy, "--json", "--scorer", "evidence"
    )
    document = json.loads(out)
    assert (code, error) == (2, "")
    assert document["schema"] == "torchtraceap.scores/1"
    assert document["scorer"] == "evidence 1"
    scored, failed, clean = document["traces"]
    assert failed == {"path": str(tmp_path / "none.json"), "error": failed["error"]}
    assert "no such file" in failed["error"]
    assert [entry["path"] for entry in (scored, clean)] == [str(good), str(healthy)]
    assert max(scored["scores"]) > 0.9 > 0.5 > max(clean["scores"])
    assert scored["scores"] == ttap.score(good, scorer="evidence").scores.tolist()


def test_a_table_of_scores_says_how_to_read_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = samples.slow_loader().write(tmp_path / "trace.json")
    read = load_scorer("fused").reading
    assert "0.5 or more" in read
    assert run(capsys, "score", trace)[1].splitlines()[-1] == read
    assert read not in run(capsys, "score", trace, "--scorer", "evidence")[1]


@pytest.fixture
def batched() -> BatchScorer:
    for name in usable():
        scorer = load_scorer(name)
        if isinstance(scorer, BatchScorer):
            return scorer
    pytest.skip("the scorers of batches need torch")


@pytest.mark.parametrize("rows", [1, 150, 10**6], ids=["alone", "in pairs", "together"])
def test_a_batch_of_traces_gets_the_scores_of_each_alone(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    batched: BatchScorer,
    rows: int,
) -> None:
    monkeypatch.setattr(type(batched), "rows_at_once", rows)
    paths = [
        samples.slow_loader().write(tmp_path / "slow.json"),
        samples.host_only().write(tmp_path / "host.json"),
        tmp_path / "none.json",
        samples.healthy().write(tmp_path / "healthy.json"),
        tmp_path / "slow.json",
    ]
    code, out, _ = run(capsys, "score", *paths, "--json", "--scorer", batched.name, "--windows", 50)
    answers = json.loads(out)["traces"]
    assert (code, [answer["path"] for answer in answers]) == (2, [str(path) for path in paths])
    assert "no such file" in answers[2]["error"]
    for path, answer in zip(paths, answers, strict=True):
        if "error" not in answer:
            alone = ttap.score(path, windows=50, scorer=batched.name)
            np.testing.assert_allclose(answer["scores"], alone.scores, rtol=0, atol=1e-6)
            assert answer["bounds_ns"] == list(alone.bounds_ns)
    assert max(answers[0]["scores"]) > 0 == max(answers[1]["scores"])


def test_traces_that_fail_together_are_scored_one_by_one(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    batched: BatchScorer,
) -> None:
    score = type(batched).score_inputs

    def small_memory(self: BatchScorer, traces: list) -> list[Windows]:
        if sum(len(trace) for trace in traces) > 200:
            raise MemoryError("std::bad_alloc")
        return score(self, traces)

    monkeypatch.setattr(type(batched), "score_inputs", small_memory)
    small = samples.slow_loader().write(tmp_path / "small.json")
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 5}
    large = tmp_path / "large.json"
    large.write_text(json.dumps({"traceEvents": [kernel | {"ts": 10 * i} for i in range(300)]}))
    words = ("--json", "--scorer", batched.name, "--windows", 50)
    code, out, _ = run(capsys, "score", small, large, small, *words)
    first, failed, last = json.loads(out)["traces"]
    assert code == 2 and failed["error"] == "not enough memory"
    assert first["scores"] == last["scores"] and len(first["scores"]) == 50


def test_inputs_of_a_batch_keep_no_trace(slow: ttap.Trace, batched: BatchScorer) -> None:
    inputs = batched.inputs(slow, 50)
    (rank,) = inputs.ranks  # type: ignore[attr-defined]
    columns = {name: array for name, array in rank.tokens.arrays().items() if name != "names"}
    assert len(columns) > 10 and len(inputs) == len(rank.tokens) + 50
    for name, array in columns.items():
        assert array.base is None, name


def test_a_person_reads_the_worst_window_of_each_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = samples.slow_loader().write(tmp_path / "good.json")
    code, out, _ = run(capsys, "score", good, "--scorer", "evidence", "--windows", 50)
    assert code == 0
    assert out.splitlines()[0].split() == [
        "trace", "worst", "mean", "from", "ms", "to", "ms", "most", "likely", "type",
    ]  # fmt: skip
    assert "single_process_data_loading" in out
    code, out, error = run(capsys, "score", good, "--scorer", "none")
    assert (code, out) == (2, "")
    assert "there is no scorer 'none'" in error
