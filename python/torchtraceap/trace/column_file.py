"""Keep the events of a rank as a Parquet file that loads without parsing text.

Any reader of Parquet sees a row for each event. The columns `template` and `values` and the
metadata `torchtraceap.columns` hold what else a trace has, so that the table comes back whole.

Note [Trust]: pages carry checksums, the metadata has one too, and the core checks every code,
offset, time and packed value before it believes a column. So a damaged or made-up file is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.stored import check_fields, check_file, parse_json
from torchtraceap.errors import MissingDependencyError, ParseError, SchemaError

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable

__all__ = [
    "MAGIC",
    "describe",
    "holds_events",
    "import_pyarrow",
    "read_about",
    "read_columns",
    "restore",
    "write_columns",
]

MAGIC = b"PAR1"
SCHEMA = "torchtraceap.columns/1"
_KEY, _CHECKSUM = b"torchtraceap.columns", b"torchtraceap.sha256"
_ABSENT = {"device": -1, "stream": _core.NO_ID, "correlation": _core.NO_ID,
           "external_id": _core.NO_ID}  # fmt: skip
_PLAIN = ("ts_ns", "dur_ns", "flags", "track")
_READ = (*_PLAIN, *_ABSENT, "name", "category", "kind", "phase", "template", "values")
_DIFFERENCES = ("ts_ns", "since_first_ns", "row", "correlation", "external_id")
"""Columns that neighbors differ little in: stored as differences."""
_ROW_BYTES = 100
"""What an event takes in memory while it is read, about."""
_FOOTER_BYTES = 64 << 20
_CHOICES = {"tracks": list, "metadata": list, "diagnostics": list, "total_objects": int,
            "text_bytes": int}  # fmt: skip


def write_columns(
    table: _core.EventTable, path: PathLike, shown: ColumnTable | None = None
) -> None:
    """Write the events of a rank so that `read_columns` gives them back.

    Args:
        table: The events.
        path: The file.
        shown: More columns of the same rows for other readers; those that repeat are left out.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        OutputError: The file can't be written.
    """
    from torchtraceap.core.writing import replacing_stream

    pa, parquet = import_pyarrow()
    columns = _stored_columns(pa, table)
    if shown is not None:
        more = pa.table(shown)
        columns = {name: more[name] for name in more.column_names} | columns
    rows = pa.table(columns).replace_schema_metadata(describe(table, SCHEMA))
    changing = {name: "DELTA_BINARY_PACKED" for name in _DIFFERENCES if name in columns}
    changing["values"] = "DELTA_LENGTH_BYTE_ARRAY"
    with replacing_stream(path) as stream:
        parquet.write_table(
            rows,
            stream,
            row_group_size=max(1, len(table)),  # so that each text is there once
            compression="zstd",
            use_dictionary=[name for name in columns if name not in changing],
            column_encoding=changing,
            dictionary_pagesize_limit=1 << 30,
            write_page_checksum=True,
            write_statistics=["ts_ns", "kind", "name"],
        )


def describe(
    table: _core.EventTable, schema: str, more: Mapping[str, Any] | None = None
) -> dict[bytes, bytes]:
    """Return the metadata of a file: what a table has beside its columns, with a checksum."""
    about = json.dumps(
        {
            "schema": schema,
            "total_objects": table.total_objects,
            "text_bytes": table.text_bytes,
            "tracks": [(track.pid, track.tid) for track in table.tracks],
            "metadata": table.metadata,
            "diagnostics": [
                (d.code, d.count, d.first_byte_offset, d.message) for d in table.diagnostics
            ],
            **(more or {}),
        },
        separators=(",", ":"),
    ).encode()
    return {_KEY: about, _CHECKSUM: _checksum(about).encode()}


def _stored_columns(pa: Any, table: _core.EventTable) -> dict[str, Any]:
    """Return the columns that the table is restored from, as Arrow's arrays."""

    def texts(codes: Array, of: list[Any], kind: Any) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(of, kind))

    text = pa.large_string()
    letters = np.unique(table.phase)
    categories = table.category
    known, category = np.unique(categories, return_inverse=True)
    strings = table.strings
    absent = categories == _core.NO_STRING
    named = [strings[code] for code in known if code != _core.NO_STRING]
    category = pa.array(category.astype(np.int32), mask=absent)
    offsets, data = _core.packed_values(table)
    return {
        "ts_ns": pa.array(table.ts_ns),
        "dur_ns": pa.array(table.dur_ns),
        "name": texts(table.name.view(np.int32), strings, text),
        "category": pa.DictionaryArray.from_arrays(category, pa.array(named, text)),
        "kind": texts(table.kind.astype(np.int32), _core.kind_names(), text),
        "phase": texts(
            np.searchsorted(letters, table.phase).astype(np.int32), [*map(chr, letters)], text
        ),
        "flags": pa.array(table.flags),
        "track": pa.array(table.track),
        **{
            name: pa.array(values := getattr(table, name), mask=values == absent)
            for name, absent in _ABSENT.items()
        },
        "template": texts(
            _core.template_ids(table).view(np.int32), _core.template_texts(table), pa.binary()
        ),
        "values": pa.Array.from_buffers(
            pa.large_binary(), len(table), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        ),
    }


