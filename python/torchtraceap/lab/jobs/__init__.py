"""Jobs with pipeline and data parallelism (docs/many_ranks.md, docs/prediction.md)."""

from torchtraceap.lab.jobs.composition import (
    CalibratedJobs,
    Coefficients,
    Deviations,
    calibrate,
    choose_measurements,
)
from torchtraceap.lab.jobs.jobs import Machine, TrainingJob
from torchtraceap.lab.jobs.op_trace import OperatorTrace, operator_trace, read_operator_trace
from torchtraceap.lab.jobs.schedule import Schedule, build_schedule
from torchtraceap.lab.jobs.stragglers import StragglerReport, ideal_work, what_if_stragglers
from torchtraceap.lab.jobs.terms import job_memory

__all__ = [
    "CalibratedJobs",
    "Coefficients",
    "Deviations",
    "Machine",
    "OperatorTrace",
    "Schedule",
    "StragglerReport",
    "TrainingJob",
    "build_schedule",
    "calibrate",
    "choose_measurements",
    "ideal_work",
    "job_memory",
    "operator_trace",
    "read_operator_trace",
    "what_if_stragglers",
]
