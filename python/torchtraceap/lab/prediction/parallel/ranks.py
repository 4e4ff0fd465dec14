"""Captures the step of one rank of each kind, from which the others follow."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.prediction.capture.calls import Capture, CaptureError
from torchtraceap.lab.prediction.capture.dispatch import capture_step, inspect_workload
from torchtraceap.lab.prediction.capture.recorder import Recorder
from torchtraceap.lab.prediction.capture.run import run_step
from torchtraceap.lab.prediction.parallel.data import (
    DDP_STEPS,
    DTENSOR_STEPS,
    FSDP_STEPS,
    apply_fsdp,
    emulate_fsdp_device,
    shard_rows,
    wrap_ddp,
)
from torchtraceap.lab.prediction.parallel.placement import Placement, Plan, place_lookups
from torchtraceap.lab.prediction.parallel.strategy import (
    DATA,
    EMBEDDING,
    PIPELINE,
    SHARDED,
    TENSOR,
    Strategy,
)
from torchtraceap.lab.workloads.workload import Workload, check_workload
from torchtraceap.ops import Device

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
        calls = []
        for call in capture.calls:
            met = call.collective
            if met is not None:
                group = self.strategy.seen_from(rank, met.group, example)
                peer = met.peer
                if peer is not None:
                    (peer,) = self.strategy.seen_from(rank, (peer,), example)
                call = replace(call, collective=replace(met, group=group, peer=peer))
            calls.append(call)
        return replace(capture, calls=tuple(calls))


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
    make = _copy_model(make)

    def kinds_of(workload: Workload) -> tuple[int, ...]:
        """Return the kind of each rank by its stage and the rows that it keeps."""
        if placement is not None:
            return placement.kinds
        known: dict[tuple[int, tuple[int, ...]], int] = {}
        kinds = []
        for rank in range(strategy.world_size):
            index = strategy.coordinate(rank, SHARDED)
            parts, size = strategy.size(TENSOR), strategy.size(SHARDED)
            rows = shard_rows(workload.model, parts, size, index)
            key = strategy.coordinate(rank, PIPELINE), rows
            kinds.append(known.setdefault(key, len(known)))
        return tuple(kinds)

    kinds = inspect_workload(make, kinds_of)
    examples = [kinds.index(kind) for kind in sorted(set(kinds))]
    captures = tuple(_capture_rank(make, strategy, each, placement) for each in examples)
    return RankCaptures(strategy, captures, kinds)


def _copy_model(make: Callable[[], Any]) -> Callable[[], Any]:
    """Copy the model of later workloads, since sharding changes it.

    The first call returns the model itself and must not change it.
    """
    seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def make_copy() -> Workload:
        workload = check_workload(make())
        if workload.model in seen:
            return replace(workload, model=deepcopy(workload.model))
        seen.add(workload.model)
        return workload

    return make_copy


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


def _capture_rank(
    make: Callable[[], Any], strategy: Strategy, rank: int, placement: Placement | None
) -> Capture:
    """Capture the step of a rank in the first variant of the strategy that the model can run.

    The process acts as the rank of torch's `fake` back end.

    Raises:
        OptionError: The process already has a process group.
        MissingDependencyError: This build of torch has no torch.distributed.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise MissingDependencyError("this build of torch has no torch.distributed")
    if dist.is_initialized():
        raise OptionError("ranks are captured in a process that has no process group of its own")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    variant, world_size = _Variant(), strategy.world_size
    while True:
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
        try:
            capture = capture_step(make, partial(_run_steps, strategy, variant, placement))
            return replace(capture, notes=(*capture.notes, *variant.notes))
        except CaptureError as error:
            variant = _next_variant(variant, strategy, error)
        finally:
            dist.destroy_process_group()


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


def _run_steps(
    strategy: Strategy,
    variant: _Variant,
    placement: Placement | None,
    workload: Workload,
    recorder: Recorder,
) -> torch.nn.Module:
    """Run the steps of the current rank."""
    from torch.distributed.device_mesh import init_device_mesh

    names = tuple(name for name, _ in strategy.dimensions)
    mesh = init_device_mesh("cpu", strategy.shape, mesh_dim_names=names)
    if placement is not None:
        from torchtraceap.lab.prediction.parallel.embeddings import run_shared_tables

        group, unused = mesh.get_group(EMBEDDING), variant.finds_unused
        return run_shared_tables(workload, placement, group, recorder, finds_unused=unused)
    if strategy.size(TENSOR) > 1:
        with recorder.paused():
            _split(workload, strategy, mesh[TENSOR], variant)
    with ExitStack() as stack:
        if strategy.by_words and variant.splits_loss:
            from torchtraceap.lab.prediction.parallel.tokens import parallel_loss

            stack.enter_context(parallel_loss())
        if strategy.size(PIPELINE) > 1:
            from torchtraceap.lab.prediction.parallel.pipeline import run_stage

            return run_stage(workload, strategy, mesh, recorder, finds_unused=variant.finds_unused)
        steps = DTENSOR_STEPS if strategy.by_words else None
        if strategy.size(SHARDED) > 1:
            sharded = (DATA, SHARDED) if strategy.size(DATA) > 1 else (SHARDED,)
            stack.enter_context(emulate_fsdp_device(recorder))
            workload, steps = apply_fsdp(workload, mesh[sharded]), FSDP_STEPS
        elif strategy.size(DATA) > 1:
            group = mesh.get_group(DATA)
            workload = wrap_ddp(workload, group, finds_unused=variant.finds_unused)
            steps = DDP_STEPS
        return run_step(workload, recorder, steps=steps)


def _split(workload: Workload, strategy: Strategy, mesh: DeviceMesh, variant: _Variant) -> None:
    """Split layers, tokens and vocabulary over the ranks of tensor parallelism."""
    from torchtraceap.lab.prediction.parallel.tensor import split_layers
    from torchtraceap.lab.prediction.parallel.tokens import (
        block_stacks,
        find_vocabulary,
        shard_tokens,
        shard_vocabulary,
        sum_gradients,
    )

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
        summed = words is None or not words.enters_blocks
        whole = words is None or not words.leaves_blocks
        shard_tokens(stacks, group, unsplit, enters_summed=summed, leaves_whole=whole)
        if words is not None and not whole:
            sum_gradients(words.between, group, unsplit)
