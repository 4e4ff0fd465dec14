"""The loop around the calls of a step: host times, torch's DataLoader, copies of the inputs.

Within a step the hand-off to the autograd thread is the time before its first call ("backward
begin", see recorded_host.py), the loop over parameters that before the optimizer's first, and the
cost of `loss.item()` without waiting that of `aten::_local_scalar_dense`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, sqrt
from types import MappingProxyType

from torchtraceap.core import Renderable
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Call, Capture, Move, Phase, TensorInfo
from torchtraceap.lab.prediction.lowering.durations import host_copy
from torchtraceap.lab.prediction.lowering.host import HostModel
from torchtraceap.lab.prediction.lowering.recorded_host import UNKNOWN_CROSSING, CallContext
from torchtraceap.lab.prediction.lowering.step import (
    BatchFetch,
    LaunchingOp,
    LoopOverhead,
    LoweredCall,
    LoweredOp,
    LoweredStep,
    OpTime,
)
from torchtraceap.ops import Device, Estimate

__all__ = ["PARTS", "Loading", "step_parts", "with_loading"]

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "between_steps": "from the end of a step's range to the next one's begin",
        "begin_of_step": "from there to the first operator or call, without a loader",
        "end_of_step": "from the last operator or call to the end of the range",
        "zero_grad": "`zero_grad` that frees the gradients, for each parameter",
        "loader": "the next batch of a loader with workers, when it is there",
    }
)
"""Parts of the host time around a step, each in ns of the profiled host, with their meaning."""
_TAIL = 1.2816
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
    moved = []
    for lowered in step.calls:
        after = tuple(k + len(uploads) if k >= 0 else k for k in lowered.call.after)
        moved.append(replace(lowered, call=replace(lowered.call, after=after)))
    trained = len(capture.storages.gradients) if capture.storages is not None else 0
    parts = step_parts(host, parameters=trained, has_loader=loading.workers > 0)
    ns = {name: estimate.ns for name, estimate in parts.items()}
    fetch = None
    if loading.workers:
        every = loading.batch_ns / loading.workers
        fetch = BatchFetch(
            _FETCH.format("MultiProcessing"), ns["loader"], every, _AHEAD * loading.workers
        )
    elif loading.batch_ns:
        fetch = BatchFetch(_FETCH.format("SingleProcess"), loading.batch_ns)
    begin = ns["begin_of_step"] + ns.get("zero_grad", 0.0)
    loop = LoopOverhead(ns["between_steps"], begin, ns["end_of_step"], fetch)
    return replace(step, calls=(*uploads, *moved), loop=loop)


def _uploads(
    inputs: Sequence[TensorInfo], loading: Loading, host: HostModel, device: Device
) -> list[LoweredCall]:
    """Return copies of the inputs with `non_blocking`; see Note [Copies and the host]."""
    sized = [tensor for tensor in inputs if tensor.elements]
    last = ["", *[_TO_GPU] * len(sized)]
    calls = [CallContext(_TO_GPU, before, Phase.FORWARD, UNKNOWN_CROSSING) for before in last[:-1]]
    times = host.times_of(calls, [1] * len(sized)).calls
    is_pinned = loading.memory == "pinned"
    found = []
    for place, (tensor, time) in enumerate(zip(sized, times, strict=True)):
        work, launch_ns = host_copy(tensor, Move(True, is_pinned, True), device)
        call = Call(_TO_GPU, "default", {"self": tensor}, (tensor,), Phase.FORWARD, ())
        given = (tensor, tensor, is_pinned)
        op = LaunchingOp("aten::copy_", given, (tensor,), Phase.FORWARD, (), place)
        lowered = LoweredOp(op, (work,), OpTime(work.estimate, True))
        found.append(LoweredCall(call, (lowered,), replace(time, launches=(launch_ns,))))
    return found


# ------------------------------------------------------------------------------- host times


def step_parts(
    model: HostModel, *, parameters: int = 0, has_loader: bool = False
) -> dict[str, Estimate]:
    """Return the times of the parts around a step, ns, from the end of the previous one.

    Args:
        model: Host model of the machine.
        parameters: Number of parameters whose gradients `zero_grad` frees; 0 for inference.
        has_loader: A loader with workers delivers batches, in time.

    Raises:
        OptionError: Less than no parameters.
    """
    if parameters < 0:
        raise OptionError(f"a model can't have {parameters} parameters")
    counts = {
        "between_steps": 1,
        "loader": int(has_loader),
        "begin_of_step": 1,
        "zero_grad": parameters,
        "end_of_step": 1,
    }
    found = {}
    for name, count in counts.items():
        if count:
            known = model.table.parts[name]
            side = exp(_TAIL * sqrt(float(model.covariance[0, 0]) + known.deviation**2))
            ns = known.ns * exp(float(model.factors[0])) * count
            source = f"{PARTS[name]}: {known.machines} machines of public traces"
            found[name] = Estimate(ns, ns / side, ns * side, source)
    return found
