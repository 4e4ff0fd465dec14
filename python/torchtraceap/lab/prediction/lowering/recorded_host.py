"""Host times of recorded operators in the terms of a capture.

Note [Calls of a trace]: a capture records what reaches the dispatcher below autograd. In a trace
that is the outermost operator that torch does not decompose above it: in `aten::linear` >
`aten::addmm` it is `aten::addmm`, in `aten::clone` > `aten::copy_` it is `aten::clone`. A
decomposed operator is a wrapper whose own time belongs to the time before its inner operators.
Attention is one call, whatever implements it, as in a capture.

Note [Active time]: waiting is not the host's own time. Synchronizations, blocking copies,
allocations from the driver, and launches into a full queue count with their duration without
waiting; the rest is cut out of the time axis before anything is measured.

Note [Probe]: the time that Python, modules and the dispatcher take between operators, and that of
operators that compute nothing, is the same with and without a GPU. torch.profiler records a small
model on this machine's CPU, and its CPU kernels are left out, since they tell nothing of launches.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core import (
    ALLOCATOR_CALLS,
    COPY_CALLS,
    LAUNCHES,
    SYNCHRONISATIONS,
    ApiClass,
    Array,
    EventKind,
)
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.prediction.capture.calls import Call, Phase
from torchtraceap.ops import family_of
from torchtraceap.trace import RankTrace, load

if TYPE_CHECKING:
    import torch

__all__ = [
    "BEGIN",
    "PROBE_DEVIATION",
    "UNKNOWN_CROSSING",
    "CallContext",
    "RecordedCalls",
    "call_contexts",
    "call_name",
    "crossing",
    "is_multi_tensor",
    "probe",
    "recorded_calls",
]


_WAITS = np.concatenate([SYNCHRONISATIONS, COPY_CALLS, ALLOCATOR_CALLS, [ApiClass.CODE_LOADING]])
_MOST_COPY_NS = 15_000
"""Longest copy or synchronization that doesn't wait."""
_MOST_LAUNCH = 10.0
"""Multiple of the median beyond which a launch waits for room in the queue."""
_OUTSIDE_NS = 1_000_000
"""Gap beyond which time belongs to no operator."""

_WRAPPER_NAMES = """
    __and__ __iand__ __ior__ __or__ __xor__ _batch_norm_impl_index _fused_rms_norm
    _has_compatible_shallow_copy_type absolute absolute_ adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adjoint alpha_dropout arccos arctan2 argwhere atleast_1d atleast_2d
    batch_norm bilinear broadcast_tensors broadcast_to can_cast cartesian_prod cdist chain_matmul
    chunk clip_ column_stack combinations concat concatenate conj contiguous conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d corrcoef cosine_embedding_loss
    cosine_similarity cov cross cross_entropy_loss ctc_loss cumprod_backward cumulative_trapezoid
    data det diag diff divide divide_ dropout dropout_ dsplit dstack einsum embedding_bag
    embedding_sparse_backward expand_as feature_alpha_dropout feature_dropout fix flatten
    flatten_dense_tensors float_power gather_backward ger gradient greater greater_ greater_equal
    group_norm gru hinge_embedding_loss histogramdd hsplit hstack imag index_select_backward
    infinitely_differentiable_gelu_backward inner instance_norm inverse is_complex is_floating_point
    is_inference is_nonzero isclose isfinite istft item kl_div kron l1_loss layer_norm less less_
    less_equal linalg_matmul linalg_multi_dot linalg_norm linalg_vecdot linear log_sigmoid
    log_softmax logdet lstm mH mT margin_ranking_loss masked_select_backward matmul matrix_power
    max_pool1d max_pool2d max_pool3d meshgrid moveaxis movedim msort multilabel_margin_loss multiply
    multiply_ nanmean nanquantile narrow negative nll_loss nll_loss2d nll_loss_nd norm_except_dim
    not_equal nuclear_norm numpy_T one_hot outer pad pairwise_distance pin_memory pinverse positive
    prelu promote_types qr quantile ravel real relu6 relu6_ reshape reshape_as resolve_conj
    resolve_neg result_type rms_norm rnn_relu rnn_tanh row_stack rrelu selu selu_ size slogdet smm
    softmax square stft subtract subtract_ swapaxes swapdims take_along_dim tensor_split tensordot
    tile to to_dense trace_backward trapz triplet_margin_loss true_divide type_as unflatten
    unflatten_dense_tensors unsafe_chunk value_selecting_reduction_backward vander view_as vsplit
    vstack
"""
_WRAPPERS = frozenset(f"aten::{name}" for name in _WRAPPER_NAMES.split())
"""Composite operators above autograd (CompositeImplicitAutograd)."""
_MODULE = "nn.Module: "
_NODE = re.compile(r"^(?!autograd::engine).*(Backward\d*$|AccumulateGrad|CppNode<)")
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_NO_OPERATORS = ("autograd::", "torch::autograd::", "torch::distributed", "inductor::")
_SAME = {
    "cudnn_batch_norm": "native_batch_norm",
    "miopen_batch_norm": "native_batch_norm",
    "cudnn_batch_norm_backward": "native_batch_norm_backward",
    "miopen_batch_norm_backward": "native_batch_norm_backward",
    **{
        f"_scaled_dot_product_{kind}_attention{way}": f"scaled_dot_product_attention{way}"
        for kind in ("flash", "efficient", "cudnn")
        for way in ("", "_backward")
    },
}
PROBE_DEVIATION = 0.25
"""Deviation of the logarithm.

Host times of GPU runs scaled from small twins on another machine's CPU were 0.74 to 1.47 times the
measured ones, after one common factor.
"""
_PHASES = {
    _core.Phase.FORWARD: Phase.FORWARD,
    _core.Phase.BACKWARD: Phase.BACKWARD,
    _core.Phase.OPTIMIZER: Phase.OPTIMIZER,
    _core.Phase.OTHER: Phase.FORWARD,
}


