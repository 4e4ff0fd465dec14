"""Rows of a difference made ready to be told: robust, at their module, moved work netted.

Note [Typical rows]: one step in ten stands still for a millisecond because the machine did
something else, and that millisecond falls on whichever call ran. So each row counts with the mean
over the middle half of its own values, not with those of the middle steps; what the recordings
differ by beyond that is noise between steps, a row of its own.

Note [Everything slower]: a machine that runs at another clock, or shares its memory with others,
stretches all work by one factor. Where most of the work that both recordings have shares a factor,
it is told once, and rows count with what is left. Not all work is stretched alike: what unchanged
rows differ by around the factor is how much a row differs from recording to recording without a
reason.

Note [Cost that moved]: work that went at one place and came at another has moved: a module got
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
from torchtraceap.tables.compare.alignment import Side
from torchtraceap.tables.compare.diff import SIGNIFICANT_SIGMAS, StepRows, step_rows
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.steps.pieces import NORMAL_MAD, first_idle_part, part_titles
from torchtraceap.trace.ranks import Ranks

__all__ = ["EQUAL_CALLS", "PYTHON", "CauseRow", "CauseRows", "Move", "cause_rows"]

LEAST_COMMON = 0.02
"""A factor closer to 1 is not told apart from what the work varies by."""
COMMON_SHARE = 0.5
"""Of the work that both have, how much has to share a factor."""
MOST_WEIGHT = 0.05
"""Of all work, that one row may weigh in the factor: a change in a large row is no common one."""
SCATTERS = 2.0
"""Standard deviations of what unchanged rows differ by, within which a row is not told first."""
EQUAL_CALLS = 0.02
"""Numbers of calls that differ by less are those of the same work."""

PYTHON = "(Python between operators)"
"""What a step does itself, outside of every operator and range."""
_NUMBERED = re.compile(r"_\d+$")
_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)(?: of .*)?>")
_WRAPPERS = ("nn.Module: ", "autograd::engine::evaluate_function: ")
_NAMED_MODULES = ("python_frames", "module_hierarchy", "hlo_module")


@dataclass(frozen=True)
class CauseRow:
    """An operator, kernel, frame or idle cause at its place."""

    name: str
    place: tuple[str, ...]
    """Modules, or of idle time its cause first, then calls around it from the outermost in."""
    kind: str
    """"operator", "idle", "kernel" or "frame"."""
    part: str
    """Class of GPU work, idle cause or host."""
    dims: str | None
    before_ns: float
    after_ns: float
    delta_ns: float
    """What is left of the difference after a common factor and what moved."""
    noise_ns: float
    """So much it may differ by chance, from step to step."""
    varies_ns: float
    """So much it may differ from recording to recording, together with others of its place."""
    before_calls: float
    after_calls: float


@dataclass(frozen=True)
class Move:
    """Work that is at another place than it was."""

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
    factor: float
    """By which everything is slower; 1 where nothing is common."""
    scatter: float
    """How far unchanged rows differ around that factor, as a logarithm."""
    common_ns: float
    """What that makes of the difference."""
    noise_ns: int
    """What is left to the difference of the median steps."""
    difference_ns: int
    before_step_ns: int
    after_step_ns: int
    basis: str
    steps: tuple[int, int]
    notes: tuple[str, ...]


def cause_rows(before: Ranks, after: Ranks) -> CauseRows:
    """The rows of a difference.

    Args:
        before: A.
        after: B.
    """
    found = step_rows(before, after)
    comparison = found.comparison
    ns = [cells.middle_means() for cells in found.cells]
    steps = (found.cells[0].steps, found.cells[1].steps)
    sigmas = [cells.sigmas() / np.sqrt(max(1, cells.steps)) for cells in found.cells]
    noise = SIGNIFICANT_SIGMAS * np.hypot(*sigmas)
    names = _Names(found)
    factor, scatter, scaled = _common_factor(names, ns)
    delta = ns[1] - np.where(scaled, factor, 1.0) * ns[0]
    moves = _net_moves(names, ns, delta, factor)
    kept = np.flatnonzero((ns[0] > 0) | (ns[1] > 0))
    varies = np.where((ns[0] > 0) & (ns[1] > 0), SCATTERS * scatter * factor * ns[0], 0.0)
    differ = [delta, noise, varies]
    rows = tuple(names.row(i, ns, [float(each[i]) for each in differ]) for i in kept.tolist())
    typical = float((ns[1] - ns[0]).sum())
    return CauseRows(
        rows=rows,
        moves=tuple(sorted(moves, key=lambda move: -move.ns)),
        factor=factor,
        scatter=scatter,
        common_ns=float((factor - 1) * ns[0][scaled].sum()),
        noise_ns=comparison.difference_ns - round(typical),
        difference_ns=comparison.difference_ns,
        before_step_ns=comparison.step_ns[0],
        after_step_ns=comparison.step_ns[1],
        basis=comparison.basis,
        steps=steps,
        notes=tuple(comparison.notes),
    )


# ---------------------------------------------------------------------------------- names


class _Names:
    """What the rows are called, plain lists."""

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

    def row(self, i: int, ns: Sequence[Array], differ: Sequence[float]) -> CauseRow:
        delta_ns, noise_ns, varies_ns = differ
        return CauseRow(
            name=self.name[i],
            place=self.place[i],
            kind=self.kind[i],
            part=self.part[i] or "",
            dims=self.dims[i],
            before_ns=float(ns[0][i]),
            after_ns=float(ns[1][i]),
            delta_ns=delta_ns,
            noise_ns=noise_ns,
            varies_ns=varies_ns,
            before_calls=float(self.calls[0][i]),
            after_calls=float(self.calls[1][i]),
        )


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
    """A name as it is compared between places: that of a class or an address is left out."""
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
    """The module in which each row has most of its time, outermost first; none where unknown."""
    rows = found.cells[0].rows
    best = np.zeros(rows)
    chosen: list[tuple[str, ...]] = [()] * rows
    for side, row_of in zip(found.comparison.sides, found.row_of, strict=True):
        for row, ns, path in _module_times(side, row_of):
            if ns > best[row]:
                best[row], chosen[row] = ns, path
    return chosen


def _module_times(side: Side, row_of: Array) -> Iterable[tuple[int, float, tuple[str, ...]]]:
    """(row, ns, modules) of every row and module."""
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
    """Of each node; () of what is outside of modules."""
    names, parents = tree.names, tree.parent.tolist()
    paths: list[tuple[str, ...]] = [()] * len(names)
    for node in tree.preorder.tolist():
        above = parents[node]
        if node and above != _core.NO_ROW:
            paths[node] = (*paths[above], _NUMBERED.sub("", names[node]))
    return paths


# ---------------------------------------------------------------------------------- factor


def _common_factor(names: _Names, ns: Sequence[Array]) -> tuple[float, float, Array]:
    """See Note [Everything slower]: the factor, how far unchanged rows differ around it (robust,
    as a logarithm), and bool `[rows]`, those that it may stretch."""
    work = ~names.is_idle
    same = np.abs(names.calls[1] - names.calls[0]) <= EQUAL_CALLS * names.calls[0]
    known = work & same & (ns[0] > 0) & (ns[1] > 0)
    if not known.any():
        return 1.0, 0.0, work
    ratio = np.log(ns[1][known] / ns[0][known])
    size = np.sqrt(ns[0][known] * ns[1][known])
    weight = np.minimum(size, MOST_WEIGHT * size.sum())
    middle = _weighted_median(ratio, weight)
    alike = float(weight[np.abs(ratio - middle) <= abs(middle) / 2].sum() / weight.sum())
    if abs(middle) < LEAST_COMMON or alike < COMMON_SHARE:
        middle = 0.0
    scatter = NORMAL_MAD * _weighted_median(np.abs(ratio - middle), weight)
    return float(np.exp(middle)), scatter, work


def _weighted_median(values: Array, weight: Array) -> float:
    order = np.argsort(values)
    summed = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(summed, summed[-1] / 2)])


# ---------------------------------------------------------------------------------- moves


def _net_moves(names: _Names, ns: Sequence[Array], delta: Array, factor: float) -> list[Move]:
    """Pairs what went with what came; what they differ by stays at the place of what came."""
    groups: defaultdict[tuple[str, str], tuple[list[int], list[int]]] = defaultdict(
        lambda: ([], [])
    )
    change = names.calls[1] - names.calls[0]
    for i in np.flatnonzero(np.abs(change) > EQUAL_CALLS * np.maximum(*names.calls)).tolist():
        groups[names.name[i], names.kind[i]][int(change[i] > 0)].append(i)
    moves = []
    for lost, gained in groups.values():
        if lost and gained:
            moves += _paired(names, ns, delta, factor, change, lost, gained)
    return moves


def _paired(
    names: _Names,
    ns: Sequence[Array],
    delta: Array,
    factor: float,
    change: Array,
    lost: Sequence[int],
    gained: Sequence[int],
) -> list[Move]:
    total = -float(change[list(lost)].sum()), float(change[list(gained)].sum())
    if _is_equal(*total):
        return [_moved(names, ns, delta, factor, lost, gained)]
    moves = []
    free = list(gained)
    for i in sorted(lost, key=lambda row: float(change[row])):
        fitting = [j for j in free if _is_equal(-change[i], change[j])]
        if not fitting:
            continue
        j = min(fitting, key=lambda row: (names.dims[row] != names.dims[i], row))
        free.remove(j)
        moves.append(_moved(names, ns, delta, factor, [i], [j]))
    return moves


def _is_equal(lost: float, gained: float) -> bool:
    return abs(lost - gained) <= EQUAL_CALLS * max(lost, gained)


def _moved(
    names: _Names,
    ns: Sequence[Array],
    delta: Array,
    factor: float,
    lost: Sequence[int],
    gained: Sequence[int],
) -> Move:
    went, came = -float(delta[list(lost)].sum()), float(delta[list(gained)].sum())
    largest = max(gained, key=lambda row: float(delta[row]))
    source = max(lost, key=lambda row: -float(delta[row]))
    for row in (*lost, *gained):
        delta[row] = 0.0
    delta[largest] = came - went
    ns_moved = max(0, round(min(went, came)))
    return Move(names.name[largest], names.place[source], names.place[largest], ns_moved)
