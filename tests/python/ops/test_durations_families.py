"""Durations of any kernel of a known family, from its work."""

from __future__ import annotations

import numpy as np
import pytest

from torchtraceap.ops.devices import load_devices
from torchtraceap.ops.durations import UnknownDurationError
from torchtraceap.ops.durations.families import (
    estimate_work,
    estimate_works,
    family_variant,
    load_families,
)
from torchtraceap.ops.models.families import FAMILIES

NO_GPU_WORK = {"communication", "synchronization", "data_loading", "graph"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_gpu_work_is_answered_on_every_device(family: str) -> None:
    devices = list(load_devices())
    many = len(devices)
    found = estimate_works([family] * many, [1e9] * many, [1e8] * many, ["bf16"] * many, devices,
                           units=["matrix"] * many)  # fmt: skip
    assert np.isnan(found.ns).all() == (family in NO_GPU_WORK)
    if family not in NO_GPU_WORK:
        assert (found.low_ns < found.ns).all() and (found.ns < found.high_ns).all()


def test_arrays_give_what_single_calls_give() -> None:
    calls = [
        ("gemm", 2e12, 1e9, "bf16", "H100 SXM", "matrix"),
        ("elementwise", np.nan, 1e9, "fp32", "A100-SXM4-80GB", "vector"),
        ("gemm", 2e12, 1e9, "bf16", "H100 SXM", "matrix"),
        ("attention_forward", 3e11, 2e8, "fp16", "V100-SXM2-32GB", "matrix"),
        ("reduction", 0.0, 4e6, "int64", "H200", "vector"),
        ("softmax", 1e9, 1e9, "fp8", "no such device", "vector"),
    ]
    columns = list(zip(*calls, strict=True))
    found = estimate_works(
        columns[0], columns[1], columns[2], columns[3], columns[4], units=columns[5]
    )
    for at, (family, flops, size, dtype, device, unit) in enumerate(calls[:-1]):
        assert found[at] == estimate_work(family, flops, size, dtype, device, unit=unit)
    assert np.isnan(found.ns[-1]) and "no device" in found[5].source


def test_large_kernels_run_near_the_peaks_and_small_ones_take_their_start() -> None:
    chip = load_devices()["h100_sxm"]
    product = estimate_work("gemm", 2e13, 1e9, "bf16", chip, unit="matrix")
    assert 1.0 < product.ns / (2e13 / chip.matrix["bf16"] * 1e9) < 2.0
    moved = estimate_work("elementwise", 0.0, 4e9, "fp32", chip)
    assert 0.9 < moved.ns / (4e9 / chip.bandwidth * 1e9) < 1.5
    nothing = estimate_work("elementwise", 0.0, 64.0, "fp32", chip)
    assert 500 < nothing.ns < 10_000
    three = estimate_work("elementwise", 0.0, 64.0, "fp32", chip, kernels=3)
    assert three.ns == pytest.approx(3 * nothing.ns, rel=0.1)


def test_time_never_falls_with_work() -> None:
    sizes = np.geomspace(1.0, 1e11, 60)
    for family in load_families():
        found = estimate_works(
            [family or "fft"] * 60, 10 * sizes, sizes, ["fp32"] * 60, "A100-SXM4-40GB"
        )
        assert (np.diff(found.ns) >= 0).all(), family


def test_a_type_without_units_of_its_own_says_what_stands_in() -> None:
    assert "fp16" in estimate_work("gemm", 1e12, 1e8, "fp8", "A100-SXM4-80GB", unit="matrix").source
    assert "fp32 vectors" in estimate_work("gemm", 1e12, 1e8, "tf32", "V100-SXM2-32GB",
                                           unit="matrix").source  # fmt: skip
    assert "rate of" not in estimate_work("gemm", 1e12, 1e8, "fp32", "H200", unit="matrix").source


def test_operands_that_are_not_contiguous_take_longer() -> None:
    strided = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl>"
    assert family_variant("elementwise", strided) == "strided"
    assert (
        family_variant("elementwise", "void at::native::vectorized_elementwise_kernel<4>")
        == "elementwise"
    )
    assert family_variant("gemm", strided) == "gemm"
    slow = estimate_work("elementwise", 0, 1e9, "fp32", "H200", kernel=strided)
    assert slow.ns > 1.2 * estimate_work("elementwise", 0, 1e9, "fp32", "H200").ns


@pytest.mark.parametrize(
    ("family", "flops", "size", "device", "reason"),
    [
        ("gemm", np.nan, np.nan, "H200", "neither the bytes nor the flops"),
        ("communication", 0.0, 1e6, "H200", "communication is no work"),
        ("gemm", 1e9, 1e6, "nothing", "no device of that name"),
    ],
)
def test_why_there_is_no_answer(
    family: str, flops: float, size: float, device: str, reason: str
) -> None:
    with pytest.raises(UnknownDurationError, match=reason):
        estimate_work(family, flops, size, "bf16", device)
