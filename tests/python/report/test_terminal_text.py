"""Nothing in a trace, a path or a query commands the terminal that shows it."""

from __future__ import annotations

import re
import unicodedata
from io import StringIO
from pathlib import Path

import pytest
from gpu_traces import GpuTrace
from rank_samples import ALL_REDUCE
from rich.console import Console
from test_hostile import COMMANDS

import torchtraceap as ttap
from torchtraceap import cli
from torchtraceap.core.formatting import replace_controls
from torchtraceap.report import terminal
from torchtraceap.report.tables import TextTable, render_table
from torchtraceap.tables.catalog import TABLES

EVIL = "\x1b[2J\x1b]0;t\x07\x9b31m\b\r\n\x7f\u202e\u2066\u200b\u2028\x00\ufeff\ue000end"
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def hidden(text: str) -> set[str]:
    """Characters that are no text; a line break is where we end lines."""
    return {c for c in text if c != "\n" and unicodedata.category(c)[0] in "CZ" and c != " "}


def named(text: str) -> str:
    return text + EVIL


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with such a text behind every name that a profiler writes."""
    trace = GpuTrace()
    for kind, key in (("process_name", "name"), ("process_labels", "labels"),
                      ("thread_name", "name")):  # fmt: skip
        for pid, tid in ((1, 1), (0, 7), (0, 20)):
            trace.raw({"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0,
                       "args": {key: named("a")}})  # fmt: skip
    args = {
        "Input Dims": [[64, 64], [64, 64]], "Input type": [named("float"), "float"],
        "Input Strides": [[64, 1], [64, 1]], "Concrete Inputs": [named("x"), ""],
        "Collective name": named("allreduce"), "dtype": named("Float"),
        "Process Group Name": named("0"), "Process Group Description": named("d"),
        "In msg nelems": 1000, "Out msg nelems": 1000, "Group size": 2, "Seq": 1,
    }  # fmt: skip
    trace.host("python_function", named("nn.Module: Net_0"), 0, 9000)
    for step in range(4):
        at = 2000.0 * step
        trace.host("user_annotation", f"ProfilerStep#{step}", at, 2000)
        trace.host("user_annotation", named("step"), at, 1990)
        for i, name in enumerate(("aten::mm", named("aten::mm"), named("op"), "aten::copy_")):
            trace.op(name, at + 100 * i, 90, **args)
            trace.launch(named("gemm"), (at + 100 * i + 5, 5), (at + 100 * i + 20, 30), **args)
        trace.call(named("cudaMalloc"), at + 500, 400)
        trace.launch(named("Memcpy HtoD (Pageable -> Device)"), (at + 950, 5), (at + 960, 90),
                     cat="gpu_memcpy", **args)  # fmt: skip
        trace.launch(named(ALL_REDUCE), (at + 1200, 5), (at + 1210, 400), stream=20, **args)
    device = {"id": 0, "name": named("NVIDIA A100-SXM4-80GB"), "numSms": 108}
    job = {"backend": named("nccl"), "rank": 0, "world_size": 2}
    folder = tmp_path_factory.mktemp("evil") / "a\x1b[2J\u202eb"
    folder.mkdir()
    trace.load(folder, deviceProperties=[device], distributedInfo=job, traceName=named("t"))
    return folder / "trace.json"


QUERIES = (
    "pivot events on name using count(*)",
    "select name, args, thread, process from events",
    "select 1 as \"a\x1b[2J\"",
    "select * from nothing\x1b[2J",
    "select list(name) l, map([name], [1]) m from events group by name",
)  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        *[[*command.split()[:1], "{}", *command.split()[1:]] for command in COMMANDS],
        *[[table, "{}", "--all-columns"] for table in TABLES],
        *[["sql", "{}", query] for query in QUERIES],
        ["simulate", "{}"],
        ["simulate", "{}", "--plan", "--edit", named("none")],
        ["explain-idle", "{}"],
        ["replay", "{}"],
        ["replay", "{}", "--row", "20"],
        ["replay", "{}", "--op", named("op")],
        ["diff", "{}", "{}"],
        ["convert", "{}", named("no/out.json")],
        ["summary", named("no.json")],
        [named("sumary"), "{}"],
        ["ops", "{}", named("--option")],
        ["ops", "{}", "--by", named("name")],
        ["steps", "{}", "--rank", "5"],
        ["critical-path", "{}", "--step", named("7")],
        ["memory-timeline", "{}"],
    ],
    ids=ascii,
)
def test_no_command_prints_what_commands_a_terminal(
    words: list[str], evil: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "sql":
        pytest.importorskip("duckdb")
    # What a shell gives to a program has no zeros.
    code = cli.main([word.replace("{}", str(evil)).replace("\x00", "") for word in words])
    out, err = capsys.readouterr()
    assert "internal error" not in err
    assert hidden(out + err) == set()
    assert out or err
    assert code != 2 or len(err.splitlines()) == 1


def test_the_report_in_colour_has_no_sequence_but_its_styles(evil: Path) -> None:
    stream = StringIO()
    console = Console(file=stream, force_terminal=True, width=200, color_system="truecolor")
    terminal.print_report(ttap.load(evil).diagnose(), console)
    assert STYLE.search(stream.getvalue())
    assert hidden(STYLE.sub("", stream.getvalue())) == set()


def test_a_table_is_harmless_from_its_title_to_its_note() -> None:
    table = TextTable(EVIL, (EVIL, "b"), [(EVIL, 1), ("x", EVIL)], f"{EVIL}\n{EVIL}")
    for bold in (False, True):
        assert hidden(STYLE.sub("", render_table(table, bold=bold, width=40))) == set()


def test_every_hidden_character_is_replaced_and_nothing_else() -> None:
    text = "".join(map(chr, range(0x3000)))
    assert hidden(replace_controls(text)) <= {c for c in text if unicodedata.category(c) == "Zs"}
    kept = "µ é 漢字 → │ ░ \n"
    assert replace_controls(kept) == kept
