"""Sequence parallelism and a split vocabulary, which go with tensor parallelism.

With sequence parallelism ranks share the tokens between split layers; see Note [Sequence] in
tensor.py. The first block takes this rank's part of the input, and the output of the last one, or
the input of the head of a split vocabulary, is gathered. Gradients of parameters that see some of
the tokens are summed.

With a split vocabulary each rank has some of the words. Its embedding returns zeros for the others,
and the sum over ranks is the embedding; its head returns the logits of its words. A cross entropy
takes them as they are (torch's `loss_parallel`, with three small sums instead of all logits); if a
model's loss can't, they are gathered. Words are shared evenly, with padding on the last rank.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.parallel.data import model_blocks
from torchtraceap.lab.prediction.parallel.exchanges import (
    Exchange,
    copy_to_region,
    gather_from_ranks,
    gather_into_region,
    reduce_from_region,
    reduce_scatter_from_region,
    split_to_rank,
)
from torchtraceap.lab.prediction.parallel.tensor import find_pairs, token_axis
from torchtraceap.lab.workloads.workload import Workload

__all__ = [
    "VocabularyLayers",
    "block_stacks",
    "find_vocabulary",
    "parallel_loss",
    "shard_tokens",
    "shard_vocabulary",
    "sum_gradients",
]

# ------------------------------------------------------------------------------- sequence


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
        unsplit: Parameters that every rank has whole.
        enters_summed: True if all ranks have the input of the first block; else each has a
            summand of it.
        leaves_whole: True if layers after the last block take all tokens.
    """
    for stack in stacks:
        is_replicated = enters_summed or stack is not stacks[0]
        take = split_to_rank if is_replicated else reduce_scatter_from_region
        # Attention may declare which dimension has the tokens.
        modules = stack[0].modules()
        attention = next((m for m in modules if isinstance(m, nn.MultiheadAttention)), None)
        axis = None if attention is None else int(attention.batch_first)
        enter = partial(_change_tokens, take, group, axis)
        stack[0].register_forward_pre_hook(enter, with_kwargs=True)
        if leaves_whole or stack is not stacks[-1]:
            leave = partial(_change_tokens, gather_from_ranks, group, axis)
            stack[-1].register_forward_hook(leave)
        sum_gradients(stack, group, unsplit)


def sum_gradients(
    modules: Iterable[nn.Module], group: dist.ProcessGroup, unsplit: Collection[nn.Parameter]
) -> None:
    """Sum the gradients of replicated parameters, which see only this rank's tokens."""

    def sum_ranks(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=group)
        return gradient

    found = {parameter: None for module in modules for parameter in module.parameters()}
    for parameter in found:
        if parameter in unsplit and parameter.requires_grad:
            parameter.register_hook(sum_ranks)


def _change_tokens(
    change: Exchange, group: dist.ProcessGroup, axis: int | None, _: nn.Module, args: Any, last: Any
) -> Any:
    """Change the first activation of a block along its tokens.

    As a hook before a block it takes arguments and keyword arguments; as the hook after one, which
    gathers, arguments and output.
    """
    leaves, structure = tree_flatten(last if change is gather_from_ranks else (args, last))
    for place, tokens in enumerate(leaves):
        if isinstance(tokens, torch.Tensor) and tokens.is_floating_point() and tokens.dim() > 1:
            along = token_axis(tokens) if axis is None else axis
            if change is not gather_from_ranks and tokens.shape[along] % group.size():
                raise OptionError(
                    f"sequence parallelism shares {tokens.shape[along]} tokens, no multiple of "
                    f"{group.size()}"
                )
            leaves[place] = change(tokens, group, along)
            return tree_unflatten(leaves, structure)
    raise OptionError("sequence parallelism shares the tokens of blocks, and one has none")


# ------------------------------------------------------------------------------- vocabulary


@dataclass(frozen=True, slots=True)
class VocabularyLayers:
    """The layers of a vocabulary and their relation to the blocks."""

    embedding: nn.Embedding
    head: nn.Linear | None
    enters_blocks: bool
    """True if the first block takes the output of the embedding unchanged."""
    leaves_blocks: bool
    """True if the head's input has the shape of the last block's output."""
    between: tuple[nn.Module, ...]
    """Modules between the last block and the head."""


@contextmanager
def parallel_loss() -> Iterator[None]:
    """Let cross entropy take logits of a rank's words within the context, as torch's
    `loss_parallel`.

    Operators that torch runs to propagate shapes of sharded tensors are not recorded.
    """
    from torch.distributed.tensor import _sharding_prop
    from torch.distributed.tensor.parallel import loss_parallel

    owner: Any = _sharding_prop.ShardingPropagator
    learn = owner._propagate_tensor_meta_non_cached

    @functools.wraps(learn)
    def quietly(*args: Any) -> Any:
        with _disable_current_modes():
            return learn(*args)

    with mock.patch.object(owner, learn.__name__, quietly), loss_parallel():
        yield


