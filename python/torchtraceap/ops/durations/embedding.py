"""Estimate embedding bags from their memory traffic and the reuse of rows in the L2 cache.

The rows that a batch looks up decide the time: a row that is still in the L2 cache causes no memory
traffic. A histogram says how often the distinct rows of a batch occur (`ReuseHistogram`), Che's
approximation gives the share of repeated lookups that hit the cache, and the longer of the traffic
to memory and the traffic to the cache is the time.

Che, Tung and Wang, "Hierarchical Web Caching Systems: Modeling, Design and Experimental Results"
(IEEE JSAC 2002), assume independent lookups. A batch is a finite stream in random order, for which
`che_hits` computes the exact form of the same idea. The bins, the factors of narrow rows and the
two heuristics kept as baselines follow the description of Lin et al. (ISPASS 2022; IEEE TPDS 2024).

Note [Backward]: FBGEMM forms one key of table and row for each lookup, sorts the keys with their
positions (a radix sort passes over both once for each byte of the largest key), then sums the
gradients of each distinct row, which come from the cache, and reads and writes the row. In the
public trace of a DLRM-like job on A100 (`hta/ddp_a100_rank_of_8`: 122 tables of on average 745 rows
and 72 columns, 15.8 million lookups) forming, counting and scanning keys took as long as two of
three sorting passes, a pass ran at 0.6 of the memory's rate, and gradients came at 0.29 of the rate
at which the forward pass reads rows. The forward pass, to which nothing was fitted, takes 2.53 ms
in the trace and 2.40 ms here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.estimate import Estimates, UnknownDurationError, resolve_device
from torchtraceap.ops.durations.inputs import Numbers

__all__ = [
    "BIN_ENDS",
    "START_NS",
    "EmbeddingTable",
    "ReuseHistogram",
    "Traffic",
    "cache_window",
    "che_hits",
    "estimate_embedding_bags",
    "traffic",
    "uniform_hit_rate",
]

FloatArray = npt.NDArray[np.float64]

BIN_ENDS = tuple(float(2**power) for power in range(16))
"""Bins (0, 1], (1, 2], (2, 4] ... (16384, 32768]; one more holds what is above."""
_SECTOR_BYTES = 32
_INDEX_BYTES = 8
_PLACE_BYTES = 4
# See Note [Backward] for these three.
_OTHER_PASSES = 2
_SORTING_SHARE = 0.6
_GRADIENT_SHARE = 0.29
# Factor of the time over the traffic for rows of up to so many elements.
_WIDTH_FACTORS = ((32, 1.55), (64, 1.1))
_OFFSET_BYTES = 8
_CACHE_SHARE = 0.9
# Bytes that one multiprocessor draws from L2 in a clock: 19, 22 and 30 were measured on GV100,
# P100 and Titan Xp by the authors above, 23 on V100 and 15 on A100.
_L2_BYTES_PER_CLOCK = 20.0
_L2_BYTES_OF = {"8.0": 15.0}
# Share of the data sheet's rate; the same authors measured 0.91 on V100 and 0.89 on A100.
_MEMORY_SHARE = 0.9
START_NS = 2000.0
"""Startup time of a lookup in any number of tables."""
# A guess (see Note [Factors of intervals]) because only one run was measured.
_INTERVAL = 2.0


def _means_of_bins() -> FloatArray:
    """Return the mean count of each bin if the number of rows falls as 1 / count squared."""
    means = [1.0]
    for low, high in pairwise(BIN_ENDS):
        counts = np.arange(low + 1.0, high + 1.0)
        means.append(float((1.0 / counts).sum() / (1.0 / counts**2).sum()))
    return np.array([*means, 1.5 * BIN_ENDS[-1]])


_BIN_MEANS = _means_of_bins()


@dataclass(frozen=True, slots=True)
class ReuseHistogram:
    """Distribution of the number of lookups of each distinct row in one batch."""

    shares: tuple[float, ...]
    """Share of the distinct rows in each of 17 bins (see `BIN_ENDS`), summing to 1."""
    mean: float | None = None
    """Lookups per distinct row; None to approximate it from the bins."""

    def __post_init__(self) -> None:
        if len(self.shares) != len(_BIN_MEANS) or min(self.shares) < 0 or sum(self.shares) <= 0:
            raise ValueError(f"a histogram has {len(_BIN_MEANS)} shares, none negative")
        if self.mean is not None and self.mean < 1:
            raise ValueError("a row that is looked up is looked up once at least")

    @classmethod
    def from_indices(cls, indices: npt.ArrayLike) -> ReuseHistogram:
        """Count the indices that one batch looks up in one table."""
        _, counts = np.unique(np.asarray(indices), return_counts=True)
        if not counts.size:
            raise ValueError("no indices, no histogram")
        place = np.searchsorted(np.array(BIN_ENDS), counts)
        shares = np.bincount(place, minlength=len(_BIN_MEANS)) / counts.size
        return cls(tuple(shares.tolist()), float(counts.mean()))

    def counts(self) -> tuple[FloatArray, FloatArray]:
        """Return the count and the share of rows for each bin, `[17]` each.

        The counts of repeated rows are moved within their bins toward the mean, if it is known.
        """
        shares = np.array(self.shares) / sum(self.shares)
        counts = _BIN_MEANS.copy()
        if self.mean is None:
            return counts, shares
        low = np.array([end + 1.0 for end in BIN_ENDS])
        high = np.array([*BIN_ENDS[1:], np.inf])
        for _ in range(8):
            surplus = self.mean - float((counts * shares).sum())
            free = (counts * shares)[1:].sum()
            if abs(surplus) < 1e-9 * self.mean or free <= 0:
                break
            counts[1:] = np.clip(counts[1:] * max(0.0, 1.0 + surplus / free), low, high)
        return counts, shares

    def lookups_per_row(self) -> float:
        """Return the mean number of lookups of a distinct row."""
        counts, shares = self.counts()
        return float((counts * shares).sum())


def cache_window(counts: FloatArray, rows: FloatArray, capacity: FloatArray) -> FloatArray:
    """Return the share of the stream in which as many distinct rows occur as the cache holds.

    Args:
        counts: `[k]`: number of occurrences of a row of each class.
        rows: `[..., k]`: number of rows of each class.
        capacity: `[...]`: rows that the cache holds.

    Returns:
        `[...]`: shares from 0 to 1.
    """
    low, high = np.zeros(capacity.shape), np.ones(capacity.shape)
    for _ in range(100):
        middle = (low + high) / 2.0
        seen = 1.0 - (1.0 - middle[..., None]) ** counts
        short = (rows * seen).sum(axis=-1) < capacity
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.asarray(np.where(rows.sum(axis=-1) <= capacity, 1.0, low))


def che_hits(counts: npt.ArrayLike, rows: npt.ArrayLike, capacity: npt.ArrayLike) -> FloatArray:
    """Return the expected hits of an LRU cache, initially empty, on a stream in random order.

    A row that occurs c times leaves c - 1 gaps; a gap is longer than a share w of the stream with
    probability (1 - w)^c. It is a hit if fewer distinct rows than the cache holds come between.

    Args:
        counts: `[k]`: number of occurrences of a row of each class.
        rows: `[..., k]`: number of rows of each class.
        capacity: `[...]`: rows that the cache holds.

    Returns:
        `[...]`: numbers of hits.
    """
    count, row = np.asarray(counts, np.float64), np.asarray(rows, np.float64)
    window = cache_window(count, row, np.asarray(capacity, np.float64))
    found = 1.0 - (1.0 - window[..., None]) ** count
    return np.asarray((row * np.maximum(count - 1.0, 0.0) * found).sum(axis=-1))


def uniform_hit_rate(
    rows: npt.ArrayLike, lookups: npt.ArrayLike, capacity: npt.ArrayLike
) -> FloatArray:
    """Return the hit rate of Lin et al. for uniform indices, a baseline; `capacity` is in rows."""
    row, asked, held = (np.asarray(one, np.float64) for one in (rows, lookups, capacity))
    unique = row * (1.0 - (1.0 - 1.0 / row) ** asked)
    missed = (held + (asked - held) * (row - held) / row) / asked
    return np.asarray(1.0 - np.where(unique <= held, unique / asked, missed))


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingTable:
    """One table and the lookups of one batch in it; sizes may be arrays `[n]` of `n` questions."""

    rows: Numbers
    columns: Numbers
    lookups_per_bag: Numbers
    histogram: ReuseHistogram | None = None
    """Reuse of rows; None if every row is equally likely."""
    element_bytes: int = 4

    @property
    def row_bytes(self) -> FloatArray:
        """Bytes of a row in whole sectors of 32 bytes."""
        width = np.asarray(self.columns, np.float64) * self.element_bytes
        return np.asarray(_SECTOR_BYTES * np.ceil(width / _SECTOR_BYTES))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a forward pass moves; arrays `[n]` of `n` questions."""

    lookups: FloatArray
    hits: FloatArray
    """Lookups whose row is in L2."""
    rows_bytes: FloatArray
    """Bytes of all looked-up rows."""
    missed_bytes: FloatArray
    """Bytes of the rows that come from memory."""
    distinct: FloatArray
    """Number of distinct rows that are looked up."""
    other_bytes: FloatArray
    """Bytes of indices, offsets and the result."""


