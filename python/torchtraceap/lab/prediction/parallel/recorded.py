"""Converts a recorded step to another number of ranks.

Note [What changes]: for data parallelism (DistributedDataParallel) and sharding (FSDP, ZeRO) the
groups of collectives change, and for shards their sizes; the computation of each rank stays. A step
of a single process becomes one of DDP: torch's reducer groups gradients in the order in which they
were ready (parallel/data.py, Note [Buckets]); each bucket is averaged when its last gradient is
ready and copied back when the backward pass ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import (
    Call,
    Capture,
    Collective,
    Gradient,
    Phase,
    TensorInfo,
    Value,
)
from torchtraceap.lab.prediction.parallel.strategy import DATA, SHARDED, Strategy
from torchtraceap.ops.durations import collective_kind

__all__ = ["ChangedRanks", "change_ranks", "ddp_buckets", "expand_values", "rank_count"]

_FIRST_BYTES, _BUCKET_BYTES = 1 << 20, 25 << 20
_COPIES = ("all_reduce", "broadcast")
_SHARDS = ("all_gather", "reduce_scatter")
_GROUP = "default_pg"
_ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True)
class ChangedRanks:
    """A recorded step converted to another number of ranks."""

    capture: Capture
    places: tuple[int | None, ...]
    """Index of each call in the recorded step; None for new calls."""


def rank_count(capture: Capture) -> int:
    """Return the number of ranks of a recorded step."""
    met = (rank for call in capture.calls if call.collective for rank in call.collective.group)
    return 1 + max(met, default=0)


def change_ranks(capture: Capture, strategy: Strategy, where: str) -> ChangedRanks:
    """Return the recorded step of one rank among another number of ranks.

    Args:
        capture: Capture of a single process or of a rank of DDP or FSDP.
        strategy: The ranks.
        where: Name of the source for error messages.

    Raises:
        OptionError: The record doesn't tell what such a step would be; the message says why.
    """
    other = [name for name, size in strategy.dimensions if name not in (DATA, SHARDED) and size > 1]
    if other:
        raise OptionError(
            f"{where} is a recorded step, and {other[0]} cuts the model itself: which layers go "
            "where is not in a record; predict it from a model or a workload"
        )
    if any(_is_unnamed(call) for call in capture.calls):
        raise OptionError(
            f"{where} does not say between which ranks its collectives are (recorded since "
            "PyTorch 2.3): another number of ranks can't be told"
        )
    started = [call for call in capture.calls if call.collective is not None]
    if not started:
        return _with_copies(capture, strategy, where)
    _check_whole_world(started, rank_count(capture), where)
    _check_strategy(started, strategy, where)
    return ChangedRanks(_regrouped(capture, strategy.world_size), tuple(range(len(capture.calls))))


def _is_unnamed(call: Call) -> bool:
    is_exchange = call.name == "record_param_comms" or call.name.startswith("nccl")
    return is_exchange and call.collective is None


# ------------------------------------------------------------------------ ranks that there are


def _check_whole_world(started: Sequence[Call], ranks: int, where: str) -> None:
    for call in started:
        met = call.collective
        assert met is not None
        kind = collective_kind(met.kind)
        what = f"{where} has {met.kind} in its {call.phase.value} pass"
        if met.peer is not None or kind == "send_recv":
            raise OptionError(f"{what}: stages of a pipeline can't be told from one's record")
        if kind == "all_to_all":
            raise OptionError(
                f"{what}: what each rank holds would be dealt out anew, which a record doesn't tell"
            )
        if kind not in (*_COPIES, *_SHARDS):
            raise OptionError(f"{what}, and what other ranks would make of that is not known")
        if kind == "all_reduce" and call.phase is Phase.FORWARD:
            raise OptionError(
                f"{what}, as layers that are split among ranks have it; a record doesn't tell "
                "what another split would be"
            )
        if len(met.group) != ranks:
            raise OptionError(
                f"{what} among {len(met.group)} of {ranks} ranks: which of several dimensions "
                "would get more is not told"
            )


def _check_strategy(started: Sequence[Call], strategy: Strategy, where: str) -> None:
    """Check that the requested strategy matches the recorded one."""
    kinds = {collective_kind(call.collective.kind) for call in started if call.collective}
    has_shards = bool(kinds & set(_SHARDS))
    asked = {name for name, size in strategy.dimensions if size > 1}
    if len(asked) > 1 or (SHARDED in asked and not has_shards):
        raise OptionError(
            f"{where} is a step of {'shards' if has_shards else 'copies'}; another strategy needs "
            "a model or a workload"
        )


def _regrouped(capture: Capture, ranks: int) -> Capture:
    before = rank_count(capture)
    shards = {
        min(met.elements_in, met.elements_out)
        for call in capture.calls
        if (met := call.collective) and collective_kind(met.kind) in _SHARDS
    }
    calls = tuple(_of_ranks(call, before, ranks, shards) for call in capture.calls)
    notes = [*capture.notes]
    if shards:
        notes.append(
            f"shards are those of {ranks} ranks instead of {before}; lists of tensors that the "
            "trace holds no sizes of are taken to scale alike only in their collectives"
        )
    return replace(capture, calls=calls, notes=tuple(notes), storages=None)


def _of_ranks(call: Call, before: int, ranks: int, shards: set[int]) -> Call:
    if call.collective is not None:
        return replace(call, collective=_regroup(call.collective, ranks))

    def other(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(other, value))
        if not isinstance(value, TensorInfo) or value.elements not in shards or not value.shape:
            return value
        rows = -(-value.shape[0] * before // ranks)
        return replace(value, shape=(rows, *value.shape[1:]))

    inputs = {name: other(value) for name, value in call.inputs.items()}
    return replace(call, inputs=inputs, outputs=tuple(map(other, call.outputs)))


def _regroup(met: Collective, ranks: int) -> Collective:
    """Change the number of ranks; the gathered size of shards stays, up to padding."""
    found = replace(met, group=tuple(range(ranks)))
    if collective_kind(met.kind) not in _SHARDS:
        return found
    part = -(-max(met.elements_in, met.elements_out) // ranks)
    if met.elements_in <= met.elements_out:
        return replace(found, elements_in=part, elements_out=part * ranks)
    return replace(found, elements_in=part * ranks, elements_out=part)


# -------------------------------------------------------------------------------- a single process


def _with_copies(capture: Capture, strategy: Strategy, where: str) -> ChangedRanks:
    if strategy.size(SHARDED) > 1:
        raise OptionError(
            f"{where} is a step of one process: which blocks of the model fsdp would shard is not "
            "in a record; predict it from a model or a workload, or with ddp"
        )
    if not capture.gradients:
        raise OptionError(
            f"{where} accumulates no gradients: copies of the model would have nothing to average"
        )
    made = _Copies(capture, strategy.world_size)
    notes = [*capture.notes]
    if any("batch_norm" in call.name for call in capture.calls):
        notes.append("what ddp broadcasts of buffers in each forward pass is not counted")
    copies = replace(capture, calls=tuple(made.calls), notes=tuple(notes), storages=None)
    return ChangedRanks(copies, tuple(made.places))


def ddp_buckets(gradients: Iterable[Gradient]) -> list[list[Gradient]]:
    """Group gradients into the buckets of torch's reducer, by type and size."""
    found: list[list[Gradient]] = []
    open_ones: dict[str, list[Gradient]] = {}
    closed: set[str] = set()
    for gradient in gradients:
        kind = gradient.tensor.dtype.name
        bucket = open_ones.get(kind)
        if bucket is None:
            bucket = open_ones[kind] = []
            found.append(bucket)
        bucket.append(gradient)
        size = sum(each.tensor.elements * each.tensor.dtype.size for each in bucket)
        if size >= (_BUCKET_BYTES if kind in closed else _FIRST_BYTES):
            del open_ones[kind]
            closed.add(kind)
    return found


