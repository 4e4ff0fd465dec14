"""Which revision made a program slower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtraceap.cli import main
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.bisect import Bisection, Settings, bisect
from torchtraceap.lab.bench.revisions import (
    Installs,
    Repository,
    Revision,
    Source,
    UnusableRevisionError,
    package_versions,
    version_key,
)
from torchtraceap.lab.bench.rounds import Journal, RevisionRuns


class Made:
    """Revisions whose times are drawn: a level each, noise, drift, and runs that are slow."""

    def __init__(
        self, levels: Sequence[float], *, sigma: float = 0.015, seed: int = 0,
        broken: Sequence[int] = (), fails_after: int | None = None,
    ) -> None:  # fmt: skip
        self.line = [Revision(f"{i:040x}", f"edit {i}") for i in range(len(levels))]
        self._levels = {r.id: level for r, level in zip(self.line, levels, strict=True)}
        self._broken = {self.line[i].id for i in broken}
        self._draw = np.random.default_rng(seed)
        self._sigma = sigma
        self._drift = 0.0
        self._fails_after = fails_after
        self.runs = 0

    def measure_together(
        self, revisions: Sequence[Revision], order: Sequence[int], seed: int
    ) -> dict[str, int]:
        return {revisions[i].id: self.measure(revisions[i]) for i in order}

    def measure(self, revision: Revision) -> int:
        if revision.id in self._broken:
            raise UnusableRevisionError("does not build")
        self.runs += 1
        if self._fails_after is not None and self.runs > self._fails_after:
            raise KeyboardInterrupt
        draw, sigma = self._draw, self._sigma
        self._drift = 0.9 * self._drift + draw.normal() * sigma / 2
        slow = draw.exponential(0.05) if draw.random() < 0.05 else 0.0
        log = self._levels[revision.id] + sigma * draw.normal() + self._drift + slow
        return round(1e8 * float(np.exp(log)))

    def trace(self, revision: Revision, target: Path) -> Path | None:
        return None

    def drop(self, revision: Revision) -> None:
        assert revision not in (self.line[0], self.line[-1])


def steps(count: int, at: dict[int, float], *, edits: float = 0.002, seed: int = 0) -> Any:
    levels = edits * np.random.default_rng(seed).normal(size=count)
    for place, change in at.items():
        levels[place:] += np.log1p(change)
    return levels


def found(made: Made, **settings: Any) -> Bisection:
    return bisect(made.line, made, Settings(**settings))


def test_the_culprit_is_found_on_a_noisy_machine() -> None:
    right = 0
    for seed in range(8):
        draw = np.random.default_rng(seed)
        count = int(draw.integers(8, 25))
        place = int(draw.integers(1, count))
        made = Made(steps(count, {place: float(draw.uniform(0.06, 0.2))}, seed=seed), seed=seed)
        answer = found(made, seed=seed)
        right += answer.verdict == "found" and answer.culprit == made.line[place]
        assert answer.verdict != "found" or answer.confirmed

    assert right >= 7


def test_ends_that_do_not_differ_are_told_so() -> None:
    answer = found(Made(steps(12, {}), sigma=0.003))

    assert answer.verdict == "no_difference"
    assert answer.culprit is None
    assert answer.tested == ()


def test_ends_that_nobody_can_tell_apart_are_undecided() -> None:
    answer = found(Made(steps(12, {5: 0.02}), sigma=0.08))

    assert answer.verdict == "undecided"
    assert any("nobody can tell" in note for note in answer.notes)


def test_the_other_direction_needs_its_option() -> None:
    levels = steps(9, {4: -0.12})

    answer = found(Made(levels))
    assert answer.verdict == "no_difference"
    assert any("--improvement" in note for note in answer.notes)

    made = Made(levels)
    answer = found(made, improvement=True)
    assert answer.culprit == made.line[4]
    assert answer.change.high < 0


def test_broken_revisions_are_skipped() -> None:
    made = Made(steps(11, {8: 0.15}), broken=(5, 6))

    answer = found(made)

    assert answer.culprit == made.line[8]
    assert [each.verdict for each in answer.tested if each.place == 5] == ["skipped"]


def test_a_culprit_beside_broken_revisions_is_a_range() -> None:
    made = Made(steps(11, {5: 0.15}), broken=(4, 5))

    answer = found(made)

    assert answer.verdict == "range"
    assert answer.range == tuple(made.line[4:7])


def test_a_broken_end_is_an_error() -> None:
    with pytest.raises(UnusableRevisionError, match="does not build"):
        found(Made(steps(5, {2: 0.1}), broken=(4,)))


def test_two_steps_are_told() -> None:
    made = Made(steps(13, {4: 0.10, 8: 0.10}), sigma=0.004)

    answer = found(made)

    assert answer.several_steps
    assert answer.culprit in (made.line[4], made.line[8])
    assert any("Not one step" in note for note in answer.notes)


def test_an_interrupted_bisection_goes_on_with_the_same_answer(tmp_path: Path) -> None:
    levels, state = steps(10, {6: 0.12}), tmp_path / "state.jsonl"
    whole = Made(levels, seed=3)
    expected = bisect(whole.line, whole, Settings())

    first = Made(levels, seed=3, fails_after=60)
    with pytest.raises(KeyboardInterrupt):
        bisect(first.line, first, Settings(), journal=Journal(state, {"a": 1}))
    again = Made(levels, seed=4)
    journal = Journal(state, {"a": 1})
    answer = bisect(again.line, again, Settings(), journal=journal)

    assert journal.resumed > 0
    assert answer.culprit == expected.culprit == whole.line[6]
    assert again.runs < whole.runs

    done = Made(levels, fails_after=0)
    repeated = bisect(done.line, done, Settings(), journal=Journal(state, {"a": 1}))
    assert repeated.to_dict() == answer.to_dict()


@pytest.mark.parametrize("content", ['{"schema": "x"}\n', "[1]\n", "not json\n", "\n"])
def test_a_state_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    state = tmp_path / "state.jsonl"
    state.write_text(content, encoding="utf-8")

    with pytest.raises(OptionError, match="state"):
        Journal(state, {"a": 1})


def test_the_document_has_what_the_interface_names() -> None:
    document = found(Made(steps(6, {3: 0.2}))).to_dict()

    assert document["schema"] == "torchtraceap.bisection/1"
    assert {"verdict", "culprit", "range", "tested", "confirmed", "causes"} <= set(document)
    assert set(document["culprit"]) >= {"commit", "subject", "change"}
    json.dumps(document, allow_nan=False)


# ---------------------------------------------------------------------------------- git


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Five commits; the program tells of longer steps in the last, and the third is broken."""
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    for number in range(5):
        lines = [
            "import json, os, time",
            f"number = {number}",
            "ns = 10_000_000 if number < 4 else 12_000_000",
            "ns += time.perf_counter_ns() % 20_000",
            "document = {'schema': 'torchtraceap.steps/1', 'step_ns': [ns], 'warmup': 0}",
            "with open(os.environ['TORCHTRACEAP_STEPS'], 'w') as stream:",
            "    json.dump(document, stream)",
        ]
        text = "raise SystemExit(125)\n" if number == 2 else "\n".join(lines) + "\n"
        (folder / "sub" / "program.py").write_text(text, encoding="utf-8")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", f"Edit {number}")
    return folder


