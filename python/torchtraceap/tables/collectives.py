"""DOC"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, JsonCodes, TextCodes, encode_json, encode_texts
from torchtraceap.core.formatting import format_ns
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.ops.durations.collectives import bus_factor
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.tables.catalog import PageView, TableSpec
from torchtraceap.tables.events import steps_of
from torchtraceap.tables.grouping import rows_by_key
from torchtraceap.tables.matching import MatchedCollectives, match_collectives

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks

__all__ = ["TABLE", "build_collectives", "clock_notes", "rank_notes"]


SHOWN = (
    "name",
    "group",
    "group_size",
    "bytes",
    "transfer_ns",
    "longest_wait_ns",
    "exposed_ns",
    "latest_rank",
    "bus_bandwidth_gb_per_s",
    "step",
)

SHOWN_ALONE = (
    "name",
    "group",
    "group_size",
    "bytes",
    "longest_duration_ns",
    "exposed_ns",
    "phase",
    "step",
)


def build_collectives(trace: Ranks) -> ColumnTable:
    """One row per matched collective, by time. docs/many_ranks.md defines the columns."""
    matched = match_collectives(trace)
    rows = range(matched.matches)
    kinds = matched.kinds
    sizes = [matched.group_size(match) for match in rows]
    missing = matched.missing_ranks
    transfer_ns = _by_match(matched, matched.transfer_ns)
    message = _message_bytes(matched)
    algorithm, bus = _bandwidths(kinds, sizes, message, transfer_ns, matched)
    core = matched.core
    numbers = np.asarray(matched.rank_numbers, dtype=np.int64)
    alone = ~core.comparable
    columns: dict[str, Column] = {
        "name": _first(matched, core.names),
        "kind": encode_texts(kinds),
        "group": encode_texts(matched.groups[g].name or None for g in core.group_of.tolist()),
        "group_description": encode_texts(
            matched.groups[g].description or None for g in core.group_of.tolist()
        ),
        "sequence": _nullable(core.sequence[core.first], _core.NO_ID),
        "ranks": _lists(matched, numbers[core.rank]),
        "group_size": _optional(sizes),
        "dtype": _known(matched, core.dtypes),
        "bytes": _optional(message),
        "transfer_ns": _optional(transfer_ns),
        "exposed_ns": _maximum(matched, core.exposed_ns),
        "wait_ns": _lists(matched, core.wait_ns, core.comparable),
        "longest_wait_ns": _masked(_maximum(matched, core.wait_ns), alone),
        "skew_ns": _masked(_spread(matched, core.start_ns), alone),
        "end_skew_ns": _masked(_spread(matched, core.end_ns), alone),
        "latest_rank": _masked(numbers[np.where(alone, 0, core.latest_rank)], alone),
        "algorithm_bandwidth_gb_per_s": algorithm,
        "bus_bandwidth_gb_per_s": bus,
        "start_ns": _lists(matched, core.start_ns),
        "duration_ns": _lists(matched, matched.duration_ns),
        "longest_duration_ns": _maximum(matched, matched.duration_ns),
        "transfer_by_rank_ns": _lists(matched, matched.transfer_ns, core.comparable),
        "exposed_by_rank_ns": _lists(matched, core.exposed_ns),
        "bytes_by_rank": _lists(matched, core.bytes, absent=_core.NO_ID),
        "row": _lists(matched, core.row.astype(np.int64)),
        "step": _steps(matched),
        "phase": _phases(matched),
        "stream": _streams(matched),
        "node_span": encode_texts(_node_spans(matched)),
        "calls": core.members[core.first].astype(np.int64),
        "missing_ranks": _shared_lists(missing),
        "reason": encode_texts(_reasons(matched, missing)),
    }
    notes = [*rank_notes(matched), *_time_notes(matched, missing)]
    shown = SHOWN if len(trace.ranks) > 1 else SHOWN_ALONE
    return ColumnTable(columns, shown=shown, facts=_facts(matched, missing), notes=notes)


def rank_notes(matched: MatchedCollectives) -> list[str]:
    """What the set of files lacks, and what then cannot be known."""
    notes = []
    codes = {entry.code: entry for entry in matched.trace.diagnostics}
    for code in ("duplicate_rank", "rank_from_order"):
        if code in codes:
            notes.append(f"{codes[code].count} {codes[code].message}.")
    absent = matched.absent_ranks
    present = len(matched.trace.ranks)
    if absent and present > 1:
        listed = ", ".join(str(rank) for rank in absent[:8]) + (", ..." if absent[8:] else "")
        notes.append(
            f"{present} of {matched.world_size} ranks are here (without {listed}): where one of "
            "the others came last, waits are too short and transfers too long."
        )
    steps = {rank.rank: len(rank.tree.steps) for rank in matched.trace.ranks}
    if len(set(steps.values())) > 1:
        counts = ", ".join(f"rank {rank}: {count}" for rank, count in list(steps.items())[:8])
        notes.append(f"The ranks recorded different numbers of steps ({counts}).")
    return notes


def _time_notes(matched: MatchedCollectives, missing: Sequence[Sequence[int]]) -> list[str]:
    if not matched.matches:
        return [_nothing_to_show(matched)]
    if len(matched.trace.ranks) == 1:
        return [
            "One rank alone cannot tell waiting for late ranks from transfer: give the files of "
            "all ranks for wait_ns, transfer_ns and bandwidths. Durations hold both."
        ]
    notes = [*clock_notes(matched)]
    partial = sum(1 for ranks in missing if ranks)
    if partial:
        notes.append(f"{partial} of {matched.matches} rows lack a rank; `reason` says why.")
    return notes


def _nothing_to_show(matched: MatchedCollectives) -> str:
    if not any(len(rank.tree.gpu_rows) for rank in matched.trace.ranks):
        return "There are no collectives: no GPU events and no ranges of a CPU backend (gloo, mpi)."
    return "There are no collectives: no communication kernels, nor ranges of a CPU backend."


def clock_notes(matched: MatchedCollectives) -> list[str]:
    """Which clocks were moved, and which ranks can't be compared in time."""
    clocks = matched.clocks
    numbers = matched.rank_numbers
    applied = [
        f"rank {numbers[i]} by {format_ns(clock.offset_ns)}"
        for i, clock in enumerate(clocks)
        if clock.applied
    ]
    notes = []
    if applied:
        listed = ", ".join(applied[:8]) + (", ..." if applied[8:] else "")
        notes.append(f"Clocks were aligned by the ends of collectives: {listed}.")
    elif any(clock.readings for clock in clocks):
        worst = max(abs(clock.offset_ns) for clock in clocks)
        notes.append(
            f"The ranks' clocks agree (offsets up to {format_ns(worst)}, below what the ends of "
            "collectives can tell): none was moved."
        )
    parts = {clock.component for clock in clocks}
    if len(clocks) > 1 and len(parts) > 1:
        alone = [str(numbers[i]) for i, clock in enumerate(clocks) if not clock.readings]
        which = f": rank {', '.join(alone[:8])}" if alone else ""
        notes.append(
            f"Ranks that share no collective cannot be compared in time ({len(parts)} sets{which})."
        )
    return notes


