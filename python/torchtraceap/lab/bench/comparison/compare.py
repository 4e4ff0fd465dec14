"""Comparison of two programs: whether B is slower than A, faster, equivalent or undecided, and why.

Note [Counts and clocks]: counts of a trace, such as launches or waits for the GPU, repeat exactly
in steady state, so a count that differs is a change, told even if the times can't be told apart.
Only times need statistics.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core import Array, Result, dataclass, pluralize, progress_stage
from torchtraceap.errors import TraceError
from torchtraceap.lab.bench.comparison.pairs import Pair, Pairs
from torchtraceap.lab.bench.comparison.sides import ProgramSide, Side
from torchtraceap.lab.bench.processes.environment import fingerprint
from torchtraceap.lab.bench.statistics.rank_tests import least_p
from torchtraceap.lab.bench.statistics.rules import RULES
from torchtraceap.lab.bench.statistics.sequential import (
    DEFAULT_ALPHA,
    DEFAULT_LOOKS,
    DEFAULT_MINIMAL_EFFECT,
    Look,
    Plan,
    look_at,
    whole_p,
)

if TYPE_CHECKING:
    from torchtraceap.trace import Trace

__all__ = [
    "Comparison",
    "CountChange",
    "Evidence",
    "Sequential",
    "build_evidence",
    "compare",
    "count_changes",
]

_BUSY = 1.0
"""Other load, as a share of the machine's processors, from which it is reported."""


@dataclass(frozen=True, slots=True)
class CountChange(Result):
    """An exact count of both traces; None if one of them does not have it."""

    key: str
    before: int | None
    after: int | None

    @property
    def is_change(self) -> bool:
        """True if both traces have the count and it differs."""
        return None not in (self.before, self.after) and self.before != self.after


@dataclass(frozen=True)
class Evidence:
    """Counts and causes from the two traces."""

    counts: tuple[CountChange, ...] = ()
    counted_by: str = "step"
    """"step" (the worst one) or "trace": the range that the counts cover."""
    causes: tuple[dict[str, Any], ...] = ()
    """Causes as in `bench.causes`; they sum to the difference of the two recordings."""
    traced_difference_ns: int | None = None
    """Difference of the median steps of the recordings, one run each."""
    moved: tuple[dict[str, Any], ...] = ()
    """Work that only changed its place."""
    findings: Mapping[str, Any] | None = None
    """Findings that appeared, and findings that are gone."""
    price: dict[str, Any] | None = None
    """The saving of the fix of the most expensive new finding."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison(Result):
    """A verdict with its basis. Changes are fractions: 0.03 is 3 % slower."""

    before: str
    """Name of side A."""
    after: str
    verdict: str
    """"slower", "faster", "equivalent" or "undecided": B compared with A."""
    best: float
    """Estimate of after / before - 1."""
    low: float | None
    """Lower end of the interval; None if so few pairs exclude nothing."""
    high: float | None
    confidence: float
    """Confidence of the interval at this look."""
    p: float
    """p value of the whole comparison, all looks together."""
    looks: tuple[Look, ...]
    """The looks, as log ratios."""
    pairs: int
    minimal_effect: float
    alpha: float
    seed: int
    method: str
    evidence: Evidence
    notes: tuple[str, ...]
    before_ns: int
    """Median over the runs of A of the median step of each."""
    after_ns: int
    raw: tuple[Pair, ...] = ()
    """The pairs; empty for stored runs."""
    rules: Mapping[str, dict[str, Any]] | None = None
    """Answers of named rules to the same runs."""
    environment: Any = None
    reproduce: str = ""
    """The command that makes this comparison."""

    @property
    def changed_counts(self) -> tuple[CountChange, ...]:
        """Counts that both traces have and that differ."""
        return tuple(count for count in self.evidence.counts if count.is_change)

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `torchtraceap bench compare --json`."""
        return {
            "schema": "torchtraceap.comparison/1",
            "verdict": self.verdict,
            "change": {"best": self.best, "low": self.low, "high": self.high},
            "pairs": self.pairs,
            "alpha": self.alpha,
            "method": self.method,
            "counts": [count.to_dict() for count in self.evidence.counts],
            "causes": list(self.evidence.causes),
            "before": {"name": self.before, "median_ns": self.before_ns},
            "after": {"name": self.after, "median_ns": self.after_ns},
            "minimal_effect": self.minimal_effect,
            "confidence": self.confidence,
            "p": self.p,
            "looks": [
                {
                    "pairs": look.pairs,
                    "verdict": look.verdict,
                    "p": look.p,
                    "level": look.level,
                    "best": fraction_from_log(look.best),
                    "low": fraction_from_log(look.low),
                    "high": fraction_from_log(look.high),
                }
                for look in self.looks
            ],
            "seed": self.seed,
            "counts_changed": [count.key for count in self.changed_counts],
            "counted_by": self.evidence.counted_by,
            "traced_difference_ns": self.evidence.traced_difference_ns,
            "moved": list(self.evidence.moved),
            "findings": dict(self.evidence.findings or {}),
            "price": self.evidence.price,
            "notes": list(self.notes),
            "rules": dict(self.rules or {}),
            "pairs_ns": [[pair.before_ns, pair.after_ns] for pair in self.raw],
            "orders": [pair.order for pair in self.raw],
            "load": [pair.load for pair in self.raw],
            "step_ns": [[list(p.before_step_ns), list(p.after_step_ns)] for p in self.raw],
            "environment": self.environment,
            "reproduce": self.reproduce,
        }


