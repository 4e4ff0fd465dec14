"""Tensor parallelism as in Megatron.

Note [Pairs]: if one layer reads the output of another, the first is split by output features
(columns) and the second by input features (rows), with nothing to exchange between them. After the
second, outputs are summed over ranks; in the backward pass, the gradient of the first one's input.
Attention is such a pair (queries, keys and values; output), with some of the heads on each rank,
and so is a multi-layer perceptron. Embeddings, norms and the head of a model are replicated. Pairs
are found by the usual names of layers, and in sequences of layers with only elementwise layers
between.

Note [Sequence]: with sequence parallelism a rank has some of the tokens between pairs (norms,
dropout, sums). They are gathered before a pair, instead of summing gradients there, and after it
each rank keeps its part of the sum (Korthikanti et al., 2022). Attention gathers the input of its
module, which counts tokens; a perceptron the input of its first layers.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_unflatten

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.parallel.exchanges import (
    copy_to_region,
    gather_into_region,
    reduce_from_region,
    reduce_scatter_from_region,
)

__all__ = ["Pair", "find_pairs", "split_layers", "token_axis"]

_ATTENTION = (
    ("q_proj k_proj v_proj", "o_proj out_proj dense c_proj wo proj"),
    ("q k v", "o proj out out_proj"),
    ("query key value", "out proj out_proj dense output"),
    ("self.query self.key self.value", "output.dense"),
    ("attention.query attention.key attention.value", "output.dense"),
    ("q_lin k_lin v_lin", "out_lin"),
    ("to_q to_k to_v", "to_out.0 to_out"),
    ("wq wk wv", "wo"),
    ("c_attn", "c_proj"),
    ("qkv", "proj out_proj out"),
    ("qkv_proj", "o_proj out_proj"),
    ("query_key_value", "dense"),
    ("Wqkv", "out_proj Wo"),
)
_PERCEPTRONS = (
    ("gate_proj up_proj", "down_proj"),
    ("gate_up_proj", "down_proj"),
    ("up_proj", "down_proj"),
    ("c_fc", "c_proj"),
    ("fc1", "fc2"),
    ("linear1", "linear2"),
    ("w1 w3", "w2"),
    ("w1", "w2"),
    ("wi_0 wi_1", "wo"),
    ("wi", "wo"),
    ("lin1", "lin2"),
    ("fc_in", "fc_out"),
    ("dense_h_to_4h", "dense_4h_to_h"),
    ("intermediate.dense", "output.dense"),
)
"""Layer names of pairs: all of the first layers, any of the second.

They are those of transformers, timm and common examples.
"""
_HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nheads", "heads")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_WIDTHS = ("all_head_size", "split_size", "inner_dim", "embed_dim", "n_embd", "hidden_size")
"""Attributes of attention that hold counts of heads, counts of key heads, and widths."""
_WIDTHS_OF_HEADS = (
    "head_dim",
    "attention_head_size",
    "dim_head",
    "key_value_proj_dim",
    "head_size",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Layers that are split together; see Note [Pairs]."""

    name: str
    """Name of the module that holds them."""
    columns: tuple[nn.Module, ...]
    rows: nn.Module
    heads: nn.Module | None = None
    """Module that owns the heads, for attention."""


def find_pairs(model: nn.Module) -> tuple[Pair, ...]:
    """Return disjoint pairs in the order of the model."""
    found: list[Pair] = []
    taken: set[nn.Module] = set()
    for name, module in model.named_modules():
        for pair in _pairs_in(name, module):
            layers = {*pair.columns, pair.rows}
            if not layers & taken:
                taken |= layers
                found.append(pair)
    return tuple(found)


