"""Models of reductions, scans and sorts; the reduced dimensions must be in the trace."""

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