def _facts(matched: MatchedCollectives, missing: Sequence[Sequence[int]]) -> dict[str, Any]:
    duration = total(matched.duration_ns[matched.core.comparable[matched.core.match]])
    wait = total(matched.core.wait_ns)
    return {
        "ranks": matched.rank_numbers,
        "world_size": matched.world_size,
        "absent_ranks": matched.absent_ranks,
        "collectives_with_all_ranks": sum(1 for ranks in missing if not ranks),
        "collectives_lacking_a_rank": sum(1 for ranks in missing if ranks),
        "duration_sum_ns": duration,
        "wait_sum_ns": wait,
        "wait_share": wait / duration if duration else None,
    }


# --- columns ---


def _by_match(matched: MatchedCollectives, values: Array) -> list[int | None]:
    """Median over the ranks; None where nothing is comparable."""
    medians = (round(float(np.median(values[part]))) for part in matched.parts_by_match)
    known = matched.core.comparable.tolist()
    return [value if ok else None for value, ok in zip(medians, known, strict=True)]


def _message_bytes(matched: MatchedCollectives) -> list[int | None]:
    """The largest over the ranks: it sets the time."""
    largest = _maximum(matched, np.where(matched.core.bytes == _core.NO_ID, -1, matched.core.bytes))
    return [value if value >= 0 else None for value in largest.tolist()]


