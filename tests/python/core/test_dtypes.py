"""The table of element types: against torch, and against the table of the C++ core."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchtraceap.core.dtypes import DTYPES, dtype_of_code, parse_dtype

CPP_TABLE = Path(__file__).parents[3] / "cpp/traceap/table/dtypes.cpp"


@pytest.mark.parametrize(
    ("written", "name", "size"),
    [
        ("float", "float32", 4),
        ("Float", "float32", 4),
        ("c10::BFloat16", "bfloat16", 2),
        ("at::Half", "float16", 2),
        ("torch.float64", "float64", 8),
        ("long int", "int64", 8),
        ("unsigned long", "uint64", 8),
        ("c10::complex<c10::Half>", "complex32", 4),
        ("ComplexDouble", "complex128", 16),
        ("c10::Float8_e5m2fnuz", "float8_e5m2fnuz", 1),
        ("Float8_of_tomorrow", "float8", 1),
        ("quint8", "quint8", 1),
    ],
)
def test_names_that_traces_write(written: str, name: str, size: int) -> None:
    dtype = parse_dtype(written)
    assert dtype is not None
    assert (dtype.name, dtype.size) == (name, size)


@pytest.mark.parametrize("written", ["", "Tensor", "std::vector<float>", "Scalar", "float3"])
def test_what_is_no_type_of_elements(written: str) -> None:
    assert parse_dtype(written) is None


def test_sizes_and_numbers_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    here = [dtype for dtype in DTYPES if hasattr(torch, dtype.name)]
    assert len(here) >= 20
    for dtype in here:
        assert getattr(torch, dtype.name).itemsize == dtype.size, dtype
        assert dtype.number is not None
        assert dtype_of_code(dtype.number) is dtype
    assert dtype_of_code(99) is None


def test_names_in_cxx_and_c10_are_read_back() -> None:
    for dtype in DTYPES:
        assert parse_dtype(dtype.cxx_name) is dtype
        assert parse_dtype(dtype.c10_name) is dtype
    bf16 = parse_dtype("bf16")
    assert bf16 is not None
    assert (bf16.cxx_name, bf16.c10_name) == ("c10::BFloat16", "BFloat16")


def test_the_core_has_the_same_types() -> None:
    rows = re.findall(r'\{"([^"]+)", "([^"]+)", (\d+)\}', CPP_TABLE.read_text("utf-8"))
    assert len(rows) > 25
    for spelling, name, size in rows:
        dtype = parse_dtype(spelling)
        assert dtype is not None, spelling
        assert (dtype.name, dtype.size) == (name, int(size)), spelling
