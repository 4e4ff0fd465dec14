"""A recorded step at another batch size.

Note [What scales]: a file records sizes, but not which of them are the batch. The calls of the step
are therefore executed in order on two sets of tensors without values: the recorded ones, and those
at the other batch size. The outputs of a call at both sizes are the inputs of later calls. Sizes
given as numbers (views, tensor constructors) are rescaled by `batch_sizes.py`. A tensor that no
call made is a parameter if it is used as a weight or if a gradient of its shape is accumulated;
otherwise it scales if it has the leading dimension of the inputs.

Note [Possible steps]: if sizes are ambiguous, every candidate is followed as a step of its own
until a call fits only one of them: an addition rejects 8 rows and 16. If several candidates remain
at the end, an error names the ambiguous tensors.

Note [Same sizes]: tensors of the same sizes and strides of which one scales and another does not (a
batch of 64 and 64 features) are told apart by what fits. If several fit, the scaling one is
preferred up to the end of the backward pass, and the other one after it, where gradients are
clipped.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from math import prod
from typing import Any, TypeAlias

from torchtraceap.compat import NotReplayableError, RecordedCall, match_operator
from torchtraceap.core import dtype_of_code, parse_dtype
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.batch_sizes import (
    VIEWS,
    CallSizes,
    Shape,
    contiguous_strides,
    rescaled_arguments,
    rescaled_strides,
    view_shapes,
)
from torchtraceap.lab.prediction.capture.calls import Phase, TensorInfo
from torchtraceap.lab.prediction.capture.reexecution import Reexecutor, reexecution

__all__ = ["TracedCall", "change_batch"]

_WEIGHTS = re.compile(r"weight|bias|running_|^params$|^gamma$|^beta$|_w$|_b$")
_INDICES = ("int64", "int32", "bool", "uint8")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_MOST_STEPS = 8
"""Limit on the candidate steps followed at once."""
_MOST_WAYS = 256
"""Limit on the assignments of shapes tried for one call."""
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A recorded call whose arguments a capture used."""

    row: int
    call: RecordedCall
    phase: Phase
    is_needed: bool = True
    """True if the capture contains the call; other calls only show how tensors depend on each
    other."""


@dataclass(frozen=True, slots=True)
class _KnownTensor:
    """A tensor whose new shape is known."""

    dtype: str
    strides: Shape
    """Recorded strides."""
    changed: Shape


@dataclass(frozen=True, slots=True)
class _Slot:
    """A tensor among the arguments of a call."""

    place: int
    index: int | None
    """Place in a list of tensors; None outside of lists."""
    argument: str
    shape: Shape
    strides: Shape
    dtype: str

    @property
    def is_weight(self) -> bool:
        return bool(_WEIGHTS.search(self.argument))


@dataclass
class _Step:
    """A candidate for the step at the new batch size."""

    made: dict[Shape, dict[_KnownTensor, None]] = field(default_factory=dict)
    inner: dict[int, frozenset[int]] = field(default_factory=dict)
    leading: dict[int, frozenset[int]] = field(default_factory=dict)
    """New sizes of leading dimensions that scale, by recorded size."""
    calls: dict[int, RecordedCall] = field(default_factory=dict)

    def copy(self) -> _Step:
        made = {shape: dict(found) for shape, found in self.made.items()}
        return _Step(made, dict(self.inner), dict(self.leading), dict(self.calls))

    def add(self, shape: Shape, tensor: _KnownTensor) -> None:
        self.made.setdefault(shape, {})[tensor] = None
        before, after = shape[0], tensor.changed[0]
        if before != after:
            self.leading[before] = self.leading.get(before, frozenset()) | {after}


@dataclass(frozen=True, slots=True)
class _Way:
    """A consistent set of new shapes for the tensors of a call."""

    shapes: tuple[Shape, ...]
    """Shape of each slot."""
    call: RecordedCall
    made: tuple[TensorInfo, ...]


_Choice: TypeAlias = tuple[Shape, int]
"""A possible new shape of a tensor and its rank; higher ranks count only if lower don't fit."""
_Results: TypeAlias = "tuple[TensorInfo, ...] | None"


