"""Values that a trace holds as text, parsed and never evaluated."""

from __future__ import annotations

import math
import re

__all__ = ["Value", "parse_value"]

Token = None | str | bool | int | float | complex
Value = None | bool | int | float | complex | list["Value"]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan))"
    r"(?P<imaginary>j?)(?![\w.])|(?P<word>True|False|None)(?!\w)|(?P<mark>[\[\](),]))",
    re.ASCII,
)
_WORDS: dict[str, bool | None] = {"True": True, "False": False, "None": None}
_MAX_CHARACTERS = 1 << 20
_MAX_DIGITS = 40


def parse_value(text: str) -> Value:
    """A number, True, False, None, or a flat list of these.

    Numbers are written as C++ prints them: "2." is a float, so are "inf" and "nan"; complex numbers
    are "1.+2.j" or "(1,2)".

    Raises:
        ValueError: The text is anything else; it is never evaluated.
    """
    tokens = _tokens(text)
    value, end = _list(tokens, 1) if tokens[:1] == ["["] else _scalar(tokens, 0)
    if end != len(tokens):
        raise ValueError(f"{text[:60]!r} is no literal")
    return value


def _tokens(text: str) -> list[Token]:
    """Marks as texts, everything else as its value."""
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"a literal of {len(text)} characters")
    tokens: list[Token] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text[:60]!r} is no literal")
        position = match.end()
        if match["mark"]:
            tokens.append(match["mark"])
        else:
            word = match["word"]
            number = _number(match["number"]) if match["number"] else 0
            tokens.append(_WORDS[word] if word else number * 1j if match["imaginary"] else number)
    return _joined(tokens)


def _joined(tokens: list[Token]) -> list[Token]:
    """Complex numbers in one piece: a real part and the imaginary one behind it."""
    joined: list[Token] = []
    for token in tokens:
        before = joined[-1] if joined else None
        if isinstance(token, complex) and isinstance(before, int | float):
            joined[-1] = before + token
        else:
            joined.append(token)
    return joined


def _number(text: str) -> int | float:
    if text.lstrip("+-").isdecimal():
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"a number of {len(text)} digits")
        return int(text)
    return float(text)


def _list(tokens: list[Token], start: int) -> tuple[Value, int]:
    """The list that was opened before token `start`, and the place behind it."""
    values: list[Value] = []
    if tokens[start : start + 1] == ["]"]:
        return values, start + 1
    while True:
        value, start = _scalar(tokens, start)
        values.append(value)
        mark = tokens[start : start + 1]
        if mark == ["]"]:
            return values, start + 1
        if mark != [","]:
            raise ValueError("a list without an end")
        start += 1


def _scalar(tokens: list[Token], start: int) -> tuple[Value, int]:
    head = tokens[start : start + 5]
    if head and not isinstance(head[0], str):
        return head[0], start + 1
    if len(head) == 5 and [head[0], head[2], head[4]] == ["(", ",", ")"]:
        parts = [part for part in (head[1], head[3]) if isinstance(part, int | float)]
        if len(parts) == 2 and all(math.isfinite(part) for part in parts):
            return complex(*parts), start + 5
    raise ValueError("a literal is missing")
