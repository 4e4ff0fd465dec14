"""Models of reductions, scans and sorts, whose reduced dimensions must be in the trace, of pooling,
interpolation and padding."""

from __future__ import annotations

from math import prod

from torchtraceap.core.dtypes import BOOL, INT32, INT64, DType
from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.elementwise import arithmetic_type, binary
from torchtraceap.ops.models.registry import Work, register


def _result_elements(x: Tensor, dims: tuple[int, ...]) -> int:
    """Return the number of elements of the result; an empty `dims` reduces all dimensions."""
    rank = len(x.shape)
    if any(not -max(rank, 1) <= dim < max(rank, 1) for dim in dims):
        raise UnknownWorkError("a reduced dimension that the input does not have")
    reduced = {dim % rank for dim in dims} if rank else set()
    if not dims:
        return 1
    return prod(size for i, size in enumerate(x.shape) if i not in reduced)


def _dims(call: OpCall, position: int) -> tuple[int, ...]:
    """Return the reduced dimensions; an argument that was not passed means all."""
    if call.is_none(position):
        return ()
    return call.integers(position)


def _reduced(
    call: OpCall, kept: int, per_element: int, out_type: DType, *, outputs: int = 0
) -> Work:
    """Return the work of a reduction with `outputs` bytes per result besides the value itself."""
    x = call.tensor(0)
    return Work(
        flops=x.elements * per_element,
        bytes_read=x.bytes,
        bytes_written=kept * (out_type.size + outputs),
        dtype=arithmetic_type(x.dtype),
    )


def _sum_type(call: OpCall, position: int) -> DType:
    own = call.tensor(0).dtype
    given = call.dtype_argument(position) if call.has_values else None
    return given or (own if own.rank >= 2 else INT64)


@register("aten::sum", "aten::nansum", "aten::mean", "aten::nanmean", "aten::prod")
def sum_or_product(call: OpCall) -> Work:
    """Arguments: (self, dtype), or (self, dim, keepdim, dtype)"""
    over_all = len(call) <= 2
    kept = _result_elements(call.tensor(0), () if over_all else _dims(call, 1))
    return _reduced(call, kept, 1, _sum_type(call, 1 if over_all else 3))


@register("aten::amax", "aten::amin")
def extreme(call: OpCall) -> Work:
    return _reduced(call, _result_elements(call.tensor(0), _dims(call, 1)), 1, call.tensor(0).dtype)


@register("aten::aminmax", "aten::_aminmax")
def extremes(call: OpCall) -> Work:
    own = call.tensor(0).dtype
    return _reduced(
        call, _result_elements(call.tensor(0), _dims(call, 1)), 2, own, outputs=own.size
    )


@register("aten::max", "aten::min", "aten::median", "aten::nanmedian", "aten::mode")
def extreme_with_index(call: OpCall) -> Work:
    """Arguments: (self), (self, dim, keepdim) with indices, or element by element of two tensors"""
    if len(call) > 1 and call.optional_tensor(1) is not None:
        return binary(call)
    if len(call) <= 1:
        return _reduced(call, 1, 1, call.tensor(0).dtype)
    kept = _result_elements(call.tensor(0), call.integers(1))
    return _reduced(call, kept, 1, call.tensor(0).dtype, outputs=INT64.size)


@register("aten::argmax", "aten::argmin")
def index_of_extreme(call: OpCall) -> Work:
    return _reduced(call, _result_elements(call.tensor(0), _dims(call, 1)), 1, INT64)


@register("aten::all", "aten::any")
def logical(call: OpCall) -> Work:
    dims = _dims(call, 1) if len(call) > 1 else ()
    own = call.tensor(0).dtype
    return _reduced(
        call, _result_elements(call.tensor(0), dims), 1, own if own.label == "uint8" else BOOL
    )


@register("aten::count_nonzero")
def count(call: OpCall) -> Work:
    return _reduced(call, _result_elements(call.tensor(0), _dims(call, 1)), 1, INT64)


@register("aten::var", "aten::std")
def variance(call: OpCall) -> Work:
    """Arguments: (self, unbiased), or (self, dim, correction, keepdim)"""
    dims = _dims(call, 1) if len(call) > 2 else ()
    return _reduced(call, _result_elements(call.tensor(0), dims), 4, call.tensor(0).dtype)


@register("aten::var_mean", "aten::std_mean")
def variance_and_mean(call: OpCall) -> Work:
    dims = _dims(call, 1) if len(call) > 2 else ()
    own = call.tensor(0).dtype
    return _reduced(call, _result_elements(call.tensor(0), dims), 4, own, outputs=own.size)


@register("aten::norm", "aten::linalg_vector_norm")
def norm(call: OpCall) -> Work:
    """Arguments: (self, p, dim, keepdim, dtype)"""
    dims = _dims(call, 2) if len(call) > 2 else ()
    own = call.tensor(0).dtype
    given = call.dtype_argument(4) if call.has_values and len(call) > 4 else None
    return _reduced(call, _result_elements(call.tensor(0), dims), 2, given or own)


@register("aten::linalg_norm", composite=True)
def any_norm(call: OpCall) -> Work:
    """Arguments: (self, ord, dim, keepdim, dtype). With `ord`, two dimensions mean a matrix
    norm."""
    x, kind = call.tensor(0), call.argument(1).text
    dims = _dims(call, 2)
    if kind and kind != "None" and (len(dims) or len(x.shape)) != 1:
        raise UnknownWorkError("a norm of matrices")
    return norm(call)


@register("aten::logsumexp")
def logsumexp(call: OpCall) -> Work:
    return _reduced(
        call, _result_elements(call.tensor(0), call.integers(1)), 4, call.tensor(0).dtype
    )


@register("aten::cumsum", "aten::cumprod", "aten::logcumsumexp", "aten::_logcumsumexp")
def scan(call: OpCall) -> Work:
    x = call.tensor(0)
    given = call.dtype_argument(2) if call.has_values and not call.is_none(2) else None
    own = x.dtype if x.dtype.rank >= 2 else INT64
    return Work(x.elements, x.bytes, x.elements * (given or own).size, arithmetic_type(x.dtype))


@register("aten::cummax", "aten::cummin")
def scan_with_index(call: OpCall) -> Work:
    x = call.tensor(0)
    return Work(x.elements, x.bytes, x.elements * (x.dtype.size + 8), arithmetic_type(x.dtype))


@register("aten::topk")
def topk(call: OpCall) -> Work:
    """Arguments: (self, k, dim, ...): values and indices of the k greatest of each row."""
    x, k = call.tensor(0), call.integer(1)
    dim = call.integer(2)
    if k < 0:
        raise UnknownWorkError("a negative count")
    kept = _result_elements(x, (dim,)) * (min(k, x.shape[dim]) if x.shape else 1)
    return Work(None, x.bytes, kept * (x.dtype.size + 8))


@register("aten::sort", "aten::argsort", "aten::msort")
def sort(call: OpCall) -> Work:
    x = call.tensor(0)
    indices = 8 if call.name != "aten::msort" else 0
    values = 0 if call.name == "aten::argsort" else x.dtype.size
    return Work(None, x.bytes, x.elements * (values + indices))


@register("aten::searchsorted", "aten::bucketize")
def search(call: OpCall) -> Work:
    """Count a search that reads borders and values once and writes positions."""
    first, second = call.tensor(0), call.tensor(1)
    values = second if call.name == "aten::searchsorted" else first
    narrow = call.boolean(2, default=False)
    out_type = INT32 if narrow else INT64
    written = values.elements * out_type.size
    return Work(None, first.bytes + second.bytes, written)


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
