"""Rewrites a trace as the profiler of another PyTorch version would write it.

`rank_trace` writes the newest version here. Older ones write less, and differently. The differences
are those between public traces, whose version follows from their date, CUDA, CUPTI and NCCL:
recommendation training of November 2023 (2.1), tensor parallel inference with NCCL 2.20 (2.4),
inference with CUDA 12.4 (2.6), compiled training with CUDA 12.6 to 12.9 (2.9).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from torchtraceap import _core

__all__ = [
    "NEWEST",
    "PROFILERS",
    "Profiler",
    "collective_kernel",
    "detect_profiler",
    "distributed_info",
    "rewrite_for_profiler",
]

_BASIC = (
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "In split size",
    "Out split size", "Process Group Ranks",
)  # fmt: skip
_GROUP = ("Process Group Name", "Process Group Description")
_PLACE = ("Global rank start", "Global rank stride")
_COLLECTIVE = frozenset((*_BASIC, *_GROUP, *_PLACE, "Rank", "Seq", "Src Rank", "Dst Rank"))
_VERSIONS = ("cupti_version", "cuda_runtime_version", "cuda_driver_version")
_NEW_NAME = re.compile(r"^ncclDevKernel_(\w+?)(?:_(Sum|Prod|Max|Min|Avg))?(?:_(\w+?))?"
                       r"(?:_(RING|TREE)_(LL\d*|SIMPLE))?\(.*\)$")  # fmt: skip
_OLD_TYPES = {"f32": "float", "f16": "half", "bf16": "__nv_bfloat16", "f64": "double",
              "i64": "int64_t", "i32": "int32_t", "u8": "uint8_t", "i8": "int8_t"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profiler:
    """The format of a PyTorch version's profiler."""

    torch: str
    nccl: str
    cuda: tuple[int, int, int] | None
    """Versions of CUPTI, runtime and driver, if the file has them."""
    has_base_time: bool = True
    """True if times are nanoseconds from a base, else whole microseconds since 1970."""
    says_id: bool = True
    """True if `Record function id` is written."""
    says_strides: bool = True
    on_operators: frozenset[str] = frozenset()
    """Arguments of a collective's operator."""
    on_kernels: frozenset[str] = frozenset()
    """Arguments of a collective's kernel."""
    shows_ranges_on_gpu: bool = True
    links_backward: bool = True
    """True if arrows link the forward to the backward pass."""
    parameters: str = "ncclDevComm*, unsigned long, ncclWork*"
    """Parameters in the names of NCCL's kernels."""
    is_new_name: bool = True
    """True if they are `ncclDevKernel_...`, as from NCCL 2.19 on."""


PROFILERS = {
    "2.1": Profiler(
        "2.1", "2.18.5", None, has_base_time=False, says_id=False, says_strides=False,
        shows_ranges_on_gpu=False, links_backward=False, is_new_name=False,
    ),
    "2.4": Profiler(
        "2.4", "2.20.5", None, says_strides=False, on_operators=frozenset(_BASIC),
    ),
    "2.6": Profiler(
        "2.6", "2.21.5", (22, 12_040, 12_090),
        on_operators=frozenset((*_BASIC, *_GROUP, *_PLACE)),
        on_kernels=frozenset((*_BASIC, *_GROUP)),
    ),
    "2.9": Profiler(
        "2.9", "2.27.5", (26, 12_080, 13_000), on_operators=_COLLECTIVE,
        on_kernels=frozenset((*_BASIC, *_GROUP)), parameters="ncclDevKernelArgsStorage<4096ul>",
    ),
}  # fmt: skip
"""Formats by PyTorch version."""
NEWEST = "2.9"


def rewrite_for_profiler(
    table: _core.EventTable, profiler: Profiler, *, since_1970_ns: int = 1_700_000_000 * 10**9
) -> _core.EventTable:
    """Return the same events in the format of another version.

    Args:
        table: Events in the newest format.
        profiler: Format of the version.
        since_1970_ns: Base of times for a file that names none.
    """
    said = json.loads(_core.trace_json(table))
    if not profiler.has_base_time:
        base_ns = int(said.get("baseTimeNanoseconds") or since_1970_ns)
    events = [event for event in said.pop("traceEvents") if _is_written(event, profiler)]
    for event in events:
        _drop_arguments(event, profiler)
        if not profiler.has_base_time and "ts" in event:
            _count_microseconds(event, base_ns)
    said = {**_members(said, profiler), "traceEvents": events}
    return _core.read_trace_bytes(json.dumps(said).encode(), table.path, threads=1)