def fraction_from_log(log_ratio: float) -> float | None:
    """Convert a log ratio to a fraction; None for an infinite end."""
    return math.expm1(log_ratio) if math.isfinite(log_ratio) else None


class Sequential:
    """A running comparison: pairs are run from look to look until it is decided.

    Note [Three measures, one verdict]: what users wait for is time, so the clock has the say as
    soon as it says anything. Where it can't tell, processor time and retired instructions may, as
    less disturbs them: slower or faster, if the best guess of the clock points the same way by half
    the minimal effect at least. Alone they say nothing, as more work may be hidden behind waits and
    fewer instructions may take longer. Each measure spends its own part of alpha, so the caller
    divides alpha by their number.

    Note [Out of time]: where time is over, the next look takes the pairs that there are. How many
    these are does not depend on which side is the faster one, so the look keeps its level.
    """

    def __init__(self, pairs: Pairs, plan: Plan, work: Sequence[str] = ()) -> None:
        """Begin; `work` names measures besides the clock that may decide."""
        self.pairs = pairs
        self.plan = plan
        self.looks: list[Look] = []
        self._work = tuple(work)
        self.work_looks: dict[str, Look] = {}
        """The last look at each other measure that all pairs have."""

    @property
    def may_go_on(self) -> bool:
        """True if there is another look."""
        return len(self.looks) < len(self.plan.looks) and not self.pairs.is_over

    @property
    def decided_by(self) -> tuple[str, str]:
        """The verdict so far and the measure that says so; see Note [Three measures, one
        verdict]."""
        clock = self.looks[-1]
        if clock.verdict == "undecided" and abs(clock.best) >= self.plan.least_share * (
            self.plan.bound
        ):
            direction = "slower" if clock.best > 0 else "faster"
            for name, look in self.work_looks.items():
                if look.verdict == direction:
                    return direction, name
        return clock.verdict, "time"

    @property
    def p(self) -> float:
        """p value of all looks so far together."""
        return whole_p(self.looks, self.plan)

    def look(self) -> Look:
        """Take the next look, after running the missing pairs.

        Raises:
            ProgramError: A run failed twice.
        """
        number = len(self.looks)
        values = self.pairs.until(self.plan.looks[number])
        self.looks.append(look_at(values, self.plan, number))
        for name in self._work:
            if (ratios := self.pairs.work(name)) is not None:
                self.work_looks[name] = look_at(ratios[: len(values)], self.plan, number)
        return self.looks[-1]

    def decide(self) -> Look:
        """Take looks until the comparison is decided or the last look was taken."""
        while True:
            look = self.look()
            if self.decided_by[0] != "undecided" or not self.may_go_on:
                return look


