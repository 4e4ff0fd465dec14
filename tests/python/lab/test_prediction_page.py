"""The page of predictions: what it draws, and that names can't become markup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.page import _runs, render_predictions, write_prediction_page

torch = pytest.importorskip("torch", reason="a prediction runs the model")


def training() -> dict[str, Any]:
    return {
        "model": torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]),
        "inputs": (torch.randn(8192, 2048),),
        "loss": lambda out: out.square().mean(),
        "optimizer": torch.optim.AdamW,
    }


@pytest.fixture(scope="module")
def found() -> list[ttap.Prediction]:
    loading = ttap.Loading("pinned", 200e6, 4)
    return [
        ttap.predict(training, device="A100_SXM_80GB"),
        ttap.predict(training, device="H100-SXM", loading=loading),
    ]


def widths(page: str, part: str) -> list[float]:
    return [
        float(each) for each in re.findall(rf'{part} x="[0-9.]+%"[^>]* width="([0-9.]+)%"', page)
    ]


def test_bars_are_to_one_scale_with_the_fastest_first(found: list[ttap.Prediction]) -> None:
    page = render_predictions(found)
    assert page == render_predictions(found[::-1])
    fastest, slowest = sorted(found, key=lambda each: each.step.predicted_ns)
    assert f"on {fastest.device}</h1>" in page
    assert page.index(fastest.device) < page.index(slowest.device)
    longest = max(each.step.high_ns for each in found)
    ranges = widths(page.split("The steps in time")[0], 'fill-between"')
    expected = [
        100 * (each.step.high_ns - each.step.low_ns) / longest for each in (fastest, slowest)
    ]
    assert ranges[::3][:1] == pytest.approx(expected[:1], abs=0.01)
    assert "activations" in page
    assert "loading" in page
    assert page.count("thread ") >= 2 and page.count("stream ") >= 1


def test_runs_of_one_colour_are_one() -> None:
    begin, end = np.array([0.0, 0.1, 0.5]), np.array([0.1, 0.2, 0.5000001])
    runs = _runs(begin, end, np.array(["compute", "compute", "memcpy"]))
    assert [fill for fill, _, _ in runs] == ["compute", "memcpy"]
    assert runs[0][1:] == pytest.approx((0.0, 0.2), abs=0.002)
    assert runs[1][2] > 0  # what is shorter than a place has one


def test_names_do_not_become_markup(found: list[ttap.Prediction]) -> None:
    from dataclasses import replace

    bad = "<script>alert(1)</script>"
    hostile = replace(found[0], notes=(bad,), strategy=bad, world_size=2)
    page = render_predictions([hostile])
    assert bad not in page
    assert page.count("<script") == render_predictions(found[:1]).count("<script")


def test_a_page_does_not_replace_what_was_read(
    found: list[ttap.Prediction], tmp_path: Path
) -> None:
    source = tmp_path / "model.py"
    source.write_text("")
    with pytest.raises(OptionError):
        write_prediction_page(found, source, [str(source)])
    write_prediction_page(found, tmp_path / "page.html", [str(source)])
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
