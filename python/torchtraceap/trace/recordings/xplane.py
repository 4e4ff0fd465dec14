"""Read the `.xplane.pb` of XLA's profiler (JAX, TensorFlow).

A plane is a process, a line a thread, and statistics are arguments, as in the trace that the
profiler writes beside it; the core then knows what is what (docs/formats.md, JAX traces). The
numbers of fields are those of openxla/xla, `xplane.proto`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.records import dataclass
from torchtraceap.errors import ParseError, TraceError
from torchtraceap.trace.recordings.protobuf import double, read_bytes, signed, walk
from torchtraceap.trace.recordings.recording import EventGroup, Recording

__all__ = ["read"]

_FORMAT = "an XPlane profile"
_LACKS = ("properties of devices", "process groups of collectives")


@dataclass(frozen=True, slots=True)
class _Plane:
    name: str = ""
    lines: list[bytes] = field(default_factory=list)
    events: dict[int, bytes] = field(default_factory=dict)
    """Metadata of events by id, as it stands in the file."""
    stats: dict[int, str] = field(default_factory=dict)
    """Names of statistics by id."""


def read(path: PathLike) -> Recording:
    """Read all planes of a file.

    Raises:
        ParseError: It is no XSpace, or damaged.
    """
    try:
        planes = [_plane(value) for number, value in walk(read_bytes(path))
                  if number == 1 and isinstance(value, bytes)]  # fmt: skip
        groups: list[EventGroup] = []
        threads: dict[tuple[int | str, int | str], str] = {}
        for pid, plane in enumerate(planes, 1):
            for line in plane.lines:
                groups.append(_events(plane, line, pid, threads))
    except TraceError:
        raise
    except ValueError as error:
        raise ParseError(f"{path}: {_FORMAT} is damaged: {error}") from None
    return Recording(
        format=_FORMAT,
        groups=groups,
        process_names={pid: plane.name for pid, plane in enumerate(planes, 1)},
        thread_names=threads,
        lacks=_LACKS,
    )


def _text(value: int | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _plane(data: bytes) -> _Plane:
    name, plane = "", _Plane()
    for number, value in walk(data):
        if number == 2:
            name = _text(value)
        elif isinstance(value, bytes) and number == 3:
            plane.lines.append(value)
        elif isinstance(value, bytes) and number in (4, 5):
            key, entry = _entry(value)
            if number == 4:
                plane.events[key] = entry
            else:
                plane.stats[key] = next((_text(v) for n, v in walk(entry) if n == 2), "")
    return _Plane(name, plane.lines, plane.events, plane.stats)


def _entry(data: bytes) -> tuple[int, bytes]:
    """Return key and value of an entry of a map."""
    key, entry = 0, b""
    for number, value in walk(data):
        if number == 1:
            key = signed(value)
        elif number == 2 and isinstance(value, bytes):
            entry = value
    return key, entry


def _events(
    plane: _Plane, data: bytes, pid: int, threads: dict[tuple[int | str, int | str], str]
) -> EventGroup:
    """Return the events of a line."""
    tid, begin_ns, names, events = 0, 0, ["", ""], []
    for number, value in walk(data):
        if number == 1:
            tid = signed(value)
        elif number == 3:
            begin_ns = signed(value)
        elif number in (2, 11):
            names[number == 11] = _text(value)
        elif number == 4 and isinstance(value, bytes):
            events.append(_event(plane, value))
    threads[pid, tid] = names[1] or names[0]
    # Picoseconds: ends are rounded as starts are, so that neighbors do not overlap.
    start = [begin_ns + _to_ns(offset) for _, offset, _, _ in events]
    end = [begin_ns + _to_ns(offset + length) for _, offset, length, _ in events]
    keys = dict.fromkeys(key for *_, stats in events for key in stats)
    return EventGroup(
        name=[name for name, *_ in events],
        category=[None] * len(events),
        start_ns=start,
        dur_ns=[to - at for at, to in zip(start, end, strict=True)],
        pid=pid,
        tid=tid,
        args={key: [stats.get(key) for *_, stats in events] for key in keys},
    )


def _to_ns(picoseconds: int) -> int:
    return (picoseconds + 500) // 1000


def _event(plane: _Plane, data: bytes) -> tuple[str, int, int, dict[str, Any]]:
    """Return name, offset and duration in ps, and statistics of an event."""
    kind = offset = length = 0
    stats: dict[str, Any] = {}
    for number, value in walk(data):
        if number == 1:
            kind = signed(value)
        elif number == 2:
            offset = signed(value)
        elif number == 3:
            length = signed(value)
        elif number == 4 and isinstance(value, bytes):
            _add_stat(plane, value, stats)
    names = ["", ""]
    for number, value in walk(plane.events.get(kind, b"")):
        if number in (2, 4):
            names[number == 4] = _text(value)
        elif number == 5 and isinstance(value, bytes):
            _add_stat(plane, value, stats)
    return names[1] or names[0] or "event", offset, length, stats


def _add_stat(plane: _Plane, data: bytes, stats: dict[str, Any]) -> None:
    key = 0
    found: Any = None
    for number, value in walk(data):
        if number == 1:
            key = signed(value)
        elif number == 2:
            found = double(value)
        elif number in (3, 4):
            found = signed(value)
        elif number == 5:
            found = _text(value)
        elif number == 7:
            found = plane.stats.get(signed(value), "")
    if found is not None and (name := plane.stats.get(key)):
        stats.setdefault(name, found)
