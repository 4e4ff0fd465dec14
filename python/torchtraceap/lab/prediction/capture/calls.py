"""The records of a capture: calls, tensors, collectives and memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from typing import TypeAlias

from torchtraceap.core import DType, dataclass, parse_dtype
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.ops import Tensor

__all__ = [
    "COMPUTE",
    "Call",
    "Capture",
    "CaptureError",
    "Collective",
    "Gradient",
    "Move",
    "Phase",
    "Plain",
    "Storages",
    "TensorInfo",
    "Value",
    "tensors_in",
    "with_dtype",
]


COMPUTE = "compute"
"""Stream of a program that selects none."""
_CHANGED_TYPES = ("float32", "float16", "bfloat16")


class CaptureError(TraceError):
    """Raised if a step can't be run without values; the message says which operator failed and
    why."""


class Phase(Enum):
    """A phase of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class TensorInfo(Tensor):
    """Metadata of a captured tensor, without its values."""

    strides: tuple[int, ...]
    storage: int
    """Number that tensors sharing memory have in common."""

    @property
    def is_contiguous(self) -> bool:
        """True if elements are in row-major order without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return self.elements == 0
            expected *= size
        return True


Plain: TypeAlias = bool | int | float | str | None
Value: TypeAlias = "TensorInfo | Plain | tuple[Value, ...]"


def tensors_in(values: Iterable[Value]) -> Iterator[TensorInfo]:
    """Yield the tensors among values and nested lists."""
    for value in values:
        if isinstance(value, TensorInfo):
            yield value
        elif isinstance(value, tuple):
            yield from tensors_in(value)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective operation or a point-to-point transfer."""

    kind: str
    """Kineto's "Collective name": allreduce, _allgather_base, _reduce_scatter_base, all_to_allv,
    broadcast, send, recv, ..."""
    group: tuple[int, ...]
    """Ranks that take part."""
    group_name: str
    """Kineto's "Process Group Description": default_pg, mesh_dp, ..."""
    elements_in: int
    elements_out: int
    dtype: DType
    id: int
    """Index of the call that starts it, unique within its rank."""
    peer: int | None = None
    """The other rank of a send or recv."""
    batch: int | None = None
    """Sends and receives with the same number are one launch and don't wait for each other."""
    sent: tuple[int, ...] = ()
    """Elements sent to each rank, if parts of an all-to-all differ."""
    received: tuple[int, ...] = ()
    """Elements received from each rank."""


@dataclass(frozen=True, slots=True)
class Move:
    """A copy between host and GPU."""

    to_gpu: bool
    is_pinned: bool = False
    """True for page-locked host memory."""
    non_blocking: bool = False
    """True if the program does not wait for the copy."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator as seen by the dispatcher."""

    name: str
    """Kineto's name, such as `aten::addmm`."""
    overload: str
    """Overload, such as "Tensor", or "default"."""
    inputs: dict[str, Value]
    """Arguments by the names of the schema, in its order, including defaults."""
    outputs: tuple[Value, ...]
    phase: Phase
    modules: tuple[str, ...]
    """Classes of the modules whose forward is running, outermost first."""
    is_view: bool = False
    """True if the result is a view and nothing is computed."""
    on_host: bool = False
    """True if all tensors stay on the host even if the model is on a GPU, such as step counters."""
    is_innermost: bool = False
    """True if a trace shows that it launches under its own name."""
    move: Move | None = None
    """Copy between host and GPU that the call makes instead of computing."""
    collective: Collective | None = None
    """Collective that starts on the stream of its process group, after earlier work of `stream`."""
    waits_for: int | None = None
    """`id` of a collective that later work of `stream` waits for."""
    node: str = ""
    """Autograd node that made the call, such as "AddmmBackward0"; empty in the forward pass."""
    sequence: int | None = None
    """Sequence number of that node, or of the node made last in the forward pass."""
    stream: str = COMPUTE
    """Selected stream."""
    after: tuple[int, ...] = ()
    """Indices of calls that later work of `stream` waits for, including their collectives.

    Negative indices count back from the end of the previous step.
    """

    def tensor(self, name: str) -> TensorInfo | None:
        """Return an input if it is a tensor, else None."""
        value = self.inputs.get(name)
        return value if isinstance(value, TensorInfo) else None

    @property
    def output(self) -> TensorInfo | None:
        """The first output if it is a tensor, else None."""
        first = self.outputs[0] if self.outputs else None
        return first if isinstance(first, TensorInfo) else None


@dataclass(frozen=True, slots=True)
class Storages:
    """Lifetimes of the memory of a step's tensors."""

    bytes: dict[int, int]
    """Size of each storage by number."""
    at_begin: tuple[int, ...]
    """Storages that exist before the first call."""
    freed: tuple[tuple[int, int], ...]
    """Pairs (n, storage): the storage is freed after n calls, in order."""
    parameters: frozenset[int] = frozenset()
    """Storages of parameters and buffers."""
    gradients: frozenset[int] = frozenset()
    optimizer: frozenset[int] = frozenset()
    """Storages of optimizer state that is kept from step to step."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient that the backward pass accumulates into a parameter."""

    calls: int
    """Number of calls before it was ready."""
    tensor: TensorInfo


@dataclass(frozen=True, slots=True)
class Capture:
    """The calls of one step."""

    calls: tuple[Call, ...]
    notes: tuple[str, ...] = ()
    """Assumptions made to run the step without values."""
    storages: Storages | None = None
    """Lifetimes of memory; None if the source doesn't tell when it is freed."""
    inputs: tuple[TensorInfo, ...] = ()
    """Inputs of the model, if known: tensors that a program copies to the GPU before a step."""
    gradients: tuple[Gradient, ...] = ()
    """Gradients of a recorded step in the order in which they were ready."""
    products_in_tf32: bool = False
    """True if the program lets matrix products of fp32 be computed as tf32."""
    convolutions_in_tf32: bool = True
    """The same of convolutions, which torch allows by default."""

    def allows_tf32(self, name: str) -> bool:
        """Return whether an operator may compute fp32 as tf32, where its arguments don't say."""
        return self.convolutions_in_tf32 if "convolution" in name else self.products_in_tf32


def with_dtype(capture: Capture, dtype: str) -> Capture:
    """Return the step with its 16 and 32-bit tensors converted to another type.

    Operators stay as they are: where a program mixes types, its conversions stay as copies.

    Args:
        capture: The step.
        dtype: torch's name: float32, float16 or bfloat16.

    Raises:
        OptionError: Another type.
    """
    to = parse_dtype(dtype)
    if to is None or to.name not in _CHANGED_TYPES:
        raise OptionError(f"dtype {dtype!r}: one of {', '.join(_CHANGED_TYPES)} is needed")
    calls = []
    for call in capture.calls:
        inputs = {name: _convert_value(value, to) for name, value in call.inputs.items()}
        outputs = tuple(_convert_value(each, to) for each in call.outputs)
        calls.append(replace(call, inputs=inputs, outputs=outputs))
    return replace(capture, calls=tuple(calls), storages=None)


def _convert_value(value: Value, to: DType) -> Value:
    if isinstance(value, TensorInfo):
        return replace(value, dtype=to) if value.dtype.name in _CHANGED_TYPES else value
    return tuple(_convert_value(each, to) for each in value) if isinstance(value, tuple) else value