def traffic(
    table: EmbeddingTable, batch: npt.ArrayLike, cache_bytes: float, method: str = "che"
) -> Traffic:
    """Compute the traffic of one batch of bags.

    Args:
        table: The table.
        batch: Number of bags.
        cache_bytes: Bytes of L2 that this table may use.
        method: "che", or a baseline: "simple" (all from memory) or "uniform" (`uniform_hit_rate`).

    Raises:
        ValueError: The method is unknown.
    """
    bags, rows, per_bag, columns = np.broadcast_arrays(
        *(np.asarray(one, np.float64)
          for one in (batch, table.rows, table.lookups_per_bag, table.columns))
    )  # fmt: skip
    lookups, row_bytes = bags * per_bag, table.row_bytes
    capacity = np.broadcast_to(_CACHE_SHARE * cache_bytes / row_bytes, lookups.shape)
    hits = np.where(lookups > 0, _hits(table, rows, lookups, capacity, method), 0.0)
    return Traffic(
        lookups=lookups,
        hits=hits,
        rows_bytes=lookups * row_bytes,
        missed_bytes=(lookups - hits) * row_bytes,
        distinct=_distinct_rows(table, rows, lookups),
        other_bytes=lookups * _INDEX_BYTES + bags * (_OFFSET_BYTES + columns * table.element_bytes),
    )


