"""A result for a terminal."""

from __future__ import annotations

import textwrap

from torchtraceap.contracts.output.plain import details, headline, plain_line
from torchtraceap.contracts.result import CheckResult, KeyResult

__all__ = ["check_text"]

_WORDS = {"failed": "FAILED", "passed": "passed", "inconclusive": "inconclusive"}
_GAP = "  "


def check_text(result: CheckResult, width: int = 100) -> str:
    """One paragraph for each limit, failures first, and a line that counts them.

    Args:
        result: The result of a check.
        width: Columns; long sentences go on in the next line.
    """
    order = {"failed": 0, "inconclusive": 1, "passed": 2}
    ordered = sorted(result.results, key=lambda each: order[each.status])
    lines = [line for each in ordered for line in _key_lines(each, width)]
    name = f" of {plain_line(result.name, 200)}" if result.name else ""
    device = f" on {plain_line(result.device, 100)}" if result.device else ""
    return "\n".join([*lines, f"contract{name}{device}: {headline(result)}"])


def _key_lines(result: KeyResult, width: int) -> list[str]:
    lines = _wrap(f"{_WORDS[result.status]} {result.key}: {plain_line(result.reason)}", width)
    for word, text in details(result):
        lines += _wrap(f"{_GAP}{word}: {text}", width, _GAP + "  ")
    return lines


def _wrap(text: str, width: int, indent: str = _GAP) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, 40),
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
