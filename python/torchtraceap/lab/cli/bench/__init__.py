"""The command `bench`, which measures, compares and explains workloads; one module per group of
actions."""

from __future__ import annotations

from torchtraceap.cli import Command, command_of_actions
from torchtraceap.lab.cli import ENTRIES
from torchtraceap.lab.cli.bench.compare import COMPARE_ACTIONS
from torchtraceap.lab.cli.bench.history import TRACK_ACTIONS
from torchtraceap.lab.cli.bench.run import RUN_ACTIONS
from torchtraceap.lab.cli.bench.select import SELECT_ACTIONS

_KNOWN = {**RUN_ACTIONS, **COMPARE_ACTIONS, **TRACK_ACTIONS, **SELECT_ACTIONS}
_ORDER = ("list", "run", "show", "table", "breakdown", "batch-size", "compare", "calibrate",
          "bisect", "history", "coverage", "select")  # fmt: skip
_ACTIONS = {name: _KNOWN[name] for name in _ORDER}

COMMANDS: dict[str, Command] = {
    "bench": command_of_actions(
        ENTRIES["bench"].summary,
        _ACTIONS,
        tuple(example for action in _ACTIONS.values() for example in action.examples[:1]),
        "Runs the programs, workload files and commits that it is given.",
    )
}
