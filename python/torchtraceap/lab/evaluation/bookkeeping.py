"""`bookkeeping_of`: what a trace says beside its events' names and times.

Numbers, their gaps and their order, processes and threads, where the recording begins, bytes for
each event, orders of keys, residue of marks. None of it is evidence of lost time, so a model of
nothing else must not tell traces with a fault from those without (docs/benchmark.md). Durations,
names and counts of events are evidence and are left out.

Note [Counts]: what is irregular is counted and not divided by all events: a fault adds events, and
would be known by a share that it makes smaller.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.errors import ParseError

__all__ = ["bookkeeping_of"]

Event = Mapping[str, Any]
_RANGES, _CALLS = ("cpu_op", "user_annotation"), ("cuda_runtime", "cuda_driver")
_HOST = (*_RANGES, *_CALLS)
_NUMBERS = {
    "External id": _RANGES,
    "Ev Idx": _RANGES,
    "Record function id": _RANGES,
    "Sequence number": ("cpu_op",),
    "correlation": _CALLS,
}
"""Whose numbers they are, of the events that have them."""
_KEYED = ("cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy")
_RARE = 0.002
"""Of the events of a category: keys that fewer have stand apart."""
_MARKS = ("__m", "marker", "inject", "fault", "plant", "decoy", "twin", "provisional")
_DIGITS = (10, 100, 1_000)


def bookkeeping_of(path: PathLike) -> dict[str, float]:
    """Features of a Kineto file, the same names for every file; NaN for what it does not have.

    Args:
        path: JSON, packed by gzip or not.

    Raises:
        ParseError: It holds no complete event, or is no JSON.
    """
    data = Path(path).read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    try:
        events: list[Event] = json.loads(text)["traceEvents"]
    except (ValueError, KeyError, TypeError) as error:
        raise ParseError(f"{path}: is no trace in JSON") from error
    whole = [e for e in events if e.get("ph") == "X" and "dur" in e and e.get("cat") != "Trace"]
    if not whole:
        raise ParseError(f"{path}: holds no complete event")
    return {
        **_bytes(data, text, events),
        **_numbers(whole),
        **_arrows(events),
        **_order(whole),
        **_places(whole),
        **_extent(events, whole),
        **_keys(whole),
        **_marks(whole),
    }


def _bytes(data: bytes, text: bytes, events: Sequence[Event]) -> dict[str, float]:
    return {
        "bytes: packed, for each event": len(data) / len(events),
        "bytes: for each event": len(text) / len(events),
        "bytes: packed to plain": len(data) / len(text),
        "bytes: ahead of the events": text.index(b"traceEvents"),
    }


def _mean(values: Array) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _numbers(whole: Sequence[Event]) -> dict[str, float]:
    """Of each count, by those events that take a number of their own."""
    found: dict[str, float] = {}
    for key, kinds in _NUMBERS.items():
        kept = [e for e in whole if e.get("cat") in kinds and key in e.get("args", {})]
        found |= _count(key, [(e["args"][key], e["ts"], str(e["tid"])) for e in kept])
    return found


def _count(name: str, rows: Iterable[tuple[Any, Any, str]]) -> dict[str, float]:
    """Of numbers with times and threads: gaps, what goes against time, where it begins and ends.

    See Note [Counts].
    """
    kept = [(float(number), float(ts), tid) for number, ts, tid in rows if float(number) > 0]
    kept.sort(key=lambda row: (row[1], row[0]))  # at one time in the order of numbers
    ids = np.array([number for number, _, _ in kept])
    gaps = np.diff(np.unique(ids))
    gaps = gaps[gaps > 1]
    threads: defaultdict[str, list[float]] = defaultdict(list)
    for number, _, tid in kept:
        threads[tid].append(number)
    steps = np.concatenate([np.diff(of) for of in threads.values()] or [ids[:0]])
    return {
        f"{name}: gaps": _log(len(gaps)),
        f"{name}: mean gap": _mean(np.minimum(gaps, 1_000)),
        f"{name}: largest gap": _log(gaps.max(initial=0)),
        f"{name}: goes down": _log((steps < 0).sum()),
        f"{name}: comes again": _log(len(ids) - len(np.unique(ids))),
        f"{name}: first": _log(ids.min(initial=np.inf)),
        f"{name}: behind the last": _log(len(ids) - 1 - int(ids.argmax())) if len(ids) else np.nan,
        f"{name}: odd": _mean(ids % 2),
    }


def _log(value: float) -> float:
    return float(np.log10(1 + max(0.0, float(value)))) if np.isfinite(value) else float("nan")


def _arrows(events: Sequence[Event]) -> dict[str, float]:
    """Ids of arrows, and ends without the other end. Those of launches have gaps where calls
    launch nothing, which is evidence."""
    found: dict[str, float] = {}
    for kind in ("ac2g", "fwdbwd"):
        ends = [[e for e in events if e.get("cat") == kind and e.get("ph") == ph] for ph in "sf"]
        found |= _count(f"{kind} arrow", [(e["id"], e["ts"], str(e["tid"])) for e in ends[0]])
        ids = [np.array([float(e["id"]) for e in side]) for side in ends]
        for gap in ("gaps", "mean gap", "largest gap") if kind == "ac2g" else ():
            del found[f"{kind} arrow: {gap}"]
        found[f"{kind} arrow: loose"] = _log((~np.isin(ids[0], ids[1])).sum())
    return found


def _order(whole: Sequence[Event]) -> dict[str, float]:
    """How events lie in the file."""
    times = np.array([float(e["ts"]) for e in whole])
    return {
        "order: against time": _log((np.diff(times) < 0).sum()),
        "order: of the last in time": _log(len(times) - 1 - int(times.argmax())),
    }


def _places(whole: Sequence[Event]) -> dict[str, float]:
    """Values of processes, threads and streams; how many there are says what runs, not who."""
    host = [e for e in whole if e.get("cat") in _HOST]
    work = [e for e in whole if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    pids, tids = _values(host, "pid"), _values(host, "tid")
    streams = np.array([float(e["args"].get("stream", -1)) for e in work if "args" in e])
    return {
        "places: process": _log(pids.min(initial=np.inf)),
        "places: first thread": _log(tids.min(initial=np.inf)),
        "places: last thread": _log(tids.max(initial=0)),
        "places: odd process": _mean(pids % 2),
        "places: odd threads": _mean(np.unique(tids) % 2),
        "places: threads that are no numbers": 1 - len(tids) / max(1, len(host)),
        "places: first stream": _log(streams.min(initial=np.inf)),
        "places: last stream": _log(streams.max(initial=0)),
        "places: odd streams": _mean(np.unique(streams) % 2),
    }


def _values(events: Iterable[Event], key: str) -> Array:
    return np.array([float(e[key]) for e in events if isinstance(e.get(key), int)])


def _extent(events: Sequence[Event], whole: Sequence[Event]) -> dict[str, float]:
    """Where the recording is cut, and digits of its clock."""
    begin, length = (np.array([float(e[key]) for e in whole]) for key in ("ts", "dur"))
    end = (begin + length).max()
    steps = [float(e["ts"]) for e in whole if str(e["name"]).startswith("ProfilerStep")]
    marks = np.array([float(e["ts"]) for e in events if e.get("ph") != "X" and "ts" in e])
    found = {
        "extent: clock": _log(begin.min()),
        "extent: clock's last digits": float(begin.min() % 1_000),
        "extent: marks ahead": _log((marks < begin.min()).sum()),
        "extent: marks behind": _log((marks > end).sum()),
        "extent: ahead of the steps": _log(min(steps) - begin.min()) if steps else np.nan,
    }
    for unit in _DIGITS:
        for name, values in (("begins", begin), ("lengths", length)):
            found[f"extent: {name} of {unit} ns"] = _mean(np.rint(values * 1_000) % unit == 0)
    return found


def _keys(whole: Sequence[Event]) -> dict[str, float]:
    """Orders of keys beyond the one that each set of keys has, and sets that few events have."""
    by_kind: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for event in whole:
        by_kind[str(event.get("cat"))].append((*event, "|", *event.get("args", {})))
    found: dict[str, float] = {}
    for kind in _KEYED:
        lists = by_kind[kind]
        ordered, sets = Counter(lists), Counter(map(frozenset, lists))
        found[f"keys: {kind} orders"] = float(len(ordered) - len(sets))
        rare = [count for count in sets.values() if count < _RARE * len(lists)]
        found[f"keys: {kind} rare"] = float(len(rare))
    return found


def _marks(whole: Sequence[Event]) -> dict[str, float]:
    """Residue of marks around what was put in."""
    names = [str(e["name"]).lower() for e in whole]
    marked = [any(mark in name for mark in _MARKS) for name in set(names)]
    return {"marks: names": float(sum(marked)), "marks: empty names": _mean(np.array(names) == "")}
