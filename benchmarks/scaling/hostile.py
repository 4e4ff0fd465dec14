"""CPU seconds and memory of every command on traces that no profiler writes, at n and 4n events.

    python benchmarks/scaling/hostile.py [--events 50000 200000] [--shapes NAME ...]
        [--commands WORD ...] [--all-views] [--output FILE]

A command is listed if its time or memory grows by more than 6 from n to 4n, or if it takes more
than 20 seconds or is stopped; a diagnosis also where a shape of PROPORTIONAL takes more than twice
its JSON. Seconds are those of all threads, so that a busy machine changes little. Each command runs
in a process of its own, which is ended after --limit seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from every_command import every_command
from harness import write_results
from hostile_shapes import PROPORTIONAL, SHAPES

from torchtraceap.cli import main as torchtraceap

GROWTH, SECONDS, SHARE = 6.0, 20.0, 2.0
# What does not grow: reading a file of nothing takes this long and this much.
FLOOR_S, FLOOR_MB = 0.3, 100.0


@dataclass(frozen=True)
class Run:
    """One command on one trace."""

    shape: str
    events: int
    json_mb: float
    command: str
    seconds: float
    peak_mb: float
    """Of memory above what the idle process has."""
    exit_code: int
    """-9 if it was stopped."""
    says: str


def commands(all_views: bool) -> Iterator[list[str]]:
    """Those that read a trace."""
    yield from (c for c in every_command(all_views) if {"PATH", "FILE"} & {*c})


def peak_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def child(arguments: Sequence[str], pipe: int) -> None:
    """Body of the process: one command, and a line of what it took."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak so far
    idle_mb = peak_mb()
    errors = io.StringIO()
    start = time.process_time()
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(errors),
    ):
        try:
            code = torchtraceap(list(arguments))
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        except BaseException as error:  # what a user would see as a traceback
            code = 70
            errors.write(f"{type(error).__name__}: {error}")
    seconds = time.process_time() - start
    reply = [seconds, peak_mb() - idle_mb, code, errors.getvalue()[-300:]]
    os.write(pipe, json.dumps(reply).encode())


def measure(arguments: Sequence[str], limit_s: float) -> tuple[float, float, int, str]:
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s)))
        try:
            child(arguments, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        reply = pipe.read()
    _, _, used = os.wait4(process, 0)
    if not reply:
        return limit_s, used.ru_maxrss / 1024, -9, "stopped"
    seconds, megabytes, code, said = json.loads(reply)
    return round(seconds, 3), round(megabytes, 1), code, said


def write_files(folder: Path, shape: str, events: int) -> Path:
    """The path to give: the file, or the folder of several."""
    for name, document in SHAPES[shape](events).items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    files = sorted(folder.iterdir())
    return files[0] if len(files) == 1 else folder


def runs_of(shape: str, events: int, chosen: Sequence[list[str]], limit_s: float) -> list[Run]:
    found = []
    with tempfile.TemporaryDirectory() as inputs, tempfile.TemporaryDirectory() as out:
        path = write_files(Path(inputs), shape, events)
        json_mb = sum(file.stat().st_size for file in Path(inputs).iterdir()) / 2**20
        first = path if path.is_file() else min(path.iterdir())
        names = {"PATH": str(path), "FILE": str(first)}
        for command in chosen:
            given = [names.get(word, word.replace("OUT", out)) for word in command]
            measured = measure(given, limit_s)
            found.append(Run(shape, events, round(json_mb, 1), " ".join(command), *measured))
    return found


def is_defect(small: Run, large: Run) -> bool:
    if large.exit_code not in (0, 1, 2) or large.seconds > SECONDS:
        return True
    is_diagnosis = large.command.startswith("diagnose") and large.shape in PROPORTIONAL
    if is_diagnosis and large.peak_mb > SHARE * large.json_mb:
        return True
    times = large.seconds / max(small.seconds, FLOOR_S)
    memory = large.peak_mb / max(small.peak_mb, FLOOR_MB)
    scale = large.events / small.events / 4
    return max(times, memory) > GROWTH * scale


def describe(run: Run) -> str:
    share = run.peak_mb / max(run.json_mb, 0.1)
    peak = f"{run.peak_mb:.0f} MB = {share:.2f} of the JSON"
    return f"{run.seconds:.2f} s, {peak}, exit {run.exit_code} {run.says}".strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, nargs=2, default=[50_000, 200_000])
    parser.add_argument("--shapes", nargs="+", default=[*SHAPES], choices=[*SHAPES])
    parser.add_argument("--commands", nargs="+", help="only commands that begin with one of these")
    parser.add_argument("--all-views", action="store_true", help="of tables, not only the first")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a command")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    chosen = [
        c for c in commands(options.all_views) if not options.commands or c[0] in options.commands
    ]
    found: list[dict[str, Any]] = []
    defects = 0
    for shape in options.shapes:
        small, large = (runs_of(shape, n, chosen, options.limit) for n in options.events)
        pairs = list(zip(small, large, strict=True))
        slowest = max(large, key=lambda run: run.seconds)
        print(f"{shape}: slowest {slowest.command}, {describe(slowest)[:80]}", flush=True)
        for before, after in pairs:
            found += [asdict(before), asdict(after)]
            if is_defect(before, after):
                defects += 1
                print(f"  {after.command}: {describe(before)} -> {describe(after)}", flush=True)
        if options.output:
            write_results(options.output, results=found)
    print(f"{defects} of {len(found) // 2} commands grow too fast or take too long")


if __name__ == "__main__":
    main()
