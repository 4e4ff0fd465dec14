"""Memory of the device: copies, allocator calls, `[memory]` events, and exported timelines."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.codes import ALLOCATOR_CALLS, HOST_MEMORY_CALLS, MEMORY_RETURNS
from torchtraceap.core.columns import Column, TextCodes, encode_texts
from torchtraceap.core.formatting import format_bytes, format_ns
from torchtraceap.core.sums import clamp, cumulative, total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import MissingFileError, ParseError
from torchtraceap.tables.catalog import PageView, TableSpec, check_choice
from torchtraceap.tables.events import steps_of, threads_of
from torchtraceap.tables.gpu.copies import (
    MemoryView,
    bandwidth_over_time,
    copies_by_direction,
    copies_one_by_one,
    copy_rate_changes,
    sensible_bytes,
    sums_of_bytes,
)
from torchtraceap.tables.gpu.gpu_events import GpuEvents, Masked, most_frequent, row_numbers
from torchtraceap.tables.grouping import Groups, rows_by_key
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "CATEGORIES",
    "MAX_ENTRIES",
    "MAX_TEXT_BYTES",
    "TABLE",
    "MemoryEvents",
    "build_memory",
    "read_memory_timeline",
]


def build_memory(part: RankTrace, *, by: str = "direction") -> ColumnTable:
    """Build a table of the memory of one rank.

    Args:
        part: The rank.
        by: "direction" (copies by direction and kind of host memory), "copy" (each), "bandwidth"
            (over time, in 100 bins), "counter" (every change of it), "allocator" (allocation calls
            by step) or "timeline" (`[memory]` events).

    Returns:
        Columns as docs/memory.md lists them; GB are 10^9 bytes.

    Raises:
        OptionError: `by` is something else.
    """
    check_choice("by", by, TABLE.views)
    columns, shown, facts, notes = _VIEWS[by](part)
    return ColumnTable(columns, shown=shown, facts=facts, notes=notes)


# ----------------------------------------------------------------------------- allocator calls


def _by_allocator(part: RankTrace) -> MemoryView:
    table = part.table
    rows = np.flatnonzero(np.isin(part.tree.api, ALLOCATOR_CALLS) & table.complete)
    api = part.tree.api[rows]
    returns = np.where(np.isin(api, MEMORY_RETURNS), 1, 0)
    kinds = TextCodes(
        np.where(np.isin(api, HOST_MEMORY_CALLS), 2, returns), ("allocate", "free", "host")
    )
    duration_ns = table.dur_ns[rows]
    step = steps_of(part, rows)
    groups = Groups(table.name[rows], step.codes)
    first = groups.first
    op = GpuEvents.of(part).names_of(part.tree.op[rows])
    sizes = np.full(len(rows), np.nan)
    for key in ("size", "bytes", "sizeBytes"):  # as HIP's calls say it
        values, present = table.int_column(key, rows)
        use = np.isnan(sizes) & present
        sizes[use] = values[use]
    columns: dict[str, Column] = {
        "call": TextCodes(table.name[rows].astype(np.int32), table.strings).take(first),
        "kind": kinds.take(first),
        "step": step.take(first),
        "count": groups.count,
        **groups.statistics(duration_ns, "sum", "mean", "max"),
        "total_bytes": sums_of_bytes(groups, sensible_bytes(sizes)),
        "thread": threads_of(part, rows).take(first),
        "op": TextCodes(most_frequent(groups, op.codes)[0], table.strings),
        "first_row": rows[first],
    }
    shown = ("call", "kind", "step", "count", "sum_ns", "mean_ns", "max_ns", "op")
    events = MemoryEvents(part)
    change = events.bytes[events.known]
    facts: dict[str, Any] = {
        "calls": len(rows),
        "calls_ns": total(duration_ns),
        "memory_events": len(events.rows),
        "allocations": int((change > 0).sum()),
        "allocated_bytes": total(change[change > 0]),
        "frees": int((change < 0).sum()),
        "freed_bytes": clamp(-total(change[change < 0])),
        "peaks": events.peaks(),
    }
    notes = []
    if not len(rows):
        notes.append(
            "No call allocates or frees memory: the caching allocator served all requests from "
            "what it held."
            if (part.tree.api != _core.ApiClass.NONE).any()
            else "The trace has no runtime calls, so none that allocate or free memory."
        )
    inside = int((step.codes >= 0).sum())
    if inside:
        notes.append(
            f"{inside} of {len(rows)} allocator calls are inside of steps, where a caching "
            "allocator should need none; each may wait for the GPU."
        )
    if not len(events.rows):
        notes.append(_HOW_TO_RECORD)
    return columns, shown, facts, notes


# ------------------------------------------------------------------------------ [memory] events

_HOW_TO_RECORD = (
    "The trace has no [memory] events of the caching allocator: record them with "
    "torch.profiler.profile(profile_memory=True)."
)
# c10::DeviceType
_DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 14: "meta",
                 15: "hpu", 19: "mtia", 20: "privateuseone"}  # fmt: skip


class MemoryEvents:
    """The `[memory]` instants of a rank by time.

    Attributes:
        bytes: int64 `[n]`, negative where memory was given back.
        known: bool `[n]`: the event says its bytes.
        net: int64 `[n]`: running sum of `bytes` on the event's device, 0 before its first event.
    """

    def __init__(self, part: RankTrace) -> None:
        table = part.table
        self.part = part
        strings = table.strings
        name = strings.index("[memory]") if "[memory]" in strings else -1
        self.rows: Array = np.flatnonzero(
            (table.name == name) & ((table.flags & _core.HAS_TIME) != 0)
        )
        self.time_ns: Array = table.ts_ns[self.rows]
        self.bytes, self.known = table.int_column("Bytes", self.rows)
        types, typed = table.int_column("Device Type", self.rows)
        self.device_type = encode_texts(
            _DEVICE_TYPES.get(value, f"type {value}") if says else None
            for value, says in zip(types.tolist(), typed.tolist(), strict=True)
        )
        self.device = self.integers("Device Id")
        self.allocated = self.integers("Total Allocated")
        self.reserved = self.integers("Total Reserved")
        self.net: Array = np.where(self.known, self.bytes, 0)
        groups = self.by_device()
        for group in range(len(groups)):
            members = groups.rows(group)
            self.net[members] = cumulative(self.net[members])

    def integers(self, key: str) -> Masked:
        """Return one key of `args`, int64, masked where an event lacks it."""
        values, present = self.part.table.int_column(key, self.rows)
        return np.ma.array(values, mask=~present)

    def by_device(self) -> Groups:
        """Return the events grouped by device."""
        return Groups(self.device_type.codes, np.ma.filled(self.device, -1))

    def peaks(self) -> list[dict[str, Any]]:
        """Return for each device the most that was allocated and reserved, and when.

        Traces before 2022 lack totals: there only the growth since the first event is known.
        """
        groups = self.by_device()
        found = []
        for members in map(groups.rows, range(len(groups))):
            absolute = not np.ma.getmaskarray(self.allocated)[members].any()
            held = np.ma.getdata(self.allocated)[members] if absolute else self.net[members]
            reserved = self.reserved[members]
            top = members[np.argmax(held)]
            peak = {
                "device_type": self.device_type.take(members[:1]).to_list()[0],
                "device": self.device[top : top + 1].tolist()[0],
                "events": len(members),
                "peak_allocated_bytes": int(held.max()) if absolute else None,
                "peak_growth_bytes": int(self.net[members].max()),
                "peak_time_ns": int(self.time_ns[top]),
                "peak_row": int(self.rows[top]),
                "peak_reserved_bytes": int(reserved.max()) if reserved.count() else None,
            }
            found.append(peak)
        return found


def _by_timeline(part: RankTrace) -> MemoryView:
    events = MemoryEvents(part)
    op_rows = _enclosing_ops(part, events.rows)
    columns: dict[str, Column] = {
        "row": events.rows,
        "time_ns": events.time_ns,
        "since_first_ns": events.time_ns - (events.time_ns[0] if len(events.rows) else 0),
        "device_type": events.device_type,
        "device": events.device,
        "address": events.integers("Addr"),
        "change_bytes": np.ma.array(events.bytes, mask=~events.known),
        "allocated_bytes": events.allocated,
        "reserved_bytes": events.reserved,
        "net_bytes": events.net,
        "op": GpuEvents.of(part).names_of(op_rows),
        "op_row": row_numbers(op_rows),
        "step": steps_of(part, events.rows),
        "thread": threads_of(part, events.rows),
    }
    shown = ("since_first_ns", "device_type", "device", "change_bytes", "allocated_bytes")
    peaks = events.peaks()
    notes = [_peak_sentence(peak, int(events.time_ns.min())) for peak in peaks]
    if not len(events.rows):
        notes = [_HOW_TO_RECORD]
    return columns, (*shown, "reserved_bytes", "op", "step"), {"peaks": peaks}, notes


def _peak_sentence(peak: dict[str, Any], begin_ns: int) -> str:
    device = "" if peak["device"] is None or peak["device"] < 0 else f" {peak['device']}"
    where = f"{peak['device_type'] or 'a device'}{device}"
    when = f"{format_ns(peak['peak_time_ns'] - begin_ns)} after the first event"
    if peak["peak_allocated_bytes"] is None:
        return (
            f"Memory on {where} grows by at most {format_bytes(peak['peak_growth_bytes'])}, "
            f"{when}; the trace does not say how much was allocated before."
        )
    reserved = peak["peak_reserved_bytes"] or 0
    held = f"; reserved at most {format_bytes(reserved)}" if reserved > 0 else ""
    return f"Most memory on {where}: {format_bytes(peak['peak_allocated_bytes'])}, {when}{held}."


def _enclosing_ops(part: RankTrace, rows: Array) -> Array:
    """Return the innermost operator on the same thread around each row's start, uint32; NO_ROW if
    there is none.

    O(rows x (log n + depth)), without a loop over rows.
    """
    table, tree = part.table, part.tree
    result = np.full(len(rows), _core.NO_ROW, dtype=np.uint32)
    end_ns = table.ts_ns + table.dur_ns
    for track, here in rows_by_key(table.track[rows]):
        host = tree.host_rows[int(tree.host_offsets[track]) : int(tree.host_offsets[track + 1])]
        times = table.ts_ns[rows[here]]
        last = np.searchsorted(table.ts_ns[host], times, side="right") - 1
        above = np.where(last >= 0, host[last] if len(host) else 0, _core.NO_ROW)
        above = above.astype(np.uint32)
        while True:
            over = np.flatnonzero(above != _core.NO_ROW)
            over = over[end_ns[above[over]] < times[over]]
            if not len(over):
                break
            above[over] = tree.parent[above[over]]
        known = above != _core.NO_ROW
        result[here[known]] = tree.op[above[known]]
    return result


_VIEWS = {
    "direction": copies_by_direction,
    "copy": copies_one_by_one,
    "bandwidth": bandwidth_over_time,
    "counter": copy_rate_changes,
    "allocator": _by_allocator,
    "timeline": _by_timeline,
}

TABLE = TableSpec(
    build=build_memory,
    views=tuple(_VIEWS),
    sql={
        "copies": {"by": "copy"},
        "allocator": {"by": "allocator"},
        "memory": {"by": "timeline"},
    },
    page=(
        PageView("memory", "copies", hint="Exposed: while nothing else runs on the GPU."),
        PageView("memory", "allocator calls", {"by": "allocator"}, find="call"),
    ),
    first={
        "direction": (
            *("direction", "time_ns", "total_bytes", "bandwidth_gb_per_s"),
            *("host_memory", "count", "exposed_ns"),
        ),
        "copy": ("direction", "size_bytes", "duration_ns", "row", "bandwidth_gb_per_s", "op"),
        "allocator": ("call", "sum_ns", "count", "step"),
        "timeline": ("since_first_ns", "change_bytes", "allocated_bytes", "device_type", "op"),
        "bandwidth": ("direction", "since_first_ns", "bandwidth_gb_per_s", "moved_bytes"),
        "counter": ("direction", "since_first_ns", "bandwidth_gb_per_s", "copies"),
    },
)


# --------------------------------------------------------------------------- exported timelines

CATEGORIES = (
    "parameter",
    "optimizer_state",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd_detail",
    "unknown",
)
"""Categories by number in torch.profiler._memory_profiler (`_CATEGORY_TO_INDEX`, torch 2.1 on)."""

_ACTIONS = 4  # preexisting, create, increment version, destroy: numbered from 1
_GZIP = b"\x1f\x8b"
MAX_TEXT_BYTES = 512 << 20
"""The most bytes of a file, decompressed."""
MAX_ENTRIES = 1 << 23
"""The most events of a raw file, times of the others; an hour of training writes a million."""
_PIECE_BYTES = 1 << 20  # text that is made into Python's objects at once, whole rows of it
_SPACE = b" \t\r\n"
_BETWEEN = re.compile(rb"\][ \t\r\n]*,(?=[ \t\r\n]*\[)")
# The first list has ended: rows of sizes follow, or none. In a raw file the next event would.
_SIZES_FOLLOW = re.compile(rb"\][ \t\r\n]*,[ \t\r\n]*\[[ \t\r\n]*[\[\]]")


def read_memory_timeline(path: PathLike) -> ColumnTable:
    """Read a file of `torch.profiler.profile.export_memory_timeline`: memory by category over time.

    Three endings, `.raw.json.gz`, `.json.gz` or `.json`, are told apart by content. A raw file is a
    list of [time in ns, action, bytes, category], where bytes are negative when memory goes away or
    changes category; the others are [times in us, [[0, bytes by category ...] ...]]. Memory from
    before the recording has the time -1 in a raw file: it is there from the first time on.

    Args:
        path: The file.

    Returns:
        One row per time: `time_ns`, `<category>_bytes` for the eight CATEGORIES, `total_bytes`,
        all int64. Facts: `format` ("raw" or "sizes"), `peak_bytes`, `peak_time_ns` and
        `peak_by_category_bytes`.

    Raises:
        MissingFileError: There is no such file.
        ParseError: It is none of these; the message says what was expected and what came.
    """
    text = _read_list(Path(path))
    first_end = text.find(b"]")
    is_raw = first_end < 0 or _SIZES_FOLLOW.match(text, first_end) is None
    times_ns, sizes = _from_raw(path, text) if is_raw else _from_sizes(path, text)
    total_bytes = sizes.sum(axis=1)
    peak = int(np.argmax(total_bytes)) if len(total_bytes) else None
    of_peak = sizes[:0].sum(axis=0) if peak is None else sizes[peak]
    held = dict(zip(CATEGORIES, of_peak.tolist(), strict=True))
    note = "The file holds no memory events for its device."
    if peak is not None:
        largest = sorted(held.items(), key=lambda item: -item[1])
        parts = ", ".join(
            f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in largest if size > 0
        )
        note = f"Most memory: {format_bytes(total_bytes[peak])} ({parts})."
    by_category = {f"{name}_bytes": sizes[:, i] for i, name in enumerate(CATEGORIES)}
    return ColumnTable(
        {"time_ns": times_ns, **by_category, "total_bytes": total_bytes},
        facts={
            "format": "raw" if is_raw else "sizes",
            "peak_bytes": 0 if peak is None else int(total_bytes[peak]),
            "peak_time_ns": None if peak is None else int(times_ns[peak]),
            "peak_by_category_bytes": held,
        },
        notes=[note],
    )


def _read_list(path: Path) -> bytes:
    """Return the JSON of a list, without what stands around it."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            text = file.read(MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file") from None
    except (EOFError, zlib.error) as error:
        raise ParseError(f"{path}: the gzip data is damaged: {error}") from None
    except OSError as error:  # BadGzipFile too
        raise ParseError(f"{path}: {error.strerror or error}") from None
    if len(text) > MAX_TEXT_BYTES:
        raise ParseError(f"{path}: holds more than {MAX_TEXT_BYTES >> 20} MiB")
    text = text.removeprefix(b"\xef\xbb\xbf").strip(_SPACE)
    if not (text.startswith(b"[") and text.endswith(b"]") and len(text) > 1):
        raise _unexpected(path, f"a JSON list, found {_start_of(text)}")
    return text


