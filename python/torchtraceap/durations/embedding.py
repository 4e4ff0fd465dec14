"""Embedding bags: memory traffic from how often rows are looked up again.

Which rows a batch looks up decides the time: a row that is still in the L2 cache costs no traffic
to memory. A histogram says how often the distinct rows of a batch occur (`ReuseHistogram`), Che's
approximation says which share of the repeated lookups finds its row in the cache, and the longer of
the traffic to memory and to the cache is the time.

Che, Tung and Wang, "Hierarchical Web Caching Systems: Modeling, Design and Experimental Results"
(IEEE JSAC 2002), take lookups as independent; a batch is a finite stream in random order, for which
`che_hits` has the exact form of the same idea. The bins, and the two heuristics kept as baselines,
are those of Lin et al. (ISPASS 2022; IEEE TPDS 2024), written from their description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np
import numpy.typing as npt

from torchtraceap.devices import Device
from torchtraceap.durations.estimate import Estimate, UnknownDurationError, the_device

__all__ = [
    "BIN_ENDS",
    "EmbeddingTable",
    "ReuseHistogram",
    "Traffic",
    "che_hits",
    "estimate_embedding_bag",
    "traffic",
    "uniform_hit_rate",
    "window_of_cache",
]

FloatArray = npt.NDArray[np.float64]

BIN_ENDS = tuple(float(2**power) for power in range(16))
"""Bins (0, 1], (1, 2], (2, 4] ... (16384, 32768]; one more holds what is above."""
_SECTOR_BYTES = 32
_INDEX_BYTES = 8
_OFFSET_BYTES = 8
_CACHE_SHARE = 0.9
# Bytes that one multiprocessor draws from L2 in a clock: 19, 22 and 30 were measured on GV100,
# P100 and Titan Xp by the authors above.
_L2_BYTES_PER_CLOCK = 20.0
_START_NS = 2000.0
# Note [Factors of intervals]: a guess, nothing was measured.
_INTERVAL = 2.0


def _means_of_bins() -> FloatArray:
    """Mean count within each bin where the number of rows falls with the square of the count."""
    means = [1.0]
    for low, high in pairwise(BIN_ENDS):
        counts = np.arange(low + 1.0, high + 1.0)
        means.append(float((1.0 / counts).sum() / (1.0 / counts**2).sum()))
    return np.array([*means, 1.5 * BIN_ENDS[-1]])


_BIN_MEANS = _means_of_bins()


@dataclass(frozen=True, slots=True)
class ReuseHistogram:
    """How often the distinct rows of one batch are looked up."""

    shares: tuple[float, ...]
    """Of the distinct rows, by `BIN_ENDS` and above; 17, summing to 1."""
    mean: float | None = None
    """Lookups per distinct row, if known; else the bins tell it roughly."""

    def __post_init__(self) -> None:
        if len(self.shares) != len(_BIN_MEANS) or min(self.shares) < 0 or sum(self.shares) <= 0:
            raise ValueError(f"a histogram has {len(_BIN_MEANS)} shares, none negative")
        if self.mean is not None and self.mean < 1:
            raise ValueError("a row that is looked up is looked up once at least")

    @classmethod
    def of_indices(cls, indices: npt.ArrayLike) -> ReuseHistogram:
        """Of the indices that one batch looks up in one table."""
        _, counts = np.unique(np.asarray(indices), return_counts=True)
        if not counts.size:
            raise ValueError("no indices, no histogram")
        place = np.searchsorted(np.array(BIN_ENDS), counts)
        shares = np.bincount(place, minlength=len(_BIN_MEANS)) / counts.size
        return cls(tuple(shares.tolist()), float(counts.mean()))

    def counts(self) -> tuple[FloatArray, FloatArray]:
        """Count and share of rows for each bin; the counts have the mean of the histogram."""
        shares = np.array(self.shares) / sum(self.shares)
        counts = _BIN_MEANS.copy()
        if self.mean is not None:
            counts = _with_mean(counts, shares, self.mean)
        return counts, shares


def _with_mean(counts: FloatArray, shares: FloatArray, mean: float) -> FloatArray:
    """Moves the counts of repeated rows within their bins towards the known mean."""
    low = np.array([1.0, *(end + 1.0 for end in BIN_ENDS)])
    high = np.array([*BIN_ENDS, np.inf])
    for _ in range(8):
        surplus = mean - float((counts * shares).sum())
        free = (counts * shares)[1:].sum()
        if abs(surplus) < 1e-9 * mean or free <= 0:
            break
        counts[1:] = np.clip(counts[1:] * max(0.0, 1.0 + surplus / free), low[1:], high[1:])
    return counts


def window_of_cache(counts: FloatArray, rows: FloatArray, capacity: float) -> float:
    """Share of the stream in which as many distinct rows occur as the cache holds.

    Args:
        counts: How often a row occurs, by class.
        rows: How many rows of each class there are.
        capacity: Rows that the cache holds.
    """
    if rows.sum() <= capacity:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2.0
        distinct = float((rows * (1.0 - (1.0 - middle) ** counts)).sum())
        low, high = (middle, high) if distinct < capacity else (low, middle)
    return low


def che_hits(counts: npt.ArrayLike, rows: npt.ArrayLike, capacity: float) -> float:
    """Expected hits of an LRU cache, empty at first, on a stream in random order.

    A row that occurs c times leaves c - 1 gaps; a gap is longer than a share w of the stream with
    probability (1 - w)^c. It is a hit if fewer distinct rows than the cache holds come between.
    """
    count, row = np.asarray(counts, np.float64), np.asarray(rows, np.float64)
    window = window_of_cache(count, row, capacity)
    return float((row * np.maximum(count - 1.0, 0.0) * (1.0 - (1.0 - window) ** count)).sum())


def uniform_hit_rate(rows: float, lookups: float, capacity: float) -> float:
    """Baseline: hit rate of Lin et al. for indices that are all as likely, rows in the cache."""
    unique = float(rows * (1.0 - (1.0 - 1.0 / rows) ** lookups))
    if unique <= capacity:
        return 1.0 - unique / lookups
    return 1.0 - (capacity + (lookups - capacity) * (rows - capacity) / rows) / lookups


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """One table, and what one batch asks of it."""

    rows: int
    columns: int
    lookups_per_bag: float
    histogram: ReuseHistogram | None = None
    """None: every row is as likely as any other."""
    element_bytes: int = 4

    @property
    def row_bytes(self) -> int:
        """In whole sectors of 32 bytes."""
        return _SECTOR_BYTES * ceil(self.columns * self.element_bytes / _SECTOR_BYTES)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a forward pass moves."""

    lookups: float
    hits: float
    """Lookups whose row is in L2."""
    rows_bytes: float
    """Of all looked-up rows."""
    missed_bytes: float
    """Of the rows that come from memory."""
    other_bytes: float
    """Indices, offsets and the result."""