def _pairs_in(name: str, module: nn.Module) -> Iterator[Pair]:
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight is not None:
            yield Pair(name, (module,), module.out_proj, module)
        return
    for names, is_attention in ((_ATTENTION, True), (_PERCEPTRONS, False)):
        for columns, rows in names:
            layers = [_layer(module, each) for each in columns.split()]
            last = next(filter(None, (_layer(module, each) for each in rows.split())), None)
            if last is None or not all(layers):
                continue
            owner = module.get_submodule(columns.split()[0].rpartition(".")[0])
            if not is_attention:
                yield Pair(name, tuple(filter(None, layers)), last)
            elif _count(owner, (*_HEADS, *_WIDTHS_OF_HEADS)):
                yield Pair(name, tuple(filter(None, layers)), last, owner)
    if isinstance(module, nn.Sequential):
        yield from _pairs_in_sequence(name, module)


def _layer(module: nn.Module, path: str) -> nn.Module | None:
    for name in path.split("."):
        child = getattr(module, name, None)
        if not isinstance(child, nn.Module):
            return None
        module = child
    return module if _is_linear(module) else None


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or _is_transposed(module)


def _is_transposed(module: nn.Module) -> bool:
    """Return whether a layer is GPT-2's linear layer with a weight of [in, out]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _pairs_in_sequence(name: str, sequence: nn.Sequential) -> Iterator[Pair]:
    """Yield pairs of linear layers with only elementwise layers between them."""
    from torch.nn.modules import activation, dropout

    mixes = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d, nn.GLU, nn.MultiheadAttention)
    first: nn.Module | None = None
    for layer in sequence:
        if _is_linear(layer):
            if first is not None:
                yield Pair(name, (first,), layer)
                first = None
            else:
                first = layer
            continue
        is_known = type(layer).__module__ in (activation.__name__, dropout.__name__)
        is_by_element = is_known and not isinstance(layer, mixes)
        if not is_by_element and not isinstance(layer, nn.Identity):
            first = None


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The ranks that share layers, and their collectives."""

    group: dist.ProcessGroup
    by_sequence: bool
    """True for sequence parallelism; see Note [Sequence]."""

    def enter(self, given: torch.Tensor, axis: int | None = None) -> torch.Tensor:
        """Enter a pair; parts of the tokens are gathered."""
        if not self.by_sequence:
            return copy_to_region(given, self.group)
        return gather_into_region(given, self.group, token_axis(given) if axis is None else axis)

    def leave(self, product: torch.Tensor, axis: int | None = None) -> torch.Tensor:
        """Leave a pair by a sum over ranks."""
        if not self.by_sequence:
            return reduce_from_region(product, self.group)
        return reduce_scatter_from_region(
            product, self.group, token_axis(product) if axis is None else axis
        )


def token_axis(activations: torch.Tensor) -> int:
    """Return the token dimension of [batch, tokens, features] or [tokens, features]."""
    return 1 if activations.dim() > 2 else 0


def split_layers(
    model: nn.Module,
    group: dist.ProcessGroup,
    *,
    attention: bool = True,
    by_sequence: bool = False,
) -> None:
    """Replace each layer by this rank's part.

    Args:
        model: Model to change in place.
        group: The ranks among which layers are split.
        attention: Split attention as well.
        by_sequence: Pairs receive and return a rank's tokens.

    Raises:
        OptionError: There is nothing to split, or heads or features of a layer are no multiple of
            the ranks.
    """
    parts = group.size()
    pairs = [pair for pair in find_pairs(model) if attention or pair.heads is None]
    if not pairs:
        raise OptionError(
            "tp splits attention and pairs of linear layers, and finds none in the model that it "
            "knows by their names"
        )
    for pair in pairs:
        _check(pair, parts)
    ranks = _Ranks(group, by_sequence)
    for pair in pairs:
        owner = pair.heads
        if isinstance(owner, nn.MultiheadAttention):
            _split_attention(owner, ranks)
            continue
        # How the first layers enter a pair; see Note [Sequence].
        enter: Callable[[torch.Tensor], torch.Tensor] | None = ranks.enter
        if by_sequence and owner is None:
            enter = _SharedEntry(ranks.enter)
        elif by_sequence and owner is not None:
            gather = functools.partial(_gather_first, ranks)
            owner.register_forward_pre_hook(gather, with_kwargs=True)
            enter = None
        for layer in pair.columns:
            _split_columns(layer, parts, enter)
        _split_rows(pair.rows, ranks)
        if owner is None:
            continue
        # T5 has an embedding of distances, with a number for each head.
        heads = _count(owner, _HEADS)
        for child in owner.children():
            if isinstance(child, nn.Embedding) and child.embedding_dim == heads:
                _cut(child, "weight", 1, parts)
                _divide(child, "embedding_dim", parts)
        for name in (*_HEADS, *_KEY_HEADS, *_WIDTHS):
            _divide(owner, name, parts)


