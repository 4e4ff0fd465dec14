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
import re
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
    """Make a table of n events, given in any order.

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
    durations = _integers("dur_ns", dur_ns)
    if durations.shape not in ((), (events,)):
        found = durations.shape
        raise SchemaError(f"dur_ns: one number or {events} were expected, not {found}")
    letters = _one_each("phase", phase, events)
    for letter in letters:
        if not re.fullmatch("[A-Za-z]", str(letter)):
            raise SchemaError(f"phase: a letter was expected, not {letter!r}")
    pool = _Pool()
    tracks = _Pool()
    pids, tids = _one_each("pid", pid, events), _one_each("tid", tid, events)
    pairs = zip(pids, tids, strict=True)
    return _core.build_table(
        ts_ns=starts,
        dur_ns=np.broadcast_to(durations, (events,)),
        phase=np.array([ord(letter) for letter in letters], np.uint8),
        name=pool.codes("name", name, events),
        category=pool.codes("category", category, events),
        track=np.array([tracks.code((str(p), str(t))) for p, t in pairs], dtype=np.uint32),
        strings=list(pool.texts),
        tracks=list(tracks.texts),
        args=[_cell(key, values, events) for key, values in (args or {}).items()],
        members=[_cell(key, values, events) for key, values in (members or {}).items()],
        metadata=[(key, _json(key, value)) for key, value in (metadata or {}).items()],
        path=path,
    )


class _Pool:
    """Codes of distinct things."""

    def __init__(self) -> None:
        self.texts: dict[Any, int] = {}

    def code(self, text: Hashable) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def codes(
        self, what: str, values: str | Sequence[str | None] | Texts | None, events: int
    ) -> npt.NDArray[np.uint32]:
        """Return the code of each event, uint32 `[events]`; NO_STRING for None."""
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


def _one_each(what: str, values: Any, events: int) -> Sequence[Any]:
    """Return a list `[events]` of plain values; a single value is repeated."""
    if values is None or isinstance(values, (str, int, float, np.generic)):
        return [values] * events
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if len(listed) != events:
        raise SchemaError(
            f"{what}: one for each of {events} events was expected, not {len(listed)}"
        )
    return listed


_Cell: TypeAlias = "tuple[str, Any, npt.NDArray[np.uint8] | None]"


def _cell(key: str, values: Values, events: int) -> _Cell:
    """Return a column as the core takes it: key, values, and the mask of events that have it."""
    if isinstance(values, Texts):
        codes = np.asarray(values.codes, dtype=np.int64)
        texts = [_no_surrogates(text) for text in values.texts]
        column = np.maximum(codes, 0).astype(np.uint32), texts, values.is_json
        return key, column, (codes >= 0).astype(np.uint8)
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        missing = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
        plain = np.ma.getdata(values)
        dtype = np.float64 if plain.dtype.kind == "f" else np.int64
        present = None if missing is None else (~missing).astype(np.uint8)
        if missing is not None:
            plain = np.where(missing, 0, plain)
        return key, plain.astype(dtype), present
    listed = _one_each(key, values, events)
    has_value = np.array([value is not None for value in listed], dtype=np.uint8)
    known = [value for value in listed if value is not None]
    fits = known and all(type(value) is int and -(2**63) <= value < 2**63 for value in known)
    if fits:
        return key, np.array([value or 0 for value in listed], dtype=np.int64), has_value
    pool = _Pool()
    places = [0 if value is None else pool.code(_json(key, value)) for value in listed]
    return key, (np.array(places, dtype=np.uint32), list(pool.texts) or ["null"], True), has_value


def _json(key: str, value: Any) -> str:
    try:
        return _no_surrogates(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{key}: {value!r} is no value that JSON has ({error})") from None


def _no_surrogates(text: str) -> str:
    return text.encode("utf-8", errors="replace").decode("utf-8")
