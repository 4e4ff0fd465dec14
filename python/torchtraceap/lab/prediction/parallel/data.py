"""Data parallelism by torch's own code: DistributedDataParallel and fully_shard (FSDP2).

Note [Buckets]: torch's reducer gathers all gradients in one bucket in the first step. Before the
second it rebuilds buckets in the order in which gradients were ready (the first up to 1 MiB, the
others up to 25 MiB), which the third step has from its beginning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.parallel.blocks import model_blocks
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
        workload: Its model is changed: each block is sharded, and what is left at the root.
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
        model: Not changed yet.
        parts: Into how many layers are split; whether one is by rows is left open.
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
