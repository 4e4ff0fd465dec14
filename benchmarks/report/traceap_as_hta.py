"""What HTA's five breakdowns hold, from the file or the files of all ranks."""

from __future__ import annotations

from typing import Any


def prepare() -> None:
    import torchtraceap.tables.gpu.kernels
    import torchtraceap.tables.launches  # noqa: F401


def run(path: str) -> Any:
    import torchtraceap as ttap

    trace = ttap.load(path)
    return trace, (
        trace.timeline(),  # get_temporal_breakdown, get_comm_comp_overlap
        trace.kernels(),  # get_gpu_kernel_breakdown
        [trace.idle(rank=rank.rank) for rank in trace.ranks],  # get_idle_time_breakdown
        trace.launches(by="event"),  # get_cuda_kernel_launch_stats
    )


def answers(built: Any) -> dict[str, int]:
    timeline = built[1][0]
    return {"gpu_busy_ns": timeline.busy_ns, "gpu_span_ns": timeline.span_ns}
