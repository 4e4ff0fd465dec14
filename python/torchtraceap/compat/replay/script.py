"""A plan as a script that needs PyTorch only; it holds parsed literals, never text of the trace."""

from __future__ import annotations

import inspect
import keyword
import math
from typing import Any

from torchtraceap.compat.replay.plan import CallPlan, DeviceName, Make, TorchName
from torchtraceap.compat.replay.schema import Operator

__all__ = ["render_script"]

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
    """The script as text, which says at its head what it calls, on what and after which trace.

    Args:
        plan: What to call.
        source: Path of the trace.
        row: Row of the event table.
        measured: How long the call took in the trace, in words.
    """
    operator = plan.operator
    functions = _functions(plan)
    variables, arguments = _bind(plan, taken=_TAKEN | set(functions))
    lines = [
        f"# Calls {operator.full_name} and nothing else, again and again, and times it.",
        *_tensor_lines(plan),
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
        *_helpers(functions),
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


def _tensor_lines(plan: CallPlan) -> list[str]:
    """A comment for each argument with tensors: types and shapes."""
    lines = []
    for name, node in (*plan.positional, *plan.keyword):
        makes = _makes(node)
        shown = ", ".join(f"{make.dtype} {list(make.shape)}" for make in makes[:_SHOWN])
        more = f", ... ({len(makes)} tensors)" if len(makes) > _SHOWN else ""
        lines += [f"#   {name}: {shown}{more}"] if makes else []
    return lines


def _functions(plan: CallPlan) -> list[str]:
    """Functions of `inputs.py` in the order in which they are written."""
    used = {make.function for _, node in (*plan.positional, *plan.keyword) for make in _makes(node)}
    needed = {*_ALWAYS, *used, *(("empty",) if used & _NEEDS_EMPTY else ())}
    return [*_ALWAYS, *sorted(needed - set(_ALWAYS), key=lambda name: (name != "empty", name))]


def _makes(node: Any) -> list[Make]:
    if isinstance(node, Make):
        return [node]
    return [make for inner in node for make in _makes(inner)] if isinstance(node, list) else []


def _helpers(functions: list[str]) -> list[str]:
    from torchtraceap.compat.replay import inputs
    from torchtraceap.compat.replay import memory as room

    lines = ["Shape = tuple[int, ...]"]
    for function in (
        room.free_bytes,
        room.claim_room,
        *(getattr(inputs, name) for name in functions),
    ):
        lines += ["", "", *inspect.getsource(function).rstrip().splitlines()]
    return [*lines, ""]


def _bind(plan: CallPlan, taken: set[str] | frozenset[str]) -> tuple[list[str], list[str]]:
    """Lines that make the tensors, and the texts of the call's arguments."""
    lines: list[str] = []
    texts: list[str] = []
    strange: list[str] = []  # keywords of Python as names of arguments
    for place, (name, node) in enumerate((*plan.positional, *plan.keyword)):
        text = _literal(node)
        if _makes(node):
            variable = f"{name}_" if keyword.iskeyword(name) or name in taken else name
            lines.append(_assignment(variable, node))
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


def _assignment(variable: str, node: Any) -> str:
    text = f"{variable} = {_literal(node)}"
    if len(text) <= _WIDTH or not isinstance(node, list):
        return text
    return "\n".join([f"{variable} = [", *(f"    {_literal(inner)}," for inner in node), "]"])


def _call(operator: Operator, arguments: list[str]) -> list[str]:
    target = f"torch.ops.{operator.namespace}"
    for part in (operator.name, operator.overload or "default"):
        target = f'getattr({target}, "{part}")' if keyword.iskeyword(part) else f"{target}.{part}"
    line = f"    return {target}({', '.join(arguments)})"
    if len(line) <= _WIDTH:
        return [line]
    return [f"    return {target}(", *(f"        {text}," for text in arguments), "    )"]


def _literal(node: Any) -> str:
    """A node as source text."""
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
