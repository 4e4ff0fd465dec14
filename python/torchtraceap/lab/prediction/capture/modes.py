"""Dispatch mode that records every operator below autograd with all arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchtraceap.lab.prediction.capture.sparse import with_sparse_rows

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["PlainMode", "bind_arguments", "dispatch_mode", "is_distributed", "reported_device"]


def dispatch_mode(recorder: Recorder) -> TorchDispatchMode:
    """Return a mode that reports each call to a recorder."""
    return _Mode(recorder)


class PlainMode(TorchDispatchMode):
    """A mode that doesn't disable torch.compile.

    Disabling takes as long as a call, and torch's compiler doesn't run within a capture.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


_COMPOSITE = {
    getattr(torch.ops.aten, name)
    for name in [
        "to",
        "__or__",
        "__and__",
        "view_as",
        "flatten",
        "reshape",
        "reshape_as",
        "type_as",
    ]
}
"""Operators that reach the dispatcher undecomposed for sharded tensors."""


class _Mode(PlainMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_distributed(types):
            return NotImplemented  # comes again, with what this rank has of them
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return reported_device(args[0])
        func = _in_place_variant(func, args)
        namespace, _, base = func._schema.name.partition("::")
        if func._overloadpacket in _COMPOSITE:
            with self:
                return func.decompose(*args, **kwargs)
        if namespace == "_c10d_functional":
            return self._functional(func, base, args, kwargs)
        if namespace == "c10d":
            return self._start_collective(func, bind_arguments(func, args, kwargs))
        found = with_sparse_rows(func, args, func(*args, **kwargs))
        if namespace != "prim":
            outputs = found if isinstance(found, (tuple, list)) else (found,)
            self._recorder.write(
                f"{namespace}::{base}",
                func._overloadname,
                bind_arguments(func, args, kwargs),
                tuple(outputs),
                is_view=func.is_view,
            )
        return found

    def _functional(self, func: Any, base: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Record a functional collective, whose result is a new tensor."""
        from torchtraceap.lab.prediction.capture.collectives import functional_call

        found = func(*args, **kwargs)
        arguments = bind_arguments(func, args, kwargs)
        exchange = functional_call(base, arguments, found)
        if exchange is not None:
            self._recorder.write_exchange(func._schema.name, arguments, exchange)
        return found

    def _start_collective(self, func: Any, arguments: dict[str, Any]) -> Any:
        from torchtraceap.lab.prediction.capture.collectives import c10d_call

        exchange = c10d_call(func, arguments)
        self._recorder.write_exchange(func._schema.name, arguments, exchange)
        return exchange.result


_DEVICE = torch.ops.prim.device.default


def reported_device(tensor: FakeTensor) -> torch.device:
    """Return the device of a fake tensor.

    Two of three calls ask for it, most of them torch's own.
    """
    if tensor.fake_mode.in_kernel_invocation:
        return torch.device("meta")
    device: torch.device = tensor.fake_device
    return device


def is_distributed(types: Any) -> bool:
    """Return whether a type is a distributed tensor."""
    return any(each.__module__.startswith("torch.distributed.") for each in types)


def _in_place_variant(func: Any, args: tuple[Any, ...]) -> Any:
    """Return the in-place variant where autograd would use it on ordinary tensors.

    That is the case for sums of gradients with one owner and for the gradient of an indexed tensor.
    """
    if func not in _WRITES or torch.is_grad_enabled():
        return func
    if torch._C._current_autograd_node() is None:
        return func
    if func is torch.ops.aten.index_put.default:
        return _WRITES[func]
    total, other = args[0], args[1]
    adds_alike = isinstance(other, torch.Tensor) and total.shape == other.shape
    is_dense = torch.ops.aten.is_non_overlapping_and_dense.default
    alone = adds_alike and _holders(total) <= _HOLDERS_OF_ONE and is_dense(total)
    return _WRITES[func] if alone else func


_WRITES = {
    torch.ops.aten.add.Tensor: torch.ops.aten.add_.Tensor,
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
}


def _holders(tensor: torch.Tensor) -> int:
    """Return how many tensors hold a tensor's memory."""
    if tensor.layout != torch.strided:
        return _HOLDERS_OF_ONE + 1
    found: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return found


_HOLDERS_OF_ONE = _holders(torch.empty(1))


def bind_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name in the order of the schema, including defaults."""
    found: dict[str, Any] = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            found[argument.name] = args[position]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        else:
            found[argument.name] = argument.default_value if argument.has_default_value() else None
    return found
