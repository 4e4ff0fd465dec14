"""Attribution of a difference between two recordings to named contributors, largest first.

Note [Contributors]: The rows of a difference form a tree, by module and call. A contributor is the
most specific place that explains it: from the child with the largest part of the difference the
search goes down as long as one child, or one name below, has most of what its parent has. Where a
part of the model was replaced, what went and what came then meet at the call around both. What a
contributor takes is left out, and the search begins again. Contributors, what is common to all work
(noise.py), noise between steps and `(others)` sum to the difference, to the nanosecond.

Note [Order]: A person acts on the first name. So noise, what is common to all work and `(others)`
come behind the contributors, unless no contributor is beyond the noise and they are larger. If
even unchanged work differs much between the recordings, work that is called more or less often
comes first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.tables.compare.cause_rows import (
    PYTHON,
    CauseRow,
    CauseRows,
    Move,
    Place,
    cause_rows,
)
from torchtraceap.tables.compare.noise import EQUAL_CALLS, LARGEST_SPREAD
from torchtraceap.tables.compare.rows import join_names
from torchtraceap.trace.ranks import Ranks

__all__ = ["Attribution", "Cause", "attribute"]

MOST_CAUSES = 8
LEAST_SHARE = 0.02
"""The smallest share of the difference that makes a contributor."""
MOST_OF = 0.6
"""The share of a place's difference with which one child or one name stands for the place."""
LARGE_CHILD = 0.35
"""The share with which a child is followed if the next largest has less than half as much."""
NO_MORE_THAN = 1.5
"""A child with more than this times its place's difference is offset by its siblings, so they
belong together."""
MANY_CALLS = 30
"""Additional calls per step to which the time of Python between operators is attributed."""
LEAST_MOVED = 0.005
"""The smallest share of the step at which moved work is reported."""
MOST_MOVES = 8
MOST_PARTS = 5

NOISE = "(noise between steps)"
OTHERS = "(others)"


@dataclass(frozen=True, slots=True)
class Cause(Result):
    """A contributor to a difference."""

    name: str
    """Operator, idle cause, frame or module as a developer calls it, or a sum in parentheses."""
    delta_ns: int
    """B minus A, per step."""
    share: float
    """`delta_ns` over the difference: negative if it goes the other way."""
    kind: str
    """"operator", "operators" (of one place), "idle", "kernel", "frame", "common", "noise" or
    "others"."""
    path: str
    """The modules and calls around it."""
    dims: str | None
    before_calls: float | None
    """Calls per step; None for a sum."""
    after_calls: float | None
    beyond_noise: bool
    """True if neither chance between steps nor between recordings explains it (noise.py)."""
    parts: tuple[dict[str, Any], ...] = ()
    """The largest rows of several: name, delta_ns, before_calls, after_calls."""

    def sentence(self) -> str:
        """Return name, place and calls in words, without the times."""
        where = f" in {self.path}" if self.path and not self.path.endswith(self.name) else ""
        calls = ""
        if self.before_calls is not None and self.after_calls is not None:
            before, after = round(self.before_calls, 1), round(self.after_calls, 1)
            if before != after:
                calls = f", {before:g} → {after:g} calls a step"
        return f"{self.name}{where}{calls}"


@dataclass(frozen=True, slots=True)
class Attribution:
    """The causes of a difference; their `delta_ns` sum to the difference of the median steps."""

    rows: CauseRows
    causes: tuple[Cause, ...]
    moved: tuple[dict[str, Any], ...]
    """Work that only changed its place: name, before, after, ns."""


def attribute(before: Ranks, after: Ranks, *, change: float | None = None) -> Attribution:
    """Attribute the difference of two recordings to contributors.

    Args:
        before: Recording A.
        after: Recording B, of the same program.
        change: The change that runs without a profiler show, after / before - 1. Its direction is
            then explained, even if the recordings differ the other way.
    """
    rows = cause_rows(before, after, tested=MOST_CAUSES)
    return Attribution(rows, tuple(_Contributors(rows, change).all_causes()), tuple(_moves(rows)))


def _moves(rows: CauseRows) -> Iterable[dict[str, Any]]:
    """Yield the work that moved, summed by the first names at which the places differ."""
    together: defaultdict[tuple[Place, Place], list[Move]] = defaultdict(list)
    for move in rows.moves:
        _, before, after, _ = move
        if before == after:  # of other shapes, at the same place
            continue
        shared = 0
        while shared < min(len(before), len(after)) and before[shared] == after[shared]:
            shared += 1
        together[before[: shared + 1], after[: shared + 1]].append(move)
    sums = [(sum(move[3] for move in moves), place, moves) for place, moves in together.items()]
    sums.sort(key=lambda entry: (-entry[0], entry[1]))
    for ns, (before, after), moves in sums[:MOST_MOVES]:
        if ns >= LEAST_MOVED * max(rows.comparison.step_ns):
            yield {
                "name": join_names(list(dict.fromkeys(move[0] for move in moves))),
                "before": " / ".join(before),
                "after": " / ".join(after),
                "ns": ns,
            }


