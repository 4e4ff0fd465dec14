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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchtraceap.lab.collection.emulated.network import NETWORKS, Network, TransferTimes
from torchtraceap.record.export import as_nccl_records

if TYPE_CHECKING:
    from torchtraceap.lab.collection.emulated.faults import FORMS, Form, Parallel
    from torchtraceap.lab.collection.emulated.group import EmulatedGroup, process_group

_MODULES = {
    "FORMS": "faults",
    "EmulatedGroup": "group",
    "Form": "faults",
    "Parallel": "faults",
    "process_group": "group",
}

__all__ = [
    "FORMS",
    "NETWORKS",
    "EmulatedGroup",
    "Form",
    "Network",
    "Parallel",
    "TransferTimes",
    "as_nccl_records",
    "process_group",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
