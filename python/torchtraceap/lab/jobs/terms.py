"""The parts of a training step's time, before any coefficient, and the memory of a job.

Note [Composition] in composition.py says how the parts make a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from torchtraceap.core import Array, dataclass
from torchtraceap.lab.jobs.jobs import Machine, TrainingJob
from torchtraceap.lab.memory import MemoryNeed

__all__ = [
    "COEFFICIENTS",
    "PRIOR_DEVIATIONS",
    "PRIOR_MEANS",
    "Parts",
    "Terms",
    "job_memory",
    "step_parts",
]

MS = 1e6
BYTES = 2
"""Bytes of a half-precision number."""
ADAM_BYTES = 16
"""Bytes that Adam reads and writes per parameter: weight, gradient, moments and master copy."""
LINEAR_BYTES, REPEATED_BYTES, SCORE_BYTES = 24, 10, 5
"""Activations that a layer keeps (Korthikanti et al., 2022): per token and hidden unit, those that
tensor parallelism divides and those that every rank repeats; and per score of attention."""
FLASH_AGAIN = 0.5
"""Forward passes of attention that flash attention's backward pass recomputes: one of its two
products."""
LOSS_BYTES = 16
"""Traffic per logit: half-precision logits, single-precision softmax, and their gradient."""
GRADIENT_BYTES = 4
"""Bytes of a gradient: Megatron sums gradients in single precision."""
STATE_BYTES = 12
"""Bytes of Adam's state: single-precision weights and two moments."""
LOGIT_BYTES = 6
"""Bytes of a logit: half precision, and its softmax in single precision."""
SHARPNESS = 6.0
"""Exponent of the smooth maximum of overlapping times: (a^6 + b^6)^(1/6)."""

