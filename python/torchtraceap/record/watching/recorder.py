"""A few steps of a running training under the profiler, as often as asked."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtraceap.record.active import claim_profiler, release_profiler
from torchtraceap.record.export import export_raw
from torchtraceap.record.step_plan import StepPlan, make_profiler
from torchtraceap.record.torch_access import default_activities

__all__ = ["Recorder"]


class Recorder:
    """Records planned steps into a raw file; used again for each recording.

    Args:
        torch: The module.
        plan: Warm-up and recorded steps.
        activities: What torch records; None for the CPU and every accelerator.
        options: Of torch's profiler.
    """

    def __init__(
        self, torch: Any, plan: StepPlan, activities: Sequence[Any] | None, options: dict[str, bool]
    ) -> None:
        self._torch = torch
        self.plan = plan
        self._activities = activities
        self._options = options
        self._profiler: Any = None
        self._steps = 0
        self._place: Path | None = None
        self.raw: Path | None = None
        """What the last recording left, in a folder of its own; None: nothing."""
        self.unfinished: str | None = None
        """The step that the last recording cut short."""
        self.steps_s: list[float] = []
        """What steps took under the profiler."""

    @property
    def is_running(self) -> bool:
        return self._profiler is not None

    @property
    def recorded(self) -> int:
        """Whole steps so far."""
        return self.plan.recorded(self._steps)

    def begin(self, folder: Path) -> None:
        """Starts the profiler with the step that follows.

        Args:
            folder: In which the raw file gets a hidden folder.

        Raises:
            RecordingError: The profiler is in use.
        """
        claim_profiler(self._torch, "ttap.watch")
        try:
            chosen = self._activities
            self._profiler = make_profiler(
                self._torch,
                self.plan,
                activities=chosen if chosen is not None else default_activities(self._torch),
                options=self._options,
                ready=self._ready,
            )
            self._steps, self.raw, self.unfinished, self.steps_s = 0, None, None, []
            self._place = folder
            self._profiler.__enter__()
        except BaseException:
            self._profiler = None
            release_profiler()
            raise

    def step(self, seconds: float | None) -> bool:
        """A step has ended; whether it was the last one.

        Args:
            seconds: What it took; None where that is not typical.
        """
        self._steps += 1
        if seconds is not None:
            self.steps_s.append(seconds)
        self._profiler.step()
        if self.recorded == self.plan.active:
            self.stop()
            return True
        return False

    def stop(self) -> None:
        """Ends the recording: what there is of it is exported if it holds a whole step."""
        profiler = self._profiler
        try:
            profiler.__exit__(None, None, None)
        finally:
            self._profiler = None
            release_profiler()

    def _ready(self, profiler: Any) -> None:
        """torch's callback: in the last step, or when the profiler is stopped."""
        if self.recorded == 0 or self._place is None:
            return
        if self.recorded < self.plan.active:
            self.unfinished = f"ProfilerStep#{profiler.step_num}"
        place = Path(tempfile.mkdtemp(prefix=".torchtraceap-", suffix=".partial", dir=self._place))
        self.raw = export_raw(profiler, place)
        if self.raw is None:
            with contextlib.suppress(OSError):
                place.rmdir()
