"""Rounds of fresh runs, which measure each revision once in random order until there are enough,
in checkouts or installed versions.

Note [Rounds]: what the machine does changes over minutes, so revisions are compared only within a
round, in which each runs once. The order within rounds is drawn from a seed before the first run.
Where all tell of their steps, these take turns (processes/turns.py).

Note [State]: every round is written down at once. What was measured is found again by the name of
its test and the number of its round, so an interrupted bisection is simply started again: it
makes the same decisions from the same numbers, and measures from where it stopped.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from torchtraceap.core import Array, PathLike, read_json_lines, write_text
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.comparison.sides import ProgramSide, revision_side
from torchtraceap.lab.bench.processes.programs import ProgramError
from torchtraceap.lab.bench.processes.turns import can_take_turns, run_together
from torchtraceap.lab.bench.revisions import (
    Places,
    Revision,
    TimedOutError,
    UnusableRevisionError,
)

__all__ = ["COUNTED", "MEASURES", "Journal", "RevisionRuns", "Rounds", "Runner"]

MEASURES = ("time", "memory")
"""Measures that vary from run to run, so that rounds compare them."""
COUNTED = {
    "launches": "launches",
    "syncs": "syncs",
    "operators": "operators",
    "recompiles": "recompiles",
    "graph_breaks": "graph_breaks",
    "peak_memory": "peak_allocated_bytes",
    "copied_bytes": "copied_bytes",
    "collectives": "collectives",
}
"""Measures that a single recording tells, with the keys of contracts that define them."""
SKIP = 125
"""The exit code with which a program reports that a revision cannot be tested, as for `git
bisect`."""
STATE_SCHEMA = "torchtraceap.bisection_state/1"


class Runner(Protocol):
    """Interface of an object that measures revisions."""

    def measure(self, revision: Revision) -> int:
        """Return the time of a fresh run in ns, or bytes if memory is measured.

        Raises:
            UnusableRevisionError: It can't be built or run.
        """

    def measure_together(
        self, revisions: Sequence[Revision], order: Sequence[int], seed: int
    ) -> dict[str, int]:
        """Return the result of a fresh run of each revision, by id, each of which was measured
        alone before. Their steps take turns if all report steps; else they run in the given order.

        Raises:
            UnusableRevisionError: One can't be run.
        """

    def trace(self, revision: Revision, target: Path) -> Path | None:
        """Return a recording of a run that is not timed; None if there is none."""

    def count(self, revision: Revision, key: str, target: Path) -> int:
        """Return what a recording of one run counts, and leave the recording in a file.

        Args:
            revision: What runs.
            key: One of `COUNTED`.
            target: The file.

        Raises:
            TimedOutError: Its time was over.
            UnusableRevisionError: It can't be built, run or recorded.
        """

    def drop(self, revision: Revision) -> None:
        """Release a revision that is not needed for now."""


class Journal:
    """A journal of measurements, in a file of JSON lines or only in memory."""

    def __init__(self, path: PathLike | None, header: Mapping[str, Any]) -> None:
        """Read the file, if there is one; None keeps nothing. `header` says what is measured: a
        file with another one is of another bisection.

        Raises:
            OptionError: The file holds something else.
        """
        self._path = None if path is None else Path(path)
        self._lines: list[dict[str, Any]] = [{"schema": STATE_SCHEMA, **header}]
        self._rounds: dict[tuple[str, int], dict[str, int]] = {}
        self._skipped: dict[str, str] = {}
        if self._path is not None and self._path.exists():
            self._read(self._path)
        self.resumed = len(self._rounds)
        """Rounds that were there already."""

    def _read(self, path: Path) -> None:
        try:
            lines = [line for _, line in read_json_lines(path)]
            first = lines[0] if lines else None
            if first != json.loads(json.dumps(self._lines[0])):
                raise OptionError(
                    f"{path}: holds the state of another bisection; remove it or name another file"
                )
            for line in lines[1:]:
                if "skip" in line:
                    self._skipped[str(line["skip"])] = str(line["reason"])
                else:
                    ns = {str(name): int(value) for name, value in line["ns"].items()}
                    self._rounds[str(line["test"]), int(line["round"])] = ns
        except OptionError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise OptionError(f"{path}: holds no state of a bisection ({error})") from error
        self._lines = lines

    def round(self, test: str, number: int) -> dict[str, int] | None:
        """Return what a round measured, by revision."""
        return self._rounds.get((test, number))

    def keep_round(self, test: str, number: int, ns: Mapping[str, int]) -> None:
        self._rounds[test, number] = dict(ns)
        self._keep({"test": test, "round": number, "ns": dict(ns)})

    def skip_reason(self, revision: Revision) -> str | None:
        """Return the reason why a revision cannot be used; None if it can."""
        return self._skipped.get(revision.id)

    def record_skip(self, revision: Revision, reason: str) -> None:
        self._skipped[revision.id] = reason
        self._keep({"skip": revision.id, "reason": reason})

    @property
    def runs(self) -> int:
        """Return the number of counted runs in all rounds."""
        return sum(len(ns) for ns in self._rounds.values())

    def _keep(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        if self._path is not None:
            texts = (json.dumps(each, separators=(",", ":")) for each in self._lines)
            write_text(self._path, "\n".join(texts) + "\n")


class Rounds:
    """The rounds of one test."""

    def __init__(
        self,
        test: str,
        revisions: Sequence[Revision],
        runner: Runner,
        journal: Journal,
        *,
        seed: int,
        progress: Callable[[str, int], object],
    ) -> None:
        """Prepare rounds of two or more revisions, whose orders `seed` and the name of the test
        draw. `progress` is called with the test and the number of the round that begins."""
        self._test = test
        self._revisions = list(revisions)
        self._runner = runner
        self._journal = journal
        self._progress = progress
        digest = sha256(f"{seed} {test}".encode()).digest()
        self._seed = int.from_bytes(digest[:8], "big")
        self._orders = np.random.default_rng(self._seed)
        self._logs: list[list[float]] = []
        self._warm = False

    def until(self, count: int) -> Array:
        """Return the logarithms of the measurements of each revision, float64 `[count, revisions]`.

        Raises:
            UnusableRevisionError: One of them can't be run.
        """
        while len(self._logs) < count:
            order = self._orders.permutation(len(self._revisions)).tolist()
            number = len(self._logs)
            ns = self._journal.round(self._test, number)
            if ns is None or any(revision.id not in ns for revision in self._revisions):
                self._progress(self._test, number)
                if not self._warm:  # files are not cached yet, and byte code is missing
                    for place in order:
                        self._runner.measure(self._revisions[place])
                    self._warm = True
                ns = self._runner.measure_together(self._revisions, order, self._seed + number)
                self._journal.keep_round(self._test, number, ns)
            self._logs.append([float(np.log(max(1, ns[r.id]))) for r in self._revisions])
        return np.asarray(self._logs[:count], np.float64)


class RevisionRuns:
    """Run one program in each revision; see `Runner`.

    Args:
        places: Prepares revisions.
        program: The program and its arguments.
        setup: A command that runs once in each revision before the program.
        measure: "time" (the median step) or "memory" (the peak of the resident set).
        pythonpath: Folders inside each revision that stand first in PYTHONPATH.
        timeout_s: Time limit of a run.
        kept: Revisions that stay ready until the end.
    """

    def __init__(
        self,
        places: Places,
        program: Sequence[str],
        *,
        setup: Sequence[str] | None = None,
        measure: str = "time",
        pythonpath: Sequence[str] = (),
        timeout_s: float | None = None,
        kept: Sequence[Revision] = (),
    ) -> None:
        self._places = places
        self._program = list(program)
        self._setup = list(setup) if setup else None
        self._memory = measure == "memory"
        self._pythonpath = list(pythonpath)
        self._timeout_s = timeout_s
        self._kept = {revision.id for revision in kept}
        self._sides: dict[str, ProgramSide] = {}

    def measure(self, revision: Revision) -> int:
        """Measure one revision; a run that fails is tried once more. See `Runner`."""
        try:
            return self._measure_once(revision)
        except ProgramError as error:
            if error.finished is not None and error.finished.returncode == SKIP:
                raise UnusableRevisionError(f"{revision.short}: exit code {SKIP}") from error
        try:
            return self._measure_once(revision)
        except ProgramError as error:
            late = error.finished is not None and error.finished.timed_out
            kind = TimedOutError if late else UnusableRevisionError
            raise kind(f"{revision.short}: failed twice: {error}") from error

    def _measure_once(self, revision: Revision) -> int:
        side = self._side(revision)
        median_ns = side.run()
        return side.last.max_rss_bytes if self._memory and side.last else median_ns

    def measure_together(
        self, revisions: Sequence[Revision], order: Sequence[int], seed: int
    ) -> dict[str, int]:
        """Measure several revisions together. See `Runner`."""
        sides = [self._side(revision) for revision in revisions]
        before = [side.last for side in sides if side.last is not None]
        if not self._memory and len(before) == len(sides) and can_take_turns(before):
            with contextlib.suppress(ProgramError):  # they run alone, to learn which one fails
                runs, steps = run_together([side.run_in_turn for side in sides], before, seed)
                # On the same machine: the median of the first, times the ratio of each to it.
                ratios = np.median(steps / steps[:, :1], axis=0)
                first = runs[0].median_ns
                pairs = zip(revisions, ratios, strict=True)
                return {revision.id: round(first * float(ratio)) for revision, ratio in pairs}
        return {revisions[i].id: self.measure(revisions[i]) for i in order}

    def trace(self, revision: Revision, target: Path) -> Path | None:
        """Record a run. See `Runner`."""
        side = self._side(revision)
        side.target = target
        return side.trace()

    def count(self, revision: Revision, key: str, target: Path) -> int:
        """Count in one recording. See `Runner`."""
        side = self._side(revision)
        path, finished = side.record(target)
        if finished.timed_out:
            raise TimedOutError(f"{revision.short}: {finished.reason}")
        if path is None:
            reason = finished.reason or "no operation of torch ran"
            raise UnusableRevisionError(f"{revision.short}: can't be recorded: {reason}")
        return counted_in(path, key)

    def drop(self, revision: Revision) -> None:
        """Release a revision. See `Runner`."""
        if revision.id not in self._kept:
            self._sides.pop(revision.id, None)
            self._places.drop(revision)

    def _side(self, revision: Revision) -> ProgramSide:
        """Return the program in a revision, which is made ready if it is not."""
        if revision.id in self._sides:
            return self._sides[revision.id]
        place = self._places.ready(revision)
        try:
            side = revision_side(
                place,
                revision,
                self._program,
                setup=self._setup,
                pythonpath=self._pythonpath,
                timeout_s=self._timeout_s,
            )
        except (ProgramError, OptionError) as error:
            self._places.drop(revision)
            raise UnusableRevisionError(str(error)) from error
        self._sides[revision.id] = side
        return side


def counted_in(trace: PathLike, key: str) -> int:
    """Return one of `COUNTED` in a recording: of the worst step where it has steps, else in all.

    Raises:
        UnusableRevisionError: The recording does not tell.
    """
    from torchtraceap.contracts import measure
    from torchtraceap.trace import load

    found = measure(load(trace), f"{COUNTED[key]}_per_step", one_step=True)
    if not found.known:
        raise UnusableRevisionError(f"{key}: {found.reason}")
    value = found.value
    return sum(value.values()) if isinstance(value, dict) else int(value)
