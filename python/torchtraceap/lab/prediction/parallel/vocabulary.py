"""Splits the vocabulary over ranks: embedding, head and loss.

Each rank has some of the words. Its embedding returns zeros for the others, and the sum over ranks
is the embedding; its head returns the logits of its words. A cross entropy takes them as they are
(torch's `loss_parallel`, with three small sums instead of all logits); if a model's loss can't,
they are gathered. Words are shared evenly, with padding on the last rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
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

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.parallel.exchanges import (
    copy_to_region,
    gather_from_ranks,
    gather_into_region,
    reduce_from_region,
)
from torchtraceap.lab.prediction.parallel.tensor import find_pairs, token_axis
from torchtraceap.lab.workloads.workload import Workload

__all__ = ["VocabularyLayers", "find_vocabulary", "parallel_loss", "shard_vocabulary"]


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
    with seen.watched(model), torch.no_grad():
        workload.forward()
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

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        hooks = [
            hook
            for module in model.modules()
            for hook in (
                module.register_forward_pre_hook(self._begins, with_kwargs=True),
                module.register_forward_hook(self._ends),
            )
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        given = next((each for each in (*args, *kwargs.values()) if _is_float(each)), None)
        if self._blocks and module is self._blocks[0]:
            self.enters = given is self._embedded and given is not None
        if module is self._head and given is not None:
            self.leaves = given.dim() > 1 and given.shape == self._shape
        elif self._shape is not None and not self.leaves:
            self.between.append(module)

    def _ends(self, module: nn.Module, _: Any, output: Any) -> None:
        if module is self._embedding:
            self._embedded = output
        if self._blocks and module is self._blocks[-1]:
            first = output[0] if isinstance(output, tuple) else output
            self._shape = getattr(first, "shape", None)
            self.between.clear()


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


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
    embedding.forward = partial(_embedded, embedding, rows, group, sums)
    if head is None:
        return
    if is_tied:
        head.weight = embedding.weight
    else:
        _cut(head, "weight", rows)
    if head.bias is not None:
        _cut(head, "bias", rows)
    enter = partial(_enter, group, by_sequence and words.leaves_blocks)
    count = head.out_features
    is_split = splits_loss and count % group.size() == 0
    join = partial(_as_shards, mesh) if is_split else partial(_joined, group, count)
    head.forward = partial(_logits, head, enter, join)


def _cut(layer: nn.Module, name: str, rows: int) -> None:
    full = layer.get_parameter(name)
    part = full.detach()[:1].expand(rows, *full.shape[1:]).clone()
    layer.register_parameter(name, nn.Parameter(part, requires_grad=full.requires_grad))


def _embedded(
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


def _enter(group: dist.ProcessGroup, gathers: bool, given: torch.Tensor) -> torch.Tensor:
    return (
        gather_into_region(given, group, token_axis(given))
        if gathers
        else copy_to_region(given, group)
    )


def _logits(
    head: nn.Linear,
    enter: Callable[[torch.Tensor], torch.Tensor],
    join: Callable[[torch.Tensor], torch.Tensor],
    given: torch.Tensor,
) -> torch.Tensor:
    return join(functional.linear(enter(given), head.weight, head.bias))


def _joined(group: dist.ProcessGroup, count: int, logits: torch.Tensor) -> torch.Tensor:
    found = gather_from_ranks(logits, group, logits.dim() - 1)
    return found if found.shape[-1] == count else found[..., :count]


def _as_shards(mesh: DeviceMesh, logits: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor, Shard

    found: torch.Tensor = DTensor.from_local(logits, mesh, [Shard(-1)], run_check=False)
    return found