Rows = list[CauseRow]


class _Contributors:
    """Take one contributor after the other out of the rows; see Note [Contributors]."""

    def __init__(self, rows: CauseRows, change: float | None) -> None:
        self._rows = rows
        self._sign = 1 if (change if change else rows.comparison.difference_ns) >= 0 else -1

    def all_causes(self) -> list[Cause]:
        """Return all causes in the order of Note [Order]; they sum to the difference."""
        rows = self._rows
        difference_ns = rows.comparison.difference_ns
        found = self._find(
            LEAST_SHARE
            * min(abs(difference_ns), abs(difference_ns - rows.common_ns - rows.noise_ns))
        )
        sums: list[Cause] = []
        if rows.common.factor != 1.0:
            name = f"(all work, {rows.common.factor:.3g} times as long)"
            sums.append(self._sum(name, round(rows.common_ns), "common", beyond=True))
        if rows.noise_ns:
            sums.append(self._sum(NOISE, rows.noise_ns, "noise"))
        left = difference_ns - sum(cause.delta_ns for cause in (*found, *sums))
        if left:
            sums.append(self._sum(OTHERS, left, "others"))
        certain = [cause for cause in found if cause.beyond_noise]
        uncertain = [cause for cause in found if not cause.beyond_noise]
        if rows.common.spread > LARGEST_SPREAD:  # call counts hold where clocks do not
            certain.sort(key=lambda cause: not _changes_calls(cause))
        if certain:
            return [*certain, *uncertain, *sums]
        # Nothing is certain: the largest comes first, whatever it is.
        rest = [cause for cause in sums if cause.kind == "others"]
        known = [*uncertain, *(cause for cause in sums if cause.kind != "others")]
        return [*sorted(known, key=lambda cause: -abs(cause.delta_ns)), *rest]

    def _find(self, least_ns: float) -> list[Cause]:
        """Return the contributors with at least so much time, the largest first."""
        left = list(self._rows.rows)
        found: list[Cause] = []
        while len(found) < MOST_CAUSES and left:
            place, taken = self._largest(left)
            if {row.name for row in taken} == {PYTHON}:
                taken = self._add_frequent_calls(taken, left)
            ns = _sum(taken)
            if self._sign * ns < least_ns or round(ns) == 0:
                break
            found.append(self._cause(place, taken))
            gone = {id(row) for row in taken}
            left = [row for row in left if id(row) not in gone]
        return sorted(found, key=lambda cause: -self._sign * cause.delta_ns)

    def _largest(self, rows: Rows) -> tuple[Place, Rows]:
        """Return the place and the rows of the next contributor."""
        place: Place = ()
        while True:
            # Rows by the next name of their place, whose last name is the row's own.
            children: defaultdict[str, Rows] = defaultdict(list)
            for row in rows:
                if len(place) > len(row.place):
                    return place, rows
                children[(*row.place, row.name)[len(place)]].append(row)
            if not children:
                return place, rows
            by_gain = sorted(children.items(), key=lambda item: -self._gain(item[1]))
            name, below = by_gain[0]
            if not place:
                alike = self._largest_name(rows)
                if self._net(alike, rows) > NO_MORE_THAN * self._gain(below):
                    return (alike[0].name,), alike
            elif not self._stands_for(below, rows):
                largest_ns, next_ns = ([self._gain(some) for _, some in by_gain[:2]] + [0.0])[:2]
                whole_ns = self._gain(rows)
                is_large = LARGE_CHILD * whole_ns <= largest_ns <= NO_MORE_THAN * whole_ns
                if not (is_large and next_ns < largest_ns / 2):
                    alike = self._largest_name(rows)
                    return (place, alike) if self._stands_for(alike, rows) else (place, rows)
            place, rows = (*place, name), below

    def _add_frequent_calls(self, python: Rows, rows: Rows) -> Rows:
        """Add the operators that Python calls more often now, if there are many such calls."""
        more = [
            row
            for row in rows
            if row.kind == "operator" and row.name != PYTHON and self._sign * row.delta_ns > 0
        ]
        gained = {id(row): self._sign * (row.after_calls - row.before_calls) for row in more}
        most = max(gained.values(), default=0)
        if most < MANY_CALLS:
            return python
        return [*python, *(row for row in more if gained[id(row)] >= most / 2)]

    def _gain(self, rows: Rows) -> float:
        """Return the sum of rows in the direction of the difference."""
        return self._sign * _sum(rows)

    def _stands_for(self, some: Rows, rows: Rows) -> bool:
        return MOST_OF * self._gain(rows) <= self._gain(some) <= NO_MORE_THAN * self._gain(rows)

    def _largest_name(self, rows: Rows) -> Rows:
        found: defaultdict[tuple[str, str], Rows] = defaultdict(list)
        for row in rows:
            found[row.name, row.kind].append(row)
        return max(found.values(), key=self._gain)

    def _net(self, some: Rows, rows: Rows) -> float:
        """Return the sum of rows of one name, each place limited to what is left of its own sum.

        An operator that replaces another is no cause of its own.
        """
        of_place: defaultdict[Place, float] = defaultdict(float)
        mine: defaultdict[Place, float] = defaultdict(float)
        for row in rows:
            of_place[row.place] += self._sign * row.delta_ns
        for row in some:
            mine[row.place] += self._sign * row.delta_ns
        return sum(min(ns, NO_MORE_THAN * max(0.0, of_place[p])) for p, ns in mine.items())

    def _cause(self, place: Place, rows: Rows) -> Cause:
        by_size = sorted(rows, key=lambda row: -self._sign * row.delta_ns)
        leading = by_size[0]
        differing = [row for row in by_size if row.delta_ns]
        names = list(dict.fromkeys(row.name for row in differing))
        one = len(names) <= 1
        named = [row for row in rows if row.name == leading.name]
        noise = math.hypot(*(r.noise_ns for r in rows), sum(r.varies_ns for r in rows))
        ns = _sum(rows)
        name, path = self._name_and_path(place, names, leading, rows)
        return Cause(
            name=name,
            delta_ns=round(ns),
            share=self._share(ns),
            kind=leading.kind if one or leading.kind == "idle" else f"{leading.kind}s",
            path=path,
            dims=leading.dims if one else None,
            before_calls=sum(row.before_calls for row in named) if one else None,
            after_calls=sum(row.after_calls for row in named) if one else None,
            beyond_noise=abs(ns) > noise,
            parts=()
            if len(differing) < 2
            else tuple(
                {
                    "name": row.name,
                    "delta_ns": round(row.delta_ns),
                    "before_calls": row.before_calls,
                    "after_calls": row.after_calls,
                }
                for row in by_size[:MOST_PARTS]
            ),
        )

    def _shared_place(self, rows: Rows) -> Place:
        """Return the innermost place with most of the rows' difference."""
        place: Place = ()
        while True:
            below: defaultdict[str, Rows] = defaultdict(list)
            for row in rows:
                if len(row.place) > len(place) and row.place[: len(place)] == place:
                    below[row.place[len(place)]].append(row)
            largest = max(below.items(), key=lambda item: self._gain(item[1]), default=None)
            if largest is None or not self._stands_for(largest[1], rows):
                return place
            place = (*place, largest[0])

    def _name_and_path(
        self, place: Place, names: Sequence[str], leading: CauseRow, rows: Rows
    ) -> tuple[str, str]:
        inside = place[:-1] if place and place[-1] == leading.name else place
        if len(names) <= 1:
            own = self._shared_place(rows) or inside
            if leading.kind == "idle":
                title, *modules = leading.place
                event = "" if leading.name == title else f" ({leading.name})"
                return f"{title}{event}", " / ".join(modules)
            return leading.name, " / ".join(own)
        if leading.kind == "idle" and place and place[0] == leading.place[0]:
            return f"{place[0]} ({join_names(names)})", " / ".join(place[1:])
        if not place or place == (PYTHON,):
            calls = [row for row in rows if row.name != PYTHON]
            return join_names(names), " / ".join(self._shared_place(calls))
        above = " / ".join(place[:-1])
        # An operator stands for what it calls.
        mine = place[-1] == names[0] or all(len(row.place) >= len(place) for row in rows)
        whole = mine and "::" in place[-1]
        return (place[-1] if whole else f"{place[-1]} ({join_names(names)})"), above

    def _sum(self, name: str, ns: int, kind: str, *, beyond: bool = False) -> Cause:
        return Cause(name, ns, self._share(ns), kind, "", None, None, None, beyond)

    def _share(self, ns: float) -> float:
        whole = self._rows.comparison.difference_ns
        return ns / whole if whole else 0.0


def _changes_calls(cause: Cause) -> bool:
    """Return True if anything is called more or less often than before."""
    if cause.before_calls is not None and cause.after_calls is not None:
        return abs(cause.after_calls - cause.before_calls) > EQUAL_CALLS * cause.before_calls
    return any(
        abs(part["after_calls"] - part["before_calls"]) > EQUAL_CALLS * part["before_calls"]
        for part in cause.parts
    )


def _sum(rows: Iterable[CauseRow]) -> float:
    return sum(row.delta_ns for row in rows)