def _check(pair: Pair, parts: int) -> None:
    place = pair.name or "the model"
    if pair.heads is not None:
        for heads in _heads(pair.heads, pair.columns):
            if heads % parts:
                raise OptionError(f"tp={parts} does not divide the {heads} heads of {place}")
    for layer in pair.columns:
        if not isinstance(layer, nn.MultiheadAttention) and _widths(layer)[1] % parts:
            raise OptionError(
                f"tp={parts} does not divide the {_widths(layer)[1]} features of {place}"
            )
    if _widths(pair.rows)[0] % parts:
        raise OptionError(f"tp={parts} does not divide the {_widths(pair.rows)[0]} of {place}")


def _heads(attention: nn.Module, columns: tuple[nn.Module, ...]) -> Iterator[int]:
    """Yield the numbers of heads of queries, and of keys and values if they differ."""
    counted = [_count(attention, names) for names in (_HEADS, _KEY_HEADS)]
    yield from filter(None, counted)
    width = _count(attention, _WIDTHS_OF_HEADS)
    if not any(counted) and width:
        yield from (_widths(layer)[1] // width for layer in columns)


def _count(module: nn.Module, names: tuple[str, ...]) -> int:
    found = (getattr(module, name, None) for name in names)
    return next((each for each in found if type(each) is int and each > 0), 0)


def _widths(layer: nn.Module) -> tuple[int, int]:
    """Return the input and output features."""
    rows, columns = layer.get_parameter("weight").shape
    return (rows, columns) if _is_transposed(layer) else (columns, rows)


def _divide(module: nn.Module, name: str, parts: int) -> None:
    count = getattr(module, name, None)
    if isinstance(count, int) and not isinstance(count, bool) and count % parts == 0:
        setattr(module, name, count // parts)


# ------------------------------------------------------------------------------- layers


def _gather_first(ranks: _Ranks, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Gather the tokens of the first tensor; others are replicated, such as an encoder's output."""
    leaves, structure = tree_flatten((args, kwargs))
    tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
    first = next((each for each in tensors if each.is_floating_point() and each.dim() > 1), None)
    for place, each in enumerate(leaves):
        if each is first and first is not None:
            leaves[place] = ranks.enter(each)
        elif isinstance(each, torch.Tensor) and each.requires_grad:
            leaves[place] = copy_to_region(each, ranks.group)
    found: tuple[Any, Any] = tree_unflatten(leaves, structure)
    return found


class _SharedEntry:
    """Enters a pair once for layers with the same input."""

    def __init__(self, enter: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._enter = enter
        self._known: tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor]] | None = None

    def __call__(self, given: torch.Tensor) -> torch.Tensor:
        if self._known is not None:
            before, found = (each() for each in self._known)
            if before is given and found is not None:
                return found
        found = self._enter(given)
        self._known = weakref.ref(given), weakref.ref(found)
        return found


def _split_columns(
    layer: nn.Module, parts: int, enter: Callable[[torch.Tensor], torch.Tensor] | None
) -> None:
    _cut(layer, "weight", 1 if _is_transposed(layer) else 0, parts)
    if getattr(layer, "bias", None) is not None:
        _cut(layer, "bias", 0, parts)
    for name in ("out_features", "nf"):
        _divide(layer, name, parts)
    if enter is not None:
        _forward_by(layer, lambda whole, given: whole(enter(given)))


def _split_rows(layer: nn.Module, ranks: _Ranks) -> None:
    _cut(layer, "weight", 0 if _is_transposed(layer) else 1, ranks.group.size())
    _divide(layer, "in_features", ranks.group.size())

    def forward(_: Callable[..., Any], given: torch.Tensor) -> torch.Tensor:
        matrix = layer.get_parameter("weight")
        product = functional.linear(given, matrix.t() if _is_transposed(layer) else matrix)
        return _sum_ranks(product, getattr(layer, "bias", None), ranks)

    _forward_by(layer, forward)


def _sum_ranks(
    product: torch.Tensor, bias: torch.Tensor | None, ranks: _Ranks, axis: int | None = None
) -> torch.Tensor:
    """Sum over ranks and add the bias once."""
    total = ranks.leave(product, axis)
    return total if bias is None else total + bias


def _cut(layer: nn.Module, name: str, axis: int, parts: int) -> None:
    whole = layer.get_parameter(name)
    part = whole.detach().narrow(axis, 0, whole.shape[axis] // parts).clone()
    layer.register_parameter(name, nn.Parameter(part, requires_grad=whole.requires_grad))


def _forward_by(layer: nn.Module, forward: Callable[..., Any]) -> None:
    layer.forward = functools.partial(forward, layer.forward)


# ------------------------------------------------------------------------------- torch's attention


def _split_attention(attention: nn.MultiheadAttention, ranks: _Ranks) -> None:
    """Split torch's attention, whose own forward counts heads by its input."""
    group = ranks.group
    _cut(attention, "in_proj_weight", 0, group.size())
    if attention.in_proj_bias is not None:
        _cut(attention, "in_proj_bias", 0, group.size())
    _cut(attention.out_proj, "weight", 1, group.size())
    attention.num_heads //= group.size()
    attention._qkv_same_embed_dim = False  # so that nobody takes the whole layer's fast path
    _forward_by(attention, functools.partial(_attention, attention, ranks))


def _attention(
    attention: nn.MultiheadAttention,
    ranks: _Ranks,
    _: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, None]:
    """Compute torch.nn.functional.multi_head_attention_forward without weights for some heads."""
    if query.dim() != 3 or attention.bias_k is not None:
        raise OptionError("tp splits attention over batches, without biases of keys and values")
    order = (
        (lambda tensor: tensor.transpose(0, 1)) if attention.batch_first else lambda tensor: tensor
    )
    axis = 1 if attention.batch_first else 0
    inputs = {
        id(each): order(copy_to_region(each, ranks.group))
        for each in (key, value)
        if each is not query
    }
    inputs[id(query)] = order(ranks.enter(query, axis))
    if attn_mask is not None and attn_mask.dim() == 3:
        raise OptionError("tp can't split a mask that has heads of its own")
    heads, width = attention.num_heads, attention.head_dim
    by_head = []  # [batch, heads, length, width]
    for part in _project(attention, *(inputs[id(each)] for each in (query, key, value))):
        length, batch, _elements = part.shape
        rows = part.view(length, batch * heads, width).transpose(0, 1)
        by_head.append(rows.view(batch, heads, length, width))
    mask = attn_mask
    if key_padding_mask is not None:
        by_key = key_padding_mask[:, None, None, :].expand(-1, heads, -1, -1)
        mask = by_key if attn_mask is None else by_key + attn_mask
    dropout = attention.dropout if attention.training else 0.0
    query, key, value = by_head
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal and mask is None
    )
    batch, _heads, length, _width = found.shape
    found = found.permute(2, 0, 1, 3).contiguous().view(batch * length, heads * width)
    out = attention.out_proj
    product = functional.linear(found, out.weight).view(length, batch, -1)
    return order(_sum_ranks(product, out.bias, ranks, 0)), None


def _project(
    attention: nn.MultiheadAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    if query is key and key is value:
        whole = functional.linear(query, weight, bias).unflatten(-1, (3, -1)).unsqueeze(0)
        return tuple(whole.transpose(0, -2).squeeze(-2).contiguous())
    biases = [None] * 3 if bias is None else bias.chunk(3)
    return tuple(
        functional.linear(given, part, own)
        for given, part, own in zip((query, key, value), weight.chunk(3), biases, strict=True)
    )
