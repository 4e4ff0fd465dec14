"""Composite operators as a GPU runs them: attention, dropout, recurrent and fused layers.

Note [Attention]: torch chooses among several implementations by device, type and arguments. The
choice of the GPU is not known during a capture, so that the call is recorded as
`aten::scaled_dot_product_attention`, its backward pass as `..._backward`, and nothing of the CPU's
decomposition. The output has the memory layout of the query, as with the GPU's implementations.

Note [Recurrent layers]: ATen's `lstm`, `gru`, ... call `_cudnn_rnn` (cuDNN) on a GPU. Batch-first
inputs are copied to have the steps first (`cudnn/RNN.cpp`); the output is a view. The weights are
contiguous, as `flatten_parameters()` leaves them.

Note [Fused layers]: torch runs whole layers as one operator in inference. A capture of a model
disables these; those that a profile recorded are decomposed (`LAYERS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.library import Library
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from torchtraceap.lab.prediction.capture.calls import Phase
from torchtraceap.lab.prediction.capture.modes import bind_arguments

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["ATTENTION", "LAYERS", "composite_calls"]

ATTENTION = "aten::scaled_dot_product_attention"
_FUNCTION = torch.ops.aten.scaled_dot_product_attention.default
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""Recurrent operators with their values of cudnnRNNMode_t."""


