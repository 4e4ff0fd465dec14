"""One thing has one number: facts and shares of all views agree, on made and on bundled traces."""

from __future__ import annotations

from pathlib import Path

import pytest
from full_job import full_job
from views import assert_diagnosis_agrees, assert_facts_agree, assert_shares_agree

import torchtraceap as ttap

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*/trace.json"))


def assert_views_agree(trace: ttap.Trace) -> None:
    assert_facts_agree(trace)
    assert_shares_agree(trace)
    assert_diagnosis_agrees(trace)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_views_of_a_golden_trace_agree(path: Path) -> None:
    assert_views_agree(ttap.load(path))


def test_views_of_a_job_with_something_in_every_table_agree(tmp_path: Path) -> None:
    assert_views_agree(full_job(tmp_path))


def test_views_of_the_bundled_trace_agree(bundled: Path) -> None:
    assert_views_agree(ttap.load(bundled))


@pytest.mark.slow  # goes through every trace of the corpus
def test_views_of_a_real_trace_agree(corpus_file: Path) -> None:
    assert_views_agree(ttap.load(corpus_file))
