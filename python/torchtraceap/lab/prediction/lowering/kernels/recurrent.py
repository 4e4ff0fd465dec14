"""Algorithms, durations and kernels of recurrent layers.

Note [Steps of a recurrent layer]: one product multiplies the inputs of all steps by their weights;
the states can't be batched, since each depends on the previous one. cuDNN's standard algorithm,
like MIOpen, launches a small product and a kernel for the gates in every step, so that even a small
layer takes as many of the shortest kernels as it has steps. Its persistent algorithms keep the
weights on the chip and run all steps in one kernel with a barrier per step. ATen chooses the
algorithm (`get_algo` in `cudnn/RNN.cpp` of 2.7). In the backward pass the gradients of states take
such steps too; those of weights and inputs are products over all steps at once. Layers and
directions can overlap on streams of the library, which the interval's lower end allows for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torchtraceap.core import DType
from torchtraceap.lab.prediction.capture.calls import TensorInfo
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    ceil_div,
    number_at,
    opmath_name,
    rule,
)
from torchtraceap.lab.prediction.lowering.step import LaunchingOp
from torchtraceap.ops import (
    Calibration,
    Device,
    Estimate,
    dtype_label,
    elementwise_ns,
    gemm_ns,
    peak_rate,
)

__all__ = ["RULES", "Recurrent", "recurrent_of", "recurrent_time"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""

_RELU, _TANH, _LSTM, _GRU = range(4)
_GATES = {_LSTM: 4, _GRU: 3}
"""Gates of each state; plain layers have one."""


_OPERATORS: Mapping[str, int] = MappingProxyType(
    {
        "aten::_cudnn_rnn": 6,
        "aten::_cudnn_rnn_backward": 10,
        "aten::miopen_rnn": 5,
        "aten::miopen_rnn_backward": 10,
    }
)
"""Operators that run whole recurrent layers, with the place of the mode among their arguments
(`torch.ops.aten._cudnn_rnn.default._schema`); the size of projections is an argument of cuDNN's."""

_BARRIER_NS = 3_000.0
"""Time of a barrier over all blocks, including reading each other's states.

It is an assumption without a public measurement, which `_SPREAD` covers.
"""
_SPREAD = 3.0
_WIDEST_SMALL = {False: {_RELU: 384, _TANH: 384, _LSTM: 192, _GRU: 192},
                 True: {_RELU: 256, _TANH: 256, _LSTM: 128, _GRU: 128}}  # fmt: skip
