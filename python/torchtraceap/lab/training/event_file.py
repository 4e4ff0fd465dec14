"""Event files of TensorBoard with scalars, written without TensorBoard.

A file is a sequence of records: length (8 bytes), masked CRC-32C of these, data, masked CRC-32C of
the data; all little-endian (TensorFlow's `record_writer.cc`). The data is a message `Event` of
`event.proto` in the wire format of protocol buffers: wall_time = 1 (double), step = 2 (int64),
file_version = 3 (string), summary = 5; a `Summary` has values = 1, a value has tag = 1 (string)
and simple_value = 2 (float).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import cache

__all__ = ["event_file", "masked_crc"]

_DOUBLE, _VARINT, _BYTES, _FLOAT = 1, 0, 2, 5  # wire types


def event_file(records: Iterable[tuple[float, int, Mapping[str, float]]]) -> bytes:
    """The bytes of an event file.

    Args:
        records: When (seconds since 1970), at which step, and what was measured.
    """
    parts = [_record(_field(1, _DOUBLE, struct.pack("<d", 0.0)) + _text(3, "brain.Event:2"))]
    for wall_time_s, step, scalars in records:
        values = b"".join(
            _nested(1, _text(1, tag) + _field(2, _FLOAT, struct.pack("<f", value)))
            for tag, value in scalars.items()
        )
        when = _field(1, _DOUBLE, struct.pack("<d", wall_time_s)) + _field(2, _VARINT, _int(step))
        parts.append(_record(when + _nested(5, values)))
    return b"".join(parts)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join((length, masked_crc(length), data, masked_crc(data)))


def _field(number: int, wire: int, data: bytes) -> bytes:
    return _int(number << 3 | wire) + data


def _nested(number: int, data: bytes) -> bytes:
    return _field(number, _BYTES, _int(len(data)) + data)


def _text(number: int, text: str) -> bytes:
    return _nested(number, text.encode("utf-8"))


def _int(value: int) -> bytes:
    """A varint: seven bits in a byte, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def masked_crc(data: bytes) -> bytes:
    """CRC-32C, turned and shifted as these files want it."""
    crc, table = 0xFFFFFFFF, _crc_table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)  # Castagnoli's polynomial, reversed
        table.append(crc)
    return tuple(table)