def holds_events(path: Path) -> bool:
    """Return True if a file is one that `write_columns` wrote, and not just any Parquet."""
    try:
        with path.open("rb") as stream:
            if stream.read(4) != MAGIC:
                return False
            size = stream.seek(-8, os.SEEK_END) + 8
            length = int.from_bytes(stream.read(4), "little")
            if stream.read(4) != MAGIC or length > min(size - 12, _FOOTER_BYTES):
                return False
            stream.seek(-8 - length, os.SEEK_END)
            return SCHEMA.encode() in stream.read(length)
    except OSError:
        return False


def read_columns(path: PathLike, *, threads: int = 0) -> _core.EventTable:
    """Read the events of a rank that `write_columns` wrote.

    Args:
        path: The file.
        threads: 1 reads the columns one after the other.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        ParseError: It is no such file, is damaged, or needs more memory than there is.
    """
    pa, parquet = import_pyarrow()
    check_file(path)
    place = os.fspath(path)
    limits = {"thrift_string_size_limit": 1 << 30, "thrift_container_size_limit": 1 << 24}
    try:
        with parquet.ParquetFile(path, **limits) as file:
            about = read_about(file.schema_arrow.metadata or {}, SCHEMA, place)
            metadata = file.metadata
            _check_size(metadata, place)
        with parquet.ParquetFile(
            path,
            metadata=metadata,
            memory_map=True,
            read_dictionary=["name", "category", "kind", "phase", "template"],
            page_checksum_verification=True,
            **limits,
        ) as file:
            rows = file.read(columns=list(_READ), use_threads=threads != 1)
            return restore(about, place, threads, **_core_columns(pa, rows.combine_chunks()))
    except (SchemaError, KeyError, TypeError) as error:
        raise ParseError(f"{place}: is no file of events in columns: {_said(error)}") from None
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        if isinstance(error, ParseError):
            raise
        raise ParseError(f"{place}: is damaged: {_said(error)}") from None


