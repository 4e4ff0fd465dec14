"""Results as values: frozen dataclasses whose `to_dict()` is the JSON of the command line.

All times are integer nanoseconds in the trace's own clock (fields end in `_ns`), shares are
fractions in [0, 1]. Nothing here reads a trace or computes more than a sum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.formatting import format_fact
from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable
from torchtraceap.core.sums import clamp

__all__ = [
    "PAPER_TYPES",
    "PHASES",
    "Device",
    "Diagnostic",
    "EventCounts",
    "EventStart",
    "Evidence",
    "Fact",
    "Finding",
    "HeldOut",
    "PlannedFix",
    "PredictedTime",
    "RankTimeline",
    "ReplayCheck",
    "Result",
    "Saving",
    "Sensitivity",
    "Step",
    "StepTime",
    "Summary",
    "Timeline",
    "TraceFile",
    "Trust",
    "Windows",
]

Int64Array = npt.NDArray[np.int64]
Json = dict[str, Any]

PHASES = ("prefill", "decode", "mixed", "speculative", "diffusion", "idle")
"""Phases of an iteration that a serving engine can name."""

PAPER_TYPES = tuple(rule.type for rule in _core.rules() if rule.paper)
"""The eight anti-patterns of the paper, in the order in which every table shows them."""


class Result(Renderable):
    """A frozen dataclass that knows its JSON and shows itself."""

    __slots__ = ()

    def to_dict(self) -> Json:
        """Return the fields by name, in their order; arrays and tuples as lists."""
        this: Any = self
        return {entry.name: _plain(getattr(self, entry.name)) for entry in fields(this)}

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the JSON text of `to_dict()`: ASCII only, so that any terminal and pipe takes
        it."""
        separators = (",", ":") if indent is None else None
        return json.dumps(self.to_dict(), indent=indent, separators=separators, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


@dataclass(frozen=True, slots=True)
class Timeline(Result):
    """GPU time split by interval union; compute + both exposed + idle = span, exactly."""

    span_ns: int = 0
    """First start to last end of GPU events, or the length of the step it is clipped to."""
    busy_ns: int = 0
    """Time in which at least one GPU event runs."""
    idle_ns: int = 0
    """Time in which no GPU event runs: span minus busy."""
    compute_ns: int = 0
    """Time in which at least one compute event runs: a kernel that is no collective, or
    a memset."""
    communication_ns: int = 0
    """Time in which at least one communication kernel runs."""
    memcpy_ns: int = 0
    """Time in which at least one copy runs."""
    exposed_communication_ns: int = 0
    """Communication runs and compute does not."""
    exposed_memcpy_ns: int = 0
    """A copy runs and neither compute nor communication does."""

    def __add__(self, other: Timeline) -> Timeline:
        pairs = zip(self.values(), other.values(), strict=True)
        return Timeline(*(clamp(a + b) for a, b in pairs))

    def values(self) -> tuple[int, ...]:
        """Return the eight numbers in field order."""
        return tuple(getattr(self, name) for name in TIMELINE_FIELDS)

    def share(self, ns: int) -> float:
        """Return `ns` as a fraction of the span; 0 where the span is empty."""
        return ns / self.span_ns if self.span_ns else 0.0


TIMELINE_FIELDS = tuple(f.name for f in fields(Timeline))


@dataclass(frozen=True, slots=True)
class TraceFile(Result):
    """One input file, which holds one rank."""

    path: str
    rank: int | None
    """None for a lone file without a rank."""
    world_size: int | None


_HARMLESS = frozenset(
    (
        "bare_backslash", "bare_word", "control_character", "extra_comma", "invalid_utf8",
        "lone_quote", "missing_comma", "non_finite_number", "number_in_quotes",
        "rank_from_file_name", "skipped_file", "text_after_end", "unclosed_bracket", "unquoted_key",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Diagnostic(Result):
    """A count of things that reading or linking could not take at face value (docs/errors.md)."""

    code: str
    count: int
    first_byte_offset: int | None
    """Offset in the decompressed text; None if it has no place there."""
    message: str

    @property
    def is_harmless(self) -> bool:
        """True if the repair loses no event, no time and no rank."""
        return self.code in _HARMLESS


@dataclass(frozen=True, slots=True)
class QualityNote(Result):
    """A fault of a recording, and its place."""

    code: str
    """Such as `impossible_duration` (docs/tables.md)."""
    rank: int | None
    count: int
    """Records, launches or files concerned."""
    start_ns: int | None
    """On the clock of the rank's GPU; None where no time can be told."""
    end_ns: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Quality(Result):
    """The uses that a recording can be trusted for (docs/tables.md)."""

    comparable: bool = True
    """Its times can be held against those of another recording."""
    recorded_share: float = 1.0
    """Share of the profiled GPU time; 1.0 where nothing is known to be missing."""
    notes: tuple[QualityNote, ...] = ()
    """Empty for a recording that is fine."""


@dataclass(frozen=True, slots=True)
class EventCounts(Result):
    """Numbers of events, summed over the files."""

    total: int
    """Objects in `traceEvents`, kept or not."""
    complete: int
    """Events with a start and a duration that were kept."""
    gpu: int
    """Complete kernels, copies and memsets."""
    gpu_linked: int
    """GPU events that were launched by a call in the same trace."""
    gpu_orphan: int
    """The others."""
    by_category: dict[str, int]
    """Complete events by category as written."""


@dataclass(frozen=True, slots=True)
class Device(Result):
    """One GPU of one rank."""

    device: int | None
    """Index as the trace gives it; None where its events do not name a device."""
    name: str | None
    streams: int
    """Number of streams that ran something."""
    timeline: Timeline
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class RankTimeline(Result):
    """The timeline of one file, all its devices merged into one union."""

    rank: int | None
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Step(Result):
    """One training step of one rank; its timeline is clipped to it."""

    name: str
    start_ns: int
    duration_ns: int
    timeline: Timeline
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Summary(Result):
    """The content of a trace and where its GPU time goes."""

    files: tuple[TraceFile, ...]
    events: EventCounts
    diagnostics: tuple[Diagnostic, ...]
    timeline: Timeline
    """All devices merged into one union; several ranks: the sum over ranks."""
    devices: tuple[Device, ...]
    ranks: tuple[RankTimeline, ...]
    steps: tuple[Step, ...]
    """Steps by rank, then by start."""
    steps_inferred: bool = False
    """The steps come from a repeated pattern, not from the profiler's own marks."""
    versions: dict[str, str | int] = field(default_factory=dict)
    """Versions of the profiler, the driver and libraries in the first file, under its names."""
    step: StepTime | None = None
    """Time of a step; None if no rank has steps."""
    quality: Quality = field(default_factory=Quality)
    """The uses that the recording can be trusted for."""

    @property
    def device_names(self) -> tuple[str, ...]:
        """Kinds of GPUs, each once."""
        return tuple(sorted({device.name for device in self.devices if device.name}))

    def __repr__(self) -> str:
        return (
            f"Summary(files={len(self.files)}, events={self.events.total}, "
            f"gpu={self.events.gpu}, devices={len(self.devices)}, steps={len(self.steps)}, "
            f"span_ns={self.timeline.span_ns})"
        )

    def to_dict(self) -> Json:
        """Return the document of `torchtraceap summary --json`."""
        return {"schema": "torchtraceap.summary/1", **Result.to_dict(self)}


@dataclass(frozen=True, slots=True)
class EventStart(Result):
    """An event of a rank by its row, and its start."""

    row: int
    """Row in the rank's event table."""
    name: str
    start_ns: int


@dataclass(frozen=True, slots=True)
class Evidence(EventStart):
    """An event that shows a finding, or that a text cites."""

    duration_ns: int
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Fact(Result):
    """A figure of a finding; `str` writes it with its unit."""

    kind: str
    """count, duration_ns, bytes, share, rate (a plain number) or text."""
    value: int | float | str

    def __str__(self) -> str:
        return format_fact(self.kind, self.value)


@dataclass(frozen=True, slots=True)
class Saving(Result):
    """The saving of a fix, in wall time of one rank (the mean over ranks)."""

    low_ns: int
    best_ns: int
    high_ns: int
    per_step: bool
    """True if the saving is per profiled step, False if it is over the whole profiled time."""
    method: str
    """"simulated": the run was replayed with the fix (docs/simulation.md); "bound": the GPU
    idle or exposed time inside the finding's intervals."""
    edit: str = ""
    """The fix as `torchtraceap simulate --edit` takes it; empty for a bound."""
    note: str = ""
    """Note on the change in the replay, or on why there is only a bound."""

    @property
    def simulated(self) -> bool:
        return self.method == "simulated"

    @property
    def believed_ns(self) -> int:
        """The saving that reports state: the best of what replays give, 0 if it is below the
        variation of steps, or else the bound."""
        return self.best_ns if self.simulated else self.high_ns


@dataclass(frozen=True, slots=True)
class StepTime(Result):
    """The time of a step, from the end of the work of one step to that of the next: host and GPU,
    whichever ends last (docs/simulation_edits.md#an-iteration)."""

    measured_ns: int
    """The mean over the counted steps; over several ranks the mean of theirs."""
    median_ns: int
    """Over all counted steps."""
    host_ns: int
    """The mean of their ranges on the host, which end when the work is handed over."""
    steps: int
    """Counted, on all ranks together."""
    left_out: int
    """Steps that are not counted: those of the warm-up, and the last of inferred ones."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Median in ns of each kind of iteration that a serving engine marks, such as "decode"; empty
    where none marks the steps."""

    @property
    def unit(self) -> str:
        """ "iteration" where a serving engine marks the steps, else "step"."""
        return "iteration" if self.kinds else "step"

    @property
    def host_apart(self) -> bool:
        """The host's ranges take so much longer or shorter that both times have to be told."""
        return abs(self.host_ns - self.measured_ns) > 0.05 * self.measured_ns


@dataclass(frozen=True, slots=True)
class HeldOut(Result):
    """Each step replayed with what the other steps cost; errors are means over the steps."""

    error: float
    """|replayed / measured - 1|."""
    median_error: float
    """Median of `error` over the steps: one of many may have work that no other step has."""
    baseline_error: float
    """Error if each step is predicted as the mean of the others."""
    noise: float
    """Coefficient of variation of the measured steps."""
    steps: int


@dataclass(frozen=True, slots=True)
class Sensitivity(Result):
    """The relative change of a step's time over that of the durations that are scaled."""

    gpu_share: float
    """Sensitivity to the durations of all GPU work, collectives included."""
    host_share: float
    """Sensitivity to all work of the host."""
    collective_share: float
    """Sensitivity to the durations of collectives."""


@dataclass(frozen=True, slots=True)
class Trust(Result):
    """Evidence on how far replays of a run can predict what a fix does."""

    iteration_error: float
    """Replayed / measured - 1 of the iteration that predictions use, from dependencies, work and
    typical latencies alone. Small is necessary, not sufficient: the durations are those of the same
    steps."""
    held_out: HeldOut | None
    """None if there are no two steps to compare; `held_out_note` says why."""
    held_out_note: str
    sensitivity: Sensitivity
    supports_prediction: bool
    """Savings are simulated; otherwise they stay bounds, and `reason` says why."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReplayCheck(Result):
    """The replay of a run on which savings were simulated, and how far to trust it."""

    measured_ns: int
    """A step, as `StepTime` has it; or the whole trace where `per_step` is False."""
    replayed_ns: int
    """Time of the same steps, replayed without anything that only the measured run knew."""
    noise_ns: int | None
    """Amount by which the mean of the measured steps varies; a saving is held against what a fix
    leaves of it. None if a single step shows none."""
    per_step: bool
    trust: Trust
    notes: tuple[str, ...] = ()
    """Notes on what is missing or assumed in the graph that was replayed."""


@dataclass(frozen=True, slots=True)
class PredictedTime(Result):
    """A predicted time of a step and the bounds of what is likely, ns."""

    predicted_ns: int
    low_ns: int
    high_ns: int


@dataclass(frozen=True, slots=True)
class PlannedFix(Result):
    """A fix of the plan, on top of those before it."""

    type: str
    """The finding that it removes."""
    edit: str
    """The fix as `torchtraceap simulate --edit` takes it."""
    gain_ns: int
    """Gain on top of the fixes before it."""
    total_ns_after: int
    """Time of the step (or the trace) with all fixes up to this one."""
    low_ns: int
    high_ns: int
    """Bounds of `total_ns_after`."""


@dataclass(frozen=True, slots=True)
class Finding(Result):
    """One anti-pattern that is present, as a cost with its evidence."""

    type: str
    title: str
    why: str
    fix: str
    """Recommended change, as it fits the trace."""
    code_before: str = field(repr=False)
    """Code that has the problem."""
    code: str = field(repr=False)
    """The same snippet after the change, to paste."""
    doc_url: str = field(repr=False)
    """Official documentation."""
    cost_ns: int
    """Total length of `intervals`, summed over the ranks."""
    cost_share: float
    """Cost as a share of the profiled time (of all ranks together)."""
    unclaimed_cost_ns: int
    """The part of the cost that no larger finding covers."""
    intervals: Int64Array = field(repr=False, compare=False)
    """Start and end, ns: int64 `[n, 2]`, by rank, sorted and disjoint inside a rank."""
    interval_ranks: tuple[int | None, ...] = field(repr=False)
    """Rank of each interval, `[n]`."""
    evidence: tuple[Evidence, ...] = field(repr=False)
    """The most telling events first, at most `_core.MAX_EVIDENCE`."""
    evidence_count: int
    """Number of evidence rows in all."""
    missing_signals: tuple[str, ...]
    """Signals that would have made it surer."""
    confidence: float
    facts: dict[str, Fact]
    """Figures for the sentence a person reads, of the rank that pays most."""
    saving: Saving | None
    paper: bool
    """One of the paper's eight types."""
    ranks: tuple[int | None, ...]
    """Ranks on which it was found."""

    def __post_init__(self) -> None:
        if self.intervals.shape != (len(self.interval_ranks), 2):
            raise ValueError(f"{self.type}: intervals must be [n, 2] with a rank each")

    def __repr__(self) -> str:
        return (
            f"Finding(type={self.type!r}, cost_ns={self.cost_ns}, "
            f"cost_share={self.cost_share:.4f}, intervals={len(self.intervals)}, "
            f"evidence={self.evidence_count}, confidence={self.confidence:.2f})"
        )

    def to_dict(self) -> Json:
        return {
            "type": self.type,
            "cost_ns": self.cost_ns,
            "cost_share": self.cost_share,
            "intervals": self.intervals.tolist(),
            "evidence": [row.to_dict() for row in self.evidence],
            "missing_signals": list(self.missing_signals),
            "confidence": self.confidence,
            "title": self.title,
            "why": self.why,
            "fix": self.fix,
            "code": self.code,
            "doc_url": self.doc_url,
            "saving": self.saving.to_dict() if self.saving else None,
            "unclaimed_cost_ns": self.unclaimed_cost_ns,
            "evidence_count": self.evidence_count,
            "facts": {name: str(fact) for name, fact in self.facts.items()},
            "figures": {name: fact.to_dict() for name, fact in self.facts.items()},
            "paper": self.paper,
            "ranks": list(self.ranks),
        }


GPU_PARTS = ("compute", "communication", "memcpy", "device_memcpy")
"""Parts of `Diagnosis.time_ns` in which a GPU is busy."""


@dataclass(frozen=True, slots=True)
class Lead(Result):
    """The finding with which a report begins, if one is worth it (verdict.py)."""

    type: str
    beside: bool
    """It neither lies in the largest part of the time nor explains a third of it."""


@dataclass(frozen=True, slots=True)
class Windows(Result):
    """Scores of windows of equal time over the profiled time (all ranks together)."""

    bounds_ns: tuple[int, ...]
    """`[count + 1]`."""
    scores: npt.NDArray[np.float64] = field(compare=False)
    """`[count]` in [0, 1], higher is worse; docs/scorers.md says what each scorer means by it."""
    types: dict[str, npt.NDArray[np.float64]] = field(compare=False)
    """Scores by type: the paper's eight, and further ones that the scorer knows."""

    def __post_init__(self) -> None:
        lengths = {len(self.scores), *(len(scores) for scores in self.types.values())}
        if lengths != {len(self.bounds_ns) - 1}:
            raise ValueError(f"{len(self.bounds_ns)} bounds for scores of lengths {lengths}")

    @property
    def count(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        worst = float(self.scores.max()) if self.count else 0.0
        return f"Windows(count={self.count}, worst={worst:.3f})"

    def to_dict(self) -> Json:
        return {"count": self.count, **Result.to_dict(self)}
