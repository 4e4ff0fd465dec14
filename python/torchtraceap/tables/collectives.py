"""One row per collective of the job, with what each rank gave and waited."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from torchtraceap.tables.gpu.gpu_events import masked_integers
from torchtraceap.tables.grouping import rows_by_key, steps_of
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
    """Build a table of matched collectives by time. docs/many_ranks.md defines the columns."""
    matched = match_collectives(trace)
    core, missing = matched.core, matched.missing_ranks
    duration_ns = total(matched.duration_ns[core.split[core.match]])
    wait_ns = total(core.wait_ns)
    partial = sum(1 for ranks in missing if ranks)
    facts = {
        "ranks": matched.rank_numbers,
        "world_size": matched.world_size,
        "absent_ranks": matched.absent_ranks,
        "collectives_with_all_ranks": len(missing) - partial,
        "collectives_lacking_a_rank": partial,
        "duration_sum_ns": duration_ns,
        "wait_sum_ns": wait_ns,
        "wait_share": wait_ns / duration_ns if duration_ns else None,
    }
    notes = rank_notes(matched)
    if not matched.matches:
        notes.append(
            "There are no collectives: no communication kernels, nor ranges of a CPU backend."
            if any(len(rank.tree.gpu_rows) for rank in trace.ranks)
            else "There are no collectives: no GPU events and no ranges of a CPU backend (gloo, "
            "mpi)."
        )
    elif len(trace.ranks) == 1:
        notes.append(
            "One rank alone cannot tell waiting for late ranks from transfer, but where kernels of "
            "equal work repeat: give the files of all ranks for wait_ns, transfer_ns and "
            "bandwidths. Durations hold both."
        )
    else:
        notes += clock_notes(matched)
        if partial:
            notes.append(f"{partial} of {matched.matches} rows lack a rank; `reason` says why.")
    shown = SHOWN if len(trace.ranks) > 1 else SHOWN_ALONE
    return ColumnTable(_columns(matched), shown=shown, facts=facts, notes=notes)


def _columns(matched: MatchedCollectives) -> dict[str, Column]:
    core, kinds, parts = matched.core, matched.kinds, matched.parts_by_match
    sizes = [matched.group_size(match) for match in range(matched.matches)]
    alone, unsplit = ~core.comparable, ~core.split
    # The median over the ranks; of the messages the largest sets the time.
    transfer_ns = [
        None if lone else round(float(np.median(matched.transfer_ns[part])))
        for part, lone in zip(parts, unsplit.tolist(), strict=True)
    ]
    message = _maximum(matched, np.where(core.bytes == _core.NO_ID, -1, core.bytes))
    algorithm = np.full(len(kinds), np.nan)
    factor = np.full(len(kinds), np.nan)
    for i, (kind, size, volume, time_ns) in enumerate(
        zip(kinds, sizes, message.tolist(), transfer_ns, strict=True)
    ):
        if volume > 0 and time_ns and kind not in ("barrier", "unknown"):
            algorithm[i] = volume / time_ns  # bytes per ns are GB per s
            factor[i] = bus_factor(kind, size or int(core.count[i]))
    numbers = np.asarray(matched.rank_numbers, dtype=np.int64)
    groups = [matched.groups[group] for group in core.group_of.tolist()]
    sequence, experts = core.sequence[core.first], core.experts[core.first]
    # The shortest name that a rank has: what annotations say is shorter than kernels' names.
    all_names, dtypes = core.names, core.dtypes  # new lists each time
    names = (min(all_names[part], key=len) for part in parts)
    return {
        "name": encode_texts(canonical_name(n) if "(" in n else n or None for n in names),
        "kind": encode_texts(kinds),
        "group": encode_texts(group.name or None for group in groups),
        "group_description": encode_texts(group.description or None for group in groups),
        "sequence": np.ma.array(sequence, mask=sequence == _core.NO_ID),
        "ranks": _lists(matched, numbers[core.rank]),
        "group_size": masked_integers(sizes),
        "dtype": encode_texts(next(filter(None, dtypes[part]), None) for part in parts),
        "bytes": np.ma.array(np.where(message < 0, 0, message), mask=message < 0),
        "experts": np.ma.array(experts, mask=experts == _core.NO_ID),
        "transfer_ns": masked_integers(transfer_ns),
        "exposed_ns": _maximum(matched, core.exposed_ns),
        "wait_ns": _lists(matched, core.wait_ns, core.split),
        "longest_wait_ns": np.ma.array(_maximum(matched, core.wait_ns), mask=unsplit),
        "skew_ns": np.ma.array(_spread(matched, core.start_ns), mask=alone),
        "end_skew_ns": np.ma.array(_spread(matched, core.end_ns), mask=alone),
        "latest_rank": np.ma.array(numbers[np.where(alone, 0, core.latest_rank)], mask=alone),
        "algorithm_bandwidth_gb_per_s": algorithm,
        "bus_bandwidth_gb_per_s": algorithm * factor,
        "start_ns": _lists(matched, core.start_ns),
        "duration_ns": _lists(matched, matched.duration_ns),
        "longest_duration_ns": _maximum(matched, matched.duration_ns),
        "transfer_by_rank_ns": _lists(matched, matched.transfer_ns, core.split),
        "exposed_by_rank_ns": _lists(matched, core.exposed_ns),
        "bytes_by_rank": _lists(matched, core.bytes, absent=_core.NO_ID),
        "row": _lists(matched, core.row.astype(np.int64)),
        **_of_first_rank(matched),
        "node_span": encode_texts(_node_spans(matched)),
        "calls": core.members[core.first].astype(np.int64),
        "missing_ranks": _shared_lists(matched.missing_ranks),
        "reason": encode_texts(_reasons(matched)),
    }


def rank_notes(matched: MatchedCollectives) -> list[str]:
    """Return what the set of files lacks, and what then cannot be known."""
    notes = []
    codes = {entry.code: entry for entry in matched.trace.diagnostics}
    for code in ("duplicate_rank", "rank_from_order"):
        if code in codes:
            notes.append(f"{codes[code].count} {codes[code].message}.")
    absent = matched.absent_ranks
    present = len(matched.trace.ranks)
    if absent and present > 1:
        notes.append(
            f"{present} of {matched.world_size} ranks are here (without {_first_few(absent)}): "
            "where one of the others came last, waits are too short and transfers too long."
        )
    steps = {rank.rank: len(rank.tree.steps) for rank in matched.trace.ranks}
    if len(set(steps.values())) > 1:
        counts = ", ".join(f"rank {rank}: {count}" for rank, count in list(steps.items())[:8])
        notes.append(f"The ranks recorded different numbers of steps ({counts}).")
    return notes


def clock_notes(matched: MatchedCollectives) -> list[str]:
    """Return which clocks were moved, and which ranks can't be compared in time."""
    clocks = matched.clocks
    numbers = matched.rank_numbers
    applied = [
        f"rank {numbers[i]} by {format_ns(clock.offset_ns)}"
        for i, clock in enumerate(clocks)
        if clock.applied
    ]
    notes = []
    if applied:
        listed = _first_few(applied)
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


