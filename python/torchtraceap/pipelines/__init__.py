"""Jobs with pipeline and data parallelism (docs/stragglers.md, docs/compositions.md)."""

from torchtraceap.pipelines.composition import (
    CalibratedJobs,
    Machine,
    TrainingJob,
    calibrate,
    choose_measurements,
)
from torchtraceap.pipelines.op_trace import (
    OperatorTrace,
    operator_trace,
    read_operator_trace,
)
from torchtraceap.pipelines.schedule import Schedule, build_schedule
from torchtraceap.pipelines.stragglers import (
    StragglerReport,
    ideal_work,
    what_if_stragglers,
)

__all__ = [
    "CalibratedJobs",
    "Machine",
    "OperatorTrace",
    "Schedule",
    "StragglerReport",
    "TrainingJob",
    "build_schedule",
    "calibrate",
    "choose_measurements",
    "ideal_work",
    "operator_trace",
    "read_operator_trace",
    "what_if_stragglers",
]
