"""Tools that run a program of the user, for servers whose user allowed it: `predict`, `plan`.

Each is the command of that name in a process of its own, with its JSON as the result. What it runs
lies below the folder that is served.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torchtraceap.core.formatting import plain_line
from torchtraceap.core.stored import parse_value
from torchtraceap.errors import OptionError
from torchtraceap.explanation.tool_results import clean, row_list
from torchtraceap.explanation.tools import Json, Parameter, Tool, Toolbox

__all__ = ["CODE_COMMANDS", "code_tools"]

TIME_LIMIT_S = 300
MOST_OUTPUT = 1 << 26
_MOST = 1_000_000
_WORKLOAD = Parameter(
    "workload", "FILE.py:FUNCTION, the file below the folder that is served.", required=True
)
_DEVICES = Parameter("device", "Such as H100-SXM.", "array", high=8, required=True)
_COUNTS = Parameter("gpus", "Numbers of GPUs, as texts.", "array", high=8)
CODE_COMMANDS = {
    "predict": (
        "What a step of a model would take on GPUs where it never ran. It imports and runs the "
        "workload's file.",
        (
            _WORKLOAD,
            _DEVICES,
            Parameter("batch", "Leading dimension of the inputs.", "integer", 1, _MOST),
            Parameter("dtype", "Of the floating point numbers, such as bf16."),
        ),
    ),
    "plan": (
        "Devices, numbers of GPUs and strategies for a training, with time, memory and cost. It "
        "imports and runs the workload's file.",
        (_WORKLOAD, _DEVICES, _COUNTS),
    ),
}
"""Descriptions and arguments of the commands; a text or number of an argument is an option of its
name."""


def code_tools(names: Sequence[str], root: Path) -> tuple[Tool, ...]:
    """Return the tools of some of these commands.

    Args:
        names: Keys of `CODE_COMMANDS`.
        root: The folder below which the files of workloads lie.
    """
    return tuple(
        Tool(
            name,
            CODE_COMMANDS[name][0],
            CODE_COMMANDS[name][1],
            partial(_run, name, root),
            {"result": "list"},
            runs_code=True,
        )
        for name in names
    )


def _run(command: str, root: Path, box: Toolbox | None, given: Json) -> Json:
    """Return what the command prints with `--json`: its documents as rows.

    Raises:
        OptionError: The file lies elsewhere, or the command fails or takes too long.
    """
    file, colon, function = given["workload"].rpartition(":")
    path = (root / file).resolve() if "\0" not in file else root
    if not colon or not function.isidentifier() or not path.is_file():
        raise OptionError("workload: expected FILE.py:FUNCTION of a file below the folder")
    if not path.is_relative_to(root):
        raise OptionError("workload: the file lies outside of the folder that is served")
    words = [sys.executable, "-m", "torchtraceap", command, f"{path}:{function}", "--json"]
    for name, value in given.items():
        values = value if isinstance(value, tuple) else (value,)
        if name != "workload" and value is not None:
            words += [f"--{name}={each}" for each in values]
    try:
        ran = subprocess.run(
            words, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise OptionError(f"{command} took longer than {TIME_LIMIT_S} s") from None
    if ran.returncode != 0 or len(ran.stdout) > MOST_OUTPUT:
        said = ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise OptionError(plain_line(said, 500) or f"{command} ended with {ran.returncode}")
    document = parse_value(ran.stdout, command)
    return {"result": row_list(map(clean, document if isinstance(document, list) else [document]))}
