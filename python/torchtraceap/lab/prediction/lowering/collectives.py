"""Kernels and durations of collectives."""

from __future__ import annotations

from math import ceil

from torchtraceap.lab.prediction.capture.calls import Collective
from torchtraceap.lab.prediction.lowering.work import GpuWork, OpTime, WorkKind
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import Calibration, Estimate, collective_kind, collective_ns

__all__ = ["GPUS_PER_NODE", "NETWORK", "collective_time", "collective_work"]

GPUS_PER_NODE = 8
_LATENCY_NS = 20_000.0
NETWORK = 25e9
"""Default network bandwidth of each GPU, byte/s: 200 Gbit/s."""
_SPREAD = 3.0
_REDUCING = {"all_reduce": "AllReduce_Sum", "reduce_scatter": "ReduceScatter_Sum"}
_MOVING = {
    "all_gather": "AllGather",
    "broadcast": "Broadcast",
    "reduce": "Reduce_Sum",
    "all_to_all": "SendRecv",
    "send_recv": "SendRecv",
}
_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64",
          "int64": "i64", "int32": "i32", "uint8": "u8", "int8": "i8"}  # fmt: skip
_THREADS = 512
_CHANNELS = 24


def collective_time(
    collective: Collective, device: Device, calibration: Calibration | None = None
) -> OpTime:
    """Return the time of the transfer once all ranks have begun."""
    ranks = max(2, len(collective.group)) if collective.peer is None else 2
    size = collective_bytes(collective)
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


def collective_bytes(collective: Collective) -> int:
    """Return the larger size of a rank's input and output."""
    return max(collective.elements_in, collective.elements_out) * collective.dtype.size


def collective_work(collective: Collective, time: OpTime, device: Device) -> GpuWork:
    """Return the kernel of NCCL or RCCL on the stream of its process group."""
    return GpuWork(
        name=_kernel_name(collective, device),
        kind=WorkKind.KERNEL,
        estimate=time.estimate,
        bytes=collective_bytes(collective),
        grid=(_CHANNELS, 1, 1),
        block=(_THREADS, 1, 1),
        registers=96,
        shared_memory=82_240,
        collective=collective,
        lane=collective.group_name,
    )


def _kernel_name(collective: Collective, device: Device) -> str:
    if device.vendor == "amd":
        return "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    kind = collective_kind(collective.kind) or ""
    if kind in _REDUCING:
        name = f"{_REDUCING[kind]}_{_TYPES.get(collective.dtype.name, 'f32')}_RING_LL"
    else:
        name = _MOVING.get(kind, "SendRecv")
        name += "" if name == "SendRecv" else "_RING_LL"
    return f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)"
