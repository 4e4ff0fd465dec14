"""Check that a verdict rests on its pack: what it cites exists, and its numbers are cited."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchtraceap.core.formatting import plain_text
from torchtraceap.explanation.numbers import Metric, numbers_in, quantities_in
from torchtraceap.explanation.pack import Pack, PackRow
from torchtraceap.explanation.pack_text import short_name
from torchtraceap.explanation.verdict import GRIDS, VERDICTS, Verdict
from torchtraceap.ops.kernel_names import canonical_name

__all__ = ["check_verdict", "find_citations"]

_NAME = re.compile(r"[A-Za-z_#<(\[]")
_PART_OF_ABOUT = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*")


def check_verdict(verdict: Verdict, pack: Pack) -> list[str]:
    """Return the faults of a verdict as sentences for its author; the list is empty if it holds."""
    return [*_choices(verdict, pack), *_evidence(verdict, pack), *_texts(verdict, pack)]


def find_citations(verdict: Verdict, pack: Pack) -> tuple[PackRow | Metric, ...]:
    """The events and metrics of the pack that a verdict cites, in order and without repeats."""
    metrics, rows = pack.every_metric(), pack.every_row()
    found: dict[PackRow | Metric, None] = {}
    for evidence in verdict.evidence:
        if evidence.row is not None and evidence.row in rows:
            found[rows[evidence.row]] = None
        if evidence.metric is not None and evidence.metric in metrics:
            found[metrics[evidence.metric]] = None
    return tuple(found)


def _choices(verdict: Verdict, pack: Pack) -> Iterator[str]:
    """Yield the faults of values that have to be among given choices."""
    if verdict.verdict not in VERDICTS:
        yield f"verdict {_quoted(verdict.verdict)} is none of {', '.join(VERDICTS)}"
    named = (*verdict.labels, *(name for name in (verdict.primary, verdict.fix) if name != "none"))
    for name in dict.fromkeys(named):
        if name not in pack.allowed:
            yield f"{_quoted(name)} is no type that is allowed"
    if verdict.primary != "none" and verdict.primary not in verdict.labels:
        yield f"primary {_quoted(verdict.primary)} is not among the labels"
    if not 0 <= verdict.confidence <= 1:
        yield "confidence is not between 0 and 1"
    if verdict.suggested_windows not in (None, *GRIDS):
        yield f"the suggested number of windows is none of {', '.join(map(str, GRIDS))}"
    if verdict.verdict == "anti_pattern" and not verdict.evidence:
        yield "an anti-pattern needs evidence: cite metrics or rows of the pack"


def _evidence(verdict: Verdict, pack: Pack) -> Iterator[str]:
    metrics, rows = pack.every_metric(), pack.every_row()
    for place, evidence in enumerate(verdict.evidence, 1):
        if evidence.row is None and evidence.metric is None:
            yield f"evidence {place} cites neither a row nor a metric"
        if evidence.row is not None and evidence.row not in rows:
            yield f"evidence {place}: the pack has no row {_quoted(evidence.row)}"
        if evidence.metric is None:
            if evidence.value is not None:
                yield f"evidence {place} has a value without the name of its metric"
        elif evidence.metric not in metrics:
            yield f"evidence {place}: the pack has no metric {_quoted(evidence.metric)}"
        elif evidence.value is None or not metrics[evidence.metric].is_said_by(evidence.value):
            value = metrics[evidence.metric].value
            yield f"evidence {place}: the value of {evidence.metric} is {value!r} as it is written"


def _texts(verdict: Verdict, pack: Pack) -> Iterator[str]:
    """Numbers of prose that no evidence gives."""
    metrics = [each for each in find_citations(verdict, pack) if isinstance(each, Metric)]
    names = _names(pack)
    for title in ("what", "why"):
        for quantity in quantities_in(getattr(verdict, title), names):
            if not any(quantity.tells(metric) for metric in metrics):
                yield (
                    f"{title} says {quantity}, which is the value of no metric in the evidence: "
                    "cite the metric with the value as it is written, or leave the number out"
                )


def _names(pack: Pack) -> set[str]:
    """Return the names that a text may quote although they hold digits, as traces and packs write
    them.

    Only what begins like a name: an event that is called "47 ms" makes no number true.
    """
    forms = {
        form
        for name in pack.names()
        for form in (name, plain_text(name), short_name(name), canonical_name(name))
    }
    forms.update(match[0] for match in _PART_OF_ABOUT.finditer(pack.about))
    return {form for form in forms if _NAME.match(form) and numbers_in(form)}


def _quoted(text: str) -> str:
    return ascii(short_name(text))
