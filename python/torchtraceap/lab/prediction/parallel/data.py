"""Data parallelism by torch's own code: DistributedDataParallel and fully_shard (FSDP2).

Note [Buckets]: torch's reducer gathers all gradients in one bucket in the first step. Before the
second it rebuilds buckets in the order in which gradients were ready (the first up to 1 MiB, the
others up to 25 MiB), which the third step has from its beginning.

Note [Device]: FSDP2 expects streams, events and memory of a GPU, and on a CPU streams and events do
nothing. The emulated ones tell the recorder the dependencies, and when the memory of gathered
parameters is freed while their tensors stay.
"""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from unittest import mock

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import COMPUTE
from torchtraceap.lab.prediction.capture.recorder import Recorder, Streams
from torchtraceap.lab.workloads.workload import Workload

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "DDP_STEPS",
    "DTENSOR_STEPS",
    "FSDP_STEPS",
    "PLAIN_STEPS",
    "apply_fsdp",
    "emulate_fsdp_device",
    "model_blocks",
    "shard_rows",
    "wrap_ddp",
]

DDP_STEPS = 3
"""Steps until DDP is in the steady state; see Note [Buckets]."""
FSDP_STEPS = 3
"""Steps until FSDP2 is in the steady state.

The first step makes streams, groups and state. Waits refer to the end of the previous step, which
has to be like the recorded one.
"""
DTENSOR_STEPS = 2
"""Steps until sharded tensors are in the steady state, after propagating their layouts."""
PLAIN_STEPS = 2
"""Steps until a single process is in the steady state, after creating optimizer state."""
_MODULE = "torch.distributed.fsdp._fully_shard"
_ASKING = ("_fsdp_collectives", "_fsdp_param_group", "_fsdp_state")
_MAKING = (
    "_fsdp_collectives.DefaultAllocMixin.allocate",
    "_fsdp_param.FSDPParam.init_all_gather_outputs",
)
"""Functions that allocate parameters and gradients, which have no values."""
_NAMES = ("all_gather_copy_in", "all_gather", "reduce_scatter", "all_reduce")
"""Names of the streams in the order in which FSDP2 makes them."""


def wrap_ddp(workload: Workload, group: ProcessGroup, *, finds_unused: bool = False) -> Workload:
    """Wrap the model in DDP, which averages gradients in the backward pass.

    Args:
        workload: Workload of each rank.
        group: The ranks.
        finds_unused: True if some parameters get no gradient.

    Raises:
        OptionError: Nothing of the model is trained.
    """
    from torch.nn.parallel import DistributedDataParallel

    if not any(parameter.requires_grad for parameter in workload.model.parameters()):
        raise OptionError("ddp averages gradients, and no parameter of the model has any")
    model = DistributedDataParallel(
        workload.model,
        process_group=group,
        init_sync=False,
        find_unused_parameters=finds_unused,
    )
    return replace(workload, model=model)


def apply_fsdp(workload: Workload, mesh: DeviceMesh) -> Workload:
    """Shard the parameters of the model with FSDP2, block by block.

    Args:
        workload: Workload whose model is changed: each block is sharded, and the rest at the root.
        mesh: A mesh of one dimension, or of two of which the first replicates.
    """
    from torch.distributed.fsdp import fully_shard

    for block in model_blocks(workload.model).values():
        fully_shard(block, mesh=mesh)
    fully_shard(workload.model, mesh=mesh)
    return workload


def shard_rows(model: torch.nn.Module, parts: int, size: int, index: int) -> tuple[int, ...]:
    """Return the rows of each parameter that a rank keeps, which determine its kind.

    Args:
        model: The unchanged model.
        parts: Number of parts of each split layer, by rows or not.
        size: Number of ranks among which parameters are sharded.
        index: Coordinate of a rank among them.
    """
    found = []
    for parameter in model.parameters():
        whole = parameter.shape[0] if parameter.dim() else 1
        for rows in (whole, whole // parts):
            each = -(-rows // size)
            found.append(max(0, min(each, rows - index * each)))
    return tuple(found)


def model_blocks(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the repeated blocks by name in the order of the model, none nested in another.

    They are what the model says that should stay whole (`_no_split_modules` of transformers), else
    the members of its outermost lists and sequences in which a type of layer recurs.
    """
    import torch

    whole = set(getattr(model, "_no_split_modules", None) or ())
    named = {n: m for n, m in model.named_modules() if type(m).__name__ in whole}
    if not named:
        for name, module in model.named_modules():
            if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
                continue
            members = {
                f"{name}.{child}".lstrip("."): layer
                for child, layer in module.named_children()
                if any(True for _ in layer.parameters())
            }
            if any(count > 1 for count in Counter(map(type, members.values())).values()):
                named |= members

    def is_inside(name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:end]) in named for end in range(1, len(parts)))

    return {name: module for name, module in named.items() if not is_inside(name)}


@contextmanager
def emulate_fsdp_device(recorder: Recorder) -> Iterator[None]:
    """Give FSDP2 the streams of a GPU and report freed memory to the recorder.

    See Note [Device].
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    device, free = _Device(recorder.streams), _fsdp_param.free_storage

    def free_and_record(tensor: Any) -> None:
        if tensor.untyped_storage().size():
            recorder.free(tensor)
        free(tensor)

    with ExitStack() as stack:
        for module in _ASKING:
            place = f"{_MODULE}.{module}._get_device_handle"
            stack.enter_context(mock.patch(place, lambda *_: device))
        stack.enter_context(mock.patch(f"{_MODULE}._fsdp_param.free_storage", free_and_record))
        for place in _MAKING:
            whole, _, name = f"{_MODULE}.{place}".rpartition(".")
            made = getattr(pkgutil.resolve_name(whole), name)
            stack.enter_context(mock.patch(f"{whole}.{name}", _blank(recorder, made)))
        yield


def _blank(recorder: Recorder, function: Any) -> Any:
    """Return a function whose new tensors have no values."""

    @wraps(function)
    def blank(*args: Any, **kwargs: Any) -> Any:
        with recorder.blank():
            return function(*args, **kwargs)

    return blank


class _Device:
    """The parts of `torch.cuda` that FSDP2 uses."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._names = iter(_NAMES)
        self.Event = partial(_Event, streams)

    def Stream(self, **_: Any) -> _Stream:  # noqa: N802 (of torch.cuda)
        return _Stream(self._streams, next(self._names))

    def current_stream(self) -> _Stream:
        return _Stream(self._streams, self._streams.current)

    def stream(self, stream: _Stream) -> Any:
        return self._streams.select(stream.name)


class _Stream:
    def __init__(self, streams: Streams, name: str = COMPUTE) -> None:
        self._streams, self.name = streams, name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def wait_stream(self, other: _Stream) -> None:
        if other.name != self.name:
            self._streams.wait(self.name, self._streams.point(other.name))

    def wait_event(self, event: _Event) -> None:
        if event.stream != self.name:
            self._streams.wait(self.name, event.point)

    def record_event(self) -> _Event:
        event = _Event(self._streams)
        event.record(self)
        return event


class _Event:
    def __init__(self, streams: Streams, **_: Any) -> None:
        self._streams = streams
        self.stream, self.point = "", frozenset[int]()

    def record(self, stream: _Stream | None = None) -> None:
        self.stream = stream.name if stream else self._streams.current
        self.point = self._streams.point(self.stream)
