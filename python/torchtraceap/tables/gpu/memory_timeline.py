"""Files that `torch.profiler.profile.export_memory_timeline` writes: memory by category."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.formatting import format_bytes
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import MissingFileError, ParseError

__all__ = ["CATEGORIES", "MAX_ENTRIES", "MAX_TEXT_BYTES", "read_memory_timeline"]

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
