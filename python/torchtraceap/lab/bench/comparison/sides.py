"""The sides of a comparison, each of which can run in a fresh process and be recorded.

Note [What A and B are]: the two words of a comparison are tried in this order. `workload:NAME` is
one of the suite, with `,compile`, `,bf16` and such behind it. With a program behind ` -- ` both are
git revisions, and the program runs in a checkout of each. Two ids of the store are stored runs, of
which nothing runs any more. Else each is a command, split as a shell would split it, without a
shell.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from shutil import which
from typing import Any, Protocol

import numpy as np

from torchtraceap.core import Array
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.lab.bench.processes.programs import (
    ProgramError,
    ProgramResult,
    ProgramRun,
    check_success,
    record_program,
    run_fresh,
    run_program,
    shorten_command,
)
from torchtraceap.lab.bench.processes.turns import can_take_turns, run_together
from torchtraceap.lab.bench.revisions import (
    REPOSITORY_VARIABLES,
    Place,
    Repository,
    Revision,
)

__all__ = [
    "LOOP",
    "WORKLOAD",
    "ProgramSide",
    "Side",
    "open_sides",
    "revision_side",
    "run_side",
    "sides_can_take_turns",
    "split_command",
    "steps_of_last_run",
    "take_turns",
    "word_side",
    "work_ratios",
]

WORKLOAD = "workload:"
LOOP = (
    sys.executable,
    "-c",
    "from torchtraceap.lab.bench.measured import measured\n"
    "for _ in measured(range(12), warmup=2):\n"
    "    sum(number * number for number in range(100_000))\n",
)
"""A default program: steps of plain Python."""
_MOST_BYTES = 16 << 20
"""The largest size of a file in a command whose content counts: scripts, not data sets."""
_TOLD_LINES = 5
"""The number of lines of a failed program's standard error that are quoted."""


class Side(Protocol):
    """Interface of a side of a comparison."""

    @property
    def name(self) -> str:
        """The name in sentences."""

    def run(self) -> int:
        """Return the median step of one fresh process in ns.

        Raises:
            ProgramError: It failed.
        """

    def trace(self) -> Path | None:
        """Return a recording of some steps of a run that is not timed; None if there is none."""


