"""`bench`: workloads measured, compared, traced to a cause; one module per group of actions."""

from __future__ import annotations

from torchtraceap.cli.bench.comparing import COMPARE_ACTIONS
from torchtraceap.cli.bench.running import RUN_ACTIONS
from torchtraceap.cli.bench.selecting import SELECT_ACTIONS
from torchtraceap.cli.bench.tracking import TRACK_ACTIONS
from torchtraceap.cli.parsing import Command, command_of_actions

_ACTIONS = {**RUN_ACTIONS, **COMPARE_ACTIONS, **TRACK_ACTIONS, **SELECT_ACTIONS}

BENCH_COMMANDS: dict[str, Command] = {
    "bench": command_of_actions(
        "workloads and programs measured: suite, verdicts, causes, history",
        _ACTIONS,
        tuple(example for action in _ACTIONS.values() for example in action.examples[:1]),
    )
}
