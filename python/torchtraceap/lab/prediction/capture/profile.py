"""Captures a step from a CPU profile recorded with shapes.

Recorded operators are executed again on tensors without values (`reexecution.py`), so that the
result matches the capture of the model. Backward passes of operators that a CPU decomposes and a
GPU does not (`_WHOLE`) are found by the sequence numbers of their autograd nodes and replaced as a
whole.

torch's optimizers update parameter by parameter on a CPU and many tensors at once on a GPU, unless
told otherwise. The options of an optimizer are inferred from the operators that it called for each
parameter: those settings are chosen that call the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from torchtraceap import _core
from torchtraceap.compat import RecordedCall
from torchtraceap.core import Array, parse_dtype
from torchtraceap.lab.prediction.capture.batch import TracedCall, change_batch
from torchtraceap.lab.prediction.capture.batch_sizes import MAKERS, VIEWS, keeps_sizes
from torchtraceap.lab.prediction.capture.calls import (
    Call,
    Capture,
    CaptureError,
    Collective,
    Gradient,
    Phase,
    tensors_in,
)
from torchtraceap.lab.prediction.capture.dispatch import recording
from torchtraceap.lab.prediction.capture.recorder import Recorder
from torchtraceap.lab.prediction.capture.reexecution import (
    Reexecutor,
    is_composite,
    is_registered,
    reexecution,
)
from torchtraceap.lab.prediction.capture.rows import (
    EVALUATE_FUNCTION,
    gradients_of,
    named_inputs,
    phase_of,
    recorded_call,
    sequence_number,
    steady_step,
    with_location,
)
from torchtraceap.trace import RankTrace

__all__ = ["capture_profile", "gpu_update"]


_NO_ROW = _core.NO_ROW
_NONE: Mapping[int, Collective] = MappingProxyType({})
_Waits: TypeAlias = Callable[[int, int], int | None]
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
    waits: _Waits | None = None,
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
    rows, _, notes = steady_step(part)
    _check(part, rows)
    updates = {}
    for row in rows.tolist():
        name = part.table.name_of(row)
        if name.startswith("Optimizer.step#"):
            update = gpu_update(name, list(_operators_below(part, row)))
            if update is not None:
                updates[row] = update

    def walked(changed: Mapping[int, RecordedCall]) -> tuple[list[Call], _Walk]:
        with reexecution() as reexecutor:
            walk = _Walk(part, rows, reexecutor, updates, changed, exchanges, waits)
            return list(walk.calls()), walk

    calls, walk = walked({})
    if batch is not None:
        traced = [each for each in walk.traced if each.row not in updates]
        shapes = [each.shape for each in gradients_of(part, rows.tolist()).values()]
        new_calls, notes_of_batch = change_batch(traced, batch, shapes, part.path)
        calls, walk = walked(new_calls)
        notes = (*notes, *notes_of_batch)
    # The gradient of the loss is made before autograd begins, for the backward pass.
    backward = (k for k, call in enumerate(calls) if call.phase is Phase.BACKWARD)
    place = next(backward, 0) - 1
    if place >= 0 and calls[place].name == "aten::ones_like":
        calls[place] = replace(calls[place], phase=Phase.BACKWARD)
    return Capture(tuple(calls), (*notes, *walk.notes), gradients=tuple(walk.gradients))


def _check(part: RankTrace, rows: Array) -> None:
    """Raise an error if the operators of a step can't be captured."""
    table = part.table
    ops = rows[table.kind[rows] == _core.EventKind.CPU_OP]
    if not len(ops):
        raise CaptureError(f"{part.path}: no operator is recorded")
    codes, _ = table.text_codes("Input Dims", rows=ops)
    if not np.any(codes >= 0):
        raise CaptureError(f"{part.path}: operators have no shapes; record with record_shapes=True")
    names = {table.strings[code] for code in np.unique(table.name[rows]).tolist()}
    if any(name.startswith(("Torch-Compiled Region", "CompiledFunction")) for name in names):
        raise CaptureError(
            f"{part.path}: the step is compiled for a CPU, which a GPU would not run; record it "
            "without torch.compile"
        )


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
        rows: Array,
        reexecutor: Reexecutor,
        updates: Mapping[int, list[Call]],
        changed: Mapping[int, RecordedCall],
        exchanges: Mapping[int, Collective],
        waits: _Waits | None,
    ) -> None:
        self._part, self._rows, self._reexecutor, self._updates = part, rows, reexecutor, updates
        self._changed, self._exchanges, self._waits = changed, exchanges, waits
        self.traced: list[TracedCall] = []
        self.gradients: list[Gradient] = []
        self._gradient_of = gradients_of(part, rows.tolist())
        self._table, self._tree = part.table, part.tree
        texts = np.array(part.table.strings, dtype=object)
        self._whole = [
            _core.innermost_marked(part.table, part.tree, np.isin(texts, names)[part.table.name])
            for names in _WHOLE
        ]
        """The enclosing operator with one of these names for each row, or NO_ROW."""
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
        for row in self._rows.tolist():
            if row in self._gradient_of:
                self.gradients.append(Gradient(count, self._gradient_of[row]))
            track, place = int(tracks[row]), int(position[row])
            if place < done.get(track, 0):
                continue
            found = self._updates[row] if row in self._updates else self._row_calls(row)
            if found is None:
                continue
            done[track] = int(end[place])
            count += len(found)
            working = (k for k, call in enumerate(found) if not call.is_view and not call.on_host)
            first = next(working, None)
            if self._waits is not None and first is not None:
                last = int(self._tree.host_rows[int(end[place]) - 1]) + 1
                found[first] = replace(found[first], waits_for=self._waits(row, last))
            yield from found

    def _recorded(self, row: int, *, is_needed: bool = True) -> RecordedCall | None:
        """Return the recorded operator at the requested batch size."""
        found = self._changed.get(row) or recorded_call(self._part, row)
        if found is not None:
            self.traced.append(TracedCall(row, found, phase_of(self._part, row), is_needed))
        return found

    def _unknown_operator(self, row: int, name: str) -> list[Call] | None:
        """Return the call of an operator unknown to torch.

        The result is None if nested operators describe it, or if it is no operator.
        """
        if "::" not in name or name.startswith(_NO_OPERATORS):
            return None
        recorded = recorded_call(self._part, row)
        if recorded is None:
            return None
        for below in _operators_below(self._part, row):
            own = below.name.partition("::")[2].rstrip("_")
            if own not in MAKERS and own not in VIEWS and own not in _PREPARES:
                return None  # it computes, and tells more
        call = self._reexecutor.as_recorded(recorded, phase_of(self._part, row))
        if not any(tensors_in(call.inputs.values())):
            return None
        self._unknown[name] = self._unknown.get(name, 0) + 1
        return with_location(self._part, [call], row)

    def _row_calls(self, row: int) -> list[Call] | None:
        """Return the calls of a row and all below; None if the rows below count one by one."""
        name, part = self._table.name_of(row), self._part
        if self._table.kind[row] != _core.EventKind.CPU_OP:
            return None
        if row in self._exchanges:
            recorded, collective = recorded_call(part, row), self._exchanges[row]
            inputs = {} if recorded is None else named_inputs(recorded)
            call = Call(name, "default", inputs, (), phase_of(part, row), (), collective=collective)
            return with_location(part, [call], row)
        forward = int(self._tree.forward[row])
        whole = None
        if forward != _NO_ROW:
            enclosing = (int(each[forward]) for each in self._whole)
            whole = next((each for each in enclosing if each != _NO_ROW), None)
        # Rows that add the gradients of attention to others stay; a recurrent layer has all inside.
        if whole is not None and (
            self._table.name_of(whole) in _RECURRENT or not name.startswith(EVALUATE_FUNCTION)
        ):
            return self._backward_calls(whole, row)
        if name.startswith(EVALUATE_FUNCTION):
            return None
        if not is_registered(name):
            return self._unknown_operator(row, name)
        return self._operator_calls(row, name)

    def _operator_calls(self, row: int, name: str) -> list[Call] | None:
        """Return the calls that an operator makes when it is executed again."""
        recorded, found = self._recorded(row), None
        phase = phase_of(self._part, row)
        if recorded is not None:
            grad = sequence_number(self._part, row) is not None
            found = self._reexecutor.call(recorded, phase, grad=grad)
        if is_composite(name):
            if found is None:
                return None
            # Backward passes read the views within the call.
            place = int(self._tree.host_position[row])
            end = int(self._tree.subtree_end[place])
            for below in self._tree.host_rows[place + 1 : end].tolist():
                own = self._table.name_of(below).partition("::")[2]
                if name not in _WHOLE_NAMES and keeps_sizes(own):
                    self._recorded(below, is_needed=False)
        if found is None:
            if name in _SILENT:
                return []
            self._unknown[name] = self._unknown.get(name, 0) + 1
            if recorded is None:
                return []
            found = [self._reexecutor.as_recorded(recorded, phase)]
        return with_location(self._part, found, row)

    def _backward_calls(self, whole: int, row: int) -> list[Call] | None:
        """Return the backward pass of a composite operator at the first of its nodes."""
        if whole in self._done_whole:
            return []
        recorded = self._changed.get(whole) or recorded_call(self._part, whole)
        if recorded is None:
            return None
        strides = None
        if recorded.name in _RECURRENT:
            # Those of the gradient that the first node at or below the row receives.
            place = int(self._tree.host_position[row])
            end = int(self._tree.subtree_end[place])
            for below in self._tree.host_rows[place:end].tolist():
                node = self._recorded(below, is_needed=False)
                if node is not None and node.strides and node.strides[0]:
                    strides = tuple(node.strides[0])
                    break
        found = self._reexecutor.backward(recorded, strides)
        if found is None:
            return None
        self._done_whole.add(whole)
        return with_location(self._part, found, row)


