"""An operator that launches GPU work, and what rules for operators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from torchtraceap.lab.prediction.capture.calls import Call, Phase, TensorInfo, Value, tensors_in
from torchtraceap.ops.devices import Device

__all__ = [
    "LaunchedCall",
    "LaunchingOp",
    "Libraries",
    "Rule",
    "copied",
    "filled",
    "flat",
    "itself",
    "libraries_of",
    "like",
    "named",
    "nothing",
]


@dataclass(frozen=True, slots=True)
class Libraries:
    """What a build of torch calls."""

    convolution: str = "cudnn"
    """"cudnn" or "miopen"."""
    torch: tuple[int, int] = (2, 7)
    """Its version: names of kernels and their widths change with it."""

    @property
    def for_amd(self) -> bool:
        return self.convolution == "miopen"


def libraries_of(device: Device) -> Libraries:
    """Those of a build for a device."""
    return Libraries("miopen" if device.vendor == "amd" else "cudnn")


@dataclass(frozen=True, slots=True)
class LaunchingOp:
    """An operator that launches GPU work."""

    name: str
    inputs: tuple[Value, ...]
    """By position, as far as they are known: tensors, lists of them, plain values."""
    outputs: tuple[Value, ...]
    phase: Phase
    modules: tuple[str, ...]
    call: int
    """Index of the captured call that it comes from."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Inputs that are tensors, those of lists among them."""
        return tuple(tensors_in(self.inputs))


LaunchedCall: TypeAlias = tuple[str, tuple[Value, ...], tuple[Value, ...]]
"""Name, inputs and outputs of an operator that launches."""
Rule: TypeAlias = Callable[[Call, Libraries], Sequence[LaunchedCall]]


def itself(call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    return [(call.name, tuple(call.inputs.values()), call.outputs)]


def nothing(_call: Call, _: Libraries) -> Sequence[LaunchedCall]:
    return []


def named(name: str) -> Rule:
    """The same under another name."""
    return lambda call, _: [(name, tuple(call.inputs.values()), call.outputs)]


def copied(to: TensorInfo, source: Value) -> LaunchedCall:
    """A copy from one tensor to another."""
    return "aten::copy_", (to, source, False), (to,)


def filled(made: TensorInfo) -> LaunchedCall:
    """A tensor that gets one value."""
    return "aten::fill_", (made, None), (made,)


def like(tensor: TensorInfo) -> TensorInfo:
    """Another of its shape and type, row after row, in memory of its own."""
    step, steps = 1, []
    for size in reversed(tensor.shape):
        steps.append(step)
        step *= max(1, size)
    return replace(tensor, strides=tuple(reversed(steps)), storage=-1)


def flat(tensor: TensorInfo) -> TensorInfo:
    """All its elements in one dimension."""
    return replace(tensor, shape=(tensor.elements,), strides=(1,))
