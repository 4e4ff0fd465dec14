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
from torchtraceap.tables.compare.alignment import Comparison, Side
from torchtraceap.tables.compare.diff import StepRows, step_rows
from torchtraceap.tables.compare.noise import (
    EQUAL_CALLS,
    CommonFactor,
    common_factor,
    recording_noise_ns,
    step_noise_ns,
)
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.steps.pieces import first_idle_part, part_titles
from torchtraceap.trace.ranks import Ranks

__all__ = ["PYTHON", "CauseRow", "CauseRows", "Move", "cause_rows"]

PYTHON = "(Python between operators)"
"""The name of time that a step spends outside of every operator and range."""
_NUMBERED = re.compile(r"_\d+$")
_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)(?: of .*)?>")
_WRAPPERS = ("nn.Module: ", "autograd::engine::evaluate_function: ")
_NAMED_MODULES = ("python_frames", "module_hierarchy", "hlo_module")


@dataclass(frozen=True)
class CauseRow:
    """An operator, kernel, frame or idle cause at its place."""

    name: str
    place: tuple[str, ...]
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
class Move:
    """Work that changed its place."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    ns: int
    """Time per step that only moved."""


@dataclass(frozen=True)
class CauseRows:
    """All rows of a difference."""

    rows: tuple[CauseRow, ...]
    moves: tuple[Move, ...]
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
        moves=tuple(sorted(moves, key=lambda move: -move.ns)),
        common=common,
        common_ns=float((common.factor - 1) * ns[0][is_work].sum()),
        noise_ns=comparison.difference_ns - round(float((ns[1] - ns[0]).sum())),
        comparison=comparison,
    )


# ---------------------------------------------------------------------------------- names


class _Names:
    """Names, places and kinds of the rows, as lists."""

    def __init__(self, found: StepRows) -> None:
        columns = found.columns
        self.part = _texts(columns["part"])
        idle = set(_core.step_part_names()[first_idle_part() :])
        titles = dict(zip(_core.step_part_names(), part_titles(), strict=True))
        self.is_idle = np.asarray([part in idle for part in self.part], dtype=bool)
        self.dims = _texts(columns["dims"])
        self.calls = [_floats(columns["before_calls"]), _floats(columns["after_calls"])]
        matched = _texts(columns["matched_by"])
        paths = [(text or "").split(" / ") if text else [] for text in _texts(columns["path"])]
        modules = _modules_of_rows(found)
        self.name: list[str] = []
        self.place: list[tuple[str, ...]] = []
        self.kind: list[str] = []
        for i, text in enumerate(_texts(columns["name"])):
            title = titles.get(self.part[i] or "", "")
            if self.is_idle[i]:
                event = (text or "").removeprefix(title).strip(" ()")
                self.name.append(plain_name(event) or title)
                self.place.append((title, *modules[i]))
                self.kind.append("idle")
                continue
            self.name.append(plain_name(text or "(no recorded call)"))
            self.place.append(_place(modules[i], paths[i]))
            self.kind.append(_kind(self.part[i], matched[i]))


def _texts(column: Column) -> list[str | None]:
    assert isinstance(column, TextCodes)
    return column.to_list()


def _floats(column: Column) -> Array:
    assert not isinstance(column, TextCodes)
    return np.asarray(np.ma.filled(column, 0), dtype=np.float64)


def _kind(part: str | None, matched: str | None) -> str:
    if matched is not None:
        return "operator"
    return "frame" if part == "host" else "kernel"


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


def _place(modules: tuple[str, ...], path: Iterable[str]) -> tuple[str, ...]:
    calls = [plain_name(part) for part in path if not (modules and part.startswith(_WRAPPERS[0]))]
    # The engine's range around a backward operator has the operator's own name.
    once = [call for i, call in enumerate(calls) if i == 0 or call != calls[i - 1]]
    return (*modules, *once)


def _modules_of_rows(found: StepRows) -> list[tuple[str, ...]]:
    """Return the module path in which each row spends most time, outermost first; () if unknown."""
    rows = found.cells[0].rows
    best = np.zeros(rows)
    chosen: list[tuple[str, ...]] = [()] * rows
    for side, row_of in zip(found.comparison.sides, found.row_of, strict=True):
        for row, ns, path in _module_times(side, row_of):
            if ns > best[row]:
                best[row], chosen[row] = ns, path
    return chosen


def _module_times(side: Side, row_of: Array) -> Iterable[tuple[int, float, tuple[str, ...]]]:
    """Yield row, ns and module path for every pair of row and module with time."""
    begin = 0
    for cut in side.cuts:
        of_cut = row_of[begin : begin + len(cut.row)]
        begin += len(cut.row)
        part = cut.part
        tree = _core.build_modules(part.table, part.tree, part.costs)
        if tree.source not in _NAMED_MODULES:
            continue
        paths = _module_paths(tree)
        known = np.flatnonzero(cut.row != _core.NO_ROW)
        node = tree.node_of[cut.row[known]].astype(np.int64)
        keys = of_cut[known] * len(paths) + node
        groups = Groups(keys)
        for key, ns in zip(keys[groups.first].tolist(), groups.sum(cut.ns[known]).tolist(),
                           strict=True):  # fmt: skip
            row, place = divmod(key, len(paths))
            yield row, ns, paths[place]


def _module_paths(tree: _core.ModuleTree) -> list[tuple[str, ...]]:
    """Return the path of each node; () for what is outside of modules."""
    names, parents = tree.names, tree.parent.tolist()
    paths: list[tuple[str, ...]] = [()] * len(names)
    for node in tree.preorder.tolist():
        above = parents[node]
        if node and above != _core.NO_ROW:
            paths[node] = (*paths[above], _NUMBERED.sub("", names[node]))
    return paths


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
        if lost and gained:
            for from_rows, to_rows in _pairs(names, change, lost, gained):
                moves.append(_move(names, delta, from_rows, to_rows))
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


def _move(names: _Names, delta: Array, lost: Sequence[int], gained: Sequence[int]) -> Move:
    went, came = -float(delta[list(lost)].sum()), float(delta[list(gained)].sum())
    largest = max(gained, key=lambda row: float(delta[row]))
    source = max(lost, key=lambda row: -float(delta[row]))
    for row in (*lost, *gained):
        delta[row] = 0.0
    delta[largest] = came - went
    ns_moved = max(0, round(min(went, came)))
    return Move(names.name[largest], names.place[source], names.place[largest], ns_moved)