def call_name(name: str) -> str | None:
    """Return the name that a capture gives an operator of a trace; None if it is no call."""
    if "::" not in name or name in _WRAPPERS or name.startswith(_NO_OPERATORS):
        return None
    space, _, own = name.partition("::")
    return f"{space}::{_SAME.get(own, own)}"


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """Calls in host order with their active times, ns; lists have one entry per call."""

    rows: Array
    """Rows of the trace, int64."""
    call_contexts: tuple[CallContext, ...]
    before: Array
    """Time before each call, float64; NaN for the first, after a pause, or with concurrent
    threads."""
    to_launch: Array
    """Time to the first launch, float64; NaN if unusable."""
    launches: tuple[tuple[float, ...], ...]
    between: Array
    """Mean time between launches, float64; 0 with fewer than two."""
    after: Array

    def __len__(self) -> int:
        return len(self.call_contexts)

    @property
    def counts(self) -> Array:
        """Number of launches of each call, int64."""
        return np.array(list(map(len, self.launches)), dtype=np.int64)

    def times(self, quantity: str) -> tuple[Array, Array]:
        """Return the calls with a time of `host.QUANTITIES`, and that time.

        Of launches, and from one to the next, the mean over the call.
        """
        counts = self.counts
        if quantity == "before":
            places = np.flatnonzero(np.isfinite(self.before))
            return places, self.before[places]
        if quantity == "alone":
            places = np.flatnonzero((counts == 0) & np.isfinite(self.to_launch))
            return places, self.to_launch[places]
        places = np.flatnonzero(counts > (1 if quantity == "between" else 0))
        if quantity == "launch":
            means = [sum(self.launches[place]) / counts[place] for place in places.tolist()]
            return places, np.array(means, dtype=np.float64)
        values: Array = getattr(self, quantity)[places]
        return places, values

    @property
    def total_ns(self) -> float:
        """Sum over all calls of the known times."""
        inside = (
            np.nan_to_num(self.to_launch)
            + self.between * np.maximum(self.counts - 1, 0)
            + self.after
        )
        return float(np.nansum(self.before) + inside.sum() + sum(map(sum, self.launches)))


