"""A comment for a pull request, in GitHub's Markdown."""

from __future__ import annotations

import re

from torchtraceap.contracts.output.plain import (
    details,
    format_limit,
    format_measured,
    headline,
    plain_line,
    verdict,
)
from torchtraceap.contracts.result import FAILED, CheckResult, KeyResult

__all__ = ["markdown_text"]

_SIGNS = {"failed": "❌", "passed": "✅", "inconclusive": "❔"}
_TITLES = {
    "failed": "Performance contract broken",
    "passed": "Performance contract holds",
    "inconclusive": "Performance contract: this trace says nothing of it",
}
_SPECIAL = re.compile(r"[\\`*_\[\]#|~<>&@]|:(?=//)|(?<=www)\.")
_CODE = 200


def markdown_text(result: CheckResult) -> str:
    """A heading, a table of all limits, and what stands behind each that failed. Its first line is
    a mark by which a bot finds its own comment again."""
    name = f" `{_code(result.name)}`" if result.name else ""
    device = f" on {_text(result.device)}" if result.device else ""
    lines = [
        f"<!-- torchtraceap check {_mark(result.name)} -->",
        f"### {_SIGNS[verdict(result)]} {_TITLES[verdict(result)]}{name}",
        "",
        f"{headline(result)}{device}.",
        "",
        "| | key | limit | measured |",
        "|---|---|---|---|",
        *(_row(each) for each in result.results),
        "",
    ]
    for each in result.results:
        lines += _paragraph(each)
    return "\n".join(lines).rstrip() + "\n"


def _row(result: KeyResult) -> str:
    limit, measured = _code(format_limit(result)), _text(format_measured(result))
    return f"| {_SIGNS[result.status]} | `{_code(result.key)}` | `{limit}` | {measured} |"


def _paragraph(result: KeyResult) -> list[str]:
    below = list(details(result))
    if result.status != FAILED and not result.won and result.status == "passed":
        return []
    lines = [f"- {_SIGNS[result.status]} **`{_code(result.key)}`**: {_text(result.reason)}"]
    lines += [f"  - {word}: {_text(text)}" for word, text in below]
    return lines


def _text(text: str) -> str:
    """Text that nothing in it formats, links or mentions."""
    return _SPECIAL.sub(_entity, plain_line(text))


def _entity(found: re.Match[str]) -> str:
    return f"&#{ord(found[0])};"


def _code(text: str) -> str:
    """Text inside of backticks in a table."""
    return plain_line(text, _CODE).replace("`", "'").replace("|", "¦") or " "


def _mark(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.:/\[\]]", "_", plain_line(text, _CODE)).replace("--", "__")
