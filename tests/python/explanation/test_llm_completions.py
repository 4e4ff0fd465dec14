"""Answers out of bytes: cut anywhere, changed anywhere."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtraceap.explanation.completions import Completion, CompletionError, read_completion
from torchtraceap.explanation.language_model import Reply


def _event(**choice: object) -> bytes:
    return b"data: " + json.dumps({"model": "m", "choices": [choice]}).encode() + b"\n\n"


STREAMED = (
    _event(delta={"role": "assistant", "content": "h\u00e9"})
    + b": ping\n\n"
    + _event(delta={"content": "llo \U0001f600"})
    + _event(delta={"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]})
    + _event(delta={"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]})
    + _event(delta={}, finish_reason="tool_calls")
    + b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n\n'
    + b"data: [DONE]\n\n"
)
PLAIN = json.dumps(
    {
        "choices": [{"index": 0, "message": {"content": "h\u00e9"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    },
    indent=1,
).encode()


def read(*chunks: bytes) -> Completion:
    answer = Completion()
    read_completion(chunks, answer)
    return answer


@given(st.lists(st.integers(0, len(STREAMED))), st.sampled_from([b"\n", b"\r\n"]))
def test_a_stream_may_be_cut_anywhere(cuts: list[int], end: bytes) -> None:
    body = STREAMED.replace(b"\n", end)
    places = [0, *sorted(cuts), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(places)]
    answer = read(*pieces)
    reply = answer.reply()
    assert (reply.text, reply.finish) == ("h\u00e9llo \U0001f600", "tool_calls")
    assert [(call.id, call.name, call.arguments) for call in reply.calls] == [("c", "f", "{}")]
    assert (answer.tokens, answer.model) == ((3, 4), "m")


def test_an_answer_in_one_piece() -> None:
    answer = read(b"\n ", PLAIN[:9], PLAIN[9:])
    assert (answer.reply(), answer.tokens) == (Reply("h\u00e9", "length"), (3, 4))


@given(
    st.sampled_from([STREAMED, PLAIN]),
    st.integers(0, 2000),
    st.integers(0, 40),
    st.binary(max_size=12) | st.sampled_from([b"[", b"{}", b"null", b'"', b"\n\n", b"-1"]),
)
def test_anything_else_is_an_error_or_an_answer(
    body: bytes, at: int, length: int, put: bytes
) -> None:
    try:
        reply = read(body[:at] + put + body[at + length :]).reply()
    except CompletionError as error:
        assert str(error).startswith("its answer")
    else:
        reply.text.encode()
        assert reply.finish in ("stop", "length", "refusal", "tool_calls")


@given(st.binary())
def test_bytes_are_no_answer(body: bytes) -> None:
    with pytest.raises(CompletionError):
        read(body)


def test_what_comes_after_the_end_is_not_read() -> None:
    def chunks():  # type: ignore[no-untyped-def]
        yield STREAMED
        raise AssertionError("read on")

    answer = Completion()
    read_completion(chunks(), answer)
    assert answer.reply().finish == "tool_calls"
