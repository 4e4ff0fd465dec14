"""Search for the fastest way to split a transformer's training over GPUs that fits into memory.

Every split of the GPUs into tensor-, data- and pipeline-parallel ranks is tried with every
micro-batch and way to save memory. Times come from `composition`, by default with coefficients of
published jobs (`data/training.json`) carried over to the machine; memory from `job_memory`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from torchtraceap.core import (
    Renderable,
    add_renderer,
    dataclass,
    format_bytes,
    format_ns,
    format_percent,
    one_line,
)
from torchtraceap.errors import OptionError
from torchtraceap.lab.jobs.composition import CalibratedJobs, PublishedJobs, published_jobs
from torchtraceap.lab.jobs.jobs import (
    RECOMPUTE,
    SHARDED,
    Cluster,
    Machine,
    TrainingJob,
    Transformer,
    check_size,
)
from torchtraceap.lab.jobs.terms import job_memory
from torchtraceap.lab.memory import MemoryFit, MemoryNeed, fit_memory
from torchtraceap.ops import Device, UnknownDurationError, resolve_device

if TYPE_CHECKING:
    from torchtraceap.report import TextTable

__all__ = [
    "Parallelism",
    "RefusedStrategy",
    "Strategy",
    "choose_parallelism",
    "job_fit",
    "parallelism_tables",
    "plain_job",
    "result_tables",
]

SCHEMA = "torchtraceap.parallelism/1"
LARGEST_MICRO_BATCH = 64
CHUNKS = (1, 2, 3)
_MAX_ROWS, _MAX_REASONS, _MAX_TEXT = 15, 8, 200
_SAVES = {"none": "", "selective": "attention again", "full": "layers again"}


@dataclass(frozen=True, slots=True)
class Strategy(Renderable):
    """A way to train with its predicted time and its memory need."""

    job: TrainingJob
    step_ns: float
    low_ns: float
    """The 10th percentile of the step time: in 10 of 100 such cases a step is shorter."""
    high_ns: float
    memory: MemoryNeed
    utilization: float
    """Share of the GPUs' peak that the model's matrix products reach, without recomputation."""
    bound_by: str
    """The limit of a layer's pace: "gpu" (or its links) or "host"."""
    unmeasured: tuple[str, ...]
    """Properties in which the job lies outside of the measured jobs."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        job = self.job
        names = (
            "tensor",
            "data",
            "pipeline",
            "chunks",
            "micro_batch",
            "microbatches",
            "recompute",
            "sequence_parallel",
            "zero",
        )
        return {
            **{name: getattr(job, name) for name in names},
            "predicted_ns": self.step_ns,
            "low_ns": self.low_ns,
            "high_ns": self.high_ns,
            "tokens_per_second": 1e9 * job.global_batch * job.sequence / self.step_ns,
            "utilization": self.utilization,
            "bound_by": self.bound_by,
            "memory_bytes": {**self.memory.to_dict(), "total": self.memory.total},
            "unmeasured": list(self.unmeasured),
        }


@dataclass(frozen=True, slots=True)
class RefusedStrategy(Renderable):
    """Ways to train that are impossible, with the reason."""

    tensor: int
    data: int
    pipeline: int
    micro_batch: int | None
    """Micro-batch size; None if the reason holds for all sizes."""
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Parallelism(Renderable):
    """Ways to train a model on a cluster, fastest first."""

    model: Transformer
    device: str
    gpus: int
    global_batch: int
    strategies: tuple[Strategy, ...]
    """The fastest way that fits, for each split and micro-batch size."""
    refused: tuple[RefusedStrategy, ...]
    notes: tuple[str, ...]

    @property
    def best(self) -> Strategy:
        """The fastest way to train.

        Raises:
            OptionError: None is possible; the message says why.
        """
        if self.strategies:
            return self.strategies[0]
        reasons = Counter(one.reason for one in self.refused).most_common(1)
        raise OptionError("no strategy is possible" + (f": {reasons[0][0]}" if reasons else ""))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "schema": SCHEMA,
            "model": {field.name: getattr(self.model, field.name) for field in fields(self.model)},
            "device": self.device,
            "gpus": self.gpus,
            "global_batch": self.global_batch,
            "strategies": [strategy.to_dict() for strategy in self.strategies],
            "refused": [refused.to_dict() for refused in self.refused],
            "notes": list(self.notes),
        }


def choose_parallelism(
    model: Transformer | Mapping[str, Any] | object,
    cluster: Cluster | Mapping[str, Any],
    *,
    global_batch: int,
    micro_batches: Sequence[int] = (),
    recompute: Sequence[str] = RECOMPUTE,
    zero: Sequence[int] = (0,),
    flash_attention: bool = False,
    measured: CalibratedJobs | None = None,
) -> Parallelism:
    """Return ways to train a transformer in half precision with Adam, sorted by predicted step
    time.

    Args:
        model: Sizes, or a configuration that has them (`Transformer.of`).
        cluster: GPUs, nodes and the network (`Cluster.of`).
        global_batch: Sequences of a step, over all replicas.
        micro_batches: To try; by default powers of two up to 64.
        recompute: Parts that may be computed again to save memory: "none", "selective", "full".
        zero: ZeRO stages to try, 0 to 3.
        flash_attention: True if scores of attention stay on the chip.
        measured: A model calibrated on jobs of the same cluster; by default published jobs.

    Raises:
        OptionError: Sizes that are no positive whole numbers, or an unknown option.
        UnknownDurationError: The device is unknown.
    """
    sizes, where = Transformer.of(model), Cluster.of(cluster)
    check_size("global_batch", global_batch)
    for micro in micro_batches:
        check_size("a micro-batch", micro)
    for name, given, known in (("recompute", recompute, RECOMPUTE), ("zero", zero, SHARDED)):
        if not isinstance(given, list | tuple) or not given or not set(given) <= set(known):
            raise OptionError(f"{name} is a list of {', '.join(map(str, known))}, not {given!r}")
    try:
        device = resolve_device(where.device)
    except UnknownDurationError as error:
        raise OptionError(str(error)) from None
    machine = Machine.of(
        device, gpus_per_node=where.gpus_per_node, node_bandwidth=where.node_bandwidth
    )
    published = published_jobs()
    predictor = measured or published.model_for(machine, device)
    plain = plain_job(sizes, global_batch, flash_attention)
    fitting, refused = _fitting_jobs(
        plain, where.gpus, micro_batches, recompute, zero, machine, device
    )
    notes = [] if measured else [published.source]
    if not device.memory_bytes:
        notes.append("the memory of the GPU is not known: nothing was refused for lack of it")
    if not flash_attention:
        notes.append(
            "scores of attention are written to memory, as they are without flash attention"
        )
    notes.append(
        "memory is that of parameters, gradients, Adam's state and activations in half precision; "
        "what the allocator, libraries and collectives take comes on top of it (guesses)"
    )
    return Parallelism(
        sizes,
        device.name,
        where.gpus,
        global_batch,
        _fastest_variants(fitting, predictor, machine, None if measured else published, device),
        tuple(refused),
        tuple(notes),
    )


def plain_job(model: Transformer, global_batch: int, flash_attention: bool) -> TrainingJob:
    """Return the job that trains a model on one GPU, one sequence at a time."""
    return TrainingJob(
        global_batch, 1, model.hidden, model.layers, model.sequence, 1, 1, 1, model.vocabulary,
        model.heads, model.key_value_heads, model.head_size, model.feed_forward, model.gated,
        flash_attention,
    )  # fmt: skip


def _fitting_jobs(
    plain: TrainingJob,
    gpus: int,
    micro_batches: Sequence[int],
    recompute: Sequence[str],
    zero: Sequence[int],
    machine: Machine,
    device: Device,
) -> tuple[list[TrainingJob], list[RefusedStrategy]]:
    """Return all ways to split a job over GPUs that fit, and the refused ones."""
    micros = tuple(micro_batches) or tuple(2**n for n in range(LARGEST_MICRO_BATCH.bit_length()))
    fitting: list[TrainingJob] = []
    refused: list[RefusedStrategy] = []
    divisors = [n for n in range(1, gpus + 1) if gpus % n == 0]
    for tensor, pipeline in product(divisors, divisors):
        data = gpus // (tensor * pipeline)
        if gpus % (tensor * pipeline):
            continue
        reason = _refusal_reason(plain, machine, tensor, data, pipeline)
        shares = [m for m in dict.fromkeys(micros) if plain.global_batch // data % m == 0]
        if not reason and not shares:
            reason = f"{plain.global_batch} sequences can't be divided among {data} replicas"
            reason += " into such micro-batches" if micro_batches else ""
        if reason:
            refused.append(RefusedStrategy(tensor, data, pipeline, None, reason))
            continue
        for micro in shares:
            split = replace(plain, micro_batch=micro, tensor=tensor, data=data, pipeline=pipeline)
            found, reason = _fitting_variants(list(_variants(split, recompute, zero)), device)
            fitting += found
            if reason:
                refused.append(RefusedStrategy(tensor, data, pipeline, micro, reason))
    return fitting, refused


def _refusal_reason(
    job: TrainingJob, machine: Machine, tensor: int, data: int, pipeline: int
) -> str:
    """Return the reason why a split is impossible or can't be timed, or an empty string."""
    if job.heads % tensor:
        return f"{job.heads} heads can't be divided among {tensor} tensor-parallel ranks"
    keys = job.key_value_heads or job.heads
    if keys % tensor and tensor % keys:
        return f"{keys} keys and values can't be divided among {tensor} tensor-parallel ranks"
    if job.layers % pipeline:
        return f"{job.layers} layers can't be divided among {pipeline} stages"
    if job.global_batch % data:
        return f"{job.global_batch} sequences can't be divided among {data} replicas"
    per_node = machine.gpus_per_node
    groups = {min(tensor, per_node), max(1, min(data, per_node // tensor)), min(pipeline, 2)}
    try:
        for ranks in groups - {1}:
            machine.all_reduce_ns(1e6, ranks)
    except UnknownDurationError as error:
        return str(error)
    return ""


def _variants(
    plain: TrainingJob, recompute: Sequence[str], zero: Sequence[int]
) -> Iterator[TrainingJob]:
    """Yield a job with each way to save memory and to interleave stages."""
    tensor, pipeline = plain.tensor, plain.pipeline
    ways = [way for way in recompute if not (plain.flash_attention and way == "selective")]
    sequence = (False, True) if tensor > 1 and plain.sequence % tensor == 0 else (False,)
    stages = [stage for stage in zero if stage == 0 or plain.data > 1] or [0]
    for way, split, stage, chunks in product(ways, sequence, stages, CHUNKS):
        if chunks > 1 and (
            pipeline == 1 or plain.microbatches % pipeline or plain.layers % (pipeline * chunks)
        ):
            continue
        yield replace(plain, recompute=way, sequence_parallel=split, zero=stage, chunks=chunks)


def job_fit(job: TrainingJob, device: Device) -> MemoryFit | None:
    """Return whether a job fits into the memory of its GPUs; None if that is not known."""
    memory = job_memory(job)
    return fit_memory(memory.total, memory.activations, device, ranks=job.gpus)


def _fitting_variants(jobs: list[TrainingJob], device: Device) -> tuple[list[TrainingJob], str]:
    """Return the jobs that fit into memory, and the reason if none does."""
    if not jobs:
        return [], "flash attention leaves nothing to compute again selectively"
    fits = [job_fit(job, device) for job in jobs]
    found = [job for job, fit in zip(jobs, fits, strict=True) if fit is None or fit.fits]
    if found:
        return found, ""
    least = min((fit for fit in fits if fit is not None), key=lambda fit: fit.needed)
    return [], (
        f"needs at least {least.needed / 1e9:.1f} GB of memory, a GPU has "
        f"{least.capacity / 1e9:.1f} GB to give"
    )


def _fastest_variants(
    jobs: Sequence[TrainingJob],
    predictor: CalibratedJobs,
    machine: Machine,
    published: PublishedJobs | None,
    device: Device,
) -> tuple[Strategy, ...]:
    """Return the fastest variant of each split and micro-batch size, sorted by time."""
    if not jobs:
        return ()
    times, low, high = predictor.interval(jobs)
    hosts = predictor.host_shares(jobs)
    best: dict[tuple[int, ...], Strategy] = {}
    for row in times.argsort(kind="stable").tolist():
        job = jobs[row]
        key = (job.tensor, job.data, job.pipeline, job.micro_batch)
        if key in best:
            continue
        step = float(times[row])
        if published is not None:
            unmeasured = published.unmeasured_properties(job, device)
        else:
            unmeasured = () if predictor.has_measured(job) else ("this shape of a layer",)
        layer = 2.0 * job.layer_parameters + 4.0 * job.sequence * job.attention_width
        useful_flops = (
            3.0
            * (job.global_batch * job.sequence)
            * (job.layers * layer + 2.0 * job.vocabulary * job.hidden)
        )
        best[key] = Strategy(
            job, step, float(low[row]), float(high[row]), job_memory(job),
            useful_flops / (job.gpus * machine.flops * step / 1e9),
            "host" if hosts[row] > 0.5 else "gpu", unmeasured,
        )  # fmt: skip
    return tuple(best.values())


# ------------------------------------------------------------------------- as tables


def result_tables(found: Parallelism) -> list[TextTable]:
    """Return the tables of a `Parallelism`."""
    return parallelism_tables(found.to_dict())


def parallelism_tables(document: Mapping[str, Any], *, limit: int = _MAX_ROWS) -> list[TextTable]:
    """Return the tables of a document: strategies, and refused ways by reason.

    Args:
        document: `torchtraceap.parallelism/1`.
        limit: The largest number of strategies.
    """
    from torchtraceap.report import TextTable

    strategies = document["strategies"]
    head = (
        "tensor", "data", "pipeline", "micro-batch", "memory saved by", "a step", "8 of 10 between",
        "of peak", "memory", "bound by", "not measured",
    )  # fmt: skip
    notes = [] if strategies else ["no strategy is possible"]
    if len(strategies) > limit:
        notes.append(f"and {len(strategies) - limit} more, slower (--json)")
    notes += [one_line(note, 2 * _MAX_TEXT) for note in document["notes"]]
    title = f"{document['gpus']} x {one_line(document['device'], 60)}"
    title += f", {document['global_batch']} sequences a step"
    rows = [_row(strategy) for strategy in strategies[:limit]]
    found = [TextTable(title, head, rows, "\n".join(notes), first=(0, 1, 2, 3, 5, 6, 8, 4))]
    # Reasons about memory are joined, because each has its own size.
    reasons = Counter(
        "needs more memory than a GPU has" if "GB of memory" in refused["reason"] else
        refused["reason"]
        for refused in document["refused"]
    )  # fmt: skip
    if reasons:
        shown = reasons.most_common(_MAX_REASONS)
        told = [(str(count), one_line(why, _MAX_TEXT)) for why, count in shown]
        left = len(reasons) - len(told)
        said = f"and {left} more reasons" if left else ""
        found.append(TextTable("Refused", ("ways", "why"), told, said))
    return found


def _row(strategy: Mapping[str, Any]) -> tuple[str, ...]:
    saves = [_SAVES[strategy["recompute"]]]
    saves += ["sequence"] if strategy["sequence_parallel"] else []
    saves += [f"ZeRO {strategy['zero']}"] if strategy["zero"] else []
    stages = str(strategy["pipeline"])
    stages += f" x {strategy['chunks']}" if strategy["chunks"] > 1 else ""
    low, high = (format_ns(round(strategy[f"{end}_ns"])) for end in ("low", "high"))
    return (
        str(strategy["tensor"]),
        str(strategy["data"]),
        stages,
        str(strategy["micro_batch"]),
        ", ".join(part for part in saves if part) or "-",
        format_ns(round(strategy["predicted_ns"])),
        f"{low} and {high}",
        format_percent(strategy["utilization"]),
        format_bytes(strategy["memory_bytes"]["total"]),
        strategy["bound_by"],
        one_line("; ".join(strategy["unmeasured"]), _MAX_TEXT) or "-",
    )


add_renderer(f"{__name__}.Parallelism", "tables", result_tables)
