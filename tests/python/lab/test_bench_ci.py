"""One verdict on a pull request: counts first, then time and work."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtraceap.cli import main
from torchtraceap.lab.bench.ci import LOOKS, WORK, Question
from torchtraceap.lab.bench.ci_report import MARK
from torchtraceap.lab.bench.comparison.compare import Sequential
from torchtraceap.lab.bench.comparison.sides import work_ratios
from torchtraceap.lab.bench.processes.instructions import EventCounter
from torchtraceap.lab.bench.processes.programs import ProgramRun, run_program
from torchtraceap.lab.bench.revisions import Revision
from torchtraceap.lab.bench.statistics.sequential import VERDICTS, Plan

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "verdicts"))
from pull_requests import decide as decide_many_changes

PROGRAM = """
import gzip, json, os
calls, ns, noise = {calls!r}, {ns!r}, int.from_bytes(os.urandom(2), "big")
{extra}
if target := os.environ.get("TORCHTRACEAP_TRACE"):
    events = []
    for step in range(6):
        at = 1000 * (step + 1)
        where = {{"ph": "X", "pid": 1, "tid": 1, "args": {{}}}}
        events.append({{**where, "cat": "user_annotation", "name": f"ProfilerStep#{{step}}",
                       "ts": at, "dur": 900}})
        for number, name in enumerate(calls):
            events.append({{**where, "cat": "cpu_op", "name": name, "ts": at + 1 + 50 * number,
                           "dur": 40}})
    with gzip.open(target, "wt") as stream:
        json.dump({{"traceEvents": events}}, stream)
if target := os.environ.get("TORCHTRACEAP_STEPS"):
    with open(target, "w") as stream:
        json.dump({{"schema": "torchtraceap.steps/1", "step_ns": [ns + noise], "warmup": 0,
                   "step_cpu_ns": [ns], "step_instructions": [ns]}}, stream)
