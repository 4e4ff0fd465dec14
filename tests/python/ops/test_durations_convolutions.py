"""Times of convolutions: on measured ones, by the hardware's limits, and in how they differ."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from torchtraceap.ops import durations
from torchtraceap.ops.devices import load_devices
from torchtraceap.ops.models.arguments import OpCall

_BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "simulation" / "convolutions.py"
_GPUS = ("h100_sxm", "a100_sxm_40gb", "mi300x", "rtx_4090", "v100_sxm2_32gb")


def forward(
    image: tuple[int, ...],
    filters: tuple[int, ...],
    dtype: str = "c10::BFloat16",
    stride: int = 1,
    *,
    last: bool = False,
) -> OpCall:
    rank = len(image) - 2
    pad = str([filters[2] // 2] * rank)
    groups = str(image[1] // filters[1])
    values = ["", "", pad, str([stride] * rank), str([1] * rank), groups, "False", "False", "True"]
    dims: list[Any] = [list(image), list(filters), *[[]] * 7]
    c, h, w = image[1:]
    strides = [[c * h * w, 1, w * c, c] if last else [c * h * w, h * w, w, 1], [], *[[]] * 7]
    return OpCall("aten::cudnn_convolution", dims, [dtype] * 2 + ["Scalar"] * 7, strides, values)


def backward(mask: str, filters: tuple[int, ...] = (256, 256, 3, 3)) -> OpCall:
    sizes: list[Any] = [[32, 256, 28, 28], [32, 256, 28, 28], list(filters), *[[]] * 8]
    values = ["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask]
    types = ["c10::BFloat16"] * 3 + ["Scalar"] * 8
    return OpCall("aten::convolution_backward", sizes, types, None, values)


def asked(call: OpCall, device: str, kernels: int = 1) -> durations.Estimate:
    found = durations.op_ns(call, device, kernels=kernels, strict=True)
    assert found is not None and found.source.startswith("a convolution")
    assert 0 < found.low_ns < found.ns < found.high_ns
    return found


@pytest.mark.parametrize("device", _GPUS)
@pytest.mark.parametrize(
    ("image", "filters", "stride"),
    [
        ((32, 3, 224, 224), (64, 3, 7, 7), 2),
        ((32, 64, 56, 56), (64, 64, 3, 3), 1),
        ((32, 256, 56, 56), (512, 256, 1, 1), 2),
        ((32, 128, 28, 28), (128, 4, 3, 3), 1),
        ((32, 192, 56, 56), (192, 1, 7, 7), 1),
        ((1, 768, 14, 14), (768, 768, 1, 1), 1),
    ],
)
def test_no_convolution_is_faster_than_memory_or_the_units(
    device: str, image: tuple[int, ...], filters: tuple[int, ...], stride: int
) -> None:
    chip = load_devices()[device]
    for dtype, width in (("float", 4), ("c10::Half", 2), ("c10::BFloat16", 2)):
        found = asked(forward(image, filters, dtype, stride), device, 2)
        positions = image[0] * (image[2] // stride) * (image[3] // stride)
        moved = width * (np.prod(image) + filters[0] * positions)
        assert found.ns > 1e9 * moved / chip.bandwidth
        flops = 2 * positions * np.prod(filters) / 2.25  # multiplications that Winograd saves
        assert found.ns > 1e9 * flops / max([*chip.matrix.values(), *chip.vector.values()])
        assert found.ns < 5e7 and found.high_ns < 10 * found.low_ns


def test_what_makes_a_convolution_slow() -> None:
    def time(call: OpCall) -> float:
        return asked(call, "H100 SXM", 2).ns

    image, filters = (64, 256, 56, 56), (256, 256, 3, 3)
    plain = time(forward(image, filters))
    assert time(forward(image, filters, last=True)) < plain  # nothing to transpose
    assert time(forward(image, filters, "float")) > 1.5 * plain
    # An image's three channels fill no load: as slow as many times more of them.
    patches = time(forward((64, 3, 224, 224), (768, 3, 16, 16), stride=16))
    assert patches > 3 * time(forward((64, 48, 56, 56), (768, 48, 4, 4), stride=4))
    # A depthwise one has 256 times fewer products, and takes far more than that of the time.
    assert time(forward(image, (256, 1, 3, 3))) > plain / 10
    assert time(forward((1, 256, 14, 14), filters)) < 60e3


def test_backward_passes_take_what_is_wanted() -> None:
    def time(mask: str) -> float:
        return asked(backward(mask), "A100-SXM4-80GB").ns

    both, one = time("[True, True, False]"), time("[False, True, False]")
    assert 1.5 * one < both < 2.1 * one
    wide = asked(backward("[True, True, False]"), "A100-SXM4-80GB")
    narrow = asked(forward((32, 256, 28, 28), (256, 256, 3, 3)), "A100-SXM4-80GB")
    assert wide.high_ns / wide.ns > narrow.high_ns / narrow.ns


def test_what_says_no_sizes_is_left_to_the_family() -> None:
    call = OpCall("aten::cudnn_convolution", [[8, 64, 56, 56], [64, 64, 3, 3]], ["float"] * 2)
    assert durations.op_ns(call, "H100 SXM") is None  # no stride, no work


def test_measured_convolutions_are_told() -> None:
    """KernelBench's, also those that no number was taken from."""
    benchmark = _benchmark()
    ratios: dict[tuple[str, str], list[float]] = {}
    inside = []
    for row in benchmark.of_kernelbench():
        found = asked(row.call, load_devices()[row.device].id, row.kernels)
        ratios.setdefault((row.source, row.device), []).append(row.ns / found.ns)
        inside.append(found.low_ns <= row.ns <= found.high_ns)
    assert len(inside) == 58
    for key, limit in ((("KernelBench fit", "h100_sxm"), 0.25),
                       (("KernelBench test", "h100_sxm"), 0.45),
                       (("KernelBench fit", "a10"), 0.45)):  # fmt: skip
        assert np.median(np.abs(np.log(ratios[key]))) < limit
    assert np.mean(inside) > 0.75


def _benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("convolutions_benchmark", _BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
