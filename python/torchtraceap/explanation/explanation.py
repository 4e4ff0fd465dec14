"""`Explanation`: the result, and the JSON of `torchtraceap explain`."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.explanation.numbers import Metric
from torchtraceap.explanation.pack import PackRow

__all__ = ["Change", "DryRun", "ExplainedSegment", "Explanation", "Response", "Round", "Usage"]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change(Result):
    """What to change."""

    text: str
    diff: str | None
    """Of typical code, in the unified format; None where there is nothing to change."""


@dataclass(frozen=True, slots=True)
class ExplainedSegment(Result):
    """A part of the profiled time, with what it is."""

    start_ns: int
    end_ns: int
    type: str
    """A type of `torchtraceap.core.knowledge`, or "none"."""
    confidence: float
    what: str
    """What happens. Every number in it is one of `citations`."""
    why: str
    """Why it costs time. The same."""
    change: Change
    verify: str
    """How to see that the change worked."""
    citations: tuple[PackRow | Metric, ...]
    source: str = "offline"
    """Who judged it: "offline" or "llm"."""

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
            "citations": [_citation(cited) for cited in self.citations],
            "source": self.source,
        }


def _citation(cited: PackRow | Metric) -> Json:
    if isinstance(cited, Metric):
        return cited.to_citation()
    return {
        "row": cited.row,
        "name": cited.name,
        "start_ns": cited.start_ns,
        "duration_ns": cited.duration_ns,
        "rank": cited.rank,
    }


@dataclass(frozen=True, slots=True)
class Round(Result):
    """One scoring of windows."""

    grid: int
    """How many windows."""
    asked_by: str
    """"start"; "model" or "rule" where a judge was in doubt."""
    segments: int
    """How many there are afterwards."""
    changed: bool
    """Whether segments were dropped or renamed."""


@dataclass(frozen=True, slots=True)
class Usage(Result):
    """What a language model was asked."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    """None where prices are not known."""


@dataclass(frozen=True, slots=True)
class Response(Result):
    """What a question about a trace got."""

    text: str
    source: str
    """As `Explanation.source`."""
    model: str | None
    usage: Usage | None
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class DryRun(Result):
    """What a language model would be asked about segments; nothing was sent."""

    calls: int
    prompt_tokens: int
    """Estimated from the characters."""
    completion_tokens: int
    """At most."""
    cost_usd: float | None
    """At most; None where prices are not known."""
    prompts: tuple[tuple[tuple[str, str], ...], ...]
    """Of each segment its messages: role and text, as they would be sent."""


@dataclass(frozen=True, slots=True)
class Explanation(Result):
    """What `explain` answers."""

    source: str
    """"offline", "llm", or "offline_fallback" where the model could not be asked or believed."""
    model: str | None
    answer: str | None
    """To the question, if one was asked."""
    segments: tuple[ExplainedSegment, ...]
    """The largest expected saving first."""
    rounds: tuple[Round, ...]
    usage: Usage | None
    problems: tuple[str, ...] = field(default=())
    """What went wrong with the model, or could not be judged."""
    begin_ns: int = 0
    """Where the profiled time begins, which texts count from."""

    def to_dict(self) -> Json:
        return {"schema": "torchtraceap.explanation/1", **Result.to_dict(self)}
