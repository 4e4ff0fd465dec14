"""What is done to a recorded trace: find the cost of the planted cause, then take the marks out.

The cause's place is marked by `record_function` ranges while the trace is recorded. The cost is
computed from those marks and the correlation ids, in the way the types are defined (cost = where
the GPU idles or copies because of it), and afterwards nothing in the file tells of the marks: the
ranges are dropped and every counter that a record_function advances is numbered anew.
Standard library alone; all times are integer nanoseconds.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

MARK = "__pair_mark__"
STEP = "ProfilerStep#"
GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCH_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver"})
REGION = "Torch-Compiled Region"
COMPILED_FUNCTION = "CompiledFunction"  # with gradients
COMPILED_GRAPH = "## Call CompiledFxGraph"  # any code of inductor
# Events start here in every file: absolute times would tell in which order they were recorded.
ORIGIN_NS = 1_000_000_000
FIRST_PROCESS = 1000
# Kineto numbers flows between kernels from here on; they are no correlation ids.
FIRST_KERNEL_FLOW = 1 << 40

Event = dict[str, Any]
Interval = tuple[int, int]


# -- intervals ---------------------------------------------------------------------------------


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Sorted, disjoint, not touching; empty ones dropped."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[0] < i[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def intersect(left: Iterable[Interval], right: Iterable[Interval]) -> list[Interval]:
    a, b = union(left), union(right)
    found: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            found.append((start, end))
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return found


def subtract(left: Iterable[Interval], right: Iterable[Interval]) -> list[Interval]:
    left = union(left)
    if not left:
        return []
    holes, at = [], left[0][0]
    for start, end in union(right):
        holes.append((at, start))
        at = max(at, end)
    holes.append((at, left[-1][1]))
    return intersect(left, holes)


def length(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in union(intervals))


# -- the trace as intervals ----------------------------------------------------------------------


@dataclass(frozen=True)
class GpuEvent:
    start: int
    end: int
    launch: Interval | None
    category: str
    name: str
    size_bytes: int


@dataclass
class Recorded:
    """The parts of a trace that costs are computed from."""

    bounds: Interval
    steps: list[tuple[str, int, int]]
    marks: list[Interval]
    gpu: list[GpuEvent]
    busy: list[Interval]
    idle: list[Interval]
    calls: list[Interval]
    """Runtime and driver calls of the host."""
    compiled: list[tuple[int, int, int]]
    """Runs of compiled code: start of its region, start and end of the code itself."""
    idle_starts: dict[int, Interval] = field(default_factory=dict)
    idle_ends: dict[int, Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.idle_starts = {interval[0]: interval for interval in self.idle}
        self.idle_ends = {interval[1]: interval for interval in self.idle}


def read_trace(path: Path) -> dict[str, Any]:
    """Reads a trace with exact decimals."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    document = json.loads(text, parse_float=Decimal)
    if not isinstance(document, dict):
        raise ValueError(f"{path} is not a Kineto trace")
    return document


def to_ns(microseconds: Decimal | int | str) -> int:
    value = Decimal(microseconds) * 1000
    return int(value.to_integral_value(ROUND_HALF_EVEN))


def is_complete(event: Event) -> bool:
    return event.get("ph") == "X" and "ts" in event and "dur" in event


def span_of(event: Event) -> Interval:
    """The event's interval once `use_nanoseconds` has run."""
    return event["ts"], event["ts"] + event["dur"]


def use_nanoseconds(document: dict[str, Any]) -> None:
    """Turns every `ts` and `dur` into integer ns, counted from the first event."""
    events = document["traceEvents"]
    stamped = [event for event in events if "ts" in event]
    for event in stamped:
        event["ts"] = to_ns(event["ts"])
        if "dur" in event:
            event["dur"] = to_ns(event["dur"])
    # Metadata events carry arbitrary times in some versions; they must not set the origin.
    first = min(event["ts"] for event in stamped if is_complete(event))
    for event in stamped:
        event["ts"] = max(0, event["ts"] - first + ORIGIN_NS)


def is_mark(event: Event) -> bool:
    return str(event.get("name", "")).startswith(MARK)


