"""Reading what a language model answers: strictly, and without a crash whatever it is."""

from __future__ import annotations

import copy
import json
import random
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.explanation.answer import VerdictAnswer, json_schema, read_answer, to_verdict
from torchtraceap.explanation.language_model import AnswerError, ModelError
from torchtraceap.explanation.verdict import (
    GRIDS,
    VERDICTS,
    Citation,
    check_verdict,
    find_citations,
)

from .packs_by_hand import any_text, good_answer, make_pack

PACK = make_pack()
GOOD = json.dumps(good_answer())
STRICT_KEYWORDS = {
    "additionalProperties", "anyOf", "enum", "items", "properties", "required", "type"
}  # fmt: skip


def test_it_becomes_a_verdict() -> None:
    verdict = to_verdict(read_answer(GOOD, PACK))
    assert verdict.labels == ("single_process_data_loading",)
    assert verdict.evidence[1] == Citation(None, "segment.idle", 6.54, "idle")
    assert verdict.suggested_windows is None
    again = to_verdict(read_answer(json.dumps(good_answer(suggested_window="200")), PACK))
    assert again.suggested_windows == 200


def test_no_type_is_no_label() -> None:
    answer = good_answer(verdict="benign", labels=["none"], primary="none", fix="none")
    assert to_verdict(read_answer(json.dumps(answer), PACK)).labels == ()


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{GOOD}\n```",
        f"Here it is:\n```\n{GOOD}\n```\nI hope that {{helps}}.",
        f"First I look at {{the gaps}} and then... {GOOD} That is all.",
        f'{{"note": "a draft"}}\n{GOOD}',
        GOOD.replace("during", "during\n\t\x01"),
        f"<think>{{</think>{GOOD}",
        f"{GOOD} {'[' * 50}",
    ],
)
def test_json_is_found_in_prose(text: str) -> None:
    assert read_answer(text, PACK).primary == "single_process_data_loading"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verdict": "bad"}, "verdict"),
        ({"labels": ["gremlins"]}, "labels: "),
        ({"primary": "gremlins"}, "primary: "),
        ({"fix": "rm -rf"}, "fix: "),
        ({"confidence": 1.5}, "confidence"),
        ({"confidence": "0.5"}, "confidence"),
        ({"suggested_window": "75"}, "suggested_window"),
        ({"what": "word " * 61}, "more than 60 words"),
        ({"what": "w" * 2000}, "what"),
        ({"evidence": [{"row": "r1", "metric": None, "value": None, "why": ""}] * 13}, "evidence"),
        ({"evidence": [{"row": "r1"}]}, "evidence.0.metric"),
        ({"thoughts": "..."}, "thoughts"),
        ({"why": None}, "why"),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(AnswerError, match=said):
        read_answer(json.dumps(good_answer(**changes)), PACK)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no complete JSON object"),
        ("I can't help with that.", "no complete JSON object"),
        (GOOD[:-20], "no complete JSON object"),
        ("[1, 2]", "no complete JSON object"),
        ("{" * 70_000, "more than 65536 characters"),
        ('{"a":' * 5000, "nests deeper"),
        ('{"a":[' * 50 + "1" + "]}" * 50, "nests deeper"),
        (GOOD.replace("0.9", "NaN"), "no complete JSON object"),
        (GOOD.replace("0.9", "1e999"), "confidence"),
        (GOOD.replace("6.54,", "-1e999,"), "evidence.1.value"),
        (GOOD.replace("12,", "9" * 5000 + ","), "no complete JSON object"),
        (GOOD.replace("12,", "9" * 4000 + ","), "evidence.2.value"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str) -> None:
    with pytest.raises(AnswerError, match=said):
        read_answer(text, PACK)


def test_brackets_in_strings_are_not_nesting() -> None:
    answer = good_answer(why="[" * 200 + '\\" {{')
    assert read_answer(json.dumps(answer), PACK).why.endswith('\\" {{')


def test_problems_never_repeat_values() -> None:
    with pytest.raises(AnswerError) as caught:
        read_answer(json.dumps(good_answer(fix="my-key-123", verdict="my-key-123")), PACK)
    assert "my-key-123" not in str(caught.value)
    assert isinstance(caught.value, ModelError)


# ---------------------------------------------------------------------------------- schema


def _nodes(schema: Any) -> list[dict[str, Any]]:
    """Every schema in a schema."""
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    return [schema, *(node for each in inner for node in _nodes(each))]


def test_the_schema_is_of_the_strict_subset() -> None:
    for node in _nodes(json_schema(PACK)):
        assert set(node) <= STRICT_KEYWORDS
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])


def test_the_schema_lists_what_may_be_chosen() -> None:
    chosen = json_schema(PACK)["properties"]
    assert chosen["labels"]["items"]["enum"] == [*PAPER_TYPES, "none"]
    assert chosen["primary"]["enum"] == chosen["fix"]["enum"] == [*PAPER_TYPES, "none"]
    assert tuple(chosen["verdict"]["enum"]) == VERDICTS
    assert chosen["suggested_window"]["enum"] == [*map(str, GRIDS), "keep"]
    assert get_args(VerdictAnswer.model_fields["verdict"].annotation) == VERDICTS


# ------------------------------------------------------------------------------- hostility

_SCALARS: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 10**30, 10**400, "", "none", "r1", "\ud800", "\u202e", "NaN", 0.1,
    "segment.idle", [], {}, [[[]]], {"verdict": "benign"}, "x" * 5000,
)  # fmt: skip


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Every value in a document, as its container and its key."""
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    found = [(node, key) for key in keys]
    return found + [
        place for key in keys if isinstance(node[key], dict | list) for place in _places(node[key])
    ]


def _mutated(source: random.Random) -> str:
    """A good answer with one to four things wrong with it."""
    answer: Any = copy.deepcopy(good_answer())
    for _ in range(source.randint(1, 4)):
        places = _places(answer)
        if not places:
            break
        node, key = source.choice(places)
        act = source.random()
        if act < 0.7:
            node[key] = copy.deepcopy(source.choice(_SCALARS))
        elif act < 0.85:
            del node[key]
        elif isinstance(node, dict):
            node[source.choice(["extra", "\x00", "verdict "])] = copy.deepcopy(node[key])
    text = json.dumps(answer, ensure_ascii=source.random() < 0.5)
    if source.random() < 0.4:
        place = source.randrange(len(text))
        text = text[:place] + source.choice(['"', "{", "}", "\\", "\x00", ""]) + text[place + 1 :]
    return text[: source.randrange(len(text) + 1)] if source.random() < 0.1 else text


def _judged(text: str) -> str:
    """What became of an answer."""
    try:
        verdict = to_verdict(read_answer(text, PACK))
    except AnswerError as error:
        str(error).encode("utf-8")
        return "refused"
    problems = check_verdict(verdict, PACK)
    for problem in problems:
        problem.encode("utf-8")
    find_citations(verdict, PACK)
    return "wrong" if problems else "holds"


def test_ten_thousand_mutations_are_read_or_refused() -> None:
    source = random.Random(16)
    fates = [_judged(_mutated(source)) for _ in range(10_000)]
    assert {fate: fates.count(fate) > 50 for fate in set(fates)} == {
        "refused": True,
        "wrong": True,
        "holds": True,
    }


@given(any_text | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_refused(text: str) -> None:
    assert _judged(text) == "refused"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(sorted(good_answer())) | any_text, _json, max_size=9))
def test_any_json_is_read_or_refused(document: dict[str, Any]) -> None:
    assert _judged(json.dumps(document)) == "refused"
    assert _judged(json.dumps(good_answer(**document))) in ("refused", "wrong", "holds")
