"""`causes`: what makes one recording slower than another, the largest contributor first.

Note [Contributors]: the rows of a difference form a tree, by module and call. A contributor is the
most specific place that explains it: from the child with the largest part of the difference the
search goes down as long as one child, or one name below, has most of what its parent has. Where a
part of the model was replaced, what went and what came then meet at the call around both. What a
contributor takes is left out, and the search begins again. Contributors, what is common to all work
(cause_rows.py), noise between steps and `(others)` sum to the difference, to the nanosecond.

Note [Order]: a person acts on the first name. So noise, what is common to all work and `(others)`
come behind the contributors, unless no contributor is beyond the noise and they are larger. Where
even unchanged work differs much between the recordings, what is called more or less often comes
first.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.core.units import format_ns
from torchtraceap.lab.bench.cause_rows import (
    EQUAL_CALLS,
    PYTHON,
    CauseRow,
    CauseRows,
    Move,
    cause_rows,
)

if TYPE_CHECKING:
    from torchtraceap.core.results import Finding
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.trace.trace import Trace

__all__ = ["Cause", "Causes", "causes"]

MOST_CAUSES = 8
LEAST_SHARE = 0.02
"""Of the difference, which a contributor has to make to be told."""
MOST_OF = 0.6
"""Of a place's difference, with which one child or one name stands for it."""
LARGE_CHILD = 0.35
"""With which a child is followed though it has not most, if the next has less than half of it."""
NO_MORE_THAN = 1.5
"""Times its place's difference: a child with more is offset by its siblings, so they belong
together."""
MANY_CALLS = 30
"""More calls in a step, from which what Python takes between operators belongs to them."""
LEAST_MOVED = 0.005
"""Of the step, from which moved work is told."""
DISTURBED = 0.1
"""Of a step: recordings that differ by so much more than runs do were disturbed."""
MOST_MOVES = 8
MOST_PARTS = 5

NOISE = "(noise between steps)"
OTHERS = "(others)"


@dataclass(frozen=True, slots=True)
class Cause(Result):
    """A contributor to a difference."""

    name: str
    """As a developer would call it: operator, idle cause, frame, module, or a sum in brackets."""
    delta_ns: int
    """Per step, B minus A."""
    share: float
    """Of the difference; its sign is that of the difference's direction."""
    kind: str
    """"operator", "operators" (of one place), "idle", "kernel", "frame", "common", "noise" or
    "others"."""
    path: str
    """The modules and calls around it."""
    dims: str | None
    before_calls: float | None
    """Per step; None of sums."""
    after_calls: float | None
    beyond_noise: bool
    parts: tuple[dict[str, Any], ...] = ()
    """Of several rows the largest: name, delta_ns, before_calls, after_calls."""

    def sentence(self) -> str:
        """For a person, without the figures of time."""
        where = f" in {self.path}" if self.path and not self.path.endswith(self.name) else ""
        calls = ""
        if self.before_calls is not None and self.after_calls is not None:
            before, after = round(self.before_calls, 1), round(self.after_calls, 1)
            if before != after:
                calls = f", {before:g} → {after:g} calls a step"
        return f"{self.name}{where}{calls}"


@dataclass(frozen=True, slots=True)
class Causes(Result):
    """Why B differs from A; `causes` sum to `difference_ns`."""

    difference_ns: int
    """Of the median steps."""
    before_step_ns: int
    after_step_ns: int
    basis: str
    causes: tuple[Cause, ...]
    moved: tuple[dict[str, Any], ...]
    """Work that only changed its place: name, before, after, ns."""
    findings: dict[str, tuple[dict[str, Any], ...]]
    """"appeared" and "gone": type, title, cost_ns, saving_ns per step, method."""
    price: dict[str, Any] | None
    """Of the finding that appeared and whose fix saves most: what that is of the difference."""
    notes: tuple[str, ...]

    @property
    def top(self) -> Cause | None:
        """The largest contributor; None where nothing but noise is known."""
        first = next(iter(self.causes), None)
        return first if first and first.kind not in ("noise", "others") else None

    def to_dict(self) -> dict[str, Any]:
        """The fields, with a sentence for each cause."""
        document = Result.to_dict(self)
        for written, cause in zip(document["causes"], self.causes, strict=True):
            written["sentence"] = cause.sentence()
        return document


