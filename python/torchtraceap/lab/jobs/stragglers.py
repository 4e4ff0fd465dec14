"""The cost of stragglers: a job is replayed as if all operators of a type took equally long.

Definitions of Lin et al. (OSDI 2025), which docs/many_ranks.md states with their units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtraceap.core import Array, ColumnTable, PathLike, dataclass, encode_texts
from torchtraceap.errors import OptionError
from torchtraceap.lab.jobs.op_trace import OperatorTrace, read_operator_trace
from torchtraceap.lab.jobs.schedule import COMMUNICATION, Schedule, build_schedule
from torchtraceap.tables import Groups

__all__ = ["StragglerReport", "ideal_work", "what_if_stragglers"]

MERGED = {
    "forward-send": "forward-pp-comm",
    "forward-recv": "forward-pp-comm",
    "backward-send": "backward-pp-comm",
    "backward-recv": "backward-pp-comm",
}
"""Types that are shown as one."""
WORST_WORKERS = 0.03
"""Share of the workers whose repair M_W describes; at least one worker."""
TRUSTED = 0.05
"""Difference between measured and replayed step time above which a note warns."""


@dataclass(frozen=True)
class StragglerReport:
    """The loss of a job to operators that take longer than others of their type.

    Times of steps are means over the steps of the trace, in ns.
    """

    measured_ns: float
    """The recorded step time."""
    undelayed_ns: float
    """The replayed step time if every operator begins as soon as its inputs are ready."""
    ideal_ns: float
    """The replayed step time without stragglers: see `ideal_work`."""
    steps: ColumnTable
    """Table with a row for each step."""
    attribution: ColumnTable
    """The contribution of each replica, stage, type of operator and worker to the slowdown."""
    last_stage_share: float
    """M_S: share of the loss that is gone if the last stage is ideal; NaN without a loss."""
    worst_workers_share: float
    """M_W: the same for the worst 3 % of the workers."""
    worst_workers: tuple[int, ...]
    """The ranks of these workers."""
    notes: tuple[str, ...]
    """Assumptions of the result, and what the trace lacks."""

    @property
    def slowdown(self) -> float:
        """S: step time of the job over step time without stragglers."""
        return _ratio(self.undelayed_ns, self.ideal_ns)

    @property
    def delay_slowdown(self) -> float:
        """Measured step time over step time without launch delays, which the model does not
        explain."""
        return _ratio(self.measured_ns, self.undelayed_ns)

    @property
    def wasted_share(self) -> float:
        """Share of the step time, without launch delays, that stragglers cost."""
        return 1 - _ratio(self.ideal_ns, self.undelayed_ns)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; absent ones are None."""
        facts = {
            "measured_step_ns": self.measured_ns,
            "undelayed_step_ns": self.undelayed_ns,
            "ideal_step_ns": self.ideal_ns,
            "slowdown": self.slowdown,
            "delay_slowdown": self.delay_slowdown,
            "wasted_share": self.wasted_share,
            "last_stage_share": self.last_stage_share,
            "worst_workers_share": self.worst_workers_share,
        }
        return {
            **{key: None if value != value else value for key, value in facts.items()},
            "worst_workers": list(self.worst_workers),
            "steps": self.steps.to_dict(),
            "attribution": self.attribution.to_dict(),
            "notes": list(self.notes),
        }


