"""A machine that runs sharded lookups, for programs that were never run: the truth of dlrm.py.

It shares no model of lookups or exchanges with torchtraceap, and is more detailed where the package
is coarse: index streams with sampled pooling, an exact LRU cache for each table, kernels whose
efficiency depends on the width of rows and in which memory and cache overlap in part, a backward
pass that sorts indices and touches each distinct row once, exchanges as messages between pairs, and
iterations with noise and skew that are replayed one by one.

Numbers that make it a GPU are those of the device's data sheet; what they are multiplied with is
drawn for each task around what was published (`Machine`), so that no two tasks run on the same
machine and none on the one that the package's models take for granted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchtraceap.lab.sharding import Candidate, Table
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import ReuseHistogram
from torchtraceap.ops.durations.embedding import BIN_ENDS

NOISE = 0.026
"""CV of the steps of a DDP rank on A100 in a public trace (docs/results/simulation.md), here of
every kernel and exchange: what is common to a step's parts would not change an order."""
SKEW_NS = 20_000.0
"""Deviation of when ranks begin an iteration."""
ITERATIONS = 30
"""As many are averaged in the source."""
# Share of the memory's rate and bytes from L2 in a clock, measured on V100 and A100.
_MEASURED = {"7.0": (0.907, 23.3), "8.0": (0.895, 14.9)}
_KERNELS = (1, 9)  # of a forward and a backward pass, each with its start


@dataclass(frozen=True)
class Machine:
    """A device with what no data sheet says, drawn anew for each task."""

    device: Device
    narrow: float
    """How much longer rows of up to 32 elements take than their traffic."""
    half: float
    """Rows of up to 64."""
    memory_share: float
    """Of the sheet's rate."""
    cache_bytes: float
    """Of a multiprocessor in a clock."""
    exposed: float
    """Of the shorter of memory's and cache's time: what the longer does not hide."""
    sort_bytes: float
    """Of a lookup."""
    gradient: float
    """How much slower gradients are read than rows."""
    start_ns: float
    message_ns: float
    link_share: float

    @classmethod
    def published(cls, device: Device) -> Machine:
        """The source's values where it has any (ISPASS 2022, and the measurements of its
        repository), a public trace's of sorting and gradients, else the middle of what is drawn."""
        memory, cache = _MEASURED[device.architecture]
        return cls(device, 1.55, 1.1, memory, cache, 0.25, 190.0, 3.0, 4_000.0, 12_500.0, 0.75)

    @classmethod
    def drawn(cls, device: Device, random: np.random.Generator) -> Machine:
        """Around these."""
        memory, cache = _MEASURED[device.architecture]
        return cls(
            device,
            narrow=random.uniform(1.3, 1.8),
            half=random.uniform(1.0, 1.2),
            memory_share=memory * random.uniform(0.9, 1.05),
            cache_bytes=cache * random.uniform(0.75, 1.3),
            exposed=random.uniform(0.0, 0.5),
            sort_bytes=random.uniform(120.0, 260.0),
            gradient=random.uniform(2.0, 4.0),
            start_ns=random.uniform(2_000.0, 6_000.0),
            message_ns=random.uniform(5_000.0, 20_000.0),
            link_share=random.uniform(0.6, 0.9),
        )

    def width_factor(self, columns: int) -> float:
        return self.narrow if columns <= 32 else self.half if columns <= 64 else 1.0


@dataclass(frozen=True)
class TrueTable:
    """A table with the lookups of one batch, and what they do to a cache."""

    table: Table
    """As the chooser sees it: with the histogram of another batch."""
    lookups: int
    distinct: int
    hits: int


def draw_indices(shares: np.ndarray, lookups: int, random: np.random.Generator) -> np.ndarray:
    """A batch's indices in random order: counts of rows by bin, even in their logarithm within."""
    ends = np.array([*BIN_ENDS, 2 * BIN_ENDS[-1]])
    low = np.array([0.0, *BIN_ENDS])
    most = max(2.0, lookups / 4)
    found: list[np.ndarray] = []
    total = 0
    while total < lookups:
        bins = random.choice(len(ends), size=4096, p=shares / shares.sum())
        a, b = np.log(low[bins] + 1.0), np.log(ends[bins] + 1.0)
        counts = np.floor(np.exp(a + (b - a) * random.random(4096)))
        counts = np.clip(counts, 1, most).astype(np.int64)
        found.append(counts)
        total += int(counts.sum())
    counts = np.concatenate(found)
    keep = int(np.searchsorted(counts.cumsum(), lookups)) + 1
    indices = np.repeat(np.arange(keep), counts[:keep])[:lookups]
    random.shuffle(indices)
    return indices


