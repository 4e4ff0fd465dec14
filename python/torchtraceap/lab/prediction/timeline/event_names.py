"""Names and arguments that profilers give to events around operators and work.

A capture sees what autograd or the dispatcher hands to a device. A profiler also sees the composite
operators around a call, allocations and views nested in it, and runtime calls that libraries make
before a launch. The tables are those of most calls in eleven public traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchtraceap.lab.prediction.capture.calls import Call, Collective, Phase
from torchtraceap.lab.prediction.lowering.step import GpuWork, WorkKind
from torchtraceap.ops import Device, collective_kind

__all__ = [
    "CALLBACKS",
    "NESTED_OPS",
    "WRAPPER_OPS",
    "annotation_of",
    "callers_of",
    "calls_before_launch",
    "collective_arguments",
    "launch_name",
    "nested_arguments",
]

_CALLERS: dict[str, tuple[str, ...]] = {
    "aten::_log_softmax": ("aten::log_softmax",),
    "aten::_softmax": ("aten::softmax",),
    "aten::_to_copy": ("aten::to",),
    "aten::addmm": ("aten::linear",),
    "aten::bmm": ("aten::matmul",),
    "aten::clone": ("aten::contiguous",),
    "aten::max_pool2d_with_indices": ("aten::max_pool2d",),
    "aten::mm": ("aten::matmul",),
    "aten::native_dropout": ("aten::dropout",),
    "aten::native_group_norm": ("aten::group_norm",),
    "aten::native_layer_norm": ("aten::layer_norm",),
    "aten::nll_loss_forward": ("aten::nll_loss_nd", "aten::nll_loss"),
    "aten::nll_loss2d_forward": ("aten::nll_loss_nd", "aten::nll_loss2d"),
}
"""Composite operators around a captured call, outermost first."""
_BATCH_NORMS = frozenset({"aten::native_batch_norm", "aten::cudnn_batch_norm"})
_ANNOTATIONS = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}
_EMPTY = "aten::empty"
_VIEWS = ("expand", "permute", "select", "slice", "squeeze", "transpose", "unfold", "unsqueeze")
NESTED_OPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **{f"aten::{name}": (("aten::as_strided",), ()) for name in _VIEWS},
    "aten::t": (("aten::transpose/aten::as_strided",), ()),
    "aten::detach": (("detach",), ()),
    "aten::empty_like": ((_EMPTY,), ()),
    "aten::native_layer_norm": ((_EMPTY,) * 3, ("aten::view",) * 2),
    "aten::cudnn_batch_norm": (("aten::empty_like/aten::empty", "aten::view", *(_EMPTY,) * 4), ()),
    "aten::cudnn_batch_norm_backward": ((*(_EMPTY,) * 3, "aten::view", _EMPTY), ()),
    "aten::convolution_backward": ((_EMPTY,), ()),
    "aten::_efficient_attention_forward": ((_EMPTY,) * 4, ()),
    "aten::_flash_attention_forward": (("aten::empty_like/aten::empty", *(_EMPTY,) * 3), ()),
}
"""Operators that launch nothing, nested before the launches of an operator (or in all of it, if it
launches nothing) and after them.

A name with a slash is of operators inside each other, the outermost first.
"""
WRAPPER_OPS = {"aten::convolution": "aten::_convolution"}
"""Operator between a call and those that launch for it."""
CALLBACKS = {
    "cuLaunchKernel": 307, "cuLaunchKernelEx": 652, "cudaDeviceGetAttribute": 200,
    "cudaDeviceGetStreamPriorityRange": 205, "cudaDeviceSynchronize": 165, "cudaEventRecord": 135,
    "cudaFree": 22, "cudaFuncGetAttributes": 15, "cudaFuncSetAttribute": 273,
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cudaMalloc": 20, "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51, "cudaStreamGetCaptureInfo_v2": 409, "cudaStreamGetPriority": 203,
    "cudaStreamIsCapturing": 317, "cudaStreamSynchronize": 131, "cudaStreamWaitEvent": 147,
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor": 279,
}  # fmt: skip
"""CUPTI's callback ids (`cbid`) of runtime and driver calls (`cu...`)."""
_SET_STREAM = (
    "cudaEventRecord",
    "cudaStreamIsCapturing",
    "cudaStreamGetPriority",
    "cudaDeviceGetStreamPriorityRange",
)
_COLLECTIVE = (
    "cudaStreamIsCapturing",
    "cudaEventRecord",
    "cudaStreamWaitEvent",
    "cudaStreamGetCaptureInfo_v2",
    "cudaEventRecord",
    "cudaStreamWaitEvent",
)
_ONCE = {
    "aten::cudnn_convolution": _SET_STREAM,
    "aten::cudnn_batch_norm": (*_SET_STREAM, *_SET_STREAM),
    "aten::cudnn_batch_norm_backward": _SET_STREAM,
    "aten::convolution_backward": _SET_STREAM,
}
"""Calls before the first launch, by operator."""
_KERNELS = (
    ("cutlass::Kernel", ("cudaDeviceGetAttribute",)),
    ("sm90_xmma_gemm", ("cudaFuncSetAttribute",) * 3),
    ("flash_fwd", ("cudaStreamIsCapturing", "cudaFuncSetAttribute")),
    ("fmha_cutlass", ("cudaStreamIsCapturing",)),
)
"""Calls by part of a kernel name."""