def _said(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def import_pyarrow() -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`.

    Raises:
        MissingDependencyError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingDependencyError(
            "events in columns (Parquet) need pyarrow: pip install 'torchtraceap[arrow]'"
        ) from None
    return pa, parquet


def _checksum(about: bytes) -> str:
    import hashlib  # only here: start-up counts

    return hashlib.sha256(about).hexdigest()


def read_about(found: dict[bytes, bytes], schema: str, place: str) -> dict[str, Any]:
    """Return what `describe` said of a table.

    Raises:
        ParseError: There is no such metadata, it is damaged, or of another schema.
    """
    if _KEY not in found:
        raise ParseError(
            f"{place}: expected events in columns, which `torchtraceap convert` writes, found "
            "a file of another kind"
        )
    if found.get(_CHECKSUM, b"").decode("ascii", "replace") != _checksum(found[_KEY]):
        raise ParseError(f"{place}: is damaged: the checksum of its metadata is another one")
    about = parse_json(found[_KEY], place, wide=True)
    if about.get("schema") != schema:
        raise ParseError(f"{place}: expected the schema {schema}, found {about.get('schema')!r}")
    check_fields(about, _CHOICES, place)
    return about


def _check_size(metadata: Any, place: str) -> None:
    """Refuse what claims to be larger than memory: such columns fit into a few bytes."""
    unpacked = sum(
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
        if metadata.row_group(group).column(column).path_in_schema in _READ
    )
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if metadata.num_rows * _ROW_BYTES + unpacked > most:
        raise ParseError(
            f"{place}: claims {metadata.num_rows:,} events, which memory does not hold"
        )


def restore(about: dict[str, Any], place: str, threads: int, **columns: Any) -> _core.EventTable:
    """Return the table of some columns and of what `read_about` found.

    Raises:
        SchemaError: They can't be those of a table.
    """
    try:
        return _core.restore_table(
            **columns,
            tracks=[(str(pid), str(tid)) for pid, tid in about["tracks"]],
            metadata=[(str(key), str(value)) for key, value in about["metadata"]],
            diagnostics=[tuple(entry) for entry in about["diagnostics"]],
            total_objects=about["total_objects"],
            text_bytes=about["text_bytes"],
            path=place,
            threads=threads,
        )
    except TypeError:  # its words are the core's signature
        raise SchemaError("a column, or what belongs to it, is of another type") from None


def _core_columns(pa: Any, rows: Any) -> dict[str, Any]:
    """Return the arguments of `_core.restore_table` that are columns."""
    columns = {name: _whole(pa, rows.column(name)) for name in _READ}
    for name in _PLAIN:
        if columns[name].null_count:
            raise SchemaError(f"{name}: a value for each event was expected")
    numbers: dict[str, Any] = {name: columns[name].to_numpy() for name in _PLAIN}
    for name, absent in _ABSENT.items():
        filled = columns[name].fill_null(absent)
        if name in ("device", "stream"):
            coded = filled.dictionary_encode()
            codes = coded.indices.to_numpy().view(np.uint32)
            numbers[name] = coded.dictionary.to_numpy(), codes
        else:
            numbers[name] = filled.to_numpy(zero_copy_only=False), None
    numbers["ts_ns"] = numbers["ts_ns"], None
    name_codes, strings = _texts(columns["name"], "name")
    category_codes, strings = _join_categories(columns["category"], strings)
    template_codes, templates = _texts(columns["template"], "template")
    return {
        **numbers,
        "name": name_codes,
        "category": category_codes,
        "kind": _small_codes(columns["kind"], "kind", _core.kind_names().index),
        "phase": _small_codes(columns["phase"], "phase", ord),
        "template_id": template_codes,
        "values": _buffers(columns["values"]),
        "strings": strings,
        "templates": templates,
    }


def _whole(pa: Any, column: Any) -> Any:
    """Return a column as one array, with one dictionary."""
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


_Texts = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]


def _buffers(column: Any) -> _Texts:
    """Return sizes and bytes of an array of texts or bytes."""
    if column.null_count:
        raise SchemaError("values: one for each event was expected")
    _, offsets, data = column.buffers()
    wide = np.dtype(np.int64 if "large" in str(column.type) else np.int32)
    begin = column.offset
    if offsets is None or not len(column):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    places = np.frombuffer(offsets, wide, count=begin + len(column) + 1)[begin:]
    found = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return np.diff(places).astype(np.int64, copy=False), found[places[0] : places[-1]]


def _texts(column: Any, what: str) -> tuple[npt.NDArray[np.uint32], _Texts]:
    if column.null_count:
        raise SchemaError(f"{what}: one for each event was expected")
    return column.indices.to_numpy().view(np.uint32), _buffers(column.dictionary)


def _join_categories(column: Any, strings: _Texts) -> tuple[npt.NDArray[np.uint32], _Texts]:
    """Return categories as codes into the texts of names, with those that are missing there."""
    sizes, data = _buffers(column.dictionary)
    joined = np.concatenate([strings[0], sizes]), np.concatenate([strings[1], data])
    codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    known, none = len(strings[0]), len(joined[0])
    return np.where(codes < 0, none, codes + known).astype(np.uint32), joined


def _small_codes(column: Any, what: str, code: Any) -> npt.NDArray[np.uint8]:
    """Return a column of few known texts as the core's codes."""
    if column.null_count:
        raise SchemaError(f"{what}: one for each event was expected")
    texts = column.dictionary.to_pylist()
    try:
        codes = np.array([code(text) for text in texts], dtype=np.uint8)
    except (ValueError, TypeError, OverflowError):
        raise SchemaError(f"{what}: an unknown one of {texts[:8]}") from None
    found: npt.NDArray[np.uint8] = codes[column.indices.to_numpy()]
    return found
