"""Cost of an assignment of tables to ranks: lookups, exchanges, memory.

Note [A step]: every rank looks up its own tables for the samples of all ranks in one fused kernel;
an all-to-all brings each rank the pooled rows of its own samples; the dense part runs; another
all-to-all takes the gradients back; each rank updates its rows. From the second exchange to the
first of the next step no rank waits for another, so that the slowest rank is the one with the
longest backward and forward together:

    step = max over ranks (backward + forward) + 2 x all-to-all + dense

If each rank reads its own samples with the indices of all tables, as in TorchRec, one more
all-to-all brings the indices to the ranks that look them up.

Note [Max of max]: an exchange of unequal parts takes as long as one of equal parts in which every
rank sends or receives as much as the most burdened one: the maximum over ranks of what it sends,
(ranks - 1) x its own rows, and of what it receives, the rows of all others (Lin et al., IEEE TPDS
2024).

Note [Tables at once]: blocks of a fused kernel run table by table, so that the tables needed to
fill the GPU with warps, one for each bag, share the L2 (Lin et al., ISPASS 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from torchtraceap.errors import OptionError
from torchtraceap.lab.sharding.result import Candidate, Part, RankLoad
from torchtraceap.lab.sharding.tables import Cluster, Table
from torchtraceap.ops import (
    START_NS,
    EmbeddingTable,
    UnknownDurationError,
    estimate_collectives,
    estimate_embedding_bags,
)

__all__ = ["OPTIMIZERS", "Costs", "Lookups", "held_bytes"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

OPTIMIZERS = {"sgd": (0, 0), "rowwise_adagrad": (4, 0), "adagrad": (0, 4), "adam": (0, 8)}
"""Bytes of the optimizer's state for each row and for each element of a table."""
_PARTS_OF_EXCHANGE = 2
_INDEX_BYTES = 8
_WARPS_PER_MULTIPROCESSOR = 64
# Guesses: no all-to-all over a network was measured.
_NETWORK_LATENCY_NS = 40_000.0
_NETWORK_SPREAD = 2.0


Sizes = TypeVar("Sizes", float, FloatArray)


def held_bytes(rows: Sizes, columns: Sizes, row_bytes: Sizes, optimizer: str) -> Sizes:
    """Return the bytes of tables with the state of their optimizer."""
    by_row, by_element = OPTIMIZERS[optimizer]
    return rows * (row_bytes + by_row + by_element * columns)


class Lookups:
    """Times of lookups of any columns of the tables, cached by width."""

    def __init__(self, tables: Sequence[Table], cluster: Cluster, batch: int) -> None:
        self.tables = {table.name: table for table in tables}
        self.cluster = cluster
        self.batch = batch
        """Samples of one rank."""
        self._chip = cluster.chip
        self._known: dict[tuple[str, int], tuple[float, float]] = {}
        warps = _WARPS_PER_MULTIPROCESSOR * max(1, self._chip.multiprocessors)
        most = ceil(len(tables) / cluster.ranks)
        self._at_once = min(max(1, ceil(warps / self.bags)), most)
        self.spread = (1.0, 1.0)
        """Factors of the model's interval, below and above."""

    @property
    def bags(self) -> int:
        """Bags of each table: the samples of all ranks."""
        return self.batch * self.cluster.ranks

    def times(self, parts: Sequence[Part]) -> tuple[FloatArray, FloatArray]:
        """Return forward and backward time of each part without kernel start, ns.

        Raises:
            OptionError: The device's cache is not known.
        """
        missing = {(p.table, p.columns) for p in parts} - self._known.keys()
        groups: dict[object, list[tuple[str, int]]] = {}
        for name, columns in sorted(missing):
            table = self.tables[name]
            groups.setdefault((table.histogram, table.element_bytes), []).append((name, columns))
        for group in groups.values():  # parts of tables with the same lookups at once
            self._estimate(group)
        times = np.array([self._known[p.table, p.columns] for p in parts]).reshape(-1, 2)
        return times[:, 0], times[:, 1]

    def _estimate(self, group: list[tuple[str, int]]) -> None:
        tables = [self.tables[name] for name, _ in group]
        asked = EmbeddingTable(
            np.array([table.rows for table in tables], np.float64),
            np.array([columns for _, columns in group], np.float64),
            np.array([table.pooling_factor for table in tables], np.float64),
            tables[0].histogram,
            tables[0].element_bytes,
        )
        bags = np.full(len(group), self.bags, np.float64)
        both = []
        for backward in (False, True):
            try:
                found = estimate_embedding_bags(
                    [asked], bags, self._chip, backward=backward, at_once=self._at_once
                )
            except UnknownDurationError as error:
                raise OptionError(f"lookups can't be estimated: {error}") from None
            low, high = self.spread
            self.spread = (
                min(low, float((found.low_ns / found.ns).min())),
                max(high, float((found.high_ns / found.ns).max())),
            )
            both.append((found.ns - START_NS).tolist())
        self._known.update(zip(group, zip(*both, strict=True), strict=True))


