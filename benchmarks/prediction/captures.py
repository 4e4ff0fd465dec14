#!/usr/bin/env python3
"""Captures the steps of many public models, and says which can't be captured and why.

Usage: benchmarks/prediction/captures.py [--only WORD ...] [--seconds 120] [--minutes N]
                                         [--output benchmarks/results]

Sizes are those of the models' default configurations wherever these can be built without a
download. What is not installed is left out and counted. Each model is captured in a process of its
own, forward and as a training step with AdamW; libraries are imported once, before. Models come in
an order of chance, always the same, so that those before a limit of time are a fair sample of all.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import selectors
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import model_zoo

sys.path.pop(0)  # files beside this one have names of packages that models look for
sys.path.append(str(Path(__file__).resolve().parents[1]))

from harness import write_results

from torchtraceap.errors import TraceError
from torchtraceap.lab.prediction.capture import capture_step
from torchtraceap.lab.prediction.lowering import launching_ops, op_times
from torchtraceap.ops.devices import device_named

_KINDS = ("forward", "training")
_SEED = 13
_DEVICE = device_named("H100-SXM")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="models whose name has a word")
    parser.add_argument("--seconds", type=float, default=120.0, help="at most for one model")
    parser.add_argument("--minutes", type=float, help="no model is begun after so many")
    parser.add_argument("--output", type=Path, help="folder in which the rows are written")
    options = parser.parse_args(arguments)
    names = [
        name
        for name in model_zoo.MODELS
        if not options.only or any(word.lower() in name.lower() for word in options.only)
    ]
    random.Random(_SEED).shuffle(names)
    _import_all()
    begin, rows = time.monotonic(), list[dict[str, Any]]()
    for name in names:
        if options.minutes and time.monotonic() - begin > 60 * options.minutes:
            break
        rows.append({"model": name, **_in_process(model_zoo.MODELS[name], options.seconds)})
        print(_line(rows[-1]), flush=True)
        if options.output:
            file = options.output / f"{date.today()}-captures.json"
            write_results(file, models=len(names), tried=len(rows), counts=_counts(rows), rows=rows)
    print(f"{len(rows)} of {len(names)} models; {_counts(rows)}")
    return 0


def _import_all() -> None:
    """What models import, so that each process has it."""
    for name in ("torch._dynamo", "transformers", "timm", "torchvision", "diffusers"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _in_process(make: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    reads, writes = os.pipe()
    process = os.fork()
    if process == 0:
        _tell(make, writes)
    os.close(writes)
    found = {kind: {"error": f"took over {seconds:.0f} s, or ended"} for kind in _KINDS}
    for line in _lines(reads, time.monotonic() + seconds):
        kind, _, told = line.partition(" ")
        found[kind] = json.loads(told)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(reads)
    return found


def _tell(make: Callable[[], dict[str, Any]], writes: int) -> None:
    """Captures, says what came of it and ends the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    with os.fdopen(writes, "w", encoding="utf-8") as file:
        for kind, workload in zip(_KINDS, (_forward(make), make), strict=True):
            file.write(f"{kind} {json.dumps(_captured(workload))}\n")
            file.flush()
    os._exit(0)


def _lines(reads: int, ends: float) -> Iterator[str]:
    """What comes through a pipe until a time."""
    before = b""
    with selectors.DefaultSelector() as selector:
        selector.register(reads, selectors.EVENT_READ)
        while selector.select(max(ends - time.monotonic(), 0)):
            told = os.read(reads, 1 << 16)
            if not told:
                return
            *lines, before = (before + told).split(b"\n")
            yield from (line.decode() for line in lines)


def _forward(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    def forward() -> dict[str, Any]:
        made = make()
        return {"model": made["model"], "inputs": made["inputs"]}

    return forward


def _captured(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    begin = time.process_time()
    try:
        capture = capture_step(make)
        ops = launching_ops(capture)
        times = zip(ops, op_times(ops, _DEVICE), strict=True)
        unknown = Counter(op.name for op, needed in times if not needed.is_known)
    except TraceError as error:
        if isinstance(error.__cause__, ImportError):
            return {"missing": str(error.__cause__).splitlines()[0][:150]}
        return {"refused": str(error)[:600]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {
        "ops": len(ops),
        **Counter(op.phase.value for op in ops),
        "cpu_seconds": round(time.process_time() - begin, 2),
        "computed": any("computed here" in note for note in capture.notes),
        "unknown": dict(unknown),
        "notes": list(capture.notes),
    }


def _line(row: dict[str, Any]) -> str:
    return f"{row['model']:32} {_text(row['forward']):40} {_text(row['training'])}"


def _text(found: dict[str, Any]) -> str:
    for key in ("missing", "refused", "error"):
        if key in found:
            return f"{key}: {found[key]}"
    return f"{found['ops']} ops, {found['cpu_seconds']} s{' *' if found['notes'] else ''}"


def _counts(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Outcomes, by kind of step."""
    return {kind: dict(Counter(_outcome(row[kind]) for row in rows)) for kind in _KINDS}


def _outcome(found: dict[str, Any]) -> str:
    return next((key for key in ("missing", "refused", "error") if key in found), "captured")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