class _Copies:
    """Adds the calls of torch's reducer to a step."""

    def __init__(self, capture: Capture, ranks: int) -> None:
        self.calls: list[Call] = []
        self.places: list[int | None] = []
        self._ranks = ranks
        buckets = ddp_buckets(capture.gradients)
        ready = sorted(capture.gradients, key=lambda each: each.calls)
        last = [max(each.calls for each in bucket) for bucket in buckets]
        waiting, started = list(range(len(buckets))), dict[int, int]()
        backward = [k for k, call in enumerate(capture.calls) if call.phase is Phase.BACKWARD]
        end = max([*last, backward[-1] + 1 if backward else 0])
        for place, call in enumerate((*capture.calls, None)):
            while ready and ready[0].calls <= place:
                self._add(_averaged(ready.pop(0), ranks))
                # All ranks average buckets in the same order.
                while (
                    waiting
                    and last[waiting[0]] <= place
                    and not _misses(buckets[waiting[0]], ready)
                ):
                    number = waiting.pop(0)
                    started[number] = self._start(buckets[number])
            if started and place >= end:
                self._finish(buckets, started)
            if call is not None:
                self.calls.append(call)
                self.places.append(place)

    def _add(self, call: Call) -> None:
        self.calls.append(call)
        self.places.append(None)

    def _start(self, bucket: Sequence[Gradient]) -> int:
        elements = sum(each.tensor.elements for each in bucket)
        first = bucket[0].tensor
        index = len(self.calls)
        group = tuple(range(self._ranks))
        met = Collective("allreduce", group, _GROUP, elements, elements, first.dtype, index)
        flat = replace(first, shape=(elements,), strides=(1,))
        call = Call("c10d::allreduce_", "default", {"tensors": (flat,)}, (), Phase.BACKWARD, ())
        self._add(replace(call, collective=met, node=_ACCUMULATE))
        return index

    def _finish(self, buckets: Sequence[Sequence[Gradient]], started: dict[int, int]) -> None:
        """Copy gradients back from each bucket after its all-reduce."""
        for number in sorted(started):
            waits: int | None = started[number]
            for gradient in buckets[number]:
                self._add(_copied_back(gradient, waits))
                waits = None
        started.clear()


def _misses(bucket: Sequence[Gradient], ready: Sequence[Gradient]) -> bool:
    return any(any(each is other for other in ready) for each in bucket)


def _averaged(gradient: Gradient, ranks: int) -> Call:
    """Copy a gradient into its bucket, divided by the number of ranks."""
    tensor = gradient.tensor
    inputs: dict[str, Value] = {"self": tensor, "other": 1.0 / ranks, "out": tensor}
    call = Call("aten::mul", "out", inputs, (tensor,), Phase.BACKWARD, (), node=_ACCUMULATE)
    return replace(call, is_innermost=True)


def _copied_back(gradient: Gradient, waits_for: int | None) -> Call:
    tensor = gradient.tensor
    inputs: dict[str, Value] = {"self": tensor, "src": tensor, "non_blocking": False}
    call = Call("aten::copy_", "default", inputs, (tensor,), Phase.BACKWARD, ())
    return replace(call, waits_for=waits_for, is_innermost=True)


def expand_values(values: Sequence[int], places: Iterable[int | None]) -> Iterator[int]:
    """Return the values of recorded calls for each call; 0 for new ones."""
    return (0 if place is None else values[place] for place in places)