# Values tried for the options that change which operators are called.
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "weight_decay": (0.0, 0.01),
    "momentum": (0.0, 0.9),
    "nesterov": (False, True),
    "amsgrad": (False, True),
    "centered": (False, True),
    "maximize": (False, True),
    "decoupled_weight_decay": (False, True),
    "lr_decay": (0.0, 0.1),
}

_Setting: TypeAlias = tuple[tuple[tuple[str, Any], ...], tuple[str, ...]]
"""Options of an optimizer and the operators that it calls for one parameter."""
_Shapes: TypeAlias = list[tuple[tuple[int, ...], str]]
"""Shapes and types of parameters."""


def gpu_update(annotation: str, recorded: Sequence[RecordedCall]) -> list[Call] | None:
    """Return the calls of an optimizer step on a GPU.

    Args:
        annotation: The profiler's range, such as `Optimizer.step#AdamW.step`.
        recorded: The operators that it called.

    Returns:
        None if it is none of torch's own, called others, or already updated many tensors at once.
    """
    import torch

    kind = annotation.removeprefix("Optimizer.step#").split(".")[0]
    make = getattr(torch.optim, kind, None)
    computing = []
    for call in recorded:  # calls that work on a parameter; step counters have no axes
        sizes = [dims for dims, text in zip(call.dims, call.types, strict=True) if text]
        silent = ("::empty", "::empty_like", "::detach", "::view")
        if any(sizes) and not call.name.endswith(silent):
            computing.append(call)
    if not (isinstance(make, type) and issubclass(make, torch.optim.Optimizer)) or not computing:
        return None
    groups = _groups(computing, _settings(kind))
    if groups is None:
        return None
    return _steady_update(
        make, [(dict(options), shapes) for (options, _), shapes in groups.items()]
    )