def recorded_calls(part: RankTrace) -> RecordedCalls:
    """Return the host times of a rank's model calls.

    Kept is what is inside of a module (if any were recorded), an autograd node or the optimizer,
    and inside of a step (if there are any).
    """
    table, tree, texts = part.table, part.tree, part.table.strings
    host = tree.host_rows.astype(np.int64)
    is_name = np.array([call_name(text) is not None for text in texts], dtype=bool)
    calls = np.flatnonzero((table.kind[host] == EventKind.CPU_OP) & is_name[table.name[host]])
    ends = tree.subtree_end[calls].astype(np.int64)
    covered = np.maximum.accumulate(np.concatenate([[0], ends[:-1]])) if len(calls) else ends
    calls = calls[calls >= covered]
    rows = host[calls]
    # Threads that launch work or run the steps, without input loading.
    launching = table.track[tree.host_rows[np.isin(tree.api[tree.host_rows], LAUNCHES)]]
    main = [] if tree.main_track is None else [tree.main_track]
    wanted = np.isin(table.track[rows], np.unique([*launching.tolist(), *main]))
    wanted &= tree.phase[rows] != _core.Phase.INPUT
    rows, calls = rows[wanted], calls[wanted]
    order = np.argsort(table.ts_ns[rows], kind="stable")
    rows, calls = rows[order], calls[order]
    if not len(rows):
        none = np.zeros(0)
        return RecordedCalls(rows, (), none, none, (), none, none)
    clock = _ActiveClock(part, np.unique(table.track[rows]))
    begin, end = clock(table.ts_ns[rows]), clock(table.ts_ns[rows] + table.dur_ns[rows])
    to_launch, launches, between, after = _launch_times(part, clock, calls, begin, end)
    step = tree.step[rows].astype(np.int64)
    before = np.full(len(rows), np.nan)
    gap = begin[1:] - np.maximum.accumulate(end)[:-1]
    usable = (gap >= 0) & (gap < _OUTSIDE_NS) & (step[1:] == step[:-1])
    before[1:] = np.where(usable, gap, np.nan)
    phases = tuple(_PHASES[_core.Phase(phase)] for phase in tree.phase[rows].tolist())
    names = [call_name(texts[code]) or "" for code in table.name[rows].tolist()]
    crossings, tensors = _crossings(part, rows, phases), _tensors(part, rows, names)
    found = list(map(CallContext, names, ["", *names[:-1]], phases, crossings, tensors))
    inside = step != _core.NO_ROW
    if not inside.any():
        inside[:] = True
    modules = _innermost(part, rows, lambda text: text.startswith(_MODULE))
    outside = np.array(modules, dtype=np.int64) == _core.NO_ROW
    if not outside.all():
        inside &= ~(outside & np.array([phase is Phase.FORWARD for phase in phases], dtype=bool))
    kept = np.flatnonzero(inside)
    return RecordedCalls(
        rows[kept],
        tuple(found[place] for place in kept.tolist()),
        before[kept],
        to_launch[kept],
        tuple(launches[place] for place in kept.tolist()),
        between[kept],
        after[kept],
    )


def _tensors(part: RankTrace, rows: Array, names: Sequence[str]) -> list[int]:
    """Return the tensors of foreach operators, taken as the parameters accumulated in a step.

    Traces don't record the lengths of lists.
    """
    table, tree = part.table, part.tree
    is_node = np.array([text == _ACCUMULATE for text in table.strings], dtype=bool)
    nodes = np.flatnonzero(is_node[table.name] & (table.kind == EventKind.CPU_OP))
    counts = np.bincount(tree.step[nodes][tree.step[nodes] != _core.NO_ROW], minlength=1)
    most = int(np.median(counts[counts > 0])) if counts.any() else len(nodes)
    return [most if is_multi_tensor(name) else 0 for name in names]


