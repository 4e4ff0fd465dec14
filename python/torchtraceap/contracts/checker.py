"""Check a contract on a trace.

Note [Statuses]: a limit passes or fails by what the trace holds. It is inconclusive where the trace
lacks the signal, and, for shares and times, where the trace is of another device than the contract
was recorded on. Counts and sizes hold on any device. With several ranks a limit holds on every one;
a rank that breaks it decides, whatever the others lack.

Note [Per step]: a limit with `_per_step` holds for each counted step. The event that is named is
the one with which the first such step goes beyond it: with `<=120`, its 121st launch.

Note [Fixes of idle time]: why a GPU idles, or a step takes long, the rules tell. Of a limit on that
the fixes of the findings that are present are tried; where there are none, those of what usually
is the cause. A price is what a fix saves when the run is replayed with it (docs/simulation.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from torchtraceap.contracts.limits import OTHER, Contract, Limit, format_value
from torchtraceap.contracts.measures.events import is_without_gpu
from torchtraceap.contracts.measures.measurement import Measurement, measure_rank
from torchtraceap.contracts.measures.predicted import launching_row
from torchtraceap.contracts.measures.vocabulary import MEASURES, base_of, is_per_step
from torchtraceap.contracts.result import (
    FAILED,
    INCONCLUSIVE,
    PASSED,
    CheckResult,
    Frame,
    KeyResult,
)
from torchtraceap.contracts.wording import (
    describe_count,
    describe_excess,
    describe_headroom,
    describe_limit,
    describe_scope,
)
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import EventStart
from torchtraceap.core.sums import distinct
from torchtraceap.errors import TraceError
from torchtraceap.ops.devices import find_device
from torchtraceap.tables.detection import detect, judge, present_findings
from torchtraceap.tables.frames import frame_of
from torchtraceap.tables.gpu.recorded_device import recorded_device
from torchtraceap.tables.quality import why_not_comparable
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "CPU",
    "Price",
    "check",
    "fixes_of",
    "is_same_device",
    "prices",
    "trace_device",
    "untold",
]


CPU = "cpu"
"""The device of a run without a GPU."""


def check(
    trace: Ranks, contract: Contract, *, price: bool = True, one_step: bool = False
) -> CheckResult:
    """Check every limit of a contract.

    Args:
        trace: One or several ranks.
        contract: Its limits, with the device that times were recorded on.
        price: Replay the run with fixes of what fails, and say what they would save.
        one_step: Take the whole trace as one step if no step is marked or inferred.
    """
    device = trace_device(trace)
    results = [
        _check_key(trace, contract, key, limit, device, one_step) for key, limit in contract.limits
    ]
    if price:
        wanted = {
            each.key: fixes_of(trace, each.key, each.measured if each.key == "findings" else ())
            for each in results
            if each.status == FAILED and each.first_event is not None
        }
        found = prices(trace, wanted) if wanted else {}
        of_step = any(part.tree.steps for part in trace.ranks)
        for place, each in enumerate(results):
            if (saved := found.get(each.key)) is not None:
                results[place] = replace(
                    each, price_ns=saved.ns, price_per_step=of_step, price_note=saved.note
                )
    why_not = why_not_comparable(trace)
    if why_not:
        # Work that is not recorded may break a limit, so no limit is kept for sure.
        reason = f"not comparable: {why_not}"
        results = [
            replace(each, status=INCONCLUSIVE, reason=reason) if each.status == PASSED else each
            for each in results
        ]
    return CheckResult(
        passed=why_not is None and all(each.status != FAILED for each in results),
        results=tuple(results),
        name=contract.name,
        file=contract.file,
        paths=tuple(part.path for part in trace.ranks),
        device=device,
    )


def untold(contract: Contract, reason: str) -> CheckResult:
    """Return the result where nothing at all was recorded: no limit is told to hold.

    Args:
        contract: Its limits.
        reason: Why, for a person.
    """
    results = tuple(
        KeyResult(key, limit.to_json(), None, INCONCLUSIVE, reason, line=contract.line(key),
                  kind=MEASURES[key].kind)
        for key, limit in contract.limits
    )  # fmt: skip
    return CheckResult(True, results, contract.name, contract.file)


def _check_key(
    trace: Ranks, contract: Contract, key: str, limit: Limit, device: str | None, one_step: bool
) -> KeyResult:
    kind = MEASURES[key].kind
    result_of = partial(KeyResult, key, limit.to_json(), line=contract.line(key), kind=kind)
    if key == "findings":
        return _check_findings(trace, limit, result_of)
    if kind in ("share", "time"):
        if reason := _other_device(contract, device, key):
            return result_of(None, INCONCLUSIVE, reason)
        limit = limit.widened(contract.tolerance)
    judged = [
        _judge_rank(measure_rank(part, key, one_step=one_step), limit) for part in trace.ranks
    ]
    several = len(trace.ranks) > 1
    if failed := [each for each in judged if each.status == FAILED]:
        return _make_result(max(failed, key=lambda each: each.beyond), result_of, limit, several)
    unknown = next((each for each in judged if each.status == INCONCLUSIVE), None)
    if unknown is not None:
        of_rank = f"rank {unknown.of.rank}: " if several else ""
        return result_of(None, INCONCLUSIVE, f"{of_rank}{unknown.of.reason}")
    return _make_result(max(judged, key=lambda each: each.nearness), result_of, limit, several)


def trace_device(trace: Ranks) -> str | None:
    """Return the name of the devices that work ran on, as their driver says it; "cpu" without a
    GPU. None where the trace does not say."""
    if all(is_without_gpu(part) for part in trace.ranks):
        return CPU
    names = set()
    for part in trace.ranks:
        used = {int(number) for number in distinct(part.table.device[part.tree.gpu_rows])}
        entries = part.table.devices
        for entry in [entry for entry in entries if entry.id in used] or entries[:1]:
            known = recorded_device(entry)
            names.add(entry.name or (known.name if known else ""))
    return ", ".join(sorted(names - {""})) or None


def is_same_device(one: str, other: str) -> bool:
    """Return True if two names say the same kind of device."""
    if one.strip().lower() == other.strip().lower():
        return True
    known = find_device(one), find_device(other)
    return known[0] is not None and known[0] == known[1]


def _other_device(contract: Contract, device: str | None, key: str) -> str:
    """Return why a time says nothing on this device; empty if it does."""
    recorded = contract.device
    if recorded is None:
        if device == CPU and key == "step_time":
            return (
                "the trace is of a run without a GPU, and the contract doesn't say that its times "
                f"are of such a run; write device: {CPU} where they are"
            )
        return ""
    if device is None:
        return f"the limit was recorded on {recorded}, and the trace does not say its device"
    if is_same_device(recorded, device):
        return ""
    return f"the limit was recorded on {recorded}, the trace on {device}: times don't compare"


# --------------------------------------------------------------------------------- one rank


@dataclass(frozen=True)
class _RankVerdict:
    """A limit against what one rank holds."""

    status: str
    of: Measurement
    value: float = 0
    """The number that decides: the worst step's, or of one kind of collective."""
    limit: Limit | None = None
    """Limit to check against: that of one kind, if there are several."""
    name: str = ""
    """Name of the kind."""
    step: int | None = None
    """Place of the first step that goes beyond, among the counted ones."""
    steps_beyond: int = 0
    first_value: float = 0
    """Value in the first step that is beyond the limit."""

    @property
    def beyond(self) -> float:
        """Return how far the value is beyond the limit, as a share of it."""
        assert self.limit is not None
        return beyond_share(self.limit, self.value)

    @property
    def nearness(self) -> float:
        """Return the key by which the rank nearest to its limit is found."""
        assert self.limit is not None
        return self.value if self.limit.high < math.inf else -self.value


