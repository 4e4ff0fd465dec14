"""A plan as a script that needs PyTorch only, and its run on a device.

A script holds parsed literals, never text of the trace.
"""

from __future__ import annotations

import inspect
import json
import keyword
import math
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torchtraceap.compat.replay.plan import CallPlan, DeviceName, Make, TorchName
from torchtraceap.compat.replay.schema import Operator, require_torch
from torchtraceap.errors import OptionError

__all__ = ["check_device", "has_kernel", "render_script", "time_call"]

_WIDTH = 100
_SHOWN = 6  # shapes of a list
_ALWAYS = ("storage_size", "strided")
_NEEDS_EMPTY = frozenset({"ascending", "shares", "identity"})
_TAKEN = frozenset(
    {
        *("benchmark", "call", "claim_room", "free_bytes", "json", "measured", "os", "sys"),
        *("timer", "times", "torch", "Shape", "DEVICE", "NEEDED", "SECONDS"),
    }
)
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception)\b.*", re.MULTILINE)
_MEASURING = """\
if __name__ == "__main__":
    call()  # what happens only once is not measured
    timer = benchmark.Timer(
        "call()", globals={"call": call}, num_threads=torch.get_num_threads()
    )
    measured = timer.blocked_autorange(min_run_time=SECONDS)
    print(measured)
    times = {"median_ns": measured.median * 1e9, "iqr_ns": measured.iqr * 1e9}
    print(json.dumps({**times, "samples": len(measured.times)}))
"""


def render_script(plan: CallPlan, *, source: str, row: int, measured: str) -> str:
    """Return the script as text, which says at its head what it calls, on what and after which
    trace.

    Args:
        plan: What to call.
        source: Path of the trace.
        row: Row of the event table.
        measured: The time of the call in the trace, in words.
    """
    # Imported here, as it needs torch.
    from torchtraceap.compat.replay import inputs

    operator = plan.operator
    used: set[str] = set()
    tensors = []  # a comment for each argument with tensors: types and shapes
    for name, node in (*plan.positional, *plan.keyword):
        if makes := _makes(node):
            used.update(make.function for make in makes)
            shown = ", ".join(f"{make.dtype} {list(make.shape)}" for make in makes[:_SHOWN])
            more = f", ... ({len(makes)} tensors)" if len(makes) > _SHOWN else ""
            tensors.append(f"#   {name}: {shown}{more}")
    if used & _NEEDS_EMPTY:
        used.add("empty")
    others = sorted(used - set(_ALWAYS), key=lambda name: (name != "empty", name))
    functions = [*_ALWAYS, *others]
    variables, arguments = _bind(plan, taken=_TAKEN | set(functions))
    helpers = ["Shape = tuple[int, ...]"]
    for name in ("free_bytes", "claim_room", *functions):
        text = inspect.getsource(getattr(inputs, name))
        helpers += ["", "", *text.rstrip().splitlines()]
    lines = [
        f"# Calls {operator.full_name} and nothing else, again and again, and times it.",
        *tensors,
        f"# Recorded in row {row} of the trace {source!a} ({measured}).",
        f"# {operator.schema}",
        "# It needs PyTorch only. Usage: python FILE [DEVICE [SECONDS]]",
        *(f"# Assumed: {note}." for note in plan.notes),
        "",
        "import json",
        "import os",
        "import sys",
        "",
        "import torch",
        "from torch.utils import benchmark",
        "",
        'DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"',
        "SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5",
        f"NEEDED = {plan.needed_bytes}  # bytes: inputs, results and room between them",
        *helpers,
        "",
        "",
        'if __name__ == "__main__":',
        "    claim_room(NEEDED, torch.device(DEVICE))",
        "torch.manual_seed(0)",
        *variables,
        "",
        "",
        "def call():",
        *_call(operator, arguments),
        "",
        "",
        _MEASURING,
    ]
    return "\n".join(lines)


def _makes(node: Any) -> list[Make]:
    if isinstance(node, Make):
        return [node]
    return [make for inner in node for make in _makes(inner)] if isinstance(node, list) else []


