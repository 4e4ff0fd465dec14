"""Converts a recorded step to another number of ranks.

Note [What changes]: for data parallelism (DistributedDataParallel) and sharding (FSDP, ZeRO) the
groups of collectives change, and for shards their sizes; the computation of each rank stays. A step
of a single process becomes one of DDP: torch's reducer groups gradients in the order in which they
were ready (parallel/data.py, Note [Buckets]); each bucket is averaged when its last gradient is
ready and copied back when the backward pass ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

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
from torchtraceap.ops import collective_kind

__all__ = ["change_ranks", "ddp_buckets", "rank_count"]

_FIRST_BYTES, _BUCKET_BYTES = 1 << 20, 25 << 20
_COPIES = ("all_reduce", "broadcast")
_SHARDS = ("all_gather", "reduce_scatter")
_GROUP = "default_pg"
_ACCUMULATE = "torch::autograd::AccumulateGrad"


def rank_count(capture: Capture) -> int:
    """Return the number of ranks of a recorded step."""
    met = (rank for call in capture.calls if call.collective for rank in call.collective.group)
    return 1 + max(met, default=0)


def change_ranks(
    capture: Capture, strategy: Strategy, where: str
) -> tuple[Capture, list[int | None]]:
    """Return the recorded step of one rank among another number of ranks.

    Args:
        capture: Capture of a single process or of a rank of DDP or FSDP.
        strategy: The ranks.
        where: Name of the source for error messages.

    Returns:
        The step, and the index of each of its calls in the recorded one; None for new calls.

    Raises:
        OptionError: The record doesn't tell what such a step would be; the message says why.
    """
    requested = [name for name, size in strategy.dimensions if size > 1]
    other = [name for name in requested if name not in (DATA, SHARDED)]
    if other:
        raise OptionError(
            f"{where} is a recorded step, and {other[0]} cuts the model itself: which layers go "
            "where is not in a record; predict it from a model or a workload"
        )
    if any(
        call.collective is None
        and (call.name == "record_param_comms" or call.name.startswith("nccl"))
        for call in capture.calls
    ):
        raise OptionError(
            f"{where} does not say between which ranks its collectives are (recorded since "
            "PyTorch 2.3): another number of ranks can't be told"
        )
    started = [call for call in capture.calls if call.collective is not None]
    if not started:
        return _add_reducer(capture, strategy, where)
    _check_collectives(started, rank_count(capture), where)
    kinds = {collective_kind(call.collective.kind) for call in started if call.collective}
    has_shards = not kinds.isdisjoint(_SHARDS)
    if len(requested) > 1 or (SHARDED in requested and not has_shards):
        raise OptionError(
            f"{where} is a step of {'shards' if has_shards else 'copies'}; another strategy needs "
            "a model or a workload"
        )
    return _regroup(capture, strategy.world_size), [*range(len(capture.calls))]


# ------------------------------------------------------------------------ ranks that there are


def _check_collectives(started: Sequence[Call], ranks: int, where: str) -> None:
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


def _regroup(capture: Capture, ranks: int) -> Capture:
    """Change the number of ranks; the gathered size of shards stays, up to padding."""
    before = rank_count(capture)
    shards = {
        min(met.elements_in, met.elements_out)
        for call in capture.calls
        if (met := call.collective) and collective_kind(met.kind) in _SHARDS
    }

    def resize(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(resize, value))
        if not isinstance(value, TensorInfo) or value.elements not in shards or not value.shape:
            return value
        rows = -(-value.shape[0] * before // ranks)
        return replace(value, shape=(rows, *value.shape[1:]))

    calls = []
    for call in capture.calls:
        met = call.collective
        if met is None:
            inputs = {name: resize(value) for name, value in call.inputs.items()}
            calls.append(replace(call, inputs=inputs, outputs=tuple(map(resize, call.outputs))))
            continue
        elements = met.elements_in, met.elements_out
        if collective_kind(met.kind) in _SHARDS:
            part = -(-max(elements) // ranks)
            is_gather = met.elements_in <= met.elements_out
            elements = (part, part * ranks) if is_gather else (part * ranks, part)
        met = replace(
            met, group=tuple(range(ranks)), elements_in=elements[0], elements_out=elements[1]
        )
        calls.append(replace(call, collective=met))
    notes = [*capture.notes]
    if shards:
        notes.append(
            f"shards are those of {ranks} ranks instead of {before}; lists of tensors that the "
            "trace holds no sizes of are taken to scale alike only in their collectives"
        )
    return replace(capture, calls=tuple(calls), notes=tuple(notes), storages=None)


# -------------------------------------------------------------------------------- a single process


def _add_reducer(
    capture: Capture, strategy: Strategy, where: str
) -> tuple[Capture, list[int | None]]:
    """Return the step of one of several copies, with the calls of torch's reducer."""
    if strategy.size(SHARDED) > 1:
        raise OptionError(
            f"{where} is a step of a single process: which blocks of the model fsdp would shard is "
            "not in a record; predict it from a model or a workload, or with ddp"
        )
    if not capture.gradients:
        raise OptionError(
            f"{where} accumulates no gradients: copies of the model would have nothing to average"
        )
    reducer = _Reducer(strategy.world_size)
    buckets = ddp_buckets(capture.gradients)
    ready = sorted(capture.gradients, key=lambda each: each.calls)
    last = [max(each.calls for each in bucket) for bucket in buckets]
    waiting, started = list(range(len(buckets))), dict[int, int]()
    backward = [k for k, call in enumerate(capture.calls) if call.phase is Phase.BACKWARD]
    end = max([*last, backward[-1] + 1 if backward else 0])
    for place, call in enumerate((*capture.calls, None)):
        while ready and ready[0].calls <= place:
            reducer.average(ready.pop(0))
            # All ranks average buckets in the same order.
            while waiting and last[waiting[0]] <= place:
                number = waiting[0]
                if any(each is other for each in buckets[number] for other in ready):
                    break
                started[number] = reducer.start(buckets[number])
                del waiting[0]
        if place >= end:
            for number in sorted(started):
                reducer.finish(buckets[number], started.pop(number))
        if call is not None:
            reducer.calls.append(call)
            reducer.places.append(place)
    notes = [*capture.notes]
    if any("batch_norm" in call.name for call in capture.calls):
        notes.append("what ddp broadcasts of buffers in each forward pass is not counted")
    calls = tuple(reducer.calls)
    return replace(capture, calls=calls, notes=tuple(notes), storages=None), reducer.places


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


