"""Makes a small set of traces of several ranks. Nothing in it was measured.

Four processes on two hosts train eight linear layers with DistributedDataParallel. Two things are
odd about the run, and an analysis of its traces has to tell them apart:

- rank 2 waits 9 ms longer for each batch, so that all others wait for it in their all-reduces;
- the clock of the second host (ranks 2 and 3) is 2.5 ms ahead, which delays nobody.

Names and arguments of events are those of Kineto, as torch 2.7 writes them. Times follow from a
plain schedule: a host thread issues work in order; a stream starts a kernel when it was launched
and the kernel before it has ended; an all-reduce begins on each rank when its gradients are there
and ends on all ranks at once, one transfer after the last of them has begun.

    python examples/make_ranks.py FOLDER
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RANKS, RANKS_PER_HOST, STEPS = 4, 2, 6
LATE_RANK, LATE_BY_US = 2, 9000.0
CLOCK_AHEAD_US = (0.0, 2500.0)  # by host

LAYERS, LAYERS_PER_BUCKET, BATCH, WIDTH = 8, 2, 4096, 2048
PRODUCT_US = 2 * BATCH * WIDTH * WIDTH / 17e6  # at 17 of the 19.5 TFLOP/s of an A100 in fp32
TENSOR_US = 4 * BATCH * WIDTH / 1.7e6  # to read or write one, at 1.7 of its 2.0 TB/s
COPY_US = 4 * BATCH * WIDTH / 24e3  # at 24 GB/s
BUCKET_ELEMENTS = LAYERS_PER_BUCKET * WIDTH * WIDTH
TRANSFER_US = 2 * (RANKS - 1) / RANKS * 4 * BUCKET_ELEMENTS / 24e3  # bus bandwidth of 24 GB/s
DELAY_US = 4.0  # from a launch to the start of its kernel

BASE_NS, EPOCH_US = 1_750_000_000_000_000_000, 4_000_000.0
MAIN, AUTOGRAD = 100, 101  # threads
COMPUTE, COMMUNICATION = 7, 20  # streams

GEMM = "ampere_sgemm_128x64_tn"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, {}, std::array<char*, 2ul> >(int)"
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<float>(float)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

INPUT, WEIGHT, BIAS = [BATCH, WIDTH], [WIDTH, WIDTH], [WIDTH]


class Rank:
    """One process: how far its host thread and its streams are, and its events so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.host, self.device = divmod(number, RANKS_PER_HOST)
        self.pid = 4000 + number
        self.now_us = EPOCH_US
        self.thread = MAIN
        self.free_us = {COMPUTE: EPOCH_US, COMMUNICATION: EPOCH_US}
        self.pending: list[tuple[int, float, dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []
        self._ids = 0
        self._jitter = random.Random(number)

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    @contextmanager
    def op(
        self, name: str, *dims: Sequence[int], cat: str = "cpu_op", **args: Any
    ) -> Iterator[None]:
        """An operator or annotation around what the host does meanwhile."""
        start, args = self.now_us, {"External id": self.next_id(), **args}
        if dims:
            args |= {"Input Dims": dims, "Input type": ["float"] * len(dims)}
        self.now_us += 2
        yield
        self.now_us += 1
        self._add(cat, name, self.pid, self.thread, start, self.now_us - start, args)

    def call(self, name: str, duration_us: float = 6.0) -> int:
        """A call of the CUDA runtime; returns its correlation id."""
        correlation = self.next_id()
        self._add("cuda_runtime", name, self.pid, self.thread, self.now_us, duration_us,
                  {"correlation": correlation})  # fmt: skip
        self.now_us += duration_us
        return correlation

    def launch(self, name: str, duration_us: float) -> None:
        """A kernel behind all others of the compute stream."""
        correlation = self.call("cudaLaunchKernel")
        start = max(self.now_us + DELAY_US, self.free_us[COMPUTE])
        duration_us *= self._jitter.uniform(0.99, 1.01)
        more = {"grid": [256, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 50}
        self._on_gpu("kernel", name, COMPUTE, correlation, start, start + duration_us, more)

    def copy(self, name: str, size: int, duration_us: float) -> None:
        correlation = self.call("cudaMemcpyAsync")
        start = max(self.now_us + DELAY_US, self.free_us[COMPUTE])
        more = {"bytes": size}
        self._on_gpu("gpu_memcpy", name, COMPUTE, correlation, start, start + duration_us, more)

    def all_reduce(self, sequence: int) -> None:
        """Launches an all-reduce of all gradients so far; `end_all_reduce` gives it its times."""
        args: dict[str, Any] = {
            "Collective name": "allreduce",
            "In msg nelems": BUCKET_ELEMENTS,
            "Out msg nelems": BUCKET_ELEMENTS,
            "Group size": RANKS,
            "dtype": "Float",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(RANKS))),
            "Seq": sequence,
        }
        with (
            self.op("record_param_comms", [BUCKET_ELEMENTS], **args),
            self.op("nccl:all_reduce", [BUCKET_ELEMENTS], cat="user_annotation"),
        ):
            correlation = self.call("cudaLaunchKernelExC")
        ready = max(self.now_us + DELAY_US, self.free_us[COMPUTE])
        self.pending.append((correlation, ready, args))

    def all_reduce_start_us(self) -> float:
        return max(self.pending[0][1], self.free_us[COMMUNICATION])

    def end_all_reduce(self, end_us: float) -> None:
        start, (correlation, _, args) = self.all_reduce_start_us(), self.pending.pop(0)
        more = {"grid": [24, 1, 1], "block": [544, 1, 1], **args}
        self._on_gpu("kernel", ALL_REDUCE, COMMUNICATION, correlation, start, end_us, more)

    def step(self, number: int, start_us: float) -> None:
        """The range of the profiler around all since `start_us`."""
        name, args = f"ProfilerStep#{number}", {"External id": self.next_id()}
        duration = self.now_us - start_us
        self._add("user_annotation", name, self.pid, MAIN, start_us, duration, args)

    def _on_gpu(self, cat: str, name: str, stream: int, correlation: int,
                start: float, end: float, more: dict[str, Any]) -> None:  # fmt: skip
        ids = {"device": self.device, "context": 1, "stream": stream, "correlation": correlation}
        self._add(cat, name, self.device, stream, start, end - start, ids | more)
        self.free_us[stream] = end

    def _add(self, cat: str, name: str, pid: int, tid: int,
             start: float, duration: float, args: dict[str, Any]) -> None:  # fmt: skip
        start += CLOCK_AHEAD_US[self.host]
        start_ns, end_ns = round(start * 1000), round((start + duration) * 1000)
        times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args}
        )


