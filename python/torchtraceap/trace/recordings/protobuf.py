"""Walk over messages of protocol buffers, of which only the wire format is known."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.stored import read_stored

__all__ = ["Field", "double", "inflate", "read_bytes", "signed", "walk"]

Field = tuple[int, "int | bytes"]
"""The number of a field, and a number or the bytes of a text or nested message."""
_GZIP = b"\x1f\x8b"
_MOST_BYTES = 4 << 30
_FIXED = {1: 8, 5: 4}


def read_bytes(path: PathLike) -> bytes:
    """Return the content of a file, unpacked where gzip packed it.

    Raises:
        ValueError: It is damaged, or has more than 4 GiB.
        MissingFileError, SchemaError: As `read_stored`.
    """
    data = read_stored(path, most=_MOST_BYTES)
    return inflate(data, 31) if data.startswith(_GZIP) else data


def inflate(data: bytes, window: int) -> bytes:
    """Return what zlib packed: `window` is 31 for gzip and 15 for zlib."""
    unpacker = zlib.decompressobj(window)
    try:
        found = unpacker.decompress(data, _MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"is damaged: {error}") from None
    if unpacker.unconsumed_tail:
        raise ValueError("has more than 4 GiB")
    return found


def walk(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message in their order.

    Raises:
        ValueError: The bytes are no message.
    """
    place, end = 0, len(data)
    while place < end:
        tag, place = _varint(data, place, end)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(data, place, end)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, place = _varint(data, place, end)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise ValueError(f"field {tag >> 3} is of no known kind")
        if length > end - place:
            raise ValueError(f"field {tag >> 3} is longer than its message")
        found = data[place : place + length]
        place += length
        yield tag >> 3, found if kind == 2 else int.from_bytes(found, "little")


def signed(value: int | bytes) -> int:
    """Return an int64 field; negative ones are written as large numbers."""
    if not isinstance(value, int):
        raise ValueError("a number was expected, not bytes")
    return value - 2**64 if value >= 2**63 else value


def double(value: int | bytes) -> float:
    """Return a field of type double."""
    if not isinstance(value, int):
        raise ValueError("a number was expected, not bytes")
    return float(struct.unpack("<d", (value % 2**64).to_bytes(8, "little"))[0])


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while place < end:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), place
        shift += 7
        if shift > 63:
            break
    raise ValueError("a number does not end")
