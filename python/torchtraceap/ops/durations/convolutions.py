"""How long a convolution takes, forward or backward, by what the libraries' kernels do.

Note [Convolutions]
The work is a product of matrices: rows are output positions, columns the output channels of a
group, summed are input channels times taps (backward: with the roles exchanged). One call takes

    kernels x start + transposes + the longer of moving and computing

- *On matrix units* columns come in tiles of 128 and rows in tiles of 128, of which each
  multiprocessor has one at a time; a share of the peak is reached at best (`_MATRIX`; on AMD's half
  of it, as of their products). The kernels want channels last: images that are not are transposed
  on the way in and out, but for filters of one tap.
- *Few channels* (fewer than 16 bytes of them, as of an image) can't be loaded by these kernels:
  such take as many clocks of a multiprocessor on all GPUs and in all types.
- *On vector units* (fp32 without tf32) a filter of 3 x 3 with stride 1 takes 2.25 times fewer
  multiplications (Winograd).
- *Depthwise* filters are computed one output element in a lane: so many clocks, and more for each
  tap.

The numbers are rounded from convolutions of KernelBench on H100 (tf32, forward; the problems that
benchmarks/simulation/convolutions.csv marks as `fit`), of a ResNet-50 on V100 (fp32, forward and
backward), for few channels from first layers on V100 and A100; the start of AMD's from a ResNet-18
on MI300X. Backward passes on matrix units were measured there only, in small sizes.
docs/durations.md says how far off they are elsewhere, which is what the intervals are.
"""

from __future__ import annotations

from math import ceil, prod

from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.estimate import Estimate
from torchtraceap.ops.durations.families import usable_rate
from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.ops.models.registry import Work

__all__ = ["Convolution", "convolution_of", "estimate_convolution"]

_START_NS = {"nvidia": 3000.0, "amd": 5000.0}
_MATRIX = {"nvidia": 0.65, "amd": 0.33}
_VECTOR = 0.65
# Flops in a clock of a multiprocessor where channels are few.
_FEW_CHANNELS = 105.0
_MOVING = 1.2
_TILE = 128
# With fewer tiles than multiprocessors the sum is split, as far as so many parts.
_PARTS = 4.0
_LOAD_BYTES = 16
_WINOGRAD = 2.25
_LANES = {"nvidia": 128, "amd": 64}
_LANE_CLOCKS, _TAP_CLOCKS = 280.0, 16.0
_FACTORS = {"matrix": 1.9, "few": 2.2, "vector": 1.4, "depthwise": 1.6}
_BACKWARD_WIDER = 1.25
_SAYS = {
    "matrix": "as products in tiles on matrix units, images transposed where channels are not last",
    "few": "too few channels for matrix units: so many flops in a clock of a multiprocessor",
    "vector": "as products on vector units",
    "depthwise": "one output element in a lane",
}
_TRANSPOSED = "convolution_transpose"


@dataclass(frozen=True, slots=True)
class Convolution:
    """One pass or two of a convolution; sizes of a group."""

    positions: int
    """Output positions of all images (of a transposed one: input positions)."""
    inputs: int
    """Channels that are summed over."""
    outputs: int
    groups: int
    taps: int
    unit_stride: bool
    passes: int
    """Products: one forward, up to two backward."""
    backward: bool
    flops: float
    size: float
    """Bytes that are read and written."""
    images: float
    """Bytes of those that are images: not filters."""
    width: int
    """Bytes of an element."""
    channels_last: bool

    @property
    def depthwise(self) -> bool:
        """Each channel by itself."""
        return self.inputs == 1 and self.groups > 1

    @property
    def columns(self) -> int:
        """Channels of the result, of a group."""
        return self.inputs if self.backward else self.outputs

    def way(self, unit: str) -> str:
        """Which kind of kernel computes it."""
        if self.depthwise:
            return "depthwise"
        few = min(self.inputs, self.outputs) * self.width < _LOAD_BYTES
        return "few" if few and self.groups == 1 else unit


