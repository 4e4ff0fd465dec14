"""The ranks of a job compared with each other: who arrives last, how often and because of what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import Column, encode_json, encode_texts
from torchtraceap.core.formatting import format_ns, format_part, format_share
from torchtraceap.core.sums import total, totals
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.catalog import PageView, TableSpec, check_choice
from torchtraceap.tables.collectives import clock_notes, rank_notes
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.matching import MatchedCollectives, match_collectives, rank_lateness

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["TABLE", "build_ranks"]


LONE = "There is one rank only: nothing to compare it with."


def build_ranks(trace: Ranks, *, by: str = "rank") -> ColumnTable:
    """Build the table of `Trace.ranks_table`. docs/many_ranks.md defines the columns.

    Raises:
        OptionError: Another `by`.
    """
    check_choice("by", by, TABLE.views)
    return _VIEWS[by](match_collectives(trace))


# --- by rank ---


def _by_rank(matched: MatchedCollectives) -> ColumnTable:
    late = rank_lateness(matched.trace)
    ranks = matched.trace.ranks
    timelines = [rank.profiled_timeline() for rank in ranks]
    clocks = matched.clocks
    profiled_ns = np.array([rank.profiled_ns for rank in ranks], dtype=np.int64)
    proven = late.verdict == _STRAGGLER
    behind = proven | (late.verdict == _LATE)
    with np.errstate(divide="ignore", invalid="ignore"):
        last_share = np.where(late.compared > 0, late.times_last / late.compared, np.nan)
        wait_share = np.where(profiled_ns > 0, late.wait_ns / profiled_ns, np.nan)
    columns: dict[str, Column] = {
        "rank": np.asarray(matched.rank_numbers, dtype=np.int64),
        "node": encode_texts(matched.nodes),
        "verdict": encode_texts(_VERDICTS[code] for code in late.verdict.tolist()),
        "cause": encode_texts(
            _cause_name(late, i) if yes else None for i, yes in enumerate(proven.tolist())
        ),
        "cause_share": np.where(behind, late.cause_share, np.nan),
        "lateness_ns": late.lateness_ns,
        "wait_ns": late.wait_ns,
        "wait_share": wait_share,
        "times_last": late.times_last,
        "last_share": last_share,
        "collectives": np.bincount(matched.core.rank, minlength=len(ranks)).astype(np.int64),
        "compared": late.compared,
        **{f"late_{cause}_ns": late.excess_ns[:, code] for code, cause in enumerate(_CAUSES)},
        "steps": np.array([len(rank.tree.steps) for rank in ranks], dtype=np.int64),
        "profiled_ns": profiled_ns,
        **{
            f"{name}_ns": np.array([getattr(t, f"{name}_ns") for t in timelines], dtype=np.int64)
            for name in _TIMELINE
        },
        "offset_ns": np.array([clock.offset_ns for clock in clocks], dtype=np.int64),
        "offset_residual_ns": np.array([clock.residual_ns for clock in clocks], dtype=np.int64),
        "offset_applied": np.array([clock.applied for clock in clocks], dtype=bool),
    }
    notes = [*rank_notes(matched), *clock_notes(matched), *_lateness_notes(matched, late)]
    return ColumnTable(columns, shown=_RANK_SHOWN, notes=notes)


def _cause_name(late: _core.Lateness, i: int) -> str:
    """Return the cause of lateness; for a host that is late its own cause where one is known."""
    cause, idle = _CAUSES[int(late.cause[i])], _IDLE_CAUSES[int(late.host_cause[i])]
    return idle if cause == "host" and idle != "host_wait" else cause


_IDLE_CAUSES = _core.idle_cause_names()
_CAUSES, _VERDICTS = _core.late_cause_names(), _core.rank_verdict_names()
_STRAGGLER, _LATE = _VERDICTS.index("straggler"), _VERDICTS.index("late, cause not proven")
_TIMELINE = ("compute", "exposed_communication", "exposed_memcpy", "idle")
_RANK_SHOWN = (
    "rank",
    "verdict",
    "cause",
    "cause_share",
    "lateness_ns",
    "wait_ns",
    "wait_share",
    "times_last",
    "collectives",
    "compute_ns",
    "exposed_communication_ns",
    "exposed_memcpy_ns",
    "idle_ns",
)


def _lateness_notes(matched: MatchedCollectives, late: _core.Lateness) -> list[str]:
    if len(matched.trace.ranks) == 1:
        return [LONE]
    if not late.compared.any():
        return ["No collective that synchronizes its ranks was matched: lateness can't be told."]
    notes = []
    for i, number in enumerate(matched.rank_numbers):
        if late.verdict[i] not in (_STRAGGLER, _LATE):
            continue
        cause, share = _cause_name(late, i), float(late.cause_share[i])
        because = f"its {_CAUSE_WORDS.get(cause) or format_part(cause)}"
        words = f"Rank {number} arrives {format_ns(int(late.lateness_ns[i]))} late in total"
        if late.verdict[i] == _STRAGGLER:
            notes.append(f"{words}: {format_share(share)} of it by {because}.")
        else:
            notes.append(
                f"{words}, cause not proven: {format_share(share)} of it by {because}, "
                f"less than {format_share(_core.PROVEN_SHARE)}."
            )
    return notes or ["No rank keeps the others waiting for long."]


_CAUSE_WORDS = {
    "compute": "compute kernels",
    "communication": "other collectives",
    "copies": "copies",
    "input": "input pipeline",
    "host": "host (late launches, silence)",
}


# --- by operator ---


def _by_op(matched: MatchedCollectives) -> ColumnTable:
    """Return own GPU time per call of operators that several ranks have with equal shapes."""
    ranks = matched.trace.ranks
    per_rank = [_op_medians(rank) for rank in ranks]
    shared: dict[tuple[str, str], list[tuple[int, float, int]]] = {}
    for index, medians in enumerate(per_rank):
        for key, (median, calls) in medians.items():
            shared.setdefault(key, []).append((index, median, calls))
    rows = []
    for (name, shapes), values in shared.items():
        if len(values) < 2:
            continue
        medians_ns = np.array([median for _, median, _ in values])
        middle = float(np.median(medians_ns))
        slowest = int(np.argmax(medians_ns))
        excess = (float(medians_ns[slowest]) - middle) * values[slowest][2]
        rows.append((excess, name, shapes, values, medians_ns, middle, slowest))
    rows.sort(key=lambda row: (-row[0], row[1], row[2]))
    numbers = matched.rank_numbers
    spread = [(m.max() - m.min()) / mid if mid else np.nan for _, _, _, _, m, mid, _ in rows]
    columns: dict[str, Column] = {
        "name": encode_texts(row[1] for row in rows),
        "input_shapes": encode_texts(row[2] or None for row in rows),
        "ranks": encode_json([numbers[i] for i, _, _ in row[3]] for row in rows),
        "calls": encode_json([calls for _, _, calls in row[3]] for row in rows),
        "median_ns": np.array([row[5] for row in rows], dtype=np.float64),
        "median_by_rank_ns": encode_json([float(m) for m in row[4]] for row in rows),
        "spread_share": np.array(spread, dtype=np.float64),
        "slowest_rank": np.array([numbers[row[3][row[6]][0]] for row in rows], dtype=np.int64),
        "excess_ns": np.array([row[0] for row in rows], dtype=np.float64),
    }
    notes = [*rank_notes(matched)]
    if len(ranks) == 1:
        notes.append(LONE)
    elif not rows:
        notes.append("No operator with GPU work of its own occurs on two ranks.")
    else:
        notes.append(
            "Own GPU time per call, collectives left out; excess is what the slowest rank spends "
            "beyond the median of the ranks."
        )
        if not any(row[2] for row in rows):
            notes.append("Shapes were not recorded: operators of the same name may differ in size.")
    shown = ("name", "input_shapes", "median_ns", "spread_share", "slowest_rank", "excess_ns")
    return ColumnTable(columns, shown=shown, notes=notes)


def _op_medians(rank: RankTrace) -> dict[tuple[str, str], tuple[float, int]]:
    """Return for each (name, shapes) the median of own GPU time, and the number of calls."""
    table, tree, costs = rank.table, rank.tree, rank.costs
    op_kind = _core.EventKind.CPU_OP
    owned = np.asarray(costs.own_gpu_ns) > 0
    is_op = owned & (np.asarray(table.kind) == op_kind)
    gpu = np.asarray(tree.gpu_rows)
    communication = _core.GpuClass.COMMUNICATION
    owners = costs.owner[gpu[tree.gpu_class[gpu] == communication]]
    is_op[owners[owners != _core.NO_ROW]] = False
    rows = np.flatnonzero(is_op)
    if not len(rows):
        return {}
    codes, shapes = table.text_codes("Input Dims", rows)
    groups = Groups(table.name[rows].astype(np.int64), codes.astype(np.int64))
    medians = groups.median(costs.own_gpu_ns[rows])
    result = {}
    for first, median, calls in zip(
        groups.first.tolist(), medians.tolist(), groups.count.tolist(), strict=True
    ):
        code = int(codes[first])
        key = (table.name_of(int(rows[first])), shapes[code] if code >= 0 else "")
        result[key] = (median, calls)
    return result


# --- all to all ---


def _all_to_all(matched: MatchedCollectives) -> ColumnTable:
    """Return the bytes from rank to rank over all uneven all-to-alls.

    By what the sender says; where its file is missing, by what the receiver says.
    """
    entries: dict[tuple[int, int], int] = {}
    core, numbers, kinds = matched.core, matched.rank_numbers, matched.kinds
    splits, here = core.splits, set(numbers)
    for part, sent, received in splits:
        own = numbers[int(core.rank[part])]
        members = list(matched.groups[int(core.group[part])].ranks)
        for place, size in enumerate(sent):
            target = members[place] if place < len(members) else place
            entries[own, target] = entries.get((own, target), 0) + size
        for place, size in enumerate(received):
            source = members[place] if place < len(members) else place
            if source not in here:
                entries[source, own] = entries.get((source, own), 0) + size
    ranks = sorted({rank for pair in entries for rank in pair})
    place_of = {rank: i for i, rank in enumerate(ranks)}
    matrix = np.zeros((len(ranks), len(ranks)), dtype=np.int64)
    for (source, target), size in entries.items():
        matrix[place_of[source], place_of[target]] = size
    moved = total(matrix)
    columns: dict[str, Column] = {
        "source_rank": np.repeat(np.asarray(ranks, dtype=np.int64), len(ranks)),
        "target_rank": np.tile(np.asarray(ranks, dtype=np.int64), len(ranks)),
        "bytes": matrix.ravel(),
        "share": matrix.ravel() / moved if moved else np.zeros(matrix.size),
    }
    facts: dict[str, Any] = {
        "ranks": ranks,
        "matrix_bytes": matrix.tolist(),
        "all_to_all_v": len({int(core.match[part]) for part, _, _ in splits}),
        "sent_imbalance": _imbalance(totals(matrix, 1)),
        "received_imbalance": _imbalance(totals(matrix, 0)),
    }
    if moved:
        worst = ranks[int(totals(matrix, 0).argmax())]
        note = (
            f"Rank {worst} receives most: {facts['received_imbalance']:.2f} times the mean of the "
            "ranks."
        )
    elif "all_to_all_v" in kinds:
        note = "The sizes of the parts were not recorded, or were cut off (beyond 30 ranks)."
    elif "all_to_all" in kinds:
        note = "The all-to-alls have even parts, or their split sizes were not recorded."
    else:
        note = "There is no all-to-all."
    return ColumnTable(columns, facts=facts, notes=[*rank_notes(matched), note])


def _imbalance(totals: Array) -> float | None:
    """Return the largest over the mean; None where that is 0."""
    mean = float(totals.mean()) if len(totals) else 0.0
    return float(totals.max()) / mean if mean else None


# --- clocks ---


def _by_clock(matched: MatchedCollectives) -> ColumnTable:
    clocks = matched.clocks
    numbers = matched.rank_numbers
    columns: dict[str, Column] = {
        "rank": np.asarray(numbers, dtype=np.int64),
        "offset_ns": np.array([clock.offset_ns for clock in clocks], dtype=np.int64),
        "applied": np.array([clock.applied for clock in clocks], dtype=bool),
        "residual_ns": np.array([clock.residual_ns for clock in clocks], dtype=np.int64),
        "uncertainty_ns": np.array([clock.uncertainty_ns for clock in clocks], dtype=np.int64),
        "drift_ppm": np.array([clock.drift * 1e6 for clock in clocks], dtype=np.float64),
        "common_ends": np.array([clock.readings for clock in clocks], dtype=np.int64),
        "reference_rank": np.array([numbers[clock.component] for clock in clocks], dtype=np.int64),
    }
    notes = [*rank_notes(matched), *clock_notes(matched)]
    if len(clocks) == 1:
        notes.append(LONE)
    elif not any(clock.readings for clock in clocks):
        notes.append("No collective that ends on all its ranks at once was matched.")
    return ColumnTable(columns, notes=notes)


_VIEWS = {"rank": _by_rank, "op": _by_op, "alltoall": _all_to_all, "clock": _by_clock}

TABLE = TableSpec(
    build=build_ranks,
    views=tuple(_VIEWS),
    per_rank=False,
    sql={"ranks": {}},
    page=(
        PageView("ranks", "by rank"),
        PageView("ranks", "equal operators", {"by": "op"}, find="name"),
        PageView("ranks", "all-to-all", {"by": "alltoall"}, meter="share"),
        PageView("ranks", "clocks", {"by": "clock"}),
    ),
    first={
        "rank": ("rank", "verdict", "cause", "lateness_ns", "wait_ns"),
        "op": ("name", "input_shapes", "slowest_rank", "excess_ns"),
        "alltoall": ("source_rank", "target_rank", "bytes"),
        "clock": ("rank", "offset_ns", "applied", "uncertainty_ns"),
    },
)
