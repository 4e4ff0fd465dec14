"""Which kernels an operator puts on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from torchtraceap.devices import Device, device_named
from torchtraceap.dtypes import dtype_named
from torchtraceap.prediction.capture.calls import Phase, TensorInfo
from torchtraceap.prediction.lifting import (
    LaunchingOp,
    Libraries,
    OpTime,
    kernels_of,
    op_times,
)
from torchtraceap.prediction.lifting.work import GpuWork, WorkKind

H100, MI300X = "h100_sxm", "mi300x"
OLD = Libraries(torch=(2, 6))


def tensor(*shape: int, dtype: str = "bfloat16", strides: tuple[int, ...] = ()) -> TensorInfo:
    found = dtype_named(dtype)
    assert found is not None
    if not strides:
        step, steps = 1, []
        for size in reversed(shape):
            steps.append(step)
            step *= size
        strides = tuple(reversed(steps))
    return TensorInfo(shape, strides, found, 0)


def lifted(
    name: str,
    *inputs: Any,
    device: str = H100,
    libraries: Libraries = OLD,
    outputs: tuple[TensorInfo, ...] = (),
) -> tuple[GpuWork, ...]:
    chip: Device = device_named(device)
    op = LaunchingOp(f"aten::{name}", inputs, outputs, Phase.FORWARD, (), 0)
    time: OpTime = op_times([op], chip)[0]
    found = kernels_of(op, chip, libraries, time)
    assert sum(each.estimate.ns for each in found) == pytest.approx(time.estimate.ns)
    return found


def test_an_addition_reads_wide_pieces_where_tensors_lie_alike() -> None:
    (kernel,) = lifted("add", tensor(4, 197, 768), tensor(4, 197, 768), 1)
    functor = "at::native::CUDAFunctor_add<c10::BFloat16>"
    assert kernel.name == (
        f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, 3ul> >"
        f"(int, {functor}, std::array<char*, 3ul>)"
    )
    assert kernel.grid == (1182, 1, 1) and kernel.block == (128, 1, 1)


def test_a_broadcast_addition_goes_by_strides() -> None:
    (kernel,) = lifted("add", tensor(4, 197, 768), tensor(1, 197, 768), 1)
    assert kernel.name.startswith("void at::native::elementwise_kernel<128, 4, ")
    assert kernel.grid == (1182, 1, 1)


def test_an_addition_of_two_types_casts() -> None:
    (kernel,) = lifted("add", tensor(1024, dtype="float32"), tensor(1024), 1)
    assert kernel.name.startswith("void at::native::unrolled_elementwise_kernel<")
    assert "LoadWithCast<2>" in kernel.name


def test_newer_torch_reads_eight_halves_at_once() -> None:
    (kernel,) = lifted(
        "add", tensor(25088, 768), tensor(25088, 768), 1, device=MI300X, libraries=Libraries()
    )
    assert kernel.name.startswith("void at::native::vectorized_elementwise_kernel<8, ")
    assert kernel.grid == (9408, 1, 1) and kernel.block == (256, 1, 1)


def test_copies_of_tensors_that_lie_alike_are_no_kernels() -> None:
    (copy,) = lifted("copy_", tensor(64), tensor(64), False)
    assert copy.kind is WorkKind.MEMCPY and copy.bytes == 128
    (turned,) = lifted("copy_", tensor(8, 4), tensor(8, 4, strides=(1, 8)), False)
    assert turned.kind is WorkKind.KERNEL and "direct_copy_kernel_cuda" in turned.name


def test_an_operator_that_nobody_knows_is_one_kernel_of_its_name() -> None:
    (kernel,) = lifted("nobody_knows_this", tensor(1024))
    assert "aten::nobody_knows_this" in kernel.name