def _distinct_rows(table: EmbeddingTable, rows: FloatArray, lookups: FloatArray) -> FloatArray:
    """Return the expected number of distinct rows among the lookups."""
    if table.histogram is None:
        return np.asarray(rows * -np.expm1(lookups * np.log1p(-1.0 / np.maximum(rows, 1.0 + 1e-9))))
    return np.minimum(lookups / table.histogram.lookups_per_row(), rows)


def _hits(
    table: EmbeddingTable, rows: FloatArray, lookups: FloatArray, capacity: FloatArray, method: str
) -> FloatArray:
    """Return the number of lookups that find their row in a cache of `capacity` rows."""
    asked = np.maximum(lookups, np.finfo(np.float64).tiny)
    if method == "simple":
        return np.zeros(asked.shape)
    if method == "uniform" or table.histogram is None:
        return asked * np.maximum(0.0, uniform_hit_rate(rows, asked, capacity))
    if method == "che":
        counts, shares = table.histogram.counts()
        unique = _distinct_rows(table, rows, asked)
        return np.minimum(che_hits(counts, unique[..., None] * shares, capacity), asked)
    raise ValueError(f"no method {method!r}")


def estimate_embedding_bags(
    tables: Sequence[EmbeddingTable],
    batches: npt.ArrayLike,
    device: str | Device,
    *,
    backward: bool = False,
    at_once: int = 1,
    method: str = "che",
) -> Estimates:
    """Estimate the times of lookups of batches in these tables.

    Args:
        tables: Tables that are looked up one after the other; sizes are single or `[n]`.
        batches: `[n]`: numbers of bags.
        device: A GPU by name or id.
        backward: Estimate the update of the rows instead; see Note [Backward].
        at_once: Number of tables that share the cache at a time, as in kernels fused over tables.
        method: Method of `traffic`.

    Raises:
        UnknownDurationError: The device or its cache is not known.
    """
    chip = resolve_device(device)
    if not (chip.l2_bytes and chip.multiprocessors and chip.clock_mhz):
        raise UnknownDurationError(f"the cache of {chip.name} is not known")
    l2_bytes = _L2_BYTES_OF.get(chip.architecture, _L2_BYTES_PER_CLOCK)
    l2_rate = l2_bytes * chip.multiprocessors * chip.clock_mhz * 1e6
    memory_rate = _MEMORY_SHARE * chip.bandwidth
    bags = np.atleast_1d(np.asarray(batches, np.float64))
    total = np.full(bags.shape, START_NS)
    rows = sum((np.asarray(one.rows, np.float64) for one in tables), start=np.zeros(()))
    for table in tables:
        moved = traffic(table, bags, chip.l2_bytes / at_once, method)
        memory, cache = moved.missed_bytes, moved.rows_bytes
        if backward:
            memory = 2.0 * moved.distinct * table.row_bytes
            cache = moved.rows_bytes / _GRADIENT_SHARE + memory
            passes = np.ceil(np.log2(np.maximum(rows, 2.0)) / 8.0) + _OTHER_PASSES
            sort_bytes = 2.0 * (_INDEX_BYTES + _PLACE_BYTES) * passes * moved.lookups
            total = total + 1e9 * (sort_bytes / (_SORTING_SHARE * chip.bandwidth))
        longest = np.maximum(
            (memory + moved.other_bytes) / memory_rate, (cache + moved.other_bytes) / l2_rate
        )
        columns = np.asarray(table.columns, np.float64)
        conditions = [columns <= width for width, _ in _WIDTH_FACTORS]
        factors = np.select(conditions, [factor for _, factor in _WIDTH_FACTORS], 1.0)
        total = total + 1e9 * factors * longest
    says = f"traffic by {method}; kernels of embedding bags were measured in one public trace"
    return Estimates.within_factor(total, _INTERVAL, says)
