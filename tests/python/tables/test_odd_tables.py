"""Every table of a trace in which much is odd, whole: each column, fact and note.

What is odd: GPU events without launch, of no length, on two devices; calls without operator;
kernels with and without grids; copies without sizes; threads that only wait; steps of unequal
length. `python tests/python/tables/test_odd_tables.py` rewrites `tests/golden/odd_tables`; read the
difference before you keep it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_traces import GpuTrace
from rank_samples import Job, describe
from test_whole_tables import RANK_VIEWS, differences, document

import torchtraceap as ttap
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.compare.diff import VIEWS as DIFF_VIEWS
from torchtraceap.tables.compare.diff import build_diff

EXPECTED = Path(__file__).resolve().parents[2] / "golden" / "odd_tables"
GEMM = "ampere_sgemm_128x64_tn"
VECTOR = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>(int)"
FLOATS = ["float", "float"]
HALVES = ["c10::Half", "c10::Half"]
STEPS_US = (1_000, 1_400, 1_000, 1_020, 1_010, 1_000)
DEVICES = [
    {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "numSms": 108, "maxThreadsPerMultiprocessor": 2048,
     "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 167936, "warpSize": 32,
     "computeMajor": 8, "computeMinor": 0, "totalGlobalMem": 42_000_000_000},
    {"id": 1, "name": "NVIDIA A100-SXM4-40GB", "numSms": 108, "computeMajor": 8, "computeMinor": 0},
]  # fmt: skip


def shape(grid: list[int], block: int = 128, registers: int = 32, **more: Any) -> dict[str, Any]:
    return {
        "grid": grid,
        "block": [block, 1, 1],
        "registers per thread": registers,
        "shared memory": 1024 * (grid[0] % 3),
        "est. achieved occupancy %": 10 * (grid[0] % 7),
        **more,
    }


def one_step(t: GpuTrace, number: int, at: float, length: float) -> None:
    t.host("user_annotation", f"ProfilerStep#{number}", at, length)
    t.host("python_function", "nn.Module: Net_0", at + 5, 400)
    t.host("python_function", "nn.Module: Linear_0", at + 10, 150)
    mm = {"Input Dims": [[64, 128], [128, 32 * (1 + number % 2)]], "Input type": FLOATS}
    t.op("aten::linear", at + 12, 140, **mm)
    t.op("aten::mm", at + 20, 60, **mm, **{"Sequence number": 10 * number, "Fwd thread id": 0})
    t.launch(GEMM, (at + 30, 6), (at + 50, 90 + number), **shape([16, 2, 1], 256, 128))
    t.op("aten::add", at + 100, 30, **{"Input Dims": [[64, 32], []], "Input type": FLOATS})
    t.launch(VECTOR, (at + 105, 4), (at + 150, 3), **shape([109 * number, 1, 1]))
    t.op("aten::bmm", at + 165, 40, **{"Input Dims": [[2, 8, 8], [2, 8, 8]], "Input type": HALVES})
    t.launch("sm80_xmma_gemm_f16f16_f16f32", (at + 170, 5), (at + 180, 20), **shape([216, 1, 1]))
    t.op("mine::op", at + 210, 50)
    t.launch("triton_poi_fused_add_0", (at + 215, 3), (at + 230, 8), stream=9, **shape([5, 5, 5]))
    t.launch("triton_poi_fused_add_1", (at + 225, 3), (at + 239, 0), stream=9)
    t.launch("lone", (at + 270, 3), (at + 290, 12), **shape([4, 1, 1], 1024, 255))
    t.gpu("orphan", at + 310, 7, stream=11)
    t.op("aten::copy_", at + 320, 40)
    upload = {"call": "cudaMemcpyAsync", "cat": "gpu_memcpy"}
    up, down = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)"
    t.launch(up, (at + 325, 30), (at + 330, 20), **upload, bytes=1 << 20)
    t.launch(up, (at + 357, 2), (at + 360, 1), **upload)
    t.launch(down, (at + 370, 3), (at + 380, 5), **upload, bytes=4096)
    t.launch("Memset (Device)", (at + 390, 3), (at + 400, 2), call="cudaMemsetAsync",
             cat="gpu_memset", bytes=64)  # fmt: skip
    for index, call in enumerate(("cudaStreamSynchronize", "cudaMalloc", "cudaEventQuery")):
        t.call(call, at + 420 + 40 * index, 20 + number)
    t.memory(at + 430, 512 * (number + 1), **{"Total Allocated": 4096 * number, "Device Id": 0,
             "Device Type": 1, "Total Reserved": 8192, "Addr": number})  # fmt: skip
    t.memory(at + 520, -256, **{"Device Id": 1, "Device Type": 1, "Addr": number})
    backward = "autograd::engine::evaluate_function: MmBackward0"
    other = {"ph": "X", "pid": 1, "tid": 2}
    ids = {"Sequence number": 10 * number, "Fwd thread id": 1}
    t.raw(other | {"cat": "cpu_op", "name": backward, "ts": at + 560, "dur": 90, "args": ids})
    t.raw(other | {"cat": "cpu_op", "name": "aten::mm", "ts": at + 570, "dur": 50, "args": mm})
    call = {"correlation": 9_000 + number}
    t.raw(
        other
        | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 580, "dur": 9}
        | {"args": call}
    )
    t.gpu(GEMM, at + 600, 70, **call, **shape([32, 1, 1], 256, 128))
    second = {"device": 1, "stream": 7, "correlation": 9_100 + number}
    t.call("cudaLaunchKernel", at + 700, 4, correlation=9_100 + number)
    kernel = {"ph": "X", "cat": "kernel", "name": VECTOR, "pid": 3, "tid": 7}
    t.raw(kernel | {"ts": at + 710, "dur": 25, "args": second})
    t.host("python_function", "<built-in method item of Tensor object at 0x7f00>", at + 760, 120)
    t.op("aten::item", at + 770, 100)
    t.call("cudaDeviceSynchronize", at + 780, 80)
    if number % 2:
        t.call("cudaFree", at + 900, 50)
        t.launch("nchwToNhwcKernel", (at + 955, 3), (at + 960, 6), **shape([108, 1, 1]))


def odd(folder: Path, *, slower: float = 0) -> ttap.Trace:
    folder.mkdir(exist_ok=True)
    t = GpuTrace()
    at = 100.0
    for number, length in enumerate(STEPS_US):
        one_step(t, number, at, length)
        if slower:
            t.op("aten::sort", at + 905, slower)
            t.launch("radixSort", (at + 910, 3), (at + 970, slower / 2), **shape([7, 1, 1]))
        at += length + 10 + (slower if slower else 0)
    for index in range(5):
        asked = {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventQuery", "pid": 1, "tid": 5}
        t.raw(asked | {"ts": 300.0 + 900 * index, "dur": 2, "args": {}})
    return t.load(folder, deviceProperties=DEVICES)


def apart(folder: Path) -> ttap.Trace:
    """Five of a dozen ranks. Rank 3 shares nothing, rank 4 begins late and ends early, clocks of 1
    and 2 are far off; there are groups of two, sizes that nobody knows, and a barrier."""
    job = Job(5, world_size=12)
    everyone = [0, 1, 2, 4]
    kinds = ("allreduce", "barrier", "broadcast", "allgather", "reduce_scatter", "send", "alltoall")
    for number in range(12):
        at = 1_000.0 * number + 100
        kind = kinds[number % 7]
        pair = number % 5 == 4
        members = [0, 1] if pair else everyone
        for rank in range(5):
            if rank == 4 and not 3 <= number < 10:
                continue
            job.host(rank, f"ProfilerStep#{number}", at, 1_000)
            shapes = {"Input Dims": [[64, 8 * (1 + number % 2)]], "Input type": ["float"]}
            job.ranks[rank].host("cpu_op", "aten::mm", at + 5, 40, **shapes)
            job.kernel(rank, at + 30, 100 + (150 if rank == 2 else 10 * rank))
            if rank not in members:
                continue
            args: dict[str, Any] = describe(kind, 256 * (number + 1), members)
            args |= {"Process Group Name": "pair" if pair else "0"}
            if number % 6 == 5:
                args = {"Collective name": kind}
            start = at + 300 + (150 if rank == 2 else 10 * rank)
            job.ranks[rank].gpu("kernel", NAMES[kind], start, at + 700 - start, launch=at + 80,
                                **args)  # fmt: skip
    for maker in job.ranks:
        maker.top["deviceProperties"] = [{"id": i, "name": "GPU"} for i in range(2)]
        for event in maker.events:
            if "device" in event["args"]:
                event["args"]["device"] = maker.top["distributedInfo"]["rank"] % 2
    return job.load(folder, offsets=(0, 4_000, -9_000, 0, 0))


NAMES = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
    "barrier": "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevComm*)",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*)",
    "allgather": "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*)",
    "send": "ncclDevKernel_SendRecv(ncclDevComm*)",
    "alltoall": "ncclDevKernel_SendRecv(ncclDevComm*)",
}


class Traces:
    def __init__(self, folder: Path) -> None:
        self.trace, self.other = odd(folder / "one"), odd(folder / "two", slower=40)
        self.apart = apart(folder / "apart")


def of(name: str, trace: str = "trace", **options: Any) -> Callable[[Traces], ColumnTable]:
    return lambda traces: getattr(getattr(traces, trace), name)(**options)


def difference(by: str) -> Callable[[Traces], ColumnTable]:
    return lambda traces: build_diff(traces.trace, traces.other, by=by)


VIEWS = {
    "ops": ("name", "category", "args", "call"),
    "kernels": ("name", "canonical", "overlap", "event"),
    "grids": ("name", "grid", "event"),
    "launches": ("call", "kernel", "op", "stream", "idle", "event", "queue"),
    "roofline": ("args", "family", "call"),
    "memory": ("direction", "copy", "bandwidth", "counter", "allocator", "timeline"),
    "host": ("thread", "op", "frame"),
    "critical_path": ("cause", "name", "event"),
}
TABLES: dict[str, Callable[[Traces], ColumnTable]] = {
    **{f"{name}_{by}": of(name, by=by) for name, views in VIEWS.items() for by in views},
    **{name: of(name) for name in ("modules", "sequences", "steps", "tree_rows", "short_kernels")},
    "sequences_of_three": of("sequences", length=3),
    "short_below_4": of("short_kernels", below_ns=4_000),
    "roofline_h100": of("roofline", device="H100 SXM5 80 GB", by="args"),
    "roofline_tracelens": of("roofline", compat="tracelens"),
    "hta_event": of("critical_path", compat="hta", step=2, by="event"),
    "hta_cause": of("critical_path", compat="hta", step="ProfilerStep#3", by="cause"),
    "hta_all": of("critical_path", compat="hta", by="name"),
    "apart_collectives": of("collectives", "apart"),
    **{f"apart_{by}": of("ranks_table", "apart", by=by) for by in RANK_VIEWS},
    **{f"apart_path_{by}": of("critical_path", "apart", by=by) for by in VIEWS["critical_path"]},
    "idle": of("idle"),
    "idle_profiled": of("idle", profiled=True),
    **{f"diff_{by}": difference(by) for by in DIFF_VIEWS},
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    return Traces(tmp_path_factory.mktemp("odd"))


@pytest.mark.parametrize("name", TABLES)
def test_whole_table_of_an_odd_trace(name: str, traces: Traces) -> None:
    expected = json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))
    assert not differences(document(TABLES[name](traces)), expected)


def test_every_file_is_of_a_table() -> None:
    assert {path.stem for path in EXPECTED.glob("*.json")} == set(TABLES)


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        both = Traces(Path(made))
        for table in TABLES:
            found = document(TABLES[table](both))
            columns = [f'  "{k}": {json.dumps(v)}' for k, v in found.pop("columns").items()]
            rest = [f' "{k}": {json.dumps(v)}' for k, v in found.items()]
            text = ",\n".join([' "columns": {\n' + ",\n".join(columns) + "\n }", *rest])
            (EXPECTED / f"{table}.json").write_text("{\n" + text + "\n}\n", encoding="utf-8")
