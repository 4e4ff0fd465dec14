"""Explanation of why one recording is slower than another: causes, findings and their price.

The difference is attributed by `tables/compare/causes.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap._core import EventKind
from torchtraceap.core import PathLike, Result, dataclass, format_ns
from torchtraceap.tables import FEWEST_STEPS, Cause, attribute

if TYPE_CHECKING:
    from torchtraceap.core import Finding
    from torchtraceap.diagnosis import Diagnosis
    from torchtraceap.trace import Trace

__all__ = ["Causes", "calls_that_differ", "causes", "causes_text"]

DISTURBED = 0.1
"""Recordings were disturbed if they differ by so much more of a step than runs do."""


@dataclass(frozen=True, slots=True)
class Causes(Result):
    """The reasons why B differs from A; `causes` sum to `difference_ns`."""

    difference_ns: int
    """The difference of the median steps."""
    before_step_ns: int
    after_step_ns: int
    basis: str
    causes: tuple[Cause, ...]
    moved: tuple[dict[str, Any], ...]
    """Work that only changed its place: name, before, after, ns."""
    findings: dict[str, tuple[dict[str, Any], ...]]
    """"appeared" and "gone": type, title, cost_ns, saving_ns per step, method."""
    price: dict[str, Any] | None
    """The saving of the fix of the new finding that saves most, and its share of the difference."""
    notes: tuple[str, ...]

    @property
    def top(self) -> Cause | None:
        """The largest contributor; None if nothing but noise is known."""
        first = next(iter(self.causes), None)
        return first if first and first.kind not in ("noise", "others") else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, with a sentence for each cause."""
        document = Result.to_dict(self)
        for written, cause in zip(document["causes"], self.causes, strict=True):
            written["sentence"] = cause.sentence()
        return document


def causes(
    before: Trace | PathLike,
    after: Trace | PathLike,
    *,
    change: float | None = None,
    findings: bool = True,
) -> Causes:
    """Explain why a trace is slower or faster than another of the same program.

    Args:
        before: A trace, or its path.
        after: Another one.
        change: The change that runs without a profiler show, after / before - 1. Its direction is
            then explained, even if the recordings were disturbed and differ the other way.
        findings: True to diagnose both, for new and gone findings and their price.

    Raises:
        MissingFileError: A path does not exist.
        ParseError: A file holds no trace.
    """
    first, second = _load_trace(before), _load_trace(after)
    found = attribute(first, second, change=change)
    comparison, factor = found.rows.comparison, found.rows.common.factor
    came_and_went: dict[str, tuple[dict[str, Any], ...]] = {"appeared": (), "gone": ()}
    price = None
    if findings:
        came_and_went, price = _compare_findings(first, second, comparison.difference_ns)
    notes = [*comparison.notes]
    before_ns = comparison.step_ns[0]
    recorded = comparison.difference_ns / before_ns if before_ns else 0.0
    if change is not None and abs(recorded - change) > max(DISTURBED, abs(change)):
        notes.append(
            f"The recordings differ by {100 * recorded:+.1f} %, runs without a profiler by "
            f"{100 * change:+.1f} %: something else ran on the machine, or the profiler weighs on "
            "one of them more."
        )
    if factor != 1.0:
        notes.append(
            f"All work takes {factor:.3g} times as long: another clock, another load of the "
            "machine or other settings of it rather than a change of the program."
        )
    if min(len(side.durations) for side in comparison.sides) < FEWEST_STEPS:
        notes.append("Fewer than 3 whole steps on a side: what is noise is hardly known.")
    return Causes(
        difference_ns=comparison.difference_ns,
        before_step_ns=before_ns,
        after_step_ns=comparison.step_ns[1],
        basis=comparison.basis,
        causes=found.causes,
        moved=found.moved,
        findings=came_and_went,
        price=price,
        notes=tuple(notes),
    )


