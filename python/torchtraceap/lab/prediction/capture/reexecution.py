"""Executes recorded operators again on tensors without values.

Note [Called again]: a recording on a CPU holds operators as a CPU decomposes them. The outermost
ones are those that the program called. Executed again with the recorded shapes, strides, types and
values, they are recorded exactly as those of a captured model: attention, dropout and recurrent
layers whole, with outputs as on a GPU. Nothing is computed. `torchtraceap.compat.replay` decides
which operators a file may name.

Note [What attention gives]: the output of attention has another memory layout on a CPU than on a
GPU. Later views of it therefore read the output made here instead of a tensor with the recorded
strides, so that no copy appears where a GPU needs none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torchtraceap.compat import (
    CallPlan,
    DeviceName,
    Make,
    RecordedCall,
    TorchName,
    plan_call,
    registered_overloads,
    require_torch,
)
from torchtraceap.core import parse_dtype
from torchtraceap.lab.prediction.capture.calls import Call, Phase, TensorInfo
from torchtraceap.lab.prediction.capture.dispatch import recording
from torchtraceap.lab.prediction.capture.recorder import Recorder
from torchtraceap.lab.prediction.capture.rows import NO_STORAGE, named_inputs

if TYPE_CHECKING:
    import torch

__all__ = ["Reexecutor", "is_composite", "is_registered", "reexecution"]


@contextmanager
def reexecution() -> Iterator[Reexecutor]:
    """Provide a `Reexecutor` within the context."""
    torch = require_torch()
    from torchtraceap.lab.prediction.capture.values import ValuesMode

    with ValuesMode() as values:
        recorder = values.recorder = Recorder(values.blank)
        with torch.no_grad(), recording(recorder):
            yield Reexecutor(recorder, values.fake)


def is_registered(name: str) -> bool:
    """Return whether torch knows an operator of that name."""
    return "::" in name and bool(registered_overloads(name))


_IS_PARAMETER = re.compile("weight|bias")
_MOST_KEPT = 3
"""Number of kept gradients: those of query, key and value."""
_CALLS_KEPT = 12
"""Number of later calls that may use the output of attention."""


class _KeptTensor:
    """A tensor kept for a later call."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._calls_left = _CALLS_KEPT

    def age(self) -> bool:
        """Count one more call and return whether the tensor may still be used."""
        self._calls_left -= 1
        return self._calls_left > 0

    def matches(self, other: Any) -> bool:
        """Return whether another tensor differs in its strides at most."""
        same_kind = hasattr(other, "stride") and other.dtype == self.tensor.dtype
        return same_kind and other.shape == self.tensor.shape


def is_composite(name: str) -> bool:
    """Return whether an operator is composed of others on every device."""
    torch = require_torch()
    key = "CompositeImplicitAutograd"
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(overload.full_name, key)
        for overload in registered_overloads(name)
    )