class _ActiveClock:
    """Maps times of a trace to active times; see Note [Active time]."""

    def __init__(self, part: RankTrace, tracks: Array) -> None:
        table, tree = part.table, part.tree
        host = tree.host_rows.astype(np.int64)
        rows = host[np.isin(table.track[host], tracks) & (tree.api[host] != ApiClass.NONE)]
        length, api = table.dur_ns[rows], tree.api[rows]
        is_launch = np.isin(api, LAUNCHES) & ~np.isin(api, _WAITS)
        usual = float(np.median(length[is_launch])) if is_launch.any() else 0.0
        most = np.where(is_launch, _MOST_LAUNCH * usual, float(_MOST_COPY_NS))
        waits = (is_launch | np.isin(api, _WAITS)) & (length > most)
        least = np.where(is_launch, usual, float(_MOST_COPY_NS))[waits]
        end = table.ts_ns[rows][waits] + length[waits]
        order = np.argsort(end, kind="stable")
        self._end = end[order].astype(np.float64)
        begin = (end - length[waits] + least)[order]
        # Concurrent waits of several threads are cut out once.
        free = np.maximum.accumulate(np.concatenate([[-np.inf], self._end]))[:-1]
        self._begin = np.minimum(np.maximum(begin, free), self._end)
        self._lost = np.concatenate([[0.0], np.cumsum(self._end - self._begin)])

    def __call__(self, ns: Array) -> Array:
        """Return active times relative to the first, float64."""
        at = np.asarray(ns, dtype=np.float64)
        place = np.searchsorted(self._end, at, side="right")
        lost = self._lost[place]
        if len(self._end):
            current = np.minimum(place, len(self._end) - 1)
            inside = (place < len(self._end)) & (at > self._begin[current])
            lost = lost + np.where(inside, at - self._begin[current], 0.0)
        active: Array = at - lost
        return active


def _launch_times(
    part: RankTrace, clock: _ActiveClock, places: Array, begin: Array, end: Array
) -> tuple[Array, tuple[tuple[float, ...], ...], Array, Array]:
    """Return the times to the first launch, of launches, between and after them."""
    table, tree = part.table, part.tree
    host = tree.host_rows.astype(np.int64)
    is_launch = np.isin(tree.api[host], LAUNCHES)
    if len(tree.linked_gpu_rows):  # a memset of no bytes launches nothing
        is_launch &= np.diff(tree.launched_offsets.astype(np.int64))[host] > 0
    launch_places = np.flatnonzero(is_launch)
    nested = np.isin(tree.parent[host[launch_places]], host[launch_places])
    launch_places = launch_places[~nested]
    by_place = np.argsort(places, kind="stable")
    owner = np.searchsorted(places[by_place], launch_places, side="right") - 1
    owner_call = by_place[np.maximum(owner, 0)]
    inside = (owner >= 0) & (launch_places < tree.subtree_end[places[owner_call]])
    launch_rows, owner_call = host[launch_places[inside]], owner_call[inside]
    first = clock(table.ts_ns[launch_rows])
    last = clock(table.ts_ns[launch_rows] + table.dur_ns[launch_rows])
    order = np.lexsort((first, owner_call))
    first, last, owner_call = first[order], last[order], owner_call[order]
    counts = np.bincount(owner_call, minlength=len(places))
    starts = np.concatenate([[0], np.cumsum(counts)])
    launches = tuple(
        tuple((last[a:b] - first[a:b]).tolist())
        for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    )
    to_launch, after, between = end - begin, np.zeros(len(places)), np.zeros(len(places))
    has = np.flatnonzero(counts)
    # The profiler reads the clock for nested ranges at different moments: ends may cross a little.
    to_launch[has] = np.maximum(first[starts[has]] - begin[has], 0.0)
    after[has] = np.maximum(end[has] - last[starts[has + 1] - 1], 0.0)
    many = np.flatnonzero(counts > 1)
    for call in many.tolist():
        a, b = starts[call], starts[call + 1]
        between[call] = max((first[a + 1 : b] - last[a : b - 1]).mean(), 0.0)
    return to_launch, launches, between, after


def _crossings(part: RankTrace, rows: Array, phases: Sequence[Phase]) -> tuple[str, ...]:
    nodes = _innermost(part, rows, lambda text: _NODE.search(text) is not None)
    modules = _modules(part, rows)
    found = []
    last_path: tuple[str, ...] | None = None
    last_node, last_phase = int(_core.NO_ROW), None
    for place, (phase, node) in enumerate(zip(phases, nodes, strict=True)):
        path = modules[place] if modules else None
        same = {"is_same_node": node == last_node, "is_same_phase": phase is last_phase}
        found.append(crossing(phase, last_path, path, **same))
        last_path, last_node, last_phase = path, node, phase
    return tuple(found)