def understand(document: dict[str, Any]) -> Recorded:
    """Collects what the costs are computed from; times must be nanoseconds."""
    events = [event for event in document["traceEvents"] if is_complete(event)]
    steps = sorted(
        (str(e["name"]), *span_of(e))
        for e in events
        if e.get("cat") == "user_annotation" and str(e["name"]).startswith(STEP)
    )
    steps.sort(key=lambda step: step[1])
    marks = union(span_of(e) for e in events if is_mark(e) and e.get("cat") == "user_annotation")
    gpu = gpu_events(events)
    if not steps:
        raise ValueError("the trace holds no profiled step")
    last = max([steps[-1][2], *(event.end for event in gpu)])
    bounds = (steps[0][1], last)
    busy = union((event.start, event.end) for event in gpu)
    calls = union(span_of(e) for e in events if e.get("cat") in LAUNCH_CATEGORIES)
    idle = subtract([bounds], busy)
    return Recorded(bounds, steps, marks, gpu, busy, idle, calls, compiled_runs(events))


def gpu_events(events: list[Event]) -> list[GpuEvent]:
    launches = {
        e["args"]["correlation"]: span_of(e)
        for e in events
        if e.get("cat") in LAUNCH_CATEGORIES and "correlation" in e.get("args", {})
    }
    found = []
    for event in events:
        if event.get("cat") in GPU_CATEGORIES:
            args = event.get("args", {})
            launch = launches.get(args.get("correlation"))
            size_bytes = int(args.get("bytes", 0) or 0)
            category, name = str(event["cat"]), str(event["name"])
            found.append(GpuEvent(*span_of(event), launch, category, name, size_bytes))
    return sorted(found, key=lambda e: (e.start, e.end))


def compiled_runs(events: list[Event]) -> list[tuple[int, int, int]]:
    """Every run of compiled code in order of time.

    The region of what follows a graph break lies inside the region before it, since the code of
    the first calls the second (torch 2.13): regions nest, and only the code in them parts them.
    """
    regions = [(*span_of(e), e["tid"]) for e in events if str(e["name"]).startswith(REGION)]
    codes = sorted(
        (*span_of(e), e["tid"])
        for e in events
        if e["name"] == COMPILED_FUNCTION or str(e["name"]).startswith(COMPILED_GRAPH)
    )
    runs: list[tuple[int, int, int]] = []
    for start, end, tid in codes:
        around = [r[0] for r in regions if r[2] == tid and r[0] <= start and end <= r[1]]
        if around and (not runs or start >= runs[-1][2]):
            runs.append((max(around), start, end))
    return runs


# -- costs ---------------------------------------------------------------------------------------


def within(interval: Interval | None, ranges: list[Interval]) -> bool:
    return interval is not None and any(s <= interval[0] < e for s, e in ranges)


def idle_after(recorded: Recorded, at: int) -> list[Interval]:
    """The idle interval that begins there, if one does."""
    found = recorded.idle_starts.get(at)
    return [] if found is None else [found]


def idle_before(recorded: Recorded, at: int, since: int) -> list[Interval]:
    """The idle interval that ends there, from `since` on."""
    found = recorded.idle_ends.get(at)
    return [] if found is None or at <= since else [(max(found[0], since), at)]


def loading_cost(recorded: Recorded) -> list[Interval]:
    """The fetch on the training thread, where the GPU idles."""
    return intersect(recorded.marks, recorded.idle)


def unpinned_cost(recorded: Recorded) -> list[Interval]:
    """Pageable copies to the device launched there, and the idle time behind each."""
    cost: list[Interval] = []
    for event in recorded.gpu:
        pageable = "HtoD" in event.name and "Pageable" in event.name
        if pageable and within(event.launch, recorded.marks):
            cost += [(event.start, event.end), *idle_after(recorded, event.end)]
    return union(cost)


def copy_cost(recorded: Recorded) -> list[Interval]:
    """Copies between host and device launched there where nothing computes, the idle time behind
    each, and the idle time while the host sits in a call there."""
    compute = [(e.start, e.end) for e in recorded.gpu if e.category != "gpu_memcpy"]
    cost: list[Interval] = []
    for event in recorded.gpu:
        crosses = "HtoD" in event.name or "DtoH" in event.name
        if event.category == "gpu_memcpy" and crosses and within(event.launch, recorded.marks):
            cost += subtract([(event.start, event.end)], compute)
            cost += idle_after(recorded, event.end)
    waiting = intersect(intersect(recorded.marks, recorded.calls), recorded.idle)
    return union([*cost, *waiting])


def break_cost(recorded: Recorded) -> list[Interval]:
    """From the end of compiled code to the start of the next region in the same call of the model,
    where the GPU idles or runs what was launched in between."""
    gaps = compiled_gaps(recorded)
    if not recorded.gpu:
        return gaps
    leftovers = [(e.start, e.end) for e in recorded.gpu if within(e.launch, gaps)]
    return union([*intersect(gaps, recorded.idle), *leftovers])


