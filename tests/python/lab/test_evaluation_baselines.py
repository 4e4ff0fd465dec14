"""Methods that learned scorers have to beat: each finds what it can find, and repeats itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from made_samples import made_sample, made_samples

from torchtraceap.core.intervals import EMPTY
from torchtraceap.datasets.labels import TYPES
from torchtraceap.datasets.samples import Sample
from torchtraceap.errors import MissingFileError, OptionError, SchemaError
from torchtraceap.lab.evaluation.baselines import (
    Chance,
    Forest,
    GpuEvents,
    KMeans,
    Method,
    Neighbors,
    Pca,
    Rule,
    TraceConstant,
    Windows,
    largest_in,
)
from torchtraceap.lab.evaluation.learned_baselines import (
    CopiedTrees,
    Rtfm,
    SelfTrainedTrees,
    SupervisedTrees,
)
from torchtraceap.lab.evaluation.methods import SCORES, StoredScores, read_scores
from torchtraceap.lab.evaluation.metrics import Scored, window_auc

LEARNED = {
    "K-means": (KMeans, 0.6),
    "forest of all": (lambda: Forest(good_only=False), 0.8),
    "forest of good": (lambda: Forest(good_only=True), 0.8),
    "kNN": (Neighbors, 0.8),
    "PCA": (Pca, 0.5),
    "copied": (CopiedTrees, 0.7),
    "self-trained": (SelfTrainedTrees, 0.8),
    "supervised": (SupervisedTrees, 0.9),
}


def area(method: Method, samples: list[Sample]) -> float:
    windows = Windows(samples)
    score = np.concatenate([method.score(sample) for sample in samples])
    scored = Scored(score, windows.positive, windows.bad, windows.trace, windows.trace)
    return window_auc(scored.part(~windows.ignore))


@pytest.mark.parametrize("name", LEARNED)
def test_a_learned_method_finds_what_stands_out(name: str) -> None:
    make, least = LEARNED[name]
    train, test = made_samples(64), made_samples(16, "seen", 100)
    method = make()
    method.fit(train, 0)
    assert area(method, test) > least
    again = make()
    again.fit(train, 0)
    assert np.array_equal(again.score(test[0]), method.score(test[0]))
    assert method.labels in ("none", "trace", "window")


def test_the_head_of_networks_learns_from_labels_of_traces() -> None:
    pytest.importorskip("torch")
    method = Rtfm()
    method.fit(made_samples(64), 0)
    test = made_samples(16, "seen", 100)
    assert area(method, test) > 0.7
    scores = method.score(test[0])
    assert scores.shape == (20,) and ((scores > 0) & (scores < 1)).all()
    with pytest.raises(OptionError, match="without are needed"):
        method.fit([made_sample(0, bad=True)], 0)


def test_supervised_trees_tell_types() -> None:
    method = SupervisedTrees()
    method.fit(made_samples(64), 0)
    test = made_samples(16, "seen", 100)
    right = [
        (method.types(sample)[sample.positive].argmax(1) == sample.cost[sample.positive].argmax(1))
        for sample in test
    ]
    assert np.concatenate(right).mean() > 0.9


def test_one_score_a_trace_is_the_mean_of_its_windows() -> None:
    method = TraceConstant(Chance())
    sample = made_sample(0, bad=True)
    method.fit([], 0)
    chance = Chance()
    chance.fit([], 0)
    assert np.allclose(method.score(sample), chance.score(sample).mean())
    assert method.types(sample) is None and "one score a trace" in method.name


def test_chance_depends_on_its_seed_and_the_trace_alone() -> None:
    scores = []
    for seed in (0, 0, 1):
        method = Chance()
        method.fit([], seed)
        scores.append(method.score(made_sample(0, bad=True)))
    assert np.array_equal(scores[0], scores[1]) and not np.array_equal(scores[0], scores[2])


def test_the_rule_is_the_largest_outlier_that_begins_in_a_window() -> None:
    begin = np.array([0, 1_000, 2_000, 3_000, 4_500])
    length = np.array([10, 10, 10, 90, 50])
    events = GpuEvents(begin, begin + length, np.array([7, 7, 7, 7, 3]), EMPTY, EMPTY)
    sample = made_sample(0, bad=True)
    scores = Rule({sample.id: events}).score(sample)
    assert scores.argmax() == 3 and scores[3] == pytest.approx(3**0.5)
    assert scores[4] == 0  # alone of its name
    assert not scores[5:].any()


def test_the_largest_event_or_gap_of_a_window() -> None:
    begin, end = np.array([0, 100, 400]), np.array([90, 200, 410])
    gaps = np.array([[90, 100], [200, 400]])
    events = GpuEvents(begin, end, np.zeros(3, dtype=np.int64), gaps, EMPTY)
    assert largest_in(events, 0, 120) == (0, 90)
    assert largest_in(events, 150, 390) == (200, 400)
    assert largest_in(events, 1_000, 2_000) is None
    none = GpuEvents(begin[:0], end[:0], begin[:0], EMPTY, EMPTY)
    assert largest_in(none, 0, 100) is None


def test_scores_of_a_document(tmp_path: Path) -> None:
    sample = made_sample(0, bad=True)
    scores = np.linspace(0, 1, 20).tolist()
    document = {
        "schema": "torchtraceap.scores/1",
        "scorer": "mine 3",
        "labels": "trace",
        "traces": [
            {"path": f"/data/{sample.id}.json.gz", "scores": scores, "types": {TYPES[1]: scores}},
            {"path": "other.json", "error": "no trace"},
        ],
    }
    path = tmp_path / "scores.json"
    path.write_text(json.dumps(document))
    method = read_scores(path)
    assert isinstance(method, StoredScores) and (method.name, method.labels) == ("mine 3", "trace")
    assert method.score(sample).tolist() == scores
    assert method.types(sample)[:, 1].tolist() == scores
    with pytest.raises(SchemaError, match="no scores of 000001"):
        method.score(made_sample(1, bad=False))
    path.write_text('{"schema": "other"}')
    with pytest.raises(SchemaError, match="'other'"):
        read_scores(path)
    path.write_text("[]")
    with pytest.raises(SchemaError, match="expected an object"):
        read_scores(path)
    for odd in ({"path": ""}, {"path": 5}, {"types": 3}):
        trace = {"path": "a.json", "scores": [0.5], "types": {}, **odd}
        path.write_text(json.dumps({"schema": SCORES, "scorer": "s", "traces": [trace]}))
        with pytest.raises(SchemaError, match="no document of scores"):
            read_scores(path)
    with pytest.raises(MissingFileError):
        read_scores(tmp_path / "absent.json")
