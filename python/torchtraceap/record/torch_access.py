"""The only place that imports torch: lazily, and with one clear sentence where it is missing; and
the claim of its profiler, which one recording of a process may have at a time."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

from torchtraceap.errors import MissingDependencyError
from torchtraceap.record.notices import RecordingError

__all__ = [
    "EMULATED",
    "INJECTED",
    "check_thread",
    "claim_profiler",
    "current_rank",
    "default_activities",
    "end_injected_profile",
    "import_torch",
    "profiler_is_running",
    "release_profiler",
    "this_thread",
    "world_size",
]

EMULATED = "emu"
"""A backend of torch.distributed whose other ranks are not there: docs/labeled_data.md."""
INJECTED = "_torchtraceap_injected"
"""The module that profiles a whole program, where it was put in (bench/processes/injected)."""
# A launcher says the rank here (torchrun's name) before torch.distributed is initialised.
RANK_VARIABLE = "RANK"
WORLD_VARIABLE = "WORLD_SIZE"
_claims = threading.Lock()
_claim: tuple[int, str] | None = None
"""The process that records, which a forked worker does not, and what it records for."""


def import_torch() -> Any:
    """Return the torch module with its profiler loaded.

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
    """Return CPU, and every accelerator that the profiler supports and that is really there."""
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
    """Return this process's rank: of torch.distributed, else of the launcher, else 0."""
    if (distributed := _process_group(torch)) is not None:
        return int(distributed.get_rank())
    return _number(RANK_VARIABLE, 0)


def world_size(torch: Any) -> int:
    """Return the number of ranks: of torch.distributed, else of the launcher, else 1.

    Those that are emulated are not there.
    """
    if (distributed := _process_group(torch)) is not None:
        if distributed.get_backend() == EMULATED:
            return 1
        return int(distributed.get_world_size())
    return _number(WORLD_VARIABLE, 1)


def _process_group(torch: Any) -> Any | None:
    """Return torch.distributed, where there is a process group."""
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available():
        return None
    return distributed if distributed.is_initialized() else None


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and len(text) < 10 else default


def this_thread() -> tuple[int, int]:
    """Return the process and the thread that call; the profiler of torch records per thread."""
    return os.getpid(), threading.get_ident()


def check_thread(owner: tuple[int, int], what: str) -> None:
    """Raise RecordingError if another process or thread calls than the owner, as `this_thread`
    returned it.

    Args:
        owner: The process and thread that began.
        what: What was called.
    """
    if owner != this_thread():
        raise RecordingError(
            f"{what} came in another thread or process than the one that entered the block; "
            "the profiler of torch records per thread"
        )


def profiler_is_running(torch: Any) -> bool:
    """Return True if any thread of this process runs a torch profiler.

    torch's own check of the state sees the calling thread only, and a second start in the same
    process is accepted in silence and spoils the first recording (seen with torch 2.13).
    """
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def end_injected_profile() -> None:
    """End a profile of the whole program, where one runs, to make room for a recording."""
    if (injected := sys.modules.get(INJECTED)) is not None:
        injected.give_up()


def claim_profiler(torch: Any, owner: str) -> None:
    """Take the profiler of this process for one recording, until `release_profiler`.

    Args:
        torch: The module.
        owner: What records, such as "ttap.profile".

    Raises:
        RecordingError: It is in use.
    """
    global _claim
    with _claims:
        if _claim is not None and _claim[0] == os.getpid():
            raise RecordingError(
                f"a {_claim[1]} is already recording in this process; the profiler of torch "
                "records one thing at a time, so recordings cannot be nested or run side by "
                "side in threads or tasks"
            )
        _claim = os.getpid(), owner
    end_injected_profile()
    if profiler_is_running(torch):
        release_profiler()
        raise RecordingError(
            f"another torch profiler is running in this process; a {owner} brings its own, so end "
            "the other one first (or give that one ttap.on_trace_ready)"
        )


def release_profiler() -> None:
    """Let others record."""
    global _claim
    with _claims:
        _claim = None
