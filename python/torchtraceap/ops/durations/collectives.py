"""Transfer times of collectives: from measured tables, else from the rate of the links.

A table holds one kind, one number of ranks and one device, measured by one version of NCCL
(`data/collectives.json`; made by benchmarks/simulation/fit_durations.py). A device without tables
takes those of one with the same chip on the same kind of board; memory plays no part. A number of
ranks between two measured ones is interpolated if a switch links all of them, which the board
decides, not the chip: PCIe cards and bridges have none.

Broadcast and reduce were measured nowhere. NCCL runs both as rings, as it does an all-gather and a
reduce-scatter: they take as long as those of a size that brings as many bytes over each link (Note
[Bytes over each link]). How far that law carries was tested between the kinds that were measured.

What no table covers within one machine takes a start and the bytes over the links, at the share of
their rate that the tables reach. Machines without a switch were measured in one form only (the
mesh of V100): their interval is as wide as that form is off. Over several machines the network
decides, and only the measured tables answer.
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
    same_links,
    the_device,
)
from torchtraceap.ops.durations.tables import Curve

__all__ = [
    "CollectiveTable",
    "Ends",
    "LinkModel",
    "bus_factor",
    "collective_kind",
    "estimate_collective",
    "estimate_collectives",
    "has_switch",
    "load_measurements",
    "load_tables",
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
# What is answered by the tables of another kind.
_ALIKE = MappingProxyType({"broadcast": "all_gather", "reduce": "reduce_scatter"})
# Boards on which a switch links all GPUs of the machine: HGX and DGX from A100 on, and racks.
_SWITCHED = frozenset(
    {"a100_sxm_40gb", "a100_sxm_80gb", "h100_sxm", "h200_sxm", "gh200_96gb", "b200", "gb200"}
)
_SMALL_BYTES = 1 << 16
# What another network than the measured one may make of a transfer over several machines, to either
# side: a guess, as one network was measured.
_OTHER_NETWORK = 2.0
# Above so many GPUs in one machine nothing was measured, and few machines are.
_MOST_RANKS = 8
_NARROW = frozenset({"int8", "uint8", "byte", "char", "fp8", "signed char", "unsigned char"})


# Note [Bytes over each link]
# nccl-tests (doc/PERFORMANCE.md) tells how many bytes the busiest link carries for each byte of the
# larger buffer, whatever the algorithm: its "bus bandwidth" over its "algorithm bandwidth".


def bus_factor(kind: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth; Note [Bytes over each link].

    NaN where it has no meaning (a barrier, an unknown kind).
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
    """Times of one collective on one machine."""

    device: str
    """Id in the device database."""
    kind: str
    """As `collective_kind` says."""
    ranks: int
    nodes: int
    dtype: str
    """half, int8, float; empty where the source does not say."""
    library: str
    """Version of NCCL, or empty."""
    rank: int
    """Order of preference of its source, 0 first."""
    source: str
    curve: Curve

    @property
    def preference(self) -> tuple[int, list[int]]:
        """Ascends from the least to the most preferred table of a kind."""
        return -self.rank, [int(part) for part in self.library.split(".") if part]


def collective_kind(name: str) -> str | None:
    """The kind behind a collective's name in a trace, such as `_allgather_base`, or None."""
    return _KINDS.get(re.sub(r"[^a-z]", "", name.lower().removeprefix("nccl:")))


