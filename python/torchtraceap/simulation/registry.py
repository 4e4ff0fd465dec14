"""Edits by name: the package's own and a user's.

from torchtraceap.simulation.registry import register

register("skip_logging", SkipLogging)             # a class of the Edit protocol, or
register("batch_size", BatchSize, value="N")      # with a value: batch_size=64
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.allocator import NoAllocatorCalls
from torchtraceap.simulation.edits.base import Edit
from torchtraceap.simulation.edits.collectives import (
    BucketSize,
    MergeCollectives,
    OverlapCollectives,
)
from torchtraceap.simulation.edits.copies import PinMemory
from torchtraceap.simulation.edits.fusion import FuseOptimizer, FusePointwise
from torchtraceap.simulation.edits.graphs import CudaGraph, MergeCompiledRegions
from torchtraceap.simulation.edits.loading import LoaderWorkers
from torchtraceap.simulation.edits.precision import (
    ChannelsLast,
    MixedPrecision,
    OtherDevice,
)
from torchtraceap.simulation.edits.removal import (
    NoBroadcastBuffers,
    no_recompilation,
    no_unused_parameter_search,
    zero_grad_to_none,
)
from torchtraceap.simulation.edits.straggler import StragglerToMedian
from torchtraceap.simulation.edits.synchronisation import RemoveHostSync

__all__ = ["DEFAULT_EDITS", "EDITS_OF_FINDING", "edit_names", "make_edit", "register"]

Factory = Callable[[str | None], Edit] | Callable[[], Edit]


@dataclass(frozen=True, slots=True)
class _Entry:
    make: Callable[..., Edit]
    value: str
    """What stands behind the name; empty: nothing may."""
    required: bool


_EDITS: dict[str, _Entry] = {}


def register(name: str, make: Factory, *, value: str = "", required: bool = False) -> None:
    """Adds an edit, in place of an earlier one of that name.

    Args:
        name: As on the command line.
        make: Makes the edit; with `value` it takes the text behind the `=`, or None.
        value: What that text is, such as "N", for the help. Empty: the edit takes none.
        required: Without a value the name makes no sense.
    """
    _EDITS[name] = _Entry(make, value, required)


def edit_names() -> list[str]:
    """Names with their values, such as "loader_workers[=N]"."""

    def shown(name: str, entry: _Entry) -> str:
        if not entry.value:
            return name
        return f"{name}={entry.value}" if entry.required else f"{name}[={entry.value}]"

    return [shown(name, entry) for name, entry in _EDITS.items()]


def make_edit(text: str) -> Edit:
    """The edit that a text such as "loader_workers=4" names.

    Raises:
        OptionError: No edit has that name, or the value makes no sense.
    """
    name, has_value, value = text.strip().partition("=")
    entry = _EDITS.get(name)
    if entry is None:
        raise OptionError(f"no edit is called {name!r}; there are: {', '.join(edit_names())}")
    if has_value and not entry.value:
        raise OptionError(f"{name} takes no value, but {value!r} was given")
    if entry.required and not value:
        raise OptionError(f"{name} needs a value: {name}={entry.value}")
    return entry.make(value or None) if entry.value else entry.make()


register("pin_memory", PinMemory, value="HtoD|DtoH")
register("loader_workers", LoaderWorkers, value="N")
register("remove_host_sync", RemoveHostSync)
register("overlap_collectives", OverlapCollectives)
register("merge_collectives", MergeCollectives)
register("bucket_size_mb", BucketSize, value="MIB")
register("straggler_to_median", StragglerToMedian)
register("cuda_graph", CudaGraph)
register("fused_optimizer", FuseOptimizer)
register("fuse_pointwise", FusePointwise)
register("mixed_precision", MixedPrecision, value="bf16|fp16|tf32")
register("channels_last", ChannelsLast)
register("no_allocator_calls", NoAllocatorCalls)
register("merge_compiled_regions", MergeCompiledRegions)
register("zero_grad_to_none", zero_grad_to_none)
register("no_unused_parameter_search", no_unused_parameter_search)
register("no_recompilation", no_recompilation)
register("no_broadcast_buffers", NoBroadcastBuffers)
register("device", OtherDevice, value="NAME", required=True)

DEFAULT_EDITS: tuple[str, ...] = (
    "pin_memory",
    "loader_workers=4",
    "remove_host_sync",
    "overlap_collectives",
    "merge_collectives",
    "bucket_size_mb=25",
    "straggler_to_median",
    "cuda_graph",
    "fused_optimizer",
    "fuse_pointwise",
    "mixed_precision",
    "channels_last",
    "no_allocator_calls",
    "merge_compiled_regions",
    "zero_grad_to_none",
    "no_unused_parameter_search",
    "no_recompilation",
    "no_broadcast_buffers",
)
"""What is tried if nothing is named: every fix that needs no decision of the user."""

EDITS_OF_FINDING: dict[str, tuple[str, ...]] = {
    "single_process_data_loading": ("loader_workers=4",),
    "worker_starvation": ("loader_workers=8",),
    "no_memory_pin": ("pin_memory=HtoD",),
    "blocking_copy": ("pin_memory=HtoD",),
    "high_memcpy": ("pin_memory",),
    "graph_break": ("merge_compiled_regions",),
    "cpu_bound": ("cuda_graph",),
    "tiny_kernels": ("cuda_graph", "fuse_pointwise"),
    "small_nccl_kernels": ("merge_collectives",),
    "nccl_blocks_main_stream": ("overlap_collectives",),
    "nccl_compute_not_overlapped": ("overlap_collectives",),
    "one_bucket_ddp": ("bucket_size_mb=25",),
    "per_parameter_all_reduce": ("bucket_size_mb=25", "merge_collectives"),
    "host_sync_in_loop": ("remove_host_sync",),
    "explicit_synchronize": ("remove_host_sync",),
    "allocator_thrash": ("no_allocator_calls",),
    "unfused_optimizer": ("fused_optimizer",),
    "fp32_matmul": ("mixed_precision", "mixed_precision=tf32"),
    "layout_conversion": ("channels_last",),
    "straggler": ("straggler_to_median",),
    "zero_grad_not_none": ("zero_grad_to_none",),
    "find_unused_parameters": ("no_unused_parameter_search",),
    "recompilation": ("no_recompilation",),
    "broadcast_buffers": ("no_broadcast_buffers",),
}
"""The edits that stand for the fix of a finding, by its type; the first is the one proposed."""
