"""Collectives of all ranks as TraceLens reports them: matched by number, on the clocks as they are.

`torchtraceap collectives` and `ranks` align the clocks first and know sends, broadcasts and the
like; here a rank of another host is late by what its clock is off.

Source: TraceLens at 171dd747, NcclAnalyser/nccl_analyser.py and
Reporting/generate_multi_rank_collective_report_pytorch.py.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.compat.tracelens.launchers import is_communication, to_us
from torchtraceap.compat.tracelens.sheets import Sheet, as_lists
from torchtraceap.core.dtypes import parse_dtype
from torchtraceap.trace.ranks import RankTrace

__all__ = ["collective_sheets", "collectives_of", "summary_long"]

Row = dict[str, Any]

_GROUP = "Process Group Name"
_METADATA = (
    _GROUP,
    "Process Group Ranks",
    "Collective name",
    "Group size",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
    "In split size",
    "Out split size",
)
_LONG = (
    "collective_id",
    "index_in_group",
    "rank",
    *_METADATA[:6],
    "In msg size (MB)",
    "Out msg nelems",
    "Out msg size (MB)",
    "In split size",
    "Out split size",
    "stream",
    "ts",
    "dur",
)
_SIZES = ("In msg size (MB)", "Out msg size (MB)")
_OF_COLLECTIVE = (*_METADATA[:7], *_SIZES)
_OF_RANK = ("ts", "dur", "In msg nelems", "Out msg nelems", *_SIZES, *_METADATA[7:])
_SUMMED = ("rank", *_METADATA, "stream")
_OF_TIME = ("sum", "mean", "std", "min", "max")
_SUMMARY = (
    *_SUMMED,
    *(f"{size}_first" for size in _SIZES),
    *(f"dur_{metric}" for metric in _OF_TIME),
    "operation_count",
)
_WAIT = re.compile(r"rank_(\d+)_wait_time")
_LONGEST_NUMBER = 18
"""Most digits of a number: no more than fit in 64 bits."""
_ELEMENT_TYPES = (
    "Float",
    "Int",
    "Long",
    "BFloat16",
    "Half",
    "Bool",
    "Byte",
    "Char",
    "Double",
    "Short",
    "Float8_e4m3fn",
    "Float8_e4m3fnuz",
    "Float8_e5m2",
    "Float8_e5m2fnuz",
)
"""Element types that their table of sizes has."""
_KINDS = {
    "allreduce": ("allreduce", "allreduce_coalesced"),
    "reducescatter": (
        "reducescatter",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
    ),
    "allgather": (
        "allgather",
        "all_gather",
        "_allgather_base",
        "all_gather_into_tensor_coalesced",
        "allgather_into_tensor_coalesced",
    ),
    "alltoall": ("all_to_all",),
    "alltoallv": ("all_to_allv",),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}
_VARIABLE = "alltoallv"
"""The kind in which each rank sends another amount; in the others all wait and send as much."""
_METRICS = ("mean", "median", "min", "max")
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "median": np.median,
    "min": min,
    "max": max,
    "sum": np.sum,
}


# ------------------------------------------------------------------------------------ long table


def collectives_of(parts: Sequence[RankTrace]) -> list[Row]:
    """Return a row for each collective kernel of each rank, in order of rank and time.

    The rank is the place in `parts`. Kernels count whose name is that of a collective and that
    have a correlation or an external id.
    """
    rows = [row for rank, part in enumerate(parts) for row in _of_rank(part, rank)]
    nameless = all(row[_GROUP] is None for row in rows)
    streams: dict[int, set[Any]] = defaultdict(set)
    for row in rows:
        streams[row["rank"]].add(row["stream"])
    by_order = nameless and all(len(of_rank) <= 1 for of_rank in streams.values())
    counts: dict[tuple[int, Any], int] = defaultdict(int)
    for row in rows:
        if row[_GROUP] is None:
            row[_GROUP] = "all" if by_order else "Unknown_Group"
        key = row["rank"], row[_GROUP]
        index = row["index_in_group"] = counts[key]
        counts[key] += 1
        row["collective_id"] = str(index) if by_order else f"{row[_GROUP]}_{index}"
        row["by_order"] = by_order
    return rows


def _of_rank(part: RankTrace, rank: int) -> Iterable[Row]:
    table = part.table
    names = [i for i, text in enumerate(table.strings) if is_communication(text)]
    wanted = np.asarray(table.kind) == _core.EventKind.KERNEL
    wanted &= np.isin(np.asarray(table.name), names)
    rows = np.flatnonzero(wanted)
    linked = np.asarray(table.correlation)[rows] != _core.NO_ID
    linked |= np.asarray(table.external_id)[rows] != _core.NO_ID
    rows = rows[linked]
    streams = np.asarray(table.stream)[rows].tolist()
    columns: Sheet = {
        "ts": to_us(np.asarray(table.ts_ns)[rows]).tolist(),
        "dur": to_us(np.asarray(table.dur_ns)[rows]).tolist(),
        "stream": [None if stream == _core.NO_ID else stream for stream in streams],
    }
    for key in _METADATA:
        codes, words = table.text_codes(key, rows)
        # Numbers are numbers, but for names; lists are as Python prints them.
        values: list[Any] = [as_lists(word) if word.startswith("[") else word for word in words]
        for place, word in enumerate(words):
            number = word.lstrip("-").isdecimal() and len(word) <= _LONGEST_NUMBER
            if number and key != _GROUP:
                values[place] = int(word)
        values.append(None)  # that of code -1
        columns[key] = [values[code] for code in np.asarray(codes).tolist()]
    inferred = {i: "allreduce" for i in names if "cross_device_reduce" in table.strings[i].lower()}
    kernels = np.asarray(table.name)[rows].tolist()
    for kernel, *values in zip(kernels, *columns.values(), strict=True):
        row: Row = {"rank": rank, **dict(zip(columns, values, strict=True))}
        if row["Collective name"] is None:
            row["Collective name"] = inferred.get(kernel)
        known = parse_dtype(row["dtype"]) if row["dtype"] in _ELEMENT_TYPES else None
        counts = row["In msg nelems"], row["Out msg nelems"]
        sizes = [
            count * known.size / 2**20 if isinstance(count, int) and known else None
            for count in counts
        ]
        yield row | dict(zip(_SIZES, sizes if sizes[0] is not None else (None, None), strict=True))


def _sheet(rows: Sequence[Row], columns: Iterable[str]) -> Sheet:
    return {name: [row.get(name) for row in rows] for name in columns}


def _grouped(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by their values of `keys`; rows without one of them are in no group."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        group = tuple(row[key] for key in keys)
        if None not in group:
            groups[group].append(row)
    return groups


def _of(rows: Iterable[Row], column: str) -> list[float]:
    """Return the numbers of a column, without those that are absent."""
    return [row[column] for row in rows if isinstance(row[column], int | float)]


def _first(rows: Iterable[Row], column: str) -> Any:
    return next((row[column] for row in rows if row[column] is not None), None)


def _metric(name: str, values: Sequence[float]) -> float | None:
    """Return mean, median, std (of a sample), min, max or sum of known values."""
    if name == "std":
        return float(np.std(values, ddof=1)) if len(values) > 1 else None
    if not values:
        return 0.0 if name == "sum" else None
    return float(_FUNCTIONS[name](values))


def _metrics(rows: Sequence[Row], column: str, names: Sequence[str]) -> Row:
    values = _of(rows, column)
    return {f"{column}_{name}": _metric(name, values) for name in names}


def _sorted(rows: list[Row], column: str) -> list[Row]:
    return sorted(rows, key=lambda row: -row[column])


def summary_long(rows: Sequence[Row]) -> Sheet:
    """Collectives of each rank by all of their metadata; those without all of it are left out."""
    found = []
    for key, members in _grouped(rows, _SUMMED).items():
        row = dict(zip(_SUMMED, key, strict=True))
        row |= {f"{size}_first": _first(members, size) for size in _SIZES}
        row |= _metrics(members, "dur", _OF_TIME)
        found.append(row | {"operation_count": len(members)})
    return _sheet(_sorted(found, "dur_sum"), _SUMMARY)


# ------------------------------------------------------------------------- matched collectives


def _ends(parts: Sequence[Row]) -> list[float]:
    return [part["ts"] + part["dur"] for part in parts]


def _implicit(kind: str | None, parts: Sequence[Row]) -> Row:
    """Return the row of a collective in which all ranks wait for the last, whose time counts."""
    row = {"collective_id": parts[0]["collective_id"]}
    row |= {key: parts[0][key] for key in _OF_COLLECTIVE}
    last = max(part["ts"] for part in parts)
    waits = {part["rank"]: last - part["ts"] for part in parts}
    latency = min(part["dur"] for part in parts)
    size = row["Out msg size (MB)"] if kind == "allgather" else row["In msg size (MB)"]
    known = kind is not None and None not in (row[size] for size in _SIZES)
    rate = size / 1024 / (latency / 1e6) if known and latency > 0 else None
    ranks = row["Group size"]
    counted = isinstance(ranks, int) and ranks > 0
    factor = (2 if kind == "allreduce" else 1) * (ranks - 1) / ranks if counted else None
    longest, first = max((wait, rank) for rank, wait in waits.items())
    row |= {
        "Full msg size (MB)": size if known else None,
        "comm_latency": latency,
        "skew in start time": longest,
        "earliest arrival rank": first,
        "avg_wait_time": sum(waits.values()) / len(waits),
        "skew in end time": max(_ends(parts)) - min(_ends(parts)),
        "algo bw (GB/s)": rate,
        "bus bw (GB/s)": rate * factor if rate is not None and factor is not None else None,
    }
    for part in parts:
        row |= {f"rank_{part['rank']}_{key}": part[key] for key in ("ts", "dur")}
    return row | {f"rank_{rank}_wait_time": wait for rank, wait in waits.items()}


def _variable(parts: Sequence[Row]) -> Row:
    """Return the row of an exchange of different amounts, from the first start to the last end."""
    row = {"collective_id": parts[0]["collective_id"]}
    row |= {key: parts[0][key] for key in (*_METADATA[:5], "stream")}
    begin, end = min(part["ts"] for part in parts), max(_ends(parts))
    durations, sizes = _of(parts, "dur"), _of(parts, "In msg size (MB)")
    wall, total = end - begin, sum(sizes)
    rates = [
        part["In msg size (MB)"] / 1024 / (part["dur"] / 1e6)
        for part in parts
        if part["In msg size (MB)"] and part["dur"] > 0
    ]
    row |= {
        "total data communicated (MB)": total,
        "total nelems communicated": sum(_of(parts, "In msg nelems")),
        "wall_time (us)": wall,
        "max_rank_dur (us)": max(durations),
        "min_rank_dur (us)": min(durations),
        "avg_rank_dur (us)": sum(durations) / len(durations),
        "throughput (GB/s)": total / 1024 / (wall / 1e6) if wall > 0 else None,
        "max_rank_throughput (GB/s)": max(rates, default=None),
        "min_rank_throughput (GB/s)": min(rates, default=None),
        "size_imbalance": max(sizes) / (total / len(sizes)) if total else None,
        "skew in start time": max(part["ts"] for part in parts) - begin,
        "skew in end time": end - min(_ends(parts)),
    }
    for part in parts:
        row |= {f"rank_{part['rank']}_{key}": part[key] for key in _OF_RANK}
    for part, until in zip(parts, _ends(parts), strict=True):
        row[f"rank_{part['rank']}_skew in start time"] = part["ts"] - begin
        row[f"rank_{part['rank']}_skew in end time"] = end - until
    return row


def _with_ranks(rows: Sequence[Row]) -> Sheet:
    """Return a sheet with columns of the whole collective before those of a rank."""
    names = dict.fromkeys(name for row in rows for name in row)
    ordered = sorted(names, key=lambda name: name.startswith("rank_"))
    return _sheet(rows, ordered)


def _summary_implicit(rows: Sequence[Row]) -> Sheet:
    keys = ("Collective name", "dtype", "In msg nelems")
    named = [row | {k: "Unknown" if row[k] is None else row[k] for k in keys} for row in rows]
    shared = (_GROUP, "Group size", "Full msg size (MB)")
    columns = ["comm_latency", "skew in start time", "skew in end time"]
    columns += [c for c in ("algo bw (GB/s)", "bus bw (GB/s)") if _of(rows, c)]
    found = []
    for key, members in _grouped(named, keys).items():
        row = dict(zip(keys, key, strict=True))
        row |= {column: _first(members, column) for column in shared}
        for column in columns:
            row |= _metrics(members, column, _METRICS)
        total = sum(member["comm_latency"] for member in members) / 1000
        found.append(row | {"count": len(members), "Total comm latency (ms)": total})
    ordered = _sorted(found, "Total comm latency (ms)")
    return _sheet(ordered, ordered[0]) if ordered else {}


def _summary_variable(rows: Sequence[Row]) -> Sheet:
    keys = (_GROUP, "dtype")
    found = []
    for key, members in _grouped(rows, keys).items():
        row = dict(zip(keys, key, strict=True))
        row |= _metrics(members, "total data communicated (MB)", _METRICS)
        row |= _metrics(members, "wall_time (us)", _METRICS)
        row["Total wall_time (us)"] = _metric("sum", _of(members, "wall_time (us)"))
        row |= _metrics(members, "throughput (GB/s)", _METRICS)
        for column in ("size_imbalance", "max_rank_dur (us)"):
            row |= _metrics(members, column, ("mean", "max"))
        for column in ("skew in start time", "skew in end time"):
            row |= _metrics(members, column, ("mean", "max"))
        row["count"] = len(members)
        for column in ("Process Group Ranks", "Collective name", "Group size"):
            row[column] = _first(members, column)
        found.append(row | {"Total wall_time (ms)": row["Total wall_time (us)"] / 1000})
    ordered = _sorted(found, "Total wall_time (ms)")
    return _sheet(ordered, ordered[0]) if ordered else {}


def _stragglers(matched: Sequence[Row], rows: Sequence[Row]) -> Sheet:
    """Ranks by the time that they waited: the one that waited least came last."""
    waits: dict[int, list[float]] = defaultdict(list)
    last: dict[int, int] = defaultdict(int)
    for row in matched:
        named = ((_WAIT.fullmatch(name), wait) for name, wait in row.items())
        of_row = {int(match[1]): wait for match, wait in named if match}
        for rank, wait in of_row.items():
            waits[rank].append(wait)
        last[min(of_row, key=of_row.__getitem__)] += 1
    durations: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        durations[row["rank"]].append(row["dur"])
    first = Counter(row["earliest arrival rank"] for row in matched)
    found = []
    for rank in sorted(waits):
        found.append(
            {
                "rank": rank,
                "total_wait_time_us": round(sum(waits[rank]), 1),
                "mean_wait_time_us": round(sum(waits[rank]) / len(waits[rank]), 1),
                "times_arrived_last": last[rank],
                "times_arrived_first": first[rank],
                "pct_arrived_last": round(100 * last[rank] / len(matched), 1),
                "num_collectives": len(matched),
                "total_nccl_dur_us": round(sum(durations[rank]), 1),
            }
        )
    found.sort(key=lambda row: float(row["total_wait_time_us"]))
    return _sheet(found, found[0]) if found else {}


# --------------------------------------------------------------------------------------- sheets


def collective_sheets(parts: Sequence[RankTrace]) -> dict[str, Sheet]:
    """Every sheet of TraceLens's report of the collectives of all ranks; none without collectives.

    Ranks of one node are as many as the first trace knows devices, as there. Where ranks disagree
    on what a collective is, the first rank's word counts; there an error ends the report.

    Args:
        parts: All ranks, in order.
    """
    rows = collectives_of(parts)
    if not rows:
        return {}
    implicit, variable = [], []
    # The n-th collective of a group on each rank is one collective.
    for members in _grouped(rows, ("collective_id",)).values():
        kind = _KIND_OF.get(members[0]["Collective name"])
        if kind == _VARIABLE:
            variable.append(_variable(members))
        elif kind is not None or members[0]["by_order"]:
            implicit.append(_implicit(kind, members))
    variable.sort(key=lambda row: -float(row["total data communicated (MB)"]))
    sheets = {
        "nccl_summary_implicit_sync": _summary_implicit(implicit),
        "nccl_summary_long": summary_long(rows),
        "nccl_summary_all2allv": _summary_variable(variable),
        "nccl_long": _sheet(rows, _LONG),
        "nccl_implicit_sync": _with_ranks(implicit),
        "nccl_all2allv": _with_ranks(variable),
        "straggler_summary": _stragglers(implicit, rows),
    }
    optional = ("nccl_summary_all2allv", "nccl_all2allv", "straggler_summary")
    sheets = {name: sheet for name, sheet in sheets.items() if sheet or name not in optional}
    per_node = len(parts[0].table.devices)
    for sheet in sheets.values() if per_node else ():
        if "rank" in sheet:
            sheet["node_id"] = [rank // per_node for rank in sheet["rank"]]
        if "Process Group Ranks" in sheet:
            spans = []
            for text in sheet["Process Group Ranks"]:
                nodes = {int(rank) // per_node for rank in re.findall(r"\d+", text or "")}
                several = "inter_node" if len(nodes) > 1 else "intra_node"
                spans.append(several if nodes else "unknown")
            sheet["node_span"] = spans
    return sheets
