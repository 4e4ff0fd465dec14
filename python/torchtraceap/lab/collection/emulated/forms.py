"""Ways to make a model parallel: those of a fault in its collectives, and the good twin of each.

A form takes a model and gives a `Parallel`: what is called in its place, and what has to happen
between the backward pass and the update. Model, data and the amount of communication are the same
in both twins, but where the fault is in it.

Note [Decoys]: a decoy is DDP, as its twin, with exchanges beside those of the gradients that look
like a fault: many small ones, one that is waited for in the forward pass, one that nothing
overlaps. They cost nothing: compute hides them, they are over by then, or they are tiny.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

__all__ = ["FORMS", "Form", "Parallel"]

_SMALL = "small_nccl_kernels"
_BLOCKING = "nccl_blocks_main_stream"
_SERIAL = "nccl_compute_not_overlapped"
_TINY_MB = 0.05
_GIANT_MB = 1 << 14
_METRICS = 4
_HIDDEN, _STATISTICS = 8, 64
"""Layers with a hidden exchange, and the numbers in one."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """A model as one rank's part of a job."""

    module: nn.Module
    """Takes what the model takes."""
    reduce: Callable[[], None] = field(default=lambda: None)
    """To be called after the backward pass, before the update."""


@dataclass(frozen=True, slots=True)
class Form:
    """A fault in the collectives of a training step."""

    name: str
    type: str
    """Of the fault, or what the decoy looks like."""
    make: Callable[[nn.Module, bool], Parallel]
    """Model, and whether it gets the fault; inside `process_group`."""
    test: bool = False
    """Never in what anything is trained on."""
    decoy: bool = False
    """Looks like a fault, and costs nothing."""
    gpu: bool = False
    """torch has no such operator for a CPU."""


def _replicas(model: nn.Module, bucket_mb: float | None = None) -> nn.Module:
    """By default buckets of 25 MiB, whose reduction overlaps the backward pass."""
    on = next(model.parameters()).device
    ids = [on.index or 0] if on.type == "cuda" else None
    options = {} if bucket_mb is None else {"bucket_cap_mb": bucket_mb}
    found: nn.Module = DistributedDataParallel(model, device_ids=ids, **options)
    return found


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.requires_grad]


def _average(gradient: Tensor) -> None:
    dist.all_reduce(gradient)
    gradient.div_(dist.get_world_size())


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Children with weights; of lists and sequences, their members."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)):
            found += _blocks(child)
        elif any(True for _ in child.parameters()):
            found.append(child)
    return found


def _leaves(model: nn.Module) -> list[nn.Module]:
    return [each for each in model.modules() if any(True for _ in each.parameters(recurse=False))]


def _sharded(model: nn.Module, units: Iterable[nn.Module]) -> nn.Module:
    mesh = dist.init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for unit in units:
        if unit is not model:
            fully_shard(unit, mesh=mesh)
    found: nn.Module = fully_shard(model, mesh=mesh)
    return found


# --------------------------------------------------------------------- many small collectives


def _tiny_buckets(model: nn.Module, bad: bool) -> Parallel:
    """DDP with buckets of 50 KiB."""
    return Parallel(_replicas(model, _TINY_MB if bad else None))


def _by_parameter(model: nn.Module, bad: bool) -> Parallel:
    """Each gradient has a collective of its own, as soon as it is there."""
    if not bad:
        return Parallel(_replicas(model))
    works: list[tuple[object, Tensor]] = []

    def start(parameter: Tensor) -> None:
        assert parameter.grad is not None
        works.append((dist.all_reduce(parameter.grad, async_op=True), parameter.grad))

    for each in _trained(model):
        each.register_post_accumulate_grad_hook(start)

    def finish() -> None:
        for work, gradient in works:
            work.wait()  # type: ignore[attr-defined]
            gradient.div_(dist.get_world_size())
        works.clear()

    return Parallel(model, finish)


def _shared_statistics(model: nn.Module, bad: bool) -> Parallel:
    """Batch normalisation over all ranks: a small collective for each layer, in both passes."""
    return Parallel(_replicas(nn.SyncBatchNorm.convert_sync_batchnorm(model) if bad else model))


def _shards_of_leaves(model: nn.Module, bad: bool) -> Parallel:
    """FSDP2 with every layer as a unit, and not every block."""
    return Parallel(_sharded(model, _leaves(model) if bad else _blocks(model)))


# ----------------------------------------------------------- collectives that block the stream


def _waits_for_each_bucket(model: nn.Module, bad: bool) -> Parallel:
    """A communication hook that waits where it stands."""
    found = _replicas(model)

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        _average(bucket.buffer())
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=_devices(bucket.buffer()))
        done.set_result(bucket.buffer())
        return done

    hook.__annotations__.clear()  # DDP compares them with types, and these are texts
    if bad:
        found.register_comm_hook(None, hook)
    return Parallel(found)


def _devices(tensor: Tensor) -> list[torch.device] | None:
    return [tensor.device] if tensor.is_cuda else None


