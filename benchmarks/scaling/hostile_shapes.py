"""Traces that grow where a profiler's do not: one shape for each thing that could be unbounded.

Each function takes about how many events to write and returns the files of a trace: name to
document. Shapes hold nothing random; a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Files = dict[str, dict[str, Any]]
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"

__all__ = ["ALL_REDUCE", "PROPORTIONAL", "SHAPES", "Made"]


class Made:
    """The events of one file."""

    def __init__(self, **head: Any) -> None:
        self.events: list[Event] = []
        self.head = head

    def add(self, cat: str, name: str, ts: float, dur: float, tid: Any = 1, **args: Any) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}
        self.events.append(event | {"args": args})

    def op(self, name: str, ts: float, dur: float, tid: Any = 1, **args: Any) -> None:
        self.add("cpu_op", name, ts, dur, tid, **args)

    def call(self, name: str, ts: float, dur: float, tid: Any = 1, **args: Any) -> None:
        self.add("cuda_runtime", name, ts, dur, tid, **args)

    def gpu(self, name: str, ts: float, dur: float, stream: Any = 7, **args: Any) -> None:
        place = {"device": 0, "stream": stream}
        self.add(args.pop("cat", "kernel"), name, ts, dur, stream, **place | args)

    def launch(
        self, name: str, number: int, ts: float, dur: float, stream: Any = 7, **args: Any
    ) -> None:
        """A kernel and its launch, 3 us earlier, both with their number as correlation."""
        self.call("cudaLaunchKernel", ts - 3, 1, correlation=number)
        self.gpu(name, ts, dur, stream, correlation=number, **args)

    @property
    def document(self) -> dict[str, Any]:
        return self.head | {"traceEvents": self.events}

    @property
    def file(self) -> Files:
        return {"trace.json": self.document}


def _collective(group: str, size: int = 8) -> dict[str, Any]:
    return {
        "Collective name": "allreduce",
        "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20,
        "dtype": "Float",
        "Process Group Name": group,
        "Group size": size,
    }


def many_streams(n: int) -> Files:
    made = Made()
    for i in range(n // 2):
        made.launch(f"gemm{i % 20}", i + 1, 10.0 * i, 12, stream=i)
    return made.file


def many_streams_overlapping(n: int) -> Files:
    made = Made()
    for i in range(n // 2):
        made.launch(f"gemm{i % 20}", i + 1, 4.0 * i, 4.0 * n, stream=i)
    return made.file


def many_threads(n: int) -> Files:
    made = Made()
    for i in range(n // 3):
        made.op("aten::mm", 10.0 * i, 8, tid=i)
        made.call("cudaLaunchKernel", 10.0 * i + 1, 1, tid=i, correlation=i + 1)
        made.gpu("gemm", 10.0 * i + 3, 5, correlation=i + 1)
    return made.file


def many_threads_overlapping(n: int) -> Files:
    """Every thread works all the time, while the GPU has gaps."""
    made = Made()
    for i in range(n // 3):
        made.op("aten::mm", 2.0 * i, 20.0 * n, tid=i)
        made.call("cudaLaunchKernel", 2.0 * i + 1, 1, tid=i, correlation=i + 1)
        made.gpu("gemm", 20.0 * i + 3, 5, correlation=i + 1)
    return made.file


def many_processes(n: int) -> Files:
    made = Made()
    for i in range(n // 2):
        made.op("aten::mm", 10.0 * i, 8)
        made.events[-1]["pid"] = i
        made.events.append(
            {"ph": "M", "name": "process_name", "pid": i, "args": {"name": f"python{i}"}}
        )
    return made.file


def many_devices(n: int) -> Files:
    properties = [{"id": i, "name": "NVIDIA H100 80GB HBM3", "numSms": 132} for i in range(n // 4)]
    made = Made(deviceProperties=properties)
    for i in range(n // 2):
        made.launch("gemm", i + 1, 10.0 * i, 12, device=i)
    return made.file


def many_groups(n: int) -> Files:
    """As many process groups as collectives, on two ranks, with the job's list of them."""
    files: Files = {}
    count = n // 4
    groups = [{"pg_name": str(i), "ranks": [0, 1], "pg_size": 2} for i in range(count)]
    for rank in range(2):
        about = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_config": groups}
        made = Made(distributedInfo=about)
        for i in range(count):
            at = 100.0 * i + 7 * rank
            made.launch(ALL_REDUCE, i + 1, at, 50, stream=20, **_collective(str(i), 2))
        files[f"rank{rank}.json"] = made.document
    return files


