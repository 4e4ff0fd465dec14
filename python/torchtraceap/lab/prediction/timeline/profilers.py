"""The format of a profiler's file: its members, frame events, and versions of PyTorch.

`file_members` and `frame_events` are what a file has around the events of a run, as PyTorch 2.6 to
2.9 writes it. Values that differ from run to run (process, clock, id of the trace) derive from a
seed, so that equal predictions give equal bytes.

`rank_trace` writes the newest version here, and `rewrite_for_profiler` makes a file of it as an
older one would write it: they write less, and differently. The differences are those between public
traces, whose version follows from their date, CUDA, CUPTI and NCCL: recommendation training of
November 2023 (2.1), tensor parallel inference with NCCL 2.20 (2.4), inference with CUDA 12.4 (2.6),
compiled training with CUDA 12.6 to 12.9 (2.9).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchtraceap import _core
from torchtraceap.ops import Device, collective_kernel
from torchtraceap.trace import parse_recorded

__all__ = [
    "NEWEST",
    "PROFILERS",
    "Profiler",
    "Recording",
    "SingleEvent",
    "all_reduce_kernel",
    "detect_profiler",
    "distributed_info",
    "file_members",
    "frame_events",
    "rewrite_for_profiler",
    "shared_memory_bytes",
    "threads_per_multiprocessor",
]

# ----------------------------------------------------------------------------- one recording

_QUARTER_NS = 7_889_238 * 10**9
_FIRST_BASE_NS = 1_704_075_408 * 10**9
"""Begin of the quarter from which Kineto counts times."""
_QUARTERS = 9
_SINCE_1970_NS = 1_700_000_000 * 10**9
"""Base of times for a file that names none."""
_CUDA = ((12_040, 22, 12_040), (12_060, 24, 12_080), (12_080, 26, 12_080), (12_090, 28, 13_000))
"""Versions of CUDA's runtime, CUPTI and driver that go together."""
_HIP = ((60_443_483, 60_443_483), (70_051_831, 70_051_831))
_SHARED_KIB = {"7.0": 96, "7.5": 64, "8.0": 164, "8.6": 100, "8.7": 164, "8.9": 100, "9.0": 228,
               "10.0": 228, "12.0": 100}  # fmt: skip
"""Shared memory of a multiprocessor by compute capability; blocks have 1 KiB less from 8.0 on."""
_THREADS = {"7.5": 1024, "8.6": 1536, "8.9": 1536, "12.0": 1536}
_GPUS = 16
"""Number of GPUs that Kineto names, present or not."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The machine and process that a profiler recorded."""

    device: Device
    rank: int = 0
    world_size: int = 1
    draw: int = 0
    """Seed for what differs between runs, shared by the ranks of one run."""
    warm_up: int = 0
    """Unrecorded steps before, whose GPU work may still run."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Further members of the file."""

    @property
    def gpu(self) -> int:
        """Number of the GPU within its machine."""
        return self.rank % 8

    @property
    def process(self) -> int:
        """Process id of the rank."""
        return self.common("process").randrange(300, 60_000) + 67 * self.gpu

    @property
    def begin_ns(self) -> int:
        """Begin on the profiler's clock, equal on all ranks, ns."""
        return self.common("clock").randrange(10**12, _QUARTER_NS)

    @property
    def autograd_thread(self) -> int:
        """Thread id of the backward pass; the main thread has the process id."""
        return self.process + self.common("thread").randrange(6, 140)

    @property
    def first_call(self) -> int:
        """Number of the first recorded runtime call."""
        return self.common("call").randrange(3_000, 90_000)

    def own(self, what: str) -> random.Random:
        """Return a generator for what differs between ranks."""
        return random.Random(f"{self.draw}/{what}/{self.rank}")

    def common(self, what: str) -> random.Random:
        """Return a generator for what all ranks share."""
        return random.Random(f"{self.draw}/{what}")


@dataclass(frozen=True, slots=True)
class SingleEvent:
    """An event that occurs once."""

    name: str
    phase: str
    pid: int | str
    tid: int | str
    ts: int
    dur: int = 0
    category: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    scope: str | None = None


def file_members(recording: Recording) -> dict[str, Any]:
    """Return the members of the file besides the events, in order."""
    device, world = recording.device, recording.world_size
    found: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [_properties(device, number) for number in range(min(8, world))],
    }
    rng = recording.common("versions")
    if device.vendor == "amd":
        found["roctracer_version"] = 4.1
        found["hip_runtime_version"], found["hip_driver_version"] = rng.choice(_HIP)
    else:
        runtime, cupti, driver = rng.choice(_CUDA)
        found |= dict(zip(_VERSIONS, (cupti, runtime, driver), strict=True))
    if world > 1:
        found["distributedInfo"] = distributed_info(recording.rank, world, PROFILERS[NEWEST])
    quarter = recording.common("quarter").randrange(4, _QUARTERS)
    found |= {
        "record_shapes": 1,
        "trace_id": f"{recording.own('trace').getrandbits(128):032X}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": _FIRST_BASE_NS + quarter * _QUARTER_NS,
    }
    return {**found, **recording.metadata}


