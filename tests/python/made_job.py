"""A training job of two ranks, made by hand: a bit of everything that a table or an edit looks at.

Times are in microseconds. Each of six steps of about 3 ms fetches a batch on the main thread (step
2 for 1.5 ms longer), copies it from pageable memory, runs a linear layer and a ReLU, goes backward
on another thread, reduces the gradients on stream 20, updates with a foreach call and two calls for
one parameter each, and reads the loss. Rank 1 computes 200 us longer than rank 0; its clock is 50
us ahead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torchtraceap as ttap

Event = dict[str, Any]

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu, float>(int, float)"
SGD = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>>(int)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::add, float>(int, float)"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
MAIN, BACKWARD = 1, 2
FLOAT = "float"
STEP_US = 3_000
WAITS_US = (0, 8, 1_500, 4, 16, 0)
"""How much longer than usual the batch of each step takes."""


@dataclass
class RankMaker:
    """The events of one rank."""

    rank: int
    world: int
    slower_us: float = 0
    events: list[Event] = field(default_factory=list)
    correlation: int = 0

    def host(
        self, cat: str, name: str, ts: float, dur: float, tid: int = MAIN, **args: Any
    ) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": 10, "tid": tid, "ts": ts, "dur": dur}
        self.events.append(event | {"args": args})

    def op(self, name: str, ts: float, dur: float, dims: Any = None, **args: Any) -> None:
        if dims is not None:
            types = [FLOAT if d else "Scalar" for d in dims]
            args |= {"Input Dims": dims, "Input type": types}
        self.host("cpu_op", name, ts, dur, **args)

    def call(self, name: str, ts: float, dur: float, tid: int = MAIN, **args: Any) -> int:
        self.correlation += 1
        self.host("cuda_runtime", name, ts, dur, tid, correlation=self.correlation, **args)
        return self.correlation

    def gpu(
        self, name: str, ts: float, dur: float, correlation: int | None, cat: str = "kernel",
        stream: int = 7, **args: Any,
    ) -> None:  # fmt: skip
        where = {"device": 0, "stream": stream, **args}
        if correlation is not None:
            where["correlation"] = correlation
        event = {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur}
        self.events.append(event | {"args": where})

    def kernel(
        self, name: str, called: float, ts: float, dur: float, tid: int = MAIN, grid: int = 64,
        stream: int = 7, **args: Any,
    ) -> None:  # fmt: skip
        shape = {"grid": [grid, 1, 1], "block": [128, 1, 1], "registers per thread": 32}
        shape |= {"est. achieved occupancy %": grid // 2, "shared memory": 1024}
        link = self.call("cudaLaunchKernel", called, 6, tid)
        self.gpu(name, ts, dur, link, stream=stream, **(shape | args))

    def memory(self, ts: float, change: int, total: int) -> None:
        args = {"Bytes": change, "Total Allocated": total, "Total Reserved": 4096, "Device Id": 0}
        args |= {"Device Type": 1, "Addr": 7}
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 10}
        self.events.append(event | {"tid": MAIN, "ts": ts, "args": args})

    def document(self, clock_us: float = 0) -> dict[str, Any]:
        """As the profiler writes it, by this rank's clock."""
        events = [event | {"ts": event["ts"] + clock_us} for event in self.events]
        gpu = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}
        gpu |= {"numSms": 108, "totalGlobalMem": 84_987_740_160}
        spread = {"backend": "nccl", "rank": self.rank, "world_size": self.world}
        return {
            "schemaVersion": 1,
            "deviceProperties": [gpu],
            "distributedInfo": spread,
            "traceEvents": events,
        }


def step(
    made: RankMaker, number: int, at: float, *, gemm_us: float = 200, relu: bool = True,
    think_us: float = 0, waits_us: Sequence[float] = WAITS_US,
) -> None:  # fmt: skip
    """One step of 3 ms and what its batch takes longer, with some Python before the loss is
    read."""
    waits = waits_us[number]
    made.host("user_annotation", f"ProfilerStep#{number}", at, STEP_US + waits + think_us)
    made.host("user_annotation", LOADER, at + 10, 90 + waits)
    made.op("aten::stack", at + 20, 60 + waits, [[8, 64], [8, 64]])
    at += waits
    _upload(made, at + 110)
    _forward(made, at + 300, gemm_us, relu)
    _backward(made, at + 900, gemm_us)
    _reduce(made, at + 1_500)
    _update(made, at + 2_050, number)
    _read_loss(made, at + 2_500 + think_us)


def _upload(made: RankMaker, at: float) -> None:
    made.op("aten::to", at, 120, [[32, 64]])
    made.op("aten::copy_", at + 5, 110, [[32, 64], [32, 64]])
    link = made.call("cudaMemcpyAsync", at + 10, 60)
    name = "Memcpy HtoD (Pageable -> Device)"
    size = {"bytes": 8_192_000, "memory bandwidth (GB/s)": 204.8}
    made.gpu(name, at + 20, 40, link, "gpu_memcpy", **size)
    made.call("cudaStreamSynchronize", at + 75, 20)