def load_batch(rank: Rank) -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    with rank.op(name, cat="user_annotation"):
        rank.now_us += 300 + (LATE_BY_US if rank.number == LATE_RANK else 0)
    with rank.op("aten::copy_", INPUT, INPUT):
        rank.copy("Memcpy HtoD (Pinned -> Device)", 4 * BATCH * WIDTH, COPY_US)


def forward(rank: Rank, step: int) -> None:
    for layer in range(LAYERS):
        number: dict[str, Any] = {
            "Sequence number": 2 * (step * LAYERS + layer),
            "Fwd thread id": 0,
        }
        with (
            rank.op("aten::linear", INPUT, WEIGHT, BIAS),
            rank.op("aten::addmm", BIAS, INPUT, WEIGHT, [], [], **number),
        ):
            rank.launch(GEMM, PRODUCT_US)
        number["Sequence number"] += 1
        with rank.op("aten::relu", INPUT, **number), rank.op("aten::clamp_min", INPUT, []):
            rank.launch(ELEMENTWISE.format("at::native::launch_clamp_scalar"), 2 * TENSOR_US)


def backward(rank: Rank, step: int) -> None:
    rank.thread = AUTOGRAD
    engine = "autograd::engine::evaluate_function: "
    for layer in reversed(range(LAYERS)):
        number: dict[str, Any] = {
            "Sequence number": 2 * (step * LAYERS + layer) + 1,
            "Fwd thread id": 1,
        }
        node = "ReluBackward0"
        with (
            rank.op(engine + node, **number),
            rank.op(node, INPUT, **number),
            rank.op("aten::threshold_backward", INPUT, INPUT, []),
        ):
            rank.launch(ELEMENTWISE.format("at::native::threshold_kernel_impl"), 3 * TENSOR_US)
        number["Sequence number"] -= 1
        node = "AddmmBackward0"
        with rank.op(engine + node, **number), rank.op(node, INPUT, **number):
            for operands in ([INPUT, WEIGHT], [INPUT[::-1], INPUT]):
                with rank.op("aten::mm", *operands):
                    rank.launch(GEMM, PRODUCT_US)
        if layer % LAYERS_PER_BUCKET == 0:
            bucket = (LAYERS - layer) // LAYERS_PER_BUCKET
            rank.all_reduce(step * LAYERS // LAYERS_PER_BUCKET + bucket)
    rank.thread = MAIN


def reduce_gradients(ranks: Sequence[Rank]) -> None:
    """All all-reduces that wait: each ends on all ranks at once."""
    while ranks[0].pending:
        end = max(rank.all_reduce_start_us() for rank in ranks) + TRANSFER_US
        for rank in ranks:
            rank.end_all_reduce(end)


def update(rank: Rank) -> None:
    """The optimizer behind the last all-reduce, then a host that reads the loss."""
    rank.free_us[COMPUTE] = max(rank.free_us.values())
    weights: dict[str, Any] = {
        "Input Dims": [[WEIGHT] * LAYERS, [WEIGHT] * LAYERS, []],
        "Input type": ["TensorList", "TensorList", "Scalar"],
    }
    with (
        rank.op("Optimizer.step#SGD.step", cat="user_annotation"),
        rank.op("aten::_foreach_add_", **weights),
    ):
        rank.launch(FOREACH, 3 * 4 * LAYERS * WIDTH * WIDTH / 1.7e6)
    with rank.op("aten::item", []), rank.op("aten::_local_scalar_dense", []):
        rank.copy("Memcpy DtoH (Device -> Pageable)", 4, 1.5)
        rank.call("cudaStreamSynchronize", max(5.0, rank.free_us[COMPUTE] + 5 - rank.now_us))


def train(ranks: Sequence[Rank]) -> None:
    for step in range(STEPS):
        starts = [rank.now_us for rank in ranks]
        for rank in ranks:
            load_batch(rank)
            forward(rank, step)
            backward(rank, step)
        reduce_gradients(ranks)
        for rank, start in zip(ranks, starts, strict=True):
            update(rank)
            rank.step(step + 10, start)


def document(rank: Rank) -> dict[str, Any]:
    """The whole file of one rank."""
    gpus = [
        {"id": i, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84_987_740_160,
         "computeMajor": 8, "computeMinor": 0, "numSms": 108, "warpSize": 32}
        for i in range(RANKS_PER_HOST)
    ]  # fmt: skip
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl",
             "pg_size": RANKS, "ranks": list(range(RANKS))}  # fmt: skip
    named = [(rank.pid, "python"), (rank.device, f"GPU {rank.device}")]
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in named
    ]
    return {
        "schemaVersion": 1,
        "deviceProperties": gpus,
        "distributedInfo": {"backend": "nccl", "rank": rank.number, "world_size": RANKS,
                            "pg_count": 1, "pg_config": [group], "nccl_version": "2.26.2"},
        "record_shapes": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": [*names, *sorted(rank.events, key=lambda event: event["ts"])],
    }  # fmt: skip


def write_ranks(folder: str | Path) -> list[Path]:
    """Writes one file per rank, named as `tensorboard_trace_handler` names them."""
    ranks = [Rank(number) for number in range(RANKS)]
    train(ranks)
    paths = []
    for rank in ranks:
        path = Path(folder) / f"host{rank.host}_{rank.pid}.1750000000000.pt.trace.json.gz"
        with gzip.open(path, "wt", encoding="utf-8") as file:
            json.dump(document(rank), file)
        paths.append(path)
    return paths


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python examples/make_ranks.py FOLDER (an existing one)")
    sys.stdout.writelines(f"{path}\n" for path in write_ranks(sys.argv[1]))