# --- columns ---


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
    """Return lists as JSON, of which each distinct one is written once; empty ones are absent."""
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


def _of_first_rank(matched: MatchedCollectives) -> dict[str, Column]:
    """Return step, phase and stream of each match, those of its first rank."""
    steps: list[str | None] = [None] * matched.matches
    phases = np.zeros(matched.matches, dtype=np.int32)
    streams = np.full(matched.matches, _core.NO_ID, dtype=np.int64)
    first = matched.core.first
    for index, chosen in rows_by_key(matched.core.rank[first]):
        rank, rows = matched.trace.ranks[index], matched.core.row[first[chosen]]
        for match, name in zip(chosen.tolist(), steps_of(rank, rows).to_list(), strict=True):
            steps[match] = name
        phases[chosen] = rank.tree.phase[rows]
        streams[chosen] = matched.streams_of(index, rows)
    return {
        "step": encode_texts(steps),
        "phase": TextCodes(phases, _core.phase_names()),
        "stream": np.ma.array(streams, mask=streams == _core.NO_ID),
    }


def _node_spans(matched: MatchedCollectives) -> list[str | None]:
    """Return `intra` where all ranks of the group sit in one machine, `inter` where they don't."""
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
            places = {nodes.get(rank) for rank in members}
            cache[key] = "intra" if None not in places and len(members) > 1 else None
            if len(places - {None}) > 1:
                cache[key] = "inter"
        result.append(cache[key])
    return result


def _reasons(matched: MatchedCollectives) -> list[str | None]:
    """Return for each match why ranks are missing; None if none is, or nothing tells."""
    index = {number: i for i, number in enumerate(matched.rank_numbers)}
    ends = _maximum(matched, matched.core.end_ns).tolist()
    starts = matched.core.latest_start_ns.tolist()
    no_file: dict[int, list[int]] = {}  # by identity of the list: there are few, and long ones
    reasons: list[str | None] = []
    for match, ranks in enumerate(matched.missing_ranks):
        absent = no_file.setdefault(id(ranks), [rank for rank in ranks if rank not in index])
        words = {"no file": absent} if absent else {}
        for rank in ranks if len(absent) < len(ranks) else ():
            if rank not in index:
                continue
            first_ns, last_ns = matched.recorded_ns[index[rank]].tolist()
            if not matched.clocks[index[rank]].readings:
                why = "its clock cannot be compared, no such collective"
            elif ends[match] <= first_ns:
                why = "not recording yet"
            elif starts[match] >= last_ns:
                why = "recording was over"
            else:
                why = "no such collective"
            words.setdefault(why, []).append(rank)
        reason = "; ".join(f"rank {_first_few(who)}: {why}" for why, who in words.items()) or None
        if not reason and matched.core.count[match] == 1 and matched.group_size(match) != 1:
            if matched.kinds[match] in ("send", "recv"):
                reason = "the trace does not say which rank is on the other side"
            elif matched.absent_ranks:
                reason = "files of other ranks are not here"
        reasons.append(reason)
    return reasons


def _first_few(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:8])) + (", ..." if items[8:] else "")


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
