"""Names of element types: as C++ prints them in a trace, and numbers as schemas pass them."""

from __future__ import annotations

import re

__all__ = [
    "DTYPE_NUMBERS",
    "LAYOUT_NUMBERS",
    "MEMORY_FORMAT_NUMBERS",
    "dtype_in_kernel_name",
    "dtype_of_cpp_name",
    "item_bytes",
]

# Spellings differ between compilers and versions: "long int" is "long" or "__int64" elsewhere.
_CPP_NAMES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "long long int": "int64",
    "__int64": "int64",
    "int64_t": "int64",
    "int": "int32",
    "int32_t": "int32",
    "short": "int16",
    "short int": "int16",
    "int16_t": "int16",
    "char": "int8",
    "signed char": "int8",
    "int8_t": "int8",
    "unsigned char": "uint8",
    "uint8_t": "uint8",
    "unsigned short": "uint16",
    "short unsigned int": "uint16",
    "unsigned int": "uint32",
    "unsigned": "uint32",
    "unsigned long": "uint64",
    "long unsigned int": "uint64",
    "unsigned long long": "uint64",
    "unsigned __int64": "uint64",
    "bool": "bool",
    "complex<half>": "complex32",
    "complex<float>": "complex64",
    "complex<double>": "complex128",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e4m3fnuz": "float8_e4m3fnuz",
    "float8_e5m2": "float8_e5m2",
    "float8_e5m2fnuz": "float8_e5m2fnuz",
    "float8_e8m0fnu": "float8_e8m0fnu",
}

# c10/core/ScalarType.h; numbers never change. Quantised types are left out: their scales are not
# recorded.
DTYPE_NUMBERS = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    8: "complex32",
    9: "complex64",
    10: "complex128",
    11: "bool",
    15: "bfloat16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    25: "float8_e5m2fnuz",
    26: "float8_e4m3fnuz",
    27: "uint16",
    28: "uint32",
    29: "uint64",
    44: "float8_e8m0fnu",
}
LAYOUT_NUMBERS = {0: "strided", 1: "sparse_coo", 2: "sparse_csr", 7: "jagged"}
MEMORY_FORMAT_NUMBERS = {
    0: "contiguous_format",
    1: "preserve_format",
    2: "channels_last",
    3: "channels_last_3d",
}

_BYTES = {"bool": 1, "bfloat16": 2, "uint8": 1, "int8": 1}

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
    """The name in torch of a C++ type as traces write it; None if it is not known."""
    short = re.sub(r"\b(?:c10|at|std)::", "", text).strip().lower()
    return _CPP_NAMES.get(short)


def dtype_in_kernel_name(name: str) -> str | None:
    """The element type that a kernel's template arguments name, if any."""
    return next((dtype for regex, dtype in _KERNEL_TYPES if re.search(regex, name)), None)


def item_bytes(dtype: str) -> int:
    """Bytes of an element."""
    if dtype in _BYTES:
        return _BYTES[dtype]
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return int(bits[1]) // 8 if bits else 8
