"""From lifted steps to times: what happens when, and the trace that a profiler would write."""

from torchtraceap.prediction.layout.events import rank_trace
from torchtraceap.prediction.layout.frame import Recording
from torchtraceap.prediction.layout.schedule import RankTimes, Schedule, lay_out, with_steady_loader
from torchtraceap.prediction.layout.skew import with_slowest

__all__ = [
    "RankTimes",
    "Recording",
    "Schedule",
    "lay_out",
    "rank_trace",
    "with_slowest",
    "with_steady_loader",
]