def beyond_share(limit: Limit, value: float) -> float:
    """Return how far a value lies outside of bounds, to compare several."""
    if limit.is_above(value):
        return (value - limit.high) / (abs(limit.high) or 1.0) + 1e-12
    if limit.is_below(value):
        return (limit.low - value) / (abs(limit.low) or 1.0) + 1e-12
    return 0.0


def _judge_rank(of: Measurement, limit: Limit) -> _RankVerdict:
    if not of.known:
        return _RankVerdict(INCONCLUSIVE, of)
    if not isinstance(of.value, dict):
        return _judge_number(of, limit, [*of.by_step], of.value, "")
    judged = [
        _judge_number(of, each, [_number_of(n, each_name, limit) for n in of.by_step],
                      _number_of(of.value, each_name, limit), each_name)
        for each_name, each in (limit.by_name or (("", limit),))
    ]  # fmt: skip
    failed = [each for each in judged if each.status == FAILED]
    return max(failed or judged, key=lambda each: each.beyond)


def _number_of(numbers: dict[str, int], name: str, limit: Limit) -> int:
    """Return the number of collectives of a kind; of all if it is empty, and of those without a
    limit for `other`."""
    if not name:
        return sum(numbers.values())
    if name != OTHER:
        return numbers.get(name, 0)
    named = {each for each, _ in limit.by_name}
    return sum(number for each, number in numbers.items() if each not in named)