def compiled_gaps(recorded: Recorded) -> list[Interval]:
    gaps: list[Interval] = []
    for start, end in recorded.marks:
        inside = [run for run in recorded.compiled if start <= run[0] and run[2] <= end]
        gaps += [(left[2], right[0]) for left, right in itertools.pairwise(inside)]
    return union(gaps)


def host_bound_cost(recorded: Recorded) -> list[Interval]:
    """Idle time while the host is there, and before what it launches there."""
    cost = intersect(recorded.marks, recorded.idle)
    for event in recorded.gpu:
        if event.launch is not None and within(event.launch, recorded.marks):
            since = next(s for s, e in recorded.marks if s <= event.launch[0] < e)
            cost += idle_before(recorded, event.start, since)
    return union(cost)


COSTS: dict[str, Callable[[Recorded], list[Interval]]] = {
    "single_process_data_loading": loading_cost,
    "no_memory_pin": unpinned_cost,
    "high_memcpy": copy_cost,
    "graph_break": break_cost,
    "cpu_bound": host_bound_cost,
}


def compute_cost(kind: str, recorded: Recorded) -> list[Interval]:
    """The cost of the planted cause; without any GPU event the host's time at its place."""
    if recorded.gpu or kind == "graph_break":
        return COSTS[kind](recorded)
    return recorded.marks


# -- cleaning ------------------------------------------------------------------------------------

KEPT_TOP_LEVEL = (
    "schemaVersion",
    "deviceProperties",
    "record_shapes",
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "displayTimeUnit",
    "baseTimeNanoseconds",
)
DROPPED_DEVICE_KEYS = frozenset({"uuid", "pciBusId", "pci_bus_id", "serial"})
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+@~-]+/)+([\w.+@~-]+)")


class Renumber:
    """Gives the values it has seen the numbers from `first` on, in their order."""

    def __init__(self, first: int, least: int) -> None:
        self.first, self.least = first, least
        self.seen: set[int] = set()
        self.numbers: dict[int, int] = {}

    def see(self, value: Any) -> None:
        if isinstance(value, int) and not isinstance(value, bool) and value >= self.least:
            self.seen.add(value)

    def close(self) -> None:
        self.numbers = {old: self.first + i for i, old in enumerate(sorted(self.seen))}

    def __call__(self, value: Any) -> Any:
        return self.numbers.get(value, value) if isinstance(value, int) else value


def clean_trace(document: dict[str, Any], *, keep_flows: bool = True) -> dict[str, Any]:
    """The same trace without marks, and without anything that tells of them or of the machine.

    Times must be nanoseconds already; they are microseconds in the result, as Kineto writes them.
    """
    marks = [event for event in document["traceEvents"] if is_mark(event)]
    events = [event for event in document["traceEvents"] if not is_mark(event)]
    events = drop_flows_of_marks(events, marks) if keep_flows else without_flows(events)
    renumber_ids(events)
    renumber_processes(events)
    events.sort(key=sort_key)
    for event in events:
        scrub_paths(event)
        for key in ("ts", "dur"):
            if key in event:
                event[key] = event[key] / 1000  # exact: below 2^53 and three decimals
    result = {key: document[key] for key in KEPT_TOP_LEVEL if key in document}
    result["baseTimeNanoseconds"] = 0
    result["deviceProperties"] = [
        {key: value for key, value in device.items() if key not in DROPPED_DEVICE_KEYS}
        for device in result.get("deviceProperties", [])
    ]
    result["traceEvents"] = events
    result["traceName"] = "trace.json"
    return result


def sort_key(event: Event) -> tuple[Any, ...]:
    """Like beside like: the file compresses a tenth better, and its order tells nothing."""
    return (
        event.get("ph") != "M",
        str(event.get("cat")),
        str(event.get("name")),
        event.get("ts", 0),
        str(event.get("id", "")),
    )


def is_flow(event: Event) -> bool:
    return event.get("ph") in ("s", "t", "f")


def without_flows(events: list[Event]) -> list[Event]:
    return [event for event in events if not is_flow(event)]


def drop_flows_of_marks(events: list[Event], marks: list[Event]) -> list[Event]:
    """Drops arrows that begin or end at a mark; others may dangle, as Kineto leaves some."""
    places = {place(e) for e in marks} - {place(e) for e in events if is_complete(e)}
    orphaned = {flow_key(e) for e in events if is_flow(e) and place(e) in places}
    kept = [e for e in events if not (is_flow(e) and place(e) in places)]
    starts = {flow_key(e) for e in kept if e.get("ph") == "s"}
    ends = {flow_key(e) for e in kept if e.get("ph") in ("t", "f")}
    broken = orphaned - (starts & ends)
    return [e for e in kept if not (is_flow(e) and flow_key(e) in broken)]


