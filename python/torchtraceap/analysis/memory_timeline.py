"""Files that `torch.profiler.profile.export_memory_timeline` writes: memory by category."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.aliases import Array, PathLike
from torchtraceap.errors import MissingFileError, ParseError
from torchtraceap.table import ColumnTable
from torchtraceap.units import format_bytes

__all__ = ["CATEGORIES", "read_memory_timeline"]

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
"""By the numbers of torch.profiler._memory_profiler (`_CATEGORY_TO_INDEX`, torch 2.1 to 2.13)."""

_ACTIONS = 4  # preexisting, create, increment version, destroy: numbered from 1
_GZIP = b"\x1f\x8b"


def read_memory_timeline(path: PathLike) -> ColumnTable:
    """Memory by category over time, from `.raw.json.gz`, `.json.gz` or `.json`.

    Told apart by content. A raw file is a list of [time in ns, action, bytes, category], where
    bytes are negative when memory goes away or changes category; the others are [times in us,
    [[0, bytes by category ...] ...]]. Memory from before the recording has the time -1 in a raw
    file: it is there from the first time on.

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
    content = _read_json(Path(path))
    if not isinstance(content, list):
        raise _unexpected(path, f"a JSON list, found {_describe(content)}")
    is_raw = not content or not (isinstance(content[0], list) and _is_sizes(content))
    times_ns, sizes = _from_raw(path, content) if is_raw else _from_sizes(path, content)
    return _table(times_ns, sizes, "raw" if is_raw else "sizes")


def _is_sizes(content: list[Any]) -> bool:
    """[times, sizes]: two lists, the second of lists or empty."""
    return (
        len(content) == 2
        and isinstance(content[1], list)
        and (not content[1] or isinstance(content[1][0], list))
    )


def _read_json(path: Path) -> Any:
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
        return json.loads(data)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file") from None
    except OSError as error:  # BadGzipFile too
        raise ParseError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise ParseError(f"{path}: the gzip data is damaged: {error}") from None
    except (ValueError, RecursionError) as error:
        raise _unexpected(path, f"JSON: {error}") from None


def _unexpected(path: PathLike, found: str) -> ParseError:
    return ParseError(f"{path}: expected a file of export_memory_timeline, {found}")


def _describe(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _integers(path: PathLike, values: list[Any], width: int | None, what: str) -> Array:
    """int64 `[n]`, or `[n, width]`; fractions are refused unless whole numbers remain."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        raise _unexpected(path, f"{what} of equal length") from None
    if not values:
        array = np.zeros((0, width) if width else 0, dtype=np.int64)
    if array.ndim != (2 if width else 1) or (width and array.shape[1] != width):
        raise _unexpected(path, f"{what}, found {_describe(values[:1])}")
    if array.dtype.kind == "f" and np.isfinite(array).all() and (np.abs(array) < 2**62).all():
        array = np.rint(array)
    elif array.dtype.kind not in "iu" or (array.dtype.kind == "u" and (array >= 2**63).any()):
        raise _unexpected(path, f"{what} of numbers, found {_describe(values[:1])}")
    return array.astype(np.int64)


def _from_raw(path: PathLike, content: list[Any]) -> tuple[Array, Array]:
    events = _integers(path, content, 4, "lists [time, action, bytes, category]")
    times_ns, action, size, category = events.T
    if ((action < 1) | (action > _ACTIONS)).any():
        raise _unexpected(path, f"actions from 1 to {_ACTIONS}")
    if ((category < 0) | (category >= len(CATEGORIES))).any():
        raise _unexpected(path, f"categories from 0 to {len(CATEGORIES) - 1}")
    times_ns = _fill_unknown(times_ns)
    order = np.argsort(times_ns, kind="stable")
    changes = np.zeros((len(events), len(CATEGORIES)), dtype=np.int64)
    changes[np.arange(len(events)), category[order]] = size[order]
    return _last_of_each(times_ns[order], np.cumsum(changes, axis=0))


def _from_sizes(path: PathLike, content: list[Any]) -> tuple[Array, Array]:
    times_us = _integers(path, content[0], None, "times")
    sizes = _integers(path, content[1], len(CATEGORIES) + 1, "9 sizes for each time")
    if len(times_us) != len(sizes):
        raise _unexpected(path, f"as many sizes as times ({len(sizes)} and {len(times_us)})")
    if (np.abs(times_us) >= 2**53).any():
        raise _unexpected(path, "times in microseconds")
    return _last_of_each(_fill_unknown(times_us) * 1000, sizes[:, 1:])


def _fill_unknown(times: Array) -> Array:
    """Negative times become the first known one."""
    known = times[times >= 0]
    return np.where(times < 0, known.min() if len(known) else 0, times)


def _last_of_each(times: Array, sizes: Array) -> tuple[Array, Array]:
    """What holds after all changes of one instant."""
    last = np.append(np.diff(times) != 0, True) if len(times) else np.zeros(0, dtype=bool)
    return times[last], sizes[last]


def _table(times_ns: Array, sizes: Array, form: str) -> ColumnTable:
    total = sizes.sum(axis=1)
    names = [f"{category}_bytes" for category in CATEGORIES]
    columns = {"time_ns": times_ns, **dict(zip(names, sizes.T, strict=True)), "total_bytes": total}
    if not len(total):
        return ColumnTable(columns, facts=_facts(form, 0, None, sizes[:0].sum(axis=0)), notes=[
            "The file holds no memory events for its device."
        ])  # fmt: skip
    peak = int(np.argmax(total))
    facts = _facts(form, int(total[peak]), int(times_ns[peak]), sizes[peak])
    held = sorted(zip(CATEGORIES, sizes[peak].tolist(), strict=True), key=lambda item: -item[1])
    parts = ", ".join(f"{name.replace('_', ' ')} {format_bytes(n)}" for name, n in held if n > 0)
    note = f"Most memory: {format_bytes(total[peak])} ({parts})."
    return ColumnTable(columns, facts=facts, notes=[note])


def _facts(form: str, peak: int, time_ns: int | None, sizes: Array) -> dict[str, Any]:
    return {
        "format": form,
        "peak_bytes": peak,
        "peak_time_ns": time_ns,
        "peak_by_category_bytes": dict(zip(CATEGORIES, sizes.tolist(), strict=True)),
    }