class ProgramSide:
    """A program that runs in a fresh process each time."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout_s: float | None = None,
        target: Path | None = None,
        identity: str = "",
    ) -> None:
        """Make a side of a program, whose arguments are those of `run_fresh`.

        Args:
            target: The file of its trace; without it none is recorded.
            identity: A text that stays the same if it is measured again, such as a commit; by
                default the program and the files that it names.
        """
        self.name = name
        self.argv = list(argv)
        self.identity = identity
        if not identity:  # the words of the command, and the contents of the files that they name
            folder = cwd or Path.cwd()
            contents = [
                sha256(path.read_bytes()).hexdigest()
                for path in (folder / word for word in self.argv)
                if "\0" not in str(path) and path.is_file() and path.stat().st_size <= _MOST_BYTES
            ]
            self.identity = json.dumps([self.argv, str(folder), contents])
        self.target = target
        self.last: ProgramRun | None = None
        self._cwd = cwd
        self._env = env
        self._timeout_s = timeout_s

    def run(self) -> int:
        """Run a fresh process; `last` holds the whole run. See `Side`."""
        self.last = run_program(self.argv, self._cwd, self._env, self._timeout_s)
        return self.last.median_ns

    def run_in_turn(self, turns: Mapping[str, str | None]) -> ProgramRun:
        """Run with variables by which steps take turns with those of other programs."""
        return run_program(self.argv, self._cwd, self._env, self._timeout_s, turns=turns)

    def trace(self) -> Path | None:
        """Record a run. See `Side`."""
        if self.target is None:
            return None
        if self.target.exists():  # left by an interrupted comparison that is resumed
            return self.target
        return self.record(self.target)[0]

    def record(self, target: Path) -> tuple[Path | None, ProgramResult]:
        """Record a run there, and return how it ended too; see `record_program`."""
        return record_program(self.argv, self._cwd, self._env, self._timeout_s, target=target)


def run_side(side: Side, label: str) -> int:
    """Return the median step of one fresh process in ns; a run that fails is tried once more.

    Raises:
        ProgramError: It failed twice; the message calls it `label`.
    """
    try:
        return side.run()
    except ProgramError:
        try:
            return side.run()
        except ProgramError as error:
            lines = error.finished.stderr.strip().splitlines() if error.finished else []
            told = "".join(f"\n  {line}" for line in lines[-_TOLD_LINES:])
            raise ProgramError(f"{label} failed twice: {error}{told}", error.finished) from error


def work_ratios(run_a: ProgramRun, run_b: ProgramRun, exchanges: int = 0) -> dict[str, float]:
    """Return the log ratios after / before of what steps spent besides time, by name of the
    measure: of the medians of two runs, or the median over as many steps as took turns."""
    found = {}
    for name in run_a.work.keys() & run_b.work.keys():
        first = max(run_a.warmup, run_b.warmup)
        before, after = (
            np.maximum(np.asarray(run.work[name], np.float64), 1) for run in (run_a, run_b)
        )
        if exchanges:
            steps = slice(first, first + exchanges)
            found[name] = float(np.median(np.log(after[steps] / before[steps])))
        else:
            middle = np.median(before[run_a.warmup :]), np.median(after[run_b.warmup :])
            found[name] = float(np.log(middle[1] / middle[0]))
    return found


def take_turns(side_a: ProgramSide, side_b: ProgramSide, seed: int) -> tuple[float, int]:
    """Run both sides at the same time, step by step in turn (processes/turns.py); `last` of each
    holds its run. Both ran alone before.

    Returns:
        The median over exchanges of the log ratio after / before, and the number of exchanges.

    Raises:
        ProgramError: A side failed, or they had no exchange behind their warm-up.
    """
    sides = side_a, side_b
    before = [side.last for side in sides if side.last is not None]
    (side_a.last, side_b.last), steps = run_together(
        [side.run_in_turn for side in sides], before, seed
    )
    return float(np.median(np.log(steps[:, 1] / steps[:, 0]))), len(steps)


def sides_can_take_turns(side_a: Side, side_b: Side) -> bool:
    """Return True if both sides reported steps when they ran last."""
    sides = [side for side in (side_a, side_b) if isinstance(side, ProgramSide)]
    return len(sides) == 2 and can_take_turns([side.last for side in sides])


def steps_of_last_run(side: Side, median_ns: int) -> Array:
    """Return the steps of the last run in ns; only the median if a side does not keep them."""
    last: ProgramRun | None = getattr(side, "last", None)
    return np.asarray(last.step_ns if last else (median_ns,), np.int64)


@contextmanager
def open_sides(
    a: str,
    b: str,
    *,
    program: Sequence[str] | None = None,
    setup: str | None = None,
    timeout_s: float | None = None,
) -> Iterator[tuple[ProgramSide, ProgramSide]]:
    """Yield the two sides that words name; see Note [What A and B are]. Checkouts are gone at the
    end.

    Args:
        program: The program that runs in a checkout of each, where they are revisions.
        setup: A command that runs once in each checkout.

    Raises:
        OptionError: A word stands for nothing that can run.
        ProgramError: The setup failed.
    """
    if program:
        repository = Repository()
        with repository.checkouts() as checkouts:
            first, second = (
                revision_side(
                    checkouts.ready(revision),
                    revision,
                    program,
                    setup=split_command(setup) if setup else None,
                    timeout_s=timeout_s,
                    word=word,
                )
                for word in (a, b)
                for revision in [repository.commit(word)]
            )
            yield first, second
        return
    if program is not None:
        raise OptionError("a program has to stand behind --")
    if setup:
        raise OptionError("--setup is for revisions, with a program behind --")
    yield word_side(a, timeout_s), word_side(b, timeout_s)


def revision_side(
    place: Place,
    revision: Revision,
    program: Sequence[str],
    *,
    setup: Sequence[str] | None = None,
    pythonpath: Sequence[str] = (),
    timeout_s: float | None = None,
    word: str = "",
) -> ProgramSide:
    """Set a revision up where it was made ready, and return the program that runs there.

    Args:
        place: Where it was made ready.
        revision: A commit, or a version of a package.
        program: The program and its arguments.
        setup: A command that runs once before it.
        pythonpath: Folders inside the revision that stand first in PYTHONPATH.
        timeout_s: Time limit of a run.
        word: What the user calls the revision.

    Raises:
        ProgramError: The setup failed.
    """
    # A program in a checkout must not use another repository.
    env: dict[str, str | None] = {**dict.fromkeys(REPOSITORY_VARIABLES), **place.env}
    if place.folder is not None and pythonpath:
        before = [str(place.folder / folder) for folder in pythonpath]
        after = os.environ.get("PYTHONPATH")
        env["PYTHONPATH"] = os.pathsep.join([*before, *([after] if after else [])])
    if setup:
        done = run_fresh(place.words(setup), cwd=place.folder, env=env)
        check_success(done, f"{revision.short}: {shorten_command(setup)}")
    shown = revision.short if word in ("", revision.short) else f"{word} ({revision.short})"
    return ProgramSide(
        shown,
        place.words(program),
        cwd=place.folder,
        env=env,
        timeout_s=timeout_s,
        identity=json.dumps([revision.id, list(program), setup]),
    )


def word_side(word: str, timeout_s: float | None = None) -> ProgramSide:
    """Return the side of a command or of a workload of the suite.

    Raises:
        OptionError: It is neither.
    """
    if word.startswith(WORKLOAD):
        return ProgramSide(word, workload_program(word), timeout_s=timeout_s)
    words, is_revision = split_command(word), False
    if len(words) == 1 and which(words[0]) is None:
        with suppress(TraceError):
            Repository().commit(word)
            is_revision = True
        if is_revision:
            raise OptionError(
                f"{word}: is a revision; say what runs in it: bench compare A B -- python script.py"
            )
    return ProgramSide(word, words, timeout_s=timeout_s)


def split_command(text: str) -> list[str]:
    """Split a command into words, as a shell does.

    Raises:
        OptionError: It has none, or a quote does not end.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise OptionError(f"{text!r}: can't be split into words: {error}") from error
    if not words:
        raise OptionError("a command is empty")
    return words


