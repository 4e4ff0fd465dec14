"""The command line as a user meets it: output, exit codes, sentences instead of tracebacks."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import report_samples as samples

pytest.importorskip("torchtraceap._core", reason="torchtraceap._core is not built")

from torchtraceap import cli
from torchtraceap.results import PAPER_TYPES

ANSI = re.compile(r"\x1b\[")


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
    assert "there is no 'kernal'" in fails(run("events", slow, "--kind", "kernal"))


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


def test_an_interrupt_leaves_no_traceback(
    slow: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchtraceap.cli.diagnosis.load", interrupted)
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


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_every_command_has_help(command: str) -> None:
    done = run(*command.split(), "--help")
    assert done.returncode == 0
    assert "usage: torchtraceap" in done.stdout
    assert not ANSI.search(done.stdout)


def test_version() -> None:
    assert re.fullmatch(r"torchtraceap \d+\.\d+\S*\n", run("--version").stdout)


def on_terminal(*arguments: object, env: dict[str, str] | None = None, before: str = "pass") -> str:
    """What the command line writes to a terminal; `before` is run in the process first."""
    try:
        main_end, other_end = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminal to be had here: {error}")
    code = f"import sys; from torchtraceap import cli; {before}; sys.exit(cli.main(sys.argv[1:]))"
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
    assert process.wait(timeout=60) == 0
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
    small = "cli.input.PROGRESS_BYTES = 0"
    assert "reading" in on_terminal("summary", slow, before=small)
    assert "reading" not in on_terminal("summary", slow)
    code = f"from torchtraceap import cli; {small}; cli.main(['summary', {str(slow)!r}, '--json'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    json.loads(done.stdout)


def test_narrow_encodings_are_no_error(slow: Path) -> None:
    done = run(slow, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0
    assert done.stderr == ""


def test_start_up_imports_nothing_heavy(slow: Path) -> None:
    code = (
        "import sys; from torchtraceap.cli import main; "
        f"assert main(['diagnose', {str(slow)!r}, '--json']) == 0; "
        "heavy = {'rich', 'typer', 'jinja2', 'pandas', 'torch', 'yaml', 'pyarrow'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
