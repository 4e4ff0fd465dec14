"""How long the command line takes to end after Ctrl-C, whatever it does at that moment.

    python benchmarks/scaling/interrupt.py PATH [--commands diagnose report ...]
        [--times 5] [--seed 1] [--timeline-entries 2000000] [--output FILE]

PATH is a trace or a folder of ranks. Every command of the command line (`every_command.py`) runs
once to its end, then it is interrupted at random moments of that time, one in each of as many equal
parts of it, behind the start of the interpreter and its imports. Counted is the time from SIGINT to
the end of the process; it has to end with 130 (or to have finished before), and to leave all its
files or none, unless it is one that goes on where it stopped. What ends before the imports do is
never interrupted, and said to be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from every_command import GOES_ON, every_command
from harness import ROOT, write_results

PACKAGE = str(ROOT / "python")
WORKLOAD = Path(__file__).resolve().with_name("workload.py")
UNUSABLE, INTERRUPTED = 2, 130
SECOND = 1.0


def start(command: list[str], names: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    given = [names.get(word, word.replace("OUT", str(folder))) for word in command]
    return subprocess.Popen(
        [sys.executable, "-m", "torchtraceap", *given],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": PACKAGE},
        start_new_session=True,
    )


def written(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).rglob("*") if not path.is_dir())


def whole(command: list[str], names: dict[str, str]) -> tuple[float, int, list[str], str]:
    """Seconds to its end, the exit code, what it has written, and what it said of its refusal."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        process = start(command, names, Path(folder))
        _, said = process.communicate()
        refusal = said.decode().strip() if process.returncode == UNUSABLE else ""
        return time.perf_counter() - begin, process.returncode, written(folder), refusal


def start_up_s() -> float:
    """Seconds until a command begins, generously: before it a signal meets Python's own start."""
    begin = time.perf_counter()
    call = [sys.executable, "-m", "torchtraceap", "--version"]
    subprocess.run(call, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": PACKAGE})
    return 2 * (time.perf_counter() - begin)


def interrupt(command: list[str], names: dict[str, str], after_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        process = start(command, names, Path(folder))
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


def is_right(trial: dict[str, Any], files: list[str], goes_on: bool) -> bool:
    if trial["exit"] != INTERRUPTED:
        return trial["exit"] in (0, 1)  # it was done
    in_time = trial["delay_s"] <= SECOND
    said_so = trial["said"].endswith("torchtraceap: interrupted\n")
    clean = said_so and "Traceback" not in trial["said"]
    return in_time and clean and (goes_on or trial["left"] in ([], files))


def moments(begin_s: float, end_s: float, times: int, numbers: random.Random) -> Iterator[float]:
    """One in each of as many equal parts."""
    part_s = (end_s - begin_s) / times
    yield from (begin_s + part_s * (place + numbers.random()) for place in range(times))


def measure(
    command: list[str], names: dict[str, str], numbers: random.Random, times: int
) -> dict[str, Any]:
    seconds, code, files, refusal = whole(command, names)
    first_s = start_up_s()
    trials = []
    if seconds > first_s and code != UNUSABLE:
        chosen = moments(first_s, seconds, times, numbers)
        trials = [interrupt(command, names, after_s) for after_s in chosen]
    stopped = [trial for trial in trials if trial["exit"] == INTERRUPTED]
    delays = sorted(trial["delay_s"] for trial in stopped)
    row = {
        "command": shlex.join(command),
        "seconds": round(seconds, 2),
        "exit": code,
        "refused": refusal,
        "interrupted": len(stopped),
        "median_s": delays[len(delays) // 2] if delays else None,
        "longest_s": delays[-1] if delays else None,
        "wrong": [trial for trial in trials if not is_right(trial, files, command[0] in GOES_ON)],
    }
    told = refusal or f"median {row['median_s']} s, longest {row['longest_s']} s"
    print(
        f"{row['command'][:60]:60} {seconds:6.2f} s, interrupted {len(stopped):2} times: {told}, "
        f"wrong {len(row['wrong'])}",
        flush=True,
    )
    return row


def write_timeline(path: Path, entries: int) -> None:
    """As `export_memory_timeline` writes raw ones: time in ns, action, bytes, category."""
    rows = (f"[{1000 * n}, {1 + 2 * (n % 2)}, {512 - 1024 * (n % 2)}, 4]" for n in range(entries))
    path.write_text(f"[{', '.join(rows)}]", encoding="ascii")


def made_tables(numbers: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Embedding tables of all sizes."""
    for _ in range(count):
        yield {
            "rows": int(10 ** numbers.uniform(3, 7)),
            "dim": numbers.choice((32, 64, 128)),
            "pooling_factor": numbers.randint(1, 60),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--commands", nargs="+", help="only those with these names")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeline-entries", type=int, default=2_000_000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    # In the background of a shell it is ignored, and so would commands.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    path = options.path.resolve()
    files = [path] if path.is_file() else sorted(path.iterdir())
    numbers, rows = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as scratch:
        timeline = Path(scratch) / "timeline.raw.json"
        write_timeline(timeline, options.timeline_entries)
        tables = Path(scratch) / "tables.json"
        tables.write_text(json.dumps(list(made_tables(numbers, 200))))
        names = {
            "PATH": str(path),
            "FILE": str(files[0]),
            "TIMELINE": str(timeline),
            "WORKLOAD": f"{WORKLOAD}:encoder",
            "TABLES": str(tables),
        }
        for command in every_command():
            if options.commands and command[0] not in options.commands:
                continue
            rows.append(measure(command, names, numbers, options.times))
            if options.output:
                packed_mb = round(sum(file.stat().st_size for file in files) / 1e6, 1)
                write_results(options.output, packed_mb=packed_mb, results=rows)


if __name__ == "__main__":
    main()
