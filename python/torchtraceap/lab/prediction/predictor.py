"""Predicts a step of a model on a GPU and the trace it would write."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap._version import __version__
from torchtraceap.core.formatting import format_ns
from torchtraceap.core.results import Timeline
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Capture
from torchtraceap.lab.prediction.intervals import step_interval
from torchtraceap.lab.prediction.lowering.host import HostModel
from torchtraceap.lab.prediction.lowering.loop import Loading, with_loading
from torchtraceap.lab.prediction.lowering.lower import lower, with_measured_times
from torchtraceap.lab.prediction.lowering.recorded_host import (
    PROBE_DEVIATION,
    RecordedCalls,
    recorded_calls,
)
from torchtraceap.lab.prediction.lowering.step import LoweredOp, LoweredStep
from torchtraceap.lab.prediction.memory import MemoryNeed, known_memory, memory_need
from torchtraceap.lab.prediction.result import (
    GpuShare,
    OpShare,
    PredictedStep,
    Prediction,
    UnknownOp,
)
from torchtraceap.lab.prediction.sources import captured_step
from torchtraceap.lab.prediction.timeline import (
    Recording,
    add_slowest_ranks,
    rank_trace,
    schedule_steps,
    with_steady_loader,
)
from torchtraceap.ops.devices import Device, device_named, find_device
from torchtraceap.ops.durations import Calibration
from torchtraceap.ops.durations.calibration import KindTimes, fit_calibration
from torchtraceap.tables.steps.iterations import step_time
from torchtraceap.trace.load import load
from torchtraceap.trace.trace import Trace

if TYPE_CHECKING:
    import torch

    from torchtraceap.lab.prediction.capture.gpu_trace import CapturedProfile
    from torchtraceap.lab.prediction.parallel.placement import Plan

__all__ = ["lower_steps", "predict"]

_BUSY, _IDLE = 0.9, 0.6
"""GPU-busy shares of a step above which the GPU and below which the host decides.

Between them an error of either could change the answer.
"""
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
) -> Prediction:
    """Predict a step on a GPU, without a GPU and without running the model.

    Args:
        source: A model (`torch.nn.Module`) with `inputs`; a function that makes a workload, or its
            name, `FILE.py:FUNCTION`; or the path of a profile (of a CPU or a GPU) or of an
            execution trace of a step.
        inputs: Of a model: a tuple of arguments, or a dict by name.
        device: A GPU by name or id.
        loss: Takes the model's output; with it a step has a backward pass and an optimizer.
        optimizer: Takes the parameters and returns an optimizer.
        dtype: Floating point type that model and inputs are converted to.
        world_size: Number of GPUs.
        strategy: Parallelism: ddp, fsdp2, tp, tp=8,sequence,vocabulary, embedding,
            pp=4,dp=2, ...
        batch: New leading dimension of the inputs.
        steps: Number of steps in the trace.
        calibrate: Traces from the device that calibrate durations and host times.
        loading: How batches come to the GPU; None: the inputs are there, and no loop is around
            the step.
        sharding: Of the strategy embedding: on which ranks tables lie, by name of the table's
            module or pattern of names, as a rank, the ranks of its parts by columns, "row_wise" or
            "data_parallel"; or what `choose_sharding` answers. Others are placed by the search.
        probed: What `probe` of lowering/recorded_host.py recorded on this machine, whose processor
            is then taken for one like that of the GPU's host.

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
    )  # fmt: skip
    traces = tuple(calibrate)
    ran_on = _recorded_device(captured.profile)
    own = [load(source)] if ran_on is chip else []  # its machine is the one that is asked for
    lowered = lower_steps(
        captured.captures, chip, traces, hosts=[*own, *traces], loading=loading, probed=probed
    )
    if captured.profile is not None and ran_on is not None:
        profile = captured.profile
        lowered = [with_measured_times(lowered[0], profile.capture, profile.measured_ns, ran_on)]
    trace, fetch_ns = _synthesize(lowered, captured.kind_of_rank, chip, steps)
    step = step_time(trace.ranks)
    assert step is not None  # every step is marked
    predicted = step.measured_ns
    low, high = step_interval(lowered, captured.kind_of_rank, predicted)
    gpu = _gpu_share(trace, predicted, steps)
    ops = [op for op in lowered[0].ops() if op.works]
    return Prediction(
        source=captured.source,
        device=chip.name,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        world_size=len(captured.kind_of_rank),
        strategy=strategy,
        calibrated_by=tuple(trace.ranks[0].path for trace in traces),
        versions=_versions(),
        step=PredictedStep(predicted, round(low), round(high)),
        gpu=gpu,
        host_ns=round(lowered[0].host_ns),
        bound_by=_bound_by(gpu, predicted, fetch_ns),
        memory_bytes=_memory(captured.captures),
        ops=_ops(ops),
        sequence=tuple(op.op.name for op in ops),
        unknown=_unknown(ops),
        notes=(
            *_capture_notes(captured.captures[0]),
            *_notes(chip, traces, loading, fetch_ns, probed),
        ),
        trace=trace,
    )


