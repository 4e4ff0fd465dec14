"""Composite operators that run whole on a GPU: attention, dropout, recurrent layers.

Note [Attention]: torch chooses among several implementations by device, type and arguments. The
choice of the GPU is not known during a capture, so that the call is recorded as
`aten::scaled_dot_product_attention`, its backward pass as `..._backward`, and nothing of the CPU's
decomposition. The output has the memory layout of the query, as with the GPU's implementations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.library import Library

from torchtraceap.lab.prediction.capture.calls import Phase
from torchtraceap.lab.prediction.capture.known_values import decompose
from torchtraceap.lab.prediction.capture.recurrent import RECURRENT, run_recurrent

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["ATTENTION", "composite_calls"]

ATTENTION = "aten::scaled_dot_product_attention"
_FUNCTION = torch.ops.aten.scaled_dot_product_attention.default


@contextmanager
def composite_calls(recorder: Recorder) -> Iterator[None]:
    """Record these operators as one call each."""

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        return _attention(recorder, *args, **kwargs)

    library = Library("aten", "IMPL")
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operator for a whole encoder layer
    try:
        library.impl("scaled_dot_product_attention", attention, "AutogradCPU")
        library.impl("dropout", _dropout, "AutogradCPU")
        for function in RECURRENT:
            library.impl(function, partial(run_recurrent, recorder, function), "AutogradCPU")
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        library._destroy()


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Run dropout as on a GPU: one operator with a backward of its own."""
    if train and 0 < p < 1 and input.numel():
        return torch.native_dropout(input, p, train)[0]
    return input * 0.0 if train and p == 1 else input


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
        output = _like(query, value.shape[-1])
        ctx.computed = decompose(recorder, _FUNCTION, tensors, inputs)
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


def _like(query: torch.Tensor, width: int) -> torch.Tensor:
    """Return an empty tensor whose dimensions are ordered in memory as the query's."""
    if query.shape[-1] == width:
        return torch.empty_like(query)
    strides = query.stride()
    by_stride = sorted(range(query.dim()), key=lambda axis: -strides[axis])
    shape = [*query.shape[:-1], width]
    permuted = query.new_empty([shape[axis] for axis in by_stride])
    return permuted.permute([by_stride.index(axis) for axis in range(query.dim())])
