"""Iteration times of Megatron-style jobs that nobody ran, from a few that somebody did.

Note [Composition]: all layers of a model are alike, and a step is made of few things: layers, the
two ends of the model, the update of the weights. A job with pipeline stages p, micro-batches m
and layers l takes, with the last stage the slowest (it has the loss),

    m (l / p c + e_last) + (p - 1) (l / p c + hop) + e_first + update

where c is the time of a layer and micro-batch, forward and backward, e that of the model's ends,
and hop what lies between two stages. This is the longest path of the 1F1B schedule; `update` is the
all-reduce of the gradients and the optimizer. Each part is a sum of terms with a physical meaning
(host work, matrix products, memory traffic, all-reduces), whose coefficients have a prior, and of
a deviation of its own for each (hidden size, tensor parallelism, micro-batch, sequence): kernels
are not smooth functions of shapes. All of it is linear, so that the calibration is one Bayesian
regression on relative errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from torchtraceap.aliases import Array
from torchtraceap.devices import Device
from torchtraceap.durations.collectives import estimate_collective
from torchtraceap.durations.estimate import UnknownDurationError, the_device
from torchtraceap.errors import OptionError
from torchtraceap.records import dataclass

__all__ = ["CalibratedJobs", "Machine", "TrainingJob", "calibrate", "choose_measurements"]

BYTES = 2
"""Of a half-precision number."""
ADAM_BYTES = 16
"""Read and written for a parameter: weight, gradient, moments and master copy."""
LAYER_BYTES = 34 * 3
"""Activation traffic of a layer per token and hidden unit: 34 bytes are kept (Korthikanti et al.,
2022), written once, read twice."""
LOSS_BYTES = 16
"""Traffic per logit: half-precision logits, single-precision softmax, their gradient."""
DEVIATIONS = (0.03, 0.1, 0.2, 0.4)
"""Relative deviations of a shape from the smooth terms that `calibrate` chooses from."""
NOISE = 0.01
"""Relative error of a measured iteration time and of the composition itself."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A transformer, as Megatron runs it."""

    global_batch: int
    micro_batch: int
    hidden: int
    layers: int
    sequence: int
    tensor: int
    """Tensor-parallel ranks."""
    data: int
    """Replicas."""
    pipeline: int
    """Stages."""
    vocabulary: int = 51_200

    def __post_init__(self) -> None:
        if min(getattr(self, name) for name in self.__slots__) < 1:
            raise OptionError(f"{self}: every size must be 1 or more")
        if self.global_batch % (self.micro_batch * self.data) or self.layers % self.pipeline:
            raise OptionError(f"{self}: batches or layers can't be divided evenly")

    @property
    def gpus(self) -> int:
        return self.tensor * self.data * self.pipeline

    @property
    def microbatches(self) -> int:
        """Of each replica in a step."""
        return self.global_batch // (self.micro_batch * self.data)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """What the kernels of a layer depend on."""
        return self.hidden, self.tensor, self.micro_batch, self.sequence


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU and how it talks to its neighbours."""

    flops: float
    """Peak of half-precision matrix products, per second."""
    bandwidth: float
    """Of its memory, bytes per second."""
    all_reduce_ns: Callable[[float, int], float]
    """By bytes and ranks."""

    @classmethod
    def of(cls, device: str | Device) -> Machine:
        """From the device database and the measured tables of collectives, in one node.

        Raises:
            UnknownDurationError: The device is unknown.
        """
        known = the_device(device)
        return cls(known.matrix["fp16"], known.bandwidth, partial(_measured_all_reduce, known.id))


@cache
def _measured_all_reduce(device: str, size: float, ranks: int) -> float:
    """Sizes beyond the tables: small ones take what the smallest takes, large ones in parts.

    Raises:
        UnknownDurationError: No table for so many ranks, or for any size.
    """
    for factor in (4.0**n for n in (*range(16), *range(-1, -16, -1))):
        try:
            estimate = estimate_collective("all_reduce", size / factor, ranks, device)
        except UnknownDurationError as error:
            last = error
            continue
        return float(estimate.ns * max(factor, 1.0))
    raise last


# A prior by term: mean and standard deviation of its coefficient. 1 is the machine's peak; host
# work is in ms.
LAYER_PRIOR = ((2.0, 2.0), (2.0, 1.0), (1.0, 1.0), (1.0, 0.5))
ENDS_PRIOR = ((1.0, 1.0), (2.0, 1.0), (2.0, 2.0))
FIRST_PRIOR = ((0.5, 0.5),)
HOP_PRIOR = ((0.1, 0.2), (30.0, 50.0))
UPDATE_PRIOR = ((1.0, 0.5), (1.0, 0.5))
MS = 1e6


def _layer_terms(job: TrainingJob, machine: Machine) -> list[float]:
    """Of one layer and micro-batch, forward and backward: host, products, memory, all-reduces."""
    tokens = job.micro_batch * job.sequence
    flops = 3 * (24 * tokens * job.hidden**2 + 4 * tokens * job.sequence * job.hidden)
    traffic = LAYER_BYTES * tokens * job.hidden * (10 / 34 + 24 / 34 / job.tensor)
    exchanged = 4 * _all_reduce(machine, BYTES * tokens * job.hidden, job.tensor)
    return [
        MS,
        1e9 * flops / job.tensor / machine.flops,
        1e9 * traffic / machine.bandwidth,
        exchanged,
    ]


def _last_terms(job: TrainingJob, machine: Machine) -> list[float]:
    """Of the output layer and the loss, for one micro-batch: host, products, memory."""
    logits = job.micro_batch * job.sequence * job.vocabulary / job.tensor
    return [
        MS,
        1e9 * 6 * logits * job.hidden / machine.flops,
        1e9 * LOSS_BYTES * logits / machine.bandwidth,
    ]


def _hop_terms(job: TrainingJob, machine: Machine) -> list[float]:
    """Of what a micro-batch takes there and back between two stages: host, bytes."""
    exchanged = 2 * BYTES * job.micro_batch * job.sequence * job.hidden
    return [MS, 1e9 * exchanged / machine.bandwidth]


def _update_terms(job: TrainingJob, machine: Machine) -> list[float]:
    """Of the weights of a stage with one end of the model: optimizer, all-reduce of gradients."""
    parameters = (
        12 * job.hidden**2 * job.layers / job.pipeline + job.vocabulary * job.hidden
    ) / job.tensor
    return [
        1e9 * ADAM_BYTES * parameters / machine.bandwidth,
        _all_reduce(machine, BYTES * parameters, job.data),
    ]


def _all_reduce(machine: Machine, size: float, ranks: int) -> float:
    return machine.all_reduce_ns(size, ranks) if ranks > 1 else 0.0


def _design(job: TrainingJob, machine: Machine) -> tuple[Array, Array, Array]:
    """Coefficients of the smooth terms; of one layer's and of the last end's time in the total."""
    stages, batches = job.pipeline, job.microbatches
    layer_count = (batches + stages - 1) * job.layers / stages
    layer = np.array(_layer_terms(job, machine))
    last = np.array(_last_terms(job, machine))
    first = [MS * (batches if stages == 1 else 1)]
    hops = (stages - 1) * np.array(_hop_terms(job, machine))
    smooth = np.concatenate(
        [layer_count * layer, batches * last, first, hops, _update_terms(job, machine)]
    )
    return smooth, layer_count * layer, batches * last


PRIOR = np.array([*LAYER_PRIOR, *ENDS_PRIOR, *FIRST_PRIOR, *HOP_PRIOR, *UPDATE_PRIOR])


class CalibratedJobs:
    """Predicts iteration times. Built by `calibrate`. See Note [Composition]."""

    def __init__(
        self, machine: Machine, shapes: Sequence[tuple[int, ...]], deviation: float
    ) -> None:
        self.machine = machine
        self.deviation = deviation
        """Relative deviation of a shape from the smooth terms."""
        self._shapes = {shape: place for place, shape in enumerate(shapes)}
        self._mean = np.concatenate([PRIOR[:, 0], np.zeros(2 * len(self._shapes))])
        scale = np.full(2 * len(self._shapes), deviation)
        self._covariance = np.diag(np.concatenate([PRIOR[:, 1], scale]) ** 2)

    def _rows(self, jobs: Sequence[TrainingJob]) -> Array:
        """Float64 `[jobs, unknowns]`: what each unknown adds to each time, ns.

        A deviation is relative to the time that the prior gives a shape.
        """
        rows = np.zeros((len(jobs), len(self._mean)))
        smooth = len(PRIOR)
        layer_prior = PRIOR[: len(LAYER_PRIOR), 0]
        ends_prior = PRIOR[len(LAYER_PRIOR) : len(LAYER_PRIOR) + len(ENDS_PRIOR), 0]
        for row, job in zip(rows, jobs, strict=True):
            terms, layer, last = _design(job, self.machine)
            row[:smooth] = terms
            place = self._shapes.get(job.shape)
            if place is not None:
                row[smooth + 2 * place] = layer @ layer_prior
                row[smooth + 2 * place + 1] = last @ ends_prior
        return rows

    def learn(self, jobs: Sequence[TrainingJob], times_ns: Array) -> float:
        """Takes measured times in; returns their log evidence under what was known before."""
        rows = self._rows(jobs) / times_ns[:, None]
        expected = rows @ self._covariance @ rows.T + NOISE**2 * np.eye(len(jobs))
        error = 1.0 - rows @ self._mean
        gain = np.linalg.solve(expected, rows @ self._covariance).T
        evidence = -0.5 * (
            error @ np.linalg.solve(expected, error) + np.linalg.slogdet(expected)[1]
        )
        self._mean = self._mean + gain @ error
        self._covariance = self._covariance - gain @ rows @ self._covariance
        return float(evidence)

    def next_measurements(self, jobs: Sequence[TrainingJob], count: int) -> list[int]:
        """Indices of the jobs whose times, one after the other, are the least certain."""
        times, _ = self.predict(jobs)
        rows = self._rows(jobs) / np.maximum(times, MS)[:, None]
        covariance = self._covariance
        chosen: list[int] = []
        for _ in range(min(count, len(jobs))):
            reach = rows @ covariance
            variance = np.einsum("ij,ij->i", reach, rows)
            variance[chosen] = -1.0
            chosen.append(int(variance.argmax()))
            row = reach[chosen[-1]]
            covariance = covariance - np.outer(row, row) / (variance[chosen[-1]] + NOISE**2)
        return chosen

    def predict(self, jobs: Sequence[TrainingJob]) -> tuple[Array, Array]:
        """Float64 `[jobs]` twice: iteration times and their standard deviations, ns."""
        rows = self._rows(jobs)
        unseen = np.array([job.shape not in self._shapes for job in jobs])
        times = rows @ self._mean
        variance = np.einsum("ij,jk,ik->i", rows, self._covariance, rows)
        spread = np.sqrt(np.maximum(variance, 0.0) + (unseen * self.deviation * times) ** 2)
        return times, spread


def calibrate(
    machine: Machine, jobs: Sequence[TrainingJob], times_ns: npt.ArrayLike
) -> CalibratedJobs:
    """A model of a machine from jobs that were measured on it.

    How far shapes deviate from the smooth terms is chosen by the evidence.

    Raises:
        OptionError: No job, or not a positive time for each.
    """
    times = np.asarray(times_ns, dtype=np.float64)
    if not len(jobs) or times.shape != (len(jobs),) or not (times > 0).all():
        raise OptionError("calibration needs at least one job and a positive time for each")
    shapes = sorted({job.shape for job in jobs})
    models = [CalibratedJobs(machine, shapes, deviation) for deviation in DEVIATIONS]
    evidence = [model.learn(jobs, times) for model in models]
    return models[int(np.argmax(evidence))]


def choose_measurements(machine: Machine, jobs: Sequence[TrainingJob], count: int) -> list[int]:
    """Which jobs to run, as indices, so that the times of all of them can be predicted well.

    Only shapes count, no measured time does.
    """
    shapes = sorted({job.shape for job in jobs})
    return CalibratedJobs(machine, shapes, float(np.median(DEVIATIONS))).next_measurements(
        jobs, count
    )
