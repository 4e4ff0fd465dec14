"""Questions to a model that calls tools: what it may call, and what it may say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.explanation.language_model import Message, ModelError, Reply, ToolCall, Usage
from torchtraceap.explanation.numbers import (
    Grounds,
    share_quantity,
    size_quantity,
    time_quantity,
)
from torchtraceap.explanation.questions import (
    MOST_ANSWER,
    MOST_CALLS,
    MOST_CHARACTERS,
    MOST_ROUNDS,
    ask,
)
from torchtraceap.explanation.tools import Toolbox

Step = Reply | Callable[[Sequence[Message]], Reply]


class Scripted:
    """A model whose replies are written down; it repeats the last one."""

    name = "scripted"

    def __init__(self, *script: Step) -> None:
        self.script = list(script)
        self.seen: list[list[Message]] = []
        self.offered: list[int] = []

    def answer(self, messages: Sequence[Message], schema: Mapping[str, Any], title: str) -> Reply:
        raise AssertionError("questions are conversations")

    def converse(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        json.dumps(messages)
        _check_order(messages)
        self.seen.append(list(messages))
        self.offered.append(len(tools))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return step if isinstance(step, Reply) else step(messages)

    def usage(self) -> Usage:
        return Usage(len(self.seen), 0, 0, None)


def _check_order(messages: Sequence[Message]) -> None:
    """As servers want it: every call is answered, in order, before anything else is said."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            continue
        assert waiting == []
        calls = message.get("tool_calls", ())
        waiting = [call["id"] for call in calls]
        assert len(set(waiting)) == len(waiting)
        for call in calls:
            json.loads(call["function"]["arguments"])
    assert waiting == []


def said(text: str, finish: str = "stop") -> Reply:
    return Reply(text, finish)


def calls(*wanted: tuple[str, Any]) -> Reply:
    made = (
        ToolCall(
            f"call_{name}_{place}", name, given if isinstance(given, str) else json.dumps(given)
        )
        for place, (name, given) in enumerate(wanted)
    )
    return Reply("", "tool_calls", tuple(made))


@pytest.fixture(scope="module")
def box(bundled: Path) -> Toolbox:
    return Toolbox(ttap.load(bundled))


def test_an_answer_with_numbers_of_results_stands(box: Toolbox) -> None:
    text = "The GPU idles for 392.9 ms of 0.996 s (39 %); data loading costs 352 ms."
    model = Scripted(calls(("summary", {}), ("diagnosis", {"limit": 2})), said(text))
    found = ask(box, "Where is the time lost?", model)
    assert found.answer == text
    assert found.problems == ()
    assert [(call.tool, call.is_error) for call in found.calls] == [
        ("summary", False),
        ("diagnosis", False),
    ]
    tools = {message["role"] for message in model.seen[1]}
    assert tools == {"system", "user", "assistant", "tool"}


def test_a_trace_can_be_asked_without_a_toolbox(bundled: Path) -> None:
    found = ask(ttap.load(bundled), "How many?", Scripted(said("That is not recorded.")))
    assert found.answer == "That is not recorded."


def test_an_invented_number_can_be_repaired(box: Toolbox) -> None:
    def repaired(messages: Sequence[Message]) -> Reply:
        assert "123 ms" in messages[-1]["content"]
        return said("The GPU idles for 393 ms.")

    model = Scripted(calls(("summary", {})), said("The GPU idles for 123 ms."), repaired)
    found = ask(box, "How long does it idle?", model)
    assert found.answer == "The GPU idles for 393 ms."
    assert found.problems == ()
    assert model.offered == [7, 7, 0]


def test_an_answer_that_keeps_its_invented_number_is_refused(box: Toolbox) -> None:
    model = Scripted(calls(("summary", {})), said("It idles for 123 ms, in 77 gaps."))
    found = ask(box, "How long does it idle?", model)
    assert found.answer is None
    assert found.problems == ("refused: no tool gave these numbers: 123 ms, 77",)
    assert len(model.seen) == 3


def test_numbers_of_the_question_may_be_repeated(box: Toolbox) -> None:
    found = ask(
        box, "Is it above 42 ms?", Scripted(said("I can't tell whether it is above 42 ms."))
    )
    assert found.answer == "I can't tell whether it is above 42 ms."


