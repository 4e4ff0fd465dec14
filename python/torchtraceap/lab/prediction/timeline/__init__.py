"""Timeline synthesis: schedule lowered steps and write the trace a profiler would record."""

from torchtraceap.lab.prediction.timeline.events import rank_trace
from torchtraceap.lab.prediction.timeline.frame import Recording
from torchtraceap.lab.prediction.timeline.schedule import (
    RankTimes,
    Schedule,
    schedule_steps,
    with_steady_loader,
)
from torchtraceap.lab.prediction.timeline.skew import add_slowest_ranks

__all__ = [
    "RankTimes",
    "Recording",
    "Schedule",
    "add_slowest_ranks",
    "rank_trace",
    "schedule_steps",
    "with_steady_loader",
]
