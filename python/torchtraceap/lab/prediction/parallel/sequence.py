"""Sequence parallelism: ranks share the tokens between split layers.

See Note [Sequence] in tensor.py. The first block takes this rank's part of the input, and the
output of the last one, or the input of the head of a split vocabulary, is gathered. Gradients of
parameters that see some of the tokens are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.parallel.blocks import model_blocks
from torchtraceap.lab.prediction.parallel.exchanges import (
    gather_from_ranks,
    reduce_scatter_from_region,
    split_to_rank,
)
from torchtraceap.lab.prediction.parallel.tensor import find_pairs, token_axis

__all__ = ["block_stacks", "shard_tokens"]


def block_stacks(model: nn.Module) -> list[list[nn.Module]]:
    """Return the blocks with split layers of an unsplit model, grouped by list.

    Raises:
        OptionError: There are none.
    """
    split = {layer for pair in find_pairs(model) for layer in (*pair.columns, pair.rows)}
    stacks: dict[str, list[nn.Module]] = {}
    for name, block in model_blocks(model).items():
        if split & set(block.modules()):
            stacks.setdefault(name.rpartition(".")[0], []).append(block)
    if not stacks:
        raise OptionError("sequence parallelism lies between blocks, and the model has none")
    return [*stacks.values()]


def shard_tokens(
    stacks: list[list[nn.Module]],
    group: dist.ProcessGroup,
    unsplit: Collection[nn.Parameter],
    *,
    enters_summed: bool = True,
    leaves_whole: bool = True,
) -> None:
    """Let blocks run on this rank's tokens.

    Args:
        stacks: Blocks in their order.
        group: The ranks among which layers are split.
        unsplit: Parameters of which each rank has all.
        enters_summed: What goes into the first block is what all ranks have; else each has a
            summand of it.
        leaves_whole: True if layers after the last block take all tokens.
    """
    for stack in stacks:
        axis = _axis(stack[0])
        take = (
            split_to_rank if enters_summed or stack is not stacks[0] else reduce_scatter_from_region
        )
        enter = partial(_entered, take, group, axis)
        stack[0].register_forward_pre_hook(enter, with_kwargs=True)
        if leaves_whole or stack is not stacks[-1]:
            stack[-1].register_forward_hook(partial(_left, group, axis))
        sum_gradients(stack, group, unsplit)


def sum_gradients(
    modules: Iterable[nn.Module], group: dist.ProcessGroup, unsplit: Collection[nn.Parameter]
) -> None:
    """Sum the gradients of replicated parameters, which see only this rank's tokens."""

    def summed(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=group)
        return gradient

    found = {parameter: None for module in modules for parameter in module.parameters()}
    for parameter in found:
        if parameter in unsplit and parameter.requires_grad:
            parameter.register_hook(summed)


def _axis(block: nn.Module) -> int | None:
    """Return the dimension of tokens that attention declares, else None."""
    for module in block.modules():
        if isinstance(module, nn.MultiheadAttention):
            return 1 if module.batch_first else 0
    return None


def _entered(
    take: Callable[[torch.Tensor, dist.ProcessGroup, int], torch.Tensor],
    group: dist.ProcessGroup,
    axis: int | None,
    _: nn.Module,
    args: Any,
    kwargs: Any,
) -> Any:
    leaves, structure = tree_flatten((args, kwargs))
    at = _first(leaves)
    tokens = leaves[at]
    along = token_axis(tokens) if axis is None else axis
    if tokens.shape[along] % group.size():
        raise OptionError(
            f"sequence parallelism shares {tokens.shape[along]} tokens, no multiple of "
            f"{group.size()}"
        )
    leaves[at] = take(tokens, group, along)
    return tree_unflatten(leaves, structure)


def _left(group: dist.ProcessGroup, axis: int | None, _: nn.Module, __: Any, output: Any) -> Any:
    leaves, structure = tree_flatten(output)
    at = _first(leaves)
    along = token_axis(leaves[at]) if axis is None else axis
    leaves[at] = gather_from_ranks(leaves[at], group, along)
    return tree_unflatten(leaves, structure)


def _first(leaves: list[Any]) -> int:
    """Return the index of the first activation."""
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dim() > 1:
            return at
    raise OptionError("sequence parallelism shares the tokens of blocks, and one has none")
