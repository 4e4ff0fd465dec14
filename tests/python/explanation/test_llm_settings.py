"""When a model is asked at all, with which limits, and what it costs."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchtraceap.errors import OptionError
from torchtraceap.explanation.client import Client
from torchtraceap.explanation.settings import (
    ModelSettings,
    Price,
    is_local,
    read_prices,
    settings_from,
)

URL = "http://127.0.0.1:1/v1"
KEY = "sk-test-0123456789abcdef"


def test_nothing_is_asked_without_a_base_url() -> None:
    assert settings_from(environment={}) is None
    assert settings_from(key=KEY, environment={}) is None
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "TORCHTRACEAP_LLM_KEY"):
        assert settings_from(environment={name: KEY}) is None
    assert settings_from(environment={"TORCHTRACEAP_LLM_BASE_URL": ""}) is None


def test_a_base_url_needs_a_model_and_a_model_a_base_url() -> None:
    with pytest.raises(OptionError, match="--llm-model or TORCHTRACEAP_LLM_MODEL"):
        settings_from(base_url=URL, environment={})
    with pytest.raises(OptionError, match="--llm-base-url or TORCHTRACEAP_LLM_BASE_URL"):
        settings_from(model="tiny", environment={})


def test_options_go_before_the_environment() -> None:
    environment = {
        "TORCHTRACEAP_LLM_BASE_URL": "http://there/v1",
        "TORCHTRACEAP_LLM_MODEL": "theirs",
        "TORCHTRACEAP_LLM_KEY": "k1",
        "OPENAI_API_KEY": "k2",
    }
    found = settings_from(environment=environment)
    assert found is not None
    assert (found.base_url, found.model, found.key) == ("http://there/v1", "theirs", "k1")
    del environment["TORCHTRACEAP_LLM_KEY"]
    found = settings_from(base_url=URL, model="ours", environment=environment, retries=1, seed=None)
    assert found == ModelSettings(URL, "ours", "k2", retries=1)
    assert settings_from(base_url=URL, model="ours", environment={}) == ModelSettings(URL, "ours")


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTRACEAP_LLM_BASE_URL", URL)
    monkeypatch.setenv("TORCHTRACEAP_LLM_MODEL", "tiny")
    assert settings_from() == ModelSettings(URL, "tiny")


def test_the_cache_lies_where_caches_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ModelSettings(URL, "tiny").cache_path == tmp_path / "torchtraceap" / "llm.sqlite"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = ModelSettings(URL, "tiny").cache_path
    assert found == tmp_path / ".cache" / "torchtraceap" / "llm.sqlite"


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8080/v1",
        "ftp://host/v1",
        "file:///etc/passwd",
        "http://",
        "http://user:pass-word@host/v1",
        "http://pass-word@host/v1",
        "https://host/v1?key=pass-word",
        "https://host/v1#pass-word",
        "http://host:99999/v1",
        "http://[::1/v1",
        "http://ho st/v1",
        "http://h\u00f6st/v1",
        "http://host/v1\n",
        "",
    ],
)
def test_other_urls_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        ModelSettings(url, "tiny")
    assert "pass-word" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": " "},
        {"model": "a\nb"},
        {"model": "m" * 201},
        {"key": "with space"},
        {"key": "line\nfeed"},
        {"key": "k\u00e9y"},
        {"cache": "maybe"},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"retries": -1},
        {"retries": 21},
        {"max_calls": 0},
        {"max_tokens": 0},
        {"max_answer_tokens": 0},
        {"max_usd": -0.01},
        {"max_usd": float("inf")},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        ModelSettings(**{"base_url": URL, "model": "tiny", **wrong})
    if "key" in wrong:
        assert wrong["key"] not in str(caught.value)


def test_the_key_is_shown_nowhere() -> None:
    settings = ModelSettings(URL, "tiny", KEY)
    client = Client(settings)
    for shown in (repr(settings), str(settings), f"{settings}", repr(client), str(client)):
        assert KEY not in shown and "tiny" in shown
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:11434/v1", True),
        ("http://LOCALHOST./v1", True),
        ("http://box.localhost/v1", True),
        ("http://127.0.0.1/v1", True),
        ("http://127.9.9.9/v1", True),
        ("http://[::1]:8080/v1", True),
        ("http://[::ffff:10.0.0.1]/v1", True),
        ("http://10.1.2.3/v1", True),
        ("http://172.16.0.1/v1", True),
        ("http://172.32.0.1/v1", False),
        ("http://192.168.1.1/v1", True),
        ("http://[fd00::1]/v1", True),
        ("http://[fe80::1]/v1", True),
        ("http://0.0.0.0:8000/v1", True),
        ("http://8.8.8.8/v1", False),
        ("http://192.0.2.1/v1", False),
        ("http://[2001:4860:4860::8888]/v1", False),
        ("http://[::ffff:8.8.8.8]/v1", False),
        ("https://api.openai.com/v1", False),
        ("http://localhost.example.com/v1", False),
        ("http://127.0.0.1.example.com/v1", False),
        ("http://10.example/v1", False),
    ],
)
def test_what_is_local(url: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _no_network)
    assert is_local(url) is expected


def test_what_goes_by_a_proxy_is_not_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert not is_local("http://10.0.0.1/v1")
    assert not is_local("http://localhost/v1")
    assert is_local("https://10.0.0.1/v1")
    monkeypatch.setenv("no_proxy", "10.0.0.1")
    assert is_local("http://10.0.0.1/v1")


def _no_network(*args: object, **more: object) -> None:
    raise AssertionError("the network was asked")


def test_no_network_without_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", _no_network)
    monkeypatch.setattr(socket, "getaddrinfo", _no_network)
    assert settings_from(environment={"OPENAI_API_KEY": KEY}) is None
    client = Client(ModelSettings("http://nowhere.example/v1", "tiny", KEY))
    estimate = client.estimate([[{"role": "user", "content": "why?"}]])
    assert estimate.calls == 1
    client.close()


def test_an_estimate_loads_no_sdk() -> None:
    program = (
        "import sys; from torchtraceap.explanation.client import Client;"
        "from torchtraceap.explanation.settings import ModelSettings, settings_from;"
        "assert settings_from() is None;"
        f"Client(ModelSettings({URL!r}, 'tiny')).estimate([[{{'role': 'user', 'content': 'x'}}]]);"
        "print([n for n in ('openai', 'httpx', 'httpx2', 'pydantic') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ}
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


# ------------------------------------------------------------------------------------- prices


def test_prices_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("# per million\ngpt:\n  input: 2\n  output: 8.5\nfree: {input: 0, output: 0}\n")
    assert read_prices(file) == {"gpt": Price(2.0, 8.5), "free": Price(0.0, 0.0)}
    assert Price(2.0, 8.5).cost_usd(1_000_000, 100_000) == pytest.approx(2.85)
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"gpt": {"input": 2, "output": 8}}))
    assert read_prices(str(file)) == {"gpt": Price(2.0, 8.0)}


@pytest.mark.parametrize(
    "text",
    [
        "- gpt",
        "gpt: 2",
        "gpt: {input: 2}",
        "gpt: {input: 2, output: 8, cached: 1}",
        "gpt: {input: -2, output: 8}",
        "gpt: {input: .inf, output: 8}",
        "gpt: {input: .nan, output: 8}",
        "gpt: {input: true, output: 8}",
        "gpt: {input: '2', output: 8}",
        "gpt: {input: 2, output: 8",
        "gpt: !!python/object/apply:os.system ['true']",
        "[" * 5000,
        "",
        "\x00",
    ],
)
def test_other_prices_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(OptionError, match=r"prices\.yaml"):
        read_prices(file)


def test_prices_have_to_be_a_small_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="can't be read"):
        read_prices(tmp_path / "none.yaml")
    file = tmp_path / "large.yaml"
    file.write_text("#" * (1 << 20) + "\n")
    with pytest.raises(OptionError, match="too large"):
        read_prices(file)


def test_a_limit_of_cost_needs_a_price(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("other: {input: 1, output: 1}")
    for prices in (None, file):
        with pytest.raises(OptionError, match="needs a price of tiny"):
            Client(ModelSettings(URL, "tiny", max_usd=1.0, prices=prices))
    assert Client(ModelSettings(URL, "tiny", prices=file)).usage().cost_usd is None


def test_what_asking_would_take(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("tiny: {input: 1000000, output: 10}")
    requests = [[{"role": "user", "content": "x" * 350}], [{"role": "user", "content": "y"}]]
    settings = ModelSettings(URL, "tiny", max_answer_tokens=50, prices=file)
    found = Client(settings).estimate(requests)
    role = len('{"role": "user"}') + 2  # and the line breaks
    assert found.prompt_tokens == -(-(350 + role) * 2 // 7) + -(-(1 + role) * 2 // 7)
    assert (found.calls, found.completion_tokens) == (2, 100)
    assert found.cost_usd == pytest.approx(found.prompt_tokens + 0.001)
    schema = {"type": "object", "description": "s" * 700}
    more = Client(settings).estimate(requests, schema)
    assert more.prompt_tokens >= found.prompt_tokens + 400
    assert Client(ModelSettings(URL, "tiny")).estimate(requests).cost_usd is None
