"""A verdict on a change of a project, such as a pull request: counts first, then time and work.

Note [What fires]: counts come first, as one recording of each side tells them exactly, within
seconds, however busy the machine is. One that differs is counted once more on both sides: what
differs between recordings of the same commit can't be told, and fires nothing. Of time only
"slower" fires, whose probability without a change is at most alpha over all looks and measures
(Note [Three measures, one verdict] in comparison/compare.py); "undecided" fires if that is asked
for. The base is the commit from which the branches went apart: what others changed since then is
not the change.

Note [Limits]: what is gated is told as a contract whose limits are what the base does, and so by
the formats of contracts: JUnit, SARIF and annotations, which guard what comes from traces and
commits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torchtraceap.contracts import MEASURES, CheckResult, Contract, KeyResult, check
from torchtraceap.core import Result, dataclass, naming, pluralize
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.lab.bench.causes import calls_that_differ
from torchtraceap.lab.bench.comparison.compare import (
    Comparison,
    CountChange,
    Evidence,
    Sequential,
    build_comparison,
    build_evidence,
    count_changes,
    fraction_from_log,
)
from torchtraceap.lab.bench.comparison.pairs import Pairs
from torchtraceap.lab.bench.comparison.sides import ProgramSide, revision_side
from torchtraceap.lab.bench.processes.cleaner import working_folder
from torchtraceap.lab.bench.processes.programs import ProgramError
from torchtraceap.lab.bench.revisions import Repository, Revision, UnusableRevisionError
from torchtraceap.lab.bench.statistics.rank_tests import least_p
from torchtraceap.lab.bench.statistics.sequential import Look, Plan
from torchtraceap.trace import load

__all__ = [
    "DEFAULT_ALPHA",
    "DEFAULT_GATES",
    "GATES",
    "LOOKS",
    "ChangeVerdict",
    "Question",
    "judge_change",
]

SCHEMA = "torchtraceap.ci/1"
LOOKS = (16, 32, 64, 128)
"""Numbers of pairs after which time may be decided: the first is the least that can decide."""
WORK = ("instructions", "cpu")
"""Measures besides the clock, the least disturbed first."""
DEFAULT_ALPHA = 0.001
MEASURE_WORDS = {
    "time": "the clock", "cpu": "processor time", "instructions": "retired instructions"
}  # fmt: skip
SLOWER, UNDECIDED, CONTRACT = "slower", "undecided", "contract"
_PER_STEP = "_per_step"
_COUNTS = tuple(k for k, each in MEASURES.items() if each.is_exact and not k.endswith(_PER_STEP))
GATES = (SLOWER, UNDECIDED, CONTRACT, *_COUNTS)
DEFAULT_GATES = (SLOWER, CONTRACT, "syncs", "recompiles", "graph_breaks")
"""Counts that nobody wants more of. More launches or operators may be what a change is for."""
_TRACES = ("base.json.gz", "head.json.gz")
_TOLD_LINES = 8
"""The largest number of lines that are quoted of the standard error of a program that fails."""

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Question:
    """The commits to compare, how to run them, and what fails."""

    base: Revision
    head: Revision
    program: Sequence[str]
    """The program and its arguments, which run in a checkout of each commit."""
    setup: Sequence[str] | None = None
    """A command that runs once in each checkout before."""
    pythonpath: Sequence[str] = ()
    """Folders inside of each checkout that stand first in PYTHONPATH."""
    timeout_s: float | None = None
    """Time limit of a run."""
    contract: Contract | None = None
    """Limits that the recording of the head has to hold."""
    gates: Sequence[str] = DEFAULT_GATES
    """What fails, of `GATES`."""
    budget_s: float = 600.0
    """How long runs may take, counts included; 0 for counts alone."""
    minimal_effect: float = 0.02
    alpha: float = DEFAULT_ALPHA
    """Probability of a false alarm of time, over all looks and measures."""
    seed: int = 0
    reproduce: str = ""
    """The command that asks it."""

    @property
    def plan(self) -> Plan:
        """The plan of each measure: they share alpha."""
        return Plan(self.minimal_effect, self.alpha / (1 + len(WORK)), LOOKS)


@dataclass(frozen=True)
class ChangeVerdict(Result):
    """The answer; `to_dict` is `torchtraceap.ci/1`."""

    question: Question
    verdict: str
    """"passed", "failed" or "broken": a commit can't be built or run."""
    failures: tuple[str, ...] = ()
    """The gates that failed."""
    counts: tuple[CountChange, ...] = ()
    counted_by: str = "step"
    counted_after_s: float | None = None
    """Seconds from the first run until counts were told; None if there are none."""
    unsteady: tuple[str, ...] = ()
    """Counts that differ between recordings of one commit."""
    calls: tuple[Mapping[str, Any], ...] = ()
    """Calls that differ, where counts do."""
    comparison: Comparison | None = None
    """Time, if it was measured."""
    decided_by: str = "time"
    """The measure that decided: "time", "instructions" or "cpu"."""
    work: Mapping[str, Look] | None = None
    """The last looks at the other measures."""
    no_instructions: str = ""
    """A sentence about why instructions were not counted."""
    checks: tuple[CheckResult, ...] = ()
    """What is gated, as limits that the base sets; then the contract."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    """What all runs took."""

    @property
    def changed_counts(self) -> tuple[CountChange, ...]:
        """Counts that differ for certain."""
        return tuple(c for c in self.counts if c.is_change and c.key not in self.unsteady)

    @property
    def time_verdict(self) -> str | None:
        """What time and work say together; None if they were not measured."""
        return self.comparison.verdict if self.comparison is not None else None

    @property
    def last_looks(self) -> dict[str, Look]:
        """The last look at each measure, the clock ("time") first; empty if none was taken."""
        if self.comparison is None:
            return {}
        return {"time": self.comparison.looks[-1], **(self.work or {})}

    def to_dict(self) -> dict[str, Any]:
        """Return the document `torchtraceap.ci/1`."""
        asked, found = self.question, self.comparison
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "failures": list(self.failures),
            "gates": list(asked.gates),
            "base": _commit(asked.base),
            "head": _commit(asked.head),
            "counts": [
                {**count.to_dict(), "steady": count.key not in self.unsteady}
                for count in self.counts
            ],
            "counted_by": self.counted_by,
            "counted_after_s": self.counted_after_s,
            "calls": [dict(call) for call in self.calls],
            "time": self.time_verdict,
            "decided_by": self.decided_by if found is not None else None,
            "measures": {
                name: {
                    "verdict": look.verdict,
                    "best": fraction_from_log(look.best),
                    "low": fraction_from_log(look.low),
                    "high": fraction_from_log(look.high),
                    "p": look.p,
                }
                for name, look in self.last_looks.items()
            },
            "no_instructions": self.no_instructions or None,
            "comparison": None if found is None else found.to_dict(),
            "checks": [result.to_dict() for result in self.checks],
            "alpha": asked.alpha,
            "minimal_effect": asked.minimal_effect,
            "budget_s": asked.budget_s,
            "seed": asked.seed,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "reproduce": asked.reproduce,
        }


def _commit(revision: Revision) -> dict[str, str]:
    return {"commit": revision.id, "subject": revision.title, "when": revision.when}


def judge_change(repository: Repository, asked: Question, folder: Path, say: Say) -> ChangeVerdict:
    """Run both commits in worktrees on this machine and judge the change.

    Args:
        repository: Where the commits are; the program runs in the same folder of each checkout.
        asked: What is compared.
        folder: Takes the recordings, `base.json.gz` and `head.json.gz`.
        say: Called with a sentence as soon as something is known.

    Raises:
        OptionError: A value makes no sense, or a program or folder does not exist.
    """
    if unknown := [gate for gate in asked.gates if gate not in GATES]:
        raise OptionError(f"{unknown[0]!r}: is none of {', '.join(GATES)}")
    plan = asked.plan
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name in _TRACES:  # those of another change
        (folder / name).unlink(missing_ok=True)
    with repository.checkouts() as checkouts:
        try:
            sides = []
            for name, revision in (("base", asked.base), ("head", asked.head)):
                say(f"{name}: checking out {revision.short}")
                side = revision_side(
                    checkouts.ready(revision),
                    revision,
                    asked.program,
                    setup=asked.setup,
                    pythonpath=asked.pythonpath,
                    timeout_s=asked.timeout_s,
                    word=name,
                )
                sides.append(side)
            found = _Judge(asked, plan, sides[0], sides[1], folder, say).run()
        except (ProgramError, UnusableRevisionError) as error:
            found = _broken(asked, error)
        missing = tuple(f"{commit}: {text}" for text, commit in checkouts.missing.items())
    return replace(found, notes=(*missing, *found.notes))


def _broken(asked: Question, error: TraceError) -> ChangeVerdict:
    """Return the answer where a commit can't be built or run."""
    finished = error.finished if isinstance(error, ProgramError) else None
    lines = finished.stderr.strip().splitlines()[-_TOLD_LINES:] if finished is not None else []
    limit = KeyResult("step_time", "the program runs", None, "failed", str(error), kind="time")
    return ChangeVerdict(
        asked,
        "broken",
        ("run",),
        checks=(CheckResult(False, (limit,), _name(asked)),),
        notes=(str(error), *lines),
    )


