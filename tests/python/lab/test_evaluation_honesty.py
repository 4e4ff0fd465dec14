"""What has to hold before a number means something, and that it is noticed where it does not."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from made_samples import made_samples

from bookkeeping import (
    Books,
    bookkeeping_of,
    books_of,
    sided_features,
    told_by_bookkeeping,
)
from honesty import held_out_forms, shuffled_training
from torchtraceap.errors import OptionError, ParseError, SchemaError
from torchtraceap.lab.evaluation.judged_traces import check_splits
from torchtraceap.lab.generation.generate import generate

ROOT = Path(__file__).resolve().parents[3]
BASES = [str(ROOT / f"examples/traces/resnet50_num_workers_{n}.json.gz") for n in (0, 4)]
COUNT = 24


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> list[Books]:
    out = tmp_path_factory.mktemp("generated") / "traces"
    generate(out, COUNT, 5, bases=BASES)
    return books_of(out)


@pytest.mark.slow
def test_no_bookkeeping_tells_a_generated_fault_from_its_twin(generated: list[Books]) -> None:
    assert len(generated) == COUNT and sum(each.label for each in generated) >= 6
    assert sided_features(generated, level=0.5) == []


@pytest.mark.slow
def test_a_leak_of_numbers_is_noticed(generated: list[Books]) -> None:
    leaky = [
        replace(each, features={**each.features, "planted": float(each.label)})
        for each in generated
    ]
    doubled = [
        replace(each, run=f"{each.run}/{copy}", pair=f"{each.pair}/{copy}")
        for each in leaky
        for copy in range(6)
    ]
    assert [each.name for each in sided_features(doubled) if each.name == "planted"] == ["planted"]


def books(count: int, told: float) -> list[Books]:
    """Of pairs in ten groups; a feature is larger by so much where there is a fault."""
    rng = np.random.default_rng(1)
    return [
        Books(
            {"a": rng.normal() + told * (i % 2), "b": rng.normal(), "c": float("nan")},
            i % 2 == 1, f"group {i % 20 // 2}", f"pair {i // 2}", f"run {i // 2}",
        )
        for i in range(count)
    ]  # fmt: skip


def test_models_of_bookkeeping_guess_where_it_tells_nothing() -> None:
    for found in told_by_bookkeeping(books(400, 0.0)).values():
        assert found.value == pytest.approx(0.5, abs=0.1)
    assert sided_features(books(400, 0.0)) == []


def test_models_of_bookkeeping_find_what_tells() -> None:
    found = told_by_bookkeeping(books(400, 2.0))
    assert min(each.low for each in found.values()) > 0.8
    (sided,) = sided_features(books(400, 2.0))
    assert sided.name == "a" and sided.higher > 150
    with pytest.raises(OptionError, match="two groups"):
        told_by_bookkeeping([replace(each, group="one") for each in books(20, 0.0)])


def test_bookkeeping_of_a_file(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op {i % 3}", "pid": 5, "tid": 6, "ts": 10 * i,
         "dur": 4, "args": {"External id": i + 1 + 100 * (i > 4)}}
        for i in range(10)
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = bookkeeping_of(path)
    assert found["External id: gaps"] > 0 and found["order: against time"] == 0
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    other = bookkeeping_of(packed)
    assert other.keys() == found.keys()
    marked: list[dict[str, Any]] = [*events, {**events[0], "name": "__m3"}]
    path.write_text(json.dumps({"traceEvents": marked}))
    assert bookkeeping_of(path)["marks: names"] == 1
    for text in ("{}", "nothing", '{"traceEvents": []}'):
        path.write_text(text)
        with pytest.raises(ParseError):
            bookkeeping_of(path)


def test_a_group_in_two_splits_is_refused() -> None:
    samples = [*made_samples(8), *made_samples(8, "seen", 100)]
    check_splits(samples)
    first = samples[0]
    with pytest.raises(SchemaError, match="several splits"):
        check_splits([*samples, replace(first, id="other", run="other", twin=None, split="seen")])
    with pytest.raises(SchemaError, match="trace '000001' is in several"):
        check_splits([first, replace(samples[1], group="other", split="seen")])
    with pytest.raises(SchemaError, match="real trace"):
        check_splits([replace(first, source="real_graph")])


def test_training_on_shuffled_labels_learns_nothing() -> None:
    train, test = made_samples(64), made_samples(32, "validation", 100)
    assert shuffled_training(train, test, range(3)) == pytest.approx(0.5, abs=0.1)


def test_a_form_that_was_never_seen() -> None:
    found = held_out_forms(made_samples(48))
    assert [each.form for each in found] == ["form 0", "form 1", "form 2"]
    assert min(each.known for each in found) > 0.9
    assert min(each.unknown for each in found) > 0.8  # they show in the same features
