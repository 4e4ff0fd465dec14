"""Removal of the markers from a recorded trace, and of all that tells of them or the machine.

Note [Neutral]: a marker advances every counter that a `record_function` advances, so all of them
are numbered anew without gaps. Copies of annotations on the GPU cover only the kernels that the
profiler gave them, and a kernel launched inside a marker was given to the marker; so these copies
all go. What is left tells neither the order of recording (times, processes, threads, steps) nor the
machine (host, folders, device ids).

Note [Crop]: a part of the first and of the last step is cut off, as of a recording that begins and
ends anywhere. What is not inside as a whole goes, with the arrows from and to it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

from torchtraceap.errors import ParseError
from torchtraceap.lab.collection.markers import is_marker

__all__ = ["ORIGIN_NS", "first_ns", "pack", "read_document", "remove_markers"]

Event = dict[str, Any]

ORIGIN_NS = 1_000_000_000
"""The first event of every file starts here: absolute times tell the order of recording."""
_FIRST_PROCESS = 1000
_FIRST_KERNEL_FLOW = 1 << 40
"""Kineto numbers flows between kernels from here on; they are no correlation ids."""
_KEPT = ("schemaVersion", "deviceProperties", "record_shapes", "with_modules",
         "cuda_runtime_version", "cuda_driver_version", "cupti_version",
         "displayTimeUnit")  # fmt: skip
_OF_ONE_DEVICE = frozenset({"uuid", "pciBusId", "pci_bus_id", "serial"})
_DROPPED = frozenset({"python_function", "gpu_user_annotation", "Trace"})
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+@~-]+/)+([\w.+@~-]+)")
_STEP = "ProfilerStep#"


def read_document(path: Path) -> dict[str, Any]:
    """Return an exported trace, with times as they are written.

    Raises:
        ParseError: It is no trace.
    """
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    document = json.loads(text, parse_float=Decimal)
    if not isinstance(document, dict) or not any(map(_is_complete, document["traceEvents"])):
        raise ParseError(f"{path}: is not a trace of PyTorch's profiler")
    return document


def first_ns(document: dict[str, Any]) -> int:
    """Return the start of the first event. Metadata has arbitrary times in some versions."""
    return min(_ns(e["ts"]) for e in document["traceEvents"] if _is_complete(e))


def remove_markers(document: dict[str, Any], start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return the trace from one time to another without markers. See Note [Neutral], Note [Crop].

    Args:
        document: The trace as it was read; its events are changed.
        start_ns: Begin, on its clock.
        end_ns: End, on its clock.

    Returns:
        A trace whose clock shows `ORIGIN_NS` at `start_ns`, with times in microseconds.
    """
    gone: list[Event] = []
    events: list[Event] = []
    for event in document["traceEvents"]:
        for key in ("ts", "dur"):
            if key in event:
                event[key] = _ns(event[key])
        (events if _is_kept(event, start_ns, end_ns) else gone).append(event)
    # Arrows from and to what is gone go too; others may dangle, as Kineto leaves some.
    places = {_place(e) for e in gone if _is_complete(e)}
    places -= {_place(e) for e in events if _is_complete(e)}
    lost = {_flow(e) for e in gone if _is_flow(e)}
    lost |= {_flow(e) for e in events if _is_flow(e) and _place(e) in places}
    events = [e for e in events if not (_is_flow(e) and _flow(e) in lost)]
    _renumber_ids(events)
    _renumber_processes(events)
    _renumber_steps(events)
    for event in events:
        event["name"] = _shorten_paths(str(event.get("name", "")))
        if "args" in event:
            event["args"] = _shorten_paths(event["args"])
        # Microseconds are exact: below 2^53, and three decimals.
        if event.get("ph") == "M" and "ts" in event:
            event["ts"] = 0
        elif "ts" in event:
            event["ts"] = (event["ts"] - start_ns + ORIGIN_NS) / 1000
        if "dur" in event:
            event["dur"] = event["dur"] / 1000
    result = {key: document[key] for key in _KEPT if key in document}
    result["baseTimeNanoseconds"] = 0
    result["deviceProperties"] = [
        {key: value for key, value in device.items() if key not in _OF_ONE_DEVICE}
        for device in document.get("deviceProperties", [])
    ]
    if "distributedInfo" in document:
        job = document["distributedInfo"]
        known = {key: job[key] for key in ("rank", "world_size") if key in job}
        result["distributedInfo"] = {"backend": "nccl", **known}  # also where it was emulated
    result["traceEvents"] = events
    result["traceName"] = "trace.json"
    return result


def pack(document: dict[str, Any], private: Iterable[str] = ()) -> bytes:
    """Return compressed text, which depends on the document alone.

    Args:
        document: A result of `remove_markers`.
        private: Words that must not be anywhere in the text; they become "~".
    """

    def plain(value: object) -> float | int:  # decimals of other values, such as an occupancy
        if not isinstance(value, Decimal):
            raise TypeError(f"{type(value).__name__} in a trace")
        return int(value) if value == value.to_integral_value() else float(value)

    text = json.dumps(document, separators=(",", ":"), default=plain)
    for word in sorted(private, key=len, reverse=True):
        text = text.replace(word, "~")
    return gzip.compress(text.encode(), 6, mtime=0)


