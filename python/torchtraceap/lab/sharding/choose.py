"""Choice of a sharding among those of published sharders and of a search, by predicted step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.errors import OptionError
from torchtraceap.lab.sharding.cost import Costs, Lookups
from torchtraceap.lab.sharding.result import Part, Sharding
from torchtraceap.lab.sharding.sharders import (
    PUBLISHED_SHARDERS,
    NoRoomError,
    assign_published,
    greedy,
    local_search,
)
from torchtraceap.lab.sharding.tables import (
    Cluster,
    Table,
    as_cluster,
    as_tables,
    is_number,
    is_whole_number,
)
from torchtraceap.ops import EmbeddingTable

__all__ = ["SHARDERS", "choose_sharding"]

IntArray = npt.NDArray[np.int64]

SHARDERS = (*PUBLISHED_SHARDERS, "search")
"""Names of the sharders."""
_MOST_BATCH = 1 << 30
# FBGEMM takes rows in multiples of four elements, and a row narrower than this wastes sectors.
_LEAST_COLUMNS = 16
_GRAIN = 4
_MOST_SPLITS = 64
# Number of best assignments that the search starts from.
_STARTS = 3


def choose_sharding(
    tables: Sequence[Table | EmbeddingTable | Mapping[str, Any]],
    cluster: Cluster | Mapping[str, Any],
    *,
    batch: int = 4096,
    dense_ns: float = 0.0,
    optimizer: str = "sgd",
    column_wise: bool = False,
    exchange_indices: bool = False,
    sharders: Sequence[str] = SHARDERS,
    seed: int = 0,
) -> Sharding:
    """Choose which rank holds which embedding table by the predicted training step.

    The search begins at what the other sharders found and is never worse than they by the model;
    see docs/prediction.md for the model and for what each sharder does.

    Args:
        tables: `Table`, `durations.EmbeddingTable`, or mappings (see `read_tables`).
        cluster: The GPUs, or a mapping with the fields of `Cluster`.
        batch: Samples of one rank in a step.
        dense_ns: Time of the rest of a step, the same for every assignment.
        optimizer: sgd, rowwise_adagrad, adagrad or adam: tells the memory of its state.
        column_wise: Tables may be split by columns: where one is larger than a GPU's memory, and
            where the search gains by it.
        exchange_indices: Ranks read the indices of their own samples, and send them to the ranks
            that look them up (TorchRec); else they are there (as in the source).
        sharders: Names from `SHARDERS`.
        seed: Seed of the sharder "random".

    Raises:
        OptionError: Something can't be meant, no model answers for the device or its links, or the
            tables do not fit into memory; the message says which and why.
    """
    found = as_tables(tables)
    cluster = as_cluster(cluster)
    if not is_whole_number(batch, 1, _MOST_BATCH):
        raise OptionError(f"batch must be a whole number from 1 to {_MOST_BATCH:,}, not {batch!r}")
    if not is_number(dense_ns) or not isfinite(dense_ns) or dense_ns < 0:
        raise OptionError(f"dense_ns must be a time from 0, not {dense_ns!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise OptionError(f"seed must be a whole number from 0, not {seed!r}")
    unknown = [name for name in sharders if name not in SHARDERS]
    if isinstance(sharders, str) or unknown or not sharders:
        raise OptionError(f"sharders are some of {', '.join(SHARDERS)}, not {sharders!r}")
    costs = Costs(
        Lookups(found, cluster, batch),
        [Part(table.name, 0, table.dim) for table in found],
        optimizer,
        float(dense_ns),
        with_indices=bool(exchange_indices),
    )
    costs, notes = _fit_memory(costs, column_wise)
    made, refused = _published_assignments(costs, sharders, seed)
    candidates = [costs.candidate(name, ranks) for name, ranks in made.items()]
    if "search" in sharders:
        starts = made or _published_assignments(costs, PUBLISHED_SHARDERS, seed)[0]
        first = sorted(_starts(costs, starts), key=costs.step_time)
        improved = [local_search(costs, one) for one in first[:_STARTS]]
        best_costs, best = costs, min([first[0], *improved], key=costs.step_time)
        if column_wise and costs.ranks > 1:
            best_costs, best = _split_further(costs, best)
        candidates.append(best_costs.candidate("search", best))
    if not candidates:
        raise OptionError("; ".join(f"{name}: {reason}" for name, reason in refused.items()))
    if costs.exchange_source:
        notes.append(f"all-to-alls: {costs.exchange_source}")
    return Sharding(
        device=cluster.chip.name,
        world_size=cluster.ranks,
        nodes=cluster.nodes,
        batch=batch,
        dense_ns=float(dense_ns),
        # The search comes first among equals, since it has compared the others.
        ranking=tuple(sorted(candidates, key=lambda one: (one.step_ns, one.sharder != "search"))),
        refused=refused,
        notes=tuple(notes),
    )


def _fit_memory(costs: Costs, column_wise: bool) -> tuple[Costs, list[str]]:
    """Split tables as far as a GPU's memory requires.

    Raises:
        OptionError: The tables together, or one alone, take more than there is.
    """
    limit, total = costs.limit, float(costs.memory.sum()) + costs.ranks * costs.received
    if total > limit * costs.ranks:
        raise OptionError(
            f"the tables and what they need take {total / 2**30:.1f} GiB, {costs.ranks} GPUs have "
            f"{costs.ranks * limit / 2**30:.1f} GiB for them"
        )
    split: dict[str, int] = {}
    while float(costs.memory.max()) + costs.received > limit:
        worst = int(costs.memory.argmax())
        part, held = costs.parts[worst], float(costs.memory[worst]) + costs.received
        halves = _halves(part) if column_wise else None
        if halves is None:
            how = "can't be split further" if column_wise else "column_wise=True would split it"
            raise OptionError(
                f"table {part.table} takes {held / 2**30:.1f} GiB, a GPU has {limit / 2**30:.1f} "
                f"GiB for tables; {how}"
            )
        split[part.table] = split.get(part.table, 1) + 1
        costs = _with_split(costs, worst, halves)
    notes = [
        f"{name} is larger than a GPU's memory: {count} parts" for name, count in split.items()
    ]
    return costs, notes


def _halves(part: Part) -> tuple[Part, Part] | None:
    first = -(-part.columns // (2 * _GRAIN)) * _GRAIN
    if part.columns - first < _LEAST_COLUMNS:
        return None
    return (
        Part(part.table, part.first_column, first, is_whole=False),
        Part(part.table, part.first_column + first, part.columns - first, is_whole=False),
    )


def _with_split(costs: Costs, at: int, halves: tuple[Part, Part]) -> Costs:
    """Replace a part by its halves; the second one goes to the end."""
    parts = [*costs.parts, halves[1]]
    parts[at] = halves[0]
    return Costs(
        costs.lookups,
        parts,
        costs.optimizer,
        costs.dense_ns,
        with_indices=costs.with_indices,
    )


def _published_assignments(
    costs: Costs, sharders: Sequence[str], seed: int
) -> tuple[dict[str, IntArray], dict[str, str]]:
    """Return the assignments by name, and reasons for those that don't fit."""
    made: dict[str, IntArray] = {}
    refused: dict[str, str] = {}
    for name in (name for name in PUBLISHED_SHARDERS if name in sharders):
        try:
            ranks = assign_published(name, costs, seed)
        except NoRoomError as error:
            refused[name] = str(error)
            continue
        reason = costs.too_full(ranks)
        if reason is None:
            made[name] = ranks
        else:
            refused[name] = reason
    return made, refused


