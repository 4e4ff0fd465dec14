"""What recording and watching take from a training on the CPU.

`pairs`: the same training with and without `ttap.watch` at the same time, each on a core of its
own, then on the other's; what examines the traces shares the core of its training, as if no other
were free. `steps`: what a step takes under `ttap.profile` and `ttap.on_trace_ready`, and what
starting and writing take.

    python benchmarks/watch/overhead.py --seconds 330 --pairs 2 --output FILE.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

WARM_S = 5.0


def training() -> Callable[[], None]:
    """A step of a small language model: some 30 ms on one core."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    words = nn.Embedding(2000, 128)
    body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    head = nn.Linear(128, 2000)
    model = nn.Sequential(words, body, head)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randint(0, 2000, (8, 33))

    def step() -> None:
        optimizer.zero_grad()
        out = model(data[:, :-1])
        loss = nn.functional.cross_entropy(out.flatten(0, 1), data[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return step


def cpu_s() -> tuple[float, float]:
    """Of this process, and of the children that have ended."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


def serve(seconds: float, core: int, every: float, budget: float) -> None:
    """Body of a training: prints one line of JSON. `budget` 0: without a watch."""
    os.sched_setaffinity(0, {core})
    step = training()
    end = time.perf_counter() + WARM_S
    while time.perf_counter() < end:
        step()
    from torchtraceap.record.watch import watch

    with tempfile.TemporaryDirectory() as folder:
        w = watch(folder, every=every, budget=budget, log=[]) if budget else None
        began, (cpu, _), steps = time.perf_counter(), cpu_s(), 0
        if w is not None:
            w.start()
        while time.perf_counter() - began < seconds:
            step()
            if w is not None:
                w.step()
            steps += 1
        wall, own = time.perf_counter() - began, cpu_s()[0] - cpu
        found: dict[str, Any] = {"steps": steps, "wall_s": wall, "cpu_s": own}
        if w is not None:
            found |= {"costs_s": w.costs_s, "overhead_share": w.overhead_share}
            w.stop()
            found |= {"recordings": len(w.rows), "examining_cpu_s": cpu_s()[1]}
    print(json.dumps(found))


def pairs(seconds: float, count: int, every: float, budget: float) -> list[dict[str, Any]]:
    made = []
    for number in range(count):
        processes = []
        for core, share in enumerate((0.0, budget) if number % 2 == 0 else (budget, 0.0)):
            command = [sys.executable, __file__, "--serve", str(core), str(share)]
            command += ["--seconds", str(seconds), "--every", str(every)]
            processes.append((share, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
        sides = {share: json.loads(p.communicate()[0].splitlines()[-1]) for share, p in processes}
        without, watched = sides[0.0], sides[budget]
        plain = without["cpu_s"] / without["steps"]
        with_all = (watched["cpu_s"] + watched["examining_cpu_s"]) / watched["steps"]
        made.append(
            {
                "without": without,
                "watched": watched,
                "by_cpu_time": with_all / plain - 1,
                "by_wall_time": without["steps"] / watched["steps"] - 1,
                "by_its_own_count": watched["overhead_share"],
            }
        )
        print(json.dumps(made[-1]), flush=True)
    return made


class Took(NamedTuple):
    """Seconds of a call, by the clock and of this process's CPU time, which other programs on the
    machine change less."""

    wall_s: float
    cpu_s: float

    def plus(self, other: Took) -> Took:
        return Took(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


def timed(do: Callable[[], Any]) -> Took:
    began, cpu = time.perf_counter(), time.process_time()
    do()
    return Took(time.perf_counter() - began, time.process_time() - cpu)


def medians_ms(calls: list[Took]) -> dict[str, float]:
    return {
        "wall_ms": round(1e3 * statistics.median(each.wall_s for each in calls), 3),
        "cpu_ms": round(1e3 * statistics.median(each.cpu_s for each in calls), 3),
    }


def recorded_steps(repeats: int) -> dict[str, Any]:
    """Medians over recordings of 5 steps, each beside 5 steps without a profiler."""
    import torch

    import torchtraceap as ttap

    step = training()
    for _ in range(20):
        step()
    found: dict[str, dict[str, list[Took]]] = {"profile": {}, "on_trace_ready": {}}

    def run(name: str, folder: str) -> None:
        lists = found[name]
        if name == "profile":
            loop: Any = ttap.profile(folder, active=5, diagnose=False)
        else:
            loop = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU],
                schedule=torch.profiler.schedule(wait=1, warmup=1, active=5, repeat=1),
                on_trace_ready=ttap.on_trace_ready(folder, diagnose=False),
                record_shapes=True,
            )
        start = timed(loop.__enter__)
        for n in range(7):
            took = timed(step)
            told = timed(loop.step)
            if n >= 2:
                lists.setdefault("recorded_step", []).append(took)
            if n in (0, 1):
                start = start.plus(told)
        lists.setdefault("starting", []).append(start)
        lists.setdefault("stopping_and_writing", []).append(told)
        lists.setdefault("plain_step", []).extend(timed(step) for _ in range(5))
        loop.__exit__(None, None, None)

    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            for name in found:
                run(name, folder)
    ms = {
        name: {key: medians_ms(calls) for key, calls in lists.items()}
        for name, lists in found.items()
    }
    from torchtraceap.record.watch import watch

    with tempfile.TemporaryDirectory() as folder:
        w = watch(folder, budget=1e-9, log=[])
        w.start()
        calls = [timed(w.step) for _ in range(20_000)]
    return {**ms, "watch_step_between_recordings_us": 1e3 * medians_ms(calls)["wall_ms"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--every", type=float, default=20)
    parser.add_argument("--budget", type=float, default=0.01)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--serve", nargs=2, metavar=("CORE", "BUDGET"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.serve:
        core, budget = options.serve
        serve(options.seconds, int(core), options.every, float(budget))
        return
    load = os.getloadavg()[0]
    found = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.date.today().isoformat(),
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_before": load,
        },
        "steps": recorded_steps(options.repeats),
        "pairs": pairs(options.seconds, options.pairs, options.every, options.budget),
    }
    text = json.dumps(found, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
