"""Training jobs (model, GPUs and schedule) and the machines on which they run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable
from torchtraceap.errors import OptionError
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.collectives import estimate_collective
from torchtraceap.ops.durations.estimate import UnknownDurationError, resolve_device

__all__ = ["NODE_BANDWIDTH", "RECOMPUTE", "SHARDED", "Machine", "TrainingJob"]

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
        reason = self._impossible()
        if reason:
            raise OptionError(f"{self!r}: {reason}")

    def _impossible(self) -> str:
        """Return the reason why the job cannot run, or an empty string."""
        if min(getattr(self, name) for name in _COUNTED) < 1:
            return "every size must be 1 or more"
        if self.flash_attention and self.recompute == "selective":
            return "flash attention computes its core again by itself: nothing is left to select"
        if min(self.heads, self.key_value_heads, self.head_size, self.feed_forward) < 0:
            return "heads, their size and the feed-forward size must not be negative"
        if self.recompute not in RECOMPUTE or self.zero not in SHARDED:
            return f"recompute is one of {', '.join(RECOMPUTE)}, zero 0, 1, 2 or 3"
        if self.global_batch % (self.micro_batch * self.data):
            return "the batch can't be divided evenly among replicas and micro-batches"
        if self.layers % (self.pipeline * self.chunks):
            return "layers can't be divided evenly among stages"
        if self.chunks > 1 and (self.pipeline == 1 or self.microbatches % self.pipeline):
            return (
                "an interleaved schedule needs stages, and micro-batches that are a multiple of "
                "them"
            )
        if self.attention_heads % self.tensor:
            return "heads can't be divided evenly among tensor-parallel ranks"
        return ""

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
    memory_bytes: float = 0.0
    """Memory of a GPU in bytes; 0 if unknown."""

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
            memory_bytes=float(known.memory_bytes),
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
