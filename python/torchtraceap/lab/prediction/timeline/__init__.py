"""Timeline synthesis: schedule lowered steps and write the trace a profiler would record."""

from torchtraceap.lab.prediction.timeline.events import rank_trace
from torchtraceap.lab.prediction.timeline.profilers import Recording
from torchtraceap.lab.prediction.timeline.schedule import (
    RankTimes,
    StepSchedule,
    schedule_steps,
    stream_waits,
    with_steady_loader,
)

__all__ = [
    "RankTimes",
    "Recording",
    "StepSchedule",
    "rank_trace",
    "schedule_steps",
    "stream_waits",
    "with_steady_loader",
]
