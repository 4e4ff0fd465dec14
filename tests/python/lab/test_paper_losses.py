"""Losses of the paper: what each pulls where, corrected and as printed."""

from __future__ import annotations

import dataclasses

import pytest

from torchtraceap.errors import OptionError

torch = pytest.importorskip("torch")

from torchtraceap.lab.training.paper import PairWindows, PaperLosses  # noqa: E402


def pair(seed: int = 0, windows: int = 20) -> tuple[PairWindows, PairWindows]:
    torch.manual_seed(seed)
    return tuple(
        PairWindows(torch.rand(windows).requires_grad_(), torch.randn(windows, 8).requires_grad_())
        for _ in range(2)
    )


def scored(values, features=None) -> PairWindows:
    scores = torch.tensor(values)
    return PairWindows(scores, torch.eye(len(values)) if features is None else features)


def test_trace_term_wants_bad_traces_high_and_good_ones_low():
    low, high = scored([0.1] * 4), scored([0.9] * 4)
    for objective in ("average", "topk", "noisy-or"):
        losses = PaperLosses(objective=objective)
        assert losses.trace(low, high) < 0.2 < 2 < losses.trace(high, low)


def test_topk_lets_most_windows_of_a_bad_trace_be_good():
    good, bad = scored([0.01] * 10), scored([0.01] * 9 + [0.99])
    assert PaperLosses(objective="topk").trace(good, bad) < 0.02
    assert PaperLosses().trace(good, bad) > 1


def test_twin_uses_labels_of_windows_and_leaves_unknown_ones_out():
    good = scored([0.01] * 3)
    labels = torch.tensor([1.0, 0.0, float("nan")])
    bad = scored([0.99, 0.01, 0.5])._replace(labels=labels)
    assert PaperLosses(objective="twin").trace(good, bad) < 0.02
    with pytest.raises(OptionError, match="labels"):
        PaperLosses(objective="twin").trace(good, scored([0.5] * 3))


def test_the_corrected_sign_parts_good_from_bad_and_the_printed_one_joins_them():
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    corrected, printed = PaperLosses(), PaperLosses(svm_sign="literal")
    assert corrected.separation(a, a) > corrected.separation(a, b) > corrected.separation(a, -a)
    assert printed.separation(a, a) < printed.separation(a, b) < printed.separation(a, -a)


def test_selection_of_the_good_trace():
    scores = torch.tensor([0.9, 0.1, 0.5, 0.4])
    lowest, rest = PaperLosses(share=0.25)._choose(scores, highest=False)
    assert lowest.tolist() == [1] and sorted(rest.tolist()) == [0, 2, 3]
    good, bad = pair()
    corrected = PaperLosses().parts(good, bad)["svm"]
    assert corrected != PaperLosses(selection="literal").parts(good, bad)["svm"]


def test_clusters_by_score():
    scores = torch.tensor([0.0, 0.0, 1.0, 1.0])
    x, y = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])
    grouped, mixed = torch.stack([x, x, y, y]), torch.stack([x, y, x, y])
    corrected = PaperLosses()
    assert corrected.clustering(grouped, scores) == pytest.approx(0, abs=1e-6)
    assert corrected.clustering(mixed, scores) > 2
    literal = PaperLosses(cluster_target="literal")
    assert literal.clustering(grouped, scores) > 0.9  # its third term wants the reverse


def test_smoothness_of_scores_and_directions():
    even = scored([0.5] * 4, torch.ones(4, 2) * torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    assert PaperLosses().smoothness(even) == pytest.approx(0, abs=1e-6)
    assert PaperLosses().smoothness(scored([0.0, 1.0, 0.0, 1.0])) > 1


@pytest.mark.parametrize("windows", [1, 2, 3, 20])
@pytest.mark.parametrize("reading", ["corrected", "literal"])
def test_gradients_are_finite_for_any_number_of_windows(windows, reading):
    losses = PaperLosses(svm_sign=reading, selection=reading, cluster_target=reading)
    good, bad = pair(windows=windows)
    total = losses(good, bad)
    total.backward()
    assert torch.isfinite(total)
    for part in (*good[:2], *bad[:2]):
        assert part.grad is not None and torch.isfinite(part.grad).all()


def test_scores_at_the_ends_do_not_overflow():
    for objective in ("average", "topk", "noisy-or"):
        losses = PaperLosses(objective=objective)
        assert torch.isfinite(losses(scored([1.0] * 4), scored([0.0] * 4)))


def test_weights_scale_the_terms():
    good, bad = pair()
    parts = PaperLosses().parts(good, bad)
    doubled = PaperLosses(weights=(2.0, 0.0, 0.5, 0.1)).parts(good, bad)
    assert doubled["trace"].item() == pytest.approx(2 * parts["trace"].item())
    assert doubled["svm"] == 0 and doubled["cluster"] == parts["cluster"]
    assert PaperLosses()(good, bad).item() == pytest.approx(
        sum(part.item() for part in parts.values())
    )


def test_readings_that_are_none():
    for wrong in ({"objective": "mean"}, {"svm_sign": "printed"}, {"share": 0.9},
                  {"weights": (1.0,)}):  # fmt: skip
        with pytest.raises(OptionError):
            dataclasses.replace(PaperLosses(), **wrong)