def _starts(costs: Costs, made: Mapping[str, IntArray]) -> list[IntArray]:
    """Return the assignments made, and a greedy one by time or else by memory, which packs best.

    Raises:
        OptionError: Nothing fits into memory.
    """
    for weights in (costs.time, costs.memory):
        try:
            return [*made.values(), greedy(costs, weights)]
        except NoRoomError as error:
            reason = error
    if made:
        return list(made.values())
    raise OptionError(
        f"no assignment was found that fits into {costs.limit / 2**30:.1f} GiB for each of "
        f"{costs.ranks} GPUs: {reason}"
    )


def _split_further(costs: Costs, ranks: IntArray) -> tuple[Costs, IntArray]:
    """Halve the longest part of the slowest rank repeatedly and keep the best.

    Of several ranks that are as slow each needs a split before the step gains: as many in a row as
    there are ranks may gain nothing.
    """
    best, best_ns, in_vain = (costs, ranks), costs.step_time(ranks), 0
    for _ in range(_MOST_SPLITS):
        slowest = int(costs.sums(costs.time, ranks).argmax())
        own = np.flatnonzero(ranks == slowest)
        at = int(own[costs.time[own].argmax()])
        halves = _halves(costs.parts[at])
        if halves is None:
            break
        costs = _with_split(costs, at, halves)
        ranks = local_search(costs, np.append(ranks, slowest))
        now = costs.step_time(ranks)
        fits = costs.too_full(ranks) is None
        if fits and now < best_ns:
            best, best_ns, in_vain = (costs, ranks), now, 0
        else:
            in_vain += 1
        if in_vain >= costs.ranks:
            break
    return best
