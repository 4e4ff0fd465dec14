"""Normalizations as TraceLens counts them.

Two quirks of TraceLens are kept. `is_training` is the truth value of a string, so that "False"
counts as True. Absent weights count as present because a trace holds an empty shape for them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torchtraceap.ops.models.tracelens.work import (
    Call,
    Model,
    UnmodeledError,
    Work,
    bytes_of,
    parse_bools,
    parse_ints,
    precision_of,
)

__all__ = ["MODELS", "norm_params", "rms_work"]


def norm_params(
    call: Call,
    at: int,
    channels: float,
    *,
    affine: bool,
    bias: bool = True,
    training: bool = True,
) -> dict[str, Any]:
    """Return the parameters of a norm whose input is at position `at`."""
    return {
        "op_shape": tuple(call.dims[at]),
        "dtype_in_out": (call.types[at], None),
        "stride_input": tuple(call.strides[at]),
        "stride_output": None,
        "num_channels": channels,
        "has_bias": bias,
        "is_affine": affine,
        "is_training": training,
    }


def _size(p: dict[str, Any]) -> int:
    size = bytes_of(p["dtype_in_out"][0])
    if size is None:
        raise ValueError(p["dtype_in_out"])
    return size


def _forward(p: dict[str, Any]) -> Work:
    n, c = prod(p["op_shape"]), p["num_channels"]
    flops = 6 * c + (3 * n if p["is_training"] else 0) + 2 * n
    tensors = 2 + 2 * p["is_training"]
    tensors += p["is_affine"] * (1 + p["has_bias"])
    size = _size(p)
    spec = precision_of("vector", p["dtype_in_out"][0])
    return Work(p, flops, 2 * n * size + tensors * c * size, spec)


def _backward(p: dict[str, Any], mask: list[bool]) -> Work:
    p["output_mask"] = mask
    n, c, training = prod(p["op_shape"]), p["num_channels"], p["is_training"]
    in_channel = n / c
    per_channel = 4 * in_channel + (0 if training else 3)
    if mask[0]:
        per_channel += 5 * in_channel if training else 0
    else:
        per_channel += 2 * in_channel
    size = _size(p)
    moved = n * size + n * size * (2 if mask[0] and training else 1)
    vectors = bool(training) + p["is_affine"] * (1 + (1 + p["has_bias"]) * training)
    spec = precision_of("vector", p["dtype_in_out"][0])
    return Work(p, c * per_channel, moved + vectors * c * size, spec)


def _batch(call: Call) -> Work:
    training = bool(call.concrete[5])
    affine = call.dims[2] is not None
    return _forward(norm_params(call, 0, call.dims[0][1], affine=affine, training=training))


def _batch_backward(call: Call) -> Work:
    """Count a backward pass; cuDNN and MIOpen take the input first, PyTorch the gradient."""
    library = call.name in ("aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward")
    at = 0 if library else 1
    training = False if library else bool(call.concrete[7])
    p = norm_params(call, at, call.dims[at][1], affine=call.dims[2] is not None, training=training)
    return _backward(p, [library or call.dims[0] is not None])


def _layer_forward(call: Call) -> Work:
    channels = prod(parse_ints(call.concrete[1]))
    bias, affine = call.dims[3] is not None, call.dims[2] is not None
    return _forward(norm_params(call, 0, channels, affine=affine, bias=bias))


def _layer_backward(call: Call) -> Work:
    mask = parse_bools(call.concrete[7])
    channels = prod(parse_ints(call.concrete[2]))
    return _backward(norm_params(call, 1, channels, affine=mask[1], bias=mask[2]), mask)


def _group_forward(call: Call) -> Work:
    affine = call.dims[2] is not None
    return _forward(norm_params(call, 0, call.dims[0][1], affine=affine))


def _aiter_group(call: Call) -> Work:
    """Count AITER's (y, workspace, input, groups, weight, bias, eps), which began with the input in
    older releases; weight and bias are always passed."""
    at = 0 if call.types[1] == "Scalar" else 2
    return _forward(norm_params(call, at, call.dims[at][1], affine=True))


def _group_backward(call: Call) -> Work:
    channels = call.dims[1][1] / int(call.concrete[8])
    p = norm_params(call, 1, channels, affine=call.dims[5] is not None)
    return _backward(p, parse_bools(call.concrete[9]))


def _no_model(call: Call) -> Work:
    raise UnmodeledError(call.name)


def _rms(call: Call) -> Work:
    channels = prod(parse_ints(call.concrete[1]))
    affine = call.dims[2] is not None
    return rms_work(norm_params(call, 0, channels, affine=affine, bias=False, training=False))


def rms_work(p: dict[str, Any]) -> Work:
    """Return the work of an RMS norm whose input and result have one type."""
    n, channels, affine, size = prod(p["op_shape"]), p["num_channels"], p["is_affine"], _size(p)
    flops = n / channels * (2 * channels + 2) + n * (2 if affine else 1)
    spec = precision_of("vector", p["dtype_in_out"][0])
    return Work(p, flops, 2 * n * size + (channels * size if affine else 0), spec)


def _rms_backward(call: Call) -> Work:
    channels = prod(parse_ints(call.concrete[2]))
    affine = call.dims[4] is not None
    p = norm_params(call, 1, channels, affine=affine, bias=False, training=False)
    mask = p["output_mask"] = parse_bools(call.concrete[5])
    n, size = prod(p["op_shape"]), _size(p)
    flops = n * (1 + affine + (6 if mask[0] else 0))
    if mask[1] and affine:
        flops += n * (2 if n / channels > 1 else 1)
    spec = precision_of("vector", p["dtype_in_out"][0])
    return Work(p, flops, 3 * n * size + (2 * channels * size if affine else 0), spec)


def _variants(norm: str, forward: Model, backward: Callable[[Call], Work]) -> dict[str, Model]:
    libraries = ("", "native_", "miopen_", "cudnn_")
    return {
        **{f"aten::{library}{norm}": forward for library in libraries},
        **{f"aten::{library}{norm}_backward": backward for library in libraries},
    }


MODELS: dict[str, Model] = {
    **_variants("batch_norm", _batch, _batch_backward),
    **_variants("layer_norm", _layer_forward, _layer_backward),
    **_variants("group_norm", _group_forward, _group_backward),
    **_variants("instance_norm", _batch, _no_model),
    "aiter::_groupnorm_run": _aiter_group,
    "aten::_fused_rms_norm": _rms,
    "aten::_fused_rms_norm_backward": _rms_backward,
    **{f"aten::{library}rms_norm_backward": _rms_backward for library in ("", "native_")},
}
