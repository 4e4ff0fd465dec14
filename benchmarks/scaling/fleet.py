"""Whether a corpus tells what was planted in a fleet: hours, order, weeks of onset, bad nodes.

    python benchmarks/scaling/fleet.py [--fleets 4] [--runs 1000] [--seed 1] [--output FILE]

A run is a loop of large products with blocks of lost time of known length between them, about 100
events a rank, so that the cost of a finding is known by construction and not by a rule. Every
fleet has faults that are there all the time, faults that begin in one team in some week,
look-alikes that cost nothing, and jobs of four nodes of which some are bad.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

from torchtraceap.corpus import Engine, Selection, build
from torchtraceap.corpus.report import build_report
from torchtraceap.lab.generation.event_faults import FILLS, Block

STEADY = ("single_process_data_loading", "no_memory_pin", "synchronous_memset", "graph_break")
"""Faults that are there in all weeks."""
BEGINNING = ("host_silence", "pageable_readback", "graph_recapture")
"""Faults that begin in one team in some week."""
LOOK_ALIKES = ("hidden_loader", "hidden_upload", "asynchronous_memset", "three_pointwise")
TEAMS, MODELS, HOSTS, BAD_HOSTS, WEEKS = 5, 4, 24, 2, 16
STEPS, PRODUCTS, PRODUCT_US = 5, 5, 9_000.0
RANKS, LATE_US = 4, 9_000.0
MONDAY = date(2026, 6, 1)
TAGS = (
    "team=/(?P<team>t[0-9]+)/",
    "model=/(?P<model>m[0-9]+)/",
    "time=/(?P<time>2026-[0-9-]+T[0-9]+)/",
    "gpu_hours=/(?P<gpu_hours>[0-9.]+)h-",
    "host=(?P<host>node[0-9]+)",
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"


@dataclass
class Planted:
    """The truth about a fleet."""

    hours: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Lost GPU hours by type."""
    onsets: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The team and the Monday on which a type begins."""
    bad: tuple[str, ...] = ()
    """Hosts whose ranks come late."""
    runs: int = 0


def wait(block: Block) -> None:
    """Let the host wait until the GPU has nothing to do."""
    block.call("cudaDeviceSynchronize", block.host + 1, block.gpu - block.host)
    block.host = block.gpu + 1


def make_rank(
    begin_us: float, faults: dict[str, float], *, rank: int | None = None, late_us: float = 0.0
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return a trace, and the microseconds that each fault costs in it."""
    block = Block(begin_us, (1, 1), (0, 7), 100)
    lost: dict[str, float] = defaultdict(float)
    for step in range(STEPS):
        begin = block.host
        block.host += late_us
        for _ in range(PRODUCTS // 2):
            block.kernel("ampere_bf16_gemm", PRODUCT_US, op="aten::mm")
        wait(block)
        for name, us in faults.items():
            own = Block(block.host + 1, block.thread, block.device, block.correlation)
            FILLS[name](own, us)
            lost[name] += sum(end - start for start, end in own.truth)
            block.events += own.events
            block.correlation, block.host, block.gpu = own.correlation, own.host, own.gpu
        for _ in range(PRODUCTS - PRODUCTS // 2):
            block.kernel("ampere_bf16_gemm", PRODUCT_US, op="aten::mm")
        if rank is not None:
            # All ranks leave it at the same time: the late one has the shortest.
            at = block.op("c10d::allreduce_", 10)
            block.call("cudaLaunchKernel", at + 2, 5)
            end = begin + PRODUCTS * PRODUCT_US + LATE_US + 2_000
            block.work(ALL_REDUCE, block.gpu, end - block.gpu, stream=13, **{
                "Collective name": "allreduce", "In msg nelems": 1 << 20, "Group size": RANKS,
                "Out msg nelems": 1 << 20, "dtype": "BFloat16", "Process Group Name": "0",
            })  # fmt: skip
        wait(block)
        block.range(f"ProfilerStep#{step + 2}", begin, block.host)
    head: dict[str, Any] = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    if rank is not None:
        head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": RANKS}
    return head | {"traceEvents": block.events}, lost


def make_fleet(folder: Path, runs: int, seed: int) -> Planted:
    """Write the traces of a fleet."""
    chance = random.Random(seed)
    hosts = [f"node{number:02}" for number in range(HOSTS)]
    truth = Planted(bad=tuple(chance.sample(hosts, BAD_HOSTS)))
    teams = [f"t{number}" for number in range(TEAMS)]
    weeks = chance.sample(range(3, WEEKS - 3), len(BEGINNING))
    for name, week in zip(BEGINNING, weeks, strict=True):
        monday = MONDAY + timedelta(days=7 * week)
        truth.onsets[name] = (chance.choice(teams), monday.isoformat())
    rates = {name: chance.uniform(0.05, 0.35) for name in STEADY}
    sizes = {name: chance.uniform(0.04, 0.3) for name in (*STEADY, *BEGINNING)}
    for number in range(runs):
        day = MONDAY + timedelta(days=number * 7 * WEEKS // runs)
        team, model, hours = chance.choice(teams), f"m{chance.randrange(MODELS)}", 0.0
        hours = round(chance.lognormvariate(2, 1), 3)
        kinds = [name for name in STEADY if chance.random() < rates[name]][:1]
        begun = (n for n, onset in truth.onsets.items() if (team, day.isoformat()) >= onset)
        kinds += [n for n in begun if team == truth.onsets[n][0] and chance.random() < 0.6]
        if not kinds and chance.random() < 0.3:
            kinds = [chance.choice(LOOK_ALIKES)]
        compute = PRODUCTS * PRODUCT_US
        faults = {name: compute * sizes.get(name, 0.2) * chance.uniform(0.7, 1.3) for name in kinds}
        # Times of the calendar are a tag, for clocks of GPUs count from the start.
        at = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=number)
        place = folder / team / model / at.strftime("%Y-%m-%dT%H%M%S") / f"{hours}h-run{number}"
        place.mkdir(parents=True)
        several = not kinds and chance.random() < 0.7
        used = chance.sample(hosts, RANKS) if several else [chance.choice(hosts)]
        blamed = [h for h in used if h in truth.bad] or (used if chance.random() < 0.1 else [])
        late = chance.choice(blamed) if blamed else None
        begin_us = 7e9 + number * 1e8
        for rank, host in enumerate(used):
            late_us = LATE_US if several and host == late else 0.0
            trace, lost = make_rank(
                begin_us, faults, rank=rank if several else None, late_us=late_us
            )
            path = place / f"{host}-rank{rank}.json.gz"
            path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
        steps = [e for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep")]
        whole_us = max(e["ts"] + e["dur"] for e in steps) - min(e["ts"] for e in steps)
        for name, us in lost.items():
            if name not in LOOK_ALIKES:
                truth.hours[name] += hours * us / whole_us
    truth.runs = runs
    return truth


def kendall(first: list[float], second: list[float]) -> float:
    """Return the rank correlation tau of two lists without ties."""
    signs = [
        (first[a] - first[b]) * (second[a] - second[b]) > 0
        for a in range(len(first))
        for b in range(a)
    ]
    return 2 * sum(signs) / len(signs) - 1


def judge(report: dict[str, Any], truth: Planted) -> dict[str, Any]:
    """Compare a report with the truth."""
    planted = {name: hours for name, hours in truth.hours.items() if hours > 0}
    found = {each["type"]: each["gpu_hours"] for each in report["findings"]}
    errors = {name: found.get(name, 0.0) / hours - 1 for name, hours in planted.items()}
    names = list(planted)
    trends = {each["type"]: each for each in report["trends"]}
    right = sum(
        name in trends and trends[name]["week"] == monday
        for name, (_, monday) in truth.onsets.items()
    )
    whose = sum(
        name in trends and (trends[name]["of"] or {}).get("team") == team
        for name, (team, _) in truth.onsets.items()
    )
    told = {each["host"] for each in report["hosts"]}
    return {
        "runs": report["runs"],
        "failed": len(report["failures"]),
        "tau": kendall([planted[n] for n in names], [found.get(n, 0.0) for n in names]),
        "worst_error": max(errors.values(), key=abs),
        "errors": errors,
        "not_planted": {n: h for n, h in found.items() if n not in planted and n != "straggler"},
        "onsets": len(truth.onsets),
        "onset_weeks_right": right,
        "onset_teams_right": whose,
        "trends_not_planted": sorted(trends.keys() - truth.onsets.keys()),
        "stable_types": len(found.keys() - truth.onsets.keys()),
        "bad_hosts": len(truth.bad),
        "bad_hosts_found": len(told & set(truth.bad)),
        "hosts_not_planted": sorted(told - set(truth.bad)),
    }


def measure(folder: Path, runs: int, seed: int, jobs: int = 0) -> dict[str, Any]:
    truth = make_fleet(folder / "traces", runs, seed)
    begin = perf_counter()
    corpus = str(folder / "fleet")
    build(Selection((str(folder / "traces"),), TAGS), corpus, engine=Engine(jobs=jobs))
    built = perf_counter()
    report = build_report(corpus)
    done = perf_counter()
    times = {"build_s": round(built - begin, 1), "report_s": round(done - built, 2)}
    return {"seed": seed, **judge(report, truth), **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fleets", type=int, default=4)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for seed in range(options.seed, options.seed + options.fleets):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(Path(folder), options.runs, seed))
        print(json.dumps(rows[-1]), flush=True)
    if options.output:
        write_results(options.output, results=rows)


if __name__ == "__main__":
    main()
