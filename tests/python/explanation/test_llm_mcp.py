"""The MCP server as a process, spoken to by the client of the protocol's own SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from torchtraceap.cli import main

pytest.importorskip("mcp", reason="the SDK of the protocol is not installed")

Json = dict[str, Any]
ENVIRONMENT = {
    name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ
}


def spoken(arguments: list[str], talk: Callable[[Any], Awaitable[None]], log: Path) -> None:
    """Starts a server, talks to it, and ends it by closing its standard input."""
    import anyio
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "torchtraceap", "mcp", *arguments], env=ENVIRONMENT
    )

    async def run() -> None:
        with log.open("w") as errors, anyio.fail_after(120):
            async with (
                stdio_client(server, errlog=errors) as (receiving, sending),
                ClientSession(receiving, sending) as session,
            ):
                await session.initialize()
                await talk(session)

    anyio.run(run)


def result(answer: Any) -> Json:
    """The result, the same as text and as structure."""
    assert not answer.is_error, answer
    (content,) = answer.content
    assert json.loads(content.text) == answer.structured_content
    found: Json = answer.structured_content
    return found


def command(capsys: pytest.CaptureFixture[str], *words: str) -> Json:
    assert main(words) == 0
    found: Json = json.loads(capsys.readouterr().out)
    return found


def test_a_client_gets_the_numbers_of_the_command_line(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = command(capsys, "summary", str(bundled), "--json")
    table = command(capsys, "kernels", str(bundled), "--by", "canonical", "--json", "--limit", "5")
    log = tmp_path / "log"

    async def talk(session: Any) -> None:
        tools = (await session.list_tools()).tools
        names = [tool.name for tool in tools]
        assert names == ["summary", "diagnosis", "ops", "kernels", "window", "step", "simulate"]
        for tool in tools:
            assert tool.annotations.read_only_hint is True
            assert tool.annotations.open_world_hint is False
            assert tool.input_schema["additionalProperties"] is False
        found = result(await session.call_tool("summary", {}))
        times = {f"{name}_ns": time["ns"] for name, time in found["timeline"]["times"].items()}
        assert times == summary["timeline"]
        found = result(await session.call_tool("kernels", {"limit": 5}))
        columns = table["columns"]
        for row, cells in zip(found["table"]["rows"], table["rows"], strict=True):
            record = dict(zip(columns, cells, strict=True))
            assert row["canonical"] == record["canonical"]
            assert row["sum"]["ns"] == record["sum_ns"]
            assert row["count"] == record["count"]

    spoken([str(bundled)], talk, log)
    assert log.read_text() == ""


def test_a_baseline_can_be_compared_with(bundled: Path, tmp_path: Path) -> None:
    other = bundled.with_name("resnet50_num_workers_4.json.gz")

    async def talk(session: Any) -> None:
        assert "diff" in [tool.name for tool in (await session.list_tools()).tools]
        found = result(await session.call_tool("diff", {"by": "cause"}))
        assert found["difference"]["ns"] == 176_693_000 - 126_548_000

    spoken([str(bundled), "--baseline", str(other)], talk, tmp_path / "log")


def test_errors_are_told_to_the_client(bundled: Path, tmp_path: Path) -> None:
    async def talk(session: Any) -> None:
        for name, arguments, expected in (
            ("open", {"path": "/etc/passwd"}, "there is no tool of that name"),
            ("diff", {}, "there is no tool of that name"),
            ("ops", {"limit": 1_000}, "limit: expected a whole number from 1 to 50"),
            ("ops", {"path": "x"}, "there is no argument 'path'"),
        ):
            answer = await session.call_tool(name, arguments)
            assert answer.is_error
            assert expected in answer.content[0].text
        result(await session.call_tool("ops", None))  # and goes on

    spoken([str(bundled)], talk, tmp_path / "log")


def test_a_file_that_is_no_trace_is_told_at_the_first_call(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("no trace")

    async def talk(session: Any) -> None:
        assert (await session.list_tools()).tools
        for _ in range(2):
            answer = await session.call_tool("summary", {})
            assert answer.is_error
            assert "the trace can't be read" in answer.content[0].text
            assert "bad.json" in answer.content[0].text

    spoken([str(bad)], talk, tmp_path / "log")


def served(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "torchtraceap", "mcp", *arguments]
    return subprocess.run(words, input="", capture_output=True, text=True, timeout=120)


def test_a_path_that_does_not_exist_ends_the_start(bundled: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.json")
    for arguments in ([missing], [str(bundled), "--baseline", missing]):
        ran = served(*arguments)
        assert ran.returncode == 2
        assert ran.stdout == ""
        assert ran.stderr == f"torchtraceap: {missing}: no such file or folder\n"


def test_a_trace_cannot_come_through_standard_input() -> None:
    ran = served("-")
    assert ran.returncode == 2
    assert "mcp speaks through standard input" in ran.stderr


def test_a_client_that_leaves_at_once_is_no_error(bundled: Path) -> None:
    ran = served(str(bundled))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_what_is_no_message_is_answered_by_the_protocol_alone(bundled: Path) -> None:
    words = [sys.executable, "-m", "torchtraceap", "mcp", str(bundled)]
    garbage = "hello\n{}\n[1,2]\n" + "{" * 100 + "\n"
    ran = subprocess.run(words, input=garbage, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0
    for line in ran.stdout.splitlines():
        assert json.loads(line)["jsonrpc"] == "2.0"


def test_without_its_sdk_the_command_says_what_to_install(bundled: Path) -> None:
    program = (
        "import sys; sys.modules['mcp'] = None\n"
        "from torchtraceap.cli import main\n"
        f"sys.exit(main(['mcp', {str(bundled)!r}]))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "pip install 'torchtraceap[mcp]'" in ran.stderr
