"""Models of pooling, interpolation and padding."""

from __future__ import annotations

from math import prod

from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register

_INDEX_BYTES = 8


def _spatial(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    if len(values) == 1:
        return values * rank
    if len(values) != rank:
        raise UnknownWorkError("kernel, stride or padding do not fit the shape")
    return values


def _pooled(
    x: Tensor,
    rank: int,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    *,
    ceil: bool,
) -> int:
    """Return the elements of the result; no window may begin in the padding after the input."""
    if len(x.shape) <= rank:
        raise UnknownWorkError("an input with too few dimensions")
    stride = stride or kernel
    kernel, stride, padding, dilation = (
        _spatial(values, rank) for values in (kernel, stride, padding, dilation)
    )
    sizes: list[int] = []
    for i, size in enumerate(x.shape[-rank:]):
        if stride[i] < 1:
            raise UnknownWorkError("a stride below 1")
        room = size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
        count = (room + (stride[i] - 1 if ceil else 0)) // stride[i] + 1
        if ceil and (count - 1) * stride[i] >= size + padding[i]:
            count -= 1
        if count < 0:
            raise UnknownWorkError("the window is larger than the padded input")
        sizes.append(count)
    return prod(x.shape[:-rank]) * prod(sizes)


def _rank(name: str) -> int:
    return next((rank for rank in (1, 2, 3) if f"pool{rank}d" in name), 2)


@register(
    "aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices", "aten::max_pool2d",
    "aten::max_pool1d", "aten::max_pool3d",
)  # fmt: skip
def max_pool(call: OpCall) -> Work:
    """Arguments: (self, kernel, stride, padding, dilation, ceil_mode)"""
    x, kernel, rank = call.tensor(0), call.integers(1), _rank(call.name)
    elements = _pooled(
        x, rank, kernel, call.integers(2), call.integers(3), call.integers(4), ceil=call.boolean(5)
    )
    indices = _INDEX_BYTES if "with_indices" in call.name else 0
    window = prod(_spatial(kernel, rank))
    return Work(elements * window, x.bytes, elements * (x.dtype.size + indices))


@register("aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward")
def max_pool_backward(call: OpCall) -> Work:
    """Arguments: (grad, self, kernel, stride, padding, dilation, ceil_mode, indices)"""
    grad, x, indices = call.tensor(0), call.tensor(1), call.tensor(7)
    return Work(grad.elements, grad.bytes + indices.bytes, x.elements * x.dtype.size)


@register("aten::avg_pool2d", "aten::avg_pool3d", "aten::avg_pool1d")
def avg_pool(call: OpCall) -> Work:
    """Arguments: (self, kernel, stride, padding, ceil_mode, ...)"""
    x, kernel, rank = call.tensor(0), call.integers(1), _rank(call.name)
    elements = _pooled(
        x, rank, kernel, call.integers(2), call.integers(3), (1,), ceil=call.boolean(4)
    )
    return Work(elements * prod(_spatial(kernel, rank)), x.bytes, elements * x.dtype.size)


@register("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")
@register("aten::adaptive_avg_pool2d", "aten::adaptive_avg_pool1d", composite=True)
def adaptive_avg_pool(call: OpCall) -> Work:
    """Arguments: (self, output_size)"""
    x, rank = call.tensor(0), _rank(call.name)
    if len(x.shape) <= rank:
        raise UnknownWorkError("an input with too few dimensions")
    sizes = _spatial(call.integers(1), rank)
    if any(size < 0 for size in sizes):
        raise UnknownWorkError("a negative size")
    elements = prod(x.shape[:-rank]) * prod(sizes)
    return Work(x.elements, x.bytes, elements * x.dtype.size)


@register(
    "aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward",
    "aten::avg_pool2d_backward", "aten::avg_pool3d_backward",
)  # fmt: skip
def avg_pool_backward(call: OpCall) -> Work:
    """Arguments: (grad, self, ...): averages need no input, only its shape."""
    grad, x = call.tensor(0), call.tensor(1)
    return Work(x.elements, grad.bytes, x.elements * x.dtype.size)


_TAPS = {"nearest": 0, "bilinear": 7, "linear1d": 3, "trilinear": 15, "bicubic": 31}


def _taps(name: str) -> int:
    return next(count for word, count in _TAPS.items() if word in name)


@register(
    "aten::upsample_nearest1d", "aten::upsample_nearest2d", "aten::upsample_nearest3d",
    "aten::upsample_bilinear2d", "aten::upsample_linear1d", "aten::upsample_trilinear3d",
    "aten::upsample_bicubic2d", "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa",
    "aten::_upsample_nearest_exact1d", "aten::_upsample_nearest_exact2d",
    "aten::_upsample_nearest_exact3d",
)  # fmt: skip
def upsample(call: OpCall) -> Work:
    """Arguments: (self, output_size, ...)"""
    x = call.tensor(0)
    sizes = call.integers(1)
    if len(x.shape) != len(sizes) + 2 or any(size < 0 for size in sizes):
        raise UnknownWorkError("the output size does not fit the input")
    elements = x.shape[0] * x.shape[1] * prod(sizes)
    return Work(elements * _taps(call.name), x.bytes, elements * x.dtype.size)


@register(
    "aten::upsample_nearest1d_backward", "aten::upsample_nearest2d_backward",
    "aten::upsample_nearest3d_backward", "aten::upsample_linear1d_backward",
    "aten::upsample_bilinear2d_backward", "aten::upsample_trilinear3d_backward",
    "aten::upsample_bicubic2d_backward",
)  # fmt: skip
def upsample_backward(call: OpCall) -> Work:
    """Arguments: (grad_output, output_size, input_size, ...)"""
    grad = call.tensor(0)
    wanted = call.integers(2)
    if len(wanted) != len(grad.shape) or any(size < 0 for size in wanted):
        raise UnknownWorkError("the input size does not fit the gradient")
    return Work(grad.elements * _taps(call.name), grad.bytes, prod(wanted) * grad.dtype.size)


@register(
    "aten::constant_pad_nd", "aten::reflection_pad1d", "aten::reflection_pad2d",
    "aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d",
    composite=True,
)  # fmt: skip
def pad(call: OpCall) -> Work:
    """Arguments: (self, pad): pairs from the last dimension on; negative ones cut."""
    x, amounts = call.tensor(0), call.integers(1)
    shape = list(x.shape)
    if len(amounts) % 2 or len(amounts) // 2 > len(shape):
        raise UnknownWorkError("the padding does not fit the shape")
    for i in range(len(amounts) // 2):
        shape[-1 - i] += amounts[2 * i] + amounts[2 * i + 1]
    if any(size < 0 for size in shape):
        raise UnknownWorkError("the padding cuts more than there is")
    elements = prod(shape)
    read = min(x.bytes, elements * x.dtype.size)
    return Work(0, read, elements * x.dtype.size)
