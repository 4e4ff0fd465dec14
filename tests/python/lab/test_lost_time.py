"""Where a trace loses time: by labels, and by its events beside those of its twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from torchtraceap.lab.training.weak_labels import Kernels, LostTime, by_alignment

MINI = Path(__file__).parents[3] / "examples/mini_dataset"


def kernels(names: str, lengths: list[int], waits: list[int], end: int = 50) -> Kernels:
    """Kernels one after another, each behind a wait."""
    begin = np.cumsum(waits) + np.cumsum([0, *lengths[:-1]])
    stop = begin + np.array(lengths)
    return Kernels((0, int(stop[-1]) + end), np.stack([begin, stop], axis=1), tuple(names))


GOOD = kernels("abcabcab", [100] * 8, [50] * 8)


def lost_in(lost: LostTime | None, begin: int, end: int) -> float:
    assert lost is not None
    return float(lost.share(np.array([begin]), np.array([end]))[0])


def test_shares_of_intervals() -> None:
    lost = LostTime.of_intervals(np.array([[100, 200], [300, 400]]))
    begin, end = np.array([0, 100, 150, 200, 350, 500]), np.array([100, 200, 350, 300, 350, 600])
    np.testing.assert_allclose(lost.share(begin, end), [0, 1, 0.5, 0, 1, 0])
    nothing = LostTime.of_intervals(np.zeros((0, 2), dtype=np.int64))
    assert not nothing.share(begin, end).any()


def test_a_wait_that_the_twin_does_not_have() -> None:
    waits = [50] * 8
    waits[4] += 1000
    lost = by_alignment(kernels("abcabcab", [100] * 8, waits), GOOD)
    assert lost_in(lost, 600, 1650) == pytest.approx(1000 / 1050)
    assert lost_in(lost, 0, 600) == 0
    assert lost_in(lost, 1650, 2250) == 0


def test_kernels_that_the_twin_does_not_have() -> None:
    """Seven more in the middle, of names that the others have too."""
    lost = by_alignment(kernels("abca" + "xaxaxbx" + "bcab", [100] * 15, [50] * 15), GOOD)
    assert lost is not None
    assert lost.lost_ns[-1] == pytest.approx(7 * 150)
    assert lost_in(lost, 0, 600) == 0
    assert lost_in(lost, 2250 - 450, 2250) == 0


def test_a_slower_gpu_is_no_lost_time() -> None:
    slower = kernels("abcabcab", [200] * 8, [100] * 8, end=100)
    lost = by_alignment(slower, GOOD)
    assert lost is not None
    assert lost.lost_ns[-1] == 0


def test_another_program_is_not_compared() -> None:
    assert by_alignment(kernels("xyzxyzxy", [100] * 8, [50] * 8), GOOD) is None
    assert by_alignment(Kernels((0, 10), np.zeros((0, 2), dtype=np.int64), ()), GOOD) is None


def test_the_same_trace_has_lost_nothing() -> None:
    lost = by_alignment(GOOD, GOOD)
    assert lost is not None
    assert lost.lost_ns[-1] == 0


def test_twins_tell_what_labels_tell() -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("torch")
    from torchtraceap.datasets.samples import load_samples
    from torchtraceap.lab.training.figures import window_figures
    from torchtraceap.lab.training.weak_labels import load_labeled, load_lost

    found, labelled = load_lost(MINI), load_labeled(MINI)
    samples = [s for s in load_samples(MINI, splits=["train"]) if s.label and s.id in found]
    assert len(samples) > 3
    spans = [(s.bounds_ns[:-1], s.bounds_ns[1:]) for s in samples]
    scores = [found[s.id].share(*span) for s, span in zip(samples, spans, strict=True)]
    figures = window_figures(scores, samples)
    assert figures["bad_only"] > 0.9
    for sample, span in zip(samples, spans, strict=True):
        np.testing.assert_allclose(
            labelled[sample.id].share(*span), sample.cost.sum(axis=1).clip(0, 1), atol=1e-3
        )
