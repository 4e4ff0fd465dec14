"""Jobs with pipeline and data parallelism, from a table of operators (docs/stragglers.md)."""

from torchtraceap.simulation.pipelines.op_trace import (
    OperatorTrace,
    operator_trace,
    read_operator_trace,
)
from torchtraceap.simulation.pipelines.schedule import Schedule, build_schedule
from torchtraceap.simulation.pipelines.stragglers import (
    StragglerReport,
    ideal_work,
    what_if_stragglers,
)

__all__ = [
    "OperatorTrace",
    "Schedule",
    "StragglerReport",
    "build_schedule",
    "ideal_work",
    "operator_trace",
    "read_operator_trace",
    "what_if_stragglers",
]
