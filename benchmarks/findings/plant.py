"""Faults with a known place and cost in real traces: are they found, there, and at that price?

    python benchmarks/findings/plant.py TRACE ... [--places 4] [--share 0.15] [--output FILE]

Each fault is put into a copy of each trace at four places, so that it costs 20 % of the time that
was profiled (`planting.py`); decoys look like faults and cost nothing. `found`: the type is present
and was not before, or costs more by half of the truth. `place`: the intersection over the union of
its intervals with the truth, within 1 ms of the blocks. `cost`: what its cost grew by, over the
truth, minus 1. A fault that the trace holds already is left out, for what is planted then mixes
with what was there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from planting import Block, Interval, Recording, plant

import torchtraceap as ttap

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

Fill = Callable[[Block, float], None]
_POINTWISE = "void at::native::vectorized_elementwise_kernel<4, MulFunctor>"
_NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
_MEGABYTE = 1 << 20
_NEAR_US = 1_000.0


def single_process_data_loading(block: Block, us: float) -> None:
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
    _copy(block, us, "Memcpy HtoD (Pageable -> Device)", sync=True)


def high_memcpy(block: Block, us: float) -> None:
    _copy(block, us / 2, "Memcpy DtoH (Device -> Pinned)", sync=True)
    _copy(block, us / 2, "Memcpy HtoD (Pinned -> Device)", sync=True)


def pageable_readback(block: Block, us: float) -> None:
    _copy(block, us, "Memcpy DtoH (Device -> Pageable)", sync=True)


def graph_break(block: Block, us: float) -> None:
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
    begin = block.host
    while block.host < begin + us:
        at = block.op("aten::add", 60)
        block.call("cudaLaunchKernel", at + 50, 5)
        work = block.work(_POINTWISE, at + 60, 2)
        block.waste(at - 1, work[0])


def host_silence(block: Block, us: float) -> None:
    block.host += max(us, 15_000)  # what is shorter than 10 ms is a busy host
    block.waste(block.begin, block.host)


def small_nccl_kernels(block: Block, us: float) -> None:
    for _ in range(int(us / 14)):
        at = block.op("c10d::allreduce_", 10, lead=4)
        block.call("cudaLaunchKernel", at + 2, 5)
        sizes = {"In msg nelems": 64, "Out msg nelems": 64, "dtype": "BFloat16", "Group size": 8}
        block.work(_NCCL, at + 8, 12, stream=13, **{"Collective name": "allreduce", **sizes})
        block.waste(at + 8, at + 22)


def unfused_pointwise(block: Block, us: float) -> None:
    block.kernel("ampere_bf16_gemm", 100, op="aten::mm")
    for _ in range(5):
        block.waste(*block.kernel(_POINTWISE, us / 5))
    block.kernel(_POINTWISE, us / 4)  # stays
    block.kernel("ampere_bf16_gemm", 100, op="aten::mm")


def small_grids(block: Block, us: float) -> None:
    begin, end = block.kernel("my_scan_kernel", us / 0.9, **{"blocks per SM": 0.1})
    block.waste(end - 0.9 * (end - begin), end)


def shared_gpu(block: Block, us: float) -> None:
    gap = max(us / 6, 400)
    for _ in range(7):
        block.kernel("ampere_bf16_gemm", 400, op="aten::mm")
        block.waste(block.gpu, block.gpu + gap)
        block.gpu += gap
    block.truth.pop()
    block.gpu -= gap


def synchronous_memset(block: Block, us: float) -> None:
    block.call("cudaMemset", block.op("aten::zero_", 50) + 1, 40)
    block.work("Memset (Device)", block.host - 40, 4, "gpu_memset", bytes=4_096)
    begin = block.op("aten::zero_", us)
    block.call("cudaMemset", begin + 1, us - 2)  # a first long call would be a cold start
    block.work("Memset (Device)", begin + 10, 6, "gpu_memset", bytes=4_096)
    block.waste(begin - 31, begin + 10)
    block.waste(begin + 16, begin + us)


def created_on_host(block: Block, us: float) -> None:
    begin = block.op("aten::randn", us * 0.6)
    _copy(block, us * 0.4, "Memcpy HtoD (Pageable -> Device)", sync=True)
    block.truth = [*block.truth[:-1], (begin, block.host)]


def for_loop_indexing(block: Block, us: float) -> None:
    begin = block.host
    for _ in range(max(12, int(us / 40))):
        block.op("aten::select", 12)
        at = block.op("aten::mul", 26)
        block.call("cudaLaunchKernel", at + 18, 5)
        block.waste(at - 14, block.work(_POINTWISE, at + 24, 2)[0])
    block.truth[0] = (begin, block.truth[0][1])


def graph_recapture(block: Block, us: float) -> None:
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
    block.work(_NCCL, begin + 20, us, stream=13, **{"Collective name": "allreduce", **sizes})


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


@dataclass(frozen=True)
class Row:
    """What was said of one planted fault or decoy."""

    trace: str
    planted: str
    found: bool
    place: float | None
    cost_error: float | None
    lead: str | None
    others: tuple[str, ...]
    """Types that are present now and were not before."""


def diagnose(trace: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps(trace))
        return ttap.load(path).diagnose()


def present(diagnosis: Any) -> dict[str, Any]:
    return {finding.type: finding for finding in diagnosis.findings}


def overlap(a: Iterable[Interval], b: Iterable[Interval]) -> float:
    """Intersection over union."""
    one, two = _united(a), _united(b)
    both = _length(_united([*one, *two]))
    shared = _length(one) + _length(two) - both
    return shared / both if both else 0.0


def _united(intervals: Iterable[Interval]) -> list[Interval]:
    united: list[Interval] = []
    for begin, end in sorted(intervals):
        if united and begin <= united[-1][1]:
            united[-1] = united[-1][0], max(united[-1][1], end)
        else:
            united.append((begin, end))
    return united


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def _near(intervals: Iterable[Interval], truth: list[Interval]) -> list[Interval]:
    """The parts of the intervals that lie within 1 ms of the truth."""
    near = _united((begin - _NEAR_US, end + _NEAR_US) for begin, end in truth)
    clipped = [(max(a, begin), min(b, end)) for a, b in intervals for begin, end in near]
    return [(a, b) for a, b in clipped if a < b]


def planted(
    recording: Recording, fill: Fill, us: float, places: int, drain: bool
) -> tuple[Any, list[Interval]]:
    """A diagnosis of the trace with the fault at so many places, and where it costs how much."""
    faulty = recording.copy()
    truth: list[Interval] = []
    later = 0.0
    for at, thread in faulty.places(places):
        new, shift = plant(faulty, (at + later, thread), lambda block: fill(block, us), drain)
        truth += new
        later += shift
    return diagnose(faulty.write()), truth


def judge(
    trace: Path, name: str, fill: Fill, before: Any, recording: Recording, options: Any
) -> Row:
    us = recording.span_us() * options.share / options.places
    after, truth = planted(recording, fill, us, options.places, name in FAULTS)
    was, now = present(before), present(after)
    new = tuple(sorted(set(now) - set(was)))
    lead = (after.to_dict()["lead"] or {}).get("type")
    if name in DECOYS:
        wrong = tuple(t for t in new if t in DECOYS[name][1])
        return Row(trace.name, name, not wrong, None, None, lead, wrong)
    finding = now.get(name)
    if finding is None:
        return Row(trace.name, name, False, None, None, lead, new)
    said = [(begin * 1e-3, end * 1e-3) for begin, end in finding.intervals.tolist()]
    cost = finding.cost_ns * 1e-3 - (was[name].cost_ns * 1e-3 if name in was else 0.0)
    place = overlap(_near(said, truth), truth)
    error = cost / _length(_united(truth)) - 1
    return Row(trace.name, name, True, place, error, lead, tuple(t for t in new if t != name))


def main() -> None:
    parser = argparse.ArgumentParser(description="faults planted into real traces")
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--places", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.2, help="of the profiled time, planted")
    parser.add_argument("--only", nargs="*", default=[], help="faults and decoys, by name")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    fills = {**FAULTS, **{name: fill for name, (fill, _) in DECOYS.items()}}
    rows = []
    for path in options.traces:
        data = path.read_bytes()
        recording = Recording(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))
        before = diagnose(recording.write())
        for name, fill in fills.items():
            if (options.only and name not in options.only) or name in present(before):
                continue
            if name == "graph_recapture" and recording.steps() < 3:
                continue  # nothing tells a first recording from one of many
            row = judge(path, name, fill, before, recording, options)
            rows.append(row)
            place = "" if row.place is None else f"place {row.place:.2f} cost {row.cost_error:+.0%}"
            print(f"{path.name:36.36} {name:28} {row.found!s:6} {place:24} {row.lead} {row.others}")
    if options.output:
        write_results(options.output, rows=[asdict(row) for row in rows])


if __name__ == "__main__":
    main()
