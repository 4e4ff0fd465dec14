"""Input pipeline: torch's DataLoader and copies of the inputs to the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from torchtraceap.core.rendering import Renderable
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Call, Capture, Move, Phase, TensorInfo
from torchtraceap.lab.prediction.lowering.call_context import UNKNOWN_CROSSING, CallContext
from torchtraceap.lab.prediction.lowering.copies import host_copy
from torchtraceap.lab.prediction.lowering.host import HostModel
from torchtraceap.lab.prediction.lowering.launching_op import LaunchingOp
from torchtraceap.lab.prediction.lowering.step import (
    BatchFetch,
    LoopOverhead,
    LoweredCall,
    LoweredOp,
    LoweredStep,
)
from torchtraceap.lab.prediction.lowering.step_parts import step_parts
from torchtraceap.lab.prediction.lowering.work import HostTime, OpTime
from torchtraceap.ops.devices import Device

__all__ = ["Loading", "with_loading"]

_MEMORY = ("pageable", "pinned")
_FETCH = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"
_AHEAD = 2
"""Default number of batches that each DataLoader worker prefetches."""
_TO_GPU = "aten::_to_copy"


@dataclass(frozen=True, slots=True)
class Loading(Renderable):
    """The input pipeline of a run.

    Raises:
        OptionError: A time or a number of workers below 0, or no such memory.
    """

    memory: str = "pageable"
    """Memory that batches are copied from: "pageable", or "pinned" with `non_blocking`."""
    batch_ns: float = 0.0
    """Time in which one process makes a batch, ns."""
    workers: int = 0
    """Number of worker processes; 0 if the program loads itself."""

    def __post_init__(self) -> None:
        if self.memory not in _MEMORY:
            raise OptionError(f"batches come from {' or '.join(_MEMORY)} memory, not {self.memory}")
        if not (isfinite(self.batch_ns) and self.batch_ns >= 0):
            raise OptionError(f"a batch can't be made in {self.batch_ns} ns")
        if self.workers < 0:
            raise OptionError(f"a loader can't have {self.workers} workers")


def with_loading(
    step: LoweredStep, capture: Capture, loading: Loading, host: HostModel, device: Device
) -> LoweredStep:
    """Return a step with the loop around it: the fetch of a batch and copies of the inputs.

    Args:
        step: Lowered from the capture.
        capture: Capture of a model whose inputs are known.
        loading: The input pipeline.
        host: Host model of the machine.
        device: The GPU.

    Raises:
        OptionError: The inputs are not known.
        UnknownDurationError: The bandwidth between host and GPU is unknown.
    """
    if not capture.inputs:
        raise OptionError("which inputs a recorded step copies to the GPU is not known")
    uploads = _uploads(capture.inputs, loading, host, device)
    moved = tuple(_behind(call, len(uploads)) for call in step.calls)
    return replace(step, calls=(*uploads, *moved), loop=_loop_overhead(capture, loading, host))


def _behind(lowered: LoweredCall, count: int) -> LoweredCall:
    """Shift the indices of a call by so many calls before it."""
    after = tuple(index + count if index >= 0 else index for index in lowered.call.after)
    return replace(lowered, call=replace(lowered.call, after=after))


def _loop_overhead(capture: Capture, loading: Loading, host: HostModel) -> LoopOverhead:
    held = capture.storages
    trained = len(held.gradients) if held is not None else 0
    parts = step_parts(host, parameters=trained, has_loader=loading.workers > 0)
    ns = {part.name: part.estimate.ns for part in parts}
    fetch = None
    if loading.workers:
        every = loading.batch_ns / loading.workers
        fetch = BatchFetch(
            _FETCH.format("MultiProcessing"), ns["loader"], every, _AHEAD * loading.workers
        )
    elif loading.batch_ns:
        fetch = BatchFetch(_FETCH.format("SingleProcess"), loading.batch_ns)
    begin = ns["begin_of_step"] + ns.get("zero_grad", 0.0)
    return LoopOverhead(ns["between_steps"], begin, ns["end_of_step"], fetch)


def _uploads(
    inputs: Sequence[TensorInfo], loading: Loading, host: HostModel, device: Device
) -> list[LoweredCall]:
    sized = [tensor for tensor in inputs if tensor.elements]
    last = ["", *[_TO_GPU] * len(sized)]
    calls = [CallContext(_TO_GPU, before, Phase.FORWARD, UNKNOWN_CROSSING) for before in last[:-1]]
    times = host.times_of(calls, [1] * len(sized)).calls
    pairs = zip(sized, times, strict=True)
    return [_upload(place, *pair, loading, device) for place, pair in enumerate(pairs)]


def _upload(
    place: int, tensor: TensorInfo, time: HostTime, loading: Loading, device: Device
) -> LoweredCall:
    """Return a copy with `non_blocking`; see Note [Copies and the host]."""
    copied = host_copy(tensor, Move(True, loading.memory == "pinned", True), device)
    call = Call(_TO_GPU, "default", {"self": tensor}, (tensor,), Phase.FORWARD, ())
    given = (tensor, tensor, loading.memory == "pinned")
    op = LaunchingOp("aten::copy_", given, (tensor,), Phase.FORWARD, (), place)
    lowered = LoweredOp(op, (copied.work,), OpTime(copied.work.estimate, True))
    return LoweredCall(call, (lowered,), replace(time, launches=(copied.launch_ns,)))
