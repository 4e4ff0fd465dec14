"""GPU events as arrays, and the columns that tables of them share."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, JsonCodes, TextCodes, encode_texts
from torchtraceap.core.sums import clamp
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.tables.grouping import Groups
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "GpuEvents",
    "Masked",
    "device_and_stream",
    "gpu_notes",
    "masked_integers",
    "most_frequent",
    "row_numbers",
    "time_statistics",
    "weighted_mean",
    "whole_numbers",
]

Masked = np.ma.MaskedArray[Any, Any]
_BEYOND_SENSE = 1e18  # no figure of a profiler is that large, and sums of smaller ones are finite


@dataclass(frozen=True)
class GpuEvents:
    """Some GPU events of a rank; arrays have one entry per event."""

    part: RankTrace
    places: Array
    """int64 `[n]`: index in `tree.gpu_rows`, ascending."""

    @classmethod
    def of(cls, part: RankTrace, *kinds: _core.EventKind) -> GpuEvents:
        """Return all GPU events of a rank by start, or those of some kinds."""
        rows = part.tree.gpu_rows
        if not kinds:
            return cls(part, np.arange(len(rows)))
        return cls(part, np.flatnonzero(np.isin(part.table.kind[rows], kinds)))

    def where(self, mask: Array) -> GpuEvents:
        return GpuEvents(self.part, self.places[mask])

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def rows(self) -> Array:
        """int64: rows of the event table."""
        return self.part.tree.gpu_rows[self.places].astype(np.int64)

    @cached_property
    def start_ns(self) -> Array:
        return self.part.table.ts_ns[self.rows]

    @cached_property
    def first_ns(self) -> int:
        """Start of the first GPU event of the rank, whichever these are; 0 without any."""
        rows = self.part.tree.gpu_rows
        return int(self.part.table.ts_ns[rows[0]]) if len(rows) else 0

    @cached_property
    def duration_ns(self) -> Array:
        return self.part.table.dur_ns[self.rows]

    @cached_property
    def exclusive_ns(self) -> Array:
        """int64: the part of its time that counts for each alone; it sums to the busy time."""
        return self.part.costs.exclusive_ns[self.rows]

    @cached_property
    def name(self) -> Array:
        """int64: index in `texts`."""
        return self.part.table.name[self.rows].astype(np.int64)

    @cached_property
    def texts(self) -> list[str]:
        return self.part.table.strings

    @cached_property
    def names(self) -> TextCodes:
        return TextCodes(self.name.astype(np.int32), self.texts)

    @cached_property
    def canonical(self) -> TextCodes:
        """Canonical names."""
        groups = Groups(self.name)
        names = encode_texts(
            canonical_name(self.texts[i]) for i in self.name[groups.first].tolist()
        )
        return names.take(groups.index)

    @cached_property
    def gpu_class(self) -> TextCodes:
        """The class of each: compute, communication or memcpy."""
        codes = self.part.tree.gpu_class[self.rows]
        return TextCodes(codes.astype(np.int32), _core.gpu_class_names())

    @cached_property
    def stream(self) -> Array:
        """int64: index in `tree.streams`."""
        return self.part.tree.stream_of[self.rows].astype(np.int64)

    @cached_property
    def owner(self) -> Array:
        """uint32: row of the operator, else of the launch call; NO_ROW for orphans."""
        return self.part.costs.owner[self.rows]

    @cached_property
    def op(self) -> TextCodes:
        """Names of the owners; absent for orphans."""
        return self.names_of(self.owner)

    @cached_property
    def launch(self) -> Array:
        """uint32: row of the launch call; NO_ROW for orphans."""
        return self.part.tree.launch[self.rows]

    @cached_property
    def is_linked(self) -> Array:
        linked: Array = self.launch != _core.NO_ROW
        return linked

    @cached_property
    def events_of_launch(self) -> Array:
        """int64: the number of GPU events of the same launch call, 0 for orphans."""
        offsets = self.part.tree.launched_offsets.astype(np.int64)
        launch = np.where(self.is_linked, self.launch, 0).astype(np.int64)
        return np.where(self.is_linked, offsets[launch + 1] - offsets[launch], 0)

    @cached_property
    def call_ns(self) -> Array:
        """int64: duration of the launch call, 0 for orphans."""
        return np.where(self.is_linked, self.of_launch(self.part.table.dur_ns), 0)

    @cached_property
    def delay_ns(self) -> Masked:
        """int64: the time from the end of the launch call to the start of the event, at least 0,
        clocks corrected; masked for orphans."""
        after_start = self.part.tree.launch_delays_ns()[self.places]
        waited = np.maximum(0, after_start - self.call_ns)
        return np.ma.array(np.where(self.is_linked, waited, 0), mask=~self.is_linked)

    def of_launch(self, column: Array) -> Array:
        """Return a column of the event table at the launch calls; arbitrary for orphans."""
        return column[np.where(self.is_linked, self.launch, 0).astype(np.int64)]

    def names_of(self, rows: Array) -> TextCodes:
        """Return the names of rows of the table, absent for NO_ROW."""
        known = rows != _core.NO_ROW
        codes = self.part.table.name[np.where(known, rows, 0)].astype(np.int64)
        return TextCodes(np.where(known, codes, -1).astype(np.int32), self.texts)

    def text_arg(self, key: str) -> TextCodes:
        """Return one key of `args`, as text."""
        return TextCodes(*self._arg(key))

    def json_arg(self, key: str) -> JsonCodes:
        """Return one key of `args`, as JSON; what is no JSON is a text."""
        codes, texts = self._arg(key)
        return JsonCodes(codes, [_as_json(text) for text in texts])

    def number_arg(self, key: str) -> Array:
        """Return one key of `args` as float64, NaN where there is no sensible number."""
        codes, texts = self._arg(key)
        values = np.full(len(texts) + 1, math.nan)
        for code, text in enumerate(texts):
            with suppress(ValueError):
                value = float(text)
                values[code] = value if abs(value) < _BEYOND_SENSE else math.nan
        return values[codes]

    def _arg(self, key: str) -> tuple[Array, list[str]]:
        """Return codes and texts of one key; read once for all GPU events."""
        table, rows = self.part.table, self.part.tree.gpu_rows
        codes, texts = self.part.cached(
            ("GPU argument", key), lambda: table.text_codes(key, rows.astype(np.int64))
        )
        return codes[self.places], texts

    def owner_arg(self, key: str) -> TextCodes:
        """Return one key of the `args` of the operators that own the events."""
        owned, inverse = np.unique(self.owner, return_inverse=True)
        known = owned[owned != _core.NO_ROW].astype(np.int64)
        codes, texts = self.part.table.text_codes(key, known)
        padded = np.append(codes, np.full(len(owned) - len(known), -1, dtype=np.int32))
        return TextCodes(padded[inverse].astype(np.int32), texts)


@lru_cache(maxsize=1 << 12)
def _as_json(text: str) -> str:
    """Return valid JSON as it is, anything else as a text; ranks and tables ask for the same."""
    try:
        return json.dumps(json.loads(text, strict=False), allow_nan=False)
    except (ValueError, RecursionError):
        return json.dumps(text)


def device_and_stream(part: RankTrace, index: Array) -> dict[str, Column]:
    """Return columns `device` and `stream` for indices in `tree.streams`, masked if unknown."""
    streams = part.tree.streams
    return {
        "device": masked_integers([stream.device for stream in streams])[index],
        "stream": masked_integers([stream.stream for stream in streams])[index],
    }


def masked_integers(values: Sequence[int | None]) -> Masked:
    """Return int64, masked where there is no value."""
    return np.ma.array(
        np.array([0 if value is None else clamp(value) for value in values], dtype=np.int64),
        mask=np.array([value is None for value in values], dtype=bool),
    )


def row_numbers(rows: Array) -> Masked:
    """Return rows as int64, masked where NO_ROW."""
    missing = rows == _core.NO_ROW
    return np.ma.array(np.where(missing, 0, rows).astype(np.int64), mask=missing)


def whole_numbers(values: Array) -> Masked:
    """Return floats as int64, masked where NaN or beyond any device."""
    absent = ~(np.abs(values) < 2**62)
    return np.ma.array(np.where(absent, 0, values).astype(np.int64), mask=absent)


def time_statistics(groups: Groups, duration_ns: Array, order: Array) -> dict[str, Column]:
    """Return count, sum, mean, median, min, max and 95th percentile of each group, in ns."""
    names = ("sum", "mean", "median", "min", "max", "p95")
    return {"count": groups.count[order], **groups.statistics(duration_ns, *names, order=order)}


def most_frequent(groups: Groups, codes: Array) -> tuple[Array, Array]:
    """Return the code that each group has most often (the first of equals; -1 if none), and how
    many distinct ones it has."""
    present = codes >= 0
    pairs = Groups(groups.index[present], codes[present])
    group, code = groups.index[present][pairs.first], codes[present][pairs.first]
    order = np.lexsort((pairs.first, -pairs.count, group))
    owner, start = np.unique(group[order], return_index=True)
    best = np.full(len(groups), -1, dtype=np.int64)
    best[owner] = code[order][start]
    return best.astype(np.int32), np.bincount(group, minlength=len(groups))


def weighted_mean(groups: Groups, values: Array, weights: Array) -> Array:
    """Return the weighted mean of each group over the values that are not NaN, float64.

    Groups whose weights are all 0 get the plain mean, groups without a value NaN.
    """
    present = ~np.isnan(values)
    filled = np.where(present, values, 0.0)
    weight = np.where(present, weights.astype(np.float64), 0.0)
    total = groups.sum(weight)
    plain = groups.sum(present.astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        weighted = groups.sum(filled * weight) / total
        mean: Array = np.where(total > 0, weighted, groups.sum(filled) / plain)
    return mean


def gpu_notes(events: GpuEvents, what: str = "GPU events") -> list[str]:
    """Return notes that say what a table of GPU events lacks because the trace lacks it."""
    if not len(events):
        return [f"The trace has no {what}: torch.profiler records them with ProfilerActivity.CUDA."]
    orphans = int((~events.is_linked).sum())
    if not orphans:
        return []
    return [
        f"{orphans} of {len(events)} {what} have no launch call in the trace: they were launched "
        "before recording began, or runtime calls were not recorded."
    ]
