"""A fake process group in which one process acts as a rank of a larger job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.prediction.parallel.strategy import Strategy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["fake_rank", "make_mesh"]


@contextmanager
def fake_rank(rank: int, world_size: int) -> Iterator[None]:
    """Act as a rank of torch's `fake` back end within the context.

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

    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def make_mesh(strategy: Strategy) -> DeviceMesh:
    """Return the device mesh with the groups of the strategy's dimensions."""
    from torch.distributed.device_mesh import init_device_mesh

    names = tuple(name for name, _ in strategy.dimensions)
    return init_device_mesh("cpu", strategy.shape, mesh_dim_names=names)
