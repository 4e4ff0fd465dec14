"""Runtime calls that libraries make before a launch, as in public traces.

They begin no work. cuDNN sets its stream for each of its calls (`cudnnSetStream`); cuBLAS queries
attributes of the device or of its kernel; attention queries whether the stream is being captured.
On AMD GPUs the traces show none for most launches.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtraceap.lab.prediction.lowering.step import GpuWork, WorkKind

__all__ = ["CALLBACKS", "calls_before_launch"]

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


def calls_before_launch(
    op: str, works: Sequence[GpuWork], place: int, vendor: str
) -> tuple[str, ...]:
    """Return the names of the calls before a launch, in order.

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
