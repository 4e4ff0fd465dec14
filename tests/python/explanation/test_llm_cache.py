"""Answers that were given before: who reads and writes them, and what trouble they make."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchtraceap.explanation.cache import Cache, question_key
from torchtraceap.explanation.client import Client
from torchtraceap.explanation.completions import Dialect, Question
from torchtraceap.explanation.language_model import ModelError, Reply, ToolCall
from torchtraceap.explanation.settings import ModelSettings

from .contract_server import ContractServer, answer, fitting, refusal, tool_calls, truncated

KEY = "sk-test-0123456789abcdef"
MESSAGES = [{"role": "user", "content": "what the prompt alone says"}]
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["n"],
    "properties": {"n": {"type": "integer"}},
}
REPLY = Reply("text \U0001f600 \x00", "tool_calls", (ToolCall("a", "b", "{}"),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "llm.sqlite"


def settings(path: Path, **more: Any) -> ModelSettings:
    return ModelSettings("http://127.0.0.1:1/v1", "tiny", KEY, cache_path=path, **more)


def asked(server: ContractServer, path: Path, **more: Any) -> Client:
    """A client that has asked once."""
    client = Client(ModelSettings(server.base_url, "tiny", KEY, cache_path=path, retries=0, **more))
    client.answer(MESSAGES, SCHEMA, "n")
    return client


def test_a_known_answer_costs_nothing(llm_server: ContractServer, path: Path) -> None:
    llm_server.plays(fitting(), tool_calls(("sql", "{}")))
    assert asked(llm_server, path).usage().calls == 1
    client = asked(llm_server, path, max_calls=1, max_tokens=1)
    assert client.usage().to_dict() == {
        "calls": 0, "prompt_tokens": 0, "completion_tokens": 0, "cost_usd": None,
    }  # fmt: skip
    assert client.problems == ()
    with pytest.raises(ModelError, match="limit of 1 tokens"):
        client.answer(MESSAGES, {**SCHEMA, "title": "other"}, "n")
    client = Client(replace(client._settings, max_tokens=10_000))
    first = client.converse(MESSAGES, [])
    assert client.converse(MESSAGES, []) == first and first.calls[0].name == "sql"
    assert len(llm_server.asked) == 2


def test_who_reads_and_who_writes(llm_server: ContractServer, path: Path) -> None:
    llm_server.always(fitting())
    asked(llm_server, path, cache="off")
    asked(llm_server, path, cache="read")
    assert not path.exists() and not path.parent.exists()
    asked(llm_server, path, cache="write")
    assert len(llm_server.asked) == 3
    kept = path.read_bytes()
    asked(llm_server, path, cache="read")
    assert len(llm_server.asked) == 3
    asked(llm_server, path, cache="off")
    asked(llm_server, path, cache="read", seed=1)
    assert len(llm_server.asked) == 5 and path.read_bytes() == kept


def test_the_file_is_private_and_holds_no_secret(llm_server: ContractServer, path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o644)
    llm_server.plays(fitting())
    asked(llm_server, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    assert KEY.encode() not in content and b"prompt alone" not in content
    path.unlink()
    before = os.umask(0)
    try:
        Cache(settings(path)).keep("k", REPLY, (1, 2))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["llm.sqlite"]


def test_only_complete_answers_are_kept(llm_server: ContractServer, path: Path) -> None:
    llm_server.plays(truncated("{"), refusal(), answer("not JSON"))
    for _ in range(4):
        asked(llm_server, path)
    assert len(llm_server.asked) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda s, q: (replace(s, model="other"), q),
        lambda s, q: (replace(s, base_url="http://127.0.0.1:2/v1"), q),
        lambda s, q: (replace(s, seed=1), q),
        lambda s, q: (replace(s, max_answer_tokens=9), q),
        lambda s, q: (s, replace(q, messages=[{"role": "user", "content": "b"}])),
        lambda s, q: (s, replace(q, schema={"type": "array"})),
        lambda s, q: (s, replace(q, title="m")),
        lambda s, q: (s, replace(q, tools=[{"type": "function"}])),
    ],
)
def test_what_makes_another_question(change: Callable[..., Any], path: Path) -> None:
    first = settings(path), Question(MESSAGES, SCHEMA, "n")
    key = question_key(first[1], first[0])
    new_settings, new_question = change(*first)
    assert question_key(new_question, new_settings) != key
    same = replace(first[0], key="other", timeout_s=1, max_calls=1, cache="read")
    turned = Question(tuple(MESSAGES), dict(reversed(SCHEMA.items())), "n")
    assert question_key(turned, same) == key


def test_another_version_finds_no_older_answers(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question(MESSAGES, SCHEMA, "n")
    key = question_key(question, settings(path))
    monkeypatch.setattr("torchtraceap.explanation.cache._SCHEMA_VERSION", 2)
    assert question_key(question, settings(path)) != key


def test_replies_come_back_as_they_were(path: Path) -> None:
    cache = Cache(settings(path))
    cache.keep("k", Reply("old", "stop"), (1, 2))
    cache.keep("k", REPLY, (3, 4))
    assert Cache(settings(path, cache="read")).reply("k") == REPLY
    assert cache.reply("other") is None and cache.problems == []
    with sqlite3.connect(path) as file:
        row = file.execute("SELECT prompt_tokens, completion_tokens FROM replies").fetchall()
    file.close()
    assert row == [(3, 4)]


def test_dialects_come_back_as_they_were(path: Path) -> None:
    dialect = Dialect("json_object", ("seed", "max_tokens"))
    cache = Cache(settings(path))
    assert cache.dialect() is None
    cache.keep_dialect(dialect)
    assert Cache(settings(path)).dialect() == dialect
    assert Cache(replace(settings(path), model="other")).dialect() is None
    assert Cache(settings(path, cache="off")).dialect() is None


# ---------------------------------------------------------------------------------------- trouble


@pytest.mark.parametrize("damage", ["text", "zeros", "half"])
def test_a_damaged_file_is_put_aside(llm_server: ContractServer, path: Path, damage: str) -> None:
    llm_server.always(fitting())
    asked(llm_server, path)
    whole = path.read_bytes()
    ruined = {
        "text": b"not a data base " * 100,
        "zeros": whole[:100] + bytes(len(whole) - 100),
        "half": whole[:100] + whole[2048:4096],
    }[damage]
    path.write_bytes(ruined)
    client = asked(llm_server, path)
    assert len(client.problems) == 1
    assert f"{path} was damaged: it is llm.sqlite.damaged now" in client.problems[0]
    assert path.with_name("llm.sqlite.damaged").read_bytes() == ruined
    assert asked(llm_server, path).problems == ()
    assert len(llm_server.asked) == 2


def test_who_only_reads_leaves_a_damaged_file(llm_server: ContractServer, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a data base " * 100)
    llm_server.always(fitting())
    client = asked(llm_server, path, cache="read")
    assert len(client.problems) == 1 and "can't be used" in client.problems[0]
    assert path.read_bytes() == b"not a data base " * 100


def test_rows_that_are_odd_are_no_answers(path: Path) -> None:
    cache = Cache(settings(path))
    cache.keep_dialect(Dialect("text"))
    values = ("null", "[]", '{"text": 1}', "{", b"\xff", '{"text":"","finish":"","calls":[[1]]}',
              "[" * 50_000)  # fmt: skip
    with sqlite3.connect(path) as file:
        rows = [(str(at), value, 0, 0, 0) for at, value in enumerate(values)]
        file.executemany("INSERT INTO replies VALUES (?, ?, ?, ?, ?)", rows)
    assert [cache.reply(str(at)) for at in range(len(values))] == [None] * len(values)
    for odd in ("null", '{"rung": "top", "without": []}', '{"rung": "text", "without": ["model"]}'):
        with file:
            file.execute("UPDATE dialects SET dialect = ?", (odd,))
        assert cache.dialect() is None
    with file:
        file.execute("UPDATE dialects SET made_s = 'today'")
    file.close()
    assert cache.dialect() is None and cache.problems == []


def test_a_file_of_something_else_is_left_alone(llm_server: ContractServer, path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE replies (mine)")
    file.close()
    llm_server.always(fitting())
    client = asked(llm_server, path)
    assert len(client.problems) == 1 and "can't be used" in client.problems[0]
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT * FROM replies").fetchall() == []
    file.close()


def test_a_place_that_can_not_be_written(llm_server: ContractServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    llm_server.always(fitting())
    for path in (tmp_path / "file" / "llm.sqlite", tmp_path):
        client = asked(llm_server, path)
        assert len(client.problems) == 1 and "can't be used" in client.problems[0]


def test_a_file_that_another_process_holds(
    llm_server: ContractServer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtraceap.explanation.cache._WAIT_S", 0.05)
    llm_server.always(fitting())
    asked(llm_server, path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    client = asked(llm_server, path, seed=1)
    other.close()
    assert len(client.problems) == 1 and "locked" in client.problems[0]
    assert not path.with_name("llm.sqlite.damaged").exists()


def test_several_processes_at_once(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from torchtraceap.explanation.cache import Cache;"
        "from torchtraceap.explanation.language_model import Reply;"
        "from torchtraceap.explanation.settings import *;"
        "s = ModelSettings('http://127.0.0.1:1/v1', 'tiny', cache_path=Path(sys.argv[1]));"
        "c = Cache(s);"
        "[c.keep(f'{sys.argv[2]} {n}', Reply(sys.argv[2], 'stop'), (n, n)) for n in range(20)];"
        "print(c.problems)"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path), name], stdout=subprocess.PIPE, text=True
        )
        for name in "abc"
    ]
    assert [process.communicate()[0] for process in running] == ["[]\n"] * 3
    cache = Cache(settings(path))
    found = [cache.reply(f"{name} {n}") for name in "abc" for n in range(20)]
    assert found == [Reply(name, "stop") for name in "abc" for _ in range(20)]


def test_two_processes_put_one_file_aside(path: Path) -> None:
    """The second one finds the new file of the first, and leaves it where it is."""
    path.parent.mkdir()
    path.write_bytes(b"not a data base " * 100)
    cache = Cache(settings(path))
    found = (path.stat().st_dev, path.stat().st_ino)
    Cache(settings(path)).keep("k", REPLY, (1, 2))
    cache._put_aside(found)
    assert cache.reply("k") == REPLY and cache.problems == []