"""Largest hidden size for cuDNN's small-layer algorithm; True: backward."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """The recurrent layers of one operator."""

    mode: int
    """Value of cudnnRNNMode_t."""
    steps: int
    batch: int
    features: int
    """Features of the input."""
    hidden: int
    projected: bool
    layers: int
    directions: int
    packed: bool
    """True if the sequences differ in length."""
    dtype: DType
    backward: bool

    @property
    def gates(self) -> int:
        """Gates per hidden feature."""
        return _GATES.get(self.mode, 1)

    def persistent(self, device: Device) -> bool:
        """Return whether one kernel runs all steps of a layer.

        See Note [Steps of a recurrent layer].
        """
        if device.vendor == "amd" or self.projected or self.packed:
            return False
        if self.dtype.name != "float64" and self.hidden <= _WIDEST_SMALL[self.backward][self.mode]:
            return True
        is_single = self.layers == 1 and self.directions == 1
        if self.dtype.name != "float16" or not is_single or self.hidden > 1024:
            return False
        if self.hidden % 128 or self.features % 128:
            return False
        # The limits are those that ATen measured for each generation.
        major, _, minor = device.architecture.partition(".")
        batch, wide = self.batch, self.mode in (_RELU, _TANH) and self.hidden >= 896
        if major == "7":
            fits = (batch % 16 == 0 and batch not in (80, 112)) or batch == 8
            long = ((40, 128), (20, 96), (10, 32))
            enough = any(self.steps >= least and batch <= most for least, most in long)
            return minor != "5" and fits and enough
        if not major.isdecimal() or int(major) < 8 or minor == "6":
            return False
        fits = batch % 8 == 0 and batch <= (95 if wide else 128)
        return self.mode != _GRU and fits and (device.multiprocessors or 0) >= 98


def recurrent_of(op: LaunchingOp) -> Recurrent | None:
    """Return the layers of an operator; None for others or unknown arguments."""
    place, source = _OPERATORS.get(op.name), op.value(0)
    if place is None or not isinstance(source, TensorInfo) or len(source.shape) < 2:
        return None
    projects = "cudnn" in op.name
    # Mode, hidden size and projection come first, then layers, and four options later directions.
    layers = place + (3 if projects else 2)
    lengths = op.value(layers + 5)
    packed = isinstance(lengths, tuple) and bool(lengths)
    steps = len(lengths) if isinstance(lengths, tuple) and lengths else source.shape[0]
    rows = source.elements // max(1, source.shape[-1])
    mode = int(number_at(op, place, _LSTM))
    return Recurrent(
        mode=mode if mode in range(4) else _TANH,
        steps=max(1, steps),
        batch=max(1, -(-rows // max(1, steps))),
        features=source.shape[-1],
        hidden=max(1, int(number_at(op, place + 1, 1))),
        projected=projects and int(number_at(op, place + 2, 0)) > 0,
        layers=max(1, int(number_at(op, layers, 1))),
        directions=2 if op.value(layers + 4) is True else 1,
        packed=packed,
        dtype=source.dtype,
        backward=op.name.endswith("_backward"),
    )


def recurrent_time(
    layers: Recurrent, device: Device, calibration: Calibration | None
) -> Estimate | None:
    """Return the GPU time of the operator; None if the device lacks such products."""
    clock = _Clock(layers, device, calibration)
    persistent = layers.persistent(device)
    walked = clock.persistent() if persistent else clock.stepped()
    if walked is None:
        return None
    alike = layers.layers * layers.directions
    at_once = 0.0
    for layer in range(layers.layers):
        wide = layers.features if layer == 0 else layers.directions * layers.hidden
        products = clock.products_of_all_steps(wide)
        if products is None:
            return None
        at_once += layers.directions * products
    total = at_once + alike * walked
    overlapped = at_once + alike * walked / min(alike, 2)
    way = "in one kernel" if persistent else "each a product and its gates"
    source = f"{layers.steps} steps of {alike} recurrent layers, {way}, by models of those kernels"
    return Estimate(total, overlapped / _SPREAD, total * _SPREAD, source)


class _Clock:
    """Durations of the parts of a recurrent layer, ns; None if unknown."""

    def __init__(self, layers: Recurrent, device: Device, calibration: Calibration | None) -> None:
        self._layers, self._device, self._calibration = layers, device, calibration
        half = layers.dtype.size <= 2
        of_fp32 = "tf32" if "tf32" in device.matrix else "fp32"  # as torch.backends.cudnn allows
        self._math = layers.dtype.name if half or layers.dtype.size > 4 else of_fp32

    def products_of_all_steps(self, features: int) -> float | None:
        """Return the products over all steps of a layer and direction, for the inputs or their
        gradients."""
        of, gated = self._layers, self._layers.gates * self._layers.hidden
        rows = of.steps * of.batch
        if not of.backward:
            return self._product(rows, gated, features)
        found = (
            self._product(rows, features, gated),
            self._product(gated, features, rows),
            self._product(gated, of.hidden, rows),
        )
        return sum(each for each in found if each is not None) if None not in found else None

    def stepped(self) -> float | None:
        """Return all steps of a layer with two kernels each."""
        of = self._layers
        product = self._product(of.batch, of.gates * of.hidden, of.hidden)
        gates = elementwise_ns(
            "add", of.batch * of.gates * of.hidden, of.dtype.name, self._device, calibration=None
        )
        return None if product is None or gates is None else of.steps * (product + gates.ns)

    def persistent(self) -> float:
        """Return all steps of a layer in one kernel, at the peak rate after a barrier each."""
        of = self._layers
        rate = peak_rate(self._device, dtype_label(self._math))
        flops = 2.0 * of.batch * of.gates * of.hidden * of.hidden
        return of.steps * (_BARRIER_NS + 1e9 * flops / rate)

    def _product(self, m: int, n: int, k: int) -> float | None:
        found = gemm_ns(m, n, k, self._math, self._device, calibration=self._calibration)
        return None if found is None else found.ns


# ------------------------------------------------------------------------------------- kernels

_KINDS = {_LSTM: "LSTM", _GRU: "GRU"}
_TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float64": "double"}
_TILE = 128


@rule(RULES, (name.removeprefix("aten::") for name in _OPERATORS))
def _layers(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch all kernels of the operator, layer by layer."""
    of = recurrent_of(op)
    if of is None:
        return ()
    gated, rows = of.gates * of.hidden, of.steps * of.batch
    at_once = [_product(setting, rows, gated)]
    if of.backward:
        sizes = ((rows, of.features), (gated, of.features), (gated, of.hidden))
        at_once = [_product(setting, m, n) for m, n in sizes]
    kind, way = _KINDS.get(of.mode, "RNN"), "bp" if of.backward else "fp"
    t = _TYPES.get(of.dtype.name, "float")
    types = f"<{t}, {t}, {opmath_name(of.dtype)}>"
    if of.persistent(setting.device):
        grid = min(setting.processors, ceil_div(of.hidden, 8))
        name = f"void RNN_blockPersist_{way}_{kind}{types}(int, int)"
        steps = [Launch(name, grid, 256, None, 168, 98304)]
    else:
        name = f"void {kind}_elementWise_{way}{'1' * of.backward}{types}(int, int, int, int)"
        if setting.is_amd:
            name = f"{kind}{'Bwd' if of.backward else 'Fwd'}HidUpdate"
        gates = Launch(name, ceil_div(of.hidden * of.batch, 256), 256)
        steps = [_product(setting, of.batch, gated), gates] * of.steps
    layer = [*steps, *at_once] if of.backward else [*at_once, *steps]
    return layer * of.layers * of.directions


def _product(setting: Setting, m: int, n: int) -> Launch:
    grid = (ceil_div(n, _TILE), ceil_div(m, _TILE), 1)
    if setting.is_amd:
        name = f"Cijk_Ailk_Bljk_SB_MT{_TILE}x{_TILE}x16"
        return Launch(name, grid, 256, None, 128, 32768)
    chip = {7: "volta", 8: "ampere"}.get(setting.generation, "sm80_xmma")
    return Launch(f"{chip}_sgemm_{_TILE}x{_TILE}_tn", grid, 256, None, 122, 33792)