def _is_written(event: dict[str, Any], profiler: Profiler) -> bool:
    category = event.get("cat")
    if category == "gpu_user_annotation":
        return profiler.shows_ranges_on_gpu
    return category != "fwdbwd" or profiler.links_backward


def _drop_arguments(event: dict[str, Any], profiler: Profiler) -> None:
    args = event.get("args")
    category = event.get("cat")
    if not args or category not in ("cpu_op", "user_annotation", "kernel"):
        return
    kept = profiler.on_kernels if category == "kernel" else profiler.on_operators
    left_out = {key for key in args if key in _COLLECTIVE and key not in kept}
    if not profiler.says_id:
        left_out.add("Record function id")
    if not profiler.says_strides:
        left_out.add("Input Strides")
    for key in left_out & args.keys():
        del args[key]
    if category == "kernel" and event["name"].startswith("ncclDevKernel_"):
        event["name"] = _kernel_name(event["name"], profiler)


def _kernel_name(name: str, profiler: Profiler) -> str:
    """Return the name of an NCCL kernel, given the newest version's."""
    stem = name.partition("(")[0]
    if profiler.is_new_name:
        return f"{stem}({profiler.parameters})"
    found = _NEW_NAME.match(name)
    if found is None:
        return f"{stem.replace('ncclDevKernel_', 'ncclKernel_')}({profiler.parameters})"
    kind, operation, dtype, way, protocol = found.groups()
    # Collectives without a reduction move bytes.
    suffix = f"{operation or 'Sum'}_{_OLD_TYPES.get(dtype or '', 'int8_t')}"
    return f"ncclKernel_{kind}_{way or 'RING'}_{protocol or 'LL'}_{suffix}({profiler.parameters})"


def _count_microseconds(event: dict[str, Any], base_ns: int) -> None:
    begin_ns = base_ns + round(event["ts"] * 1_000)
    event["ts"] = begin_ns // 1_000
    if "dur" in event:
        event["dur"] = (begin_ns + round(event["dur"] * 1_000)) // 1_000 - event["ts"]


def _members(said: dict[str, Any], profiler: Profiler) -> dict[str, Any]:
    found = {key: value for key, value in said.items() if key not in _VERSIONS}
    if profiler.cuda is None:
        found.pop("trace_id", None)
    else:
        found |= dict(zip(_VERSIONS, profiler.cuda, strict=True))
    if not profiler.has_base_time:
        for key in ("baseTimeNanoseconds", "displayTimeUnit"):
            found.pop(key, None)
    job = found.get("distributedInfo")
    if job:
        found["distributedInfo"] = distributed_info(job["rank"], job["world_size"], profiler)
    return found


def distributed_info(rank: int, world_size: int, profiler: Profiler) -> dict[str, Any]:
    """Return `distributedInfo` of a rank."""
    short = {"backend": "nccl", "rank": rank, "world_size": world_size}
    if not profiler.has_base_time:
        return short
    group = {
        "pg_name": "0",
        "pg_desc": "default_pg",
        "backend_config": "cuda:nccl",
        "pg_size": world_size,
        "ranks": list(range(world_size)),
    }
    return {**short, "pg_count": 1, "pg_config": [group], "nccl_version": profiler.nccl}


def detect_profiler(table: _core.EventTable) -> Profiler:
    """Return the version whose format is closest to a trace."""
    said = dict(table.metadata)
    if "baseTimeNanoseconds" not in said:
        return PROFILERS["2.1"]
    if not any(key in said for key in _VERSIONS):
        return PROFILERS["2.4"]
    runtime = json.loads(said.get("cuda_runtime_version", "0"))
    return PROFILERS["2.9" if isinstance(runtime, int) and runtime > 12_060 else "2.6"]


def collective_kernel(kind: str, dtype: str, profiler: Profiler) -> str:
    """Return the name of an NCCL kernel.

    Args:
        kind: Operation, such as `AllReduce_Sum`.
        dtype: Element type, such as `f32`.
        profiler: Format of the version.
    """
    return _kernel_name(f"ncclDevKernel_{kind}_{dtype}_RING_LL()", profiler)
