"""The dispatcher's hook: every operator below autograd, with all arguments of its schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchtraceap.lab.prediction.capture.sparse import with_its_rows

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["PlainMode", "all_arguments", "asked_device", "dispatch_mode", "is_distributed"]


def dispatch_mode(recorder: Recorder) -> TorchDispatchMode:
    """A mode that tells a recorder of each call."""
    return _Mode(recorder)


class PlainMode(TorchDispatchMode):
    """One that no compiler is kept away from: what keeps it away takes as long as the call, and
    torch's compiler doesn't run within a capture."""

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
"""Below autograd, where torch computes on what a rank has of a tensor that is shared among ranks,
these come in one piece."""


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
            return asked_device(args[0])
        func = _in_place(func, args)
        namespace, _, base = func._schema.name.partition("::")
        if func._overloadpacket in _COMPOSITE:
            with self:
                return func.decompose(*args, **kwargs)
        if namespace == "_c10d_functional":
            return self._functional(func, base, args, kwargs)
        if namespace == "c10d":
            return self._exchanged(func, all_arguments(func, args, kwargs))
        found = with_its_rows(func, args, func(*args, **kwargs))
        if namespace != "prim":
            outputs = found if isinstance(found, (tuple, list)) else (found,)
            self._recorder.write(
                f"{namespace}::{base}",
                func._overloadname,
                all_arguments(func, args, kwargs),
                tuple(outputs),
                is_view=func.is_view,
            )
        return found

    def _functional(self, func: Any, base: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Collectives whose result is a tensor of its own, waited for by what reads it."""
        from torchtraceap.lab.prediction.capture.collectives import functional_exchange

        found = func(*args, **kwargs)
        arguments = all_arguments(func, args, kwargs)
        exchange = functional_exchange(base, arguments, found)
        if exchange is not None:
            self._recorder.write_exchange(func._schema.name, arguments, exchange)
        return found

    def _exchanged(self, func: Any, arguments: dict[str, Any]) -> Any:
        from torchtraceap.lab.prediction.capture.collectives import exchange_of

        exchange = exchange_of(func, arguments)
        self._recorder.write_exchange(func._schema.name, arguments, exchange)
        return exchange.result


_DEVICE = torch.ops.prim.device.default


def asked_device(tensor: FakeTensor) -> torch.device:
    """Where a tensor says that it is: two of three calls ask for that, most of them torch's own."""
    if tensor.fake_mode.in_kernel_invocation:
        return torch.device("meta")
    device: torch.device = tensor.fake_device
    return device


def is_distributed(types: Any) -> bool:
    """Whether one of them is a tensor that is shared among ranks."""
    return any(each.__module__.startswith("torch.distributed.") for each in types)


def _in_place(func: Any, args: tuple[Any, ...]) -> Any:
    """Where autograd writes to its own tensors, but doesn't dare on tensors like these: sums of
    gradients whose memory nobody else holds, and the gradient of an indexed tensor."""
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
    """How many hold a tensor's memory, whoever asks among them; a sparse one's is its own."""
    if tensor.layout != torch.strided:
        return _HOLDERS_OF_ONE + 1
    found: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return found


_HOLDERS_OF_ONE = _holders(torch.empty(1))


def all_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, in the order of the schema, with defaults for those not given."""
    found: dict[str, Any] = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            found[argument.name] = args[position]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        else:
            found[argument.name] = argument.default_value if argument.has_default_value() else None
    return found
