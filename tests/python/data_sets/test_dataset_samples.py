"""Samples: windows, their labels, features and evidence, computed once for a folder of traces."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.datasets.labels import TYPES, window_costs, window_labels
from torchtraceap.datasets.samples import EVIDENCE, Sample, load_samples
from torchtraceap.errors import MissingFileError, OptionError, SchemaError
from torchtraceap.lab.generation.generate import generate
from torchtraceap.lab.generation.graph_faults import FAULTS
from torchtraceap.tables.windows import build_tokens

ROOT = Path(__file__).resolve().parents[3]
BASES = [str(ROOT / f"examples/traces/resnet50_num_workers_{n}.json.gz") for n in (0, 4)]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated") / "traces"
    generate(out, 8, 3, bases=BASES)
    return out


def assert_same(one: list[Sample], two: list[Sample]) -> None:
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        for field in fields(Sample):
            np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def test_types_are_those_of_the_faults_that_can_be_put_in() -> None:
    assert set(TYPES) == {fault.type for fault in FAULTS}
    assert list(TYPES) == sorted(TYPES)


def test_a_window_is_positive_from_a_tenth_on_and_left_out_from_a_fiftieth_on() -> None:
    bounds_ns = np.array([0, 100, 200, 300, 400])
    intervals = np.array([[0, 10], [100, 105], [110, 114], [200, 201]])
    cost = window_costs({"cpu_bound": intervals}, bounds_ns)
    assert cost[:, TYPES.index("cpu_bound")].tolist() == pytest.approx([0.1, 0.09, 0.01, 0.0])
    positive, ignore = window_labels(cost)
    assert positive.tolist() == [True, False, False, False]
    assert ignore.tolist() == [False, True, False, False]
    with pytest.raises(SchemaError, match="no fault is of the type 'bad'"):
        window_costs({"bad": intervals}, bounds_ns)


def test_samples_have_the_labels_that_were_generated(generated: Path) -> None:
    lines = (generated / "labels.jsonl").read_text("utf-8").splitlines()
    labels = {label["id"]: label for label in map(json.loads, lines)}
    samples = load_samples(generated, windows=50)
    assert [sample.id for sample in samples] == sorted(labels)
    for sample in samples:
        label = labels[sample.id]
        assert sample.positive.astype(int).tolist() == label["windows"]["50"]
        assert sample.label == (label["type"] is not None)
        assert not (sample.positive & sample.ignore).any()
        assert (sample.twin, sample.split, sample.form) == (
            label["twin"], label["split"], label["form"],
        )  # fmt: skip


def test_features_and_evidence_are_those_of_the_trace(generated: Path) -> None:
    for sample in load_samples(generated, windows=100):
        if "/" in sample.id:
            continue
        trace = ttap.load(generated / f"{sample.id}.json.gz")
        block = trace.features(count=100)
        np.testing.assert_array_equal(sample.values, block.values_matrix.astype(np.float32))
        np.testing.assert_array_equal(sample.zscores, block.zscores.astype(np.float32))
        windows = trace.diagnose(scorer="evidence").windows
        assert tuple(sample.bounds_ns.tolist()) == windows.bounds_ns
        np.testing.assert_allclose(sample.evidence[:, -1], windows.scores, atol=1e-6)
        for name in set(TYPES) & set(windows.types):
            column = sample.evidence[:, EVIDENCE.index(name)]
            np.testing.assert_allclose(column, windows.types[name], atol=1e-6)


def test_what_was_kept_and_what_is_computed_on_threads_are_the_same(
    generated: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "traces"
    shutil.copytree(generated, folder, ignore=shutil.ignore_patterns(".cache"))
    first = load_samples(folder, windows=50, jobs=2)
    assert len(list((folder / ".cache").glob("*-50.npz"))) == len({s.run for s in first})
    assert_same(first, load_samples(folder, windows=50))
    for path in (folder / ".cache").iterdir():
        path.write_bytes(path.read_bytes()[:100])  # as an interrupted copy leaves it
    assert_same(first, load_samples(folder, windows=50))


def test_events_of_windows_are_those_of_the_trace(generated: Path) -> None:
    computed = load_samples(generated, windows=50, tokens=4)
    for sample, kept in zip(computed, load_samples(generated, windows=50, tokens=4), strict=True):
        assert sample.tokens is not None and kept.tokens is not None
        assert sample.tokens.names == kept.tokens.names
        for name, array in sample.tokens.arrays().items():
            np.testing.assert_array_equal(array, kept.tokens.arrays()[name])
        if "/" not in sample.id:
            trace = ttap.load(generated / f"{sample.id}.json.gz")
            found = build_tokens(trace.ranks[0], windows=50, cap=4)
            np.testing.assert_array_equal(sample.tokens.row, found.row)
    with pytest.raises(OptionError, match="-1 tokens"):
        load_samples(generated, tokens=-1)


def test_excerpts_are_short_recordings_with_the_labels_of_their_time(generated: Path) -> None:
    whole = {sample.id: sample for sample in load_samples(generated)}
    found = load_samples(generated, excerpts=True)
    assert [sample.id for sample in found] == [f"{id}/excerpt" for id in whole]
    for sample in found:
        of = whole[sample.id.removesuffix("/excerpt")]
        length_ns = sample.bounds_ns[-1] - sample.bounds_ns[0]
        assert 0 < length_ns <= 1.01 * (of.bounds_ns[-1] - of.bounds_ns[0])
        assert not sample.positive.any() or of.label
        assert np.isfinite(sample.values).all() and sample.split == of.split
    short = [s.bounds_ns[-1] - s.bounds_ns[0] for s in found]
    assert np.median(short) < 0.5 * np.median(
        [s.bounds_ns[-1] - s.bounds_ns[0] for s in whole.values()]
    )
    assert any(sample.positive.any() for sample in found)
    assert_same(found, load_samples(generated, excerpts=True))


def test_only_traces_of_the_wanted_splits_are_read(generated: Path) -> None:
    every = load_samples(generated)
    splits = {sample.split for sample in every}
    for split in splits:
        assert {s.split for s in load_samples(generated, splits=[str(split)])} == {split}
    assert load_samples(generated, splits=["none"]) == []


def test_what_is_no_data_set_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such folder"):
        load_samples(tmp_path / "nothing")
    with pytest.raises(SchemaError, match="neither a data set nor generated traces"):
        load_samples(tmp_path)
    labels = tmp_path / "labels.jsonl"
    labels.write_text('{"id": "000000"}\n')
    with pytest.raises(SchemaError, match=r"labels.jsonl, line 1: lacks task, source"):
        load_samples(tmp_path)
    labels.write_text("{\n")
    with pytest.raises(SchemaError, match=r"line 1: is no JSON"):
        load_samples(tmp_path)
    with pytest.raises(OptionError, match="0 jobs"):
        load_samples(tmp_path, jobs=0)


def test_a_missing_trace_is_named(generated: Path, tmp_path: Path) -> None:
    shutil.copy(generated / "labels.jsonl", tmp_path / "labels.jsonl")
    with pytest.raises(MissingFileError, match=r"\.json\.gz: no such file, though labels.jsonl"):
        load_samples(tmp_path)


def test_windows_between_the_middles_of_others(generated: Path) -> None:
    whole = load_samples(generated, windows=50)
    between = load_samples(generated, windows=50, between=True, tokens=8)
    for one, other in zip(whole, between, strict=True):
        middles = (one.bounds_ns[:-1] + one.bounds_ns[1:]) // 2
        assert len(other.values) == len(other.cost) == 49
        np.testing.assert_allclose(other.bounds_ns, middles, atol=2)
        assert other.tokens is not None
        assert other.tokens.window_count == 49
    assert sum(sample.positive.sum() for sample in between) > 0
    with pytest.raises(OptionError):
        load_samples(generated, windows=1, between=True)