def find_vocabulary(workload: Workload, blocks: list[nn.Module]) -> VocabularyLayers:
    """Find the layers of the vocabulary in an unsplit model by a forward pass.

    Args:
        workload: Workload of the model.
        blocks: The first and the last one of its blocks; none: nothing is said of them.

    Raises:
        OptionError: There is no embedding.
    """
    model = workload.model
    in_pairs = {layer for pair in find_pairs(model) for layer in (*pair.columns, pair.rows)}
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    heads = [m for m in model.modules() if isinstance(m, nn.Linear) and m not in in_pairs]
    if not embeddings:
        raise OptionError("vocabulary shares an embedding of words, and the model has none")

    def head_of(embedding: nn.Embedding) -> nn.Linear | None:
        shape = embedding.num_embeddings, embedding.embedding_dim
        return next((m for m in heads if (m.out_features, m.in_features) == shape), None)

    embedding = max(embeddings, key=lambda m: (head_of(m) is not None, m.num_embeddings))
    head = head_of(embedding)
    seen = _ForwardWatch(embedding, head, blocks)
    hooks = []
    for module in model.modules():
        hooks.append(module.register_forward_pre_hook(seen.begin, with_kwargs=True))
        hooks.append(module.register_forward_hook(seen.end))
    try:
        with torch.no_grad():
            workload.forward()
    finally:
        for hook in hooks:
            hook.remove()
    return VocabularyLayers(embedding, head, seen.enters, seen.leaves, tuple(seen.between))


class _ForwardWatch:
    """Observes a forward pass."""

    def __init__(
        self, embedding: nn.Module, head: nn.Module | None, blocks: list[nn.Module]
    ) -> None:
        self._embedding, self._head, self._blocks = embedding, head, blocks
        self._embedded: Any = None
        self._shape: Any = None
        self.enters, self.leaves = False, False
        self.between: list[nn.Module] = []

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note the first floating point input of a module."""
        tensors = (each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor))
        given = next((each for each in tensors if each.is_floating_point()), None)
        if self._blocks and module is self._blocks[0]:
            self.enters = given is self._embedded and given is not None
        if module is self._head and given is not None:
            self.leaves = given.dim() > 1 and given.shape == self._shape
        elif self._shape is not None and not self.leaves:
            self.between.append(module)

    def end(self, module: nn.Module, _: Any, output: Any) -> None:
        """Note the output of the embedding and of the last block."""
        if module is self._embedding:
            self._embedded = output
        if self._blocks and module is self._blocks[-1]:
            first = output[0] if isinstance(output, tuple) else output
            self._shape = getattr(first, "shape", None)
            self.between.clear()


def shard_vocabulary(
    words: VocabularyLayers, mesh: DeviceMesh, *, by_sequence: bool, splits_loss: bool
) -> None:
    """Replace the layers of the vocabulary by this rank's part.

    Args:
        words: Layers to change in place.
        mesh: Mesh of the ranks that share layers.
        by_sequence: Blocks run on some of the tokens.
        splits_loss: The loss takes logits of this rank's words.
    """
    group = mesh.get_group()
    embedding, head = words.embedding, words.head
    is_tied = head is not None and head.weight is embedding.weight
    rows = -(-embedding.num_embeddings // group.size())
    sums = not (by_sequence and words.enters_blocks)
    _cut(embedding, "weight", rows)
    embedding.forward = partial(_embed_words, embedding, rows, group, sums)
    if head is None:
        return
    if is_tied:
        head.weight = embedding.weight
    else:
        _cut(head, "weight", rows)
    if head.bias is not None:
        _cut(head, "bias", rows)
    is_split = splits_loss and head.out_features % group.size() == 0
    head.forward = partial(_logits, head, mesh, by_sequence and words.leaves_blocks, is_split)


def _cut(layer: nn.Module, name: str, rows: int) -> None:
    full = layer.get_parameter(name)
    part = full.detach()[:1].expand(rows, *full.shape[1:]).clone()
    layer.register_parameter(name, nn.Parameter(part, requires_grad=full.requires_grad))


def _embed_words(
    layer: nn.Embedding, rows: int, group: dist.ProcessGroup, sums: bool, words: torch.Tensor
) -> torch.Tensor:
    """Return this rank's summand of the embedding, or the sum unless the first block scatters
    it."""
    first = group.rank() * rows
    others = (words < first) | (words >= first + rows)
    own = (words.clone() - first).masked_fill_(others, 0)
    found = functional.embedding(own, layer.weight)
    found = found.masked_fill(others.unsqueeze(-1), 0.0)
    return reduce_from_region(found, group) if sums else found


def _logits(
    head: nn.Linear, mesh: DeviceMesh, gathers: bool, is_split: bool, given: torch.Tensor
) -> torch.Tensor:
    """Return the logits: of this rank's words as shards of a tensor, or gathered, of all words."""
    from torch.distributed.tensor import DTensor, Shard

    group = mesh.get_group()
    if gathers:
        given = gather_into_region(given, group, token_axis(given))
    else:
        given = copy_to_region(given, group)
    logits = functional.linear(given, head.weight, head.bias)
    if is_split:
        found: torch.Tensor = DTensor.from_local(logits, mesh, [Shard(-1)], run_check=False)
        return found
    logits = gather_from_ranks(logits, group, logits.dim() - 1)
    count = head.out_features
    return logits if logits.shape[-1] == count else logits[..., :count]
