"""What a step time is of, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core.formatting import format_ns

if TYPE_CHECKING:
    from torchtraceap.core.results import Summary

__all__ = ["step_note"]

# Of the iteration: where the host's range of a step differs by more, both are said.
HOST_APART = 0.05


def step_note(summary: Summary) -> str:
    """What the step time is of, and the host's range where it says something else."""
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
