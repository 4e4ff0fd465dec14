"""Models of convolutions; an output element sums over the kernel and its group's input channels."""

from __future__ import annotations

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
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    output_padding: tuple[int, ...] | None,
    groups: int,
    allow_tf32: bool | None,
    *extra: Tensor | None,
) -> Work:
    rank = _check(x, weight)
    if groups < 1:
        raise UnknownWorkError("fewer than one group")
    spatial = _output_sizes(
        x,
        weight,
        _spatial(stride, rank),
        _spatial(padding, rank),
        _spatial(dilation, rank),
        None if output_padding is None else _spatial(output_padding, rank),
    )
    transposed = output_padding is not None
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
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


@register("aten::convolution", "aten::convolution_overrideable", composite=True)
def convolution(call: OpCall) -> Work:
    return _general(call, None)


@register("aten::_convolution", composite=True)
def convolution_with_flags(call: OpCall) -> Work:
    allow = call.boolean(12) if len(call) > 12 and call.has_values else None
    return _general(call, allow)


def _general(call: OpCall, allow_tf32: bool | None) -> Work:
    transposed = call.boolean(6)
    return _forward(
        call.tensor(0),
        call.tensor(1),
        call.optional_tensor(2),
        call.integers(3),
        call.integers(4),
        call.integers(5),
        call.integers(7) if transposed else None,
        call.integer(8),
        allow_tf32,
    )


@register("aten::conv1d", "aten::conv2d", "aten::conv3d", composite=True)
def conv(call: OpCall) -> Work:
    return _forward(
        call.tensor(0),
        call.tensor(1),
        call.optional_tensor(2),
        call.integers(3),
        call.integers(4),
        call.integers(5),
        None,
        call.integer(6),
        None,
    )


@register(
    "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d", composite=True
)
def conv_transpose(call: OpCall) -> Work:
    return _forward(
        call.tensor(0),
        call.tensor(1),
        call.optional_tensor(2),
        call.integers(3),
        call.integers(4),
        call.integers(7),
        call.integers(5),
        call.integer(6),
        None,
    )


@register("aten::cudnn_convolution")
def cudnn_convolution(call: OpCall) -> Work:
    """Count a convolution; another operator adds the bias, which older versions had at 2."""
    at = 3 if call.optional_tensor(2) is not None or call.is_none(2) else 2
    return _library(call, at, call.optional_tensor(2), allow=at + 6)


@register(
    "aten::miopen_convolution", "aten::miopen_depthwise_convolution", "aten::mkldnn_convolution"
)
def library_convolution(call: OpCall) -> Work:
    return _library(call, 3, call.optional_tensor(2))


def _library(
    call: OpCall,
    at: int,
    bias: Tensor | None,
    allow: int | None = None,
    *,
    transposed: bool = False,
) -> Work:
    """Read padding, output padding if transposed, stride, dilation and groups from `at` on."""
    known = allow is not None and call.has_values and allow < len(call)
    after = at + 1 + transposed
    return _forward(
        call.tensor(0),
        call.tensor(1),
        bias,
        call.integers(after),
        call.integers(at),
        call.integers(after + 1),
        call.integers(at + 1) if transposed else None,
        call.integer(after + 2),
        call.boolean(allow) if known and allow is not None else None,
    )


@register("aten::cudnn_convolution_transpose")
def cudnn_convolution_transpose(call: OpCall) -> Work:
    return _library(call, 2, None, allow=9, transposed=True)


@register("aten::miopen_convolution_transpose")
def miopen_convolution_transpose(call: OpCall) -> Work:
    return _library(call, 3, call.optional_tensor(2), transposed=True)


@register("aten::cudnn_convolution_relu", "aten::miopen_convolution_relu")
def convolution_relu(call: OpCall) -> Work:
    return _fused(call, 3, call.optional_tensor(2))


@register("aten::cudnn_convolution_add_relu", "aten::miopen_convolution_add_relu")
def convolution_add_relu(call: OpCall) -> Work:
    return _fused(call, 5, call.optional_tensor(4), call.tensor(2))


def _fused(call: OpCall, at: int, bias: Tensor | None, *extra: Tensor) -> Work:
    """Read stride, padding, dilation and groups from position `at` on."""
    return _forward(
        call.tensor(0),
        call.tensor(1),
        bias,
        call.integers(at),
        call.integers(at + 1),
        call.integers(at + 2),
        None,
        call.integer(at + 3),
        None,
        *extra,
    )


@register("aten::thnn_conv2d", "aten::_slow_conv2d_forward")
def slow_conv2d(call: OpCall) -> Work:
    return _native(call, None)


@register(
    "aten::_conv_depthwise2d",
    "aten::conv_depthwise3d",
    "aten::slow_conv_dilated2d",
    "aten::slow_conv_dilated3d",
)
def native_dilated(call: OpCall) -> Work:
    return _native(call, call.integers(6))


def _native(call: OpCall, dilation: tuple[int, ...] | None) -> Work:
    """Read bias, stride and padding from position 3 on; only depthwise kernels have groups."""
    x, weight = call.tensor(0), call.tensor(1)
    _check(x, weight)
    groups = x.shape[1] // weight.shape[1] if weight.shape[1] else 1
    return _forward(
        x,
        weight,
        call.optional_tensor(3),
        call.integers(4),
        call.integers(5),
        dilation or (1,),
        None,
        groups,
        None,
    )


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
    padding, stride = call.integers(3), call.integers(4)
    return _forward(
        call.tensor(0), call.tensor(1), call.tensor(2), stride, padding, (1,), None, 1, None
    )


register_unknown_work(
    "its input and weight are not among its arguments", "ConvBias_Backward", "ConvBiasReLU_Backward"
)
