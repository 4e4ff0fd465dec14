"""What a reader of another profiler's file hands over, and the table that it makes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.errors import ParseError, SchemaError
from torchtraceap.trace.event_columns import Texts, event_table

__all__ = ["RECORDED_BY", "EventGroup", "Recording"]

RECORDED_BY = "torchtraceap_recorded_by"
"""The member beside the events that says what the file was, and what it could not say."""
_MOST_NS = 2 * 10**18


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events with the same arguments, in any order."""

    name: Sequence[str]
    category: str | Sequence[str | None]
    """As torch.profiler calls it: "kernel", "gpu_memcpy", "cuda_runtime", "user_annotation", ..."""
    start_ns: npt.ArrayLike
    dur_ns: npt.ArrayLike
    pid: npt.ArrayLike | Sequence[int | str]
    """The process; of GPU work the device."""
    tid: npt.ArrayLike | Sequence[int | str]
    """The thread; of GPU work the stream."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Columns of arguments, as Kineto names them: "correlation" links a call to its GPU work. Each
    is an int64 array, with a mask where events lack it, or a list of texts, numbers or tuples."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What a file of another profiler says."""

    format: str
    groups: Sequence[EventGroup]
    process_names: Mapping[int | str, str] = field(default_factory=dict)
    thread_names: Mapping[tuple[int | str, int | str], str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Members beside the events, as Kineto writes them: deviceProperties, distributedInfo, ..."""
    lacks: Sequence[str] = ()
    """What the format can't say, as nouns."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """What the file holds and the reader leaves out, counted."""

    def table(self, path: str) -> _core.EventTable:
        """Return the table of events.

        Raises:
            ParseError: There is no event, or the events are impossible.
        """
        checked = [_checked(group) for group in self.groups]
        groups = [group for group, _ in checked if len(group.name)]
        if not groups:
            raise ParseError(f"{path}: {self.format}: expected at least one event, found none")
        named = self._names()
        impossible = sum(count for _, count in checked)
        left_out = {**self.left_out, "events with impossible times": impossible}
        about = {
            "format": self.format,
            "lacks": list(self.lacks),
            "left_out": {name: count for name, count in left_out.items() if count},
        }
        try:
            return event_table(
                _codes([g.name for g in groups] + [[name for name, *_ in named]]),
                ts_ns=np.concatenate([*(g.start_ns for g in groups), np.zeros(len(named), "i8")]),
                dur_ns=np.concatenate([*(g.dur_ns for g in groups), np.zeros(len(named), "i8")]),
                category=_codes([*(_each(g.category, g) for g in groups), [None] * len(named)]),
                pid=[*_joined(groups, "pid"), *(pid for _, pid, _, _ in named)],
                tid=[*_joined(groups, "tid"), *(tid for _, _, tid, _ in named)],
                phase=["X"] * sum(len(g.name) for g in groups) + ["M"] * len(named),
                args={
                    **_arguments(groups, len(named)),
                    "name": [None] * sum(len(g.name) for g in groups)
                    + [text for *_, text in named],
                },
                metadata={**self.metadata, RECORDED_BY: about},
                path=path,
            )
        except SchemaError as error:
            raise ParseError(f"{path}: {self.format}: {error}") from None

    def _names(self) -> list[tuple[str, int | str, int | str, str]]:
        processes = [("process_name", pid, 0, text) for pid, text in self.process_names.items()]
        threads = [
            ("thread_name", pid, tid, text) for (pid, tid), text in self.thread_names.items()
        ]
        return [*processes, *threads]


def _checked(group: EventGroup) -> tuple[EventGroup, int]:
    """Return the events of a group whose times are possible, as int64, and how many are not. One
    that ends before it starts takes no time."""
    start, dur = (_times(values) for values in (group.start_ns, group.dur_ns))
    possible = (abs(start) <= _MOST_NS) & (dur <= _MOST_NS)
    rows = np.flatnonzero(possible)

    def kept(values: Any) -> Any:
        if len(rows) == len(start) or isinstance(values, (str, int)):
            return values
        if isinstance(values, np.ndarray):
            return values[rows]
        return [values[row] for row in rows.tolist()]

    return EventGroup(
        name=kept(group.name),
        category=kept(group.category),
        start_ns=start[rows],
        dur_ns=np.maximum(dur[rows], 0),
        pid=kept(group.pid),
        tid=kept(group.tid),
        args={key: kept(values) for key, values in group.args.items()},
    ), len(start) - len(rows)


def _times(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    try:
        return np.asarray(values, dtype=np.int64)
    except OverflowError:  # unsigned ones
        most = _MOST_NS + 1
        clipped = [max(-most, min(most, value)) for value in cast("Sequence[int]", values)]
        return np.array(clipped, dtype=np.int64)


def _each(values: Any, group: EventGroup) -> Sequence[Any]:
    return [values] * len(group.name) if isinstance(values, (str, int)) else list(values)


def _joined(groups: Sequence[EventGroup], column: str) -> list[Any]:
    joined: list[Any] = []
    for group in groups:
        values = getattr(group, column)
        joined += values.tolist() if isinstance(values, np.ndarray) else _each(values, group)
    return joined


def _codes(parts: Sequence[Sequence[str | None]]) -> Texts:
    known: dict[str, int] = {}
    codes = [
        -1 if text is None else known.setdefault(text, len(known))
        for part in parts
        for text in part
    ]
    return Texts(np.array(codes, dtype=np.int64), list(known))


def _arguments(groups: Sequence[EventGroup], more: int) -> dict[str, Any]:
    """Return the arguments of all groups as columns over all events and `more` without any."""
    keys = dict.fromkeys(key for group in groups for key in group.args)
    return {key: _argument(groups, key, more) for key in keys}


def _argument(groups: Sequence[EventGroup], key: str, more: int) -> Any:
    masked: Any = np.ma
    parts = [group.args.get(key) for group in groups]
    if all(part is None or isinstance(part, np.ndarray) for part in parts):
        columns: list[Array] = [
            masked.masked_all(len(group.name), dtype=np.int64) if part is None else part
            for group, part in zip(groups, parts, strict=True)
        ]
        return masked.concatenate([*columns, masked.masked_all(more, dtype=np.int64)])
    joined: list[Any] = []
    for group, part in zip(groups, parts, strict=True):
        joined += [None] * len(group.name) if part is None else list(part)
    return _column(joined + [None] * more)


def _column(values: Sequence[Any]) -> Any:
    """Return values of any kind as what `event_table` keeps best: numbers as numbers."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and kinds:
        fits = all(type(v) is float or -(2**63) < v < 2**63 for v in values if v is not None)
        if fits and all(type(v) is int or math.isfinite(v) for v in values if v is not None):
            mask = [value is None for value in values]
            dtype = np.float64 if float in kinds else np.int64
            return np.ma.array([value or 0 for value in values], mask=mask, dtype=dtype)
    known: dict[tuple[type, Any], int] = {}
    codes = [
        -1 if value is None else known.setdefault((type(value), value), len(known))
        for value in values
    ]
    texts = [json.dumps(value if _is_json(value) else str(value)) for _, value in known]
    return Texts(np.array(codes, dtype=np.int64), texts, is_json=True)


def _is_json(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
