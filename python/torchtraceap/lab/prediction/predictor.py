"""Predicts a step of a model on a GPU and the trace it would write.

Note [Skew]: each kind with several ranks gets a second one with the times of the slowest of them,
and the two meet at every collective. A step then takes as long as the slowest rank, and collectives
on a usual rank last from its arrival on. The expected slowdown of the slowest of n ranks follows
from the variation of a rank's steps in public traces, as if ranks varied within a step as a rank
does between steps: persistently slower ranks, and different inputs, are not included.

Note [What errs together]: the errors of a duration model are partly common to all calls of one
operator and partly specific to each shape, with half of the variance each. Intervals of single
kernels reflect the hardest cases of a family, and sums of many kernels err less. On the public
traces (20 groups, docs/results/prediction.md) 92 % of the sums lie within the sampled range if
deviations are `_INTERVAL_SHARE` of the intervals and all GPU work shares a factor with
`_DEVICE_DEVIATION`, the smallest values for which nine in ten do: both constants were chosen on
these traces. Host times have a factor of the machine.
"""

from __future__ import annotations

import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from math import exp, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap._version import __version__
from torchtraceap.core import Array, PathLike, PredictedTime, Timeline, format_ns
from torchtraceap.errors import OptionError
from torchtraceap.lab.memory import fit_memory
from torchtraceap.lab.prediction.capture.calls import Capture
from torchtraceap.lab.prediction.capture.profile import capture_profile
from torchtraceap.lab.prediction.lowering.durations import op_call
from torchtraceap.lab.prediction.lowering.host import TAIL, HostModel
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
    UnknownOp,
    known_memory,
    memory_need,
)
from torchtraceap.lab.prediction.sources import CapturedStep, captured_step
from torchtraceap.lab.prediction.timeline import (
    Recording,
    StepSchedule,
    rank_trace,
    schedule_steps,
    with_steady_loader,
)
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
    "add_slowest_ranks",
    "expected_maximum",
    "launching_operators",
    "lower_steps",
    "predict",
    "predict_captured",
    "step_interval",
]


_BUSY, _IDLE = 0.9, 0.6
"""GPU-busy shares of a step above which the GPU and below which the host decides.

Between them an error of either could change the answer.
"""
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
    profile, traces, chip = captured.profile, tuple(calibrate), device
    recorded_on = profile.device if profile is not None else None
    ran_on = None if recorded_on is None else find_device(recorded_on)
    # The machine of a recorded step is the one that is asked for if its GPU is.
    own = [load(recorded)] if recorded is not None and ran_on is chip else []
    _check_types(captured.captures, chip, dtype)

    def lowered_steps(is_profiled: bool) -> list[LoweredStep]:
        found = lower_steps(
            captured.captures, chip, traces, hosts=[*own, *traces], loading=loading,
            probed=probed, is_profiled=is_profiled,
        )  # fmt: skip
        if profile is None or ran_on is None:
            return found
        return [with_measured_times(found[0], profile.capture, profile.measured_ns, ran_on)]

    lowered = lowered_steps(is_profiled=True)
    trace, fetch_ns = _synthesize(lowered, captured.kind_of_rank, chip, steps)
    step = step_time(trace.ranks)
    assert step is not None  # every step is marked
    predicted = step.measured_ns
    low, high = step_interval(lowered, captured.kind_of_rank, predicted)
    gpu, bound_by = _gpu_share(trace, predicted, fetch_ns, steps)
    ops = [op for op in lowered[0].ops() if op.works]
    shares, unknown = _op_shares(ops)
    first = captured.captures[0]
    memory_note = known_memory(first) if first.storages is None else None
    needs = [need for need in map(memory_need, captured.captures) if need is not None]
    need = max(needs, key=lambda need: need.peak, default=None)
    ranks = len(captured.kind_of_rank)
    fit = None if need is None else fit_memory(need.peak, need.activations, chip, ranks=ranks)
    modules = {name: sys.modules.get(name) for name in _LIBRARIES}
    versions = {n: str(getattr(m, "__version__", "")) for n, m in modules.items() if m}
    return Prediction(
        source=captured.source,
        device=chip.name,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        world_size=ranks,
        strategy=strategy,
        calibrated_by=tuple(trace.ranks[0].path for trace in traces),
        versions={"torchtraceap": __version__, **versions},
        step=PredictedTime(predicted, round(low), round(high)),
        unprofiled=_step_time(lowered_steps(is_profiled=False), captured.kind_of_rank),
        gpu=gpu,
        host_ns=round(lowered[0].host_ns),
        bound_by=bound_by,
        memory_bytes=need,
        memory_fit=fit,
        ops=shares,
        sequence=tuple(op.op.name for op in ops),
        unknown=unknown,
        notes=(
            *first.notes,
            *([] if memory_note is None else [memory_note]),
            *_notes(chip, traces, loading, fetch_ns, probed),
        ),
        trace=trace,
    )


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


