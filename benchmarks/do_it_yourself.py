"""What one writes by hand with a JSON parser and pandas: events, launches, parents, GPU union."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

GPU = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
LAUNCH = {"cuda_runtime", "cuda_driver", "Runtime"}
HOST = LAUNCH | {"cpu_op", "user_annotation", "python_function", "Operator"}


def read(path: str, parse: Callable[[bytes], Any]) -> list[dict[str, Any]]:
    with open(path, "rb") as file:
        data = file.read()
    document = parse(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    events = document["traceEvents"] if isinstance(document, dict) else document
    return [event for event in events if isinstance(event, dict)]


def build(events: list[dict[str, Any]]) -> dict[str, Any]:
    """DataFrame of all events with columns for the ids, launch and parent."""
    frame = pd.DataFrame(events)
    arguments = [event.get("args") or {} for event in events]
    for key in ("correlation", "stream", "device", "External id"):
        frame[key] = pd.array([a.get(key) for a in arguments], dtype="object")
    complete = frame[(frame["ph"] == "X") & frame["dur"].notna()]
    gpu = complete[complete["cat"].isin(GPU)]
    launches = complete[complete["cat"].isin(LAUNCH)]
    launches = launches.drop_duplicates("correlation")
    linked = gpu.reset_index().merge(
        launches.reset_index()[["index", "correlation"]],
        on="correlation",
        suffixes=("", "_launch"),
    )
    host = complete[complete["cat"].isin(HOST)]
    return {
        "frame": frame,
        "gpu": gpu,
        "linked": linked,
        "parent": parents(host),
        "busy_us": busy(gpu),
        "host": host,
    }


def parents(host: pd.DataFrame) -> dict[int, int]:
    """Enclosing event on the same thread, by a stack; what sticks out is no child."""
    parent: dict[int, int] = {}
    for _, thread in host.groupby(["pid", "tid"], sort=False):
        ordered = thread.sort_values(["ts", "dur"], ascending=[True, False])
        ends = (ordered["ts"] + ordered["dur"]).to_list()
        stack: list[tuple[float, int]] = []
        for row, start, end in zip(ordered.index, ordered["ts"], ends, strict=True):
            while stack and (stack[-1][0] <= start or stack[-1][0] < end):
                stack.pop()
            if stack:
                parent[row] = stack[-1][1]
            stack.append((end, row))
    return parent


def busy(gpu: pd.DataFrame) -> float:
    ordered = gpu.sort_values("ts")
    start = ordered["ts"].to_numpy(float)
    end = np.maximum.accumulate(start + ordered["dur"].to_numpy(float))
    if len(start) == 0:
        return 0.0
    gaps = np.maximum(start[1:] - end[:-1], 0).sum()
    return float(end[-1] - start[0] - gaps)


def answers(built: dict[str, Any]) -> dict[str, int]:
    gpu, frame = built["gpu"], built["frame"]
    names = frame.loc[(frame["ph"] == "X"), "name"].astype(str)
    steps = names[names.str.match(r"ProfilerStep#\d+$")]
    return {
        "objects": len(frame),
        "gpu_events": len(gpu),
        "linked_gpu_events": len(built["linked"]),
        "gpu_busy_ns": round(built["busy_us"] * 1000),
        "gpu_span_ns": round(((gpu["ts"] + gpu["dur"]).max() - gpu["ts"].min()) * 1000),
        "steps": int(steps.nunique()),
        "nested_host_events": len(built["parent"]),
    }
