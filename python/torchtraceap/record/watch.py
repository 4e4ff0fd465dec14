"""`watch`: profiles a few steps of a training every some minutes, and tells what changes.

Note [Guest]: a watch is a guest in somebody's training. Whatever goes wrong in here is told once
and ends the watch, never the training; what it takes is measured and kept below a budget (Note
[Budget] in costs.py); traces are examined by a child process, so that neither the time
nor the lock of the interpreter is taken from the training.

Note [Ranks]: all ranks have to record the same steps. The time to record is rank 0's decision, and
ranks run in step, so they meet at an agreed number of `step()` calls: there rank 0 says by the
store (Note [Agreement] in record/ranks.py) whether to record now and when to meet again.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torchtraceap.core.rendering import Renderable
from torchtraceap.core.writing import naming
from torchtraceap.errors import OptionError
from torchtraceap.record.costs import Costs, parse_budget, parse_interval
from torchtraceap.record.examiner import Examination, Task
from torchtraceap.record.history import (
    FILE,
    SCHEMA,
    Changes,
    Kept,
    WatchRow,
    append_line,
    series_table,
)
from torchtraceap.record.integrations.logging import Sinks
from torchtraceap.record.notices import RecordingError, report_problem
from torchtraceap.record.ranks import RANKS_TIMEOUT, Board, Run, check_timeout, run_of
from torchtraceap.record.step_plan import Recorder, StepPlan
from torchtraceap.record.torch_access import import_torch, this_thread

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.diagnosis.result import Diagnosis

__all__ = ["Watch", "watch"]

logger = logging.getLogger("torchtraceap.watch")

DEFAULT_FOLDER = "ttap_traces"
WAIT_AT_END_S = 60.0
"""For what is being examined when the training ends: the last word of the series."""
WAIT_AFTER_ERROR_S = 10.0
MEETING_STEPS = 20
"""Ranks meet for the first time after so many steps."""
MOST_STEPS_APART = 10_000
BUSY_S = 0.5
"""While a recording is examined no other one begins; ranks meet that far apart."""
SOONER = 0.9
"""Ranks meet again when this part of the time that is left has gone by: steps may get slower."""
_WATCHES = itertools.count(1)
"""Counted alike on all ranks."""


class Watch(Renderable):
    """A watched training; made by `watch`, used in a `with` statement or by `start` and `stop`.

    Attributes that tell what came of it are those of rank 0: the others record for it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        every_s: float,
        plan: StepPlan,
        budget: float,
        log: Iterable[Any] | None,
        keep: int,
        keep_bytes: int,
        notify: Callable[[str], None] | None,
        activities: Sequence[Any] | None,
        options: dict[str, bool],
        ranks_timeout: float,
    ) -> None:
        self.root = Path(DEFAULT_FOLDER if path is None else path)
        self.rows: list[WatchRow] = []
        """What was found, as the lines of `watch.jsonl` hold it."""
        self.notices: list[str] = []
        """What has changed, in words."""
        self._every_s, self._plan, self._budget = every_s, plan, budget
        self._activities, self._options = activities, options
        self._ranks_timeout = ranks_timeout
        self._keep, self._keep_bytes = keep, keep_bytes
        self._notify = notify
        self._sinks = Sinks(log, self.root)
        self._changes = Changes()
        self._number = next(_WATCHES)
        self._owner = (0, 0)
        self._is_running = False
        self._steps = 0  # calls of step()
        self._step = 0  # the number that the training gave, else the same
        self._meeting = MEETING_STEPS
        self._step_began: float | None = None
        self._plain_s: list[float] = []  # steps without a profiler since the last recording
        self._beside_s: list[float] = []  # steps beside an examination
        self._pending: list[tuple[Examination, WatchRow]] = []
        self._run: Run | None = None
        self._costs: Costs | None = None
        self._ended: float | None = None

    # -- the training ------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(WAIT_AT_END_S if error is None else WAIT_AFTER_ERROR_S)

    def start(self) -> None:
        """Begin with the training.

        Raises:
            MissingDependencyError: torch is not installed.
            OutputError: The folder can't be made.
        """
        torch = import_torch()
        with naming(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        self._run = run_of(torch, f"watch{self._number}", time.time())
        self._board = Board(torch, f"watch{self._number}")
        self._recorder = Recorder(torch, self._plan, self._activities, self._options)
        self._kept = Kept(self.root / self._run.name, self._keep, self._keep_bytes)
        now = time.perf_counter()
        steps = self._plan.warmup + self._plan.active
        self._costs = Costs(self._budget, self._every_s, steps, now)
        self._owner = this_thread()
        self._is_running = True

    def step(self, step: int | None = None) -> None:
        """Tell that a step of the training has ended. Never raises.

        Args:
            step: Its number, which names it in the series; counted from 1 unless given.
        """
        now = time.perf_counter()
        if not self._is_running or self._owner != this_thread():
            return
        self._steps += 1
        self._step = self._steps if step is None else step
        self._run_guarded(self._after_step, now)
        self._step_began = time.perf_counter()
        if self._costs is not None:
            self._costs.own_s += self._step_began - now

    def pause(self) -> None:
        """Tell, after a `step()`, that something other than a step comes: an evaluation, a
        checkpoint. A recording ends there, and the time until the next `step()` is no step's."""
        now = time.perf_counter()
        if self._is_running and self._owner == this_thread():
            self._run_guarded(self._cut)
            self._step_began = None
            if self._costs is not None:
                self._costs.own_s += time.perf_counter() - now

    def stop(self, timeout_s: float = WAIT_AT_END_S) -> None:
        """End with the training and wait for what is being examined. Never raises.

        Args:
            timeout_s: For how long.
        """
        if not self._is_running:
            return
        self._run_guarded(self._finish, timeout_s)
        self._is_running = False
        self._ended = time.perf_counter()
        self._sinks.close()

    # -- what came of it ---------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The file of the series."""
        return self.root / FILE

    @property
    def series(self) -> ColumnTable:
        """The findings by time: a row for each finding of each recording of this watch."""
        return series_table(self.rows)

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The findings of the last recording that was examined."""
        return list(self.rows[-1]["findings"]) if self.rows else []

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the last recording that was examined; computed when it is asked for.

        Raises:
            RecordingError: There is none.
        """
        from torchtraceap.diagnosis.diagnose import build_diagnosis
        from torchtraceap.trace.loader import load

        trace = self.rows[-1]["trace"] if self.rows else None
        if trace is None:
            raise RecordingError("no recording of this watch has been examined")
        return build_diagnosis(load(self.root / trace))

    @property
    def overhead_share(self) -> float:
        """Share of the time since the watch began that it took; see Note [Budget] in costs.py."""
        return 0.0 if self._costs is None else self._costs.share(self._ended or time.perf_counter())

    @property
    def costs_s(self) -> dict[str, float]:
        """Seconds that the watch took, by where."""
        names = ("own_s", "slower_steps_s", "examining_s", "waiting_s")
        return {name.removesuffix("_s"): getattr(self._costs, name, 0.0) for name in names}

    def add_sink(self, sink: Callable[[WatchRow], None]) -> None:
        """Write rows there too."""
        self._sinks.add(sink)

    def __repr__(self) -> str:
        state = "running" if self._is_running else "over" if self._costs else "new"
        return f"Watch({state}, steps={self._steps}, recordings={len(self.rows)})"

    # -- inside ------------------------------------------------------------------------------

    def _run_guarded(self, do: Callable[..., None], *arguments: Any) -> None:
        """Do something of which no failure stops the training. See Note [Guest]."""
        try:
            do(*arguments)
        except Exception as error:
            self._is_running = False
            report_problem("the watch ends here, the training goes on", error)
            try:
                if self._recorder.is_running:
                    self._recorder.stop()
            except Exception as problem:
                report_problem("the profiler could not be stopped", problem)

    def _after_step(self, now: float) -> None:
        assert self._run is not None and self._costs is not None
        seconds = None if self._step_began is None else now - self._step_began
        if self._recorder.is_running:
            if self._recorder.step(seconds):
                self._examine()
        else:
            if seconds is not None and self._pending:
                self._beside_s.append(seconds)
            elif seconds is not None:
                self._costs.plain_step(seconds)
                self._plain_s.append(seconds)
            self._collect(now)
            if self._run.size > 1:
                is_due = self._steps >= self._meeting and self._meet(now)
            else:
                is_due = not self._pending and self._costs.seconds_left(now) <= 0
            if is_due:
                self._begin(now)

    def _meet(self, now: float) -> bool:
        """Return True if all ranks record now. See Note [Ranks]."""
        assert self._run is not None and self._costs is not None
        name = str(self._meeting)
        if self._run.rank == 0:
            left = self._costs.seconds_left(now)
            record = not self._pending and left <= 0
            if self._pending:
                left = max(left, BUSY_S)
            ahead = self._plan.warmup + self._plan.active + 1 if record else 0
            typical = self._costs.typical_s or 1e-3
            steps = int(SOONER * max(left, 0.0) / typical) if not record else MEETING_STEPS
            apart = max(MEETING_STEPS // 4, min(steps, MOST_STEPS_APART)) + ahead
            keep = [*self._kept.names, *(row["folder"] for _, row in self._pending)]
            decision: dict[str, Any] = {"record": record, "next": self._steps + apart, "keep": keep}
            if not self._board.tell(name, json.dumps(decision)):
                raise RecordingError("no store of torch.distributed took what rank 0 decided")
        else:
            said = self._board.ask(name)
            if said is None:
                raise RecordingError("rank 0 did not say when to record")
            decision = json.loads(said)
            self._kept.follow(decision["keep"])
        self._meeting = int(decision["next"])
        return bool(decision["record"])

    def _begin(self, now: float) -> None:
        assert self._run is not None and self._costs is not None
        with naming(self.root):
            (self.root / self._run.name).mkdir(exist_ok=True)
        try:
            self._recorder.begin(self.root / self._run.name)
        except RecordingError:  # somebody else uses the profiler
            self._costs.postpone(now)
            return
        self._costs.begin(now)

    def _cut(self) -> None:
        if self._recorder.is_running:
            self._recorder.stop()
            self._examine()

    def _examine(self) -> None:
        """Hand what was recorded to a child."""
        assert self._run is not None and self._costs is not None
        recorder = self._recorder
        self._costs.add_recording(recorder.steps_s)
        if recorder.raw is None:  # a pause came before a whole step had ended
            return
        run = self._run
        folder = f"step{self._step:09d}"
        task = Task(
            raw=str(recorder.raw),
            root=str(self.root),
            folder=f"{run.name}/{folder}",
            rank=run.rank,
            size=run.size,
            began=time.time() - sum(recorder.steps_s),
            timeout_s=self._ranks_timeout,
            unfinished=recorder.unfinished,
            state=recorder.state,
            diagnose=run.rank == 0,
        )
        row: WatchRow = {
            "schema": SCHEMA,
            "run": run.name,
            "time": time.time(),
            "step": self._step,
            "folder": folder,
            "steps": recorder.recorded,
            "step_time_ns": None if (t := self._costs.typical_s) is None else round(t * 1e9),
        }
        self._beside_s = []
        self._pending.append((Examination(task, recorder.raw.parent), row))

    def _collect(self, now: float) -> None:
        """Take what a child has found, when it is there."""
        assert self._run is not None and self._costs is not None
        while self._pending and self._pending[0][0].is_over():
            examination, row = self._pending.pop(0)
            found = examination.result()
            self._costs.add_examination(self._beside_s, found.pop("cpu_s", 0.0))
            self._costs.end()
            self._beside_s = []
            folder = row.pop("folder")
            if self._run.rank != 0:
                self._kept.note(folder)
            if "error" in found:
                report_problem(f"the recording of step {row['step']} is lost: {found['error']}")
            elif self._run.rank == 0:
                self._tell(found, row, folder, now)

    def _tell(self, found: dict[str, Any], row: WatchRow, folder: str, now: float) -> None:
        assert self._run is not None and self._costs is not None
        changes = self._changes.compare_findings(found["findings"], row["step"])
        drift = self._changes.compare_steps(self._plain_s, row["step"])
        self._plain_s = []
        if drift is not None:
            changes.append(drift)
        for kind in ("appeared", "gone"):
            row[kind] = [change.finding for change in changes if change.kind == kind]
        row["notices"] = [change.text for change in changes]
        wanted = ("ranks", "recorded_step_ns", "busy_share", "computes_on", "bound_by", "findings")
        row |= {name: found[name] for name in wanted}
        row["overhead_share"] = self._costs.share(now)
        row["trace"] = f"{self._run.name}/{folder}"
        self.rows.append(row)
        self._kept.add(folder, bool(row["appeared"]))
        for change in changes:
            self.notices.append(change.text)
            logger.warning(change.text)
            if self._notify is not None:
                try:
                    self._notify(change.text)
                except Exception as error:
                    report_problem("a notice could not be handed on", error)
        append_line(self.path, row)
        self._sinks.write(row)

    def _finish(self, timeout_s: float) -> None:
        assert self._run is not None and self._costs is not None
        began = time.perf_counter()
        self._cut()
        for examination, _ in self._pending:
            left = timeout_s - (time.perf_counter() - began)
            if not examination.wait(max(left, 0.0)):
                examination.give_up()
                report_problem(f"the last recording was not examined within {timeout_s:g} s")
        self._costs.waiting_s += time.perf_counter() - began
        self._collect(time.perf_counter())
        if self._run.rank == 0 and not self.rows:
            took = began - self._costs.began
            report_problem(
                f"nothing was recorded in {took:.0f} s and {self._steps} steps: a recording is "
                f"expected to cost {self._costs.expected_s:.1f} s, which is above the budget of "
                f"{self._costs.budget:.2%} of that time; give a larger one, or use ttap.profile"
            )


def watch(
    path: str | os.PathLike[str] | None = None,
    *,
    every: float | str = "10m",
    steps: int = 3,
    warmup: int = 1,
    budget: float = 0.01,
    log: Iterable[Any] | None = None,
    keep: int = 5,
    keep_bytes: int = 2 << 30,
    notify: Callable[[str], None] | None = None,
    record_shapes: bool = True,
    with_stack: bool = False,
    profile_memory: bool = False,
    activities: Sequence[Any] | None = None,
    ranks_timeout: float = RANKS_TIMEOUT,
) -> Watch:
    """Watch a training: profiles a few steps now and then, and tells what changes.

    ```python
    with ttap.watch("runs/", every="10m") as w:
        for batch in loader:
            train(batch)
            w.step()
    w.series, w.notices, w.overhead_share
    ```

    Each recording is examined by a child process at the lowest priority. What was found becomes a
    line of `watch.jsonl` in the folder, and metrics of the loggers; a finding that appears or goes
    and a step that takes another time are told in the log `torchtraceap.watch`. Every rank
    records the same steps; rank 0 examines and tells. Nothing that goes wrong stops the training.

    Args:
        path: The folder; `ttap_traces` unless given. Each watch has a folder of its own in it for
            traces, and all share `watch.jsonl`.
        every: The shortest time between two recordings, such as "10m", "90s" or seconds. The first
            one is made as soon as the budget allows.
        steps: How many steps are recorded each time.
        warmup: Steps during which the profiler runs but keeps nothing.
        budget: The share of the time that all of it may take, measured while it runs; recordings
            are further apart where `every` would take more.
        log: Where to log as well: `SummaryWriter` objects, runs of MLflow or W&B, loggers with
            `log_metrics`, functions, "tensorboard", "mlflow", "wandb", folders for TensorBoard.
            By default the runs of MLflow and W&B that are active.
        keep: How many of the latest traces stay, beside those in which a finding was new.
        keep_bytes: What all traces of the watch may take on the disk.
        notify: Called with each notice.
        record_shapes: Record the shapes of operands.
        with_stack: Record Python frames, which makes recordings many times dearer.
        profile_memory: Record allocations.
        activities: What torch records; the CPU and every accelerator unless given.
        ranks_timeout: Seconds that the child of rank 0 waits for the files of the others.

    Returns:
        The watch, for a `with` statement, or with `start()` and `stop()`.

    Raises:
        OptionError: An option is outside its range, or `log` holds what can't be logged to.
        MissingDependencyError: A logger that is named is not installed.
    """
    if not isinstance(keep, int) or keep < 1:
        raise OptionError(f"keep must be at least 1 trace, not {keep!r}")
    if not keep_bytes > 0:
        raise OptionError(f"keep_bytes must be above 0, not {keep_bytes!r}")
    check_timeout(ranks_timeout)
    return Watch(
        path,
        every_s=parse_interval(every),
        plan=StepPlan(0, warmup, steps),
        budget=parse_budget(budget),
        log=log,
        keep=keep,
        keep_bytes=keep_bytes,
        notify=notify,
        activities=activities,
        options={
            "record_shapes": record_shapes,
            "with_stack": with_stack,
            "profile_memory": profile_memory,
        },
        ranks_timeout=ranks_timeout,
    )