class Costs:
    """Costs of assignments of some parts."""

    def __init__(
        self,
        lookups: Lookups,
        parts: Sequence[Part],
        optimizer: str,
        dense_ns: float,
        *,
        with_indices: bool,
    ) -> None:
        if optimizer not in OPTIMIZERS:
            raise OptionError(f"optimizer {optimizer!r}: one of {', '.join(OPTIMIZERS)}")
        self.lookups = lookups
        self.parts = list(parts)
        self.ranks = lookups.cluster.ranks
        self.optimizer = optimizer
        self.dense_ns = dense_ns
        self.with_indices = with_indices
        self.forward_ns, self.backward_ns = lookups.times(parts)
        """Times of each part, float64 `[parts]`."""
        tables = [lookups.tables[part.table] for part in parts]
        columns = np.array([part.columns for part in parts], np.float64)
        self.width = columns * [table.element_bytes for table in tables]
        """Bytes of a pooled row, `[parts]`."""
        per_sample = np.array([table.pooling_factor for table in tables], np.float64)
        self.index_width = _INDEX_BYTES * per_sample * with_indices
        """Bytes of the indices of a sample, `[parts]`; 0 where they are not exchanged."""
        rows = np.array([table.rows for table in tables], np.float64)
        # Rows sent forward and their gradients, which return.
        sent = 2.0 * lookups.bags * self.width
        self.memory = held_bytes(rows, columns, self.width, optimizer) + sent
        """Bytes that a part takes where it lies, `[parts]`."""
        self.received = 2.0 * lookups.batch * float(self.width.sum())
        """Bytes on every rank: the rows of its samples, and their gradients."""
        self.limit = lookups.cluster.table_bytes
        self.exchange_source = ""
        """Source of the times of exchanges, once estimated."""

    @property
    def time(self) -> FloatArray:
        """Forward and backward time of each part, ns."""
        return self.forward_ns + self.backward_ns

    def sums(self, values: FloatArray, ranks: IntArray) -> FloatArray:
        """Return sums over the parts of each rank, `[ranks]`."""
        return np.bincount(ranks, weights=values, minlength=self.ranks).astype(np.float64)

    def too_full(self, ranks: IntArray) -> str | None:
        """Return why an assignment doesn't fit, or None."""
        held = self.sums(self.memory, ranks) + self.received
        worst = int(held.argmax())
        if held[worst] <= self.limit:
            return None
        return (
            f"rank {worst} would hold {held[worst] / 2**30:.1f} GiB of {self.limit / 2**30:.1f} GiB"
        )

    def exchange_ns(self, widths: FloatArray, index_widths: FloatArray) -> FloatArray:
        """Return the time of all exchanges of a step; see Note [Max of max].

        Args:
            widths: `[n, ranks]`: bytes of the pooled rows of each rank, for one sample.
            index_widths: `[n, ranks]`: of its indices.

        Returns:
            `[3, n]`: ns as estimated, at least and at most.

        Raises:
            OptionError: No model of the links answers.
        """
        if self.ranks == 1:
            return np.zeros((3, len(widths)))
        # Indices travel from the samples to the tables, the other way round than rows: each rank
        # sends as much to another as it holds of it, so that the most burdened one is the same.
        found = _PARTS_OF_EXCHANGE * self._one_exchange(widths)
        return found + self._one_exchange(index_widths) if self.with_indices else found

    def _one_exchange(self, widths: FloatArray) -> FloatArray:
        others = self.ranks - 1
        most = np.maximum(others * widths.max(axis=1), widths.sum(axis=1) - widths.min(axis=1))
        sizes = self.lookups.batch * most * self.ranks / others
        cluster = self.lookups.cluster
        if cluster.nodes > 1 and cluster.node_bandwidth is not None:
            self.exchange_source = (
                "reckoned from the rate of the network, of which none was measured"
            )
            # Traffic within a machine uses its links while the rest uses its share of the network.
            of_node = self.ranks // cluster.nodes
            away = sizes * (self.ranks - of_node) / self.ranks
            ns = _NETWORK_LATENCY_NS + away * of_node / cluster.node_bandwidth * 1e9
            if of_node > 1:
                inside = sizes * of_node / self.ranks
                within = estimate_collectives("all_to_all", inside, of_node, cluster.chip)
                ns = np.fmax(ns, within.ns)
            return np.stack([ns, ns / _NETWORK_SPREAD, ns * _NETWORK_SPREAD])
        try:
            found = estimate_collectives(
                "all_to_all", sizes, self.ranks, cluster.chip, cluster.nodes
            )
        except UnknownDurationError as error:
            hint = "; node_bandwidth tells the rate of a network" if cluster.nodes > 1 else ""
            raise OptionError(f"the exchange can't be estimated: {error}{hint}") from None
        unknown = np.flatnonzero(~np.isfinite(found.ns))
        if len(unknown):
            raise OptionError(f"the exchange can't be estimated: {found[int(unknown[0])].source}")
        self.exchange_source = found[0].source
        return np.stack([found.ns, found.low_ns, found.high_ns])

    def step_ns(
        self, times: FloatArray, widths: FloatArray, index_widths: FloatArray
    ) -> FloatArray:
        """Return the step time of assignments with these sums; see Note [A step].

        Args:
            times: `[n, ranks]`: of lookups.
            widths, index_widths: See `exchange_ns`.
        """
        exchanged = self.exchange_ns(widths, index_widths)[0]
        return np.asarray(times.max(axis=1) + 2.0 * START_NS + exchanged + self.dense_ns)

    def step_time(self, ranks: IntArray) -> float:
        """Return the step time of one assignment, ns."""
        sums = (self.sums(v, ranks)[None] for v in (self.time, self.width, self.index_width))
        return float(self.step_ns(*sums)[0])

    def candidate(self, sharder: str, ranks: IntArray) -> Candidate:
        """Return one assignment with its details."""
        sums = (self.sums(values, ranks)[None] for values in (self.width, self.index_width))
        exchanged, least, most = self.exchange_ns(*sums)[:, 0].tolist()
        loads = []
        for rank in range(self.ranks):
            own = np.flatnonzero(ranks == rank)
            start = START_NS if len(own) else 0.0
            loads.append(
                RankLoad(
                    rank=rank,
                    parts=tuple(self.parts[at] for at in own.tolist()),
                    forward_ns=start + float(self.forward_ns[own].sum()),
                    backward_ns=start + float(self.backward_ns[own].sum()),
                    memory_bytes=int(self.memory[own].sum() + self.received),
                )
            )
        lookup = max(load.forward_ns + load.backward_ns for load in loads)
        low, high = self.lookups.spread
        return Candidate(
            sharder=sharder,
            step_ns=lookup + exchanged + self.dense_ns,
            low_ns=low * lookup + least + self.dense_ns,
            high_ns=high * lookup + most + self.dense_ns,
            lookup_ns=lookup,
            all_to_all_ns=exchanged,
            ranks=tuple(loads),
        )
