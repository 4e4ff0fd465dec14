"""The tables of a data set as Arrow has them, and Parquet files of them.

Note [Shards]: each table is a folder of Parquet files. A file is a *shard*: the traces that were
made of one base, which are all in one split; its name is the split and a number. Every file of
traces has a row for each, and the files of events and windows of the same name have a row group
for each, in the same order. So a trace is read alone, and a shard is added without the others.

Note [Names]: events hold 64 bits of the BLAKE2b hash of their names, and the table of names has
each of a shard once. So shards need not agree on numbers, and a name has the same one everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from torchtraceap.core.formatting import short_repr
from torchtraceap.core.stored import check_file
from torchtraceap.datasets.labels import TYPES
from torchtraceap.errors import MissingDependencyError, SchemaError

__all__ = [
    "ARGUMENTS",
    "FORMAT",
    "LABEL_COLUMNS",
    "TABLES",
    "file_of",
    "import_pyarrow",
    "name_hash",
    "read_rows",
    "schemas",
    "write_to",
]

FORMAT = 1
"""Version of the tables, in their metadata."""
TABLES = ("traces", "gpu_events", "host_events", "windows", "names")
_PLAIN = frozenset({"start_ns", "dur_ns", "launch_start_ns", "launch_dur_ns", "correlation",
                    "external_id", "sequence_number", "record_function_id", "event_index",
                    "flow_id", "address", "bytes_allocated"})  # fmt: skip
"""Columns of values that seldom repeat: stored as differences of neighbors."""
ARGUMENTS = {
    "gpu_events": {
        "correlation": "correlation", "External id": "external_id", "device": "device",
        "stream": "stream", "bytes": "bytes", "graph id": "graph_id",
        "graph node id": "graph_node_id", "memory bandwidth (GB/s)": "bandwidth_gb_per_s",
        "grid": "grid", "block": "block",
    },
    "host_events": {
        "correlation": "correlation", "External id": "external_id",
        "Sequence number": "sequence_number", "Record function id": "record_function_id",
        "Ev Idx": "event_index", "Fwd thread id": "forward_thread_id", "Python id": "frame_id",
        "Python parent id": "parent_frame_id", "Addr": "address", "Bytes": "bytes",
        "Total Allocated": "bytes_allocated", "Total Reserved": "bytes_reserved",
    },
}  # fmt: skip
"""Arguments of events that have columns of their own, and the names of these, by table."""
LABEL_COLUMNS = (
    "id", "split", "task", "device", "strategy", "world_size", "rank", "run", "profiler", "type",
    "form", "decoy", "looks_like", "late_rank", "role", "twin", "cost_ns", "severity", "already",
    "seed", "licence",
)  # fmt: skip
"""Entries of a label that are columns of `traces`."""


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
            "a data set needs pyarrow: pip install 'torchtraceap[arrow]'"
        ) from None
    return pa, parquet


def name_hash(name: str) -> int:
    """Return the int64 hash of a name; see Note [Names]."""
    digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


@cache
def schemas() -> dict[str, Any]:
    """An Arrow schema for each table; docs/labeled_data.md says what the columns are."""
    pa, _ = import_pyarrow()
    texts, interval = pa.list_(pa.string()), pa.struct(
        [("type", pa.string()), ("start_ns", pa.int64()), ("end_ns", pa.int64())]
    )  # fmt: skip
    track = pa.struct([("pid", pa.string()), ("tid", pa.string())])
    repeated = pa.dictionary(pa.int32(), pa.string())
    integer, short, small, truth = pa.int64(), pa.int32(), pa.int16(), pa.bool_()
    text, ratio = pa.string(), pa.float32()
    columns: dict[str, list[tuple[str, Any]]] = {
        "traces": [
            ("id", text), ("split", text), ("task", text), ("family", text), ("mode", text),
            ("base", text), ("source", text), ("communication_source", text), ("licence", text),
            ("device", text), ("virtual_platform", truth), ("dtype", text), ("batch", short),
            ("strategy", text), ("world_size", short), ("rank", short), ("run", text),
            ("profiler", text), ("label", truth), ("type", text), ("form", text),
            ("decoy", truth), ("looks_like", text), ("late_rank", short), ("role", text),
            ("twin", text), ("cost_ns", integer), ("severity", pa.float64()),
            ("costs", pa.list_(interval)), ("already", texts), ("seed", integer),
            ("length_ns", integer), ("step_ns", pa.list_(integer)), ("steps", short),
            ("gpu_event_count", short), ("host_event_count", short), ("origin_ns", integer),
            ("tracks", pa.list_(track)), ("metadata", text),
        ],
        "gpu_events": [
            ("trace", repeated), ("start_ns", integer), ("dur_ns", integer), ("name", integer),
            ("kind", repeated), ("category", repeated), ("op_name", integer),
            ("launch_start_ns", integer), ("launch_dur_ns", integer), ("stream_role", repeated),
            ("track", small), ("device", short), ("stream", integer), ("correlation", integer),
            ("external_id", integer), ("bytes", integer), ("bandwidth_gb_per_s", pa.float64()),
            ("grid", pa.list_(short)), ("block", pa.list_(short)), ("graph_id", integer),
            ("graph_node_id", integer), ("args", repeated), ("members", repeated),
        ],
        "host_events": [
            ("trace", repeated), ("phase", repeated), ("start_ns", integer), ("dur_ns", integer),
            ("name", integer), ("kind", repeated), ("category", repeated), ("track", small),
            ("correlation", integer), ("external_id", integer), ("sequence_number", integer),
            ("record_function_id", integer), ("event_index", integer),
            ("forward_thread_id", integer), ("frame_id", integer), ("parent_frame_id", integer),
            ("address", integer), ("bytes", integer), ("bytes_allocated", integer),
            ("bytes_reserved", integer), ("flow_id", integer), ("args", repeated),
            ("members", repeated),
        ],
        "windows": [
            ("trace", repeated), ("n_w", small), ("i", small), ("start_ns", integer),
            ("end_ns", integer), ("positive", truth), ("ignore", truth),
            *((name, ratio) for name in TYPES),
        ],
        "names": [("hash", integer), ("name", text), ("canonical", text), ("class", text)],
    }  # fmt: skip
    about = {"torchtraceap.dataset": str(FORMAT)}
    return {name: pa.schema(of, metadata=about) for name, of in columns.items()}


def file_of(folder: Path, table: str, shard: str) -> Path:
    """The file of a shard of a table. See Note [Shards]."""
    return folder / table / f"{shard}.parquet"


def write_to(stream: Any, table: str, groups: Sequence[Any]) -> None:
    """Write Arrow tables as one Parquet file, each as a row group."""
    _, parquet = import_pyarrow()
    schema = schemas()[table]
    plain = [field.name for field in schema if field.name in _PLAIN]
    every = [field.name for field in schema]
    writer = parquet.ParquetWriter(
        stream,
        schema,
        compression="zstd",
        compression_level=12,
        use_dictionary=[name for name in every if name not in plain],
        column_encoding=dict.fromkeys(plain, "DELTA_BINARY_PACKED"),
        write_statistics=False,
    )
    with writer:
        for group in groups:
            writer.write_table(group.cast(schema), row_group_size=max(1, len(group)))


def read_rows(path: Path, table: str, columns: Iterable[str] | None = None) -> Any:
    """A whole file as an Arrow table.

    Raises:
        MissingFileError: There is no such file.
        SchemaError: It is no Parquet file, or not of this table and version.
    """
    with open_table(path, table) as file:
        names = None if columns is None else list(columns)
        return read_group(path, partial(file.read, columns=names))


def read_group(path: Path, read: Callable[[], Any]) -> Any:
    """Return what reads rows of a file, checked: text is UTF-8, codes are within their texts.

    Raises:
        SchemaError: The file is damaged.
    """
    pa, _ = import_pyarrow()
    try:
        rows = read()
        rows.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(f"{path}: can't be read: {error}") from None
    return rows


def open_table(path: Path, table: str) -> Any:
    """A file whose row groups can be read, of which the schema is known to be right.

    Raises:
        MissingFileError, SchemaError: See `read_rows`.
    """
    pa, parquet = import_pyarrow()
    check_file(path)
    try:
        file = parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(f"{path}: can't be read as Parquet: {error}") from None
    found = file.schema_arrow
    said = (found.metadata or {}).get(b"torchtraceap.dataset", b"none")
    version = short_repr(said.decode("utf-8", "replace"))[1:-1]
    if version != str(FORMAT):
        file.close()
        raise SchemaError(f"{path}: has tables of version {version}, not {FORMAT}")
    missing = [name for name in schemas()[table].names if found.names.count(name) != 1]
    if missing:
        file.close()
        raise SchemaError(f"{path}: lacks the columns {', '.join(missing)}")
    for column in schemas()[table]:
        if found.field(column.name).type != column.type:
            file.close()
            raise SchemaError(
                f"{path}: {column.name} has values of {found.field(column.name).type}, "
                f"not {column.type}"
            )
    return file