def _step_time(steps: Sequence[LoweredStep], kind_of_rank: Sequence[int]) -> PredictedTime:
    """Return the time of a step of all ranks with its interval."""
    together, kinds = add_slowest_ranks(steps, kind_of_rank)
    times = schedule_steps(with_steady_loader(together, kinds), kinds)
    predicted = max(rank.step_length_ns() for rank in times)
    low, high = step_interval(steps, kind_of_rank, predicted)
    return PredictedTime(predicted, round(low), round(high))


def _synthesize(
    lowered: Sequence[LoweredStep], kind_of_rank: Sequence[int], device: Device, steps: int
) -> tuple[Trace, float]:
    """Return one rank of each kind as a trace, and the time to fetch a batch, ns."""
    # The GPU may still run the previous step's work while a batch is fetched.
    warm_up = int(any(step.loop.fetch for step in lowered))
    together, kinds = add_slowest_ranks(lowered, kind_of_rank)
    schedule = schedule_steps(with_steady_loader(together, kinds), kinds, count=steps + warm_up)
    # Process, clock and others derive from a seed that is equal for equal steps.
    estimates = [work.estimate.ns for step in lowered for work in step.works()]
    seed = zlib.crc32(np.array([len(lowered[0].calls), *estimates]).tobytes())
    metadata = {"predicted_by": f"torchtraceap {__version__}"}
    parts, fetched = [], [0.0]
    for kind, times in enumerate(schedule[: len(lowered)]):
        rank, world = tuple(kind_of_rank).index(kind), len(kind_of_rank)
        recording = Recording(device, rank, world, seed, warm_up=warm_up, metadata=metadata)
        parts.append(rank_trace(lowered[kind], times, recording))
        if times.fetch_begin is not None and times.fetch_end is not None:
            fetched.append(float((times.fetch_end - times.fetch_begin)[warm_up:].mean()))
    return Trace(parts), max(fetched)


def _gpu_share(
    trace: Trace, predicted_ns: int, fetch_ns: float, steps: int
) -> tuple[Timeline, str]:
    """Return the GPU time of a step, the mean over ranks and steps, and what bounds the step."""
    whole: Timeline = trace.timeline(linked_only=True)  # without what earlier steps launched
    count = steps * len(trace.ranks)
    busy = min(round(whole.busy_ns / count), predicted_ns)
    gpu = Timeline(
        span_ns=predicted_ns,
        busy_ns=busy,
        compute_ns=round(whole.compute_ns / count),
        communication_ns=round(whole.communication_ns / count),
        exposed_communication_ns=round(whole.exposed_communication_ns / count),
        memcpy_ns=round(whole.memcpy_ns / count),
        exposed_memcpy_ns=round(whole.exposed_memcpy_ns / count),
        idle_ns=predicted_ns - busy,
    )
    fetched = min(fetch_ns, gpu.idle_ns)
    if gpu.exposed_communication_ns > max(gpu.compute_ns, gpu.idle_ns):
        return gpu, "communication"
    if gpu.exposed_memcpy_ns + fetched > max(gpu.compute_ns, gpu.idle_ns - fetched):
        return gpu, "data"
    share = busy / max(predicted_ns, 1)
    return gpu, "gpu" if share >= _BUSY else "host" if share < _IDLE else "borderline"


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


# Steps of seven public traces (A100, V100, H100, MI300X; benchmarks/prediction/step_noise.py) over
# the median of their trace: host times without waits, GPU times without collectives and copies.
_HOST = (
    0.914, 0.96, 0.961, 0.966, 0.966, 0.981, 0.985, 0.988, 0.989, 0.989, 0.997, 0.997, 0.998, 1.0,
    1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.002, 1.013, 1.015, 1.019, 1.021, 1.028, 1.031, 1.036, 1.042,
    1.051, 1.08, 1.116, 1.247,
)  # fmt: skip
_GPU = (
    0.961, 0.987, 0.988, 0.995, 0.996, 0.997, 0.997, 0.998, 0.999, 0.999, 0.999, 1.0, 1.0, 1.0,
    1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.001, 1.002, 1.005, 1.006, 1.007,
    1.007, 1.018, 1.026,
)  # fmt: skip
_TAIL = 1.2816
"""Standard deviations to either side that hold 80 % of a normal distribution."""
_QUANTILES = 0.05, 0.95
"""Quantiles of the interval."""
_DRAWS = 60
_DEVICE_DEVIATION = 0.15
"""Deviation of the logarithm of all GPU time; a trace of another model doesn't reduce it."""
_INTERVAL_SHARE = 0.4


