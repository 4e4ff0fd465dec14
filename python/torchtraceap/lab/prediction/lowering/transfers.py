"""Transfers between ranks and between host and GPU: their GPU work and times.

Note [Copies and the host]: torch waits for a copy without `non_blocking`, whatever its size. The
driver stages a copy from or to pageable memory and starts it behind the earlier work of its stream:
the host waits for it even with `non_blocking`, except for small copies to the GPU, which return
once they are staged. A copy from or to pinned memory with `non_blocking` is an ordinary launch.
"""

from __future__ import annotations

from math import ceil

from torchtraceap.lab.prediction.capture.calls import Collective, Move, TensorInfo
from torchtraceap.lab.prediction.lowering.step import GpuWork, OpTime, WorkKind
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import Calibration, Estimate, collective_kind, collective_ns
from torchtraceap.ops.durations.copies import estimate_copy

__all__ = ["GPUS_PER_NODE", "NETWORK", "collective_time", "collective_work", "host_copy"]

GPUS_PER_NODE = 8
_LATENCY_NS = 20_000.0
NETWORK = 25e9
"""Default network bandwidth of each GPU, byte/s: 200 Gbit/s."""
_SPREAD = 3.0
_REDUCING = {"all_reduce": "AllReduce_Sum", "reduce_scatter": "ReduceScatter_Sum"}
_MOVING = {"all_gather": "AllGather", "broadcast": "Broadcast", "reduce": "Reduce_Sum"}
_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64",
          "int64": "i64", "int32": "i32", "uint8": "u8", "int8": "i8"}  # fmt: skip
_THREADS = 512
_CHANNELS = 24

_STAGED_BYTES = 64 * 1024
"""Largest copy from pageable memory that returns once it is staged."""
_STAGED_NS = 10_000.0
_BLOCKED_NS = 150_000.0
"""Overhead of a blocking copy: 80 to 230 us for 4 to 150 MB in traces of V100, A100, GP100, H100
and MI300X; staged ones take 5 to 19 us."""
_PINNED_NS = 6_000.0
"""Launch of a copy from pinned memory: 4 to 10 us in traces."""


def collective_time(
    collective: Collective, device: Device, calibration: Calibration | None = None
) -> OpTime:
    """Return the time of the transfer once all ranks have begun."""
    ranks = max(2, len(collective.group)) if collective.peer is None else 2
    size = _collective_bytes(collective)
    nodes = len({rank // GPUS_PER_NODE for rank in collective.group})
    found = collective_ns(
        collective.kind,
        size,
        ranks,
        device,
        nodes,
        dtype=collective.dtype.name,
        calibration=calibration,
    )
    if found is not None:
        return OpTime(found, True)
    link = max(device.links.values(), default=NETWORK) if nodes == 1 else NETWORK
    ways = 2 if collective_kind(collective.kind) == "all_reduce" else 1
    ns = _LATENCY_NS * ceil(ranks**0.5) + ways * size / link * 1e9
    source = f"no measurement of {collective.kind} of {ranks} ranks on {nodes} machines is near"
    return OpTime(Estimate.within_factor(ns, _SPREAD, source), False)


def _collective_bytes(collective: Collective) -> int:
    """Return the larger size of a rank's input and output."""
    return max(collective.elements_in, collective.elements_out) * collective.dtype.size


def collective_work(collective: Collective, time: OpTime, device: Device) -> GpuWork:
    """Return the kernel of NCCL or RCCL on the stream of its process group."""
    kind = collective_kind(collective.kind) or ""
    if device.vendor == "amd":
        name = "Generic"
    elif kind in _REDUCING:
        name = f"{_REDUCING[kind]}_{_TYPES.get(collective.dtype.name, 'f32')}_RING_LL"
    else:
        name = f"{_MOVING[kind]}_RING_LL" if kind in _MOVING else "SendRecv"
    return GpuWork(
        name=f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)",
        kind=WorkKind.KERNEL,
        estimate=time.estimate,
        bytes=_collective_bytes(collective),
        grid=(_CHANNELS, 1, 1),
        block=(_THREADS, 1, 1),
        registers=96,
        shared_memory=82_240,
        collective=collective,
        lane=collective.group_name,
    )


def host_copy(tensor: TensorInfo, move: Move, device: Device) -> tuple[GpuWork, float]:
    """Return a copy between host and GPU and the duration of the call that launches it.

    The duration, ns, is without waiting for earlier work and the copy; see Note [Copies and the
    host].

    Args:
        tensor: The copied tensor.
        move: Direction and kind of the copy.
        device: The GPU.

    Raises:
        UnknownDurationError: The bandwidth between host and GPU is unknown.
    """
    size = tensor.elements * tensor.dtype.size
    is_small, direction = size <= _STAGED_BYTES, "HtoD" if move.to_gpu else "DtoH"
    is_left = move.non_blocking and (move.is_pinned or (is_small and move.to_gpu))
    launch_ns = _PINNED_NS if move.is_pinned else _STAGED_NS if is_small else _BLOCKED_NS
    kind = "Host" if device.vendor == "amd" else "Pinned" if move.is_pinned else "Pageable"
    sides = f"{kind} -> Device" if move.to_gpu else f"Device -> {kind}"
    work = GpuWork(
        f"Memcpy {direction} ({sides})",
        WorkKind.MEMCPY,
        estimate_copy(size, direction, move.is_pinned, device),
        bytes=size,
        host_waits=not is_left,
    )
    return work, launch_ns
