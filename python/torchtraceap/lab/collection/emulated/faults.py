"""Ways to make a model parallel: with a fault in its collectives, and as its good twin.

A fault takes a model and returns a `Parallel`: what is called in its place, and what has to happen
between the backward pass and the update. Model, data and the amount of communication are the same
in both twins, but where the fault is in it. `lab/generation/faults.py` describes each by name.

Note [Look-alikes]: a look-alike is DDP, as its twin, with exchanges beside those of the gradients
that look like a fault: many small ones, one that is waited for in the forward pass, one that
nothing overlaps. They cost nothing: compute hides them, they are over by then, or they are tiny.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torchtraceap.lab.generation.faults import STEP_FAULTS, Fault

__all__ = ["FORMS", "Form", "Parallel"]

_TINY_MB = 0.05
_GIANT_MB = 1 << 14
_METRICS = 4
_HIDDEN, _STATISTICS = 8, 64
"""Layers with a hidden exchange, and the numbers in one."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """A model as one rank's part of a job."""

    module: nn.Module
    """A module that takes what the model takes."""
    reduce: Callable[[], None] = field(default=lambda: None)
    """Called after the backward pass, before the update."""


Making = Callable[[nn.Module, bool], Parallel]


@dataclass(frozen=True, kw_only=True)
class Form(Fault):
    """A fault in the collectives of a training step."""

    make: Making
    """Makes a model parallel, with the fault or without; inside `process_group`."""
    gpu: bool = False
    """True if torch has no such operator for a CPU."""

    @property
    def decoy(self) -> bool:
        """True if it looks like a fault, and costs nothing."""
        return self.look_alike


_FORMS: dict[str, Form] = {}


def _makes(name: str, *, gpu: bool = False) -> Callable[[Making], Making]:
    def add(make: Making) -> Making:
        _FORMS[name] = Form(**asdict(STEP_FAULTS[name]), make=make, gpu=gpu)
        return make

    return add


def _replicas(model: nn.Module, bucket_mb: float | None = None) -> nn.Module:
    """Return DDP; by default with buckets of 25 MiB, whose reduction overlaps the backward pass."""
    on = next(model.parameters()).device
    ids = [on.index or 0] if on.type == "cuda" else None
    options = {} if bucket_mb is None else {"bucket_cap_mb": bucket_mb}
    found: nn.Module = DistributedDataParallel(model, device_ids=ids, **options)
    return found


def _trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.requires_grad]


def _average(gradient: Tensor) -> None:
    dist.all_reduce(gradient)
    gradient.div_(dist.get_world_size())


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return children with weights; of lists and sequences, their members."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)):
            found += _blocks(child)
        elif any(True for _ in child.parameters()):
            found.append(child)
    return found


def _leaves(model: nn.Module) -> list[nn.Module]:
    return [each for each in model.modules() if any(True for _ in each.parameters(recurse=False))]


def _shard(model: nn.Module, units: Iterable[nn.Module]) -> nn.Module:
    mesh = dist.init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for unit in units:
        if unit is not model:
            fully_shard(unit, mesh=mesh)
    found: nn.Module = fully_shard(model, mesh=mesh)
    return found


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
    """Return the mean over the batch of a layer's first floating-point output."""
    if isinstance(output, Tensor):
        return output.detach().float().mean(0) if output.is_floating_point() else None
    if isinstance(output, (tuple, list)):
        return next((mean for each in output if (mean := _mean(each)) is not None), None)
    return None


def _few(output: object) -> Tensor | None:
    """Return some of the numbers of `_mean`."""
    value = _mean(output)
    return None if value is None else value.flatten()[:_STATISTICS].contiguous()


# --------------------------------------------------------------------- many small collectives


@_makes("tiny_buckets")
def _tiny_buckets(model: nn.Module, bad: bool) -> Parallel:
    return Parallel(_replicas(model, _TINY_MB if bad else None))


@_makes("all_reduce_by_parameter")
def _by_parameter(model: nn.Module, bad: bool) -> Parallel:
    if not bad:
        return Parallel(_replicas(model))
    works: list[tuple[Any, Tensor]] = []

    def start(parameter: Tensor) -> None:
        assert parameter.grad is not None
        works.append((dist.all_reduce(parameter.grad, async_op=True), parameter.grad))

    for each in _trained_parameters(model):
        each.register_post_accumulate_grad_hook(start)

    def finish() -> None:
        for work, gradient in works:
            work.wait()
            gradient.div_(dist.get_world_size())
        works.clear()

    return Parallel(model, finish)


