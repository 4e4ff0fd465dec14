"""Edits, changes of the graph that stand for fixes, and the names by which they are made.

    @register("batch_size", value="N")      # batch_size=64; a class of the Edit protocol
    class BatchSize: ...

Note [Two variants]: a trace doesn't say which work needs which data. So an edit gives its change as
far as it may go (`best`: only dependencies that the trace shows hold) and as far as it is certain
(`cautious`: program order is kept). The prediction lies between what the two do; where they are
factors apart, the edit may say which place is the likely one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.core.sums import distinct
from torchtraceap.errors import OptionError
from torchtraceap.simulation.run import SimulatedRun

__all__ = [
    "EDITS",
    "Change",
    "Edit",
    "EditEntry",
    "EditedGraph",
    "NewEvent",
    "NotApplicableError",
    "default_edits",
    "edit_names",
    "edits_by_finding",
    "join_changes",
    "make_edit",
    "register",
    "share_work",
]

_NOTHING = np.zeros(0, dtype=np.int64)
_Make = TypeVar("_Make", bound=Callable[..., Any])


class NotApplicableError(Exception):
    """The edit has nothing to change in this trace; the message says why."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that an edit brings in, for the trace that is written of it."""

    rank: int
    """Index in the run's `ranks`."""
    name: str
    begin: int
    """The point of the graph at which it begins."""
    end: int
    """The point at which it ends."""
    like: int
    """The row that it looks like: on the same thread or stream, of the same category, with the
    same `args` where `args` says nothing else."""
    args: Mapping[str, int | float | str] = field(default_factory=dict)
    launches: Array | tuple[int, ...] = ()
    """GPU rows that it launches, in place of their calls."""


class Change:
    """New lags of edges, edges that are gone, edges that are new. The graph itself stays as it is.

    Edges and points are numbers of `SimulatedRun.graph`; of two lags for one edge the later holds.
    Nothing here is as long as the graph: the cost of a change grows with the edges that it touches.
    """

    def __init__(self) -> None:
        self._lags: list[tuple[Array, Array]] = []
        self._dropped: list[Array] = []
        self._is_unique = False
        self._delta: _core.GraphDelta | None = None
        self._added: list[tuple[Array, Array, Array]] = []
        self._carried: list[tuple[Array, Array, Array]] = []
        self._removed: list[tuple[int, Array]] = []
        self._inserted: list[NewEvent] = []
        self._touched: tuple[Array, Array] | None = None

    def set_lags(self, edges: npt.ArrayLike, lags_ns: npt.ArrayLike) -> None:
        """Set the cost of edges, ns; one number for all, or one for each; below 0 counts as 0.

        No edge of a recorded run costs less than 0: the time of a point beyond its dependencies is
        measured from the latest of them.
        """
        chosen = np.asarray(edges, dtype=np.int64).ravel()
        self._lags.append((chosen, _whole_ns(lags_ns, chosen.shape)))
        self._touched = None
        self._delta = None

    def drop(self, edges: npt.ArrayLike) -> None:
        """Drop these dependencies."""
        self._dropped.append(np.asarray(edges, dtype=np.int64).ravel())
        self._is_unique = False
        self._delta = None

    def add(
        self, sources: npt.ArrayLike, destinations: npt.ArrayLike, lags_ns: npt.ArrayLike
    ) -> None:
        """Add dependencies from point to point, ns. Replays leave out those that close a cycle."""
        begin = np.asarray(sources, dtype=np.int64).ravel()
        end = np.asarray(destinations, dtype=np.int64).ravel()
        self._added.append((begin, end, _whole_ns(lags_ns, begin.shape)))
        self._delta = None

    def carry(
        self, sources: npt.ArrayLike, destinations: npt.ArrayLike, lags_ns: npt.ArrayLike
    ) -> None:
        """Add dependencies from points of the recorded steps to points of the steps that follow
        them, which go on in the same way, ns."""
        begin = np.asarray(sources, dtype=np.int64).ravel()
        end = np.asarray(destinations, dtype=np.int64).ravel()
        self._carried.append((begin, end, _whole_ns(lags_ns, begin.shape)))
        self._delta = None

    def remove(self, rank: int, rows: npt.ArrayLike) -> None:
        """Leave events out of the trace that is written of the edit.

        It changes no time: costs of the events are for `set_lags` and `drop`.

        Args:
            rank: Index in the run's `ranks`.
            rows: Rows of its table; events inside a host row go with it.
        """
        self._removed.append((rank, np.asarray(rows, dtype=np.int64).ravel()))

    def insert(self, event: NewEvent) -> None:
        """Put an event into the trace that is written of the edit. It changes no time."""
        self._inserted.append(event)

    @property
    def lags(self) -> tuple[Array, Array]:
        """Edges, each once and in order, and their new lags, ns."""
        if self._touched is None:
            self._touched = _core.later_lags(self._lags)
        return self._touched

    def costs_of(self, before_ns: Array, edges: Array) -> Array:
        """Return the costs of edges with this change, int64 `[n]`.

        Args:
            before_ns: int64, the cost of every edge of the run.
            edges: Numbers of edges.
        """
        changed, lags = self.lags
        if not len(changed):
            return before_ns[edges]
        place = np.minimum(np.searchsorted(changed, edges), len(changed) - 1)
        costs: Array = np.where(changed[place] == edges, lags[place], before_ns[edges])
        return costs

    @property
    def dropped(self) -> Array:
        """Edges, each once and in order."""
        if len(self._dropped) > 1 or not self._is_unique:
            edges = np.sort(np.concatenate([_NOTHING, *self._dropped]))
            self._dropped = [edges[np.diff(edges, prepend=-1) != 0]]
            self._is_unique = True
        return self._dropped[0]

    @property
    def added(self) -> tuple[Array, Array, Array]:
        """Sources, destinations, lags in ns."""
        return _columns(self._added)

    @property
    def carried(self) -> tuple[Array, Array, Array]:
        """Sources, destinations, lags in ns."""
        return _columns(self._carried)

    def removed(self, rank: int) -> Array:
        """Return the removed rows of a rank, each once and in order."""
        rows = (rows for index, rows in self._removed if index == rank)
        return distinct(np.concatenate([_NOTHING, *rows]))

    @property
    def inserted(self) -> tuple[NewEvent, ...]:
        """New events in the order in which they were inserted."""
        return tuple(self._inserted)

    def __len__(self) -> int:
        parts = [*(e for e, _ in self._lags), *self._dropped, *(b for b, _, _ in self._added)]
        return sum(map(len, parts))

    def delta(self) -> _core.GraphDelta:
        """Return the change for the engine; cached until the next modification."""
        if self._delta is None:
            self._delta = _core.GraphDelta()
            self._delta.set_lags(*self.lags)
            self._delta.drop_all(self.dropped)
            self._delta.add_all(*self.added)
            self._delta.carry_all(*self.carried)
        return self._delta

    def only_removes(self, run: SimulatedRun) -> bool:
        """Return whether no edge is new or costs more: then a replay is later at no point."""
        edges, lags = self.lags
        is_new = any(len(begin) for begin, _, _ in self._added) or bool(self._carried)
        return not is_new and bool((lags <= run.cost_ns[edges]).all())


