#!/usr/bin/env python3
"""Measures what verdicts are held against: fresh runs of two programs, unchanged and with 2 and
3 % more work really planted, in turn.

In a round the unchanged program takes turns with each variant (`same` is itself once more), step
by step, as `bench compare` lets two sides do it; variants come in random order, and in the reverse
of it in the next round. Rounds of the two programs alternate. Raw samples go to a file of JSON
lines as they come; a call goes on from it. At the end all of them are written to one JSON for
`table.py`.

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

from torchtraceap.core.writing import write_text
from torchtraceap.lab.bench.comparison.sides import ProgramSide, take_turns
from torchtraceap.lab.bench.processes.environment import fingerprint
from torchtraceap.lab.bench.processes.programs import ProgramError, ProgramRun, run_fresh

HERE = Path(__file__).resolve().parent
UNITS = {"unchanged": 100, "same": 100, "+2 %": 102, "+3 %": 103}
ROUNDS = {"torch": 1, "numpy": 2}
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
    order = [variant for variant in UNITS if variant != "unchanged"]
    random.Random(f"{program} {number // 2}").shuffle(order)
    return order[::-1] if number % 2 else order


def side(program: str, variant: str) -> ProgramSide:
    return ProgramSide(variant, command(program, UNITS[variant]), timeout_s=300)


def one_pair(base: ProgramSide, other: ProgramSide, seed: int) -> tuple[float, int]:
    for attempt in range(RETRIES + 1):
        try:
            return take_turns(base, other, seed)
        except ProgramError:
            if attempt == RETRIES:
                raise
    raise AssertionError


def told(run: ProgramRun | None, **more: float) -> dict[str, Any]:
    assert run is not None
    return {"median_ns": run.median_ns, "step_ns": list(run.step_ns[:KEPT_STEPS]), **more}


def one_round(program: str, number: int, sides: dict[str, ProgramSide]) -> dict[str, Any]:
    order = order_of(program, number)
    load = os.getloadavg()[0]
    base, runs = sides["unchanged"], {}
    for place, variant in enumerate(order):
        ratio, exchanges = one_pair(base, sides[variant], len(order) * number + place)
        runs[variant] = told(sides[variant].last, log_ratio=ratio, exchanges=exchanges)
        if variant == "same":
            runs["unchanged"] = told(base.last)
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
    sides = {program: {name: side(program, name) for name in UNITS} for program in ROUNDS}
    for each in sides.values():
        for one in each.values():
            one.run()  # warms up, and tells whether a program needs one processor
    deadline = time.monotonic() + 60 * options.minutes
    with options.runs.open("a", encoding="utf-8") as stream:
        while time.monotonic() < deadline:
            for program, times in ROUNDS.items():
                for _ in range(times):
                    found = one_round(program, done[program], sides[program])
                    done[program] += 1
                    rounds.append(found)
                    stream.write(json.dumps(found, separators=(",", ":")) + "\n")
                    stream.flush()
            print(f"{done['torch']} rounds of torch, {done['numpy']} of numpy", file=sys.stderr)
    document = {
        "schema": "torchtraceap.verdicts/2",
        "units": counted,
        "environment": fingerprint(HERE),
        "rounds": rounds,
    }
    write_text(options.out, json.dumps(document, separators=(",", ":")) + "\n")
    print(f"wrote {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