def _properties(device: Device, number: int) -> dict[str, Any]:
    major, _, minor = device.architecture.partition(".")
    is_amd = device.vendor == "amd"
    held = shared_memory_bytes(device)
    # Programs see 98.5 % of the binary gigabytes of NVIDIA's memory, in pieces of 64 KiB.
    binary = device.memory_bytes / 10**9 * 2**30
    found = {
        "id": number,
        "name": device.reported_name,
        "totalGlobalMem": round(binary * (0.9999 if is_amd else 0.985)) // 65_536 * 65_536,
        "computeMajor": int(major) if major.isdigit() else 0,
        "computeMinor": int(minor) if minor.isdigit() else 0,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": threads_per_multiprocessor(device),
        "regsPerBlock": 65_536,
        "warpSize": 64 if is_amd else 32,
        "sharedMemPerBlock": 65_536 if is_amd else 49_152,
        "numSms": device.multiprocessors,
    }
    if is_amd:
        return {**found, "maxSharedMemoryPerMultiProcessor": held}
    reserved = 1_024 if major.isdigit() and int(major) >= 8 else 0
    return {
        **found,
        "regsPerMultiprocessor": 65_536,
        "sharedMemPerBlockOptin": held - reserved,
        "sharedMemPerMultiprocessor": held,
    }


def threads_per_multiprocessor(device: Device) -> int:
    """Return the threads that a multiprocessor holds."""
    return _THREADS.get(device.architecture, 2048)


def shared_memory_bytes(device: Device) -> int:
    """Return the shared memory of a multiprocessor, bytes."""
    return 65_536 if device.vendor == "amd" else 1024 * _SHARED_KIB.get(device.architecture, 100)


def frame_events(
    recording: Recording, begin: int, end: int, has_backward: bool, streams: Sequence[int]
) -> list[SingleEvent]:
    """Return names of processes and threads, and the profiler's own events.

    Args:
        recording: Recording of a rank.
        begin, end: The first and the last time of all other events, ns.
        has_backward: A thread of autograd has events.
        streams: Numbers of the GPU's streams.
    """
    found: list[SingleEvent] = []

    def add(event: str, pid: int, tid: int, key: str, value: object) -> None:
        found.append(SingleEvent(event, "M", pid, tid, begin, args={key: value}))

    name = recording.common("name").choice(("python", "python3"))
    process = recording.process
    gpus = ((gpu, 5_000_000 + gpu, f"GPU {gpu}") for gpu in range(_GPUS))
    for pid, order, label in ((process, process, "CPU"), *gpus):
        add("process_name", pid, 0, "name", name)
        add("process_labels", pid, 0, "labels", label)
        add("process_sort_index", pid, 0, "sort_index", order)
    tracks = [(recording.gpu, stream, f"stream {stream} ") for stream in streams]
    tracks.append((process, process, f"thread {process} ({name})"))
    if has_backward:
        thread = recording.autograd_thread
        tracks.append((process, thread, f"thread {thread} (pt_autograd_0)"))
    for pid, tid, label in tracks:
        add("thread_name", pid, tid, "name", label)
        add("thread_sort_index", pid, tid, "sort_index", tid)
    rng = recording.own("span")
    start = begin - rng.randrange(20_000, 90_000)
    stop = end + rng.randrange(1_000, 20_000)
    later = stop + rng.randrange(10**6, 20 * 10**6)
    return [
        *found,
        SingleEvent(
            "PyTorch Profiler (0)", "X", "Spans", "PyTorch Profiler", start, stop - start, "Trace",
            {"Op count": 0},
        ),
        SingleEvent(
            "process_sort_index", "M", "Spans", 0, start, args={"sort_index": 536_870_912}
        ),
        SingleEvent(
            "Iteration Start: PyTorch Profiler", "i", "Traces", "Trace PyTorch Profiler", start,
            scope="g",
        ),
        SingleEvent("Record Window End", "i", "", "", later, scope="g"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------- versions

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
              "u64": "int64_t", "u32": "int32_t", "u8": "uint8_t"}  # fmt: skip


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


def rewrite_for_profiler(table: _core.EventTable, profiler: Profiler) -> _core.EventTable:
    """Return events of the newest format in the format of another version."""
    said = parse_recorded(_core.trace_json(table), table.path)
    base_ns = int(said.get("baseTimeNanoseconds") or _SINCE_1970_NS)
    left_out = set[str]()
    if not profiler.shows_ranges_on_gpu:
        left_out.add("gpu_user_annotation")
    if not profiler.links_backward:
        left_out.add("fwdbwd")
    events = [event for event in said.pop("traceEvents") if event.get("cat") not in left_out]
    for event in events:
        _drop_arguments(event, profiler)
        if not profiler.has_base_time and "ts" in event:
            begin_ns = base_ns + round(event["ts"] * 1_000)
            event["ts"] = begin_ns // 1_000
            if "dur" in event:
                event["dur"] = (begin_ns + round(event["dur"] * 1_000)) // 1_000 - event["ts"]
    members = {key: value for key, value in said.items() if key not in _VERSIONS}
    if profiler.cuda is None:
        members.pop("trace_id", None)
    else:
        members |= dict(zip(_VERSIONS, profiler.cuda, strict=True))
    if not profiler.has_base_time:
        for key in ("baseTimeNanoseconds", "displayTimeUnit"):
            members.pop(key, None)
    job = members.get("distributedInfo")
    if job:
        members["distributedInfo"] = distributed_info(job["rank"], job["world_size"], profiler)
    text = json.dumps({**members, "traceEvents": events})
    return _core.read_trace_bytes(text.encode(), table.path, threads=1)


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
    runtime = said.get("cuda_runtime_version", "0")
    is_newer = runtime.isdecimal() and len(runtime) < 10 and int(runtime) > 12_060
    return PROFILERS["2.9" if is_newer else "2.6"]


def all_reduce_kernel(dtype: str, profiler: Profiler) -> str:
    """Return the name of NCCL's kernel of an all-reduce.

    Args:
        dtype: torch's name of the element type, such as "float32".
        profiler: Format of the version.
    """
    return _kernel_name(f"{collective_kernel('all_reduce', dtype)}()", profiler)