def _name(asked: Question) -> str:
    return f"{asked.base.short}..{asked.head.short}"


class _Judge:
    """One answer in the making."""

    def __init__(
        self,
        asked: Question,
        plan: Plan,
        base: ProgramSide,
        head: ProgramSide,
        folder: Path,
        say: Say,
    ) -> None:
        self._asked, self._plan, self._say = asked, plan, say
        self._sides = base, head
        self._traces = [folder / name for name in _TRACES]
        self._began_s = time.monotonic()
        self._counted_after_s: float | None = None
        self._notes: list[str] = []

    def run(self) -> ChangeVerdict:
        asked = self._asked
        recorded = [self._record(*each) for each in zip(self._sides, self._traces, strict=True)]
        counts, counted_by, unsteady = self._counts(recorded)
        base, head = recorded
        limits = [self._count_limit(head, each, counted_by, unsteady) for each in counts]
        checks = self._contract(head)
        sequential = self._measure() if asked.budget_s else None
        comparison, decided_by = None, "time"
        if sequential is not None:
            verdict, decided_by = sequential.decided_by
            comparison = self._comparison(sequential, verdict, recorded)
            limits.append(_time_limit(comparison, decided_by, asked.gates))
        gated = [each for each in limits if each is not None]
        own = CheckResult(
            passed=all(each.status != "failed" for each in gated),
            results=tuple(gated),
            name=_name(asked),
            paths=() if head is None else (str(head),),
        )
        failed = {_gate_of(each.key, comparison) for each in own.failed}
        failed |= {CONTRACT for each in checks if not each.passed}
        failures = tuple(gate for gate in GATES if gate in failed and gate in asked.gates)
        steady_changes = [each for each in counts if each.is_change and each.key not in unsteady]
        return ChangeVerdict(
            asked,
            "failed" if failures else "passed",
            failures,
            counts,
            counted_by,
            self._counted_after_s,
            unsteady,
            tuple(calls_that_differ(base, head)) if base and head and steady_changes else (),
            comparison,
            decided_by,
            sequential.work_looks if sequential is not None else None,
            self._sides[1].last.no_instructions if self._sides[1].last is not None else "",
            ((own,) if gated else ()) + checks,
            tuple(self._notes),
            time.monotonic() - self._began_s,
        )

    # ------------------------------------------------------------------------------ counts

    def _record(self, side: ProgramSide, target: Path) -> Path | None:
        """Record a side; None where there was nothing to record.

        Raises:
            ProgramError: Its program failed.
        """
        self._say(f"recording {side.name}")
        side.target = target
        path, finished = side.record(target)
        if not finished.ok:
            raise ProgramError(f"{side.name} fails: {finished.reason}", finished)
        if path is None:
            self._notes.append(
                f"{side.name}: no operation of torch was recorded: no counts and no causes"
            )
        return path

    def _counts(
        self, recorded: Sequence[Path | None]
    ) -> tuple[tuple[CountChange, ...], str, tuple[str, ...]]:
        """Return the counts, what they count, and those that differ between recordings."""
        base, head = recorded
        if base is None or head is None:
            return (), "step", ()
        try:
            counts, counted_by = count_changes(load(base), load(head))
            changed = [each for each in counts if each.is_change]
            unsteady: tuple[str, ...] = ()
            if changed:  # see Note [What fires]
                self._say(f"counts differ: {_told(changed)}; counting once more")
                again = self._count_again()
                unsteady = tuple(
                    each.key for each in changed if again.get(each.key) != (each.before, each.after)
                )
        except TraceError as error:
            self._notes.append(f"no counts: {error}")
            return (), "step", ()
        self._counted_after_s = time.monotonic() - self._began_s
        steady = [each for each in changed if each.key not in unsteady]
        self._say(f"counts: {_told(steady) or 'none changed'}")
        if unsteady:
            self._notes.append(
                "recordings of the same commit differ in " + ", ".join(unsteady) + ": "
                "nothing is told of them"
            )
        return counts, counted_by, unsteady

    def _count_again(self) -> dict[str, tuple[int | None, int | None]]:
        with working_folder() as scratch:
            paths = [
                self._record(side, scratch / name)
                for side, name in zip(self._sides, _TRACES, strict=True)
            ]
            base, head = paths
            if base is None or head is None:
                return {}
            counts, _ = count_changes(load(base), load(head))
        return {each.key: (each.before, each.after) for each in counts}

    def _count_limit(
        self, head: Path | None, count: CountChange, counted_by: str, unsteady: Sequence[str]
    ) -> KeyResult | None:
        """Return what the base does as a limit on the head; None where it is not gated."""
        name, _, kind = count.key.partition(".")
        if name not in self._asked.gates or count.before is None or count.after is None:
            return None
        key = f"{name}{_PER_STEP}" if counted_by == "step" else name
        limit: Any = {kind: f"<={count.before}"} if kind else f"<={count.before}"
        measured: Any = {kind: count.after} if kind else count.after
        unit = " bytes" if MEASURES[name].kind == "bytes" else ""
        what = f"{count.key} of a {counted_by}" if counted_by == "step" else count.key
        base, after = self._asked.base.short, self._asked.head.short
        reason = f"{what}: {count.before:,}{unit} at {base}, {count.after:,}{unit} at {after}"
        told = partial(KeyResult, key, limit, measured, kind=MEASURES[name].kind)
        if count.key in unsteady:
            return told("inconclusive", f"{reason}, but recordings of the same commit differ")
        if count.after <= count.before or head is None:
            return told("passed", reason)
        # The contract's own check finds the first event beyond it.
        result = check(load(head), Contract.parse({key: limit}), price=False)
        return replace(result.results[0], status="failed", reason=reason)

    def _contract(self, head: Path | None) -> tuple[CheckResult, ...]:
        contract = self._asked.contract
        if contract is None:
            return ()
        if head is None:
            raise OptionError("a contract needs a recording, and the head left none")
        result = check(load(head), contract)
        broken = ", ".join(each.key for each in result.failed)
        self._say(f"contract: {f'broken: {broken}' if broken else 'holds'}")
        return (result,)

    # -------------------------------------------------------------------------------- time

    def _measure(self) -> Sequential:
        """Run pairs in turns until it is decided which commit is slower, or time is over."""
        asked = self._asked
        pairs = Pairs(
            *self._sides,
            most=self._plan.looks[-1],
            seed=asked.seed,
            deadline_s=self._began_s + asked.budget_s,
        )
        sequential = Sequential(pairs, self._plan, WORK)
        sequential.decide()
        verdict, by = sequential.decided_by
        self._say(f"time: {verdict} by {by} after {pluralize(len(pairs.pairs), 'pair')}")
        return sequential

    def _comparison(
        self, sequential: Sequential, verdict: str, recorded: Sequence[Path | None]
    ) -> Comparison:
        look = replace(sequential.looks[-1], verdict=verdict)
        evidence = Evidence()
        if verdict in ("slower", "faster"):
            self._say("looking for causes")
            base, head = recorded
            evidence = build_evidence(base, head, look)
        few = least_p(look.pairs) > look.level
        notes = [_TOO_FEW.format(pluralize(look.pairs, "pair"), LOOKS[0])] if few else []
        return build_comparison(
            sequential,
            *self._sides,
            evidence=evidence,
            seed=self._asked.seed,
            reproduce=self._asked.reproduce,
            verdict=verdict,
            notes=notes,
        )


