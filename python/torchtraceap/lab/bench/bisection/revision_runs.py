"""Runs of a program in checkouts or installed versions, for a bisection."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.processes.fresh import ProgramError, check_success, run_fresh
from torchtraceap.lab.bench.processes.interleaved import can_take_turns, run_together
from torchtraceap.lab.bench.processes.programs import (
    ProgramRun,
    run_program,
    shorten_command,
    trace_program,
)
from torchtraceap.lab.bench.processes.turns import Turn
from torchtraceap.lab.bench.revisions import (
    Place,
    Places,
    Revision,
    UnusableRevisionError,
    repository_variables,
)

__all__ = ["MEASURES", "RevisionRuns"]

MEASURES = ("time", "memory")
SKIP = 125
"""The exit code with which a program reports that a revision cannot be tested, as for `git
bisect`."""


class RevisionRuns:
    """Run one program in each revision; see `rounds.Runner`.

    Args:
        places: Where revisions are made ready.
        program: The program and its arguments.
        setup: A command that runs once in each revision before the program.
        measure: "time" (the median step) or "memory" (the peak of the resident set).
        pythonpath: Folders inside each revision that stand first in PYTHONPATH.
        timeout_s: So long a run may take.
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
        self._ready: dict[str, Place] = {}
        self._last: dict[str, ProgramRun] = {}

    def measure(self, revision: Revision) -> int:
        """Measure one revision; a run that fails is tried once more. See `rounds.Runner`."""
        try:
            return self._once(revision)
        except ProgramError as error:
            if error.finished is not None and error.finished.returncode == SKIP:
                raise UnusableRevisionError(f"{revision.short}: exit code {SKIP}") from error
        try:
            return self._once(revision)
        except ProgramError as error:
            raise UnusableRevisionError(f"{revision.short}: failed twice: {error}") from error

    def measure_together(
        self, revisions: Sequence[Revision], order: Sequence[int], seed: int
    ) -> dict[str, int]:
        """Measure several revisions together. See `rounds.Runner`."""
        before = [self._last.get(revision.id) for revision in revisions]
        if self._memory or not can_take_turns(before):
            return {revisions[i].id: self.measure(revisions[i]) for i in order}
        programs = [partial(self._run, self._place(revision)) for revision in revisions]
        known = [run for run in before if run is not None]
        try:
            runs, steps = run_together(programs, known, seed)
        except ProgramError:  # run alone, to learn which one fails
            return {revisions[i].id: self.measure(revisions[i]) for i in order}
        # On the same machine: the median of the first, times the ratio of each to it.
        ratios = np.median(steps / steps[:, :1], axis=0)
        first = runs[0].median_ns
        return {r.id: round(first * float(x)) for r, x in zip(revisions, ratios, strict=True)}

    def _once(self, revision: Revision) -> int:
        run = self._run(self._place(revision))
        self._last[revision.id] = run
        return run.max_rss_bytes if self._memory else run.median_ns

    def _run(self, place: Place, turn: Turn | None = None) -> ProgramRun:
        words = place.words(self._program)
        return run_program(words, place.folder, self._env(place), self._timeout_s, turns=turn)

    def trace(self, revision: Revision, target: Path) -> Path | None:
        """Record a run. See `rounds.Runner`."""
        place = self._place(revision)
        words = place.words(self._program)
        return trace_program(words, place.folder, self._env(place), self._timeout_s, target=target)

    def drop(self, revision: Revision) -> None:
        """Release a revision. See `rounds.Runner`."""
        if revision.id not in self._kept:
            self._ready.pop(revision.id, None)
            self._places.drop(revision)

    def _place(self, revision: Revision) -> Place:
        place = self._ready.get(revision.id)
        if place is None:
            place = self._places.ready(revision)
            if self._setup:
                self._set_up(revision, place)
            self._ready[revision.id] = place
        return place

    def _set_up(self, revision: Revision, place: Place) -> None:
        assert self._setup is not None
        try:
            done = run_fresh(
                place.words(self._setup), cwd=place.folder, env=self._env(place), timeout_s=None
            )
            check_success(done, f"{revision.short}: {shorten_command(self._setup)}")
        except (ProgramError, OptionError) as error:
            self._places.drop(revision)
            raise UnusableRevisionError(str(error)) from error

    def _env(self, place: Place) -> dict[str, str | None]:
        """Return variables that keep a program in a checkout from using another repository."""
        env: dict[str, str | None] = dict.fromkeys(repository_variables())
        env |= place.env
        if place.folder is not None and self._pythonpath:
            before = [str(place.folder / folder) for folder in self._pythonpath]
            after = os.environ.get("PYTHONPATH")
            env["PYTHONPATH"] = os.pathsep.join([*before, *([after] if after else [])])
        return env
