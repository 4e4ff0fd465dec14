"""Replay, contracts, `watch` and `bench` on a GPU, and what they take by the clock.

replay     the longest operators of a recorded step, run again on the device, beside their
           recorded time
contracts  counts that are known beforehand (one `.item()` a step), and a step's time while its
           contract records
watch      steps of a training with `ttap.watch` and without, in turns, by the clock
fences     `bench`: steps that are waited for against steps that run freely
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stage import Stage, run_stage

_MODEL = "vit"
_FENCED = ("dlrm", "resnet", "gpt")


def measure(stage: Stage) -> None:
    parts = (contracts, replays, watching, fences)
    for part in stage.each([part for part in parts if part.__name__ not in stage.found], 10.0):
        found = stage.attempt(part.__name__, lambda part=part: part(stage))
        if found is not None:
            stage.keep(**{part.__name__: found})


def _blocks(
    stage: Stage, ways: dict[str, Callable[[], float]], rounds: int
) -> dict[str, dict[str, Any]]:
    """Mean time of a step by each way, ns, in turns; the way that goes first changes."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in sorted(ways, reverse=number % 2 == 1):
            times[name].append(ways[name]())
    return {
        name: {"step_ns": round(statistics.median(each)), "blocks_ns": [round(t) for t in each]}
        for name, each in times.items()
    }


def _steps_ns(step: Any, after: Callable[[], Any], count: int) -> float:
    """Mean time of so many steps, ns; the device is waited for at both ends."""
    step.synchronize()
    began = time.perf_counter_ns()
    for _ in range(count):
        step.step()
        after()
    step.synchronize()
    return (time.perf_counter_ns() - began) / count


def contracts(stage: Stage) -> dict[str, Any]:
    import torchtraceap as ttap
    from torchtraceap.lab.workloads.steps import make_step

    count = 4 if stage.tiny else 20
    checked = {}
    with make_step("dlrm", device=stage.device, size=stage.size) as step:
        for _ in range(3):
            step.step()

        def under_contract() -> float:
            began = time.perf_counter_ns()
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "trace.json.gz"
                with ttap.contract(
                    syncs_per_step="<=1", mode="collect", warmup=1, path=path
                ) as limits:
                    _steps_ns(step, lambda: limits.step(), count)
            found = limits.result
            assert found is not None
            checked.update({each.key: [each.status, each.measured] for each in found.results})
            return (time.perf_counter_ns() - began) / count

        def recorded() -> float:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "trace.json.gz"
                with ttap.contract(
                    syncs_per_step="<=1", mode="collect", warmup=1, path=path
                ) as limits:
                    return _steps_ns(step, lambda: limits.step(), count)

        ways = {
            "plain": lambda: _steps_ns(step, lambda: None, count),
            "recording": recorded,
            "recording_and_check": under_contract,
        }
        blocks = _blocks(stage, ways, 1 if stage.tiny else 4)
        trace = stage.out / "one_item.json.gz"
        trace.unlink(missing_ok=True)
        with ttap.contract(syncs_per_step="<=0", mode="collect", warmup=1, path=trace) as counted:
            for _ in range(4):
                step.step().sum().item()
                counted.step()
        assert counted.result is not None
        planted = {each.key: [each.status, each.measured] for each in counted.result.results}
    return {"times": blocks, "checked": checked, "one_item_a_step": planted}


def replays(stage: Stage) -> dict[str, Any]:
    import torchtraceap as ttap
    from torchtraceap.compat.replay import find_replayable, replay
    from torchtraceap.lab.workloads.steps import make_step

    path = stage.out / "replayed.json.gz"
    path.unlink(missing_ok=True)
    with (
        make_step(_MODEL, device=stage.device, size=stage.size) as step,
        ttap.profile(path, active=2, diagnose=False) as recording,
    ):
        for _ in range(4):
            step.step()
            recording.step()
    trace = ttap.load(path)
    table = find_replayable(trace, 50, device=stage.device)
    rows = [
        int(row) for row, can in zip(table["row"], table["runs_here"], strict=True) if can
    ]  # the longest first
    found = []
    for row in stage.each(rows[: 1 if stage.tiny else 5], 8.0):
        result = stage.attempt(
            f"replay of row {row}",
            lambda row=row: replay(trace, row, device=stage.device, min_run_time=0.2),
        )
        if result is not None:
            found.append(
                {
                    "op": result.op,
                    "time_ns": result.time_ns,
                    "iqr_ns": result.iqr_ns,
                    "recorded_ns": result.measured_in_trace_ns,
                    "notes": list(result.notes),
                }
            )
    return {"facts": dict(table.facts), "rows": found}


def watching(stage: Stage) -> dict[str, Any]:
    import torchtraceap as ttap
    from torchtraceap.lab.workloads.steps import make_step

    seconds = 2.0 if stage.tiny else min(8.0, max(2.0, stage.left_s() / 8))
    shares: list[float] = []
    with make_step("gpt", device=stage.device, size=stage.size) as step:
        count = max(3, int(seconds / (_steps_ns(step, lambda: None, 3) / 1e9)))

        def watched() -> float:
            with tempfile.TemporaryDirectory() as folder, ttap.watch(folder, every=2.0) as guest:
                taken = _steps_ns(step, guest.step, count)
            shares.append(guest.overhead_share)
            return taken

        ways = {"plain": lambda: _steps_ns(step, lambda: None, count), "watched": watched}
        blocks = _blocks(stage, ways, 1 if stage.tiny else 2)
    plain, with_it = (blocks[name]["step_ns"] for name in ("plain", "watched"))
    return {"times": blocks, "share_by_clock": with_it / plain - 1, "share_by_itself": shares}


def fences(stage: Stage) -> list[dict[str, Any]]:
    from torchtraceap.lab.bench.runs.config import Protocol, WorkloadConfig
    from torchtraceap.lab.bench.runs.run import measure as measure_run

    rows = []
    protocol = Protocol(processes=1, steps=4 if stage.tiny else 20, trace=False, timeout_s=120.0)
    for name in stage.each(_FENCED[:1] if stage.tiny else _FENCED, 15.0):
        asked = WorkloadConfig(name, "train", stage.device, "fp32", size=stage.size)
        with tempfile.TemporaryDirectory() as folder:
            run = measure_run(asked, protocol, Path(folder))
        kept = ("step_ns", "free_step_ns", "lost_overlap_ns", "lost_overlap_share", "memory")
        rows.append({"workload": asked.label, **{key: run.metrics[key] for key in kept}})
    return rows


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, measure))
