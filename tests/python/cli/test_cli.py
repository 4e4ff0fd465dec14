"""The command line as a user meets it: output, exit codes, sentences instead of tracebacks."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import report_samples as samples

pytest.importorskip("torchtraceap._core", reason="torchtraceap._core is not built")

from torchtraceap import cli
from torchtraceap.cli import output, process
from torchtraceap.cli.parser import chosen_command, each_command, parse, terminal_width
from torchtraceap.core.progress import set_progress_listener
from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.report import terminal

ANSI = re.compile(r"\x1b\[")


EVERY = each_command(cli.COMMANDS)
TRACES = Path(__file__).resolve().parents[3] / "examples/traces"
WORKERS = [TRACES / f"resnet50_num_workers_{number}.json.gz" for number in (0, 4)]


def run(
    *arguments: object, env: dict[str, str] | None = None, stdin: Any = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a process of its own."""
    command = [sys.executable, "-m", "torchtraceap", *map(str, arguments)]
    environment = os.environ | (env or {})
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, stdin=stdin
    )


def fails(done: subprocess.CompletedProcess[str]) -> str:
    """Checks exit code 2 with one sentence, and returns it."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("torchtraceap: ")
    return lines[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def slow(folder: Path) -> Path:
    return samples.slow_loader().write(folder / "slow.json")


@pytest.fixture(scope="module")
def good(folder: Path) -> Path:
    return samples.healthy().write(folder / "good.json")


# ------------------------------------------------------------------------------- diagnose


def test_a_path_alone_is_diagnosed(slow: Path) -> None:
    short, full = run(slow), run("diagnose", slow)
    assert short.returncode == 0, short.stderr
    assert short.stdout == full.stdout
    assert short.stdout.count("\n") <= 41
    assert not ANSI.search(short.stdout + short.stderr)


def test_options_before_the_path_work_without_the_command(slow: Path) -> None:
    assert json.loads(run("--json", slow).stdout)["schema"] == "torchtraceap.diagnosis/1"


@pytest.mark.parametrize("count", [50, 100, 200])
def test_diagnose_json_is_one_document_of_the_agreed_form(slow: Path, count: int) -> None:
    done = run("diagnose", slow, "--json", "--windows", count)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["schema"] == "torchtraceap.diagnosis/1"
    assert document["profiled_ns"] == 400_000_000
    assert set(document["verdicts"]) == set(PAPER_TYPES)
    assert set(document["verdicts"].values()) <= {"present", "absent", "unknown"}
    assert document["verdicts"]["single_process_data_loading"] == "present"
    windows = document["windows"]
    assert windows["count"] == count
    assert len(windows["bounds_ns"]) == count + 1
    assert len(windows["scores"]) == count
    assert all(0 <= score <= 1 for score in windows["scores"])
    assert all(len(scores) == count for scores in windows["types"].values())
    finding = document["findings"][0]
    assert finding["type"] == "single_process_data_loading"
    assert {"cost_ns", "cost_share", "intervals", "evidence", "missing_signals"} <= set(finding)
    assert {"confidence", "title", "why", "fix", "saving"} <= set(finding)
    keys = {"low_ns", "best_ns", "high_ns", "per_step", "method", "edit", "note"}
    assert set(finding["saving"]) == keys
    assert sum(b - a for a, b in finding["intervals"]) == finding["cost_ns"]
    assert {"row", "name", "start_ns", "duration_ns"} <= set(finding["evidence"][0])
    assert all(set(entry) == {"type", "missing_signals"} for entry in document["abstained"])
    assert isinstance(document["scorer"], str)


def test_the_gate_exits_with_1_while_something_is_found(slow: Path, good: Path) -> None:
    done = run("diagnose", slow, "--gate", "--json")
    assert done.returncode == 1
    json.loads(done.stdout)
    assert "single_process_data_loading is present" in done.stderr
    assert run("diagnose", good, "--gate").returncode == 0


def test_the_gate_can_be_narrowed_and_widened(slow: Path, good: Path) -> None:
    assert run(slow, "--fail-on", "graph_break").returncode == 0
    assert run(slow, "--fail-on", "graph_break,single_process_data_loading").returncode == 1
    assert run(slow, "--fail-on", "present").returncode == 1
    verdicts = json.loads(run(good, "--json").stdout)["verdicts"].values()
    assert run(good, "--fail-on", "unknown").returncode == int("unknown" in verdicts)
    assert "did you mean 'cpu_bound'" in fails(run(slow, "--fail-on", "cpu_bond"))


def test_an_unknown_type_for_the_gate_is_told_the_choices(slow: Path) -> None:
    sentence = fails(run("diagnose", slow, "--fail-on", "no_memory_pinn"))
    assert "did you mean 'no_memory_pin'?" in sentence
    assert "choices: present, unknown, " in sentence and "straggler" in sentence


def test_standard_input_is_a_trace(slow: Path, tmp_path: Path) -> None:
    from_file = run("diagnose", slow, "--json").stdout
    with slow.open("rb") as whole:
        redirected = run("diagnose", "-", "--json", stdin=whole)
    piped = subprocess.run(
        f"cat {slow} | {sys.executable} -m torchtraceap diagnose - --json",
        shell=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    expected = json.loads(from_file)
    for done in (redirected, piped):
        document = json.loads(done.stdout)
        assert document["findings"] == expected["findings"]
    with open(os.devnull, "rb") as nothing:
        assert "/dev/stdin" in fails(run("-", stdin=nothing))


@pytest.mark.parametrize(("percent", "code"), [(30, 1), ("30%", 1), (50, 0)])
def test_diff_gates_on_percent(percent: object, code: int) -> None:
    done = run("diff", *reversed(WORKERS), "--by", "cause", "--gate", percent)  # 39.6 % slower
    assert done.returncode == code, done.stderr
    assert "The median step takes" in done.stdout
    assert ("gate: the median step is 39.6 % slower" in done.stderr) == bool(code)


def test_diff_does_not_gate_on_what_became_faster() -> None:
    assert run("diff", *WORKERS, "--by", "cause", "--gate", 0).returncode == 0


def test_a_gate_of_diff_is_a_percentage(slow: Path) -> None:
    assert "--gate" in fails(run("diff", slow, slow, "--gate", "-3"))
    assert "--gate" in fails(run("diff", slow, slow, "--gate", "much"))


def test_a_folder_and_several_files_are_ranks(tmp_path: Path) -> None:
    paths = [
        samples.slow_loader(rank=rank, world_size=2).write(tmp_path / f"rank{rank}.json")
        for rank in range(2)
    ]
    by_folder = json.loads(run("summary", tmp_path, "--json").stdout)
    by_files = json.loads(run("summary", *paths, "--json").stdout)
    assert [entry["rank"] for entry in by_folder["ranks"]] == [0, 1]
    assert by_folder["timeline"] == by_files["timeline"]
    assert "2 ranks" in run("diagnose", tmp_path).stdout


# ------------------------------------------------------------------------------- summary


def test_summary_json_adds_up(slow: Path) -> None:
    done = run("summary", slow, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["schema"] == "torchtraceap.summary/1"
    timelines = [document["timeline"], *(step["timeline"] for step in document["steps"])]
    for timeline in timelines:
        exposed = timeline["exposed_communication_ns"] + timeline["exposed_memcpy_ns"]
        parts = timeline["compute_ns"] + exposed + timeline["idle_ns"]
        assert parts == timeline["span_ns"]
    assert document["events"]["gpu"] == 32
    assert [step["duration_ns"] for step in document["steps"]] == [100_000_000] * 4


def test_linked_only_leaves_orphans_out(tmp_path: Path) -> None:
    maker = samples.slow_loader()
    maker.events = [event for event in maker.events if event["cat"] != "cuda_runtime"]
    path = maker.write(tmp_path / "orphans.json")
    everything = json.loads(run("summary", path, "--json").stdout)
    linked = json.loads(run("summary", path, "--json", "--linked-only").stdout)
    assert everything["events"]["gpu_orphan"] == 32
    assert everything["timeline"]["busy_ns"] > 0
    assert linked["timeline"]["busy_ns"] == 0


def test_summary_is_readable(slow: Path) -> None:
    done = run("summary", slow)
    assert done.returncode == 0
    assert "ProfilerStep#0" in done.stdout
    assert "whole trace" in done.stdout


# ------------------------------------------------------------------------------- tree, events


def test_tree_shows_calls_with_their_kernels(slow: Path) -> None:
    text = run("tree", slow, "--step", "0").stdout
    assert "aten::stack" in text
    assert "-> ampere_sgemm_128x64" in text
    document = json.loads(run("tree", slow, "--step", "ProfilerStep#0", "--json").stdout)
    assert document["schema"] == "torchtraceap.table/1"
    rows = [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]
    by_row = {row["row"]: row for row in rows}
    kernels = [row for row in rows if row["kind"] == "kernel"]
    assert len(kernels) == 8
    assert {by_row[kernel["parent"]]["name"] for kernel in kernels} == {"cudaLaunchKernel"}
    assert "no step 'nine'" in fails(run("tree", slow, "--step", "nine"))


def test_events_can_be_chosen(slow: Path) -> None:
    document = json.loads(run("events", slow, "--json").stdout)
    assert document["schema"] == "torchtraceap.table/1"
    assert len(document["rows"]) == len(samples.slow_loader().events)
    few = json.loads(run("events", slow, "--json", "--name", "SGEMM", "--limit", "3").stdout)
    names = {dict(zip(few["columns"], row, strict=True))["name"] for row in few["rows"]}
    assert (len(few["rows"]), names) == (3, {"ampere_sgemm_128x64"})
    longest = json.loads(run("events", slow, "--json", "--longest", "--limit", "1").stdout)
    row = dict(zip(longest["columns"], longest["rows"][0], strict=True))
    assert row["dur_ns"] == 100_000_000
    assert "not 'kernal'" in fails(run("events", slow, "--kind", "kernal"))


def test_columns_and_order_can_be_chosen(slow: Path, tmp_path: Path) -> None:
    chosen = ("ops", slow, "--columns", "name, self host, count", "--sort", "self host:asc")
    document = json.loads(run(*chosen, "--json").stdout)
    assert document["columns"] == ["name", "self_host_ns", "count"]
    host = [row[1] for row in document["rows"]]
    assert host == sorted(host) and len(set(host)) > 1
    assert run(*chosen).stdout.split("\n")[0].split() == ["name", "self", "host", "(ms)", "count"]
    out = tmp_path / "ops.csv"
    assert run(*chosen, "--csv", out, "--limit", 2).returncode == 0
    with out.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == document["columns"] and len(rows) == 2
    assert "(columns: name, " in fails(run("ops", slow, "--columns", "nam"))
    assert "did you mean 'count'" in fails(run("ops", slow, "--sort", "cont"))
    assert "asc, desc" in fails(run("ops", slow, "--sort", "count:up"))
    assert "--columns" in fails(run("ops", slow, "--columns", "name", "--all-columns"))


@pytest.mark.parametrize("width", [60, 80])
def test_a_table_is_as_wide_as_the_terminal(slow: Path, width: int) -> None:
    settings = {"COLUMNS": str(width)}
    for command in ("kernels", "ops", "launches"):
        lines = run(command, slow, env=settings).stdout.splitlines()
        table = lines[: next(i for i, line in enumerate(lines) if line.startswith("left out"))]
        assert max(map(len, table)) <= width
        assert (
            on_terminal(command, slow, "--no-color", env=settings).split()
            == " ".join(lines).split()
        )


def test_events_go_to_files(slow: Path, tmp_path: Path) -> None:
    target = tmp_path / "kernels.csv"
    assert run("events", slow, "--kind", "kernel", "--csv", target).returncode == 0
    with target.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 32
    assert rows[0]["dur_ns"] == "6590000"
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    target = tmp_path / "kernels.parquet"
    assert run("events", slow, "--kind", "kernel", "--parquet", target).returncode == 0
    assert parquet.read_table(target).num_rows == 32


# ------------------------------------------------------------------------------- convert, report


def test_convert_writes_an_equal_trace(slow: Path, tmp_path: Path) -> None:
    target = tmp_path / "again.json.gz"
    assert run("convert", slow, target).returncode == 0
    assert target.read_bytes()[:2] == b"\x1f\x8b"
    before = json.loads(run("events", slow, "--json").stdout)
    after = json.loads(run("events", target, "--json").stdout)
    assert before == after
    assert "must end in" in fails(run("convert", slow, tmp_path / "again.txt"))
    assert "same file" in fails(run("convert", slow, slow))


def test_report_writes_a_page(slow: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    done = run("report", slow, "--html", target)
    assert (done.returncode, done.stdout) == (0, "")
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "--html" in fails(run("report", slow))
    both = run("diagnose", slow, "--json", "--html", target)
    json.loads(both.stdout)
    assert "wrote" in both.stderr


# ------------------------------------------------------------------------------- bad input


def test_unusable_input_is_one_sentence(tmp_path: Path) -> None:
    assert "no such file" in fails(run("diagnose", tmp_path / "missing.json"))
    empty = tmp_path / "empty.json"
    empty.touch()
    fails(run(empty))
    garbage = tmp_path / "garbage.bin"
    garbage.write_bytes(bytes(range(256)) * 64)
    fails(run("summary", garbage, "--json"))
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(b"\x1f\x8b\x08\x00")
    fails(run(cut))
    (tmp_path / "folder").mkdir()
    assert "no trace file" in fails(run(tmp_path / "folder"))
    none = tmp_path / "none.json"
    none.write_text('{"traceEvents": []}')
    fails(run("tree", none))


def test_unusable_options_are_one_sentence(slow: Path, tmp_path: Path) -> None:
    assert "50, 100, 200" in fails(run(slow, "--windows", "7"))
    assert "many" in fails(run(slow, "--windows", "many"))
    assert "--nonsense" in fails(run("summary", slow, "--nonsense"))
    assert "--threads" in fails(run(slow, "--threads", "-1"))
    assert "did you mean 'summary'" in fails(run("sumary", slow))
    assert "PATH" in fails(run())
    assert "PATH" in fails(run("summary"))
    assert "no rank 3" in fails(run("tree", slow, "--rank", "3"))
    assert "--limit" in fails(run("events", slow, "--limit", "-2"))


def test_unwritable_output_is_one_sentence(slow: Path, tmp_path: Path) -> None:
    assert "does not exist" in fails(run(slow, "--html", tmp_path / "no" / "report.html"))
    assert "is a folder" in fails(run("report", slow, "--html", tmp_path))
    fails(run("convert", slow, tmp_path / "no" / "out.json"))
    fails(run("events", slow, "--csv", tmp_path / "no" / "out.csv"))
    assert "same file" in fails(run(slow, "--html", slow))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_one_sentence(slow: Path) -> None:
    for words in (f"events {slow} --json", f"{slow}", "--help", "ops --help"):
        command = [sys.executable, "-m", "torchtraceap", *words.split()]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2
        assert "standard output: can't be written: No space left" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_goes_away_is_no_error(slow: Path) -> None:
    command = f"{sys.executable} -m torchtraceap events {slow} --json"
    line = f"{command} | head -c 5; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.stdout == '{"sch0\n'
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("--help", 0), ("summary {}", 0), ("diagnose {} --gate --json", 1), ("diagnose nothing", 2)],
)
@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_error(slow: Path, arguments: str, code: int, closed: str) -> None:
    command = f"{sys.executable} -m torchtraceap {arguments.format(slow)} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert done.returncode == code
    assert "internal error" not in done.stderr
    assert done.stdout == "" or ">&-" not in closed.split()


def test_an_interrupt_leaves_no_traceback(
    slow: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchtraceap.cli.diagnose.load", interrupted)
    assert cli.main(["diagnose", str(slow)]) == 130
    assert capsys.readouterr().err == "torchtraceap: interrupted\n"


def test_a_defect_of_ours_is_one_sentence_too(
    slow: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("torchtraceap.cli.views.load", broken)
    assert cli.main(["summary", str(slow)]) == 2
    assert "internal error" in capsys.readouterr().err


# ------------------------------------------------------------------------------- terminal


def test_the_help_is_one_screen_with_the_commands_of_every_day_first() -> None:
    short, every = run("help").stdout, run("help", "all").stdout
    assert short == run("--help").stdout
    assert len(short.splitlines()) <= 50
    days = re.findall(r"^  ([a-z-]+) {2,}", short.split("every day:\n")[1].split("\n\n")[0], re.M)
    assert len(days) == 8 and days[0] == "diagnose"
    missing = [name for name in cli.COMMANDS if not re.search(rf"\b{name}\b", short)]
    assert missing == []
    assert [n for n in cli.COMMANDS if not re.search(rf"^  {n} +\w", every, re.M)] == []


@pytest.mark.parametrize("name", ["diagnose", "bench", "bench run", "corpus build"])
def test_help_of_a_command_is_what_its_option_says(name: str) -> None:
    assert run("help", *name.split()).stdout == run(*name.split(), "--help").stdout


def test_actions_stand_one_to_a_line() -> None:
    said = run("help", "bench", env={"COLUMNS": "80"}).stdout
    actions = cli.COMMANDS["bench"].actions or {}
    assert [n for n in actions if not re.search(rf"^  {n} +\w", said, re.M)] == []
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("diagnose x --jsn", "'--jsn', did you mean '--json'?"),
        ("x.json --htm=a.html", "'--htm', did you mean '--html'?"),
        ("bench run --modee both", "'--modee', did you mean '--mode'?"),
        ("bench rnu", "'rnu', did you mean 'run'?"),
        ("diagnos", "'diagnos', did you mean 'diagnose'?"),
        ("help diagnos", "'diagnos', did you mean 'diagnose'?"),
        ("ops x --nothing-like-it", "there is no '--nothing-like-it' ("),
        ("nothingknown", "nothingknown: no such file or folder"),
    ],
)
def test_a_mistyped_word_gets_the_nearest(given: str, said: str) -> None:
    assert said in fails(run(*given.split()))


@pytest.mark.parametrize("command", ["", *EVERY])
def test_every_command_has_help(command: str) -> None:
    done = run(*command.split(), "--help")
    assert done.returncode == 0
    assert "usage: torchtraceap" in done.stdout
    assert not ANSI.search(done.stdout)


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(option: str) -> None:
    assert re.fullmatch(r"torchtraceap \d+\.\d+\S*\n", run(option).stdout)


def examples_of(name: str) -> list[str]:
    return list(EVERY[name].examples)


@pytest.mark.parametrize(
    ("name", "example"), [(name, e) for name in EVERY for e in examples_of(name)]
)
def test_examples_are_understood(
    name: str, example: str, slow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It parses and is in the help of its command; what follows `>` or `<` is the shell's."""
    words = shlex.split(re.split(" [<>] ", example)[0])
    given = [str(slow) if word == "-" else word for word in words]
    first = name.split()[0]
    rest = given[1:] if given[0] == first else given
    parse(*chosen_command(first, cli.COMMANDS[first], rest))
    assert cli.main([*name.split(), "--help"]) == 0
    assert f"  torchtraceap {example}\n" in capsys.readouterr().out


