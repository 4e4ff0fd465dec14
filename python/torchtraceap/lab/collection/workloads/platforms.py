"""What a workload computes in, and on how much of the GPU: precisions and virtual platforms.

Note [Virtual]: a green context of CUDA has some of the multiprocessors, and what is launched on its
stream runs on those alone. Autograd launches the backward pass on the streams of the forward pass,
so the process's current stream is made that of the context; to make the context itself current
would limit this thread alone, and autograd has others. Copies and the profiler are as before. That
work is really slower is measured before anything is recorded: the API is a young one.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

from torchtraceap.lab.collection.manifest import Workload
from torchtraceap.record.notices import RecordingError

__all__ = ["autocast", "use_platform"]

_TYPES = {"bf16": torch.bfloat16}
_TRIAL = 4096
"""Rows and columns of a product whose time the multiprocessors bound."""


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """For the forward pass: torch's automatic mixed precision, or nothing for fp32."""
    if precision not in _TYPES:
        return contextlib.nullcontext()
    found: contextlib.AbstractContextManager[Any] = torch.autocast(
        device.type, dtype=_TYPES[precision]
    )
    return found


def use_platform(workload: Workload, device: torch.device) -> object:
    """Limits this process to the multiprocessors that the workload may use.

    Returns:
        What must be kept for as long as work runs.

    Raises:
        RecordingError: The precision or the limit is not to be had here; says why.
    """
    if workload.precision == "bf16" and device.type == "cuda" and not _computes_bf16():
        raise RecordingError(f"{torch.cuda.get_device_name()} does not compute in bf16")
    if not workload.multiprocessors:
        return None
    if device.type != "cuda":
        raise RecordingError(f"{device.type}: only a GPU has multiprocessors to be limited")
    return _limited(workload.multiprocessors, device)


def _computes_bf16() -> bool:
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def _limited(count: int, device: torch.device) -> object:
    """See Note [Virtual]."""
    there = torch.cuda.get_device_properties(device).multi_processor_count
    if count >= there:
        raise RecordingError(f"{count} multiprocessors are no limit: the GPU has {there}")
    try:
        context = _green_context(count, device)
        stream = context.Stream()
    except (AttributeError, ImportError, RuntimeError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RecordingError(f"no green context of {count} multiprocessors: {reason}") from error
    whole_ms = _trial_ms(device)
    with torch.cuda.stream(stream):
        part_ms = _trial_ms(device)
    if part_ms < whole_ms * math.sqrt(there / count):  # nearer to no limit than to this one
        raise RecordingError(
            f"a green context of {count} multiprocessors of {there} limits nothing: both passes of "
            f"a product take {part_ms:.2f} ms in it, and {whole_ms:.2f} ms without"
        )
    torch.cuda.set_stream(stream)
    return context


def _green_context(count: int, device: torch.device) -> Any:
    """torch 2.11 is the first whose contexts give a stream."""
    from torch.cuda.green_contexts import GreenContext

    return GreenContext.create(num_sms=count, device_id=device.index or 0)


def _trial_ms(device: torch.device) -> float:
    """Both passes of a product on the current stream: autograd runs one of them elsewhere."""
    left = torch.randn(_TRIAL, _TRIAL, device=device, requires_grad=True)
    right = torch.randn(_TRIAL, _TRIAL, device=device)

    def passes() -> None:
        (left @ right).sum().backward()

    return statistics.median(_elapsed_ms(passes) for _ in range(5))


def _elapsed_ms(work: Callable[[], None]) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after))
