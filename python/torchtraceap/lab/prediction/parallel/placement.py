"""Placement of a model's embedding tables on ranks.

Note [Ways]: a table lies whole on one rank, in column parts on several, in row parts on all of
them, or as a replica on each (TorchRec's table-wise, column-wise, row-wise and data-parallel).
Without a plan, tables larger than a GPU's memory are sharded by rows, and `choose_sharding` places
the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import ceil
from typing import Any, TypeAlias

from torchtraceap.core import read_json
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.lowering.durations import GPUS_PER_NODE, NETWORK
from torchtraceap.lab.sharding import Cluster, Table, choose_sharding
from torchtraceap.lab.sharding.cost import held_bytes
from torchtraceap.lab.sharding.result import Candidate, Sharding
from torchtraceap.ops import Device

__all__ = ["COPIED", "ROWS", "Lookup", "Piece", "Placement", "Plan", "place_lookups", "read_plan"]

ROWS, COPIED = "row_wise", "data_parallel"
Plan: TypeAlias = "Mapping[str, int | Sequence[int | Piece] | str] | Sharding | Candidate"
"""A plan for tables by name or pattern: a rank, the ranks of column parts, "row_wise" or
"data_parallel"; or a result of `choose_sharding`."""

_MOST_PLAN_BYTES = 1 << 26
_MOST_KINDS = 8
"""Limit on the kinds of ranks, each of which is captured."""
_NAMED = 12


@dataclass(frozen=True, slots=True)
class Lookup:
    """A use of a table in a step, by the samples of one rank."""

    table: str
    """Name of the table's module."""
    rows: int
    columns: int
    dtype: str
    """torch's name without "torch."."""
    bags: int
    indices: int
    """Indices in all bags."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Columns of a table on one rank."""

    rank: int
    columns: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of each table of a model."""

    world_size: int
    pieces: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)
    """Column parts in order, for tables on single ranks."""
    by_rows: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()
    kinds: tuple[int, ...] = ()
    """Kind of each rank; ranks of one kind do the same work.

    Beyond the limit on kinds, ranks whose lookups move similar amounts are merged; the rank that
    moves most remains a kind of its own.
    """
    notes: tuple[str, ...] = ()


def read_plan(path: str) -> dict[str, Any]:
    """Read a plan from JSON: a mapping as in `Plan`, or the output of `torchtraceap shard --json`.

    Raises:
        MissingFileError: There is no such file.
        SchemaError: The file is no JSON, or not of an object.
        OptionError: The document is no plan.
    """
    document = read_json(path, most=_MOST_PLAN_BYTES)
    if "ranking" not in document:
        return document
    try:
        return _by_table(
            (part["table"], part["first_column"], Piece(rank["rank"], part["columns"]))
            for rank in document["ranking"][0]["ranks"]
            for part in rank["parts"]
        )
    except (KeyError, IndexError, TypeError, ValueError):
        raise OptionError(f"{path} is no plan: its ranking is not that of a sharding") from None


def _by_table(parts: Iterable[tuple[str, int, Piece]]) -> dict[str, tuple[Piece, ...]]:
    """Return the parts of each table in the order of their first columns."""
    found: dict[str, list[tuple[int, Piece]]] = defaultdict(list)
    for table, column, piece in parts:
        found[table].append((column, piece))
    return {
        table: tuple(piece for _, piece in sorted(own, key=lambda each: each[0]))
        for table, own in found.items()
    }


def place_lookups(
    lookups: Sequence[Lookup],
    world_size: int,
    device: str | Device,
    plan: Plan | None = None,
    optimizer: str = "sgd",
) -> Placement:
    """Place the tables that a model looks up.

    Args:
        lookups: Lookups of one rank's step.
        world_size: Number of ranks.
        device: GPU of the ranks.
        plan: Requested placement; the search places tables that it doesn't name.
        optimizer: Optimizer of the tables, see `choose_sharding`.

    Raises:
        OptionError: There are no tables, they don't fit, or the plan can't be.
    """
    if not lookups:
        raise OptionError(
            "embedding shares tables (nn.EmbeddingBag, nn.Embedding) among ranks, and the model "
            "looks up none of its own"
        )
    tables = {lookup.table: lookup for lookup in lookups}
    said = _requested_places(plan, tables, world_size)
    left = [name for name in tables if name not in said]
    copied = frozenset(name for name, where in said.items() if where == COPIED)
    by_rows = frozenset(name for name, where in said.items() if where == ROWS)
    pieces = {name: where for name, where in said.items() if not isinstance(where, str)}
    notes: list[str] = []
    if left:
        too_large, chosen = _search(lookups, left, world_size, device, optimizer)
        by_rows |= too_large
        pieces |= chosen
        if too_large:
            notes.append(f"no GPU holds {_join_names(sorted(too_large))}: shared by rows")
    for name in by_rows:
        if tables[name].rows < world_size:
            raise OptionError(
                f"table {name} has {tables[name].rows} rows, too few for {world_size} ranks"
            )
    holding = {piece.rank for own in pieces.values() for piece in own}
    if plan is None and not by_rows and len(holding) < world_size:
        raise OptionError(
            f"{len(tables)} tables and their parts go to {len(holding)} of {world_size} ranks: "
            "fewer ranks, or a plan that shares tables by rows (row_wise)"
        )
    notes.append(_description(pieces, by_rows, copied, world_size))
    kinds = _rank_kinds(pieces, lookups, world_size)
    return Placement(world_size, pieces, by_rows, copied, kinds, tuple(notes))


def _rank_kinds(
    pieces: Mapping[str, tuple[Piece, ...]], lookups: Sequence[Lookup], world_size: int
) -> tuple[int, ...]:
    """Return the kind of each rank, see `Placement`; kinds are numbered as they appear."""
    work: list[list[tuple[int, ...]]] = [[] for _ in range(world_size)]
    for lookup in lookups:
        for piece in pieces.get(lookup.table, ()):
            own = lookup.rows, piece.columns, lookup.bags, lookup.indices
            work[piece.rank].append(own)
    keys: list[Hashable] = [tuple(sorted(own)) for own in work]
    if len(set(keys)) > _MOST_KINDS:
        moved = [sum(columns * indices for _, columns, _, indices in own) for own in work]
        order = sorted(range(world_size), key=lambda rank: -moved[rank])
        in_group = ceil((world_size - 1) / (_MOST_KINDS - 1))
        keys = [ceil(order.index(rank) / in_group) for rank in range(world_size)]
    known: dict[Hashable, int] = {}
    return tuple(known.setdefault(key, len(known)) for key in keys)


def _requested_places(
    plan: Plan | None, tables: Mapping[str, Lookup], world_size: int
) -> dict[str, tuple[Piece, ...] | str]:
    """Return the checked entries of a plan by table."""
    if plan is None:
        return {}
    chosen = plan.best if isinstance(plan, Sharding) else plan
    if isinstance(chosen, Candidate):
        plan = _candidate_pieces(chosen)
    if not isinstance(plan, Mapping):
        raise OptionError(
            f"a plan is a mapping of tables to ranks or a sharding, not {type(plan).__name__}"
        )
    found: dict[str, tuple[Piece, ...] | str] = {}
    for pattern, where in plan.items():
        names = (
            [pattern]
            if pattern in tables
            else [name for name in tables if fnmatchcase(name, str(pattern))]
        )
        if not names:
            raise OptionError(
                f"the plan has a table {pattern!r}, and the model has {_join_names(sorted(tables))}"
            )
        for name in names:
            if pattern == name or name not in found:
                found[name] = _check_place(name, where, tables[name], world_size)
    return found


def _candidate_pieces(candidate: Candidate) -> dict[str, tuple[Piece, ...]]:
    return _by_table(
        (part.table, part.first_column, Piece(load.rank, part.columns))
        for load in candidate.ranks
        for part in load.parts
    )


def _check_place(name: str, where: Any, table: Lookup, world_size: int) -> tuple[Piece, ...] | str:
    """Return the pieces of a table, or how all ranks have it, from an entry of a plan."""
    if isinstance(where, str) and where in (ROWS, COPIED):
        return where
    listed = [where] if type(where) is int else where
    is_list = isinstance(listed, (list, tuple)) and len(listed) > 0
    if not is_list or not all(type(each) in (int, Piece) for each in listed):
        raise OptionError(
            f"table {name}: a rank, a list of ranks, {ROWS} or {COPIED} is meant, not {where!r}"
        )
    if len(listed) > table.columns:
        raise OptionError(f"table {name} has {table.columns} columns, too few for {len(listed)}")
    least, rest = divmod(table.columns, len(listed))
    pieces = tuple(
        each if isinstance(each, Piece) else Piece(each, least + (place < rest))
        for place, each in enumerate(listed)
    )
    for piece in pieces:
        if type(piece.rank) is not int or not 0 <= piece.rank < world_size:
            raise OptionError(f"table {name}: there is no rank {piece.rank!r} among {world_size}")
    columns = sum(piece.columns for piece in pieces)
    if columns != table.columns:
        raise OptionError(
            f"the plan has {columns} columns of table {name}, and the model {table.columns}"
        )
    return pieces


def _search(
    lookups: Sequence[Lookup],
    names: Sequence[str],
    world_size: int,
    device: str | Device,
    optimizer: str,
) -> tuple[frozenset[str], dict[str, tuple[Piece, ...]]]:
    """Return the tables that exceed a GPU's memory, and the placement of the others."""
    nodes = ceil(world_size / GPUS_PER_NODE)
    even = nodes > 1 and world_size % nodes == 0
    network = NETWORK * world_size / nodes if even else None
    cluster = Cluster(device, world_size, nodes, node_bandwidth=network)
    tables_left = {}
    for name in names:
        own = [lookup for lookup in lookups if lookup.table == name]
        pooling = sum(each.indices / max(each.bags, 1) for each in own)
        rows, columns, dtype = own[0].rows, own[0].columns, own[0].dtype
        tables_left[name] = Table(name, rows, columns, max(pooling, 1e-3), dtype=dtype)
    batch = Counter(lookup.bags for lookup in lookups).most_common(1)[0][0]
    held = {
        name: held_bytes(table.rows, table.dim, table.dim * table.element_bytes, optimizer)
        for name, table in tables_left.items()
    }
    limit = cluster.table_bytes
    too_large = frozenset(name for name, size in held.items() if size > limit)
    taken = sum(held[name] for name in too_large) // world_size
    if taken >= limit:
        raise OptionError(
            f"{_join_names(sorted(too_large))}: {world_size} GPUs don't hold these tables, shared "
            "by rows"
        )
    rest = [table for name, table in tables_left.items() if name not in too_large]
    if not rest:
        return too_large, {}
    found = choose_sharding(
        rest,
        replace(cluster, memory_bytes=limit - taken),
        batch=batch,
        optimizer=optimizer,
        column_wise=True,
        exchange_indices=True,
    )
    return too_large, _candidate_pieces(found.best)


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _description(
    pieces: Mapping[str, tuple[Piece, ...]],
    by_rows: frozenset[str],
    copied: frozenset[str],
    world_size: int,
) -> str:
    """Describe the tables of each rank in one line."""
    of_rank: dict[int, list[str]] = {rank: [] for rank in range(world_size)}
    for name, own in pieces.items():
        for piece in own:
            of_rank[piece.rank].append(name if len(own) == 1 else f"{name} ({piece.columns})")
    said = [
        f"rank {rank} {_join_names(names) or 'none'}"
        for rank, names in of_rank.items()
        if pieces and rank < _NAMED
    ]
    if pieces and world_size > _NAMED:
        said.append(f"{world_size - _NAMED} more ranks")
    if by_rows:
        said.append(f"by rows on all {_join_names(sorted(by_rows))}")
    if copied:
        said.append(f"a copy on each {_join_names(sorted(copied))}")
    return f"embedding tables (columns of parts): {'; '.join(said)}"
