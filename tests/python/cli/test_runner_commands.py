"""Text of a trace never commands a runner of CI or a terminal, however lines are wrapped."""

from __future__ import annotations

import json
import re
import unicodedata
from itertools import chain
from pathlib import Path

import pytest
from gpu_traces import GpuTrace

from torchtraceap.cli import main
from torchtraceap.core.formatting import shown_lines
from torchtraceap.tables.catalog import TABLES, table_spec

HOSTILE = (
    "::stop-commands::token ##[group]x ::add-mask::y \n::error::z\r::warning::w\u2028::notice::v"
    "\x1b]0;title\x07 \u202e::debug::u ##vso[task.setvariable]t \x85::set-output::s\x0b::r\x0c::q"
)
COMMAND = re.compile(r"^\s*::|##\w*\[", re.MULTILINE)
WIDTHS = (40, 57, 80, 123, 200)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of steps, operators, copies, waits and kernels whose names and texts are hostile."""
    made = GpuTrace()
    for step in range(3):
        at = 1000.0 * step
        made.host("user_annotation", f"ProfilerStep#{step}", at, 990)
        for number in range(6):
            begin = at + 150 * number
            made.op(f"{HOSTILE}{number}", begin, 100, **{
                "Input Dims": [[4, 4]], "Input type": [HOSTILE], "Call stack": HOSTILE,
                "Module Hierarchy": HOSTILE,
            })  # fmt: skip
            made.launch(f"{HOSTILE}kernel{number}", (begin + 10, 5), (begin + 40, 60))
    folder = tmp_path_factory.mktemp("hostile")
    path = folder / "::notice::trace ##[x].json"
    path.write_text(json.dumps({"traceEvents": made.events}), encoding="utf-8")
    return path


def check(shown: str) -> None:
    found = COMMAND.search(shown)
    assert found is None, shown[max(0, found.start() - 80) : found.end() + 80]
    left = {sign for sign in shown if sign != "\n" and unicodedata.category(sign) in ("Cc", "Zl")}
    assert not left


def commands() -> list[str]:
    views = (f"{n} --by {view}" for n in TABLES for view in table_spec(n).views or ())
    plain = (name for name in TABLES if not table_spec(name).views)
    others = ("diagnose", "summary", "tree", "simulate", "score", "explain",
              "explain-idle", "quality")  # fmt: skip
    return [*dict.fromkeys(chain(views, plain, others))]


@pytest.mark.parametrize("command", commands())
def test_no_line_of_a_command_is_one(
    hostile: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *options = command.split()
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        code = main([name, str(hostile), *options])
        out, err = capsys.readouterr()
        assert "internal error" not in err
        check(out)
        check(err)
        if code == 2:
            break
    if main([name, str(hostile), *options, "--json"]) != 2:
        out, _ = capsys.readouterr()
        check(out)
        json.loads(out)


def test_the_values_of_json_are_the_same(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", str(hostile), "--json"]) == 0
    out = capsys.readouterr().out
    assert any("##[group]x" in str(row[0]) for row in json.loads(out)["rows"])


def test_annotations_of_a_contract_are_its_own(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = tmp_path / "contract.yaml"
    contract.write_text("launches: 0\nsyncs: 0\n")
    command = ["check", str(hostile), "--contract", str(contract), "--github", "--no-price"]
    assert main(command) == 1
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.lstrip().startswith("::")]
    assert lines
    assert all(re.match(r"::(error|warning|notice) [^:]*::", line) for line in lines)
    assert "##[" not in out


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("::error::x", ": :error::x"),
        ("a\n  ::x\nb::c", "a\n  : :x\nb::c"),
        ("a ##[x] ##vso[y] ## z", "a # #[x] # #vso[y] ## z"),
        ('{"a": "##[x]"}', '{"a": "#\\u0023[x]"}'),
        ("std::vector", "std::vector"),
    ],
)
def test_lines_that_are_shown(given: str, shown: str) -> None:
    assert shown_lines(given) == shown
