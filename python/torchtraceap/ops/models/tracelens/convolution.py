"""Convolutions as TraceLens counts them, forward and backward.

The backward pass of Apex's fused convolutions has no model here, because TraceLens takes it from a
process-wide cache of forward calls by sequence number, across traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torchtraceap.ops.models.tracelens.work import (
    Call,
    Model,
    Work,
    bytes_of,
    parse_bool,
    parse_ints,
    precision_of,
    tuple_pair,
)

__all__ = ["MODELS"]

Shape = tuple[int, ...]


def _out_shape(p: dict[str, Any]) -> Shape:
    x, w = p["input_shape"], p["filter_shape"]
    spatial = []
    for i, (size, kernel) in enumerate(zip(x[2:], w[2:], strict=False)):
        stride, padding, reach = p["stride"][i], p["padding"][i], p["dilation"][i] * (kernel - 1)
        if p["transposed_conv"]:
            spatial.append((size - 1) * stride - 2 * padding + reach + p["output_padding"][i] + 1)
        else:
            spatial.append(int((size + 2 * padding - reach - 1) / stride + 1))
    return (x[0], w[1] if p["transposed_conv"] else w[0], *spatial)


def _flops(x: Shape, w: Shape, out: Shape, *, transposed: bool) -> int:
    return 2 * prod(w[1:]) * prod(x if transposed else out)


def _swap(shape: Shape) -> Shape:
    return (shape[1], shape[0], *shape[2:])


def _forward(p: dict[str, Any]) -> tuple[int, int | None]:
    x, w, out = p["input_shape"], p["filter_shape"], _out_shape(p)
    flops = _flops(x, w, out, transposed=p["transposed_conv"])
    flops += prod(out) if p["bias"] else 0
    size = bytes_of(p["dtype_input_weight"][0])
    if size is None:
        return flops, None
    return flops, (prod(x) + prod(w) + (out[1] if p["bias"] else 0) + prod(out)) * size


def _backward(p: dict[str, Any]) -> tuple[int, int | None]:
    """Count the gradients of input and weight for any `output_mask`."""
    x, w, out = p["input_shape"], p["filter_shape"], _out_shape(p)
    transposed = p["transposed_conv"]
    first, second = (_swap(out), _swap(x)) if transposed else (_swap(x), _swap(out))
    flops = _flops(out, w, x, transposed=not transposed)
    flops += _flops(first, second, _swap(w), transposed=False)
    flops += prod(out) if p["bias"] else 0
    size = bytes_of(p["dtype_input_weight"][0])
    if size is None:
        return flops, None
    tensors = prod(x) + prod(w) + prod(out)
    return flops, 2 * tensors * size + (prod(out) + out[1] if p["bias"] else 0)


def _params(call: Call, at: int, bias: Any, geometry: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a convolution with input and weight at `at` and `at + 1`."""
    x, w = tuple(call.dims[at]), tuple(call.dims[at + 1])
    dtypes = tuple(call.types[at : at + 2])
    if dtypes[0] != dtypes[1] or len(x) not in (3, 4, 5):
        raise ValueError((dtypes, x))
    stride_x, stride_w = tuple_pair(call.strides, at, at + 1)
    return {
        "convNd": f"conv{len(x) - 2}d",
        "input_shape": x,
        "filter_shape": w,
        "dtype_input_weight": dtypes,
        "input_stride": stride_x,
        "weight_stride": stride_w,
        "bias": bias,
        **geometry,
    }


def _geometry(concrete: Sequence[str], at: int, ndims: int) -> dict[str, Any]:
    """Read stride, padding, dilation, transposed, output padding and groups from `at` on."""

    def spatial(place: int, default: int) -> Shape:
        text = concrete[place]
        values = parse_ints(text) if text != "" else (default,) * ndims
        return values * ndims if len(values) == 1 else values

    return {
        "stride": spatial(at, 1),
        "padding": spatial(at + 1, 0),
        "dilation": spatial(at + 2, 1),
        "transposed_conv": parse_bool(concrete[at + 3]),
        "output_padding": spatial(at + 4, 0),
        "groups": int(concrete[at + 5]),
    }


def _work(p: dict[str, Any]) -> Work:
    spec = precision_of("matrix", p["dtype_input_weight"][0])
    return Work(p, *_forward(p), spec, lambda: _backward(p))


def _convolution(call: Call) -> Work:
    """Infer the bias from the number of arguments, as TraceLens does; it is nine in practice."""
    geometry = _geometry(call.concrete, 3, len(call.dims[0]) - 2)
    return _work(_params(call, 0, len(call.dims) == 3, geometry))


def _convolution_backward(call: Call) -> Work:
    sizes = call.dims[3] if len(call.dims) > 3 else False
    geometry = _geometry(call.concrete, 4, len(call.dims[1]) - 2)
    p = _params(call, 1, bool(sizes) or sizes, geometry)
    return Work(p, *_backward(p), precision_of("matrix", p["dtype_input_weight"][0]))


def _with_bias(call: Call) -> Work:
    """Count Apex's fused convolution with equal strides and paddings and always a bias."""
    ndims = len(call.dims[0]) - 2

    def spatial(place: int, default: int) -> Shape:
        text = call.concrete[place] if len(call.concrete) > place else ""
        return (int(text) if text != "" else default,) * ndims

    geometry = {
        "stride": spatial(3, 1),
        "padding": spatial(4, 0),
        "dilation": (1,) * ndims,
        "transposed_conv": False,
        "output_padding": (0,) * ndims,
        "groups": 1,
    }
    return _work(_params(call, 0, True, geometry))


MODELS: dict[str, Model] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "ConvBias_": _with_bias,
    "ConvBiasReLU_": _with_bias,
}