def _whole_ns(times_ns: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return int64 of this shape: whole nanoseconds, not below 0."""
    times = np.asarray(times_ns)
    if times.dtype.kind == "f":
        times = np.rint(times)
    whole: Array = np.maximum(times, 0).astype(np.int64)
    return whole if whole.shape == shape else np.full(shape, whole)


def _columns(parts: Sequence[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    columns = zip(*parts, strict=True) if parts else ((), (), ())
    first, second, third = (np.concatenate([_NOTHING, *column]) for column in columns)
    return first, second, third


def join_changes(run: SimulatedRun, changes: Sequence[Change]) -> Change:
    """Combine several edits.

    Where they change the same edge their ratios are multiplied: half the bytes on a GPU that is
    twice as fast take a quarter of the time, and an edge that one of them removes stays removed.
    """
    if len(changes) == 1:
        return changes[0]
    union = Change()
    lags = _NOTHING, _NOTHING
    for change in changes:
        lags = _core.both_lags(run.cost_ns, lags, change.lags) if len(lags[0]) else change.lags
        union.drop(change.dropped)
        union.add(*change.added)
        union._carried += change._carried
        union._removed += change._removed
        union._inserted += change._inserted
    union._lags, union._touched = [lags], lags
    return union


@dataclass(frozen=True, slots=True)
class EditedGraph:
    """The change, as far as it is certain and as far as it may go. See Note [Two variants]."""

    best: Change
    """The effect of the fix if everything that can't be seen is in its favor."""
    cautious: Change | None = None
    """The least effect; None: the same."""
    likely: tuple[Change, ...] = ()
    """The likely effects, of which the guess is the mean; empty: nothing speaks for any place
    between best and cautious, and the guess is the mean of these."""
    of_collectives: bool | None = None
    """True: the edit changes collectives, whatever else follows from that. False: what they wait
    for other ranks is known, though these are not. None: what it changes tells."""
    source: str = ""
    """The source of the durations put in."""
    note: str = ""
    """For a person: the changes and the assumptions."""

    @property
    def least(self) -> Change:
        """The least effect."""
        return self.best if self.cautious is None else self.cautious

    @property
    def guesses(self) -> tuple[Change, Change]:
        """The two changes whose mean is the guess."""
        likely = self.likely or (self.best, self.least)
        return likely[0], likely[-1]


class Edit(Protocol):
    """One fix. `apply` is pure: it reads the run and returns a change."""

    @property
    def name(self) -> str:
        """The name on the command line, with its value."""
        ...

    def apply(self, run: SimulatedRun) -> EditedGraph:
        """Return the change for this run.

        Raises:
            NotApplicableError: Nothing in this run would change.
        """
        ...


# ------------------------------------------------------------------------- edits by name


@dataclass(frozen=True, slots=True)
class EditEntry:
    """An edit as it is named on the command line."""

    make: Callable[..., Edit] | str
    """What makes it; or its module in this package and its name there, for what is loaded late."""
    value: str = ""
    """The text behind the `=`, such as "N"; empty: it takes none."""
    required: bool = False
    """Without a value the name makes no sense."""
    default: bool | str = False
    """It is tried if no edit is named, with this value if that is a text."""
    fixes: tuple[str, ...] = ()
    """Types of findings whose fix it stands for, with a value as in "worker_starvation=8"."""
    instead: tuple[str, ...] = ()
    """The same where another edit is the one proposed and this one is tried if that does not
    apply."""
    parts: tuple[str, ...] = ()
    """The work that it changes, where other edits change the same work for the same reason: a word
    that those have too, or the values of which each alone does a part ("HtoD", "DtoH")."""


EDITS: dict[str, EditEntry] = {
    "loader_workers": EditEntry(
        "loader_workers.LoaderWorkers",
        value="N",
        default="4",
        fixes=("single_process_data_loading=4", "worker_starvation=8"),
    ),
    "pin_memory": EditEntry(
        "copies.PinMemory",
        value="HtoD|DtoH",
        default=True,
        fixes=("no_memory_pin=HtoD", "blocking_copy=HtoD", "pageable_readback=DtoH", "high_memcpy"),
        parts=("HtoD", "DtoH"),
    ),
    "cuda_graph": EditEntry("graphs.CudaGraph", default=True, fixes=("cpu_bound", "tiny_kernels")),
    "fuse_pointwise": EditEntry(
        "fusion.FusePointwise",
        default=True,
        fixes=("unfused_pointwise",),
        instead=("tiny_kernels",),
    ),
    "remove_host_sync": EditEntry(
        "waits.RemoveHostSync", default=True, fixes=("host_sync_in_loop", "explicit_synchronize")
    ),
    "merge_compiled_regions": EditEntry(
        "graphs.MergeCompiledRegions", default=True, fixes=("graph_break",)
    ),
    "merge_collectives": EditEntry(
        "collectives.MergeCollectives",
        default=True,
        fixes=("small_nccl_kernels",),
        instead=("per_parameter_all_reduce",),
        parts=("sizes of collectives",),
    ),
    "overlap_collectives": EditEntry(
        "collectives.OverlapCollectives",
        default=True,
        fixes=("nccl_blocks_main_stream", "nccl_compute_not_overlapped"),
    ),
    "bucket_size_mb": EditEntry(
        "collectives.BucketSize",
        value="MIB",
        default="25",
        fixes=("one_bucket_ddp=25", "per_parameter_all_reduce=25"),
        parts=("sizes of collectives",),
    ),
    "balance_exchange": EditEntry("collectives.BalanceExchange", fixes=("expert_imbalance",)),
    "straggler_to_median": EditEntry(
        "waits.StragglerToMedian",
        default=True,
        fixes=("straggler",),
        instead=("expert_imbalance",),
    ),
    "fused_optimizer": EditEntry(
        "fusion.FuseOptimizer", default=True, fixes=("unfused_optimizer",)
    ),
    "mixed_precision": EditEntry(
        "precision.MixedPrecision",
        value="bf16|fp16|tf32",
        default=True,
        fixes=("fp32_matmul",),
        instead=("fp32_matmul=tf32",),
    ),
    "channels_last": EditEntry(
        "precision.ChannelsLast", default=True, fixes=("layout_conversion",)
    ),
    "no_casts": EditEntry("removal.no_casts", fixes=("cast_storm",)),
    "no_host_copies": EditEntry("removal.no_host_copies", fixes=("device_to_device_copies",)),
    "no_logging": EditEntry("removal.no_logging", fixes=("synchronous_logging",)),
    "no_small_copies": EditEntry("removal.NoSmallCopies", fixes=("small_copies",)),
    "no_allocator_calls": EditEntry(
        "removal.NoAllocatorCalls", default=True, fixes=("allocator_thrash", "uncached_allocator")
    ),
    "zero_grad_to_none": EditEntry(
        "removal.ZeroGradToNone", default=True, fixes=("zero_grad_not_none",)
    ),
    "no_unused_parameter_search": EditEntry(
        "removal.no_unused_parameter_search", default=True, fixes=("find_unused_parameters",)
    ),
    "no_recompilation": EditEntry(
        "removal.no_recompilation", default=True, fixes=("recompilation",)
    ),
    "no_broadcast_buffers": EditEntry(
        "collectives.NoBroadcastBuffers", default=True, fixes=("broadcast_buffers",)
    ),
    "device": EditEntry("device.OtherDevice", value="NAME", required=True),
    "kernel": EditEntry("asked.scale_kernel", value="NAME:FACTOR", required=True),
    "family": EditEntry("asked.scale_family", value="NAME:FACTOR", required=True),
    "operator": EditEntry("asked.scale_operator", value="NAME:FACTOR", required=True),
    "stream": EditEntry("asked.scale_stream", value="N:FACTOR", required=True),
    "remove": EditEntry("asked.RemoveNamed", value="RANGE", required=True),
    "schedule_ahead": EditEntry("serving.ScheduleAhead", fixes=("host_between_tokens",)),
    "sample_on_device": EditEntry("serving.SampleOnDevice", fixes=("synchronous_sampling",)),
    "whole_graph": EditEntry("serving.WholeGraph", fixes=("piecewise_gaps", "graph_not_used")),
    "draft_graph": EditEntry("serving.DraftGraph", fixes=("idle_draft",)),
    "exact_batch": EditEntry("serving.ExactBatch", fixes=("graph_padding",)),
}
"""Edits in the order in which they are listed, and tried where none is named; `register` adds to
them."""


def register(
    name: str,
    *,
    value: str = "",
    required: bool = False,
    default: bool | str = False,
    fixes: tuple[str, ...] = (),
    instead: tuple[str, ...] = (),
    parts: tuple[str, ...] = (),
) -> Callable[[_Make], _Make]:
    """Add an edit, in place of an earlier one of that name: `@register("half")` on its class.

    Args:
        name: The name on the command line.
        value, required, default, fixes, instead, parts: See `EditEntry`; the class takes the text
            behind the `=`, or None.
    """

    def add(make: _Make) -> _Make:
        EDITS[name] = EditEntry(make, value, required, default, fixes, instead, parts)
        return make

    return add


def edit_names() -> list[str]:
    """Return names with their values, such as "loader_workers[=N]"."""
    names = []
    for name, entry in EDITS.items():
        value = f"={entry.value}" if entry.value else ""
        names.append(f"{name}[{value}]" if value and not entry.required else name + value)
    return names


def default_edits() -> tuple[str, ...]:
    """Return the edits to try if none is named: every fix that needs no decision of the user."""
    return tuple(
        f"{name}={entry.default}" if isinstance(entry.default, str) else name
        for name, entry in EDITS.items()
        if entry.default is not False
    )


def edits_by_finding() -> dict[str, tuple[str, ...]]:
    """Return edits that stand for the fix of a finding, by its type; the proposed one first."""
    entries = EDITS.items()
    fixes = [(name, fix) for name, entry in entries for fix in entry.fixes]
    fixes += [(name, fix) for name, entry in entries for fix in entry.instead]
    edits: dict[str, tuple[str, ...]] = {}
    for name, fix in fixes:
        finding, equals, value = fix.partition("=")
        edits[finding] = (*edits.get(finding, ()), name + equals + value)
    return edits


def share_work(one: str, other: str) -> bool:
    """Return whether two edits, by their texts, change the same work for the same reason.

    A plan has one of them: on top of each other their ratios would multiply.
    """
    return not _parts(one).isdisjoint(_parts(other))


def _parts(text: str) -> frozenset[str]:
    name, _, value = text.strip().partition("=")
    entry = EDITS.get(name)
    if entry is None or not entry.parts:
        return frozenset([name])
    chosen = [part for part in entry.parts if part.lower() == value.lower()]
    if chosen:
        return frozenset(f"{name}={part}" for part in chosen)
    # Parts that are values are the edit's own; others may be shared.
    values = entry.value.split("|")
    return frozenset(f"{name}={part}" if part in values else part for part in entry.parts)


def make_edit(text: str) -> Edit:
    """Make the edit that a text such as "loader_workers=4" names.

    Raises:
        OptionError: No edit has that name, or the value makes no sense.
    """
    name, has_value, value = text.strip().partition("=")
    entry = EDITS.get(name)
    if entry is None:
        raise OptionError(f"no edit is called {name!r}; there are: {', '.join(edit_names())}")
    if has_value and not entry.value:
        raise OptionError(f"{name} takes no value, but {value!r} was given")
    if entry.required and not value:
        raise OptionError(f"{name} needs a value: {name}={entry.value}")
    make = entry.make
    if isinstance(make, str):
        module, _, attribute = make.partition(".")
        make = getattr(import_module(f"torchtraceap.simulation.edits.{module}"), attribute)
    edit: Edit = make(value or None) if entry.value else make()
    return edit
