"""The plan of a call: the operator and its arguments as nodes, and whether these fit together.

Most operators check their arguments and raise an error. Some read past the end of a tensor or a
list instead, because the caller inside PyTorch has checked them; a trace has checked nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from torchtraceap.compat.replay.call import NotReplayableError
from torchtraceap.compat.replay.schema import Argument, Operator
from torchtraceap.core.records import dataclass

__all__ = ["DEVICE", "HOST", "CallPlan", "DeviceName", "Make", "TorchName", "check_fits"]

_ROOM = 3  # inputs, a result as large, and what the operator needs between them
Nodes = Mapping[str, Any]
"""Arguments by name, as in a plan; None for what is absent."""

_OF_LISTS = ("_amp_foreach_", "_foreach_", "_fused_adagrad", "_fused_adam", "_fused_sgd")
_OF_EQUAL_SHAPES = ("_fused_adagrad", "_fused_adam", "_fused_sgd")
_STEPS = "state_steps"
_RUNNING, _SAVED = ("running_mean", "running_var"), ("save_mean", "save_invstd")
_STATISTICS = ("weight", "bias", *_RUNNING, *_SAVED, "save_var")
_BAG_MODES = (0, 1, 2)  # sum, mean, max


@dataclass(frozen=True, slots=True)
class TorchName:
    """A constant of torch, such as `float32`; the name is one of our own tables."""

    name: str


class DeviceName(Enum):
    """The home of tensors: the device of the replay, or the host."""

    DEVICE = "device"
    HOST = "host"

    @property
    def host(self) -> bool:
        return self is DeviceName.HOST


DEVICE, HOST = DeviceName.DEVICE, DeviceName.HOST


@dataclass(frozen=True, slots=True)
class Make:
    """A tensor: a function of `inputs.py` and its arguments."""

    function: str
    leading: tuple[Any, ...]
    """Arguments of the function before the shape."""
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
    """The operator with its arguments, and the memory that a call needs."""

    operator: Operator
    positional: tuple[tuple[str, Any], ...]
    """Name and node: a literal, `TorchName`, `DeviceName`, `Make`, or a list of these."""
    keyword: tuple[tuple[str, Any], ...]
    input_bytes: int
    notes: tuple[str, ...]
    """Assumptions where the trace does not say."""
    made_bytes: int = 0
    """The most that one step of the call makes; its result is such a step (`extent.py`)."""

    @property
    def needed_bytes(self) -> int:
        """Memory for the inputs, for what the call makes, and for what it takes in between."""
        return _ROOM * self.input_bytes + self.made_bytes


# ------------------------------------------------------------------------------ checks


def check_fits(operator: Operator, nodes: Nodes) -> None:
    """Check that the arguments of a call fit together.

    Raises:
        NotReplayableError: With the reason.
    """
    for argument in operator.arguments:
        _check_length(operator, argument, nodes.get(argument.name))
    first = next((a for a in operator.arguments if a.kind == "tensor"), None)
    if first is not None and not first.optional:
        _shape(nodes, first.name)
    base = operator.base_name
    if base.startswith(_OF_LISTS):
        _check_lists(operator, nodes)
    if base.startswith("_"):
        _check_axes(operator, nodes)
    if base.endswith(("_backward", "_backward_data")):
        for argument in operator.arguments:  # kernels divide by gradients
            node = nodes.get(argument.name)
            if argument.name.startswith("grad") and isinstance(node, Make) and not node.is_float:
                raise NotReplayableError(f"'{argument.name}' is a gradient of type {node.dtype}")
    if "batch_norm" in base:
        _check_batch_norm(nodes)
    if "embedding_bag" in base:
        _check_bags(nodes)
    if base == "embedding_dense_backward":
        rows = math.prod(_shape(nodes, "grad_output")[:-1])
        indices = math.prod(_shape(nodes, "indices"))
        if rows != indices:
            raise NotReplayableError(f"'grad_output' has {rows} rows for {indices} indices")
    if base.endswith("_backward_data"):
        _check_equal(nodes, "grad_output", "output")
    if base.startswith("rrelu_with_noise"):
        _check_equal(nodes, "self", "noise")
        if nodes.get("out"):
            _check_equal(nodes, "self", "out")
    if "pool" in base and base.endswith("_backward"):
        axes = 3 if "pool3d" in base else 2
        before, after = _shape(nodes, "self"), _shape(nodes, "grad_output")
        if len(before) != len(after) or before[:-axes] != after[:-axes]:
            raise NotReplayableError("'grad_output' has not the batch and channels of 'self'")
        if nodes.get("indices"):
            _check_equal(nodes, "grad_output", "indices")


def _check_length(operator: Operator, argument: Argument, value: Any) -> None:
    """A list of a fixed length has it, or one number for all; pads are never one for all."""
    length = argument.length
    if argument.kind not in ("ints", "floats", "bools") or length in (None, 1):
        return
    if not isinstance(value, list) or len(value) == length:
        return
    for_all = len(value) == 1 and "pad" not in operator.base_name
    if for_all or (not value and argument.name == "stride"):  # as long as the kernel
        return
    raise NotReplayableError(f"'{argument.name}' has {len(value)} numbers, not {length}")


def _check_lists(operator: Operator, nodes: Nodes) -> None:
    """Lists that are walked side by side are equally long."""
    lists = {
        argument.name: [make.shape for make in nodes[argument.name]]
        for argument in operator.arguments
        if argument.kind == "tensors" and nodes.get(argument.name)
    }
    if len({len(shapes) for shapes in lists.values()}) > 1:
        raise NotReplayableError(f"the lists {', '.join(lists)} differ in length")
    if operator.base_name.startswith(_OF_EQUAL_SHAPES):
        shapes = {tuple(shapes) for name, shapes in lists.items() if name != _STEPS}
        if len(shapes) > 1:
            raise NotReplayableError(f"the tensors in {', '.join(lists)} differ in shape")


def _check_axes(operator: Operator, nodes: Nodes) -> None:
    """The axes of an operator that is internal to PyTorch are those of its first tensor, once."""
    axes = nodes.get("dim")
    first = next((nodes.get(a.name) for a in operator.arguments if a.kind == "tensor"), None)
    if axes is None or first is None:
        return
    axes = axes if isinstance(axes, list) else [axes]
    rank = max(len(first.shape), 1)
    lowest = 0 if "fft" in operator.base_name else -rank
    inside = all(type(axis) is int and lowest <= axis < rank for axis in axes)
    if not inside or len({axis % rank for axis in axes}) != len(axes):
        raise NotReplayableError(f"'dim' is {axes}, no axes of a tensor of {rank} axes")


def _check_batch_norm(nodes: Nodes) -> None:
    """Every vector has an entry for each channel, and statistics that are used are there."""
    data = nodes.get("input", nodes.get("grad_out"))
    if data is None or len(data.shape) < 2 or 0 in data.shape:
        raise NotReplayableError("a batch norm needs a tensor with channels")
    channels = data.shape[1]
    for name in _STATISTICS:
        node = nodes.get(name)
        if node is not None and node.shape != (channels,):
            raise NotReplayableError(f"'{name}' is no vector of {channels} channels")
    training = nodes.get("training", nodes.get("train"))
    if training is None:
        return
    needed = _RUNNING if not training else _SAVED if "grad_out" in nodes else ()
    absent = [name for name in needed if nodes.get(name) is None]
    if absent:
        raise NotReplayableError(f"'{absent[0]}' is absent, and the call uses it")


def _check_bags(nodes: Nodes) -> None:
    """Indices and offsets of bags are vectors into the rows of a table that has some."""
    table = nodes.get("weight", nodes.get("grad"))
    vectors = [nodes.get(name) for name in ("indices", "offsets")]
    if table is None or len(table.shape) != 2 or 0 in table.shape:
        raise NotReplayableError("an embedding bag needs a table of rows")
    if any(node is not None and len(node.shape) != 1 for node in vectors):
        raise NotReplayableError("the indices and offsets of an embedding bag are no vectors")
    if nodes.get("mode", 0) not in _BAG_MODES:
        raise NotReplayableError(f"'mode' is {nodes.get('mode')}, not one of {_BAG_MODES}")


def _check_equal(nodes: Nodes, first: str, second: str) -> None:
    """Two tensors of which a kernel reads the same elements have the same shape."""
    if _shape(nodes, first) != _shape(nodes, second):
        raise NotReplayableError(f"'{first}' and '{second}' differ in shape")


def _shape(nodes: Nodes, name: str) -> tuple[int, ...]:
    node = nodes.get(name)
    if not isinstance(node, Make):
        raise NotReplayableError(f"'{name}' is absent, and the call uses it")
    return node.shape