def what_if_stragglers(
    trace: PathLike | OperatorTrace, *, by: Sequence[str] = ("dp_rank", "stage", "op_type")
) -> StragglerReport:
    """Compute how much faster a job is without stragglers, and which members they are.

    Args:
        trace: A file for `read_operator_trace`, or what that returned.
        by: Kinds of members to blame: `dp_rank`, `stage`, `op_type`, `rank`. Each member
            costs two replays; `rank` has as many as the job has workers.

    Raises:
        ParseError: The file is no such trace, or its order contradicts itself.
        OptionError: `by` names something else.
    """
    if not isinstance(trace, OperatorTrace):
        trace = read_operator_trace(trace)
    schedule = build_schedule(trace)
    replays = _Replays(schedule)
    kinds = {name: _members(trace, name) for name in dict.fromkeys(by)}
    located = {name: kinds.get(name) or _members(trace, name) for name in ("dp_rank", "stage")}
    only = {  # mean step times if only one member is as recorded
        name: [replays.mean_step_ns(key == number) for number in range(len(labels))]
        for name, (key, labels) in {**located, **kinds}.items()
    }
    # The workers whose replica and stage are both slow, by the smaller of the two slowdowns.
    ideal_ns = max(float(replays.ideal.mean()), 1.0)
    workers = Groups(trace.rank).first
    by_replica, by_stage = (
        np.array(only[name])[key[workers]] / ideal_ns for name, (key, _) in located.items()
    )
    ranks = trace.rank[workers]
    count = -int(-WORST_WORKERS * len(ranks) // 1)
    worst = ranks[np.lexsort((ranks, -np.minimum(by_replica, by_stage)))[:count]].tolist()
    measured = schedule.measured_step_ns
    steps = ColumnTable(
        {
            "step": schedule.steps,
            "measured_ns": measured,
            "undelayed_ns": replays.undelayed,
            "ideal_ns": replays.ideal,
            "slowdown": replays.undelayed / np.maximum(replays.ideal, 1),
            "delay_slowdown": measured / np.maximum(replays.undelayed, 1),
        }
    )
    notes = [
        f"{len(trace):,} operators of {len(workers)} workers in {len(schedule.steps)} steps: "
        f"{trace.stages} stages, {len(np.unique(trace.dp_rank))} replicas; step times vary by "
        f"{float(measured.std() / measured.mean()):.1%}."
    ]
    delayed = _ratio(float(measured.mean()), float(replays.undelayed.mean()))
    if abs(delayed - 1) > TRUSTED:
        notes.append(
            f"Measured steps take {delayed - 1:+.1%} of what the dependencies explain: read "
            "the slowdown with care (data loading and other host work is not in the trace)."
        )
    return StragglerReport(
        measured_ns=float(measured.mean()),
        undelayed_ns=float(replays.undelayed.mean()),
        ideal_ns=float(replays.ideal.mean()),
        steps=steps,
        attribution=_attribution(replays, kinds, only),
        last_stage_share=replays.recovered_share(trace.stage == trace.stage.max()),
        worst_workers_share=replays.recovered_share(np.isin(trace.rank, worst)),
        worst_workers=tuple(worst),
        notes=(*notes, *schedule.notes),
    )


def _attribution(
    replays: _Replays, kinds: dict[str, tuple[Array, list[str]]], only: dict[str, list[float]]
) -> ColumnTable:
    """Return a table of the members of each kind, the largest slowdown first.

    Args:
        replays: Step times of the job.
        kinds: Number of each operator's member, and names of the members, by kind.
        only: Mean step times if only one member is as recorded, ns.
    """
    ideal_ns = float(replays.ideal.mean())
    by_column, member = list[str](), list[str]()
    columns: list[tuple[Array, Array, Array]] = []
    for name, (key, labels) in kinds.items():
        only_ns = np.array(only[name])
        slowdowns = only_ns / max(ideal_ns, 1.0)
        recovered = np.array(
            [replays.recovered_share(key == number) for number in range(len(labels))]
        )
        order = np.argsort(-slowdowns, kind="stable")
        by_column += [name] * len(order)
        member += [labels[i] for i in order.tolist()]
        added = only_ns[order] - ideal_ns
        columns.append((slowdowns[order], added, recovered[order]))
    parts = zip(*columns, strict=True) if columns else [[np.zeros(0)]] * 3
    slowdown, added, recovered = (np.concatenate(part) for part in parts)
    return ColumnTable(
        {
            "by": encode_texts(by_column),
            "member": encode_texts(member),
            "slowdown": slowdown,
            "added_ns": added,
            "recovered_share": recovered,
        }
    )


def _members(trace: OperatorTrace, name: str) -> tuple[Array, list[str]]:
    """Return the number of each operator's member of a kind, int64 `[operators]`, and the names of
    the members."""
    if name == "op_type":
        merged = encode_texts(MERGED.get(text, text) for text in trace.op_type.texts)
        return merged.codes[trace.op_type.codes].astype(np.int64), list(merged.texts)
    if name not in ("dp_rank", "stage", "rank"):
        raise OptionError(f"by: {name!r} is none of dp_rank, stage, op_type, rank")
    numbers, index = np.unique(getattr(trace, name), return_inverse=True)
    return index.astype(np.int64), [str(number) for number in numbers.tolist()]


def ideal_work(schedule: Schedule) -> Array:
    """Return durations and transfers without stragglers, int64 `[operators]` in ns.

    All operators of a type, over steps, replicas, stages and micro-batches, take the same: the
    mean of what computes (work is moved, none disappears), the median of what communicates (a few
    slow transfers are faults of the network, which the median leaves out).
    """
    op_type = schedule.trace.op_type
    groups = Groups(op_type.codes.astype(np.int64))
    communicates = np.array([text in COMMUNICATION for text in op_type.texts], dtype=bool)
    typical = np.where(
        communicates[op_type.codes[groups.first]],
        groups.median(schedule.work_ns),
        groups.mean(schedule.work_ns),
    )
    work: Array = np.rint(typical[groups.index]).astype(np.int64)
    return work


class _Replays:
    """Step times of one job, int64 `[steps]` in ns, if operators take as long as in the ideal."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._ideal_work_ns = ideal_work(schedule)
        self.undelayed = self._steps(schedule.work_ns)
        self.ideal = self._steps(self._ideal_work_ns)

    def _steps(self, work_ns: Array) -> Array:
        return self._schedule.step_ns(self._schedule.replay(work_ns))

    def mean_step_ns(self, chosen: Array) -> float:
        """Return the mean step time if only these operators take as long as recorded."""
        work_ns = np.where(chosen, self._schedule.work_ns, self._ideal_work_ns)
        return float(self._steps(work_ns).mean())

    def recovered_share(self, chosen: Array) -> float:
        """Return the share of the loss that is gone if only these operators are ideal; NaN without
        a loss."""
        work_ns = np.where(chosen, self._ideal_work_ns, self._schedule.work_ns)
        loss = float(self.undelayed.mean() - self.ideal.mean())
        gain = float(self.undelayed.mean()) - float(self._steps(work_ns).mean())
        return gain / loss if loss else np.nan


def _ratio(over: float, under: float) -> float:
    return over / under if under else float("nan")
