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
from math import inf
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable, add_renderer, lazy_renderer
from torchtraceap.errors import OptionError
from torchtraceap.lab.jobs.composition import CalibratedJobs
from torchtraceap.lab.jobs.job_memory import JobMemory, job_memory
from torchtraceap.lab.jobs.jobs import NODE_BANDWIDTH, RECOMPUTE, SHARDED, Machine, TrainingJob
from torchtraceap.lab.jobs.published import PublishedJobs, published_jobs
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.estimate import UnknownDurationError, resolve_device

__all__ = [
    "Cluster",
    "Parallelism",
    "RefusedStrategy",
    "Strategy",
    "Transformer",
    "choose_parallelism",
]

SCHEMA = "torchtraceap.parallelism/1"
RESERVED_BYTES = 4 * 2**30
"""The part of a GPU's memory that is left to the CUDA context, NCCL's buffers and fragmentation (a
guess)."""
LARGEST_MICRO_BATCH = 64
MOST_GPUS = 65_536
CHUNKS = (1, 2, 3)
# Names under which configurations hold a size; the first that is there counts.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden", "hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("heads", "num_attention_heads", "n_head", "n_heads", "num_heads"),
    "sequence": (
        "sequence",
        "seq_length",
        "max_position_embeddings",
        "n_positions",
        "n_ctx",
        "max_seq_len",
    ),
    "vocabulary": ("vocabulary", "vocab_size"),
    "feed_forward": (
        "feed_forward",
        "intermediate_size",
        "ffn_hidden_size",
        "n_inner",
        "ffn_dim",
    ),
    "head_size": ("head_size", "head_dim", "kv_channels"),
    "key_value_heads": ("key_value_heads", "num_key_value_heads", "num_query_groups", "n_kv_heads"),
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
_GATED_FAMILIES = ("gemma",)
"""Model families whose feed-forward network is gated although the name of its activation does not
say so."""
_GATED = ("silu", "swiglu", "geglu", "swish")
_OPTIONAL = ("vocabulary", "feed_forward", "head_size", "key_value_heads")


@dataclass(frozen=True, slots=True)
class Transformer(Renderable):
    """Sizes of a decoder or of an encoder; their layers cost the same."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int = 51_200
    feed_forward: int = 0
    """Inner size of the feed-forward network; 0 means four times the hidden size."""
    key_value_heads: int = 0
    """Number of key and value heads; 0 means as many as heads."""
    head_size: int = 0
    """Elements of a head; 0 means the hidden units divided among the heads."""
    gated: bool = False
    """True if the feed-forward network has a third matrix (SwiGLU)."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "sequence", "vocabulary"):
            _positive(name, getattr(self, name))
        for name in ("feed_forward", "key_value_heads", "head_size"):
            _positive(name, getattr(self, name), least=0)
        if not self.head_size and self.hidden % self.heads:
            raise OptionError(
                f"{self.hidden} hidden units can't be divided among {self.heads} heads"
            )
        if self.key_value_heads and self.heads % self.key_value_heads:
            raise OptionError(
                f"{self.heads} heads can't share {self.key_value_heads} keys and values"
            )

    @classmethod
    def of(cls, model: Transformer | Mapping[str, Any] | object) -> Transformer:
        """Read sizes from a configuration: a mapping, or an object with attributes.

        Known are the names of Hugging Face, Megatron and torchtitan.

        Raises:
            OptionError: A size is missing or no whole number, or there are experts.
        """
        if isinstance(model, Transformer):
            return model
        told = _value_lookup(model)
        if any(told(name) for name in _EXPERTS):
            raise OptionError("mixtures of experts are not modelled")
        sizes: dict[str, int] = {}
        for name, known in _NAMES.items():
            value = next((told(key) for key in known if told(key) is not None), None)
            if value is None and name not in _OPTIONAL:
                raise OptionError(f"the model does not say its {name} ({', '.join(known)})")
            if value is not None:
                sizes[name] = _whole_number(name, value)
        activation = str(told("hidden_act") or told("activation_function") or "").lower()
        family = str(told("model_type") or "").lower()
        gated = told("gated")
        if gated is None:
            gated = activation in _GATED or family.startswith(_GATED_FAMILIES)
        return cls(**sizes, gated=bool(gated))


def _value_lookup(model: Mapping[str, Any] | object) -> Any:
    """Return a function that looks up a value of a configuration by name, None if it has no such
    value."""
    if isinstance(model, Mapping):
        return model.get
    return lambda name: getattr(model, name, None)