def callers_of(call: Call) -> tuple[str, ...]:
    """Return the forward operators around a call, outermost first."""
    if call.phase is not Phase.FORWARD:
        return ()
    if call.name in _BATCH_NORMS:
        return "aten::batch_norm", "aten::_batch_norm_impl_index"
    if call.name == "aten::convolution":
        given = call.tensor("input")
        return (f"aten::conv{max(1, len(given.shape) - 2)}d",) if given else ()
    return _CALLERS.get(call.name, ())


def launch_name(work: GpuWork, device: Device) -> tuple[str, str]:
    """Return category and name of the call that launches work."""
    runtime = "hip" if device.vendor == "amd" else "cuda"
    if work.kind is WorkKind.MEMCPY:
        return "cuda_runtime", "hipMemcpyWithStream" if runtime == "hip" else "cudaMemcpyAsync"
    if work.kind is WorkKind.MEMSET:
        return "cuda_runtime", f"{runtime}MemsetAsync"
    if runtime == "hip":
        is_module = work.name.startswith("Cijk_")
        return "cuda_runtime", "hipExtModuleLaunchKernel" if is_module else "hipLaunchKernel"
    if work.name.startswith("nvjet"):
        return "cuda_driver", "cuLaunchKernelEx"
    if "cutlass::Kernel" in work.name:
        return "cuda_driver", "cuLaunchKernel"
    if work.collective is not None or work.name.startswith("sm90_xmma"):
        return "cuda_runtime", "cudaLaunchKernelExC"
    return "cuda_runtime", "cudaLaunchKernel"


def annotation_of(work: GpuWork) -> str:
    """Return the name of c10d's range around the launch of a collective."""
    assert work.collective is not None
    collective = work.collective
    if collective.peer is not None:
        me = _own_rank(collective, collective.peer)
        arrow = "->" if collective.kind == "send" else "<-"
        return f"nccl:{collective.kind} {me}{arrow}{collective.peer}"
    kind = collective_kind(collective.kind) or collective.kind
    return f"nccl:{_ANNOTATIONS.get(kind, kind)}"


def collective_arguments(work: GpuWork) -> dict[str, int | str]:
    """Return Kineto's arguments of a collective for its operator and kernel."""
    assert work.collective is not None
    collective = work.collective
    group = collective.group
    stride = group[1] - group[0] if len(group) > 1 else 1
    found: dict[str, int | str] = {
        "Collective name": collective.kind,
        "In msg nelems": collective.elements_in,
        "Out msg nelems": collective.elements_out,
        "Group size": len(group),
        "dtype": collective.dtype.c10_name,
        "In split size": str(list(collective.sent)),
        "Out split size": str(list(collective.received)),
        "Process Group Name": collective.group_name,
        "Process Group Description": collective.group_name,
        "Process Group Ranks": str(list(group)),
        "Global rank start": group[0] if group else 0,
        "Global rank stride": stride,
        "Seq": collective.id,
    }
    if collective.peer is not None:
        me = _own_rank(collective, collective.peer)
        sides = (me, collective.peer) if collective.kind == "send" else (collective.peer, me)
        found["Src Rank"], found["Dst Rank"] = sides
    return found


def _own_rank(collective: Collective, peer: int) -> int:
    """Return the rank of a send or recv that is not the peer."""
    return next((rank for rank in collective.group if rank != peer), peer)


def nested_arguments(name: str, around: dict[str, Any]) -> dict[str, Any]:
    """Return the `record_shapes` arguments of a nested operator, given those of the outer one."""
    keys = ("Input Dims", "Input type", "Input Strides")
    first: list[Any] = [next((each for each in around.get(key, ()) if each), []) for key in keys]
    dims, types, strides = first
    if name == _EMPTY:
        return {
            "Concrete Inputs": ["[]", "6", "0", "", "False", ""],
            "Input type": ["ScalarList", "Scalar", "Scalar", "", "Scalar", ""],
            "Input Strides": [[]] * 6,
            "Input Dims": [[]] * 6,
        }
    further = {"aten::as_strided": 3, "aten::transpose": 2, "aten::view": 1}.get(name, 0)
    kind = "ScalarList" if name in ("aten::as_strided", "aten::view") else "Scalar"
    return {
        "Concrete Inputs": [""] * (1 + further),
        "Input type": [types or "", *[kind] * further],
        "Input Strides": [strides, *[[]] * further],
        "Input Dims": [dims, *[[]] * further],
    }


def calls_before_launch(
    op: str, works: Sequence[GpuWork], place: int, vendor: str
) -> tuple[str, ...]:
    """Return the names of the runtime calls that libraries make before a launch, in order.

    They begin no work. cuDNN sets its stream for each of its calls (`cudnnSetStream`); cuBLAS
    queries attributes of the device or of its kernel; attention queries whether the stream is being
    captured. On AMD GPUs the traces show none for most launches.

    Args:
        op: The operator that launches.
        works: All that it launches.
        place: Index of the work.
        vendor: Vendor of the GPU.
    """
    if vendor == "amd":
        return ()
    work = works[place]
    if work.collective is not None:
        return _COLLECTIVE
    found: tuple[str, ...] = ()
    # A backward convolution is two calls of cuDNN: for the input and for the weight.
    if place == 0 or (op == "aten::convolution_backward" and place == len(works) // 2):
        found = _ONCE.get(op, ())
    if work.kind is not WorkKind.KERNEL:
        return found
    return found + next((calls for part, calls in _KERNELS if part in work.name), ())
