"""Predicts a step of a model on a GPU and the trace it would write."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torchtraceap import _core
from torchtraceap._version import __version__
from torchtraceap.core import PathLike, PredictedTime, format_ns
from torchtraceap.errors import OptionError
from torchtraceap.lab.memory import MemoryFit, fit_memory
from torchtraceap.lab.prediction.capture.calls import Capture
from torchtraceap.lab.prediction.capture.profile import capture_profile
from torchtraceap.lab.prediction.estimate import Layout, step_interval
from torchtraceap.lab.prediction.lowering.durations import op_call
from torchtraceap.lab.prediction.lowering.host import HostModel
from torchtraceap.lab.prediction.lowering.loop import Loading, with_loading
from torchtraceap.lab.prediction.lowering.lower import lower, with_measured_times
from torchtraceap.lab.prediction.lowering.operators import launching_ops
from torchtraceap.lab.prediction.lowering.recorded_host import (
    PROBE_DEVIATION,
    RecordedCalls,
    recorded_calls,
)
from torchtraceap.lab.prediction.lowering.step import LoweredOp, LoweredStep, WorkKind
from torchtraceap.lab.prediction.result import (
    OpShare,
    Prediction,
    StepMemory,
    UnknownOp,
    known_memory,
    memory_need,
)
from torchtraceap.lab.prediction.sources import CapturedStep, captured_step
from torchtraceap.ops import (
    Device,
    KindTimes,
    device_named,
    find_device,
    fit_calibration,
    work_of_call,
)
from torchtraceap.tables import step_time
from torchtraceap.trace import RankTrace, Trace, load

if TYPE_CHECKING:
    import torch

    from torchtraceap.lab.prediction.parallel.placement import Plan

__all__ = [
    "StepEstimate",
    "estimate_captured",
    "launching_operators",
    "lower_steps",
    "predict",
    "predict_captured",
]


_YOUNG_TYPES = ("bf16", "fp8", "fp4")
"""Types that not every GPU computes."""
_LIBRARIES = ("torch", "torchvision", "transformers", "timm", "diffusers")


def predict(
    source: Any,
    inputs: Any = None,
    *,
    device: str | Device,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    dtype: object = None,
    world_size: int = 1,
    strategy: str | None = None,
    batch: int | None = None,
    steps: int = 3,
    calibrate: Iterable[Trace] = (),
    loading: Loading | None = None,
    probed: RecordedCalls | None = None,
    sharding: Plan | None = None,
    routing_skew: float = 0.0,
) -> Prediction:
    """Predict a step on a GPU, without a GPU and without running the model.

    Args:
        source: A model (`torch.nn.Module`) with `inputs`; a function that makes a workload, or its
            name, `FILE.py:FUNCTION`; or the path of a profile (of a CPU or a GPU) or of an
            execution trace of a step.
        inputs: Inputs of a model: a tuple of arguments, or a dict by name.
        device: A GPU by name or id.
        loss: Function of the model's output; with it a step has a backward pass and an optimizer.
        optimizer: Function that takes the parameters and returns an optimizer.
        dtype: Floating point type that model and inputs are converted to.
        world_size: Number of GPUs.
        strategy: Parallelism: ddp, fsdp2, tp, tp=8,sequence,vocabulary, embedding,
            pp=4,dp=2, ...
        batch: New leading dimension of the inputs.
        steps: Number of steps in the trace.
        calibrate: Traces from the device that calibrate durations and host times.
        loading: Way of batches to the GPU; None: the inputs are there, and no loop is around the
            step.
        probed: Calls that `probe` of lowering/recorded_host.py recorded on this machine, whose
            processor is taken for one like that of the GPU's host.
        sharding: Placement of embedding tables for the strategy embedding, see `Plan` of
            parallel/placement.py; the search places the others.
        routing_skew: Exponent by which the experts of a mixture are chosen unevenly; 0: all alike
            (Note [Routing] of capture/values.py).

    Raises:
        OptionError: Options that make no sense, or no workload.
        CaptureError: The step can't be run without values.
        MissingDependencyError: Without torch.
    """
    if steps < 1:
        raise OptionError(f"at least one step is needed, not {steps}")
    chip = device if isinstance(device, Device) else device_named(device)
    captured = captured_step(
        source, inputs, loss=loss, optimizer=optimizer, dtype=dtype, batch=batch,
        world_size=world_size, strategy=strategy, device=chip, sharding=sharding,
        routing_skew=routing_skew,
    )  # fmt: skip
    return predict_captured(
        captured, chip, dtype=dtype, strategy=strategy, steps=steps,
        recorded=source if captured.profile is not None else None,
        calibrate=tuple(calibrate), loading=loading, probed=probed,
    )  # fmt: skip


def predict_captured(
    captured: CapturedStep,
    device: Device,
    *,
    dtype: object = None,
    strategy: str | None = None,
    steps: int = 3,
    recorded: PathLike | None = None,
    calibrate: Sequence[Trace] = (),
    loading: Loading | None = None,
    probed: RecordedCalls | None = None,
) -> Prediction:
    """Predict a captured step on a GPU; several predictions may share a capture.

    Args:
        captured: The step of each kind of rank.
        device: The GPU.
        dtype, strategy: Those of the capture, which the result repeats.
        recorded: Path of the trace of a GPU that was captured.
        steps, calibrate, loading, probed: See `predict`.
    """
    chip, traces = device, tuple(calibrate)
    lowered, alone = (
        _lowered(
            captured, chip, dtype=dtype, recorded=recorded, calibrate=traces, loading=loading,
            probed=probed, is_profiled=is_profiled,
        )
        for is_profiled in (True, False)
    )  # fmt: skip
    layout = Layout(lowered, captured.kind_of_rank, count=steps)
    trace = layout.traces(chip)
    step = step_time(trace.ranks)
    assert step is not None  # every step is marked
    predicted = step.measured_ns
    low, high = step_interval(lowered, captured.kind_of_rank, predicted)
    gpu, communication = layout.gpu_time(predicted)
    ops = [op for op in lowered[0].ops() if op.works]
    shares, unknown = _op_shares(ops)
    first = captured.captures[0]
    memory_note = known_memory(first) if first.storages is None else None
    need, fit = _memory(captured, chip)
    modules = {name: sys.modules.get(name) for name in _LIBRARIES}
    versions = {n: str(getattr(m, "__version__", "")) for n, m in modules.items() if m}
    return Prediction(
        source=captured.source,
        device=chip.name,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        world_size=len(captured.kind_of_rank),
        strategy=strategy,
        calibrated_by=tuple(trace.ranks[0].path for trace in traces),
        versions={"torchtraceap": __version__, **versions},
        step=PredictedTime(predicted, round(low), round(high)),
        unprofiled=Layout(alone, captured.kind_of_rank).step_time(),
        gpu=gpu,
        communication=communication,
        host_ns=round(lowered[0].host_ns),
        bound_by=layout.bound_by(gpu, communication),
        memory_bytes=need,
        memory_fit=fit,
        ops=shares,
        sequence=tuple(op.op.name for op in ops),
        unknown=unknown,
        notes=(
            *first.notes,
            *([] if memory_note is None else [memory_note]),
            *_notes(chip, traces, loading, layout.fetch_ns(), probed),
        ),
        trace=trace,
        trace_of_slowest=partial(layout.traces, chip, slowest=True),
    )


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """A captured step on a GPU that nobody records."""

    step: PredictedTime
    bound_by: str
    """What bounds it, as in `Prediction`."""
    memory_bytes: StepMemory | None
    memory_fit: MemoryFit | None
    unknown: tuple[str, ...]
    """Operators that no model knows, each once."""


def estimate_captured(
    captured: CapturedStep,
    device: Device,
    *,
    dtype: object = None,
    recorded: PathLike | None = None,
    calibrate: Sequence[Trace] = (),
) -> StepEstimate:
    """Estimate a captured step on a GPU: what `predict_captured` says of a step that nobody
    records, in a third of its time, since no trace is made."""
    lowered = _lowered(
        captured, device, dtype=dtype, recorded=recorded, calibrate=calibrate, is_profiled=False
    )
    layout = Layout(lowered, captured.kind_of_rank)
    step = layout.step_time()
    need, fit = _memory(captured, device)
    unknown = (op.op.name for op in lowered[0].ops() if op.works and not op.time.is_known)
    return StepEstimate(
        step,
        layout.bound_by(*layout.gpu_time(step.predicted_ns)),
        need,
        fit,
        tuple(dict.fromkeys(unknown)),
    )


def _lowered(
    captured: CapturedStep,
    device: Device,
    *,
    dtype: object,
    recorded: PathLike | None,
    calibrate: Sequence[Trace],
    loading: Loading | None = None,
    probed: RecordedCalls | None = None,
    is_profiled: bool,
) -> list[LoweredStep]:
    """Return the step of each kind of rank, lowered to the GPU.

    Raises:
        OptionError: The GPU has no units for a type.
    """
    profile = captured.profile
    ran_on = None if profile is None or profile.device is None else find_device(profile.device)
    # The machine of a recorded step is the one that is asked for if its GPU is.
    own = [load(recorded)] if recorded is not None and ran_on is device else []
    _check_types(captured.captures, device, dtype)
    found = lower_steps(
        captured.captures, device, calibrate, hosts=[*own, *calibrate], loading=loading,
        probed=probed, is_profiled=is_profiled,
    )  # fmt: skip
    if profile is None or ran_on is None:
        return found
    return [with_measured_times(found[0], profile.capture, profile.measured_ns, ran_on)]


def _memory(captured: CapturedStep, device: Device) -> tuple[StepMemory | None, MemoryFit | None]:
    """Return what the rank that needs most takes, and whether that fits."""
    needs = [need for need in map(memory_need, captured.captures) if need is not None]
    need = max(needs, key=lambda need: need.peak, default=None)
    if need is None:
        return None, None
    ranks = len(captured.kind_of_rank)
    return need, fit_memory(need.peak, need.activations, device, ranks=ranks)


def launching_operators(part: RankTrace, device: Device) -> tuple[str, ...]:
    """Return the operator that launches each kernel of a steady step recorded on a CPU, in order.

    Raises:
        MissingDependencyError: torch is absent; its rules take operators apart.
        TraceError: The step can't be lowered, as where shapes are missing or code is compiled.
    """
    lowered = lower(capture_profile(part), device)
    return tuple(
        op.op.name for op in lowered.ops() for work in op.works if work.kind is WorkKind.KERNEL
    )


def lower_steps(
    captures: Iterable[Capture],
    device: Device,
    calibrate: Sequence[Trace] = (),
    *,
    hosts: Sequence[Trace] | None = None,
    loading: Loading | None = None,
    probed: RecordedCalls | None = None,
    is_profiled: bool = True,
) -> list[LoweredStep]:
    """Return captured steps lowered to a GPU.

    Args:
        captures: The steps.
        device: The GPU.
        calibrate: Traces of the device that calibrate durations.
        hosts: Traces of the machine that calibrate host times; by default the same.
        loading: The input pipeline; None if batches are on the GPU.
        probed: Calls recorded on a processor like the machine's.
        is_profiled: True if the step is recorded, as those behind the host times were.
    """
    calibration = None
    if calibrate:
        times = KindTimes.merge([trace.kind_times() for trace in calibrate])
        calibration = fit_calibration(times, for_other_program=True)
    parts = [part for trace in (calibrate if hosts is None else hosts) for part in trace.ranks]
    is_measured = probed is not None or bool(parts)
    host = HostModel(device, None if is_profiled or is_measured else "none")
    if probed is not None:
        host = host.calibrated([probed], deviation=PROBE_DEVIATION)
    if parts:
        host = host.calibrated([recorded_calls(part) for part in parts])
    if is_measured and not is_profiled:
        host = host.without_profiler("stack" if any(map(_has_stacks, parts)) else "plain")
    found = []
    for capture in captures:
        step = lower(capture, device, host=host, calibration=calibration)
        found.append(
            step if loading is None else with_loading(step, capture, loading, host, device)
        )
    return found


def _has_stacks(part: RankTrace) -> bool:
    return bool((part.table.kind == _core.EventKind.PYTHON_FUNCTION).any())


def _check_types(captures: Iterable[Capture], device: Device, dtype: object) -> None:
    """Check that the device has units for the types of matrix products.

    Raises:
        OptionError: It has none, and torch would emulate the type at a rate that nobody measured.
    """
    if not device.id:
        return
    if str(dtype).lower() == "tf32" and "tf32" not in device.matrix:
        raise OptionError(f"{device.name} has no units for tf32; it has {', '.join(device.matrix)}")
    for op in (op for capture in captures for op in launching_ops(capture)):
        work, _ = work_of_call(op_call(op))
        label = "" if work is None or work.unit != "matrix" else work.dtype
        if label in _YOUNG_TYPES and label not in device.matrix and label not in device.vector:
            others = ", ".join(dict.fromkeys([*device.matrix, *device.vector]))
            raise OptionError(
                f"{device.name} has no units for {label} ({op.name}), which torch would emulate "
                f"much slower or refuse; it has {others}"
            )


def _op_shares(ops: Sequence[LoweredOp]) -> tuple[tuple[OpShare, ...], tuple[UnknownOp, ...]]:
    """Return operators with the same shapes, longest first, and those that no model knows."""
    groups: dict[tuple[str, tuple[Any, ...]], list[LoweredOp]] = defaultdict(list)
    assumed: dict[str, list[float]] = defaultdict(list)
    for op in ops:
        groups[op.op.name, tuple(tensor.shape for tensor in op.op.tensors)].append(op)
        if not op.time.is_known:
            assumed[op.op.name].append(op.time.estimate.ns)
    shares = []
    for (name, shapes), members in groups.items():
        estimates = [work.estimate for op in members for work in op.works]
        ns, low_ns, high_ns = (
            round(sum(getattr(each, side) for each in estimates))
            for side in ("ns", "low_ns", "high_ns")
        )
        source = members[0].time.estimate.source
        if not members[0].time.is_known:
            method = "assumed"
        elif "of this trace's" in source or "in the trace" in source:
            method = "calibrated"
        else:
            method = "table" if "measured" in source.replace("not measured", "") else "model"
        count = len(members)
        shares.append(OpShare(name, shapes, count, len(estimates), ns, low_ns, high_ns, method))
    unknown = (UnknownOp(name, len(own), round(sum(own))) for name, own in assumed.items())
    return tuple(sorted(shares, key=lambda share: -share.gpu_ns)), tuple(unknown)


def _notes(
    device: Device,
    traces: Sequence[Trace],
    loading: Loading | None,
    fetch_ns: float,
    probed: RecordedCalls | None,
) -> tuple[str, ...]:
    notes = ["The trace, its parts and host times are those of a run that is being profiled"]
    if loading is None:
        notes[0] += "; the program around the step (loading, copies from the host) is not in it."
    else:
        notes[0] += f", with the loop around the step; inputs are copied from {loading.memory} "
        notes[0] += f"memory, taking a batch holds the host for {format_ns(round(fetch_ns))}."
    if probed is not None:
        notes.append(
            "This machine's processor was probed and is taken for one like that of the GPU's host."
        )
    if not traces:
        notes.append(
            f"No trace of {device.name} corrects durations and host times; --calibrate takes one."
        )
    return tuple(notes)
