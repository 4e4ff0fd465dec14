"""Workloads of six tasks with random weights, and steps that have a fault or not.

Imports torch; `torchtraceap.lab.collection.manifest` names them without it.
"""

from __future__ import annotations

from torchtraceap.lab.collection.workloads import data, exchanges, host
from torchtraceap.lab.collection.workloads.steps import (
    STEPS,
    Context,
    Step,
    calibrate,
    use_platform,
)

__all__ = ["STEPS", "Context", "Step", "calibrate", "data", "exchanges", "host", "use_platform"]