def compare(
    side_a: Side,
    side_b: Side,
    *,
    minimal_effect: float = DEFAULT_MINIMAL_EFFECT,
    alpha: float = DEFAULT_ALPHA,
    looks: Sequence[int] = DEFAULT_LOOKS,
    seed: int = 0,
    causes: bool = True,
    kept: Path | None = None,
    reproduce: str = "",
) -> Comparison:
    """Run two sides in pairs of fresh processes until it is decided which is slower.

    Args:
        side_a: The side before.
        side_b: The side after.
        minimal_effect: Fraction; changes below it do not matter.
        alpha: Probability of a false alarm, over all looks together.
        looks: Numbers of pairs after which it may be decided.
        seed: Decides the order within pairs.
        causes: True to record both sides at the end, for counts and causes.
        kept: A file of JSON lines that keeps the pairs; a comparison goes on from it.
        reproduce: The command to state.

    Raises:
        OptionError: A value makes no sense.
        ProgramError: A run failed twice.
    """
    plan = Plan(minimal_effect, alpha, tuple(looks))
    pairs = Pairs(side_a, side_b, most=plan.looks[-1], seed=seed, kept=kept)
    sequential = Sequential(pairs, plan)
    look = sequential.decide()
    evidence = record_evidence(side_a, side_b, look) if causes else Evidence()
    return build_comparison(
        sequential, side_a, side_b, evidence=evidence, seed=seed, reproduce=reproduce
    )


