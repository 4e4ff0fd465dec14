"""Numbers as texts say them: each one that a text may cite, and each one that a text says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torchtraceap.core.formatting import format_bytes, format_count, format_ns
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Fact, Result

__all__ = ["Metric", "Quantity", "numbers_in", "quantities_in"]

_NOISE = 1e-9
"""Relative; what is left of a number that went through text and back."""
_SHOWN = re.compile(r"(-?[\d,]+(?:\.\d+)?)(?: (.+))?\Z")
_NUMBER = re.compile(r"(?<![\d.,])[-\u2212]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_UNIT = re.compile(r"[ \u00a0\u202f]?(%|[nuµμm]s(?!\w)|s(?!\w)|[KMGT]?i?B(?!\w))")
_SAME_UNITS = {"us": "µs", "\u03bcs": "µs"}
_TECHNICAL = re.compile(
    r"\b(?:[bt]?f(?:p|loat)?(?:16|32|64)|bfloat16|fp8|u?int(?:8|16|32|64)|sm_?\d{2,3}a?"
    r"|conv[123]d|batch_?norm[123]d|e[45]m[23](?:fn)?)\b",
    re.IGNORECASE,
)
"""Words with digits that say no quantity."""
_NUMBER_WORDS = {
    "zero": 0.0, "two": 2.0, "twice": 2.0, "three": 3.0, "thrice": 3.0, "four": 4.0, "five": 5.0,
    "six": 6.0, "seven": 7.0, "eight": 8.0, "nine": 9.0, "ten": 10.0, "eleven": 11.0,
    "twelve": 12.0, "dozen": 12.0, "fifteen": 15.0, "twenty": 20.0, "thirty": 30.0, "forty": 40.0,
    "fifty": 50.0, "sixty": 60.0, "seventy": 70.0, "eighty": 80.0, "ninety": 90.0,
    "hundred": 100.0, "thousand": 1e3, "million": 1e6, "billion": 1e9,
}  # fmt: skip
"""English number words without "one", often a pronoun, and "half", often a precision."""


@dataclass(frozen=True, slots=True)
class Metric(Result):
    """A number that a text may cite, as it is read."""

    name: str
    """Dotted, such as "segment.idle"."""
    value: float
    """Value in `unit` as it is written; an int if it is whole."""
    unit: str
    """"ms", "%", "MiB", ...; empty for counts and plain numbers."""
    exact: float
    """Nanoseconds, bytes, a fraction, or the count itself."""
    text: str
    """`value` and `unit` as a text writes them, such as "12.3 ms"."""

    @staticmethod
    def of_ns(name: str, ns: int) -> Metric:
        return _metric(name, ns, format_ns(ns))

    @staticmethod
    def of_share(name: str, share: float) -> Metric:
        """Written as a percentage with three significant digits."""
        return _metric(name, float(share), f"{_digits(100 * share)} %")

    @staticmethod
    def of_bytes(name: str, size: int) -> Metric:
        return _metric(name, size, format_bytes(size))

    @staticmethod
    def of_count(name: str, count: int) -> Metric:
        return _metric(name, count, format_count(count))

    @staticmethod
    def of_rate(name: str, rate: float) -> Metric:
        return _metric(name, float(rate), _digits(rate))

    @staticmethod
    def of_fact(name: str, fact: Fact) -> Metric | None:
        """Return the metric of a fact; None if the fact is a text."""
        make = _MAKERS.get(fact.kind)
        return make(name, fact.value) if make else None

    def is_said_by(self, value: float) -> bool:
        """Return True if a number equals the value as it is written."""
        try:
            return math.isclose(value, self.value, rel_tol=_NOISE)
        except OverflowError:  # an int beyond any float
            return value == self.value

    def to_citation(self) -> dict[str, object]:
        """Return the metric as a citation in an explanation's JSON."""
        return {"metric": self.name, "value": self.value, "unit": self.unit, "exact": self.exact}


_MAKERS: Mapping[str, Callable[[str, Any], Metric]] = {
    "duration_ns": Metric.of_ns,
    "share": Metric.of_share,
    "bytes": Metric.of_bytes,
    "count": Metric.of_count,
    "rate": Metric.of_rate,
}


def _digits(value: float) -> str:
    """Three significant digits, no more than three behind the point, never an exponent."""
    if abs(value) >= 99.95 or value == int(value):
        return f"{value:.0f}"
    places = 1 if abs(value) >= 9.995 else 2 if abs(value) >= 0.9995 else 3
    return f"{value:.{places}f}"


def _metric(name: str, exact: float, text: str) -> Metric:
    match = _SHOWN.match(text)
    if match is None:
        raise ValueError(f"{name}: {text!r} is not a number with a unit")
    number = match[1].replace(",", "")
    value = float(number) if "." in number else int(number)
    return Metric(name, value, match[2] or "", exact, text)


class Quantity(NamedTuple):
    """A number that a text says."""

    value: float
    unit: str
    """A unit as in `Metric.unit`; empty if none follows the number."""

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}".rstrip()

    def tells(self, metric: Metric) -> bool:
        """Return True if this is the metric's value, with its unit or without one."""
        if self.unit not in ("", metric.unit):
            return False
        return metric.is_said_by(self.value)


def quantities_in(text: str, names: Iterable[str] = ()) -> list[Quantity]:
    """The quantities that a text says, in digits or in words.

    Args:
        text: Prose.
        names: Names in the text, which are no quantities, digits and all, such as those of kernels.
    """
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = text.replace(name, " ")
    text = _TECHNICAL.sub(" ", text)
    found = [Quantity(_number(m[0]), _unit(text, m.end())) for m in _NUMBER.finditer(text)]
    words = (_NUMBER_WORDS.get(word) for word in re.findall(r"[a-z]+", text.lower()))
    return [*found, *(Quantity(value, "") for value in words if value is not None)]


def numbers_in(text: str, names: Iterable[str] = ()) -> list[float]:
    """The values of `quantities_in`."""
    return [quantity.value for quantity in quantities_in(text, names)]


def _unit(text: str, place: int) -> str:
    match = _UNIT.match(text, place)
    return _SAME_UNITS.get(match[1], match[1]) if match else ""


def _number(digits: str) -> float:
    return float(digits.replace(",", "").replace("\u2212", "-").rstrip("."))
