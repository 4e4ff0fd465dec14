"""Differentiable collectives of tensor parallelism over sums and parts of activations.

Each is an autograd function whose backward pass is the reverse collective. Parts lie along a
dimension; unless that is the first one, a copy reorders them, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

__all__ = [
    "Exchange",
    "copy_to_region",
    "gather",
    "gather_from_ranks",
    "gather_into_region",
    "reduce_from_region",
    "reduce_scatter_from_region",
    "scatter_sums",
    "split_to_rank",
]

# Newer releases of torch deprecate the older names.
_SCATTER_SUMS: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def gather(part: torch.Tensor, group: dist.ProcessGroup, axis: int, **options: Any) -> torch.Tensor:
    """Gather the parts of all ranks along a dimension."""
    size = group.size()
    out = part.new_empty((size * part.shape[0], *part.shape[1:]))
    _GATHER(out, part.contiguous(), group=group, **options)
    return torch.cat(out.chunk(size), axis) if axis else out


def scatter_sums(
    tensor: torch.Tensor, group: dist.ProcessGroup, axis: int, **options: Any
) -> torch.Tensor:
    """Return this rank's part, along a dimension, of the sum over ranks."""
    size = group.size()
    tensor = torch.cat(tensor.chunk(size, axis)) if axis else tensor.contiguous()
    out = tensor.new_empty((tensor.shape[0] // size, *tensor.shape[1:]))
    _SCATTER_SUMS(out, tensor, group=group, **options)
    return out


def _part(tensor: torch.Tensor, group: dist.ProcessGroup, axis: int) -> torch.Tensor:
    rows = tensor.shape[axis] // group.size()
    return tensor.narrow(axis, group.rank() * rows, rows).contiguous()


class _Entered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        summed = grads[0].contiguous()
        dist.all_reduce(summed, group=ctx.group)
        return summed, None


class _Left(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        dist.all_reduce(part, group=group)
        return part.view_as(part)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], None


Exchange: TypeAlias = Callable[[torch.Tensor, dist.ProcessGroup, int], torch.Tensor]


def _exchange(name: str, forward_way: Exchange, backward_way: Exchange) -> Exchange:
    """Return the application of an autograd function of that name, which traces show."""

    def forward(ctx: Any, given: torch.Tensor, group: dist.ProcessGroup, axis: int) -> torch.Tensor:
        ctx.group, ctx.axis = group, axis
        return forward_way(given, group, axis)

    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return backward_way(grads[0], ctx.group, ctx.axis), None, None

    ways = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(torch.autograd.Function)(name, (torch.autograd.Function,), ways)
    apply: Exchange = function.apply
    return apply


copy_to_region: Callable[[torch.Tensor, dist.ProcessGroup], torch.Tensor] = _Entered.apply
"""Enters split layers with a replicated tensor; its gradients are summed over ranks."""
reduce_from_region: Callable[[torch.Tensor, dist.ProcessGroup], torch.Tensor] = _Left.apply
"""Leaves split layers by a sum over ranks, whose gradient is replicated."""
gather_into_region = _exchange("_Gathered", gather, scatter_sums)
"""Gathers the parts of a tensor before split layers; gradients are reduce-scattered."""
reduce_scatter_from_region = _exchange("_Scattered", scatter_sums, gather)
"""Reduce-scatters the output of split layers; gradients are gathered."""
split_to_rank = _exchange("_OwnPart", _part, gather)
"""Keeps a rank's part of a replicated tensor; gradients are gathered."""
gather_from_ranks = _exchange("_Whole", gather, _part)
"""Gathers parts for replicated layers; a rank keeps its part of the gradients."""
