"""The MCP server as a process, spoken to by the client of the protocol's own SDK."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from torchtraceap.cli import main
from torchtraceap.tables.catalog import TABLES

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
        assert names[:4] == ["summary", "diagnosis", "ops", "kernels"]
        assert {name.replace("-", "_") for name in TABLES} <= set(names)
        assert {"sql", "explain", "events_around", "simulate"} <= set(names)
        assert not {"diff", "traces", "predict", "plan"} & set(names)
        for tool in tools:
            assert tool.annotations.read_only_hint is True
            assert tool.annotations.open_world_hint is False
            assert tool.input_schema["additionalProperties"] is False
            assert tool.output_schema["type"] == "object"
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


def test_resources_and_prompts_can_be_read(bundled: Path, tmp_path: Path) -> None:
    async def talk(session: Any) -> None:
        listed = [str(each.uri) for each in (await session.list_resources()).resources]
        assert listed == ["traceap://knowledge", "traceap://summary"]
        (index,) = (await session.read_resource("traceap://knowledge")).contents
        assert "- no_memory_pin: " in index.text
        (entry,) = (await session.read_resource("traceap://knowledge/no_memory_pin")).contents
        assert "pin_memory=True" in entry.text
        (summary,) = (await session.read_resource("traceap://summary")).contents
        found = result(await session.call_tool("summary", {}))
        assert json.loads(summary.text) == found
        for uri in ("traceap://knowledge/none", "traceap://summary/x.json", "file:///etc/passwd"):
            with pytest.raises(Exception, match=r"no such|--root|no argument|nknown"):
                await session.read_resource(uri)
        prompts = {each.name: each for each in (await session.list_prompts()).prompts}
        assert set(prompts) == {"diagnose_my_run", "compare_two_runs", "why_did_my_pr_get_slower"}
        asked = await session.get_prompt("diagnose_my_run", {"trace": "a.json"})
        (message,) = asked.messages
        assert "diagnosis" in message.content.text
        assert message.content.text.endswith("trace: a.json")

    spoken([str(bundled)], talk, tmp_path / "log")


def test_clients_choose_traces_below_the_root_alone(bundled: Path, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "runs", root / "job", outside):
        folder.mkdir(parents=True)
    shutil.copy(bundled, root / "runs" / "a.json.gz")
    shutil.copy(bundled, outside / "secret.json.gz")
    (root / "link.json.gz").symlink_to(outside / "secret.json.gz")
    (root / "linked").symlink_to(outside)
    (root / "job" / "rank0.json.gz").symlink_to(outside / "secret.json.gz")
    (root / "good.json.gz").symlink_to(root / "runs" / "a.json.gz")

    async def talk(session: Any) -> None:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert "trace" in tools["summary"].input_schema["required"]
        # Files outside the root are not a client's to name.
        paths = {"capture", "eager", "path", "folder"}
        assert not [t for t in tools.values() if paths & set(t.input_schema["properties"])]
        assert "baseline" in tools["diff"].input_schema["required"]
        assert not {"predict", "plan"} & set(tools)
        listed = result(await session.call_tool("traces", {}))["traces"]["rows"]
        assert listed == ["good.json.gz", "runs/a.json.gz"]
        for name in (*listed, "runs", "./runs/../runs/a.json.gz"):
            assert result(await session.call_tool("summary", {"trace": name}))["files"] == 1
        other = {"trace": "runs/a.json.gz", "baseline": "good.json.gz"}
        assert result(await session.call_tool("diff", other))["difference"]["ns"] == 0
        for name in (
            "../outside/secret.json.gz",
            str(outside / "secret.json.gz"),
            "link.json.gz",
            "linked/secret.json.gz",
            "linked",
            "job",
            "runs/../../outside",
            "a\0b",
        ):
            answer = await session.call_tool("summary", {"trace": name})
            assert answer.is_error, name
            assert "lies outside of the folder" in answer.content[0].text
        for given in ({}, {"trace": "none.json"}, {"trace": 3}, {"trace": "x" * 300}):
            assert (await session.call_tool("summary", given)).is_error
        assert (await session.call_tool("diff", {"trace": "runs/a.json.gz"})).is_error
        (summary,) = (await session.read_resource("traceap://summary/runs%2Fa.json.gz")).contents
        assert json.loads(summary.text)["files"] == 1

    spoken(["--root", str(root)], talk, tmp_path / "log")


WORKLOAD = """
from pathlib import Path
import torch
Path({mark!r}).write_text("ran")
def tiny():
    model = torch.nn.Linear(8, 8)
    return {{"model": model, "inputs": (torch.zeros(4, 8),), "loss": None, "optimizer": None}}
"""


@pytest.mark.slow  # runs `predict`, which imports torch
def test_code_runs_by_consent_and_below_the_root_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    root, mark = tmp_path / "root", tmp_path / "mark"
    root.mkdir()
    for path in (root / "work.py", tmp_path / "other.py"):
        path.write_text(WORKLOAD.format(mark=str(mark)))
    (root / "link.py").symlink_to(tmp_path / "other.py")

    async def talk(session: Any) -> None:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert tools["predict"].annotations.read_only_hint is False
        assert tools["predict"].annotations.open_world_hint is True
        for name in ("../other.py:tiny", "link.py:tiny", "work.py", "work.py:a b", "none.py:tiny",
                     "os:getcwd", "--help"):  # fmt: skip
            answer = await session.call_tool("predict", {"workload": name, "device": ["H100-SXM"]})
            assert answer.is_error, name
        assert not mark.exists()
        given = {"workload": "work.py:tiny", "device": ["H100-SXM"]}
        (row,) = result(await session.call_tool("predict", given))["result"]["rows"]
        assert row["schema"].startswith("torchtraceap.prediction/")
        assert mark.read_text() == "ran"

    spoken(["--root", str(root), "--allow-code"], talk, tmp_path / "log")


def test_options_that_do_not_fit_end_the_start(bundled: Path, tmp_path: Path) -> None:
    for arguments, expected in (
        ([], "PATH of a trace, or --root DIR"),
        (["--root", str(bundled)], "no such folder"),
        ([str(bundled), "--allow-code"], "--allow-code needs --root"),
    ):
        ran = served(*arguments)
        assert ran.returncode == 2
        assert expected in ran.stderr


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
            ("ops", {"trace": "x"}, "there is no argument 'trace'"),
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