class Reexecutor:
    """Executes recorded calls again."""

    def __init__(self, recorder: Recorder, fake: Any) -> None:
        self._recorder, self._fake = recorder, fake
        self._kept: list[_KeptTensor] = []
        self._followed = False
        """True if the current call reads a kept tensor."""

    def call(self, recorded: RecordedCall, phase: Phase, *, grad: bool) -> list[Call] | None:
        """Return the calls that the operator makes; None if it can't be executed.

        Args:
            recorded: The operator.
            phase: Part of the step.
            grad: True if autograd was recording, which changes how some operators decompose.
        """
        found = None
        if grad:
            found = self._record(recorded, phase, partial(self._forward, grad=True))
        if found is None:  # what writes to its input can't be called on leaves that need gradients
            found = self._record(recorded, phase, partial(self._forward, grad=False))
        return found

    def backward(
        self, recorded: RecordedCall, strides: tuple[int, ...] | None = None
    ) -> list[Call] | None:
        """Return the calls of the operator's backward pass; None if it can't be executed.

        Args:
            recorded: The operator of the forward pass.
            strides: Strides of the first output's gradient; by default those of the output.
        """
        return self._record(recorded, Phase.BACKWARD, partial(self._backward, strides))

    def outputs(self, recorded: RecordedCall) -> tuple[TensorInfo, ...] | None:
        """Return the output tensors without recording the call; None if it can't be executed.

        Which of them share memory is not said.
        """
        try:
            plan = plan_call(recorded, without_values=True)
            nodes = (*plan.positional, *plan.keyword)
            given = {name: self._value(node) for name, node in nodes}
            with self._recorder.paused():
                made = _call(_function(plan), given, len(plan.positional))
        except Exception:  # any error of torch's says that these arguments don't do
            return None
        found = []
        for tensor in _tensors_in(made):
            dtype = parse_dtype(str(tensor.dtype))
            assert dtype is not None  # what torch makes of types that a file names
            info = TensorInfo(tuple(tensor.shape), dtype, tuple(tensor.stride()), NO_STORAGE)
            found.append(info)
        return tuple(found)

    def as_recorded(self, recorded: RecordedCall, phase: Phase) -> Call:
        """Return the recorded call without executing it."""
        return Call(recorded.name, "default", named_inputs(recorded), (), phase, ())

    def _record(self, recorded: RecordedCall, phase: Phase, run: Any) -> list[Call] | None:
        recorder = self._recorder
        recorder.calls.clear()
        try:
            plan = plan_call(recorded, without_values=True)
            nodes = (*plan.positional, *plan.keyword)
            given = self._with_kept({name: self._value(node) for name, node in nodes})
            with recorder.in_phase(phase):
                run(_function(plan), given, len(plan.positional))
        except Exception:  # any error of torch's says that these arguments don't do
            return None
        return list(recorder.calls)

    def _forward(self, function: Any, given: dict[str, Any], order: int, *, grad: bool) -> None:
        """Run the operator.

        Without autograd parameters still require gradients, which some operators check.
        """
        with require_torch().set_grad_enabled(grad):
            leaves = [name for name in given if grad or _IS_PARAMETER.search(name)]
            _need_gradients({name: given[name] for name in leaves})
            self._keep(_call(function, given, order))

    def _backward(
        self, strides: tuple[int, ...] | None, function: Any, given: dict[str, Any], order: int
    ) -> None:
        torch = require_torch()
        with torch.enable_grad():
            leaves = _need_gradients(given)
            output = next(_tensors_in(_call(function, given, order)))
            if strides is None or len(strides) != output.dim():
                strides = output.stride()
            gradient = self._empty(output.shape, strides, output.dtype)
            self._recorder.calls.clear()
            found = torch.autograd.grad([output], leaves, [gradient], allow_unused=True)
            self._keep(found[:_MOST_KEPT])

    def _keep(self, made: Any) -> None:
        """Keep the outputs of attention; see Note [What attention gives]."""
        from torchtraceap.lab.prediction.capture.composite_ops import ATTENTION

        calls = [call for call in self._recorder.calls if not call.is_view]
        if any(call.name.startswith(ATTENTION) for call in calls):
            self._kept = [_KeptTensor(each.detach()) for each in _tensors_in(made)]
        elif self._followed and not calls:
            self._kept += [_KeptTensor(each.detach()) for each in _tensors_in(made)]

    def _with_kept(self, given: dict[str, Any]) -> dict[str, Any]:
        """Replace the first argument by a matching kept tensor; see Note [What attention gives]."""
        self._followed = False
        self._kept = [kept for kept in self._kept if kept.age()]
        first = next(iter(given), None)
        for kept in reversed(self._kept):  # what was made last is used first
            if first is not None and kept.matches(given[first]):
                self._kept.remove(kept)
                self._followed = True
                return given | {first: kept.tensor}
        return given

    def _value(self, node: Any) -> Any:
        """Return the value for a node of a call plan."""
        if isinstance(node, Make):
            if node.device.host and not node.shape:
                return 1 if node.dtype == "int64" else 1.0
            return self._empty(node.shape, node.strides, getattr(require_torch(), node.dtype))
        if isinstance(node, TorchName):
            return getattr(require_torch(), node.name)
        if isinstance(node, DeviceName):
            return require_torch().device("cpu")
        return [self._value(each) for each in node] if isinstance(node, list) else node

    def _empty(self, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> torch.Tensor:
        """Return an empty tensor without recording its creation."""
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes(), self._fake:
            made: torch.Tensor = require_torch().empty_strided(shape, strides, dtype=dtype)
        return made


def _call(function: Any, given: dict[str, Any], order: int) -> Any:
    """Call a function with the first `order` arguments by position."""
    names = list(given)
    named = {name: given[name] for name in names[order:]}
    return function(*(given[name] for name in names[:order]), **named)


def _need_gradients(given: dict[str, Any]) -> list[torch.Tensor]:
    leaves = [tensor for tensor in _tensors_in(list(given.values())) if tensor.is_floating_point()]
    for tensor in leaves:
        tensor.requires_grad_()
    return leaves


def _function(plan: CallPlan) -> Any:
    from torchtraceap.lab.prediction.capture.composite_ops import LAYERS

    operator = plan.operator
    layer = LAYERS.get(operator.qualified)
    if layer is not None:
        return layer
    packet = getattr(getattr(require_torch().ops, operator.namespace), operator.name)
    return getattr(packet, operator.overload or "default")


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    torch = require_torch()
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_in(each)
