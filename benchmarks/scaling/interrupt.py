"""How long the command line takes to end after Ctrl-C, whatever it does at that moment.

    python benchmarks/scaling/interrupt.py TRACE [--commands diagnose summary "report --html ..."]
        [--times 20] [--seed 1] [--output FILE]

Each command runs once to its end, then it is interrupted at random moments of that time, behind the
start of the interpreter and its imports. Counted is the time from SIGINT to the end of the
process; it has to end with 130 (or to have finished before), and to leave all its files or none.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import ROOT, write_results

PACKAGE = str(ROOT / "python")
INTERRUPTED = 130
COMMANDS = [
    "diagnose",
    "diagnose --json",
    "summary",
    "simulate",
    "report --html {out}/page.html",
    "report --tracelens-csv {out}/sheets",
    "convert {out}/events.json.gz",
    "convert {out}/events.parquet",
    "annotate {out}/overlay.json.gz",
    "annotate {out}/overlay.pftrace",
    "merge {out}/merged.json",
    "sql 'select name, count(*) from events group by name order by 2'",
    "explain-idle",
    "idle --json",
    "events --csv {out}/events.csv",
    "ops",
    "kernels",
    "sequences",
    "critical-path",
    "launches --json",
    "memory",
    "modules",
    "roofline",
    "diff {trace}",
]


def start(command: str, trace: Path, folder: Path) -> subprocess.Popen[bytes]:
    name, *options = (
        text.replace("{out}", str(folder)).replace("{trace}", str(trace))
        for text in shlex.split(command)
    )
    return subprocess.Popen(
        [sys.executable, "-m", "torchtraceap", name, str(trace), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": PACKAGE},
        start_new_session=True,
    )


def written(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).rglob("*"))


def whole(command: str, trace: Path) -> tuple[float, int, list[str]]:
    """Seconds to its end, the exit code, and what it has written."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        process = start(command, trace, Path(folder))
        _, said = process.communicate()
        if process.returncode == 2:
            print(f"{command}: {said.decode().strip()}", file=sys.stderr)
        return time.perf_counter() - begin, process.returncode, written(folder)


def start_up_s() -> float:
    """Seconds until a command begins, generously: before it a signal meets Python's own start."""
    begin = time.perf_counter()
    call = [sys.executable, "-m", "torchtraceap", "--version"]
    subprocess.run(call, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": PACKAGE})
    return 2 * (time.perf_counter() - begin)


def interrupt(command: str, trace: Path, after_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        process = start(command, trace, Path(folder))
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        begin = time.perf_counter()
        _, said = process.communicate()
        return {
            "after_s": round(after_s, 3),
            "delay_s": round(time.perf_counter() - begin, 3),
            "exit": process.returncode,
            "said": said.decode(),
            "left": written(folder),
        }


def is_right(trial: dict[str, Any], files: list[str]) -> bool:
    if trial["exit"] != INTERRUPTED:
        return trial["exit"] in (0, 1)  # it was done
    return trial["said"] == "torchtraceap: interrupted\n" and trial["left"] in ([], files)


def measure(command: str, trace: Path, moments: random.Random, times: int) -> dict[str, Any]:
    seconds, code, files = whole(command, trace)
    first = min(start_up_s(), seconds)
    trials = [interrupt(command, trace, moments.uniform(first, seconds)) for _ in range(times)]
    stopped = [trial for trial in trials if trial["exit"] == INTERRUPTED]
    delays = sorted(trial["delay_s"] for trial in stopped)
    row = {
        "command": command,
        "seconds": round(seconds, 2),
        "exit": code,
        "interrupted": len(stopped),
        "median_s": delays[len(delays) // 2] if delays else None,
        "longest_s": delays[-1] if delays else None,
        "wrong": [trial for trial in trials if not is_right(trial, files)],
    }
    print(
        f"{command:45} {seconds:7.2f} s, interrupted {len(stopped):3} times: median "
        f"{row['median_s']} s, longest {row['longest_s']} s, wrong {len(row['wrong'])}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--commands", nargs="+", default=COMMANDS)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    trace_mb = round(options.trace.stat().st_size / 1e6)
    rows = []
    for command in options.commands:
        rows.append(measure(command, options.trace.resolve(), moments, options.times))
        if options.output:
            write_results(options.output, trace_mb=trace_mb, results=rows)


if __name__ == "__main__":
    main()