def change_batch(
    traced: Sequence[TracedCall], to: int, parameters: Sequence[Shape], where: str
) -> tuple[dict[int, RecordedCall], tuple[str, ...]]:
    """Return the calls of a step at another batch size, by row of the trace, and notes.

    Args:
        traced: The calls, in the order of the host.
        to: The new leading dimension of the inputs.
        parameters: Shapes of tensors that gradients are accumulated of.
        where: Name of the source for error messages.

    Raises:
        OptionError: Which sizes are the batch is ambiguous.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)  # every call that rejects its arguments is logged
    try:
        with reexecution() as reexecutor:
            return _BatchChanger(traced, to, frozenset(parameters), where, reexecutor).changed()
    finally:
        log.setLevel(before)


class _BatchChanger:
    """Infers the calls of a step at another batch size; see Note [What scales]."""

    def __init__(
        self,
        traced: Sequence[TracedCall],
        to: int,
        parameters: frozenset[Shape],
        where: str,
        reexecutor: Reexecutor,
    ) -> None:
        self._traced, self._to, self._where, self._reexecutor = traced, to, where, reexecutor
        self._parameters = parameters | {
            slot.shape for each in traced for slot in _slots(each.call) if slot.is_weight
        }
        self._trained = parameters
        self._results: dict[str, _Results] = {}
        self._input = self._input_shape()
        self._batch = self._input[0]
        backward = [k for k, each in enumerate(traced) if each.phase is Phase.BACKWARD]
        self._last_backward = backward[-1] if backward else len(traced)
        self._same: dict[Shape, None] = {}

    def changed(self) -> tuple[dict[int, RecordedCall], tuple[str, ...]]:
        if self._batch == self._to:
            return {each.row: each.call for each in self._traced}, ()
        steps = [_Step()]
        for place, traced in enumerate(self._traced):
            after = [new for step in steps for new in self._next_steps(step, traced, place)]
            if not after:
                raise OptionError(
                    f"{self._where}: the batch can't be changed from {self._batch} to {self._to}: "
                    f"{traced.call.name} of {_describe(traced.call)} takes no sizes that follow "
                    "from it"
                )
            steps = self._distinct(after)
            if self._to == 1:  # all that may be the batch is: one row goes with any number
                steps = steps[:_MOST_STEPS]
            if len(steps) > _MOST_STEPS:
                self._refuse(steps)
        if len(steps) > 1 and self._to > 1:
            self._refuse(steps)
        notes = []
        if self._batch == 1:
            notes.append(
                "the step was recorded with batch size 1: what has the sizes of something that "
                "grows with the batch is taken to grow with it, parameters without gradients too"
            )
        if self._same:
            shapes = ", ".join(map(str, islice(self._same, _MOST_NAMED)))
            notes.append(
                f"the batch was changed from {self._batch} to {self._to}; some tensors that scale "
                f"with it have the sizes of others that don't ({shapes}), and are told by their use"
            )
        return steps[0].calls, tuple(notes)

    def _distinct(self, steps: Sequence[_Step]) -> list[_Step]:
        """Drop candidates that agree in every computing call and every known tensor."""
        if len(steps) < 2:
            return list(steps)
        silent = {
            each.row for each in self._traced if not each.is_needed or _op_name(each.call) in VIEWS
        }
        found: dict[str, _Step] = {}
        for step in steps:
            calls = {
                row: (call.dims, call.values)
                for row, call in step.calls.items()
                if row not in silent
            }
            made = {shape: sorted({m.changed for m in each}) for shape, each in step.made.items()}
            found.setdefault(repr((calls, sorted(made.items()))), step)
        return list(found.values())

    def _refuse(self, steps: Sequence[_Step]) -> None:
        """Raise an error that names the calls that fit several candidate steps."""
        first, *others = steps
        unclear = [
            each
            for each in self._traced
            if any(other.calls.get(each.row) != first.calls.get(each.row) for other in others)
        ]
        said = []
        computing = [e for e in unclear if e.is_needed and _op_name(e.call) not in VIEWS]
        for each in computing or unclear:
            found = dict.fromkeys(_describe(step.calls.get(each.row, each.call)) for step in steps)
            said.append(f"{each.call.name} of {' or '.join(islice(found, 3))}")
        raise OptionError(
            f"{self._where}: which sizes are the batch of {self._batch} is not clear: "
            + "; ".join(said[:_MOST_NAMED])
            + ". A step that was recorded with another batch size than its other sizes, or a "
            "workload, can be changed"
        )

    # --------------------------------------------------------------------------- one call

    def _next_steps(self, step: _Step, traced: TracedCall, place: int) -> Iterator[_Step]:
        """Yield the candidate steps after a call."""
        call = traced.call
        slots = _slots(call)
        if traced.phase is Phase.OPTIMIZER:
            step.calls[traced.row] = call
            yield step
            return
        if not traced.is_needed and any(s.shape and s.shape not in step.made for s in slots):
            yield step  # what only tells of tensors is not to guess what they are
            return
        recorded = self._made_by(call)
        ways = self._ways(step, call, slots, recorded, place)
        if not ways and not traced.is_needed:
            yield step
            return
        if ways and (not traced.is_needed or _op_name(call) in VIEWS):
            for way in ways:
                self._note_made(step, slots, way, recorded)
            step.calls[traced.row] = ways[0].call
            yield step
            return
        for number, way in enumerate(ways):
            after = step if number == len(ways) - 1 else step.copy()
            self._note_made(after, slots, way, recorded)
            after.calls[traced.row] = way.call
            yield after

    def _note_made(
        self, step: _Step, slots: Sequence[_Slot], way: _Way, recorded: _Results
    ) -> None:
        """Note the tensors of a call, and where the batch lies in dimensions that a view made."""
        for slot, shape in zip(slots, way.shapes, strict=True):
            if slot.shape and not any(m.changed == shape for m in step.made.get(slot.shape, ())):
                step.add(slot.shape, _KnownTensor(slot.dtype, slot.strides, shape))
        for before, after in zip(recorded or (), way.made, strict=False):
            if before.shape:
                step.add(before.shape, _KnownTensor(before.dtype.name, before.strides, after.shape))
        if _op_name(way.call) not in VIEWS or not slots or not recorded or len(recorded) != 1:
            return
        if prod(slots[0].shape) != recorded[0].elements:
            return
        for sizes, seen in view_shapes(
            slots[0].shape, way.shapes[0], recorded[0].shape, self._batch, step.inner
        ):
            if sizes == way.made[0].shape:
                for size, value in seen.items():
                    step.inner[size] = step.inner.get(size, frozenset()) | {value}

    def _ways(
        self,
        step: _Step,
        call: RecordedCall,
        slots: Sequence[_Slot],
        recorded: _Results,
        place: int,
    ) -> list[_Way]:
        """Return every set of shapes that the operator accepts."""
        phase = self._traced[place].phase
        choices = [self._choices(step, slot, phase) for slot in slots]
        found: dict[tuple[Any, ...], _Way] = {}
        best = None
        for chosen in islice(product(*choices), _MOST_WAYS):
            shapes, rank = tuple(c[0] for c in chosen), sum(c[1] for c in chosen)
            if best is not None and rank > best:
                continue
            for changed in self._calls(step, call, slots, shapes):
                made = self._made_by(changed)
                # For an operator that can't be called at all any way is taken.
                if recorded is not None and (
                    made is None or [len(m.shape) for m in made] != [len(r.shape) for r in recorded]
                ):
                    continue
                if best is not None and rank < best:
                    found.clear()
                best = rank
                key = (shapes, repr(changed.values))
                found[key] = _Way(shapes, changed, made or ())
        return self._most_likely(list(found.values()), slots, place)

    def _most_likely(self, ways: list[_Way], slots: Sequence[_Slot], place: int) -> list[_Way]:
        """Keep the most likely ways; see Note [Same sizes]."""
        if len(ways) < 2:
            return ways

        def still(way: _Way) -> int:
            return sum(
                slot.shape == shape and slot.shape in self._parameters and not slot.is_weight
                for slot, shape in zip(slots, way.shapes, strict=True)
            )

        scored = [still(way) for way in ways]
        best = min(scored) if place <= self._last_backward else max(scored)
        if min(scored) != max(scored):
            for slot in slots:
                if slot.shape in self._parameters and not slot.is_weight:
                    self._same[slot.shape] = None
        return [way for way, score in zip(ways, scored, strict=True) if score == best]

    def _choices(self, step: _Step, slot: _Slot, phase: Phase) -> list[_Choice]:
        """Return the possible new shapes of a tensor.

        Saved statistics with the shape of a parameter, such as means, keep that shape in the
        backward pass.
        """
        if not slot.shape:
            return [((), 0)]
        known = [made for made in step.made.get(slot.shape, ()) if slot.dtype in ("", made.dtype)]
        near = [made for made in known if made.strides == slot.strides]
        found = list(dict.fromkeys(made.changed for made in near or known))
        if slot.is_weight:
            return [(slot.shape, 0), *((shape, 1) for shape in found if shape != slot.shape)]
        if found:
            return [(shape, 0) for shape in found]
        is_trained = slot.shape in self._trained and slot.dtype not in _INDICES
        is_input = slot.shape == self._input or slot.dtype in _INDICES
        if is_trained and (phase is not Phase.FORWARD or (self._batch == 1 and not is_input)):
            return [(slot.shape, 0)]
        rows, *rest = slot.shape
        if slot.shape == self._input:
            return [((self._to, *rest), 0)]
        leading = [self._to] if rows == self._batch else sorted(step.leading.get(rows, ()))
        order = [
            *((each, *rest) for each in leading),
            slot.shape,
            *(
                (*slot.shape[:axis], self._to, *slot.shape[axis + 1 :])
                for axis, size in enumerate(slot.shape)
                if axis and size == self._batch
            ),
        ]
        is_clear = self._batch > 1 or is_input
        return [(shape, rank if is_clear else 0) for rank, shape in enumerate(order)]

    # ----------------------------------------------------------------------- calls again

    def _calls(
        self, step: _Step, call: RecordedCall, slots: Sequence[_Slot], shapes: Sequence[Shape]
    ) -> Iterator[RecordedCall]:
        """Yield the call with new shapes and the plain arguments that follow from them."""
        changed = _with_shapes(call, slots, shapes)
        names = _names(call)
        if not names:
            # Torch doesn't know the operator: lists of numbers may be the shapes of known tensors.
            guessed = list(changed.values)
            for place, value in enumerate(guessed):
                if isinstance(value, list) and all(type(each) is int for each in value):
                    became = {made.changed for made in step.made.get(tuple(value), ())}
                    guessed[place] = list(became.pop()) if len(became) == 1 else value
            yield replace(changed, values=tuple(guessed))
            return
        if not _fits(call, names, changed):
            return
        number = dict(zip(names, call.values, strict=False)).get("dtype")
        numbered = dtype_of_code(number) if isinstance(number, int) else None
        dtype = numbered.name if numbered else ""
        of = CallSizes(
            _op_name(call),
            {names[k]: call.values[k] for k in range(len(names)) if call.values[k] is not None},
            _by_argument(slots, [slot.shape for slot in slots]),
            _by_argument(slots, shapes),
            self._batch,
            self._to,
            step.inner,
            step.leading,
            lambda shape: dict.fromkeys(
                made.changed for made in step.made.get(shape, ()) if dtype in ("", made.dtype)
            ),
        )
        for numbers in rescaled_arguments(of):
            values = tuple(
                numbers.get(names[k], value) if k < len(names) else value
                for k, value in enumerate(changed.values)
            )
            yield replace(
                changed, values=tuple(list(v) if isinstance(v, tuple) else v for v in values)
            )

    def _made_by(self, call: RecordedCall) -> _Results:
        """Return the outputs of a call; None if it can't be executed."""
        key = repr((call.name, call.dims, call.types, call.strides, call.values))
        if key not in self._results:
            self._results[key] = self._reexecutor.outputs(call)
        return self._results[key]

    # ------------------------------------------------------------------------ the inputs

    def _input_shape(self) -> Shape:
        """Return the shape of the input.

        It belongs to the tensor that the first layer with weights reads, or that this is a view of;
        without such a layer, to the first tensor.
        """
        made: set[Shape] = set()
        leaves: list[Shape] = []
        for each in self._traced:
            if each.phase is not Phase.FORWARD:
                continue
            slots = _slots(each.call)
            given = [slot.shape for slot in slots if slot.shape and not slot.is_weight]
            leaves += [s for s in given if s not in made and s not in self._trained]
            if given and any(slot.is_weight for slot in slots):
                first = given[0]
                if first in leaves or not leaves:
                    return first
                same = [leaf for leaf in leaves if prod(leaf) == prod(first)]
                return same[0] if same else leaves[-1]
            made.update(out.shape for out in self._made_by(each.call) or ())
        if not leaves:
            raise OptionError(f"{self._where}: no input has a dimension that a batch could be")
        return leaves[0]