# Name, prior mean and standard deviation of its logarithm. 1 is the machine's peak; host work in
# ms. Means are what data sheets and one step of Megatron suggest; deviations say how little.
_PRIOR = {
    "host": (2.5, 0.5),
    "host_collectives": (0.2, 1.0),
    "products": (1.5, 0.4),
    "attention": (2.0, 0.5),
    "traffic": (1.5, 0.4),
    "scores": (1.5, 0.5),
    "exchange": (1.2, 0.4),
    "node_exchange": (1.5, 0.5),
    "starts": (0.2, 1.0),
    "last_host": (2.0, 0.7),
    "logits": (1.5, 0.4),
    "loss_alone": (4.0, 0.7),
    "loss_parallel": (2.0, 0.7),
    "first_host": (0.3, 1.0),
    "hop_host": (0.1, 1.0),
    "hop_exchange": (1.0, 1.0),
    "hop_node_exchange": (1.5, 1.0),
    "update": (2.0, 0.4),
    "gradients": (1.0, 0.4),
    "node_gradients": (1.5, 0.5),
}
COEFFICIENTS = tuple(_PRIOR)
PRIOR_MEANS = np.log(np.array([mean for mean, _ in _PRIOR.values()]))
"""Prior means of the coefficients' logarithms."""
PRIOR_DEVIATIONS = np.array([deviation for _, deviation in _PRIOR.values()])


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of jobs, float64 `[jobs]` each; times in ns at the machine's peak rates."""

    products: Array
    attention: Array
    traffic: Array
    scores: Array
    exchange: Array
    node_exchange: Array
    passes: Array
    """Forward and backward passes of a layer: 1 is one of each, 4/3 computes forward twice."""
    gathers: Array
    """Time to gather a layer's parameters that replicas shard; it overlaps with computation."""
    logits: Array
    loss: Array
    split: Array
    """1 if there is tensor parallelism, else 0."""
    hop: Array
    node_hop: Array
    update: Array
    gradients: Array
    node_gradients: Array
    layer_count: Array
    """Layers times micro-batches on the longest path."""
    last_count: Array
    first_count: Array
    hop_count: Array

    @classmethod
    def of(cls, jobs: Sequence[TrainingJob], machine: Machine) -> Terms:
        rows = np.array([_row(job, machine) for job in jobs], dtype=np.float64)
        return cls(*rows.reshape(len(jobs), len(cls.__slots__)).T)

    def take(self, rows: npt.NDArray[np.int64]) -> Terms:
        """Return the terms of some jobs."""
        return Terms(*(getattr(self, name)[rows] for name in Terms.__slots__))


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of step times, float64 `[jobs]` each in ns."""

    total: Array
    layers: Array
    """The contribution of all layers to the total."""
    ends: Array
    """The contribution of the output layer and the loss."""
    host_share: Array
    """The degree to which the host sets the pace of a layer, 0 to 1."""
    slopes: Array
    """Derivatives of the total's logarithm with respect to the coefficients' logarithms, float64
    `[jobs, coefficients]`."""


_LAYER_TERMS = ("products", "attention", "traffic", "scores", "exchange", "node_exchange")


def step_parts(
    coefficients: Array,
    terms: Terms,
    layer_factor: Array | float = 1.0,
    end_factor: Array | float = 1.0,
) -> Parts:
    """Compute the parts of step times.

    Args:
        coefficients: Logarithms, in the order of `COEFFICIENTS`.
        terms: Terms of the jobs.
        layer_factor: Time of a layer of each job over that of the terms.
        end_factor: The same for the output layer.
    """
    use = dict(zip(COEFFICIENTS, np.exp(coefficients).tolist(), strict=True))
    adds: dict[str, Array] = {name: use[name] * getattr(terms, name) for name in _LAYER_TERMS}
    adds["starts"] = MS * use["starts"] * terms.passes
    gpu = np.sum(list(adds.values()), axis=0)
    adds["host"] = MS * use["host"] * terms.passes
    adds["host_collectives"] = MS * use["host_collectives"] * terms.passes * terms.split
    host = adds["host"] + adds["host_collectives"]
    layer = _smooth_maximum(gpu, host, terms.gathers)
    for names, time in (((*_LAYER_TERMS, "starts"), gpu), (("host", "host_collectives"), host)):
        weight = terms.layer_count * layer_factor * (time / layer) ** (SHARPNESS - 1)
        adds.update({name: weight * adds[name] for name in names})
    logits = use["logits"] * terms.logits
    alone = np.where(terms.split > 0, 0.0, use["loss_alone"] * terms.loss)
    parallel = np.where(terms.split > 0, use["loss_parallel"] * terms.loss, 0.0)
    end_host = np.full_like(logits, MS * use["last_host"])
    end_gpu = logits + alone + parallel
    end, end_weight = _smooth_maximum(end_gpu, end_host), terms.last_count * end_factor
    on_gpu = end_weight * (end_gpu / end) ** (SHARPNESS - 1)
    adds.update(
        logits=on_gpu * logits,
        loss_alone=on_gpu * alone,
        loss_parallel=on_gpu * parallel,
        last_host=end_weight * (end_host / end) ** (SHARPNESS - 1) * end_host,
    )
    adds["first_host"] = MS * use["first_host"] * terms.first_count
    adds["hop_host"] = MS * use["hop_host"] * terms.hop_count
    adds["hop_exchange"] = use["hop_exchange"] * terms.hop * terms.hop_count
    adds["hop_node_exchange"] = use["hop_node_exchange"] * terms.node_hop * terms.hop_count
    for name in ("update", "gradients", "node_gradients"):
        adds[name] = use[name] * getattr(terms, name)
    layers, ends = terms.layer_count * layer_factor * layer, end_weight * end
    rest = [adds[name] for name in COEFFICIENTS[COEFFICIENTS.index("first_host") :]]
    total = layers + ends + np.sum(rest, axis=0)
    slopes = np.column_stack([adds[name] for name in COEFFICIENTS]) / total[:, None]
    powers = (host / gpu) ** SHARPNESS
    return Parts(total, layers, ends, powers / (powers + 1), slopes)


def _smooth_maximum(*parts: Array) -> Array:
    """Return the smooth maximum of overlapping times."""
    most = np.maximum.reduce(parts)
    total = np.zeros_like(most)
    for part in parts:
        total = total + (part / most) ** SHARPNESS
    return np.asarray(most * total ** (1 / SHARPNESS))


def _row(job: TrainingJob, machine: Machine) -> tuple[float, ...]:
    """Return the fields of `Terms` for one job, in their order."""
    again = job.recompute == "full"
    forward = 4 if again else 3  # a backward pass is two forward passes
    core = 3.0 if job.recompute == "none" else 4.0
    if job.flash_attention:
        core += FLASH_AGAIN
    # FLOPs and bytes of a layer's forward pass: products with weights, and those of attention.
    products = 2.0 * job.tokens * job.layer_parameters / job.tensor
    attention = 4.0 * job.tokens * job.sequence * job.attention_width / job.tensor
    repeated = REPEATED_BYTES / (job.tensor if job.sequence_parallel else 1)
    traffic = job.tokens * job.hidden * (LINEAR_BYTES / job.tensor + repeated)
    scores = SCORE_BYTES * job.attention_heads * job.sequence * job.tokens / job.tensor
    if job.flash_attention:
        scores = 0.0
    within, between = machine.all_reduces(
        BYTES * job.tokens * job.hidden, job.tensor, machine.gpus_per_node
    )
    exchanges = 6 if again else 4
    logits = job.tokens * job.vocabulary / job.tensor
    # The way of a micro-batch from one stage to the next and back, within and between nodes.
    hop = node_hop = 0.0
    exchanged = 2 * BYTES * job.tokens * job.hidden
    exchanged //= job.tensor if job.sequence_parallel else 1
    if job.pipeline > 1 and job.gpus > machine.gpus_per_node:  # the longest path crosses nodes
        node_hop = 1e9 * exchanged * machine.gpus_per_node / machine.node_bandwidth
    elif job.pipeline > 1:
        hop = machine.all_reduce_ns(exchanged, 2)
    # Data-parallel ranks of a node: tensor-parallel ranks are adjacent, then replicas, then stages.
    replicas = max(1, min(job.data, machine.gpus_per_node // job.tensor))
    # Two gathers of a layer's parameters that replicas shard, and a reduction of its gradients.
    gathers = 0.0
    if job.zero == 3 and job.data > 1:
        size = BYTES * job.layer_parameters / job.tensor
        gathers = 1.5 * sum(machine.all_reduces(size, job.data, replicas))
    # Split optimizer states change who updates what, not how much is exchanged: gradients are
    # reduced and scattered, new weights gathered.
    parameters = job.stage_parameters
    owned = parameters / (job.data if job.zero else 1)
    gradients = node_gradients = 0.0
    if job.data > 1 and job.zero < 3:
        gradients, node_gradients = machine.all_reduces(BYTES * parameters, job.data, replicas)
    batches, stages = job.microbatches, job.pipeline
    return (
        forward * 1e9 * products / machine.flops,
        core * 1e9 * attention / machine.flops,
        forward * 1e9 * traffic / machine.bandwidth,
        core * 1e9 * scores / machine.bandwidth,
        exchanges * within,
        exchanges * between,
        forward / 3,
        gathers,
        1e9 * 6 * logits * job.hidden / machine.flops,
        1e9 * LOSS_BYTES * logits / machine.bandwidth,
        float(job.tensor > 1),
        hop,
        node_hop,
        1e9 * ADAM_BYTES * owned / machine.bandwidth,
        gradients,
        node_gradients,
        (batches + (stages - 1) / job.chunks) * job.layers / stages,
        float(batches),
        float(batches if stages == 1 else 1),
        float(0 if stages == 1 else batches * job.chunks + stages - 1),
    )


# ------------------------------------------------------------------------- memory


def job_memory(job: TrainingJob) -> MemoryNeed:
    """Return the memory need of the first or the last stage, whichever is larger, counted as by
    Korthikanti et al. (2022).

    Activations are those kept for the backward pass by all micro-batches in flight, and those of
    the layer at work. Not counted: what the framework, the libraries and fragmentation take.
    """
    parameters, data, stages = job.stage_parameters, job.data, job.pipeline
    kept = _layer_bytes(job, job.recompute)
    # What is computed again of the layer whose backward pass runs.
    again = _layer_bytes(job, "none") if job.recompute != "none" else 0.0
    logits = LOGIT_BYTES * job.tokens * job.vocabulary / job.tensor
    # The first stage starts as many micro-batches as there are stages before one comes back.
    started = stages if job.chunks == 1 else stages + (stages - 1) / job.chunks
    flying = min(started, float(job.microbatches))
    first = flying * job.layers / stages * kept + again + (logits if stages == 1 else 0.0)
    last = job.layers / stages * kept + again + logits
    return MemoryNeed(
        parameters=round(BYTES * parameters / (data if job.zero >= 3 else 1)),
        gradients=round(GRADIENT_BYTES * parameters / (data if job.zero >= 2 else 1)),
        optimizer=round(STATE_BYTES * parameters / (data if job.zero >= 1 else 1)),
        activations=round(max(first, last)),
    )


def _layer_bytes(job: TrainingJob, recompute: str) -> float:
    """Return the bytes that a layer keeps for a micro-batch."""
    split = job.tensor if job.sequence_parallel else 1
    unit = float(job.tokens * job.hidden)
    if recompute == "full":
        return BYTES * unit / split
    kept = unit * (LINEAR_BYTES / job.tensor + REPEATED_BYTES / split)
    if recompute == "selective" or job.flash_attention:
        return kept
    scores = job.attention_heads * job.sequence * job.tokens / job.tensor
    return kept + SCORE_BYTES * scores
