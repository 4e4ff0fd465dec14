"""Calls of torch.distributed, recorded instead of executed.

Below `torch.distributed` every collective is an operator of the dispatcher's namespace `c10d`,
which takes its process group as an argument and returns a handle of the work that may be waited
for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

__all__ = ["C10dCall", "c10d_call", "collective_name", "functional_call"]

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


@dataclass(frozen=True, slots=True)
class C10dCall:
    """A call of a c10d operator."""

    kind: str
    group: tuple[int, ...]
    group_name: str
    read: tuple[torch.Tensor, ...]
    written: tuple[torch.Tensor, ...]
    waits: bool
    """True if the stream that starts it waits for its end."""
    peer: int | None
    result: Any
    """Return value of the operator."""


def c10d_call(func: Any, arguments: dict[str, Any]) -> C10dCall:
    """Describe a call of a c10d operator.

    Args:
        func: The operator.
        arguments: Arguments by the names of its schema.
    """
    base = func._schema.name.partition("::")[2]
    group = dist.ProcessGroup.unbox(arguments["process_group"])
    ranks = tuple(dist.get_process_group_ranks(group))
    both = (*_tensors(arguments, _BOTH),)
    other = arguments.get("dst", arguments.get("src"))
    kind = _KINDS.get(base, base)
    if base == "alltoall_base_":
        splits = arguments["output_split_sizes"] or arguments["input_split_sizes"]
        kind = "all_to_allv" if splits else "all_to_all"
    return C10dCall(
        kind,
        ranks,
        group.group_desc,
        (*both, *_tensors(arguments, _READ)),
        (*both, *_tensors(arguments, _WRITTEN)),
        not arguments.get("async_op", True),
        None if other is None else ranks[other],
        _result(func, arguments),
    )


_FUNCTIONAL = {
    "all_reduce": "allreduce",
    "all_reduce_": "allreduce",
    "all_gather_into_tensor": "_allgather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_allv",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}


def functional_call(base: str, arguments: dict[str, Any], result: Any) -> C10dCall | None:
    """Describe a call of a functional collective; None for an operator that only waits.

    Args:
        base: Its name without its namespace.
        arguments: Arguments by the names of its schema.
        result: Its return value.
    """
    kind = _FUNCTIONAL.get(base)
    if kind is None:
        return None
    group = dist.distributed_c10d._resolve_process_group(arguments["group_name"])
    ranks = tuple(dist.get_process_group_ranks(group))
    read = tuple(_tensors(arguments, _READ))
    return C10dCall(kind, ranks, group.group_desc, read, (result,), False, None, result)


def _tensors(arguments: dict[str, Any], names: tuple[str, ...]) -> Iterator[torch.Tensor]:
    for name in names:
        for leaf in tree_leaves(arguments.get(name)):
            if isinstance(leaf, torch.Tensor):
                yield leaf


def _result(func: Any, arguments: dict[str, Any]) -> Any:
    """Return the operator's result: its first argument, if the schema has it, and a finished
    work."""
    first = next(iter(arguments.values()))
    future: Any = torch.futures.Future()
    future.set_result(first)
    c10d: Any = torch._C._distributed_c10d
    work = c10d._create_work_from_future(future).boxed()
    return work if len(func._schema.returns) == 1 else (first, work)
