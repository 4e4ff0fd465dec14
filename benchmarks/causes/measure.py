#!/usr/bin/env python3
"""How often `bench.causes` names a planted slowdown first.

    PYTHONPATH=python .venv/bin/python benchmarks/causes/measure.py [--out FILE] [--half all]

Programs for the CPU (`programs.py`) are recorded with and without a slowdown (`plants.py`), in turn
and several times each, and of each side the recording with the shortest median step is taken, as a
machine that is shared slows recordings down. Traces of GPUs are `torchtraceap generate`'s pairs,
whose labels say what was put in (`gpu_traces.py`). Rules were made on the half of the kinds called
"development"; the other half was looked at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import gpu_traces
from plants import PLANTS, Plant
from programs import MODELS, Program
from recording import record

from torchtraceap.lab.bench.causes import causes
from torchtraceap.trace.loader import load

HALVES = ("development", "held out", "all")
TRIES = 3


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The profiler writes lines of its own to standard error."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def step_ns(path: Path) -> float:
    steps = load(path).ranks[0].tree.steps
    return median(step.end_ns - step.start_ns for step in steps[1:-1])


def recorded(model: str, plant: Plant, folder: Path, *, stacks: bool) -> tuple[Path, Path]:
    """The fastest recording of either side."""
    taken: dict[str, list[tuple[float, Path]]] = {"before": [], "after": []}
    for number in range(TRIES):
        for side, paths in taken.items():
            program = Program(model)
            if side == "after":
                plant.apply(program)
            with quiet():
                path = record(program, folder / f"{side}{number}.json.gz", stacks=stacks)
            paths.append((step_ns(path), path))
    return min(taken["before"])[1], min(taken["after"])[1]


def judged(before: Path, after: Path, right: str) -> dict[str, Any]:
    started = time.perf_counter()
    # Whoever compares runs knows which side is slower.
    found = causes(before, after, change=0.05)
    seconds = time.perf_counter() - started
    total = sum(cause.delta_ns for cause in found.causes)
    assert total == found.difference_ns, "causes do not sum to the difference"
    top = found.top
    return {
        "right": bool(top and re.search(right, f"{top.name} {top.path}")),
        "top": top.sentence() if top else None,
        "share": round(top.share, 3) if top else None,
        "before_ms": round(found.before_step_ns / 1e6, 3),
        "after_ms": round(found.after_step_ns / 1e6, 3),
        "second": found.causes[1].sentence() if len(found.causes) > 1 else None,
        "seconds": round(seconds, 2),
    }


def cpu_cases(half: str, only: str, *, stacks: bool) -> Iterator[dict[str, Any]]:
    for model in MODELS:
        for plant in PLANTS.values():
            case = "held out" if plant.held_out else "development"
            if half not in ("all", case) or only not in f"{model}/{plant.name}":
                continue
            with tempfile.TemporaryDirectory() as folder:
                pair = recorded(model, plant, Path(folder), stacks=stacks)
                told = judged(*pair, plant.right)
            recording = "CPU, stacks" if stacks else "CPU"
            yield {"trace": recording, "program": model, "kind": plant.name, "half": case, **told}


def gpu_cases(half: str, only: str) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for planted in gpu_traces.planted(Path(folder), half):
            if only not in f"{planted.program}/{planted.kind}":
                continue
            told = judged(planted.before, planted.after, planted.right)
            yield {
                "trace": "GPU",
                "program": planted.program,
                "kind": planted.kind,
                "half": planted.half,
                **told,
            }


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    told = {}
    for trace in dict.fromkeys(case["trace"] for case in cases):
        for half in HALVES[:2]:
            chosen = [c["right"] for c in cases if c["trace"] == trace and c["half"] == half]
            if chosen:
                told[f"{trace}, {half}"] = {"right": sum(chosen), "cases": len(chosen)}
    right = sum(case["right"] for case in cases)
    return {**told, "all": {"right": right, "cases": len(cases),
                            "share": round(right / max(1, len(cases)), 3)}}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=HALVES, default="all")
    parser.add_argument("--only", default="", help="programs/kinds that hold this text")
    parser.add_argument("--traces", default="cpu,stacks,gpu", help="cpu, stacks, gpu")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    wanted = options.traces.split(",")
    cases: list[dict[str, Any]] = []

    def take(found: Iterator[dict[str, Any]]) -> None:
        for case in found:
            cases.append(case)
            mark = "  " if case["right"] else "✗ "
            print(f"{mark}{case['trace']:<12}{case['program']:<14}{case['kind']:<20}"
                  f"{case['before_ms']:>8.2f} → {case['after_ms']:<8.2f}ms  {case['top']}",
                  flush=True)  # fmt: skip

    if "cpu" in wanted:
        take(cpu_cases(options.half, options.only, stacks=False))
    if "stacks" in wanted:
        take(cpu_cases(options.half, options.only, stacks=True))
    if "gpu" in wanted:
        take(gpu_cases(options.half, options.only))
    told = summary(cases)
    print(json.dumps(told, indent=1))
    if options.out:
        document = {
            "command": " ".join(["benchmarks/causes/measure.py", *sys.argv[1:]]),
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{platform.machine()}, {os.cpu_count()} processors",
            "summary": told,
            "cases": cases,
        }
        Path(options.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
