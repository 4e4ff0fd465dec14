"""Plans of hardware: which GPUs, how many, split how, at what price (docs/planning.md)."""

from torchtraceap.lab.planning.planner import plan
from torchtraceap.lab.planning.result import PlanOption, RefusedOption, TooLarge, TrainingPlan

__all__ = ["PlanOption", "RefusedOption", "TooLarge", "TrainingPlan", "plan"]
