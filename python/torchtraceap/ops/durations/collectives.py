"""Estimate transfer times of collectives from measured tables, else from the rate of the links.

A table holds one kind, one number of ranks and one device, measured with one version of NCCL
(`data/collectives.json`; made by benchmarks/simulation/fit_durations.py). A device without tables
uses those of a device with the same chip on the same kind of board; the memory does not matter. A
number of ranks between two measured ones is interpolated if a switch links all of them. The board
decides that, not the chip: PCIe cards and bridges have no switch.

No source has measured broadcast and reduce. NCCL runs both as rings, like an all-gather and a
reduce-scatter, so they take as long as one of those with as many bytes over each link (Note
[Bytes over each link]). The accuracy of that law was tested between the kinds that were measured.

A transfer within one machine that no table covers takes a startup time plus the bytes over the
links, at the share of their rate that the tables reach. Machines without a switch were measured in
one form only (the mesh of V100), so their interval is as wide as the error for that form. Between
machines the network decides, and only the measured tables answer.

Note [Curves]: each piece between two knots is an alpha-beta model of its own: a startup time and a
rate. On public tables of collectives with every other size held out, the error is smaller than that
of a line in log-log space (docs/durations.md), which bends the wrong way at the end of the startup
time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import log2
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device, load_devices
from torchtraceap.ops.durations.estimate import (
    Estimate,
    Estimates,
    UnknownDurationError,
    resolve_device,
    same_links,
)

__all__ = [
    "CollectiveTable",
    "Curve",
    "ErrorInterval",
    "LinkModel",
    "bus_factor",
    "collective_kind",
    "estimate_collective",
    "estimate_collectives",
    "has_switch",
    "load_measurements",
]


FloatArray = npt.NDArray[np.float64]

_DATA = Path(__file__).with_name("data") / "collectives.json"
_KINDS = MappingProxyType(
    {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "allgatherbase": "all_gather",
        "allgatherintotensor": "all_gather",
        "allgathertensor": "all_gather",
        "allgathercoalesced": "all_gather",
        "allgatherintotensorcoalesced": "all_gather",
        "reducescatter": "reduce_scatter",
        "reducescatterbase": "reduce_scatter",
        "reducescattertensor": "reduce_scatter",
        "reducescattertensorcoalesced": "reduce_scatter",
        "alltoall": "all_to_all",
        "alltoallbase": "all_to_all",
        "alltoallsingle": "all_to_all",
        "alltoallv": "all_to_all",
        "alltoallvsingle": "all_to_all",
        "allreducecoalesced": "all_reduce",
        "sendrecv": "send_recv",
        "send": "send_recv",
        "recv": "send_recv",
        "broadcast": "broadcast",
        "broadcastoop": "broadcast",
        "broadcastcoalesced": "broadcast",
        "reduce": "reduce",
        "reduceoop": "reduce",
    }
)
# Kinds that are answered by the tables of another kind.
_ALIKE = MappingProxyType({"broadcast": "all_gather", "reduce": "reduce_scatter"})
# Boards on which a switch links all GPUs of the machine: HGX and DGX from A100 on, and racks.
_SWITCHED = frozenset(
    {"a100_sxm_40gb", "a100_sxm_80gb", "h100_sxm", "h200_sxm", "gh200_96gb", "b200", "gb200"}
)
_SMALL_BYTES = 1 << 16
# Factor to either side by which another network may differ from the measured one in a transfer
# between machines: a guess, because only one network was measured.
_OTHER_NETWORK = 2.0
# The largest number of GPUs in one machine that was measured; few machines have more.
_MOST_RANKS = 8
_NARROW = frozenset({"int8", "uint8", "byte", "char", "fp8", "signed char", "unsigned char"})


# Note [Bytes over each link]
# nccl-tests (doc/PERFORMANCE.md) states how many bytes the busiest link carries for each byte of
# the larger buffer, whatever the algorithm: its "bus bandwidth" over its "algorithm bandwidth".


def bus_factor(kind: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth; see Note [Bytes over each link].

    NaN where the ratio has no meaning (a barrier, an unknown kind).
    """
    if ranks < 1 or kind in ("barrier", "unknown"):
        return float("nan")
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("broadcast", "reduce", "send", "recv", "send_recv"):
        return 1.0
    return (ranks - 1) / ranks


