"""The diagnosis with savings by simulation, from the file: what no other tool here has."""

from __future__ import annotations

from typing import Any


def prepare() -> None:
    import torchtraceap.diagnosis.diagnose
    import torchtraceap.simulation.savings  # noqa: F401


def run(path: str) -> Any:
    import torchtraceap as ttap

    return ttap.load(path).diagnose()


def answers(diagnosis: Any) -> dict[str, int]:
    timeline = diagnosis.summary.timeline
    return {"gpu_busy_ns": timeline.busy_ns, "gpu_span_ns": timeline.span_ns}
