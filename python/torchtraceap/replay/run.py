"""Calling a plan on a device, and how long it takes there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchtraceap.errors import OptionError
from torchtraceap.replay.arguments import CallPlan, DeviceName, Make, TorchName
from torchtraceap.replay.schema import Operator, require_torch

__all__ = ["Timing", "build_call", "check_device", "has_kernel", "time_call"]

_ROOM = 3  # inputs, outputs and what the operator needs between them


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of a call by `torch.utils.benchmark`."""

    median_ns: float
    iqr_ns: float
    """Distance of the quartiles."""
    samples: int
    calls: int


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
        raise OptionError(f"device {ascii(device)[:60]}: {_first_line(error)}") from None
    return chosen


def has_kernel(operator: Operator, device: str) -> bool:
    """Whether the operator has an implementation for the device's kind."""
    torch = require_torch()
    name = operator.qualified + (f".{operator.overload}" if operator.overload else "")
    key = torch._C._dispatch_key_for_device(torch.device(device).type)
    try:
        return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key))
    except RuntimeError:  # known to TorchScript only, which runs on any device
        return True


def build_call(plan: CallPlan, device: str) -> Callable[[], Any]:
    """Makes the inputs and returns the call without arguments.

    Raises:
        OptionError: The inputs do not fit on the device.
    """
    torch = require_torch()
    chosen = check_device(device)
    _check_room(plan, chosen)
    operator = plan.operator
    namespace = getattr(torch.ops, operator.namespace)
    overload = getattr(getattr(namespace, operator.name), operator.overload or "default")
    with torch.random.fork_rng(devices=[] if chosen.type == "cpu" else None):
        torch.manual_seed(0)
        positional = [_value(node, device) for _, node in plan.positional]
        named = {name: _value(node, device) for name, node in plan.keyword}
    return lambda: overload(*positional, **named)


def time_call(plan: CallPlan, device: str, *, min_run_time: float) -> Timing:
    """Median time of the call, after a first call that is not measured.

    Raises:
        OptionError: The operator does not run on the device; the message is torch's own.
    """
    torch = require_torch()
    from torch.utils import benchmark

    name = plan.operator.qualified
    try:
        call = build_call(plan, device)
        call()
        timer = benchmark.Timer(
            "call()", globals={"call": call}, num_threads=torch.get_num_threads()
        )
        measured = timer.blocked_autorange(min_run_time=min_run_time)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError) as error:
        raise OptionError(f"{name} does not run on {device}: {_first_line(error)}") from None
    return Timing(
        measured.median * 1e9,
        measured.iqr * 1e9,
        len(measured.times),
        len(measured.times) * measured.number_per_run,
    )


def _value(node: Any, device: str) -> Any:
    if isinstance(node, Make):
        from torchtraceap.replay import inputs

        arguments = [_value(inner, device) for inner in node.arguments]
        tensor = getattr(inputs, node.function)(*arguments)
        return tensor.pin_memory() if node.pinned and device != "cpu" else tensor
    if isinstance(node, TorchName):
        return getattr(require_torch(), node.name)
    if isinstance(node, DeviceName):
        return "cpu" if node.host else device
    return [_value(inner, device) for inner in node] if isinstance(node, list) else node


def _check_room(plan: CallPlan, device: Any) -> None:
    free = _free_bytes(device)
    if free is not None and _ROOM * plan.input_bytes > free:
        raise OptionError(
            f"the inputs of {plan.operator.qualified} take {plan.input_bytes / 1e9:.1f} GB, "
            f"too much for {free / 1e9:.1f} GB of free memory"
        )


def _free_bytes(device: Any) -> int | None:
    if device.type == "cuda":
        return int(require_torch().cuda.mem_get_info(device)[0])
    if device.type != "cpu" or not hasattr(os, "sysconf"):
        return None
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