def calls_that_differ(
    before: Trace | PathLike, after: Trace | PathLike, most: int = 10
) -> list[dict[str, Any]]:
    """Return operators and GPU work of which there are more or fewer calls in a step, or in all
    where there are no steps: what tells when clocks can't.

    Returns:
        `name`, `before` and `after` (calls), the largest differences first.
    """
    counts = [_calls(_load_trace(trace)) for trace in (before, after)]
    names = {name for each in counts for name in each}
    found = [(name, counts[0].get(name, 0.0), counts[1].get(name, 0.0)) for name in names]
    found = [entry for entry in found if entry[1] != entry[2]]
    found.sort(key=lambda entry: (-abs(entry[2] - entry[1]), entry[0]))
    return [{"name": n, "before": was, "after": now} for n, was, now in found[:most]]


def _calls(trace: Trace) -> dict[str, float]:
    """Return the calls in a step by name, of rank 0."""
    part = trace.ranks[0]
    table, (start_ns, end_ns) = part.table, part.tree.profiled
    kinds = (EventKind.CPU_OP, EventKind.KERNEL, EventKind.GPU_MEMCPY, EventKind.GPU_MEMSET)
    wanted = np.isin(table.kind, [int(kind) for kind in kinds])
    wanted &= (table.ts_ns >= start_ns) & (table.ts_ns < end_ns)
    ids, numbers = np.unique(table.name[wanted], return_counts=True)
    steps = max(1, len(part.tree.steps))
    return {table.strings[int(i)]: int(n) / steps for i, n in zip(ids, numbers, strict=True)}


def _load_trace(trace: Trace | PathLike) -> Trace:
    if not isinstance(trace, (str, os.PathLike)):
        return trace
    from torchtraceap.trace import load

    return load(trace)


def _compare_findings(
    before: Trace, after: Trace, difference_ns: int
) -> tuple[dict[str, tuple[dict[str, Any], ...]], dict[str, Any] | None]:
    """Return the findings of one side only, and the price of the most expensive new one."""
    was, now = before.diagnose(), after.diagnose()
    known = {finding.type for finding in was.findings}, {finding.type for finding in now.findings}
    appeared = [_finding_entry(f, was) for f in now.findings if f.type not in known[0]]
    gone = [_finding_entry(f, now) for f in was.findings if f.type not in known[1]]
    priced = [entry for entry in appeared if entry["saving_ns"]]
    price = None
    if priced and difference_ns:
        dearest = max(priced, key=lambda entry: int(entry["saving_ns"]))
        price = {
            "finding": dearest["type"],
            "saving_ns": dearest["saving_ns"],
            "share": dearest["saving_ns"] / difference_ns,
            "method": dearest["method"],
            "per_step": dearest["per_step"],
        }
    return {"appeared": tuple(appeared), "gone": tuple(gone)}, price


def _finding_entry(finding: Finding, other: Diagnosis) -> dict[str, Any]:
    """Describe a finding, with the other side's verdict: "absent" or "unknown"."""
    verdicts: Mapping[str, str] = {**other.verdicts, **other.further_verdicts}
    saving = finding.saving
    return {
        "type": finding.type,
        "title": finding.title,
        "cost_ns": finding.cost_ns,
        "saving_ns": saving.believed_ns if saving else None,
        "per_step": saving.per_step if saving else None,
        "method": saving.method if saving else None,
        "other_side": verdicts.get(finding.type, "unknown"),
    }


def causes_text(found: Causes) -> str:
    """Format the causes as lines for a terminal."""
    sign = "+" if found.difference_ns > 0 else ""
    lines = [f"step {format_ns(found.before_step_ns)} → {format_ns(found.after_step_ns)} "
             f"({sign}{format_ns(found.difference_ns)})"]  # fmt: skip
    for cause in found.causes:
        plus = "+" if cause.delta_ns > 0 else ""
        lines.append(f"  {plus}{format_ns(cause.delta_ns):>10} {100 * cause.share:6.0f} %  "
                     f"{cause.sentence()}")  # fmt: skip
    lines += [
        f"  moved: {entry['name']} from {entry['before'] or 'the step'} to "
        f"{entry['after'] or 'the step'} ({format_ns(entry['ns'])})"
        for entry in found.moved
    ]
    for when, entries in found.findings.items():
        lines += [f"  {when}: {entry['title']}" for entry in entries]
    if found.price:
        saving = format_ns(found.price["saving_ns"])
        lines.append(f"  fixing {found.price['finding']} would save {saving} "
                     f"({100 * found.price['share']:.0f} % of the difference)")  # fmt: skip
    return "\n".join(lines)
