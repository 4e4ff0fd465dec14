"""Captures the step of one rank of each kind, from which the others follow."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Call, Capture, CaptureError
from torchtraceap.lab.prediction.capture.dispatch import Run, capture_step, inspect_workload
from torchtraceap.lab.prediction.capture.recorder import Recorder
from torchtraceap.lab.prediction.capture.run import run_step
from torchtraceap.lab.prediction.parallel.data import (
    DDP_STEPS,
    DTENSOR_STEPS,
    FSDP_STEPS,
    apply_fsdp,
    shard_rows,
    wrap_ddp,
)
from torchtraceap.lab.prediction.parallel.placement import Placement, Plan, place_lookups
from torchtraceap.lab.prediction.parallel.sharded_device import emulate_fsdp_device
from torchtraceap.lab.prediction.parallel.strategy import (
    DATA,
    EMBEDDING,
    PIPELINE,
    SHARDED,
    TENSOR,
    Strategy,
)
from torchtraceap.lab.prediction.parallel.world import fake_rank, make_mesh
from torchtraceap.lab.workloads.workload import Workload, check_workload
from torchtraceap.ops.devices import Device

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["RankCaptures", "capture_ranks", "place_tables"]


@dataclass(frozen=True, slots=True)
class RankCaptures:
    """Captured steps of all ranks, shared by ranks of one kind."""

    strategy: Strategy
    captures: tuple[Capture, ...]
    """Capture of the first rank of each kind."""
    kind_of_rank: tuple[int, ...]
    """Index in `captures` for each rank."""

    def of_rank(self, rank: int) -> Capture:
        """Return the step of a rank with its own process groups."""
        kind = self.kind_of_rank[rank]
        example, capture = self.kind_of_rank.index(kind), self.captures[kind]
        if rank == example:
            return capture
        calls = (self._seen_from(rank, call, example) for call in capture.calls)
        return replace(capture, calls=tuple(calls))

    def _seen_from(self, rank: int, call: Call, example: int) -> Call:
        if call.collective is None:
            return call

        met = call.collective
        group = self.strategy.seen_from(rank, met.group, example)
        peer = met.peer
        if peer is not None:
            (peer,) = self.strategy.seen_from(rank, (peer,), example)
        return replace(call, collective=replace(met, group=group, peer=peer))


def place_tables(
    make: Callable[[], Any],
    world_size: int,
    device: str | Device,
    plan: Plan | None = None,
) -> Placement:
    """Place the embedding tables of a workload.

    Args:
        make: Makes the workload.
        world_size: Number of ranks.
        device: GPU of the ranks.
        plan: Requested placement, see `Plan`.

    Raises:
        OptionError: There are no tables, they don't fit, or the plan can't be.
        CaptureError: The model needs values that fake tensors don't have.
    """
    from torchtraceap.lab.prediction.parallel.embeddings import table_lookups, table_optimizer

    lookups, optimizer = inspect_workload(
        make, lambda workload: (table_lookups(workload), table_optimizer(workload))
    )
    return place_lookups(lookups, world_size, device, plan, optimizer)


def capture_ranks(
    make: Callable[[], Any], strategy: Strategy, placement: Placement | None = None
) -> RankCaptures:
    """Capture one step of each kind of rank without computing or sending anything.

    Args:
        make: Makes the workload, see `Workload`. Its inputs are those of one rank.
        strategy: Strategy of the job.
        placement: Placement of shared embedding tables.

    Raises:
        OptionError: `make` returns no workload, or the strategy doesn't fit it.
        CaptureError: The model needs values that fake tensors don't have.
    """
    if strategy.world_size == 1:
        return RankCaptures(strategy, (capture_step(make),), (0,))
    placed_for = None if placement is None else placement.world_size
    if strategy.size(EMBEDDING) > 1 and placed_for != strategy.world_size:
        raise OptionError("embedding needs the places of the tables (place_tables)")
    make = _copied_model(make)

    def kinds_of(workload: Workload) -> tuple[int, ...]:
        return placement.kinds if placement is not None else _kinds(workload.model, strategy)

    kinds = inspect_workload(make, kinds_of)
    examples = [kinds.index(kind) for kind in sorted(set(kinds))]
    captures = tuple(_capture(make, strategy, each, placement) for each in examples)
    return RankCaptures(strategy, captures, kinds)


def _copied_model(make: Callable[[], Any]) -> Callable[[], Any]:
    """Copy the model of later workloads, since sharding changes it.

    The first call returns the model itself and must not change it.
    """
    seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def made() -> Workload:
        workload = check_workload(make())
        if workload.model in seen:
            return replace(workload, model=deepcopy(workload.model))
        seen.add(workload.model)
        return workload

    return made


@dataclass(frozen=True, slots=True)
class _Variant:
    """A variant of a strategy that a model can run."""

    attention: bool = True
    """True if tensor parallelism splits attention."""
    splits_loss: bool = True
    """True if the loss takes a shard of the vocabulary on each rank."""
    gathers_late: bool = True
    """True if the head of a split vocabulary gathers tokens instead of the last block."""
    finds_unused: bool = False
    """True if DDP doesn't wait for gradients of unused parameters."""
    notes: tuple[str, ...] = ()
    """Notes for a person."""


def _capture(
    make: Callable[[], Any], strategy: Strategy, rank: int, placement: Placement | None
) -> Capture:
    variant = _Variant()
    while True:
        with fake_rank(rank, strategy.world_size):
            try:
                capture = capture_step(make, _step_runner(strategy, variant, placement))
            except CaptureError as error:
                variant = _next_variant(variant, strategy, error)
                continue
        return replace(capture, notes=(*capture.notes, *variant.notes))