@pytest.mark.parametrize("text", ["It is 4321.", "It is 87.65.", "It is 87.65 ms.", "It is k77."])
def test_what_the_model_chose_itself_is_no_ground(box: Toolbox, text: str) -> None:
    """Neither by errors that repeat it nor by a range that it asked for."""
    asked = calls(
        ("ops", {"limit": 4321}),
        ("ops", {"k77": 1}),
        ("window", {"start_ms": 87.65, "end_ms": 98.76}),
    )
    found = ask(box, "What?", Scripted(asked, said(text)))
    assert [call.is_error for call in found.calls] == [True, True, False]
    assert found.answer is None


def test_unknown_tools_and_bad_arguments_are_answered_in_words(box: Toolbox) -> None:
    def reads(messages: Sequence[Message]) -> Reply:
        texts = [m["content"] for m in messages if m["role"] == "tool"]
        assert "there is no tool of that name; there are: summary" in texts[0]
        assert texts[1] == '{"error":"the arguments are no JSON object"}'
        assert "the arguments are no JSON object" in texts[2]
        assert "limit: expected a whole number from 1 to 50" in texts[3]
        assert "the arguments are too long" in texts[4]
        return said("I can't tell.")

    wanted = (
        ("open_file", {"path": "/etc/passwd"}),
        ("ops", '{"limit": '),
        ("ops", "[" * 3 + "]" * 3),
        ("ops", {"limit": "many"}),
        ("ops", json.dumps({"contains": "x" * 5_000})),
    )
    reply = calls(*wanted)
    # A server gets back what it can read, whatever the model wrote.
    model = Scripted(reply, reads)
    found = ask(box, "What?", model)
    assert found.answer == "I can't tell."
    assert all(call.is_error for call in found.calls)


def test_deeply_nested_arguments_are_answered_in_words(box: Toolbox) -> None:
    deep = "[" * 1_900 + "]" * 1_900
    found = ask(box, "What?", Scripted(calls(("ops", deep)), said("I can't tell.")))
    assert found.calls[0].is_error


def test_too_many_calls_at_once_are_left_out(box: Toolbox) -> None:
    model = Scripted(calls(*[("step", {"number": 8})] * 40), said("I can't tell."))
    found = ask(box, "What?", model)
    assert len(found.calls) == MOST_CALLS
    assert "28 calls beyond the limit were left out" in found.problems
    assert model.offered[-1] == 0
    assert found.answer == "I can't tell."


def test_endless_calls_end(box: Toolbox) -> None:
    model = Scripted(calls(("summary", {})))
    found = ask(box, "What?", model)
    assert found.answer is None
    assert len(model.seen) <= MOST_ROUNDS
    assert len(found.calls) < MOST_CALLS
    assert found.problems[-1] == "the model gave no answer"
    assert model.offered[-1] == 0
    assert "No more tools" in model.seen[-1][-1]["content"]


def test_results_are_bounded_in_all(box: Toolbox) -> None:
    model = Scripted(calls(*[("kernels", {"by": "name", "limit": 50})] * 4), said("No."))
    model.script.insert(1, model.script[0])
    model.script.insert(2, model.script[0])
    found = ask(box, "What?", model)
    sizes = [len(m["content"]) for m in model.seen[-1] if m["role"] == "tool"]
    assert sum(sizes) < 1.7 * MOST_CHARACTERS
    assert len(found.calls) == 8
    assert model.offered[-1] == 0


def test_an_answer_is_short_plain_text(box: Toolbox) -> None:
    found = ask(box, "What?", Scripted(said("\x1b[31mred\x00\nline\u202e " + "word " * 1_000)))
    assert found.answer is not None
    assert len(found.answer) == MOST_ANSWER
    assert found.answer.startswith("red \nline")
    assert all(c.isprintable() or c == "\n" for c in found.answer)
    assert found.problems == ("the answer was cut",)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (said("", "stop"), "the model gave no answer"),
        (said("no", "refusal"), "the model refused to answer"),
    ],
)
def test_no_answer_is_a_problem(box: Toolbox, reply: Reply, problem: str) -> None:
    assert ask(box, "What?", Scripted(reply)).problems == (problem,)


def test_a_cut_answer_says_so(box: Toolbox) -> None:
    assert ask(box, "What?", Scripted(said("I", "length"))).problems == ("the answer was cut",)


def test_a_model_that_fails_is_a_problem(box: Toolbox) -> None:
    def fails(messages: Sequence[Message]) -> Reply:
        raise ModelError("the budget is used up")

    found = ask(box, "What?", Scripted(calls(("summary", {})), fails))
    assert found.answer is None
    assert found.problems == ("the budget is used up",)
    assert len(found.calls) == 1


