"""The dispatch mode that records every operator below autograd with all arguments.

Note [Collectives]: below `torch.distributed` every collective is an operator of the dispatcher's
namespace `c10d`, which takes its process group as an argument and returns a handle of the work that
may be waited for. They are recorded instead of executed. Functional collectives
(`_c10d_functional`) return a new tensor.

Note [Sparse gradients]: a sparse gradient of an embedding has one row for each lookup. Tensors
without values lose the number of rows in a few operators, after which nothing would be computed of
them. The number of rows after equal ones are summed depends on values, so that all are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchtraceap.lab.prediction.capture.recorder import C10dCall, Recorder

__all__ = [
    "PlainMode",
    "bind_arguments",
    "collective_name",
    "dispatch_mode",
    "is_distributed",
    "reported_device",
]


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
            found = func(*args, **kwargs)
            arguments = bind_arguments(func, args, kwargs)
            exchange = _functional_call(base, arguments, found)
            if exchange is not None:
                self._recorder.write_exchange(func._schema.name, arguments, exchange)
            return found
        if namespace == "c10d":
            arguments = bind_arguments(func, args, kwargs)
            exchange, result = _c10d_call(func, base, arguments)
            self._recorder.write_exchange(func._schema.name, arguments, exchange)
            return result
        found = _with_sparse_rows(func, args, func(*args, **kwargs))
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


# ------------------------------------------------------------------------------- collectives

_KINDS = {
    "allreduce_": "allreduce",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "_allgather_base_": "_allgather_base",
    "allgather_": "all_gather",
    "_reduce_scatter_base_": "_reduce_scatter_base",
    "reduce_scatter_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recvAnySource",
    "gather_": "gather",
    "scatter_": "scatter",
    "allreduce_coalesced_": "allreduce_coalesced",
    "allgather_into_tensor_coalesced_": "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "barrier": "barrier",
}
"""Names that ProcessGroupNCCL has for these operators."""
_READ = ("input", "input_tensor", "input_tensors", "inputs")
_WRITTEN = ("output", "output_tensor", "output_tensors", "outputs")
_BOTH = ("tensors", "tensor")


def collective_name(name: str) -> str | None:
    """Return the collective of a c10d operator, given without its namespace."""
    return _KINDS.get(name)


def _c10d_call(func: Any, base: str, arguments: dict[str, Any]) -> tuple[C10dCall, Any]:
    """Return the collective of a c10d operator and what the operator returns."""
    group = dist.ProcessGroup.unbox(arguments["process_group"])
    ranks = tuple(dist.get_process_group_ranks(group))
    both = (*_tensors(arguments, _BOTH),)
    other = arguments.get("dst", arguments.get("src"))
    kind = _KINDS.get(base, base)
    if base == "alltoall_base_":
        splits = arguments["output_split_sizes"] or arguments["input_split_sizes"]
        kind = "all_to_allv" if splits else "all_to_all"
    exchange = C10dCall(
        kind,
        ranks,
        group.group_desc,
        (*both, *_tensors(arguments, _READ)),
        (*both, *_tensors(arguments, _WRITTEN)),
        not arguments.get("async_op", True),
        None if other is None else ranks[other],
    )
    # The first argument, if the schema returns it, and a finished work.
    first = next(iter(arguments.values()))
    future: Any = torch.futures.Future()
    future.set_result(first)
    c10d: Any = torch._C._distributed_c10d
    work = c10d._create_work_from_future(future).boxed()
    return exchange, work if len(func._schema.returns) == 1 else (first, work)


_FUNCTIONAL = {
    "all_reduce": "allreduce",
    "all_reduce_": "allreduce",
    "all_gather_into_tensor": "_allgather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_allv",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}


def _functional_call(base: str, arguments: dict[str, Any], result: Any) -> C10dCall | None:
    """Return the collective of a functional operator; None for one that only waits."""
    kind = _FUNCTIONAL.get(base)
    if kind is None:
        return None
    group = dist.distributed_c10d._resolve_process_group(arguments["group_name"])
    ranks = tuple(dist.get_process_group_ranks(group))
    read = tuple(_tensors(arguments, _READ))
    return C10dCall(kind, ranks, group.group_desc, read, (result,), waits=False)


def _tensors(arguments: dict[str, Any], names: tuple[str, ...]) -> Iterator[torch.Tensor]:
    for name in names:
        for leaf in tree_leaves(arguments.get(name)):
            if isinstance(leaf, torch.Tensor):
                yield leaf


# ------------------------------------------------------------------------------- sparse gradients

_BAG = torch.ops.aten._embedding_bag_backward.default
_COALESCE = torch.ops.aten._coalesce.default
_ROWS_OF = {
    torch.ops.aten.clone.default: 0,
    _COALESCE: 0,
    torch.ops.aten.sparse_mask.default: 1,
}
"""Argument with as many rows as the result, by operator."""


def _with_sparse_rows(func: Any, args: tuple[Any, ...], found: Any) -> Any:
    """Return the result of an operator with its rows; see Note [Sparse gradients]."""
    if not isinstance(found, torch.Tensor) or found.layout != torch.sparse_coo or found._nnz():
        return found
    if func is _BAG:
        places = args[1].reshape(1, -1)
    elif func in _ROWS_OF:
        places = args[_ROWS_OF[func]]._indices()
    else:
        return found
    columns = found._values().shape[1:]
    values = found._values().new_empty((places.shape[1], *columns))
    made = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        places.shape[0], len(columns), found.shape, places, values, layout=torch.sparse_coo,
        dtype=values.dtype, device=values.device, is_coalesced=func is _COALESCE,
    )  # fmt: skip
    assert isinstance(made, torch.Tensor)
    return made
