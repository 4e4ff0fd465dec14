"""`attribute`: the operator, module, layer and role of every GPU event, and on what evidence.

Note [Evidence]: an event that a call launched by itself belongs to the operator around the call. A
replayed kernel has no such operator: the best evidence there is stands for it, in the order of
`EVIDENCE`. Nothing is attributed without saying by what.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.columns import TextCodes
from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.grouping import Groups, phases_of
from torchtraceap.tables.ops.module_paths import modules_of
from torchtraceap.tables.serving.annotations import SideFiles, fill, read_annotations, scatter
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
from torchtraceap.tables.serving.nodes import GraphNodes, graph_nodes
from torchtraceap.tables.serving.roles import ROLES, kinds_of, layers_and_roles
from torchtraceap.tables.serving.twin import Twin
from torchtraceap.trace.ranks import RankTrace

__all__ = ["EVIDENCE", "Attribution", "attribute"]

EVIDENCE = ("launch", "annotation", "node", "capture", "twin", "layer", "name", "none")
"""What an attribution rests on, the best first."""
_LAUNCH, _ANNOTATION, _NODE, _CAPTURE, _TWIN, _LAYER, _NAME, _NONE = range(len(EVIDENCE))
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
    phase: TextCodes
    """The part of a training step; annotations tell it of replayed kernels."""
    stack: TextCodes
    """Python frames as `file:line:function`, the innermost first, that launched a replayed kernel
    when its graph was captured; absent unless they were written beside the trace."""
    captured_part: Array
    """int64: index in `captures` of the trace that has the call behind a replayed event, else -1.
    A run without graphs is none: its shapes may be others."""
    captured_row: Array
    """int64: row of the captured call in the table of that trace."""
    captures: tuple[RankTrace, ...] = ()
    refused: tuple[str, ...] = ()
    """Captures and twins that fit no replay and files that can't be used, and why."""

    def of_groups(self, group: Array, duration_ns: Array, size: int) -> TextCodes:
        """Return the evidence that most of the GPU time of each group rests on.

        Args:
            group: int64 `[events]`: the group of each event, -1 for none.
            duration_ns: int64 `[events]`.
            size: The number of groups.
        """
        counted = group >= 0
        cells = group[counted] * len(EVIDENCE) + self.evidence[counted]
        # Events without a length count as well.
        sums = np.bincount(cells, duration_ns[counted] + 1e-9, size * len(EVIDENCE))
        sums = sums.reshape(size, len(EVIDENCE))
        best = np.where(sums.any(axis=1), sums.argmax(axis=1), -1)
        return TextCodes(best.astype(np.int32), EVIDENCE)

    def shares(self, duration_ns: Array, *, of_operators: bool = False) -> dict[str, float]:
        """Return the share of GPU time by evidence, `of_operators` only where it names one."""
        counted = duration_ns * (self.operator.codes >= 0) if of_operators else duration_ns
        sums = np.bincount(self.evidence, weights=counted, minlength=len(EVIDENCE))
        total = float(duration_ns.sum()) or 1.0
        return {name: float(ns) / total for name, ns in zip(EVIDENCE, sums, strict=True)}


def attribute(
    part: RankTrace, capture: PathLike | None = None, eager: PathLike | None = None
) -> Attribution:
    """Attribute the GPU events of a rank; kept. See Note [Evidence].

    Args:
        part: The rank.
        capture: A trace of the capture of its CUDA graphs, the annotations or stacks that
            torch.cuda noted then, or a folder with such; by default what lies beside the trace in
            a folder that engines use for it. Annotations beside the trace are read in any case.
        eager: A trace of the same model without graphs.

    Raises:
        OptionError: `capture` holds none of these.
        ParseError: `eager` is no trace.
    """
    folder = find_captures(part.path) if capture is None else Path(capture)
    twin = None if eager is None else Path(eager)
    return part.cached(("attribution", str(folder), str(twin)), lambda: _build(part, folder, twin))


