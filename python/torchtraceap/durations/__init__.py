"""How long a kernel, copy or collective takes, from measurements; docs/durations.md.

The functions here answer `None` where no measurement is near enough: an unknown device, type or
size gives no guess. `strict=True` raises `UnknownDurationError` with the reason instead.

    >>> from torchtraceap import durations
    >>> durations.collective_ns("all_reduce", 25 << 20, 8, "H100 SXM")
    >>> durations.gemm_ns(4096, 4096, 4096, "bf16", "H200")
"""

from __future__ import annotations

from collections.abc import Callable

from torchtraceap.devices import Device
from torchtraceap.durations.collectives import collective_kind, estimate_collective
from torchtraceap.durations.copies import estimate_copy
from torchtraceap.durations.embedding import (
    EmbeddingTable,
    ReuseHistogram,
    estimate_embedding_bag,
)
from torchtraceap.durations.estimate import Estimate, Estimates, UnknownDurationError
from torchtraceap.durations.gemm import estimate_gemm
from torchtraceap.durations.kernels import (
    estimate_attention,
    estimate_elementwise,
    estimate_rows,
)
from torchtraceap.durations.scaling import estimate_ratio, ratio

__all__ = [
    "EmbeddingTable",
    "Estimate",
    "Estimates",
    "ReuseHistogram",
    "UnknownDurationError",
    "attention_ns",
    "collective_kind",
    "collective_ns",
    "copy_ns",
    "elementwise_ns",
    "embedding_bag_ns",
    "estimate_ratio",
    "gemm_ns",
    "layer_norm_ns",
    "ratio",
    "softmax_ns",
]


def _answer(strict: bool, estimate: Callable[[], Estimate]) -> Estimate | None:
    try:
        return estimate()
    except UnknownDurationError:
        if strict:
            raise
        return None


def collective_ns(
    kind: str,
    size: float,
    ranks: int,
    device: str | Device,
    nodes: int = 1,
    *,
    dtype: str = "",
    strict: bool = False,
) -> Estimate | None:
    """Transfer time of a collective once all ranks have come; see `estimate_collective`."""
    return _answer(
        strict, lambda: estimate_collective(kind, size, ranks, device, nodes, dtype=dtype)
    )


def gemm_ns(
    m: int,
    n: int,
    k: int,
    dtype: str,
    device: str | Device,
    batch: int = 1,
    *,
    strict: bool = False,
) -> Estimate | None:
    """Time of a product of (batch) m x k by k x n; see `estimate_gemm`."""
    return _answer(strict, lambda: estimate_gemm(m, n, k, dtype, device, batch))


def copy_ns(
    size: float, direction: str, pinned: bool, device: str | Device, *, strict: bool = False
) -> Estimate | None:
    """Time of a copy of `size` bytes ("HtoD", "DtoH", "DtoD"); see `estimate_copy`."""
    return _answer(strict, lambda: estimate_copy(size, direction, pinned, device))


def elementwise_ns(
    op: str, elements: float, dtype: str, device: str | Device, *, strict: bool = False
) -> Estimate | None:
    """Time of an element-wise kernel; see `estimate_elementwise`."""
    return _answer(strict, lambda: estimate_elementwise(op, elements, dtype, device))


def softmax_ns(
    rows: float, columns: float, dtype: str, device: str | Device, *, strict: bool = False
) -> Estimate | None:
    """Time of a softmax over rows (forward); see `estimate_rows`."""
    return _answer(strict, lambda: estimate_rows("softmax", rows, columns, dtype, device))


def layer_norm_ns(
    rows: float, columns: float, dtype: str, device: str | Device, *, strict: bool = False
) -> Estimate | None:
    """Time of a layer norm over rows (forward); see `estimate_rows`."""
    return _answer(strict, lambda: estimate_rows("layer_norm", rows, columns, dtype, device))


def attention_ns(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    head_size: int,
    dtype: str,
    device: str | Device,
    *,
    causal: bool = False,
    strict: bool = False,
) -> Estimate | None:
    """Bound of a fused attention kernel; see `estimate_attention`."""
    return _answer(
        strict,
        lambda: estimate_attention(
            batch, heads, queries, keys, head_size, dtype, device, causal=causal
        ),
    )


def embedding_bag_ns(
    tables: list[EmbeddingTable],
    batch: int,
    device: str | Device,
    *,
    backward: bool = False,
    strict: bool = False,
) -> Estimate | None:
    """Time of the lookups of a batch; see `estimate_embedding_bag`."""
    return _answer(strict, lambda: estimate_embedding_bag(tables, batch, device, backward=backward))