_TOO_FEW = "the budget was over after {}, and {} are the fewest that can decide: give more time"


def _told(counts: Sequence[CountChange]) -> str:
    return ", ".join(f"{each.key} {each.before} to {each.after}" for each in counts)


def _gate_of(key: str, comparison: Comparison | None) -> str:
    """Return the gate to which a limit belongs."""
    if key == "step_time":
        return comparison.verdict if comparison is not None else SLOWER
    return key.removesuffix(_PER_STEP)


def _time_limit(found: Comparison, decided_by: str, gates: Sequence[str]) -> KeyResult:
    """Return the verdict on time as a limit."""
    status = "inconclusive" if found.verdict == UNDECIDED else "passed"
    if found.verdict in gates:
        status = "failed"
    limit = f"at most {100 * found.minimal_effect:g} % longer than the base"
    ends = [100 * end if end is not None else math.inf for end in (found.low, found.high)]
    known = all(map(math.isfinite, ends))
    interval = f" ({ends[0]:+.1f} to {ends[1]:+.1f} %)" if known else ""
    reason = f"{found.verdict}: {100 * found.best:+.1f} %{interval} after " + pluralize(
        found.pairs, "pair"
    )
    if decided_by != "time":
        reason += f", decided by {MEASURE_WORDS[decided_by]}"
    return KeyResult("step_time", limit, found.after_ns, status, reason, kind="time")
