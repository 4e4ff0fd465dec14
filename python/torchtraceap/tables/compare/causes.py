"""Attribution of a difference between two recordings to named contributors, largest first.

Note [Typical rows]: One step in ten stands still for a millisecond because the machine did
something else, and that millisecond falls on whichever call ran. So each row counts with the mean
over the middle half of its own values, not with those of the middle steps; what the recordings
differ by beyond that is noise between steps, a row of its own.

Note [Cost that moved]: Work that went at one place and came at another has moved: a module got
another name, a call went into a function or to another stream. Calls that are lost under a name
are paired with calls that are gained under it, by shapes and number, and count with what they
differ by.

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
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.tables.compare.alignment import Comparison
from torchtraceap.tables.compare.noise import (
    EQUAL_CALLS,
    LARGEST_SPREAD,
    CommonFactor,
    common_factor,
    recording_noise_ns,
    step_noise_ns,
)
from torchtraceap.tables.compare.rows import StepRows, join_names, step_rows
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.steps.pieces import first_idle_part, part_titles
from torchtraceap.trace.ranks import Ranks

__all__ = ["Attribution", "Cause", "CauseRow", "CauseRows", "attribute"]

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
PYTHON = "(Python between operators)"
"""The name of time that a step spends outside of every operator and range."""
_NUMBERED = re.compile(r"_\d+$")
_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)(?: of .*)?>")
_WRAPPERS = ("nn.Module: ", "autograd::engine::evaluate_function: ")
_NAMED_MODULES = ("python_frames", "module_hierarchy", "hlo_module")

Place = tuple[str, ...]
Move = tuple[str, Place, Place, int]
"""Work that changed its place: name, place before and after, and the time per step in ns that only
moved."""


@dataclass(frozen=True)
class CauseRow:
    """An operator, kernel, frame or idle cause at its place."""

    name: str
    place: Place
    """The modules and then the calls around it, outermost first; for idle time, its cause leads."""
    kind: str
    """"operator", "idle", "kernel" or "frame"."""
    part: str
    """A name of `_core.step_part_names()`: class of GPU work, idle cause or host."""
    dims: str | None
    before_ns: float
    after_ns: float
    delta_ns: float
    """The difference without a common factor and without work that moved."""
    noise_ns: float
    """The largest difference that chance between steps explains; 0 if unknown."""
    varies_ns: float
    """The largest difference that chance between recordings explains, alike for a whole place."""
    before_calls: float
    after_calls: float


@dataclass(frozen=True)
class CauseRows:
    """All rows of a difference."""

    rows: tuple[CauseRow, ...]
    moves: tuple[Move, ...]
    """The largest first."""
    common: CommonFactor
    common_ns: float
    """The part of the difference that the common factor makes."""
    noise_ns: int
    """The rest of the difference of the median steps that no row and no factor explains."""
    comparison: Comparison


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
        """Return the rows of the name with the largest sum."""
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
        """Return the name and the path of a contributor."""
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


# ---------------------------------------------------------------------------------- rows


def cause_rows(before: Ranks, after: Ranks, *, tested: int) -> CauseRows:
    """Return the rows of a difference with what each of them may differ by chance.

    Args:
        before: Recording A.
        after: Recording B.
        tested: The number of causes that are judged together, for the level of significance.
    """
    found = step_rows(before, after)
    comparison = found.comparison
    ns = [cells.middle_means() for cells in found.cells]
    names = _Names(found)
    is_work = ~names.is_idle
    common = common_factor(ns, names.calls, is_work)
    delta = ns[1] - np.where(is_work, common.factor, 1.0) * ns[0]
    moves = _net_moves(names, delta)
    noise = np.nan_to_num(step_noise_ns(found.cells, tested))
    varies = recording_noise_ns(ns, common, tested)
    kept = np.flatnonzero((ns[0] > 0) | (ns[1] > 0)).tolist()
    return CauseRows(
        rows=tuple(
            CauseRow(
                name=names.name[i],
                place=names.place[i],
                kind=names.kind[i],
                part=names.part[i] or "",
                dims=names.dims[i],
                before_ns=float(ns[0][i]),
                after_ns=float(ns[1][i]),
                delta_ns=float(delta[i]),
                noise_ns=float(noise[i]),
                varies_ns=float(varies[i]),
                before_calls=float(names.calls[0][i]),
                after_calls=float(names.calls[1][i]),
            )
            for i in kept
        ),
        moves=tuple(sorted(moves, key=lambda move: -move[3])),
        common=common,
        common_ns=float((common.factor - 1) * ns[0][is_work].sum()),
        noise_ns=comparison.difference_ns - round(float((ns[1] - ns[0]).sum())),
        comparison=comparison,
    )


class _Names:
    """Names, places and kinds of the rows, as lists."""

    def __init__(self, found: StepRows) -> None:
        columns = found.columns
        self.part = _texts(columns["part"])
        idle = set(_core.step_part_names()[first_idle_part() :])
        titles = dict(zip(_core.step_part_names(), part_titles(), strict=True))
        self.is_idle = np.asarray([part in idle for part in self.part], dtype=bool)
        self.dims = _texts(columns["dims"])
        self.calls: list[Array] = []
        for when in ("before", "after"):
            calls = columns[f"{when}_calls"]
            assert not isinstance(calls, TextCodes)
            self.calls.append(np.asarray(np.ma.filled(calls, 0), dtype=np.float64))
        matched = _texts(columns["matched_by"])
        paths = [(text or "").split(" / ") if text else [] for text in _texts(columns["path"])]
        modules = _modules_of_rows(found)
        self.name: list[str] = []
        self.place: list[Place] = []
        self.kind: list[str] = []
        for i, text in enumerate(_texts(columns["name"])):
            title = titles.get(self.part[i] or "", "")
            if self.is_idle[i]:
                event = (text or "").removeprefix(title).strip(" ()")
                self.name.append(plain_name(event) or title)
                self.place.append((title, *modules[i]))
                self.kind.append("idle")
                continue
            inside = [
                part for part in paths[i] if not (modules[i] and part.startswith(_WRAPPERS[0]))
            ]
            around = [plain_name(part) for part in inside]
            # The engine's range around a backward operator has the operator's own name.
            once = [name for j, name in enumerate(around) if j == 0 or name != around[j - 1]]
            self.name.append(plain_name(text or "(no recorded call)"))
            self.place.append((*modules[i], *once))
            is_op, on_host = matched[i] is not None, self.part[i] == "host"
            self.kind.append("operator" if is_op else "frame" if on_host else "kernel")


def _texts(column: Column) -> list[str | None]:
    assert isinstance(column, TextCodes)
    return column.to_list()


def plain_name(name: str) -> str:
    """Return a name as it is compared between places: without class, address and number."""
    built_in = _BUILT_IN.fullmatch(name)
    if built_in:
        return built_in[1]
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper)
    if name.startswith(("Optimizer.", "enumerate(DataLoader)")):
        return name.split("#")[0]
    return PYTHON if name.startswith("ProfilerStep#") else name


def _modules_of_rows(found: StepRows) -> list[Place]:
    """Return the module path in which each row spends most time, outermost first; () if unknown."""
    best = np.zeros(found.cells[0].rows)
    chosen: list[Place] = [()] * len(best)
    for side, row_of in zip(found.comparison.sides, found.row_of, strict=True):
        begin = 0
        for cut in side.cuts:
            of_cut = row_of[begin : begin + len(cut.row)]
            begin += len(cut.row)
            part = cut.part
            tree = _core.build_modules(part.table, part.tree, part.costs)
            if tree.source not in _NAMED_MODULES:
                continue
            names, parents = tree.names, tree.parent.tolist()
            paths: list[Place] = [()] * len(names)  # empty for what is outside of modules
            for node in tree.preorder.tolist():
                above = parents[node]
                if node and above != _core.NO_ROW:
                    paths[node] = (*paths[above], _NUMBERED.sub("", names[node]))
            known = np.flatnonzero(cut.row != _core.NO_ROW)
            keys = of_cut[known] * len(paths) + tree.node_of[cut.row[known]].astype(np.int64)
            groups = Groups(keys)
            spent_ns = groups.sum(cut.ns[known]).tolist()
            for key, ns in zip(keys[groups.first].tolist(), spent_ns, strict=True):
                row, node = divmod(key, len(paths))
                if ns > best[row]:
                    best[row], chosen[row] = ns, paths[node]
    return chosen


# ---------------------------------------------------------------------------------- moves


def _net_moves(names: _Names, delta: Array) -> list[Move]:
    """Pair lost calls with gained ones; `delta` keeps their difference at the gained call."""
    groups: defaultdict[tuple[str, str], tuple[list[int], list[int]]] = defaultdict(
        lambda: ([], [])
    )
    change = names.calls[1] - names.calls[0]
    for i in np.flatnonzero(np.abs(change) > EQUAL_CALLS * np.maximum(*names.calls)).tolist():
        groups[names.name[i], names.kind[i]][int(change[i] > 0)].append(i)
    moves = []
    for lost, gained in groups.values():
        if not (lost and gained):
            continue
        for from_rows, to_rows in _pairs(names, change, lost, gained):
            went, came = -float(delta[list(from_rows)].sum()), float(delta[list(to_rows)].sum())
            largest = max(to_rows, key=lambda row: float(delta[row]))
            source = max(from_rows, key=lambda row: -float(delta[row]))
            delta[[*from_rows, *to_rows]] = 0.0
            delta[largest] = came - went
            moved_ns = max(0, round(min(went, came)))
            moves.append((names.name[largest], names.place[source], names.place[largest], moved_ns))
    return moves


def _pairs(
    names: _Names, change: Array, lost: Sequence[int], gained: Sequence[int]
) -> Iterable[tuple[Sequence[int], Sequence[int]]]:
    """Yield lost and gained rows of equally many calls: all of them, or one of each."""
    if _is_equal(-float(change[list(lost)].sum()), float(change[list(gained)].sum())):
        yield lost, gained
        return
    free = list(gained)
    for i in sorted(lost, key=lambda row: float(change[row])):
        fitting = [j for j in free if _is_equal(-change[i], change[j])]
        if fitting:
            j = min(fitting, key=lambda row: (names.dims[row] != names.dims[i], row))
            free.remove(j)
            yield [i], [j]


def _is_equal(lost: float, gained: float) -> bool:
    return abs(lost - gained) <= EQUAL_CALLS * max(lost, gained)
