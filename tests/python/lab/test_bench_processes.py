"""Programs in fresh processes: how they end, what they tell of their steps, what is recorded."""

from __future__ import annotations

import gzip
import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench import measured as measuring
from torchtraceap.lab.bench.measured import FREE, STEPS, measured
from torchtraceap.lab.bench.processes.programs import (
    ProgramError,
    read_steps,
    run_fresh,
    run_program,
    shorten_command,
    trace_program,
)

MEASURED = """
    from torchtraceap.lab.bench.measured import measured
    for turn in measured({items}, warmup={warmup}):
        {body}
"""
TRAINED = """
    import os, sys, torch
    torch.set_num_threads(1)
    layer, x = torch.nn.Linear(8, 8), torch.ones(2, 8)
    for _ in range(3):
        layer(x).sum().backward()
"""


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *words]


def loop(items: str = "range(6)", warmup: int = 2, body: str = "pass") -> list[str]:
    return python(MEASURED.format(items=items, warmup=warmup, body=body))


# ------------------------------------------------------------------------- processes


def test_a_program_is_told_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAKEN", "away")
    code = "import os, sys; print(os.getcwd(), os.environ['GIVEN'], 'TAKEN' in os.environ)\n" \
           "print(repr(sys.stdin.read()), file=sys.stderr); sys.exit(3)"  # fmt: skip
    ended = run_fresh(python(code), cwd=tmp_path, env={"GIVEN": "here", "TAKEN": None})
    assert ended.stdout == f"{tmp_path} here False\n"
    assert ended.stderr == "''\n"
    assert (ended.returncode, ended.ok, ended.reason) == (3, False, "exit code 3: ''")
    assert ended.wall_ns > 0 and ended.max_rss_bytes > 1 << 20


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def is_gone(process: int) -> bool:
    for _ in range(200):
        if not is_running(process):
            return True
        time.sleep(0.02)
    return False


LEAVES = """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, flush=True)
    time.sleep(float(sys.argv[1]))
"""


def test_a_time_out_ends_what_the_program_started_too() -> None:
    ended = run_fresh(python(LEAVES, "60"), timeout_s=1.5)
    assert ended.timed_out and not ended.ok
    assert "was over" in ended.reason
    assert is_gone(int(ended.stdout))


def test_what_a_program_leaves_behind_ends_with_it() -> None:
    ended = run_fresh(python(LEAVES, "0"))
    assert ended.ok and not ended.reason
    assert is_gone(int(ended.stdout))


