"""Plans of how many steps pass, warm up and are recorded: as asked for, or by the time that they
take; and the profiler that records them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.core.writing import drop_scratch, make_scratch
from torchtraceap.errors import OptionError
from torchtraceap.record.export import export_raw
from torchtraceap.record.process_state import ProcessState
from torchtraceap.record.torch_access import claim_profiler, default_activities, release_profiler

__all__ = ["AUTO", "ENOUGH_STEPS", "AutoPlan", "Recorder", "StepPlan", "make_profiler"]

AUTO = "auto"
ENOUGH_STEPS = 3
"""Fewer say little of what a step is like: two may be odd ones, and neither is seen to be."""
MOST_STEPS = 20
"""More say no more of what the steps have in common."""
RECORDED_S = 2.0
RECORDED_EVENTS = 300_000
"""A recording is to take no longer and hold no more; some 30 MB of JSON, diagnosed in a second."""
MEASURED_S = 0.2
"""Steps are measured until they took so long together: single short ones vary by their half."""
FEWEST_MEASURED = 2
MOST_MEASURED = 20
SETTLED = 0.8
"""A step that takes less than this part of the one before: compilers and caches still warm up."""
WARM_UP_S = 0.05
MOST_WARM_UP = 5
"""The first steps under a profiler take longer: a short step is over before it is warm."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Numbers of steps to let pass, to warm the profiler up, and to record."""

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
        """Return the plan that is left when one step has gone by (a waiting one, if there are
        any)."""
        if self.wait > 0:
            return StepPlan(self.wait - 1, self.warmup, self.active)
        return StepPlan(0, max(0, self.warmup - 1), self.active)

    def after_a_pause(self) -> StepPlan:
        """Return the plan anew, when the step that follows is no typical one."""
        return StepPlan(1, self.warmup, self.active)

    def as_schedule(self, actions: Any) -> Callable[[int], Any]:
        """Return the schedule for `torch.profiler.profile`: one cycle, then nothing.

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
        """Return the number of whole steps that are recorded when `steps` have ended."""
        return max(0, min(self.active, steps - self.skipped))


@dataclass(frozen=True, slots=True)
class AutoPlan:
    """Chooses a plan by what steps take: at least three are recorded, and of short ones so many as
    stay within two seconds and the events of a trace that is handled at once."""

    wait: int
    """The least steps to let pass."""
    warmup: int
    """The least steps to warm up."""

    def is_enough(self, measured_s: Sequence[float]) -> bool:
        """Return True if these steps say what a step takes."""
        if len(measured_s) < FEWEST_MEASURED or 1 + len(measured_s) < self.wait:
            return False
        settled = measured_s[-1] >= SETTLED * measured_s[-2] and sum(measured_s) >= MEASURED_S
        return settled or len(measured_s) >= MOST_MEASURED

    def choose(self, measured_s: Sequence[float], events: int) -> StepPlan:
        """Return the plan for the steps that follow.

        Args:
            measured_s: Seconds of the steps so far without a profiler, not empty.
            events: What one step writes into a trace; 0 if it isn't known.
        """
        step_s = max(median(measured_s[-5:]), 1e-6)
        fitting = RECORDED_S / step_s
        if events:
            fitting = min(fitting, RECORDED_EVENTS / events)
        active = max(ENOUGH_STEPS, min(MOST_STEPS, int(fitting)))
        warmup = max(self.warmup, min(MOST_WARM_UP, math.ceil(WARM_UP_S / step_s)))
        return StepPlan(0, warmup, active)


def make_profiler(
    torch: Any,
    plan: StepPlan | None,
    *,
    activities: Sequence[Any],
    options: dict[str, bool],
    ready: Callable[[Any], None] | None,
) -> Any:
    """Return a profiler of torch that records the planned steps once, or from its start to its
    end."""
    profiler = torch.profiler
    return profiler.profile(
        activities=list(activities),
        schedule=None if plan is None else plan.as_schedule(profiler.ProfilerAction),
        on_trace_ready=ready,
        **options,
    )


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
        self.state: dict[str, Any] | None = None
        """Of the process during the last recording; see `pack_trace`."""
        self._state = ProcessState()

    @property
    def is_running(self) -> bool:
        return self._profiler is not None

    @property
    def recorded(self) -> int:
        """Whole steps so far."""
        return self.plan.recorded(self._steps)

    def begin(self, folder: Path) -> None:
        """Start the profiler with the step that follows.

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
            self._state = ProcessState(between_steps=not self._options.get("with_stack", False))
            self._state.start()
        except BaseException:
            self._profiler = None
            release_profiler()
            raise

    def step(self, seconds: float | None) -> bool:
        """Handle the end of a step; return True if it was the last one.

        Args:
            seconds: What it took; None where that is not typical.
        """
        self._steps += 1
        if seconds is not None:
            self.steps_s.append(seconds)
        self._state.sample()
        self._profiler.step()
        if self.recorded == self.plan.active:
            self.stop()
            return True
        return False

    def stop(self) -> None:
        """End the recording: what there is of it is exported if it holds a whole step."""
        profiler = self._profiler
        try:
            self._state.finish()
            profiler.__exit__(None, None, None)
        finally:
            self._profiler = None
            release_profiler()

    def _ready(self, profiler: Any) -> None:
        """Export a recording as torch's callback: in the last step, or when the profiler is
        stopped."""
        if self.recorded == 0 or self._place is None:
            return
        if self.recorded < self.plan.active:
            self.unfinished = f"ProfilerStep#{profiler.step_num}"
        self.state = self._state.finish()
        place = make_scratch(self._place)
        self.raw = export_raw(profiler, place)
        if self.raw is None:
            drop_scratch(place)
