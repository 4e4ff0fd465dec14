"""Data parallelism, by torch's own code: DistributedDataParallel.

Note [Buckets]: torch's reducer gathers all gradients in one bucket in the first step. Before the
second it makes new buckets in the order in which gradients were ready (the first up to 1 MiB, the
others up to 25 MiB), which the third step has from its beginning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchtraceap.errors import OptionError
from torchtraceap.prediction.workload import Workload

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["STEPS_OF_COPIES", "with_copies"]

STEPS_OF_COPIES = 3
"""Until a step is like the next. See Note [Buckets]."""


def with_copies(workload: Workload, group: ProcessGroup) -> Workload:
    """Every rank of the group has the model; gradients are averaged in the backward pass.

    Raises:
        OptionError: Nothing of the model is trained.
    """
    from torch.nn.parallel import DistributedDataParallel

    if not any(parameter.requires_grad for parameter in workload.model.parameters()):
        raise OptionError("ddp averages gradients, and no parameter of the model has any")
    model = DistributedDataParallel(workload.model, process_group=group, init_sync=False)
    return replace(workload, model=model)
