"""Models, clusters, the training jobs that split one over the other, and the machines of jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, partial
from math import inf
from typing import Any

from torchtraceap.core import Renderable, dataclass
from torchtraceap.errors import OptionError
from torchtraceap.ops import Device, UnknownDurationError, estimate_collective, resolve_device

__all__ = ["RECOMPUTE", "SHARDED", "Cluster", "Machine", "TrainingJob", "Transformer"]

RECOMPUTE = ("none", "selective", "full")
"""Parts that the backward pass recomputes: nothing, the attention core, or whole layers
(Korthikanti et al., 2022)."""
SHARDED = (0, 1, 2, 3)
"""ZeRO stages, which say what replicas shard: nothing, the optimizer state, also gradients, also
parameters (FSDP)."""
HEAD_SIZE = 128
"""Head size of a model that does not say how many heads it has."""
NODE_BANDWIDTH = 100e9
"""Bytes per second in one direction out of a machine of eight GPUs: four 200 Gbit/s adapters, as in
vTrain's cluster (config.py of VIA-Research/vTrain: 800 Gbit/s)."""
NODE_LATENCY_NS = 20_000.0
"""Latency of a message between two machines: half of the smallest all-reduce of two machines in the
measured tables."""
_COUNTED = (
    "global_batch",
    "micro_batch",
    "hidden",
    "layers",
    "sequence",
    "tensor",
    "data",
    "pipeline",
    "vocabulary",
    "chunks",
)
MOST_GPUS = 65_536
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


