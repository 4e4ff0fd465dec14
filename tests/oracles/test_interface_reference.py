"""`summary` on every real trace against a second, independent implementation of INTERFACE."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import torchtraceap as ttap

from .conftest import corpus_files
from .interface_reference import summary as reference_summary


@pytest.mark.slow  # goes through every trace of the corpus
@pytest.mark.parametrize("corpus_file", corpus_files(), indirect=True)
def test_summary_equals_the_reference(corpus_file: Path) -> None:
    try:
        expected = reference_summary(corpus_file)
    except json.JSONDecodeError:
        pytest.skip("no valid JSON: the reference can't read it")
    trace = ttap.load(corpus_file)
    got = trace.summary().to_dict()
    for key in ("total", "complete", "gpu", "gpu_linked", "by_category"):
        assert got["events"][key] == expected[key], key
    assert got["timeline"] == expected["timeline"]
    assert trace.summary(linked_only=True).to_dict()["timeline"] == expected["linked_timeline"]
    assert {d["device"]: d["timeline"] for d in got["devices"]} == expected["devices"]
    if expected["steps"]:
        steps = [{k: step[k] for k in expected["steps"][0]} for step in got["steps"]]
        assert steps == expected["steps"]
