"""From lifted steps to times: what happens when, and the trace that a profiler would write."""

from torchtraceap.lab.prediction.timeline.events import rank_trace
from torchtraceap.lab.prediction.timeline.frame import Recording
from torchtraceap.lab.prediction.timeline.schedule import (
    RankTimes,
    Schedule,
    lay_out,
    with_steady_loader,
)
from torchtraceap.lab.prediction.timeline.skew import with_slowest

__all__ = [
    "RankTimes",
    "Recording",
    "Schedule",
    "lay_out",
    "rank_trace",
    "with_slowest",
    "with_steady_loader",
]
