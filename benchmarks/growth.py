"""How times grow with the depth of the call stacks and with the number of ranks.

    python benchmarks/growth.py depth [--sizes 5000 10000 20000 40000]
    python benchmarks/growth.py ranks [--sizes 8 32 128 512 1024]

`depth`: n nested operators, each with a kernel of its own, and every table of it. `ranks`: n small
ranks of 40 steps that meet in all-reduces, one of them late, and their diagnosis. The last column
is the exponent of the growth between the last two sizes: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from harness import commit, machine

import torchtraceap as ttap

Event = dict[str, Any]
SIZES = {"depth": (5_000, 10_000, 20_000, 40_000), "ranks": (8, 32, 128, 512, 1_024)}
TABLES = ("ops", "modules", "kernels", "sequences", "launches", "roofline", "memory", "host",
          "steps", "critical_path", "simulate", "summary", "diagnose")  # fmt: skip


def complete(category: str, name: str, tid: int, start: float, length: float, **args: Any) -> Event:
    event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid}
    return event | {"ts": start, "dur": length, "args": args}


def kernel(name: str, number: int, launch: float, start: float, length: float) -> list[Event]:
    call = complete("cuda_runtime", "cudaLaunchKernel", 1, launch, 1, correlation=number)
    where = {"device": 0, "stream": 7, "correlation": number}
    return [call, complete("kernel", name, 7, start, length, **where)]


def nested(depth: int) -> list[Event]:
    """Operators inside each other, each of which launches one kernel before it calls the next."""
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    events: list[Event] = []
    for level in range(depth):
        start = 3.0 * level
        name = "aten::mm" if level % 1000 == 0 else f"layer{level % 50}"
        events.append(complete("cpu_op", name, 1, start, 6.0 * depth - 2 * start, **shapes))
        events += kernel(f"gemm{level % 20}", level + 1, start + 1, start + 10, 2.5)
    return events


def small_rank(rank: int, *, steps: int = 40) -> list[Event]:
    """A hundred kernels in steps of 1 ms that end in an all-reduce; rank 3 comes late."""
    events: list[Event] = []
    for step in range(steps):
        at = 1_000.0 * step
        events.append(complete("user_annotation", f"ProfilerStep#{step}", 1, at, 1_000))
        late = 200 if rank == 3 else 0
        for i in range(2):
            number = 3 * step + i + 1
            events += kernel("gemm", number, at + 10 + 20 * i, at + 50 + 100 * i, 90 + late * i)
        start = at + 260 + late
        events += kernel(
            "ncclDevKernel_AllReduce_Sum_f32", 3 * step + 3, at + 60, start, at + 600 - start
        )
    return events


def write_depth(folder: Path, depth: int) -> Path:
    path = folder / "nested.json"
    path.write_text(json.dumps({"traceEvents": nested(depth)}), encoding="utf-8")
    return path


def write_ranks(folder: Path, ranks: int) -> Path:
    for rank in range(ranks):
        info = {"backend": "nccl", "rank": rank, "world_size": ranks}
        document = {"distributedInfo": info, "traceEvents": small_rank(rank)}
        (folder / f"rank{rank}.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def times_of(path: Path, tables: tuple[str, ...]) -> dict[str, float]:
    """Seconds of reading and of each table, the file read once."""

    def measure(work: Callable[[], Any]) -> tuple[Any, float]:
        start = time.perf_counter()
        result = work()
        return result, time.perf_counter() - start

    trace, seconds = measure(lambda: ttap.load(path))
    found = {"load": seconds}
    found["tree, costs"] = measure(lambda: [(r.tree, r.costs) for r in trace.ranks])[1]
    return found | {table: measure(getattr(trace, table))[1] for table in tables}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=tuple(SIZES))
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sizes = options.sizes or SIZES[options.what]
    write, tables = {
        "depth": (write_depth, TABLES),
        "ranks": (write_ranks, ("collectives", "ranks_table", "critical_path", "diagnose")),
    }[options.what]
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            found.append(times_of(write(Path(folder), size), tables))
    print("| " + " | ".join(["seconds", *map(str, sizes), "exponent"]) + " |")
    print("|---" * (len(sizes) + 2) + "|")
    for name in found[0]:
        row = [each[name] for each in found]
        growth = math.log(row[-1] / row[-2]) / math.log(sizes[-1] / sizes[-2]) if row[1:] else 1.0
        print("| " + " | ".join([name, *(f"{s:.3f}" for s in row), f"{growth:.2f}"]) + " |")
    if options.output:
        seconds = {str(size): each for size, each in zip(sizes, found, strict=True)}
        document = {"task": f"growth with {options.what}", "commit": commit()}
        document |= {"machine": machine(), "seconds": seconds}
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
