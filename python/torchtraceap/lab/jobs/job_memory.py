"""Memory need of a training job per GPU, counted as by Korthikanti et al. (2022)."""

from __future__ import annotations

from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable
from torchtraceap.lab.jobs.jobs import TrainingJob
from torchtraceap.lab.jobs.terms import BYTES, LINEAR_BYTES, REPEATED_BYTES, SCORE_BYTES

__all__ = ["JobMemory", "job_memory"]

GRADIENT_BYTES = 4
"""Bytes of a gradient: Megatron sums gradients in single precision."""
STATE_BYTES = 12
"""Bytes of Adam's state: single-precision weights and two moments."""
LOGIT_BYTES = 6
"""Bytes of a logit: half precision, and its softmax in single precision."""


@dataclass(frozen=True, slots=True)
class JobMemory(Renderable):
    """Bytes of the GPU that needs the most memory."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    """Activations that are kept for the backward pass by all micro-batches in flight, and those of
    the layer at work."""

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations

    def to_dict(self) -> dict[str, int]:
        """Return whole bytes for JSON."""
        parts = {name: round(getattr(self, name)) for name in self.__slots__}
        return {**parts, "total": sum(parts.values())}


def job_memory(job: TrainingJob) -> JobMemory:
    """Return the memory need of the first or the last stage, whichever is larger.

    Not counted: what the framework, the libraries and fragmentation take.
    """
    parameters, data = job.stage_parameters, job.data
    return JobMemory(
        parameters=BYTES * parameters / (data if job.zero >= 3 else 1),
        gradients=GRADIENT_BYTES * parameters / (data if job.zero >= 2 else 1),
        optimizer=STATE_BYTES * parameters / (data if job.zero >= 1 else 1),
        activations=max(_first_stage(job), _last_stage(job)),
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


def _recomputed_bytes(job: TrainingJob) -> float:
    """Return the bytes that are recomputed for the layer whose backward pass runs."""
    return _layer_bytes(job, "none") if job.recompute != "none" else 0.0


def _first_stage(job: TrainingJob) -> float:
    """Return the need of the first stage, which starts as many micro-batches as there are stages
    before the first one comes back."""
    stages, chunks = job.pipeline, job.chunks
    started = stages if chunks == 1 else stages + (stages - 1) / chunks
    flying = min(started, float(job.microbatches))
    ends = _logits(job) if stages == 1 else 0.0
    layers = flying * job.layers / stages
    return layers * _layer_bytes(job, job.recompute) + _recomputed_bytes(job) + ends


def _last_stage(job: TrainingJob) -> float:
    layers = job.layers / job.pipeline
    return layers * _layer_bytes(job, job.recompute) + _recomputed_bytes(job) + _logits(job)


def _logits(job: TrainingJob) -> float:
    return LOGIT_BYTES * job.tokens * job.vocabulary / job.tensor