def many_ranks(n: int) -> Files:
    """A thousand events a rank."""
    files: Files = {}
    ranks = max(2, n // 1000)
    for rank in range(ranks):
        made = Made(distributedInfo={"backend": "nccl", "rank": rank, "world_size": ranks})
        for i in range(250):
            made.launch("gemm", 2 * i + 1, 100.0 * i + 10, 40)
            made.launch(
                ALL_REDUCE, 2 * i + 2, 100.0 * i + 60, 35, stream=20, **_collective("0", ranks)
            )
        files[f"rank{rank}.json"] = made.document
    return files


def large_group(n: int) -> Files:
    """Each collective lists the ranks of its group: as many as there are collectives."""
    made = Made(distributedInfo={"backend": "nccl", "rank": 0, "world_size": 10**9})
    ranks = str([*range(0, n, 7)])
    for i in range(200):
        about = _collective("0", n) | {"Process Group Ranks": ranks}
        made.launch(ALL_REDUCE, i + 1, 100.0 * i + 60, 35, stream=20, **about)
    return made.file


def deep_stacks(n: int) -> Files:
    made = Made()
    depth = n // 3
    for i in range(depth):
        made.op("aten::mm" if i % 1000 == 0 else f"layer{i % 50}", 3.0 * i, 6.0 * depth - 6 * i)
        made.call("cudaLaunchKernel", 3.0 * i + 1, 1, correlation=i + 1)
        made.gpu(f"gemm{i % 20}", 3.0 * i + 10, 2.5, correlation=i + 1)
    return made.file


def deep_python_stacks(n: int) -> Files:
    """Frames and modules, each inside the one before, over one kernel each."""
    made = Made()
    depth = n // 3
    for i in range(depth):
        args = {"Python id": i, "Python parent id": i - 1, "Python module id": i}
        name = f"nn.Module: Layer{i}_0" if i % 2 else f"model.py({i}): forward{i}"
        made.add("python_function", name, 3.0 * i, 6.0 * depth - 6 * i, **args)
        made.call("cudaLaunchKernel", 3.0 * i + 1, 1, correlation=i + 1)
        made.gpu(f"gemm{i % 20}", 3.0 * i + 10, 2.5, correlation=i + 1)
    return made.file


def same_time(n: int) -> Files:
    made = Made()
    for i in range(n // 3):
        made.op(f"aten::op{i % 100}", 100, 1 + i % 7)
        made.call("cudaLaunchKernel", 100, 1, correlation=i + 1)
        made.gpu(f"gemm{i % 20}", 100, 5, stream=i % 3, correlation=i + 1)
    return made.file


def zero_durations(n: int) -> Files:
    made = Made()
    for i in range(n // 3):
        made.op(f"aten::op{i % 100}", i % 1000, 0)
        made.call("cudaLaunchKernel", i % 1000, 0, correlation=i + 1)
        made.gpu(f"gemm{i % 20}", i % 1000, 0, correlation=i + 1)
    return made.file


def overlaps_on_one_stream(n: int) -> Files:
    """Kernels that cross each other: each ends when half of the others have begun."""
    made = Made()
    for i in range(n // 2):
        made.launch(f"gemm{i % 20}", i + 1, 4.0 * i, 2.0 * n + i)
    return made.file


def overlaps_on_one_thread(n: int) -> Files:
    made = Made()
    for i in range(n):
        made.op(f"aten::op{i % 20}", 4.0 * i, 2.0 * n + i)
    return made.file


def one_correlation(n: int) -> Files:
    made = Made()
    for i in range(n // 2):
        made.launch(f"gemm{i % 20}", 1, 10.0 * i, 8)
    return made.file


def many_steps(n: int) -> Files:
    made = Made()
    for i in range(n // 4):
        made.add("user_annotation", f"ProfilerStep#{i * 10**12}", 10.0 * i, 10)
        made.op("aten::mm", 10.0 * i, 8)
        made.launch(f"gemm{i % 20}", i + 1, 10.0 * i + 4, 4)
    return made.file


def annotations(n: int) -> Files:
    """Ranges of the user that cross each other, on host and GPU, over all kernels."""
    made = Made()
    for i in range(n // 4):
        made.add("user_annotation", f"phase{i % 50}", 10.0 * i, 5.0 * n)
        made.add("gpu_user_annotation", f"phase{i % 50}", 10.0 * i + 4, 5.0 * n, 7, stream=7)
        made.launch(f"gemm{i % 20}", i + 1, 10.0 * i + 4, 4)
    return made.file


def distinct_names(n: int) -> Files:
    made = Made()
    for i in range(n // 4):
        made.add("user_annotation", f"range{i}", 10.0 * i, 9, tid=2)
        made.op(f"aten::op{i}", 10.0 * i, 9)
        made.launch(f"void kernel{i}<float, {i}>(float*)", i + 1, 10.0 * i + 4, 4)
    return made.file


def distinct_shapes(n: int) -> Files:
    made = Made()
    for i in range(n // 3):
        shapes = {"Input Dims": [[i + 1, 64], [64, 32]], "Input type": ["float", "float"]}
        made.op("aten::mm", 10.0 * i, 9, **shapes)
        made.launch("gemm", i + 1, 10.0 * i + 4, 4, grid=[i + 1, 1, 1], block=[128, 1, 1])
    return made.file


def huge_ids(n: int) -> Files:
    """Every id as large as its type, or larger."""
    made = Made()
    for i in range(n // 3):
        large = 2**63 - 1 - i
        made.op("aten::mm", 10.0 * i, 9, tid=10**18 + i % 3, **{
            "External id": large, "Sequence number": large, "Fwd thread id": large,
        })  # fmt: skip
        made.call("cudaLaunchKernel", 10.0 * i + 1, 1, tid=10**18 + i % 3, correlation=large)
        made.gpu("gemm", 10.0 * i + 4, 4, stream=2**62 + i % 5, device=2**31 - 1 - i % 2,
                 correlation=large)  # fmt: skip
    return made.file


def waits(n: int) -> Files:
    """Events recorded and waited for between two dozen streams."""
    made = Made()
    for i in range(n // 4):
        at = 10.0 * i
        event = {"wait_on_stream": i % 24, "wait_on_cuda_event_record_corr_id": 4 * i}
        made.call("cudaEventRecord", at, 1, correlation=4 * i)
        made.call("cudaStreamWaitEvent", at + 1, 1, correlation=4 * i + 1)
        made.gpu("Stream Wait Event", at + 2, 1, stream=(i + 1) % 24, cat="cuda_sync",
                 correlation=4 * i + 1, cuda_sync_kind="Stream Wait Event", **event)  # fmt: skip
        made.gpu(f"gemm{i % 20}", at + 4, 4, stream=i % 24, correlation=4 * i)
    return made.file


def syncs_over_streams(n: int) -> Files:
    """As many device synchronisations as streams with work."""
    made = Made()
    for i in range(n // 3):
        made.launch(f"gemm{i % 20}", 2 * i + 1, 10.0 * i + 4, 4, stream=i)
        made.call("cudaDeviceSynchronize", 10.0 * i + 5, 4, correlation=2 * i + 2)
    return made.file


def one_graph(n: int) -> Files:
    made = Made()
    for replay in range(2):
        at = 10.0 * n * replay
        made.call("cudaGraphLaunch", at, 5, correlation=replay + 1)
        for i in range(n // 2):
            made.gpu(f"gemm{i % 20}", at + 10 + 5.0 * i, 4, correlation=replay + 1)
    return made.file


def many_graphs(n: int) -> Files:
    """Graphs that are each of another shape."""
    made = Made()
    size, at = 1, 0.0
    while len(made.events) < n:
        made.call("cudaGraphLaunch", at, 2, correlation=size)
        for i in range(size):
            made.gpu(f"gemm{i % 20}", at + 3 + 5.0 * i, 4, stream=i % 5, correlation=size)
        at, size = at + 5.0 * size + 10, size + 1
    return made.file


def copies(n: int) -> Files:
    """Copies that all overlap, in every direction."""
    made = Made()
    for i in range(n // 2):
        way = ("HtoD (Pageable -> Device)", "DtoH (Device -> Pinned)", "DtoD")[i % 3]
        made.call("cudaMemcpyAsync", 10.0 * i, 2, correlation=i + 1)
        made.gpu(f"Memcpy {way}", 10.0 * i + 5, 5.0 * n, stream=i % 9, cat="gpu_memcpy",
                 correlation=i + 1, bytes=10**18)  # fmt: skip
    return made.file


def memory_events(n: int) -> Files:
    """Allocations on as many devices, of as many addresses."""
    made = Made()
    for i in range(n):
        made.events.append({
            "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1,
            "ts": float(i), "args": {"Device Type": 1, "Device Id": i // 2, "Addr": 2**62 + i,
            "Bytes": 10**15, "Total Allocated": 10**15, "Total Reserved": 10**16},
        })  # fmt: skip
    return made.file


def flows(n: int) -> Files:
    """Arrows that share one id, between ops and kernels that say no correlation."""
    made = Made()
    for i in range(n // 4):
        made.op("aten::mm", 10.0 * i, 4)
        made.gpu("gemm", 10.0 * i + 5, 4)
        for phase, tid, at in (("s", 1, 10.0 * i), ("f", 7, 10.0 * i + 5)):
            made.events.append({
                "ph": phase, "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 1, "tid": tid,
                "ts": at, "bp": "e",
            })  # fmt: skip
    return made.file


def one_sequence_number(n: int) -> Files:
    """Forward and backward calls that all say the same number."""
    made = Made()
    number = {"Sequence number": 7, "Fwd thread id": 0}
    for i in range(n // 2):
        made.op(f"aten::op{i % 9}", 10.0 * i, 4, **number)
        name = f"autograd::engine::evaluate_function: Op{i % 9}Backward0"
        made.op(name, 10.0 * (n + i), 4, 2, **number | {"Fwd thread id": 1})
    return made.file


def repeated_pattern(n: int) -> Files:
    """A loop of many distinct words, three times over, and one call that breaks it."""
    made = Made()
    period = n // 4
    for i in range(4 * period):
        letters = "".join(chr(97 + i % period // 26**k % 26) for k in range(5))
        made.op(letters, 2.0 * i, 1)
    made.op("odd", 2.0 * n + 10, 1)
    return made.file


def kernel_sequences(n: int) -> Files:
    """Kernels whose order repeats at every length: a Fibonacci word."""
    made = Made()
    word, following = "a", "ab"
    while len(following) < n // 2:
        word, following = following, following + word
    for i, letter in enumerate(following[: n // 2]):
        made.launch(f"gemm_{letter}", i + 1, 10.0 * i, 6)
    return made.file


def same_kernels(n: int) -> Files:
    made = Made()
    for i in range(n // 2):
        made.launch("gemm", i + 1, 10.0 * i, 6)
    return made.file


def counters(n: int) -> Files:
    made = Made()
    made.launch("gemm", 1, 10, 5)
    for i in range(n):
        made.events.append({
            "ph": "C", "name": f"counter{i % (n // 2)}", "pid": 1, "ts": float(i),
            "args": {"value": i},
        })  # fmt: skip
    return made.file


def late_launches(n: int) -> Files:
    """All launches first, then all kernels: the queue is as long as the trace."""
    made = Made()
    for i in range(n // 2):
        made.call("cudaLaunchKernel", float(i), 1, correlation=i + 1)
        made.gpu(f"gemm{i % 20}", n + 3.0 * i, 2, correlation=i + 1)
    return made.file


def loaders(n: int) -> Files:
    """Fetches of batches and optimizers in as many threads."""
    made = Made()
    for i in range(n // 4):
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        made.add("user_annotation", name, 10.0 * i, 9, tid=i % 1000)
        made.add("user_annotation", "Optimizer.step#AdamW.step", 10.0 * i + 3, 9, tid=i % 1000)
        made.launch("gemm", i + 1, 10.0 * i + 4, 4)
    return made.file


def long_fetches(n: int) -> Files:
    """Every worker's fetch lasts as long as all, while the GPU works in short pieces."""
    made = Made()
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for i in range(n // 3):
        made.add("user_annotation", name, float(i), 20.0 * n, tid=i + 2)
        made.launch("gemm", i + 1, 20.0 * i + 4, 4)
    return made.file


def long_collectives(n: int) -> Files:
    """Each on a stream of its own, all at the same time, over short kernels."""
    made = Made(distributedInfo={"backend": "nccl", "rank": 0, "world_size": 8})
    for i in range(n // 4):
        said = _collective("0")
        made.launch(ALL_REDUCE, 2 * i + 1, 2.0 * i, 20.0 * n, stream=i + 100, **said)
        made.launch("gemm", 2 * i + 2, 20.0 * i + 4, 4)
    return made.file


def long_synchronisations(n: int) -> Files:
    """Every thread waits for the device all the time, and for copies."""
    made = Made()
    for i in range(n // 6):
        at = 20.0 * i
        made.op("aten::mm", at, 9)
        made.launch("gemm", 2 * i + 1, at + 5, 4)
        made.call("cudaDeviceSynchronize", at, 20.0 * n, tid=i + 2, correlation=10**7 + i)
        made.call("cudaMemcpyAsync", at + 10, 2, correlation=2 * i + 2)
        made.call("cudaStreamSynchronize", at + 13, 4, correlation=2 * 10**7 + i)
        made.gpu("Memcpy DtoH (Device -> Pageable)", at + 12, 3, cat="gpu_memcpy",
                 correlation=2 * i + 2, bytes=1024)  # fmt: skip
    return made.file


def grouped_waits(n: int) -> Files:
    """As many waits side by side as streams that get work behind them."""
    made = Made()
    count = n // 4
    for i in range(count):
        made.call("cudaEventRecord", float(i), 0.5, correlation=10**7 + i)
    for i in range(count):
        made.call("cudaStreamWaitEvent", count + float(i), 0.5, correlation=2 * 10**7 + i)
    for i in range(count):
        made.launch(f"gemm{i % 9}", i + 1, 2 * count + 9.0 * i, 4, stream=i)
    return made.file


def sends_and_receives(n: int) -> Files:
    """Between as many pairs of ranks as there are."""
    files: Files = {}
    for rank in range(2):
        made = Made(distributedInfo={"backend": "nccl", "rank": rank, "world_size": 10**6})
        for i in range(n // 4):
            peer = {"Dst Rank": i, "Collective name": "send"}
            if rank:
                peer = {"Src Rank": 0, "Collective name": "recv"}
            said = _collective("0", 10**6) | peer
            made.launch("ncclDevKernel_SendRecv", i + 1, 10.0 * i, 8, stream=20, **said)
        files[f"rank{rank}.json"] = made.document
    return files


def unlike_ranks(n: int) -> Files:
    """Ranks whose collectives have little in common, in number and kind."""
    files: Files = {}
    for rank in range(8):
        made = Made(distributedInfo={"backend": "nccl", "rank": rank, "world_size": 8})
        for i in range(n // 8 * (rank + 1) // 9):
            said = _collective("0") | {"In msg nelems": i * (rank + 1) % 97}
            made.launch(ALL_REDUCE, i + 1, 10.0 * i + 3 * rank, 8, stream=20, **said)
        files[f"rank{rank}.json"] = made.document
    return files


def deep_annotations(n: int) -> Files:
    """Ranges of the user inside each other, on host and GPU, optimizers among them."""
    made = Made()
    depth = n // 4
    for i in range(depth):
        name = "Optimizer.step#AdamW.step" if i % 3 else f"forward{i}"
        extent = (3.0 * i, 6.0 * depth - 6 * i)
        made.add("user_annotation", name, *extent)
        made.add("gpu_user_annotation", name, *extent, tid=7, stream=7)
        made.launch(f"gemm{i % 20}", i + 1, 3.0 * i + 4, 1)
    return made.file


def backward_threads(n: int) -> Files:
    """Every backward call on a thread of its own, each of another forward thread."""
    made = Made()
    for i in range(n // 3):
        number = {"Sequence number": i // 2}
        made.op("aten::mm", 10.0 * i, 8, tid=2 * i, **number | {"Fwd thread id": 0})
        name = "autograd::engine::evaluate_function: MmBackward0"
        made.op(name, 10.0 * (n + i), 8, 2 * i + 1, **number | {"Fwd thread id": i})
        made.op("MmBackward0", 10.0 * (n + i) + 1, 5, 2 * i + 1, **number | {"Fwd thread id": i})
    return made.file


def small_collectives(n: int) -> Files:
    """One long run of them, each in a step of its own."""
    made = Made(distributedInfo={"backend": "nccl", "rank": 0, "world_size": 8})
    for i in range(n // 5):
        made.add("user_annotation", f"ProfilerStep#{i}", 100.0 * i, 100)
        made.launch("gemm", 2 * i + 1, 100.0 * i + 10, 10)
        said = _collective("0") | {"In msg nelems": 8, "Out msg nelems": 8}
        made.launch(ALL_REDUCE, 2 * i + 2, 100.0 * i + 50, 10, stream=20, **said)
    return made.file


def unlike_steps(n: int) -> Files:
    """Every step has a kernel of its own name."""
    made = Made()
    for i in range(n // 3):
        made.add("user_annotation", f"ProfilerStep#{i}", 100.0 * i, 100)
        made.launch(f"kernel{i}", i + 1, 100.0 * i + 20, 10 + i % 7)
    return made.file


def streams_of_one_step(n: int) -> Files:
    made = Made()
    for i in range(n // 2):
        made.launch(f"gemm{i % 9}", i + 1, 10.0 * i + 20, 4, stream=i)
    made.add("user_annotation", "ProfilerStep#1", 0, 5.0 * n)
    return made.file


def _with_arguments(arguments: Callable[[int], dict[str, Any]]) -> Callable[[int], Files]:
    """Operators whose arguments are alike in nothing."""

    def write(n: int) -> Files:
        made = Made()
        for i in range(n):
            made.op("aten::mm", 10.0 * i, 8, **arguments(i))
        return made.file

    return write


def _with_names(kind: str, place: str) -> Callable[[int], Files]:
    """One operator, and as many names of threads or processes as events."""

    def write(n: int) -> Files:
        made = Made()
        made.op("aten::mm", 0.0, 8)
        for i in range(n):
            where = {"pid": 1, "tid": 1} | {place: i}
            made.events.append({"ph": "M", "name": kind, **where, "args": {"name": f"{kind} {i}"}})
        return made.file

    return write


PROPORTIONAL: dict[str, Callable[[int], Files]] = {
    "argument_keys": _with_arguments(lambda i: {f"key{i}": i}),
    "argument_dims": _with_arguments(
        lambda i: {"Input Dims": [[i + 1, 64], [64, 32]], "Input type": ["float", "float"]}
    ),
    "concrete_inputs": _with_arguments(lambda i: {"Concrete Inputs": [f"{i}", "", f"[1, {i}]"]}),
    "call_stacks": _with_arguments(
        lambda i: {"Call stack": f"model.py(10): forward{i};train.py({i}): main;<built-in>"}
    ),
    "thread_names": _with_names("thread_name", "tid"),
    "process_names": _with_names("process_name", "pid"),
}
"""Shapes whose every event is unlike the others: memory is to stay below twice the JSON."""

SHAPES: dict[str, Callable[[int], Files]] = {
    shape.__name__: shape
    for shape in (
        many_streams, many_streams_overlapping, many_threads, many_threads_overlapping,
        many_processes, many_devices, many_groups, many_ranks, large_group, deep_stacks,
        deep_python_stacks, same_time, zero_durations, overlaps_on_one_stream,
        overlaps_on_one_thread, one_correlation, many_steps, annotations, distinct_names,
        distinct_shapes, huge_ids, waits, syncs_over_streams, one_graph, many_graphs, copies,
        memory_events, flows, one_sequence_number, repeated_pattern, kernel_sequences,
        same_kernels, counters, late_launches, loaders, long_fetches, long_collectives,
        long_synchronisations, grouped_waits, sends_and_receives, unlike_ranks, deep_annotations,
        backward_threads, small_collectives, unlike_steps, streams_of_one_step,
    )
} | PROPORTIONAL  # fmt: skip
