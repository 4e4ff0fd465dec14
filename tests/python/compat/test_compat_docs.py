"""The pages for people from other tools: what they say to type works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import torchtraceap
from torchtraceap.compat.tracelens import tracelens_sheets
from torchtraceap.core.table import ColumnTable

ROOT = Path(__file__).resolve().parents[3]
_PAGE = (ROOT / "docs/compatibility.md").read_text("utf-8")
HTA_SECTION = _PAGE.split("## Coming from Holistic Trace Analysis")[1].split("## ")[0]


def snippets() -> list[str]:
    """The second column of the table of methods."""
    text = HTA_SECTION
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row[1])]


def commands() -> list[str]:
    text = HTA_SECTION
    rows = [line.rstrip(" |").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    found = [code for row in rows for code in re.findall(r"`([a-z-]+)[^`]*`", row[-1])]
    return sorted({name for name in found if name != "torchtraceap"})


@pytest.fixture(scope="module")
def trace(bundled: Path) -> torchtraceap.Trace:
    return torchtraceap.load(bundled)


# What each snippet of the page gives: called as it stands there, asked for what HTA's method told.
SNIPPETS: dict[str, Callable[[torchtraceap.Trace], bool]] = {
    "trace.summary()": lambda t: t.summary().to_dict()["timeline"]["busy_ns"] > 0,
    "trace.timeline().communication_ns": lambda t: t.timeline().communication_ns == 0,
    "trace.timeline().exposed_communication_ns": lambda t: (
        t.timeline().exposed_communication_ns == 0
    ),
    "trace.kernels()": lambda t: (
        int(t.kernels()["exclusive_ns"].sum()) == t.timeline().busy_ns
        and {"sum_ns", "mean_ns", "min_ns", "max_ns"} <= set(t.kernels().columns)
    ),
    "trace.modules()": lambda t: has(t.modules(), "name", "gpu_ns"),
    'trace.launches(by="event")': lambda t: has(
        t.launches(by="event"), "host_ns", "gpu_ns", "delay_ns"
    ),
    'trace.kernels(by="overlap")': lambda t: has(t.kernels(by="overlap"), "under_compute_ns"),
    'trace.launches(by="idle")': lambda t: has(t.launches(by="idle"), "stream", "cause", "idle_ns"),
    'trace.launches(by="op")': lambda t: has(
        t.launches(by="op"), "kernels", "op_delay_mean_ns", "start_delay_mean_ns"
    ),
    'trace.launches(by="stream")': lambda t: has(
        t.launches(by="stream"), "mean_length_at_change", "max_length"
    ),
    'trace.launches(by="queue")': lambda t: has(t.launches(by="queue"), "time_ns", "length"),
    'trace.launches(by="stream")["full_ns"]': lambda t: (
        int(t.launches(by="stream")["full_ns"].sum()) == t.launches().facts["full_queue_ns"]
    ),
    "trace.memory()": lambda t: has(t.memory(), "direction", "bandwidth_gb_per_s"),
    'trace.memory(by="counter")': lambda t: has(t.memory(by="counter"), "bandwidth_gb_per_s"),
    "trace.sequences()": lambda t: has(t.sequences(), "kernels", "count"),
    "trace.ranks_table()": lambda t: t.ranks_table().to_list("verdict") == ["unknown"],
    "trace.steps()": lambda t: t.steps().num_rows == len(t.summary().to_dict()["steps"]) > 0,
    'trace.critical_path(compat="hta")': lambda t: (
        t.critical_path(compat="hta").facts["total_ns"] > 0
    ),
    "torchtraceap.diff(trace, trace)": lambda t: (
        torchtraceap.diff(t, t).facts["difference_ns"] == 0
    ),
    'trace.memory(by="timeline")': lambda t: has(
        t.memory(by="timeline"), "time_ns", "change_bytes"
    ),
}


def has(table: ColumnTable, *columns: str) -> bool:
    """Has rows, and these columns."""
    return table.num_rows > 0 and set(columns) <= set(table.columns)


def test_every_snippet_of_the_page_is_tried() -> None:
    assert set(snippets()) == set(SNIPPETS)


@pytest.mark.parametrize("code", SNIPPETS)
def test_methods(code: str, trace: torchtraceap.Trace) -> None:
    assert SNIPPETS[code](trace)


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
