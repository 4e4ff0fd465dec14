"""`use_platform`: the part of a GPU that a workload may use.

Note [Virtual]: a green context of CUDA has some of the multiprocessors, and what is launched on its
stream runs on those alone. Autograd launches the backward pass on the streams of the forward pass,
so the process's current stream is made that of the context; to make the context itself current
would limit this thread alone, and autograd has others. Copies and the profiler are as before. That
work is really slower is measured before anything is recorded: the API is a young one.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch

from torchtraceap.lab.collection.manifest import Workload
from torchtraceap.record.notices import RecordingError

__all__ = ["use_platform"]

_TRIAL = 4096
"""Rows and columns of a product whose time the multiprocessors bound."""


def use_platform(workload: Workload, device: torch.device) -> object:
    """Limit this process to the multiprocessors that the workload may use. See Note [Virtual].

    Returns:
        An object that must be kept for as long as work runs.

    Raises:
        RecordingError: The precision or the limit is not to be had here; says why.
    """
    is_bf16 = workload.precision == "bf16" and device.type == "cuda"
    if is_bf16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise RecordingError(f"{torch.cuda.get_device_name()} does not compute in bf16")
    count = workload.multiprocessors
    if not count:
        return None
    if device.type != "cuda":
        raise RecordingError(f"{device.type}: only a GPU has multiprocessors to be limited")
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
    """Return a context, of torch 2.11 or later, whose contexts have a stream."""
    from torch.cuda.green_contexts import GreenContext

    return GreenContext.create(num_sms=count, device_id=device.index or 0)


def _trial_ms(device: torch.device) -> float:
    """Return the time of both passes of a product on the current stream: autograd runs one of them
    elsewhere."""
    left = torch.randn(_TRIAL, _TRIAL, device=device, requires_grad=True)
    right = torch.randn(_TRIAL, _TRIAL, device=device)
    times = []
    for _ in range(5):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        (left @ right).sum().backward()
        after.record()
        after.synchronize()
        times.append(float(before.elapsed_time(after)))
    return statistics.median(times)
