"""Explanations in words, for a terminal and for Jupyter.

Segments of one type stand together: the text of the first in full, then the places of all. Texts
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
"""Width of the labels on the left, in columns."""
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
    """Render an explanation as plain text."""
    document = explanation.to_dict()
    width = max(_LEAST_WIDTH, width)
    lines = []
    if document["answer"]:
        for line in document["answer"].splitlines():
            lines += _wrapped(line, width, "  ")
        lines.append("")
    groups = _groups(document["segments"])
    for number, segments in enumerate(groups, 1):
        first = segments[0]
        head = f"{number}  {_title(first)}"
        sure = f"{first['type']}, {100 * first['confidence']:.0f} % sure"
        lines.append(f"{head}  ({sure})" if len(head) + len(sure) + 4 <= width else head)
        for label, text in (
            ("what", first["what"]),
            ("where", first["where"]["text"]),
            ("when", _places(segments, document["begin_ns"])),
            ("why", first["why"]),
            ("change", first["change"]["text"]),
        ):
            lines += _labelled(label, text, width)
        lines += [" " * (_LABEL + 3) + replace_controls(line) for line in _diff_lines(first)]
        lines += _labelled("check", first["verify"], width)
        lines += [*_labelled("seen in", _cited_rows(first), width), ""]
    if not groups:
        lines.append("No part of the trace is suspicious.")
    return "\n".join([*lines, *_source_lines(document, width)])


def _groups(segments: Sequence[Json]) -> list[list[Json]]:
    """Group segments by type, and those without one by what to change; the order stays."""
    groups: dict[tuple[str, str], list[Json]] = {}
    for segment in segments:
        change = "" if segment["type"] in load_knowledge() else segment["change"]["text"]
        groups.setdefault((segment["type"], change), []).append(segment)
    return list(groups.values())


def _title(segment: Json) -> str:
    entry = load_knowledge().get(segment["type"])
    return entry.title if entry else "Suspicious, and nothing proves why"


def _diff_lines(segment: Json) -> list[str]:
    """Return the lines of the diff without the heads of files and hunks."""
    lines = (segment["change"]["diff"] or "").splitlines()[2:]
    return [line for line in lines if not line.startswith("@@")]


def _places(segments: Sequence[Json], begin_ns: int) -> str:
    places = [place for segment in segments for place in segment["places"]]
    ordered = sorted(places, key=lambda place: (place["start_ns"], place["end_ns"]))
    shown = [
        f"{format_ns(place['start_ns'] - begin_ns)} to {format_ns(place['end_ns'] - begin_ns)}"
        for place in ordered[:_MOST_PLACES]
    ]
    more = len(ordered) - len(shown)
    return "; ".join([*shown, *([f"and {more} more"] if more else [])])


def _cited_rows(segment: Json) -> str:
    rows = [cited for cited in segment["citations"] if "row" in cited]
    return "; ".join(
        f"row {cited['row']} {one_line(cited['name'], 60)} ({format_ns(cited['duration_ns'])})"
        for cited in rows[:_MOST_ROWS]
    )


def _source_lines(document: Json, width: int) -> Iterator[str]:
    """Describe the source of the explanation, its rounds, its cost and its problems."""
    model = f" ({one_line(document['model'], 60)})" if document["model"] else ""
    yield f"Explained {_SOURCES[document['source']]}{model}."
    grids = [str(each["grid"]) for each in document["rounds"] if each["asked_by"] != "start"]
    if grids:
        yield f"Scored again in {', '.join(grids)} windows where it was in doubt."
    usage = document["usage"]
    if usage:
        tokens = f"{usage['prompt_tokens']:,} + {usage['completion_tokens']:,} tokens"
        cost = "" if usage["cost_usd"] is None else f", {usage['cost_usd']:.4f} $"
        yield f"Asked {usage['calls']} times: {tokens}{cost}."
    for problem in document["problems"][:_MOST_PROBLEMS]:
        yield from _wrapped(f"- {problem}", width, "  ")


def _labelled(label: str, text: str, width: int) -> Iterator[str]:
    if text:
        lines = _wrapped(text, width - _LABEL - 3)
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
    """Render an explanation as HTML with its own styles, everything escaped."""
    document = explanation.to_dict()
    answers = (document["answer"] or "").splitlines()
    answer = "".join(f"<p>{_escaped(line)}</p>" for line in answers)
    groups = _groups(document["segments"])
    parts = []
    for segments in groups:
        first = segments[0]
        diff = "\n".join(_diff_lines(first))
        code = f'<pre style="{_CODE}">{escape(replace_controls(diff))}</pre>' if diff else ""
        rows = _cited_rows(first)
        seen = f". Seen in: {_escaped(rows)}" if rows else ""
        when = _escaped(_places(segments, document["begin_ns"]))
        where = _escaped(first["where"]["text"])
        parts.append(
            f"<details open><summary><b>{_escaped(_title(first))}</b> "
            f'<span style="{_SMALL}">{_escaped(first["type"])}, '
            f"{100 * first['confidence']:.0f} % sure</span></summary>"
            f"<p>{_escaped(first['what'])}</p><p>{_escaped(first['why'])}</p>"
            f"<p><b>Change:</b> {_escaped(first['change']['text'])}</p>{code}"
            f"<p><b>Check:</b> {_escaped(first['verify'])}</p>"
            f'<p style="{_SMALL}">Where: {where} When: {when}{seen}</p></details>'
        )
    foot = "<br>".join(_escaped(line) for line in _source_lines(document, 10_000))
    none = "" if groups else "<p>No part of the trace is suspicious.</p>"
    inner = answer + "".join(parts) + none
    return f'<div style="{_BOX}">{inner}<div style="{_SMALL}">{foot}</div></div>'


def _escaped(text: str) -> str:
    """Escape a text for HTML; parts between backticks become code."""
    clean = escape(replace_controls(" ".join(text.split())))
    return _QUOTED.sub(r"<code>\1</code>", clean)
