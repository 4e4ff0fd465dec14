"""Names of the profiler for events around operators and work."""

from __future__ import annotations

from torchtraceap.lab.prediction.capture.calls import Call, Collective, Phase
from torchtraceap.lab.prediction.lowering.step import GpuWork, WorkKind
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import collective_kind

__all__ = ["annotation_of", "callers_of", "collective_arguments", "launch_name"]

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