def _metrics_in_forward(model: nn.Module, bad: bool) -> Parallel:
    """Averages of activations over all ranks, waited for behind some layers of the forward pass.

    The good twin takes as many, and waits for them after the backward pass.
    """
    averages = _Averages()

    def note(module: nn.Module, inputs: object, output: object) -> None:
        value = _mean(output)
        if value is None:
            return
        averages.start(value)
        if bad:  # the very next layer waits for it
            averages.wait()

    blocks = _blocks(model)
    for block in blocks[:: max(1, len(blocks) // _METRICS)]:
        block.register_forward_hook(note)

    return Parallel(_replicas(model), averages.wait)


class _Averages:
    """Sums over all ranks that are under way."""

    def __init__(self) -> None:
        self._works: list[Any] = []

    def start(self, value: Tensor) -> None:
        self._works.append(dist.all_reduce(value, async_op=True))

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        self._works.clear()


def _mean(output: object) -> Tensor | None:
    """Of a layer's output, over the batch."""
    value = next((each for each in _tensors(output) if each.is_floating_point()), None)
    return None if value is None else value.detach().float().mean(0)


def _tensors(output: object) -> Iterable[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for each in output:
            yield from _tensors(each)


def _waits_for_each_gradient(model: nn.Module, bad: bool) -> Parallel:
    """Every gradient is reduced and waited for before the backward pass goes on."""
    if not bad:
        return Parallel(_replicas(model))

    def reduce(parameter: Tensor) -> None:
        assert parameter.grad is not None
        _average(parameter.grad)

    for each in _trained(model):
        each.register_post_accumulate_grad_hook(reduce)
    return Parallel(model)


# ------------------------------------------------------- communication that nothing overlaps


def _after_backward(model: nn.Module, bad: bool) -> Parallel:
    """All gradients are reduced as one array when the backward pass is over."""
    if not bad:
        return Parallel(_replicas(model))

    def reduce() -> None:
        gradients = [each.grad for each in _trained(model) if each.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        _average(flat)
        for gradient, part in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))

    return Parallel(model, reduce)


def _one_bucket(model: nn.Module, bad: bool) -> Parallel:
    """DDP with one bucket, which is full when the last gradient is there."""
    return Parallel(_replicas(model, _GIANT_MB if bad else None))


def _reduced_at_the_end(model: nn.Module, bad: bool) -> Parallel:
    """DDP that accumulates only (`no_sync`), and a reduction of each gradient at the end."""
    found = _replicas(model)
    if not bad:
        return Parallel(found)
    found.require_backward_grad_sync = False  # what no_sync() sets

    def reduce() -> None:
        for each in _trained(model):
            if each.grad is not None:
                _average(each.grad)

    return Parallel(found, reduce)


def _one_shard(model: nn.Module, bad: bool) -> Parallel:
    """FSDP2 with the whole model as one unit: nothing is computed while it is gathered."""
    return Parallel(_sharded(model, [] if bad else _blocks(model)))


# --------------------------------------------------------- what costs nothing (Note [Decoys])


def _hidden_statistics(model: nn.Module, bad: bool) -> Parallel:
    """A small average over all ranks behind some layers, which the rest of the pass hides.

    The good twin sends the same numbers as one array.
    """
    averages = _Averages()
    small: list[Tensor] = []

    def note(module: nn.Module, inputs: object, output: object) -> None:
        value = _few(output)
        if value is not None and bad:
            averages.start(value)
        elif value is not None:
            small.append(value)

    leaves = _leaves(model)
    for leaf in leaves[:: max(1, len(leaves) // _HIDDEN)]:
        leaf.register_forward_hook(note)

    def finish() -> None:
        if small:
            averages.start(torch.cat(small))
            small.clear()
        averages.wait()

    return Parallel(_replicas(model), finish)


def _waits_for_what_is_over(model: nn.Module, bad: bool) -> Parallel:
    """A statistic of the last step is sent when a step begins, and waited for in the middle of the
    forward pass, when it is long there. The good twin waits behind the backward pass."""
    averages = _Averages()
    last: list[Tensor] = []
    blocks = _blocks(model)

    def send(module: nn.Module, inputs: object) -> None:
        if last:
            averages.start(last.pop())

    def wait(module: nn.Module, inputs: object, output: object) -> None:
        if bad:
            averages.wait()

    def note(module: nn.Module, inputs: object, output: object) -> None:
        value = _few(output)
        if value is not None:
            last[:] = [value]

    blocks[0].register_forward_pre_hook(send)
    blocks[-1].register_forward_hook(note)
    blocks[(len(blocks) - 1) // 2].register_forward_hook(wait)
    return Parallel(_replicas(model), averages.wait)


def _norm_at_the_end(model: nn.Module, bad: bool) -> Parallel:
    """The norm of the gradients summed over all ranks behind the backward pass: one number.

    The good twin, whose gradients are the same everywhere, keeps its own.
    """

    def reduce() -> None:
        gradients = [each.grad for each in _trained(model) if each.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if bad:
            dist.all_reduce(norm)

    return Parallel(_replicas(model), reduce)


def _few(output: object) -> Tensor | None:
    """Some of the numbers of `_mean`."""
    value = _mean(output)
    return None if value is None else value.flatten()[:_STATISTICS].contiguous()


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        form.name: form
        for form in (
            Form("tiny_buckets", _SMALL, _tiny_buckets),
            Form("all_reduce_by_parameter", _SMALL, _by_parameter),
            Form("shared_statistics", _SMALL, _shared_statistics, gpu=True),
            Form("shards_of_leaves", _SMALL, _shards_of_leaves, test=True),
            Form("waits_for_each_bucket", _BLOCKING, _waits_for_each_bucket),
            Form("metrics_in_forward", _BLOCKING, _metrics_in_forward),
            Form("waits_for_each_gradient", _BLOCKING, _waits_for_each_gradient, test=True),
            Form("all_reduce_after_backward", _SERIAL, _after_backward),
            Form("one_bucket", _SERIAL, _one_bucket),
            Form("reduced_at_the_end", _SERIAL, _reduced_at_the_end, test=True),
            Form("one_shard", _SERIAL, _one_shard, test=True),
            Form("hidden_statistics", _SMALL, _hidden_statistics, decoy=True),
            Form("waits_for_what_is_over", _BLOCKING, _waits_for_what_is_over, decoy=True),
            Form("norm_at_the_end", _SERIAL, _norm_at_the_end, decoy=True),
        )
    }
)
"""Every form by its name."""
