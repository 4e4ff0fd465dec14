"""Runs competitors side by side: answers first, then times, in fresh processes, interleaved.

A competitor is a file with `run(path)`, which does the work and returns what it built, and
`answers(built)`, which says what it found (outside the measured time). It may have `available()`,
a reason why it can't run here, and `prepare()`, imports that are not to be measured. A task is a
folder of competitors with a run.py.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
DEMO_TRACE = ROOT / "examples/traces/resnet50_num_workers_0.json.gz"
Answers = dict[str, int]
Allowed = Callable[[str, str], tuple[str, float]]


@dataclass
class Result:
    """One competitor on one trace: seconds of `run` alone, wall seconds of the whole process."""

    competitor: str
    trace: str
    answers: Answers = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    skipped: str = ""


def load_competitor(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"competitor_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def serve(competitor: Path, trace: str, repeats: int) -> None:
    """Body of the fresh process: runs the competitor, prints one line of JSON."""
    stdout = os.dup(1)
    os.dup2(2, 1)  # whatever the competitor prints goes to stderr
    module = load_competitor(competitor)
    reason = module.available() if hasattr(module, "available") else ""
    reply: dict[str, object] = {"skipped": reason}
    if not reason:
        if hasattr(module, "prepare"):
            module.prepare()
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            built = module.run(trace)
            seconds.append(time.perf_counter() - start)
            if len(seconds) < repeats:
                del built
        # Of this process, or of the program that it ran.
        peak_kb = max(
            resource.getrusage(who).ru_maxrss
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        own = getattr(built, "seconds", None)  # a program of its own measures itself
        reply |= {"seconds": own or seconds, "peak_mb": peak_kb / 1024}
        reply["answers"] = module.answers(built)
    os.write(stdout, json.dumps(reply).encode() + b"\n")


def in_fresh_process(result: Result, competitor: Path, trace: Path, repeats: int) -> None:
    command = [sys.executable, str(Path(__file__)), str(competitor), str(trace), str(repeats)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - start
    if done.returncode != 0:
        result.skipped = f"failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
        return
    reply = json.loads(done.stdout.splitlines()[-1])
    result.skipped = reply["skipped"]
    if not result.skipped:
        result.seconds += reply["seconds"]
        result.wall_seconds.append(wall)
        result.peak_mb = max(result.peak_mb, reply["peak_mb"])
        result.answers = reply["answers"]


def compare(task: Path, trace: Path, rounds: int, only: list[str], budget_s: float) -> list[Result]:
    """Every competitor of the folder on one trace, `rounds` times in turn.

    One that needs more than `budget_s` a run is measured once.
    """
    competitors = sorted(path for path in task.glob("*.py") if path.stem != "run")
    results = {
        path: Result(path.stem, trace.name) for path in competitors if not only or path.stem in only
    }
    for turn in range(rounds):
        for path, result in results.items():
            slow = bool(result.seconds) and min(result.seconds) > budget_s
            if result.skipped or slow:
                continue
            # The fast ones are noisy: more runs in one process, the first of them cold.
            fast = bool(result.seconds) and min(result.seconds) < 1
            print(f"  round {turn + 1}: {result.competitor}", file=sys.stderr, flush=True)
            in_fresh_process(result, path, trace, 5 if fast else 1)
    return list(results.values())


def check_answers(results: list[Result], allowed: Allowed) -> list[str]:
    """Compares every answer with ours; returns notes on the differences.

    Ours is that of traceap, or of a competitor whose name begins with it (the part of the work
    that another tool does as well).

    Args:
        results: All competitors on one trace.
        allowed: (competitor, answer) -> why a difference is expected, and up to which share.

    Raises:
        SystemExit: Two tools differ where they should not: their times mean nothing.
    """
    ours_first = [r for r in results if r.competitor.startswith("traceap")]
    reference = {k: v for r in reversed(ours_first) for k, v in r.answers.items()}
    notes = []
    for result in results:
        for key in sorted(result.answers.keys() & reference.keys()):
            ours, theirs = reference[key], result.answers[key]
            if ours == theirs:
                continue
            reason, share = allowed(result.competitor, key)
            note = f"{result.competitor} says {key} = {theirs:,}, traceap {ours:,}"
            if abs(theirs - ours) > share * max(abs(ours), abs(theirs)):
                raise SystemExit(f"answers differ on {result.trace}: {note}")
            notes.append(f"{note} ({reason})")
    return notes


def table(results: list[Result], baseline: str = "traceap") -> str:
    """A Markdown table; ratios are of the best times, of this run alone."""
    best = {r.competitor: min(r.seconds) for r in results if r.seconds}
    lines = [
        f"| competitor | best s | median s | times {baseline} | process s | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for result in sorted(results, key=lambda r: best.get(r.competitor, float("inf"))):
        if result.skipped:
            lines.append(f"| {result.competitor} | {result.skipped} | | | | |")
            continue
        ratio = best[result.competitor] / best[baseline] if baseline in best else float("nan")
        lines.append(
            f"| {result.competitor} | {min(result.seconds):.3f} "
            f"| {statistics.median(result.seconds):.3f} | {ratio:.2f} "
            f"| {min(result.wall_seconds):.2f} | {result.peak_mb:,.0f} |"
        )
    return "\n".join(lines)


def machine() -> dict[str, object]:
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gb": round(memory_gb),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def write_results(path: Path, *, indent: int | None = 1, **found: object) -> None:
    """Writes what a program measured, with what it takes to measure it again."""
    document = {
        "command": "python " + " ".join(sys.argv),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine(),
        **found,
    }
    path.write_text(json.dumps(document, indent=indent) + "\n", encoding="utf-8")


def main(task: Path, allowed: Allowed) -> None:
    """Command line of a task's run.py."""
    parser = argparse.ArgumentParser(description=f"benchmark: {task.name}")
    parser.add_argument("traces", nargs="*", type=Path, default=[DEMO_TRACE])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="competitors, by file name")
    parser.add_argument("--budget", type=float, default=20, help="slower ones run once (seconds)")
    parser.add_argument("--label", default="", help="told apart in the result's file name")
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results")
    options = parser.parse_args()
    only = [*options.only, "traceap"] if options.only else []
    about = machine()
    record = []
    for trace in options.traces:
        results = compare(task, trace.resolve(), options.rounds, only, options.budget)
        notes = check_answers(results, allowed)
        print(f"\n{task.name}: {trace.name}\n\n{table(results)}\n")
        print("\n".join(f"- {note}" for note in notes))
        record.append({"notes": notes, "results": [asdict(result) for result in results]})
    options.output.mkdir(parents=True, exist_ok=True)
    today = datetime.date.today().isoformat()
    label = f"-{options.label}" if options.label else ""
    path = options.output / f"{today}-{task.name}{label}.json"
    document = {"task": task.name, "date": today, "commit": commit(), "machine": about}
    path.write_text(json.dumps(document | {"traces": record}, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
