"""The cost of stragglers: a job is replayed as if all operators of a type took equally long.

Definitions of Lin et al. (OSDI 2025), which docs/stragglers.md states with their units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.columns import encode_texts
from torchtraceap.core.records import dataclass
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.lab.jobs.op_trace import OperatorTrace, read_operator_trace
from torchtraceap.lab.jobs.schedule import COMMUNICATION, Schedule, build_schedule
from torchtraceap.tables.grouping import Groups

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
        by: What to attribute the slowdown to: `dp_rank`, `stage`, `op_type`, `rank`. Each member
            costs two replays; `rank` has as many as the job has workers.

    Raises:
        ParseError: The file is no such trace, or its order contradicts itself.
        OptionError: `by` names something else.
    """
    if not isinstance(trace, OperatorTrace):
        trace = read_operator_trace(trace)
    return _Analysis(build_schedule(trace)).report(by)


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


class _Analysis:
    """Replays of one job."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.ideal_work_ns = ideal_work(schedule)
        self.undelayed = self._steps(schedule.work_ns)
        self.ideal = self._steps(self.ideal_work_ns)

    def _steps(self, work_ns: Array) -> Array:
        return self.schedule.step_ns(self.schedule.replay(work_ns))

    def only(self, chosen: Array) -> Array:
        """Return step times if only these operators take as long as recorded."""
        return self._steps(np.where(chosen, self.schedule.work_ns, self.ideal_work_ns))

    def without(self, chosen: Array) -> Array:
        """Return step times if only these operators take as long as in the ideal."""
        return self._steps(np.where(chosen, self.ideal_work_ns, self.schedule.work_ns))

    def recovered(self, step_ns: Array) -> float:
        """Return the share of the loss that is gone at these step times; NaN without a loss."""
        loss = float(self.undelayed.mean() - self.ideal.mean())
        return (float(self.undelayed.mean()) - float(step_ns.mean())) / loss if loss else np.nan

    def report(self, by: Sequence[str]) -> StragglerReport:
        trace = self.schedule.trace
        tables = {name: self._contributions(name) for name in dict.fromkeys(by)}
        located = [
            tables.get(name) or self._contributions(name, repaired=False)
            for name in ("dp_rank", "stage")
        ]
        last = trace.stage == trace.stage.max()
        worst = self._worst_workers(*located)
        return StragglerReport(
            measured_ns=float(self.schedule.measured_step_ns.mean()),
            undelayed_ns=float(self.undelayed.mean()),
            ideal_ns=float(self.ideal.mean()),
            steps=self._step_table(),
            attribution=_attribution(tables),
            last_stage_share=self.recovered(self.without(last)),
            worst_workers_share=self.recovered(self.without(np.isin(trace.rank, worst))),
            worst_workers=tuple(worst),
            notes=(*self._notes(), *self.schedule.notes),
        )

    def _key(self, name: str) -> tuple[Array, list[str]]:
        """Return the member of each operator, and the names of the members."""
        trace = self.schedule.trace
        if name == "op_type":
            merged = encode_texts(MERGED.get(text, text) for text in trace.op_type.texts)
            return merged.codes[trace.op_type.codes].astype(np.int64), list(merged.texts)
        if name not in ("dp_rank", "stage", "rank"):
            raise OptionError(f"by: {name!r} is none of dp_rank, stage, op_type, rank")
        numbers, index = np.unique(getattr(trace, name), return_inverse=True)
        return index.astype(np.int64), [str(number) for number in numbers.tolist()]

    def _contributions(self, name: str, *, repaired: bool = True) -> _Contributions:
        """Return the contributions of all members; without `repaired`, what their repair recovers
        is left out."""
        key, labels = self._key(name)
        members = [key == member for member in range(len(labels))]
        recovered = [self.recovered(self.without(chosen)) for chosen in members if repaired]
        return _Contributions(
            labels,
            np.array([self.only(chosen).mean() for chosen in members]),
            float(self.ideal.mean()),
            np.array(recovered),
        )

    def _worst_workers(self, replicas: _Contributions, stages: _Contributions) -> list[int]:
        """Return the ranks whose replica and stage are both slow, by the smaller of the two
        slowdowns."""
        trace = self.schedule.trace
        workers = Groups(trace.rank).first
        replica = np.searchsorted([int(x) for x in replicas.labels], trace.dp_rank[workers])
        stage = np.searchsorted([int(x) for x in stages.labels], trace.stage[workers])
        score = np.minimum(replicas.slowdown[replica], stages.slowdown[stage])
        ranks = trace.rank[workers]
        count = -int(-WORST_WORKERS * len(ranks) // 1)
        chosen: list[int] = ranks[np.lexsort((ranks, -score))[:count]].tolist()
        return chosen

    def _step_table(self) -> ColumnTable:
        measured = self.schedule.measured_step_ns
        return ColumnTable(
            {
                "step": self.schedule.steps,
                "measured_ns": measured,
                "undelayed_ns": self.undelayed,
                "ideal_ns": self.ideal,
                "slowdown": self.undelayed / np.maximum(self.ideal, 1),
                "delay_slowdown": measured / np.maximum(self.undelayed, 1),
            }
        )

    def _notes(self) -> list[str]:
        trace = self.schedule.trace
        workers = len(np.unique(trace.rank))
        replicas = len(np.unique(trace.dp_rank))
        noise = float(self.schedule.measured_step_ns.std() / self.schedule.measured_step_ns.mean())
        notes = [
            f"{len(trace):,} operators of {workers} workers in {len(self.schedule.steps)} steps: "
            f"{trace.stages} stages, {replicas} replicas; step times vary by {noise:.1%}."
        ]
        delayed = _ratio(float(self.schedule.measured_step_ns.mean()), float(self.undelayed.mean()))
        if abs(delayed - 1) > TRUSTED:
            notes.append(
                f"Measured steps take {delayed - 1:+.1%} of what the dependencies explain: read "
                "the slowdown with care (data loading and other host work is not in the trace)."
            )
        return notes


@dataclass(frozen=True, slots=True)
class _Contributions:
    labels: list[str]
    only_ns: Array
    """Mean step time if only this member is as recorded."""
    ideal_ns: float
    recovered: Array
    """Share of the loss that is gone if this member is repaired; may be left out."""

    @property
    def slowdown(self) -> Array:
        ratios: Array = self.only_ns / max(self.ideal_ns, 1.0)
        return ratios


def _attribution(tables: dict[str, _Contributions]) -> ColumnTable:
    """Return a table with the largest slowdown first within each kind."""
    by, member = [], []
    columns: list[tuple[Array, Array, Array]] = []
    for name, table in tables.items():
        order = np.argsort(-table.slowdown, kind="stable")
        by += [name] * len(order)
        member += [table.labels[i] for i in order.tolist()]
        columns.append(
            (table.slowdown[order], table.only_ns[order] - table.ideal_ns, table.recovered[order])
        )
    parts = zip(*columns, strict=True) if columns else [[np.zeros(0)]] * 3
    slowdown, added, recovered = (np.concatenate(part) for part in parts)
    return ColumnTable(
        {
            "by": encode_texts(by),
            "member": encode_texts(member),
            "slowdown": slowdown,
            "added_ns": added,
            "recovered_share": recovered,
        }
    )


def _ratio(over: float, under: float) -> float:
    return over / under if under else float("nan")
