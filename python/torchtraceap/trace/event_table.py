"""Make a rank's events from arrays, for traces that no profiler wrote.

It is the table that reading a file of the same events would give, without a file or its text:
sorted rows, ranges of B and E matched, devices and rank from the metadata.

    table = event_table(
        ["cudaLaunchKernel", "gemm"], ts_ns=[0, 5_000], dur_ns=[3_000, 90_000],
        category=["cuda_runtime", "kernel"], pid=[1, 0], tid=[1, 7],
        args={"correlation": [11, 11], "stream": [None, 7], "device": [None, 0]},
        metadata={"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]},
    )
    trace = Trace([RankTrace(table, rank=None)])
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.errors import SchemaError

__all__ = ["Texts", "Values", "event_table"]


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of few distinct texts."""

    codes: Array
    """int `[n]`: index in `texts`; below 0 where an event has none."""
    texts: Sequence[str]
    is_json: bool = False
    """Each text is a JSON value as it stands, such as "[[8, 1024]]"."""


Values: TypeAlias = "npt.ArrayLike | Sequence[Any] | Texts"
"""A column `[n]`: an array of integers or floats, with a mask (`numpy.ma`) or without; `Texts`; or
a sequence of any values that JSON has, with None where an event lacks the key."""


def event_table(
    name: Sequence[str] | Texts,
    ts_ns: npt.ArrayLike,
    dur_ns: npt.ArrayLike,
    *,
    category: str | Sequence[str | None] | Texts | None,
    pid: npt.ArrayLike | Sequence[int | str],
    tid: npt.ArrayLike | Sequence[int | str],
    phase: str | Sequence[str] = "X",
    args: Mapping[str, Values] | None = None,
    members: Mapping[str, Values] | None = None,
    metadata: Mapping[str, Any] | None = None,
    path: str = "",
) -> _core.EventTable:
    """A table of n events, in any order.

    Args:
        name: `[n]`: names.
        ts_ns: int64 `[n]`, ns: when each starts. Metadata (phase M) has no time.
        dur_ns: int64 `[n]`, ns: how long each takes; only phase X has a duration. Or one number.
        category: `[n]`: such as "kernel", None where there is none; or one for all.
        pid: `[n]`: process of each, integers or texts; or one for all.
        tid: `[n]`: thread (or stream) of each.
        phase: `[n]`: letter of Chrome's trace format; or one for all.
        args: Columns of `args`: "correlation", "stream", "device", "External id", "grid", ...
        members: Columns beside them: "id" and "bp" of flows, "s" of instants.
        metadata: Top-level members, values that JSON has: deviceProperties, distributedInfo, ...
        path: Stands for the file in messages.

    Raises:
        SchemaError: Columns of different lengths; times or durations outside +-2.3e18 ns, or
            durations below 0; values that JSON doesn't have.
    """
    starts = np.atleast_1d(_integers("ts_ns", ts_ns))
    events = len(starts)
    pool = _Pool()
    tracks = _Pool()
    pids, tids = _one_each("pid", pid, events), _one_each("tid", tid, events)
    pairs = zip(pids, tids, strict=True)
    return _core.build_table(
        ts_ns=starts,
        dur_ns=np.broadcast_to(_integers("dur_ns", dur_ns), _shape("dur_ns", dur_ns, events)),
        phase=np.array([_letter(letter) for letter in _one_each("phase", phase, events)], np.uint8),
        name=pool.codes("name", name, events),
        category=pool.codes("category", category, events),
        track=np.array([tracks.code((str(p), str(t))) for p, t in pairs], dtype=np.uint32),
        strings=list(pool.texts),
        tracks=list(tracks.texts),
        args=_cells(args or {}, events),
        members=_cells(members or {}, events),
        metadata=[(key, _json(key, value)) for key, value in (metadata or {}).items()],
        path=path,
    )


class _Pool:
    """Distinct things by code."""

    def __init__(self) -> None:
        self.texts: dict[Any, int] = {}

    def code(self, text: Hashable) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def codes(
        self, what: str, values: str | Sequence[str | None] | Texts | None, events: int
    ) -> npt.NDArray[np.uint32]:
        """uint32 `[events]`; NO_STRING for None."""
        if isinstance(values, Texts):
            known = np.array([*map(self.code, values.texts), _core.NO_STRING], dtype=np.uint32)
            codes = np.asarray(values.codes)
            if len(codes) and codes.max(initial=-1) >= len(values.texts):
                raise SchemaError(f"{what}: a code is beyond the {len(values.texts)} texts")
            return known[np.where(codes >= 0, codes, len(values.texts))]
        found = [
            _core.NO_STRING if value is None else self.code(str(value))
            for value in _one_each(what, values, events)
        ]
        return np.array(found, dtype=np.uint32)


def _integers(what: str, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise SchemaError(f"{what}: integers were expected, not {array.dtype}")
    return array.astype(np.int64)


def _shape(what: str, values: npt.ArrayLike, events: int) -> tuple[int, ...]:
    shape = np.shape(values)
    if shape not in ((), (events,)):
        raise SchemaError(f"{what}: one number or {events} were expected, not {shape}")
    return (events,)


def _one_each(what: str, values: Any, events: int) -> Sequence[Any]:
    """A list `[events]` of plain values; what is one value is repeated."""
    if values is None or isinstance(values, (str, int, float, np.generic)):
        return [values] * events
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if len(listed) != events:
        raise SchemaError(
            f"{what}: one for each of {events} events was expected, not {len(listed)}"
        )
    return listed


def _letter(phase: str) -> int:
    if len(phase) != 1 or not phase.isascii() or not phase.isalpha():
        raise SchemaError(f"phase: a letter was expected, not {phase!r}")
    return ord(phase)


_Cell: TypeAlias = "tuple[str, Any, npt.NDArray[np.uint8] | None]"


def _cells(columns: Mapping[str, Values], events: int) -> list[_Cell]:
    """Yield columns in the form that the core takes: key, values, and the mask of events that have
    it."""
    return [_cell(key, values, events) for key, values in columns.items()]


def _cell(key: str, values: Values, events: int) -> _Cell:
    if isinstance(values, Texts):
        codes = np.asarray(values.codes, dtype=np.int64)
        listed = [_no_surrogates(text) for text in values.texts]
        column = np.maximum(codes, 0).astype(np.uint32), listed, values.is_json
        return key, column, (codes >= 0).astype(np.uint8)
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        missing = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
        plain = np.ma.getdata(values)
        dtype = np.float64 if plain.dtype.kind == "f" else np.int64
        present = None if missing is None else (~missing).astype(np.uint8)
        if missing is not None:
            plain = np.where(missing, 0, plain)
        return key, plain.astype(dtype), present
    return _mixed_cell(key, _one_each(key, values, events))


def _mixed_cell(key: str, values: Sequence[Any]) -> _Cell:
    present = np.array([value is not None for value in values], dtype=np.uint8)
    known = [value for value in values if value is not None]
    if known and all(type(value) is int for value in known) and _fit(known):
        return key, np.array([value or 0 for value in values], dtype=np.int64), present
    pool = _Pool()
    codes = [0 if value is None else pool.code(_json(key, value)) for value in values]
    return key, (np.array(codes, dtype=np.uint32), list(pool.texts) or ["null"], True), present


def _fit(values: Sequence[int]) -> bool:
    return min(values) >= -(2**63) and max(values) < 2**63


def _json(key: str, value: Any) -> str:
    try:
        return _no_surrogates(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{key}: {value!r} is no value that JSON has ({error})") from None


def _no_surrogates(text: str) -> str:
    return text.encode("utf-8", errors="replace").decode("utf-8")
