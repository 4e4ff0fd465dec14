"""Transfer times of collectives from measured tables.

A table holds one kind, one number of ranks and one device, measured by one version of NCCL
(`data/collectives.json`; made by benchmarks/simulation/fit_durations.py). A device without tables
takes those of one with the same chip and links; memory plays no part. A number of ranks between
two measured ones is interpolated if a switch links them; nothing is extrapolated to more ranks,
nodes or other links.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import log2
from pathlib import Path
from types import MappingProxyType

import numpy as np

from torchtraceap.devices import Device, load_devices
from torchtraceap.durations.estimate import (
    Estimate,
    UnknownDurationError,
    same_links,
    the_device,
)
from torchtraceap.durations.tables import Curve

__all__ = ["CollectiveTable", "collective_kind", "estimate_collective", "load_tables"]

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
    }
)
# Note [Factors of intervals]: sizes held out 4.9 %, numbers of ranks held out 4 to 11 %; another
# machine of the same kind has other noise.
_INTERVAL = 1.2
_INTERVAL_BETWEEN = 1.3
_NARROW = frozenset({"int8", "uint8", "byte", "char", "fp8", "signed char", "unsigned char"})


@dataclass(frozen=True, slots=True)
class CollectiveTable:
    """Times of one collective on one machine."""

    device: str
    """Id in the device database."""
    kind: str
    """all_reduce, all_gather, reduce_scatter, all_to_all or send_recv."""
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


@cache
def load_tables() -> tuple[CollectiveTable, ...]:
    """The shipped tables; read once per process."""
    document = json.loads(_DATA.read_text(encoding="utf-8"))
    sources = document["sources"]
    return tuple(_table(entry, sources[entry["source"]]) for entry in document["tables"])


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
) -> Estimate:
    """How long the transfer takes once all ranks have come.

    Args:
        kind: Name of the collective, in any of PyTorch's or NCCL's spellings.
        size: Bytes of the larger of one rank's input and output, as nccl-tests count them.
        ranks: Members of the group.
        device: A GPU by name or id, all members alike.
        nodes: Machines that the group spans.
        dtype: Of the elements; sums of single bytes take longer.
        library: A version of NCCL, such as "2.27.3"; by default the newest measured.
        tables: Others than those shipped.

    Raises:
        UnknownDurationError: No table is near enough.
    """
    wanted = collective_kind(kind)
    if wanted is None:
        raise UnknownDurationError(f"no measurements of collectives called {kind!r}")
    chosen = [
        table
        for table in (load_tables() if tables is None else tables)
        if table.kind == wanted and table.nodes == nodes and library in ("", table.library)
    ]
    chosen = _of_device(chosen, the_device(device))
    if not chosen:
        what = f"{wanted} over {nodes} node{'s' if nodes > 1 else ''}"
        raise UnknownDurationError(f"no measurements of {what} on {the_device(device).name}")
    return _across_ranks(chosen, size, ranks, dtype)


def _of_device(tables: list[CollectiveTable], device: Device) -> list[CollectiveTable]:
    own = [table for table in tables if table.device == device.id]
    if own:
        return own
    known = load_devices()
    return [table for table in tables if same_links(known[table.device], device)]


def _across_ranks(tables: list[CollectiveTable], size: float, ranks: int, dtype: str) -> Estimate:
    near = [table for table in tables if table.curve.covers(size)]
    if not near:
        low = min(table.curve.sizes[0] for table in tables)
        high = max(table.curve.sizes[-1] for table in tables)
        raise UnknownDurationError(f"{size:,.0f} bytes; measured were {low:,.0f} to {high:,.0f}")
    counts = sorted({table.ranks for table in near})
    below = [count for count in counts if count <= ranks]
    above = [count for count in counts if count >= ranks]
    if not below or not above or (ranks not in counts and not _has_switch(near[0])):
        known = ", ".join(map(str, counts))
        raise UnknownDurationError(
            f"{size:,.0f} bytes over {ranks} ranks: measured numbers of ranks are {known}"
        )
    low = _preferred(near, below[-1], dtype)
    high = _preferred(near, above[0], dtype)
    if low.ranks == high.ranks:
        return Estimate.around(low.curve.ns_at(size), _INTERVAL, low.source)
    return _between(low, high, size, ranks)


def _has_switch(table: CollectiveTable) -> bool:
    """GPUs before A100 are linked in a mesh, where 5 ranks need not lie between 4 and 8."""
    major = load_devices()[table.device].architecture.partition(".")[0]
    return major.isdecimal() and int(major) >= 8


def _between(low: CollectiveTable, high: CollectiveTable, size: float, ranks: int) -> Estimate:
    share = log2(ranks / low.ranks) / log2(high.ranks / low.ranks)
    ns = low.curve.ns_at(size) ** (1 - share) * high.curve.ns_at(size) ** share
    says = f"{low.source}; between {low.ranks} and {high.ranks} ranks"
    return Estimate.around(ns, _INTERVAL_BETWEEN, says)


def _preferred(tables: list[CollectiveTable], ranks: int, dtype: str) -> CollectiveTable:
    """The best source for this number of ranks: the right width first, then the newest."""
    narrow = dtype.lower() in _NARROW
    return max(
        (table for table in tables if table.ranks == ranks),
        key=lambda table: (-table.rank, (table.dtype == "int8") == narrow, table.preference),
    )
