"""BM25, entries of the knowledge base by words, and answers without a model that no table has."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_traces import GpuTrace
from hypothesis import given, settings
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.explanation.offline_answer import (
    MOST_ANSWER,
    NOTHING,
    Bm25,
    answer_offline,
    nearest_entries,
    search_words,
)


def test_scores_are_those_of_the_formula() -> None:
    """Worked out by hand: 3 documents of 2, 3 and 1 words, on average 2."""
    index = Bm25([["gpu", "idle"], ["gpu", "gpu", "copy"], ["host"]])
    weight = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))  # "gpu" is in two of them
    first = weight * 1 * 2.2 / (1 + 1.2 * (1 - 0.75 + 0.75 * 2 / 2))
    second = weight * 2 * 2.2 / (2 + 1.2 * (1 - 0.75 + 0.75 * 3 / 2))
    assert index.scores(["gpu"]) == pytest.approx([first, second, 0.0])
    assert index.scores(["gpu", "gpu"]) == index.scores(["gpu"])
    assert index.scores(["unknown"]) == [0.0, 0.0, 0.0]
    rare = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    assert index.scores(["copy", "gpu"])[1] == pytest.approx(
        second + rare * 2.2 / (1 + 1.2 * (1 - 0.75 + 0.75 * 3 / 2))
    )


def test_an_index_of_nothing_has_no_scores() -> None:
    assert Bm25([]).scores(["gpu"]) == []
    assert Bm25([[]]).scores(["gpu"]) == [0.0]


def test_words_have_no_plural_and_names_their_parts() -> None:
    assert search_words("The GPUs of cpu_bound runs") == ["gpu", "cpu_bound", "cpu", "bound", "run"]
    assert search_words("aten::mm") == ["aten", "mm"]
    assert search_words("busy loss this") == ["busy", "loss"]


@pytest.mark.parametrize("name", load_knowledge())
def test_an_entry_is_nearest_to_its_type_and_to_its_signs(name: str) -> None:
    entry = load_knowledge()[name]
    assert nearest_entries([name], 3)[0] == name
    assert nearest_entries(entry.signs, 3)[0] == name


def test_entries_without_a_common_word_are_not_near() -> None:
    assert nearest_entries(["zebra"], 3) == []
    assert nearest_entries([], 3) == []
    assert nearest_entries(["gpu"], 3, least=1e9) == []
    assert len(nearest_entries(["gpu idle kernel host"], 2)) <= 2


# ------------------------------------------------------------------------- without a model


@pytest.fixture(scope="module")
def diagnosis(bundled: Path) -> Any:
    return ttap.load(bundled).diagnose()


def said(diagnosis: Any, question: str) -> str:
    text = answer_offline(diagnosis, question).text
    assert len(text) <= MOST_ANSWER
    return text


def test_a_question_that_no_table_answers_gets_the_nearest_finding(diagnosis: Any) -> None:
    text = said(diagnosis, "Are gradients filled with zeros?")
    finding = diagnosis.finding("zero_grad_not_none")
    assert "(zero_grad_not_none): it costs 35.5 ms, 3.38 % of the profiled time" in text
    assert "A fix saves 8.06 ms of a step." in text
    assert finding.fix in text


def test_what_was_not_found_is_said(diagnosis: Any) -> None:
    text = said(diagnosis, "Is there recompilation?")
    assert "(recompilation): was looked for and not found in this trace." in text
    assert "costs" not in text


def test_what_could_not_be_checked_is_said(tmp_path: Path) -> None:
    """Without GPU events there is nothing to say of copies."""
    found = GpuTrace().op("aten::mm", 0, 10).load(tmp_path).diagnose()
    unknown = next(name for name, verdict in found.verdicts.items() if verdict == "unknown")
    assert f"({unknown}): could not be checked in this trace: the trace lacks" in said(
        found, unknown
    )


@pytest.mark.parametrize(
    ("question", "row"),
    [
        ("What does `aten::add_` cost?", "- aten::add_: 24.1 ms on the GPU"),
        ("what about dgrad_engine?", "dgrad_engine<float, 512"),
        ("DGRAD_ENGINE", ": 80.8 ms in total"),
    ],
)
def test_names_of_the_trace_are_looked_up(diagnosis: Any, question: str, row: str) -> None:
    assert row in said(diagnosis, question)


@pytest.mark.parametrize(
    ("question", "command"),
    [
        ("What is the mean step time?", "steps PATH"),
        ("Is fp16 used?", "roofline PATH"),
        ("Is the DataLoader slow?", "host PATH"),
    ],
)
def test_words_that_are_also_names_lead_to_their_topic(
    diagnosis: Any, question: str, command: str
) -> None:
    """`aten::mean` is an operator, and kernels have fp16 in their names."""
    assert f"`torchtraceap {command}" in said(diagnosis, question)


@pytest.mark.parametrize("question", ["What is the capital of France?", "", "???"])
def test_what_leads_nowhere_is_said(diagnosis: Any, question: str) -> None:
    assert said(diagnosis, question) == NOTHING


@settings(max_examples=50)
@given(st.text())
def test_any_question_gets_an_answer(question: str) -> None:
    assert answer_offline(_small(), question).text


_KEPT: list[Any] = []


def _small() -> Any:
    """A trace of two events, diagnosed once."""
    if not _KEPT:
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            made = GpuTrace().op("aten::mm", 0, 100).launch("gemm", (10, 5), (20, 60))
            _KEPT.append(made.load(Path(folder)).diagnose())
    return _KEPT[0]


def test_an_offline_answer_needs_no_heavy_package(bundled: Path) -> None:
    program = (
        "import sys, torchtraceap as ttap\n"
        "from torchtraceap.explanation.offline_answer import answer_offline\n"
        f"answer_offline(ttap.load({str(bundled)!r}).diagnose(), 'why is data loading slow')\n"
        "print([n for n in ('openai', 'mcp', 'pydantic', 'torch') if n in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stderr == ""
    assert ran.stdout.strip() == "[]"