# ------------------------------------------------------------------------- what is kept


def _is_complete(event: Event) -> bool:
    return event.get("ph") == "X" and "ts" in event and "dur" in event


def _is_flow(event: Event) -> bool:
    return event.get("ph") in ("s", "t", "f")


def _is_kept(event: Event, start_ns: int, end_ns: int) -> bool:
    if event.get("ph") == "M":
        return True
    if event.get("cat") in _DROPPED or is_marker(str(event.get("name", ""))):
        return False
    begin = event.get("ts", start_ns)
    return bool(start_ns <= begin and begin + event.get("dur", 0) <= end_ns)


def _place(event: Event) -> tuple[Any, Any, Any]:
    return event.get("pid"), event.get("tid"), event.get("ts")


def _flow(event: Event) -> tuple[Any, Any]:
    return event.get("cat"), event.get("id")


def _ns(microseconds: Decimal | int | str) -> int:
    return int((Decimal(microseconds) * 1000).to_integral_value(ROUND_HALF_EVEN))


# ------------------------------------------------------------------------- numbers


class _Numbers:
    """New numbers from `first` on for the values that were seen, in their order."""

    def __init__(self, first: int, least: int) -> None:
        self._first, self._least = first, least
        self._seen: set[int] = set()
        self._numbers: dict[int, int] = {}

    def see(self, value: Any) -> None:
        if isinstance(value, int) and not isinstance(value, bool) and value >= self._least:
            self._seen.add(value)

    def close(self) -> None:
        self._numbers = {old: self._first + i for i, old in enumerate(sorted(self._seen))}

    def __call__(self, value: Any) -> Any:
        return self._numbers.get(value, value) if isinstance(value, int) else value


def _renumber_ids(events: list[Event]) -> None:
    """Close the gaps in every counter."""
    counters = {
        "external id": _Numbers(1, 1),
        "record function id": _Numbers(1, 1),
        "ev idx": _Numbers(0, 0),
        "sequence number": _Numbers(0, 0),
        "correlation": _Numbers(1, 1),
    }
    flows = {"kernel": _Numbers(_FIRST_KERNEL_FLOW, _FIRST_KERNEL_FLOW), "other": _Numbers(1, 0)}

    def counter_of(key: str) -> _Numbers | None:
        lowered = key.lower()
        return counters["correlation"] if "corr" in lowered else counters.get(lowered)

    def counter_of_flow(event: Event) -> _Numbers:
        if event.get("cat") != "ac2g":
            return flows["other"]
        number = event["id"]
        of_kernels = isinstance(number, int) and number >= _FIRST_KERNEL_FLOW
        return flows["kernel"] if of_kernels else counters["correlation"]

    places: list[tuple[Event, str, _Numbers]] = []
    for event in events:
        args = event.get("args", {})
        found = ((key, counter_of(key)) for key in args)
        places += [(args, key, counter) for key, counter in found if counter is not None]
        if _is_flow(event):
            places.append((event, "id", counter_of_flow(event)))
    for holder, key, counter in places:
        counter.see(holder[key])
    for counter in (*counters.values(), *flows.values()):
        counter.close()
    for holder, key, counter in places:
        holder[key] = counter(holder[key])


def _renumber_processes(events: list[Event]) -> None:
    """Replace the operating system's process and thread numbers."""
    host = {e["pid"] for e in events if e.get("cat") == "cpu_op" and isinstance(e["pid"], int)}
    processes, threads = _Numbers(_FIRST_PROCESS, 0), _Numbers(_FIRST_PROCESS, 1)
    ours = [event for event in events if event.get("pid") in host]
    for event in ours:
        processes.see(event["pid"])
        threads.see(event.get("tid"))
    processes.close()
    threads.close()
    for event in ours:
        if event.get("ph") == "M":  # names such as "thread 4711 (python)" and sort indices
            args = event.get("args", {})
            old, new = event.get("tid"), threads(event.get("tid"))
            if isinstance(args.get("name"), str):
                args["name"] = re.sub(rf"\b{old}\b", str(new), args["name"])
            if "sort_index" in args:
                args["sort_index"] = threads(processes(args["sort_index"]))
        event["pid"], event["tid"] = processes(event["pid"]), threads(event.get("tid", 0))


def _renumber_steps(events: list[Event]) -> None:
    """Number the steps from `ProfilerStep#0` on."""
    numbers = _Numbers(0, 0)
    steps = [e for e in events if str(e.get("name", "")).startswith(_STEP)]
    for event in steps:
        numbers.see(int(event["name"].removeprefix(_STEP)))
    numbers.close()
    for event in steps:
        event["name"] = f"{_STEP}{numbers(int(event['name'].removeprefix(_STEP)))}"


# ------------------------------------------------------------------------- texts


def _shorten_paths(value: Any) -> Any:
    """Return a value in whose texts absolute paths are their last part."""
    if isinstance(value, str):
        return _PATH.sub(r"\1", value) if "/" in value else value
    if isinstance(value, list):
        return [_shorten_paths(item) for item in value]
    if isinstance(value, dict):
        return {key: _shorten_paths(item) for key, item in value.items()}
    return value