def _whole_number(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
        raise OptionError(f"{name} is a whole number, not {value!r}")
    return int(value)


def _positive(name: str, value: int, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 10**12:
        raise OptionError(f"{name} is a whole number from {least}, not {value!r}")


@dataclass(frozen=True, slots=True)
class Cluster(Renderable):
    """A cluster of identical nodes with identical GPUs."""

    device: str | Device
    gpus: int
    gpus_per_node: int = 8
    node_bandwidth: float = NODE_BANDWIDTH
    """Bytes per second in one direction between a node and the others, over all adapters of the
    node."""

    @classmethod
    def of(cls, cluster: Cluster | Mapping[str, Any]) -> Cluster:
        """Read a cluster from a mapping with the names of the fields.

        Raises:
            OptionError: Names or values are wrong.
        """
        if isinstance(cluster, Cluster):
            return cluster
        names = {field.name for field in fields(cls)}
        if not isinstance(cluster, Mapping) or not {"device", "gpus"} <= set(cluster) <= names:
            raise OptionError(
                f"a cluster has {', '.join(sorted(names))}; device and gpus are needed"
            )
        return cls(**cluster)

    def __post_init__(self) -> None:
        _positive("gpus", self.gpus)
        _positive("gpus_per_node", self.gpus_per_node)
        rate = self.node_bandwidth
        if not isinstance(rate, int | float) or not 0 < rate < inf:
            raise OptionError(f"the network of a node has a rate above 0, not {rate!r}")
        if self.gpus > MOST_GPUS:
            raise OptionError(f"at most {MOST_GPUS} GPUs can be asked for")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise OptionError(f"{self.gpus} GPUs don't fill nodes of {self.gpus_per_node}")


@dataclass(frozen=True, slots=True)
class Strategy(Renderable):
    """A way to train with its predicted time and its memory need."""

    job: TrainingJob
    step_ns: float
    low_ns: float
    """The 10th percentile of the step time: in 10 of 100 such cases a step is shorter."""
    high_ns: float
    memory: JobMemory
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
            "memory_bytes": self.memory.to_dict(),
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
        recompute: What may be computed again to save memory: "none", "selective", "full".
        zero: What replicas may split, as ZeRO's stages 0 to 3.
        flash_attention: Whether scores of attention stay on the chip.
        measured: A model calibrated on jobs of the same cluster; by default published jobs.

    Raises:
        OptionError: Sizes that are no positive whole numbers, or an unknown option.
        UnknownDurationError: The device is unknown.
    """
    sizes, where = Transformer.of(model), Cluster.of(cluster)
    _positive("global_batch", global_batch)
    for micro in micro_batches:
        _positive("a micro-batch", micro)
    for name, given, known in (("recompute", recompute, RECOMPUTE), ("zero", zero, SHARDED)):
        if not isinstance(given, list | tuple) or not given or not set(given) <= set(known):
            raise OptionError(f"{name} is a list of {', '.join(map(str, known))}, not {given!r}")
    device = _known_device(where.device)
    machine = Machine.of(
        device, gpus_per_node=where.gpus_per_node, node_bandwidth=where.node_bandwidth
    )
    published = published_jobs()
    predictor = measured or published.model_for(machine, device)
    space = _Space(sizes, where.gpus, global_batch, tuple(micro_batches), flash_attention)
    fitting, refused = space.sorted_out(machine, recompute, zero)
    strategies = _fastest_variants(
        fitting, predictor, machine, published, device, measured is not None
    )
    return Parallelism(
        sizes,
        device.name,
        where.gpus,
        global_batch,
        strategies,
        tuple(refused),
        _notes(machine, measured is not None, published, flash_attention),
    )


def _known_device(device: str | Device) -> Device:
    try:
        return resolve_device(device)
    except UnknownDurationError as error:
        raise OptionError(str(error)) from None


@dataclass(frozen=True, slots=True)
class _Space:
    """The space of all ways to train a model on a cluster."""

    model: Transformer
    gpus: int
    global_batch: int
    micro_batches: tuple[int, ...]
    flash_attention: bool

    def sorted_out(
        self, machine: Machine, recompute: Sequence[str], zero: Sequence[int]
    ) -> tuple[list[TrainingJob], list[RefusedStrategy]]:
        """Return the jobs that fit, and the refused ones."""
        fitting: list[TrainingJob] = []
        refused: list[RefusedStrategy] = []
        for tensor, data, pipeline in self._splits():
            reason = self._why_not(tensor, data, pipeline) or _unknown_links(
                machine, tensor, data, pipeline
            )
            micros = [] if reason else self._micros(data)
            if not reason and not micros:
                reason = f"{self.global_batch} sequences can't be divided among {data} replicas"
                reason += " into such micro-batches" if self.micro_batches else ""
            if reason:
                refused.append(RefusedStrategy(tensor, data, pipeline, None, reason))
            for micro in micros:
                jobs = list(self._variants(tensor, data, pipeline, micro, recompute, zero))
                found, reason = _fitting(jobs, machine)
                fitting += found
                if reason:
                    refused.append(RefusedStrategy(tensor, data, pipeline, micro, reason))
        return fitting, refused

    def _splits(self) -> Iterator[tuple[int, int, int]]:
        divisors = [n for n in range(1, self.gpus + 1) if self.gpus % n == 0]
        for tensor, pipeline in product(divisors, divisors):
            if self.gpus % (tensor * pipeline) == 0:
                yield tensor, self.gpus // (tensor * pipeline), pipeline

    def _why_not(self, tensor: int, data: int, pipeline: int) -> str:
        model = self.model
        if model.heads % tensor:
            return f"{model.heads} heads can't be divided among {tensor} tensor-parallel ranks"
        keys = model.key_value_heads or model.heads
        if keys % tensor and tensor % keys:
            return f"{keys} keys and values can't be divided among {tensor} tensor-parallel ranks"
        if model.layers % pipeline:
            return f"{model.layers} layers can't be divided among {pipeline} stages"
        if self.global_batch % data:
            return f"{self.global_batch} sequences can't be divided among {data} replicas"
        return ""

    def _micros(self, data: int) -> list[int]:
        share = self.global_batch // data
        tried = self.micro_batches or tuple(2**n for n in range(LARGEST_MICRO_BATCH.bit_length()))
        return [micro for micro in dict.fromkeys(tried) if share % micro == 0]

    def _variants(
        self,
        tensor: int,
        data: int,
        pipeline: int,
        micro: int,
        recompute: Sequence[str],
        zero: Sequence[int],
    ) -> Iterator[TrainingJob]:
        """Yield the job with each way to save memory and to interleave stages."""
        model = self.model
        plain = TrainingJob(
            self.global_batch, micro, model.hidden, model.layers, model.sequence,
            tensor, data, pipeline, model.vocabulary, model.heads, model.key_value_heads,
            model.head_size, model.feed_forward, model.gated, self.flash_attention,
        )  # fmt: skip
        ways = [way for way in recompute if not (self.flash_attention and way == "selective")]
        sequence = (False, True) if tensor > 1 and model.sequence % tensor == 0 else (False,)
        stages = [stage for stage in zero if stage == 0 or data > 1] or [0]
        for way, split, stage, chunks in product(ways, sequence, stages, CHUNKS):
            if chunks > 1 and (
                pipeline == 1 or plain.microbatches % pipeline or model.layers % (pipeline * chunks)
            ):
                continue
            yield replace(plain, recompute=way, sequence_parallel=split, zero=stage, chunks=chunks)


def _unknown_links(machine: Machine, tensor: int, data: int, pipeline: int) -> str:
    """Return the reason why exchanges between ranks cannot be timed, or an empty string."""
    per_node = machine.gpus_per_node
    groups = {min(tensor, per_node), max(1, min(data, per_node // tensor)), min(pipeline, 2)}
    try:
        for ranks in groups - {1}:
            machine.all_reduce_ns(1e6, ranks)
    except UnknownDurationError as error:
        return str(error)
    return ""


def _fitting(jobs: list[TrainingJob], machine: Machine) -> tuple[list[TrainingJob], str]:
    """Return the jobs that fit into memory, and the reason if none does."""
    if not jobs:
        return [], "flash attention leaves nothing to compute again selectively"
    if not machine.memory_bytes:
        return jobs, ""
    room = machine.memory_bytes - RESERVED_BYTES
    needs = [job_memory(job).total for job in jobs]
    found = [job for job, need in zip(jobs, needs, strict=True) if need <= room]
    if found:
        return found, ""
    return [], (
        f"needs at least {min(needs) / 1e9:.1f} GB of memory, a GPU has {room / 1e9:.1f} GB to give"
    )


def _fastest_variants(
    jobs: Sequence[TrainingJob],
    predictor: CalibratedJobs,
    machine: Machine,
    published: PublishedJobs,
    device: Device,
    is_measured: bool,
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
        unmeasured = (
            (() if predictor.has_measured(job) else ("this shape of a layer",))
            if is_measured
            else published.outside(job, device)
        )
        best[key] = Strategy(
            job, step, float(low[row]), float(high[row]), job_memory(job),
            _useful_flops(job) / (job.gpus * machine.flops * step / 1e9),
            "host" if hosts[row] > 0.5 else "gpu", unmeasured,
        )  # fmt: skip
    return tuple(best.values())


def _useful_flops(job: TrainingJob) -> float:
    """Return the FLOPs of a step without recomputation."""
    tokens = job.global_batch * job.sequence
    layer = 2.0 * job.layer_parameters + 4.0 * job.sequence * job.attention_width
    return 3.0 * tokens * (job.layers * layer + 2.0 * job.vocabulary * job.hidden)


def _notes(
    machine: Machine, is_measured: bool, published: PublishedJobs, flash_attention: bool
) -> tuple[str, ...]:
    found = [] if is_measured else [published.source]
    if not machine.memory_bytes:
        found.append("the memory of the GPU is not known: nothing was refused for lack of it")
    if not flash_attention:
        found.append(
            "scores of attention are written to memory, as they are without flash attention"
        )
    found.append(
        "memory is that of parameters, gradients, Adam's state and activations in half precision; "
        f"{RESERVED_BYTES // 2**30} GiB are left free"
    )
    return tuple(found)


add_renderer(
    f"{__name__}.Parallelism",
    "tables",
    lazy_renderer("torchtraceap.lab.jobs.text", "result_tables"),
)
