"""Which element types can be filled, and the numbers that schemas pass for them."""

from __future__ import annotations

import re

from torchtraceap.core.dtypes import DTYPES, parse_dtype

__all__ = [
    "DTYPE_NUMBERS",
    "ELEMENT_BYTES",
    "LAYOUT_NUMBERS",
    "MEMORY_FORMAT_NUMBERS",
    "dtype_in_kernel_name",
    "dtype_of_cpp_name",
]

# torch.tensor fills these; quantised ones need scales that no trace records.
_FILLED = tuple(d for d in DTYPES if not d.is_quantized and d.label != "fp4")
ELEMENT_BYTES = {d.name: d.size for d in _FILLED}
DTYPE_NUMBERS = {d.number: d.name for d in _FILLED if d.number is not None}
LAYOUT_NUMBERS = {0: "strided", 1: "sparse_coo", 2: "sparse_csr", 7: "jagged"}
MEMORY_FORMAT_NUMBERS = {
    0: "contiguous_format",
    1: "preserve_format",
    2: "channels_last",
    3: "channels_last_3d",
}

# In this order: kernels of half types name float as well, the type that they compute in.
_KERNEL_TYPES = (
    (r"BFloat16|bfloat16|\bbf16", "bfloat16"),
    (r"\bHalf\b|__half\b|\bhalf\b|\bfp16", "float16"),
    (r"\bdouble\b", "float64"),
    (r"\bfloat\b", "float32"),
    (r"\blong\b", "int64"),
    (r"OpaqueType<8", "int64"),
    (r"OpaqueType<4", "float32"),
    (r"OpaqueType<2", "bfloat16"),
    (r"OpaqueType<1", "uint8"),
)


def dtype_of_cpp_name(text: str) -> str | None:
    """The name in torch of a C++ type as traces write it; None if no tensor of it can be filled."""
    dtype = parse_dtype(text)
    return dtype.name if dtype in _FILLED else None


def dtype_in_kernel_name(name: str) -> str | None:
    """The element type that a kernel's template arguments name, if any."""
    return next((dtype for regex, dtype in _KERNEL_TYPES if re.search(regex, name)), None)
