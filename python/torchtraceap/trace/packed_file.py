"""Keep the events of a rank as an Arrow file that loads ten times as fast as JSON.

The file has one row. Each of its columns is a list: of numbers for every event, in as few bytes as
the largest needs, or of bytes for the texts. Where nothing packs the lists they are mapped and not
read. What is trusted: Note [Trust] in column_file.py.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.stored import check_fields, check_file
from torchtraceap.errors import ParseError, SchemaError
from torchtraceap.trace.column_file import describe, import_pyarrow, read_about, restore

__all__ = ["MAGIC", "read_packed", "write_packed"]

MAGIC = b"ARROW1"
_SCHEMA = "torchtraceap.packed/1"
_KINDS = {"first_ns": int, "lowest": dict, "kinds": list, "checksums": dict}
_IDS = ("correlation", "external_id")
_FEW = {"device": np.int32, "stream": np.int64}
_PLAIN = ("dur_ns", "name", "category", "kind", "phase", "flags", "track", "template")
_TEXTS = ("strings", "templates")
_Numbers = npt.NDArray[Any]


def write_packed(table: _core.EventTable, path: PathLike, *, pack: bool = True) -> None:
    """Write the events of a rank so that `read_packed` gives them back.

    Args:
        table: The events.
        path: The file.
        pack: Pack the columns; else the file is three times as large and quicker to read.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        OutputError: The file can't be written.
    """
    from torchtraceap.core.writing import replacing_stream

    pa, _ = import_pyarrow()
    columns, about = _pack(pa, table)
    checksums = {name: _core.checksum(_bytes(values)) for name, values in columns.items()}
    metadata = describe(table, _SCHEMA, {**about, "checksums": checksums})
    lists = {
        name: pa.LargeListArray.from_arrays(
            pa.array([0, len(values)], pa.int64()), pa.array(values)
        )
        for name, values in columns.items()
    }
    row = pa.record_batch(lists).replace_schema_metadata(metadata)
    options = pa.ipc.IpcWriteOptions(compression="lz4" if pack else None)
    with (
        replacing_stream(path) as stream,
        pa.ipc.new_file(stream, row.schema, options=options) as writer,
    ):
        writer.write_batch(row)


def read_packed(path: PathLike, *, threads: int = 0, name: str | None = None) -> _core.EventTable:
    """Read the events of a rank that `write_packed` wrote.

    Args:
        path: The file.
        threads: 1 reads and checks the columns one after the other.
        name: The file that the table names as its own; by default this one.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        ParseError: It is no such file, or is damaged.
    """
    pa, _ = import_pyarrow()
    check_file(path)
    place = os.fspath(path)
    try:
        options = pa.ipc.IpcReadOptions(use_threads=threads != 1)
        with pa.memory_map(place) as source, pa.ipc.open_file(source, options=options) as file:
            about = read_about(file.schema.metadata or {}, _SCHEMA, place)
            check_fields(about, _KINDS, place)
            if file.num_record_batches != 1:
                raise SchemaError("one row was expected")
            batch = file.get_batch(0)
            batch.validate(full=True)
            columns = {name: _numbers(pa, batch.column(name)) for name in batch.schema.names}
            _check(columns, about["checksums"])
            return restore(about, name or place, threads, **_unpack(columns, about))
    except (SchemaError, KeyError, TypeError, IndexError) as error:
        raise ParseError(f"{place}: is no file of packed events: {error}") from None
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        if isinstance(error, ParseError):
            raise
        said = str(error).splitlines() or [type(error).__name__]
        raise ParseError(f"{place}: is damaged: {said[0]}") from None


def _pack(pa: Any, table: _core.EventTable) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the columns in few bytes, and the numbers that they are relative to."""
    strings = table.strings
    columns: dict[str, Array] = {
        "dur_ns": _narrow(table.dur_ns),
        "name": _narrow(table.name),
        "category": _narrow(np.minimum(table.category, len(strings))),
        "kind": table.kind,
        "phase": table.phase,
        "flags": table.flags,
        "track": _narrow(table.track),
        "template": _narrow(_core.template_ids(table)),
    }
    # Events without a time come first, at 0: a step from there would be as large as the clock.
    begin = int(np.argmax((table.flags & _core.HAS_TIME) != 0))
    first_ns = int(table.ts_ns[begin])
    steps = np.zeros(len(table), dtype=np.int64)
    np.subtract(table.ts_ns[begin + 1 :], table.ts_ns[begin:-1], out=steps[begin + 1 :])
    columns["step_ns"] = _narrow(steps)
    lowest = {}
    for name in _IDS:
        columns[name], lowest[name] = _from_lowest(getattr(table, name))
    for name in _FEW:
        coded = pa.array(getattr(table, name)).dictionary_encode()
        columns[name] = _narrow(coded.indices.to_numpy())
        columns[f"{name}_values"] = coded.dictionary.to_numpy()
    offsets, data = _core.packed_values(table)
    columns["values"], columns["values_bytes"] = data, _narrow(np.diff(offsets))
    encoded = [text.encode("utf-8", "replace") for text in strings]
    for name, texts in zip(_TEXTS, (encoded, _core.template_texts(table)), strict=True):
        columns[name] = np.frombuffer(b"".join(texts), dtype=np.uint8)
        columns[f"{name}_bytes"] = _narrow(np.array([len(text) for text in texts], dtype=np.int64))
    return columns, {"first_ns": first_ns, "lowest": lowest, "kinds": _core.kind_names()}


