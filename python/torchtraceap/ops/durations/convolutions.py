"""Estimate the time of a convolution, forward or backward, from the way library kernels compute it.

Note [Convolutions]
The work is a matrix product: rows are output positions, columns are the output channels of a group,
and the sum runs over input channels times taps (with exchanged roles backward). One call takes

    kernels x start + transposes + the longer of moving and computing

- *On matrix units* rows and columns come in tiles of 128 by 128, of which each multiprocessor
  computes one at a time. The kernels reach a share of the peak at best (`_MATRIX`; half of it on
  AMD, as for matrix products). They need channels-last images: other images are transposed on the
  way in and out, except for filters of one tap.
- *Few channels* (fewer than 16 bytes, as in an RGB image) cannot be loaded by these kernels. Such
  convolutions take a fixed number of clocks of a multiprocessor on all GPUs and in all types.
- *On vector units* (fp32 without tf32) a filter of 3 x 3 with stride 1 takes 2.25 times fewer
  multiplications (Winograd).
- *Depthwise* filters are computed with one output element per lane, which takes a fixed number of
  clocks plus some for each tap.

The numbers are rounded fits to convolutions of KernelBench on H100 (tf32, forward; the problems
marked `fit` in benchmarks/simulation/convolutions.csv), of a ResNet-50 on V100 (fp32, forward and
backward) and, for few channels, of first layers on V100 and A100. The startup time of AMD comes
from a ResNet-18 on MI300X, the only source of backward passes on matrix units, in small sizes.
docs/results/durations.md reports the errors on other convolutions, which set the intervals.
"""

from __future__ import annotations

from math import ceil, prod

from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.estimate import Estimate
from torchtraceap.ops.durations.families import usable_rate
from torchtraceap.ops.models.arguments import OpCall, UnknownWorkError
from torchtraceap.ops.models.registry import Work

__all__ = ["Convolution", "convolution_sizes", "estimate_convolution"]

_START_NS = {"nvidia": 3000.0, "amd": 5000.0}
_MATRIX = {"nvidia": 0.65, "amd": 0.33}
_VECTOR = 0.65
# FLOPs per clock of a multiprocessor for few channels.
_FEW_CHANNELS = 105.0
_MOVING = 1.2
_TILE = 128
# The sum is split into at most this many parts if there are fewer tiles than multiprocessors.
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
    """Sizes of a forward or backward convolution; channels are those of one group."""

    positions: int
    """Output positions of all images (input positions if it is transposed)."""
    inputs: int
    """Input channels, which are summed over."""
    outputs: int
    groups: int
    taps: int
    unit_stride: bool
    passes: int
    """Number of matrix products: one forward, up to two backward."""
    backward: bool
    flops: float
    size: float
    """Bytes read and written."""
    images: float
    """Bytes read and written that belong to images, not filters."""
    width: int
    """Bytes of an element."""
    channels_last: bool

    @property
    def depthwise(self) -> bool:
        """True if each channel is convolved separately."""
        return self.inputs == 1 and self.groups > 1

    @property
    def columns(self) -> int:
        """Channels of the result in one group."""
        return self.inputs if self.backward else self.outputs

    def kernel_kind(self, unit: str) -> str:
        """Return the kind of kernel: "depthwise", "few", or the unit "matrix" or "vector"."""
        if self.depthwise:
            return "depthwise"
        few = min(self.inputs, self.outputs) * self.width < _LOAD_BYTES
        return "few" if few and self.groups == 1 else unit


def convolution_sizes(call: OpCall, work: Work) -> Convolution | None:
    """Read the sizes of a call; None if the call does not record them.

    Args:
        call: Forward or backward convolution of ATen or of a library.
        work: Work of the call.
    """
    if not work.flops:
        return None
    backward = "backward" in call.name
    if backward and not call.name.startswith("aten::convolution_backward"):
        return None  # separate gradients of older releases lack the sizes of input or filter
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
    # The last argument is the mask of wanted gradients: input, filter, bias.
    passes = max(sum(call.booleans(len(call) - 1)[:2]), 1) if backward else 1
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
        channels_last=image.strides is not None and image.strides[1:2] == (1,),
    )


def estimate_convolution(
    call: OpCall, work: Work, dtype: str, device: Device, kernels: int = 1
) -> Estimate | None:
    """Estimate the time of a convolution; see Note [Convolutions].

    Args:
        call: Forward or backward convolution of ATen or of a library.
        work: Work of the call.
        dtype: Type in which the device computes it (see `compute_type_on`).
        device: The GPU.
        kernels: Number of kernels that it launches.

    Returns:
        None if the call does not record its sizes or the device lacks a rate.
    """
    found = convolution_sizes(call, work)
    start, clocks = _START_NS.get(device.vendor), _clocks(device)
    if found is None or start is None or not clocks or not device.vector.get("fp32"):
        return None
    rate, stand_in = usable_rate(device, dtype, "matrix")
    peak = rate if rate and (stand_in or dtype) in device.matrix else 0.0
    kind = found.kernel_kind("matrix" if peak else "vector")
    computing = _compute_seconds(found, kind, peak, dtype, device)
    moving = _MOVING * found.size / device.bandwidth
    transposed = kind == "matrix" and found.taps > 1 and not found.channels_last
    transposing = 2.0 * found.images / device.bandwidth if transposed else 0.0
    ns = kernels * start + 1e9 * (transposing + max(moving, computing))
    factor = _FACTORS[kind] * (_BACKWARD_WIDER if found.backward else 1.0)
    return Estimate.within_factor(ns, factor, f"a convolution {_SAYS[kind]}")


def _clocks(device: Device) -> float:
    """Return the clocks of all multiprocessors per second."""
    return device.multiprocessors * device.clock_mhz * 1e6


def _compute_seconds(
    found: Convolution, kind: str, peak: float, dtype: str, device: Device
) -> float:
    """Return the seconds of computing alone; `peak` is that of the matrix units in flop/s."""
    if kind == "matrix":
        columns_in_tiles = ceil(found.columns / _TILE) * _TILE / found.columns
        tiled = found.flops * columns_in_tiles * _wave_padding(found, device.multiprocessors)
        return tiled / (_MATRIX[device.vendor] * peak)
    if kind == "few":
        waves = _wave_padding(found, device.multiprocessors)
        return waves * found.flops / (_FEW_CHANNELS * _clocks(device))
    if kind == "depthwise":
        elements = found.positions * found.outputs * found.groups * found.passes
        lanes = _LANES[device.vendor] * _clocks(device)
        return elements * (_LANE_CLOCKS + _TAP_CLOCKS * found.taps) / lanes
    rate = usable_rate(device, dtype, "vector")[0] or device.vector["fp32"]
    saved = _WINOGRAD if found.taps == 9 and found.unit_stride else 1.0
    return found.flops / saved / (_VECTOR * rate)


def _wave_padding(found: Convolution, processors: int) -> float:
    """Return the time of whole waves of tiles over that of the same tiles without idle slots."""
    tiles = ceil(found.positions / _TILE) * ceil(found.columns / _TILE) * found.groups
    return min(ceil(tiles / processors) * processors / tiles, _PARTS)
