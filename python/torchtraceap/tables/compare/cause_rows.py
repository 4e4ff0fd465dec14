"""Rows of a difference prepared for attribution: robust, at their module, moved work netted.

Note [Typical rows]: One step in ten stands still for a millisecond because the machine did
something else, and that millisecond falls on whichever call ran. So each row counts with the mean
over the middle half of its own values, not with those of the middle steps; what the recordings
differ by beyond that is noise between steps, a row of its own.

Note [Cost that moved]: Work that went at one place and came at another has moved: a module got
another name, a call went into a function or to another stream. Calls that are lost under a name
are paired with calls that are gained under it, by shapes and number, and count with what they
differ by.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes
from torchtraceap.core.records import dataclass
from torchtraceap.tables.compare.alignment import Comparison
from torchtraceap.tables.compare.noise import (
    EQUAL_CALLS,
    CommonFactor,
    common_factor,
    recording_noise_ns,
    step_noise_ns,
)
from torchtraceap.tables.compare.rows import StepRows, step_rows
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.steps.pieces import first_idle_part, part_titles
from torchtraceap.trace.ranks import Ranks

__all__ = ["PYTHON", "CauseRow", "CauseRows", "Move", "Place", "cause_rows"]

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
