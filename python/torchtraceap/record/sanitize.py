"""Takes what names a machine or a person's environment out of an exported trace.

The file is searched as bytes and never parsed as a whole: a trace may be larger than memory, and
every event has to stay exactly as the profiler wrote it. A quoted key cannot occur inside a JSON
string (its quotes would be escaped), so a key followed by a colon is one.
"""

from __future__ import annotations

import gzip
import json
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

__all__ = ["copy_without_private_data", "holds_work"]

HOST_KEYS = (b"host_name", b"hostname")
ENVIRONMENT_KEYS = (b"env", b"environ", b"environment")
TRACE_NAME_KEY = b"traceName"

# The training process waits for it: on the 35 MB of examples/traces/resnet50_num_workers_0 level 6
# gives 1.15 MB in 0.15 s, level 9 gives 1.01 MB in 0.45 s (zlib of CPython 3.11).
GZIP_LEVEL = 6
COPY_BYTES = 4 << 20

_COLON = re.compile(rb"\s*:\s*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NAME_BEFORE = re.compile(rb'"name"\s*:\s*$')
_COMMA_AFTER = re.compile(rb"\s*,")
_COMMA_BEFORE = re.compile(rb",\s*$")
# What the profiler writes even when nothing ran while it recorded: its own record and the marks
# of steps. Events of any other category are work.
_WORK = re.compile(rb'"cat"\s*:\s*"(?!Trace"|user_annotation"|gpu_user_annotation"|")')

Text = bytes | mmap.mmap


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """Bytes [start, end) of the text, to be replaced by `replacement`."""

    start: int
    end: int
    replacement: bytes = b""


def copy_without_private_data(
    source: Path, target: BinaryIO, *, use_gzip: bool, unfinished: str | None = None
) -> bool:
    """Copies an exported trace without host names, environment variables and folder names.

    Args:
        source: Plain JSON text as `export_chrome_trace` wrote it.
        target: Open binary file that takes the copy.
        use_gzip: Compress the copy.
        unfinished: The name of a step whose range is none of a whole step.

    Returns:
        Whether the trace holds work; a discarded cycle leaves marks only.
    """
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        pieces = kept_pieces(text, private_cuts(text, unfinished))
        if use_gzip:
            # No name and no time in the header: the file then depends on the trace alone.
            with gzip.GzipFile("", "wb", GZIP_LEVEL, target, mtime=0) as packed:
                packed.writelines(pieces)
        else:
            target.writelines(pieces)
        return holds_work(text)


def holds_work(text: Text) -> bool:
    """Whether anything but the profiler's own marks was recorded."""
    return _WORK.search(text) is not None


def private_cuts(text: Text, unfinished: str | None = None) -> list[Cut]:
    """What to cut, in order and disjoint; also the name of a step that was cut short."""
    cuts = [*member_cuts(text, HOST_KEYS, (b'"',)), *member_cuts(text, ENVIRONMENT_KEYS, (b"{",))]
    cuts.extend(trace_name_cuts(text))
    cuts.extend(emulated_cuts(text))
    cuts.extend(unfinished_cuts(text, unfinished))
    disjoint: list[Cut] = []
    for cut in sorted(cuts):
        if not disjoint or cut.start >= disjoint[-1].end:
            disjoint.append(cut)
    return disjoint


def member_cuts(text: Text, keys: tuple[bytes, ...], openings: tuple[bytes, ...]) -> Iterator[Cut]:
    """Members `"key": value` whole, with the comma that parted them, for values that open so."""
    for key in keys:
        for start, value in find_members(text, key):
            if text[value : value + 1] in openings:
                end = value_end(text, value)
                if end is not None:
                    yield widen_to_comma(text, start, end)


def trace_name_cuts(text: Text) -> Iterator[Cut]:
    """The path of the temporary file that the profiler wrote to: its folders may name a person."""
    for _, value in find_members(text, TRACE_NAME_KEY):
        match = _STRING.match(text, value)
        if match is not None:
            base = re.split(rb"[/\\]+", match[0][1:-1])[-1]
            yield Cut(match.start(), match.end(), b'"' + base + b'"')


def emulated_cuts(text: Text) -> Iterator[Cut]:
    """Descriptions of emulated collectives get the name that they can't be recorded under."""
    if text.find(b'"emu::') < 0:
        return
    from torchtraceap.record.emulated_records import DESCRIPTION, RECORDED

    recorded = b'"' + DESCRIPTION.encode() + b'"'
    at = text.find(recorded)
    while at >= 0:
        yield Cut(at, at + len(recorded), b'"' + RECORDED.encode() + b'"')
        at = text.find(recorded, at + len(recorded))


def unfinished_cuts(text: Text, name: str | None) -> Iterator[Cut]:
    """The ranges of a step that was cut short get a name that is none of a step."""
    if name is None:
        return
    quoted = b'"' + name.encode() + b'"'
    at = text.find(quoted)
    while at >= 0:
        if _NAME_BEFORE.search(bytes(text[max(0, at - 16) : at])):
            renamed = b'"unfinished ' + quoted[1:].replace(b"#", b" ")
            yield Cut(at, at + len(quoted), renamed)
        at = text.find(quoted, at + len(quoted))


def find_members(text: Text, key: bytes) -> Iterator[tuple[int, int]]:
    """Start of the quoted key and start of its value, for each member of that name."""
    quoted = b'"' + key + b'"'
    at = text.find(quoted)
    while at >= 0:
        colon = _COLON.match(text, at + len(quoted))
        if colon is not None:
            yield at, colon.end()
        at = text.find(quoted, at + len(quoted))


def value_end(text: Text, start: int) -> int | None:
    """Where the string or object that starts there ends; None if it does not."""
    if text[start : start + 1] == b'"':
        match = _STRING.match(text, start)
        return match.end() if match is not None else None
    size = 1 << 16
    while True:
        # Latin-1 keeps one character per byte, so that the position is one in the text.
        window = bytes(text[start : start + size]).decode("latin-1")
        try:
            return start + json.JSONDecoder(strict=False).raw_decode(window)[1]
        except (json.JSONDecodeError, RecursionError):
            if start + size >= len(text):
                return None
            size *= 8


def widen_to_comma(text: Text, start: int, end: int) -> Cut:
    after = _COMMA_AFTER.match(text, end)
    if after is not None:
        return Cut(start, after.end())
    before = _COMMA_BEFORE.search(bytes(text[max(0, start - 256) : start]))
    return Cut(start - (len(before[0]) if before is not None else 0), end)


def kept_pieces(text: Text, cuts: list[Cut]) -> Iterator[bytes]:
    at = 0
    for cut in [*cuts, Cut(len(text), len(text))]:
        for begin in range(at, cut.start, COPY_BYTES):
            yield bytes(text[begin : min(begin + COPY_BYTES, cut.start)])
        yield cut.replacement
        at = cut.end