def _start_of(text: bytes) -> str:
    start = text[:61].decode("utf-8", errors="replace")
    return start if len(text) <= 60 else start[:57] + "..."


def _unexpected(path: PathLike, found: str) -> ParseError:
    return ParseError(f"{path}: expected a file of export_memory_timeline, {found}")


def _list_of(path: PathLike, text: bytes, begin: int, end: int) -> list[Any]:
    """Return the values that stand side by side in the text."""
    try:
        values = json.loads(b"[" + text[begin:end] + b"]")
    except json.JSONDecodeError as error:
        raise _unexpected(path, f"JSON: {error.msg} at byte {begin + error.pos - 1}") from None
    except (ValueError, RecursionError) as error:
        raise _unexpected(path, f"JSON: {error} behind byte {begin}") from None
    assert isinstance(values, list)
    return values


def _rows(path: PathLike, text: bytes, begin: int, end: int, width: int, what: str) -> Array:
    """Return a list of lists, int64 `[n, width]`; it is read in pieces, cut between inner lists."""
    found, count = [np.zeros((0, width), dtype=np.int64)], 0
    while begin < end:
        cut = _BETWEEN.search(text, begin + _PIECE_BYTES, end)
        values = _list_of(path, text, begin, cut.start() + 1 if cut else end)
        found.append(_integers(path, values, width, what))
        count += len(found[-1])
        _check_entries(path, count)
        begin = cut.end() if cut else end
    return np.concatenate(found)


