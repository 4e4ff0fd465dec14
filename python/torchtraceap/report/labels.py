"""Meanings of the parts of a trace's time, and sentences on steps and replays of all reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchtraceap.core.formatting import format_ns, format_percent

if TYPE_CHECKING:
    from torchtraceap.core.results import Summary

__all__ = [
    "BOUND_BY",
    "MEANINGS",
    "step_note",
    "trust_text",
]

# What a run is bound by; nothing is said of what is unknown.
BOUND_BY = {
    "gpu_compute": "GPU compute",
    "communication": "communication",
    "copies": "copies",
    "host": "the host",
    "data": "data loading",
    "mixed": "several kinds of work",
}

# What the parts of the time are; those of idle time in the words of docs/idle_time.md.
MEANINGS = {
    "compute": "at least one kernel computes",
    "communication": "a collective runs, and no computation overlaps it",
    "memcpy": "a copy between host and device runs, and nothing else",
    "device_memcpy": "a copy between or within devices runs, and nothing else",
    "data_loading": "the host makes or awaits the next batch",
    "host_wait": "the queue is empty and the host works, or runs Python that is not recorded: CPU "
    "bound",
    "synchronization": "the host waits for the GPU, or refills the queue after such a wait",
    "memory_copy": "the host waits for a copy, or refills the queue after it",
    "communication_wait": "the next work, or the host, waits for a collective",
    "compilation": "code is generated, loaded, instantiated or tuned; the context is created",
    "allocator": "device or pinned memory is allocated, mapped or freed",
    "launch_latency": "work was queued already: the time that the device takes to start it",
    "profiler": "the profiler's own work",
    "unknown": "no event explains it: the GPU, or the host, waits for work outside the file",
    "within_graph": "between nodes of a CUDA graph's replay: the device goes from node to "
    "node by itself",
    "host_forward": "operators of the forward pass",
    "host_backward": "operators of the backward pass",
    "host_optimizer": "operators of the optimizer",
    "host_other": "other operators and calls",
    "host_gap": "time between operators, such as Python code",
}


def step_note(summary: Summary) -> str:
    """Describe the steps behind the step time, such as "mean of 6 steps, median 177 ms"."""
    step = summary.step
    if step is None:
        return ""
    what = step.unit if step.kinds or not summary.steps_inferred else "inferred step"
    ranks = len(summary.files)
    where = f" on {ranks} ranks" if ranks > 1 else ""
    parts = [f"mean of {step.steps} {what}s{where}"]
    if step.steps == 1:
        parts = [f"the only {what}"]
    elif format_ns(step.median_ns) != format_ns(step.measured_ns):
        parts.append(f"median {format_ns(step.median_ns)}")
    if len(step.kinds) > 1:
        kinds = (f"{kind} {format_ns(ns)}" for kind, ns in step.kinds.items())
        parts.append(f"medians: {', '.join(kinds)}")
    if step.left_out:
        parts.append(f"{step.left_out} left out")
    if step.host_apart:
        parts.append(f"the host's range takes {format_ns(step.host_ns)}")
    return ", ".join(parts)


def trust_text(trust: Mapping[str, Any], *, unit: str = "step") -> str:
    """Describe how well a run can be simulated, in a sentence without a full stop.

    Args:
        trust: A `Trust` as its JSON.
        unit: Word for a step (`StepTime.unit`).
    """
    error, held = trust["iteration_error"], trust["held_out"]
    off = "" if abs(error) < 0.001 else f"; the {unit}s seen are off by {error * 100:+.1f} %"
    if held is None:
        return f"no unseen {unit} to compare with ({trust['held_out_note']}){off}"
    by, noise = (format_percent(held[key]) for key in ("error", "noise"))
    return f"unseen {unit}s within {by} ({unit}s vary by {noise}){off}"