def _build(part: RankTrace, folder: Path | None, eager: Path | None) -> Attribution:
    events, tree, nodes = GpuEvents.of(part), part.tree, graph_nodes(part)
    files = SideFiles.of(part, folder)
    captures = CaptureTraces(folder) if folder else None
    if folder and not captures and not (files.annotations or files.stacks):
        raise OptionError(
            f"{folder}: holds no traces of captures (.json, .json.gz) and no annotations of graphs"
        )
    noted, problems = read_annotations(part, files)
    iterations = served_iterations(part)
    of_graph = nodes.replayed
    # What a name says matters only where no call of its own launched a kernel.
    untold = np.full(len(events), of_graph.any()) | ~events.is_linked
    kinds = np.full(len(events), "other", dtype=object)
    kinds[untold] = kinds_of(events.where(untold))
    layer, role = _layers(part, events, iterations, noted.layer, kinds)
    evidence = np.full(len(events), _NONE, dtype=np.int8)
    evidence[kinds != "other"] = _NAME
    evidence[(layer >= 0) & of_graph] = _LAYER
    op_rows = tree.op[events.rows]
    has_op = events.is_linked & ~of_graph & (op_rows != _core.NO_ROW)
    evidence[events.is_linked & ~of_graph] = _LAUNCH
    operator = events.names_of(np.where(has_op, op_rows, _core.NO_ROW)).compact()
    module = modules_of(part, events.rows)
    refused: list[str] = []
    twin = Twin(eager).align(part, layer) if eager else None
    replays = _replays(part, captures, iterations, of_graph) if captures else None
    for found, kind in ((twin, _TWIN), (replays, _CAPTURE)):
        if found:
            operator, module = _add_elsewhere(found, operator, module)
            evidence[found.events] = kind
            refused += found.refused
    captured = np.full((2, len(events)), -1, dtype=np.int64)
    if replays:
        captured[:, replays.events] = replays.part, replays.rows
    operator, module = fill(operator, noted.operator), fill(noted.module, module)
    evidence[noted.known] = _ANNOTATION
    known = np.isin(evidence, (_ANNOTATION, _CAPTURE, _TWIN))
    places, others = _in_other_replays(nodes, events.name, known)
    operator, module = _copy(operator, places, others), _copy(module, places, others)
    evidence[places] = _NODE
    captured[:, places] = captured[:, others]
    return Attribution(
        evidence=evidence,
        operator=operator,
        module=module,
        layer=layer,
        role=role,
        phase=fill(noted.phase, phases_of(part, events.rows)),
        stack=noted.stack,
        captured_part=captured[0],
        captured_row=captured[1],
        captures=replays.parts if replays else (),
        refused=(*problems, *refused),
    )


def _layers(
    part: RankTrace,
    events: GpuEvents,
    iterations: ServedIterations,
    noted: Array,
    kinds: Array,
) -> tuple[Array, TextCodes]:
    """Return the layer and the role of each event; layers are those of one iteration, where
    annotations don't number them."""
    nodes = graph_nodes(part)
    layer = noted.copy()
    role = np.full(len(events), -1, dtype=np.int32)
    if part.tree.workload.role == "training" or not nodes.replayed.any():
        return layer, TextCodes(role, ROLES)
    names = events.canonical.codes.astype(np.int64)
    folded: dict[bytes, tuple[Array, Array]] = {}
    for places in iterations.launched(part):
        duration = events.duration_ns[places]
        graphs_ns = duration[nodes.replayed[places]].sum()
        if not len(places) or graphs_ns < _LEAST_GRAPH_SHARE * duration.sum():
            continue
        key = names[places].tobytes() + layer[places].tobytes()
        if key not in folded:
            if len(folded) == _MOST_FOLDED:
                continue
            folded[key] = layers_and_roles(names[places], kinds[places], layer[places])
        layer[places], role[places] = folded[key]
    for column in (layer, role):
        places, others = _in_other_replays(nodes, events.name, column >= 0)
        column[places] = column[others]
    return layer, TextCodes(role, ROLES)


def _in_other_replays(nodes: GraphNodes, names: Array, known: Array) -> tuple[Array, Array]:
    """Return the replayed events that are not known, and for each one that is: of the same node of
    the same graph, with the same name."""
    places = np.flatnonzero(nodes.replayed & nodes.of_graph)
    same = Groups(nodes.whole[places], names[places])
    source = np.full(len(same), -1, dtype=np.int64)
    sure = known[places]
    source[same.index[sure]] = places[sure]
    others = source[same.index]
    wanted = ~sure & (others >= 0)
    return places[wanted], others[wanted]


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


def _add_elsewhere(
    replays: Replays, operator: TextCodes, module: TextCodes
) -> tuple[TextCodes, TextCodes]:
    """Return the columns with what other traces say in place of what stood there."""
    operator, module = _clear(operator, replays.events), _clear(module, replays.events)
    for number, part in enumerate(replays.parts):
        own = replays.part == number
        places, rows = replays.events[own], replays.rows[own]
        op = part.tree.op[rows]
        known = op != _core.NO_ROW
        codes = np.where(known, part.table.name[np.where(known, op, 0)].astype(np.int64), -1)
        names = TextCodes(codes.astype(np.int32), part.table.strings).compact()
        operator = fill(operator, scatter(len(operator), places, names))
        module = fill(module, scatter(len(module), places, modules_of(part, rows)))
    return operator, module


def _clear(column: TextCodes, places: Array) -> TextCodes:
    """Return a column without the values of some places."""
    codes = column.codes.copy()
    codes[places] = -1
    return TextCodes(codes, column.texts)


def _copy(column: TextCodes, places: Array, others: Array) -> TextCodes:
    """Return a column with the values of other rows at some places."""
    codes = column.codes.copy()
    codes[places] = codes[others]
    return TextCodes(codes, column.texts)
