"""Models of convolutions; an output element sums over the kernel and its group's input channels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register, register_unknown_work


def _spatial(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Expand a single value to all dimensions."""
    if len(values) == 1:
        return values * rank
    if len(values) != rank:
        raise UnknownWorkError("stride, padding or dilation do not fit the shape")
    return values


def _output_sizes(
    x: Tensor,
    weight: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    output_padding: tuple[int, ...] | None,
) -> tuple[int, ...]:
    """Return the spatial sizes of the output; `output_padding` is None unless transposed."""
    sizes: list[int] = []
    for i, (size, kernel) in enumerate(zip(x.shape[2:], weight.shape[2:], strict=True)):
        reach = dilation[i] * (kernel - 1) + 1
        if output_padding is not None:
            sizes.append((size - 1) * stride[i] - 2 * padding[i] + reach + output_padding[i])
        elif stride[i] < 1:
            raise UnknownWorkError("a stride below 1")
        else:
            sizes.append((size + 2 * padding[i] - reach) // stride[i] + 1)
    if any(size < 0 for size in sizes):
        raise UnknownWorkError("the kernel is larger than the padded input")
    return tuple(sizes)


def _check(x: Tensor, weight: Tensor) -> int:
    rank = len(x.shape) - 2
    if rank < 1 or len(weight.shape) != len(x.shape):
        raise UnknownWorkError(
            f"an input of {len(x.shape)} and a kernel of {len(weight.shape)} dimensions"
        )
    return rank


def _forward(
    call: OpCall,
    *,
    stride: int,
    padding: int,
    dilation: int | None = None,
    output_padding: int | None = None,
    groups: int | None = None,
    bias: Tensor | None = None,
    extra: Sequence[Tensor] = (),
    allow_tf32: bool | None = None,
) -> Work:
    """Count a forward convolution of the first two arguments, input and weight.

    Args:
        call: The call.
        stride, padding: Positions of these arguments.
        dilation: Position of the dilation; None for a dilation of 1.
        output_padding: Position of the output padding of a transposed convolution, else None.
        groups: Position of the number of groups; None if only the weight tells it.
        bias: Bias, if there is one.
        extra: Other tensors that are read.
        allow_tf32: fp32 may be computed as tf32; None if the call does not say.
    """
    x, weight = call.tensor(0), call.tensor(1)
    transposed = output_padding is not None
    strides, paddings = call.integers(stride), call.integers(padding)
    dilations = (1,) if dilation is None else call.integers(dilation)
    output_paddings = None if output_padding is None else call.integers(output_padding)
    group_count = 1 if groups is None else call.integer(groups)
    rank = _check(x, weight)
    if group_count < 1:
        raise UnknownWorkError("fewer than one group")
    spatial = _output_sizes(
        x,
        weight,
        _spatial(strides, rank),
        _spatial(paddings, rank),
        _spatial(dilations, rank),
        None if output_paddings is None else _spatial(output_paddings, rank),
    )
    channels = weight.shape[1] * group_count if transposed else weight.shape[0]
    output = x.shape[0] * channels * prod(spatial)
    read = x.bytes + weight.bytes + sum(t.bytes for t in (bias, *extra) if t is not None)
    return Work(
        flops=_operations(weight, x.elements if transposed else output),
        bytes_read=read,
        bytes_written=output * x.dtype.size,
        dtype=x.dtype.label,
        unit="matrix",
        allow_tf32=allow_tf32,
    )


def _operations(weight: Tensor, positions: int) -> int:
    """Return the operations; each output element (input element if transposed) meets one filter."""
    return 2 * positions * prod(weight.shape[1:])


@register("aten::convolution", "aten::convolution_overrideable", "aten::_convolution",
          composite=True)  # fmt: skip
def convolution(call: OpCall) -> Work:
    """Arguments: (input, weight, bias, stride, padding, dilation, transposed, output_padding,
    groups, ...); `_convolution` has `allow_tf32` at 12."""
    has_flag = call.name.startswith("aten::_convolution") and len(call) > 12 and call.has_values
    allow_tf32 = call.boolean(12) if has_flag else None
    output_padding = 7 if call.boolean(6) else None
    bias = call.optional_tensor(2)
    return _forward(call, stride=3, padding=4, dilation=5, output_padding=output_padding,
                    groups=8, bias=bias, allow_tf32=allow_tf32)  # fmt: skip


@register("aten::conv1d", "aten::conv2d", "aten::conv3d", composite=True)
def conv(call: OpCall) -> Work:
    """Arguments: (input, weight, bias, stride, padding, dilation, groups)"""
    return _forward(call, stride=3, padding=4, dilation=5, groups=6, bias=call.optional_tensor(2))


@register(
    "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d", composite=True
)
def conv_transpose(call: OpCall) -> Work:
    """Arguments: (input, weight, bias, stride, padding, output_padding, groups, dilation)"""
    bias = call.optional_tensor(2)
    return _forward(call, stride=3, padding=4, output_padding=5, groups=6, dilation=7, bias=bias)


@register("aten::cudnn_convolution")
def cudnn_convolution(call: OpCall) -> Work:
    """Arguments: (input, weight, padding, stride, dilation, groups, ...).

    Another operator adds the bias, which older versions had at 2.
    """
    bias = call.optional_tensor(2)
    at = 3 if bias is not None or call.is_none(2) else 2
    allow_tf32 = call.boolean(at + 6) if call.has_values and at + 6 < len(call) else None
    return _forward(call, padding=at, stride=at + 1, dilation=at + 2, groups=at + 3, bias=bias,
                    allow_tf32=allow_tf32)  # fmt: skip


@register(
    "aten::miopen_convolution", "aten::miopen_depthwise_convolution", "aten::mkldnn_convolution"
)
def library_convolution(call: OpCall) -> Work:
    """Arguments: (input, weight, bias, padding, stride, dilation, groups, ...)"""
    return _forward(call, padding=3, stride=4, dilation=5, groups=6, bias=call.optional_tensor(2))


@register("aten::cudnn_convolution_transpose")
def cudnn_convolution_transpose(call: OpCall) -> Work:
    """Arguments: (input, weight, padding, output_padding, stride, dilation, groups, ...)"""
    allow_tf32 = call.boolean(9) if call.has_values and len(call) > 9 else None
    return _forward(call, padding=2, output_padding=3, stride=4, dilation=5, groups=6,
                    allow_tf32=allow_tf32)  # fmt: skip


@register("aten::miopen_convolution_transpose")
def miopen_convolution_transpose(call: OpCall) -> Work:
    """Arguments: (input, weight, bias, padding, output_padding, stride, dilation, groups, ...)"""
    bias = call.optional_tensor(2)
    return _forward(call, padding=3, output_padding=4, stride=5, dilation=6, groups=7, bias=bias)


@register("aten::cudnn_convolution_relu", "aten::miopen_convolution_relu")
def convolution_relu(call: OpCall) -> Work:
    """Arguments: (input, weight, bias, stride, padding, dilation, groups)"""
    return _forward(call, stride=3, padding=4, dilation=5, groups=6, bias=call.optional_tensor(2))


@register("aten::cudnn_convolution_add_relu", "aten::miopen_convolution_add_relu")
def convolution_add_relu(call: OpCall) -> Work:
    """Arguments: (input, weight, z, alpha, bias, stride, padding, dilation, groups)"""
    bias, z = call.optional_tensor(4), call.tensor(2)
    return _forward(call, stride=5, padding=6, dilation=7, groups=8, bias=bias, extra=[z])


@register("aten::thnn_conv2d", "aten::_slow_conv2d_forward")
@register("aten::_conv_depthwise2d", "aten::conv_depthwise3d", "aten::slow_conv_dilated2d",
          "aten::slow_conv_dilated3d")  # fmt: skip
def native_convolution(call: OpCall) -> Work:
    """Arguments: (input, weight, kernel_size, bias, stride, padding), and dilation if dilated."""
    x, weight = call.tensor(0), call.tensor(1)
    _check(x, weight)
    if x.shape[1] < weight.shape[1]:
        raise UnknownWorkError("fewer than one group")
    plain = call.name.startswith(("aten::thnn_conv2d", "aten::_slow_conv2d_forward"))
    dilation = None if plain or not call.integers(6) else 6
    return _forward(call, stride=4, padding=5, dilation=dilation, bias=call.optional_tensor(3))


@register("aten::convolution_backward", "aten::convolution_backward_overrideable")
def convolution_backward(call: OpCall) -> Work:
    """Count the gradients that `output_mask` requests; the first layer needs no input gradient."""
    mask_at, transposed_at = (9, 6) if call.name.endswith("overrideable") else (10, 7)
    mask = call.booleans(mask_at)
    if len(mask) != 3:
        raise UnknownWorkError("the mask of wanted gradients has not three members")
    wants_input, wants_weight, wants_bias = mask
    grad, x, weight = (call.tensor(i) for i in range(3))
    transposed = call.boolean(transposed_at)
    _check(x, weight)
    if len(grad.shape) != len(x.shape):
        raise UnknownWorkError("gradient and input have different numbers of dimensions")
    product = _operations(weight, x.elements if transposed else grad.elements)
    channels = grad.shape[1]
    read = grad.bytes * (wants_input or wants_weight or wants_bias)
    read += weight.bytes * wants_input + x.bytes * wants_weight
    written = x.elements * x.dtype.size * wants_input
    written += weight.elements * weight.dtype.size * wants_weight
    written += channels * weight.dtype.size * wants_bias
    return Work(
        flops=product * (int(wants_input) + int(wants_weight)),
        bytes_read=read,
        bytes_written=written,
        dtype=x.dtype.label,
        unit="matrix",
    )


@register("aten::cudnn_convolution_backward_weight")
def cudnn_backward_weight(call: OpCall) -> Work:
    """Arguments, up to torch 1.10: (weight_size, grad_output, input, ...)."""
    return _half_backward(call, weight_at=0, weight_gradient=True)


@register("aten::cudnn_convolution_backward_input")
def cudnn_backward_input(call: OpCall) -> Work:
    """Arguments, up to torch 1.10: (input_size, grad_output, weight, ...)."""
    return _half_backward(call, weight_at=2, weight_gradient=False)


def _half_backward(call: OpCall, *, weight_at: int, weight_gradient: bool) -> Work:
    grad, other = call.tensor(1), call.tensor(2)
    wanted = call.integers(0)
    filters = wanted if weight_gradient else other.shape
    result = prod(wanted)
    return Work(
        flops=2 * grad.elements * prod(filters[1:]),
        bytes_read=grad.bytes + other.bytes,
        bytes_written=result * other.dtype.size,
        dtype=grad.dtype.label,
        unit="matrix",
    )


# ------------------------------------------------------------------------------------ of Apex


@register("ConvBias_", "ConvBiasReLU_", composite=True)
def convolution_apex(call: OpCall) -> Work:
    """Arguments: (input, weight, bias, padding, stride)"""
    return _forward(call, stride=4, padding=3, bias=call.tensor(2))


register_unknown_work(
    "its input and weight are not among its arguments", "ConvBias_Backward", "ConvBiasReLU_Backward"
)
