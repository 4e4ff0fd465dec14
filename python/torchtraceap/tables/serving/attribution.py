"""`attribute`: the operator, module, layer and role of every GPU event, and on what evidence.

Note [Evidence]: an event that a call launched by itself belongs to the operator around the call. A
replayed kernel has no such operator: the best evidence there is stands for it, in the order of
`EVIDENCE`. Nothing is attributed without saying by what.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.columns import TextCodes, encode_texts
from torchtraceap.core.records import dataclass
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.ops.modules import modules_of
from torchtraceap.tables.serving.capture import (
    CaptureTraces,
    ReplayAligner,
    Replays,
    find_captures,
)
from torchtraceap.tables.serving.iterations import (
    ServedIterations,
    batch_of,
    served_iterations,
)
from torchtraceap.tables.serving.layers import KernelClasses, fold_layers
from torchtraceap.tables.serving.roles import kernel_kind, roles_in_layer, roles_outside
from torchtraceap.trace.ranks import RankTrace

__all__ = ["EVIDENCE", "Attribution", "attribute"]

EVIDENCE = ("launch", "annotation", "node", "capture", "twin", "layer", "name", "none")
"""What an attribution rests on, the best first."""
_LAUNCH, _ANNOTATION, _CAPTURE, _LAYER, _NAME, _NONE = (
    EVIDENCE.index(name) for name in ("launch", "annotation", "capture", "layer", "name", "none")
)
_LEAST_GRAPH_SHARE = 0.5
"""Share of the GPU time of an iteration that graphs have to run for layers to be looked for."""
_MOST_FOLDED = 256
"""Different sequences of kernels in which layers are looked for."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """What each of `tree.gpu_rows` is; arrays have one entry per GPU event."""

    evidence: Array
    """int8: index in `EVIDENCE`."""
    operator: TextCodes
    module: TextCodes
    layer: Array
    """int64: -1 outside of layers."""
    role: TextCodes
    """One of `roles.ROLES`; absent where no layer was found."""
    refused: tuple[str, ...] = ()
    """Captures that fit no replay, and why."""

    def shares(self, duration_ns: Array) -> dict[str, float]:
        """Return the share of GPU time by evidence."""
        sums = np.bincount(self.evidence, weights=duration_ns, minlength=len(EVIDENCE))
        total = float(sums.sum()) or 1.0
        return {name: float(ns) / total for name, ns in zip(EVIDENCE, sums, strict=True)}


def attribute(part: RankTrace, capture: PathLike | None = None) -> Attribution:
    """Attribute the GPU events of a rank; kept. See Note [Evidence].

    Args:
        part: The rank.
        capture: A trace of the capture of its CUDA graphs, or a folder with such; by default what
            lies beside the trace in a folder that engines use for it.

    Raises:
        OptionError: `capture` holds no trace.
    """
    folder = find_captures(part.path) if capture is None else capture
    return part.cached(
        ("attribution", str(folder)),
        lambda: _build(part, CaptureTraces(folder) if folder else None),
    )


def _build(part: RankTrace, captures: CaptureTraces | None) -> Attribution:
    events, tree = GpuEvents.of(part), part.tree
    iterations = served_iterations(part)
    launches = np.where(events.is_linked, events.launch, 0).astype(np.int64)
    of_graph = events.is_linked & (
        np.asarray(tree.api)[launches] == int(_core.ApiClass.GRAPH_LAUNCH)
    )
    kinds = _kinds(events)
    layer, role = _layers(part, events, iterations, of_graph, kinds)
    evidence = np.full(len(events), _NONE, dtype=np.int8)
    named = np.array([kind != "other" for kind in kinds], dtype=bool)
    evidence[named] = _NAME
    evidence[(layer >= 0) & of_graph] = _LAYER
    op_rows = tree.op[events.rows]
    has_op = events.is_linked & ~of_graph & (op_rows != _core.NO_ROW)
    evidence[events.is_linked & ~of_graph] = _LAUNCH
    operators = _Texts(events.names_of(np.where(has_op, op_rows, _core.NO_ROW)))
    modules = _Texts(modules_of(part, events.rows))
    annotated = events.text_arg("module_fqn")
    marked = np.flatnonzero(of_graph & (annotated.codes >= 0))
    modules.put(marked, annotated.take(marked))
    evidence[marked] = _ANNOTATION
    replays = _replays(part, captures, iterations, of_graph) if captures else None
    if replays:
        _add_captured(replays, operators, modules, evidence)
    return Attribution(
        evidence=evidence,
        operator=operators.column,
        module=modules.column,
        layer=layer,
        role=encode_texts(role),
        refused=replays.refused if replays else (),
    )


class _Texts:
    """A text column of which some values are written over."""

    def __init__(self, column: TextCodes) -> None:
        self.column = column.compact()

    def put(self, places: Array, values: TextCodes) -> None:
        """Write values, one for each place."""
        if not len(places):
            return
        known = self.column.texts
        codes = self.column.codes.copy()
        codes[places] = np.where(values.codes >= 0, values.codes + np.int32(len(known)), -1)
        self.column = TextCodes(codes, [*known, *values.texts]).compact()


def _kinds(events: GpuEvents) -> list[str]:
    """Return what the name of each event says."""
    of_name = {code: kernel_kind(events.texts[code]) for code in np.unique(events.name).tolist()}
    return [of_name[code] for code in events.name.tolist()]


def _layers(
    part: RankTrace,
    events: GpuEvents,
    iterations: ServedIterations,
    of_graph: Array,
    kinds: Sequence[str],
) -> tuple[Array, list[str | None]]:
    """Return the layer and the role of each event; layers are those of one iteration."""
    layer = np.full(len(events), -1, dtype=np.int64)
    role: list[str | None] = [None] * len(events)
    if part.tree.workload.role == "training" or not of_graph.any():
        return layer, role
    names = events.canonical.codes.astype(np.int64)
    kind = np.array(kinds, dtype=object)
    order = _launch_order(part, events)
    order = order[np.argsort(iterations.of_event[order], kind="stable")]
    bounds = np.searchsorted(iterations.of_event[order], np.arange(len(iterations) + 1))
    folded: dict[bytes, tuple[Array, list[str]]] = {}
    for number in range(len(iterations)):
        places = order[bounds[number] : bounds[number + 1]]
        duration = events.duration_ns[places]
        graphs_ns = duration[of_graph[places]].sum()
        if not len(places) or graphs_ns < _LEAST_GRAPH_SHARE * duration.sum():
            continue
        key = names[places].tobytes()
        if key not in folded:
            if len(folded) == _MOST_FOLDED:
                continue
            folded[key] = _fold(names[places], kind[places])
        found, roles = folded[key]
        if (found >= 0).any():
            layer[places] = found
            for place, value in zip(places.tolist(), roles, strict=True):
                role[place] = value
    return layer, role


def _launch_order(part: RankTrace, events: GpuEvents) -> Array:
    """Return the events by launch call, and those of one call by the id of their node, else by
    start: what runs on several streams at once has one order in which it was captured."""
    ids, known = part.table.int_column("graph node id", rows=events.rows)
    call_ns = np.where(events.is_linked, events.of_launch(part.table.ts_ns), events.start_ns)
    order: Array = np.lexsort((events.start_ns, np.where(known, ids, 0), call_ns))
    return order


def _fold(names: Array, kinds: Array) -> tuple[Array, list[str]]:
    classes = KernelClasses(
        norm=kinds == "norm",
        attention=kinds == "attention",
        product=(kinds == "product") | (kinds == "experts"),
    )
    layer = fold_layers(names, classes)
    roles = roles_outside(kinds.tolist(), layer)
    for number in range(int(layer.max(initial=-1)) + 1):
        inside = np.flatnonzero(layer == number)
        for place, role in zip(
            inside.tolist(), roles_in_layer(kinds[inside].tolist()), strict=True
        ):
            roles[place] = role
    return layer, roles


def _replays(
    part: RankTrace, captures: CaptureTraces, iterations: ServedIterations, of_graph: Array
) -> Replays:
    """Align the graphs of all iterations with captured ones."""
    launches = part.tree.launch[part.tree.gpu_rows[of_graph]].astype(np.int64)
    calls, first = np.unique(launches, return_index=True)
    number = iterations.of_event[of_graph][first]
    groups = []
    for each in np.unique(number).tolist():
        mark = iterations.marks[each] if each >= 0 else None
        padded = mark.graph_batch if mark else None
        batch = batch_of(mark) if padded is None else padded
        groups.append((calls[number == each].tolist(), batch))
    return ReplayAligner(part, captures).align(groups)


def _add_captured(replays: Replays, operators: _Texts, modules: _Texts, evidence: Array) -> None:
    """Write what the captured calls say over what is known without them."""
    for number, part in enumerate(replays.parts):
        own = replays.part == number
        places, rows = replays.events[own], replays.rows[own]
        op = part.tree.op[rows]
        known = op != _core.NO_ROW
        codes = np.where(known, part.table.name[np.where(known, op, 0)].astype(np.int64), -1)
        operators.put(places, TextCodes(codes.astype(np.int32), part.table.strings).compact())
        modules.put(places, modules_of(part, rows))
        evidence[places] = _CAPTURE