def causes(
    before: Trace | PathLike,
    after: Trace | PathLike,
    *,
    change: float | None = None,
    findings: bool = True,
) -> Causes:
    """Says what makes `after` slower or faster than `before`.

    Args:
        before: A trace, or its path.
        after: Another of the same program.
        change: What runs without a profiler have shown, after / before - 1: its direction is then
            explained, also where the recordings were disturbed and differ the other way.
        findings: Diagnose both, for findings that came or went and their price.

    Raises:
        MissingFileError: A path does not exist.
        ParseError: It holds no trace.
    """
    first, second = _loaded(before), _loaded(after)
    rows = cause_rows(first, second)
    found = _Contributors(rows, change).ordered()
    came_and_went, price = _findings(first, second, rows) if findings else ({}, None)
    return Causes(
        difference_ns=rows.difference_ns,
        before_step_ns=rows.before_step_ns,
        after_step_ns=rows.after_step_ns,
        basis=rows.basis,
        causes=tuple(found),
        moved=tuple(_moves(rows)),
        findings=came_and_went or {"appeared": (), "gone": ()},
        price=price,
        notes=(*rows.notes, *_notes(rows, change)),
    )


def _loaded(given: Trace | PathLike) -> Trace:
    if not isinstance(given, (str, os.PathLike)):
        return given
    from torchtraceap.trace.load import load

    return load(given)


def _notes(rows: CauseRows, change: float | None) -> Iterable[str]:
    recorded = rows.difference_ns / rows.before_step_ns if rows.before_step_ns else 0.0
    if change is not None and abs(recorded - change) > max(DISTURBED, abs(change)):
        yield (
            f"The recordings differ by {100 * recorded:+.1f} %, runs without a profiler by "
            f"{100 * change:+.1f} %: something else ran on the machine, or the profiler weighs on "
            "one of them more."
        )
    if rows.factor != 1.0:
        yield (
            f"All work takes {rows.factor:.3g} times as long: another clock, another load of the "
            "machine or other settings of it rather than a change of the program."
        )
    if min(rows.steps) < 3:
        yield "Fewer than 3 whole steps on a side: what is noise is hardly known."


def _moves(rows: CauseRows) -> Iterable[dict[str, Any]]:
    least = LEAST_MOVED * max(rows.before_step_ns, rows.after_step_ns)
    together: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Move]] = defaultdict(list)
    for move in rows.moves:
        if move.before == move.after:  # of other shapes, at the same place
            continue
        together[_parted(move.before, move.after)].append(move)
    sums = sorted(((sum(m.ns for m in moves), place, moves) for place, moves in together.items()),
                  key=lambda entry: (-entry[0], entry[1]))  # fmt: skip
    for ns, (before, after), moves in sums[:MOST_MOVES]:
        if ns >= least:
            names = list(dict.fromkeys(move.name for move in moves))
            yield {
                "name": _listed(names),
                "before": " / ".join(before),
                "after": " / ".join(after),
                "ns": ns,
            }