def _innermost(part: RankTrace, rows: Array, holds: Callable[[str], bool]) -> list[int]:
    """Return the innermost matching row around each row; `_core.NO_ROW` if there is none."""
    table = part.table
    marked = np.array([holds(text) for text in table.strings], dtype=np.uint8)[table.name]
    found: list[int] = _core.innermost_marked(table, part.tree, marked)[rows].tolist()
    return found


def _modules(part: RankTrace, rows: Array) -> list[tuple[str, ...]]:
    """Return the classes of the modules around each row; empty if not recorded."""
    table, tree = part.table, part.tree
    texts, name, parent = table.strings, table.name, tree.parent
    is_module = np.array([text.startswith(_MODULE) for text in texts], dtype=bool)
    marked = is_module[name] & (table.kind == EventKind.PYTHON_FUNCTION)
    if not marked.any():
        return []
    innermost = _core.innermost_marked(table, tree, marked.astype(np.uint8))
    none = int(_core.NO_ROW)
    paths: dict[int, tuple[str, ...]] = {none: ()}

    def path(row: int) -> tuple[str, ...]:
        inside = []
        while row not in paths:
            inside.append(row)
            above = int(parent[row])
            row = none if above == none else int(innermost[above])
        for each in reversed(inside):
            # `nn.Module: Linear_12` is a Linear.
            stem = re.sub(r"(?<=.)_\d+$", "", texts[name[each]].removeprefix(_MODULE))
            paths[each] = (*paths[row], stem)
            row = each
        return paths[row]

    return [path(int(innermost[row])) for row in rows.tolist()]


# ------------------------------------------------------------------------------- this machine

_LAYERS, _WIDTH, _STEPS = 8, 8, 5
_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "plain": (),
        "stack": ("record_shapes", "with_stack"),
        "full": ("record_shapes", "with_stack", "with_modules", "with_flops", "profile_memory"),
    }
)