# ------------------------------------------------------------------------------- recorded calls


def _by_argument(slots: Sequence[_Slot], shapes: Sequence[Shape]) -> dict[str, Shape]:
    """Map arguments to shapes; a list of tensors gives its first."""
    found: dict[str, Shape] = {}
    for slot, shape in zip(slots, shapes, strict=True):
        found.setdefault(slot.argument, shape)
    return found


def _op_name(call: RecordedCall) -> str:
    return call.name.partition("::")[2]


def _names(call: RecordedCall) -> list[str]:
    """Return the names of the arguments if torch knows a matching operator."""
    if "::" not in call.name:
        return []
    try:
        return [argument.name for argument in match_operator(call).arguments][: len(call.types)]
    except NotReplayableError:
        return []


def _slots(call: RecordedCall) -> list[_Slot]:
    """Return the tensors among the arguments."""
    names = _names(call)
    found = []
    for place, (dims, text) in enumerate(zip(call.dims, call.types, strict=True)):
        argument = names[place] if place < len(names) else str(place)
        strides = call.strides[place] if call.strides else None
        dtype = parse_dtype(text)
        if dtype is not None and all(isinstance(size, int) for size in dims):
            given: Shape = contiguous_strides(dims)
            if strides is not None and len(strides) == len(dims):
                given = strides
            found.append(_Slot(place, None, argument, dims, given, dtype.name))
        elif dims and all(isinstance(each, tuple) for each in dims):
            listed = strides if isinstance(strides, tuple) else ()
            for index, shape in enumerate(dims):
                given = contiguous_strides(shape)
                own = listed[index] if index < len(listed) else None
                if isinstance(own, tuple) and len(own) == len(shape):
                    given = own
                found.append(_Slot(place, index, argument, shape, given, ""))
    return found