def _groups(
    computing: Sequence[RecordedCall], settings: Sequence[_Setting]
) -> dict[_Setting, _Shapes] | None:
    """Split the calls into those of one parameter each, and group the parameters by setting."""
    found: dict[_Setting, _Shapes] = {}
    place, names = 0, [call.name for call in computing]
    while place < len(names):
        for setting in settings:
            end = place + len(setting[1])
            if tuple(names[place:end]) == setting[1]:
                last = computing[end - 1]
                found.setdefault(setting, []).append((last.dims[0], last.types[0]))
                place = end
                break
        else:
            return None
    return found


@lru_cache(maxsize=32)
def _settings(kind: str) -> tuple[_Setting, ...]:
    """Return settings that call different operators, longest first."""
    import inspect

    import torch

    make = getattr(torch.optim, kind)
    taken = inspect.signature(make).parameters
    options = {name: values for name, values in _OPTIONS.items() if name in taken}
    found: dict[tuple[str, ...], _Setting] = {}
    for values in product(*options.values()):
        given = dict(zip(options, values, strict=True))
        try:
            calls = _steady_update(make, [(given, [((2,), "float")])], foreach=False)
        except (TypeError, ValueError, RuntimeError):  # options that exclude each other
            continue
        names = tuple(
            call.name for call in calls if any(t.shape for t in tensors_in(call.inputs.values()))
        )
        if names:
            found.setdefault(names, (tuple(given.items()), names))
    return tuple(sorted(found.values(), key=lambda setting: -len(setting[1])))


def _steady_update(
    make: Any, groups: list[tuple[dict[str, Any], _Shapes]], **options: Any
) -> list[Call]:
    """Return the calls of an optimizer step once its state exists."""
    import torch

    from torchtraceap.lab.prediction.capture.values import ValuesMode

    with ValuesMode() as values:
        recorder = values.recorder = Recorder(values.blank)
        made_groups = []
        for given, shapes in groups:
            parameters = []
            for shape, text in shapes:
                dtype = parse_dtype(text)
                made = torch.empty(shape, dtype=getattr(torch, dtype.name if dtype else "float32"))
                parameters.append(torch.nn.Parameter(made))
                parameters[-1].grad = torch.empty_like(made)
            made_groups.append({**given, "params": parameters})
        optimizer = make(made_groups, lr=0.1, **options)
        with recording(recorder):
            with recorder.paused():
                optimizer.step()
            optimizer.step()
    return [call for call in recorder.calls if call.name.startswith("aten::")]