def _capture_notes(capture: Capture) -> tuple[str, ...]:
    """Return the notes of a capture and what is known of its memory."""
    said = known_memory(capture) if capture.storages is None else None
    return capture.notes if said is None else (*capture.notes, said)


def _recorded_device(profile: CapturedProfile | None) -> Device | None:
    """Return the device that a trace was recorded on, if known."""
    return None if profile is None or profile.device is None else find_device(profile.device)


def lower_steps(
    captures: Iterable[Capture],
    device: Device,
    calibrate: Sequence[Trace] = (),
    *,
    hosts: Sequence[Trace] | None = None,
    loading: Loading | None = None,
    probed: RecordedCalls | None = None,
) -> list[LoweredStep]:
    """Return captured steps lowered to a GPU.

    Args:
        captures: The steps.
        device: The GPU.
        calibrate: Traces of the device that calibrate durations.
        hosts: Traces of the machine that calibrate host times; by default the same.
        loading: The input pipeline; None if batches are on the GPU.
        probed: Calls recorded on a processor like the machine's.
    """
    calibration, host = _calibration(calibrate), HostModel(device)
    if probed is not None:
        host = host.calibrated([probed], source="a probe", deviation=PROBE_DEVIATION)
    parts = [part for trace in (calibrate if hosts is None else hosts) for part in trace.ranks]
    if parts:
        host = host.calibrated([recorded_calls(part) for part in parts])
    found = []
    for capture in captures:
        step = lower(capture, device, host=host, calibration=calibration)
        found.append(
            step if loading is None else with_loading(step, capture, loading, host, device)
        )
    return found


def _calibration(traces: Sequence[Trace]) -> Calibration | None:
    if not traces:
        return None
    times = KindTimes.merge([trace.kind_times() for trace in traces])
    return fit_calibration(times, for_other_program=True)


def _synthesize(
    lowered: Sequence[LoweredStep], kind_of_rank: Sequence[int], device: Device, steps: int
) -> tuple[Trace, float]:
    """Return one rank of each kind as a trace, and the time to fetch a batch, ns."""
    # The GPU may still run the previous step's work while a batch is fetched.
    warm_up = int(any(step.loop.fetch for step in lowered))
    together, kinds = add_slowest_ranks(lowered, kind_of_rank)
    schedule = schedule_steps(with_steady_loader(together, kinds), kinds, count=steps + warm_up)
    draw, parts, fetched = _seed(lowered), [], [0.0]
    for kind, times in enumerate(schedule.ranks[: len(lowered)]):
        rank = tuple(kind_of_rank).index(kind)
        recording = Recording(
            device,
            rank,
            len(kind_of_rank),
            draw,
            warm_up=warm_up,
            metadata={"predicted_by": f"torchtraceap {__version__}"},
        )
        parts.append(rank_trace(lowered[kind], times, recording))
        if times.fetch_begin is not None and times.fetch_end is not None:
            fetched.append(float((times.fetch_end - times.fetch_begin)[warm_up:].mean()))
    return Trace(parts), max(fetched)