def probe(run: Callable[[], object] | None = None, *, profiler: str = "full") -> RecordedCalls:
    """Record a few steps on this machine's CPU for `HostModel.calibrated`; see Note [Probe].

    Worth something where the GPU's host has a processor like this one's.

    Args:
        run: Makes one step, best of a model with the layers of that to be predicted and tiny
            widths; by default of a small transformer.
        profiler: The options of the profiler whose host times are wanted: "plain", "stack" or
            "full" (as in `host.PROFILERS`).

    Returns:
        Gaps between operators, and times of views; NaN for the operators that compute.

    Raises:
        MissingDependencyError: Without torch.
        OptionError: Nobody knows such a profiler, or the step calls no operator.
    """
    if profiler not in _OPTIONS:
        raise OptionError(f"no profiler {profiler!r} to probe with: {', '.join(_OPTIONS)}")
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("a probe runs a model, for which torch is needed") from error

    step = run or _small_transformer()
    activities = [torch.profiler.ProfilerActivity.CPU]
    options: dict[str, Any] = dict.fromkeys(_OPTIONS[profiler], True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.json"
        step()
        with torch.profiler.profile(activities=activities, **options) as recording:
            for _ in range(_STEPS):
                step()
        recording.export_chrome_trace(str(path))
        calls = recorded_calls(load(path).rank())
    if not len(calls):
        raise OptionError("the probe's step calls no operator")
    computes = np.array([family_of(call.name) != "view" for call in calls.call_contexts])
    return replace(calls, to_launch=np.where(computes, np.nan, calls.to_launch))


def _small_transformer() -> Callable[[], object]:
    """Return a step of a small transformer encoder."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(_WIDTH, 4, 2 * _WIDTH, dropout=0.0, batch_first=True)
    # In training the layer runs single operators, in evaluation a fused one.
    model: torch.nn.Module = nn.TransformerEncoder(layer, _LAYERS).train()
    values = torch.zeros(1, 4, _WIDTH)

    def step() -> object:
        with torch.no_grad():
            return model(values)

    return step


UNKNOWN_CROSSING = "modules ?"
BEGIN = "begin"
_NOTHING_BETWEEN = ("", "modules 0", UNKNOWN_CROSSING, "same node")
_FEW_TENSORS, _MANY_TENSORS = 20, 100
"""Numbers of tensors of a foreach operator: the fixed cost, and the number at the mean."""
_FOREACH = re.compile(r"::_foreach_")
_MULTI_TENSOR = re.compile(r"::_(foreach|fused)_|::_amp_foreach")
_MOST_MODULES = 5


@dataclass(frozen=True, slots=True)
class CallContext:
    """A call and what precedes it."""

    name: str
    last: str
    """Name of the previous call; empty for the first."""
    phase: Phase
    crossing: str
    """Boundary crossed before the call, see `crossing`."""
    tensors: int = 0
    """Number of tensors that a foreach or fused operator updates."""

    @property
    def single_tensor(self) -> CallContext:
        """The single-tensor variant of a foreach operator."""
        return replace(self, name=_FOREACH.sub("::", self.name), tensors=0)

    def scale(self, quantity: str) -> float:
        """Return the factor for the number of tensors of a foreach operator.

        Loops run in Python before an optimizer's first operator, and in C++ before the first
        launch.
        """
        in_loop = quantity == "to_launch" or (quantity == "before" and self.crossing == BEGIN)
        if not self.tensors or not in_loop:
            return 1.0
        return (self.tensors + _FEW_TENSORS) / (_MANY_TENSORS + _FEW_TENSORS)

    @property
    def is_in_loop(self) -> bool:
        """True in loops over parameters or read values, which have shorter gaps."""
        loops = self.phase is Phase.OPTIMIZER or self.name == "aten::_local_scalar_dense"
        return loops and self.name == self.last and self.crossing in _NOTHING_BETWEEN

    def classes(self, quantity: str) -> tuple[str, ...]:
        """Return the classes of one of its times (`host.QUANTITIES`), widest first."""
        if quantity != "before":
            return "", family_of(self.name), self.name
        if self.is_in_loop:
            return "", "again", f"again {family_of(self.name)}", f"again {self.name}"
        own = f"{self.phase.value} {self.crossing or 'inside'}"
        by_name = f"{own} {self.name}"
        return "", self.phase.value, own, by_name, f"{by_name} < {self.last}"


def crossing(
    phase: Phase,
    left: Sequence[str] | None,
    entered: Sequence[str] | None,
    *,
    is_same_node: bool,
    is_same_phase: bool,
) -> str:
    """Return the boundary between two calls: modules left and entered, or an autograd node.

    Args:
        phase: Phase of the second call.
        left: Modules around the first; None where they are not known.
        entered: Modules around the second.
        is_same_node: True if one autograd node makes both.
        is_same_phase: True unless the backward pass or the optimizer begins with the second.

    Returns:
        "modules 0" to "modules 5" (5 or more) in the forward pass, "modules ?" where they are not
        known; "node" or "same node" in the backward pass; "" in the optimizer; "begin" where one of
        these two begins.
    """
    if phase is not Phase.FORWARD and not is_same_phase:
        return BEGIN
    if phase is Phase.OPTIMIZER:
        return ""
    if phase is Phase.BACKWARD:
        return "same node" if is_same_node else "node"
    if left is None or entered is None:
        return UNKNOWN_CROSSING
    shared = 0
    for one, other in zip(left, entered, strict=False):
        if one != other:
            break
        shared += 1
    return f"modules {min(len(left) + len(entered) - 2 * shared, _MOST_MODULES)}"


def call_contexts(calls: Sequence[Call]) -> Iterator[CallContext]:
    """Yield the contexts of captured calls."""
    last: Call | None = None
    knows_modules = any(call.modules for call in calls)
    for call in calls:
        left = () if last is None else last.modules
        same = last is not None and (last.node, last.sequence) == (call.node, call.sequence)
        between = crossing(
            call.phase,
            left if knows_modules else None,
            call.modules if knows_modules else None,
            is_same_node=same,
            is_same_phase=last is not None and last.phase is call.phase,
        )
        first = next(iter(call.inputs.values()), ()) if is_multi_tensor(call.name) else ()
        tensors = len(first) if isinstance(first, tuple) else 0
        name = "" if last is None else last.name
        yield CallContext(call.name, name, call.phase, between, tensors)
        last = call


def is_multi_tensor(name: str) -> bool:
    """Return whether an operator is foreach or fused, so that its host time grows with its
    tensors."""
    return _MULTI_TENSOR.search(name) is not None
