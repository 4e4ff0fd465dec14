"""Estimates what a lowered step takes on all ranks, and what bounds it.

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

Note [Waits]: a collective runs on the GPU from when a rank launches it, and transfers once all
ranks have come. Until then the GPU of the rank is as idle as without the collective. Waits that
would be gone if hosts took no time are the hosts'; what is left is the work of other GPUs.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import exp, sqrt
from statistics import NormalDist

import numpy as np

from torchtraceap._version import __version__
from torchtraceap.core import Array, PredictedTime, Timeline, union
from torchtraceap.lab.prediction.lowering.host import TAIL
from torchtraceap.lab.prediction.lowering.step import LoweredStep, WorkKind
from torchtraceap.lab.prediction.result import Communication
from torchtraceap.lab.prediction.timeline import (
    RankTimes,
    Recording,
    StepSchedule,
    rank_trace,
    with_steady_loader,
)
from torchtraceap.ops import Device
from torchtraceap.trace import Trace

__all__ = ["Layout", "add_slowest_ranks", "expected_maximum", "step_interval"]

_BUSY, _IDLE = 0.9, 0.6
"""GPU-busy shares of a step above which the GPU and below which the host decides.

Between them an error of either could change the answer.
"""
_WARM_UP = 1
"""Steps before those that count, from an idle GPU on."""


class Layout:
    """Steps of all ranks laid out one after another, once the GPU has work of an earlier step.

    Args:
        steps: One of each kind of rank.
        kind_of_rank: Kind of each rank.
        count: Number of steps that count.
    """

    def __init__(
        self, steps: Sequence[LoweredStep], kind_of_rank: Sequence[int], *, count: int = 2
    ) -> None:
        self._usual, self._kind_of_rank = tuple(steps), tuple(kind_of_rank)
        together, kinds = add_slowest_ranks(steps, kind_of_rank)
        self._steps = with_steady_loader(together, kinds)
        self._schedule = StepSchedule(self._steps, kinds, count=count + _WARM_UP)
        self._times = self._schedule.replay()

    def step_time(self) -> PredictedTime:
        """Return the time of a step of all ranks with its interval."""
        predicted = max(rank.step_length_ns() for rank in self._times)
        low, high = step_interval(self._usual, self._kind_of_rank, predicted)
        return PredictedTime(predicted, round(low), round(high))

    def gpu_time(self, step_ns: int) -> tuple[Timeline, Communication]:
        """Return the GPU time of a step by the definitions of `summary`, the mean over steps and
        usual ranks.

        Args:
            step_ns: Time of a step.
        """
        return self._gpu_time(self._times, step_ns)

    def fetch_ns(self) -> float:
        """Return the time that the host takes for a batch, ns; 0 without a loader."""
        lengths = [
            (rank.fetch_end - rank.fetch_begin)[_WARM_UP:].mean()
            for rank in self._times[: len(self._usual)]
            if rank.fetch_begin is not None and rank.fetch_end is not None
        ]
        return float(max(lengths, default=0.0))

    def bound_by(self, gpu: Timeline, communication: Communication) -> str:
        """Say what bounds a step: gpu, host, borderline, communication or data; see Note
        [Waits]."""
        wait_ns = communication.exposed_wait_ns
        idle_ns = gpu.idle_ns + wait_ns
        fetched = min(self.fetch_ns(), idle_ns)
        if communication.exposed_transfer_ns > max(gpu.compute_ns, idle_ns):
            return "communication"
        if gpu.exposed_memcpy_ns + fetched > max(gpu.compute_ns, idle_ns - fetched):
            return "data"
        busy_ns = gpu.busy_ns - wait_ns
        if wait_ns:
            _, instant = self._gpu_time(self._schedule.replay(host_factor=0.0), gpu.span_ns)
            busy_ns += min(instant.exposed_wait_ns, wait_ns)
        share = busy_ns / max(gpu.span_ns, 1)
        return "gpu" if share >= _BUSY else "host" if share < _IDLE else "borderline"

    def traces(self, device: Device, *, slowest: bool = False) -> Trace:
        """Return the steps that count as a profiler would have recorded them.

        Args:
            device: The GPU.
            slowest: Return the slowest rank of each kind, which the others wait for, instead of a
                usual one.
        """
        # Process, clock and others derive from a seed that is equal for equal steps.
        estimates = [work.estimate.ns for step in self._usual for work in step.works()]
        seed = zlib.crc32(np.array([len(self._usual[0].calls), *estimates]).tobytes())
        metadata = {"predicted_by": f"torchtraceap {__version__}"}
        beside = {step.slowest_of: kind for kind, step in enumerate(self._steps)} if slowest else {}
        parts = []
        for kind in range(len(self._usual)):
            rank, world = self._kind_of_rank.index(kind), len(self._kind_of_rank)
            recording = Recording(device, rank, world, seed, warm_up=_WARM_UP, metadata=metadata)
            own = beside.get(kind, kind)
            parts.append(rank_trace(self._steps[own], self._times[own], recording))
        return Trace(parts)

    def _gpu_time(self, times: Sequence[RankTimes], step_ns: int) -> tuple[Timeline, Communication]:
        ranks = [_gpu_sums(step, own) for step, own in zip(self._usual, times, strict=False)]
        steps = len(self._times[0].step_begin) - _WARM_UP
        mean = np.rint(np.sum(ranks, axis=0) / (steps * len(ranks))).astype(np.int64)
        busy, compute, met, exposed, transfer, exposed_transfer, copied, exposed_copies = (
            mean.tolist()
        )
        busy = min(busy, step_ns)
        timeline = Timeline(
            span_ns=step_ns,
            busy_ns=busy,
            compute_ns=compute,
            communication_ns=met,
            exposed_communication_ns=exposed,
            memcpy_ns=copied,
            exposed_memcpy_ns=exposed_copies,
            idle_ns=step_ns - busy,
        )
        waits = met - transfer, exposed - exposed_transfer
        return timeline, Communication(transfer, waits[0], exposed_transfer, waits[1])


def _gpu_sums(step: LoweredStep, times: RankTimes) -> Array:
    """Return what a rank's GPU does in the steps that count, int64 `[8]`, ns: busy; compute;
    communication and its exposed part; transfers and their exposed part; copies and their exposed
    part."""
    works = [*step.works()]
    meets = np.array([work.collective is not None for work in works], dtype=bool)
    copies = np.array([work.kind is WorkKind.MEMCPY for work in works], dtype=bool)

    def intervals(begin: Array, chosen: Array) -> Array:
        parts = begin[_WARM_UP:, chosen].ravel(), times.work_end[_WARM_UP:, chosen].ravel()
        return union([np.stack(parts, axis=1)])

    def length(*sets: Array) -> int:
        return int(np.diff(union(sets)).sum())

    compute = intervals(times.work_begin, ~meets & ~copies)
    communication = intervals(times.work_begin, meets)
    transfer = intervals(times.transfer_begin, meets)
    copied = intervals(times.work_begin, copies)
    busy, own = length(compute, communication, copied), length(compute)
    both = length(compute, communication)
    return np.array(
        [
            busy, own, length(communication), both - own,
            length(transfer), length(compute, transfer) - own,
            length(copied), busy - both,
        ]
    )  # fmt: skip


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
