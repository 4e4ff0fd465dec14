"""How batches come to the GPU: torch's DataLoader, and copies of the inputs from the host.

Note [Copies from the host]: one from pageable memory is staged by the driver and starts behind what
its stream was given; the host goes on when it is done, small ones when they are staged. One from
pinned memory with `non_blocking` is a launch like others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from torchtraceap.devices import Device
from torchtraceap.durations.copies import estimate_copy
from torchtraceap.errors import OptionError
from torchtraceap.prediction.capture.calls import Call, Capture, Phase, TensorInfo
from torchtraceap.prediction.lifting.host import HostModel
from torchtraceap.prediction.lifting.launching import LaunchingOp
from torchtraceap.prediction.lifting.situations import UNKNOWN_CROSSING, Situation
from torchtraceap.prediction.lifting.step import (
    Around,
    Fetch,
    LiftedCall,
    LiftedOp,
    LiftedStep,
)
from torchtraceap.prediction.lifting.step_parts import step_parts
from torchtraceap.prediction.lifting.work import GpuWork, HostTime, OpTime, WorkKind
from torchtraceap.rendering import Shown

__all__ = ["Loading", "with_loading"]

_MEMORY = ("pageable", "pinned")
_STAGED_BYTES = 64 * 1024
"""Copies from pageable memory up to this size return once they are staged."""
_STAGED_NS = 10_000.0
_BLOCKED_NS = 150_000.0
"""What a blocking copy takes beside the copy itself: 80 to 230 us for 4 to 150 MB in traces of
V100, A100, GP100, H100 and MI300X; a staged one 5 to 19 us."""
_PINNED_NS = 6_000.0
"""Of a copy from pinned memory the host does no more than launch it: 4 to 10 us in traces."""
_FETCH = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"
_AHEAD = 2
"""Batches that each worker of torch's loader may make ahead, unless told otherwise."""
_TO_GPU = "aten::_to_copy"


@dataclass(frozen=True, slots=True)
class Loading(Shown):
    """How the batches of a run are made and copied to the GPU.

    Raises:
        OptionError: A time or a number of workers below 0, or no such memory.
    """

    memory: str = "pageable"
    """What batches are copied from: "pageable", or "pinned" with `non_blocking`."""
    batch_ns: float = 0.0
    """How long one process takes to make a batch."""
    workers: int = 0
    """Processes that do; 0: the program does it itself."""

    def __post_init__(self) -> None:
        if self.memory not in _MEMORY:
            raise OptionError(f"batches come from {' or '.join(_MEMORY)} memory, not {self.memory}")
        if not (isfinite(self.batch_ns) and self.batch_ns >= 0):
            raise OptionError(f"a batch can't be made in {self.batch_ns} ns")
        if self.workers < 0:
            raise OptionError(f"a loader can't have {self.workers} workers")


def with_loading(
    step: LiftedStep, capture: Capture, loading: Loading, host: HostModel, device: Device
) -> LiftedStep:
    """A step with the loop around it: the fetch of a batch, copies of the inputs.

    Args:
        step: Lifted of the capture.
        capture: Of a model whose inputs are known.
        loading: How batches come.
        host: Of the machine.
        device: The GPU.

    Raises:
        OptionError: The inputs are not known.
        UnknownDurationError: How fast the GPU's link to the host is, is not known.
    """
    if not capture.inputs:
        raise OptionError("which inputs a recorded step copies to the GPU is not known")
    uploads = _uploads(capture.inputs, loading, host, device)
    moved = tuple(_behind(call, len(uploads)) for call in step.calls)
    return replace(step, calls=(*uploads, *moved), around=_around(capture, loading, host))


def _behind(lifted: LiftedCall, count: int) -> LiftedCall:
    """A call with so many others before it in its step."""
    after = tuple(index + count if index >= 0 else index for index in lifted.call.after)
    return replace(lifted, call=replace(lifted.call, after=after))


def _around(capture: Capture, loading: Loading, host: HostModel) -> Around:
    held = capture.storages
    trained = len(held.gradients) if held is not None else 0
    parts = step_parts(host, parameters=trained, has_loader=loading.workers > 0)
    ns = {part.name: part.estimate.ns for part in parts}
    fetch = None
    if loading.workers:
        every = loading.batch_ns / loading.workers
        fetch = Fetch(
            _FETCH.format("MultiProcessing"), ns["loader"], every, _AHEAD * loading.workers
        )
    elif loading.batch_ns:
        fetch = Fetch(_FETCH.format("SingleProcess"), loading.batch_ns)
    begin = ns["begin_of_step"] + ns.get("zero_grad", 0.0)
    return Around(ns["between_steps"], begin, ns["end_of_step"], fetch)


def _uploads(
    inputs: Sequence[TensorInfo], loading: Loading, host: HostModel, device: Device
) -> list[LiftedCall]:
    sized = [tensor for tensor in inputs if tensor.elements]
    last = ["", *[_TO_GPU] * len(sized)]
    calls = [Situation(_TO_GPU, before, Phase.FORWARD, UNKNOWN_CROSSING) for before in last[:-1]]
    times = host.times_of(calls, [1] * len(sized)).calls
    pairs = zip(sized, times, strict=True)
    return [_upload(place, *pair, loading, device) for place, pair in enumerate(pairs)]


def _upload(
    place: int, tensor: TensorInfo, time: HostTime, loading: Loading, device: Device
) -> LiftedCall:
    """See Note [Copies from the host]."""
    size = tensor.elements * tensor.dtype.size
    is_pinned = loading.memory == "pinned"
    waits = not is_pinned and size > _STAGED_BYTES
    launch_ns = _PINNED_NS if is_pinned else _BLOCKED_NS if waits else _STAGED_NS
    estimate = estimate_copy(size, "HtoD", is_pinned, device)
    source = "Host" if device.vendor == "amd" else loading.memory.capitalize()
    name = f"Memcpy HtoD ({source} -> Device)"
    work = GpuWork(name, WorkKind.MEMCPY, estimate, bytes=size, host_waits=waits)
    call = Call(_TO_GPU, "default", {"self": tensor}, (tensor,), Phase.FORWARD, ())
    given = (tensor, tensor, is_pinned)
    op = LaunchingOp("aten::copy_", given, (tensor,), Phase.FORWARD, (), place)
    lifted = LiftedOp(op, (work,), OpTime(estimate, True))
    return LiftedCall(call, (lifted,), replace(time, launches=(launch_ns,)))