_WORDS: dict[str, dict[str, Any]] = {
    "compile": {"compiled": True},
    "train": {"mode": "train"},
    "eval": {"mode": "eval"},
    "fp32": {"precision": "fp32"},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "cpu": {"device": "cpu"},
    "cuda": {"device": "cuda"},
}
_NUMBERS = ("batch", "steps", "warmup", "threads")


def workload_program(word: str) -> list[str]:
    """Return the program that runs a workload of the suite.

    `word` is `workload:NAME`, then with commas words such as `compile`, `bf16`, `eval`, `cuda`, and
    `batch=N`, `steps=N`, `warmup=N`, `threads=N`, `size=tiny`.

    Raises:
        OptionError: There is no such workload or word.
    """
    from torchtraceap.lab.bench.runs.child import Spec
    from torchtraceap.lab.workloads.registry import find, workloads

    name, *options = word.removeprefix(WORKLOAD).split(",")
    if ":" not in name and all(entry.name != name for entry in workloads()):
        find(name)  # reports a wrong name early and clearly
    chosen: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        if option in _WORDS:
            chosen |= _WORDS[option]
        elif key in _NUMBERS and value.isdecimal():
            chosen[key] = int(value)
        elif key == "size" and value:
            chosen[key] = value
        else:
            known = ", ".join((*_WORDS, *(f"{number}=N" for number in _NUMBERS), "size=NAME"))
            raise OptionError(f"{word}: {option!r} is none of {known}")
    return Spec(name, **chosen).command()
