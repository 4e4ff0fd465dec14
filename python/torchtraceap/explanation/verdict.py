"""The verdict of a judge on a segment."""

from __future__ import annotations

from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result

__all__ = ["GRIDS", "VERDICTS", "Citation", "Verdict"]

VERDICTS = ("anti_pattern", "benign", "misclassified", "insufficient_evidence")
"""Possible verdicts. With `misclassified` the windows should not have been flagged, or have
another type than scored."""
GRIDS = (50, 100, 200)
"""Numbers of windows in which a segment may be scored again."""


@dataclass(frozen=True, slots=True)
class Citation(Result):
    """An event, or a metric with its value, on which a verdict rests."""

    row: str | None
    """Key of a row of the pack."""
    metric: str | None
    value: float | None
    """Value of the metric, as the pack writes it."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Verdict(Result):
    """The answer of a judge, whether offline or a language model."""

    verdict: str
    """One of `VERDICTS`."""
    labels: tuple[str, ...]
    """Types that apply; empty for none."""
    primary: str
    """The one that costs most, or "none"."""
    confidence: float
    evidence: tuple[Citation, ...]
    what: str
    """Description of what happens in the segment; every number in it is cited."""
    why: str
    """Reason why that costs time; every number in it is cited."""
    fix: str
    """Type whose advice in the knowledge base fits, or "none"."""
    suggested_windows: int | None
    """Number of windows to score the segment again in; None to keep it."""
