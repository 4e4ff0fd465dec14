"""The only place that imports torch: lazily, and with one clear sentence where it is missing."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from torchtraceap.errors import MissingDependencyError

__all__ = [
    "EMULATED",
    "INJECTED",
    "current_rank",
    "default_activities",
    "end_injected_profile",
    "import_torch",
    "profiler_is_running",
    "world_size",
]

EMULATED = "emu"
"""A backend of torch.distributed whose other ranks are not there: docs/emulated_collectives.md."""
INJECTED = "_torchtraceap_injected"
"""The module that profiles a whole program, where it was put in (bench/processes/injected)."""
# A launcher says the rank here (torchrun's name) before torch.distributed is initialised.
RANK_VARIABLE = "RANK"
WORLD_VARIABLE = "WORLD_SIZE"


def import_torch() -> Any:
    """Returns the torch module with its profiler loaded.

    Raises:
        MissingDependencyError: torch, or a profiler in it, is not there.
    """
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.profiler")
    except ImportError as error:
        raise MissingDependencyError(
            "recording a trace needs PyTorch with torch.profiler in this environment "
            f"({error}); reading and diagnosing trace files works without it"
        ) from error
    return torch


def default_activities(torch: Any) -> list[Any]:
    """CPU, and every accelerator that the profiler supports and that is really there."""
    activity = torch.profiler.ProfilerActivity
    supported = set(torch.profiler.supported_activities())
    chosen = [activity.CPU]
    for name in ("CUDA", "XPU", "MTIA"):
        kind = getattr(activity, name, None)
        if kind in supported and accelerator_is_available(torch, name.lower()):
            chosen.append(kind)
    return chosen


def accelerator_is_available(torch: Any, name: str) -> bool:
    module = getattr(torch, name, None)
    is_available = getattr(module, "is_available", None)
    return bool(is_available()) if is_available is not None else False


def current_rank(torch: Any) -> int:
    """This process's rank: of torch.distributed, else of the launcher, else 0."""
    if (distributed := _initialized(torch)) is not None:
        return int(distributed.get_rank())
    return _number(RANK_VARIABLE, 0)


def world_size(torch: Any) -> int:
    """How many ranks there are: of torch.distributed, else of the launcher, else 1.

    Those that are emulated are not there.
    """
    if (distributed := _initialized(torch)) is not None:
        if distributed.get_backend() == EMULATED:
            return 1
        return int(distributed.get_world_size())
    return _number(WORLD_VARIABLE, 1)


def _initialized(torch: Any) -> Any | None:
    """torch.distributed, where there is a process group."""
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available():
        return None
    return distributed if distributed.is_initialized() else None


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and len(text) < 10 else default


def profiler_is_running(torch: Any) -> bool:
    """Whether any thread of this process runs a torch profiler.

    torch's own check of the state sees the calling thread only, and a second start in the same
    process is accepted in silence and spoils the first recording (seen with torch 2.13).
    """
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def end_injected_profile() -> None:
    """A profile of the whole program, where one runs, makes room for a recording of its own."""
    if (injected := sys.modules.get(INJECTED)) is not None:
        injected.give_up()