@dataclass(frozen=True, slots=True)
class Ends:
    """Logarithms of the 10th and the 90th percentile of measured over estimated time."""

    small: tuple[float, float]
    """Below 64 KiB."""
    large: tuple[float, float]

    def factors(self, sizes: FloatArray) -> tuple[FloatArray, FloatArray]:
        low, high = np.where(
            (sizes < _SMALL_BYTES)[None, :],
            np.array(self.small)[:, None],
            np.array(self.large)[:, None],
        )
        return np.exp(low), np.exp(high)


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Time of what no table covers; all in ns."""

    start_ns: float
    step_ns: float
    """For each rank beyond the first."""
    bend: float
    work: float
    """Transfer time over bytes / rate of the links, where a switch links all GPUs."""
    meshed: float
    """How much longer it takes where none does."""
    switched: Ends
    unswitched: Ends

    def at(self, kind: str, sizes: FloatArray, ranks: int, rate: float, switch: bool) -> FloatArray:
        """Times for sizes in bytes; `rate` in byte/s and one direction."""
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
    """All that is shipped."""

    tables: tuple[CollectiveTable, ...]
    measured: Ends
    """Of a table, for another machine of its kind."""
    between: Ends
    """Of numbers of ranks between two measured ones."""
    law: Ends
    """Of the time of another kind that brings as many bytes over each link."""
    links: LinkModel


@cache
def load_measurements() -> Measurements:
    """The shipped tables and models; read once per process."""
    document = json.loads(_DATA.read_text(encoding="utf-8"))
    sources, links = document["sources"], document["links"]
    numbers = ("start_ns", "step_ns", "bend", "work", "meshed")
    return Measurements(
        tables=tuple(_table(entry, sources[entry["source"]]) for entry in document["tables"]),
        measured=_ends(document["measured"]),
        between=_ends(document["between"]),
        law=_ends(document["law"]),
        links=LinkModel(
            **{name: float(links[name]) for name in numbers},
            switched=_ends(links["switched"]),
            unswitched=_ends(links["unswitched"]),
        ),
    )


def load_tables() -> tuple[CollectiveTable, ...]:
    """The shipped tables."""
    return load_measurements().tables


def _ends(entry: Mapping[str, Sequence[float]]) -> Ends:
    small, large = ((float(one[0]), float(one[1])) for one in (entry["small"], entry["large"]))
    return Ends(small, large)


def _table(entry: Mapping[str, object], source: Mapping[str, object]) -> CollectiveTable:
    return CollectiveTable(
        device=str(entry["device"]),
        kind=str(entry["kind"]),
        ranks=int(str(entry["ranks"])),
        nodes=int(str(entry["nodes"])),
        dtype=str(entry["dtype"]),
        library=str(entry["library"]),
        rank=int(str(source["rank"])),
        source=str(source["says"]),
        curve=Curve(np.array(entry["bytes"], np.float64), np.array(entry["ns"], np.float64)),
    )


def has_switch(device: Device) -> bool:
    """Whether a switch links all GPUs of a machine of this kind."""
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
    """How long the transfer takes once all ranks have come; see `estimate_collectives`.

    Raises:
        UnknownDurationError: Nothing tells it.
    """
    found = estimate_collectives(
        kind, [size], ranks, device, nodes,
        dtype=dtype, library=library, tables=tables, links=links,
    )  # fmt: skip
    return found[0].known()


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
    """How long transfers of one kind take once all ranks have come.

    Args:
        kind: Name of the collective, in any of PyTorch's or NCCL's spellings.
        sizes: `[n]`: bytes of the larger of one rank's input and output, as nccl-tests count them.
        ranks: Members of the group.
        device: A GPU by name or id, all members alike.
        nodes: Machines that the group spans.
        dtype: Of the elements; sums of single bytes take longer.
        library: A version of NCCL, such as "2.27.3"; by default the newest measured.
        tables: Others than those shipped.
        links: Whether the rate of the links may tell what no table covers.

    Returns:
        NaN, with the reason as source, for sizes that nothing tells.

    Raises:
        UnknownDurationError: An unknown kind or device, or a group that nothing tells.
    """
    wanted = collective_kind(kind)
    if wanted is None:
        raise UnknownDurationError(f"no measurements of collectives called {kind!r}")
    if ranks < 2:
        raise UnknownDurationError(f"{wanted} over {ranks} rank transfers nothing")
    chip = the_device(device)
    every = load_tables() if tables is None else tuple(tables)
    asked = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
    told_by = wanted if any(table.kind == wanted for table in every) else _ALIKE.get(wanted, wanted)
    near = [
        t for t in every if t.kind == told_by and t.nodes == nodes and library in ("", t.library)
    ]
    over_links = asked * (bus_factor(wanted, ranks) / bus_factor(told_by, ranks))
    found = _by_tables(_in_order(near, chip), over_links, ranks, chip, dtype)
    if told_by != wanted:
        found = _by_law(found, over_links, told_by)
    if nodes == 1 and links:
        missing = ~np.isfinite(found.ns)
        return _filled(found, _by_links(wanted, asked, ranks, chip)) if missing.any() else found
    if nodes > 1 and not np.isfinite(found.ns).any():
        raise UnknownDurationError(_nodes_unknown(wanted, ranks, nodes, chip, every))
    return found


def _nodes_unknown(
    kind: str, ranks: int, nodes: int, device: Device, tables: Iterable[CollectiveTable]
) -> str:
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


def _by_law(found: Estimates, sizes: FloatArray, kind: str) -> Estimates:
    """Times of another kind, as those of one that was not measured; Note [Bytes over each link]."""
    low, high = load_measurements().law.factors(sizes)
    says = tuple(f"{one}; as for {kind} with as many bytes over each link" for one in found.sources)
    return replace(found, low_ns=found.low_ns * low, high_ns=found.high_ns * high,
                   sources=says)  # fmt: skip


def _filled(first: Estimates, rest: Estimates) -> Estimates:
    """The first where it knows, else the other."""
    return Estimates.choose(~np.isfinite(first.ns), [first, rest])


def _in_order(tables: list[CollectiveTable], device: Device) -> list[list[CollectiveTable]]:
    """The device's own tables, then those of the same chip on such a board; best source first."""
    known = load_devices()
    own = [table for table in tables if table.device == device.id]
    alike = [
        table
        for table in tables
        if table.device != device.id
        and same_links(known[table.device], device)
        and has_switch(known[table.device]) == has_switch(device)
    ]
    ranks = sorted({table.rank for table in tables})
    groups = [[t for t in some if t.rank == rank] for rank in ranks for some in (own, alike)]
    return [group for group in groups if group]


