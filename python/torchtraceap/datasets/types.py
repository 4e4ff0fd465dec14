"""Words of labels: types of faults, tasks. The module imports nothing."""

from __future__ import annotations

__all__ = ["CPU_SPLIT", "LABELS", "SEEN_TASKS", "TASKS", "TYPES"]

CPU_SPLIT = "cpu"
"""Split of the traces that were collected on a CPU: no other split has them, as they are no data of
GPUs."""
LABELS = "labels.jsonl"
"""The file of a generated folder that says what each trace is."""
TYPES = (
    "allocator_thrash",
    "cpu_bound",
    "explicit_synchronize",
    "graph_break",
    "high_memcpy",
    "host_silence",
    "host_sync_in_loop",
    "nccl_blocks_main_stream",
    "nccl_compute_not_overlapped",
    "no_memory_pin",
    "pageable_readback",
    "single_process_data_loading",
    "small_nccl_kernels",
    "straggler",
)
"""Types of faults that can be injected, by name."""
SEEN_TASKS = ("classification", "detection", "segmentation")
"""Tasks of workloads that may be trained on."""
TASKS = (*SEEN_TASKS, "generation", "pose", "depth")
