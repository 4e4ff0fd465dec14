"""Annotations as GitHub's runner reads them from the output of a step."""

from __future__ import annotations

from torchtraceap.contracts.output.plain import details, plain_line, uri_path
from torchtraceap.contracts.result import CheckResult, KeyResult

__all__ = ["annotation_lines"]

_LEVELS = {"failed": "error", "inconclusive": "warning"}


def annotation_lines(result: CheckResult) -> list[str]:
    """An error for each limit that fails, a warning for each that the trace says nothing of, a
    notice for each that could be tightened."""
    return [
        _line(each, result.file, _LEVELS.get(each.status, "notice"))
        for each in result.results
        if each.status in _LEVELS or each.won
    ]


def _line(result: KeyResult, file: str | None, level: str) -> str:
    said = result.won if level == "notice" else result.reason
    lines = [plain_line(said)]
    if level == "error":
        lines += [f"{word}: {text}" for word, text in details(result)]
    properties = {"title": f"contract: {result.key}"}
    if file:
        properties["file"] = uri_path(file)
        properties |= {"line": str(result.line)} if result.line else {}
    given = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {given}::{_data(chr(10).join(lines))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
