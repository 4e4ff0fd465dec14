"""The core of every integration: what a training library tells, as one recording or a watch.

A library says that the training begins, that the optimizer has made a step, that something else
than a step comes, and that it is over. Each integration translates its library's words into these
four and nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.record.examiner import findings_of
from torchtraceap.record.history import SCHEMA, WatchRow
from torchtraceap.record.integrations.logging import Sinks
from torchtraceap.record.notices import RecordingError, report_problem
from torchtraceap.record.session import Recording, profile
from torchtraceap.record.watch import Watch, watch

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis

__all__ = ["Recorded", "Stepper"]


class Stepper:
    """Records some steps of a training that a library runs; nothing that goes wrong stops it.

    Args:
        path: The folder for traces.
        every: None: one recording, which is diagnosed and printed as soon as it is complete. Else
            as `ttap.watch` takes it.
        options: Those of `ttap.profile`, of which `active` is "auto" unless given; with `every`
            those of `ttap.watch`.

    Raises:
        OptionError: An option is out of its range.
        TypeError: There is no such option.
    """

    _running: Stepper | None = None
    """The one of this process. A training that failed tells nobody that it is over: the next one
    does."""

    def __init__(self, path: Any = None, *, every: float | str | None = None, **options: Any):
        self._path = path
        self._log = options.get("log")
        self._make: Callable[[], Recording | Watch]
        if every is None:
            given = {"active": "auto", **options}
            given.pop("log", None)
            self._make = lambda: profile(path, **given)
        else:
            self._make = lambda: watch(path, every=every, **options)
        self.recording: Recording | Watch = self._make()
        """The recording, or the watch, of the last training."""
        self._is_new = True
        self._is_running = False
        self._sinks: Sinks | None = None
        self._more: tuple[Callable[[WatchRow], None], ...] = ()
        self._step = 0

    # -- what the library tells --------------------------------------------------------------

    def start(self, *sinks: Callable[[WatchRow], None]) -> None:
        """Begin with a training, or another one.

        Args:
            sinks: The library's own logs.
        """
        if Stepper._running is not None:
            Stepper._running.end()
        self._more = sinks
        self._run_guarded(self._start)

    def step(self, step: int | None = None) -> None:
        """Tell that the optimizer has made a step.

        Args:
            step: Its number, where the library counts them.
        """
        if not self._is_running:
            return
        self._step = self._step + 1 if step is None else step
        if isinstance(self.recording, Watch):
            self.recording.step(step)
        else:
            self._run_guarded(self._step_of_one, self.recording)

    def pause(self) -> None:
        """Tell that something other than a step comes: an evaluation, a checkpoint."""
        if self._is_running:
            self._run_guarded(self.recording.pause)

    def end(self, error: BaseException | None = None) -> None:
        """End with the training.

        Args:
            error: What ended it.
        """
        if self._is_running:
            self._run_guarded(self._end, error)
            self._is_running = False
            Stepper._running = None

    # -- what came of it ---------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The trace of this rank, or the series of a watch; None where nothing was recorded."""
        return self.recording.path

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the last recording; None where there is none."""
        try:
            return self.recording.diagnosis
        except RecordingError:
            return None

    # -- inside ------------------------------------------------------------------------------

    def _run_guarded(self, do: Callable[..., None], *arguments: Any) -> None:
        try:
            do(*arguments)
        except Exception as error:
            self._is_running = False
            report_problem("the recording ends here, the training goes on", error)
            if isinstance(self.recording, Recording) and self.recording.is_running:
                self.recording.__exit__(type(error), error, None)  # frees the profiler

    def _start(self) -> None:
        if not self._is_new:  # used for a second training
            self.recording = self._make()
        self._is_new = False
        self._step = 0
        if isinstance(self.recording, Watch):
            for sink in self._more:
                self.recording.add_sink(sink)
            self.recording.start()
        else:
            self._sinks = Sinks(self._log, Path(self._path or "."))
            for sink in self._more:
                self._sinks.add(sink)
            self.recording.__enter__()
        self._is_running = True
        Stepper._running = self

    def _step_of_one(self, recording: Recording) -> None:
        recording.step()
        if recording.is_complete:
            self.end()

    def _end(self, error: BaseException | None) -> None:
        recording = self.recording
        kind = None if error is None else type(error)
        recording.__exit__(kind, error, None)
        if isinstance(recording, Recording) and self._sinks is not None and error is None:
            if recording.path is None or not recording.is_first_rank:
                return
            found = findings_of(recording.diagnosis)
            now = time.time()
            run = recording.path.parent.name
            row = {"schema": SCHEMA, "run": run, "time": now, "step": self._step, **found}
            self._sinks.write(row)
            self._sinks.close()


class Recorded:
    """The results of a recording that every integration has."""

    stepper: Stepper

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the last recording; None where there is none."""
        return self.stepper.diagnosis

    @property
    def path(self) -> Path | None:
        """The trace of this rank, or the series of a watch."""
        return self.stepper.path
