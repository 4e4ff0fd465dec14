"""The verdict of a judge on a segment, and the check that it rests on its pack: what it cites
exists, and its numbers are cited."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchtraceap.core.formatting import plain_text
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Evidence, Result
from torchtraceap.explanation.numbers import Metric, numbers_in, quantities_in
from torchtraceap.explanation.pack import Pack, short_name
from torchtraceap.ops.kernel_names import canonical_name

__all__ = ["GRIDS", "VERDICTS", "Citation", "Verdict", "check_verdict", "find_citations"]

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


_NAME = re.compile(r"[A-Za-z_#<(\[]")
_PART_OF_ABOUT = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*")


def check_verdict(verdict: Verdict, pack: Pack) -> list[str]:
    """Return the faults of a verdict as sentences for its author; the list is empty if it holds."""
    faults = []
    if verdict.verdict not in VERDICTS:
        faults.append(f"verdict {_quote(verdict.verdict)} is none of {', '.join(VERDICTS)}")
    named = (*verdict.labels, *(name for name in (verdict.primary, verdict.fix) if name != "none"))
    for name in dict.fromkeys(named):
        if name not in pack.allowed:
            faults.append(f"{_quote(name)} is no type that is allowed")
    if verdict.primary != "none" and verdict.primary not in verdict.labels:
        faults.append(f"primary {_quote(verdict.primary)} is not among the labels")
    if not 0 <= verdict.confidence <= 1:
        faults.append("confidence is not between 0 and 1")
    if verdict.suggested_windows not in (None, *GRIDS):
        grids = ", ".join(map(str, GRIDS))
        faults.append(f"the suggested number of windows is none of {grids}")
    if verdict.verdict == "anti_pattern" and not verdict.evidence:
        faults.append("an anti-pattern needs evidence: cite metrics or rows of the pack")
    return [*faults, *_false_evidence(verdict, pack), *_uncited_numbers(verdict, pack)]


def find_citations(verdict: Verdict, pack: Pack) -> tuple[Evidence | Metric, ...]:
    """Return the events and metrics of the pack that a verdict cites, in order, each once."""
    metrics, rows = pack.every_metric(), pack.rows
    found: dict[Evidence | Metric, None] = {}
    for evidence in verdict.evidence:
        if evidence.row is not None and evidence.row in rows:
            found[rows[evidence.row]] = None
        if evidence.metric is not None and evidence.metric in metrics:
            found[metrics[evidence.metric]] = None
    return tuple(found)


def _false_evidence(verdict: Verdict, pack: Pack) -> Iterator[str]:
    metrics, rows = pack.every_metric(), pack.rows
    for place, evidence in enumerate(verdict.evidence, 1):
        if evidence.row is None and evidence.metric is None:
            yield f"evidence {place} cites neither a row nor a metric"
        if evidence.row is not None and evidence.row not in rows:
            yield f"evidence {place}: the pack has no row {_quote(evidence.row)}"
        if evidence.metric is None:
            if evidence.value is not None:
                yield f"evidence {place} has a value without the name of its metric"
        elif evidence.metric not in metrics:
            yield f"evidence {place}: the pack has no metric {_quote(evidence.metric)}"
        elif evidence.value is None or not metrics[evidence.metric].is_said_by(evidence.value):
            value = metrics[evidence.metric].value
            yield f"evidence {place}: the value of {evidence.metric} is {value!r} as it is written"


def _uncited_numbers(verdict: Verdict, pack: Pack) -> Iterator[str]:
    """Yield the numbers of prose that no evidence gives."""
    metrics = [each for each in find_citations(verdict, pack) if isinstance(each, Metric)]
    # Names may be quoted although they hold digits, as traces and packs write them. But only what
    # begins like a name: an event that is called "47 ms" makes no number true.
    forms = {
        form
        for name in pack.names()
        for form in (name, plain_text(name), short_name(name), canonical_name(name))
    }
    forms.update(match[0] for match in _PART_OF_ABOUT.finditer(pack.about))
    names = {form for form in forms if _NAME.match(form) and numbers_in(form)}
    for title in ("what", "why"):
        for quantity in quantities_in(getattr(verdict, title), names):
            if not any(quantity.tells(metric) for metric in metrics):
                yield (
                    f"{title} says {quantity}, which is the value of no metric in the evidence: "
                    "cite the metric with the value as it is written, or leave the number out"
                )


def _quote(text: str) -> str:
    return ascii(short_name(text))
