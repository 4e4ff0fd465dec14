"""What it takes to call an operator again: the operator and its arguments as nodes."""

from __future__ import annotations

from typing import Any

from torchtraceap.compat.replay.schema import Operator
from torchtraceap.core.records import dataclass

__all__ = ["DEVICE", "HOST", "CallPlan", "DeviceName", "Make", "TorchName"]

_ROOM = 3  # inputs, a result as large, and what the operator needs between them


@dataclass(frozen=True, slots=True)
class TorchName:
    """A constant of torch, such as `float32`; the name is one of our own tables."""

    name: str


@dataclass(frozen=True, slots=True)
class DeviceName:
    """Where tensors live: the device of the replay, or the host."""

    host: bool = False


DEVICE, HOST = DeviceName(), DeviceName(host=True)


@dataclass(frozen=True, slots=True)
class Make:
    """A tensor: a function of `inputs.py` and its arguments."""

    function: str
    leading: tuple[Any, ...]
    """What the function takes before the shape."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: DeviceName
    pinned: bool = False

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def arguments(self) -> tuple[Any, ...]:
        typed = () if self.function == "booleans" else (TorchName(self.dtype),)
        return (*self.leading, self.shape, self.strides, *typed, self.device)


@dataclass(frozen=True, slots=True)
class CallPlan:
    """All that it takes to call an operator again."""

    operator: Operator
    positional: tuple[tuple[str, Any], ...]
    """Name and node: a literal, `TorchName`, `DeviceName`, `Make`, or a list of these."""
    keyword: tuple[tuple[str, Any], ...]
    input_bytes: int
    notes: tuple[str, ...]
    """What was assumed where the trace does not say."""
    made_bytes: int = 0
    """The most that one step of the call makes; its result is such a step (`extent.py`)."""

    @property
    def needed_bytes(self) -> int:
        """Memory for the inputs, for what the call makes, and for what it takes in between."""
        return _ROOM * self.input_bytes + self.made_bytes
