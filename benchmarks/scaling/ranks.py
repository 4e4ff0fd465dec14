"""Seconds to read and to diagnose a job against its number of ranks, which should grow alike.

    python benchmarks/scaling/ranks.py [--ranks 8 32 128 512 1024] [--output FILE]

Every rank is small, a few steps of a few kernels and all-reduces, so that what is done once for
each rank is nothing and what is done for each pair of ranks shows. One rank comes late.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

import torchtraceap as ttap

STEPS, LAYERS = 4, 6
STEP_US, LAYER_US, LATE_US = 20_000.0, 1_000.0, 4_000.0
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def describe(ranks: int) -> dict[str, Any]:
    """Arguments of the all-reduces: as of a job too large for Kineto to list its ranks."""
    return {
        "Collective name": "allreduce",
        "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20,
        "dtype": "Float",
        "Process Group Name": "0",
        "Group size": ranks,
    }


class Rank:
    """The events of one rank."""

    def __init__(self, number: int, ranks: int) -> None:
        self.events: list[dict[str, Any]] = []
        self.head = {"distributedInfo": {"backend": "nccl", "rank": number, "world_size": ranks}}
        self.correlation = 0

    def host(self, category: str, name: str, ts: float, dur: float, **args: Any) -> None:
        track = {"pid": 1, "tid": 1}
        self.add(category, name, ts, dur, track, args)

    def gpu(self, name: str, ts: float, dur: float, stream: int, **args: Any) -> None:
        self.correlation += 1
        linked = {"correlation": self.correlation}
        self.host("cuda_runtime", "cudaLaunchKernel", ts - 12, 5, **linked)
        place = {"device": 0, "stream": stream}
        self.add("kernel", name, ts, dur, {"pid": 0, "tid": stream}, place | linked | args)

    def add(
        self, category: str, name: str, ts: float, dur: float, track: dict[str, Any], args: Any
    ) -> None:
        times = {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur}
        self.events.append(times | track | {"args": args})


def make_rank(number: int, ranks: int) -> dict[str, Any]:
    rank, about = Rank(number, ranks), describe(ranks)
    late_us = LATE_US if number == ranks // 2 else 0.0
    for step in range(STEPS):
        begin = 100 + step * STEP_US
        rank.host("user_annotation", f"ProfilerStep#{step}", begin, STEP_US - 100)
        rank.gpu("fill", begin + 50, 200 + late_us, 7)
        for layer in range(LAYERS):
            at = begin + 300 + late_us + layer * LAYER_US
            rank.host("cpu_op", "aten::mm", at - 20, 15)
            rank.gpu("gemm", at, LAYER_US / 2, 7)
            end = begin + 300 + LATE_US + (layer + 1) * LAYER_US
            rank.gpu(ALL_REDUCE, at + LAYER_US / 2, end - at - LAYER_US / 2 - 10, 20, **about)
        rank.host("cuda_runtime", "cudaDeviceSynchronize", begin + 400, STEP_US - 9_000)
    return rank.head | {"traceEvents": rank.events}


def measure(folder: Path, ranks: int) -> dict[str, Any]:
    for number in range(ranks):
        path = folder / f"rank{number}.json"
        path.write_text(json.dumps(make_rank(number, ranks)))
    begin = time.perf_counter()
    trace = ttap.load(folder)
    loaded = time.perf_counter()
    diagnosis = trace.diagnose()
    done = time.perf_counter()
    finding = diagnosis.finding("straggler")
    assert finding is not None, "the late rank was not found"
    assert f"rank {ranks // 2}" in finding.why
    return {
        "ranks": ranks,
        "events": sum(len(rank.table) for rank in trace.ranks),
        "load_s": round(loaded - begin, 3),
        "diagnose_s": round(done - loaded, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32, 128, 512, 1024])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(Path(folder), ranks))
        row = rows[-1]
        print(
            f"{ranks:6} ranks {row['events']:8} events: load {row['load_s']:7.2f} s, diagnose "
            f"{row['diagnose_s']:7.2f} s, {1e3 * row['diagnose_s'] / ranks:6.1f} ms a rank",
            flush=True,
        )
    if options.output:
        write_results(options.output, results=rows)


if __name__ == "__main__":
    main()
