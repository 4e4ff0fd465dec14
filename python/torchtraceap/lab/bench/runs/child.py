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
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.core.records import dataclass
from torchtraceap.core.writing import write_text
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.bench.measured import STEPS, TRACE, measured
from torchtraceap.lab.bench.processes.fresh import STARTED
from torchtraceap.lab.bench.processes.memory import (
    current_rss_bytes,
    measure_memory,
    reset_peak_rss,
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
        return _left(UNFIT, f"no specification of a process: {error}")
    try:
        _run(spec)
    except MissingDependencyError as error:
        return _left(MISSING, str(error))
    except OptionError as error:
        return _left(UNFIT, str(error))
    except MemoryError as error:
        return _left(OUT_OF_MEMORY, str(error) or "out of memory")
    except Exception as error:
        if _is_out_of_memory(error):
            return _left(OUT_OF_MEMORY, str(error))
        import traceback

        traceback.print_exc()
        return CRASHED
    return 0


def _left(code: int, reason: str) -> int:
    sys.stderr.write(f"{' '.join(reason.split())}\n")
    return code


def _is_out_of_memory(error: Exception) -> bool:
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None)
    if kind is not None and isinstance(error, kind):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _run(spec: Spec) -> None:
    if STEPS in os.environ or TRACE in os.environ:
        _run_as_program(spec)
    if spec.result is None:
        return
    result = {"flops": _flops(spec)} if spec.flops else _measured_process(spec)
    write_text(spec.result, json.dumps(result, allow_nan=False))


def _run_as_program(spec: Spec) -> None:
    _prepare(spec)
    with _make_step(spec) as step:
        traced = TRACE in os.environ
        behind = _SPARE_STEPS + TRACED_STEPS if traced else spec.steps
        for _ in measured(range(spec.warmup + behind), spec.warmup):
            step.step()


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


def _measured_process(spec: Spec) -> dict[str, Any]:
    started = os.environ.get(STARTED, "")
    started_ns = int(started) if started.isdecimal() else time.perf_counter_ns()
    torch = _prepare(spec)
    imported_ns = time.perf_counter_ns()
    baseline = current_rss_bytes()
    reset_peak_rss()
    with _make_step(spec) as step:
        step.synchronize()
        made_ns = time.perf_counter_ns()
        _fenced_times(step, 1)
        first_ns = time.perf_counter_ns()
        _fenced_times(step, spec.warmup - 1)
        ways: list[tuple[str, Callable[[Step, int], list[int]]]] = [
            ("fenced", _fenced_times),
            ("free", _free_times),
        ]
        if spec.free_first:
            ways.reverse()
        times = {name: way(step, spec.steps) for name, way in ways}
        on_gpu = step.device.type == "cuda"
        return {
            "batch": step.batch,
            "first_batch_ns": {
                "total": first_ns - started_ns,
                "import": imported_ns - started_ns,
                "construction": made_ns - imported_ns,
                "first_step": first_ns - made_ns,
            },
            "times": times,
            "memory": measure_memory(baseline, torch if on_gpu else None).to_dict(),
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


def _flops(spec: Spec) -> int | None:
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
