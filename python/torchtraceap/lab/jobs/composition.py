"""Prediction of iteration times of Megatron-style jobs from measured times of other jobs.

Note [Composition]: all layers of a model are alike, and a step is made of few things: layers, the
two ends of the model, the update of the weights. A job with pipeline stages p, chunks v on each,
micro-batches m and layers l takes, with the last stage the slowest (it has the loss),

    m (l / p c + e_last) + (p - 1) / v l / p c + (m v + p - 1) hop + e_first + update

where c is the time of a layer and micro-batch, forward and backward, e that of the model's ends,
and hop what lies between two stages, whose sends and receives block in Megatron. This is the
longest path of the 1F1B schedule; interleaving makes its start and end v times shorter. `update`
is the all-reduce of the gradients and the optimizer.

c is the longer of two things: what the GPU does (products, attention, traffic, all-reduces within
and between nodes, starts of kernels) and what the host does to launch it. Small layers take as long
as their host, whatever their shape, so that a sum of both extrapolates wrongly to narrower ones.

The logarithms of the coefficients have a normal prior: what data sheets suggest, or what other
measured jobs said, made wider because another program runs elsewhere. Each shape deviates from
the terms by a factor of its own for c and e_last, as kernels are not smooth in their sizes and
hosts not in anything. The calibration finds the most probable values (Gauss and Newton) and their
covariance there; the sizes of deviations and noise are chosen by the evidence.

Note [Errors of errors]: a covariance says how sure the model is if its form is right. So parts of
the measured jobs (one hidden size, one width of tensor parallelism, one micro-batch; or a fifth of
the jobs) are left out in turn and predicted from the others, and all deviations are multiplied
so that 8 of 10 of these errors lie within 1.28 of them: one factor for shapes that were measured,
one for others.

`data/training.json` has coefficients that were fitted to published iteration times, with the range
of those jobs. It is made by `benchmarks/prediction/many_gpus.py --fit`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchtraceap.core import Array, dataclass
from torchtraceap.errors import OptionError
from torchtraceap.lab.jobs.jobs import Machine, TrainingJob
from torchtraceap.lab.jobs.terms import (
    COEFFICIENTS,
    PRIOR_DEVIATIONS,
    PRIOR_MEANS,
    Parts,
    Terms,
    step_parts,
)
from torchtraceap.ops import Device

__all__ = [
    "CalibratedJobs",
    "Coefficients",
    "Deviations",
    "PublishedJobs",
    "calibrate",
    "choose_measurements",
    "published_jobs",
]

DEVIATIONS = (0.03, 0.07, 0.15)
"""Relative deviations of a shape from which `calibrate` chooses if the GPU sets the pace."""
HOST_DEVIATIONS = (0.05, 0.15)
"""The same if the host sets the pace."""
END_DEVIATION = 2.0
"""Factor by which the output layer deviates more, because it has few kernels."""
NOISES = (0.004, 0.01, 0.03, 0.07)
"""Relative errors of a measured time and of the composition from which `calibrate` chooses."""
CARRIED = 0.2
"""Standard deviation of a coefficient's logarithm between programs and machines, judged by the
distance between those fitted to vTrain's one node and to its many nodes."""
OTHER_GPU = 0.25
"""Standard deviation of all coefficients together from one GPU to another (a guess)."""
ROUNDS = 12
"""Maximum number of Gauss-Newton iterations."""
EIGHT_OF_TEN = 1.2816
"""Standard deviations to either side that hold 80 % of a normal distribution."""
FOLDS = 5
LEAST_WIDTH = 0.8
"""The smallest factor by which intervals of unmeasured shapes are narrowed."""
FEW = 20
"""Numbers of jobs and of left-out errors below which deviations are not judged by leaving jobs
out."""
_DATA = Path(__file__).with_name("data") / "training.json"
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """A normal distribution of the coefficients of the terms."""

    mean: Array
    """Mean of the coefficients' logarithms, float64 `[n]` in the order of `terms.COEFFICIENTS`."""
    covariance: Array
    """Covariance of the logarithms, float64 `[n, n]`."""

    @classmethod
    def prior(cls) -> Coefficients:
        """Return the coefficients that data sheets suggest."""
        return cls(PRIOR_MEANS.copy(), np.diag(PRIOR_DEVIATIONS**2))

    def for_another_program(self) -> Coefficients:
        """Return the coefficients for another program on another machine."""
        wider = self.covariance + CARRIED**2 * np.eye(len(self.mean))
        return Coefficients(self.mean, wider)

    def for_another_gpu(self) -> Coefficients:
        """Return the coefficients for a GPU that comes closer to its peaks, or less close, in
        everything."""
        return Coefficients(self.mean, self.covariance + OTHER_GPU**2)


