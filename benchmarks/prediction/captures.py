#!/usr/bin/env python3
"""Captures the steps of many public models, and says which can't be captured and why.

Usage: benchmarks/prediction/captures.py [--only WORD ...] [--json FILE] [--seconds 60]

Sizes are those of the models' default configurations wherever these can be built without a
download. What is not installed is left out and counted. Each model is captured in a process of its
own, forward and as a training step with AdamW.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import model_zoo

sys.path.pop(0)  # files beside this one have names of packages that models look for

from torchtraceap.errors import TraceError
from torchtraceap.prediction.capture import capture_step
from torchtraceap.prediction.lifting import launching_ops


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="models whose name has a word")
    parser.add_argument("--json", help="where to write the rows")
    parser.add_argument("--seconds", type=float, default=90.0, help="at most for one model")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(_both(model_zoo.MODELS[options.one])))
        return 0
    rows = []
    for name in model_zoo.MODELS:
        if options.only and not any(word.lower() in name.lower() for word in options.only):
            continue
        row = {"model": name, **_in_process(name, options.seconds)}
        rows.append(row)
        print(_line(row), flush=True)
    print(_total(rows))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return 0


def _in_process(name: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", __file__, "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return _neither(f"took over {seconds:.0f} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["ended"])[-1]
        return _neither(f"crash: {last[:200]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _neither(why: str) -> dict[str, Any]:
    return {kind: {"error": why} for kind in ("forward", "training")}


def _both(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return {"forward": _captured(_forward(make)), "training": _captured(make)}


def _forward(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    def forward() -> dict[str, Any]:
        made = make()
        return {"model": made["model"], "inputs": made["inputs"]}

    return forward


def _captured(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    begin = time.perf_counter()
    try:
        capture = capture_step(make)
        ops = launching_ops(capture)
    except TraceError as error:
        if isinstance(error.__cause__, ImportError):
            return {"missing": str(error.__cause__).splitlines()[0][:150]}
        return {"refused": str(error)[:300]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    seconds = time.perf_counter() - begin
    phases = Counter(op.phase.value for op in ops)
    return {"ops": len(ops), **phases, "seconds": round(seconds, 2), "notes": list(capture.notes)}


def _line(row: dict[str, Any]) -> str:
    return f"{row['model']:32} {_text(row['forward']):40} {_text(row['training'])}"


def _text(found: dict[str, Any]) -> str:
    for key in ("missing", "refused", "error"):
        if key in found:
            return f"{key}: {found[key]}"
    return f"{found['ops']} ops, {found['seconds']} s{' *' if found['notes'] else ''}"


def _total(rows: list[dict[str, Any]]) -> str:
    return "; ".join(f"{kind}: {_counts(rows, kind)}" for kind in ("forward", "training"))


def _counts(rows: list[dict[str, Any]], kind: str) -> str:
    counts = Counter(_outcome(row[kind]) for row in rows)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _outcome(found: dict[str, Any]) -> str:
    return next((key for key in ("missing", "refused", "error") if key in found), "captured")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
