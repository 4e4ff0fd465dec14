"""Types of elements: what torch, C++ and c10d call them, how large they are.

The only table of them in Python; `cpp/traceap/table/dtypes.hpp` is the one in C++, and a test holds
the two together.
"""

from __future__ import annotations

import re

from torchtraceap.core.records import dataclass

__all__ = [
    "BOOL",
    "DTYPES",
    "FP32",
    "FP64",
    "INT16",
    "INT32",
    "INT64",
    "DType",
    "dtype_of_code",
    "parse_dtype",
]


@dataclass(frozen=True, slots=True)
class DType:
    """A type of elements."""

    name: str
    """torch's: float32, bfloat16, float8_e4m3fn, int64, bool, ..."""
    label: str
    """Type of the computation: fp32, bf16, fp8, int64, bool, ..."""
    size: int
    """Bytes; fp4 counts the byte that two of them share."""
    rank: int
    """Category in promotion: 0 bool, 1 integer, 2 floating point, 3 complex."""
    number: int | None = None
    """Its c10::ScalarType, as arguments in traces give it; these numbers never change."""
    is_quantized: bool = False
    """True if values mean nothing without a scale, which no trace records."""

    @property
    def cxx_name(self) -> str:
        """Name in C++, which the profiler writes in "Input type"."""
        return _CXX_NAMES.get(self.name, self.name)

    @property
    def c10_name(self) -> str:
        """Name in c10, which the profiler writes in "dtype" of collectives."""
        return _C10_NAMES.get(self.name, self.name)


DTYPES = (
    DType("bool", "bool", 1, 0, 11),
    DType("uint8", "uint8", 1, 1, 0),
    DType("int8", "int8", 1, 1, 1),
    DType("int16", "int16", 2, 1, 2),
    DType("int32", "int32", 4, 1, 3),
    DType("int64", "int64", 8, 1, 4),
    DType("uint16", "int16", 2, 1, 27),
    DType("uint32", "int32", 4, 1, 28),
    DType("uint64", "int64", 8, 1, 29),
    DType("qint8", "int8", 1, 1, 12, is_quantized=True),
    DType("quint8", "uint8", 1, 1, 13, is_quantized=True),
    DType("qint32", "int32", 4, 1, 14, is_quantized=True),
    DType("float4_e2m1fn_x2", "fp4", 1, 2, 45),
    DType("float8_e5m2", "fp8", 1, 2, 23),
    DType("float8_e4m3fn", "fp8", 1, 2, 24),
    DType("float8_e5m2fnuz", "fp8", 1, 2, 25),
    DType("float8_e4m3fnuz", "fp8", 1, 2, 26),
    DType("float8_e8m0fnu", "fp8", 1, 2, 44),
    DType("float16", "fp16", 2, 2, 5),
    DType("bfloat16", "bf16", 2, 2, 15),
    DType("float32", "fp32", 4, 2, 6),
    DType("float64", "fp64", 8, 2, 7),
    DType("complex32", "complex32", 4, 3, 8),
    DType("complex64", "complex64", 8, 3, 9),
    DType("complex128", "complex128", 16, 3, 10),
)
"""All that torch has and traces were seen to name."""
# In small letters, without c10:: and the like. Spellings differ between compilers and versions:
# "long int" is "long" or "__int64" elsewhere.
_SPELLINGS = {
    "bool": ("boolean",),
    "uint8": ("unsigned char", "uint8_t", "byte"),
    "int8": ("char", "signed char", "int8_t"),
    "int16": ("short", "short int", "int16_t"),
    "int32": ("int", "int32_t"),
    "int64": ("long", "long int", "long long", "long long int", "int64_t", "__int64"),
    "uint16": ("unsigned short", "short unsigned int", "uint16_t"),
    "uint32": ("unsigned", "unsigned int", "uint32_t"),
    "uint64": (
        "unsigned long",
        "unsigned long int",
        "long unsigned int",
        "unsigned long long",
        "unsigned __int64",
        "uint64_t",
    ),
    "float4_e2m1fn_x2": ("fp4",),
    "float8_e4m3fn": ("fp8",),
    "float16": ("half", "__half", "fp16"),
    "bfloat16": ("__nv_bfloat16", "__hip_bfloat16", "bf16"),
    "float32": ("float", "fp32"),
    "float64": ("double", "fp64"),
    "complex32": ("complex<half>", "complexhalf"),
    "complex64": ("complex<float>", "complexfloat"),
    "complex128": ("complex<double>", "complexdouble"),
}
_CXX_NAMES = {
    "uint8": "unsigned char",
    "int8": "signed char",
    "int16": "short int",
    "int32": "int",
    "int64": "long int",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "float32": "float",
    "float64": "double",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
    "float8_e4m3fn": "c10::Float8_e4m3fn",
    "float8_e5m2": "c10::Float8_e5m2",
}
_C10_NAMES = {
    "bool": "Bool",
    "uint8": "Byte",
    "int8": "Char",
    "int32": "Int",
    "int64": "Long",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
}
_BY_NAME = {dtype.name: dtype for dtype in DTYPES} | {
    spelling: dtype for dtype in DTYPES for spelling in _SPELLINGS.get(dtype.name, ())
}
_BY_NUMBER = {dtype.number: dtype for dtype in DTYPES}
BOOL, INT16, INT32, INT64, FP32, FP64 = (
    _BY_NAME[name] for name in ("bool", "int16", "int32", "int64", "float32", "float64")
)
# Kinds that may come: their size is in the name.
_OTHER_FLOAT8 = DType("float8", "fp8", 1, 2)
_OTHER_FLOAT4 = DType("float4", "fp4", 1, 2)
_NAMESPACES = re.compile(r"\b(?:c10|at|std|torch)(?:::|\.)")


def parse_dtype(name: str) -> DType | None:
    """Return the type that a trace calls `name` (`c10::BFloat16`, `long int`, `torch.float32`,
    `Half`)."""
    plain = _NAMESPACES.sub("", name).strip().lower()
    found = _BY_NAME.get(plain)
    if found is None and plain.startswith("float8"):
        return _OTHER_FLOAT8
    if found is None and plain.startswith("float4"):
        return _OTHER_FLOAT4
    return found


def dtype_of_code(number: int) -> DType | None:
    """Return the type with that c10::ScalarType."""
    return _BY_NUMBER.get(number)