def expected_maximum(ratios: Sequence[float], count: int) -> float:
    """Return the mean of the largest of `count` draws from these values; 1 for none."""
    if count < 1:
        return 1.0
    shares = np.arange(len(ratios) + 1) / len(ratios)
    return float(np.diff(shares**count) @ np.sort(ratios))


def add_slowest_ranks(
    steps: Sequence[LoweredStep], kind_of_rank: Sequence[int]
) -> tuple[list[LoweredStep], tuple[int, ...]]:
    """Return steps followed by those of the slowest rank of each kind, and the kind of each rank.

    Unchanged where the slowest of a kind would meet others than the usual one does: where ranks
    never meet, in pipelines whose stages have not as many ranks, in groups without two of a kind.
    """
    usual = list(steps), tuple(kind_of_rank)
    ranks = [usual[1].count(kind) for kind in range(len(steps))]
    met = [[each for work in step.works() for each in work.collectives] for step in steps]
    if len({*ranks}) > 1 and any(each.peer is not None for own in met for each in own):
        return usual
    several = [kind for kind, count in enumerate(ranks) if count > 1]
    slowest = {kind: len(steps) + place for place, kind in enumerate(several)}
    first = {kind: usual[1].index(kind) for kind in several}
    kinds = tuple(
        kind if rank == first.get(kind, rank) else slowest[kind]
        for rank, kind in enumerate(kind_of_rank)
    )
    met += [met[kind] for kind in several]
    for kind, own in enumerate(met):
        groups = ({kinds[rank] for rank in each.group} for each in own if each.peer is None)
        if not own or not all(kind in group for group in groups):
            return usual
    if not several:
        return usual
    found = usual[0]
    for kind in several:
        factors = expected_maximum(_HOST, ranks[kind]), expected_maximum(_GPU, ranks[kind])
        found.append(replace(steps[kind], slowdown=factors, slowest_of=kind))
    return found, kinds


def step_interval(
    steps: Sequence[LoweredStep], kind_of_rank: Sequence[int], predicted_ns: float
) -> tuple[float, float]:
    """Return the 90 % interval of a step, ns, which contains the predicted time.

    The step is replayed with sampled durations; for `steps` and `kind_of_rank` see
    `schedule_steps`.
    """
    rng = np.random.default_rng(0)
    low, high = steps[0].host_range
    steps, kind_of_rank = add_slowest_ranks(steps, kind_of_rank)
    numbers: dict[Hashable, int] = {}
    works = [_WorkTimes(step, numbers) for step in steps]
    schedule = StepSchedule(steps, kind_of_rank, count=2)
    # Scores of factors that all work shares are stratified: these matter most, and few independent
    # draws would move the interval's ends.
    device_scores, host_scores = (
        [NormalDist().inv_cdf((each + 0.5) / _DRAWS) for each in rng.permutation(_DRAWS).tolist()]
        for _ in range(2)
    )
    found = []
    for device_score, host_score in zip(device_scores, host_scores, strict=True):
        device = exp(_DEVICE_DEVIATION * device_score)
        scores = rng.standard_normal(len(numbers))
        gpu_ns = [each.draw(device, scores) for each in works]
        at = host_score / TAIL
        host = (1 / low) ** at if at < 0 else high**at
        times = schedule.replay(gpu_ns, host)
        found.append(max(rank.step_length_ns() for rank in times))
    least, most = np.quantile(found, _QUANTILES).tolist()
    return min(least, predicted_ns), max(most, predicted_ns)


class _WorkTimes:
    """Estimated times of all GPU work of a step and their deviations.

    Args:
        step: A step of a rank.
        numbers: Number of the score of each operator and each shape; gains those of the step.
    """

    def __init__(self, step: LoweredStep, numbers: dict[Hashable, int]) -> None:
        works = [(op.op, work) for op in step.ops() for work in op.works]
        self.ns = np.array([work.estimate.ns for _, work in works])
        names = [(op.name, work.kind) for op, work in works]
        kinds = [(op.name, *(tensor.shape for tensor in op.tensors)) for op, _ in works]
        self._scores = np.array(
            [[numbers.setdefault(key, len(numbers)) for key in keys] for keys in (names, kinds)],
            dtype=np.int64,
        )
        """Scores of its operator and of its shape, int64 `[2, works]`."""
        estimates = [work.estimate for _, work in works]
        width = [max(each.high_ns, 1.0) / max(each.low_ns, 1.0) for each in estimates]
        self._deviation = _INTERVAL_SHARE * np.log(np.array(width)) / (2 * _TAIL)

    def draw(self, device: float, scores: Array) -> Array:
        """Return times, int64 `[works]`, ns, by the factor of all work and the scores, float64
        `[numbers]`."""
        factors = np.exp(self._deviation * sqrt(0.5) * scores[self._scores].sum(axis=0))
        found: Array = np.round(device * self.ns * factors).astype(np.int64)
        return found
