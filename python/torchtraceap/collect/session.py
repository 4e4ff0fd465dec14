"""`profile`: records a few sensible steps of a training loop and says what is wrong with them."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torchtraceap.collect.analysis import analyse, show
from torchtraceap.collect.export import TraceNames, export_trace
from torchtraceap.collect.notices import RecordingError, report_problem
from torchtraceap.collect.ranks import RANKS_TIMEOUT, Run, check_timeout, run_of
from torchtraceap.collect.torch_access import (
    default_activities,
    end_injected_profile,
    import_torch,
    profiler_is_running,
)
from torchtraceap.errors import OptionError
from torchtraceap.records import dataclass
from torchtraceap.rendering import Shown

if TYPE_CHECKING:
    from torchtraceap.results import Diagnosis
    from torchtraceap.trace import Trace

__all__ = ["Recording", "active_recording", "profile"]

DEFAULT_FOLDER = "ttap_traces"
_RECORDINGS = itertools.count(1)
"""Counted alike on all ranks."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How many steps to let pass, to warm the profiler up, and to record."""

    wait: int
    warmup: int
    active: int

    def __post_init__(self) -> None:
        for name in ("wait", "warmup", "active"):
            value = getattr(self, name)
            least = 1 if name == "active" else 0
            if not isinstance(value, int) or value < least:
                raise OptionError(f"{name} must be an integer of at least {least}, not {value!r}")

    @property
    def skipped(self) -> int:
        return self.wait + self.warmup

    def after_first_step(self) -> StepPlan:
        """The plan that is left when one step has gone by (a waiting one, if there are any)."""
        if self.wait > 0:
            return StepPlan(self.wait - 1, self.warmup, self.active)
        return StepPlan(0, max(0, self.warmup - 1), self.active)

    def as_schedule(self, actions: Any) -> Callable[[int], Any]:
        """The schedule for `torch.profiler.profile`: one cycle, then nothing.

        torch's own `schedule` starts over unless told otherwise, and the next cycle throws away
        what the last one recorded.
        """

        def action(step: int) -> Any:
            if step < self.wait or step >= self.skipped + self.active:
                return actions.NONE
            if step < self.skipped:
                return actions.WARMUP
            is_last = step == self.skipped + self.active - 1
            return actions.RECORD_AND_SAVE if is_last else actions.RECORD

        return action

    def recorded(self, steps: int) -> int:
        """How many whole steps are recorded when `steps` have ended."""
        return max(0, min(self.active, steps - self.skipped))