class Renamed:
    """Hides one name."""

    def shown(self, text: str) -> str:
        return text.replace("aten::add_", "op_17")

    def restore(self, text: str) -> str:
        return text.replace("op_17", "aten::add_")


def test_names_are_hidden_from_the_model_and_back_in_the_answer(box: Toolbox) -> None:
    def reads(messages: Sequence[Message]) -> Reply:
        text = str([m["content"] for m in messages if m["role"] == "tool"])
        assert "op_17" in text
        assert "aten::add_" not in text
        return said("op_17 takes 24.1 ms in 2,994 calls.")

    model = Scripted(calls(("ops", {"contains": "op_17", "limit": 1})), reads)
    found = ask(box, "What?", model, Renamed())
    assert found.answer == "aten::add_ takes 24.1 ms in 2,994 calls."


def test_texts_of_the_package_are_not_hidden(box: Toolbox) -> None:
    class Everything:
        def shown(self, text: str) -> str:
            return "hidden"

        def restore(self, text: str) -> str:
            return text

    model = Scripted(calls(("diagnosis", {}), ("kernels", {"limit": 3})), said("No."))
    ask(box, "What?", model, Everything())
    diagnosis, kernels = (json.loads(m["content"]) for m in model.seen[-1] if m["role"] == "tool")
    first = diagnosis["findings"]["rows"][0]
    assert first["title"] == "The training process loads its own data"
    assert first["cost"]["text"] == "353 ms"
    assert {row["canonical"] for row in kernels["table"]["rows"]} == {"hidden"}
    assert {row["class"] for row in kernels["table"]["rows"]} == {"compute"}


# ------------------------------------------------------------------------- numbers


@pytest.fixture
def grounds() -> Grounds:
    found = Grounds()
    found.add_result(
        {
            "rows": [
                {"name": "gemm_128x64_tn", "time": time_quantity(80_756_499), "count": 1234},
                {"name": "void f<float, 512>(int)", "size": size_quantity(3 * 2**20)},
            ],
            "part": share_quantity(0.33583),
            "tiny": share_quantity(0.0002),
            "less": time_quantity(-50_145_000),
            "notes": ["6 fetches of 69.8 ms move to 4 processes"],
            "asked": {"start_ms": 777},
        }
    )
    return found


@pytest.mark.parametrize(
    "text",
    [
        "80.756499 ms", "80.8 ms", "81 ms", "0.0808 s", "80,756 µs", "80756 us", "80756499 ns",
        "1,234 times", "1234", "3 MiB", "3.15 MB", "3072 KiB", "3145728 bytes", "33.6 %",
        "34 percent",
        "a share of 0.336", "-50.1 ms", "50.1 milliseconds less", "6 fetches", "four", "69.8 ms",
        "70 ms", "gemm_128x64_tn is slow", "f<float, 512>", "on fp32 and sm_80", "< 0.1 %", "81-ms",
    ],
)  # fmt: skip
def test_numbers_of_results_are_known_as_they_are_rounded(grounds: Grounds, text: str) -> None:
    if text == "f<float, 512>":
        text = "void f<float, 512>(int)"
    assert grounds.unknown_in(text) == []


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("82 ms", ["82 ms"]),
        ("80.7 ms", ["80.7 ms"]),
        ("80.8 s", ["80.8 s"]),
        ("81 %", ["81 %"]),
        ("33.6 ms", ["33.6 ms"]),
        ("1,235 times", ["1,235"]),
        ("777 ms", ["777 ms"]),
        ("128", ["128"]),
        ("512 rows", ["512"]),
        ("twenty kernels", ["20"]),
        ("5 ms and again 5 ms", ["5 ms"]),
        ("3 GiB", ["3 GiB"]),
        ("1e400", ["inf"]),
    ],
)
def test_other_numbers_are_unknown(grounds: Grounds, text: str, unknown: list[str]) -> None:
    assert grounds.unknown_in(text) == unknown


def test_a_name_that_reads_as_a_quantity_is_no_ground(grounds: Grounds) -> None:
    names = ("it takes 123 ms", "456", "7 GiB", "NVIDIA H100 80GB HBM3", "Tesla V100-DGXS-32GB")
    grounds.add_result([{"name": name} for name in names])
    said = "it takes 123 ms, 456 times, 7 GiB on NVIDIA H100 80GB HBM3 and Tesla V100-DGXS-32GB"
    assert grounds.unknown_in(said) == ["123 ms", "7 GiB", "456"]