def _judge_number(
    of: Measurement, limit: Limit, by_step: list[Any], total: float, name: str
) -> _RankVerdict:
    if not is_per_step(of.key):
        status = PASSED if limit.holds(total) else FAILED
        return _RankVerdict(status, of, total, limit, name)
    beyond = [place for place, value in enumerate(by_step) if not limit.holds(value)]
    if not beyond:
        worst = max(by_step) if limit.high < math.inf else min(by_step)
        return _RankVerdict(PASSED, of, worst, limit, name)
    worst = max((by_step[place] for place in beyond), key=lambda v: beyond_share(limit, v))
    first = beyond[0]
    return _RankVerdict(FAILED, of, worst, limit, name, first, len(beyond), by_step[first])


# ------------------------------------------------------------------------------- telling it


def _make_result(
    judged: _RankVerdict, result_of: Callable[..., KeyResult], whole: Limit, several: bool
) -> KeyResult:
    of, limit = judged.of, judged.limit or whole
    part, places = of.part, of.step_places
    assert part is not None
    measured = of.value if isinstance(of.value, dict) else judged.value
    step_name = None
    if judged.step is not None and places:
        step_name = part.tree.steps[places[judged.step]].name
    first = judged.value if judged.step is None else judged.first_value
    scope = describe_scope(of, judged.step, step_name)
    words = describe_count(of.key, first, judged.name)
    rank = f" on rank {part.rank}" if several else ""
    sentence = f"{words} {scope}{rank}, {describe_limit(limit, of.key)}"
    note = f"; {of.note}" if of.note else ""
    more: dict[str, Any] = {"rank": part.rank, "note": of.note}
    if judged.status == PASSED:
        won = describe_headroom(limit, judged.value, of.key)
        return result_of(measured, PASSED, f"{sentence}{note}", won=won, **more)
    sentence += f": {describe_excess(limit, first, of.key)}"
    if judged.steps_beyond > 1:
        sentence += f"; {judged.steps_beyond} steps break it"
        if judged.value != first:
            worst = format_value(judged.value, MEASURES[of.key].kind)
            sentence += f", the worst with {worst}"
    if of.predicted is not None and limit.high < math.inf:
        place = int(limit.high)
        if 0 <= place < len(of.predicted):
            sentence += f"; number {place + 1} would be launched by {of.predicted[place]}"
    row = _first_row(judged, limit, whole)
    event, frame = (None, None) if row is None else _event_and_frame(part, row)
    return result_of(
        measured,
        FAILED,
        f"{sentence}{note}",
        first_event=event,
        frame=frame,
        step=step_name,
        **more,
    )


def _first_row(judged: _RankVerdict, limit: Limit, whole: Limit) -> int | None:
    """Return the event with which the rank (the step) goes beyond a limit; None where too little is
    there."""
    of, part = judged.of, judged.of.part
    assert part is not None
    if of.first_row is not None:
        return of.first_row()
    found = of.found
    if of.predicted is not None and limit.high < math.inf:
        return launching_row(part, of.predicted, int(limit.high))
    if found is None:
        return None
    if judged.step is not None and of.step_places:
        found = found.of_step(of.step_places[judged.step])
    if judged.name == OTHER and found.kinds is not None:
        for name, _ in whole.by_name:
            found = found.without_kind(name)
    elif judged.name:
        found = found.of_kind(judged.name) if found.kinds is not None else found
    return found.row_beyond(limit.high, at_it=limit.high_open)


def _event_and_frame(part: RankTrace, row: int) -> tuple[EventStart, Frame | None]:
    event = EventStart(row, part.table.name_of(row), int(part.table.ts_ns[row]))
    return event, frame_of(part, row)


