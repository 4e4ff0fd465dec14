"""What is written down of a call of an operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TypeAlias

from torchtraceap.core.dtypes import DType
from torchtraceap.errors import TraceError

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
]


COMPUTE = "compute"
"""The stream that a program has if it selects none."""


class CaptureError(TraceError):
    """A step could not be run without values; the message says which operator, and why."""


class Phase(Enum):
    """Part of a step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor, without its values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    storage: int
    """Tensors that share memory have the same."""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Row after row, without gaps; dimensions of one element may have any stride."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return self.elements == 0
            expected *= size
        return True


Plain: TypeAlias = bool | int | float | str | None
Value: TypeAlias = "TensorInfo | Plain | tuple[Value, ...]"


def tensors_in(values: Iterable[Value]) -> Iterator[TensorInfo]:
    """Those among values, and among lists of values."""
    for value in values:
        if isinstance(value, TensorInfo):
            yield value
        elif isinstance(value, tuple):
            yield from tensors_in(value)


@dataclass(frozen=True, slots=True)
class Collective:
    """What ranks do together in one call."""

    kind: str
    """As Kineto's "Collective name": allreduce, _allgather_base, _reduce_scatter_base, all_to_allv,
    broadcast, send, recv, ..."""
    group: tuple[int, ...]
    """Ranks that take part."""
    group_name: str
    """As Kineto's "Process Group Description": default_pg, mesh_dp, ..."""
    elements_in: int
    elements_out: int
    dtype: DType
    id: int
    """Tells it from the others of its rank: the index of the call that starts it."""
    peer: int | None = None
    """Of send and recv: the other rank."""
    batch: int | None = None
    """Sends and receives with the same are one launch: none of them waits for another."""
    sent: tuple[int, ...] = ()
    """Elements for each rank, where parts of an all-to-all differ."""
    received: tuple[int, ...] = ()
    """Elements from each rank."""


@dataclass(frozen=True, slots=True)
class Move:
    """A copy between host and GPU."""

    to_gpu: bool
    is_pinned: bool = False
    """The memory of the host is page-locked."""
    non_blocking: bool = False
    """The program does not ask to wait for it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator as the dispatcher saw it."""

    name: str
    """As Kineto names it: `aten::addmm`."""
    overload: str
    """Such as "Tensor"; "default" for the one without a name."""
    inputs: dict[str, Value]
    """By the names of the operator's schema, in its order, defaults included."""
    outputs: tuple[Value, ...]
    phase: Phase
    modules: tuple[str, ...]
    """Names of the modules in whose forward it was called, outermost first."""
    is_view: bool = False
    """It computes nothing: what comes out is a view of what goes in."""
    on_host: bool = False
    """All its tensors stay on the host where the model is on a GPU: counts of an optimiser."""
    is_innermost: bool = False
    """A trace says that it launches under its own name."""
    move: Move | None = None
    """It copies between host and GPU, and computes nothing."""
    collective: Collective | None = None
    """What it starts on the stream of its process group, behind what `stream` was given before."""
    waits_for: int | None = None
    """The `id` of a collective before which nothing runs that `stream` is given from here on."""
    node: str = ""
    """The autograd node that called it, such as "AddmmBackward0"; none in the forward pass."""
    sequence: int | None = None
    """Number of that node; in the forward pass of the node that was made last."""
    stream: str = COMPUTE
    """The stream that the host has selected."""
    after: tuple[int, ...] = ()
    """Indices of other calls before whose end, with that of collectives that they start, nothing
    runs that `stream` is given from here on; below zero of the step before, -1 its last call."""

    def tensor(self, name: str) -> TensorInfo | None:
        """An input that is a tensor; None if it was not given, or is none."""
        value = self.inputs.get(name)
        return value if isinstance(value, TensorInfo) else None

    @property
    def output(self) -> TensorInfo | None:
        """The first output, if it is a tensor."""
        first = self.outputs[0] if self.outputs else None
        return first if isinstance(first, TensorInfo) else None


@dataclass(frozen=True, slots=True)
class Storages:
    """The memory of a step's tensors: what there is when it begins, and when what goes."""

    bytes: dict[int, int]
    """Of each storage, by its number."""
    at_begin: tuple[int, ...]
    """Those that are there before the first call."""
    freed: tuple[tuple[int, int], ...]
    """(n, storage): gone once n calls were made; in order."""
    parameters: frozenset[int] = frozenset()
    """The model's, with its buffers."""
    gradients: frozenset[int] = frozenset()
    optimizer: frozenset[int] = frozenset()
    """State that the optimiser keeps from step to step."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient that the backward pass leaves with a parameter."""

    calls: int
    """So many were made before it was there."""
    tensor: TensorInfo


@dataclass(frozen=True, slots=True)
class Capture:
    """The calls of one step."""

    calls: tuple[Call, ...]
    notes: tuple[str, ...] = ()
    """What was assumed so that it could be run without values."""
    storages: Storages | None = None
    """None where the source of the capture doesn't say when memory is freed."""
    inputs: tuple[TensorInfo, ...] = ()
    """The model's, where they are known: what a program copies to the GPU before a step."""
    gradients: tuple[Gradient, ...] = ()
    """Of a recorded step: in the order in which they were ready."""
