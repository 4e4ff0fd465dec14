"""The problem: embedding tables, from objects or a JSON file, and the GPUs that shall hold them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from torchtraceap.core import parse_value, read_stored
from torchtraceap.errors import OptionError
from torchtraceap.ops import (
    Device,
    EmbeddingTable,
    ReuseHistogram,
    UnknownDurationError,
    dtype_label,
    element_bytes,
    resolve_device,
)

__all__ = ["Cluster", "Table", "as_cluster", "as_tables", "read_tables"]

_MOST_TABLES = 100_000
_MOST_ROWS = 10**13
_MOST_DIM = 1 << 20
_MOST_LOOKUPS = 1e7
_TYPES = {8: "fp64", 4: "fp32", 2: "fp16", 1: "fp8"}
_KEYS = ("name", "rows", "dim", "pooling_factor", "dtype", "reuse", "mean_reuse")
_MOST_RANKS = 4096
_MOST_BYTES = 1e15
# A guess: what the dense part, its gradients, NCCL and the allocator's gaps leave.
_SHARE_FOR_TABLES = 0.8


def is_whole_number(value: object, least: int, most: int) -> bool:
    """Return True if a value is an int, no bool, within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object) -> bool:
    """Return True if a value is an int or a float, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding table and its lookups."""

    name: str
    rows: int
    dim: int
    """Elements of a row."""
    pooling_factor: float = 1.0
    """Mean lookups of one sample."""
    histogram: ReuseHistogram | None = None
    """Reuse of distinct rows in a global batch; None for uniform lookups."""
    dtype: str = "fp32"

    def __post_init__(self) -> None:
        for what, value, most in (
            ("rows", self.rows, _MOST_ROWS),
            ("dim", self.dim, _MOST_DIM),
        ):
            if not is_whole_number(value, 1, most):
                raise OptionError(
                    f"table {self.name}: {what} must be a whole number from 1 to {most:,}, "
                    f"not {value!r}"
                )
        lookups = self.pooling_factor
        if not is_number(lookups) or not 0 < lookups <= _MOST_LOOKUPS:
            raise OptionError(
                f"table {self.name}: pooling_factor must be a number above 0 and at most "
                f"{_MOST_LOOKUPS:,.0f}, not {lookups!r}"
            )
        try:
            element_bytes(dtype_label(self.dtype))
        except UnknownDurationError as error:
            raise OptionError(f"table {self.name}: {error}") from None

    @property
    def element_bytes(self) -> int:
        """Size of one element, bytes."""
        return element_bytes(dtype_label(self.dtype))


def as_tables(
    tables: Sequence[Table | EmbeddingTable | Mapping[str, Any]],
) -> tuple[Table, ...]:
    """Return tables from `Table`, `EmbeddingTable` or mappings.

    Raises:
        OptionError: There are none, a name is there twice, or one is none.
    """
    if isinstance(tables, (str, bytes, Mapping)) or not isinstance(tables, Sequence):
        raise OptionError(f"tables are a list of tables, not {type(tables).__name__}")
    found = tuple(_table(entry, number) for number, entry in enumerate(tables))
    if not found:
        raise OptionError("there is no table to place")
    if len(found) > _MOST_TABLES:
        raise OptionError(f"{len(found):,} tables are more than {_MOST_TABLES:,}")
    names: set[str] = set()
    for table in found:
        if table.name in names:
            raise OptionError(f"two tables are called {table.name!r}")
        names.add(table.name)
    return found


def _table(entry: Table | EmbeddingTable | Mapping[str, Any], number: int) -> Table:
    if isinstance(entry, Table):
        return entry
    if isinstance(entry, EmbeddingTable):
        name, dtype = f"table_{number}", _TYPES.get(entry.element_bytes)
        if dtype is None:
            raise OptionError(f"table {name}: elements of {entry.element_bytes} bytes have no type")
        sizes = [np.asarray(one) for one in (entry.rows, entry.columns, entry.lookups_per_bag)]
        if any(one.shape or one.dtype.kind not in "iuf" for one in sizes):
            raise OptionError(f"table {name}: its sizes must be single numbers")
        rows, columns, lookups = (one.item() for one in sizes)
        return Table(name, _whole(rows), _whole(columns), float(lookups), entry.histogram, dtype)
    if not isinstance(entry, Mapping):
        raise OptionError(f"table {number} is no object with {', '.join(_KEYS)}")
    name = str(entry.get("name", f"table_{number}"))
    unknown = sorted(str(key) for key in entry if key not in _KEYS)
    if unknown:
        raise OptionError(
            f"table {name}: there is no {', '.join(unknown)}; known are {', '.join(_KEYS)}"
        )
    missing = [key for key in ("rows", "dim") if key not in entry]
    if missing:
        raise OptionError(f"table {name}: {' and '.join(missing)} must be given")
    return Table(
        name,
        _whole(entry["rows"]),
        _whole(entry["dim"]),
        entry.get("pooling_factor", 1.0),
        _histogram(name, entry.get("reuse"), entry.get("mean_reuse")),
        str(entry.get("dtype", "fp32")),
    )


