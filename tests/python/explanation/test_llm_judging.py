"""The judge that asks a model: a verdict that holds, one repair, or an error."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given

from torchtraceap.core.formatting import plain_text
from torchtraceap.explanation.language_model import AnswerError, ModelError, Reply
from torchtraceap.explanation.llm_judge import ModelJudge
from torchtraceap.explanation.pack import Pack, short_name
from torchtraceap.explanation.verdict import check_verdict

from .packs_by_hand import SECRET, ScriptedModel, good_answer, make_pack, packs


def test_a_good_answer_is_the_verdict() -> None:
    model = ScriptedModel(good_answer())
    verdict = ModelJudge(model).verdict_on(make_pack())
    assert verdict.primary == "single_process_data_loading"
    assert check_verdict(verdict, make_pack()) == []
    assert len(model.asked) == 1


def test_the_model_sees_placeholders_and_the_verdict_names() -> None:
    what = "name_1 runs while the GPU idles for 6.54 ms."
    model = ScriptedModel(good_answer(what=what))
    pack = make_pack()
    verdict = ModelJudge(model).verdict_on(pack)
    assert SECRET not in json.dumps(model.asked)
    assert "fraud" not in json.dumps(model.asked)
    assert verdict.what == f"{SECRET} runs while the GPU idles for 6.54 ms."
    assert check_verdict(verdict, pack) == []


def test_names_are_shown_where_the_user_wants_it() -> None:
    model = ScriptedModel(good_answer(what="name_1 runs for 6.54 ms."), good_answer())
    verdict = ModelJudge(model, redaction=False).verdict_on(make_pack())
    assert SECRET in model.asked[0][1]["content"]
    assert verdict.what == good_answer()["what"]
    assert "what says 1" in model.asked[1][-1]["content"]  # there is no name_1


def test_a_second_turn_names_the_problems() -> None:
    model = ScriptedModel(good_answer(what="It idles for 7 ms."), good_answer())
    assert ModelJudge(model).verdict_on(make_pack()).what == good_answer()["what"]
    again = model.asked[1]
    assert list(again[:2]) == list(model.asked[0])
    assert "It idles for 7 ms." in again[2]["content"]
    assert "what says 7" in again[3]["content"]
    assert model.schemas[0] == model.schemas[1]


@pytest.mark.parametrize(
    "reply",
    [
        "no idea",
        good_answer(evidence=[]),
        good_answer(primary="cpu_bound"),
        Reply(json.dumps(good_answer()), "length"),
    ],
)
def test_two_answers_that_do_not_hold_are_an_error(reply: object) -> None:
    model = ScriptedModel(reply, reply)
    with pytest.raises(AnswerError):
        ModelJudge(model).verdict_on(make_pack())
    assert len(model.asked) == 2


def test_a_refusal_is_not_asked_again() -> None:
    model = ScriptedModel(Reply("I won't", "refusal"))
    with pytest.raises(ModelError, match="refused") as caught:
        ModelJudge(model).verdict_on(make_pack())
    assert not isinstance(caught.value, AnswerError)
    assert len(model.asked) == 1


def test_what_is_dropped_cannot_be_cited() -> None:
    pack = make_pack(("acme " * 15,), lines=120)
    cites = {"row": None, "metric": "g1.count", "value": 1, "why": ""}
    answer = good_answer(evidence=[cites], what="", why="")
    with pytest.raises(AnswerError, match=r"no metric 'g1\.count'"):
        ModelJudge(ScriptedModel(answer, answer)).verdict_on(pack)


def test_texts_are_plain_and_names_in_them_short() -> None:
    name = "acme\u202e\x1b[2J " + "x" * 5000
    model = ScriptedModel(good_answer(what="a\x07b\u202ec name_1 for 6.54 ms", why="\ud83d\ude00"))
    verdict = ModelJudge(model).verdict_on(make_pack((name,)))
    assert verdict.what.startswith("a b c acme [2J xxx") and verdict.what.endswith("for 6.54 ms")
    assert len(verdict.what) < 200 and verdict.what.isprintable()


@given(packs())
def test_names_in_a_verdict_are_those_of_the_pack(pack: Pack) -> None:
    shown = ModelJudge(ScriptedModel()).shown(pack)
    known = [name for name in sorted(shown.names()) if name.startswith("name_")]
    assume(known)
    evidence = [{"row": None, "metric": "fact.fetches", "value": 12, "why": known[0]}]
    answer = good_answer(evidence=evidence, what=f"12 fetches in {known[-1]}")
    verdict = ModelJudge(ScriptedModel(answer)).verdict_on(pack)
    names = {short_name(name) for name in pack.names()}
    assert plain_text(verdict.evidence[0].why) in {plain_text(name) for name in names}
    assert verdict.what.removeprefix("12 fetches in").strip() in {name.strip() for name in names}
