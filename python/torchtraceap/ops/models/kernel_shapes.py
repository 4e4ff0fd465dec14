"""`product_of_kernel`: what a matrix product computes, by the name of its kernel.

DeepGEMM compiles a kernel for each shape, so the width of the result and the sum's length stand
among the template arguments; the rows are those of the batch.
"""

from __future__ import annotations

import re

from torchtraceap.core.records import dataclass
from torchtraceap.ops.models.registry import Work

__all__ = ["NamedProduct", "product_of_kernel"]

_DEEP_GEMM = re.compile(r"deep_gemm::(\w*fp8_gemm\w*)<([^<>]*)")
_INTEGER = re.compile(r"\s*(\d{1,9})u?\s*")
_NORMAL = re.compile(r"GemmType\)\s*0\b|GemmType::Normal")
_SCALED = 128
"""Numbers along the sum that share a scale, of the left operand; of the right one, a square."""
_SCALE_BYTES = 4
_RESULT_BYTES = 2


@dataclass(frozen=True, slots=True)
class NamedProduct:
    """A product of `[rows, k]` and `[n, k]` in fp8, to bf16."""

    rows: int
    n: int
    k: int

    @property
    def work(self) -> Work:
        """The work with the scales of both operands."""
        rows, n, k = self.rows, self.n, self.k
        steps = -(-k // _SCALED)
        scales = (rows + -(-n // _SCALED)) * steps * _SCALE_BYTES
        return Work(
            2.0 * rows * n * k,
            rows * k + n * k + scales,
            rows * n * _RESULT_BYTES,
            dtype="fp8",
            unit="matrix",
            notes=("n and k are those of the kernel's name, the rows those of the batch",),
        )


def product_of_kernel(name: str, rows: int) -> NamedProduct | None:
    """Return the product of a kernel; None where its name does not tell n and k, or where it
    multiplies groups of rows (experts), of which a batch does not tell the sizes.

    Args:
        name: The whole name of the kernel.
        rows: Rows of the batch.
    """
    match = _DEEP_GEMM.search(name)
    if match is None or rows <= 0 or not _NORMAL.search(match[2]):
        return None
    sizes = [int(size[1]) for size in map(_INTEGER.fullmatch, match[2].split(",")) if size]
    # Older kernels begin with n and k, newer ones (`..._impl`) with m, which is 0, then these.
    sizes = sizes[1:] if match[1].endswith("_impl") else sizes
    if len(sizes) < 2 or min(sizes[:2]) == 0:
        return None
    return NamedProduct(rows, sizes[0], sizes[1])
