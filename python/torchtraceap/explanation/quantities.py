"""Numbers in results of tools, and whether the numbers of an answer are among them.

A quantity is an object: `{"ns": 80756000, "text": "80.8 ms"}`, `{"bytes": ...}`, `{"share": 0.134,
"text": "13.4 %"}`. The first member is exact, the second is what a person reads. Counts and plain
numbers stand alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

from torchtraceap.core.formatting import format_bytes, format_ns, format_share
from torchtraceap.explanation.numbers import numbers_in

__all__ = [
    "CALLER_CHOICE",
    "Grounds",
    "Own",
    "share_quantity",
    "size_quantity",
    "time_quantity",
    "to_quantities",
]

Json = dict[str, Any]

CALLER_CHOICE = "asked"
"""Member of a result that repeats what the caller chose: no ground for an answer."""
PROSE = frozenset({"advice", "notes", "note", "text", "code"})
"""Members that hold sentences; other texts are names."""


class Own(str):
    """A text of this package: nothing in it comes from the trace, so it needs no redaction."""

    __slots__ = ()


def time_quantity(ns: float) -> Json:
    """A time, rounded to whole nanoseconds."""
    return {"ns": round(ns), "text": Own(format_ns(round(ns)))}


def size_quantity(size: float) -> Json:
    return {"bytes": round(size), "text": Own(format_bytes(size))}


def share_quantity(share: float) -> Json:
    """A fraction, with six digits."""
    return {"share": round(share, 6), "text": Own(format_share(share))}


_MAKERS = {"_ns": time_quantity, "_bytes": size_quantity, "_share": share_quantity}


def to_quantities(record: Mapping[str, Any]) -> Json:
    """A row of a table with quantities in place of its numbers: "sum_ns" becomes "sum". What is
    absent is left out."""
    found: Json = {}
    for name, value in record.items():
        suffix = next(filter(name.endswith, _MAKERS), "")
        if value is None or (isinstance(value, float) and not isfinite(value)):
            continue
        if suffix:
            found[name.removesuffix(suffix)] = _MAKERS[suffix](value)
        else:
            found[name] = round(value, 3) if isinstance(value, float) else value
    return found


# ------------------------------------------------------------------------- numbers of answers

_SCALES = {
    "ns": {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "min": 6e10},
    "bytes": {
        "b": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
        "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    },
    "share": {"%": 0.01, "": 1.0},
    "plain": {"": 1.0},
}  # fmt: skip
"""Units by quantity, each in terms of the exact one."""
_KINDS = {unit: kind for kind, scales in _SCALES.items() for unit in scales if unit}
_SPELLED = {
    "µs": "us", "μs": "us", "sec": "s", "percent": "%", "nanosecond": "ns", "microsecond": "us",
    "millisecond": "ms", "second": "s", "minute": "min", "byte": "b",
}  # fmt: skip
_UNIT = "|".join(sorted((re.escape(u) for u in [*_KINDS, *_SPELLED] if u != "%"), key=len)[::-1])
_WITH_UNIT = re.compile(
    rf"((?<![\w.,])[\d,]*\.?\d+(?:[eE][-+]?\d+)?)[\s-]?(%|(?:{_UNIT})s?\b)", re.IGNORECASE
)
_WORD = re.compile(r"[^\s<>(),;\"'`]+")


class Grounds:
    """The numbers and names of results and of the question that an answer may use."""

    def __init__(self) -> None:
        self._values: dict[str, set[float]] = {kind: set() for kind in _SCALES}
        self._names: set[str] = set()

    def add_result(self, result: object) -> None:
        """Take what a result shows, but for what the caller had chosen himself."""
        for key, value in _leaves(result):
            if isinstance(value, str):
                self.add_text(value) if key in PROSE else self._add_name(value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                self._values[key if key in _SCALES else "plain"].add(abs(float(value)))

    def add_text(self, prose: str) -> None:
        """Take the numbers that a text says."""
        for number, unit, _ in _with_units(prose):
            kind = _KINDS[unit]
            self._values[kind].add(number * _SCALES[kind][unit])
        self._values["plain"].update(map(abs, numbers_in(prose)))

    def _add_name(self, name: str) -> None:
        """The name, and words of it that have digits, as answers shorten names. What reads as a
        time, share or size is no name, whatever the trace calls it; devices have sizes in theirs.
        """
        kinds = {_KINDS[unit] for _, unit, _ in _with_units(name)}
        is_number = _WITH_UNIT.fullmatch(name) or not any(map(str.isalpha, name))
        if is_number or kinds - {"bytes"}:
            return
        parts = (part for part in _WORD.findall(name) if not part[:1].isdigit())
        self._names.update((name, *(p for p in parts if any(map(str.isdigit, p)))))

    def unknown_in(self, text: str) -> list[str]:
        """The numbers of a text that stand nowhere here, as it writes them, each once.

        A number with a unit has to be one of that kind; one without may be of any. Each may be
        rounded to the digits in which it is written.
        """
        for name in sorted(filter(None, self._names), key=len, reverse=True):
            text = text.replace(name, " ")
        unknown = [
            written
            for number, unit, written in _with_units(text)
            if not self._has(number, [(_KINDS[unit], unit)])
        ]
        every = [(kind, unit) for kind, scales in _SCALES.items() for unit in scales]
        said = {number for number, _, _ in _with_units(text)}
        for value in map(abs, numbers_in(text)):
            if value not in said and not self._has(value, every):
                unknown.append(f"{value:,.15g}")
        return list(dict.fromkeys(unknown))

    def _has(self, number: float, units: Iterable[tuple[str, str]]) -> bool:
        within = _half_a_digit(number) * (1 + 1e-9) + 1e-12 * number
        return isfinite(number) and any(
            abs(exact / _SCALES[kind][unit] - number) <= within
            for kind, unit in units
            for exact in self._values[kind]
        )


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Texts and numbers with the member that holds them."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name != CALLER_CHOICE:
                yield from _leaves(inner, name)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key, value


def _with_units(text: str) -> Iterator[tuple[float, str, str]]:
    """Numbers with their unit, and how both are written."""
    for match in _WITH_UNIT.finditer(text):
        word = match[2].lower()
        plain = word if word in _KINDS or word in _SPELLED else word.removesuffix("s")
        yield float(match[1].replace(",", "")), _SPELLED.get(plain, plain), match[0]


def _half_a_digit(number: float) -> float:
    """Half of the last digit in which a number is written, so 0.05 for 12.3."""
    exponent = Decimal(repr(number)).normalize().as_tuple().exponent
    places = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    return float(0.5 * 10.0**-places)
