"""INTERFACE's definitions once more, in plain Python over `json`: slow, short, and ours to trust.

Nothing of the package is used here, so that an error in it cannot agree with itself.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

GPU = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
COPY = {"gpu_memcpy", "Memcpy"}
KERNEL = {"kernel", "Kernel"}
CALL = {"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime"}
COMMUNICATION = re.compile(
    r"nccl|rccl|cross_device_reduce|msccl|oneccl|hccl|all_?reduce|all_?gather|reduce_?scatter"
    r"|all_?to_?all",
    re.IGNORECASE,
)
ROCM_COPY = re.compile(r"MEMORY_COPY|__amd_rocclr_copyBuffer")
Interval = tuple[int, int]


def load(path: Path) -> dict[str, Any]:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    data = json.loads(raw, parse_float=Decimal)
    return data if isinstance(data, dict) else {"traceEvents": data}


def to_ns(us: Any) -> int | None:
    if isinstance(us, str):
        us = Decimal(us)
    if not isinstance(us, (int, Decimal)) or isinstance(us, bool):
        return None
    return int((Decimal(us) * 1000).to_integral_value(rounding=ROUND_HALF_EVEN))


def complete(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """X events with start and duration, as copies with `start` and `end` in ns."""
    out = []
    for event in events:
        if event.get("ph") != "X" or "ts" not in event or "dur" not in event:
            continue
        start, duration = to_ns(event["ts"]), to_ns(event["dur"])
        if start is not None and duration is not None and duration >= 0:
            out.append({**event, "start": start, "end": start + duration})
    return out


def argument(event: dict[str, Any], key: str) -> Any:
    args = event.get("args")
    return args.get(key) if isinstance(args, dict) else None


def union(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(intervals: list[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def minus(a: list[Interval], b: list[Interval]) -> list[Interval]:
    out, j = [], 0
    for start, end in a:
        while j < len(b) and b[j][1] <= start:
            j += 1
        k = j
        while k < len(b) and b[k][0] < end:
            if b[k][0] > start:
                out.append((start, b[k][0]))
            start = max(start, b[k][1])
            k += 1
        if start < end:
            out.append((start, end))
    return out


def gpu_class(event: dict[str, Any]) -> str:
    name = str(event.get("name", ""))
    is_kernel = event["cat"] in KERNEL
    collective = argument(event, "Collective name") is not None
    if is_kernel and (COMMUNICATION.search(name) or collective):
        return "communication"
    if event["cat"] in COPY or (is_kernel and ROCM_COPY.match(name)):
        return "memcpy"
    return "compute"


def timeline(gpu: list[dict[str, Any]], bounds: Interval | None = None) -> dict[str, int]:
    def clip(events: list[dict[str, Any]]) -> list[Interval]:
        if bounds is None:
            return union([(e["start"], e["end"]) for e in events])
        low, high = bounds
        return union([(max(e["start"], low), min(e["end"], high)) for e in events])

    by_class = {
        name: clip([e for e in gpu if gpu_class(e) == name])
        for name in ("compute", "communication", "memcpy")
    }
    busy = length(clip(gpu))
    if bounds is not None:
        span = bounds[1] - bounds[0]
    elif gpu:
        span = max(e["end"] for e in gpu) - min(e["start"] for e in gpu)
    else:
        span = 0
    exposed = minus(by_class["communication"], by_class["compute"])
    copies = minus(minus(by_class["memcpy"], by_class["compute"]), by_class["communication"])
    return {
        "span_ns": span,
        "busy_ns": busy,
        "idle_ns": span - busy,
        "compute_ns": length(by_class["compute"]),
        "communication_ns": length(by_class["communication"]),
        "memcpy_ns": length(by_class["memcpy"]),
        "exposed_communication_ns": length(exposed),
        "exposed_memcpy_ns": length(copies),
    }


def summary(path: Path) -> dict[str, Any]:
    """The parts of INTERFACE's summary that have one right answer."""
    events = load(path)["traceEvents"]
    whole = complete(events)
    gpu = [e for e in whole if e.get("cat") in GPU]
    calls = {argument(e, "correlation") for e in whole if e.get("cat") in CALL}
    linked = [
        e
        for e in gpu
        if argument(e, "correlation") is not None and argument(e, "correlation") in calls
    ]
    devices = {argument(e, "device") for e in gpu}
    steps = {}
    for event in whole:
        name = str(event.get("name", ""))
        if re.match(r"ProfilerStep#\d+$", name) and event.get("cat") in (
            "user_annotation",
            "Operator",
            "cpu_op",
        ):
            steps.setdefault(name, event)
    return {
        "total": len(events),
        "complete": len(whole),
        "gpu": len(gpu),
        "gpu_linked": len(linked),
        "by_category": dict(Counter(e["cat"] for e in whole if isinstance(e.get("cat"), str))),
        "timeline": timeline(gpu),
        "linked_timeline": timeline(linked),
        "devices": {d: timeline([e for e in gpu if argument(e, "device") == d]) for d in devices},
        "steps": [
            {
                "name": e["name"],
                "start_ns": e["start"],
                "duration_ns": e["end"] - e["start"],
                "timeline": timeline(gpu, (e["start"], e["end"])),
            }
            for e in sorted(steps.values(), key=lambda e: e["start"])
        ],
    }