def test_every_command_has_examples() -> None:
    assert [name for name in EVERY if not examples_of(name)] == []


def test_the_shells_complete() -> None:
    script = run("completion", "bash").stdout
    ask = (
        'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _torchtraceap; '
        'echo "${COMPREPLY[*]}"; }; cd /nowhere 2>/dev/null; '
    )

    def completed(*words: str) -> set[str]:
        code = f"{script}\n{ask} ask torchtraceap {shlex.join(words)}"
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        return set(done.stdout.split())

    assert completed("diag") == {"diagnose"}
    assert completed("ops", "t.json", "--by", "") == {"name", "category", "args", "call"}
    assert completed("t.json", "--fai") == {"--fail-on"}
    assert {"--csv", "--by", "--limit"} <= completed("kernels", "--")
    assert completed("completion", "") == {"bash", "zsh", "fish"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_scripts_of_their_shell(shell: str, tmp_path: Path) -> None:
    path = tmp_path / "completion"
    path.write_text(run("completion", shell).stdout)
    for command in cli.COMMANDS:
        assert command in path.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", str(path)], check=True, timeout=60)


def on_terminal(
    *arguments: object, env: dict[str, str] | None = None, before: str = "pass", exit_code: int = 0
) -> str:
    """What the command line writes to a terminal; `before` is run in the process first."""
    try:
        main_end, other_end = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminal to be had here: {error}")
    code = (
        "import sys; from torchtraceap import __main__, cli; sys.argv[0] = __main__.__file__; "
        f"{before}; sys.exit(cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    settings = {"TERM": "xterm-256color", "COLUMNS": "100"} | (env or {})
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | settings
    process = subprocess.Popen(command, stdout=other_end, stderr=other_end, env=environment)
    os.close(other_end)
    chunks = []
    while True:
        try:
            chunk = os.read(main_end, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(main_end)
    assert process.wait(timeout=60) == exit_code
    return b"".join(chunks).decode()


def test_colour_only_on_a_terminal_that_wants_it(slow: Path) -> None:
    plain = run(slow).stdout
    coloured = on_terminal(slow)
    assert ANSI.search(coloured)
    without = re.sub(r"\x1b\[[0-9;]*m", "", coloured).replace("\r\n", "\n")
    assert [line.rstrip() for line in without.splitlines()] == plain.splitlines()
    assert not ANSI.search(on_terminal(slow, env={"NO_COLOR": "1"}))
    assert not ANSI.search(on_terminal(slow, "--no-color"))
    assert not ANSI.search(on_terminal(slow, env={"TERM": "dumb"}))


def test_big_files_show_progress_on_a_terminal_only(slow: Path) -> None:
    small = "import torchtraceap.cli.input as i; i.PROGRESS_BYTES = 0"
    assert "reading" in on_terminal("summary", slow, before=small)
    assert "reading" not in on_terminal("summary", slow)
    code = f"from torchtraceap import cli; {small}; cli.main(['summary', {str(slow)!r}, '--json'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    json.loads(done.stdout)


@pytest.mark.parametrize("command", ["diagnose", "summary", "ops"])
def test_links_in_circles_keep_no_command(tmp_path: Path, command: str) -> None:
    for name in "ab":
        (tmp_path / name).symlink_to(".")
    shown = on_terminal(command, tmp_path, exit_code=2)
    assert "no trace file" in shown


def test_stages_that_take_long_are_shown_and_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "PATIENCE_S", 0.0)
    monkeypatch.setattr(process, "REFRESH_S", 0.01)
    stream = StringIO()
    line = process._StageLine(stream)
    with line.run("linking events"):
        with line.run("linking events"):  # as of another rank
            wait_for(lambda: "linking events: " in stream.getvalue())
        assert not stream.getvalue().endswith("\r\x1b[K")
    assert stream.getvalue().endswith("\r\x1b[K")
    shown = stream.getvalue()
    with line.run("looking for anti-patterns"):
        wait_for(lambda: "looking for anti-patterns: " in stream.getvalue()[len(shown) :])


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")


def test_every_phase_of_a_diagnosis_is_a_stage(slow: Path, tmp_path: Path) -> None:
    begun: list[str] = []

    def watch(name: str) -> AbstractContextManager[None]:
        begun.append(name)
        return nullcontext()

    set_progress_listener(watch)
    try:
        assert cli.main(["diagnose", str(slow), "--json", "--html", str(tmp_path / "x.html")]) == 0
        assert cli.main(["kernels", str(slow), "--csv", str(tmp_path / "x.csv")]) == 0
    finally:
        set_progress_listener(None)
    assert begun[:5] == [
        "linking events",
        "looking for anti-patterns",
        "replaying the run with fixes",
        "scoring windows",
        "writing the page",
    ]
    assert "making the table" in begun


def test_stages_are_shown_on_a_terminal_only(slow: Path) -> None:
    code = (
        "import sys; from torchtraceap.cli import main, process; "
        "import torchtraceap.core.progress as s; "
        "process.show_stages(); print(s._listener is None); sys.exit(main(['-V']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[0] == "True"
    assert "False" in on_terminal(
        "-V",
        before="import torchtraceap.core.progress as s; from torchtraceap.cli import process; "
        "process.show_stages(); print(s._listener is None)",
    )


def test_narrow_encodings_are_no_error(slow: Path) -> None:
    done = run(slow, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0
    assert done.stderr == ""
    whole, plain = run(slow).stdout.splitlines(), done.stdout.splitlines()
    assert [len(line) for line in plain] == [len(line) for line in whole]
    assert "".join(plain).isascii() and "?" not in "".join(plain)
    bar = next(place for place, line in enumerate(whole) if line.startswith("█"))
    assert [len(set(line)) for line in (whole[bar], plain[bar])] == [len(set(whole[bar]))] * 2


def test_signs_of_the_bar_differ_without_unicode_too() -> None:
    # A run on the host and one on a GPU never share a bar.
    signs = list(dict.fromkeys([*terminal.GLYPHS.values(), *terminal.IDLE_GLYPHS]))
    plain = [output._PLAIN.get(sign, sign) for sign in signs]
    assert "".join(plain).isascii() and len(set(plain)) == len(signs)


def test_start_up_imports_nothing_heavy(slow: Path) -> None:
    code = (
        "import sys; from torchtraceap.cli import main; "
        f"assert main(['diagnose', {str(slow)!r}, '--json']) == 0; "
        "heavy = {'rich', 'typer', 'jinja2', 'pandas', 'torch', 'yaml', 'pyarrow'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("given", [None, "", "0", "60", "-5", "x", "1_0", " 70 ", "²"])
def test_the_width_is_that_of_the_standard_library(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", given)
    assert terminal_width(93) == shutil.get_terminal_size((93, 40)).columns
    monkeypatch.setattr(sys, "__stdout__", None)
    assert terminal_width(93) == shutil.get_terminal_size((93, 40)).columns


@pytest.mark.parametrize("command", ["predict", "plan", "bench"])
def test_what_runs_code_of_the_user_says_so_first(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "--help"]) == 0
    _, described = capsys.readouterr().out.split("\n\n")[:2]
    assert described.startswith("Runs the ")
