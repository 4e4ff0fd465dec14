"""Measurement of arbitrary programs, by the steps that they report or else as a whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.records import dataclass
from torchtraceap.core.writing import replacing_stream
from torchtraceap.lab.bench.measured import FREE, STEPS, STEPS_SCHEMA, TRACE, TURNS
from torchtraceap.lab.bench.processes.fresh import (
    ProgramError,
    ProgramResult,
    check_success,
    run_fresh,
)
from torchtraceap.lab.bench.processes.injected import INJECTED_FOLDER, WHOLE
from torchtraceap.lab.bench.processes.turns import Turn
from torchtraceap.record.export import copy_without_private_data

__all__ = ["ProgramRun", "read_steps", "run_program", "shorten_command", "trace_program"]

_QUIET = {STEPS: None, FREE: None, TRACE: None, WHOLE: None, TURNS: None}
"""Variables to clear, because a program that measures others must not pass on its own
instructions."""


@dataclass(frozen=True)
class ProgramRun:
    """One run of a program in a fresh process."""

    step_ns: tuple[int, ...]
    """Times of the steps after the warm-up; the time of the whole program if it reports no
    steps."""
    wall_ns: int
    """Wall time of the whole process."""
    max_rss_bytes: int
    """Peak memory of the process that reported steps, by its own count; else `ProgramResult`'s."""
    by_steps: bool = True
    """True if the program reports its steps; else its whole wall time was measured."""
    all_step_ns: tuple[int, ...] = ()
    """Times of all steps, warm-up included."""
    warmup: int = 0
    """Number of warm-up steps in `all_step_ns`."""
    cpu_ns: int = 0
    """Processor time of all threads."""
    first_step_after_ns: int | None = None
    """Time from the start of the process to the end of its first step; None if it reports none."""

    @cached_property
    def median_ns(self) -> int:
        """The median step, by which programs are compared."""
        return round(median(self.step_ns))


def run_program(
    argv: Sequence[str],
    cwd: PathLike | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float | None = None,
    *,
    free: bool = False,
    turns: Turn | None = None,
) -> ProgramRun:
    """Run a program in a fresh process and time it.

    Args:
        argv: The program and its arguments.
        cwd: Its folder [that of this process].
        env: Environment variables beyond those of this process; None takes one away.
        timeout_s: So long it may take.
        free: The GPU is waited for once, not behind each step.
        turns: Its steps take turns with those of another program.

    Raises:
        OptionError: It can't be started.
        ProgramError: It failed, its time was over, or what it wrote of its steps can't be read.
    """
    with tempfile.TemporaryDirectory(prefix="ttap-steps-") as folder:
        target = Path(folder) / "steps.json"
        asked = {**_QUIET, STEPS: str(target), FREE: "1" if free else None}
        if turns is not None:
            asked |= {TURNS: turns.place, **turns.environment}
        finished = run_fresh(argv, cwd=cwd, env={**(env or {}), **asked}, timeout_s=timeout_s)
        check_success(finished, shorten_command(argv))
        document = read_steps(target) if target.exists() else None
    return _as_run(finished, document)


def _as_run(finished: ProgramResult, document: dict[str, Any] | None) -> ProgramRun:
    if document is None:
        whole = (finished.wall_ns,)
        return ProgramRun(
            whole, finished.wall_ns, finished.max_rss_bytes, False, whole, cpu_ns=finished.cpu_ns
        )
    steps = tuple(document["step_ns"])
    # A loop that ends within its warm-up still has a last step.
    warmup = min(document["warmup"], len(steps) - 1)
    counted = steps[warmup:]
    peak = document.get("peak_rss_bytes") or finished.max_rss_bytes
    first = document.get("first_step_after_ns")
    return ProgramRun(counted, finished.wall_ns, peak, True, steps, warmup, finished.cpu_ns, first)


def read_steps(path: Path) -> dict[str, Any]:
    """Read what a program wrote about its steps (`torchtraceap.steps/1`).

    Raises:
        ProgramError: It is something else.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
        steps, warmup = document["step_ns"], document["warmup"]
        is_fine = (
            document["schema"] == STEPS_SCHEMA
            and bool(steps)
            and all(type(ns) is int and ns >= 0 for ns in [*steps, warmup])
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ProgramError(f"{path.name}: can't be read as {STEPS_SCHEMA} ({error})") from error
    if not is_fine:
        raise ProgramError(f"{path.name}: is not {STEPS_SCHEMA} with whole nanoseconds")
    return dict(document)


def trace_program(
    argv: Sequence[str],
    cwd: PathLike | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float | None = None,
    *,
    target: PathLike,
) -> Path | None:
    """Run a program in a fresh process without timing it, and record it.

    A program with `measured` has some of its steps recorded. Of another one everything is recorded
    from the import of torch to its end, in the first process alone; not if it has a profiler of its
    own.

    Args:
        argv: The program and its arguments.
        cwd: Its folder [that of this process].
        env: Environment variables beyond those of this process; None takes one away.
        timeout_s: So long it may take.
        target: The file to be, `.json` or `.json.gz`, without what names a machine or a person.

    Returns:
        The file; None where the program failed or there was nothing to record.

    Raises:
        OptionError: It can't be started.
        OutputError: The file can't be written.
    """
    with tempfile.TemporaryDirectory(prefix="ttap-trace-") as folder:
        steps, whole = Path(folder) / "steps.json.gz", Path(folder) / "whole.json"
        path = (env or {}).get("PYTHONPATH") or os.environ.get("PYTHONPATH")
        asked = {
            **_QUIET,
            TRACE: str(steps),
            WHOLE: str(whole),
            "PYTHONPATH": os.pathsep.join([str(INJECTED_FOLDER), *([path] if path else [])]),
        }
        finished = run_fresh(argv, cwd=cwd, env={**(env or {}), **asked}, timeout_s=timeout_s)
        if not finished.ok:
            return None
        return _save_trace(steps, whole, Path(target))


def _save_trace(steps: Path, whole: Path, target: Path) -> Path | None:
    if steps.exists():  # its writer has sanitized it
        with replacing_stream(target) as stream, steps.open("rb") as source:
            shutil.copyfileobj(source, stream)
        return target
    if not whole.exists() or not whole.stat().st_size:
        return None
    with replacing_stream(target) as stream:
        holds_work = copy_without_private_data(whole, stream, use_gzip=target.suffix == ".gz")
    if not holds_work:
        target.unlink()
        return None
    return target


def shorten_command(argv: Sequence[str]) -> str:
    """Return the words of a program, shortened for a sentence."""
    words = " ".join(argv)
    return words if len(words) <= 120 else f"{words[:117]}..."
