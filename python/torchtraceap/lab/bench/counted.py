"""Bisection by what repeats from run to run: counts, sizes, and whether a run ends in time.

Note [Counts]: one recording of a revision tells its count, however busy the machine is. So a search
takes one run at each end and one for each halving. A revision belongs to the end whose count is
nearer; of two neighbors on different sides the second one is a change for certain, as both were
counted. Where counts stand between those of the ends, several revisions change it.

A run whose time is over has a count beyond all others: a revision that hangs can be what is
searched for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtraceap.lab.bench.bisect import (
    Bisection,
    Change,
    Progress,
    Settings,
    TestedRevision,
)
from torchtraceap.lab.bench.causes import calls_that_differ
from torchtraceap.lab.bench.revisions import Revision, TimedOutError, UnusableRevisionError
from torchtraceap.lab.bench.rounds import Journal, Runner

__all__ = ["TIMEOUT", "bisect_counts"]

TIMEOUT = "timeout"
"""The measure that is searched for where only one end runs for too long."""
_SIZES = ("peak_memory", "copied_bytes")
"""Sizes may differ by a little for reasons of their own: below the minimal effect they are
equal."""
_TIMED_OUT = -1
"""In the journal."""


def bisect_counts(
    line: Sequence[Revision],
    runner: Runner,
    measure: str,
    settings: Settings,
    traces: Path,
    *,
    journal: Journal | None = None,
    progress: Progress | None = None,
    explain: bool = True,
) -> Bisection:
    """Find the revision that changed a count; see Note [Counts].

    Args:
        line: Revisions in order, the first with the old, the last with the new count.
        runner: Counts them.
        measure: One of `COUNTED`, or `TIMEOUT`.
        settings: Of which the minimal effect and the direction count.
        traces: A folder for the recordings.
        journal: Keeps what was counted.
        progress: Called with words that say what happens.
        explain: Also say what differs between the recordings of parent and culprit.

    Raises:
        UnusableRevisionError: The first or the last one can't be run, or both run for too long.
    """
    kept = journal if journal is not None else Journal(None, {})
    say = progress or (lambda text: None)
    return _Search(list(line), runner, measure, settings, traces, kept, say).run(explain)


class _Search:
    def __init__(
        self,
        line: list[Revision],
        runner: Runner,
        measure: str,
        settings: Settings,
        traces: Path,
        journal: Journal,
        say: Progress,
    ) -> None:
        self._line, self._runner, self._measure = line, runner, measure
        self._settings, self._traces = settings, traces
        self._journal, self._say = journal, say
        self._tested: list[TestedRevision] = []
        self._values: dict[int, float] = {}

    def run(self, explain: bool) -> Bisection:
        last = len(self._line) - 1
        before, after = self._value(0), self._value(last)
        if math.isinf(before) and math.isinf(after):
            raise TimedOutError("the first and the last revision both run for too long")
        if math.isinf(before) or math.isinf(after):
            self._measure = TIMEOUT
        if self._is_same(before, after):
            return self._answer("no_difference")
        if (after > before) == self._settings.improvement:
            hint = "leave --improvement out" if self._settings.improvement else "give --improvement"
            more = "fewer" if self._settings.improvement else "more"
            note = f"The last revision does not have {more} than the first: {hint}."
            return self._answer("no_difference", notes=(note,))
        good, bad = self._narrow(before, after)
        if bad - good > 1:
            return self._answer("range", range=tuple(self._line[good + 1 : bad + 1]))
        ends = self._values[good], self._values[bad]
        calls: list[dict[str, Any]] = []
        notes: list[str] = []
        if explain and not any(map(math.isinf, ends)):
            pair = self._file(good), self._file(bad)
            if all(path.exists() for path in pair):
                calls = calls_that_differ(*pair)
            else:
                notes.append("The counts are of an interrupted search: no traces, so no causes.")
        return self._answer(
            "found",
            culprit=self._line[bad],
            change=_change(*ends),
            confirmed=True,
            calls=tuple(calls),
            notes=tuple(notes),
            counts={"before": _told(ends[0]), "after": _told(ends[1])},
        )

    def _narrow(self, before: float, after: float) -> tuple[int, int]:
        good, bad = 0, len(self._line) - 1
        open_ = set(range(1, bad))
        while open_:
            middle = (good + bad) / 2
            place = min(open_, key=lambda each: (abs(each - middle), each))
            open_.discard(place)
            verdict, reason, value = "skipped", "", None
            try:
                value = self._value(place)
            except UnusableRevisionError as error:
                reason = str(error)
            else:
                verdict = "like bad" if self._is_like_bad(value, before, after) else "like good"
            level = None
            if value is not None and not any(map(math.isinf, (value, before, after))):
                level = (value - before) / (after - before)
            revision = self._line[place]
            self._tested.append(
                TestedRevision(
                    revision.id,
                    revision.title,
                    place,
                    verdict,
                    int(value is not None),
                    None,
                    level,
                    level,
                    level,
                    reason,
                    None if value is None else _told(value),
                )
            )
            self._say(f"{revision.short} ({place} of {len(self._line) - 1}): {verdict}")
            self._runner.drop(revision)
            if verdict == "like good":
                good = place
            elif verdict == "like bad":
                bad = place
            open_ = {each for each in open_ if good < each < bad}
        return good, bad

    def _is_like_bad(self, value: float, before: float, after: float) -> bool:
        if math.isinf(before) or math.isinf(after):
            return math.isinf(value) == math.isinf(after)
        return abs(value - after) < abs(value - before)

    def _is_same(self, before: float, after: float) -> bool:
        if before == after or self._measure not in _SIZES:
            return before == after
        return abs(after - before) <= self._settings.minimal_effect * max(before, after)

    def _value(self, place: int) -> float:
        if place in self._values:
            return self._values[place]
        revision = self._line[place]
        reason = self._journal.skip_reason(revision)
        if reason is not None:
            raise UnusableRevisionError(reason)
        known = self._journal.round(f"count {revision.id}", 0)
        if known is None or revision.id not in known:
            self._say(f"recording {revision.short}")
            try:
                if self._measure == TIMEOUT:
                    self._runner.measure(revision)
                    number = 0
                else:
                    number = self._runner.count(revision, self._measure, self._file(place))
            except TimedOutError:
                number = _TIMED_OUT
            except UnusableRevisionError as error:
                self._journal.record_skip(revision, str(error))
                raise
            known = {revision.id: number}
            self._journal.keep_round(f"count {revision.id}", 0, known)
        number = known[revision.id]
        self._values[place] = math.inf if number == _TIMED_OUT else float(number)
        return self._values[place]

    def _file(self, place: int) -> Path:
        return self._traces / f"{self._line[place].short}.json.gz"

    def _answer(self, verdict: str, **found: Any) -> Bisection:
        last = len(self._line) - 1
        ends = self._values[0], self._values[last]
        between = {
            value for value in self._values.values()
            if not math.isinf(value) and not any(self._is_same(value, end) for end in ends)
        }  # fmt: skip
        notes = list(found.pop("notes", ()))
        if between:
            notes.append(
                "Not one step: some commits stand between the ends, so more than one changed it."
            )
        wanted = {"range": (), "culprit": None, "change": None, "confirmed": False, **found}
        counts = {"from": _told(ends[0]), "to": _told(ends[1]), **wanted.pop("counts", {})}
        return Bisection(
            verdict=verdict,
            line=tuple(self._line),
            difference=_change(*ends),
            tested=tuple(self._tested),
            several_steps=bool(between),
            runs=self._journal.runs,
            settings=self._settings,
            notes=tuple(notes),
            measure=self._measure,
            counts=counts,
            **wanted,
        )


def _told(value: float) -> int | None:
    """Return a count for a document; None where the time was over."""
    return None if math.isinf(value) else int(value)


def _change(before: float, after: float) -> Change | None:
    """Return the exact change as a fraction; None where there is no ratio."""
    if not before or math.isinf(before) or math.isinf(after):
        return None
    ratio = after / before - 1
    return Change(ratio, ratio, ratio)
