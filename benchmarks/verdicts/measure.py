#!/usr/bin/env python3
"""Measures what verdicts are held against: fresh runs of two programs, unchanged and with 2 and
3 % more work really planted, in turn.

A round runs each variant once, the unchanged one twice (`same`): in random order, and the next
round in the reverse of it, so that each two rounds hold every pair in both orders. Rounds of the
two programs alternate. Raw samples go to a file of JSON lines as they come; a call goes on from it.
At the end all of them are written to one JSON for `table.py`.

Usage: measure.py [--minutes 35] [--runs FILE.jsonl] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchtraceap.bench.processes.environment import fingerprint
from torchtraceap.bench.processes.fresh import run_fresh
from torchtraceap.bench.processes.programs import run_program
from torchtraceap.writing import write_text

HERE = Path(__file__).resolve().parent
UNITS = {"unchanged": 100, "same": 100, "+2 %": 102, "+3 %": 103}
ROUNDS = {"torch": 1, "numpy": 3}
"""Rounds of each program in a turn: torch takes seconds to start."""
KEPT_STEPS = 10
"""Steps of each run that are kept, beside its median."""
RETRIES = 2


def command(program: str, units: int) -> list[str]:
    return [sys.executable, str(HERE / "programs.py"), program, str(units)]


def verify() -> dict[str, dict[str, int]]:
    """Units of a step as counted while they happen; they must be what was asked for."""
    found: dict[str, dict[str, int]] = {}
    for program in ROUNDS:
        for variant, units in UNITS.items():
            done = run_fresh([*command(program, units), "--count"], timeout_s=120)
            counted = int(done.stdout) if done.ok else -1
            if counted != units:
                sys.exit(f"{program} {variant}: {counted} units, not {units}: {done.stderr}")
            found.setdefault(program, {})[variant] = counted
    return found


def order_of(program: str, number: int) -> list[str]:
    """Variants in the order of a round; an odd round mirrors the one before."""
    order = list(UNITS)
    random.Random(f"{program} {number // 2}").shuffle(order)
    return order[::-1] if number % 2 else order


def one_run(program: str, variant: str) -> dict[str, Any]:
    for attempt in range(RETRIES + 1):
        try:
            run = run_program(command(program, UNITS[variant]), timeout_s=120)
        except RuntimeError:
            if attempt == RETRIES:
                raise
        else:
            return {"median_ns": run.median_ns, "step_ns": list(run.step_ns[:KEPT_STEPS])}
    raise AssertionError


def one_round(program: str, number: int) -> dict[str, Any]:
    order = order_of(program, number)
    load = os.getloadavg()[0]
    runs = {variant: one_run(program, variant) for variant in order}
    return {"program": program, "round": number, "order": order, "load": load, "runs": runs}


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = path.read_text("utf-8").splitlines()
    rounds = []
    for line in lines:
        try:
            rounds.append(json.loads(line))
        except ValueError:  # the last line of a call that was killed
            continue
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=35)
    parser.add_argument("--runs", type=Path, default=HERE.parents[1] / "build" / "verdicts.jsonl")
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument(
        "--out", type=Path, default=HERE.parent / "results" / f"{today}-verdicts.json"
    )
    options = parser.parse_args()
    options.runs.parent.mkdir(parents=True, exist_ok=True)
    counted = verify()
    rounds = read(options.runs)
    done = {program: sum(r["program"] == program for r in rounds) for program in ROUNDS}
    for program in ROUNDS:
        one_run(program, "unchanged")
    deadline = time.monotonic() + 60 * options.minutes
    with options.runs.open("a", encoding="utf-8") as stream:
        while time.monotonic() < deadline:
            for program, times in ROUNDS.items():
                for _ in range(times):
                    found = one_round(program, done[program])
                    done[program] += 1
                    rounds.append(found)
                    stream.write(json.dumps(found, separators=(",", ":")) + "\n")
                    stream.flush()
            print(f"{done['torch']} rounds of torch, {done['numpy']} of numpy", file=sys.stderr)
    document = {
        "schema": "torchtraceap.verdicts/1",
        "units": counted,
        "environment": fingerprint(HERE),
        "rounds": rounds,
    }
    write_text(options.out, json.dumps(document, separators=(",", ":")) + "\n")
    print(f"wrote {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
