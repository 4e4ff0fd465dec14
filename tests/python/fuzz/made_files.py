"""Files of binary formats, built from JSON documents, which can be changed as trees of values.

    {"sqlite": {"TABLE": [["column", ...], [value, ...], ...]}}
    {"protobuf": [[field, value], ...]}        # integers, texts and lists: nested messages
    {"packed": {"columns": {"name": [integer, ...] or "bytes"}, "about": {...}}}
    {..., "gzip": true, "damage": [[place, byte], ...]}

What is no such document is a file as it stands.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from torchtraceap import _core

__all__ = ["made_file"]

_WRONG = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
          ZeroDivisionError, sqlite3.Error)  # fmt: skip


def made_file(data: bytes) -> bytes:
    """Return the bytes of the file that a document describes, or the document's own."""
    try:
        document = json.loads(data)
        [kind] = document.keys() & _KINDS.keys()
        made = bytearray(_KINDS[kind](document[kind]))
        for place, byte in document.get("damage", ()):
            made[place % len(made)] = byte % 256
        return gzip.compress(made, 1) if document.get("gzip") else bytes(made)
    except _WRONG:
        return data


def _database(tables: dict[str, list[list[Any]]]) -> bytes:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("PRAGMA page_size = 512")
        db.execute("BEGIN")
        for table, (columns, *rows) in tables.items():
            names = ", ".join(_quoted(name) for name in columns)
            db.execute(f"CREATE TABLE {_quoted(table)} ({names})")
            values = ", ".join("?" * len(columns))
            db.executemany(f"INSERT INTO {_quoted(table)} VALUES ({values})", rows)
        db.execute("COMMIT")
        return db.serialize()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _message(fields: list[list[Any]]) -> bytes:
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        elif isinstance(value, float):
            out += _varint(number << 3 | 1) + np.float64(value).tobytes()
        else:
            data = value.encode("utf-8", "replace") if isinstance(value, str) else _message(value)
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def _varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _packed(document: dict[str, Any]) -> bytes:
    """Write what `packed_file.write_packed` would, with right checksums."""
    columns = {name: _narrow(values) for name, values in document["columns"].items()}
    checksums = {name: _core.checksum(column.view(np.uint8)) for name, column in columns.items()}
    about = json.dumps({**document["about"], "checksums": checksums}).encode()
    metadata = {b"torchtraceap.columns": about,
                b"torchtraceap.sha256": hashlib.sha256(about).hexdigest()}  # fmt: skip
    lists = {
        name: pa.LargeListArray.from_arrays(pa.array([0, len(column)], pa.int64()), column)
        for name, column in columns.items()
    }
    row = pa.record_batch(lists).replace_schema_metadata(metadata)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_file(stream, row.schema) as writer:
        writer.write_batch(row)
    return bytes(stream.getvalue())


def _narrow(values: list[int] | str) -> np.ndarray[Any, Any]:
    if isinstance(values, str):
        return np.frombuffer(values.encode("latin-1"), np.uint8)
    numbers = np.array(values, dtype=np.int64).reshape(-1)
    fitting = (t for t in ("u1", "u2", "u4") if not len(numbers)
               or (numbers.min() >= 0 and numbers.max() <= np.iinfo(t).max))  # fmt: skip
    return numbers.astype(next(fitting, "i8"))


_KINDS = {"sqlite": _database, "protobuf": _message, "packed": _packed}