def test_a_signal_has_its_name() -> None:
    ended = run_fresh(python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert ended.returncode == -11
    assert ended.reason == "SIGSEGV"


@pytest.mark.parametrize(
    ("argv", "cwd", "said"),
    [
        (["/no/such/program"], None, "can't be run"),
        ([sys.executable], "/no/such/folder", "no such folder"),
        ([], None, "no program"),
    ],
)
def test_what_cannot_be_started_is_told(argv: list[str], cwd: str | None, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        run_fresh(argv, cwd=cwd)


# ------------------------------------------------------------------------- measured


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Time that stands still but where a test lets it pass."""
    now = SimpleNamespace(ns=1000)
    monkeypatch.setattr(measuring.time, "perf_counter_ns", lambda: now.ns)
    monkeypatch.setattr(measuring, "_times", measuring._Times())
    yield now


def test_outside_of_a_benchmark_it_only_iterates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STEPS, raising=False)
    assert list(measured(x for x in "abc")) == ["a", "b", "c"]
    code = """
        import sys
        from torchtraceap.lab.bench.measured import measured
        print(list(measured(range(3))), [m for m in ("torch", "numpy") if m in sys.modules])
    """
    assert run_fresh(python(code)).stdout == "[0, 1, 2] []\n"


def test_a_step_is_what_comes_between_two_ends(
    clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next item counts to the step that waits for it."""
    monkeypatch.setenv(STEPS, str(tmp_path / "steps.json"))

    def items() -> Iterator[int]:
        for length in (5, 7, 9):
            clock.ns += 100
            yield length

    for length in measured(items(), warmup=1):
        clock.ns += length
    assert read_steps(tmp_path / "steps.json")["step_ns"] == [105, 107, 109]


def test_a_second_loop_adds_its_steps(
    clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STEPS, str(tmp_path / "steps.json"))
    for _ in range(2):
        for turn in measured(range(5), warmup=1):
            clock.ns += 10
            if turn == 1:
                break
        clock.ns += 1000  # what is between the loops is no step
    document = read_steps(tmp_path / "steps.json")
    assert document["step_ns"] == [10, 10, 10, 10]
    assert document["warmup"] == 1


@pytest.mark.parametrize(("free", "fences"), [(False, 5), (True, 4)])
def test_the_gpu_is_waited_for_behind_each_step_or_once(
    free: bool,
    fences: int,
    clock: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU that takes 20 ns for each step; the host hands one over in 1 ns."""
    waits, queue = [], [0]

    def synchronize() -> None:
        waits.append(clock.ns)
        clock.ns = max(clock.ns, queue[0])

    cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setenv(STEPS, str(tmp_path / "steps.json"))
    monkeypatch.setenv(FREE, "1" if free else "0")
    for _ in measured(range(4), warmup=2):
        clock.ns += 1
        queue[0] = max(queue[0], clock.ns) + 20
    steps = read_steps(tmp_path / "steps.json")["step_ns"]
    assert len(waits) == fences
    assert steps == ([21, 21, 1, 40] if free else [21, 21, 21, 21])


def test_a_program_tells_of_its_steps() -> None:
    run = run_program(loop())
    assert run.by_steps
    assert len(run.all_step_ns) == 6 and run.step_ns == run.all_step_ns[2:]
    assert run.median_ns == round(sum(sorted(run.step_ns)[1:3]) / 2)
    assert run.first_step_after_ns and 0 < run.first_step_after_ns < run.wall_ns
    assert run.max_rss_bytes > 1 << 20


def test_a_loop_that_ends_in_its_warm_up_has_a_last_step() -> None:
    run = run_program(loop(warmup=3, body="break"))
    assert len(run.all_step_ns) == 1
    assert run.step_ns == run.all_step_ns


def test_other_programs_are_measured_as_a_whole() -> None:
    run = run_program(python("pass"))
    assert not run.by_steps
    assert run.step_ns == (run.wall_ns,) and run.median_ns == run.wall_ns


def test_only_the_first_rank_tells() -> None:
    assert not run_program(loop(), env={"RANK": "1"}).by_steps
    assert run_program(loop(), env={"RANK": "0"}).by_steps


def test_a_program_that_fails_is_no_measurement() -> None:
    with pytest.raises(ProgramError, match=r"failed \(exit code 1: ValueError: no\)") as caught:
        run_program(python("raise ValueError('no')"))
    assert caught.value.finished and "Traceback" in caught.value.finished.stderr
    with pytest.raises(ProgramError, match="time of"):
        run_program(python("import time; time.sleep(60)"), timeout_s=0.3)
    assert shorten_command(["x" * 500]).endswith("...")


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"schema": "torchtraceap.steps/1", "step_ns": [], "warmup": 0}',
     '{"schema": "torchtraceap.steps/1", "step_ns": [1.5], "warmup": 0}',
     '{"schema": "other", "step_ns": [1], "warmup": 0}'],
)  # fmt: skip
def test_steps_of_another_form_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    path.write_text(text)
    with pytest.raises(ProgramError, match=r"torchtraceap\.steps/1"):
        read_steps(path)


# ------------------------------------------------------------------------- traces


@pytest.mark.slow  # starts processes that import torch
def test_steps_of_a_program_are_recorded(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = TRAINED + textwrap.indent(
        textwrap.dedent(
            """
            from torchtraceap.lab.bench.measured import measured
            for turn in measured(range(40), warmup=2):
                layer(x).sum().backward()
                if turn == 14: break
            """
        ),
        "    ",
    )
    target = tmp_path / "trace.json.gz"
    assert trace_program(python(code), target=target) == target
    trace = ttap.load(target)
    assert [step.name for step in trace.summary().steps] == [
        f"ProfilerStep#{number}" for number in range(2, 10)
    ]


def test_a_program_without_steps_is_recorded_whole(tmp_path: Path) -> None:
    """Its own `sitecustomize` runs; what it starts finds nothing of ours; it leaves at once."""
    pytest.importorskip("torch")
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os; os.environ['THEIRS'] = 'ran'")
    code = TRAINED + (
        "\n    print(os.environ['THEIRS'], os.environ['PYTHONPATH'])"
        "\n    sys.stdout.flush()"
        "\n    assert os.environ['THEIRS'] == 'ran' and 'injected' not in os.environ['PYTHONPATH']"
        "\n    os._exit(0)"
    )
    package = str(Path(ttap.__file__).parents[1])
    path = os.pathsep.join([str(own), package])
    target = tmp_path / "whole.json.gz"
    found = trace_program(python(code), env={"PYTHONPATH": path}, target=target)
    assert found == target
    assert ttap.load(target).summary().events.by_category["cpu_op"] > 10
    document = json.loads(gzip.decompress(target.read_bytes()))
    assert document.keys().isdisjoint({"host_name", "hostname"})
    assert "/" not in document.get("traceName", "")


@pytest.mark.slow  # starts processes that import torch
@pytest.mark.parametrize(
    "recorder",
    ["torch.profiler.profile(on_trace_ready=lambda p: p.export_chrome_trace(sys.argv[1]))",
     "__import__('torchtraceap').profile(sys.argv[1], diagnose=False)"],
    ids=["torch", "ours"],
)  # fmt: skip
def test_a_profiler_of_its_own_goes_first(recorder: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    own = tmp_path / "own.json"
    code = TRAINED + f"\n    with {recorder} as p: layer(x)"
    assert trace_program(python(code, str(own)), target=tmp_path / "t.json.gz") is None
    assert "aten::linear" in own.read_text()


@pytest.mark.parametrize("code", ["pass", "import sys; sys.exit(1)"])
def test_nothing_recorded_is_no_file(code: str, tmp_path: Path) -> None:
    assert trace_program(python(code), target=tmp_path / "t.json.gz") is None
    assert not list(tmp_path.iterdir())
