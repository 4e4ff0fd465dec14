"""Numbers as texts say them: each one that a text may cite, and each one that a text says.

A verdict cites a `Metric` of its pack. An answer to a question stands on results of tools
(`Grounds`), in which a quantity is an object: `{"ns": 80756000, "text": "80.8 ms"}`, `{"bytes":
...}`, `{"share": 0.134, "text": "13.4 %"}`. The first member is exact, the second is what a person
reads. Counts and plain numbers stand alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from torchtraceap.core.formatting import format_bytes, format_count, format_ns, format_share
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Fact, Result

__all__ = [
    "CALLER_CHOICE",
    "Grounds",
    "Metric",
    "Own",
    "Quantity",
    "numbers_in",
    "plain_quantity",
    "quantities_in",
    "share_quantity",
    "size_quantity",
    "time_quantity",
    "to_quantities",
]

_DOUBLES = 2**53
"""Whole numbers below are doubles."""
_NOISE = 1e-9
"""Relative; what is left of a number that went through text and back."""
_SHOWN = re.compile(r"(-?[\d,]+(?:\.\d+)?)(?: (.+))?\Z")
_NUMBER = re.compile(r"(?<![\d.,])[-\u2212]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_UNIT = re.compile(r"[ \u00a0\u202f]?(%|[nuµμm]s(?!\w)|s(?!\w)|GB/s|[KMGT]?i?B(?!\w))")
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
        """Return the metric as a percentage with three significant digits."""
        return _metric(name, float(share), f"{_digits(100 * share)} %")

    @staticmethod
    def of_bytes(name: str, size: int) -> Metric:
        return _metric(name, size, format_bytes(size))

    @staticmethod
    def of_count(name: str, count: int) -> Metric:
        return _metric(name, count, format_count(count))

    @staticmethod
    def of_rate(name: str, rate: float, unit: str = "") -> Metric:
        return _metric(name, float(rate), f"{_digits(rate)} {unit}".rstrip())

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
    """Write three significant digits, no more than three behind the point, never an exponent."""
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
    """Return the quantities that a text says, in digits or in words.

    Args:
        text: Prose.
        names: Names in the text, which are no quantities, digits and all, such as those of kernels.
    """
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = text.replace(name, " ")
    text = _TECHNICAL.sub(" ", text)
    found = []
    for match in _NUMBER.finditer(text):
        value = float(match[0].replace(",", "").replace("\u2212", "-").rstrip("."))
        unit = _UNIT.match(text, match.end())
        found.append(Quantity(value, _SAME_UNITS.get(unit[1], unit[1]) if unit else ""))
    words = (_NUMBER_WORDS.get(word) for word in re.findall(r"[a-z]+", text.lower()))
    return [*found, *(Quantity(value, "") for value in words if value is not None)]


def numbers_in(text: str, names: Iterable[str] = ()) -> list[float]:
    """Return the values of `quantities_in`."""
    return [quantity.value for quantity in quantities_in(text, names)]


Json = dict[str, Any]

CALLER_CHOICE = "asked"
"""Member of a result that repeats what the caller chose: no ground for an answer."""
PROSE = frozenset({"advice", "notes", "note", "text", "code"})
"""Members that hold sentences; other texts are names."""


class Own(str):
    """A text of this package: nothing in it comes from the trace, so it needs no redaction."""

    __slots__ = ()


def time_quantity(ns: float) -> Json:
    """Return a time, rounded to whole nanoseconds."""
    return _exactly("ns", round(ns), format_ns(round(ns)))


def size_quantity(size: float) -> Json:
    return _exactly("bytes", round(size), format_bytes(size))


def _exactly(unit: str, number: int, text: str) -> Json:
    """Return a quantity; where programs that read numbers as doubles would round it, its digits
    are a text too."""
    more = {} if abs(number) < _DOUBLES else {"exact": Own(number)}
    return {unit: number, "text": Own(text), **more}


def share_quantity(share: float) -> Json:
    """Return a fraction, with six digits."""
    return {"share": round(share, 6), "text": Own(format_share(share))}


def plain_quantity(value: float) -> Json:
    """Return a number without one of these units, such as a rate."""
    return {"value": value, "text": Own(_digits(value) if abs(value) < _DOUBLES else f"{value:g}")}


_QUANTITIES = {"_ns": time_quantity, "_bytes": size_quantity, "_share": share_quantity}


def to_quantities(record: Mapping[str, Any]) -> Json:
    """Return a row of a table with quantities in place of its numbers: "sum_ns" becomes "sum". What
    is absent is left out."""
    found: Json = {}
    for name, value in record.items():
        suffix = next(filter(name.endswith, _QUANTITIES), "")
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            continue
        found[name.removesuffix(suffix)] = _quantities(value, suffix)
    return found


def _quantities(value: Any, suffix: str) -> Any:
    """Return a cell with quantities in place of its numbers; it may be a list or an object, such as
    the times of each rank."""
    if isinstance(value, Mapping):
        return {key: _quantities(inner, suffix) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_quantities(inner, suffix) for inner in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if suffix:
        return _QUANTITIES[suffix](value)
    return plain_quantity(value) if isinstance(value, float) else value


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
_UNIT_WORDS = "|".join(
    sorted((re.escape(u) for u in [*_KINDS, *_SPELLED] if u != "%"), key=len)[::-1]
)
_WITH_UNIT = re.compile(
    rf"((?<![\w.,])[\d,]*\.?\d+(?:[eE][-+]?\d+)?)[\s-]?(%|(?:{_UNIT_WORDS})s?\b)", re.IGNORECASE
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
                (self.add_text if key in PROSE else self._add_name)(value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                self._values[key if key in _SCALES else "plain"].add(abs(float(value)))

    def add_text(self, prose: str) -> None:
        """Take the numbers that a text says."""
        for number, unit, _ in _with_units(prose):
            kind = _KINDS[unit]
            self._values[kind].add(number * _SCALES[kind][unit])
        self._values["plain"].update(map(abs, numbers_in(prose)))

    def _add_name(self, name: str) -> None:
        """Take the name, and words of it that have digits, as answers shorten names. What reads as
        a time, share or size is no name, whatever the trace calls it; devices have sizes in theirs.
        """
        kinds = {_KINDS[unit] for _, unit, _ in _with_units(name)}
        is_number = _WITH_UNIT.fullmatch(name) or not any(map(str.isalpha, name))
        if is_number or kinds - {"bytes"}:
            return
        parts = (part for part in _WORD.findall(name) if not part[:1].isdigit())
        self._names.update((name, *(p for p in parts if any(map(str.isdigit, p)))))

    def unknown_in(self, text: str) -> list[str]:
        """Return the numbers of a text that stand nowhere here, as it writes them, each once.

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
        # Half of the last digit in which the number is written, so 0.05 for 12.3.
        exponent = Decimal(repr(number)).normalize().as_tuple().exponent
        places = -exponent if isinstance(exponent, int) and exponent < 0 else 0
        within = 0.5 * 10.0**-places * (1 + 1e-9) + 1e-12 * number
        return math.isfinite(number) and any(
            abs(exact / _SCALES[kind][unit] - number) <= within
            for kind, unit in units
            for exact in self._values[kind]
        )


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield texts and numbers with the member that holds them."""
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
    """Yield numbers with their unit, and how both are written."""
    for match in _WITH_UNIT.finditer(text):
        word = match[2].lower()
        plain = word if word in _KINDS or word in _SPELLED else word.removesuffix("s")
        yield float(match[1].replace(",", "")), _SPELLED.get(plain, plain), match[0]
