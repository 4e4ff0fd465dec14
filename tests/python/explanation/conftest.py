"""A server of a language model on 127.0.0.1, and an environment that names none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .contract_server import ContractServer, serving


@pytest.fixture(autouse=True)
def no_model_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings of whoever runs the tests reach none of them, nor does their cache."""
    for name in ("BASE_URL", "MODEL", "KEY"):
        monkeypatch.delenv(f"TORCHTRACEAP_LLM_{name}", raising=False)
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_LOG"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.fixture
def llm_server() -> Iterator[ContractServer]:
    """A server of Chat Completions that checks every request and plays a script.

    Steps come from `contract_server`, one for each request:

        from .contract_server import ContractServer, answer, fitting, status, wrong_enum

        def test_a_judge_asks_again(llm_server: ContractServer) -> None:
            llm_server.plays(answer("not JSON"), fitting())
            settings = ModelSettings(llm_server.base_url, "tiny", cache="off", retries=0)
            ...
            assert llm_server.asked[1].body["messages"][-1]["content"] == ...

    `answer(text)` sends any text; `fitting()` the plainest JSON of the schema that was asked for,
    and `fitting(change)` the same after `change(dict)`; `wrong_enum()`, `unknown_citation("row")`,
    `truncated(text)`, `refusal()`, `tool_calls(("name", {...}))`, `status(500)`, `too_many(0.1)`,
    `drip(...)`, `broken()`, `huge(...)`, `silent()`, `redirect(url)` the rest. A test's own step is
    a function of the handler and of what was asked. `always(step)` answers every request that the
    script has no step for. What the server is like: `takes`, `refuses_with`, `lacks`, `key`.

    A request that the published schema does not allow fails the test, when it ends, whatever the
    client made of it.
    """
    server = ContractServer()
    yield from serving(server)
    assert server.violations == []