@dataclass(frozen=True, slots=True)
class CollectiveTable:
    """Measured times of one collective on one machine."""

    device: str
    """Id in the device database."""
    kind: str
    """Kind as `collective_kind` returns it."""
    ranks: int
    nodes: int
    dtype: str
    """"half", "int8" or "float"; empty if the source does not say."""
    library: str
    """Version of NCCL, or empty."""
    rank: int
    """Rank of its source in the order of preference, 0 first."""
    source: str
    curve: Curve

    @property
    def preference(self) -> tuple[int, list[int]]:
        """Sort key that ascends from the least to the most preferred table of a kind."""
        return -self.rank, [int(part) for part in self.library.split(".") if part]


def collective_kind(name: str) -> str | None:
    """Return the kind of a collective from its name in a trace, such as `_allgather_base`."""
    return _KINDS.get(re.sub(r"[^a-z]", "", name.lower().removeprefix("nccl:")))


@dataclass(frozen=True, slots=True)
class ErrorInterval:
    """Logarithms of the 10th and the 90th percentile of measured over estimated time."""

    small: tuple[float, float]
    """Percentiles for sizes below 64 KiB."""
    large: tuple[float, float]
    """Percentiles for all other sizes."""

    def factors(self, sizes: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the lower and upper factors of the time, `[n]` each, for sizes in bytes `[n]`."""
        low, high = np.where(
            (sizes < _SMALL_BYTES)[None, :],
            np.array(self.small)[:, None],
            np.array(self.large)[:, None],
        )
        return np.exp(low), np.exp(high)


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Model of transfers that no table covers."""

    start_ns: float
    step_ns: float
    """Additional startup time for each rank beyond the first, in ns."""
    bend: float
    """Weight of the square-root term that joins startup and transfer."""
    work: float
    """Transfer time over bytes / rate of the links, if a switch links all GPUs."""
    meshed: float
    """Additional factor without such a switch."""
    switched: ErrorInterval
    unswitched: ErrorInterval

    def at(self, kind: str, sizes: FloatArray, ranks: int, rate: float, switch: bool) -> FloatArray:
        """Return times in ns, `[n]`, for sizes in bytes; `rate` is in byte/s in one direction."""
        start = self.start_ns + self.step_ns * (ranks - 1)
        work = (
            self.work
            * 1e9
            * bus_factor(kind, ranks)
            * sizes
            / rate
            * (1.0 if switch else self.meshed)
        )
        return np.asarray(start + work + 2.0 * self.bend * np.sqrt(start * work))


@dataclass(frozen=True, slots=True)
class Measurements:
    """Shipped tables and models with their error intervals."""

    tables: tuple[CollectiveTable, ...]
    measured: ErrorInterval
    """Error of a table on another machine of its kind."""
    between: ErrorInterval
    """Error for numbers of ranks between two measured ones."""
    law: ErrorInterval
    """Error of using another kind with as many bytes over each link."""
    links: LinkModel


@cache
def load_measurements() -> Measurements:
    """Load the shipped tables and models; they are read once per process."""
    document = json.loads(_DATA.read_text(encoding="utf-8"))
    sources, links = document["sources"], document["links"]
    numbers = ("start_ns", "step_ns", "bend", "work", "meshed")
    tables = [
        CollectiveTable(
            **{name: str(entry[name]) for name in ("device", "kind", "dtype", "library")},
            ranks=int(entry["ranks"]),
            nodes=int(entry["nodes"]),
            rank=int(sources[entry["source"]]["rank"]),
            source=str(sources[entry["source"]]["says"]),
            curve=Curve(np.array(entry["bytes"], np.float64), np.array(entry["ns"], np.float64)),
        )
        for entry in document["tables"]
    ]
    return Measurements(
        tables=tuple(tables),
        measured=_ends(document["measured"]),
        between=_ends(document["between"]),
        law=_ends(document["law"]),
        links=LinkModel(
            **{name: float(links[name]) for name in numbers},
            switched=_ends(links["switched"]),
            unswitched=_ends(links["unswitched"]),
        ),
    )


def _ends(entry: Mapping[str, Sequence[float]]) -> ErrorInterval:
    small, large = ((float(one[0]), float(one[1])) for one in (entry["small"], entry["large"]))
    return ErrorInterval(small, large)


def has_switch(device: Device) -> bool:
    """Return True if a switch links all GPUs of a machine with such devices."""
    return device.id in _SWITCHED


def estimate_collective(
    kind: str,
    size: float,
    ranks: int,
    device: str | Device,
    nodes: int = 1,
    *,
    dtype: str = "",
    library: str = "",
    tables: Iterable[CollectiveTable] | None = None,
    links: bool = True,
) -> Estimate:
    """Estimate the transfer time after the last rank has arrived; see `estimate_collectives`.

    Raises:
        UnknownDurationError: Neither a table nor a model covers it.
    """
    found = estimate_collectives(
        kind, [size], ranks, device, nodes,
        dtype=dtype, library=library, tables=tables, links=links,
    )  # fmt: skip
    return found[0].require()


def estimate_collectives(
    kind: str,
    sizes: npt.ArrayLike,
    ranks: int,
    device: str | Device,
    nodes: int = 1,
    *,
    dtype: str = "",
    library: str = "",
    tables: Iterable[CollectiveTable] | None = None,
    links: bool = True,
) -> Estimates:
    """Estimate the transfer times of one kind of collective after the last rank has arrived.

    Args:
        kind: Name of the collective, in any of PyTorch's or NCCL's spellings.
        sizes: `[n]`: bytes of the larger of one rank's input and output, as nccl-tests count them.
        ranks: Number of members of the group.
        device: GPU of every member, by name or id.
        nodes: Number of machines that the group spans.
        dtype: Type of the elements; sums of single bytes take longer.
        library: Version of NCCL, such as "2.27.3"; by default the newest that was measured.
        tables: Tables to use instead of those shipped.
        links: Use the rate of the links for sizes that no table covers.

    Returns:
        `[n]` estimates; NaN, with the reason as source, for sizes that are not covered.

    Raises:
        UnknownDurationError: The kind or device is unknown, or nothing covers the group.
    """
    wanted = collective_kind(kind)
    if wanted is None:
        raise UnknownDurationError(f"no measurements of collectives called {kind!r}")
    if ranks < 2:
        raise UnknownDurationError(f"{wanted} over {ranks} rank transfers nothing")
    chip = resolve_device(device)
    every = load_measurements().tables if tables is None else tuple(tables)
    asked = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
    told_by = wanted if any(table.kind == wanted for table in every) else _ALIKE.get(wanted, wanted)
    near = [
        t for t in every if t.kind == told_by and t.nodes == nodes and library in ("", t.library)
    ]
    over_links = asked * (bus_factor(wanted, ranks) / bus_factor(told_by, ranks))
    found = _estimate_by_tables(near, over_links, ranks, chip, dtype)
    if told_by != wanted:
        low, high = load_measurements().law.factors(over_links)
        says = tuple(
            f"{one}; as for {told_by} with as many bytes over each link" for one in found.sources
        )
        found = replace(
            found, low_ns=found.low_ns * low, high_ns=found.high_ns * high, sources=says
        )
    missing = ~np.isfinite(found.ns)
    if nodes == 1 and links and missing.any():
        return Estimates.choose(missing, [found, _estimate_by_links(wanted, asked, ranks, chip)])
    if nodes > 1 and missing.all():
        raise UnknownDurationError(_unmeasured_network(wanted, ranks, nodes, chip, every))
    return found


def _unmeasured_network(
    kind: str, ranks: int, nodes: int, device: Device, tables: Iterable[CollectiveTable]
) -> str:
    """Return the message for a group over several machines that no table covers."""
    groups: dict[tuple[str, int, str], set[int]] = {}
    for table in tables:
        if table.nodes > 1:
            key = table.kind, table.nodes, load_devices()[table.device].name
            groups.setdefault(key, set()).add(table.ranks)
    known = [
        f"{what} of {', '.join(map(str, sorted(ranks_of)))} ranks over {count} nodes of {name}"
        for (what, count, name), ranks_of in sorted(groups.items())
    ]
    return (
        f"{kind} of {ranks} ranks over {nodes:g} nodes of {device.name} depends on a network that "
        f"was not measured; measured were: {'; '.join(known) or 'none'}"
    )


def _estimate_by_tables(
    tables: list[CollectiveTable], sizes: FloatArray, ranks: int, device: Device, dtype: str
) -> Estimates:
    """Estimate by the best source that covers a size; NaN where none does.

    The tables of each source that were measured on the device itself come before those of the same
    chip on the same kind of board.
    """
    known = load_devices()
    own = [table for table in tables if table.device == device.id]
    alike = [
        table
        for table in tables
        if table.device != device.id
        and same_links(known[table.device], device)
        and has_switch(known[table.device]) == has_switch(device)
    ]
    found = Estimates.unknown(len(sizes), "no table covers this size")
    for source_rank in sorted({table.rank for table in tables}):
        for some in (own, alike):
            one_source = [table for table in some if table.rank == source_rank]
            part = _estimate_by_source(one_source, sizes, ranks, device, dtype)
            missing = ~np.isfinite(found.ns)
            if part is not None and missing.any():
                found = Estimates.choose(missing, [found, part])
    return found


def _estimate_by_source(
    tables: list[CollectiveTable], sizes: FloatArray, ranks: int, device: Device, dtype: str
) -> Estimates | None:
    """Estimate by the tables of one source; None if they do not cover this number of ranks."""
    counts = sorted({table.ranks for table in tables})
    below = [count for count in counts if count <= ranks]
    above = [count for count in counts if count >= ranks]
    if not below or not above or (ranks not in counts and not has_switch(device)):
        return None
    low, high = (_best_table(tables, count, dtype) for count in (below[-1], above[0]))
    shipped = load_measurements()
    if low.ranks == high.ranks:
        ns, ends, source = low.curve.at(sizes), shipped.measured, low.source
    else:
        share = log2(ranks / low.ranks) / log2(high.ranks / low.ranks)
        ns = low.curve.at(sizes) ** (1 - share) * high.curve.at(sizes) ** share
        ends = shipped.between
        source = f"{low.source}; between {low.ranks} and {high.ranks} ranks"
    covered = low.curve.covers(sizes) & high.curve.covers(sizes)
    ns = np.where(covered, ns, np.nan)
    if low.nodes > 1:
        return Estimates.within_factor(ns, _OTHER_NETWORK, f"{source}; one network was measured")
    factors = ends.factors(sizes)
    codes = np.zeros(len(sizes), np.int32)
    return Estimates(ns, ns * factors[0], ns * factors[1], codes, (source,))


def _best_table(tables: list[CollectiveTable], ranks: int, dtype: str) -> CollectiveTable:
    """Return the best table for this number of ranks: the right width first, then the newest."""
    narrow = dtype.lower() in _NARROW
    return max(
        (table for table in tables if table.ranks == ranks),
        key=lambda table: ((table.dtype == "int8") == narrow, table.preference),
    )


def _estimate_by_links(kind: str, sizes: FloatArray, ranks: int, device: Device) -> Estimates:
    """Estimate by the rate of the device's links, within one machine."""
    if ranks > _MOST_RANKS:
        raise UnknownDurationError(
            f"{kind} over {ranks} ranks of {device.name} in one machine was not measured; if they "
            "are in several machines, give the number of nodes"
        )
    switch = has_switch(device)
    # A card with a bridge reaches only one other card through it, and the rest over PCIe.
    names = ("nvlink", "xgmi", "pcie") if switch or "sxm" in device.id else ("xgmi", "pcie")
    link = next((name for name in names if device.links.get(name)), None)
    if link is None:
        raise UnknownDurationError(f"the links of {device.name} are not known")
    model = load_measurements().links
    ns = model.at(kind, sizes, ranks, device.links[link], switch)
    low, high = (model.switched if switch else model.unswitched).factors(sizes)
    how = "at the share that switched GPUs reach" if switch else (
        "without a switch between all GPUs, of which one form was measured (V100)"
    )  # fmt: skip
    codes = np.zeros(len(ns), dtype=np.int32)
    return Estimates(ns, ns * low, ns * high, codes, (f"rate of {link} {how}",))


# Sizes below the first knot are covered only if that knot is small enough to be startup time; sizes
# above the last knot continue at the last rate up to this multiple of it.
_STARTUP_BYTES = 8192
_REACH = 16.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Time over size, monotone and piecewise linear: see Note [Curves]. Both ascend, the time not
    strictly."""

    sizes: FloatArray
    """`[k]`: sizes, usually in bytes."""
    ns: FloatArray
    """`[k]`: times at these sizes."""

    def covers(self, sizes: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return bool `[n]`: which sizes are among the measured ones or not far above them."""
        wanted = np.asarray(sizes, dtype=np.float64)
        begin = 0.0 if self.sizes[0] <= _STARTUP_BYTES else self.sizes[0]
        return np.asarray((wanted >= begin) & (wanted <= self.sizes[-1] * _REACH))

    def at(self, sizes: npt.ArrayLike) -> FloatArray:
        """Return times in ns; constant below the first knot, at the last rate above the last."""
        wanted = np.asarray(sizes, dtype=np.float64)
        inside = np.interp(wanted, self.sizes, self.ns)
        if self.sizes.size < 2:
            return np.asarray(inside)
        rate = (self.ns[-1] - self.ns[-2]) / (self.sizes[-1] - self.sizes[-2])
        return np.asarray(inside + rate * np.maximum(wanted - self.sizes[-1], 0.0))
