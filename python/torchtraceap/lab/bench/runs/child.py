"""A process that runs one workload: `python -m torchtraceap.lab.bench.runs.child SPEC`.

Note [Child]: with `TORCHTRACEAP_STEPS` or `TORCHTRACEAP_TRACE` it is a program like any other whose
loop is `measured`. With a `result` in its specification it measures all that a run keeps of one
process, and writes it there. It leaves with one of the codes below, and its reason as the last line
of standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.core import dataclass, write_text
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.bench.measured import (
    STARTED,
    STEPS,
    TRACE,
    current_rss_bytes,
    measured,
    peak_rss_bytes,
)
from torchtraceap.lab.bench.runs.config import WorkloadConfig

if TYPE_CHECKING:
    from torchtraceap.lab.workloads.steps import Step

__all__ = ["CRASHED", "MISSING", "OUT_OF_MEMORY", "UNFIT", "Spec", "main"]

CRASHED, MISSING, UNFIT, OUT_OF_MEMORY = 1, 3, 4, 5
TRACED_STEPS = 4
_SPARE_STEPS = 1
"""Steps during which the profiler warms up."""


@dataclass(frozen=True, slots=True)
class Spec(WorkloadConfig):
    """The specification of a process: a configuration, and how it is measured."""

    steps: int = 20
    """Steps in each way of timing, after the warm-up."""
    warmup: int = 3
    """Warm-up steps, the first included."""
    free_first: bool = False
    """True if free-running steps come before fenced ones."""
    result: str | None = None
    flops: bool = False
    """True to count FLOPs in a separate step."""

    def command(self) -> list[str]:
        """Return the command that starts such a process."""
        return [sys.executable, "-m", "torchtraceap.lab.bench.runs.child", json.dumps(asdict(self))]


def main(arguments: Sequence[str]) -> int:
    """Run a specification, given as JSON or as a file."""
    try:
        (text,) = arguments
        spec = Spec(**json.loads(text if text.startswith("{") else Path(text).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        return _fail(UNFIT, f"no specification of a process: {error}")
    try:
        if STEPS in os.environ or TRACE in os.environ:  # a program like any other
            _prepare(spec)
            behind = _SPARE_STEPS + TRACED_STEPS if TRACE in os.environ else spec.steps
            with _make_step(spec) as step:
                for _ in measured(range(spec.warmup + behind), spec.warmup):
                    step.step()
        if spec.result is not None:
            result = {"flops": _count_flops(spec)} if spec.flops else _measure_process(spec)
            write_text(spec.result, json.dumps(result, allow_nan=False))
    except MissingDependencyError as error:
        return _fail(MISSING, str(error))
    except OptionError as error:
        return _fail(UNFIT, str(error))
    except MemoryError as error:
        return _fail(OUT_OF_MEMORY, str(error) or "out of memory")
    except Exception as error:
        known = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
        on_host = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        if on_host or (known is not None and isinstance(error, known)):
            return _fail(OUT_OF_MEMORY, str(error))
        traceback.print_exc()
        return CRASHED
    return 0


def _fail(code: int, reason: str) -> int:
    sys.stderr.write(f"{' '.join(reason.split())}\n")
    return code


def _prepare(spec: Spec) -> Any:
    """Import torch and set its threads."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("a workload is run by torch, which is not there") from error
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    if spec.device.startswith("cuda:"):  # memory queries and waits refer to the current device
        torch.cuda.set_device(spec.device)
    return torch


def _make_step(spec: Spec, *, compiled: bool | None = None) -> Step:
    from torchtraceap.lab.workloads.steps import make_step

    return make_step(
        spec.workload,
        mode=spec.mode,
        device=spec.device,
        precision=spec.precision,
        compiled=spec.compiled if compiled is None else compiled,
        batch=spec.batch,
        size=spec.size,
    )


def _measure_process(spec: Spec) -> dict[str, Any]:
    started = os.environ.get(STARTED, "")
    started_ns = int(started) if started.isdecimal() else time.perf_counter_ns()
    torch = _prepare(spec)
    imported_ns = time.perf_counter_ns()
    baseline = current_rss_bytes()
    # The peak starts anew, if the kernel allows it.
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    with _make_step(spec) as step:
        step.synchronize()
        made_ns = time.perf_counter_ns()
        _fenced_times(step, 1)
        first_ns = time.perf_counter_ns()
        _fenced_times(step, spec.warmup - 1)
        times = {}
        for way in ("free", "fenced") if spec.free_first else ("fenced", "free"):
            measure = _fenced_times if way == "fenced" else _free_times
            times[way] = measure(step, spec.steps)
        on_gpu = step.device.type == "cuda"
        peak = peak_rss_bytes()
        memory: dict[str, Any] = {
            "rss_peak_bytes": peak,
            "rss_baseline_bytes": baseline,
            "rss_above_bytes": max(0, peak - baseline),
            "allocated_peak_bytes": None,
            "reserved_peak_bytes": None,
            "fragmentation": None,
        }
        if on_gpu:
            allocated = memory["allocated_peak_bytes"] = torch.cuda.max_memory_allocated()
            reserved = memory["reserved_peak_bytes"] = torch.cuda.max_memory_reserved()
            # The share of the reserved peak that tensors did not hold at their own peak.
            memory["fragmentation"] = 1.0 - allocated / reserved if reserved else 0.0
        return {
            "batch": step.batch,
            "first_batch_ns": {
                "total": first_ns - started_ns,
                "import": imported_ns - started_ns,
                "construction": made_ns - imported_ns,
                "first_step": first_ns - made_ns,
            },
            "times": times,
            "memory": memory,
            "device": torch.cuda.get_device_name(step.device) if on_gpu else None,
            "threads": torch.get_num_threads(),
        }


def _fenced_times(step: Step, count: int) -> list[int]:
    """Return ns of each step; the device is idle before and after each."""
    times = []
    for _ in range(count):
        begun_ns = time.perf_counter_ns()
        step.step()
        step.synchronize()
        times.append(time.perf_counter_ns() - begun_ns)
    return times


def _free_times(step: Step, count: int) -> list[int]:
    """Return ns of each step, of which only the sum matters: the device is waited for at the
    end."""
    times = []
    last_ns = time.perf_counter_ns()
    for _ in range(count):
        step.step()
        now_ns = time.perf_counter_ns()
        times.append(now_ns - last_ns)
        last_ns = now_ns
    step.synchronize()
    if times:
        times[-1] += time.perf_counter_ns() - last_ns
    return times


def _count_flops(spec: Spec) -> int | None:
    """Return the FLOPs of a step without compilation, as torch counts them; None if it cannot."""
    _prepare(spec)
    try:
        from torch.utils.flop_counter import FlopCounterMode

        with _make_step(spec, compiled=False) as step:
            step.step()
            with FlopCounterMode(display=False) as counter:
                step.step()
            return int(counter.get_total_flops())
    except Exception:  # some operators cannot run under the counter
        return None


if __name__ == "__main__":
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # all is written; library threads may crash an ending process
