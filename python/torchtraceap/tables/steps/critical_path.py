"""The critical path: the chain of events that decided when the profiled time, or a step, ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.records import dataclass
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.tables.catalog import Option, PageView, TableSpec, check_choice
from torchtraceap.tables.grouping import Groups, order_by, thread_names
from torchtraceap.tables.matching import JoinedRanks, join_ranks
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["TABLE", "OwnPath", "build_critical_path", "own_path", "path_segments"]

BOUNDS: dict[str, tuple[str, ...]] = {
    "data_loading": ("data_loading",),
    "cpu_bound": ("host_forward", "host_backward", "host_optimizer", "host_other", "host_gap"),
    "compilation_bound": ("compilation",),
    "allocator_bound": ("allocator",),
    "synchronization_bound": ("synchronization",),
    "launch_bound": ("launch_latency", "gpu_gap"),
    "gpu_compute_bound": ("gpu_compute",),
    "communication_bound": ("communication",),
    "copy_bound": ("copy",),
    "profiler": ("profiler",),
    "unknown": ("unknown",),
}
"""The bounds of a path, and the causes that count towards each."""

_NO_EVENT = "(no event)"
_UNKNOWN = "(unknown)"


@dataclass(frozen=True, slots=True)
class _Path:
    core: _core.CriticalPath
    scope: JoinedRanks
    range_ns: tuple[int, int]

    @property
    def total_ns(self) -> int:
        return self.range_ns[1] - self.range_ns[0]

    @property
    def duration_ns(self) -> Array:
        duration: Array = self.core.end_ns - self.core.start_ns
        return duration

    @property
    def has_row(self) -> Array:
        present: Array = self.core.row != _core.NO_ROW
        return present


def build_critical_path(
    trace: Ranks,
    *,
    step: str | int | None = None,
    by: str = "cause",
    compat: str | None = None,
    launch_edges: bool = True,
) -> ColumnTable:
    """Build a table of the path over the profiled time, or one step.

    Args:
        trace: Ranks whose collectives match are taken together.
        step: Name or place of a step; by default the whole profiled time.
        by: "cause", "name" or "event" (the segments, in order of time).
        compat: "hta" for the graph and the numbers of HTA.
        launch_edges: In HTA's graph, edges of no weight from every launch call to its work: HTA
            leaves them out unless CRITICAL_PATH_ADD_ZERO_WEIGHT_LAUNCH_EDGE is set.

    Raises:
        OptionError: An option has no such value, there is no such step, or launch edges are left
            out of another graph than HTA's.
    """
    check_choice("by", by, TABLE.views)
    if compat is not None:
        check_choice("compat", compat, ("hta",))
        from torchtraceap.tables.steps.hta_path import build_hta_path

        table = build_hta_path(trace.rank(), step=step, by=by, launch_edges=launch_edges)
        if len(trace.ranks) > 1:
            table.notes += (f"HTA's path runs through one rank: rank {trace.rank().rank}.",)
        return table
    if not launch_edges:
        raise OptionError("launch edges can only be left out of HTA's graph: add --compat hta")
    path = _find_path(trace, step)
    tables = {"cause": _by_cause, "name": _by_name, "event": _by_event}
    shown: tuple[str, ...] = ()
    if by == "event":
        shown = ("name", "cause", "lane", "duration_ns", "dependency", "evidence", "margin_ns")
        shown = ("rank", *shown) if len(path.scope.parts) > 1 else shown
    return ColumnTable(tables[by](path), shown=shown, facts=_facts(path), notes=_notes(path))


@dataclass(frozen=True, slots=True)
class OwnPath:
    """The critical path of one rank by itself: what a diagnosis of a long run keeps of it."""

    start_ns: int
    """Start of the path."""
    cause: Array
    """Place in `_core.path_cause_names()` of each piece, in order of time, uint8 `[n]`."""
    end_ns: Array
    """End of each piece, which is where the next one begins, int64 `[n]`."""

    def by_cause(self) -> dict[str, Array]:
        """Return the bounds of the pieces of each cause, int64 `[m, 2]`, by first occurrence."""
        names = _core.path_cause_names()
        codes, first = np.unique(self.cause, return_index=True)
        bounds = {}
        for code in codes[np.argsort(first)].tolist():
            chosen = np.flatnonzero(self.cause == code)
            before_ns = np.where(chosen > 0, self.end_ns[chosen - 1], self.start_ns)
            bounds[names[code]] = np.stack((before_ns, self.end_ns[chosen]), axis=1)
        return bounds


def own_path(rank: RankTrace) -> OwnPath:
    """Return the path of a rank over its profiled time, without other ranks; cached."""

    def find() -> OwnPath:
        profiled = rank.tree.profiled
        return OwnPath(profiled[0], *_core.path_causes((rank.table, rank.tree, 0), profiled))

    return rank.cached("path of the rank alone", find)


def path_segments(trace: Ranks, step: str | int | None = None) -> list[dict[str, Any]]:
    """Return the segments of the path as plain values, by time: what an overlay or a page draws.

    The keys are the columns of `trace.critical_path(by="event")`.
    """
    return build_critical_path(trace, step=step, by="event").records()


# ------------------------------------------------------------------------------------- ranks


def _find_path(trace: Ranks, step: str | int | None) -> _Path:
    scope = join_ranks(trace)
    bounds = []
    for part, offset_ns in zip(scope.parts, scope.offsets_ns, strict=True):
        ranges = [part.tree.profiled]
        if step is not None:
            ranges = [
                (one.start_ns, one.end_ns)
                for place, one in enumerate(part.tree.steps)
                if step == (place if isinstance(step, int) else one.name)
            ]
        bounds += [(start_ns + offset_ns, end_ns + offset_ns) for start_ns, end_ns in ranges]
    if not bounds:
        names = [one.name for one in scope.parts[0].tree.steps]
        if not names:
            raise OptionError(f"no step {step!r}: this trace has no steps")
        known = f"there are {len(names)}, from {names[0]!r} to {names[-1]!r}"
        raise OptionError(f"no step {step!r}; {known}")
    # From when every rank has begun: so the ranges of steps follow each other without a gap.
    range_ns = max(start_ns for start_ns, _ in bounds), max(end_ns for _, end_ns in bounds)
    core = _core.critical_path(scope.as_arguments, range_ns, meetings=scope.meetings)
    return _Path(core, scope, range_ns)


# ------------------------------------------------------------------------------------ tables

Columns = dict[str, Column]


def _by_cause(path: _Path) -> Columns:
    names = _core.path_cause_names()
    time_ns = path.core.total_ns
    segments = np.bincount(path.core.cause, minlength=len(names))
    rows = order_by(time_ns, descending=[True])
    rows = rows[time_ns[rows] > 0]
    return {
        "cause": TextCodes(rows.astype(np.int32), names),
        "time_ns": time_ns[rows],
        "time_share": time_ns[rows] / max(1, path.total_ns),
        "segments": segments[rows].astype(np.int64),
    }


def _by_name(path: _Path) -> Columns:
    names = _names_of(path)
    groups = Groups(path.core.cause, names.codes)
    time_ns = groups.sum(path.duration_ns)
    rows = order_by(time_ns, descending=[True])
    first = groups.first[rows]
    return {
        "name": names.take(first),
        "cause": _codes(path.core.cause[first], _core.path_cause_names()),
        "time_ns": time_ns[rows],
        "time_share": time_ns[rows] / max(1, path.total_ns),
        "segments": groups.count[rows],
    }


def _by_event(path: _Path) -> Columns:
    core = path.core
    ranks = [part.rank for part in path.scope.parts]
    rank = np.array([0 if r is None else r for r in ranks], dtype=np.int64)[core.rank]
    rank_absent = np.array([r is None for r in ranks])[core.rank]
    no_margin = core.margin_ns == _core.NO_ID
    kinds = np.full(len(core), -1, dtype=np.int32)
    for index, part in enumerate(path.scope.parts):
        chosen = path.has_row & (core.rank == index)
        kinds[chosen] = part.table.kind[core.row[chosen]]
    return {
        "rank": np.ma.array(rank, mask=rank_absent),
        "row": np.ma.array(
            np.where(path.has_row, core.row, 0).astype(np.int64), mask=~path.has_row
        ),
        "name": _names_of(path),
        "kind": TextCodes(kinds, _core.kind_names()),
        "lane": _lanes_of(path),
        "start_ns": core.start_ns,
        "end_ns": core.end_ns,
        "duration_ns": path.duration_ns,
        "cause": _codes(core.cause, _core.path_cause_names()),
        "dependency": _codes(core.kind, _core.dependency_kind_names()),
        "evidence": _codes(core.evidence, _core.evidence_names()),
        "margin_ns": np.ma.array(np.where(no_margin, 0, core.margin_ns), mask=no_margin),
    }


def _codes(values: Array, names: Sequence[str]) -> TextCodes:
    return TextCodes(values.astype(np.int32), names)


def _names_of(path: _Path) -> TextCodes:
    """Return the name of the event behind each segment; where there is none, why."""
    core = path.core
    distinct: dict[str, int] = {_NO_EVENT: 0, _UNKNOWN: 1}
    is_unknown = core.cause == _core.PathCause.UNKNOWN
    codes = np.where(is_unknown, 1, 0).astype(np.int32)
    for index, part in enumerate(path.scope.parts):
        chosen = path.has_row & (core.rank == index)
        used, inverse = np.unique(part.table.name[core.row[chosen]], return_inverse=True)
        strings = part.table.strings
        known = [distinct.setdefault(strings[name], len(distinct)) for name in used.tolist()]
        codes[chosen] = np.array(known, dtype=np.int32)[inverse] if known else codes[chosen]
    return TextCodes(codes, list(distinct))


def _lanes_of(path: _Path) -> TextCodes:
    """Return the thread or stream on which each segment runs."""
    core = path.core
    labels: list[str | None] = []
    codes = np.full(len(core), -1, dtype=np.int32)
    for index, part in enumerate(path.scope.parts):
        streams = part.tree.streams
        several = len({stream.device for stream in streams}) > 1
        stream_names = [
            f"stream {s.stream}" + (f" of device {s.device}" if several else "") for s in streams
        ]
        for kind, names in enumerate((thread_names(part), stream_names)):
            chosen = (core.rank == index) & (core.lane_kind == kind)
            codes[chosen] = len(labels) + core.lane_index[chosen]
            labels += names
    texts = encode_texts(labels)
    return TextCodes(np.append(texts.codes, -1)[codes].astype(np.int32), texts.texts)


# ------------------------------------------------------------------------------ facts, notes


def _bound_shares(path: _Path) -> dict[str, float]:
    """Return the share of the path by what it is bound by, the largest first."""
    totals = dict(zip(_core.path_cause_names(), path.core.total_ns.tolist(), strict=True))
    shares = {
        bound: sum(totals[cause] for cause in causes) / max(1, path.total_ns)
        for bound, causes in BOUNDS.items()
    }
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return {bound: share for bound, share in ordered if share > 0}


def _facts(path: _Path) -> dict[str, Any]:
    core = path.core
    shares = _bound_shares(path)
    facts: dict[str, Any] = {
        "start_ns": path.range_ns[0],
        "end_ns": path.range_ns[1],
        "total_ns": path.total_ns,
        "bound_by": next(iter(shares), None),
        "bound_shares": shares,
        "assumed_ns": core.assumed_ns,
        "assumed_share": core.assumed_ns / max(1, path.total_ns),
        "nodes": core.points,
        "edges": core.edges,
    }
    if len(path.scope.parts) > 1:
        by_rank = np.bincount(core.rank, path.duration_ns, minlength=len(path.scope.parts))
        facts["rank_shares"] = [
            {"rank": part.rank, "share": float(time / max(1, path.total_ns))}
            for part, time in zip(path.scope.parts, by_rank, strict=True)
        ]
    return facts


def _notes(path: _Path) -> list[str]:
    core, parts = path.core, path.scope.parts
    if path.total_ns:
        shares = list(_bound_shares(path).items())[:3]
        said = ", ".join(f"{bound} {format_share(share)}" for bound, share in shares)
        doubt = ""
        if core.assumed_ns:
            share = format_share(core.assumed_ns / path.total_ns)
            doubt = f" {share} of it rests on assumed dependencies, or on none that is known."
        notes = [f"{format_ns(path.total_ns)} of path: {said}.{doubt}"]
    else:
        notes = ["The profiled time is empty: there is no path."]
    notes += path.scope.notes
    # Waits whose partner the trace doesn't name.
    waits = np.isin(core.kind, (_core.DependencyKind.STREAM_WAIT, _core.DependencyKind.HOST_WAIT))
    infers_waits = bool((waits & (core.evidence > _core.Evidence.EXPLICIT)).any())
    with_gpu = [part for part in parts if len(part.tree.gpu_rows)]
    if not with_gpu:
        notes.append("No GPU work is recorded: the path is that of the host's threads.")
    elif not any(len(part.tree.linked_gpu_rows) for part in with_gpu):
        notes.append(
            "No GPU work has a launch call in the trace: only its order on the streams is known."
        )
    elif infers_waits:
        notes.append(
            "What some waits of streams and of the host refer to was inferred from times: the "
            "trace records no synchronization events for them (enable_cuda_sync_events in the "
            "experimental_config of torch.profiler)."
        )
    world = max((part.world_size or 0 for part in parts), default=0)
    if world > len(parts) and core.total_ns[_core.PathCause.COMMUNICATION] > 0:
        verb = "has" if len(parts) == 1 else "have"
        notes.append(
            f"Of {world} ranks {len(parts)} {verb} a trace here: time in a "
            "collective may be waiting for one of the others, which can't be told from moving data."
        )
    shift = max((abs(part.tree.launch_delay_correction_ns) for part in parts), default=0)
    if shift:
        notes.append(
            f"GPU times are moved by up to {format_ns(shift)} to agree with the host's clock."
        )
    return notes


TABLE = TableSpec(
    build=build_critical_path,
    views=("cause", "name", "event"),
    options=(
        Option("step", "--step", "only this step, by name or place", "step", metavar="STEP"),
        Option("compat", "--compat", "the graph that HTA would build", choices=("hta",)),
        Option(
            "launch_edges",
            "--no-launch-edges",
            "HTA's graph as HTA builds it by default",
            "no_flag",
            default=True,
        ),
    ),
    per_rank=False,
    sql={"critical_path": {"by": "event"}},
    page=(
        PageView(
            "path",
            "by cause",
            hint="The chain of work that decided when the time ended: making anything else faster "
            "gains nothing. It has a lane of its own in the timeline.",
            meter="time_share",
        ),
        PageView("path", "by name", {"by": "name"}, find="name", meter="time_share"),
    ),
    first={
        "cause": ("cause", "time_ns", "time_share"),
        "name": ("name", "time_ns", "time_share", "cause"),
        "event": ("name", "duration_ns", "cause", "lane"),
    },
)
