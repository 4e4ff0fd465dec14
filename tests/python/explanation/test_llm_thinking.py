"""Models that think before they answer: what they think is never their answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtraceap.explanation.answer import read_answer
from torchtraceap.explanation.client import Client
from torchtraceap.explanation.language_model import AnswerError, without_thoughts
from torchtraceap.explanation.settings import ModelSettings

from .contract_server import ContractServer, answer, truncated
from .packs_by_hand import make_pack

MESSAGES = [{"role": "system", "content": "You judge."}, {"role": "user", "content": "Judge."}]


def verdict(primary: str) -> str:
    given: dict[str, Any] = {
        "verdict": "benign",
        "labels": [],
        "primary": primary,
        "confidence": 0.5,
        "evidence": [],
        "what": "It waits.",
        "why": "Nothing is queued.",
        "fix": "none",
        "suggested_window": "keep",
    }
    return json.dumps(given)


DRAFT, FINAL = verdict("cpu_bound"), verdict("none")
THOUGHT = [
    f"<think>{DRAFT}</think>{FINAL}",
    f"<think>\nFirst {DRAFT}, or {DRAFT}?\n</think>\n\n```json\n{FINAL}\n```",
    f"<thinking>{DRAFT}</thinking> {FINAL}",
    f"<THINK>{DRAFT}</THINK>{FINAL}",
    f"{DRAFT} so far.</think>{FINAL}",  # the first tag stands in the prompt
    f"{FINAL}<think>or rather {DRAFT}",  # cut while it thinks again
    f"<think>a</think><think>{DRAFT}</think>{FINAL}",
    f"<|channel|>analysis<|message|>{DRAFT}<|end|><|start|>assistant<|channel|>final<|message|>"
    f"{FINAL}<|return|>",
    f"<|channel|>analysis<|message|>{DRAFT}<|end|><|start|>assistant<|channel|>commentary "
    f"to=functions.x<|message|>{DRAFT}<|call|><|start|>assistant<|channel|>final "
    f"<|constrain|>json<|message|>{FINAL}",
    f"A draft: {DRAFT} No: {FINAL}",  # without tags the last complete object counts
]


@pytest.mark.parametrize("text", THOUGHT)
def test_the_answer_counts_and_no_draft(text: str) -> None:
    pack = replace(make_pack(), allowed=("cpu_bound",))
    assert read_answer(text, pack).primary == "none"


@pytest.mark.parametrize(
    "text",
    [
        f"<think>{DRAFT}",
        f"<think>{DRAFT}</think>",
        f"<think>{DRAFT}</think> I can't tell.",
        f"<|channel|>analysis<|message|>{DRAFT}<|end|>",
        f"<|channel|>analysis<|message|>{DRAFT}",
    ],
)
def test_thoughts_alone_are_no_verdict(text: str) -> None:
    pack = replace(make_pack(), allowed=("cpu_bound",))
    with pytest.raises(AnswerError, match="no complete JSON object"):
        read_answer(text, pack)


@given(st.text(), st.sampled_from(["think", "thinking"]), st.text(alphabet="abc {}<>/\n"))
def test_nothing_between_tags_is_left(before: str, tag: str, inside: str) -> None:
    secret = "8c1f"
    text = f"{before}<{tag}>{inside}{secret}{inside}</{tag}>rest"
    assert secret not in without_thoughts(text)
    assert secret not in without_thoughts(f"{before}<{tag}>{inside}{secret}{inside}")


@given(st.text())
def test_what_has_no_thoughts_stays(text: str) -> None:
    if "<" not in text:
        assert without_thoughts(text) == text.strip()


def client(server: ContractServer, **more: Any) -> Client:
    return Client(ModelSettings(server.base_url, "tiny", cache="off", retries=0, **more))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("in_parts", [False, True])
def test_reasoning_content_is_set_aside(
    llm_server: ContractServer, plain: bool, in_parts: bool
) -> None:
    llm_server.plays(answer("yes", thoughts="no, no, no", plain=plain, in_parts=in_parts))
    with_thoughts = client(llm_server)
    reply = with_thoughts.converse(MESSAGES, ())
    assert (reply.text, reply.finish) == ("yes", "stop")


def test_thoughts_count_where_the_server_counts_no_tokens(llm_server: ContractServer) -> None:
    llm_server.plays(answer("yes", thoughts="no" * 700, usage=None))
    asking = client(llm_server)
    asking.converse(MESSAGES, ())
    assert asking.usage().completion_tokens >= 400


def test_tags_in_a_streamed_answer(llm_server: ContractServer) -> None:
    llm_server.plays(answer(f"<think>{DRAFT}</think>{FINAL}"))
    assert client(llm_server).converse(MESSAGES, ()).text == FINAL


def test_an_answer_cut_while_it_thinks_is_empty(llm_server: ContractServer) -> None:
    llm_server.plays(truncated(f"<think>{DRAFT}"))
    reply = client(llm_server).converse(MESSAGES, ())
    assert (reply.text, reply.finish) == ("", "length")


def test_thinking_is_switched_off_where_the_server_takes_that(llm_server: ContractServer) -> None:
    llm_server.plays(answer("yes"), answer("no"))
    client(llm_server).converse(MESSAGES, ())
    assert llm_server.asked[-1].body["chat_template_kwargs"] == {"enable_thinking": False}
    llm_server.lacks = frozenset(["chat_template_kwargs"])
    assert client(llm_server).converse(MESSAGES, ()).text == "no"
    assert "chat_template_kwargs" not in llm_server.asked[-1].body


def test_the_longest_answer_is_asked_for(llm_server: ContractServer) -> None:
    llm_server.plays(answer("yes"))
    client(llm_server, max_answer_tokens=9000).converse(MESSAGES, ())
    assert llm_server.asked[-1].body["max_tokens"] == 9000
