"""Models of AITER's manifold-constrained hyper-connections: n residual streams for each token.

With C elements in a stream, recombination takes (n + 1) multiplications and additions for each of
the nC elements, and the projection is a product with a depth of nC that also sums the squares for
its norm. Sinkhorn iterations on n x n numbers per token are left out because n is only 4.
"""

from __future__ import annotations

from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register

_MISFIT = "streams and mixes do not fit together"
_NORM = 4


def _streams(residual: Tensor) -> tuple[int, int, int]:
    """Return the numbers of tokens, streams and elements of a stream."""
    if len(residual.shape) != 3:
        raise UnknownWorkError(_MISFIT)
    return residual.shape[0], residual.shape[1], residual.shape[2]


def _recombine(layer: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> int:
    """Count out[i] = post[i] * layer + sum over j of comb[j, i] * residual[j]."""
    tokens, n, width = _streams(residual)
    expected = (tokens * width, tokens * n, tokens * n * n)
    if (layer.elements, post.elements, comb.elements) != expected:
        raise UnknownWorkError(_MISFIT)
    return 2 * tokens * n * width * (n + 1)


def _project(x: Tensor, matrix: Tensor) -> int:
    """Return the operations of the product and of the sum of squares."""
    tokens, n, width = _streams(x)
    if len(matrix.shape) != 2 or matrix.shape[1] != n * width:
        raise UnknownWorkError(_MISFIT)
    return 2 * tokens * n * width * (matrix.shape[0] + 1)


@register("aiter::mhc_post")
def post(call: OpCall) -> Work:
    """Arguments: (out, layer, residual, post_mix, comb_mix, ...)"""
    out, layer, residual, post_mix, comb_mix = (call.tensor(i) for i in range(5))
    if out.shape != residual.shape:
        raise UnknownWorkError(_MISFIT)
    read = sum(tensor.bytes for tensor in (layer, residual, post_mix, comb_mix))
    return Work(_recombine(layer, residual, post_mix, comb_mix), read, out.bytes)


@register("aiter::mhc_pre_gemm_sqrsum")
def project(call: OpCall) -> Work:
    """Arguments: (out, squares, x, matrix, ...): partial sums over parts of the depth."""
    out, squares, x, matrix = (call.tensor(i) for i in range(4))
    written = out.bytes + squares.bytes
    flops = _project(x, matrix)
    return Work(flops, x.bytes + matrix.bytes, written, dtype=x.dtype.label, unit="matrix")


@register("aiter::mhc_fused_post_pre_gemm_sqrsum")
def post_and_project(call: OpCall) -> Work:
    """Arguments: (out, squares, next_residual, layer, residual, post_mix, comb_mix, matrix, ...)"""
    out, squares, following, layer, residual, post_mix, comb_mix, matrix = (
        call.tensor(i) for i in range(8)
    )
    if following.shape != residual.shape:
        raise UnknownWorkError(_MISFIT)
    flops = _recombine(layer, residual, post_mix, comb_mix) + _project(following, matrix)
    read = sum(tensor.bytes for tensor in (layer, residual, post_mix, comb_mix, matrix))
    written = out.bytes + squares.bytes + following.bytes
    return Work(flops, read, written, dtype=layer.dtype.label, unit="matrix")


@register("aiter::mhc_pre_big_fuse", "aiter::mhc_pre_big_fuse_rmsnorm")
def mix_streams(call: OpCall) -> Work:
    """Arguments: (post_mix, comb_mix, out, products, squares, scale, base, residual, norm_weight,
    ...)

    The kernel adds partial sums, computes the mixes, adds the streams and may normalize the result.
    """
    post_mix, comb_mix, out, products, squares, scale, base, residual = (
        call.tensor(i) for i in range(8)
    )
    tokens, n, width = _streams(residual)
    if out.elements != tokens * width or comb_mix.elements != tokens * n * n:
        raise UnknownWorkError(_MISFIT)
    norm = call.tensor(8) if call.name.endswith("_rmsnorm") else None
    operations = 2 * n + _NORM * (norm is not None)
    read = sum(tensor.bytes for tensor in (products, squares, scale, base, residual))
    return Work(
        out.elements * operations + products.elements + squares.elements,
        read + (0 if norm is None else norm.bytes),
        post_mix.bytes + comb_mix.bytes + out.bytes,
    )
