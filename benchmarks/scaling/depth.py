"""Seconds of reading and of every table against the depth of the call stacks: linear, or nearly.

    python benchmarks/scaling/depth.py [--depths 5000 10000 20000 40000] [--output FILE]

A trace of depth n has n operators inside each other, each with a kernel of its own. The last
column is the exponent of the growth between the last two: 1 is linear, 2 quadratic.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import commit, machine

import torchtraceap as ttap
from torchtraceap.tables.catalog import TABLES

Event = dict[str, Any]
# Each row of these is asked for by itself, or they need the other ranks.
LEFT_OUT = {"events", "tree", "collectives", "ranks"}
SHAPES = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}


def nested(depth: int) -> list[Event]:
    """Operators inside each other, each of which launches one kernel before it calls the next."""
    events: list[Event] = []

    def add(category: str, name: str, tid: int, start: float, length: float, args: Event) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid}
        events.append(event | {"ts": start, "dur": length, "args": args})

    for level in range(depth):
        start, linked = 3.0 * level, {"correlation": level + 1}
        name = "aten::mm" if level % 1000 == 0 else f"layer{level % 50}"
        add("cpu_op", name, 1, start, 6.0 * depth - 2 * start, SHAPES)
        add("cuda_runtime", "cudaLaunchKernel", 1, start + 1, 1, linked)
        add("kernel", f"gemm{level % 20}", 7, start + 10, 2.5, {"device": 0, "stream": 7} | linked)
    return events


def measure(folder: Path, depth: int) -> dict[str, float]:
    path = folder / "nested.json"
    path.write_text(json.dumps({"traceEvents": nested(depth)}), encoding="utf-8")
    found: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        found[name] = time.perf_counter() - start
        return result

    trace = timed("load", lambda: ttap.load(path))
    timed("tree, costs", lambda: [(rank.tree, rank.costs) for rank in trace.ranks])
    methods = [entry.method for name, entry in TABLES.items() if name not in LEFT_OUT]
    for method in [*methods, "simulate", "summary", "diagnose"]:
        timed(method, getattr(trace, method))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[5_000, 10_000, 20_000, 40_000])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), 10)  # imports
        for depth in options.depths:
            found[depth] = measure(Path(folder), depth)
    print("| seconds | " + " | ".join(f"{depth:,}" for depth in found) + " | exponent |")
    print("|---" * (len(found) + 2) + "|")
    depths = [*found]
    for name in found[depths[0]]:
        seconds = [found[depth][name] for depth in depths]
        growth = ""
        if len(depths) > 1:
            growth = f"{math.log(seconds[-1] / seconds[-2], depths[-1] / depths[-2]):.1f}"
        print(f"| {name} | " + " | ".join(f"{s:.3f}" for s in seconds) + f" | {growth} |")
    if options.output:
        document = {"task": "scaling with depth", "commit": commit(), "machine": machine()}
        text = json.dumps(document | {"seconds": found}, indent=1)
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
