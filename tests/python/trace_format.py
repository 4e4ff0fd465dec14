"""What Chrome's Trace Event Format asks of a file, and what of it a file breaks.

Source: "Trace Event Format" (Chromium's catapult project), on complete, duration, instant, counter,
flow and metadata events. Times are read as decimals: a double has no nanoseconds this late.
"""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from typing import Any

Event = dict[str, Any]
_PHASES = set("BEXiICsftPMNODbneSTFpRca()vV,")
_METADATA = {
    "process_name",
    "process_labels",
    "process_sort_index",
    "thread_name",
    "thread_sort_index",
}


def events_of(text: bytes) -> list[Event]:
    """Those of a document, with exact times."""
    document = json.loads(text, parse_float=Decimal)
    assert isinstance(document, dict)
    events: list[Event] = document["traceEvents"]
    return events


def breaches(events: list[Event]) -> list[str]:
    """What is wrong, one line each."""
    found: list[str] = []
    tracks: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        phase = event.get("ph")
        if phase not in _PHASES:
            found.append(f"no phase: {event}")
            continue
        if phase == "M":
            if event["name"] not in _METADATA or not isinstance(event.get("args"), dict):
                found.append(f"metadata: {event}")
            continue
        found += _of_fields(event)
        if phase in "XBE":
            tracks[event.get("pid"), event.get("tid")].append(event)
    for track in tracks.values():
        found += _of_track(track)
    return found + _of_flows(events, tracks)


def _of_fields(event: Event) -> list[str]:
    found = [f"no {key}: {event}" for key in ("ts", "pid", "tid") if key not in event]
    if event["ph"] == "X" and not (_is_time(event.get("dur")) and event["dur"] >= 0):
        found.append(f"duration: {event}")
    if not _is_time(event.get("ts")):
        found.append(f"time: {event}")
    if event["ph"] != "E" and not isinstance(event.get("name"), str):
        found.append(f"no name: {event}")
    if event["ph"] == "C" and not all(_is_time(v) for v in event.get("args", {}).values()):
        found.append(f"counter: {event}")
    return found


def _is_time(value: object) -> bool:
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def _of_track(track: list[Event]) -> list[str]:
    """Ranges of one thread lie one behind the other or one in the other."""
    found, open_ends = [], []
    for begin, end, event in sorted(_ranges(track, found), key=lambda r: (r[0], -r[1])):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            found.append(f"crosses another: {event}")
        open_ends.append(end)
    return found


def _ranges(track: list[Event], found: list[str]) -> list[tuple[Any, Any, Event]]:
    ranges = [(e["ts"], e["ts"] + e["dur"], e) for e in track if e["ph"] == "X"]
    begun: list[Event] = []
    for event in sorted((e for e in track if e["ph"] != "X"), key=lambda e: e["ts"]):
        if event["ph"] == "B":
            begun.append(event)
        elif not begun:
            found.append(f"ends nothing: {event}")
        else:
            first = begun.pop()
            ranges.append((first["ts"], event["ts"], first))
    found += [f"never ends: {event}" for event in begun]
    return ranges


def _of_flows(events: list[Event], tracks: dict[Any, list[Event]]) -> list[str]:
    """An arrow begins and ends, in this order, where something is that it joins."""
    found = []
    ends: dict[Any, dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event.get("ph") in ("s", "f"):
            ends[event.get("cat"), event.get("name"), event.get("id")][event["ph"]] = event
    starts = {track: {e["ts"] for e in mine if e["ph"] in "XB"} for track, mine in tracks.items()}
    for pair in ends.values():
        if len(pair) < 2:
            found.append(f"half an arrow: {pair}")
        elif pair["f"]["ts"] < pair["s"]["ts"]:
            found.append(f"an arrow back: {pair}")
        for event in pair.values():
            if event["ts"] not in starts.get((event.get("pid"), event.get("tid")), set()):
                found.append(f"an arrow from or to nothing: {event}")
    return found


def kernels_in_annotations(events: list[Event]) -> set[tuple[Any, ...]]:
    """Which GPU event lies in which annotation of its track: names, each with its number from the
    end among those of its name on the track."""
    found = set()
    numbers: dict[Any, int] = defaultdict(int)
    tracks: dict[Any, list[tuple[Event, int]]] = defaultdict(list)
    complete = [e for e in events if e.get("ph") == "X"]
    for event in sorted(complete, key=lambda e: e["ts"], reverse=True):
        key = event["pid"], event["tid"], event["name"], event.get("cat")
        tracks[event["pid"], event["tid"]].append((event, numbers[key]))
        numbers[key] += 1
    for track, mine in tracks.items():
        spans = [(e, n) for e, n in mine if e.get("cat") == "gpu_user_annotation"]
        for event, number in mine:
            if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
                continue
            for span, at in spans:
                inside = span["ts"] <= event["ts"]
                if inside and event["ts"] + event["dur"] <= span["ts"] + span["dur"]:
                    found.add((track, span["name"], at, event["name"], number))
    return found
