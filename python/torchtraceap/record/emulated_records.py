"""`as_nccl_records`: a recorded trace with the events that ProcessGroupNCCL would have left."""

from __future__ import annotations

from typing import Any

__all__ = ["DESCRIPTION", "RECORDED", "as_nccl_records"]

DESCRIPTION = "emu::record_param_comms"
"""Name under which a collective is described while it is recorded."""
RECORDED = "record_param_comms"
"""That of the profiler's own descriptions."""
_KERNEL_FIELDS = (
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "dtype",
    "In split size",
    "Out split size",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
)


def as_nccl_records(document: dict[str, Any]) -> dict[str, Any]:
    """Renames the descriptions of collectives, and gives them to their kernels, in place.

    Args:
        document: A Chrome trace as `json.load` gives it.

    Returns:
        The same document.
    """
    events = [each for each in document.get("traceEvents", []) if isinstance(each, dict)]
    described: dict[object, dict[str, Any]] = {}
    for event in events:
        if event.get("name") == DESCRIPTION:
            event["name"] = RECORDED
            described[event["args"].get("External id")] = event["args"]
    for event in events:
        # A launch has the id of the innermost operator around it, which is the description.
        about = described.get(event.get("args", {}).get("External id"))
        if about is not None and str(event.get("name", "")).startswith("ncclDevKernel_"):
            event["args"].update({key: about[key] for key in _KERNEL_FIELDS if key in about})
    return document