def _bandwidths(
    kinds: Sequence[str],
    sizes: Sequence[int | None],
    message: Sequence[int | None],
    transfer_ns: Sequence[int | None],
    matched: MatchedCollectives,
) -> tuple[Array, Array]:
    algorithm = np.full(len(kinds), np.nan)
    factor = np.full(len(kinds), np.nan)
    for i, (kind, size, volume, time_ns) in enumerate(
        zip(kinds, sizes, message, transfer_ns, strict=True)
    ):
        if volume and time_ns and kind not in ("barrier", "unknown"):
            algorithm[i] = volume / time_ns  # bytes per ns are GB per s
            factor[i] = bus_factor(kind, size or int(matched.core.count[i]))
    return algorithm, algorithm * factor


def _lists(
    matched: MatchedCollectives,
    values: Array,
    known: Array | None = None,
    *,
    absent: int | None = None,
) -> TextCodes:
    plain = values.tolist()
    if absent is not None:
        plain = [None if value == absent else value for value in plain]
    chosen = [True] * matched.matches if known is None else known.tolist()
    parts = zip(matched.parts_by_match, chosen, strict=True)
    return encode_json(plain[part] if ok else None for part, ok in parts)


def _shared_lists(values: Sequence[Sequence[int]]) -> TextCodes:
    """Each distinct list is written once; empty ones are absent."""
    codes: dict[int, int] = {}
    texts: list[str] = []
    column = np.full(len(values), -1, dtype=np.int32)
    for i, value in enumerate(values):
        if not value:
            continue
        code = codes.setdefault(id(value), len(texts))
        if code == len(texts):
            texts.append(json.dumps(list(value), separators=(",", ":")))
        column[i] = code
    return JsonCodes(column, texts)


def _maximum(matched: MatchedCollectives, values: Array) -> Array:
    if not matched.matches:
        return np.zeros(0, dtype=np.int64)
    largest: Array = np.maximum.reduceat(values, matched.core.first)
    return largest


def _spread(matched: MatchedCollectives, values: Array) -> Array:
    if not matched.matches:
        return np.zeros(0, dtype=np.int64)
    low = np.minimum.reduceat(values, matched.core.first)
    spread: Array = np.maximum.reduceat(values, matched.core.first) - low
    return spread


def _masked(values: Array, mask: Array) -> Array:
    return np.ma.array(values, mask=mask)


def _nullable(values: Array, absent: int) -> Array:
    return np.ma.array(values, mask=values == absent)


def _optional(values: Sequence[int | None]) -> Array:
    filled = np.array([0 if value is None else value for value in values], dtype=np.int64)
    return np.ma.array(filled, mask=[value is None for value in values])


def _first(matched: MatchedCollectives, texts: Sequence[str]) -> TextCodes:
    """The shortest that a rank has: what annotations say is shorter than kernels' names."""
    names = (min(texts[part], key=len) for part in matched.parts_by_match)
    return encode_texts(canonical_name(n) if "(" in n else n or None for n in names)


def _known(matched: MatchedCollectives, texts: Sequence[str]) -> TextCodes:
    return encode_texts(next(filter(None, texts[p]), None) for p in matched.parts_by_match)


def _leaders(matched: MatchedCollectives) -> list[tuple[int, Array, Array]]:
    """For each rank: its index, the matches that it leads (as first part), and their rows."""
    ranks = matched.core.rank[matched.core.first]
    rows = matched.core.row[matched.core.first]
    return [(rank, chosen, rows[chosen]) for rank, chosen in rows_by_key(ranks)]


def _steps(matched: MatchedCollectives) -> TextCodes:
    names: list[str | None] = [None] * matched.matches
    for index, chosen, rows in _leaders(matched):
        steps = steps_of(matched.trace.ranks[index], rows).to_list()
        for match, name in zip(chosen.tolist(), steps, strict=True):
            names[match] = name
    return encode_texts(names)


