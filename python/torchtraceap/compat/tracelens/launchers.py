"""The tree that TraceLens builds: launchers, subtrees, backward links, categories of operators.

Times are doubles of microseconds, an end is start plus duration in doubles: at 1e12 us one unit
in the last place is 2**-12 us, at an epoch time 0.25 us, and their sums carry that.

Operators have TraceLens's categories: a table by exact name, prefixes, then the name of the
operator's first kernel.

Source: TraceLens at 171dd747, Trace2Tree/trace_to_tree.py, TreePerf/tree_perf.py and
PerfModel/torch_op_mapping.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.errors import TraceError
from torchtraceap.ops.models.tracelens.registry import MODELS
from torchtraceap.tables.grouping import Groups
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "MAX_LISTED_EVENTS",
    "SYNTHETIC",
    "CompatTree",
    "Slices",
    "category_of",
    "is_communication",
    "to_us",
    "union_us",
]

MAX_LISTED_EVENTS = 1 << 25
"""GPU events of all operators of a sheet; one counts for every operator above it."""
_LISTED_AT_ONCE = 1 << 22

_GRAPH_LAUNCHES = ("cudaGraphLaunch", "hipGraphLaunch")
_ENGINE = "autograd::engine::evaluate_function:"
_LEVELS_TO_WRAPPER = 5
SYNTHETIC = " (Synthetic Op)"
"""End of the name of a row that stands for a kernel which no operator of the table covers."""

_WITHOUT_MODEL = {
    "aten::miopen_convolution": "CONV_fwd",
    "aten::cudnn_convolution": "CONV_fwd",
    "ConvBias_Backward": "CONV_bwd",
    "ConvBiasReLU_Backward": "CONV_bwd",
    "FlashAttnFuncBackward": "SDPA_bwd",
    "FusedAttnFuncBackward": "SDPA_bwd",
    "aten::_scaled_dot_product_cudnn_attention_backward": "SDPA_bwd",
    "aten::_scaled_dot_product_efficient_attention_backward": "SDPA_bwd",
    "aten::_scaled_dot_product_flash_attention_backward": "SDPA_bwd",
    "aten::_efficient_attention_forward": "SDPA_fwd",
    "aten::_efficient_attention_backward": "SDPA_bwd",
    "MambaSplitConv1dScanCombinedFnBackward": "SSM_bwd",
    "DaoAILab::_causal_conv1d_bwd_cpp": "SSM_bwd",
    "TokenPermuteMaskMap": "MoE_comm_fwd",
    "TokenPermuteMaskMapBackward": "MoE_comm_bwd",
    "_OperationFuserAutogradFunction": "MoE_comm_fwd",
    "_OperationFuserAutogradFunctionBackward": "MoE_comm_bwd",
    "MoEDispatchBackward": "MoE_comm_bwd",
    "MoECombineBackward": "MoE_comm_bwd",
    "FusedRoPEFuncBackward": "RoPE_bwd",
    "CrossEntropyFunctionBackward": "CrossEntropy_bwd",
    "aiter::moe_sorting_fwd": "MoE_aux",
    "aiter::moe_sorting_opus_fwd": "MoE_aux",
    "aiter::moe_align_block_size": "MoE_aux",
    "_moe_C::moe_align_block_size": "MoE_aux",
    "aiter::moe_sum": "MoE_aux",
    "aiter::topk_softmax": "MoE_aux",
    "aiter::topk_softmax_asm": "MoE_aux",
    "aiter::topk_sigmoid": "MoE_aux",
    "aiter::grouped_topk": "MoE_aux",
    "aiter::moe_fused_gate": "MoE_aux",
    "_C_cache_ops::reshape_and_cache_flash": "InferenceAttention",
}
_PREFIXES = ("triton", "record_param_comms")
_NATIVE_KERNEL = "void at::native"
_NATIVE_WORDS = ("elementwise", "reduce", "multi_tensor_apply")
_COMMUNICATION_WORDS = ("rccl", "nccl", "cross_device_reduce")


@lru_cache(maxsize=1 << 16)
def category_of(name: str, first_kernel: str | None) -> str:
    """Return the category of an operator.

    Args:
        name: The operator, or the call where no operator launched the kernel, or the row of a
            kernel that no operator covers.
        first_kernel: Name of the first kernel that it launched itself, if it did.
    """
    if name in MODELS:
        return MODELS[name].category
    if name in _WITHOUT_MODEL:
        return _WITHOUT_MODEL[name]
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return prefix
    if first_kernel and first_kernel.startswith(_NATIVE_KERNEL):
        return next((word for word in _NATIVE_WORDS if word in first_kernel), "other")
    return "other"


def is_communication(kernel: str) -> bool:
    """Return True for a collective by the name of its kernel."""
    lower = kernel.lower()
    return any(word in lower for word in _COMMUNICATION_WORDS)


def to_us(ns: Array) -> Array:
    """float64 microseconds of exact times: the doubles nearest to the decimal text.

    One division rounds once while the ns fit in a double. Beyond, the whole part is exact and the
    fraction too small against it to round onto a tie that it is not.
    """
    if not len(ns) or np.abs(ns).max() < 2**53:
        return np.asarray(ns / 1000.0)
    whole, rest = np.divmod(ns, 1000)
    return np.asarray(np.where(np.abs(ns) < 2**53, ns / 1000.0, whole + rest / 1000.0))


@dataclass(frozen=True, slots=True)
class Slices:
    """Ragged lists: `[begin, end)` into the linked GPU events of a `CompatTree`."""

    begin: Array
    end: Array

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, rows: Array) -> Slices:
        return Slices(self.begin[rows], self.end[rows])

    @property
    def lengths(self) -> Array:
        return self.end - self.begin

    def expand(self) -> tuple[Array, Array]:
        """(list number, index of the event) of every entry, list by list.

        Raises:
            TraceError: There are more than MAX_LISTED_EVENTS.
        """
        lengths = self.lengths
        self.check_listed(int(lengths.sum()))
        owner = np.repeat(np.arange(len(self)), lengths)
        skipped = np.cumsum(lengths) - lengths
        return owner, np.arange(len(owner)) - np.repeat(skipped - self.begin, lengths)

    @staticmethod
    def check_listed(events: int) -> None:
        if events > MAX_LISTED_EVENTS:
            raise TraceError(
                "TraceLens's tables list the GPU events below every operator: here these are "
                f"{events:,}, and at most {MAX_LISTED_EVENTS:,} are listed; the calls of this "
                "trace are nested too deep"
            )

    def pieces(self) -> Iterator[tuple[int, Slices]]:
        """A few lists at a time, with the number of the first."""
        ends = np.cumsum(self.lengths)
        begin = 0
        while begin < len(self):
            listed = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, listed + _LISTED_AT_ONCE, side="right"))
            end = max(end, begin + 1)
            yield begin, Slices(self.begin[begin:end], self.end[begin:end])
            begin = end


def union_us(groups: int, index: Array, start: Array, end: Array) -> Array:
    """float64 `[groups]`: length of the union of the intervals of each group, in their doubles."""
    order = np.lexsort((start, index))
    index, start, end = index[order], start[order], end[order]
    if not len(index):
        return np.zeros(groups)
    # The running maximum of ends starts anew in each group: ranks of ends, offset by the group.
    values, ranks = np.unique(end, return_inverse=True)
    lifted = np.maximum.accumulate(ranks + index * len(values))
    reached = values[lifted - index * len(values)]
    first = np.r_[True, index[1:] != index[:-1]]
    before = np.r_[start[0], reached[:-1]]
    opens = first | (start > before)
    runs = np.flatnonzero(opens)
    closes = reached[np.r_[runs[1:] - 1, len(index) - 1]]
    return np.bincount(index[runs], weights=closes - start[runs], minlength=groups)


class CompatTree:
    """One rank as TraceLens sees it.

    Args:
        part: The rank.
        detect_recompute: Let Python frames nest as well and mark what lies below
            `recompute_fn` of `torch/utils/checkpoint.py`; theirs drops other events then.
    """

    def __init__(self, part: RankTrace, *, detect_recompute: bool = False) -> None:
        self.part = part
        self._threads: list[tuple[str, str, str]] | None = None
        self.detect_recompute = detect_recompute
        table = self.table = part.table
        self.strings = table.strings
        self.kind = np.asarray(table.kind)
        self.name = np.asarray(table.name).astype(np.int64)
        self.dur_us = to_us(np.asarray(table.dur_ns))
        self.start_us = to_us(np.asarray(table.ts_ns))
        self.end_us = self.start_us + self.dur_us
        nesting = _core.compat_nesting(table, python_frames=detect_recompute)
        self.parent = np.asarray(nesting.parent).astype(np.int64)
        self.parent[self.parent == _core.NO_ROW] = -1
        self.host = np.asarray(nesting.rows).astype(np.int64)
        """int64: kept host rows, a pre-order per thread."""
        self.host_end = np.asarray(nesting.subtree_end).astype(np.int64)
        self.position = np.full(len(table), -1, dtype=np.int64)
        self.position[self.host] = np.arange(len(self.host))
        ops = np.flatnonzero((self.kind == _core.EventKind.CPU_OP) & table.complete)
        numbers, known = table.int_column("Ev Idx")
        # The profiler numbers operators in the order in which it writes them, thread by thread.
        self.op_rows = ops[np.argsort(np.where(known[ops], numbers[ops], 0), kind="stable")]
        """int64: all operators in the order of the file, those that their tree drops too."""
        self._link()
        self._launch()
        self._join_backward()
        self._mark_recompute()

    # ------------------------------------------------------------------------------ building

    def _link(self) -> None:
        """Find the GPU events that an arrow joins to their call; a graph launch needs no arrow."""
        tree = self.part.tree
        self.gpu_rows = np.asarray(tree.gpu_rows).astype(np.int64)
        launch = np.asarray(tree.launch)[self.gpu_rows].astype(np.int64)
        linked = launch != _core.NO_ROW
        rows, launch = self.gpu_rows[linked], launch[linked]
        graph = np.isin(self.name[launch], self.ids_where(_GRAPH_LAUNCHES.__contains__))
        arrived = self._arrows("f").isin(rows)
        if arrived is not None:
            left = self._arrows("s").isin(launch)
            keep = graph | (arrived & (left if left is not None else False))
            rows, launch = rows[keep], launch[keep]
        # A call that their tree dropped stands behind all others, with nothing above it.
        place = np.where(self.position[launch] >= 0, self.position[launch], len(self.host) + launch)
        order = np.argsort(place, kind="stable")
        self.linked = rows[order]
        """int64: linked GPU events by their call."""
        self.call = launch[order]
        """int64: the call of each."""
        self.place = place[order]

    def _arrows(self, phase: str) -> _Arrows:
        flows = (self.kind == _core.EventKind.FLOW) & (np.asarray(self.table.phase) == ord(phase))
        flows &= np.isin(np.asarray(self.table.category), self.ids_where("ac2g".__eq__))
        return _Arrows(self.table, np.flatnonzero(flows))

    def _launch(self) -> None:
        communication = np.zeros(len(self.strings), dtype=bool)
        for i in np.unique(self.name[self.gpu_rows]):
            communication[i] = is_communication(self.strings[i])
        self.communication = communication[self.name]
        """bool `[n]`: GPU events with the name of a collective."""
        self.memcpy = np.asarray(self.part.tree.gpu_class) == _core.GpuClass.MEMCPY
        above = self.first_op(
            self.parent[self.call], through=(_core.EventKind.PYTHON_FUNCTION,), skip=("execute",)
        )
        self.launcher = np.where(above >= 0, above, self.call)
        """int64, per linked event: the operator that launched it, else its call."""
        self.op_above = self.first_op(
            self.call,
            through=(
                _core.EventKind.PYTHON_FUNCTION,
                _core.EventKind.RUNTIME,
                _core.EventKind.DRIVER,
            ),
        )
        """int64, per linked event: the innermost operator above its call, or -1."""

    def first_op(self, rows: Array, *, through: Sequence[int], skip: Sequence[str] = ()) -> Array:
        """The first operator from each row on upwards; -1 if a row of another kind comes first.

        Args:
            rows: Where to begin; -1 stays.
            through: Kinds that are passed.
            skip: Operators that are passed as well.
        """
        skipped = self.ids_where(skip.__contains__) if skip else []
        current = rows.copy()
        while True:
            is_op = self.kind[current] == _core.EventKind.CPU_OP
            passes = np.isin(self.kind[current], through)
            passes |= is_op & np.isin(self.name[current], skipped)
            current[~(is_op | passes)] = -1
            climbs = passes & (current >= 0)
            if not climbs.any():
                return current
            current[climbs] = self.parent[current[climbs]]

    def _join_backward(self) -> None:
        """Join the engine's frame and the last operator of another thread by sequence number."""
        numbers, known = self.table.int_column("Sequence number")
        rows = np.flatnonzero(known)
        self.forward = np.full(len(self.table), -1, dtype=np.int64)
        """int64 `[n]`: the forward operator of the engine's frame; else -1."""
        self.backward = np.full(len(self.table), -1, dtype=np.int64)
        """int64 `[n]`: the engine's last frame of a forward operator; else -1."""
        self._joined_places: Array = np.zeros(0, dtype=np.int64)
        engine = np.isin(self.name[rows], self.ids_where(lambda name: name.startswith(_ENGINE)))
        frames, first = np.unique(numbers[rows[engine]], return_index=True)
        frame_rows = rows[engine][first]
        if not len(frames):
            return
        place = np.minimum(np.searchsorted(frames, numbers[rows]), len(frames) - 1)
        track = np.asarray(self.table.track)
        fits = (frames[place] == numbers[rows]) & (track[frame_rows[place]] != track[rows])
        rows, place = rows[fits], place[fits]
        # The last of the greatest start; earlier rows win ties, as theirs asks for a later start.
        order = np.lexsort((-rows, self.start_us[rows], place))
        last = order[np.r_[place[order][1:] != place[order][:-1], True]] if len(order) else order
        self.forward[frame_rows[place[last]]] = rows[last]
        self.backward[rows[last]] = frame_rows[place[last]]
        places = self.position[rows[last]]
        self._joined_places = np.sort(places[places >= 0])

    def _mark_recompute(self) -> None:
        self.recompute = np.zeros(len(self.table), dtype=bool)
        """bool `[n]`: below a `recompute_fn` frame."""
        if not self.detect_recompute:
            return
        wanted = self.ids_where(
            lambda name: "torch/utils/checkpoint.py" in name and "recompute_fn" in name
        )
        roots = np.flatnonzero(
            np.isin(self.name[self.host], wanted)
            & (self.kind[self.host] == _core.EventKind.PYTHON_FUNCTION)
        )
        depth = np.zeros(len(self.host) + 1, dtype=np.int64)
        np.add.at(depth, roots, 1)
        np.add.at(depth, self.host_end[roots], -1)
        self.recompute[self.host] = np.cumsum(depth)[:-1] > 0
        self.recompute[self.linked] = self.recompute[self.call]

    # ------------------------------------------------------------------------------ asking

    def ids_where(self, test: Callable[[str], bool]) -> list[int]:
        """Ids of the strings that pass a test."""
        return [i for i, text in enumerate(self.strings) if test(text)]

    def below(self, rows: Array) -> Slices:
        """Linked GPU events of host rows and of all below them."""
        place = self.position[rows]
        known = place >= 0
        end = np.where(known, self.host_end[np.maximum(place, 0)], 0) if len(self.host) else place
        outside = len(self.host) + rows  # calls that their tree dropped
        begin = np.searchsorted(self.place, np.where(known, place, outside))
        return Slices(begin, np.searchsorted(self.place, np.where(known, end, outside + 1)))

    def busy_us(self, slices: Slices) -> Array:
        """float64 `[lists]`: union of the GPU events of each list."""
        # Calls that only wrap another one have the same events.
        groups = Groups(slices.begin, slices.end)
        distinct = slices.take(groups.first)
        Slices.check_listed(int(distinct.lengths.sum()))
        busy = np.zeros(len(distinct))
        for first, piece in distinct.pieces():
            owner, index = piece.expand()
            rows = self.linked[index]
            busy[first : first + len(piece)] = union_us(
                len(piece), owner, self.start_us[rows], self.end_us[rows]
            )
        return busy[groups.index]

    def leaf_ops(self) -> Array:
        """bool `[n]`: operators that reach a GPU event through runtime calls and frames alone.

        Calls of the driver interface are not among them, so that a Triton kernel has no leaf.
        """
        by_runtime = self.call[self.kind[self.call] == _core.EventKind.RUNTIME]
        leaves = np.zeros(len(self.table), dtype=bool)
        found = self.first_op(
            by_runtime, through=(_core.EventKind.RUNTIME, _core.EventKind.PYTHON_FUNCTION)
        )
        leaves[found[found >= 0]] = True
        return leaves

    def ops_inside(self, flags: Array, rows: Array) -> Array:
        """bool: does the subtree strictly below each row hold a row with the flag?"""
        counts = np.r_[0, np.cumsum(flags[self.host])]
        place = self.position[rows]
        known = place >= 0
        place = np.where(known, place, 0)
        inside: Array = known & (counts[self.host_end[place]] > counts[place + 1])
        return inside

    def topmost(self, rows: Array) -> Array:
        """Return the rows that lie below none of the others, by position."""
        place = np.sort(self.position[rows])
        place = place[place >= 0]
        reach = np.maximum.accumulate(np.r_[0, self.host_end[place]])[:-1]
        topmost: Array = self.host[place[place >= reach]]
        return topmost

    def backward_lists(self, rows: Array) -> tuple[Array, Array]:
        """(list number, GPU row) of all that the backward passes of each row's subtree launched."""
        place = self.position[rows]
        known = place >= 0
        safe = np.where(known, place, 0)
        joined = self._joined_places
        begin = np.searchsorted(joined, safe)
        end = np.where(known, np.searchsorted(joined, self.host_end[safe]), begin)
        owner, index = Slices(begin, end).expand()
        frames = self.backward[self.host[joined[index]]]
        frame, events = self.below(frames).expand()
        return owner[frame], self.linked[events]

    def wrapper_of(self, rows: Array) -> Array:
        """The nearest engine frame with a forward operator, at most five levels up; or -1."""
        found = np.full(len(rows), -1, dtype=np.int64)
        current = rows.copy()
        for _ in range(_LEVELS_TO_WRAPPER):
            current = np.where(current >= 0, self.parent[current], -1)
            hit = (found < 0) & (current >= 0) & (self.forward[current] >= 0)
            found[hit] = current[hit]
        return found

    def texts(self, key: str, rows: Array) -> tuple[Array, list[str]]:
        """One key of `args`: codes (-1 is absent) and the texts as the trace has them."""
        return self.table.text_codes(key, rows)

    def thread_names(self) -> list[tuple[str, str, str]]:
        """(process, its label, thread) by track; "Unknown" where the trace does not say."""
        if self._threads is None:
            named = ((t.process_name, t.process_labels, t.thread_name) for t in self.table.tracks)
            self._threads = [
                (process or "Unknown", label or "Unknown", thread or "Unknown")
                for process, label, thread in named
            ]
        return self._threads


class _Arrows:
    """Places where arrows begin or end: a track and a time."""

    def __init__(self, table: _core.EventTable, rows: Array) -> None:
        self._track = np.asarray(table.track).astype(np.uint64)
        self._ts = np.asarray(table.ts_ns).view(np.uint64)
        self._keys = self._key(rows)

    def _key(self, rows: Array) -> Array:
        # Multiplication wraps around on purpose: an odd factor spreads tracks over 64 bits.
        factor = np.uint64(0x9E3779B97F4A7C15)
        key: Array = self._track[rows] * factor ^ self._ts[rows]
        return key

    def isin(self, rows: Array) -> Array | None:
        """bool: does an arrow touch the start of each row? None if there are no arrows at all."""
        return np.isin(self._key(rows), self._keys) if len(self._keys) else None