class _Reducer:
    """The calls of a step, and of torch's reducer between them."""

    def __init__(self, ranks: int) -> None:
        self.calls: list[Call] = []
        self.places: list[int | None] = []
        self._ranks = ranks

    def _add(
        self,
        name: str,
        overload: str,
        inputs: dict[str, Value],
        outputs: tuple[Value, ...],
        **more: Any,
    ) -> None:
        self.calls.append(Call(name, overload, inputs, outputs, Phase.BACKWARD, (), **more))
        self.places.append(None)

    def average(self, gradient: Gradient) -> None:
        """Copy a gradient into its bucket, divided by the number of ranks."""
        tensor = gradient.tensor
        inputs: dict[str, Value] = {"self": tensor, "other": 1.0 / self._ranks, "out": tensor}
        self._add("aten::mul", "out", inputs, (tensor,), node=_ACCUMULATE, is_innermost=True)

    def start(self, bucket: Sequence[Gradient]) -> int:
        """Start the all-reduce of a bucket and return its number."""
        elements = sum(each.tensor.elements for each in bucket)
        first = bucket[0].tensor
        index = len(self.calls)
        group = tuple(range(self._ranks))
        met = Collective("allreduce", group, _GROUP, elements, elements, first.dtype, index)
        flat = replace(first, shape=(elements,), strides=(1,))
        inputs: dict[str, Value] = {"tensors": (flat,)}
        self._add("c10d::allreduce_", "default", inputs, (), collective=met, node=_ACCUMULATE)
        return index

    def finish(self, bucket: Sequence[Gradient], waits_for: int) -> None:
        """Copy gradients back from a bucket after its all-reduce."""
        for place, gradient in enumerate(bucket):
            tensor = gradient.tensor
            inputs: dict[str, Value] = {"self": tensor, "src": tensor, "non_blocking": False}
            waits = waits_for if place == 0 else None
            self._add(
                "aten::copy_", "default", inputs, (tensor,), waits_for=waits, is_innermost=True
            )
