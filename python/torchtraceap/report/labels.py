"""Labels of the parts of a trace's time, and sentences on steps and replays that reports share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchtraceap.core.formatting import format_ns, format_percent

if TYPE_CHECKING:
    from torchtraceap.core.results import Summary

__all__ = [
    "BOUND_BY",
    "GPU_LABELS",
    "HOST_LABELS",
    "IDLE_LABELS",
    "MEANINGS",
    "label_of_part",
    "step_note",
    "trust_text",
]

GPU_LABELS = {
    "compute": "compute",
    "communication": "exposed communication",
    "memcpy": "exposed copies",
    "device_memcpy": "exposed device copies",
}
IDLE_LABELS = {
    "data_loading": "waiting for data",
    "host_wait": "host busy, nothing queued",
    "synchronization": "synchronisation",
    "memory_copy": "blocking copy call",
    "communication_wait": "waiting for a collective",
    "compilation": "compilation",
    "allocator": "memory allocator",
    "launch_latency": "launch latency",
    "profiler": "profiler overhead",
    "unknown": "waits for work outside the file",
    "within_graph": "between kernels of one CUDA graph",
}
# Causes on the critical path of a run that computes on the host.
HOST_LABELS = {
    "host_forward": "forward pass",
    "host_backward": "backward pass",
    "host_optimizer": "optimiser",
    "host_other": "other work",
    "host_gap": "between operators",
    "data_loading": "data loading",
}
# Parts of the time in a sentence.
PART_NAMES = {
    "host_forward": "the forward pass",
    "host_backward": "the backward pass",
    "host_optimizer": "the optimiser",
    "host_other": "other work of the host",
    "host_gap": "work between operators",
    "compute": "GPU compute",
    "communication": "communication",
    "memcpy": "copies between host and device",
    "device_memcpy": "copies between or within devices",
    "data_loading": "data loading",
    "host_wait": "the host (CPU bound)",
    "synchronization": "synchronisation with the host",
    "memory_copy": "blocking copies",
    "communication_wait": "waiting for collectives",
    "compilation": "compilation",
    "allocator": "the memory allocator",
    "launch_latency": "launch latency",
    "profiler": "the profiler's own overhead",
    "unknown": "waits for work outside the file",
    "within_graph": "gaps between kernels of one CUDA graph",
}

# What a run is bound by; nothing is said of what is unknown.
BOUND_BY = {
    "gpu_compute": "GPU compute",
    "communication": "communication",
    "copies": "copies",
    "host": "the host",
    "data": "data loading",
    "mixed": "several kinds of work",
}

# Explanations of the parts of the time bar.
MEANINGS = {
    "compute": "at least one kernel computes",
    "communication": "a collective runs, and no computation beside it",
    "memcpy": "a copy between host and device runs, and nothing else",
    "device_memcpy": "a copy between or within devices runs, and nothing else",
    "data_loading": "the loop waits for its next batch",
    "host_wait": "the queue is empty while the host works on what comes next",
    "synchronization": "the host had waited for the GPU, and launches only then",
    "memory_copy": "the host sits in a call that copies",
    "communication_wait": "what comes next waits for a collective",
    "compilation": "code is compiled or loaded on first use",
    "allocator": "device memory is allocated or freed through the driver",
    "launch_latency": "work is launched and has not begun yet",
    "profiler": "the profiler itself works",
    "unknown": "nothing in the file says why: its cause lies outside",
    "within_graph": "the device goes from one node of a graph to the next; no launch lies between",
    "host_forward": "operators of the forward pass",
    "host_backward": "operators of the backward pass",
    "host_optimizer": "operators of the optimiser",
    "host_other": "other operators and calls",
    "host_gap": "time between operators, such as Python code",
}

HOST_APART = 0.05  # share of the iteration by which the host's range differs before both are given


def label_of_part(key: str) -> str:
    """Return the label of a class of GPU work or a cause of idle time."""
    return GPU_LABELS.get(key) or IDLE_LABELS.get(key) or key.replace("_", " ")


def step_note(summary: Summary) -> str:
    """Describe the steps behind the step time, such as "mean of 6 steps, median 177 ms"."""
    step = summary.step
    if step is None:
        return ""
    inferred = "inferred " if summary.steps_inferred else ""
    ranks = len(summary.files)
    where = f" on {ranks} ranks" if ranks > 1 else ""
    parts = [f"mean of {step.steps} {inferred}steps{where}"]
    if step.steps == 1:
        parts = [f"the only {inferred}step"]
    elif format_ns(step.median_ns) != format_ns(step.measured_ns):
        parts.append(f"median {format_ns(step.median_ns)}")
    if step.kinds:
        kinds = (f"{kind} {format_ns(ns)}" for kind, ns in step.kinds.items())
        parts.append(f"medians: {', '.join(kinds)}")
    if step.left_out:
        parts.append(f"{step.left_out} left out")
    if abs(step.host_ns - step.measured_ns) > HOST_APART * step.measured_ns:
        parts.append(f"the host's range takes {format_ns(step.host_ns)}")
    return ", ".join(parts)


def trust_text(trust: Mapping[str, Any], *, on_host: bool = False) -> str:
    """Describe how well a run can be replayed, in a sentence without a full stop.

    Args:
        trust: A `Trust` as its JSON.
        on_host: The run computes on the host: GPU time plays no part in it.
    """
    error, held = trust["iteration_error"], trust["held_out"]
    off = "off by < 0.1 %" if abs(error) < 0.001 else f"off by {error * 100:+.1f} %"
    if held is None:
        others = f"with other steps' costs unknown ({trust['held_out_note']})"
    else:
        by, mean, noise = (format_percent(held[k]) for k in ("error", "baseline_error", "noise"))
        others = f"with other steps' costs by {by} (their mean: {mean}; steps vary by {noise})"
    sensitivity = trust["sensitivity"]
    gpu, host = (format_percent(min(1.0, sensitivity[k])) for k in ("gpu_share", "host_share"))
    gpu_text = "" if on_host else f"GPU time by {gpu}, "
    return f"from its dependencies {off}; {others}; it follows {gpu_text}host time by {host}"
