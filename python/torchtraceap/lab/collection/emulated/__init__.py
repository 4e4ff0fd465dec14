"""Collectives of one rank among others that are not there: a c10d backend called `emu`.

    >>> from torchtraceap.lab.collection import emulated
    >>> with emulated.process_group(world_size=8, network="nvlink"):
    ...     model = torch.nn.parallel.DistributedDataParallel(model)
    ...     ...

DDP, FSDP2 and what else calls `torch.distributed` run unmodified in this one process, as rank 0.
What they issue, when and with how many bytes is real; the time of a transfer is drawn from
`torchtraceap.ops.durations`, and its result is what rank 0 would get if all ranks held the same
data (docs/labeled_data.md). torch is imported when a name that needs it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.lab.collection.emulated.faults import FORMS as FORMS
    from torchtraceap.lab.collection.emulated.faults import Form as Form
    from torchtraceap.lab.collection.emulated.faults import Parallel as Parallel
    from torchtraceap.lab.collection.emulated.group import EmulatedGroup as EmulatedGroup
    from torchtraceap.lab.collection.emulated.group import process_group as process_group
    from torchtraceap.lab.collection.emulated.transfers import NETWORKS as NETWORKS
    from torchtraceap.lab.collection.emulated.transfers import Network as Network
    from torchtraceap.lab.collection.emulated.transfers import TransferTimes as TransferTimes
    from torchtraceap.record import as_nccl_records as as_nccl_records
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".faults": ("FORMS", "Form", "Parallel"),
            ".group": ("EmulatedGroup", "process_group"),
            ".transfers": ("NETWORKS", "Network", "TransferTimes"),
            "torchtraceap.record": ("as_nccl_records",),
        },
    )