def _seed(lowered: Sequence[LoweredStep]) -> int:
    """Return a seed that is equal for equal steps; process, clock and others derive from it."""
    times = [work.estimate.ns for step in lowered for work in step.works()]
    return zlib.crc32(np.array([len(lowered[0].calls), *times]).tobytes())


def _gpu_share(trace: Trace, predicted_ns: int, steps: int) -> GpuShare:
    """Return the mean over ranks and steps."""
    whole: Timeline = trace.timeline(linked_only=True)  # without what earlier steps launched
    count = steps * len(trace.ranks)
    busy = min(round(whole.busy_ns / count), predicted_ns)
    return GpuShare(
        busy_ns=busy,
        compute_ns=round(whole.compute_ns / count),
        communication_ns=round(whole.communication_ns / count),
        exposed_communication_ns=round(whole.exposed_communication_ns / count),
        memcpy_ns=round(whole.memcpy_ns / count),
        exposed_memcpy_ns=round(whole.exposed_memcpy_ns / count),
        idle_ns=predicted_ns - busy,
    )


def _bound_by(gpu: GpuShare, predicted_ns: int, fetch_ns: float) -> str:
    fetched = min(fetch_ns, gpu.idle_ns)
    if gpu.exposed_communication_ns > max(gpu.compute_ns, gpu.idle_ns):
        return "communication"
    if gpu.exposed_memcpy_ns + fetched > max(gpu.compute_ns, gpu.idle_ns - fetched):
        return "data"
    busy = gpu.busy_ns / max(predicted_ns, 1)
    return "gpu" if busy >= _BUSY else "host" if busy < _IDLE else "borderline"


def _memory(captures: Sequence[Capture]) -> MemoryNeed | None:
    """Return the memory of the kind of rank that needs most."""
    found = [need for need in map(memory_need, captures) if need is not None]
    return max(found, key=lambda need: need.peak, default=None)


def _ops(ops: Sequence[LoweredOp]) -> tuple[OpShare, ...]:
    groups: dict[tuple[Any, ...], list[LoweredOp]] = {}
    for op in ops:
        shapes = tuple(tensor.shape for tensor in op.op.tensors)
        groups.setdefault((op.op.name, shapes), []).append(op)
    found = [_op_share(name, shapes, members) for (name, shapes), members in groups.items()]
    return tuple(sorted(found, key=lambda share: -share.gpu_ns))


def _op_share(name: str, shapes: tuple[Any, ...], members: Sequence[LoweredOp]) -> OpShare:
    estimates = [work.estimate for op in members for work in op.works]
    ns, low_ns, high_ns = (
        round(sum(getattr(each, side) for each in estimates))
        for side in ("ns", "low_ns", "high_ns")
    )
    method = _method(members[0])
    return OpShare(name, shapes, len(members), len(estimates), ns, low_ns, high_ns, method)


def _method(op: LoweredOp) -> str:
    if not op.time.is_known:
        return "assumed"
    source = op.time.estimate.source
    if "of this trace's" in source or "in the trace" in source:
        return "calibrated"
    return "table" if "measured" in source.replace("not measured", "") else "model"


def _unknown(ops: Sequence[LoweredOp]) -> tuple[UnknownOp, ...]:
    assumed: dict[str, list[LoweredOp]] = {}
    for op in ops:
        if not op.time.is_known:
            assumed.setdefault(op.op.name, []).append(op)
    return tuple(
        UnknownOp(name, len(members), round(sum(op.time.estimate.ns for op in members)))
        for name, members in assumed.items()
    )


def _notes(
    device: Device,
    traces: Sequence[Trace],
    loading: Loading | None,
    fetch_ns: float,
    probed: RecordedCalls | None,
) -> tuple[str, ...]:
    notes = ["Times are those of a run that is being profiled"]
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


def _versions() -> Mapping[str, str]:
    """Return the versions of libraries used by the capture."""
    loaded = ((name, sys.modules.get(name)) for name in _LIBRARIES)
    found = {name: str(getattr(module, "__version__", "")) for name, module in loaded if module}
    return {"torchtraceap": __version__, **found}