def _parted(
    before: tuple[str, ...], after: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Places as far as they differ: up to and with the first name that is not shared."""
    shared = 0
    while shared < min(len(before), len(after)) and before[shared] == after[shared]:
        shared += 1
    return before[: shared + 1], after[: shared + 1]


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


# ---------------------------------------------------------------------------------- contributors


Rows = list[CauseRow]


class _Contributors:
    """Takes one contributor after the other out of the rows; see Note [Contributors]."""

    def __init__(self, rows: CauseRows, change: float | None) -> None:
        self._rows = rows
        self._sign = 1 if (change if change else rows.difference_ns) >= 0 else -1

    def ordered(self) -> list[Cause]:
        """All causes, in the order in which they are told; they sum to the difference."""
        rows = self._rows
        found = self._found()
        sums: list[Cause] = []
        if rows.factor != 1.0:
            name = f"(all work, {rows.factor:.3g} times as long)"
            sums.append(self._sum(name, round(rows.common_ns), "common", beyond=True))
        if rows.noise_ns:
            sums.append(self._sum(NOISE, rows.noise_ns, "noise"))
        left = rows.difference_ns - sum(cause.delta_ns for cause in (*found, *sums))
        if left:
            sums.append(self._sum(OTHERS, left, "others"))
        told = [cause for cause in found if cause.beyond_noise]
        hardly = [cause for cause in found if not cause.beyond_noise]
        if rows.scatter > DISTURBED:  # counts hold where clocks don't
            told.sort(key=lambda cause: not _changes_calls(cause))
        if told:
            return [*told, *hardly, *sums]
        # Nothing is sure: what is largest comes first, whatever it is.
        rest = [cause for cause in sums if cause.kind == "others"]
        known = [*hardly, *(cause for cause in sums if cause.kind != "others")]
        return [*sorted(known, key=lambda cause: -abs(cause.delta_ns)), *rest]

    def _found(self) -> list[Cause]:
        left = list(self._rows.rows)
        left_ns = self._rows.difference_ns - self._rows.common_ns - self._rows.noise_ns
        least = LEAST_SHARE * min(abs(self._rows.difference_ns), abs(left_ns))
        found: list[Cause] = []
        while len(found) < MOST_CAUSES and left:
            place, taken = self._largest(left)
            if {row.name for row in taken} == {PYTHON}:
                taken = self._with_calls(taken, left)
            ns = _sum(taken)
            if self._sign * ns < least or round(ns) == 0:
                break
            found.append(self._cause(place, taken))
            gone = {id(row) for row in taken}
            left = [row for row in left if id(row) not in gone]
        return sorted(found, key=lambda cause: -self._sign * cause.delta_ns)

    def _largest(self, rows: Rows) -> tuple[tuple[str, ...], Rows]:
        """The place and rows of the next contributor."""
        place: tuple[str, ...] = ()
        while True:
            children = self._children(rows, len(place))
            if not children:
                return place, rows
            name, below = max(children.items(), key=lambda item: self._sign * _sum(item[1]))
            if not place:
                alike = self._by_name(rows)
                if self._net(alike, rows) > NO_MORE_THAN * self._sign * _sum(below):
                    return (alike[0].name,), alike
            elif not self._is_followed(rows, below, children.values()):
                alike = self._by_name(rows)
                return (place, alike) if self._stands_for(alike, rows) else (place, rows)
            place, rows = (*place, name), below

    def _with_calls(self, python: Rows, rows: Rows) -> Rows:
        """What Python takes between operators is that of those that it calls more often now."""
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

    def _is_followed(self, rows: Rows, below: Rows, children: Iterable[Rows]) -> bool:
        if self._stands_for(below, rows):
            return True
        sums = sorted((self._sign * _sum(child) for child in children), reverse=True)
        whole = self._sign * _sum(rows)
        next_ns = sums[1] if len(sums) > 1 else 0.0
        return LARGE_CHILD * whole <= sums[0] <= NO_MORE_THAN * whole and next_ns < sums[0] / 2

    def _stands_for(self, some: Rows, rows: Rows) -> bool:
        part, whole = self._sign * _sum(some), self._sign * _sum(rows)
        return MOST_OF * whole <= part <= NO_MORE_THAN * whole

    @staticmethod
    def _children(rows: Rows, depth: int) -> dict[str, Rows]:
        """Rows by the next name of their place, the row's own at its end."""
        found: defaultdict[str, Rows] = defaultdict(list)
        for row in rows:
            if depth <= len(row.place):
                found[(*row.place, row.name)[depth]].append(row)
        return found if sum(map(len, found.values())) == len(rows) else {}

    def _by_name(self, rows: Rows) -> Rows:
        """The rows of one name that together have most."""
        found: defaultdict[tuple[str, str], Rows] = defaultdict(list)
        for row in rows:
            found[row.name, row.kind].append(row)
        return max(found.values(), key=lambda some: self._sign * _sum(some))

    def _net(self, some: Rows, rows: Rows) -> float:
        """What rows of one name make, of which no more counts than what is left of their places:
        what came in the stead of something else is no cause of its own."""
        of_place: defaultdict[tuple[str, ...], float] = defaultdict(float)
        mine: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for row in rows:
            of_place[row.place] += self._sign * row.delta_ns
        for row in some:
            mine[row.place] += self._sign * row.delta_ns
        return sum(min(ns, NO_MORE_THAN * max(0.0, of_place[p])) for p, ns in mine.items())

    def _cause(self, place: tuple[str, ...], rows: Rows) -> Cause:
        by_size = sorted(rows, key=lambda row: -self._sign * row.delta_ns)
        leading = by_size[0]
        differing = [row for row in by_size if row.delta_ns]
        names = list(dict.fromkeys(row.name for row in differing))
        one = len(names) <= 1
        named = [row for row in rows if row.name == leading.name]
        noise = math.hypot(*(r.noise_ns for r in rows), sum(r.varies_ns for r in rows))
        ns = _sum(rows)
        name, path = self._called(place, names, leading, rows)
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
            parts=tuple(_part(row) for row in by_size[:MOST_PARTS]) if len(differing) > 1 else (),
        )

    def _shared_place(self, rows: Rows) -> tuple[str, ...]:
        """The innermost place with most of what the rows differ by."""
        place: tuple[str, ...] = ()
        while True:
            below: defaultdict[str, Rows] = defaultdict(list)
            for row in rows:
                if len(row.place) > len(place) and row.place[: len(place)] == place:
                    below[row.place[len(place)]].append(row)
            largest = max(below.items(), key=lambda b: self._sign * _sum(b[1]), default=None)
            if largest is None or not self._stands_for(largest[1], rows):
                return place
            place = (*place, largest[0])

    def _called(
        self, place: tuple[str, ...], names: Sequence[str], leading: CauseRow, rows: Rows
    ) -> tuple[str, str]:
        """Name and path of a contributor."""
        inside = place[:-1] if place and place[-1] == leading.name else place
        if len(names) <= 1:
            own = self._shared_place(rows) or inside
            if leading.kind == "idle":
                title, *modules = leading.place
                event = "" if leading.name == title else f" ({leading.name})"
                return f"{title}{event}", " / ".join(modules)
            return leading.name, " / ".join(own)
        if leading.kind == "idle" and place and place[0] == leading.place[0]:
            return f"{place[0]} ({_listed(names)})", " / ".join(place[1:])
        if not place or place == (PYTHON,):
            calls = [row for row in rows if row.name != PYTHON]
            return _listed(names), " / ".join(self._shared_place(calls))
        above = " / ".join(place[:-1])
        # An operator stands for what it calls.
        mine = place[-1] == names[0] or all(len(row.place) >= len(place) for row in rows)
        whole = mine and "::" in place[-1]
        return (place[-1] if whole else f"{place[-1]} ({_listed(names)})"), above

    def _sum(self, name: str, ns: int, kind: str, *, beyond: bool = False) -> Cause:
        return Cause(name, ns, self._share(ns), kind, "", None, None, None, beyond)

    def _share(self, ns: float) -> float:
        whole = self._rows.difference_ns
        return ns / whole if whole else 0.0


