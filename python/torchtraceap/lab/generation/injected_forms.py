"""Faults and decoys as blocks of events, for `injection.py`.

A fault is a function that writes a block which costs so many microseconds, and marks where they are
lost; a decoy looks like a fault and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtraceap.lab.generation.injection import Block

__all__ = ["DECOYS", "FAULTS", "Fill"]

Fill = Callable[[Block, float], None]
"""Writes a block that costs so many microseconds."""
_POINTWISE = "void at::native::vectorized_elementwise_kernel<4, MulFunctor>"
_NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
_MEGABYTE = 1 << 20


def single_process_data_loading(block: Block, us: float) -> None:
    """The main thread makes a batch."""
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    block.range(name, block.begin, block.begin + us)
    block.range("aten::stack", block.begin + us / 2, block.begin + us * 0.7, "cpu_op")
    block.host = block.begin + us
    block.waste(block.begin, block.host)


def _copy(block: Block, us: float, name: str, sync: bool, api: str = "cudaMemcpyAsync") -> None:
    begin = block.op("aten::to", us)
    block.range("aten::_to_copy", begin + 0.5, begin + us - 0.5, "cpu_op")
    block.range("aten::copy_", begin + 1, begin + us - 1, "cpu_op")
    block.call(api, begin + 2, us - (12 if sync else 4))
    block.work(name, begin + 8, us - 24, "gpu_memcpy", bytes=int(us * 6_000))
    if sync:
        block.call("cudaStreamSynchronize", begin + us - 9, 6)
    block.waste(begin, begin + us)


def no_memory_pin(block: Block, us: float) -> None:
    """An upload from pageable memory."""
    _copy(block, us, "Memcpy HtoD (Pageable -> Device)", sync=True)


def high_memcpy(block: Block, us: float) -> None:
    """A copy to the host and back."""
    _copy(block, us / 2, "Memcpy DtoH (Device -> Pinned)", sync=True)
    _copy(block, us / 2, "Memcpy HtoD (Pinned -> Device)", sync=True)


def pageable_readback(block: Block, us: float) -> None:
    """A copy to pageable memory."""
    _copy(block, us, "Memcpy DtoH (Device -> Pageable)", sync=True)


def graph_break(block: Block, us: float) -> None:
    """Host work between two compiled regions."""
    begin = block.host
    block.range("CompiledFunction", begin + 2, begin + 40, "cpu_op")
    block.call("cudaLaunchKernel", begin + 10, 5)
    block.work("triton_poi_fused_add_0", begin + 20, 15)
    resume = begin + 42 + us
    block.range("Torch-Compiled Region: 7/0", resume, resume + 50, "cpu_op")
    block.range("CompiledFunction", resume + 2, resume + 40, "cpu_op")
    block.call("cudaLaunchKernel", resume + 10, 5)
    block.work("triton_poi_fused_add_1", resume + 20, 15)
    block.range("Torch-Compiled Region: 6/0", begin + 1, resume + 51, "cpu_op")
    block.host = resume + 52
    block.waste(begin + 40, resume + 20)


def cpu_bound(block: Block, us: float) -> None:
    """Operators that launch too slowly."""
    begin = block.host
    while block.host < begin + us:
        at = block.op("aten::add", 60)
        block.call("cudaLaunchKernel", at + 50, 5)
        work = block.work(_POINTWISE, at + 60, 2)
        block.waste(at - 1, work[0])


def host_silence(block: Block, us: float) -> None:
    """Nothing that the trace shows."""
    block.host += max(us, 15_000)  # what is shorter than 10 ms is a busy host
    block.waste(block.begin, block.host)


def small_nccl_kernels(block: Block, us: float) -> None:
    """One small collective after the other."""
    for _ in range(int(us / 14)):
        at = block.op("c10d::allreduce_", 10, lead=4)
        block.call("cudaLaunchKernel", at + 2, 5)
        sizes: dict[str, Any] = {
            "In msg nelems": 64,
            "Out msg nelems": 64,
            "dtype": "BFloat16",
            "Group size": 8,
        }
        sizes["Collective name"] = "allreduce"
        block.work(_NCCL, at + 8, 12, stream=13, **sizes)
        block.waste(at + 8, at + 22)


def unfused_pointwise(block: Block, us: float) -> None:
    """Pointwise kernels that could be one."""
    block.kernel("ampere_bf16_gemm", 100, op="aten::mm")
    for _ in range(5):
        block.waste(*block.kernel(_POINTWISE, us / 5))
    block.kernel(_POINTWISE, us / 4)  # stays
    block.kernel("ampere_bf16_gemm", 100, op="aten::mm")


def small_grids(block: Block, us: float) -> None:
    """A kernel on few multiprocessors."""
    args: dict[str, Any] = {"blocks per SM": 0.1}
    begin, end = block.kernel("my_scan_kernel", us / 0.9, **args)
    block.waste(end - 0.9 * (end - begin), end)


def shared_gpu(block: Block, us: float) -> None:
    """Gaps between kernels that wait already."""
    gap = max(us / 6, 400)
    for _ in range(7):
        block.kernel("ampere_bf16_gemm", 400, op="aten::mm")
        block.waste(block.gpu, block.gpu + gap)
        block.gpu += gap
    block.truth.pop()
    block.gpu -= gap


def synchronous_memset(block: Block, us: float) -> None:
    """A memset that the host waits for."""
    block.call("cudaMemset", block.op("aten::zero_", 50) + 1, 40)
    block.work("Memset (Device)", block.host - 40, 4, "gpu_memset", bytes=4_096)
    begin = block.op("aten::zero_", us)
    block.call("cudaMemset", begin + 1, us - 2)  # a first long call would be a cold start
    block.work("Memset (Device)", begin + 10, 6, "gpu_memset", bytes=4_096)
    block.waste(begin - 31, begin + 10)
    block.waste(begin + 16, begin + us)


def created_on_host(block: Block, us: float) -> None:
    """Random numbers of the host, which are then copied."""
    begin = block.op("aten::randn", us * 0.6)
    _copy(block, us * 0.4, "Memcpy HtoD (Pageable -> Device)", sync=True)
    block.truth = [*block.truth[:-1], (begin, block.host)]


def for_loop_indexing(block: Block, us: float) -> None:
    """A loop over the rows of a tensor."""
    begin = block.host
    for _ in range(max(12, int(us / 40))):
        block.op("aten::select", 12)
        at = block.op("aten::mul", 26)
        block.call("cudaLaunchKernel", at + 18, 5)
        block.waste(at - 14, block.work(_POINTWISE, at + 24, 2)[0])
    block.truth[0] = (begin, block.truth[0][1])


def graph_recapture(block: Block, us: float) -> None:
    """A graph is captured anew."""
    begin = block.host
    block.call("cudaStreamBeginCapture", begin + 1, 5)
    block.range("aten::mm", begin + 20, begin + us * 0.5, "cpu_op")
    block.call("cudaStreamEndCapture", begin + us * 0.6, 50)
    block.call("cudaGraphInstantiate", begin + us * 0.7, us * 0.3 - 20)
    block.call("cudaGraphLaunch", begin + us, 5)
    block.work("ampere_bf16_gemm", begin + us + 8, 100)
    block.host = begin + us + 8
    block.waste(begin, begin + us)


FAULTS: dict[str, Fill] = {
    fill.__name__: fill
    for fill in (
        single_process_data_loading,
        no_memory_pin,
        high_memcpy,
        graph_break,
        cpu_bound,
        small_nccl_kernels,
        host_silence,
        pageable_readback,
        unfused_pointwise,
        small_grids,
        shared_gpu,
        synchronous_memset,
        created_on_host,
        for_loop_indexing,
        graph_recapture,
    )
}
"""By type."""


def hidden_loader(block: Block, us: float) -> None:
    """The GPU works on what is queued."""
    block.kernel("ampere_bf16_gemm", us * 1.5, op="aten::mm")
    single_process_data_loading(block, us)


def hidden_upload(block: Block, us: float) -> None:
    """From pinned memory, on a stream of its own, while the GPU computes."""
    block.kernel("ampere_bf16_gemm", us * 1.5, op="aten::mm")
    begin = block.op("aten::copy_", 20)
    block.call("cudaMemcpyAsync", begin + 2, 8)
    name = "Memcpy HtoD (Pinned -> Device)"
    block.work(name, begin + 20, us, "gpu_memcpy", stream=3, bytes=64 * _MEGABYTE)


def three_pointwise(block: Block, us: float) -> None:
    """How a layer ends."""
    block.kernel("ampere_bf16_gemm", 200, op="aten::mm")
    for _ in range(3):
        block.kernel(_POINTWISE, us / 3)
    block.kernel("ampere_bf16_gemm", 200, op="aten::mm")


def asynchronous_memset(block: Block, us: float) -> None:
    """Its call lasts, and holds nobody while the GPU works."""
    block.kernel("ampere_bf16_gemm", us * 1.2, op="aten::mm")
    begin = block.op("aten::zero_", us)
    block.call("cudaMemsetAsync", begin + 1, us - 2)
    block.work("Memset (Device)", block.gpu, 6, "gpu_memset", bytes=4_096)


def short_loop(block: Block, us: float) -> None:
    """Nine turns, under a kernel."""
    block.kernel("ampere_bf16_gemm", us, op="aten::mm")
    for _ in range(9):
        block.op("aten::select", 8)
        block.kernel(_POINTWISE, 2)


def one_large_collective(block: Block, us: float) -> None:
    """Under a kernel of the main stream."""
    block.kernel("ampere_bf16_gemm", us * 1.2, op="aten::mm")
    begin = block.op("c10d::allreduce_", 12)
    block.call("cudaLaunchKernel", begin + 2, 5)
    sizes = {"In msg nelems": 1 << 24, "Out msg nelems": 1 << 24, "dtype": "BFloat16"}
    args: dict[str, Any] = {"Collective name": "allreduce", **sizes}
    block.work(_NCCL, begin + 20, us, stream=13, **args)


DECOYS: dict[str, tuple[Fill, tuple[str, ...]]] = {
    "hidden_loader": (hidden_loader, ("single_process_data_loading", "host_silence")),
    "hidden_upload": (hidden_upload, ("no_memory_pin", "high_memcpy", "blocking_copy")),
    "three_pointwise": (three_pointwise, ("unfused_pointwise", "tiny_kernels")),
    "asynchronous_memset": (asynchronous_memset, ("synchronous_memset", "cpu_bound")),
    "short_loop": (short_loop, ("for_loop_indexing", "cpu_bound")),
    "one_large_collective": (
        one_large_collective,
        ("small_nccl_kernels", "nccl_blocks_main_stream", "nccl_compute_not_overlapped"),
    ),
}
"""Each with the types that it looks like."""
