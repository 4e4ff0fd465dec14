"""Faults as blocks of events, for `event_injection.py`, and their look-alikes.

A function writes a block that costs so many microseconds, and marks where they are lost; that of a
look-alike marks nothing. `faults.py` describes each by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchtraceap.lab.generation.faults import EVENT_FAULTS

__all__ = ["FILLS", "LATENCY_US", "Block", "Fill", "Interval"]

Interval = tuple[float, float]
"""Begin and end, microseconds."""
LATENCY_US = 8.0
"""Time from the begin of a launch to that of its work."""
_POINTWISE = "void at::native::vectorized_elementwise_kernel<4, MulFunctor>"
_GEMM = "ampere_bf16_gemm"
_NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
_PAGEABLE_UPLOAD = "Memcpy HtoD (Pageable -> Device)"


@dataclass
class Block:
    """Events from `begin` on, in microseconds; `host` and `gpu` are the ends of either so far."""

    begin: float
    thread: tuple[Any, Any]
    device: tuple[Any, int]
    correlation: int
    host: float = 0.0
    gpu: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    truth: list[Interval] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.host = self.gpu = self.begin

    def range(self, name: str, begin: float, end: float, cat: str = "user_annotation") -> None:
        """Add an event of the host."""
        pid, tid = self.thread
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "args": {}}
        self.events.append({**event, "ts": begin, "dur": end - begin})

    def op(self, name: str, dur: float, lead: float = 1.0) -> float:
        """Add an operator behind the last one, go on to its end and return its begin."""
        begin = self.host + lead
        self.range(name, begin, begin + dur, "cpu_op")
        self.host = begin + dur
        return begin

    def call(self, name: str, begin: float, dur: float) -> None:
        """Add a call of the runtime."""
        self.correlation += 1
        self.range(name, begin, begin + dur, "cuda_runtime")
        self.events[-1]["args"] = {"correlation": self.correlation}

    def work(
        self, name: str, begin: float, dur: float, cat: str = "kernel", stream: int = 0, **args: Any
    ) -> Interval:
        """Add GPU work of the last call, on a stream with a number relative to the main stream's.

        Returns:
            Its begin and end.
        """
        pid, main = self.device
        where = {"device": pid, "stream": main + stream, "correlation": self.correlation}
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": main + stream}
        self.events.append({**event, "ts": begin, "dur": dur, "args": {**where, **args}})
        self.gpu = max(self.gpu, begin + dur)
        return begin, begin + dur

    def kernel(self, name: str, dur: float, *, op: str = "aten::mul", **args: Any) -> Interval:
        """Add an operator that launches a kernel behind what is queued; return its begin and
        end."""
        begin = self.op(op, 6.0)
        self.call("cudaLaunchKernel", begin + 1, 4)
        return self.work(name, max(begin + 1 + LATENCY_US, self.gpu), dur, **args)

    def waste(self, begin: float, end: float) -> None:
        """Mark time that would not pass without the fault."""
        self.truth.append((begin, end))


Fill = Callable[[Block, float], None]
"""Writes a block that costs so many microseconds."""
_FILLS: dict[str, Fill] = {}


def _fills(name: str) -> Callable[[Fill], Fill]:
    def add(fill: Fill) -> Fill:
        _FILLS[name] = fill
        return fill

    return add


# ------------------------------------------------------------------------- loading and copies


@_fills("single_process_data_loading")
def _single_process_data_loading(block: Block, us: float) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    block.range(name, block.begin, block.begin + us)
    block.range("aten::stack", block.begin + us / 2, block.begin + us * 0.7, "cpu_op")
    block.host = block.begin + us
    block.waste(block.begin, block.host)


@_fills("hidden_loader")
def _hidden_loader(block: Block, us: float) -> None:
    block.kernel(_GEMM, us * 1.5, op="aten::mm")
    _single_process_data_loading(block, us)


def _copy(block: Block, us: float, name: str) -> None:
    begin = block.op("aten::to", us)
    block.range("aten::_to_copy", begin + 0.5, begin + us - 0.5, "cpu_op")
    block.range("aten::copy_", begin + 1, begin + us - 1, "cpu_op")
    block.call("cudaMemcpyAsync", begin + 2, us - 12)
    block.work(name, begin + 8, us - 24, "gpu_memcpy", bytes=int(us * 6_000))
    block.call("cudaStreamSynchronize", begin + us - 9, 6)
    block.waste(begin, begin + us)


@_fills("no_memory_pin")
def _no_memory_pin(block: Block, us: float) -> None:
    _copy(block, us, _PAGEABLE_UPLOAD)


@_fills("hidden_upload")
def _hidden_upload(block: Block, us: float) -> None:
    block.kernel(_GEMM, us * 1.5, op="aten::mm")
    begin = block.op("aten::copy_", 20)
    block.call("cudaMemcpyAsync", begin + 2, 8)
    name = "Memcpy HtoD (Pinned -> Device)"
    block.work(name, begin + 20, us, "gpu_memcpy", stream=3, bytes=64 << 20)


@_fills("high_memcpy")
def _high_memcpy(block: Block, us: float) -> None:
    _copy(block, us / 2, "Memcpy DtoH (Device -> Pinned)")
    _copy(block, us / 2, "Memcpy HtoD (Pinned -> Device)")


@_fills("pageable_readback")
def _pageable_readback(block: Block, us: float) -> None:
    _copy(block, us, "Memcpy DtoH (Device -> Pageable)")


@_fills("created_on_host")
def _created_on_host(block: Block, us: float) -> None:
    begin = block.op("aten::randn", us * 0.6)
    _copy(block, us * 0.4, _PAGEABLE_UPLOAD)
    block.truth = [*block.truth[:-1], (begin, block.host)]


@_fills("synchronous_memset")
def _synchronous_memset(block: Block, us: float) -> None:
    block.call("cudaMemset", block.op("aten::zero_", 50) + 1, 40)
    block.work("Memset (Device)", block.host - 40, 4, "gpu_memset", bytes=4_096)
    begin = block.op("aten::zero_", us)
    block.call("cudaMemset", begin + 1, us - 2)  # a first long call would be a cold start
    block.work("Memset (Device)", begin + 10, 6, "gpu_memset", bytes=4_096)
    block.waste(begin - 31, begin + 10)
    block.waste(begin + 16, begin + us)


@_fills("asynchronous_memset")
def _asynchronous_memset(block: Block, us: float) -> None:
    block.kernel(_GEMM, us * 1.2, op="aten::mm")
    begin = block.op("aten::zero_", us)
    block.call("cudaMemsetAsync", begin + 1, us - 2)
    block.work("Memset (Device)", block.gpu, 6, "gpu_memset", bytes=4_096)


# ------------------------------------------------------------------------- the host


@_fills("cpu_bound")
def _cpu_bound(block: Block, us: float) -> None:
    begin = block.host
    while block.host < begin + us:
        at = block.op("aten::add", 60)
        block.call("cudaLaunchKernel", at + 50, 5)
        work = block.work(_POINTWISE, at + 60, 2)
        block.waste(at - 1, work[0])


@_fills("host_silence")
def _host_silence(block: Block, us: float) -> None:
    block.host += max(us, 15_000)  # what is shorter than 10 ms is a busy host
    block.waste(block.begin, block.host)


@_fills("for_loop_indexing")
def _for_loop_indexing(block: Block, us: float) -> None:
    begin = block.host
    for _ in range(max(12, int(us / 40))):
        block.op("aten::select", 12)
        at = block.op("aten::mul", 26)
        block.call("cudaLaunchKernel", at + 18, 5)
        block.waste(at - 14, block.work(_POINTWISE, at + 24, 2)[0])
    block.truth[0] = (begin, block.truth[0][1])


@_fills("short_loop")
def _short_loop(block: Block, us: float) -> None:
    block.kernel(_GEMM, us, op="aten::mm")
    for _ in range(9):
        block.op("aten::select", 8)
        block.kernel(_POINTWISE, 2)


@_fills("graph_break")
def _graph_break(block: Block, us: float) -> None:
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


@_fills("graph_recapture")
def _graph_recapture(block: Block, us: float) -> None:
    begin = block.host
    block.call("cudaStreamBeginCapture", begin + 1, 5)
    block.range("aten::mm", begin + 20, begin + us * 0.5, "cpu_op")
    block.call("cudaStreamEndCapture", begin + us * 0.6, 50)
    block.call("cudaGraphInstantiate", begin + us * 0.7, us * 0.3 - 20)
    block.call("cudaGraphLaunch", begin + us, 5)
    block.work(_GEMM, begin + us + 8, 100)
    block.host = begin + us + 8
    block.waste(begin, begin + us)


# ------------------------------------------------------------------------- kernels


@_fills("unfused_pointwise")
def _unfused_pointwise(block: Block, us: float) -> None:
    block.kernel(_GEMM, 100, op="aten::mm")
    for _ in range(5):
        block.waste(*block.kernel(_POINTWISE, us / 5))
    block.kernel(_POINTWISE, us / 4)  # stays
    block.kernel(_GEMM, 100, op="aten::mm")


@_fills("three_pointwise")
def _three_pointwise(block: Block, us: float) -> None:
    block.kernel(_GEMM, 200, op="aten::mm")
    for _ in range(3):
        block.kernel(_POINTWISE, us / 3)
    block.kernel(_GEMM, 200, op="aten::mm")


@_fills("small_grids")
def _small_grids(block: Block, us: float) -> None:
    args: dict[str, Any] = {"blocks per SM": 0.1}
    begin, end = block.kernel("my_scan_kernel", us / 0.9, **args)
    block.waste(end - 0.9 * (end - begin), end)


@_fills("shared_gpu")
def _shared_gpu(block: Block, us: float) -> None:
    gap = max(us / 6, 400)
    for _ in range(7):
        block.kernel(_GEMM, 400, op="aten::mm")
        block.waste(block.gpu, block.gpu + gap)
        block.gpu += gap
    block.truth.pop()
    block.gpu -= gap


@_fills("small_nccl_kernels")
def _small_nccl_kernels(block: Block, us: float) -> None:
    for _ in range(int(us / 14)):
        at = block.op("c10d::allreduce_", 10, lead=4)
        block.call("cudaLaunchKernel", at + 2, 5)
        sizes: dict[str, Any] = {
            "In msg nelems": 64, "Out msg nelems": 64, "dtype": "BFloat16", "Group size": 8,
            "Collective name": "allreduce",
        }  # fmt: skip
        block.work(_NCCL, at + 8, 12, stream=13, **sizes)
        block.waste(at + 8, at + 22)


@_fills("one_large_collective")
def _one_large_collective(block: Block, us: float) -> None:
    block.kernel(_GEMM, us * 1.2, op="aten::mm")
    begin = block.op("c10d::allreduce_", 12)
    block.call("cudaLaunchKernel", begin + 2, 5)
    sizes: dict[str, Any] = {
        "Collective name": "allreduce", "In msg nelems": 1 << 24, "Out msg nelems": 1 << 24,
        "dtype": "BFloat16",
    }  # fmt: skip
    block.work(_NCCL, begin + 20, us, stream=13, **sizes)


FILLS = {name: _FILLS[name] for name in EVENT_FAULTS}
"""Writers of the blocks of `EVENT_FAULTS`, by name."""