def _unpack(columns: dict[str, _Numbers], about: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `_core.restore_table` that are columns."""
    whole: dict[str, Any] = {name: columns[name] for name in _PLAIN}
    whole["template_id"] = whole.pop("template")
    kinds = _core.kind_names()
    if about["kinds"] != kinds:  # of another version
        known = np.array([kinds.index(kind) for kind in about["kinds"]], dtype=np.uint8)
        whole["kind"] = known[columns["kind"]]
    whole["ts_ns"] = columns["step_ns"], about["first_ns"]
    for name in _IDS:
        whole[name] = columns[name], about["lowest"][name]
    for name, dtype in _FEW.items():
        whole[name] = columns[f"{name}_values"].astype(dtype, casting="same_kind"), columns[name]
    for name in ("values", *_TEXTS):
        whole[name] = columns[f"{name}_bytes"], columns[name]
    return whole


def _narrow(values: Array) -> Array:
    """Return numbers in the fewest bytes that hold all of them."""
    most = int(values.max(initial=0))
    if values.dtype.kind == "i" and values.min(initial=0) < 0:
        return values.astype(np.int64, copy=False)
    return values.astype(next(t for t in ("u1", "u2", "u4", "i8") if most <= np.iinfo(t).max))


def _from_lowest(ids: npt.NDArray[np.int64]) -> tuple[Array, int]:
    """Return ids as numbers from 1, 0 where there is none, and which one is 1."""
    absent = ids == _core.NO_ID
    lowest = int(ids.min(where=~absent, initial=2**63 - 1))
    with np.errstate(over="ignore"):  # far apart they wrap, and back
        counted = ids - np.int64(lowest - 1)
    counted[absent] = 0
    return _narrow(counted), lowest


def _numbers(pa: Any, column: Any) -> _Numbers:
    """Return the list in the only row of a column."""
    if not pa.types.is_large_list(column.type) or not pa.types.is_integer(column.type.value_type):
        raise SchemaError(f"lists of integers were expected, not {column.type}")
    if len(column) != 1 or column.null_count:
        raise SchemaError("one row was expected")
    values = column.flatten()
    if values.null_count:
        raise SchemaError("a number for each event was expected")
    found: _Numbers = values.to_numpy()
    return found


def _bytes(values: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8)


def _check(columns: dict[str, _Numbers], checksums: dict[str, Any]) -> None:
    for name, values in columns.items():
        if checksums.get(name) != _core.checksum(_bytes(values)):
            raise ValueError(f"the checksum of {name} is another one")