def _changes_calls(cause: Cause) -> bool:
    """Whether something is called more or less often than before."""
    if cause.before_calls is not None and cause.after_calls is not None:
        return abs(cause.after_calls - cause.before_calls) > EQUAL_CALLS * cause.before_calls
    return any(
        abs(part["after_calls"] - part["before_calls"]) > EQUAL_CALLS * part["before_calls"]
        for part in cause.parts
    )


def _sum(rows: Iterable[CauseRow]) -> float:
    return sum(row.delta_ns for row in rows)


def _part(row: CauseRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "delta_ns": round(row.delta_ns),
        "before_calls": row.before_calls,
        "after_calls": row.after_calls,
    }


# ---------------------------------------------------------------------------------- findings


def _findings(
    before: Trace, after: Trace, rows: CauseRows
) -> tuple[dict[str, tuple[dict[str, Any], ...]], dict[str, Any] | None]:
    """Findings that only one side has, and the price of the dearest that came."""
    was, now = before.diagnose(), after.diagnose()
    known = {finding.type for finding in was.findings}, {finding.type for finding in now.findings}
    appeared = [_told(f, was) for f in now.findings if f.type not in known[0]]
    gone = [_told(f, now) for f in was.findings if f.type not in known[1]]
    priced = [entry for entry in appeared if entry["saving_ns"]]
    price = None
    if priced and rows.difference_ns:
        dearest = max(priced, key=lambda entry: int(entry["saving_ns"]))
        price = {
            "finding": dearest["type"],
            "saving_ns": dearest["saving_ns"],
            "share": dearest["saving_ns"] / rows.difference_ns,
            "method": dearest["method"],
            "per_step": dearest["per_step"],
        }
    return {"appeared": tuple(appeared), "gone": tuple(gone)}, price


def _told(finding: Finding, other: Diagnosis) -> dict[str, Any]:
    """A finding, and what the other side says of it: "absent" or "unknown"."""
    verdicts: Mapping[str, str] = {**other.verdicts, **other.further_verdicts}
    saving = finding.saving
    return {
        "type": finding.type,
        "title": finding.title,
        "cost_ns": finding.cost_ns,
        "saving_ns": saving.believed_ns if saving else None,
        "per_step": saving.per_step if saving else None,
        "method": saving.method if saving else None,
        "other_side": verdicts.get(finding.type, "unknown"),
    }


def causes_text(found: Causes) -> str:
    """The causes as lines for a terminal."""
    sign = "+" if found.difference_ns > 0 else ""
    lines = [f"step {format_ns(found.before_step_ns)} → {format_ns(found.after_step_ns)} "
             f"({sign}{format_ns(found.difference_ns)})"]  # fmt: skip
    for cause in found.causes:
        plus = "+" if cause.delta_ns > 0 else ""
        lines.append(f"  {plus}{format_ns(cause.delta_ns):>10} {100 * cause.share:6.0f} %  "
                     f"{cause.sentence()}")  # fmt: skip
    lines += [
        f"  moved: {entry['name']} from {entry['before'] or 'the step'} to "
        f"{entry['after'] or 'the step'} ({format_ns(entry['ns'])})"
        for entry in found.moved
    ]
    for when, entries in found.findings.items():
        lines += [f"  {when}: {entry['title']}" for entry in entries]
    if found.price:
        saving = format_ns(found.price["saving_ns"])
        lines.append(f"  fixing {found.price['finding']} would save {saving} "
                     f"({100 * found.price['share']:.0f} % of the difference)")  # fmt: skip
    return "\n".join(lines)