def build_comparison(
    sequential: Sequential,
    side_a: Side,
    side_b: Side,
    *,
    evidence: Evidence,
    seed: int,
    reproduce: str = "",
    verdict: str | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Return the result of an ended comparison; `verdict` replaces it if a suite takes it back."""
    last, plan = sequential.looks[-1], sequential.plan
    raw = tuple(sequential.pairs.pairs[: last.pairs])
    what, how = "median steps", "in random ABBA order"
    if any(pair.exchanges for pair in raw):
        what, how = "steps", "whose steps take turns"
    return Comparison(
        before=side_a.name,
        after=side_b.name,
        verdict=verdict or last.verdict,
        best=math.expm1(last.best),
        low=fraction_from_log(last.low),
        high=fraction_from_log(last.high),
        confidence=1 - last.error,
        p=sequential.p,
        looks=tuple(sequential.looks),
        pairs=last.pairs,
        minimal_effect=plan.minimal_effect,
        alpha=plan.alpha,
        seed=seed,
        method=(
            f"exact Wilcoxon signed rank test of log ratios of {what}, pairs of fresh processes "
            f"{how}, Hodges-Lehmann interval; looks at {'/'.join(map(str, plan.looks))} pairs "
            "share alpha; equivalence by two one-sided tests against the minimal effect"
        ),
        evidence=evidence,
        notes=(*_notes(sequential, raw, side_a, side_b), *notes, *evidence.notes),
        before_ns=round(float(np.median([pair.before_ns for pair in raw]))),
        after_ns=round(float(np.median([pair.after_ns for pair in raw]))),
        raw=raw,
        rules=apply_rules(
            [np.asarray(pair.before_step_ns, np.float64) for pair in raw],
            [np.asarray(pair.after_step_ns, np.float64) for pair in raw],
        ),
        environment=fingerprint(),
        reproduce=reproduce,
    )


def _notes(sequential: Sequential, raw: Sequence[Pair], side_a: Side, side_b: Side) -> list[str]:
    plan = sequential.plan
    notes = []
    if least_p(plan.looks[0]) > plan.levels[0]:
        first = pluralize(plan.looks[0], "pair")
        notes.append(
            f"the least p of {first} is {least_p(plan.looks[0]):.2g}, more than the "
            f"{plan.levels[0]:.2g} that this look may spend: it can't say slower or faster"
        )
    if sequential.pairs.resumed:
        notes.append(f"{sequential.pairs.resumed} pairs are from a run that was interrupted")
    busy = float(np.median([pair.load for pair in raw]))
    if busy > (os.cpu_count() or 1) + _BUSY:
        notes.append(
            f"the machine was busy: a load of {busy:.1f} on {os.cpu_count()} processors; more "
            "noise takes more pairs"
        )
    whole = [
        side.name
        for side in (side_a, side_b)
        if isinstance(side, ProgramSide) and side.last is not None and not side.last.by_steps
    ]
    if whole:
        notes.append(
            f"no steps told by {' and '.join(whole)}: whole processes are compared, start-up and "
            "imports included; a loop over ttap.measured(...) would tell of its steps"
        )
    return notes


def apply_rules(before: Sequence[Array], after: Sequence[Array]) -> dict[str, dict[str, Any]]:
    """Return the answers of named rules to the same runs, given the steps of each run in ns.

    Pairs ran in turn, which helps rules that would run block after block.
    """
    said = {}
    for rule in RULES.values():
        if rule.runs <= min(len(before), len(after)):
            says, change = rule.say(before, after)
            said[rule.name] = {
                "says": says, "change": change, "runs": rule.runs, "what": rule.what
            }  # fmt: skip
    return said


def count_changes(before: Trace, after: Trace) -> tuple[tuple[CountChange, ...], str]:
    """Return the exact counts of two recordings, and whether "step" (the worst one) or "trace" is
    what they count.

    Raises:
        TraceError: A recording lacks records, and what is lost is no change.
    """
    from torchtraceap.contracts import counts
    from torchtraceap.tables import quality_of_both

    _, why_not = quality_of_both(before, after)
    if why_not:
        raise TraceError(why_not)
    # Recordings may hold different numbers of steps: if both have steps, one of them counts.
    by_step = all(part.tree.steps for trace in (before, after) for part in trace.ranks)
    a, b = (counts(trace, per_step=by_step) for trace in (before, after))
    found = tuple(CountChange(key, a.get(key), b.get(key)) for key in {**a, **b})
    return found, "step" if by_step else "trace"


def record_evidence(side_a: Side, side_b: Side, look: Look) -> Evidence:
    """Record both sides and return `build_evidence` their traces."""
    with progress_stage("recording A"):
        before = side_a.trace()
    with progress_stage("recording B"):
        after = side_b.trace()
    return build_evidence(before, after, look)


def build_evidence(before: Path | None, after: Path | None, look: Look) -> Evidence:
    """Return counts and causes of the difference of two traces, None where a side has none. If the
    last look says slower or faster, that direction is explained."""
    missing = [name for name, path in (("A", before), ("B", after)) if path is None]
    if before is None or after is None:
        sides = " and ".join(missing)
        return Evidence(notes=(f"no trace of side {sides}: no counts and no causes",))
    from torchtraceap.lab.bench.causes import causes
    from torchtraceap.trace import load

    try:
        traces = load(before), load(after)
        counted, counted_by = count_changes(*traces)
    except TraceError as error:  # the verdict stands without it
        return Evidence(notes=(f"no counts and no causes: {error}",))
    is_changed = look.verdict in ("slower", "faster")
    try:
        explained = causes(*traces, change=math.expm1(look.best) if is_changed else None)
    except TraceError as error:
        return Evidence(counted, counted_by, notes=(f"no causes: {error}",))
    document = explained.to_dict()
    return Evidence(
        counts=counted,
        counted_by=counted_by,
        causes=tuple(document["causes"]),
        traced_difference_ns=document["difference_ns"],
        moved=tuple(document["moved"]),
        findings=document["findings"],
        price=document["price"],
        notes=tuple(document["notes"]),
    )
