"""An explanation as a person reads it, in a terminal and in Jupyter.

Segments of one type stand together: the first one's text in full, then where the others are. Texts
may come from a trace or from a language model, so they are made harmless, and escaped in HTML.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Protocol

from torchtraceap.core.formatting import format_ns, one_line, replace_controls
from torchtraceap.core.knowledge import load_knowledge

__all__ = ["explanation_html", "explanation_text"]

_LABEL = 8
"""Columns of the words on the left."""
_MOST_ROWS, _MOST_PLACES, _MOST_PROBLEMS = 3, 9, 12
_LEAST_WIDTH, _WIDTH = 60, 100
_QUOTED = re.compile(r"`([^`]+)`")
_BOX = "max-width:1000px"
_SMALL = "font-size:85%;opacity:.75"
_CODE = "font-family:monospace;white-space:pre;overflow-x:auto;margin:0"
_SOURCES = {
    "offline": "by the rules, the scorer and the knowledge base",
    "llm": "by a language model, its citations checked",
    "offline_fallback": "by the rules, as the language model gave no answer that holds",
}

Json = Mapping[str, Any]


class _Explanation(Protocol):
    def to_dict(self) -> dict[str, Any]:
        """`torchtraceap.explanation/1`."""


def explanation_text(explanation: _Explanation, *, width: int = _WIDTH) -> str:
    """As plain text."""
    document = explanation.to_dict()
    return "\n".join(_lines(document, max(_LEAST_WIDTH, width)))


def _lines(document: Json, width: int) -> Iterator[str]:
    if document["answer"]:
        for line in document["answer"].splitlines():
            yield from _wrapped(line, width, "  ")
        yield ""
    groups = _groups(document["segments"])
    for number, segments in enumerate(groups, 1):
        yield from _group(number, segments, document["begin_ns"], width)
        yield ""
    if not groups:
        yield "No part of the trace is suspicious."
    yield from _foot(document, width)


def _groups(segments: Sequence[Json]) -> list[list[Json]]:
    """Those of a type together, types in their order."""
    groups: dict[str, list[Json]] = {}
    for segment in segments:
        groups.setdefault(segment["type"], []).append(segment)
    return list(groups.values())


def _title(segment: Json) -> str:
    entry = load_knowledge().get(segment["type"])
    return entry.title if entry else "Suspicious, and nothing proves why"


def _group(number: int, segments: Sequence[Json], begin_ns: int, width: int) -> Iterator[str]:
    first = segments[0]
    head = f"{number}  {_title(first)}"
    sure = f"{first['type']}, {100 * first['confidence']:.0f} % sure"
    yield f"{head}  ({sure})" if len(head) + len(sure) + 4 <= width else head
    for label, text in (
        ("what", first["what"]),
        ("where", _places(segments, begin_ns)),
        ("why", first["why"]),
        ("change", first["change"]["text"]),
    ):
        yield from _labelled(label, text, width)
    for line in _diff_lines(first):
        yield " " * (_LABEL + 3) + replace_controls(line)
    yield from _labelled("check", first["verify"], width)
    yield from _labelled("seen in", _seen(first), width)


def _diff_lines(segment: Json) -> list[str]:
    """Of the diff, without the heads of files and parts."""
    lines = (segment["change"]["diff"] or "").splitlines()[2:]
    return [line for line in lines if not line.startswith("@@")]


def _places(segments: Sequence[Json], begin_ns: int) -> str:
    ordered = sorted(segments, key=lambda segment: segment["start_ns"])
    shown = [_place(segment, begin_ns) for segment in ordered[:_MOST_PLACES]]
    more = len(ordered) - len(shown)
    return "; ".join([*shown, *([f"and {more} more"] if more else [])])


def _place(segment: Json, begin_ns: int) -> str:
    start_ns, end_ns = segment["start_ns"] - begin_ns, segment["end_ns"] - begin_ns
    return f"{format_ns(start_ns)} to {format_ns(end_ns)}"


def _seen(segment: Json) -> str:
    rows = [cited for cited in segment["citations"] if "row" in cited]
    shown = [
        f"row {cited['row']} {one_line(cited['name'], 60)} ({format_ns(cited['duration_ns'])})"
        for cited in rows[:_MOST_ROWS]
    ]
    return "; ".join(shown)


def _foot(document: Json, width: int) -> Iterator[str]:
    model = f" ({one_line(document['model'], 60)})" if document["model"] else ""
    yield f"Explained {_SOURCES[document['source']]}{model}."
    again = [each for each in document["rounds"] if each["asked_by"] != "start"]
    if again:
        grids = ", ".join(str(each["grid"]) for each in again)
        yield f"Scored again in {grids} windows where it was in doubt."
    usage = document["usage"]
    if usage:
        tokens = f"{usage['prompt_tokens']:,} + {usage['completion_tokens']:,} tokens"
        cost = "" if usage["cost_usd"] is None else f", {usage['cost_usd']:.4f} $"
        yield f"Asked {usage['calls']} times: {tokens}{cost}."
    for problem in document["problems"][:_MOST_PROBLEMS]:
        yield from _wrapped(f"- {problem}", width, "  ")


def _labelled(label: str, text: str, width: int) -> Iterator[str]:
    if text:
        indent = " " * (_LABEL + 3)
        lines = _wrapped(text, width - len(indent))
        yield from (
            f"   {label if not place else '':<{_LABEL}}{line}" for place, line in enumerate(lines)
        )


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    clean = replace_controls(" ".join(text.split()))
    return textwrap.wrap(
        clean, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=True
    )


# ------------------------------------------------------------------------------------ Jupyter


def explanation_html(explanation: _Explanation) -> str:
    """As HTML with its own styles, everything escaped."""
    document = explanation.to_dict()
    answers = (document["answer"] or "").splitlines()
    answer = "".join(f"<p>{_escaped(line)}</p>" for line in answers)
    groups = _groups(document["segments"])
    parts = "".join(_group_html(segments, document["begin_ns"]) for segments in groups)
    foot = "<br>".join(_escaped(line) for line in _foot(document, 10_000))
    none = "" if groups else "<p>No part of the trace is suspicious.</p>"
    return f'<div style="{_BOX}">{answer}{parts}{none}<div style="{_SMALL}">{foot}</div></div>'


def _group_html(segments: Sequence[Json], begin_ns: int) -> str:
    first = segments[0]
    diff = "\n".join(_diff_lines(first))
    code = f'<pre style="{_CODE}">{escape(replace_controls(diff))}</pre>' if diff else ""
    seen = f". Seen in: {_escaped(_seen(first))}" if _seen(first) else ""
    return (
        f"<details open><summary><b>{_escaped(_title(first))}</b> "
        f'<span style="{_SMALL}">{_escaped(first["type"])}, '
        f"{100 * first['confidence']:.0f} % sure</span></summary>"
        f"<p>{_escaped(first['what'])}</p><p>{_escaped(first['why'])}</p>"
        f"<p><b>Change:</b> {_escaped(first['change']['text'])}</p>{code}"
        f"<p><b>Check:</b> {_escaped(first['verify'])}</p>"
        f'<p style="{_SMALL}">Where: {_escaped(_places(segments, begin_ns))}{seen}</p></details>'
    )


def _escaped(text: str) -> str:
    """With what stands between backticks as code."""
    clean = escape(replace_controls(" ".join(text.split())))
    return _QUOTED.sub(r"<code>\1</code>", clean)
