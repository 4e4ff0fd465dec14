"""Workloads of six tasks with random weights, and steps that have a fault or not.

Imports torch; `torchtraceap.lab.collection.manifest` names them without it.
"""

from __future__ import annotations

from torchtraceap.lab.collection.workloads import data, exchanges, host
from torchtraceap.lab.collection.workloads.platforms import use_platform
from torchtraceap.lab.collection.workloads.steps import STEPS, Context, Step, measured

__all__ = ["STEPS", "Context", "Step", "data", "exchanges", "host", "measured", "use_platform"]