"""
"""A program that needs no torch: it tells of the calls and of the step that it is given, the latter
with noise of up to 0.65 %."""
CALLS = ("aten::mm", "aten::add")
ITEM = (*CALLS, "aten::item")


def program(
    calls: Sequence[str] = CALLS, ns: int = 10_000_000, extra: str = ""
) -> str:  # what a commit holds
    return PROGRAM.format(calls=tuple(calls), ns=ns, extra=extra)


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


class Project:
    """A repository with a program, `main` checked out at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        git(folder, "init", "--quiet", "--initial-branch=main")
        self.commit(program(), "Begin")

    def commit(self, text: str, message: str = "Change") -> None:
        (self.folder / "step.py").write_text(text, encoding="utf-8")
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "--allow-empty", "--message", message)

    def branch(self, text: str, message: str = "Change") -> None:
        git(self.folder, "checkout", "--quiet", "-b", "change")
        self.commit(text, message)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def ci(project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process: its exit code, the document and what it printed."""

    def run(*words: str, base: str = "main") -> tuple[int, dict[str, Any], str]:
        out = tmp_path / "out"
        code = main(
            ["ci", base, "--repo", str(project.folder), "--out", str(out), *words, "--",
             sys.executable, "-S", "step.py"]
        )  # fmt: skip
        document = out / "ci.json"
        return (
            code,
            json.loads(document.read_text("utf-8")) if document.exists() else {},
            capsys.readouterr().out,
        )

    return run


def test_a_wait_for_the_gpu_is_told_by_counts(project: Project, ci: Run, tmp_path: Path) -> None:
    project.branch(program(ITEM))
    before = sorted(each for each in (project.folder / ".git").rglob("*") if each.is_file())

    code, document, printed = ci("--counts-only", "--github")

    assert code == 1
    assert document["verdict"] == "failed" and document["failures"] == ["syncs"]
    counts = {each["key"]: (each["before"], each["after"]) for each in document["counts"]}
    assert counts["syncs"] == (0, 1) and counts["operators"] == (2, 3)
    assert document["calls"][0] == {"name": "aten::item", "before": 0, "after": 1}
    assert document["comparison"] is None and document["counted_after_s"] > 0
    out = tmp_path / "out"
    assert (out / "page.html").exists() and (out / "head.json.gz").exists()
    comment = (out / "comment.md").read_text("utf-8")
    assert comment.splitlines()[0] == MARK
    assert "| syncs | 0 | 1 |" in comment
    suite = ElementTree.parse(out / "junit.xml").getroot()
    assert suite.get("failures") == "1"
    (failure,) = suite.iter("failure")
    assert "syncs" in str(failure.get("message"))
    (run,) = json.loads((out / "results.sarif").read_text("utf-8"))["runs"]
    assert [each["ruleId"] for each in run["results"]] == ["syncs_per_step"]
    assert [line for line in printed.splitlines() if line.startswith("::error ")]
    assert sorted(e for e in (project.folder / ".git").rglob("*") if e.is_file()) == before


def test_a_change_of_nothing_raises_no_alarm(project: Project, ci: Run, tmp_path: Path) -> None:
    project.branch(program() + "# a comment\n")

    code, document, printed = ci("--github")

    assert code == 0
    assert (document["verdict"], document["failures"]) == ("passed", [])
    assert document["time"] == "equivalent" and document["decided_by"] == "time"
    assert {"time", "cpu", "instructions"} == document["measures"].keys()
    assert document["comparison"]["pairs"] == LOOKS[0]
    assert not [line for line in printed.splitlines() if line.startswith("::")]
    assert "✅" in (tmp_path / "out" / "comment.md").read_text("utf-8").splitlines()[1]


def test_a_slower_step_is_told_by_the_clock(project: Project, ci: Run, tmp_path: Path) -> None:
    project.branch(program(ns=12_000_000))

    code, document, printed = ci()

    assert code == 1
    assert document["failures"] == ["slower"]
    change = document["comparison"]["change"]
    assert change["best"] == pytest.approx(0.2, abs=0.01)
    assert change["low"] < 0.2 < change["high"]
    assert printed.startswith("failed: slower (+")
    assert ci("--fail-on", "syncs,undecided")[0] == 0
    assert ci("--fail-on", "none")[0] == 0


@pytest.mark.parametrize("end", ["base", "head"])
def test_a_commit_that_fails_is_named(project: Project, ci: Run, tmp_path: Path, end: str) -> None:
    wrong = program(extra="raise ValueError('no way')")
    if end == "base":
        project.commit(wrong)
    project.branch(wrong if end == "head" else program())

    code, document, _ = ci()

    assert code == 2
    assert document["verdict"] == "broken" and document["failures"] == ["run"]
    assert f"{end} (" in document["notes"][0]
    assert "ValueError: no way" in document["notes"][0]
    assert "ValueError: no way" in (tmp_path / "out" / "comment.md").read_text("utf-8")
    suite = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    assert suite.get("failures") == "1"
    assert git(project.folder, "worktree", "list").count("\n") == 0


def test_counts_that_do_not_repeat_fire_nothing(project: Project, ci: Run, tmp_path: Path) -> None:
    told = tmp_path / "told"
    extra = (
        f"open({str(told)!r}, 'ab').write(b'x')\n"
        f"calls += ('aten::item',) * len(open({str(told)!r}, 'rb').read())"
    )
    project.branch(program(extra=extra))

    code, document, _ = ci("--counts-only")

    assert code == 0
    steady = {each["key"]: each["steady"] for each in document["counts"]}
    assert steady["syncs"] is False
    assert any("same commit differ in syncs" in note for note in document["notes"])


def test_what_changed_on_the_base_since_is_not_the_change(project: Project, ci: Run) -> None:
    project.branch(program())
    git(project.folder, "checkout", "--quiet", "main")
    project.commit(program(()), "Wait no more")
    git(project.folder, "checkout", "--quiet", "change")

    code, document, _ = ci("--counts-only", "--fail-on", "operators")

    assert code == 0
    assert document["base"]["commit"] == git(project.folder, "merge-base", "main", "change")


def test_a_budget_that_is_too_short_can_tell_nothing(project: Project, ci: Run) -> None:
    project.branch(program(ns=12_000_000))

    code, document, _ = ci("--budget", "0.001s")

    assert code == 0
    assert document["time"] == "undecided" and document["comparison"]["pairs"] == 1
    assert any("fewest that can decide" in note for note in document["comparison"]["notes"])
    assert ci("--budget", "0.001s", "--fail-on", "undecided")[0] == 1


def test_a_contract_of_the_head_is_checked(project: Project, ci: Run, tmp_path: Path) -> None:
    contract = tmp_path / "contract.yaml"
    contract.write_text("operators_per_step: '<=1'\n", encoding="utf-8")
    project.branch(program())

    code, document, _ = ci("--counts-only", "--contract", str(contract))

    assert code == 1
    assert document["failures"] == ["contract"]
    comment = (tmp_path / "out" / "comment.md").read_text("utf-8")
    assert comment.splitlines()[0] == MARK and "operators" in comment


HOSTILE = "::error::x ##vso[task.complete] <script>alert(1)</script> @team [a](b) `c` -->"


def test_text_of_a_commit_or_a_trace_commands_nothing(
    project: Project, ci: Run, tmp_path: Path
) -> None:
    project.branch(program((*ITEM, HOSTILE, f"\n{HOSTILE}", "]]>\x1b[31m\u202e")), HOSTILE)

    code, document, printed = ci("--counts-only", "--github", "--fail-on", "operators,syncs")

    assert code == 1 and document["head"]["subject"] == HOSTILE
    lines = printed.splitlines()
    assert all(
        line.startswith(("::error title=contract%3A ", "::warning title=contract%3A "))
        for line in lines if line.startswith("::")
    )  # fmt: skip
    assert "##vso[" not in printed and "\x1b" not in printed
    comment = (tmp_path / "out" / "comment.md").read_text("utf-8")
    assert "<script" not in comment and "@team" not in comment and "](" not in comment
    assert comment.count("<!--") == 1 and comment.count("-->") == 1
    ElementTree.parse(tmp_path / "out" / "junit.xml")
    json.loads((tmp_path / "out" / "results.sarif").read_text("utf-8"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_nothing(project: Project, tmp_path: Path, number: int) -> None:
    told = tmp_path / "told"
    extra = (
        "import time\n"
        f"with open({str(told)!r}, 'w') as file:\n"
        "    print(os.getpid(), os.getcwd(), file=file, flush=True)\n"
        "time.sleep(600)"
    )
    project.branch(program(extra=extra))
    words = ["ci", "main", "--repo", str(project.folder), "--out", str(tmp_path / "out"), "--",
             sys.executable, "-S", "step.py"]  # fmt: skip
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    begun = "import sys; from torchtraceap.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", begun, *words],
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        wait_until(lambda: told.exists() and told.read_text("utf-8").endswith("\n"))
        child, place = told.read_text("utf-8").split()
        process.send_signal(number)
        process.wait(120)

    wait_until(lambda: not Path(f"/proc/{child}").exists())
    wait_until(lambda: not Path(place).exists())
    wait_until(lambda: not (project.folder / ".git" / "worktrees").exists())
    wait_until(lambda: not list(scratch.glob(".torchtraceap-*")))


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(2400):
        if holds():
            return
        time.sleep(0.05)
    assert holds()


@pytest.mark.parametrize(
    "words",
    [["--budget", "soon"], ["--budget", "0"], ["--fail-on", "sync"], ["--name", "step"],
     ["--github", "--json"],
     ["--contract", "none.yaml"], ["--setup", "'"], ["--alpha", "2"]],
)  # fmt: skip
def test_unusable_options_are_a_sentence(
    ci: Run, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, printed = ci(*words)

    assert (code, document, printed) == (2, {}, "")


def test_a_base_or_a_program_that_is_missing_is_told(ci: Run, project: Project) -> None:
    assert ci(base="nowhere")[0] == 2
    assert main(["ci", "main", "--repo", str(project.folder)]) == 2


# ------------------------------------------------------------------------- three measures


class MadePairs:
    """Pairs whose log ratios are given, by measure."""

    def __init__(self, clock: Sequence[float], is_over: bool = False, **work: Any) -> None:
        self.clock, self.others, self.is_over = np.array(clock), work, is_over
        self.pairs: list[Any] = []

    def until(self, count: int) -> Any:
        return self.clock[:count]

    def work(self, name: str) -> Any:
        return np.array(self.others[name]) if name in self.others else None


def asked(**fields: Any) -> Question:
    return Question(Revision("a"), Revision("b"), ("true",), **fields)


def decided(clock: Sequence[float], **work: Any) -> tuple[str, str]:
    sequential = Sequential(MadePairs(clock, **work), asked().plan, WORK)  # type: ignore[arg-type]
    sequential.decide()
    return sequential.decided_by


def noise(sigma: float, shift: float, seed: int = 0) -> Any:
    return shift + sigma * np.random.default_rng(seed).normal(size=LOOKS[-1])


def test_the_clock_has_the_say() -> None:
    more, less = noise(0.001, 0.3), noise(0.001, -0.3)
    assert decided(noise(0.002, 0.1), instructions=less) == ("slower", "time")
    assert decided(noise(0.002, 0.0), instructions=more) == ("equivalent", "time")


def loud(shift: float) -> Any:
    """A clock of which every look guesses `shift` and can tell nothing."""
    places = np.arange(LOOKS[-1])
    return shift + 0.3 * np.where(places % 2, 1, -1) * (1 + (places // 2) / 8)


def test_work_decides_where_the_clock_cannot_tell_and_points_the_same_way() -> None:
    quiet = noise(0.002, 0.05, seed=1)
    assert decided(loud(0.05)) == ("undecided", "time")
    assert decided(loud(0.05), cpu=quiet) == ("slower", "cpu")
    assert decided(loud(0.05), instructions=quiet, cpu=loud(0)) == ("slower", "instructions")
    assert decided(loud(-0.05), cpu=-quiet) == ("faster", "cpu")
    assert decided(loud(0.05), cpu=-quiet) == ("undecided", "time")
    assert decided(loud(-0.05), cpu=quiet) == ("undecided", "time")
    assert decided(loud(0.001), cpu=quiet) == ("undecided", "time")


def test_measures_share_alpha() -> None:
    plan = asked(alpha=0.003).plan
    assert plan.alpha == pytest.approx(0.001)
    assert isinstance(plan, Plan) and plan.looks == LOOKS


def test_ratios_of_work_are_of_steps_that_took_turns() -> None:
    def run(*cpu: int, warmup: int = 1) -> ProgramRun:
        return ProgramRun(cpu[warmup:], 1, 1, True, cpu, warmup, work={"cpu": cpu})

    a, b = run(90, 10, 20, 30), run(90, 20, 40, 60)
    assert work_ratios(a, b) == {"cpu": pytest.approx(np.log(2))}
    assert work_ratios(a, b, exchanges=3) == {"cpu": pytest.approx(np.log(2))}
    assert work_ratios(a, ProgramRun((1,), 1, 1)) == {}


def test_steps_tell_what_they_spent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torchtraceap as ttap\n"
        "for number in ttap.measured(range(4), warmup=1):\n"
        "    sum(range(20_000 if number % 2 else 2_000_000))\n",
        encoding="utf-8",
    )
    run = run_program([sys.executable, str(script)])
    cpu = run.work["cpu"]
    assert len(cpu) == 4 and min(cpu) > 0
    assert cpu[2] > 5 * cpu[3]  # processor time, which does not grow with other load
    assert ("instructions" in run.work) == (run.no_instructions == "")


def test_the_rule_that_is_measured_is_the_rule_of_the_command() -> None:
    """Of `benchmarks/verdicts/pull_requests.py`, which decides many comparisons at once."""
    draw = np.random.default_rng(5)
    shape = (60, LOOKS[-1])
    effects = np.log1p(draw.choice([-0.05, 0.0, 0.03, 0.1], (60, 1)))
    sigmas = draw.choice([0.002, 0.02, 0.2], (60, 1))
    clock = effects + sigmas * draw.normal(size=shape)
    counted = effects + 0.003 * draw.normal(size=shape)
    code, _ = decide_many_changes([clock, counted])
    found = [decided(a, instructions=b)[0] for a, b in zip(clock, counted, strict=True)]
    assert [VERDICTS[each] for each in code] == found
    assert set(found) == set(VERDICTS)


# --------------------------------------------------------------------------- instructions


def test_a_counter_counts_or_says_why_not() -> None:
    software, task_clock = 1, 1  # an event that every machine has, where counting is allowed
    counter = EventCounter(software, task_clock)
    first = counter.read()
    if counter.why_not:
        assert first is None
        return
    sum(range(200_000))
    assert first is not None
    assert counter.read() > first
    counter.close()
    assert counter.read() is None


@pytest.mark.parametrize(
    ("code", "said"),
    [(errno.EACCES, "perf_event_paranoid"), (errno.EPERM, "does not allow"),
     (errno.ENOENT, "no counter"), (errno.ENOSYS, "no perf_event_open"),
     (errno.EINVAL, "perf_event_open failed")],
)  # fmt: skip
def test_why_instructions_are_not_counted_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(EventCounter, "_open", refuse)
    counter = EventCounter()
    assert said in counter.why_not and counter.why_not.startswith("instructions are not counted: ")
    assert counter.read() is None
