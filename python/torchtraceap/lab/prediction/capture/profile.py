"""Captures a step from a CPU profile recorded with shapes.

Recorded operators are executed again on tensors without values (`reexecution.py`), so that the
result matches the capture of the model. Backward passes of operators that a CPU decomposes and a
GPU does not (`_WHOLE`) are found by the sequence numbers of their autograd nodes and replaced as a
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from torchtraceap import _core
from torchtraceap.compat.replay.call import RecordedCall
from torchtraceap.core.aliases import Array
from torchtraceap.lab.prediction.capture.batch import TracedCall, change_batch
from torchtraceap.lab.prediction.capture.batch_arguments import MAKERS, is_view_op, keeps_sizes
from torchtraceap.lab.prediction.capture.calls import (
    Call,
    Capture,
    CaptureError,
    Collective,
    Gradient,
    Phase,
    tensors_in,
)
from torchtraceap.lab.prediction.capture.recorded import named_inputs
from torchtraceap.lab.prediction.capture.reexecution import (
    Reexecutor,
    is_composite,
    is_registered,
    reexecution,
)
from torchtraceap.lab.prediction.capture.rows import (
    EVALUATE_FUNCTION,
    gradients_of,
    phase_of,
    recorded_call,
    sequence_number,
    with_location,
)
from torchtraceap.lab.prediction.capture.steps import StepRows, steady_step
from torchtraceap.lab.prediction.capture.updates import gpu_update
from torchtraceap.trace.ranks import RankTrace

__all__ = ["capture_profile"]

_NO_ROW = _core.NO_ROW
_NONE: Mapping[int, Collective] = MappingProxyType({})
# Outer operators come first: attention may contain a dropout.
_RECURRENT = ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu")
_WHOLE = (("aten::scaled_dot_product_attention", *_RECURRENT), ("aten::dropout",))
_WHOLE_NAMES = frozenset(name for names in _WHOLE for name in names)
_NO_OPERATORS = (
    "autograd::", "torch::autograd::AccumulateGrad", "profiler::", "c10d::", "inductor::"
)  # fmt: skip
_PREPARES = frozenset(("to", "_to_copy", "item", "_local_scalar_dense", "zero", "fill", "resize"))
# Operators that change a tensor's metadata and launch nothing.
_SILENT = frozenset(
    """
    aten::as_strided_ aten::detach_ aten::requires_grad_ aten::resize_ aten::resize_as_ aten::set_
    aten::record_stream aten::squeeze_ aten::swapaxes_ aten::swapdims_ aten::t_ aten::transpose_
    aten::unsqueeze_
    """.split()  # noqa: SIM905
)


def capture_profile(
    part: RankTrace,
    batch: int | None = None,
    *,
    exchanges: Mapping[int, Collective] = _NONE,
    waits: Callable[[int, int], int | None] | None = None,
) -> Capture:
    """Return the calls of a steady step of a CPU profile.

    Args:
        part: Recorded on a CPU with `record_shapes=True`.
        batch: New leading dimension of the inputs; None keeps it.
        exchanges: Collectives by the row that starts them, where the source tells of them.
        waits: Asked of the rows from one up to another, in their order: the `id` of the collective
            whose result these use first.

    Raises:
        CaptureError: No shapes were recorded, there are no operators, or the step is compiled.
        OptionError: Which sizes are the batch is ambiguous.
        MissingDependencyError: torch is not installed, whose rules take operators apart.
    """
    step = steady_step(part)
    _check(part, step)
    updates = _updates(part, step)
    collectives = _Collectives(exchanges, waits)
    calls, walk = _walk_step(part, step, updates, {}, collectives)
    notes = walk.notes
    if batch is not None:
        traced = [each for each in walk.traced if each.row not in updates]
        shapes = [each.shape for each in gradients_of(part, step.rows.tolist()).values()]
        changed = change_batch(traced, batch, shapes, part.path)
        calls, walk = _walk_step(part, step, updates, changed.calls, collectives)
        notes = [*changed.notes, *walk.notes]
    recorded = tuple(_with_first_gradient(calls))
    return Capture(recorded, (*step.notes, *notes), gradients=tuple(walk.gradients))


def _walk_step(
    part: RankTrace,
    step: StepRows,
    updates: dict[int, list[Call]],
    changed: Mapping[int, RecordedCall],
    collectives: _Collectives,
) -> tuple[list[Call], _Walk]:
    with reexecution() as reexecutor:
        walk = _Walk(part, step, reexecutor, updates, changed, collectives)
        return list(walk.calls()), walk


@dataclass(frozen=True, slots=True)
class _Collectives:
    """The collectives of a source; see `capture_profile`."""

    exchanges: Mapping[int, Collective]
    waits: Callable[[int, int], int | None] | None

    def with_waits(self, calls: list[Call], first: int, last: int) -> list[Call]:
        """Return the calls of rows from first up to last with the collective they wait for."""
        working = (k for k, call in enumerate(calls) if not call.is_view and not call.on_host)
        place = next(working, None)
        if self.waits is not None and place is not None:
            calls[place] = replace(calls[place], waits_for=self.waits(first, last))
        return calls


def _with_first_gradient(calls: list[Call]) -> list[Call]:
    """Assign the gradient of the loss, made before autograd begins, to the backward pass."""
    backward = (k for k, call in enumerate(calls) if call.phase is Phase.BACKWARD)
    place = next(backward, 0) - 1
    if place >= 0 and calls[place].name == "aten::ones_like":
        calls[place] = replace(calls[place], phase=Phase.BACKWARD)
    return calls


def _check(part: RankTrace, step: StepRows) -> None:
    table = part.table
    ops = step.rows[table.kind[step.rows] == _core.EventKind.CPU_OP]
    if not len(ops):
        raise CaptureError(f"{part.path}: no operator is recorded")
    codes, _ = table.text_codes("Input Dims", rows=ops)
    if not np.any(codes >= 0):
        raise CaptureError(f"{part.path}: operators have no shapes; record with record_shapes=True")
    names = {table.strings[code] for code in np.unique(table.name[step.rows]).tolist()}
    if any(name.startswith(("Torch-Compiled Region", "CompiledFunction")) for name in names):
        raise CaptureError(
            f"{part.path}: the step is compiled for a CPU, which a GPU would not run; record it "
            "without torch.compile"
        )


def _updates(part: RankTrace, step: StepRows) -> dict[int, list[Call]]:
    """Return the optimizer steps as a GPU runs them, by row."""
    found = {}
    for row in step.rows.tolist():
        name = part.table.name_of(row)
        if name.startswith("Optimizer.step#"):
            calls = gpu_update(name, list(_operators_below(part, row)))
            if calls is not None:
                found[row] = calls
    return found


def _computes(call: RecordedCall) -> bool:
    """Return whether an operator computes, instead of preparing or viewing its result."""
    name = call.name.partition("::")[2].rstrip("_")
    return name not in MAKERS and not is_view_op(name) and name not in _PREPARES


def _operators_below(part: RankTrace, row: int) -> Iterator[RecordedCall]:
    """Yield the outermost operators below a row."""
    tree = part.tree
    place = int(tree.host_position[row])
    last, place = int(tree.subtree_end[place]), place + 1
    while place < last:
        below = int(tree.host_rows[place])
        is_operator = part.table.name_of(below).startswith("aten::")
        place = int(tree.subtree_end[place]) if is_operator else place + 1
        recorded = recorded_call(part, below) if is_operator else None
        if recorded is not None:
            yield recorded


class _Walk:
    """Walks through the rows of a step and executes the outermost operators again."""

    def __init__(
        self,
        part: RankTrace,
        step: StepRows,
        reexecutor: Reexecutor,
        updates: dict[int, list[Call]],
        changed: Mapping[int, RecordedCall],
        collectives: _Collectives,
    ) -> None:
        self._part, self._step, self._reexecutor, self._updates = part, step, reexecutor, updates
        self._changed, self._collectives = changed, collectives
        self.traced: list[TracedCall] = []
        self.gradients: list[Gradient] = []
        self._gradient_of = gradients_of(part, step.rows.tolist())
        self._table, self._tree = part.table, part.tree
        self._whole = [self._inside(names) for names in _WHOLE]
        self._done_whole: set[int] = set()
        self._unknown: dict[str, int] = {}

    @property
    def notes(self) -> list[str]:
        """Notes on operators that could not be executed again."""
        if not self._unknown:
            return []
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(self._unknown.items()))
        return [f"what these give is not known, as the profile doesn't say enough: {listed}"]

    def calls(self) -> Iterator[Call]:
        """Yield the calls of the whole step."""
        position, end = self._tree.host_position, self._tree.subtree_end
        done: dict[int, int] = {}
        tracks, count = self._table.track, 0
        for row in self._step.rows.tolist():
            if row in self._gradient_of:
                self.gradients.append(Gradient(count, self._gradient_of[row]))
            track, place = int(tracks[row]), int(position[row])
            if place < done.get(track, 0):
                continue
            found = self._updates[row] if row in self._updates else self._row_calls(row)
            if found is not None:
                done[track] = int(end[place])
                count += len(found)
                last = int(self._tree.host_rows[int(end[place]) - 1]) + 1
                yield from self._collectives.with_waits(found, row, last)

    def _recorded(self, row: int, *, is_needed: bool = True) -> RecordedCall | None:
        """Return the recorded operator at the requested batch size."""
        found = self._changed.get(row) or recorded_call(self._part, row)
        if found is not None:
            self.traced.append(TracedCall(row, found, phase_of(self._part, row), is_needed))
        return found

    def _exchange(self, row: int, name: str) -> Call:
        recorded = recorded_call(self._part, row)
        inputs = {} if recorded is None else named_inputs(recorded)
        met = self._collectives.exchanges[row]
        phase = phase_of(self._part, row)
        return Call(name, "default", inputs, (), phase, (), collective=met)

    def _unknown_operator(self, row: int, name: str) -> list[Call] | None:
        """Return the call of an operator unknown to torch.

        The result is None if nested operators describe it, or if it is no operator.
        """
        if "::" not in name or name.startswith(_NO_OPERATORS):
            return None
        recorded = recorded_call(self._part, row)
        if recorded is None or any(map(_computes, _operators_below(self._part, row))):
            return None
        call = self._reexecutor.as_recorded(recorded, phase_of(self._part, row))
        if not any(tensors_in(call.inputs.values())):
            return None
        self._unknown[name] = self._unknown.get(name, 0) + 1
        return with_location(self._part, [call], row)

    def _record_views(self, row: int) -> None:
        """Record the views within a call, whose results backward passes read."""
        place = int(self._tree.host_position[row])
        if self._table.name_of(row) in _WHOLE_NAMES:
            return
        for below in self._tree.host_rows[place + 1 : int(self._tree.subtree_end[place])].tolist():
            name = self._table.name_of(below).partition("::")[2]
            if keeps_sizes(name):
                self._recorded(below, is_needed=False)

    def _row_calls(self, row: int) -> list[Call] | None:
        """Return the calls of a row and all below; None if the rows below count one by one."""
        name = self._table.name_of(row)
        if self._table.kind[row] != _core.EventKind.CPU_OP:
            return None
        if row in self._collectives.exchanges:
            return with_location(self._part, [self._exchange(row, name)], row)
        whole = self._whole_of(row)
        # Rows that add the gradients of attention to others stay; a recurrent layer has all inside.
        if whole is not None and (
            self._table.name_of(whole) in _RECURRENT or not name.startswith(EVALUATE_FUNCTION)
        ):
            return self._backward_calls(whole, row)
        if name.startswith(EVALUATE_FUNCTION):
            return None
        if not is_registered(name):
            return self._unknown_operator(row, name)
        recorded = self._recorded(row)
        sequence = sequence_number(self._part, row)
        found = None
        if recorded is not None:
            grad = sequence is not None
            found = self._reexecutor.call(recorded, phase_of(self._part, row), grad=grad)
        if found is None and is_composite(name):
            return None
        if is_composite(name):
            self._record_views(row)
        if found is None:
            if name in _SILENT:
                return []
            self._unknown[name] = self._unknown.get(name, 0) + 1
            if recorded is None:
                return []
            found = [self._reexecutor.as_recorded(recorded, phase_of(self._part, row))]
        return with_location(self._part, found, row)

    def _backward_calls(self, whole: int, row: int) -> list[Call] | None:
        """Return the backward pass of a composite operator at the first of its nodes."""
        if whole in self._done_whole:
            return []
        recorded = self._changed.get(whole) or recorded_call(self._part, whole)
        strides = self._gradient_strides(row) if recorded and recorded.name in _RECURRENT else None
        found = None if recorded is None else self._reexecutor.backward(recorded, strides)
        if found is None:
            return None
        self._done_whole.add(whole)
        return with_location(self._part, found, row)

    def _gradient_strides(self, row: int) -> tuple[int, ...] | None:
        """Return the strides of the gradient that the first node at or below a row receives."""
        place = int(self._tree.host_position[row])
        for below in self._tree.host_rows[place : int(self._tree.subtree_end[place])].tolist():
            node = self._recorded(below, is_needed=False)
            if node is not None and node.strides and node.strides[0]:
                return tuple(node.strides[0])
        return None

    def _inside(self, names: tuple[str, ...]) -> Array:
        """Return the enclosing operator with one of these names for each row, or NO_ROW."""
        wanted = np.isin(np.array(self._table.strings, dtype=object), names)
        return _core.innermost_marked(self._table, self._tree, wanted[self._table.name])

    def _whole_of(self, row: int) -> int | None:
        """Return the composite forward operator that a node belongs to."""
        forward = int(self._tree.forward[row])
        if forward == _NO_ROW:
            return None
        for inside in self._whole:
            if inside[forward] != _NO_ROW:
                return int(inside[forward])
        return None