def _check_entries(path: PathLike, count: int) -> None:
    if count > MAX_ENTRIES:
        raise ParseError(f"{path}: has more than {MAX_ENTRIES:,} entries")


def _integers(path: PathLike, values: list[Any], width: int | None, what: str) -> Array:
    """Return int64 `[n]`, or `[n, width]`; fractions are refused unless whole numbers remain."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        raise _unexpected(path, f"{what} of equal length") from None
    if not values:
        array = np.zeros((0, width) if width else 0, dtype=np.int64)
    if array.ndim != (2 if width else 1) or (width and array.shape[1] != width):
        raise _unexpected(path, f"{what}, found {_start_of(json.dumps(values[:1]).encode())}")
    if array.dtype.kind == "f" and np.isfinite(array).all() and (np.abs(array) < 2**62).all():
        array = np.rint(array)
    elif array.dtype.kind not in "iu" or (array.dtype.kind == "u" and (array >= 2**63).any()):
        raise _unexpected(
            path, f"{what} of numbers, found {_start_of(json.dumps(values[:1]).encode())}"
        )
    return array.astype(np.int64)


def _from_raw(path: PathLike, text: bytes) -> tuple[Array, Array]:
    what = "lists [time, action, bytes, category]"
    times_ns, action, size, category = _rows(path, text, 1, len(text) - 1, 4, what).T
    if ((action < 1) | (action > _ACTIONS)).any():
        raise _unexpected(path, f"actions from 1 to {_ACTIONS}")
    if ((category < 0) | (category >= len(CATEGORIES))).any():
        raise _unexpected(path, f"categories from 0 to {len(CATEGORIES) - 1}")
    _check_sums(path, size[None, :])
    times_ns = _fill_unknown(times_ns)
    order = np.argsort(times_ns, kind="stable")
    times_ns, size, category = times_ns[order], size[order], category[order]
    last = _is_last(times_ns)
    sizes = np.empty((int(last.sum()), len(CATEGORIES)), dtype=np.int64)
    for column in range(len(CATEGORIES)):
        sizes[:, column] = np.cumsum(np.where(category == column, size, 0))[last]
    return times_ns[last], sizes


def _from_sizes(path: PathLike, text: bytes) -> tuple[Array, Array]:
    # The times alone, then the rows between the brackets of the second list.
    first = text.index(b"[", 1)
    first_end = text.index(b"]")
    second = text.index(b"[", first_end) + 1
    second_end = text.rindex(b"]", 0, len(text) - 1)
    if text[1:first].strip(_SPACE) or text[second_end + 1 : -1].strip(_SPACE):
        raise _unexpected(path, f"[times, sizes], found {_start_of(text)}")
    _check_entries(path, text.count(b",", first, first_end))
    times_us = _integers(path, _list_of(path, text, first + 1, first_end), None, "times")
    width = len(CATEGORIES) + 1
    sizes = _rows(path, text, second, second_end, width, "9 sizes for each time")
    if len(times_us) != len(sizes):
        raise _unexpected(path, f"as many sizes as times ({len(sizes)} and {len(times_us)})")
    if (np.abs(times_us) >= 2**53).any():
        raise _unexpected(path, "times in microseconds")
    _check_sums(path, sizes[:, 1:])
    times_ns = _fill_unknown(times_us) * 1000
    order = np.argsort(times_ns, kind="stable")
    last = _is_last(times_ns[order])
    return times_ns[order][last], sizes[order[last], 1:]


def _check_sums(path: PathLike, sizes: Array) -> None:
    """Raise ParseError unless each row's sum fits in 64 bits, whatever the order of its sizes."""
    rough = np.abs(sizes.astype(np.float64)).sum(axis=1)
    for row in sizes[rough >= 2**62].tolist():
        if sum(map(abs, row)) >= 2**63:
            raise _unexpected(path, f"sizes whose sum fits in 64 bits, found {sum(row)}")


def _fill_unknown(times: Array) -> Array:
    """Return the times, negative ones replaced by the first known one."""
    known = times[times >= 0]
    return np.where(times < 0, known.min() if len(known) else 0, times)


def _is_last(times: Array) -> Array:
    """Return where a time is the last of equal ones, bool: it holds after all changes then."""
    return np.append(np.diff(times) != 0, True) if len(times) else np.zeros(0, dtype=bool)
