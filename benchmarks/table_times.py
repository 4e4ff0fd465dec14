"""Seconds of every table of the page: python benchmarks/table_times.py TRACE [--repeats 5]

A trace is a file or a folder with a file per rank. Best of the repeats, each with the file read
anew; what a table finds already made (the tree, the costs, idle causes) it does not pay for again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent))
from harness import commit, machine

T = TypeVar("T")


class Times:
    """Best seconds and processor seconds by name."""

    def __init__(self) -> None:
        self.best: dict[str, tuple[float, float]] = {}

    def measure(self, name: str, work: Callable[[], T]) -> T:
        wall, processor = time.perf_counter(), time.process_time()
        result = work()
        spent = (time.perf_counter() - wall, time.process_time() - processor)
        self.best[name] = min(self.best.get(name, spent), spent)
        return result


def run_once(path: Path, times: Times) -> None:
    import torchtraceap as ttap
    from torchtraceap.tables.catalog import TABLES, table_spec

    trace = times.measure("load", lambda: ttap.load(path))
    times.measure("tree, costs", lambda: [(rank.tree, rank.costs) for rank in trace.ranks])
    for name in TABLES:
        spec = table_spec(name)
        for view in spec.page:
            options = "".join(f" {key}={value}" for key, value in view.options.items())
            make = partial(spec.make, trace, **view.options)
            times.measure(f"{name}{options}", make)
    times.measure("summary", trace.summary)
    times.measure("diagnose", trace.diagnose)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    times = Times()
    about = machine()
    for _ in range(options.repeats):
        run_once(options.trace, times)
    print("| table | ms | ms of processor |\n|---|---|---|")
    for name, (wall, processor) in sorted(times.best.items(), key=lambda item: -item[1][0]):
        print(f"| {name} | {wall * 1e3:.1f} | {processor * 1e3:.1f} |")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nsum {sum(wall for wall, _ in times.best.values()):.2f} s, peak {peak_mb:,.0f} MB")
    if options.output:
        document = {
            "task": "tables",
            "trace": options.trace.name,
            "commit": commit(),
            "machine": about | {"load_after": os.getloadavg()[0]},
            "peak_mb": peak_mb,
            "seconds": {name: wall for name, (wall, _) in times.best.items()},
            "processor_seconds": {name: used for name, (_, used) in times.best.items()},
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