def _by_tables(
    groups: list[list[CollectiveTable]], sizes: FloatArray, ranks: int, device: Device, dtype: str
) -> Estimates:
    """By the first group that covers a size; NaN where none does."""
    found = Estimates.around(np.full(len(sizes), np.nan), 1.0, "no table covers this size")
    for tables in groups:
        part = _of_source(tables, sizes, ranks, device, dtype)
        if part is not None and not np.isfinite(found.ns).all():
            found = _filled(found, part)
    return found


def _of_source(
    tables: list[CollectiveTable], sizes: FloatArray, ranks: int, device: Device, dtype: str
) -> Estimates | None:
    """By tables of one source; None if their numbers of ranks do not tell this one."""
    counts = sorted({table.ranks for table in tables})
    below = [count for count in counts if count <= ranks]
    above = [count for count in counts if count >= ranks]
    if not below or not above or (ranks not in counts and not has_switch(device)):
        return None
    low, high = _preferred(tables, below[-1], dtype), _preferred(tables, above[0], dtype)
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
        return Estimates.around(ns, _OTHER_NETWORK, f"{source}; one network was measured")
    factors = ends.factors(sizes)
    codes = np.zeros(len(sizes), np.int32)
    return Estimates(ns, ns * factors[0], ns * factors[1], codes, (source,))


def _preferred(tables: list[CollectiveTable], ranks: int, dtype: str) -> CollectiveTable:
    """The best table for this number of ranks: the right width first, then the newest."""
    narrow = dtype.lower() in _NARROW
    return max(
        (table for table in tables if table.ranks == ranks),
        key=lambda table: ((table.dtype == "int8") == narrow, table.preference),
    )


def _by_links(kind: str, sizes: FloatArray, ranks: int, device: Device) -> Estimates:
    """By the rate of the device's links, within one machine."""
    if ranks > _MOST_RANKS:
        raise UnknownDurationError(
            f"{kind} over {ranks} ranks of {device.name} in one machine was not measured; if they "
            "are in several machines, give the number of nodes"
        )
    switch = has_switch(device)
    # A card with a bridge reaches one other by it, the rest over PCIe.
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
