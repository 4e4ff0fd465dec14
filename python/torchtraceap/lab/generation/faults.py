"""The registry of faults that can be injected into runs, and of their look-alikes.

A look-alike resembles a fault and costs nothing. Each fault has a back end that injects it: into
the graph of a run (`graph_faults.py`), as events between those of a trace (`event_faults.py`), or
into the steps of a real workload (`lab/collection/workloads/`, and for collectives
`lab/collection/emulated/faults.py`). The order of a registry decides what a seed draws.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EVENT_FAULTS", "GRAPH_FAULTS", "STEP_FAULTS", "Fault"]


@dataclass(frozen=True)
class Fault:
    """A fault that can be injected, or a look-alike of one."""

    name: str
    type: str
    """Type in the product; for a look-alike, the type that it resembles."""
    description: str
    look_alike: bool = False
    test: bool = False
    """True if nothing may be trained on it."""
    other_types: tuple[str, ...] = ()
    """Further types that a look-alike resembles."""
    trained: bool = False
    """True if it needs a backward pass."""
    compiled: bool = False
    """True if it needs a compiled forward pass."""
    parallel: bool = False
    """True if it is in the collectives of several ranks."""


def _registry(*faults: Fault) -> dict[str, Fault]:
    return {fault.name: fault for fault in faults}


_LOADING, _PIN, _COPIES = "single_process_data_loading", "no_memory_pin", "high_memcpy"
_READBACK, _READ, _SYNC = "pageable_readback", "host_sync_in_loop", "explicit_synchronize"
_ALLOCATOR, _HOST, _SILENCE = "allocator_thrash", "cpu_bound", "host_silence"
_BREAK, _STRAGGLER = "graph_break", "straggler"
_SMALL, _BLOCKING = "small_nccl_kernels", "nccl_blocks_main_stream"
_SERIAL = "nccl_compute_not_overlapped"

GRAPH_FAULTS = _registry(
    Fault("slow_loader", _LOADING, "The training process loads its batches itself."),
    Fault("slow_collate", _LOADING, "It also takes long to collate them.", test=True),
    Fault("pageable_upload", _PIN, "The batch comes from memory that is not pinned."),
    Fault("uploads_by_sample", _PIN, "Each sample comes from such memory by itself.", test=True),
    Fault("copies_back_and_forth", _COPIES, "Activations of layers go to the host and back."),
    Fault("activations_read_back", _READBACK, "Results are copied to memory that is not pinned."),
    Fault("item_reads", _READ, "The host reads single values in the step."),
    Fault("device_synchronize", _SYNC, "The program waits for the device, as to measure times."),
    Fault("allocator_churn", _ALLOCATOR, "Memory is freed to the device and requested again."),
    Fault("slow_host", _HOST, "All host work is slower, as on a processor that others use."),
    Fault("many_small_operators", _HOST, "Hundreds of kernels do what one could do."),
    Fault("pauses", _SILENCE, "The host does nothing that is recorded, as in garbage collection."),
    Fault("graph_breaks", _BREAK, "Python runs between separately compiled parts of a pass."),
    Fault("small_buckets", _SMALL, "Gradients are reduced by parameter as soon as they are there."),
    Fault("small_at_the_end", _SMALL, "They are reduced by parameter after the pass.", test=True),
    Fault("waited_for", _BLOCKING, "Compute waits for each bucket at once."),
    Fault("behind_the_backward_pass", _SERIAL, "All gradients are reduced after the last one."),
    Fault("late_rank", _STRAGGLER, "A rank stands still in each step."),
    Fault("late_rank_by_its_gpu", _STRAGGLER, "The GPU of a rank has a lower clock.", test=True),
    Fault("late_rank_by_its_loader", _STRAGGLER, "A rank loads its batches itself."),
    Fault("late_rank_by_its_host", _STRAGGLER, "The host of a rank is slower."),
    Fault("hidden_fetch", _LOADING, "A batch is loaded while the GPU has work.", look_alike=True),
    Fault("hidden_upload", _PIN, "A pinned copy overlaps compute.", look_alike=True),
    Fault("small_constants", _PIN, "A few numbers come from pageable memory.", look_alike=True),
    Fault("hidden_readback", _COPIES, "A pinned copy that nobody waits for.", look_alike=True),
    Fault("idle_read", _READ, "One value a step is read of finished work.", look_alike=True),
    Fault("idle_synchronize", _SYNC, "The program waits for an idle device.", look_alike=True),
    Fault("hidden_slow_host", _HOST, "A slow host, ahead of a busy GPU.", look_alike=True),
    Fault("hidden_allocations", _ALLOCATOR, "Allocations under GPU work.", look_alike=True),
    Fault("more_buckets", _SMALL, "Smaller buckets that the pass still hides.", look_alike=True),
    Fault("late_but_awaited", _STRAGGLER, "A rank is late by less than it may.", look_alike=True),
)
"""Faults of the graph of a run, by name; the faults first."""

EVENT_FAULTS = _registry(
    Fault(_LOADING, _LOADING, "The main thread makes a batch."),
    Fault(_PIN, _PIN, "An upload from pageable memory."),
    Fault(_COPIES, _COPIES, "A copy to the host and back."),
    Fault(_BREAK, _BREAK, "Host work between two compiled regions."),
    Fault(_HOST, _HOST, "Operators that launch too slowly."),
    Fault(_SMALL, _SMALL, "One small collective after the other."),
    Fault(_SILENCE, _SILENCE, "Time in which nothing is recorded."),
    Fault(_READBACK, _READBACK, "A copy to pageable memory."),
    Fault("unfused_pointwise", "unfused_pointwise", "Pointwise kernels that could be one."),
    Fault("small_grids", "small_grids", "A kernel on few multiprocessors."),
    Fault("shared_gpu", "shared_gpu", "Gaps between kernels that wait already."),
    Fault("synchronous_memset", "synchronous_memset", "A memset that the host waits for."),
    Fault("created_on_host", "created_on_host", "Random numbers of the host that are copied."),
    Fault("for_loop_indexing", "for_loop_indexing", "A loop over the rows of a tensor."),
    Fault("graph_recapture", "graph_recapture", "A graph is captured anew."),
    Fault(
        "hidden_loader", _LOADING, "A batch is made while the GPU has work.",
        look_alike=True, other_types=(_SILENCE,),
    ),
    Fault(
        "hidden_upload", _PIN, "A pinned copy on its own stream while the GPU computes.",
        look_alike=True, other_types=(_COPIES, "blocking_copy"),
    ),
    Fault(
        "three_pointwise", "unfused_pointwise", "The end of a layer.",
        look_alike=True, other_types=("tiny_kernels",),
    ),
    Fault(
        "asynchronous_memset", "synchronous_memset", "A long call while the GPU works.",
        look_alike=True, other_types=(_HOST,),
    ),
    Fault(
        "short_loop", "for_loop_indexing", "Nine turns under a kernel.",
        look_alike=True, other_types=(_HOST,),
    ),
    Fault(
        "one_large_collective", _SMALL, "A collective under a kernel of the main stream.",
        look_alike=True, other_types=(_BLOCKING, _SERIAL),
    ),
)  # fmt: skip
"""Faults as blocks of events, by name; the faults first."""


def _exchange(
    name: str, type_: str, description: str, *, look_alike: bool = False, test: bool = False
) -> Fault:
    """Return a fault in the collectives of a training step."""
    return Fault(name, type_, description, look_alike, test, trained=True, parallel=True)


STEP_FAULTS = _registry(
    Fault("decode_in_main", _LOADING, "num_workers=0: the training process decodes every sample."),
    Fault("collate_in_main", _LOADING, "num_workers=0, and collating decodes the whole batch."),
    Fault("one_slow_worker", _LOADING, "One worker, which is slower than the training step."),
    Fault("recreated_loader", _LOADING, "Workers are started anew for every short epoch."),
    Fault("locked_samples", _LOADING, "Only one worker at a time may decode.", test=True),
    Fault("generator_input", _LOADING, "A generator in the process makes batches.", test=True),
    Fault("ready_batches", _LOADING, "num_workers=0, and the batches are ready.", look_alike=True),
    Fault("pageable_workers", _PIN, "Workers with pin_memory=False, and a blocking copy."),
    Fault("blocking_upload", _PIN, "Pinned memory, but a blocking copy on the compute stream."),
    Fault("upload_from_numpy", _PIN, "Arrays in ordinary memory, copied when they are needed."),
    Fault("uploads_by_sample", _PIN, "Every few samples are copied on their own."),
    Fault("small_targets", _PIN, "Many small tensors are copied on their own.", test=True),
    Fault("small_constants", _PIN, "A constant of a few bytes in every step.", look_alike=True),
    Fault("activations_to_host", _COPIES, "Activations are copied to the host for statistics."),
    Fault("layers_on_host", _COPIES, "A function of layers' outputs is computed on the host."),
    Fault("item_per_layer", _COPIES, "A value is read by `.item()` after layers."),
    Fault("metrics_in_numpy", _COPIES, "Scores are copied to the host and ranked by NumPy."),
    Fault("average_on_host", _COPIES, "The average of the weights is on the host.", trained=True),
    Fault(
        "offloaded_activations", _COPIES, "The backward pass's inputs are in pageable memory.",
        test=True, trained=True,
    ),
    Fault("outputs_as_lists", _COPIES, "Scores are taken apart as Python lists.", test=True),
    Fault("one_item", _COPIES, "One value is logged each step, one step late.", look_alike=True),
    Fault("outputs_home", _COPIES, "Outputs are copied without waiting.", look_alike=True),
    Fault("explicit_break", _BREAK, "A graph break after layers.", compiled=True),
    Fault("log_in_forward", _BREAK, "A statistic goes to a Python list.", compiled=True),
    Fault("branch_on_value", _BREAK, "An `if` on a tensor's value after layers.", compiled=True),
    Fault("numpy_call", _BREAK, "A function works on NumPy's arrays.", compiled=True),
    Fault("disabled_operator", _BREAK, "An operator must not be compiled.", compiled=True),
    Fault(
        "changing_shapes", _BREAK, "Another number of targets in every batch.",
        test=True, compiled=True,
    ),
    Fault(
        "failing_guards", _BREAK, "Every step changes a text that the code depends on.",
        test=True, compiled=True,
    ),
    Fault(
        "break_outside", _BREAK, "A summary of the first step breaks, the step does not.",
        look_alike=True, compiled=True,
    ),
    Fault("python_between", _HOST, "Python work after layers, while nothing is launched."),
    Fault("image_by_image", _HOST, "A loop over the images of a batch, two at a time."),
    Fault("metrics_by_sample", _HOST, "Metrics by sample: a few tiny kernels each."),
    Fault("unfused_operators", _HOST, "An activation is written out in single operators."),
    Fault("one_core", _HOST, "One core and one thread, which prepare the batch as well."),
    Fault("unfused_optimizer", _HOST, "An optimizer updates tensor by tensor.", trained=True),
    Fault("average_by_tensor", _HOST, "Averages of weights tensor by tensor.", trained=True),
    Fault("anomaly_mode", _HOST, "Anomaly detection is left on.", test=True, trained=True),
    Fault("heavy_hooks", _HOST, "Hooks with Python work at all modules.", test=True),
    Fault("tiny_modules", _HOST, "Many tiny modules do what one does.", test=True),
    Fault("brief_python", _HOST, "A few microseconds that the queue hides.", look_alike=True),
    _exchange("tiny_buckets", _SMALL, "DDP with buckets of 50 KiB."),
    _exchange("all_reduce_by_parameter", _SMALL, "An all-reduce for each gradient."),
    _exchange("shared_statistics", _SMALL, "Batch normalization over all ranks in both passes."),
    _exchange("shards_of_leaves", _SMALL, "FSDP2 with every layer as a unit.", test=True),
    _exchange("hidden_statistics", _SMALL, "Small averages under compute.", look_alike=True),
    _exchange("waits_for_each_bucket", _BLOCKING, "A communication hook that waits."),
    _exchange("metrics_in_forward", _BLOCKING, "Averages of activations, waited for at once."),
    _exchange("waits_for_each_gradient", _BLOCKING, "A wait at each gradient.", test=True),
    _exchange("waits_for_what_is_over", _BLOCKING, "A wait for an old sum.", look_alike=True),
    _exchange("all_reduce_after_backward", _SERIAL, "One reduction after the backward pass."),
    _exchange("one_bucket", _SERIAL, "DDP with one bucket, full with the last gradient."),
    _exchange("reduced_at_the_end", _SERIAL, "`no_sync`, then each gradient.", test=True),
    _exchange("one_shard", _SERIAL, "FSDP2 with the model as one unit.", test=True),
    _exchange("norm_at_the_end", _SERIAL, "One number is summed at the end.", look_alike=True),
)  # fmt: skip
"""Faults of the steps of a real workload, by name."""