def _forward(made: RankMaker, at: float, gemm_us: float, relu: bool) -> None:
    ids = {"Python id": 1, "Python parent id": 0}
    made.host("python_function", "train.py(3): step", at - 5, 550, **ids)
    made.host("python_function", "nn.Module: Net_0", at, 400, **_module(2, 1))
    made.host("python_function", "nn.Module: Linear_0", at + 5, 150, **_module(3, 2))
    made.op("aten::linear", at + 10, 130, [[32, 64], [128, 64], [128]], **_sequence(7))
    made.op("aten::addmm", at + 20, 100, [[128], [32, 64], [64, 128]], **_sequence(7))
    made.memory(at + 25, 16_384, 20_480)
    made.kernel("sm80_gemm", at + 40, at + 60, gemm_us + made.slower_us)
    if relu:
        made.host("python_function", "nn.Module: ReLU_0", at + 200, 60, **_module(4, 2))
        made.op("aten::relu", at + 205, 50, [[32, 128]], **_sequence(8))
        made.op("aten::clamp_min", at + 210, 40, [[32, 128], []])
        made.kernel(RELU, at + 215, at + 262 + made.slower_us, 8, grid=16)
    made.op("aten::zeros", at + 300, 60, [[]])
    made.op("aten::zero_", at + 310, 40, [[32, 128]])
    link = made.call("cudaMemsetAsync", at + 315, 10)
    size = {"bytes": 16_384, "memory bandwidth (GB/s)": 4.096}
    made.gpu("Memset (Device)", at + 330 + made.slower_us, 4, link, "gpu_memset", **size)


def _module(number: int, parent: int) -> dict[str, Any]:
    return {"Python id": number, "Python parent id": parent, "Python module id": number}


def _sequence(number: int) -> dict[str, Any]:
    return {"Sequence number": number, "Fwd thread id": 0}


def _backward(made: RankMaker, at: float, gemm_us: float) -> None:
    made.host("cpu_op", "aten::mse_loss_backward", at - 40, 20, MAIN)
    name = "autograd::engine::evaluate_function: AddmmBackward0"
    ids = {"Sequence number": 7, "Fwd thread id": 1}
    made.host("cpu_op", name, at, 300, BACKWARD, **ids)
    made.host("cpu_op", "AddmmBackward0", at + 10, 250, BACKWARD, **ids)
    for number, dims in enumerate(([[32, 128], [128, 64]], [[128, 32], [32, 64]])):
        begin = at + 20 + 100 * number
        types = {"Input Dims": dims, "Input type": [FLOAT, FLOAT]}
        made.host("cpu_op", "aten::mm", begin, 80, BACKWARD, **types)
        runs = begin + 30 + made.slower_us + number * (gemm_us - 95)
        made.kernel("sm80_gemm", begin + 10, runs, gemm_us, BACKWARD, grid=32 + 32 * number)


def _reduce(made: RankMaker, at: float) -> None:
    """Rank 0 waits in it until the slower rank has come."""
    args = {
        "Collective name": "allreduce", "In msg nelems": 8_192, "Out msg nelems": 8_192,
        "dtype": "Float", "Group size": made.world, "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(made.world))),
    }  # fmt: skip
    made.op("c10d::allreduce_", at, 60, [[8_192]])
    made.op("record_param_comms", at + 5, 40, [[8_192]], **args)
    begin = at + 30 + made.slower_us
    made.kernel(ALL_REDUCE, at + 10, begin, at + 450 - begin, grid=24, stream=20, **args)
    made.call("cudaStreamWaitEvent", at + 55, 3)


def _update(made: RankMaker, at: float, number: int) -> None:
    made.host("user_annotation", "Optimizer.step#SGD.step", at, 300)
    made.op("aten::_foreach_add_", at + 10, 60, [[[128, 64], [128]], [[128, 64], [128]]])
    made.kernel(SGD, at + 20, at + 40, 30, grid=8)
    for place in range(2):
        begin = at + 100 + 60 * place
        made.op("aten::add_", begin, 40, [[128], [128], []])
        made.kernel(ADD, begin + 10, begin + 20, 3, grid=1)
    if number == 3:
        made.op("aten::empty", at + 230, 60, [[]])
        made.call("cudaMalloc", at + 235, 50)
        made.memory(at + 288, 4_096, 24_576)


def _read_loss(made: RankMaker, at: float) -> None:
    made.op("aten::item", at, 120, [[1]])
    made.op("aten::_local_scalar_dense", at + 5, 110, [[1]])
    link = made.call("cudaMemcpyAsync", at + 10, 15)
    size = {"bytes": 4, "memory bandwidth (GB/s)": 0.001}
    made.gpu("Memcpy DtoH (Device -> Pinned)", at + 30, 4, link, "gpu_memcpy", **size)
    made.call("cudaStreamSynchronize", at + 30, 80)
    made.memory(at + 115, -16_384, 4_096)


def make_ranks(ranks: int = 2, steps: int = 6, **how: Any) -> list[RankMaker]:
    """The job; `how` is for `step`."""
    made = [RankMaker(rank, ranks, slower_us=200.0 * (rank == 1)) for rank in range(ranks)]
    for maker in made:
        maker.gpu("left_over", 1_000, 20, None)
        for number in range(steps):
            waits_us = how.get("waits_us", WAITS_US)
            before = (STEP_US + how.get("think_us", 0)) * number + sum(waits_us[:number])
            step(maker, number, 2_000.0 + before, **how)
    return made


def load_job(folder: Path, ranks: int = 2, **how: Any) -> ttap.Trace:
    """Writes a file for each rank and reads the folder."""
    folder.mkdir(exist_ok=True)
    for maker in make_ranks(ranks, **how):
        document = maker.document(clock_us=50.0 * maker.rank)
        (folder / f"rank{maker.rank}.json").write_text(json.dumps(document), encoding="utf-8")
    return ttap.load(folder)
