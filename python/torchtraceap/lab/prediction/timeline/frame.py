"""The parts of a profiler's file around its events: members, process names, the profiler's span.

All is as PyTorch 2.6 to 2.9 writes it. Values that differ from run to run (process, clock, id of
the trace) derive from a seed, so that equal predictions give equal bytes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchtraceap.lab.prediction.timeline.profilers import NEWEST, PROFILERS, distributed_info
from torchtraceap.ops.devices import Device

__all__ = [
    "Recording",
    "SingleEvent",
    "file_members",
    "frame_events",
    "shared_memory_bytes",
    "threads_per_multiprocessor",
]

_QUARTER_NS = 7_889_238 * 10**9
_FIRST_BASE_NS = 1_704_075_408 * 10**9
"""Begin of the quarter from which Kineto counts times."""
_QUARTERS = 9
_VERSIONS = ((12_040, 22, 12_040), (12_060, 24, 12_080), (12_080, 26, 12_080), (12_090, 28, 13_000))
"""Matching versions of CUDA's runtime, CUPTI and driver."""
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
    first_step: int = 2
    """Number of the first recorded step."""
    warm_up: int = 0
    """Unrecorded steps before, whose GPU work may still run."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Further members of the file."""
    path: str = "predicted.json.gz"
    """Stands for the file's path in messages."""

    @property
    def gpu(self) -> int:
        """Number of the GPU within its machine."""
        return self.rank % 8

    @property
    def process(self) -> int:
        """Process id of the rank."""
        return self._rng("process").randrange(300, 60_000) + 67 * self.gpu

    @property
    def begin_ns(self) -> int:
        """Begin on the profiler's clock, equal on all ranks, ns."""
        return self._rng("clock").randrange(10**12, _QUARTER_NS)

    @property
    def autograd_thread(self) -> int:
        """Thread id of the backward pass; the main thread has the process id."""
        return self.process + self._rng("thread").randrange(6, 140)

    @property
    def first_call(self) -> int:
        """Number of the first recorded runtime call."""
        return self._rng("call").randrange(3_000, 90_000)

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{self.draw}/{what}")

    def own(self, what: str) -> random.Random:
        """Return a generator for what differs between ranks."""
        return random.Random(f"{self.draw}/{what}/{self.rank}")

    def common(self, what: str) -> random.Random:
        """Return a generator for what all ranks share."""
        return self._rng(what)


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
    count = 1 if world == 1 else min(8, world)
    found: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [_properties(device, number) for number in range(count)],
        **_versions(recording),
    }
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
    found = {
        "id": number,
        "name": device.reported_name,
        "totalGlobalMem": _visible_bytes(device),
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


def _visible_bytes(device: Device) -> int:
    """Return the memory visible to programs: 98.5 % of binary gigabytes on NVIDIA's, in 64 KiB."""
    binary = device.memory_bytes / 10**9 * 2**30
    share = 0.9999 if device.vendor == "amd" else 0.985
    return round(binary * share) // 65_536 * 65_536


def _versions(recording: Recording) -> dict[str, Any]:
    rng = recording.common("versions")
    if recording.device.vendor == "amd":
        runtime, driver = rng.choice(_HIP)
        return {
            "roctracer_version": 4.1,
            "hip_runtime_version": runtime,
            "hip_driver_version": driver,
        }
    runtime, cupti, driver = rng.choice(_VERSIONS)
    return {
        "cupti_version": cupti,
        "cuda_runtime_version": runtime,
        "cuda_driver_version": driver,
    }


def frame_events(
    recording: Recording, begin: int, end: int, has_backward: bool, streams: Sequence[int]
) -> list[SingleEvent]:
    """Return names of processes and threads, and the profiler's own events.

    Args:
        recording: Recording of a rank.
        begin, end: The first and the last time of all other events, ns.
        has_backward: A thread of autograd has events.
        streams: Their numbers.
    """
    name = recording.common("name").choice(("python", "python3"))
    process = recording.process
    found = [*_process(process, process, name, "CPU", begin)]
    for gpu in range(_GPUS):
        found += _process(gpu, 5_000_000 + gpu, name, f"GPU {gpu}", begin)
    tracks = [(recording.gpu, stream, f"stream {stream} ") for stream in streams]
    tracks.append((process, process, f"thread {process} ({name})"))
    if has_backward:
        thread = recording.autograd_thread
        tracks.append((process, thread, f"thread {thread} (pt_autograd_0)"))
    for pid, tid, label in tracks:
        found.append(SingleEvent("thread_name", "M", pid, tid, begin, args={"name": label}))
        found.append(
            SingleEvent("thread_sort_index", "M", pid, tid, begin, args={"sort_index": tid})
        )
    rng = recording.own("span")
    start = begin - rng.randrange(20_000, 90_000)
    stop = end + rng.randrange(1_000, 20_000)
    later = stop + rng.randrange(10**6, 20 * 10**6)
    span = SingleEvent(
        "PyTorch Profiler (0)", "X", "Spans", "PyTorch Profiler", start, stop - start, "Trace",
        {"Op count": 0},
    )  # fmt: skip
    order = {"sort_index": 536_870_912}
    return [
        *found,
        span,
        SingleEvent("process_sort_index", "M", "Spans", 0, start, args=order),
        SingleEvent(
            "Iteration Start: PyTorch Profiler", "i", "Traces", "Trace PyTorch Profiler", start,
            scope="g",
        ),
        SingleEvent("Record Window End", "i", "", "", later, scope="g"),
    ]  # fmt: skip


def _process(pid: int, order: int, name: str, label: str, ts: int) -> list[SingleEvent]:
    return [
        SingleEvent("process_name", "M", pid, 0, ts, args={"name": name}),
        SingleEvent("process_labels", "M", pid, 0, ts, args={"labels": label}),
        SingleEvent("process_sort_index", "M", pid, 0, ts, args={"sort_index": order}),
    ]