def _bind(plan: CallPlan, taken: set[str] | frozenset[str]) -> tuple[list[str], list[str]]:
    """Return lines that make the tensors, and the texts of the call's arguments."""
    lines: list[str] = []
    texts: list[str] = []
    strange: list[str] = []  # keywords of Python as names of arguments
    for place, (name, node) in enumerate((*plan.positional, *plan.keyword)):
        text = _literal(node)
        if _makes(node):
            variable = f"{name}_" if keyword.iskeyword(name) or name in taken else name
            line = f"{variable} = {text}"
            if len(line) > _WIDTH and isinstance(node, list):
                inner = (f"    {_literal(make)}," for make in node)
                line = "\n".join([f"{variable} = [", *inner, "]"])
            lines.append(line)
            text = variable
        if place < len(plan.positional):
            texts.append(text)
        elif keyword.iskeyword(name):
            strange.append(f"{name!r}: {text}")
        else:
            texts.append(f"{name}={text}")
    if strange:
        texts.append(f"**{{{', '.join(strange)}}}")
    return lines, texts


def _call(operator: Operator, arguments: list[str]) -> list[str]:
    target = f"torch.ops.{operator.namespace}"
    for part in (operator.name, operator.overload or "default"):
        target = f'getattr({target}, "{part}")' if keyword.iskeyword(part) else f"{target}.{part}"
    line = f"    return {target}({', '.join(arguments)})"
    if len(line) <= _WIDTH:
        return [line]
    return [f"    return {target}(", *(f"        {text}," for text in arguments), "    )"]


def _literal(node: Any) -> str:
    """Return a node as source text."""
    if isinstance(node, Make):
        pinned = ".pin_memory()" if node.pinned else ""
        return f"{node.function}({', '.join(_literal(inner) for inner in node.arguments)}){pinned}"
    if isinstance(node, TorchName):
        return f"torch.{node.name}"
    if isinstance(node, DeviceName):
        return '"cpu"' if node.host else "DEVICE"
    if isinstance(node, list):
        return f"[{', '.join(_literal(inner) for inner in node)}]"
    if isinstance(node, float) and not math.isfinite(node):
        return f'float("{node!r}")'
    if node is None or isinstance(node, bool | int | float | complex | str | tuple):
        return repr(node)
    raise TypeError(f"no literal: {type(node).__name__}")


# ------------------------------------------------------------------------------ runs


def check_device(device: str) -> Any:
    """The device as torch knows it.

    Raises:
        OptionError: torch has no such device here.
    """
    torch = require_torch()
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise OptionError(f"device {ascii(device)[:60]}: {first_line}") from None
    return chosen


def has_kernel(operator: Operator, device: str) -> bool:
    """Return True if the operator has an implementation for the device's kind."""
    torch = require_torch()
    key = torch._C._dispatch_key_for_device(torch.device(device).type)
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.full_name, key))


def time_call(
    operator: Operator, script: str, device: str, *, min_run_time: float
) -> tuple[float, float, int]:
    """Run a script in a process and an empty folder of its own.

    So what the call does to its process (a crash, memory, generators of random numbers) is not done
    to this one, and an interrupt ends it.

    Returns:
        Median time of a call and distance of the quartiles in ns, and the number of measurements.

    Raises:
        OptionError: The operator does not run on the device; the message is torch's own.
    """
    with tempfile.TemporaryDirectory(prefix="torchtraceap-") as folder:
        path = Path(folder) / "call.py"
        path.write_text(script, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(path), device, str(min_run_time)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    if done.returncode:
        error = _ERROR.search(done.stderr)
        if done.returncode < 0:
            reason = f"it ended its process with {signal.Signals(-done.returncode).name}"
        elif found := [error[0]] if error else done.stderr.strip().splitlines():
            reason = found[-1][:300]
        else:
            reason = f"exit code {done.returncode}"
        raise OptionError(f"{operator.qualified} does not run on {device}: {reason}")
    times = json.loads(done.stdout.splitlines()[-1])
    return times["median_ns"], times["iqr_ns"], times["samples"]
