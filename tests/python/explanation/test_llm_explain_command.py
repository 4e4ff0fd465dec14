"""`torchtraceap explain`, all the way: the command, a trace, and a server that plays a model."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap import cli

from .contract_server import (
    ContractServer,
    answer,
    fitting,
    refusal,
    status,
    tool_calls,
    truncated,
)
from .test_llm_explaining import check_holds

Json = dict[str, Any]


UNKNOWN = {"row": "r999", "metric": None, "value": None, "why": ""}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(["explain", *words])
    out, err = capsys.readouterr()
    return code, out, err


def asked(server: ContractServer, *more: str) -> list[str]:
    return ["--llm-base-url", server.base_url, "--llm-model", "tiny", "--llm-cache", "off", *more]


def verdict(**more: Any) -> Json:
    """What a good model says: it reads the pack of the request and cites it."""
    given: Json = {
        "verdict": "anti_pattern", "labels": ["cpu_bound"], "primary": "cpu_bound",
        "confidence": 0.8, "what": "The host is slow.", "why": "Nothing is queued.",
        "fix": "cpu_bound", "suggested_window": "keep",
        "evidence": [{"row": "r1", "metric": None, "value": None, "why": "it waits"}],
    }  # fmt: skip
    return given | more


def test_offline(bundled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, str(bundled), "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    check_holds(document, ttap.load(bundled))
    code, out, _ = run(capsys, str(bundled))
    assert code == 0 and "Explained by the rules" in out


def test_no_network_without_a_base_url(
    bundled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    code, out, _ = run(capsys, str(bundled), "--question", "why is it slow?", "--json")
    assert code == 0 and json.loads(out)["source"] == "offline"


def test_a_model_judges(
    bundled: Path, capsys: pytest.CaptureFixture[str], llm_server: ContractServer
) -> None:
    llm_server.always(answer(json.dumps(verdict())))
    code, out, _ = run(capsys, str(bundled), *asked(llm_server), "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["source"], document["model"]) == ("llm", "tiny")
    assert {segment["type"] for segment in document["segments"]} == {"cpu_bound"}
    assert document["usage"]["calls"] == len(llm_server.asked) == 5
    check_holds(document, ttap.load(bundled))


def test_invented_numbers_get_one_repair(
    bundled: Path, capsys: pytest.CaptureFixture[str], llm_server: ContractServer
) -> None:
    bad = verdict(what="It idles for 47 ms.")
    llm_server.plays(answer(json.dumps(bad)))
    llm_server.always(answer(json.dumps(verdict())))
    _, out, _ = run(capsys, str(bundled), *asked(llm_server), "--json")
    assert json.loads(out)["source"] == "llm"
    assert "47 ms" in llm_server.asked[1].body["messages"][-1]["content"]
    assert "47" not in json.dumps(json.loads(out)["segments"][0]["what"])


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (answer("not JSON at all"), "JSON"),
        (answer(json.dumps(verdict(evidence=[UNKNOWN]))), "no row 'r999'"),
        (truncated('{"verdict": "anti'), "cut"),
        (refusal(), "refused"),
        (status(401), "401"),
    ],
    ids=["text", "citation", "cut", "refusal", "key"],
)
def test_what_holds_not_is_judged_offline(
    bundled: Path,
    capsys: pytest.CaptureFixture[str],
    llm_server: ContractServer,
    monkeypatch: pytest.MonkeyPatch,
    step: Any,
    said: str,
) -> None:
    monkeypatch.setenv("TORCHTRACEAP_LLM_KEY", "sk-very-secret")
    llm_server.always(step)
    code, out, err = run(capsys, str(bundled), *asked(llm_server), "--json")
    document = json.loads(out)
    assert code == 0
    assert document["source"] == "offline_fallback"
    assert said in document["problems"][0]
    assert document["segments"] == ttap.load(bundled).explain().to_dict()["segments"]
    assert "very-secret" not in out + err


def test_caps_end_it(
    bundled: Path, capsys: pytest.CaptureFixture[str], llm_server: ContractServer
) -> None:
    llm_server.always(answer(json.dumps(verdict())))
    limited = asked(llm_server, "--llm-max-calls", "3")
    _, out, _ = run(capsys, str(bundled), *limited, "--json")
    document = json.loads(out)
    assert len(llm_server.asked) == document["usage"]["calls"] == 3
    assert [s["source"] for s in document["segments"]] == ["llm"] * 3 + ["offline"] * 2
    assert any("calls" in problem for problem in document["problems"])


def test_a_question_with_tools(
    bundled: Path, capsys: pytest.CaptureFixture[str], llm_server: ContractServer
) -> None:
    def talk(handler: Any, request: Any) -> None:
        messages = request.body["messages"]
        if "tools" not in request.body and "response_format" in request.body:
            answer(json.dumps(verdict()))(handler, request)
        elif messages[-1]["role"] == "tool":
            times = json.loads(messages[-1]["content"])["timeline"]["times"]
            busy = times["busy"]["text"]
            answer(f"The GPU is busy for {busy}.")(handler, request)
        else:
            tool_calls(("summary", {}))(handler, request)

    llm_server.always(talk)
    question = ["--question", "how long is the GPU busy?"]
    _, out, _ = run(capsys, str(bundled), *asked(llm_server), *question, "--json")
    document = json.loads(out)
    assert document["answer"].startswith("The GPU is busy for ")
    assert not [problem for problem in document["problems"] if "answer" in problem]


def test_a_dry_run_sends_nothing(
    bundled: Path, capsys: pytest.CaptureFixture[str], llm_server: ContractServer
) -> None:
    code, out, err = run(capsys, str(bundled), *asked(llm_server), "--dry-run")
    assert code == 0 and not llm_server.asked
    assert "```pack" in out and "nothing was sent" in err
    _, out, _ = run(capsys, str(bundled), *asked(llm_server), "--dry-run", "--json")
    whole = json.loads(out)
    assert (whole["schema"], whole["source"]) == ("torchtraceap.explanation/1", "offline")
    document = whole["dry_run"]
    assert document["calls"] == len(document["prompts"]) == 5
    # What is sent later is what was shown.
    llm_server.always(fitting())
    run(capsys, str(bundled), *asked(llm_server), "--json")
    sent = llm_server.asked[0].body["messages"]
    assert [[each["role"], each["content"]] for each in sent] == document["prompts"][0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dry-run"], "--llm-base-url"),
        (["--llm-base-url", "http://127.0.0.1:1/v1"], "--llm-model"),
        (["--llm-base-url", "ftp://x", "--llm-model", "m"], "http"),
        (["--question", " "], "--question"),
        (["--llm-cache", "sometimes"], "sometimes"),
    ],
)
def test_options_that_make_no_sense(
    bundled: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, out, err = run(capsys, str(bundled), *words)
    assert (code, out) == (2, "")
    assert said in err
