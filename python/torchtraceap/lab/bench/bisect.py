"""Bisection of a performance regression over commits or versions, on a machine that is never quiet.

Note [Against both ends]: a revision in the middle runs in rounds with a good and a bad one. Half
way between them, on a logarithmic scale, is where it would stand if it were neither: d = log m -
(log g + log b) / 2. A signed rank test says on which side of 0 d lies, at several looks that share
the allowed error. A drift of the machine shifts all three alike. As the true d of a revision that
is like one end is half the whole difference away from 0, a decision for the wrong side is far rarer
than the level of the test, which only says how often a revision half way is decided at all.

Note [Abstaining]: what is not decided after the last look, or cannot be run, is left out and its
neighbours are tried. If such revisions are left between the last good and the first bad one, the
answer is a range. Of a short range neighbors are compared directly, as each of them may carry a
part of the change.

Note [Confirmed]: a culprit is compared with its parent once more in fresh runs. If these do not
show the change, the search is made a second time with new runs, and then given up.

Note [How much]: a comparison that stops as soon as it is decided stops where noise has helped it,
so its estimate is too large and its few rounds leave a wide interval. Whether the culprit is
confirmed is decided early; how much it changes is told from as many rounds as the last look takes,
the first ones included. That number is known before, so the estimate has no such bias. Rounds of
other revisions are left out of it: small changes of other commits would be taken for the culprit's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core import Array, Result, dataclass
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.lab.bench.causes import Causes, causes
from torchtraceap.lab.bench.revisions import Revision, UnusableRevisionError
from torchtraceap.lab.bench.rounds import Journal, Rounds, Runner
from torchtraceap.lab.bench.statistics.rank_tests import interval, p_values, walsh_averages
from torchtraceap.lab.bench.statistics.sequential import Plan, look_at

__all__ = ["Bisection", "Change", "Progress", "Settings", "TestedRevision", "bisect"]

SCHEMA = "torchtraceap.bisection/1"
STEP_ALPHA = 0.02
"""Error probability of the decision for a revision exactly half way; see Note [Against both
ends]."""
INTERVAL_ERROR = 0.05
"""Error probability of the intervals that are reported with a decision."""
ATTEMPTS = 2
MOST_PAIRED = 4
"""The largest number of revisions in a range that are compared with their neighbors."""
STEP_BETWEEN = 0.2
"""A revision that is surely at least this share of the difference from either end makes a change of
its own."""
WHOLE_CHANGE = 0.75
"""A culprit that surely explains less than this share of the difference is not the only one."""


@dataclass(frozen=True, slots=True)
class Settings(Plan):
    """Settings that are fixed before the first run.

    The fields of a plan are those of the comparisons of the ends, and of the culprit with its
    parent; looks are numbers of rounds.
    """

    seed: int = 0
    improvement: bool = False
    """True to search for the revision that made the program faster."""

    @property
    def sign(self) -> int:
        return -1 if self.improvement else 1


@dataclass(frozen=True, slots=True)
class Change(Result):
    """A change as a fraction (0.03 is 3 % slower) with its 95 % interval."""

    best: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Array) -> Change:
        """Make a change from log ratios."""
        best, *ends = _estimate(values)
        low, high = (math.expm1(end) if math.isfinite(end) else None for end in ends)
        return cls(math.expm1(best), low, high)


@dataclass(frozen=True, slots=True)
class TestedRevision(Result):
    """The test result of one revision."""

    commit: str
    subject: str
    place: int
    """Index in the line, from 0."""
    verdict: str
    """"like good", "like bad", "abstained" or "skipped"."""
    rounds: int
    p: float | None
    level: float | None
    """Position between the good end (0) and the bad end (1)."""
    low: float | None
    high: float | None
    reason: str = ""
    value: int | None = None
    """The count, where one is searched for."""


@dataclass(frozen=True)
class Bisection(Result):
    """The result of a bisection; `to_dict` is `torchtraceap.bisection/1`."""

    verdict: str
    """"found", "range", "no_difference" or "undecided"."""
    line: tuple[Revision, ...]
    difference: Change | None
    """The change between the ends, last / first - 1."""
    culprit: Revision | None
    change: Change | None
    """The change of the culprit over its parent."""
    range: tuple[Revision, ...]
    """The revisions that contain the culprit, in order, if the verdict is "range"."""
    tested: tuple[TestedRevision, ...]
    confirmed: bool
    several_steps: bool
    """True if several revisions change the time; the largest change that was met is reported."""
    runs: int
    settings: Settings
    notes: tuple[str, ...] = ()
    causes: Any = None
    """`Causes` of parent and culprit; None without traces."""
    measure: str = "time"
    counts: Mapping[str, int | None] | None = None
    """The counts of both ends ("from", "to"), of the culprit's parent and of the culprit ("before",
    "after"), where a count is searched for; None where a run took too long."""
    calls: tuple[Mapping[str, Any], ...] = ()
    """Calls that differ between the culprit and its parent, where a count is searched for."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document `torchtraceap.bisection/1`."""
        found, culprit = self.causes, None
        if self.culprit is not None:
            change = self.change.to_dict() if self.change else None
            culprit = {**_revision_fields(self.culprit), "change": change}
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "measure": self.measure,
            "counts": dict(self.counts) if self.counts is not None else None,
            "culprit": culprit,
            "calls": [dict(call) for call in self.calls],
            "range": [_revision_fields(revision) for revision in self.range] or None,
            "tested": [each.to_dict() for each in self.tested],
            "confirmed": self.confirmed,
            "causes": found.to_dict()["causes"] if found else [],
            "causes_detail": found.to_dict() if found else None,
            "direction": "faster" if self.settings.improvement else "slower",
            "from": _revision_fields(self.line[0]),
            "to": _revision_fields(self.line[-1]),
            "revisions": len(self.line),
            "difference": self.difference.to_dict() if self.difference else None,
            "several_steps": self.several_steps,
            "runs": self.runs,
            "looks": list(self.settings.looks),
            "minimal_effect": self.settings.minimal_effect,
            "seed": self.settings.seed,
            "notes": list(self.notes),
        }