def _next_variant(variant: _Variant, strategy: Strategy, error: CaptureError) -> _Variant:
    """Return the next variant after an error, or raise the error."""
    if not isinstance(error.__cause__, RuntimeError):
        raise error
    said = str(error.__cause__)
    if "find_unused_parameters" in said and not variant.finds_unused:
        note = "not every parameter gets a gradient, for which ddp has find_unused_parameters=True"
        return replace(variant, finds_unused=True, notes=(*variant.notes, note))
    if strategy.by_words and strategy.by_sequence and variant.gathers_late:
        return replace(variant, gathers_late=False)  # what lies between takes all tokens
    if strategy.by_words and variant.splits_loss:
        note = "logits of all words are gathered, as the loss can't take some of them"
        note = f"{note}: {said.partition(chr(10))[0]}"
        return replace(variant, splits_loss=False, notes=(*variant.notes, note))
    # With a part of the tokens on each rank, replicated attention would miss the others.
    if strategy.size(TENSOR) > 1 and variant.attention and not strategy.by_sequence:
        whole = "attention is whole on every rank, as the model can't run with some heads"
        note = f"{whole}: {said.partition(chr(10))[0]}"
        return replace(variant, attention=False, splits_loss=True, notes=(note,))
    raise error


def _kinds(model: torch.nn.Module, strategy: Strategy) -> tuple[int, ...]:
    """Return the kind of each rank by its stage and the rows it keeps."""
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    kinds = []
    for rank in range(strategy.world_size):
        index = strategy.coordinate(rank, SHARDED)
        shards = shard_rows(model, strategy.size(TENSOR), strategy.size(SHARDED), index)
        key = strategy.coordinate(rank, PIPELINE), shards
        kinds.append(known.setdefault(key, len(known)))
    return tuple(kinds)


def _step_runner(strategy: Strategy, variant: _Variant, placement: Placement | None) -> Run:
    """Return a function that runs the steps of the current rank."""

    def run(workload: Workload, recorder: Recorder) -> torch.nn.Module:
        mesh = make_mesh(strategy)
        if placement is not None:
            from torchtraceap.lab.prediction.parallel.embeddings import run_shared_tables

            group = mesh.get_group(EMBEDDING)
            unused = variant.finds_unused
            return run_shared_tables(workload, placement, group, recorder, finds_unused=unused)
        if strategy.size(TENSOR) > 1:
            with recorder.paused():
                _split(workload, strategy, mesh[TENSOR], variant)
        if strategy.by_words and variant.splits_loss:
            from torchtraceap.lab.prediction.parallel.vocabulary import parallel_loss

            with parallel_loss():
                return _run_steps(workload, strategy, mesh, recorder, variant)
        return _run_steps(workload, strategy, mesh, recorder, variant)

    return run


def _run_steps(
    workload: Workload, strategy: Strategy, mesh: DeviceMesh, recorder: Recorder, variant: _Variant
) -> torch.nn.Module:
    """Run steps of the current rank after its layers are split."""
    from torchtraceap.lab.prediction.parallel.pipeline import run_stage

    steps = DTENSOR_STEPS if strategy.by_words else None
    if strategy.size(PIPELINE) > 1:
        return run_stage(workload, strategy, mesh, recorder, finds_unused=variant.finds_unused)
    if strategy.size(SHARDED) > 1:
        names = (DATA, SHARDED) if strategy.size(DATA) > 1 else (SHARDED,)
        with emulate_fsdp_device(recorder):
            workload = apply_fsdp(workload, mesh[names])
            return run_step(workload, recorder, steps=FSDP_STEPS)
    if strategy.size(DATA) > 1:
        group = mesh.get_group(DATA)
        workload = wrap_ddp(workload, group, finds_unused=variant.finds_unused)
        steps = DDP_STEPS
    return run_step(workload, recorder, steps=steps)


def _split(workload: Workload, strategy: Strategy, mesh: DeviceMesh, variant: _Variant) -> None:
    """Split layers, tokens and vocabulary over the ranks of tensor parallelism."""
    from torchtraceap.lab.prediction.parallel.sequence import (
        block_stacks,
        shard_tokens,
        sum_gradients,
    )
    from torchtraceap.lab.prediction.parallel.tensor import split_layers
    from torchtraceap.lab.prediction.parallel.vocabulary import find_vocabulary, shard_vocabulary

    model, group, by_sequence = workload.model, mesh.get_group(), strategy.by_sequence
    stacks = block_stacks(model) if by_sequence else []
    ends = [stacks[0][0], stacks[-1][-1]] if stacks else []
    words = find_vocabulary(workload, ends) if strategy.by_words else None
    if words is not None and not variant.gathers_late:
        words = replace(words, leaves_blocks=False)
    unsplit = set(model.parameters())
    split_layers(model, group, attention=variant.attention, by_sequence=by_sequence)
    if words is not None:
        splits_loss = variant.splits_loss and workload.loss is not None
        shard_vocabulary(words, mesh, by_sequence=by_sequence, splits_loss=splits_loss)
    if by_sequence:
        summed, whole = (
            words is None or not words.enters_blocks,
            words is None or not words.leaves_blocks,
        )
        shard_tokens(stacks, group, unsplit, enters_summed=summed, leaves_whole=whole)
        if words is not None and not whole:
            sum_gradients(words.between, group, unsplit)
