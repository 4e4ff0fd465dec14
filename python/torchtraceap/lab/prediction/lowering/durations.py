"""Durations of GPU work: of operators, collectives, and copies between host and GPU.

Note [Copies and the host]: torch waits for a copy without `non_blocking`, whatever its size. The
driver stages a copy from or to pageable memory and starts it behind the earlier work of its stream:
the host waits for it even with `non_blocking`, except for small copies to the GPU, which return
once they are staged. A copy from or to pinned memory with `non_blocking` is an ordinary launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from torchtraceap.lab.prediction.capture.calls import Collective, Move, TensorInfo, Value
from torchtraceap.lab.prediction.lowering.kernels import kernel_names
from torchtraceap.lab.prediction.lowering.kernels.embeddings import lookup_estimate
from torchtraceap.lab.prediction.lowering.kernels.recurrent import recurrent_of, recurrent_time
from torchtraceap.lab.prediction.lowering.step import (
    GpuWork,
    LaunchingOp,
    Libraries,
    OpTime,
    WorkKind,
    libraries_of,
)
from torchtraceap.ops import (
    Calibration,
    Device,
    Estimate,
    OpCall,
    collective_kernel,
    collective_kind,
    collective_ns,
    estimate_copy,
    op_ns,
    resolve_device,
)

__all__ = [
    "GPUS_PER_NODE",
    "NETWORK",
    "collective_time",
    "collective_work",
    "host_copy",
    "op_call",
    "op_times",
    "profiled_arguments",
]

_LEAST_NS = 2_500.0
"""Duration of a kernel with almost no work."""
_NARROW_ELEMENT = 2
_ASSUMED_SPREAD = 4.0
"""Spread of operators without a model: a quarter to four times a copy of their tensors."""

_ROW_ELEMENTS = 128
"""Elements of an embedding row of unknown size; recommendation models have 32 to 256."""


def op_times(
    ops: Sequence[LaunchingOp],
    device: str | Device,
    calibration: Calibration | None = None,
    libraries: Libraries | None = None,
    allows_tf32: Callable[[str], bool] | None = None,
) -> list[OpTime]:
    """Return the GPU time of each operator, ns, by its kernels and the loop that runs it.

    Args:
        ops: Operators from `launching_ops`.
        device: A GPU by name or id.
        calibration: Calibration by a trace from that device (`durations.calibrate`).
        libraries: Libraries of the build of torch; by default one for the device.
        allows_tf32: Whether an operator of that name may compute fp32 as tf32, where its
            arguments don't say (`Capture.allows_tf32`).

    Raises:
        OptionError: The device has several meanings.
        UnknownDurationError: Nobody knows the device.
    """
    chip = resolve_device(device)
    build = libraries or libraries_of(chip)
    known: dict[tuple[Any, ...], OpTime] = {}
    found = []
    for op in ops:
        key = (op.name, tuple(map(_key, op.inputs)))
        if key not in known:
            tf32 = None if allows_tf32 is None else allows_tf32(op.name)
            known[key] = _op_time(op, chip, calibration, build, tf32)
        found.append(known[key])
    return found


def _key(value: Value) -> Any:
    """Return a key that is equal for tensors of the same shape, strides and type."""
    if isinstance(value, TensorInfo):
        return value.shape, value.strides, value.dtype.name
    return tuple(map(_key, value)) if isinstance(value, tuple) else value


def _op_time(
    op: LaunchingOp,
    device: Device,
    calibration: Calibration | None,
    libraries: Libraries,
    allow_tf32: bool | None,
) -> OpTime:
    layers = recurrent_of(op)
    if layers is not None and (whole := recurrent_time(layers, device, calibration)) is not None:
        return OpTime(whole, True)
    lookup = lookup_estimate(op, device)
    if lookup is not None:
        return OpTime(lookup, True)
    kernels = kernel_names(op, device, libraries)
    # Index computation costs per element; for wide elements it hides behind memory traffic.
    narrow = all(tensor.dtype.size <= _NARROW_ELEMENT for tensor in op.tensors)
    call = OpCall(
        op.name,
        *profiled_arguments(op.inputs),
        kernels if narrow else (),
        allow_tf32=allow_tf32,
    )
    count = max(1, len(kernels))
    found = op_ns(call, device, kernels=count, calibration=calibration)
    if found is not None:
        return OpTime(found, True)
    moved = sum(_moved_elements(op, tensor) * tensor.dtype.size for tensor in op.tensors)
    ns = count * _LEAST_NS + moved / device.bandwidth * 1e9
    low, high = ns / _ASSUMED_SPREAD, ns * _ASSUMED_SPREAD
    source = f"no model knows {op.name}: its tensors moved once"
    return OpTime(Estimate(ns, low, high, source), False)


def _moved_elements(op: LaunchingOp, tensor: TensorInfo) -> int:
    """Return the elements that are moved; tables of other libraries move one row for each index."""
    if op.name.startswith("aten::") or tensor.dtype.rank <= 1:
        return tensor.elements
    indices = [each.elements for each in op.tensors if each.dtype.rank <= 1]
    return min(tensor.elements, _ROW_ELEMENTS * sum(indices)) if indices else tensor.elements


def op_call(op: LaunchingOp) -> OpCall:
    """Return the operator as a trace would record it."""
    return OpCall(op.name, *profiled_arguments(op.inputs))


def profiled_arguments(
    inputs: Sequence[Value],
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Return dims, types, strides and concrete values of the arguments."""
    arguments = [_profiled_argument(value) for value in inputs]
    dims, types, strides, concrete = ([each[k] for each in arguments] for k in range(4))
    return dims, types, strides, concrete


def _profiled_argument(value: Value) -> tuple[Any, Any, Any, str]:
    """Return dims, type, strides and concrete value of an argument."""
    if isinstance(value, TensorInfo):
        return list(value.shape), value.dtype.name, list(value.strides), ""
    if isinstance(value, tuple):
        tensors = [each for each in value if isinstance(each, TensorInfo)]
        if tensors and len(tensors) == len(value):
            dims, types, strides, _ = zip(*map(_profiled_argument, tensors), strict=True)
            return list(dims), list(types), list(strides), ""
        return [], "ScalarList", [], str(list(value))
    return [], "" if value is None else "Scalar", [], "" if value is None else str(value)


# ------------------------------------------------------------------------------- transfers

GPUS_PER_NODE = 8
_LATENCY_NS = 20_000.0
NETWORK = 25e9
"""Default network bandwidth of each GPU, byte/s: 200 Gbit/s."""
_SPREAD = 3.0
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
    name = "ncclDevKernel_Generic"
    if device.vendor != "amd":
        kind = collective_kind(collective.kind) or ""
        name = collective_kernel(kind, collective.dtype.name)
    return GpuWork(
        name=f"{name}(ncclDevKernelArgsStorage<4096ul>)",
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
