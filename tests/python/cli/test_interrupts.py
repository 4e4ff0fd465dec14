"""Ctrl-C stops work in the core, on every thread, and the command line whatever it does."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.threads import map_on_threads
from torchtraceap.trace.ranks import RankTrace

WriteTrace = Callable[..., Path]

HELD = "sum(range(10**18))"
"""A call that looks for no signal, and does not come back in anybody's lifetime."""


def started(*arguments: str, folder: Path | None = None) -> subprocess.Popen[str]:
    """A process of Python that has printed its first line."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    return process


def interrupted(
    process: subprocess.Popen[str], by: signal.Signals = signal.SIGINT
) -> tuple[int, str]:
    process.send_signal(by)
    _, said = process.communicate()
    return process.returncode, said


ENDLESS = """
import sys
from torchtraceap import _core, cli
from torchtraceap.diagnosis import diagnose
def detect(trace):
    print("now", flush=True)
    while True:
        {work}
diagnose.detect = detect
sys.exit(cli.main({arguments}))
"""


def test_work_in_the_core_stops(bundled: Path) -> None:
    work = "_core.build_tree(trace.ranks[0].table)"
    program = ENDLESS.format(work=work, arguments="sys.argv[1:]")
    code, said = interrupted(started("-c", program, "diagnose", str(bundled)))
    assert (code, said) == (130, "torchtraceap: interrupted\n")


def test_a_call_that_hears_nothing_keeps_no_command_line(bundled: Path) -> None:
    program = ENDLESS.format(work=HELD, arguments="")
    code, said = interrupted(started("-c", program, "diagnose", str(bundled)))
    assert (code, said) == (130, "torchtraceap: interrupted\n")


def test_sigterm_ends_a_command_as_ctrl_c_does(bundled: Path) -> None:
    work = "_core.build_tree(trace.ranks[0].table)"
    program = ENDLESS.format(work=work, arguments="")
    process = started("-c", program, "diagnose", str(bundled))
    assert interrupted(process, signal.SIGTERM) == (143, "torchtraceap: interrupted\n")


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_command_line_is_imported(by: signal.Signals) -> None:
    program = """
import sys, time
class Loading:
    def find_spec(self, name, *_):
        if name == "torchtraceap.cli.parser":
            print("now", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Loading())
from torchtraceap.__main__ import run
sys.exit(run())
"""
    assert interrupted(started("-c", program), by) == (128 + by, "torchtraceap: interrupted\n")


def test_what_an_unwritten_file_grows_in_is_removed(tmp_path: Path) -> None:
    program = f"""
import sys
from torchtraceap import cli
from torchtraceap.cli import process
from torchtraceap.core import writing
def run(given, is_process):
    process._set_up_process()
    with writing.replacing(sys.argv[1]) as staged:
        staged.write_text("half")
        print("now", flush=True)
        {HELD}
process._run = run
sys.exit(cli.main())
"""
    code, _ = interrupted(started("-c", program, str(tmp_path / "page.html")))
    assert code == 130
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_called_is_not_watched(bundled: Path) -> None:
    """A notebook that calls `main` must not end with it."""
    program = f"""
import signal, sys
from torchtraceap import cli
assert cli.main(["summary", {str(bundled)!r}, "--json"]) == 0
assert signal.set_wakeup_fd(-1) == -1
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_exit_code_is_ours_also_where_code_was_made_of_text(
    bundled: Path, tmp_path: Path
) -> None:
    """`python -m` dies of the signal where it has met an `exec`, such as those of data classes."""
    work = "exec('time.sleep(60)', {'time': __import__('time')})"
    (tmp_path / "endless.py").write_text(ENDLESS.format(work=work, arguments=""))
    program = ["-m", "endless", "diagnose", str(bundled)]
    code, said = interrupted(started(*program, folder=tmp_path))
    assert (code, said) == (130, "torchtraceap: interrupted\n")


def test_an_interrupt_that_a_library_turns_into_an_error(bundled: Path) -> None:
    work = """
        try:
            time.sleep(60)
        except KeyboardInterrupt as error:
            raise ValueError("a query failed") from error
"""
    program = "import time" + ENDLESS.format(work=work.strip(), arguments="")
    code, said = interrupted(started("-c", program, "diagnose", str(bundled)))
    assert (code, said) == (130, "torchtraceap: interrupted\n")


def test_an_interrupt_while_the_trace_is_freed(bundled: Path) -> None:
    program = """
import sys, time
from torchtraceap import cli
from torchtraceap.cli import process
def answer(arguments):
    process._set_up_process()
    print("now", flush=True)
    try:
        return 0
    finally:
        time.sleep(60)
process._answer = answer
sys.exit(cli.main())
"""
    code, said = interrupted(started("-c", program, "summary", str(bundled)))
    assert (code, said) == (130, "torchtraceap: interrupted\n")


def test_an_interrupt_while_the_core_is_loaded(bundled: Path) -> None:
    """A library that starts makes an ImportError of it."""
    program = """
import signal, sys, time
class Loading:
    def find_spec(self, name, *_):
        if name == "torchtraceap._core":
            print("now", flush=True)
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                raise ImportError("initialization failed")
sys.meta_path.insert(0, Loading())
from torchtraceap import cli
sys.exit(cli.main())
"""
    code, said = interrupted(started("-c", program, "summary", str(bundled)))
    assert (code, said) == (130, "torchtraceap: interrupted\n")


def test_an_interrupt_while_python_calls_back(bundled: Path) -> None:
    """As when a module's lock is freed: it can't be raised, and shows no traceback."""
    work = """
        class Freed:
            def __del__(self):
                print("now", flush=True)
                time.sleep(60)
        Freed()
        time.sleep(60)
"""
    program = "import time" + ENDLESS.format(work=work.strip(), arguments="")
    code, said = interrupted(started("-c", program, "diagnose", str(bundled)))
    assert (code, said) == (130, "torchtraceap: interrupted\n")


def test_an_answer_that_is_out_keeps_its_exit_code(bundled: Path) -> None:
    program = """
import signal, sys
from torchtraceap import cli
code = cli.main()
signal.raise_signal(signal.SIGINT)
sys.exit(code)
"""
    call = [sys.executable, "-c", program, "summary", str(bundled), "--json"]
    done = subprocess.run(call, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


# ------------------------------------------------------------------------------ threads


def until_stopped(table: _core.EventTable) -> None:
    while True:
        _core.build_tree(table)


def test_an_error_on_one_thread_stops_the_others(bundled: Path) -> None:
    table = ttap.load(bundled).ranks[0].table

    def work(item: int) -> None:
        if item == 0:
            raise ValueError("first")
        until_stopped(table)

    with pytest.raises(ValueError, match="first"):
        map_on_threads(work, range(4), threads=4)


def test_cancelled_work_raises_keyboard_interrupt(bundled: Path) -> None:
    table = ttap.load(bundled).ranks[0].table
    stop = _core.Cancellation()
    stop.cancel()
    with stop, pytest.raises(KeyboardInterrupt):
        until_stopped(table)
    _core.build_tree(table)  # outside nothing is cancelled


def test_what_was_stopped_half_way_is_made_anew(bundled: Path) -> None:
    table = ttap.load(bundled).ranks[0].table
    stop = _core.Cancellation()
    stop.cancel()
    rank = RankTrace(table, None)

    def ask() -> Any:
        while True:
            fresh[0] = RankTrace(table, None)
            _ = fresh[0].tree

    fresh = [rank]
    with stop, pytest.raises(KeyboardInterrupt):
        ask()
    assert len(fresh[0].tree.gpu_rows) == len(_core.build_tree(table).gpu_rows)
