"""Event replay: an operator of a trace as a stand-alone script, timed on the device at hand.

    result = replay(trace, row=1234)          # or op="aten::mm"
    print(result.script, result.time_ns)

The overload comes from torch's own registry, the inputs from the recorded shapes, strides, types
and concrete values. Only operators that calculate are called (`allowed.py`), on bounded sizes;
operators that cannot be rebuilt are named with the reason (docs/roofline.md).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from difflib import get_close_matches
from itertools import islice
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.compat.replay.allowed import check_name
from torchtraceap.compat.replay.arguments import plan_call
from torchtraceap.compat.replay.call import (
    DIMS_KEYS,
    STRIDES_KEY,
    TYPES_KEY,
    VALUES_KEY,
    NotReplayableError,
    call_from_texts,
    text_of_args,
    with_surroundings,
)
from torchtraceap.compat.replay.plan import CallPlan
from torchtraceap.compat.replay.schema import require_torch
from torchtraceap.compat.replay.script import check_device, has_kernel, render_script, time_call
from torchtraceap.core.columns import Column, encode_texts
from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable
from torchtraceap.core.sums import total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.tables.grouping import Groups, order_by
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["ReplayResult", "find_replayable", "replay", "replay_script"]

MAX_NAME, MAX_NAMES = 100, 2000  # characters and names that are compared for similar ones
_COPIES = frozenset({"aten::copy_", "aten::to", "aten::_to_copy"})


@dataclass(frozen=True, slots=True)
class ReplayResult(Renderable):
    """An operator of a trace, run again."""

    op: str
    overload: str
    """The overload as torch spells it: `aten::add.Tensor`."""
    row: int
    device: str
    script: str
    """A script that reproduces the call with PyTorch only."""
    time_ns: float
    """Median time of a call here."""
    iqr_ns: float
    """Distance of the quartiles of that time."""
    samples: int
    """Measurements behind the median."""
    measured_in_trace_ns: int
    measured: str
    """The kind of time in the trace: "gpu" (union of the GPU events launched) or "host"."""
    notes: tuple[str, ...]
    """Assumptions, and why the two times may differ."""

    def to_dict(self) -> dict[str, Any]:
        """The document `torchtraceap.replay/1`."""
        return {"schema": "torchtraceap.replay/1", **asdict(self), "notes": list(self.notes)}


def replay(
    trace: Ranks,
    row: int | None = None,
    *,
    op: str | None = None,
    rank: int | None = None,
    device: str = "cpu",
    min_run_time: float = 0.5,
) -> ReplayResult:
    """Run an operator of the trace again and time it.

    Args:
        trace: Recorded with `record_shapes=True`.
        row: The operator's row.
        op: Instead of a row a name, such as "aten::mm": its longest call.
        rank: The rank; by default the first.
        device: The device to run on, as torch names it.
        min_run_time: Seconds to measure at least.

    Raises:
        OptionError: No such row or operator, it cannot be rebuilt, or it does not run here.
        MissingDependencyError: torch is not installed.
    """
    if not 0 < min_run_time <= 3600:
        raise OptionError(f"min_run_time must lie between 0 and 3600 seconds, not {min_run_time}")
    check_device(device)
    part = trace.rank(rank)
    row = _chosen_row(part, row, op)
    plan = _plan_row(part, row)
    script = _script(part, row, plan)
    timing = time_call(plan.operator, script, device, min_run_time=min_run_time)
    measured_ns, measured = _measured(part, row)
    notes = list(plan.notes)
    on_host = check_device(device).type == "cpu"
    if measured == "gpu" and on_host:
        notes.append("the trace has the time on its GPU, the replay that on this CPU")
    if measured == "gpu" and not on_host:
        notes.append("a replay counts the time between calls too, if the GPU waits for the host")
    if any(argument.written for argument in plan.operator.arguments):
        notes.append("the operator writes to its inputs: later calls meet the results of earlier")
    return ReplayResult(
        plan.operator.qualified,
        plan.operator.full_name,
        row,
        device,
        script,
        *timing,
        measured_ns,
        measured,
        tuple(notes),
    )


def replay_script(
    trace: Ranks, row: int | None = None, *, op: str | None = None, rank: int | None = None
) -> str:
    """A script that calls an operator of the trace again, without running it.

    Raises:
        OptionError: No such row or operator, or it cannot be rebuilt.
        MissingDependencyError: torch, whose registry has the schemas, is not installed.
    """
    require_torch()
    part = trace.rank(rank)
    row = _chosen_row(part, row, op)
    return _script(part, row, _plan_row(part, row))


def find_replayable(
    trace: Ranks, limit: int = 1000, *, rank: int | None = None, device: str = "cpu"
) -> ColumnTable:
    """Operators with unique arguments, by their GPU time, and whether each can be rebuilt.

    Args:
        trace: One trace.
        limit: Only the first so many.
        rank: The rank; by default the first.
        device: For the column `runs_here`: has the operator an implementation for it?

    Raises:
        MissingDependencyError: torch is not installed.
    """
    if limit < 1:
        raise OptionError(f"limit must be at least 1, not {limit}")
    check_device(device)
    part = trace.rank(rank)
    table = part.table
    rows = np.flatnonzero((table.kind == _core.EventKind.CPU_OP) & table.complete)
    keys = (*DIMS_KEYS, TYPES_KEY, STRIDES_KEY, VALUES_KEY)
    codes = [table.text_codes(key, rows)[0] for key in keys]
    groups = Groups(table.name[rows].astype(np.int64), *codes)
    gpu_ns = groups.sum(part.costs.own_gpu_ns[rows])
    host_ns = groups.sum(part.table.dur_ns[rows])
    order = order_by(gpu_ns, host_ns, descending=(True, True))
    chosen = order[:limit]
    representatives = [int(rows[groups.first[group]]) for group in chosen]
    tried = [_try_plan(part, row) for row in representatives]
    plans, why = [plan for plan, _ in tried], [text for _, text in tried]
    total_ns = total(part.costs.own_gpu_ns)
    known = np.array([plan is not None for plan in plans], dtype=bool)
    names = table.strings
    columns: dict[str, Column] = {
        "op": encode_texts(names[table.name[row]] for row in representatives),
        "overload": encode_texts(plan.operator.full_name if plan else None for plan in plans),
        "calls": groups.count[chosen],
        "gpu_time_ns": gpu_ns[chosen],
        "gpu_time_share": gpu_ns[chosen] / total_ns if total_ns else np.full(len(chosen), np.nan),
        "host_time_ns": host_ns[chosen],
        "replayable": known,
        "why": encode_texts(why),
        "runs_here": np.array(
            [plan is not None and has_kernel(plan.operator, device) for plan in plans], dtype=bool
        ),
        "input_bytes": np.ma.array(
            [plan.input_bytes if plan else 0 for plan in plans], mask=~known, dtype=np.int64
        ),
        "row": np.asarray(representatives, dtype=np.int64),
    }
    facts = {
        "unique_calls": len(groups),
        "examined": len(chosen),
        "replayable": int(known.sum()),
        "replayable_gpu_share": float(gpu_ns[chosen][known].sum() / total_ns) if total_ns else None,
    }
    notes = []
    if not len(groups):
        notes.append("the trace has no operators")
    elif facts["replayable_gpu_share"] is not None:
        notes.append(
            f"{facts['replayable']} of {facts['examined']} calls with unique arguments can be "
            f"rebuilt; they own {facts['replayable_gpu_share']:.1%} of the GPU time that calls own"
        )
    if len(chosen) < len(groups):
        notes.append(f"{len(groups) - len(chosen)} more were not examined")
    if any(plan and text for plan, text in tried):
        notes.append("for a call that can be rebuilt, `why` says what had to be assumed")
    return ColumnTable(
        columns,
        shown=("op", "calls", "gpu_time_ns", "gpu_time_share", "replayable", "why", "row"),
        first=("op", "gpu_time_ns", "replayable", "row", "why"),
        facts=facts,
        notes=notes,
    )


def _chosen_row(part: RankTrace, row: int | None, op: str | None) -> int:
    if (row is None) == (op is None):
        raise OptionError("replay needs a row or the name of an operator")
    if row is not None:
        if not 0 <= row < len(part.table):
            raise OptionError(f"there is no row {row}: the trace has {len(part.table)} events")
        return row
    op, names = str(op), part.table.strings
    rows = np.flatnonzero(part.table.name == names.index(op)) if op in names else np.zeros(0, int)
    if not len(rows):
        # Names that may have been meant, of the first ones that are not too long to compare.
        short = islice((name for name in names if len(name) <= MAX_NAME), MAX_NAMES)
        near = get_close_matches(op[:MAX_NAME], short, n=3, cutoff=0.5)
        similar = f"; similar: {', '.join(ascii(name)[1:-1] for name in near)}" if near else ""
        raise OptionError(f"no event of this rank is named {ascii(op)[:80]}{similar}")
    order = order_by(
        part.costs.subtree_gpu_ns[rows], part.table.dur_ns[rows], descending=(True, True)
    )
    return int(rows[order[0]])


def _try_plan(part: RankTrace, row: int) -> tuple[CallPlan | None, str | None]:
    """Return the plan of a call and its assumptions; None and the reason if it can't be rebuilt."""
    try:
        plan = _plan(part, row)
    except NotReplayableError as reason:
        return None, str(reason)
    return plan, "; ".join(plan.notes) or None


