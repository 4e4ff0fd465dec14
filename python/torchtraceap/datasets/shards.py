"""Write traces as a shard: one file of each table."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from torchtraceap.core.writing import write_files
from torchtraceap.datasets.arrow import TABLES, import_pyarrow, schemas, write_to
from torchtraceap.datasets.encoding import Rows, encode_trace
from torchtraceap.errors import SchemaError
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.trace.ranks import RankTrace

__all__ = ["is_written", "write_shard"]


def write_shard(
    folder: Path, shard: str, traces: Iterable[tuple[dict[str, Any], RankTrace]]
) -> None:
    """Write the files of a shard, which appear together.

    Args:
        folder: The folder of the data set.
        shard: The files' name.
        traces: Labels and traces.

    Raises:
        OutputError: They can't be written.
        SchemaError: A label has a type that no fault has.
    """
    rows = [encode_trace(part, label) for label, part in traces]
    # Traces come last: who finds them finds the rest too.
    tables = [*TABLES[1:], TABLES[0]]
    files = [
        (f"{table}/{shard}.parquet", partial(_write, table, _groups(table, rows)))
        for table in tables
    ]
    write_files(folder, files)


def is_written(folder: Path, shard: str) -> bool:
    """Return True if the shard is complete."""
    return all((folder / table / f"{shard}.parquet").is_file() for table in TABLES)


def _write(table: str, groups: list[Any], stream: Any) -> None:
    write_to(stream, table, groups)


def _groups(table: str, rows: list[Rows]) -> list[Any]:
    """An Arrow table for each row group."""
    pa, _ = import_pyarrow()
    if table == "traces":
        return [pa.Table.from_pylist([each.trace for each in rows], schema=schemas()[table])]
    if table == "names":
        return [pa.Table.from_pylist(_names(rows), schema=schemas()[table])]
    return [getattr(each, table) for each in rows]


def _names(rows: list[Rows]) -> list[dict[str, Any]]:
    """Each name once, in the order of the names."""
    found: dict[int, tuple[str, str]] = {}
    for each in rows:
        for number, named in each.names.items():
            if found.setdefault(number, named)[0] != named[0]:
                raise SchemaError(f"two names have one hash: {named[0]!r}, {found[number][0]!r}")
    by_name = sorted(found.items(), key=lambda item: item[1])
    return [
        {"hash": number, "name": name, "canonical": canonical_name(name), "class": of}
        for number, (name, of) in by_name
    ]
