"""Batches for torch: windows stacked, events behind each other, in an order that a seed gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.datasets.labels import TYPES
from torchtraceap.datasets.samples import Sample, load_samples
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.lab.generation.generate import generate

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[3]
BASE = str(ROOT / "examples/traces/resnet50_num_workers_4.json.gz")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated") / "traces"
    generate(out, 6, 3, types=["high_memcpy", "cpu_bound"], bases=[BASE])
    return out


@pytest.fixture(scope="module")
def samples(generated: Path) -> list[Sample]:
    return load_samples(generated, windows=50, tokens=128)


def test_a_batch_has_the_windows_and_events_of_its_traces(
    generated: Path, samples: list[Sample]
) -> None:
    dataset = ttap.datasets.load(generated, windows=50, tokens=128)
    assert len(dataset) == 6
    batches = list(ttap.datasets.loader(dataset, batch=4))
    assert [len(batch.ids) for batch in batches] == [4, 2]
    place = 0
    for batch in batches:
        assert batch.cost.shape == (len(batch.ids), 50, len(TYPES))
        offsets = batch.events.offsets.tolist()
        assert len(offsets) == 50 * len(batch.ids) + 1
        for number, name in enumerate(batch.ids):
            sample = samples[place]
            place += 1
            assert name == sample.id
            np.testing.assert_array_equal(batch.values[number].numpy(), sample.values)
            np.testing.assert_array_equal(batch.positive[number].numpy(), sample.positive)
            tokens = sample.tokens
            assert tokens is not None
            begin, end = offsets[50 * number], offsets[50 * number + 50]
            assert end - begin == len(tokens)
            for column in ("dur_ns", "position", "kind"):
                found = batch.events.columns[column][begin:end].numpy()
                np.testing.assert_array_equal(found, getattr(tokens, column))
            codes = batch.events.columns["name"][begin:end].tolist()
            assert [batch.events.names[code] for code in codes] == [
                tokens.names[code] for code in tokens.name.tolist()
            ]


def test_a_seed_gives_the_order_whatever_the_workers(generated: Path) -> None:
    dataset = ttap.datasets.load(generated, windows=50)

    def orders(seed: int, workers: int) -> list[list[tuple[str, ...]]]:
        batches = ttap.datasets.loader(dataset, batch=4, shuffle=True, seed=seed, workers=workers)
        return [[batch.ids for batch in batches] for _ in range(3)]

    assert orders(1, 0) == orders(1, 2)
    assert orders(1, 0) != orders(2, 0)
    assert len({str(epoch) for epoch in orders(1, 0)}) > 1
    assert all(batch.events is None for batch in ttap.datasets.loader(dataset))


def test_what_does_not_fit_together_is_refused(samples: list[Sample], generated: Path) -> None:
    from torchtraceap.datasets.batches import collate

    other = load_samples(generated, windows=100)
    with pytest.raises(SchemaError, match="the same number of windows"):
        collate([samples[0], other[0]])
    with pytest.raises(SchemaError, match="have events, or none"):
        collate([samples[0], replace(samples[1], tokens=None)])
    with pytest.raises(OptionError, match="batches of 0 traces"):
        ttap.datasets.loader(ttap.datasets.load(generated), batch=0)
