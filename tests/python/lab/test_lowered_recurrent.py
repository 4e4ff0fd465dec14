"""Recurrent layers on a GPU: as many steps as there are, by the algorithm that ATen chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torchtraceap.core.dtypes import parse_dtype
from torchtraceap.lab.prediction.lowering.kernels.recurrent import Recurrent, recurrent_time
from torchtraceap.ops.devices import device_named
from torchtraceap.ops.durations import gemm_ns

H100 = device_named("H100-SXM")
_FP32, _FP16, _BF16 = (parse_dtype(each) for each in ("fp32", "fp16", "bf16"))
assert _FP32 is not None and _FP16 is not None and _BF16 is not None
LSTM = Recurrent(2, 100, 32, 256, 512, False, 1, 1, False, _FP32, False)


def ns(layers: Recurrent, device: Any = H100) -> float:
    found = recurrent_time(layers, device, None)
    assert found is not None and 0 < found.low_ns < found.ns < found.high_ns
    return found.ns


def test_a_layer_takes_as_long_as_its_steps_in_turn() -> None:
    step = gemm_ns(32, 2048, 512, "tf32", H100)
    assert step is not None
    assert ns(LSTM) > 100 * step.ns
    assert ns(replace(LSTM, steps=200)) == pytest.approx(2 * ns(LSTM), rel=0.1)
    assert ns(replace(LSTM, directions=2)) == pytest.approx(2 * ns(LSTM), rel=0.01)
    assert ns(replace(LSTM, layers=3)) == pytest.approx(3 * ns(LSTM), rel=0.1)
    assert ns(replace(LSTM, backward=True)) > ns(LSTM)
    assert ns(LSTM, device_named("MI300X")) > 100 * 1000


def test_the_algorithm_is_the_one_that_aten_chooses() -> None:
    def one_kernel(device: Any = H100, **changes: Any) -> bool:
        return replace(LSTM, **changes).persistent(device)

    assert not one_kernel()
    assert one_kernel(hidden=192) and not one_kernel(hidden=192, backward=True)
    assert not one_kernel(hidden=128, packed=True) and not one_kernel(hidden=128, projected=True)
    assert one_kernel(mode=1, hidden=384) and not one_kernel(mode=3, hidden=384)
    assert one_kernel(dtype=_FP16) and not one_kernel(dtype=_BF16)
    assert not one_kernel(dtype=_FP16, batch=130) and not one_kernel(dtype=_FP16, layers=2)
    assert not one_kernel(dtype=_FP16, mode=3) and not one_kernel(dtype=_FP16, hidden=513)
    assert not one_kernel(device_named("RTX 3090"), dtype=_FP16)
    assert one_kernel(device_named("V100-SXM2-16GB"), dtype=_FP16)
    assert not one_kernel(device_named("V100-SXM2-16GB"), dtype=_FP16, steps=5)
    assert not one_kernel(device_named("MI300X"), hidden=64)


@pytest.mark.parametrize("device", ["H100-SXM", "MI300X", "RTX 3090"])
@pytest.mark.parametrize(("layer", "kernels"), [("LSTM", 2 * (1 + 2 * 20)), ("GRU", 2 * 41)])
def test_a_predicted_layer_launches_its_steps(device: str, layer: str, kernels: int) -> None:
    torch = pytest.importorskip("torch")
    import torchtraceap as ttap

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(torch.nn, layer)(256, 512, 2)

        def forward(self, x: Any) -> Any:
            return self.layer(x)[0]

    found = ttap.predict(Model(), (torch.randn(20, 8, 256),), device=device)
    name = "aten::miopen_rnn" if device == "MI300X" else "aten::_cudnn_rnn"
    (op,) = (each for each in found.ops if each.name == name)
    assert op.kernels == kernels
    assert op.gpu_ns > 40 * 2_000
    assert not found.unknown
