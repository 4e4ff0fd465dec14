"""The pages for people from other tools: what they say to type works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import torchtraceap
from torchtraceap.tracelens import tracelens_sheets

ROOT = Path(__file__).resolve().parents[2]


def snippets() -> list[str]:
    """The second column of the table of methods."""
    text = (ROOT / "docs/hta.md").read_text("utf-8").split("## ")[0]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row[1])]


def commands() -> list[str]:
    text = (ROOT / "docs/hta.md").read_text("utf-8").split("## ")[0]
    rows = [line.rstrip(" |").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    found = [code for row in rows for code in re.findall(r"`([a-z-]+)[^`]*`", row[-1])]
    return sorted({name for name in found if name != "torchtraceap"})


@pytest.fixture(scope="module")
def trace(bundled: Path) -> torchtraceap.Trace:
    return torchtraceap.load(bundled)


@pytest.mark.parametrize("code", snippets())
def test_methods(code: str, trace: torchtraceap.Trace) -> None:
    # The page is ours: no code of a trace is ever run.
    result = eval(code.replace("rank=0", ""), {"trace": trace, "torchtraceap": torchtraceap})
    assert result is not None


@pytest.mark.parametrize("command", commands())
def test_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from torchtraceap.cli import main

    with pytest.raises(SystemExit) as done:
        raise SystemExit(main([command, "--help"]))
    assert done.value.code in (0, None)
    assert command in capsys.readouterr().out


def test_sheets_of_the_page_are_the_sheets(trace: torchtraceap.Trace) -> None:
    text = (ROOT / "docs/compatibility.md").read_text("utf-8")
    named = set(re.findall(r"`(\w+)`", text))
    for name in tracelens_sheets(trace.ranks[0]):
        assert name.removesuffix("_fwd").removesuffix("_bwd") in named, name