@_makes("shared_statistics", gpu=True)
def _shared_statistics(model: nn.Module, bad: bool) -> Parallel:
    return Parallel(_replicas(nn.SyncBatchNorm.convert_sync_batchnorm(model) if bad else model))


@_makes("shards_of_leaves")
def _shards_of_leaves(model: nn.Module, bad: bool) -> Parallel:
    return Parallel(_shard(model, _leaves(model) if bad else _blocks(model)))


@_makes("hidden_statistics")
def _hidden_statistics(model: nn.Module, bad: bool) -> Parallel:
    """See Note [Look-alikes]. The good twin sends the same numbers as one array."""
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


# ----------------------------------------------------------- collectives that block the stream


@_makes("waits_for_each_bucket")
def _waits_for_each_bucket(model: nn.Module, bad: bool) -> Parallel:
    found = _replicas(model)

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        _average(buffer)
        devices = [buffer.device] if buffer.is_cuda else None
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        done.set_result(buffer)
        return done

    hook.__annotations__.clear()  # DDP compares them with types, and these are texts
    if bad:
        found.register_comm_hook(None, hook)
    return Parallel(found)


@_makes("metrics_in_forward")
def _metrics_in_forward(model: nn.Module, bad: bool) -> Parallel:
    """Average activations behind some layers. The good twin waits for as many after the backward
    pass."""
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


@_makes("waits_for_each_gradient")
def _waits_for_each_gradient(model: nn.Module, bad: bool) -> Parallel:
    if not bad:
        return Parallel(_replicas(model))

    def reduce(parameter: Tensor) -> None:
        assert parameter.grad is not None
        _average(parameter.grad)

    for each in _trained_parameters(model):
        each.register_post_accumulate_grad_hook(reduce)
    return Parallel(model)


@_makes("waits_for_what_is_over")
def _waits_for_what_is_over(model: nn.Module, bad: bool) -> Parallel:
    """Send a statistic of the last step when a step begins, and wait for it in the middle of the
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


# ------------------------------------------------------- communication that nothing overlaps


@_makes("all_reduce_after_backward")
def _after_backward(model: nn.Module, bad: bool) -> Parallel:
    """Reduce all gradients as one array."""
    if not bad:
        return Parallel(_replicas(model))

    def reduce() -> None:
        gradients = [each.grad for each in _trained_parameters(model) if each.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        _average(flat)
        for gradient, part in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))

    return Parallel(model, reduce)


@_makes("one_bucket")
def _one_bucket(model: nn.Module, bad: bool) -> Parallel:
    return Parallel(_replicas(model, _GIANT_MB if bad else None))


@_makes("reduced_at_the_end")
def _reduced_at_the_end(model: nn.Module, bad: bool) -> Parallel:
    found = _replicas(model)
    if not bad:
        return Parallel(found)
    found.require_backward_grad_sync = False  # what no_sync() sets

    def reduce() -> None:
        for each in _trained_parameters(model):
            if each.grad is not None:
                _average(each.grad)

    return Parallel(found, reduce)


@_makes("one_shard")
def _one_shard(model: nn.Module, bad: bool) -> Parallel:
    """Shard the whole model as one unit: nothing is computed while it is gathered."""
    return Parallel(_shard(model, [] if bad else _blocks(model)))


@_makes("norm_at_the_end")
def _norm_at_the_end(model: nn.Module, bad: bool) -> Parallel:
    """Sum the norm of the gradients over all ranks. The good twin, whose gradients are the same
    everywhere, keeps its own."""

    def reduce() -> None:
        gradients = [each.grad for each in _trained_parameters(model) if each.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if bad:
            dist.all_reduce(norm)

    return Parallel(_replicas(model), reduce)


FORMS: Mapping[str, Form] = MappingProxyType(
    {name: _FORMS[name] for name, fault in STEP_FAULTS.items() if fault.parallel}
)
"""Every fault by its name."""