class Deviations(NamedTuple):
    """Relative standard deviations of shapes and times."""

    gpu: float
    """Deviation of a shape from the smooth terms if the GPU sets the pace."""
    host: float
    """The same if the host sets the pace."""
    noise: float
    """Deviation of a time from terms and shapes."""


class CalibratedJobs:
    """A model that predicts iteration times. Built by `calibrate`. See Note [Composition]."""

    def __init__(
        self,
        machine: Machine,
        shapes: Sequence[object],
        start: Coefficients,
        deviations: Deviations,
    ) -> None:
        self.machine = machine
        self.deviations = deviations
        self._shapes = {shape: place for place, shape in enumerate(shapes)}
        self._start = start
        count = len(COEFFICIENTS)
        self._mean: Array = np.concatenate([start.mean, np.zeros(2 * len(shapes))])
        self._covariance: Array = np.zeros((len(self._mean), len(self._mean)))
        self._covariance[:count, :count] = start.covariance
        rest = np.arange(count, len(self._mean))
        self._covariance[rest, rest] = deviations.gpu**2
        self._widths = (1.0, 1.0)
        """Deviations of measured shapes and of others; see Note [Errors of errors]."""

    @property
    def coefficients(self) -> Coefficients:
        """The coefficients given the measured jobs."""
        count = len(COEFFICIENTS)
        return Coefficients(self._mean[:count].copy(), self._covariance[:count, :count].copy())

    def predict(self, jobs: Sequence[TrainingJob]) -> tuple[Array, Array]:
        """Return iteration times and their standard deviations, float64 `[jobs]` each in ns."""
        times, relative = self._predict(jobs, Terms.of(jobs, self.machine))
        return times, times * relative

    def interval(self, jobs: Sequence[TrainingJob]) -> tuple[Array, Array, Array]:
        """Return iteration times and the ends of their 80 % intervals, float64 `[jobs]` each in
        ns."""
        times, relative = self._predict(jobs, Terms.of(jobs, self.machine))
        factor = np.exp(EIGHT_OF_TEN * relative)
        return times, times / factor, times * factor

    def host_shares(self, jobs: Sequence[TrainingJob]) -> Array:
        """Return the degree to which the host sets the pace of a layer, float64 `[jobs]` from 0 to
        1."""
        terms = Terms.of(jobs, self.machine)
        return self._parts(self._mean, self._places(jobs), terms).host_share

    def has_measured(self, job: TrainingJob) -> bool:
        """Return True if a job of the same shape was measured."""
        return job.shape in self._shapes

    def next_measurements(self, jobs: Sequence[TrainingJob], count: int) -> list[int]:
        """Return indices of the jobs whose times are the least certain, one after the other."""
        _, rows, _ = self._slopes(self._mean, self._places(jobs), Terms.of(jobs, self.machine))
        covariance = self._covariance
        chosen: list[int] = []
        for _ in range(min(count, len(jobs))):
            reach = rows @ covariance
            variance = np.einsum("ij,ij->i", reach, rows)
            variance[chosen] = -1.0
            chosen.append(int(variance.argmax()))
            row = reach[chosen[-1]]
            covariance = covariance - np.outer(row, row) / (
                variance[chosen[-1]] + self.deviations.noise**2
            )
        return chosen

    def learn(
        self,
        jobs: Sequence[TrainingJob],
        terms: Terms,
        times_ns: Array,
        near: CalibratedJobs | None = None,
    ) -> float:
        """Learn from measured times and return the log evidence of the deviations; `near` is a
        model of the same jobs or more whose values serve as first guess."""
        places = self._places(jobs)
        if near is not None:
            count = len(COEFFICIENTS)
            self._mean[:count] = near._mean[:count]
            for shape, place in self._shapes.items():
                ours, theirs = count + 2 * place, count + 2 * near._shapes[shape]
                self._mean[ours : ours + 2] = near._mean[theirs : theirs + 2]
        count, noise = len(COEFFICIENTS), self.deviations.noise
        inverse = np.linalg.inv(self._start.covariance)
        known = np.log(times_ns)
        mean = self._mean
        for _ in range(ROUNDS):
            parts, rows, spread = self._slopes(mean, places, terms)
            precision: Array = np.zeros((len(mean), len(mean)))
            precision[:count, :count] = inverse
            rest = np.arange(count, len(mean))
            precision[rest, rest] = 1 / spread**2
            error = known - np.log(parts.total)
            curve = precision + rows.T @ rows / noise**2
            before = mean - np.concatenate([self._start.mean, np.zeros(len(rest))])
            step = np.linalg.solve(curve, rows.T @ error / noise**2 - precision @ before)
            mean = mean + np.clip(step, -1.0, 1.0)
            if np.abs(step).max() < 1e-4:
                break
        self._mean = mean
        self._covariance = np.linalg.inv(curve)
        before = mean - np.concatenate([self._start.mean, np.zeros(len(rest))])
        error = known - np.log(self._slopes(mean, places, terms)[0].total)
        return float(
            -0.5 * ((error / noise) ** 2).sum()
            - 0.5 * before @ precision @ before
            - 0.5 * np.linalg.slogdet(curve)[1]
            + 0.5 * np.linalg.slogdet(precision)[1]
            - len(error) * np.log(noise)
        )

    def _places(self, jobs: Sequence[TrainingJob]) -> Rows:
        """Return the number of each job's shape; -1 for one that was not measured."""
        return np.array([self._shapes.get(job.shape, -1) for job in jobs], dtype=np.int64)

    def _parts(self, mean: Array, places: Rows, terms: Terms) -> Parts:
        count = len(COEFFICIENTS)
        factors = np.append(np.exp(mean[count:]), [1.0, 1.0]).reshape(-1, 2)
        return step_parts(mean[:count], terms, factors[places, 0], factors[places, 1])

    def _slopes(self, mean: Array, places: Rows, terms: Terms) -> tuple[Parts, Array, Array]:
        """Return parts; float64 `[jobs, unknowns]`: change of a time's logarithm with each unknown;
        and float64 `[deviations]`: how far each deviation of a shape is taken to reach."""
        count = len(COEFFICIENTS)
        parts = self._parts(mean, places, terms)
        rows = np.zeros((len(places), len(mean)))
        rows[:, :count] = parts.slopes
        seen = np.flatnonzero(places >= 0)
        rows[seen, count + 2 * places[seen]] = (parts.layers / parts.total)[seen]
        rows[seen, count + 2 * places[seen] + 1] = (parts.ends / parts.total)[seen]
        spread = np.full((len(self._shapes), 2), END_DEVIATION * self.deviations.gpu)
        spread[places[seen], 0] = self._layer_deviation(parts)[seen]
        return parts, rows, spread.ravel()

    def _layer_deviation(self, parts: Parts) -> Array:
        """Return the deviation of a shape's layers, by what sets the pace."""
        host = parts.host_share
        return np.sqrt((host * self.deviations.host) ** 2 + ((1 - host) * self.deviations.gpu) ** 2)

    def _predict(self, jobs: Sequence[TrainingJob], terms: Terms) -> tuple[Array, Array]:
        """Return times in ns and relative deviations."""
        places = self._places(jobs)
        parts, rows, _ = self._slopes(self._mean, places, terms)
        variance = np.einsum("ij,jk,ik->i", rows, self._covariance, rows)
        own = (parts.layers / parts.total * self._layer_deviation(parts)) ** 2
        own += (parts.ends / parts.total * END_DEVIATION * self.deviations.gpu) ** 2
        variance = (
            np.maximum(variance, 0.0) + self.deviations.noise**2 + np.where(places < 0, own, 0.0)
        )
        widths = np.where(places < 0, self._widths[1], self._widths[0])
        return parts.total, widths * np.sqrt(variance)

    def judge(self, jobs: Sequence[TrainingJob], times_ns: Array, terms: Terms) -> None:
        """Set the width of intervals from left-out jobs; see Note [Errors of errors]."""
        if len(jobs) < FEW:
            return
        every = np.arange(len(jobs))
        ways = []
        for name in ("hidden", "tensor", "micro_batch"):
            values = np.array([getattr(job, name) for job in jobs])
            groups = [every[values == value] for value in np.unique(values)]
            ways.append([group for group in groups if len(every) - len(group) >= FEW // 2])
        ways.append([every[every % FOLDS == fold] for fold in range(FOLDS)])
        seen, unseen = [1.0], list[float]()
        for folds in ways:
            inside, outside = [np.empty(0)], [np.empty(0)]
            if not folds:  # a size that never changes: nothing tells what another would do
                unseen.append(1.0)
            for test in folds:
                # Errors in deviations of jobs that were not learned from, and whose shape is new.
                train = np.setdiff1d(every, test)
                known, left = ([jobs[i] for i in rows] for rows in (train, test))
                part = _unfitted_model(self.machine, known, self._start, self.deviations)
                part.learn(known, terms.take(train), times_ns[train], self)
                found, relative = part._predict(left, terms.take(test))
                score = np.abs(np.log(found / times_ns[test])) / relative
                new = part._places(left) < 0
                inside.append(score[~new])
                outside.append(score[new])
            # The factor with which 8 of 10 scores lie in the interval; nothing of few scores.
            for scores, least, widths in ((inside, 1.0, seen), (outside, LEAST_WIDTH, unseen)):
                together = np.concatenate(scores)
                if len(together) >= FEW:
                    widths.append(max(least, float(np.quantile(together, 0.8)) / EIGHT_OF_TEN))
        self._widths = (max(seen), max(unseen, default=1.0))


def _unfitted_model(
    machine: Machine, jobs: Sequence[TrainingJob], start: Coefficients, deviations: Deviations
) -> CalibratedJobs:
    shapes = list(dict.fromkeys(job.shape for job in jobs))
    return CalibratedJobs(machine, shapes, start, deviations)


def calibrate(
    machine: Machine,
    jobs: Sequence[TrainingJob],
    times_ns: npt.ArrayLike,
    *,
    start: Coefficients | None = None,
) -> CalibratedJobs:
    """Fit a model of a machine to jobs that were measured on it.

    How far shapes deviate from the smooth terms, and times from both, is chosen by the evidence.

    Args:
        machine: The machine on which the jobs ran.
        jobs: At least one.
        times_ns: Their iteration times.
        start: Coefficients as known beforehand; by default those that data sheets suggest.

    Raises:
        OptionError: No job, or not a positive time for each.
    """
    times = np.asarray(times_ns, dtype=np.float64)
    if not len(jobs) or times.shape != (len(jobs),) or not (times > 0).all():
        raise OptionError("calibration needs at least one job and a positive time for each")
    start = start or Coefficients.prior()
    terms = Terms.of(jobs, machine)
    models: list[tuple[CalibratedJobs, float]] = []
    for values in product(DEVIATIONS, HOST_DEVIATIONS, NOISES):
        model = _unfitted_model(machine, jobs, start, Deviations(*values))
        near = models[-1][0] if models else None  # its answer is a good first guess
        models.append((model, model.learn(jobs, terms, times, near)))
    best = max(models, key=lambda found: found[1])[0]
    best.judge(jobs, times, terms)
    return best


def choose_measurements(machine: Machine, jobs: Sequence[TrainingJob], count: int) -> list[int]:
    """Choose the jobs to run, as indices, so that the times of all of them can be predicted well.

    Only shapes count, no measured time does.
    """
    deviations = Deviations(0.15, 0.15, 0.01)
    model = _unfitted_model(machine, jobs, Coefficients.prior(), deviations)
    return model.next_measurements(jobs, count)


# ------------------------------------------------------------------------- published jobs


@dataclass(frozen=True, slots=True)
class PublishedJobs:
    """Coefficients of published jobs, and a description of these jobs."""

    coefficients: Coefficients
    deviations: Deviations
    ranges: Mapping[str, tuple[float, float]]
    """Smallest and largest size of the jobs: hidden, sequence, tensor, micro_batch, gpus, ..."""
    devices: tuple[str, ...]
    """Ids of the GPUs that they ran on."""
    source: str
    """The source in words."""

    def model_for(self, machine: Machine, device: Device) -> CalibratedJobs:
        """Return a model that is carried over to another cluster, and to another GPU if it is
        one."""
        start = self.coefficients.for_another_program()
        if device.id not in self.devices:
            start = start.for_another_gpu()
        return CalibratedJobs(machine, [], start, self.deviations)

    def unmeasured_properties(self, job: TrainingJob, device: Device) -> tuple[str, ...]:
        """Return the properties in which a job lies outside of the measured ones."""
        found = [] if device.id in self.devices else [f"{device.name} was not measured"]
        for name, (low, high) in self.ranges.items():
            value = getattr(job, name)
            if not low <= value <= high:
                name = name.replace("_", "-")
                found.append(f"{name} {value:,} (measured: {low:,.0f} to {high:,.0f})")
        if job.zero:
            found.append(f"ZeRO stage {job.zero}")
        if job.flash_attention:
            found.append("flash attention")
        if job.gated or job.key_value_heads not in (0, job.attention_heads):
            found.append("gated feed-forward networks and shared keys and values")
        return tuple(found)


@cache
def published_jobs() -> PublishedJobs:
    """Load the coefficients that are shipped; the file is read once per process."""
    told: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    if tuple(told["coefficients"]) != COEFFICIENTS:
        raise RuntimeError(f"{_DATA.name} was fitted to other terms; fit it anew")
    return PublishedJobs(
        Coefficients(
            np.log(np.array(list(told["coefficients"].values()), dtype=np.float64)),
            np.array(told["covariance"], dtype=np.float64),
        ),
        Deviations(**told["deviations"]),
        {name: (float(low), float(high)) for name, (low, high) in told["ranges"].items()},
        tuple(told["devices"]),
        told["source"],
    )
