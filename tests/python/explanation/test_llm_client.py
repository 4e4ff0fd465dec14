"""The client of a language model against a server that plays every kind of answer."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchtraceap.errors import MissingDependencyError
from torchtraceap.explanation import completions
from torchtraceap.explanation.client import Client
from torchtraceap.explanation.language_model import (
    LanguageModel,
    ModelError,
    Reply,
    ToolCall,
    Usage,
)
from torchtraceap.explanation.settings import ModelSettings

from .contract_server import (
    Asked,
    ContractServer,
    answer,
    broken,
    drip,
    events,
    fitting,
    huge,
    redirect,
    refusal,
    serving,
    silent,
    status,
    too_many,
    tool_calls,
    truncated,
    unknown_citation,
    wrong_enum,
)

KEY = "sk-test-0123456789abcdef"
PROMPT = "what the prompt alone says, in enough characters to be told from anything else"
MESSAGES = [
    {"role": "system", "content": "You judge."},
    {"role": "user", "content": PROMPT},
]
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["verdict", "evidence"],
    "properties": {
        "verdict": {"enum": ["benign", "anti_pattern"]},
        "evidence": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["row", "value"],
                "properties": {
                    "row": {"type": "string"},
                    "value": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                },
            },
        },
    },
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "sql", "description": "Asks.", "parameters": {"type": "object"}},
    }
]
GOOD = '{"verdict": "benign", "evidence": [{"row": "a", "value": 0}]}'


def make(server: ContractServer, **more: Any) -> Client:
    given = {"key": KEY, "cache": "off", "retries": 0, **more}
    progress = given.pop("progress", None)
    return Client(ModelSettings(server.base_url, "tiny", **given), progress)


def ask(client: Client) -> Reply:
    return client.answer(MESSAGES, SCHEMA, "verdict")


def fails(client: Client, match: str) -> str:
    """What the error says; neither it nor anything that it carries holds a secret."""
    with pytest.raises(ModelError, match=match) as caught:
        ask(client)
    error = caught.value
    assert error.__cause__ is None and error.__context__ is None
    for text in (str(error), repr(error), *client.problems):
        assert KEY not in text and KEY[:12] not in text
        assert PROMPT not in text and PROMPT[:30] not in text
        assert text.isprintable() and len(text) < 400
    return str(error)


# --------------------------------------------------------------------------------- good answers


def test_a_streamed_answer(llm_server: ContractServer) -> None:
    llm_server.plays(fitting())
    client: LanguageModel = make(llm_server, seed=7, max_answer_tokens=300)
    assert client.answer(MESSAGES, SCHEMA, "a verdict!") == Reply(GOOD, "stop")
    assert client.name == "tiny"
    assert client.usage() == Usage(1, 100, 20, None)
    (asked,) = llm_server.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body == {
        "model": "tiny",
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "seed": 7,
        "max_tokens": 300,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a_verdict_", "strict": True, "schema": SCHEMA},
        },
        "chat_template_kwargs": {"enable_thinking": False},
    }


@pytest.mark.parametrize("step", [wrong_enum(), unknown_citation("row"), answer("{not JSON")])
def test_answers_that_are_wrong_are_answers(llm_server: ContractServer, step: Any) -> None:
    llm_server.plays(step)
    reply = ask(make(llm_server))
    assert reply.finish == "stop"
    assert any(text in reply.text for text in ("no_such_value", "r999999", "{not JSON"))


def test_a_server_that_does_not_stream(llm_server: ContractServer) -> None:
    llm_server.plays(answer(GOOD, plain=True), tool_calls(("sql", {"q": 1}), plain=True))
    client = make(llm_server)
    assert ask(client) == Reply(GOOD, "stop")
    assert client.converse(MESSAGES, TOOLS).calls == (ToolCall("call_0", "sql", '{"q": 1}'),)
    assert client.usage() == Usage(2, 200, 40, None)
    assert client.problems == ()


@pytest.mark.parametrize("plain", [False, True])
def test_truncated_and_refused(llm_server: ContractServer, plain: bool) -> None:
    llm_server.plays(
        answer('{"verdict"', finish="length", plain=plain),
        answer("", refusal="I can't.", plain=plain),
        answer("", finish="content_filter", plain=plain),
    )
    client = make(llm_server)
    assert ask(client) == Reply('{"verdict"', "length")
    assert ask(client) == Reply("I can't.", "refusal")
    assert ask(client) == Reply("", "refusal")


def test_tool_calls(llm_server: ContractServer) -> None:
    llm_server.plays(
        tool_calls(("sql", {"query": "select 1"}), ("sql", "not JSON")),
        answer("It is idle."),
        answer(calls=[("sql", "{}")], finish="stop"),
    )
    client = make(llm_server)
    reply = client.converse(MESSAGES, TOOLS)
    first, second = reply.calls
    assert reply.finish == "tool_calls"
    assert first == ToolCall("call_0", "sql", '{"query": "select 1"}')
    assert second == ToolCall("call_1", "sql", "not JSON")
    said = {"role": "assistant", "content": None, "tool_calls": [
        {"id": first.id, "type": "function",
         "function": {"name": first.name, "arguments": first.arguments}}]}  # fmt: skip
    result = {"role": "tool", "tool_call_id": first.id, "content": "1"}
    assert client.converse([*MESSAGES, said, result], TOOLS) == Reply("It is idle.", "stop")
    assert client.converse(MESSAGES, TOOLS).finish == "tool_calls"
    assert llm_server.formats == [None, None, None]
    assert llm_server.asked[0].body["tools"] == TOOLS


def test_progress_is_told_as_the_answer_comes(llm_server: ContractServer) -> None:
    llm_server.plays(answer("0123456789" * 3))
    told: list[int] = []
    ask(make(llm_server, progress=told.append))
    assert told == sorted(told) and told[-1] == 30 and len(set(told)) > 3


def test_an_error_of_progress_is_the_callers(llm_server: ContractServer) -> None:
    llm_server.plays(answer("text"))

    def stop(characters: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(make(llm_server, progress=stop))


def test_no_key_is_no_header(llm_server: ContractServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, KEY)
    llm_server.plays(fitting())
    ask(make(llm_server, key=None))
    (asked,) = llm_server.asked
    assert "authorization" not in asked.headers
    assert KEY not in str(asked.headers)


# -------------------------------------------------------------------------------------- dialects


@pytest.mark.parametrize("refuses_with", [400, 422, 500])
@pytest.mark.parametrize(
    ("takes", "expected"),
    [
        ({"json_schema"}, ["json_schema"]),
        ({"json_object+schema", "json_object"}, ["json_schema", "json_object+schema"]),
        ({"json_object"}, ["json_schema", "json_object+schema", "json_object"]),
        (set(), ["json_schema", "json_object+schema", "json_object", None]),
    ],
)
def test_the_ladder(
    llm_server: ContractServer, takes: set[str], expected: list[Any], refuses_with: int
) -> None:
    llm_server.takes, llm_server.refuses_with = frozenset(takes), refuses_with
    llm_server.always(fitting())
    client = make(llm_server)
    assert ask(client).text == GOOD
    assert llm_server.formats == expected
    assert ask(client).text == GOOD
    assert llm_server.formats == [*expected, expected[-1]]
    assert client.usage() == Usage(2, 200, 40, None)  # what was refused for its form costs nothing
    system, user = llm_server.asked[-1].body["messages"]
    assert user == MESSAGES[1]
    in_prompt = json.dumps(SCHEMA, separators=(",", ":")) in system["content"]
    assert in_prompt == (expected[-1] != "json_schema")
    assert system["content"].startswith("You judge.")


def test_a_schema_without_a_system_message(llm_server: ContractServer) -> None:
    llm_server.takes = frozenset()
    llm_server.plays(fitting())
    make(llm_server).answer([MESSAGES[1]], SCHEMA, "verdict")
    assert [each["role"] for each in llm_server.asked[-1].body["messages"]] == ["system", "user"]


def test_parameters_that_a_model_refuses_are_left_out(llm_server: ContractServer) -> None:
    llm_server.lacks = frozenset({"temperature", "seed", "max_tokens", "stream_options"})
    llm_server.always(fitting())
    client = make(llm_server, seed=1, max_answer_tokens=99)
    assert ask(client).text == GOOD
    last = llm_server.asked[-1]
    assert not llm_server.lacks & set(last.body)
    assert last.body["max_completion_tokens"] == 99
    assert last.format == "json_schema"
    ask(client)
    assert len(llm_server.asked) == 6


@pytest.mark.parametrize(
    "step",
    [
        status(400, "This model's maximum context length is 4096 tokens, you requested 5000."),
        status(500, "out of memory"),
        status(404, "response_format"),
        status(401, "response_format"),
    ],
)
def test_other_errors_do_not_fall(llm_server: ContractServer, step: Any) -> None:
    llm_server.plays(step)
    client = make(llm_server)
    fails(client, "HTTP")
    assert llm_server.formats == ["json_schema"]
    assert client.usage() == Usage(1, 0, 0, None)


def test_refusals_end(llm_server: ContractServer) -> None:
    """A server that blames the format of a request that has none."""
    llm_server.always(status(400, "response_format is wrong"))
    fails(make(llm_server), "HTTP 400")
    assert llm_server.formats == ["json_schema", "json_object+schema", "json_object", None]


def test_a_dialect_is_kept_for_some_days(
    llm_server: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm_server.takes = frozenset({"json_object"})
    llm_server.lacks = frozenset({"temperature"})
    llm_server.always(fitting())
    ask(make(llm_server, cache="write", seed=1))
    del llm_server.asked[:]
    ask(make(llm_server, cache="read", seed=2))
    ask(make(llm_server, cache="off", seed=3))
    assert llm_server.formats[0] == "json_object" and len(llm_server.asked) == 5
    assert "temperature" not in llm_server.asked[0].body
    del llm_server.asked[:]
    other = ModelSettings(llm_server.base_url, "other", retries=0)
    Client(other).answer(MESSAGES, SCHEMA, "verdict")
    assert llm_server.formats[0] == "json_schema"
    del llm_server.asked[:]
    monkeypatch.setattr("torchtraceap.explanation.cache._DIALECT_S", 0)
    ask(make(llm_server, cache="write", seed=4))
    assert llm_server.formats[0] == "json_schema"


# ------------------------------------------------------------------------------- what goes wrong


def test_a_wrong_key(llm_server: ContractServer) -> None:
    llm_server.key = "sk-another"
    said = fails(make(llm_server), "refuses the key")
    assert "Incorrect" not in said
    assert "set TORCHTRACEAP_LLM_KEY" in fails(make(llm_server, key=None), "wants a key")


def test_a_busy_server_is_asked_again(
    llm_server: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    llm_server.plays(too_many(7), status(500), fitting())
    client = make(llm_server, retries=2)
    assert ask(client).text == GOOD
    assert pauses[0] == 7 and len(pauses) == 2
    assert client.usage().calls == 1
    llm_server.plays(too_many(1), too_many(1), too_many(1), fitting())
    fails(client, "allows no more requests now.*HTTP 429.*slow down")
    assert llm_server.left == 1


def test_an_answer_that_drips(llm_server: ContractServer) -> None:
    llm_server.plays(drip("slow", 0.0005))
    assert ask(make(llm_server, timeout_s=5)) == Reply("slow", "stop")


@pytest.mark.parametrize("code", [200, 400])
def test_an_endless_body_is_left(llm_server: ContractServer, code: int) -> None:
    llm_server.plays(drip(None, 0.01, code), fitting())
    client = make(llm_server, timeout_s=0.1)
    fails(client, r"took longer than 0\.5 s")
    client = make(llm_server)
    assert ask(client).text == GOOD


def test_a_client_asks_again_after_it_has_given_up(llm_server: ContractServer) -> None:
    llm_server.plays(drip(None, 0.01), fitting())
    client = make(llm_server, timeout_s=0.1)
    fails(client, "took longer")
    client._settings = ModelSettings(llm_server.base_url, "tiny", cache="off")
    assert ask(client).text == GOOD


def test_a_silent_server(llm_server: ContractServer) -> None:
    llm_server.plays(silent())
    fails(make(llm_server, timeout_s=0.1), r"silent for 0\.1 s")


def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    client = Client(ModelSettings(url, "tiny", KEY, cache="off", retries=0))
    assert url not in fails(client, "can't be reached")


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (broken(), "connection broke"),
        (broken(plain=True), "connection broke"),
        (answer(GOOD, finish=None, done=False), "broke off"),
        (events(b""), "not one of Chat"),
        (events(b"<html>hello</html>"), "not one of Chat"),
        (events(b'{"a": '), "not JSON"),
        (events(b'{"a": 1}'), "not one of Chat"),
        (events([1]), "not one of Chat"),
        (events(b"data: {]\n\n"), "not JSON"),
        (events(b"data: " + b"[" * 100_000 + b"\n\n"), "not JSON"),
        (events({"error": {"message": "overloaded"}}), "fails: overloaded"),
        (events({"error": {"message": f"no {KEY} for {PROMPT}"}}), "fails$"),
        (events({"error": f"about {PROMPT[10:60]}"}), "fails$"),
        (status(200, raw=b'{"choices": {"0": 1}}'), "not one of Chat"),
        (status(400, f"bad key {KEY[:9]}"), r"refuses the request \(HTTP 400\)$"),
        (status(400, "esc\x1b[31m\u202e red"), "refuses the request .*esc\ufffd"),
        (status(400, "x" * 10_000), r"x\.\.\.$"),
        (status(400, raw=b"\xff\xfe not text"), "HTTP 400"),
        (status(400, raw=b"[" * 100_000), "HTTP 400"),
        (status(503, raw=b""), r"server fails \(HTTP 503\)"),
        (status(403, "no"), "refuses the key"),
        (redirect("http://127.0.0.2/v1/chat/completions"), "sends requests elsewhere.*HTTP 307"),
    ],
)
def test_what_is_no_answer(llm_server: ContractServer, step: Any, match: str) -> None:
    llm_server.plays(step)
    fails(make(llm_server), match)
    assert len(llm_server.asked) == 1


@pytest.mark.parametrize("line", [False, True])
def test_a_huge_body_is_left(
    llm_server: ContractServer, line: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "_MOST_BYTES", 1 << 20)
    llm_server.plays(huge(4 << 20, line=line))
    client = make(llm_server)
    fails(client, "longer than 1 MiB")
    used = client.usage()
    assert used.calls == 1 and (used.completion_tokens > 0) == (not line)


def test_odd_events_are_read(llm_server: ContractServer) -> None:
    choice = {"index": 0, "delta": {"content": "text"}}
    llm_server.plays(
        events(
            b"\xef\xbb\xbf: comment\r\n\r\nevent: message\r\n",
            b'data:{"choices":\r\ndata:[]}\r\n\r\n',
            {"choices": [None, {"index": 1, "delta": {"content": "other"}}, choice]},
            {"choices": [{"delta": {"content": ["no"], "tool_calls": [None, {"index": "x"}]}}]},
            {"choices": [{"delta": None}], "usage": {"prompt_tokens": -1, "completion_tokens": 1}},
            {"choices": [{"delta": {"content": "\ud83d"}}], "usage": {"prompt_tokens": "1"}},
            {"choices": [{"delta": {"content": "\ude00\ud800!"}, "finish_reason": 5}]},
            b"data: [DONE]\n\ndata: {garbage\n\n",
        )
    )
    reply = ask(make(llm_server))
    assert reply.text == "text\U0001f600\ufffd!"
    assert reply.calls == (ToolCall("call_1", "", ""),)


def test_another_model_is_told_once(llm_server: ContractServer) -> None:
    llm_server.plays(
        fitting(model="TINY-2026-01-01"), fitting(model="huge"), fitting(model="huge"),
        fitting(model=KEY),
    )  # fmt: skip
    client = make(llm_server)
    ask(client)
    assert client.problems == ()
    ask(client), ask(client), ask(client)
    assert client.problems == (
        "tiny was asked, and huge answered", "tiny was asked, and another model answered",
    )  # fmt: skip


@pytest.mark.parametrize("plain", [False, True])
def test_usage_that_is_missing_is_estimated(llm_server: ContractServer, plain: bool) -> None:
    llm_server.plays(answer("x" * 70, usage=None, plain=plain))
    client = make(llm_server)
    ask(client)
    used = client.usage()
    assert used.completion_tokens == 20
    assert used.prompt_tokens == client.estimate([MESSAGES], SCHEMA).prompt_tokens > 30
    assert client.problems == (
        "tiny: the server counts no tokens; they are estimated by characters",
    )


# ------------------------------------------------------------------------------------------ caps


def test_the_limit_of_calls(llm_server: ContractServer) -> None:
    llm_server.always(fitting())
    client = make(llm_server, max_calls=2)
    ask(client), ask(client)
    said = fails(client, "limit of 2 calls")
    assert "2 calls, 200 tokens of prompts and 40 of answers" in said
    assert len(llm_server.asked) == 2


def test_the_limit_of_tokens_before_a_call(llm_server: ContractServer) -> None:
    llm_server.always(fitting())
    needed = make(llm_server).estimate([MESSAGES], SCHEMA).prompt_tokens + 50
    fails(make(llm_server, max_answer_tokens=50, max_tokens=needed - 1), "limit of .* tokens")
    assert llm_server.asked == []
    client = make(llm_server, max_answer_tokens=50, max_tokens=needed + 119)
    assert ask(client).text == GOOD
    fails(client, f"limit of {needed + 119} tokens .* 1 calls")


def test_the_limit_of_tokens_after_a_call(llm_server: ContractServer) -> None:
    llm_server.plays(fitting(usage=(900, 200)))
    client = make(llm_server, max_answer_tokens=10, max_tokens=1000, cache="write")
    fails(client, "limit of 1000 tokens .* 900 tokens of prompts and 200 of answers")
    assert ask(make(llm_server, max_answer_tokens=10, cache="read")).text == GOOD


def test_the_limit_of_cost(llm_server: ContractServer, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("tiny: {input: 0, output: 1000}")  # 0.001 dollars a token of an answer
    llm_server.always(fitting())
    given = {"prices": prices, "max_answer_tokens": 20}
    fails(make(llm_server, max_usd=0.019, **given), "limit of 0.019 US dollars")
    assert llm_server.asked == []
    client = make(llm_server, max_usd=0.03, **given)
    ask(client)
    assert client.usage() == Usage(1, 100, 20, pytest.approx(0.02))
    assert "0.0200 US dollars" in fails(client, "limit of 0.03 US dollars")
    llm_server.plays(fitting(usage=(0, 31)))
    fails(make(llm_server, max_usd=0.03, **given), "limit of 0.03 US dollars")


def test_what_had_come_of_a_broken_answer_counts(llm_server: ContractServer) -> None:
    llm_server.plays(broken("x" * 35), status(500))
    client = make(llm_server)
    fails(client, "broke")
    used = client.usage()
    assert (used.calls, used.completion_tokens) == (1, 10) and used.prompt_tokens > 30
    fails(client, "HTTP 500")
    assert client.usage() == Usage(2, used.prompt_tokens, 10, None)


# -------------------------------------------------------------------------------------- silence


@pytest.fixture
def sdk_logging() -> Iterator[None]:
    names = ("openai", "httpx", "httpx2", "httpcore", "httpcore2")
    before = {name: logging.getLogger(name).level for name in names}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("sdk_logging")
def test_nothing_is_logged(
    llm_server: ContractServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from openai._utils._logs import setup_logging

    monkeypatch.setenv("OPENAI_LOG", "debug")
    setup_logging()
    caplog.set_level(logging.DEBUG)
    assert logging.getLogger("openai").isEnabledFor(logging.DEBUG)
    llm_server.plays(fitting(), status(500), answer("x"), broken())
    client = make(llm_server, retries=1)
    monkeypatch.setattr("time.sleep", lambda s: None)
    ask(client), ask(client)
    fails(client, "broke")
    client.close()
    assert [r for r in caplog.records if r.name.split(".")[0] not in ("root", "asyncio")] == []
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("openai").level == logging.DEBUG  # as it was


@pytest.mark.usefixtures("sdk_logging")
def test_levels_return_when_the_last_of_several_threads_is_done() -> None:
    logging.getLogger("openai").setLevel(logging.INFO)
    first, second = ContractServer(), ContractServer()
    in_first, go_on = threading.Event(), threading.Event()

    def wait(characters: int) -> None:
        in_first.set()
        go_on.wait()

    for one, other in zip(serving(first), serving(second), strict=True):
        one.plays(fitting())
        other.plays(fitting())
        asking = threading.Thread(target=ask, args=(make(one, progress=wait),))
        asking.start()
        in_first.wait()
        ask(make(other))
        assert logging.getLogger("openai").level > logging.CRITICAL
        go_on.set()
        asking.join()
    assert logging.getLogger("openai").level == logging.INFO


def test_the_contract_is_checked() -> None:
    server = ContractServer()
    for _ in serving(server):
        loose = {"type": "object", "properties": {"a": {"type": "string"}}}
        client = make(server)
        for schema in (loose, {**loose, "additionalProperties": False}):
            with pytest.raises(ModelError, match="the contract"):
                client.answer(MESSAGES, schema, "verdict")
        with pytest.raises(ModelError, match="the contract"):
            client.converse([{"role": "nobody", "content": "x"}], TOOLS)
    assert len(server.violations) >= 3 and server.asked == []


def test_a_step_of_ones_own(llm_server: ContractServer) -> None:
    def echo(handler: Any, asked: Asked) -> None:
        answer(asked.body["messages"][-1]["content"])(handler, asked)

    llm_server.plays(echo, truncated("{"), refusal())
    client = make(llm_server)
    assert [ask(client).text, ask(client).finish, ask(client).finish] == [
        PROMPT, "length", "refusal",
    ]  # fmt: skip


def test_a_proxy_that_is_none(llm_server: ContractServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"nonsense://{KEY}")
    fails(make(llm_server), r"can't be asked \(\w+\)")


def test_a_missing_sdk_is_named(
    llm_server: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'torchtraceap\[llm\]'"):
        ask(make(llm_server))