class ActiveRecording:
    """The one recording that a process may run, whoever wants it; a forked worker has none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0

        self._owner = ""

    def claim(self, owner: str) -> None:
        """Takes it.

        Args:
            owner: What records, such as "ttap.profile".

        Raises:
            RecordingError: Something records.
        """
        with self._lock:
            if self._process == os.getpid():
                raise RecordingError(
                    f"a {self._owner} is already recording in this process; the profiler of torch "
                    "records one thing at a time, so recordings cannot be nested or run side by "
                    "side in threads or tasks"
                )
            self._process, self._owner = os.getpid(), owner

    def release(self) -> None:
        with self._lock:
            self._process = 0


active_recording = ActiveRecording()


class Recording(Shown):
    """A recording of a training loop; made by `profile`, used once, in a `with` statement.

    The block is recorded from its first line on. If `step()` is never called, that is the result.
    The first `step()` tells that there is a loop: the recording so far becomes the reserve for a
    loop that ends too soon, and the planned steps are recorded by a second profiler. (With nothing
    to wait for, the planned steps begin at once and there is no reserve.)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        plan: StepPlan,
        *,
        worker_name: str | None,
        use_gzip: bool,
        diagnose: bool,
        activities: Sequence[Any] | None,
        options: dict[str, bool],
        ranks_timeout: float = RANKS_TIMEOUT,
    ) -> None:
        self.path: Path | None = None
        """The trace file; None until it is written, or if there was nothing to write."""
        self._target = Path(DEFAULT_FOLDER if path is None else path)
        self._plan = plan
        self._worker_name = worker_name
        self._use_gzip = use_gzip
        self._show = diagnose
        self._activities = activities
        self._options = options
        self._ranks_timeout = ranks_timeout
        self._torch: Any = None
        self._number = 0
        self._began = 0.0
        self._run: Run | None = None
        self._owner = (0, 0)  # process and thread that entered the block
        self._state = "new"  # then "running", then "over"
        self._steps = 0
        self._whole: Any = None  # the profiler that started with the block
        self._planned: Any = None  # the one that records the planned steps
        self._running: Any = None  # whichever of the two is started now
        self._analysed: tuple[Trace, Diagnosis] | None = None

    # -- the block ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._state != "new":
            raise RecordingError("a recording is used once; call ttap.profile() again for another")
        self._torch = import_torch()
        active_recording.claim("ttap.profile")
        try:
            end_injected_profile()
            if profiler_is_running(self._torch):
                raise RecordingError(
                    "another torch profiler is running in this process; ttap.profile brings its "
                    "own, so end the other one first (or give that one ttap.on_trace_ready)"
                )
            self._number, self._began = next(_RECORDINGS), time.time()
            self._names("")  # a folder that cannot be made is told before the training starts
            if self._plan.skipped == 0:
                self._planned = self._make_profiler(self._plan)
            else:
                self._whole = self._make_profiler(None)
            self._start(self._planned or self._whole)
        except BaseException:
            active_recording.release()
            raise
        self._owner = (os.getpid(), threading.get_ident())
        self._state = "running"
        return self

    def step(self) -> None:
        """Tells that an iteration of the loop has ended.

        Raises:
            RecordingError: outside of the block, or from another thread or process than the one
                that entered it (the profiler records per thread).
        """
        self._check_owner("step()")
        self._steps += 1
        if self._running is None:
            return
        if self._planned is None:
            self._begin_planned_steps()
        else:
            self._planned.step()
        if self._plan.recorded(self._steps) > 0:
            self._whole = None  # the reserve can hold many events
        if self._plan.recorded(self._steps) == self._plan.active:
            self._stop()
            self._planned = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._finish()
        except Exception as problem:
            report_problem("the recording could not be brought to its end", problem)
        finally:
            self._state = "over"
            self._whole = self._planned = self._running = None
            active_recording.release()
        if error is not None:
            kept = f"kept in {self.path}" if self.path is not None else "empty"
            report_problem(f"the block ended with {type(error).__name__}; its recording is {kept}")
            return
        self._warn_if_short()
        if self._show and self._run is not None and self._run.rank == 0 and self.path is not None:
            self._print_diagnosis(self.path)

    # -- afterwards --------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """How often `step()` was called."""
        return self._steps

    @property
    def recorded_steps(self) -> int:
        """How many whole planned steps are in the trace; 0 when the whole block is."""
        return self._plan.recorded(self._steps)

    @property
    def trace(self) -> Trace:
        """The recorded trace, loaded on first use; on rank 0 with the files of the other ranks.

        Raises:
            RecordingError: nothing is recorded yet, or nothing was.
        """
        return self._analyse()[0]

    @property
    def diagnosis(self) -> Diagnosis:
        """What is wrong with the recorded steps; computed on first use.

        Raises:
            RecordingError: nothing is recorded yet, or nothing was.
        """
        return self._analyse()[1]

    def __repr__(self) -> str:
        where = f", path={str(self.path)!r}" if self.path is not None else ""
        return f"Recording({self._state}, steps={self._steps}{where})"

    # -- inside ------------------------------------------------------------------------------

    def _names(self, run: str) -> TraceNames:
        return TraceNames(
            self._target,
            rank=0 if self._run is None else self._run.rank,
            run=run,
            worker_name=self._worker_name,
            use_gzip=self._use_gzip,
        )

    def _make_profiler(self, plan: StepPlan | None) -> Any:
        profiler = self._torch.profiler
        chosen = self._activities
        return profiler.profile(
            activities=list(chosen) if chosen is not None else default_activities(self._torch),
            schedule=None if plan is None else plan.as_schedule(profiler.ProfilerAction),
            on_trace_ready=None if plan is None else self._export,
            **self._options,
        )

    def _start(self, profiler: Any) -> None:
        profiler.__enter__()
        self._running = profiler

    def _stop(self) -> None:
        profiler, self._running = self._running, None
        if profiler is not None:
            profiler.__exit__(None, None, None)

    def _begin_planned_steps(self) -> None:
        self._stop()
        self._planned = self._make_profiler(self._plan.after_first_step())
        self._start(self._planned)

    def _finish(self) -> None:
        self._check_owner("the end of the block")
        self._stop()
        if self.path is None and self._whole is not None:
            self._export(self._whole)

    def _export(self, profiler: Any) -> None:
        """Writes the file; also torch's callback when the planned steps are recorded."""
        if profiler is self._planned and self.recorded_steps == 0 and self._whole is not None:
            return  # less than one step: the first iteration tells more
        try:
            # Asked for here: torch.distributed may be initialised inside the block.
            self._run = run_of(self._torch, f"profile{self._number}", self._began)
            self.path = export_trace(profiler, self._names(self._run.name))
        except Exception as error:
            report_problem(f"the recording could not be written to {self._target}", error)
        self._analysed = None

    def _check_owner(self, what: str) -> None:
        if self._state != "running":
            raise RecordingError(f"{what} outside of the `with ttap.profile()` block")
        if self._owner != (os.getpid(), threading.get_ident()):
            raise RecordingError(
                f"{what} came in another thread or process than the one that entered the block; "
                "the profiler of torch records per thread"
            )

    def _warn_if_short(self) -> None:
        if self.path is None:
            report_problem("nothing was recorded: no operation of torch ran inside the block")
        elif self._steps > 0 and self.recorded_steps < self._plan.active:
            plan = self._plan
            got = (
                f"{self.recorded_steps} of the {plan.active} planned steps were recorded"
                if self.recorded_steps > 0
                else "only the first iteration, which is no typical one, was recorded"
            )
            report_problem(
                f"the loop called step() {self._steps} times, but wait={plan.wait}, "
                f"warmup={plan.warmup} and active={plan.active} need "
                f"{plan.skipped + plan.active}: {got}. Run more steps, or ask for fewer"
            )

    def _analyse(self) -> tuple[Trace, Diagnosis]:
        if self._analysed is None:
            if self.path is None:
                over = self._state == "over"
                raise RecordingError("nothing was recorded" if over else "nothing is recorded yet")
            self._analysed = analyse(self.path, self._others(self.path))
        return self._analysed

    def _others(self, path: Path) -> list[Path]:
        """The files of the other ranks, for rank 0."""
        run = self._run
        return run.others_of(path, self._ranks_timeout) if run and run.rank == 0 else []

    def _print_diagnosis(self, path: Path) -> None:
        try:
            several = len(self.diagnosis.summary.files) > 1
            show(self.diagnosis, path.parent if several else path)
        except Exception as error:
            report_problem(f"{path} was recorded but could not be diagnosed", error)