def lru_hits(indices: np.ndarray, capacity: int) -> int:
    """Lookups that find their row in a cache of so many rows, exactly."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in indices.tolist():
        if row in held:
            hits += 1
            held.move_to_end(row)
        else:
            held[row] = None
            if len(held) > capacity:
                held.popitem(last=False)
    return hits


def draw_task(
    blocks: Sequence[np.ndarray], device: Device, bags: int, random: np.random.Generator
) -> list[TrueTable]:
    """36 to 67 tables with pooling factors of 20 and more, as the source's heavy tasks."""
    return [
        _draw_table(f"table_{number}", blocks, device, bags, random)
        for number in range(int(random.integers(36, 68)))
    ]


def _draw_table(
    name: str, blocks: Sequence[np.ndarray], device: Device, bags: int, random: np.random.Generator
) -> TrueTable:
    dim = int(random.choice([32, 64, 128, 256]))
    pooling = float(np.round(20.0 + random.exponential(20.0), 1))
    # The blocks are means over hundreds of tables, which differ: each leans to rarer or to more
    # frequent rows.
    lean = np.exp(random.normal(0.0, 0.35) * np.arange(len(BIN_ENDS) + 1))
    shares = blocks[int(random.integers(len(blocks)))] * lean
    seen, true = (
        draw_indices(shares, int(random.poisson(pooling, bags).sum()), random) for _ in range(2)
    )
    distinct = int(true.max()) + 1
    rows = int(distinct * (1.2 + random.exponential(20.0)))
    shared = max(1, -(-64 * device.multiprocessors // bags))
    capacity = int(device.l2_bytes / shared / (4 * dim))
    table = Table(name, rows, dim, pooling, ReuseHistogram.from_indices(seen))
    return TrueTable(table, len(true), distinct, lru_hits(true, capacity))


def lookup_ns(true: TrueTable, machine: Machine, bags: int, columns: int) -> tuple[float, float]:
    """Of forward and backward of one table, without the start of the kernels."""
    row, device = 4.0 * columns, machine.device
    memory_rate = machine.memory_share * device.bandwidth
    cache_rate = machine.cache_bytes * device.multiprocessors * device.clock_mhz * 1e6
    missed, pooled = (true.lookups - true.hits) * row, bags * row
    updated = 2.0 * true.distinct * row

    def read(memory: float, cache: float) -> float:
        times = memory / memory_rate, cache / cache_rate
        return machine.width_factor(columns) * (max(times) + machine.exposed * min(times))

    forward = read(missed + pooled + 8.0 * true.lookups, true.lookups * row)
    sorting = machine.sort_bytes * true.lookups / memory_rate
    backward = sorting + read(updated + pooled, true.lookups * row * machine.gradient + updated)
    return 1e9 * forward, 1e9 * backward


def exchange_ns(widths: np.ndarray, batch: int, machine: Machine) -> float:
    """Of messages between all pairs: each rank sends, and receives, one after the other."""
    others = len(widths) - 1
    rate = machine.link_share * machine.device.links["nvlink"]
    sent = others * widths * batch / rate
    received = (widths.sum() - widths) * batch / rate
    return machine.message_ns * others + 1e9 * float(np.maximum(sent, received).max())


def measured_ns(
    candidate: Candidate,
    tables: Sequence[TrueTable],
    machine: Machine,
    batch: int,
    dense_ns: float,
    random: np.random.Generator,
) -> float:
    """Mean iteration of an assignment, as a benchmark would measure it."""
    known = {true.table.name: true for true in tables}
    ranks = len(candidate.ranks)
    times = np.zeros((2, ranks))
    widths = np.zeros(ranks)
    for load in candidate.ranks:
        for part in load.parts:
            times[:, load.rank] += lookup_ns(
                known[part.table], machine, batch * ranks, part.columns
            )
            widths[load.rank] += 4.0 * part.columns
        times[:, load.rank] += [count * machine.start_ns for count in _KERNELS]
    exchange = exchange_ns(widths, batch, machine)
    clock = np.maximum(0.0, random.normal(SKEW_NS, SKEW_NS, ranks))
    for _ in range(ITERATIONS):
        clock = clock + np.maximum(0.0, random.normal(0.0, SKEW_NS, ranks))
        clock = clock + times[0] * _noise(random, ranks)
        clock = np.full(ranks, clock.max() + exchange * float(_noise(random, 1)[0]))
        clock = clock + dense_ns * _noise(random, ranks)
        clock = np.full(ranks, clock.max() + exchange * float(_noise(random, 1)[0]))
        clock = clock + times[1] * _noise(random, ranks)
    return float(clock.max()) / ITERATIONS


def _noise(random: np.random.Generator, count: int) -> np.ndarray:
    return np.maximum(0.5, random.normal(1.0, NOISE, count))