def _with_shapes(
    call: RecordedCall, slots: Sequence[_Slot], shapes: Sequence[Shape]
) -> RecordedCall:
    dims: list[Any] = list(call.dims)
    strides: list[Any] | None = None if call.strides is None else list(call.strides)
    for slot, shape in zip(slots, shapes, strict=True):
        stride = rescaled_strides(slot.shape, slot.strides, shape)
        for of, new in ((dims, shape), (strides, stride)):
            if of is None:
                continue
            if slot.index is None:
                of[slot.place] = new
            elif slot.index < len(of[slot.place]):
                inner = list(of[slot.place])
                inner[slot.index] = new
                of[slot.place] = tuple(inner)
    return replace(call, dims=tuple(dims), strides=None if strides is None else tuple(strides))


def _fits(call: RecordedCall, names: Sequence[str], changed: RecordedCall) -> bool:
    """Check what torch itself does not.

    States of recurrent layers have the size of the batch, and `unbind` and `select` must not take
    single rows of it.
    """
    if _op_name(call) in ("unbind", "select"):
        numbers = dict(zip(names, call.values, strict=False))
        dim, index, shape = numbers.get("dim", 0), numbers.get("index"), call.dims[0]
        if type(dim) is not int or not -len(shape) <= dim < len(shape):
            return True
        return bool(shape[dim] == changed.dims[0][dim]) or index in (0, -1)
    if _op_name(call) not in _RECURRENT or "hx" not in names:
        return True
    given = dict(zip(names, zip(changed.dims, changed.values, strict=True), strict=False))
    shape, states = given.get("input", ((), None))[0], given["hx"][0]
    if len(shape) != 3 or not states:
        return True
    batch = shape[0] if given.get("batch_first", ((), False))[1] else shape[1]
    nested = states if isinstance(states[0], tuple) else (states,)
    return all(len(state) != 3 or state[1] == batch for state in nested)


def _describe(call: RecordedCall) -> str:
    """Format the sizes of a call for a message."""
    shapes = [slot.shape for slot in _slots(call) if slot.shape]
    numbers = [value for value in call.values if isinstance(value, (list, tuple))]
    texts = ["x".join(map(str, shape)) for shape in shapes] or [str(list(n)) for n in numbers]
    return " and ".join(texts[:_MOST_NAMED]) or "numbers"