def place(event: Event) -> tuple[Any, Any, Any]:
    return event.get("pid"), event.get("tid"), event.get("ts")


def flow_key(event: Event) -> tuple[Any, Any]:
    return event.get("cat"), event.get("id")


def renumber_ids(events: list[Event]) -> None:
    """Closes the gaps that the marks left in every counter."""
    counters = {
        "external id": Renumber(1, 1),
        "record function id": Renumber(1, 1),
        "ev idx": Renumber(0, 0),
        "sequence number": Renumber(0, 0),
        "correlation": Renumber(1, 1),
    }
    kernel_flows = Renumber(FIRST_KERNEL_FLOW, FIRST_KERNEL_FLOW)
    other_flows = Renumber(1, 0)

    def counter_of(key: str) -> Renumber | None:
        lowered = key.lower()
        return counters["correlation"] if "corr" in lowered else counters.get(lowered)

    def flow_counter(event: Event) -> Renumber:
        if event.get("cat") != "ac2g":
            return other_flows
        number = event["id"]
        is_kernel_flow = isinstance(number, int) and number >= FIRST_KERNEL_FLOW
        return kernel_flows if is_kernel_flow else counters["correlation"]

    places: list[tuple[Event, str, Renumber]] = []
    for event in events:
        args = event.get("args", {})
        for key in args:
            counter = counter_of(key)
            if counter is not None:
                places.append((args, key, counter))
        if is_flow(event):
            places.append((event, "id", flow_counter(event)))
    for holder, key, counter in places:
        counter.see(holder[key])
    for counter in (*counters.values(), kernel_flows, other_flows):
        counter.close()
    for holder, key, counter in places:
        holder[key] = counter(holder[key])


def renumber_processes(events: list[Event]) -> None:
    """Replaces the operating system's process and thread numbers."""
    host = {e["pid"] for e in events if e.get("cat") == "cpu_op" and isinstance(e["pid"], int)}
    processes = Renumber(FIRST_PROCESS, 0)
    threads = Renumber(FIRST_PROCESS, 1)
    for event in events:
        if event.get("pid") in host:
            processes.see(event["pid"])
            threads.see(event.get("tid"))
    processes.close()
    threads.close()
    for event in events:
        if event.get("pid") not in host:
            continue
        args = event.get("args", {})
        if event.get("ph") == "M":
            rename_metadata(event, args, processes, threads)
        event["pid"], event["tid"] = processes(event["pid"]), threads(event.get("tid", 0))


def rename_metadata(event: Event, args: Event, processes: Renumber, threads: Renumber) -> None:
    """Names such as "thread 4711 (python)" and sort indices repeat the numbers."""
    old, new = event.get("tid"), threads(event.get("tid"))
    if isinstance(args.get("name"), str):
        args["name"] = re.sub(rf"\b{old}\b", str(new), args["name"])
    if "sort_index" in args:
        args["sort_index"] = threads(processes(args["sort_index"]))


def scrub_paths(event: Event) -> None:
    """Shortens absolute paths to their last part, in the name and in text arguments."""
    event["name"] = shorten_paths(str(event.get("name", "")))
    if "args" in event:
        event["args"] = shorten_paths(event["args"])


def shorten_paths(value: Any) -> Any:
    if isinstance(value, str):
        return _PATH.sub(r"\1", value) if "/" in value else value
    if isinstance(value, list):
        return [shorten_paths(item) for item in value]
    if isinstance(value, dict):
        return {key: shorten_paths(item) for key, item in value.items()}
    return value


def dump_trace(document: dict[str, Any], private: Iterable[str] = ()) -> bytes:
    """Compressed text; the bytes depend on the trace alone.

    Args:
        document: A cleaned trace.
        private: Words that must not be in the text whatever they stand in; they become "~".
    """
    text = json.dumps(document, separators=(",", ":"), default=plain_number)
    for word in sorted(private, key=len, reverse=True):
        text = text.replace(word, "~")
    if MARK in text:
        raise ValueError("a mark is left in the trace")
    return gzip.compress(text.encode(), 9, mtime=0)


def plain_number(value: object) -> float | int:
    """Decimals outside of `ts` and `dur`, such as an occupancy."""
    if not isinstance(value, Decimal):
        raise TypeError(f"{type(value).__name__} in a trace")
    return int(value) if value == value.to_integral_value() else float(value)
