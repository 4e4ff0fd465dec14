"""`profile`: records a few sensible steps of a training loop and says what is wrong with them."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from torchtraceap.core.rendering import Renderable
from torchtraceap.errors import OptionError
from torchtraceap.record.export import TraceNames, export_trace
from torchtraceap.record.notices import RecordingError, analyse, report_problem, show
from torchtraceap.record.process_state import ProcessState
from torchtraceap.record.ranks import RANKS_TIMEOUT, Board, Run, check_timeout, run_of
from torchtraceap.record.step_plan import AUTO, ENOUGH_STEPS, AutoPlan, StepPlan, make_profiler
from torchtraceap.record.torch_access import (
    check_thread,
    claim_profiler,
    current_rank,
    default_activities,
    import_torch,
    release_profiler,
    this_thread,
    world_size,
)

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.trace.trace import Trace

__all__ = ["Recording", "profile"]

DEFAULT_FOLDER = "ttap_traces"
_RECORDINGS = itertools.count(1)
"""Counted alike on all ranks."""
MOST_ATTEMPTS = 3
"""Recordings that a pause cut short are tried again; some loops pause after every step."""
MEASURED_BY_RANKS = 3
"""Steps after which rank 0 chooses for all: they have to choose after the same step."""


class Recording(Renderable):
    """A recording of a training loop; made by `profile`, used once, in a `with` statement.

    The block is recorded from its first line on. If `step()` is never called, that is the result.
    The first `step()` tells that there is a loop: the recording so far becomes the reserve for a
    loop that ends too soon, and the planned steps are recorded by a second profiler. (With nothing
    to wait for, the planned steps begin at once and there is no reserve.)

    Where the plan is to be chosen (`AutoPlan`), the steps that follow the first are measured
    without a profiler, and planned steps begin when there are enough of them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        plan: StepPlan | AutoPlan,
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
        self._auto = plan if isinstance(plan, AutoPlan) else None
        self._plan = plan if isinstance(plan, StepPlan) else None  # None: to be chosen
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
        self._plan_began = 0  # how many steps there were
        self._recorded = 0  # whole planned steps in the file
        self._attempts = 0
        self._is_complete = False
        self._step_began: float | None = None  # None where the step is no typical one
        self._measured_s: list[float] = []
        self._events = 0  # of the first iteration
        self._whole: Any = None  # the profiler that started with the block
        self._planned: Any = None  # the one that records the planned steps
        self._running: Any = None  # whichever of the two is started now
        self._state_of_process = ProcessState()  # of what is recorded now
        self._analysed: tuple[Trace, Diagnosis] | None = None

    # -- the block ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._state != "new":
            raise RecordingError("a recording is used once; call ttap.profile() again for another")
        self._torch = import_torch()
        claim_profiler(self._torch, "ttap.profile")
        try:
            self._number, self._began = next(_RECORDINGS), time.time()
            self._names("")  # a folder that cannot be made is told before the training starts
            if self._plan is not None and self._plan.skipped == 0:
                self._planned = self._make_profiler(self._plan)
            else:
                self._whole = self._make_profiler(None)
            self._start(self._planned or self._whole)
        except BaseException:
            release_profiler()
            raise
        self._owner = this_thread()
        self._state = "running"
        return self

    def step(self) -> None:
        """Tell that an iteration of the loop has ended.

        Raises:
            RecordingError: outside of the block, or from another thread or process than the one
                that entered it (the profiler records per thread).
        """
        self._check_owner("step()")
        self._steps += 1
        if self._is_complete:
            return
        if self._planned is not None:
            self._state_of_process.sample()
            self._planned.step()
        else:
            self._approach()
        if self._recorded_now() > 0:
            self._whole = None  # the reserve can hold many events
        if self._plan is not None and self._recorded_now() == self._plan.active:
            self._stop()
            self._planned, self._is_complete = None, True

    def pause(self) -> None:
        """Tell, after a `step()`, that something other than an iteration comes: an evaluation, a
        checkpoint. It belongs to no step: what comes until the next `step()` isn't recorded.

        A recording that it cuts short is kept if it has three steps or what was planned; else it
        is tried again, three times at most, and the longest is kept.

        Raises:
            RecordingError: as `step()`.
        """
        self._check_owner("pause()")
        self._step_began = None
        if self._planned is None or self._plan is None:
            return
        recorded = self._recorded_now()
        if self._steps - self._plan_began < self._plan.wait:
            return
        self._attempts += 1
        if self._attempts > MOST_ATTEMPTS:  # and not one whole step: so be it with what comes
            return
        self._stop()
        self._planned = None
        enough = recorded >= min(ENOUGH_STEPS, self._plan.active)
        if enough or (self._attempts >= MOST_ATTEMPTS and self._recorded > 0):
            self._is_complete = True
        else:
            self._begin_planned_steps(self._plan.after_a_pause(), self._steps)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._check_owner("the end of the block")
            self._stop()
            if self.path is None and self._whole is not None:
                self._export(self._whole)
        except Exception as problem:
            report_problem("the recording could not be brought to its end", problem)
        finally:
            self._state = "over"
            self._whole = self._planned = self._running = None
            release_profiler()
        if error is not None:
            kept = f"kept in {self.path}" if self.path is not None else "empty"
            report_problem(f"the block ended with {type(error).__name__}; its recording is {kept}")
            return
        self._warn_if_short()
        if self._show and self.is_first_rank and (path := self.path) is not None:
            try:
                several = len(self.diagnosis.summary.files) > 1
                show(self.diagnosis, path.parent if several else path)
            except Exception as problem:
                report_problem(f"{path} was recorded but could not be diagnosed", problem)

    # -- afterwards --------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of calls of `step()`."""
        return self._steps

    @property
    def recorded_steps(self) -> int:
        """Number of whole planned steps in the trace; 0 when the whole block is in it."""
        return self._recorded or self._recorded_now()

    @property
    def is_running(self) -> bool:
        """True if the block has begun and not ended."""
        return self._state == "running"

    @property
    def is_complete(self) -> bool:
        """True if the planned steps are recorded and their file is written; the rest of the block
        runs without a profiler."""
        return self._is_complete

    @property
    def is_first_rank(self) -> bool:
        """True if this process diagnoses for all: what it recorded is of rank 0."""
        return self._run is not None and self._run.rank == 0

    @property
    def trace(self) -> Trace:
        """The recorded trace, loaded on first use; on rank 0 with the files of the other ranks.

        Raises:
            RecordingError: nothing is recorded yet, or nothing was.
        """
        return self._analyse()[0]

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the recorded steps; computed on first use.

        Raises:
            RecordingError: nothing is recorded yet, or nothing was.
        """
        return self._analyse()[1]

    def __repr__(self) -> str:
        where = f", path={str(self.path)!r}" if self.path is not None else ""
        return f"Recording({self._state}, steps={self._steps}{where})"

    # -- inside ------------------------------------------------------------------------------

    def _recorded_now(self) -> int:
        """Return the whole steps that the running profiler recorded, or the last one."""
        return 0 if self._plan is None else self._plan.recorded(self._steps - self._plan_began)

    def _approach(self) -> None:
        """Handle the end of a step before the planned ones: the first, or one that is measured."""
        now = time.perf_counter()
        if self._running is not None:  # the first iteration
            self._stop()
            if self._plan is not None:
                self._begin_planned_steps(self._plan, 0)
                return
            with contextlib.suppress(Exception):
                self._events = len(self._whole.profiler.kineto_results.events())
        elif self._step_began is not None:
            self._measured_s.append(now - self._step_began)
            if (chosen := self._chosen()) is not None:
                self._begin_planned_steps(chosen, self._steps)
        self._step_began = time.perf_counter()

    def _chosen(self) -> StepPlan | None:
        """Return the plan by what the steps took, when that is known."""
        assert self._auto is not None
        if world_size(self._torch) <= 1:
            enough = self._auto.is_enough(self._measured_s)
            return self._auto.choose(self._measured_s, self._events) if enough else None
        if len(self._measured_s) < max(MEASURED_BY_RANKS, self._auto.wait - 1):
            return None
        board = Board(self._torch, f"plan{self._number}")
        if current_rank(self._torch) == 0:
            plan = self._auto.choose(self._measured_s, self._events)
            told = board.tell("plan", f"{plan.warmup} {plan.active}")
        elif (said := board.ask("plan")) is not None:
            warmup, active = map(int, said.split())
            plan, told = StepPlan(0, warmup, active), True
        else:
            told = False
        return plan if told else StepPlan(0, max(1, self._auto.warmup), ENOUGH_STEPS)

    def _names(self, run: str) -> TraceNames:
        return TraceNames(
            self._target,
            rank=0 if self._run is None else self._run.rank,
            run=run,
            worker_name=self._worker_name,
            use_gzip=self._use_gzip,
        )

    def _make_profiler(self, plan: StepPlan | None) -> Any:
        chosen = self._activities
        return make_profiler(
            self._torch,
            plan,
            activities=chosen if chosen is not None else default_activities(self._torch),
            options=self._options,
            ready=None if plan is None else self._export,
        )

    def _start(self, profiler: Any) -> None:
        profiler.__enter__()
        self._running = profiler
        with_frames = self._options.get("with_stack", False)
        self._state_of_process = ProcessState(between_steps=not with_frames)
        self._state_of_process.start()

    def _stop(self) -> None:
        profiler, self._running = self._running, None
        if profiler is not None:
            self._state_of_process.finish()
            profiler.__exit__(None, None, None)

    def _begin_planned_steps(self, plan: StepPlan, began: int) -> None:
        """Start their profiler.

        Args:
            plan: Counted from `began` on.
            began: After how many steps; where that is 0, one of them has gone by.
        """
        self._plan, self._plan_began = plan, began
        left = plan.after_first_step() if self._steps > began else plan
        self._planned = self._make_profiler(left)
        self._start(self._planned)

    def _export(self, profiler: Any) -> None:
        """Write the file; also torch's callback when the planned steps are recorded."""
        recorded = self._recorded_now() if profiler is self._planned else 0
        is_planned = profiler is self._planned
        if is_planned and recorded == 0 and (self._whole is not None or self.path is not None):
            return  # less than one step: the first iteration, or an attempt before, tells more
        is_cut = is_planned and self._plan is not None and 0 < recorded < self._plan.active
        try:
            # Asked for here: torch.distributed may be initialised inside the block.
            if self._run is None:
                self._run = run_of(self._torch, f"profile{self._number}", self._began)
            unfinished = f"ProfilerStep#{profiler.step_num}" if is_cut else None
            names, state = self._names(self._run.name), self._state_of_process.finish()
            path = export_trace(profiler, names, unfinished=unfinished, state=state)
        except Exception as error:
            report_problem(f"the recording could not be written to {self._target}", error)
        else:
            # Of two attempts the file with more steps stays.
            shorter = self.path
            if path is None or (shorter is not None and recorded < self._recorded):
                shorter = path
            else:
                self.path, self._recorded = path, recorded
            if shorter is not None:
                shorter.unlink(missing_ok=True)
        self._analysed = None

    def _check_owner(self, what: str) -> None:
        if self._state != "running":
            raise RecordingError(f"{what} outside of the `with ttap.profile()` block")
        check_thread(self._owner, what)

    def _warn_if_short(self) -> None:
        if self.path is None:
            report_problem("nothing was recorded: no operation of torch ran inside the block")
        if self.path is None or self._steps == 0 or self._is_complete:
            return
        plan, recorded = self._plan, self.recorded_steps
        if plan is None:
            needed = "that was too soon to measure what a step takes"
        elif self._plan_began:
            more = plan.skipped + plan.active
            needed = f"the plan that began after {self._plan_began} needs {more} more"
        else:
            steps = f"wait={plan.wait}, warmup={plan.warmup} and active={plan.active}"
            needed = f"{steps} need {plan.skipped + plan.active}"
        if plan is None or recorded == 0:
            got = "only the first iteration, which is no typical one, was recorded"
        else:
            got = f"{recorded} of the {plan.active} planned steps were recorded"
        report_problem(
            f"the loop called step() {self._steps} times, but {needed}: {got}. Run more steps, or "
            "ask for fewer"
        )

    def _analyse(self) -> tuple[Trace, Diagnosis]:
        if self._analysed is None:
            if self.path is None:
                over = self._state == "over"
                raise RecordingError("nothing was recorded" if over else "nothing is recorded yet")
            others = []
            if self._run is not None and self._run.rank == 0:
                others = self._run.others_of(self.path, self._ranks_timeout)
            self._analysed = analyse(self.path, others)
        return self._analysed


def profile(
    path_or_dir: str | os.PathLike[str] | None = None,
    *,
    wait: int = 1,
    warmup: int = 1,
    active: int | Literal["auto"] = 3,
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
    """Record a few steps of a training loop, diagnoses them and prints the diagnosis at the end.

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
        active: Steps to record; with "auto" as many as fit into two seconds and a trace of
            300,000 events, at least 3 and at most 20. What a step takes is measured first, so that
            more than `wait` steps pass, and more than `warmup` steps if they are short. Rank 0
            chooses for all.
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
    plan: StepPlan | AutoPlan
    if isinstance(active, str):
        if active != AUTO:
            raise OptionError(f'active must be a number of steps or "auto", not {active!r}')
        least = StepPlan(wait, warmup, 1)
        plan = AutoPlan(least.wait, least.warmup)
    else:
        plan = StepPlan(wait, warmup, active)
    options = {
        "record_shapes": record_shapes,
        "with_stack": with_stack,
        "profile_memory": profile_memory,
        "with_modules": with_modules,
    }
    return Recording(
        path_or_dir,
        plan,
        worker_name=worker_name,
        use_gzip=use_gzip,
        diagnose=diagnose,
        activities=activities,
        options=options,
        ranks_timeout=ranks_timeout,
    )