@contextmanager
def composite_calls(recorder: Recorder) -> Iterator[None]:
    """Record these operators as one call each."""
    library = Library("aten", "IMPL")
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # see Note [Fused layers]
    try:
        library.impl("scaled_dot_product_attention", partial(_attention, recorder), "AutogradCPU")
        library.impl("dropout", _dropout, "AutogradCPU")
        for name in _MODES:
            for overload in ("input", "data"):  # sequences of equal length and packed ones
                function = getattr(getattr(torch.ops.aten, name), overload)
                library.impl(function, partial(_run_recurrent, recorder, function), "AutogradCPU")
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        library._destroy()


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Run dropout as on a GPU: one operator with a backward of its own."""
    if train and 0 < p < 1 and input.numel():
        return torch.native_dropout(input, p, train)[0]
    return input * 0.0 if train and p == 1 else input


# ------------------------------------------------------------------------------- known values


class _DecomposedOp:
    """A composite operator, computed by its decomposition on a CPU without recording it."""

    def __init__(
        self, recorder: Recorder, function: Any, tensors: Sequence[torch.Tensor], given: Any
    ) -> None:
        self._recorder = recorder
        leaves = {
            id(tensor): tensor.detach().requires_grad_(tensor.is_floating_point())
            for tensor in tensors
        }
        self._leaves = [leaves[id(tensor)] for tensor in tensors]
        with recorder.paused(), torch.enable_grad():
            arguments = tree_map(lambda value: leaves.get(id(value), value), given)
            found = function.decompose(**arguments)
        self._outputs: tuple[torch.Tensor, ...] = found if isinstance(found, tuple) else (found,)

    @property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(each.detach() for each in self._outputs)

    def gradients(self, of_outputs: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        """Return the gradients of the tensors, zero where nothing depends on one."""
        pairs = [
            (output, gradient)
            for output, gradient in zip(self._outputs, of_outputs, strict=True)
            if gradient is not None and output.requires_grad
        ]
        with self._recorder.paused():
            found = torch.autograd.grad(
                [output for output, _ in pairs],
                self._leaves,
                [gradient for _, gradient in pairs],
                allow_unused=True,
                retain_graph=True,
            )
            return tuple(
                torch.zeros_like(leaf) if gradient is None else gradient
                for leaf, gradient in zip(self._leaves, found, strict=True)
            )


def _decompose(
    recorder: Recorder, function: Any, tensors: Sequence[torch.Tensor], given: Any
) -> _DecomposedOp | None:
    """Compute a composite operator; None where one of the tensors has no values."""
    if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((tensors, given))):
        return None
    return _DecomposedOp(recorder, function, tensors, given)


# ------------------------------------------------------------------------------- attention


def _attention(
    recorder: Recorder,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    options = {
        "attn_mask": attn_mask,
        "dropout_p": dropout_p,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": enable_gqa,
    }
    found: torch.Tensor = _Attention.apply(recorder, options, query, key, value)
    return found


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        recorder: Recorder,
        options: dict[str, Any],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:
        ctx.recorder, ctx.options = recorder, options
        tensors = (query, key, value)
        inputs = {"query": query, "key": key, "value": value, **options}
        if query.shape[-1] == value.shape[-1]:
            output = torch.empty_like(query)
        else:  # dimensions are ordered in memory as the query's
            axes = range(query.dim())
            by_stride = sorted(axes, key=lambda axis: -query.stride()[axis])
            shape = [*query.shape[:-1], value.shape[-1]]
            permuted = query.new_empty([shape[axis] for axis in by_stride])
            output = permuted.permute([by_stride.index(axis) for axis in axes])
        ctx.computed = _decompose(recorder, _FUNCTION, tensors, inputs)
        if ctx.computed is not None:
            output.copy_(ctx.computed.outputs[0])
        ctx.save_for_backward(query, key, value, output)
        recorder.write(ATTENTION, "default", inputs, (output,))
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        query, key, value, output = ctx.saved_tensors
        found = tuple(torch.empty_like(each) for each in (query, key, value))
        if ctx.computed is not None:
            found = ctx.computed.gradients(grads)
        inputs = {
            "grad_out": grads[0],
            "query": query,
            "key": key,
            "value": value,
            "out": output,
            **ctx.options,
        }
        with ctx.recorder.in_phase(Phase.BACKWARD):
            ctx.recorder.write(f"{ATTENTION}_backward", "default", inputs, found)
        return None, None, *found


# ------------------------------------------------------------------------------- recurrent layers


def _run_recurrent(recorder: Recorder, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the output and the last states, as `torch.nn.LSTM` and others use them."""
    given = bind_arguments(function, args, kwargs)
    kind = function._schema.name.removeprefix("aten::")
    states = given["hx"] if kind == "lstm" else [given["hx"]]
    batch_first = bool(given.get("batch_first"))
    x = given["input"] if "input" in given else given["data"]
    steps_first = (x.transpose(0, 1) if batch_first else x).contiguous()
    options = {
        "mode": _MODES[kind],
        "hidden_size": states[-1].shape[-1],
        "proj_size": states[0].shape[-1] if states[0].shape[-1] != states[-1].shape[-1] else 0,
        "num_layers": given["num_layers"],
        "batch_first": batch_first,
        "dropout": given["dropout"],
        "train": given["train"],
        "bidirectional": given["bidirectional"],
        "batch_sizes": given.get("batch_sizes"),
    }
    whole = _decompose(recorder, function, (x, *states, *given["params"]), given)
    arguments = (steps_first, *states, *given["params"])
    found = _Recurrent.apply(recorder, options, len(states), whole, *arguments)
    output = found[0].transpose(0, 1) if batch_first else found[0]
    return (output, *found[1:])


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        recorder: Recorder,
        options: dict[str, Any],
        count: int,
        whole: _DecomposedOp | None,
        x: torch.Tensor,
        *rest: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        states, weights = rest[:count], rest[count:]
        directions = 2 if options["bidirectional"] else 1
        output = x.new_empty((*x.shape[:-1], directions * states[0].shape[-1]))
        made = (output, *(torch.empty_like(state) for state in states))
        if whole is not None:
            for one, other in zip(made, whole.outputs, strict=True):
                one.copy_(other.transpose(0, 1) if one.shape != other.shape else other)
        ctx.recorder, ctx.options, ctx.count, ctx.whole = recorder, options, count, whole
        ctx.set_materialize_grads(False)  # a state that nothing is computed of has none
        ctx.save_for_backward(x, output, *rest)
        inputs = _cudnn_inputs(x, weights, states, options)
        recorder.write("aten::_cudnn_rnn", "default", inputs, made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        x, output, *rest = ctx.saved_tensors
        states, weights = rest[: ctx.count], rest[ctx.count :]
        found = tuple(torch.empty_like(each) for each in (x, *rest))
        if ctx.whole is not None:
            # The steps are first in the library.
            swaps = ctx.options["batch_first"]
            first = grads[0].transpose(0, 1) if swaps and grads[0] is not None else grads[0]
            of_x, *others = ctx.whole.gradients([first, *grads[1:]])
            found = (of_x.transpose(0, 1) if swaps else of_x, *others)
        inputs = {
            **_cudnn_inputs(x, weights, states, ctx.options),
            "output": output,
            "grad_output": None if grads[0] is None else grads[0].contiguous(),
            "grad_hy": grads[1],
            "grad_cy": grads[2] if len(grads) > 2 else None,
        }
        with ctx.recorder.in_phase(Phase.BACKWARD):
            made = (found[0], *found[1 : 1 + ctx.count], list(found[1 + ctx.count :]))
            ctx.recorder.write("aten::_cudnn_rnn_backward", "default", inputs, made)
        return None, None, None, None, *found


def _cudnn_inputs(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    states: Sequence[torch.Tensor],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Return the arguments in the order of the operator's schema."""
    per_layer = len(weights) // (options["num_layers"] * (2 if options["bidirectional"] else 1))
    return {
        "input": x,
        "weight": list(weights),
        "weight_stride0": per_layer,
        "weight_buf": None,
        "hx": states[0],
        "cx": states[1] if len(states) > 1 else None,
        **options,
        "dropout_state": None,
    }


# ------------------------------------------------------------------------------- fused layers


def _fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Compute `nn.MultiheadAttention` of [batch, length, width]; keys may be padded (mask_type 1).

    Key and value are the query: torch takes them together in no other case.
    """
    is_padding = mask_type == 1
    given = query.transpose(0, 1)
    found, _ = functional.multi_head_attention_forward(
        given, given, given, embed_dim, num_head, qkv_weight, qkv_bias, None, None, False, 0.0,
        proj_weight, proj_bias, training=False, need_weights=need_weights,
        key_padding_mask=mask if is_padding else None, attn_mask=None if is_padding else mask,
        average_attn_weights=average_attn_weights,
    )  # fmt: skip
    return found.transpose(0, 1)


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Compute `nn.TransformerEncoderLayer` of [batch, length, width]."""
    activation = functional.gelu if use_gelu else functional.relu

    def attend(x: torch.Tensor) -> torch.Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _fused_attention(
            x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type
        )

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = activation(functional.linear(x, ffn_weight_1, ffn_bias_1))
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed(x))


LAYERS: dict[str, Callable[..., Any]] = {
    "aten::_native_multi_head_attention": _fused_attention,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
}
"""Decompositions by fused operator."""
