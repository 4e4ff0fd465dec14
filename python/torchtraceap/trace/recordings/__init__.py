"""Read a recording of any kind as the event table of a rank.

What the core does not read itself has a reader here: it finds events, links, names and clocks, and
gives them as a `Recording`, which makes the same table that a trace of torch.profiler gives. Kinds
are told apart by content and never by name.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torchtraceap import _core
from torchtraceap.core.aliases import PathLike
from torchtraceap.core.results import Diagnostic
from torchtraceap.core.stored import parse_value
from torchtraceap.errors import SchemaError
from torchtraceap.trace import packed_file
from torchtraceap.trace.cache import Caching, find_entry, keep_entry, read_entry
from torchtraceap.trace.column_file import MAGIC, read_columns
from torchtraceap.trace.recordings.recording import RECORDED_BY

__all__ = ["is_binary_recording", "losses_of", "read_recording"]

_HEAD_BYTES = 4096
_GZIP = b"\x1f\x8b"
_NESTED = b"\x0a"
"""How protocol buffers mark a nested message in field 1: the outermost of Perfetto and XPlane."""


def _is_xplane(head: bytes) -> bool:
    names = (b"/device:", b"/host:", b"Task Environment")
    return head.startswith(_NESTED) and any(name in head[:256] for name in names)


def _is_perfetto(head: bytes) -> bool:
    """Packets follow each other, each a nested message."""
    end = _skip_nested(head, 0)
    if end is not None and end >= len(head):
        return len(head) >= _HEAD_BYTES  # the first one is longer than what was read
    return end is not None and _skip_nested(head, end) is not None


def _skip_nested(head: bytes, place: int) -> int | None:
    if head[place : place + 1] != _NESTED:
        return None
    length = 0
    for shift, byte in enumerate(head[place + 1 : place + 10]):
        length |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return place + 2 + shift + length if length else None
    return None


_READERS: tuple[tuple[str, Callable[[bytes], bool]], ...] = (
    ("nsight", lambda head: head.startswith(b"SQLite format 3\0")),
    ("rocprofv3", lambda head: b'"rocprofiler-sdk-tool"' in head[:256]),
    ("xplane", _is_xplane),
    ("perfetto", _is_perfetto),
)
"""Modules with a function `read(path) -> Recording`, and by which first bytes each is chosen."""


def read_recording(
    path: PathLike,
    *,
    threads: int = 0,
    progress: Callable[[int, int], object] | None = None,
    caching: Caching = None,
) -> _core.EventTable:
    """Read the events of one file: a trace, events in columns, or what another profiler wrote.

    Args:
        path: The file.
        threads: Parsing threads; 0 for as many as there are cores.
        progress: Called now and then with (compressed bytes read, in all).
        caching: Whether what has to be parsed is kept for the next time.

    Raises:
        ParseError: It holds no events, or is damaged beyond use.
        MissingDependencyError: An optional package is needed for it.
    """
    head = _head_of(path)
    if head.startswith(MAGIC):
        return read_columns(path, threads=threads)
    if head.startswith(packed_file.MAGIC):
        return packed_file.read_packed(path, threads=threads)
    entry = find_entry(path, caching) if head else None
    kept = read_entry(entry, path, threads=threads) if entry else None
    if kept is not None:
        return kept
    table = _parse(path, head, threads, progress)
    if entry:
        keep_entry(entry, table)
    return table


def _parse(
    path: PathLike, head: bytes, threads: int, progress: Callable[[int, int], object] | None
) -> _core.EventTable:
    for name, is_its in _READERS:
        if is_its(head):
            reader = import_module(f"{__name__}.{name}")
            table: _core.EventTable = reader.read(path).table(os.fspath(path))
            return table
    return _core.read_trace(path, threads=threads, progress=progress)


def is_binary_recording(head: bytes) -> bool:
    """Return True if a file that begins so has to be read as a whole."""
    return head.startswith((MAGIC, packed_file.MAGIC)) or any(
        is_its(head) for _, is_its in _READERS
    )


def losses_of(table: _core.EventTable) -> list[Diagnostic]:
    """Return what the recording that a table was made of could not say; nothing for a trace."""
    text = dict(table.metadata).get(RECORDED_BY)
    if text is None:
        return []
    try:
        about: Any = parse_value(text, table.path)
        lacks, left_out = about["lacks"], about["left_out"]
        said = [f"{about['format']} has no {', no '.join(map(str, lacks))}"] if lacks else []
        said += [f"{int(count):,} of {name} were not read" for name, count in left_out.items()]
        count = len(lacks) + sum(map(int, left_out.values()))
    except (SchemaError, KeyError, TypeError, ValueError, AttributeError):
        return []  # somebody else's member of that name
    if not said:
        return []
    return [Diagnostic("recording_lacks", count, None, "; ".join(said))]


def _head_of(path: PathLike) -> bytes:
    """Return the first bytes of a file; nothing of what can be read only once."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with open(path, "rb") as stream:
            head = stream.read(_HEAD_BYTES)
        if head.startswith(_GZIP):
            unpacked = zlib.decompressobj(31).decompress(head, _HEAD_BYTES)
            return unpacked if unpacked.startswith(_NESTED) else head
        return head
    except (OSError, zlib.error):
        return b""  # the core says what is wrong