def _revision_fields(revision: Revision) -> dict[str, Any]:
    return {"commit": revision.id, "subject": revision.title, "when": revision.when}


Progress = Callable[[str], object]


def bisect(
    line: Sequence[Revision],
    runner: Runner,
    settings: Settings | None = None,
    *,
    journal: Journal | None = None,
    progress: Progress | None = None,
    traces: Path | None = None,
) -> Bisection:
    """Find the revision that changed the time or memory of a program.

    Args:
        line: Revisions in order, the first with the old, the last with the new behavior.
        runner: Measures them.
        settings: Settings that are fixed before the first run.
        journal: Keeps what was measured before and is measured now.
        progress: Called with words that say what happens.
        traces: A folder for the traces of parent and culprit, which say why; None records none.

    Raises:
        OptionError: Fewer than two revisions.
        UnusableRevisionError: The first or the last one can't be run.
    """
    if len(line) < 2:
        raise OptionError("a bisection needs two revisions at least")
    chosen = settings or Settings()
    kept = journal if journal is not None else Journal(None, {})
    search = _Search(list(line), runner, chosen, kept, progress or (lambda text: None))
    return search.run(traces)


class _Search:
    """The state of one bisection."""

    def __init__(
        self,
        line: list[Revision],
        runner: Runner,
        settings: Settings,
        journal: Journal,
        progress: Progress,
    ) -> None:
        self._line = line
        self._runner = runner
        self._settings = settings
        self._journal = journal
        self._say = progress
        self._tested: list[TestedRevision] = []
        self._notes: list[str] = []
        self._several = False
        self._difference: Change | None = None

    def run(self, traces: Path | None) -> Bisection:
        line, settings = self._line, self._settings
        ends, decided, rounds = self._pair("ends", line[0], line[-1])
        self._difference = Change.of(ends)
        if decided is None:
            self._notes.append(
                f"After {rounds} rounds nobody can tell whether the ends differ by "
                f"{100 * settings.minimal_effect:.3g} %: runs vary too much, or they differ by "
                "about that."
            )
            return self._answer("undecided")
        if decided == -1:
            other = "faster" if settings.sign > 0 else "slower"
            hint = "give --improvement" if settings.sign > 0 else "leave --improvement out"
            self._notes.append(f"The last revision is {other} than the first: {hint}.")
        if decided != 1:
            return self._answer("no_difference")
        for attempt in range(1, ATTEMPTS + 1):
            good, bad = self._narrow(attempt)
            if bad - good > 1:
                found = self._largest_step(attempt, good, bad)
                if found is None:
                    return self._answer("range", range=tuple(line[good + 1 : bad + 1]))
                good, bad = found - 1, found
            test, pair = f"{attempt} confirm {bad}", (line[bad - 1], line[bad])
            _, decided, _ = self._pair(test, *pair)
            if decided == 1:  # see Note [How much]
                self._say(f"measuring how much {line[bad].short} changes")
                logs = self._rounds(test, pair).until(settings.looks[-1])
                return self._culprit_answer(bad, logs[:, 1] - logs[:, 0], traces)
            self._say(f"{line[bad].short} next to its parent does not show the change")
        self._notes.append(
            "The last commit before the change and the first behind it do not differ in fresh "
            "runs: the machine changes too much, or the change depends on something else than the "
            "commit."
        )
        return self._answer("undecided", range=(line[bad],))

    def _culprit_answer(self, place: int, change: Array, traces: Path | None) -> Bisection:
        """Return the answer that names a culprit, with the causes if traces are wanted."""
        assert self._difference is not None
        parent, culprit = self._line[place - 1], self._line[place]
        whole = math.log1p(self._difference.best)
        best, low, high = _estimate(change)
        if whole and (high if whole > 0 else low) / whole < WHOLE_CHANGE:
            self._several = True
            self._notes.append(
                f"It explains {100 * best / whole:.0f} % of the difference between the ends: other "
                "commits changed it too. Bisect again from it, or up to its parent."
            )
        measured = Change.of(change)
        explained: Causes | None = None
        if traces is not None:
            self._say(f"recording {parent.short} and {culprit.short}")
            before, after = (
                self._runner.trace(each, traces / f"{each.short}.json.gz")
                for each in (parent, culprit)
            )
            if before is None or after is None:
                self._notes.append("No trace of both could be recorded, so no causes are told.")
            else:
                try:
                    explained = causes(before, after, change=measured.best)
                except TraceError as error:
                    self._notes.append(f"The traces say no causes: {error}")
        return self._answer(
            "found", culprit=culprit, change=measured, confirmed=True, causes=explained
        )

    def _answer(self, verdict: str, **found: Any) -> Bisection:
        if self._several:
            self._notes.append(
                "Not one step: some commits stand between the ends, so more than one changed it."
            )
        wanted = {"range": (), "culprit": None, "change": None, "confirmed": False, **found}
        return Bisection(
            verdict=verdict,
            line=tuple(self._line),
            difference=self._difference,
            tested=tuple(self._tested),
            several_steps=self._several,
            runs=self._journal.runs,
            settings=self._settings,
            notes=tuple(dict.fromkeys(self._notes)),
            **wanted,
        )

    # ------------------------------------------------------------------------------ search

    def _narrow(self, attempt: int) -> tuple[int, int]:
        """Return the index of the last revision like the good end and that of the first like the
        bad end. Revisions between them could not be decided."""
        good, bad = 0, len(self._line) - 1
        open_ = set(range(1, bad))
        while open_:
            middle = (good + bad) / 2
            place = min(open_, key=lambda each: (abs(each - middle), each))
            open_.discard(place)
            tested = self._test(attempt, place)
            self._tested.append(tested)
            self._say(
                f"{self._line[place].short} ({place} of {len(self._line) - 1}): {tested.verdict}"
            )
            self._runner.drop(self._line[place])
            if tested.verdict == "like good":
                good = place
            elif tested.verdict == "like bad":
                bad = place
            open_ = {each for each in open_ if good < each < bad}
        return good, bad

    def _test(self, attempt: int, place: int) -> TestedRevision:
        """Compare a revision with both ends; see Note [Against both ends]."""
        line, settings = self._line, self._settings
        revision, verdict = line[place], "abstained"
        rounds = self._rounds(f"{attempt} middle {place}", [line[0], revision, line[-1]])
        levels = Plan(settings.minimal_effect, STEP_ALPHA, settings.looks).levels
        reason = self._journal.skip_reason(revision)
        if reason is None:
            try:
                for count, level in zip(settings.looks, levels, strict=True):
                    good, middle, bad = rounds.until(count).T
                    values = settings.sign * (middle - (good + bad) / 2)
                    p = float(p_values(values))
                    if p <= level:
                        verdict = "like bad" if np.median(values) > 0 else "like good"
                        break
            except UnusableRevisionError as error:
                reason = str(error)
                self._journal.record_skip(revision, reason)
        if reason is not None:
            return TestedRevision(
                revision.id, revision.title, place, "skipped", 0, None, None, None, None, reason
            )
        best: float | None = None
        ends: tuple[float | None, float | None] = (None, None)
        whole = _estimate(settings.sign * (bad - good))[0]
        if whole > 0:
            best, low, high = (0.5 + each / whole for each in _estimate(values))
            self._several |= low > STEP_BETWEEN and high < 1 - STEP_BETWEEN
            ends = low if math.isfinite(low) else None, high if math.isfinite(high) else None
        return TestedRevision(revision.id, revision.title, place, verdict, count, p, best, *ends)

    def _largest_step(self, attempt: int, good: int, bad: int) -> int | None:
        """Return the index of the largest change between neighbors in a short range, if one is
        certain."""
        places = range(good + 1, bad + 1)
        if len(places) > MOST_PAIRED:
            return None
        changes: dict[int, float] = {}
        for place in places:
            ends = self._line[place - 1], self._line[place]
            if any(self._journal.skip_reason(each) for each in ends):
                return None
            values, decided, _ = self._pair(f"{attempt} neighbors {place}", *ends)
            if decided == 1:
                changes[place] = _estimate(values)[0]
        self._several |= len(changes) > 1
        return max(changes, key=lambda p: self._settings.sign * changes[p]) if changes else None

    def _pair(self, test: str, before: Revision, after: Revision) -> tuple[Array, int | None, int]:
        """Compare two revisions.

        Returns:
            Log ratios after / before; 1 if they changed in the expected direction, -1 if in the
            other one, 0 if they are equivalent, None if it is undecided; and the rounds.
        """
        plan = self._settings
        rounds = self._rounds(test, [before, after])
        for number, count in enumerate(plan.looks):
            logs = rounds.until(count)
            values = logs[:, 1] - logs[:, 0]
            verdict = look_at(values, plan, number).verdict
            if verdict != "undecided":
                break
        towards = {"slower": 1, "faster": -1}.get(verdict, 0) * self._settings.sign
        self._say(f"{after.short} next to {before.short}: {verdict} after {count} rounds")
        return values, None if verdict == "undecided" else towards, count

    def _rounds(self, test: str, revisions: Sequence[Revision]) -> Rounds:
        def report(name: str, number: int) -> None:
            if number % 5 == 0:
                self._say(f"round {number + 1} of at most {self._settings.looks[-1]}")

        return Rounds(test, revisions, self._runner, self._journal,
                      seed=self._settings.seed, progress=report)  # fmt: skip


def _estimate(values: Array) -> tuple[float, float, float]:
    """Return the Hodges-Lehmann estimate with an interval."""
    averages = walsh_averages(values)
    low, high = interval(averages, len(values), INTERVAL_ERROR)
    return float(np.median(averages)), float(low), float(high)