def check_size(name: str, value: int, least: int = 1) -> None:
    """Check that a size is a whole number.

    Raises:
        OptionError: It is something else, or below `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 10**12:
        raise OptionError(f"{name} is a whole number from {least}, not {value!r}")


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
            check_size(name, getattr(self, name))
        for name in ("feed_forward", "key_value_heads", "head_size"):
            check_size(name, getattr(self, name), least=0)
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
        known = {key for keys in _NAMES.values() for key in keys}
        known |= {*_EXPERTS, "hidden_act", "activation_function", "model_type", "gated"}
        told: Mapping[str, Any] = (
            model
            if isinstance(model, Mapping)
            else {key: getattr(model, key, None) for key in known}
        )
        if any(told.get(name) for name in _EXPERTS):
            raise OptionError("mixtures of experts are not modeled")
        sizes: dict[str, int] = {}
        for name, keys in _NAMES.items():
            value = next((told[key] for key in keys if told.get(key) is not None), None)
            if value is None and name not in _OPTIONAL:
                raise OptionError(f"the model does not say its {name} ({', '.join(keys)})")
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
                raise OptionError(f"{name} is a whole number, not {value!r}")
            sizes[name] = int(value)
        activation = str(told.get("hidden_act") or told.get("activation_function") or "").lower()
        family = str(told.get("model_type") or "").lower()
        gated = told.get("gated")
        if gated is None:
            gated = activation in _GATED or family.startswith(_GATED_FAMILIES)
        return cls(**sizes, gated=bool(gated))


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
        check_size("gpus", self.gpus)
        check_size("gpus_per_node", self.gpus_per_node)
        rate = self.node_bandwidth
        if not isinstance(rate, int | float) or not 0 < rate < inf:
            raise OptionError(f"the network of a node has a rate above 0, not {rate!r}")
        if self.gpus > MOST_GPUS:
            raise OptionError(f"at most {MOST_GPUS} GPUs can be asked for")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise OptionError(f"{self.gpus} GPUs don't fill nodes of {self.gpus_per_node}")


@dataclass(frozen=True, slots=True)
class TrainingJob(Renderable):
    """A training job of a transformer, as Megatron runs it.

    Raises:
        OptionError: Batches, layers or heads can't be divided so.
    """

    global_batch: int
    micro_batch: int
    hidden: int
    layers: int
    sequence: int
    tensor: int
    """Number of tensor-parallel ranks."""
    data: int
    """Number of replicas."""
    pipeline: int
    """Number of pipeline stages."""
    vocabulary: int = 51_200
    heads: int = 0
    """Number of heads; 0 means one for each 128 hidden units."""
    key_value_heads: int = 0
    """Number of key and value heads; 0 means as many as heads."""
    head_size: int = 0
    """Elements of a head; 0 means the hidden units divided among the heads."""
    feed_forward: int = 0
    """Inner size of the feed-forward network; 0 means four times the hidden size."""
    gated: bool = False
    """True if that network has a third matrix, as SwiGLU has."""
    flash_attention: bool = False
    """True if attention scores stay on the chip and are recomputed in the backward pass."""
    recompute: str = "none"
    """A value of `RECOMPUTE`."""
    sequence_parallel: bool = False
    """True if norms and dropout are split along the sequence among tensor-parallel ranks."""
    chunks: int = 1
    """Model chunks per stage (interleaved schedule); 1 is 1F1B."""
    zero: int = 0
    """A value of `SHARDED`."""

    def __post_init__(self) -> None:
        reason = ""
        if min(getattr(self, name) for name in _COUNTED) < 1:
            reason = "every size must be 1 or more"
        elif self.flash_attention and self.recompute == "selective":
            reason = "flash attention computes its core again by itself: nothing is left to select"
        elif min(self.heads, self.key_value_heads, self.head_size, self.feed_forward) < 0:
            reason = "heads, their size and the feed-forward size must not be negative"
        elif self.recompute not in RECOMPUTE or self.zero not in SHARDED:
            reason = f"recompute is one of {', '.join(RECOMPUTE)}, zero 0, 1, 2 or 3"
        elif self.global_batch % (self.micro_batch * self.data):
            reason = "the batch can't be divided evenly among replicas and micro-batches"
        elif self.layers % (self.pipeline * self.chunks):
            reason = "layers can't be divided evenly among stages"
        elif self.chunks > 1 and (self.pipeline == 1 or self.microbatches % self.pipeline):
            reason = (
                "an interleaved schedule needs stages, and micro-batches that are a multiple of "
                "them"
            )
        elif self.attention_heads % self.tensor:
            reason = "heads can't be divided evenly among tensor-parallel ranks"
        if reason:
            raise OptionError(f"{self!r}: {reason}")

    @property
    def gpus(self) -> int:
        return self.tensor * self.data * self.pipeline

    @property
    def microbatches(self) -> int:
        """Micro-batches of each replica per step."""
        return self.global_batch // (self.micro_batch * self.data)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.sequence

    @property
    def attention_heads(self) -> int:
        return self.heads or max(1, self.hidden // HEAD_SIZE)

    @property
    def layer_parameters(self) -> int:
        """Parameters of the matrices of a layer, undivided."""
        heads, width = self.attention_heads, self.attention_width
        keys_and_values = 2 * width * (self.key_value_heads or heads) // heads
        inner = self.feed_forward or 4 * self.hidden
        return self.hidden * (2 * width + keys_and_values + (3 if self.gated else 2) * inner)

    @property
    def attention_width(self) -> int:
        """Elements of all heads for one token."""
        return self.attention_heads * self.head_size if self.head_size else self.hidden

    @property
    def stage_parameters(self) -> float:
        """Parameters of the rank that has the most: a stage's layers and one end of the model."""
        layers = self.layers / self.pipeline * self.layer_parameters
        return (layers + self.vocabulary * self.hidden) / self.tensor

    @property
    def shape(self) -> tuple[int | str | bool, ...]:
        """The properties on which the kernels of a layer depend."""
        return (
            self.hidden,
            self.tensor,
            self.micro_batch,
            self.sequence,
            self.attention_heads,
            self.layer_parameters,
            self.flash_attention,
            self.recompute,
            self.sequence_parallel,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU with its links to its neighbors and to other machines."""

    flops: float
    """Peak rate of half-precision matrix products, FLOP/s."""
    bandwidth: float
    """Memory bandwidth, bytes per second."""
    all_reduce_ns: Callable[[float, int], float]
    """Time of an all-reduce within a node in ns, by bytes and number of ranks."""
    gpus_per_node: int = 8
    node_bandwidth: float = NODE_BANDWIDTH
    """Bytes per second in one direction between a node and the others."""
    node_latency_ns: float = NODE_LATENCY_NS

    @classmethod
    def of(
        cls,
        device: str | Device,
        *,
        gpus_per_node: int = 8,
        node_bandwidth: float = NODE_BANDWIDTH,
    ) -> Machine:
        """Read a machine of one node from the device database and the measured tables of
        collectives.

        Raises:
            UnknownDurationError: The device is unknown, or its half-precision rate.
        """
        known = resolve_device(device)
        rate = known.matrix.get("fp16") or known.matrix.get("bf16")
        if not rate:
            raise UnknownDurationError(f"the half-precision rate of {known.name} is not known")
        if gpus_per_node < 1 or not node_bandwidth > 0:
            raise OptionError("a node has at least one GPU and a network of more than 0 byte/s")
        return cls(
            rate,
            known.bandwidth,
            partial(_measured_all_reduce, known.id),
            gpus_per_node,
            node_bandwidth,
        )

    def all_reduces(self, size: float, ranks: int, ranks_per_node: int) -> tuple[float, float]:
        """Return the time of an all-reduce within nodes and between them, in ns.

        Ranks of a node reduce among themselves, then rings connect the nodes. The GPUs of a node
        share its network: a group with g of n GPUs in each node has g / n of it, as the other
        groups are as busy.
        """
        inside = min(ranks, ranks_per_node)
        nodes = -(-ranks // inside)
        within = self.all_reduce_ns(size, inside) if inside > 1 else 0.0
        if nodes == 1:
            return within, 0.0
        rate = self.node_bandwidth * inside / self.gpus_per_node
        rounds = 2 * (nodes - 1)
        return within, rounds * (1e9 * size / nodes / rate + self.node_latency_ns)


@cache
def _measured_all_reduce(device: str, size: float, ranks: int) -> float:
    """Extend the measured tables: small messages take as long as the smallest, large ones are sent
    in parts.

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