def _phases(matched: MatchedCollectives) -> TextCodes:
    codes = np.zeros(matched.matches, dtype=np.int32)
    for index, chosen, rows in _leaders(matched):
        codes[chosen] = matched.trace.ranks[index].tree.phase[rows]
    return TextCodes(codes, _core.phase_names())


def _streams(matched: MatchedCollectives) -> Array:
    streams = np.full(matched.matches, _core.NO_ID, dtype=np.int64)
    for index, chosen, rows in _leaders(matched):
        streams[chosen] = matched.trace.ranks[index].table.stream[rows]
    return _nullable(streams, _core.NO_ID)


def _node_spans(matched: MatchedCollectives) -> list[str | None]:
    """`intra` where all ranks of the group sit in one machine, `inter` where they don't."""
    nodes = dict(zip(matched.rank_numbers, matched.nodes, strict=True))
    numbers = matched.rank_numbers
    ranks = matched.core.rank.tolist()
    groups = matched.core.group_of.tolist()
    cache: dict[tuple[int, tuple[int, ...]], str | None] = {}
    result = []
    for match, part in enumerate(matched.parts_by_match):
        group = -1 if matched.kinds[match] == "send_recv" else groups[match]
        key = (group, tuple(ranks[part]))
        if key not in cache:
            members = {numbers[rank] for rank in ranks[part]}
            if group >= 0:
                members.update(matched.expected_ranks[group])
            cache[key] = _span({nodes.get(rank) for rank in members}, len(members))
        result.append(cache[key])
    return result


def _span(places: set[str | None], ranks: int) -> str | None:
    known = places - {None}
    if len(known) > 1:
        return "inter"
    return "intra" if None not in places and ranks > 1 else None


def _reasons(matched: MatchedCollectives, missing: Sequence[Sequence[int]]) -> list[str | None]:
    index = {number: i for i, number in enumerate(matched.rank_numbers)}
    ends = _maximum(matched, matched.core.end_ns).tolist()
    starts = matched.core.latest_start_ns.tolist()
    no_file: dict[int, list[int]] = {}  # by identity of the list: there are few, and long ones
    reasons: list[str | None] = []
    for match, ranks in enumerate(missing):
        absent = no_file.setdefault(id(ranks), [rank for rank in ranks if rank not in index])
        words = {"no file": absent} if absent else {}
        for rank in ranks if len(absent) < len(ranks) else ():
            if rank in index:
                why = _why(matched, index[rank], starts[match], ends[match])
                words.setdefault(why, []).append(rank)
        reason = "; ".join(_say(why, who) for why, who in words.items()) or None
        if reason is None and matched.core.count[match] == 1 and not _is_lone_group(matched, match):
            reason = _why_lone(matched, match)
        reasons.append(reason)
    return reasons


def _is_lone_group(matched: MatchedCollectives, match: int) -> bool:
    return matched.group_size(match) == 1


def _why_lone(matched: MatchedCollectives, match: int) -> str | None:
    if matched.kinds[match] in ("send", "recv"):
        return "the trace does not say which rank is on the other side"
    if matched.absent_ranks:
        return "files of other ranks are not here"
    return None


def _why(matched: MatchedCollectives, rank: int, start_ns: int, end_ns: int) -> str:
    if not matched.clocks[rank].readings:
        return "its clock cannot be compared, no such collective"
    first_ns, last_ns = matched.recorded_ns[rank].tolist()
    if end_ns <= first_ns:
        return "not recording yet"
    if start_ns >= last_ns:
        return "recording was over"
    return "no such collective"


def _say(why: str, ranks: Sequence[int]) -> str:
    listed = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if ranks[8:] else "")
    return f"rank {listed}: {why}"


TABLE = TableSpec(
    build=build_collectives,
    per_rank=False,
    sql={"collectives": {}},
    page=(
        PageView(
            "collectives",
            "collectives",
            hint="Transfer: from the last arrival to the end. Wait: what comes before it.",
        ),
    ),
    first=(
        *("name", "step", "longest_wait_ns", "transfer_ns"),
        *("exposed_ns", "longest_duration_ns", "bytes", "latest_rank"),
    ),
)
