"""An operator that launches GPU work, and helpers shared by rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from torchtraceap.lab.prediction.capture.batch_sizes import contiguous_strides
from torchtraceap.lab.prediction.capture.calls import Call, Phase, TensorInfo, Value, tensors_in
from torchtraceap.ops.devices import Device

__all__ = [
    "LaunchedCall",
    "LaunchingOp",
    "Libraries",
    "Rule",
    "contiguous_like",
    "copy_launch",
    "fill_launch",
    "flattened",
    "launch_itself",
    "libraries_of",
    "rule",
]


@dataclass(frozen=True, slots=True)
class Libraries:
    """The libraries of a build of torch."""

    convolution: str = "cudnn"
    """"cudnn" or "miopen"."""
    torch: tuple[int, int] = (2, 7)
    """Version of torch, which changes names and widths of kernels."""

    @property
    def for_amd(self) -> bool:
        return self.convolution == "miopen"


def libraries_of(device: Device) -> Libraries:
    """Return the libraries of a build for a device."""
    return Libraries("miopen" if device.vendor == "amd" else "cudnn")


@dataclass(frozen=True, slots=True)
class LaunchingOp:
    """An operator that launches GPU work."""

    name: str
    inputs: tuple[Value, ...]
    """Inputs by position, as far as known: tensors, lists of them, plain values."""
    outputs: tuple[Value, ...]
    phase: Phase
    modules: tuple[str, ...]
    call: int
    """Index of the captured call behind it."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Tensors among the inputs, including those in lists."""
        return tuple(tensors_in(self.inputs))

    def value(self, place: int) -> Value:
        """Return an input; None if it is not known."""
        return self.inputs[place] if place < len(self.inputs) else None


LaunchedCall: TypeAlias = tuple[str, tuple[Value, ...], tuple[Value, ...]]
"""Name, inputs and outputs of a launching operator."""
Rule: TypeAlias = Callable[[Call, Libraries], Sequence[LaunchedCall]]
"""Returns the launching operators of a captured call."""


def rule(rules: dict[str, Rule], names: str) -> Callable[[Rule], Rule]:
    """Return a decorator that adds a rule to a table under the names of its operators.

    Names are separated by spaces; "aten::" may be left out.
    """

    def add(function: Rule) -> Rule:
        for name in names.split():
            rules[name if "::" in name else f"aten::{name}"] = function
        return function

    return add


def launch_itself(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    """Return the call itself, as most operators of ATen launch under their own names."""
    return [(call.name, tuple(call.inputs.values()), call.outputs)]


def copy_launch(to: TensorInfo, source: Value) -> LaunchedCall:
    """Return a copy from one tensor to another."""
    return "aten::copy_", (to, source, False), (to,)


def fill_launch(made: TensorInfo) -> LaunchedCall:
    """Return the fill of a tensor with one value."""
    return "aten::fill_", (made, None), (made,)


def contiguous_like(tensor: TensorInfo) -> TensorInfo:
    """Return a contiguous tensor of the same shape and type in new memory."""
    return replace(tensor, strides=contiguous_strides(tensor.shape), storage=-1)


def flattened(tensor: TensorInfo) -> TensorInfo:
    """Return the tensor as one dimension."""
    return replace(tensor, shape=(tensor.elements,), strides=(1,))
