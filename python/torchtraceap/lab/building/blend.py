"""`blend`: gives events that were put into a trace what the profiler gives to every event.

Note [As its neighbours]: an event that was put in has the arguments of an event of its category, in
their order; its numbers are the next ones, and those behind it move on. Else a fault would be known
by what the file says of its events, and not by what it costs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["blend"]

Event = dict[str, Any]
_RANGES = ("cpu_op", "user_annotation")
_CALLS = ("cuda_runtime", "cuda_driver")
_NUMBERS = {"External id": _RANGES, "Ev Idx": _RANGES, "correlation": _CALLS}
"""Counts of a profiler, with the categories of what has a number of its own."""
_INPUTS = {"Concrete Inputs": [""], "Input type": ["float"], "Input Strides": [[1]],
           "Input Dims": [[64]]}  # fmt: skip
_OF_FEW = ("Collective name", "Sequence number", "Fwd thread id")
"""Arguments that only some events of a category have."""
_BANDWIDTH = "memory bandwidth (GB/s)"


def blend(events: Sequence[Event], is_new: Callable[[Event], bool]) -> None:
    """Fills in the arguments of new events, and moves numbers. See Note [As its neighbours].

    Args:
        events: All with a length, by time.
        is_new: Whether one was put in; the others are as the profiler wrote them.
    """
    own = [event for event in events if not is_new(event)]
    new = [event for event in events if is_new(event)]
    launches = {e["args"]["correlation"]: e for e in new if e["cat"] in _CALLS}
    samples = _samples(own)
    for event in new:
        _fill(event, samples)
    for key, cats in _NUMBERS.items():
        _number(key, own, [event for event in new if event["cat"] in cats], cats)
    _refer(new, [event for event in events if _is_around(event, is_new)], launches)


def _samples(own: Sequence[Event]) -> dict[tuple[str, str | None], Event]:
    """One of each category and name, and of each category alone the plainest."""
    found: dict[tuple[str, str | None], Event] = {}
    for event in own:
        found.setdefault((event["cat"], event["name"]), event)
        plainest = found.get((event["cat"], None))
        if plainest is None or _few(event) < _few(plainest):
            found[event["cat"], None] = event
    return found


def _few(event: Event) -> tuple[int, int]:
    """How unlike most of its category it is."""
    args = event.get("args", {})
    return sum(key in args for key in _OF_FEW), -len(args)


def _fill(event: Event, samples: dict[tuple[str, str | None], Event]) -> None:
    named = samples.get((event["cat"], event["name"]))
    plainest = samples.get((event["cat"], None), {}).get("args", {})
    stated = event["args"]
    args = dict(named.get("args", {}) if named else plainest)
    if event["cat"] in _CALLS:  # a call by this name may stand outside of all ranges, and this not
        args = {**plainest, **args}
    for key in _OF_FEW:  # says of that one event what holds for no other
        args.pop(key, None)
    if named is None:
        args |= {key: value for key, value in _INPUTS.items() if key in args}
    event["args"] = {**args, **stated}
    if _BANDWIDTH in args and stated.get("bytes"):
        event["args"][_BANDWIDTH] = stated["bytes"] * 1e-3 / event["dur"]


def _number(key: str, own: Sequence[Event], new: Sequence[Event], cats: Sequence[str]) -> None:
    """The next number for each new event of these categories; all others move on."""
    counted = [event for event in own if event["cat"] in cats and key in event["args"]]
    if not counted:
        return
    times = [event["ts"] for event in counted]
    last = max(event["args"][key] for event in counted) + 1
    ahead: list[int] = []  # the number that each new event takes, before any moved on
    for event in new:
        place = bisect_left(times, event["ts"])
        ahead.append(counted[place]["args"][key] if place < len(counted) else last)
    ahead.sort()
    for event in own:
        if isinstance(number := event.get("args", {}).get(key), int):
            event["args"][key] = number + bisect_right(ahead, number)
    for place, event in enumerate(sorted(new, key=lambda each: float(each["ts"]))):
        event["args"][key] = ahead[place] + place


def _is_around(event: Event, is_new: Callable[[Event], bool]) -> bool:
    """What may be open around a new call: new ranges, and annotations; no operator is."""
    return event["cat"] == "user_annotation" or (event["cat"] in _RANGES and is_new(event))


def _refer(new: Sequence[Event], ranges: Sequence[Event], launches: dict[int, Event]) -> None:
    """GPU work has the number of its call, and both that of the innermost range around it."""
    for event in new:
        if event["cat"] in _RANGES:
            continue
        is_call = event["cat"] in _CALLS
        call = event if is_call else launches.get(event["args"].get("correlation"))
        if call is None:
            continue
        event["args"]["correlation"] = call["args"]["correlation"]
        around = _innermost(ranges, call)
        number = around["args"].get("External id") if around else None
        if "External id" in event["args"] and number is not None:
            event["args"]["External id"] = number
        else:
            event["args"].pop("External id", None)


def _innermost(ranges: Sequence[Event], call: Event) -> Event | None:
    """Of ranges by time, the last one that is open when the call begins."""
    place = bisect_right(ranges, call["ts"], key=lambda each: float(each["ts"]))
    around = (each for each in reversed(ranges[:place]) if each["ts"] + each["dur"] > call["ts"])
    return next(around, None)