def profile(
    path_or_dir: str | os.PathLike[str] | None = None,
    *,
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    record_shapes: bool = True,
    with_stack: bool = False,
    profile_memory: bool = False,
    with_modules: bool = False,
    activities: Sequence[Any] | None = None,
    worker_name: str | None = None,
    use_gzip: bool = True,
    diagnose: bool = True,
    ranks_timeout: float = RANKS_TIMEOUT,
) -> Recording:
    """Records a few steps of a training loop, diagnoses them and prints the diagnosis at the end.

    ```python
    with ttap.profile("runs/") as p:
        for batch in loader:
            train(batch)
            p.step()
    p.diagnosis.findings, p.trace, p.path
    ```

    With `step()` after every iteration, `wait` iterations pass (the first one is slow for reasons
    of its own), `warmup` start the profiler, `active` are recorded and written at once; the rest
    of the loop runs without a profiler. Without a single `step()` the whole block is recorded.
    A loop that ends too soon gives a warning and what there is: the steps recorded so far, or
    else the first iteration. An exception in the block passes through, and the file is kept.

    Args:
        path_or_dir: A folder (each recording gets a folder of its own in it), or a name that ends
            in `.json` or `.json.gz`; a file that exists is not overwritten. Several ranks each
            write a file with the rank in its name. The folder `ttap_traces` unless given.
        wait: Steps to let pass first.
        warmup: Steps during which the profiler runs but keeps nothing.
        active: Steps to record.
        record_shapes: Record the shapes of operands.
        with_stack: Record Python frames; the traces become many times larger and the run slower.
        profile_memory: Record allocations.
        with_modules: Record modules of TorchScript operators.
        activities: What torch records; the CPU and every accelerator there is unless given.
        worker_name: First part of the file names in a folder.
        use_gzip: Compress, where `path_or_dir` is a folder.
        diagnose: Print the diagnosis of all ranks at the end, on rank 0; else it waits in
            `p.diagnosis`.
        ranks_timeout: Seconds that rank 0 waits for the files of the others before it diagnoses
            what is there; with 0 it diagnoses its own alone.

    Returns:
        The recording, to be used in a `with` statement.

    Raises:
        OptionError: a number of steps is negative, `active` is zero, or `ranks_timeout` is no
            number of seconds.
        MissingDependencyError: torch is not installed (on entering the block).
        RecordingError: another recording or torch profiler is running (on entering the block).
    """
    check_timeout(ranks_timeout)
    options = {
        "record_shapes": record_shapes,
        "with_stack": with_stack,
        "profile_memory": profile_memory,
        "with_modules": with_modules,
    }
    return Recording(
        path_or_dir,
        StepPlan(wait, warmup, active),
        worker_name=worker_name,
        use_gzip=use_gzip,
        diagnose=diagnose,
        activities=activities,
        options=options,
        ranks_timeout=ranks_timeout,
    )
