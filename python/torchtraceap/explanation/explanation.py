"""The result of `explain`, and the JSON of `torchtraceap explain`."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Evidence, Result
from torchtraceap.explanation.language_model import Usage
from torchtraceap.explanation.numbers import Metric
from torchtraceap.tables.frames import Frame

__all__ = [
    "Change",
    "DryRun",
    "ExplainedSegment",
    "Explanation",
    "Response",
    "Round",
    "Usage",
    "Where",
]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change(Result):
    """A recommended change."""

    text: str
    diff: str | None
    """Unified diff of typical code; None if there is nothing to change."""


@dataclass(frozen=True, slots=True)
class Where(Result):
    """The lines of the program behind a segment."""

    text: str
    """The frames in a sentence, or the option that records them."""
    frames: tuple[Frame, ...]
    """Those with the most time first."""


@dataclass(frozen=True, slots=True)
class ExplainedSegment(Result):
    """A part of the profiled time, with what it is."""

    start_ns: int
    end_ns: int
    type: str
    """A type of `torchtraceap.core.knowledge`, or "none"."""
    confidence: float
    what: str
    """Description of what happens. Every number in it is one of `citations`."""
    why: str
    """Reason why it costs time. Every number in it is one of `citations`."""
    change: Change
    verify: str
    """Instructions to check that the change worked."""
    citations: tuple[Evidence | Metric, ...]
    source: str = "offline"
    """The judge: "offline" or "llm"."""
    where: Where = Where("", ())
    places: tuple[tuple[int, int], ...] = ()
    """Start and end, ns, of all parts of which this is true, in the order of time; `start_ns` and
    `end_ns` are those of the part that the figures are of."""

    def to_dict(self) -> Json:
        return {
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "type": self.type,
            "confidence": self.confidence,
            "what": self.what,
            "why": self.why,
            "change": self.change.to_dict(),
            "verify": self.verify,
            "citations": [
                cited.to_dict() if isinstance(cited, Evidence) else cited.to_citation()
                for cited in self.citations
            ],
            "source": self.source,
            "where": self.where.to_dict(),
            "places": [{"start_ns": start, "end_ns": end} for start, end in self.places],
        }


@dataclass(frozen=True, slots=True)
class Round(Result):
    """One scoring of windows."""

    grid: int
    """Number of windows."""
    asked_by: str
    """"start"; "model" or "rule" where a judge was in doubt."""
    segments: int
    """Number of segments afterwards."""
    changed: bool
    """True if segments were dropped or renamed."""


@dataclass(frozen=True, slots=True)
class Response(Result):
    """The response to a question about a trace."""

    text: str
    source: str
    """The same values as `Explanation.source`."""
    model: str | None
    usage: Usage | None
    problems: tuple[str, ...] = ()
    citations: tuple[Metric, ...] = ()
    """Numbers of an offline answer, each with the table, row and column that has it."""

    def to_dict(self) -> Json:
        cited = [metric.to_citation() for metric in self.citations]
        return {**Result.to_dict(self), "citations": cited}

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class DryRun(Usage):
    """The requests that a language model would get about segments, with estimates from their
    characters: upper bounds, but for the tokens of prompts. Nothing was sent."""

    prompts: tuple[tuple[tuple[str, str], ...], ...]
    """Messages of each segment as they would be sent: pairs of role and text."""


@dataclass(frozen=True, slots=True)
class Explanation(Result):
    """The result of `explain`."""

    source: str
    """"offline", "llm", or "offline_fallback" where the model could not be asked or believed."""
    model: str | None
    answer: str | None
    """Answer to the question, if there was one."""
    segments: tuple[ExplainedSegment, ...]
    """The largest expected saving first."""
    rounds: tuple[Round, ...]
    usage: Usage | None
    problems: tuple[str, ...] = field(default=())
    """Failures of the model, and findings that could not be judged."""
    begin_ns: int = 0
    """Start of the profiled time, from which texts count."""
    answer_citations: tuple[Metric, ...] = ()
    """Numbers of an offline answer, each with the table, row and column that has it."""

    def to_dict(self) -> Json:
        cited = [metric.to_citation() for metric in self.answer_citations]
        document = {"schema": "torchtraceap.explanation/1", **Result.to_dict(self)}
        return {**document, "answer_citations": cited}