def _whole(value: Any) -> Any:
    """Return an integral float as int; `Table` refuses others."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _histogram(name: str, shares: Any, mean: Any) -> ReuseHistogram | None:
    if shares is None:
        if mean is not None:
            raise OptionError(f"table {name}: mean_reuse says nothing without reuse")
        return None
    numbers = [shares] if not isinstance(shares, Sequence) or isinstance(shares, str) else shares
    given = [*numbers, *([] if mean is None else [mean])]
    if not all(is_number(value) and abs(value) < 1e300 for value in given):
        raise OptionError(f"table {name}: reuse is a list of numbers, mean_reuse a number")
    try:
        return ReuseHistogram(
            tuple(float(share) for share in numbers), None if mean is None else float(mean)
        )
    except ValueError as error:
        raise OptionError(f"table {name}: reuse: {error}") from None


def read_tables(path: str | os.PathLike[str]) -> tuple[Table, ...]:
    """Read tables from JSON: a list of objects, or an object with such a list as `tables`.

    Each has `rows` and `dim`, and may have `name`, `pooling_factor` (1), `dtype` ("fp32"), `reuse`
    (17 shares of the distinct rows by how often a batch looks them up; see `ReuseHistogram`) and
    `mean_reuse` (lookups per distinct row).

    Raises:
        MissingFileError: There is no such file.
        SchemaError: The file is no JSON.
        OptionError: The file holds no tables, or an invalid one.
    """
    document: Any = parse_value(read_stored(path), str(path))
    tables = document.get("tables") if isinstance(document, dict) else document
    if not isinstance(tables, list):
        raise OptionError(f"{path} holds no list of tables")
    return as_tables(tables)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal GPUs, one per rank, with the device's links."""

    device: str | Device
    """Name or id of a device, or a device of your own."""
    ranks: int
    nodes: int = 1
    """Number of machines."""
    memory_bytes: float | None = None
    """Memory of each GPU for tables; by default four fifths of its memory."""
    node_bandwidth: float | None = None
    """One-way bandwidth between a machine and the others, all adapters together, byte/s.

    Without it, exchanges over machines are estimated only as far as they were measured.
    """

    def __post_init__(self) -> None:
        for what, value, most in (
            ("ranks", self.ranks, _MOST_RANKS),
            ("nodes", self.nodes, self.ranks),
        ):
            if not is_whole_number(value, 1, most):
                raise OptionError(
                    f"{what} must be a whole number from 1 to {most:,}, not {value!r}"
                )
        if not isinstance(self.device, (str, Device)):
            raise OptionError(f"device must be a name, not {self.device!r}")
        for what, limit in (
            ("memory_bytes", self.memory_bytes),
            ("node_bandwidth", self.node_bandwidth),
        ):
            if limit is not None and not (is_number(limit) and 0 < limit <= _MOST_BYTES):
                raise OptionError(f"{what} must be from 1 to {_MOST_BYTES:g}, not {limit!r}")
        if self.node_bandwidth is not None and self.ranks % self.nodes:
            raise OptionError(f"{self.ranks} ranks can't be shared evenly by {self.nodes} machines")

    @property
    def chip(self) -> Device:
        """Find the device.

        Raises:
            OptionError: There is none of that name, or several.
        """
        try:
            return resolve_device(self.device)
        except UnknownDurationError as error:
            raise OptionError(str(error)) from None

    @property
    def table_bytes(self) -> int:
        """Memory of each GPU for tables, bytes.

        Raises:
            OptionError: Neither `memory_bytes` nor the device's memory is known.
        """
        if self.memory_bytes is not None:
            return int(self.memory_bytes)
        if not self.chip.memory_bytes:
            raise OptionError(f"the memory of {self.chip.name} is not known; give memory_bytes")
        return int(_SHARE_FOR_TABLES * self.chip.memory_bytes)


def as_cluster(given: Cluster | Mapping[str, Any]) -> Cluster:
    """Return a cluster, or make one of a mapping with its fields.

    Raises:
        OptionError: The argument is neither, or lacks the device or the ranks.
    """
    if isinstance(given, Cluster):
        return given
    if not isinstance(given, Mapping):
        raise OptionError(f"a cluster is a Cluster or a mapping, not {type(given).__name__}")
    known = [field.name for field in fields(Cluster)]
    unknown = sorted(str(name) for name in given if name not in known)
    missing = [name for name in ("device", "ranks") if name not in given]
    if unknown or missing:
        raise OptionError(f"a cluster has {', '.join(known)}, not {', '.join(map(str, given))}")
    return Cluster(**given)