def _check_findings(trace: Ranks, limit: Limit, result_of: Callable[..., KeyResult]) -> KeyResult:
    found = detect(trace)
    wanted = [name for name in limit.types or found if name in found]
    verdicts = {name: judge(found[name]) for name in wanted}
    present = [name for name, verdict in verdicts.items() if verdict == "present"]
    unknown = [name for name, verdict in verdicts.items() if verdict == "unknown"]
    if present:
        # The evidence is that of the rank on which the first one costs most.
        part, finding = max(found[present[0]], key=lambda each: each[1].cost_ns)
        event, frame = None, None
        if len(finding.evidence):
            event, frame = _event_and_frame(part, int(finding.evidence[0]))
        are = "is" if len(present) == 1 else "are"
        reason = f"{', '.join(present)} {are} present, which the contract rules out"
        return result_of(present, FAILED, reason, first_event=event, frame=frame, rank=part.rank)
    if unknown:
        lacks = dict.fromkeys(
            signal for name in unknown for _, one in found[name] for signal in one.missing_signals
        )
        missing = ", ".join(lacks) or "their signals"
        told = f"this trace does not tell {', '.join(unknown)}: it lacks {missing}"
        return result_of(None, INCONCLUSIVE, told)
    return result_of([], PASSED, f"none of {len(verdicts)} types is present")


_OF_IDLE = (
    "loader_workers=4",
    "remove_host_sync",
    "pin_memory",
    "cuda_graph",
    "no_allocator_calls",
)
_FIXES = {
    "gpu_idle": _OF_IDLE,
    "gpu_busy": _OF_IDLE,
    "step_time": _OF_IDLE,
    "gpu_time_per_step": ("fuse_pointwise", "no_casts", "channels_last"),
    "launches": ("cuda_graph",),
    "syncs": ("remove_host_sync",),
    "h2d_bytes": ("pin_memory=HtoD",),
    "d2h_bytes": ("pin_memory=DtoH",),
    "copied_bytes": ("pin_memory", "no_host_copies"),
    "exposed_memcpy": ("pin_memory",),
    "collectives": ("merge_collectives", "bucket_size_mb=25"),
    "exposed_communication": ("overlap_collectives",),
    "recompiles": ("no_recompilation",),
    "graph_breaks": ("merge_compiled_regions",),
    "allocator_calls": ("no_allocator_calls",),
}
"""Edits that stand for a fix, by key without suffix; the best of those that apply counts. See Note
[Fixes of idle time]."""
_NO_FIX = "no simulated edit stands for a fix of this"


class Price(NamedTuple):
    """The saving of a fix."""

    ns: int | None
    """Time saved per step if there are steps, else in the whole run; None if it is unknown."""
    note: str
    """The edit, or why there is no price."""


def fixes_of(trace: Ranks, key: str, types: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the edits that stand for a fix of a broken limit; for findings by their types."""
    if key == "findings":
        return _fixes_of_findings(types)
    fixes = _FIXES.get(base_of(key), ())
    if fixes is not _OF_IDLE:
        return fixes
    return _fixes_of_findings(present_findings(trace)) or fixes


def _fixes_of_findings(types: Iterable[str]) -> tuple[str, ...]:
    from torchtraceap.simulation.edits.base import edits_by_finding

    known = edits_by_finding()
    return tuple(dict.fromkeys(known[each][0] for each in types if each in known))


def prices(trace: Ranks, wanted: dict[str, tuple[str, ...]]) -> dict[str, Price]:
    """Return by key what the best of its edits saves; each edit is replayed alone, and once.

    Args:
        trace: Whose run is replayed.
        wanted: Edits by key.
    """
    from torchtraceap.simulation.simulate import simulate

    edits = list(dict.fromkeys(edit for each in wanted.values() for edit in each))
    if not edits:
        return dict.fromkeys(wanted, Price(None, _NO_FIX))
    try:
        with progress_stage("replaying the run with fixes"):
            simulation = simulate(trace, edits)
            measured_ns, outcomes = simulation.measured_ns, simulation.edits
    except TraceError as error:
        return dict.fromkeys(wanted, Price(None, f"the run can't be replayed: {error}"))
    saved = {}
    for outcome in outcomes:
        if outcome.predicted_ns is None:
            saved[outcome.edit] = Price(None, f"{outcome.edit}: {outcome.note}")
        else:
            note = f"{outcome.edit}: {outcome.note}" if outcome.note else outcome.edit
            saved[outcome.edit] = Price(measured_ns - outcome.predicted_ns, note)
    found = {}
    for key, tried in wanted.items():
        known = [saved[edit] for edit in tried if saved[edit].ns is not None]
        notes = "; ".join(saved[edit].note for edit in tried)
        found[key] = max(known, key=lambda price: price.ns or 0, default=Price(None, notes))
        if not tried:
            found[key] = Price(None, _NO_FIX)
    return found