def convolution_of(call: OpCall, work: Work) -> Convolution | None:
    """Sizes of a call; None where it does not say them.

    Args:
        call: A convolution, forward or backward, of ATen or of a library.
        work: What it computes and moves.
    """
    if not work.flops:
        return None
    backward = "backward" in call.name
    if backward and not call.name.startswith("aten::convolution_backward"):
        return None  # halves of older releases, without the input's or the filter's sizes
    try:
        image, weight = (call.tensor(place) for place in ((1, 2) if backward else (0, 1)))
    except UnknownWorkError:
        return None
    if min(prod(weight.shape), len(weight.shape) - 2, prod(image.shape)) < 1:
        return None
    transposed = _TRANSPOSED in call.name
    inputs, outputs = weight.shape[1], weight.shape[0]
    groups = 1 if transposed else max(image.shape[1] // inputs, 1)
    if transposed:
        inputs, outputs = outputs, inputs
    passes = _passes(call) if backward else 1
    positions = round(work.flops / passes / (2.0 * prod(weight.shape)))
    return Convolution(
        positions=positions,
        inputs=inputs,
        outputs=max(outputs // groups, 1),
        groups=groups,
        taps=prod(weight.shape[2:]),
        unit_stride=positions > 0.5 * image.elements / image.shape[1],
        passes=passes,
        backward=backward,
        flops=work.flops,
        size=work.bytes,
        images=max(work.bytes - passes * weight.bytes, 0.0),
        width=image.dtype.size,
        channels_last=_is_last(image),
    )


def _passes(call: OpCall) -> int:
    """Gradients of input and filter that are wanted."""
    return max(sum(call.booleans(len(call) - 1)[:2]), 1)


def _is_last(image: Tensor) -> bool:
    """Whether channels are the innermost dimension, as far as strides are recorded."""
    return image.strides is not None and len(image.strides) > 1 and image.strides[1] == 1


def estimate_convolution(
    call: OpCall, work: Work, dtype: str, device: Device, kernels: int = 1
) -> Estimate | None:
    """Time of a convolution; None where the call does not say its sizes; Note [Convolutions].

    Args:
        call: As `convolution_of` takes it.
        work: What it computes and moves.
        dtype: In which it computes on this device (`type_on`).
        device: The GPU.
        kernels: How many it launches.
    """
    found = convolution_of(call, work)
    start, clocks = _START_NS.get(device.vendor), _clocks(device)
    if found is None or start is None or not clocks or not device.vector.get("fp32"):
        return None
    peak = _matrix_peak(dtype, device)
    way = found.way("matrix" if peak else "vector")
    computing = _computing(found, way, peak, dtype, device)
    moving = _MOVING * found.size / device.bandwidth
    turned = way == "matrix" and found.taps > 1 and not found.channels_last
    turning = 2.0 * found.images / device.bandwidth if turned else 0.0
    ns = kernels * start + 1e9 * (turning + max(moving, computing))
    factor = _FACTORS[way] * (_BACKWARD_WIDER if found.backward else 1.0)
    return Estimate.around(ns, factor, f"a convolution {_SAYS[way]}")


def _clocks(device: Device) -> float:
    """Of all multiprocessors in a second."""
    return device.multiprocessors * device.clock_mhz * 1e6


def _matrix_peak(dtype: str, device: Device) -> float:
    """flop/s; 0 where matrix units don't compute in this type."""
    rate, stand_in = usable_rate(device, dtype, "matrix")
    return rate if rate and (stand_in or dtype) in device.matrix else 0.0


def _computing(found: Convolution, way: str, peak: float, dtype: str, device: Device) -> float:
    """Seconds of computing alone."""
    if way == "matrix":
        return _tiled(found, device.multiprocessors) / (_MATRIX[device.vendor] * peak)
    if way == "few":
        waves = _waves(found, device.multiprocessors)
        return waves * found.flops / (_FEW_CHANNELS * _clocks(device))
    if way == "depthwise":
        elements = found.positions * found.outputs * found.groups * found.passes
        lanes = _LANES[device.vendor] * _clocks(device)
        return elements * (_LANE_CLOCKS + _TAP_CLOCKS * found.taps) / lanes
    rate = usable_rate(device, dtype, "vector")[0] or device.vector["fp32"]
    saved = _WINOGRAD if found.taps == 9 and found.unit_stride else 1.0
    return found.flops / saved / (_VECTOR * rate)


def _tiled(found: Convolution, processors: int) -> float:
    """Flops of whole tiles in whole waves of them."""
    columns = found.columns
    whole = ceil(columns / _TILE) * _TILE / columns
    return found.flops * whole * _waves(found, processors)


def _waves(found: Convolution, processors: int) -> float:
    """Time of whole waves of tiles over that of as many tiles without gaps."""
    tiles = ceil(found.positions / _TILE) * ceil(found.columns / _TILE) * found.groups
    return min(ceil(tiles / processors) * processors / tiles, _PARTS)