def test_worktrees_leave_nothing_behind(repository: Path) -> None:
    (repository / "sub" / "program.py").write_text("mine", encoding="utf-8")
    project = Repository(repository / "sub")
    line = project.range("HEAD~4..")

    with pytest.raises(KeyboardInterrupt), project.checkouts() as checkouts:
        place = checkouts.ready(line[0])
        assert "number = 0" in (place.folder / "program.py").read_text("utf-8")
        checkouts.drop(line[0])
        last = checkouts.ready(line[-1]).folder
        assert len(git(repository, "worktree", "list").splitlines()) == 2
        raise KeyboardInterrupt

    assert not last.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert git(repository, "status", "--porcelain").split() == ["M", "sub/program.py"]
    assert [revision.title for revision in line] == [f"Edit {i}" for i in range(5)]


@pytest.mark.parametrize("alive", [True, False])
def test_what_a_killed_process_left_is_removed_by_the_next(repository: Path, alive: bool) -> None:
    program = f"""
import os, sys
from pathlib import Path
from torchtraceap.lab.bench.revisions import Repository
project = Repository(Path({str(repository)!r}))
with project.checkouts() as checkouts:
    print(checkouts.ready(project.commit("HEAD~1")).folder, flush=True)
    sys.stdin.read()
"""
    project = Repository(repository)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=-1, stdout=-1, encoding="utf-8") as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        if not alive:
            process.kill()
            process.wait()
        with project.checkouts() as others:
            others.ready(project.commit("HEAD"))
            assert left.exists() is alive
            assert left.parent.exists() is alive

    assert len(git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(
    "text", ["--help..HEAD", "HEAD..--exec=x", "HEAD", "..", "HEAD~1...HEAD", "none..HEAD",
             "HEAD..HEAD", "HEAD..HEAD~2"],
)  # fmt: skip
def test_what_is_no_range_is_refused(repository: Path, text: str) -> None:
    with pytest.raises(OptionError):
        Repository(repository).range(text)


def test_a_folder_outside_of_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no git repository"):
        Repository(tmp_path)


@pytest.mark.parametrize("mark", ["\u2028", "\v", "\f", "\x85", "\r", "\x1c", "::error::", "--"])
def test_a_subject_with_a_line_separator_is_one_subject(repository: Path, mark: str) -> None:
    git(repository, "commit", "--quiet", "--allow-empty", "--message", f"Say{mark} more")
    place = Repository(repository)
    commits = place.range("HEAD~2..HEAD")
    assert [each.id for each in commits] == git(
        repository, "rev-list", "--reverse", "HEAD~3..HEAD"
    ).split("\n")
    assert commits[-1].title.startswith("Say") and commits[-1].title.endswith("more")


def test_the_command_finds_a_commit_and_keeps_nothing(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))  # as in a hook
    code = main(
        ["bench", "bisect", "HEAD~4..HEAD", "--repo", str(repository / "sub"), "--looks", "8",
         "--alpha", "0.02", "--no-causes", "--json", "--quiet", "--", sys.executable, "-S",
         "program.py"]
    )  # fmt: skip

    assert code == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "found"
    assert document["culprit"]["subject"] == "Edit 4"
    assert document["culprit"]["change"]["best"] == pytest.approx(0.2, abs=0.01)
    assert [each["verdict"] for each in document["tested"]] == ["skipped", "like good", "like good"]
    monkeypatch.delenv("GIT_DIR")
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert not list((repository / ".git" / "torchtraceap-bisect").iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["HEAD~1.."],
        ["--", "true"],
        ["HEAD~1..", "--package", "p", "--", "true"],
        ["--package", "p", "--", "true"],
        ["HEAD~1..", "--looks", "a", "--", "true"],
        ["HEAD~1..", "--looks", "9,3", "--", "true"],
        ["HEAD~1..", "--minimal-effect", "x%", "--", "true"],
        ["HEAD~1..", "--timeout", "-1", "--", "true"],
        ["HEAD~1..", "--setup", "'", "--", "true"],
    ],
)
def test_unusable_options_are_a_sentence(
    repository: Path, words: list[str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(repository)

    assert main(["bench", "bisect", *words]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert "internal error" not in said.err


def test_setup_and_pythonpath_are_of_each_revision(repository: Path) -> None:
    project = Repository(repository)
    (line,) = [project.commit("HEAD")]
    program = [sys.executable, "-c", "import program"]
    setup = [sys.executable, "-c", "open('sub/made', 'x')"]
    with project.checkouts() as checkouts:
        runs = RevisionRuns(checkouts, program, setup=setup, pythonpath=["sub"])
        assert runs.measure(line) >= 12_000_000
        assert runs.measure(line) >= 12_000_000  # the setup ran once, else it would have failed
        failing = RevisionRuns(
            checkouts, program, setup=[sys.executable, "-c", "raise SystemExit(3)"]
        )
        with pytest.raises(UnusableRevisionError, match="exit code 3"):
            failing.measure(line)


# ---------------------------------------------------------------------------------- versions


def wheel(folder: Path, version: str) -> None:
    folder.mkdir(exist_ok=True)
    meta = f"made_package-{version}.dist-info"
    with zipfile.ZipFile(folder / f"made_package-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("made_package.py", f"version = {version!r}\n")
        archive.writestr(f"{meta}/METADATA", f"Metadata-Version: 2.1\nName: made-package\n"
                         f"Version: {version}\n")  # fmt: skip
        archive.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\n"
                         "Root-Is-Purelib: true\nTag: py3-none-any\n")  # fmt: skip
        archive.writestr(f"{meta}/RECORD", "")


def test_versions_of_a_folder_are_in_order(tmp_path: Path) -> None:
    for version in ("1.10", "1.2", "1.2.post1", "1.2rc1", "1.9"):
        wheel(tmp_path / "wheels", version)
    source = Source("Made_Package", str(tmp_path / "wheels"))

    line = package_versions(source, "1.2rc1..1.10")

    assert [revision.id for revision in line] == ["1.2rc1", "1.2", "1.2.post1", "1.9", "1.10"]
    assert [revision.id for revision in package_versions(source, "1.9,1.10")] == ["1.9", "1.10"]
    assert version_key("1.0") == version_key("1")
    for text in ("1.2..1.3", "1.9..1.2", "1.2", "-r..1.2", "1.2..;rm"):
        with pytest.raises(OptionError):
            package_versions(source, text)
    with pytest.raises(OptionError, match="no name"):
        package_versions(Source("--index-url=x"), "1.0..1.1")


@pytest.mark.slow  # installs a package
def test_a_version_is_installed_beside_our_own_packages(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    wheel(tmp_path / "wheels", "1.0")
    wheel(tmp_path / "wheels", "1.1")
    source = Source("made-package", str(tmp_path / "wheels"))
    asked = "import made_package, numpy; print(made_package.version)"

    with Installs.of(source) as installs:
        place = installs.ready(Revision("1.1"))
        words = place.words(["python", "-c", asked])
        done = subprocess.run(
            words, env={**os.environ, **place.env}, capture_output=True, text=True, check=True
        )
        environment = Path(place.env["VIRTUAL_ENV"])
        with pytest.raises(UnusableRevisionError, match="can't be installed"):
            installs.ready(Revision("7.0"))

    assert done.stdout.strip() == "1.1"
    assert not environment.exists()