def traffic(table: EmbeddingTable, batch: int, cache_bytes: float, method: str = "che") -> Traffic:
    """What one batch of bags moves.

    Args:
        table: The table.
        batch: Bags.
        cache_bytes: Of L2 that this table may use.
        method: "che"; or a baseline: "simple" (all from memory), "uniform" (`uniform_hit_rate`).
    """
    lookups = batch * table.lookups_per_bag
    capacity = _CACHE_SHARE * cache_bytes / table.row_bytes
    if method == "simple" or lookups <= 0:
        hits = 0.0
    elif method == "uniform" or table.histogram is None:
        hits = lookups * max(0.0, uniform_hit_rate(table.rows, lookups, capacity))
    elif method == "che":
        counts, shares = table.histogram.counts()
        unique = min(lookups / float((counts * shares).sum()), float(table.rows))
        hits = min(che_hits(counts, shares * unique, capacity), lookups)
    else:
        raise ValueError(f"no method {method!r}")
    width = table.columns * table.element_bytes
    return Traffic(
        lookups=lookups,
        hits=hits,
        rows_bytes=lookups * table.row_bytes,
        missed_bytes=(lookups - hits) * table.row_bytes,
        other_bytes=lookups * _INDEX_BYTES + batch * (_OFFSET_BYTES + width),
    )


def estimate_embedding_bag(
    tables: Sequence[EmbeddingTable],
    batch: int,
    device: str | Device,
    *,
    backward: bool = False,
    at_once: int = 1,
    method: str = "che",
) -> Estimate:
    """How long the lookups of a batch in these tables run.

    Args:
        tables: Looked up one after the other.
        batch: Bags.
        device: A GPU by name or id.
        backward: The update of the rows instead: they are read and written.
        at_once: Tables that share the cache at any time, as in kernels fused over tables.
        method: As in `traffic`.

    Raises:
        UnknownDurationError: The device is not known, or its cache.
    """
    chip = the_device(device)
    if not (chip.l2_bytes and chip.multiprocessors and chip.clock_mhz):
        raise UnknownDurationError(f"the cache of {chip.name} is not known")
    l2_rate = _L2_BYTES_PER_CLOCK * chip.multiprocessors * chip.clock_mhz * 1e6
    twice, total = (2.0 if backward else 1.0), _START_NS
    for table in tables:
        moved = traffic(table, batch, chip.l2_bytes / at_once, method)
        memory = twice * moved.missed_bytes + moved.other_bytes
        cache = twice * moved.rows_bytes + moved.other_bytes
        total += 1e9 * max(memory / chip.bandwidth, cache / l2_rate)
    says = f"traffic by {method}; kernels of embedding bags were not measured"
    return Estimate.around(total, _INTERVAL, says)
