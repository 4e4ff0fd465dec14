"""Operators: what GPU and host time they cost, by name, family, arguments or call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core import sums
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.table import ColumnTable, take_rows
from torchtraceap.ops.models.families import family_of
from torchtraceap.tables.catalog import PageView, TableSpec, check_choice
from torchtraceap.tables.gpu.gpu_events import row_numbers
from torchtraceap.tables.grouping import Groups, order_by, phases_of, steps_of, threads_of
from torchtraceap.tables.ops.module_paths import modules_of
from torchtraceap.tables.serving.annotations import fill
from torchtraceap.tables.serving.attribution import attribute
from torchtraceap.tables.serving.nodes import graph_nodes
from torchtraceap.trace.ranks import RankTrace

__all__ = ["TABLE", "Owners", "build_ops"]

KINDS = ("operator", "launch", "no launch", "hlo operation", "replayed operator")
_OPERATOR, _LAUNCH, _ORPHAN, _HLO, _REPLAYED = range(5)
ORPHAN_NAME = "(no launch in the trace)"

_STATISTICS = ("mean", "median", "std", "min", "max")
_ARGUMENTS = {
    "input_dims": "Input Dims",
    "input_types": "Input type",
    "input_strides": "Input Strides",
    "concrete_inputs": "Concrete Inputs",
}


class Owners:
    """All that can own GPU time, by start: calls of operators, launch calls that no operator
    encloses, GPU events whose launch the trace lacks, and calls of operators that were recorded
    into a graph, as far as they are known, each behind the call that replays it.

    Attributes:
        part: The rank.
        names: Names by code.
        of_event: int64 `[gpu rows]`: the place of the owner of each of `tree.gpu_rows`.
        rows: int64 `[n]`, as the next: row of the operator or launch call; of the GPU event itself
            where it has no launch.
        kind: Index in KINDS.
        name: Index in `names`.
        exclusive_ns: Exclusive time of the GPU events that the call owns; sums to the busy time.
        own_ns: Union of the GPU events that it owns.
        subtree_ns: Union of the GPU events launched in it or below.
        gpu_events: GPU events that it owns.
        launches: Launch calls that it owns.
        host_ns: Its duration, 0 for GPU events.
        self_host_ns: The part of it in which it is the innermost row.
        backward_ns: GPU time of the backward operators that go back to it.
        subtree_backward_ns: The same for it and all below.
        outermost: bool `[n]`: no call of the same name encloses it.
    """

    def __init__(self, part: RankTrace) -> None:
        table, tree, costs = part.table, part.tree, part.costs
        is_op = np.zeros(len(table), dtype=bool)
        host_rows = tree.host_rows
        is_op[host_rows] = table.kind[host_rows] == _core.EventKind.CPU_OP
        is_launch = (costs.own_gpu_events > 0) & ~is_op
        is_orphan = np.zeros(len(table), dtype=bool)
        is_orphan[tree.gpu_rows] = costs.owner[tree.gpu_rows] == _core.NO_ROW
        self.part = part
        self.rows: Array = np.flatnonzero(is_op | is_launch | is_orphan)
        rows = self.rows
        self.kind: Array = np.select([is_op[rows], is_launch[rows]], [_OPERATOR, _LAUNCH], _ORPHAN)
        orphan = self.kind == _ORPHAN
        self.names = [*table.strings, ORPHAN_NAME]
        self.name: Array = np.where(orphan, len(self.names) - 1, table.name[rows].astype(np.int64))
        hlo = _hlo_operations(part, rows, self.kind)
        if hlo is not None:
            self.kind = np.where(hlo.codes >= 0, _HLO, self.kind)
            self.name = np.where(hlo.codes >= 0, len(self.names) + hlo.codes, self.name)
            self.names += hlo.texts
        duration = table.dur_ns[rows]

        def of_host(values: Array, for_orphans: Array | int = 0) -> Array:
            return np.where(orphan, for_orphans, values[rows].astype(np.int64))

        self.exclusive_ns = of_host(costs.owned_exclusive_ns, costs.exclusive_ns[rows])
        self.own_ns = of_host(costs.own_gpu_ns, duration)
        self.subtree_ns = of_host(costs.subtree_gpu_ns, duration)
        self.gpu_events = of_host(costs.own_gpu_events, 1)
        self.launches = of_host(costs.own_launches)
        self.host_ns: Array = np.where(orphan, 0, duration)
        self.self_host_ns = of_host(costs.self_host_ns)
        self.backward_ns = of_host(costs.backward_gpu_ns)
        self.subtree_backward_ns = of_host(costs.subtree_backward_gpu_ns)
        self.outermost: Array = orphan | (costs.is_repeated[rows] == 0)
        owner = costs.owner[tree.gpu_rows]
        self.of_event: Array = np.searchsorted(
            rows, np.where(owner == _core.NO_ROW, tree.gpu_rows, owner)
        )
        self._split_replays()

    def _split_replays(self) -> None:
        """Take what graphs replay from the owner of the launch, for the operators behind it."""
        part, known = self.part, attribute(self.part)
        events = np.flatnonzero(graph_nodes(part).replayed & (known.operator.codes >= 0))
        if not len(events):
            return
        call = np.full(len(events), -1, dtype=np.int64)
        source, captured = known.captured_part[events], known.captured_row[events]
        for number, each in enumerate(known.captures):
            own = source == number
            call[own] = each.tree.op[captured[own]]
        rows = part.tree.gpu_rows[events]
        launch = part.tree.launch[rows].astype(np.int64)
        operator = known.operator.codes[events].astype(np.int64)
        groups = Groups(launch, operator, source, call)
        count, first = len(self), groups.first
        before = self.of_event[events]
        self.of_event[events] = count + groups.index
        exclusive_ns = part.costs.exclusive_ns[rows]
        left_ns = self.exclusive_ns - sums.sum_by_index(before, exclusive_ns, count)
        owners, dense = np.unique(self.of_event, return_inverse=True)
        own_ns = np.zeros(count + len(groups), dtype=np.int64)
        own_ns[owners] = _core.gpu_union_by_group(
            part.table, part.tree, dense.astype(np.int32), len(owners)
        )
        touched = np.zeros(count, dtype=bool)
        touched[before] = True
        no_time = np.zeros(len(groups), dtype=np.int64)
        joined = {
            "rows": (self.rows, launch[first]),
            "kind": (self.kind, np.full(len(groups), _REPLAYED)),
            "name": (self.name, len(self.names) + operator[first]),
            "exclusive_ns": (np.maximum(left_ns, 0), groups.sum(exclusive_ns)),
            "own_ns": (np.where(touched, own_ns[:count], self.own_ns), own_ns[count:]),
            "subtree_ns": (self.subtree_ns, own_ns[count:]),
            "gpu_events": (
                self.gpu_events - np.bincount(before, minlength=count),
                groups.count,
            ),
            "outermost": (self.outermost, np.ones(len(groups), dtype=bool)),
        }
        for name in ("launches", "host_ns", "self_host_ns", "backward_ns", "subtree_backward_ns"):
            joined[name] = (getattr(self, name), no_time)
        order = np.argsort(np.concatenate(joined["rows"]), kind="stable")
        for name, parts in joined.items():
            setattr(self, name, np.concatenate(parts)[order])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self.of_event = place[self.of_event]
        self.names = [*self.names, *known.operator.texts]

    def __len__(self) -> int:
        return len(self.rows)


def build_ops(part: RankTrace, *, by: str = "name") -> ColumnTable:
    """Build the table of `Trace.ops` for one rank.

    Returns:
        Rows by exclusive GPU time (by host time where the trace has no GPU events), calls by start.
        `exclusive_gpu_ns` sums to the fact `busy_ns`. docs/tables.md has the columns.

    Raises:
        OptionError: `by` is something else.
    """
    check_choice("by", by, tuple(_VIEWS))
    calls = Owners(part)
    columns, shown, notes = _VIEWS[by](calls)
    orphan = np.isin(calls.rows, part.tree.gpu_rows)
    facts = {
        "busy_ns": part.timeline().busy_ns,
        "gpu_events": int(calls.gpu_events.sum()),
        "gpu_events_without_launch": int(orphan.sum()),
        "without_launch_ns": sums.total(calls.exclusive_ns[orphan]),
    }
    said = []
    if (calls.kind == _HLO).any():
        said.append(
            "Operators are HLO operations of XLA; their host time is that of their launch calls."
        )
    elif not np.isin(calls.kind, (_OPERATOR, _REPLAYED)).any():
        said.append(
            "The trace has no operators: the rows are launch calls and GPU events without one."
            if len(calls)
            else "The trace has neither operators nor GPU events."
        )
    elif not calls.gpu_events.any():
        said.append("The trace has no GPU events: rows are sorted by the host time of their own.")
    orphans = int((calls.kind == _ORPHAN).sum())
    if orphans:
        events = "1 GPU event has" if orphans == 1 else f"{orphans} GPU events have"
        said.append(f"{events} no launch call in the trace, so no operator can be named.")
    return ColumnTable(columns, shown=shown, facts=facts, notes=[*said, *notes])


def _hlo_operations(part: RankTrace, rows: Array, kind: Array) -> TextCodes | None:
    """Return the HLO operation of XLA's calls: what all GPU events of a call name, if no operator
    has it. None where the trace has none."""
    events, owner = part.tree.gpu_rows, part.costs.owner[part.tree.gpu_rows]
    codes, texts = part.table.text_codes("hlo_op", events.astype(np.int64))
    if not texts:
        return None
    call = np.searchsorted(rows, np.where(owner == _core.NO_ROW, events, owner))
    lowest = np.full(len(rows), len(texts), dtype=np.int64)
    highest = np.full(len(rows), -1, dtype=np.int64)
    np.minimum.at(lowest, call, codes)
    np.maximum.at(highest, call, codes)
    agree = (lowest == highest) & (kind != _OPERATOR)
    return TextCodes(np.where(agree, highest, -1), texts)


# ---------------------------------------------------------------------------------- views

View = tuple[dict[str, Column], Sequence[str], Sequence[str]]
"""Columns, those shown first, further notes."""


def _by_name(calls: Owners) -> View:
    groups = Groups(calls.kind, calls.name)
    columns: dict[str, Column] = {
        **_names(calls, groups.first),
        "count": groups.count,
        **_sums(calls, groups),
        **groups.statistics(calls.own_ns, "mean", "max", prefix="own_gpu_"),
        **groups.statistics(calls.host_ns, "mean", "max", prefix="host_"),
        "backward_of": _forward_names(calls, groups),
        "attribution": _attribution(calls, groups.index),
    }
    columns = _ranked(columns, ties=columns["name"])
    in_backward = calls.part.tree.phase[calls.rows] == _core.Phase.BACKWARD
    notes = []
    if in_backward.any() and not calls.backward_ns.any() and calls.gpu_events.any():
        notes = [
            "No backward operator could be joined with its forward: no sequence numbers match."
        ]
    return columns, ("name", "family", "count", *_shown(calls)), notes


def _by_args(calls: Owners) -> View:
    arguments = {
        column: TextCodes(*calls.part.table.text_codes(key, calls.rows))
        for column, key in _ARGUMENTS.items()
    }
    groups = Groups(calls.kind, calls.name, *(column.codes for column in arguments.values()))
    first = groups.first
    columns: dict[str, Column] = {
        **_names(calls, first),
        **{column: codes.take(first) for column, codes in arguments.items()},
        "count": groups.count,
        **_sums(calls, groups),
        **groups.statistics(calls.own_ns, *_STATISTICS, prefix="own_gpu_"),
        **groups.statistics(calls.subtree_ns, *_STATISTICS, prefix="subtree_gpu_"),
        "example_row": calls.rows[first],
        "attribution": _attribution(calls, groups.index),
    }
    notes = []
    if not any((codes.codes >= 0).any() for codes in arguments.values()):
        notes = ["Arguments were not recorded (record_shapes=True records them)."]
    shown = ("name", "input_dims", "input_types", "count", *_shown(calls))
    return _ranked(columns, ties=columns["example_row"]), shown, notes


def _by_category(calls: Owners) -> View:
    part = calls.part
    events = _event_families(calls)
    is_op = calls.kind == _OPERATOR
    names = Groups(calls.name[is_op])
    families = _families(calls)
    of_name = [families[_OPERATOR, code] for code in calls.name[is_op][names.first].tolist()]
    both = encode_texts([*events.texts, *of_name])
    event_family = both.codes[: len(events.texts)][events.codes]
    name_family = both.codes[len(events.texts) :]
    op_family = name_family[names.index]

    def total(codes: Array, values: Array | None = None) -> Array:
        each = np.ones(len(codes), dtype=np.int64) if values is None else values
        return sums.sum_by_index(codes, each, len(both.texts))

    # A graph counts as a launch of each family that it launches.
    launch = part.tree.launch[part.tree.gpu_rows]
    linked = np.flatnonzero(launch != _core.NO_ROW)
    launches = Groups(launch[linked], event_family[linked])
    columns: dict[str, Column] = {
        "family": TextCodes(np.arange(len(both.texts), dtype=np.int32), both.texts),
        "operators": total(name_family),
        "count": total(op_family),
        "exclusive_gpu_ns": total(event_family, part.costs.exclusive_ns[part.tree.gpu_rows]),
        "own_gpu_ns": total(*_own_by_family(calls, event_family)),
        "gpu_events": total(event_family),
        "launches": total(event_family[linked[launches.first]]),
        "self_host_ns": total(op_family, calls.self_host_ns[is_op]),
        "attribution": attribute(part).of_groups(
            event_family.astype(np.int64), part.table.dur_ns[part.tree.gpu_rows], len(both.texts)
        ),
    }
    columns = _ranked(columns, ties=columns["family"])
    less = ("own_gpu_ns", "self_host_share", "attribution")
    shown = [name for name in columns if name not in less]
    if not len(events):
        shown = ["family", "operators", "count", "self_host_ns", "self_host_share"]
    return columns, shown, ()


def _by_call(calls: Owners) -> View:
    part, rows = calls.part, calls.rows
    columns: dict[str, Column] = {
        "row": rows,
        "name": _texts(calls, calls.name),
        "kind": TextCodes(calls.kind.astype(np.int8), KINDS),
        "thread": threads_of(part, rows),
        "step": steps_of(part, rows),
        "phase": phases_of(part, rows),
        "module": _modules(calls),
        "start_ns": part.table.ts_ns[rows],
        "duration_ns": calls.host_ns,
        "self_host_ns": calls.self_host_ns,
        "exclusive_gpu_ns": calls.exclusive_ns,
        "own_gpu_ns": calls.own_ns,
        "subtree_gpu_ns": calls.subtree_ns,
        "gpu_events": calls.gpu_events,
        "launches": calls.launches,
        "backward_gpu_ns": calls.backward_ns,
        "subtree_backward_gpu_ns": calls.subtree_backward_ns,
        "forward_row": row_numbers(part.tree.forward[rows]),
        "attribution": _attribution(calls, np.arange(len(calls))),
    }
    shown = ("row", "name", "thread", "duration_ns", "self_host_ns", "exclusive_gpu_ns")
    return columns, (*shown, "subtree_gpu_ns", "module"), ()


_VIEWS: dict[str, Callable[[Owners], View]] = {
    "name": _by_name,
    "category": _by_category,
    "args": _by_args,
    "call": _by_call,
}


def _modules(calls: Owners) -> TextCodes:
    """Return the module around each call; around that of the capture for what is replayed."""
    part, places = calls.part, np.flatnonzero(calls.kind == _REPLAYED)
    modules = modules_of(part, calls.rows)
    if not len(places):
        return modules
    owners, first = np.unique(calls.of_event, return_index=True)
    events = first[np.searchsorted(owners, places)]
    outside = modules.codes.copy()
    outside[places] = -1
    replayed = np.full(len(calls), -1, dtype=np.int32)
    replayed[places] = attribute(part).module.codes[events]
    return fill(
        TextCodes(outside, modules.texts), TextCodes(replayed, attribute(part).module.texts)
    )


def _shown(calls: Owners) -> Sequence[str]:
    if not calls.gpu_events.any():
        return "self_host_ns", "self_host_share", "host_ns"
    gpu = ("exclusive_gpu_ns", "busy_share", "cumulative_share", "subtree_gpu_ns")
    backward = ("subtree_backward_gpu_ns",) if calls.backward_ns.any() else ()
    return *gpu, *backward, "launches", "self_host_ns"


# ---------------------------------------------------------------------------------- columns


def _texts(calls: Owners, codes: Array) -> TextCodes:
    """Return names as a column that holds only the names in use."""
    used, dense = np.unique(codes, return_inverse=True)
    return TextCodes(dense.astype(np.int32), [calls.names[code] for code in used.tolist()])


def _names(calls: Owners, chosen: Array) -> dict[str, Column]:
    kind, name = calls.kind[chosen], calls.name[chosen]
    families = _families(calls)
    return {
        "name": _texts(calls, name),
        "kind": TextCodes(kind.astype(np.int8), KINDS),
        "family": encode_texts(map(families.get, zip(kind.tolist(), name.tolist(), strict=True))),
    }


def _sums(calls: Owners, groups: Groups) -> dict[str, Column]:
    """Sum each group; what includes the calls below counts for outermost calls alone."""
    outermost = calls.outermost
    return {
        "exclusive_gpu_ns": groups.sum(calls.exclusive_ns),
        "own_gpu_ns": groups.sum(calls.own_ns),
        "subtree_gpu_ns": groups.sum(np.where(outermost, calls.subtree_ns, 0)),
        "gpu_events": groups.sum(calls.gpu_events),
        "launches": groups.sum(calls.launches),
        "host_ns": groups.sum(np.where(outermost, calls.host_ns, 0)),
        "self_host_ns": groups.sum(calls.self_host_ns),
        "backward_gpu_ns": groups.sum(calls.backward_ns),
        "subtree_backward_gpu_ns": groups.sum(np.where(outermost, calls.subtree_backward_ns, 0)),
    }


def _attribution(calls: Owners, group: Array) -> TextCodes:
    """Return the evidence that most of the GPU time of each group of calls rests on; absent
    without any."""
    part = calls.part
    size = int(group.max(initial=-1)) + 1
    duration_ns = part.table.dur_ns[part.tree.gpu_rows]
    return attribute(part).of_groups(group[calls.of_event], duration_ns, size)


def _ranked(columns: dict[str, Column], *, ties: Column) -> dict[str, Column]:
    """Order the rows by exclusive GPU time, else by host time, and add their shares."""
    exclusive, self_host = columns["exclusive_gpu_ns"], columns["self_host_ns"]
    assert isinstance(exclusive, np.ndarray) and isinstance(self_host, np.ndarray)
    if isinstance(ties, TextCodes):
        place = {text: i for i, text in enumerate(sorted(ties.texts))}
        ties = np.array([place[text] for text in ties.texts], dtype=np.int64)[ties.codes]
    order = order_by(exclusive, self_host, ties, descending=[True, True])
    ranked = {name: take_rows(column, order) for name, column in columns.items()}
    share = sums.shares(exclusive, sums.total(exclusive))[order]
    return ranked | {
        "busy_share": share,
        "cumulative_share": np.cumsum(share),
        "self_host_share": sums.shares(self_host, sums.total(self_host))[order],
    }


def _forward_names(calls: Owners, groups: Groups) -> TextCodes:
    """Return for backward operators the name of the forward one that most of a group go back to."""
    table, tree = calls.part.table, calls.part.tree
    forward = tree.forward[calls.rows]
    linked = np.flatnonzero(forward != _core.NO_ROW)
    codes = np.full(len(groups), -1, dtype=np.int64)
    if len(linked):
        pairs = Groups(groups.index[linked], table.name[forward[linked]])
        # Ascending counts: the last write, of the commonest name, stays.
        order = np.argsort(pairs.count, kind="stable")
        example = linked[pairs.first[order]]
        codes[groups.index[example]] = table.name[forward[example]]
    return encode_texts(None if code < 0 else calls.names[code] for code in codes.tolist())


# --------------------------------------------------------------------------------- families

_COMMUNICATION, _MEMCPY, _MEMSET = "communication", "memcpy", "memset"


def _families(calls: Owners) -> dict[tuple[int, int], str]:
    return calls.part.cached("families", lambda: _find_families(calls))


def _find_families(calls: Owners) -> dict[tuple[int, int], str]:
    table, call = calls.part.table, calls.of_event
    # Names of the GPU events that calls of each (kind, name) own, longest time first.
    events = calls.part.tree.gpu_rows
    pairs = Groups(calls.kind[call], calls.name[call], table.name[events])
    order = order_by(pairs.sum(table.dur_ns[events]), descending=[True])
    kernels: dict[tuple[int, int], list[str]] = {}
    for i in pairs.first[order].tolist():
        key = (int(calls.kind[call[i]]), int(calls.name[call[i]]))
        kernels.setdefault(key, []).append(calls.names[int(table.name[events[i]])])
    families = {}
    first = Groups(calls.kind, calls.name).first
    for kind, name in zip(calls.kind[first].tolist(), calls.name[first].tolist(), strict=True):
        launched = kernels.get((kind, name), [])
        if kind in (_OPERATOR, _REPLAYED):
            family = family_of(calls.names[name], launched)
        else:
            # A launch call says nothing of its kernels' family, unless they are all of one.
            family = family_of(calls.names[name] if kind == _LAUNCH else "")
            distinct = {family_of("", (kernel,)) for kernel in launched}
            if family == "other" and len(distinct) == 1:
                family = distinct.pop()
        families[kind, name] = family
    return families


def _event_families(calls: Owners) -> TextCodes:
    """Return the family of each GPU event: copies, memsets and collectives have their own, kernels
    that of their operator, else that of their own name."""
    table, tree = calls.part.table, calls.part.tree
    events = tree.gpu_rows
    gpu_class = tree.gpu_class[events]
    fixed = np.select(
        [
            gpu_class == _core.GpuClass.COMMUNICATION,
            gpu_class == _core.GpuClass.MEMCPY,
            table.kind[events] == _core.EventKind.GPU_MEMSET,
        ],
        [0, 1, 2],
        -1,
    )
    kind, name = calls.kind[calls.of_event], calls.name[calls.of_event]
    by_op = np.isin(kind, (_OPERATOR, _REPLAYED))
    kind = np.where(by_op, kind, -1)
    name = np.where(by_op, name, table.name[events])
    is_fixed = fixed >= 0
    groups = Groups(fixed, np.where(is_fixed, 0, kind), np.where(is_fixed, 0, name))
    families = _families(calls)
    texts = []
    for i in groups.first.tolist():
        if is_fixed[i]:
            texts.append((_COMMUNICATION, _MEMCPY, _MEMSET)[fixed[i]])
        elif by_op[i]:
            texts.append(families[int(kind[i]), int(name[i])])
        else:
            texts.append(family_of("", (calls.names[name[i]],)))
    return encode_texts(texts).take(groups.index)


def _own_by_family(calls: Owners, family: Array) -> tuple[Array, Array]:
    """Return families and union times of the events that each call owns in each family."""
    part = calls.part
    groups = Groups(calls.of_event, family.astype(np.int64))
    union = _core.gpu_union_by_group(
        part.table, part.tree, groups.index.astype(np.int32), len(groups)
    )
    return family[groups.first], union


# ----------------------------------------------------------------------------- facts, notes


_OWN_TIME = (
    "Exclusive: every instant of GPU time belongs to one event, so that the column sums to the "
    "time that the GPU is busy. Subtree: with everything launched below."
)

_FIRST = ("name", "input_dims", "exclusive_gpu_ns", "busy_share", "count", "self_host_ns")

TABLE = TableSpec(
    build=build_ops,
    views=tuple(_VIEWS),
    sql={
        "ops": {},
        "op_args": {"by": "args"},
        "op_calls": {"by": "call"},
        "categories": {"by": "category"},
    },
    page=(
        PageView("operators", "by name", hint=_OWN_TIME, find="name", meter="busy_share"),
        PageView("operators", "by family", {"by": "category"}, meter="busy_share"),
        PageView(
            "operators", "by shapes", {"by": "args"}, _OWN_TIME, find="name", meter="busy_share"
        ),
    ),
    first={
        "name": _FIRST,
        "args": _FIRST,
        "category": ("family", *_FIRST),
        "call": ("name", "duration_ns", *_FIRST, "row"),
    },
)