def _plan_row(part: RankTrace, row: int) -> CallPlan:
    try:
        return _plan(part, row)
    except NotReplayableError as reason:
        name = ascii(part.table.name_of(row))[1:-1]
        raise OptionError(f"{name[:80]} (row {row}) cannot be replayed: {reason}") from None


def _plan(part: RankTrace, row: int) -> CallPlan:
    name, texts = part.table.name_of(row), text_of_args(part, row)
    check_name(name)  # rather than missing shapes, say that it is no operator
    call = call_from_texts(name, texts)
    if name in _COPIES or "TensorList" in (texts[1] or ""):
        call = with_surroundings(call, part, row)
    plan = plan_call(call)
    from torchtraceap.compat.replay.extent import made_bytes

    return replace(plan, made_bytes=made_bytes(plan))


def _script(part: RankTrace, row: int, plan: CallPlan) -> str:
    measured_ns, measured = _measured(part, row)
    where = "on the GPU" if measured == "gpu" else "on the host"
    return render_script(
        plan, source=part.path, row=row, measured=f"{measured_ns / 1000:.1f} us {where}"
    )


def _measured(part: RankTrace, row: int) -> tuple[int, str]:
    gpu_ns = int(part.costs.subtree_gpu_ns[row])
    return (gpu_ns, "gpu") if gpu_ns else (int(part.table.dur_ns[row]), "host")
