"""Limits of measures, in the form that a person writes, and contracts, which hold several by key.

`0` is exactly that many. `"<=120"`, `"<10%"`, `"<=4 MiB"`, `">=90%"`, `"<=10 ms"`, `"==2"` and
`"100..120"` (both ends included) are bounds. Sizes have binary or decimal units, or none for bytes;
shares are percentages or fractions of 1; times need a unit. A share or a time is never exactly a
number, so it needs a bound. Collectives have one limit for each kind, `other` being all kinds that
are not named, or one for all of them together. Findings are a list of types that must not be
present, or "none".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from torchtraceap.contracts.measures.vocabulary import (
    COLLECTIVES,
    find_measure,
    near_match,
)
from torchtraceap.core.formatting import (
    format_bytes,
    format_count,
    format_ns,
    format_share,
    short_repr,
)
from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError

__all__ = ["NO_FINDINGS", "OTHER", "Contract", "Limit", "format_value"]

OTHER = "other"
"""Key of the collectives that are not named."""
NO_FINDINGS = "none"
_LONGEST = 100
_NUMBER = r"[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+"
_BOUND = re.compile(rf"\s*(<=|>=|==|=|<|>|≤|≥)?\s*({_NUMBER})\s*([%A-Za-zµμ]*)\s*")
_RANGE = re.compile(rf"\s*({_NUMBER})\s*([%A-Za-zµμ]*)\s*\.\.\s*({_NUMBER})\s*([%A-Za-zµμ]*)\s*")
_SAME = {"=": "==", "≤": "<=", "≥": ">=", None: "=="}
_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
          "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
_TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9,
          "min": 60 * 10**9}  # fmt: skip
_MOST = 2**62
_MOST_TOLERANCE = 1000
"""Bound that no count, size or time of a trace exceeds."""
_EXAMPLES = {
    "count": '0, "<=120", "100..120"',
    "bytes": '"<=4 MiB", 0',
    "share": '"<10%"',
    "time": '"<=10 ms"',
    "counts by name": "{all_reduce: 2}",
    "findings": "[no_memory_pin]",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """Bounds of a value; of several by name, or of findings, those of each."""

    kind: str
    """Kind of the measure: see `measures.vocabulary.Measure`."""
    text: str
    """The limit as text: "<=120"."""
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    """The lower bound itself is too little."""
    high_open: bool = False
    by_name: tuple[tuple[str, Limit], ...] = ()
    """Limits of collectives, by kind."""
    types: tuple[str, ...] = ()
    """Types of findings that must not be present; empty for all."""
    unit: str = ""
    """Unit of a size, a share or a time, as it was written."""

    @classmethod
    def parse(cls, value: Any, kind: str = "count") -> Limit:
        """Parse a limit of a test or a file.

        Args:
            value: A number, a text, a dict by kind of collective, or a list of findings.
            kind: The kind of the measure.

        Raises:
            OptionError: It makes no sense for such a measure.
        """
        if kind == "findings":
            return _parse_findings(value)
        if kind == "counts by name" and isinstance(value, Mapping):
            return _parse_names(value)
        return _parse_number(value, "count" if kind == "counts by name" else kind)

    @property
    def is_exact(self) -> bool:
        """True if only one number holds."""
        return self.low == self.high

    def holds(self, value: float) -> bool:
        """Return True if a number is inside the bounds."""
        return not self.is_above(value) and not self.is_below(value)

    def is_above(self, value: float) -> bool:
        """Return True if a number is above the bounds."""
        return value > self.high or (self.high_open and value >= self.high)

    def is_below(self, value: float) -> bool:
        """Return True if a number is below the bounds."""
        return value < self.low or (self.low_open and value <= self.low)

    def widened(self, tolerance: float) -> Limit:
        """Return the limit with bounds that are that share further out."""
        low = self.low * (1 - tolerance) if self.low > 0 else self.low
        return replace(self, low=low, high=self.high * (1 + tolerance))

    def to_json(self) -> Any:
        """Return the limit for a document: a number, a text, a dict or a list."""
        if self.by_name:
            return {name: limit.to_json() for name, limit in self.by_name}
        if self.kind == "findings":
            return list(self.types) if self.types else NO_FINDINGS
        if self.is_exact and self.kind in ("count", "bytes"):
            return int(self.low)
        return self.text

    def moved_to(self, value: Any) -> Any:
        """Return the same form of limit with a measured value as its bound: `"<=7"` stays an upper
        bound, and one end of a range moves, or none.

        Args:
            value: The value in the unit of the measure; a dict for collectives.
        """
        if self.by_name:
            named = {name for name, _ in self.by_name}
            other = sum(number for name, number in value.items() if name not in named)
            numbers = {**dict.fromkeys(named, 0), **value, OTHER: other}
            return {name: limit.moved_to(numbers[name]) for name, limit in self.by_name}
        if isinstance(value, Mapping):
            value = sum(value.values())
        if self.is_exact:
            return value
        if self.low > -math.inf and self.high < math.inf:
            if self.holds(value):
                return self.text
            low, high = min(value, self.low), max(value, self.high)
            return f"{self._write_value(low, up=False)}..{self._write_value(high, up=True)}"
        up = self.high < math.inf
        is_open = self.high_open or self.low_open
        sign = ("<" if up else ">") + ("" if is_open else "=")
        return f"{sign}{self._write_value(value, up=up, beyond=is_open)}"

    def _write_value(self, value: float, *, up: bool, beyond: bool = False) -> str:
        """Write a number in the unit of the limit that bounds the value, or lies `beyond` it."""
        if self.kind == "count" or (self.kind == "bytes" and not self.unit):
            return str(int(value) + (0 if not beyond else 1 if up else -1))
        if self.kind == "share":
            unit, scale, digits = self.unit or "%", Decimal("0.01"), 1
        elif self.kind == "bytes":
            unit, scale, digits = self.unit, Decimal(_SIZES[self.unit.lower()]), 2
        else:
            unit = self.unit or "us"
            scale, digits = Decimal(_TIMES[unit.lower()]), 3
        ticks = Decimal(value) / scale * 10**digits
        whole = math.ceil(ticks) if up else math.floor(ticks)
        if beyond and whole == ticks:
            whole += 1 if up else -1
        number = f"{Decimal(whole) / 10**digits:f}"
        return f"{number}{'' if unit == '%' else ' '}{unit}"


def _parse_findings(value: Any) -> Limit:
    from torchtraceap.core.knowledge import load_knowledge

    if value == NO_FINDINGS or (isinstance(value, str) and value == "any"):
        return Limit("findings", "none present")
    types = [value] if isinstance(value, str) else value
    if not isinstance(types, Sequence) or not all(isinstance(each, str) for each in types):
        raise OptionError(
            f"findings takes a list of types that must not be present, or {NO_FINDINGS!r}, "
            f"not {short_repr(value)}"
        )
    if not types:
        raise OptionError(f"findings names no type; {NO_FINDINGS!r} forbids every one")
    known = tuple(load_knowledge())
    for each in types:
        if each not in known:
            raise OptionError(f"{short_repr(each)} is no type of finding{near_match(each, known)}")
    listed = tuple(dict.fromkeys(types))
    return Limit("findings", f"without {', '.join(listed)}", types=listed)


def _parse_names(value: Mapping[Any, Any]) -> Limit:
    if not value:
        raise OptionError("collectives names no kind; 0 allows none at all")
    known = (*COLLECTIVES, OTHER)
    limits = []
    for name, each in value.items():
        if name not in known:
            raise OptionError(
                f"{short_repr(name)} is no kind of collective{near_match(name, known)}"
            )
        if each is not None:
            limits.append((str(name), _parse_number(each, "count")))
    text = ", ".join(f"{name} {limit.text}" for name, limit in limits)
    return Limit("counts by name", text, by_name=tuple(limits))


def _parse_number(value: Any, kind: str) -> Limit:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise OptionError(f"{short_repr(value)} is no limit; write {_EXAMPLES[kind]}")
    if isinstance(value, str):
        return _parse_text(value, kind)
    if not 0 <= value <= _MOST:  # not by `math.isfinite`, which fails on 300 digits
        raise OptionError(f"{short_repr(value)} is no limit: a number from 0 is needed")
    if kind in ("share", "time"):
        raise OptionError(
            f"a {kind} is never exactly {short_repr(value)}; write a bound, such as "
            f"{_EXAMPLES[kind]}"
        )
    if value != int(value):
        nouns = "bytes" if kind == "bytes" else "events"
        raise OptionError(f"{short_repr(value)} is no number of {nouns}")
    number = int(value)
    return Limit(kind, f"=={number}", number, number)


def _parse_text(text: str, kind: str) -> Limit:
    if len(text) > _LONGEST:
        raise OptionError(f"{short_repr(text)} is no limit; write {_EXAMPLES[kind]}")
    if found := _RANGE.fullmatch(text):
        low_text, low_unit, high_text, high_unit = found.groups()
        low = _number(low_text, low_unit or high_unit, kind, text)
        high = _number(high_text, high_unit, kind, text)
        if low > high:
            raise OptionError(f"{short_repr(text)} is no limit: its ends are in the wrong order")
        return Limit(kind, text.strip(), low, high, unit=high_unit)
    found = _BOUND.fullmatch(text)
    if not found:
        raise OptionError(f"{short_repr(text)} is no limit; write {_EXAMPLES[kind]}")
    sign = _SAME.get(found[1], found[1])
    number = _number(found[2], found[3], kind, text)
    if sign == "==" and kind in ("share", "time"):
        raise OptionError(
            f"a {kind} is never exactly {short_repr(text)}; write a bound, such as "
            f"{_EXAMPLES[kind]}"
        )
    written = f"{sign}{text.strip().lstrip('<>=≤≥').strip()}"
    low = -math.inf if sign in ("<", "<=") else number
    high = math.inf if sign in (">", ">=") else number
    return Limit(kind, written, low, high, sign == ">", sign == "<", unit=found[3])


def _number(digits: str, unit: str, kind: str, text: str) -> float:
    """Return a number in the unit of the measure, exact: an int if it is one."""
    number = Decimal(digits.replace("_", ""))
    if kind == "count":
        if unit:
            raise OptionError(f"{short_repr(text)} is no limit: a count has no unit")
        scale = Decimal(1)
    elif kind == "share":
        if unit not in ("", "%"):
            raise OptionError(f"{short_repr(text)} is no limit: a share is a percentage")
        scale = Decimal("0.01") if unit else Decimal(1)
        if number * scale > 1:
            more = "" if unit else "; write % behind a percentage"
            raise OptionError(f"{short_repr(text)} is no limit: a share is at most 100 %{more}")
    else:
        units = _SIZES if kind == "bytes" else _TIMES
        if unit.lower() not in units:
            needed = ", ".join(each for each in units if each)
            what = "size" if kind == "bytes" else "time"
            raise OptionError(f"{short_repr(text)} is no limit: a {what} has one of {needed}")
        scale = Decimal(units[unit.lower()])
    value = number * scale
    if value > _MOST:
        raise OptionError(f"{short_repr(text)} is no limit: more than any trace holds")
    if kind == "count" and value != int(value):
        raise OptionError(f"{short_repr(text)} is no limit: events are counted in whole numbers")
    return int(value) if value == int(value) else float(value)


def format_value(value: Any, kind: str) -> str:
    """Write a measured value for a person.

    Args:
        value: The value in the unit of the measure; None if it is unknown.
        kind: The kind of the measure.
    """
    if value is None:
        return "not known"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    if kind == "bytes":
        exact = f"{format_count(value)} bytes"
        return f"{format_bytes(value)} ({exact})" if value >= 1024 else f"{value} bytes"
    if kind == "share":
        return format_share(value)
    return format_ns(round(value)) if kind == "time" else format_count(round(value))


@dataclass(frozen=True, slots=True)
class Contract:
    """The limits that a trace has to hold."""

    limits: tuple[tuple[str, Limit], ...]
    """Limits by key, in the order in which they were written."""
    name: str = ""
    """Name of a contract among several in a file: a test's node id, or a name of yours."""
    device: str | None = None
    """The device that times and shares were measured on, as its driver names it, or "cpu"."""
    when: str | None = None
    """The day on which the limits were recorded."""
    reason: str | None = None
    """Reason of the last change."""
    tolerance: float = 0.0
    """Share of a bound by which times and shares may lie beyond it."""
    file: str | None = None
    """File in which the contract is written."""
    lines: tuple[tuple[str, int], ...] = ()
    """The line of each key in that file, from 1."""

    @classmethod
    def parse(cls, limits: Mapping[str, Any], **more: Any) -> Contract:
        """Parse the limits of a test or a file.

        Args:
            limits: Limits by key of the vocabulary; None for no limit.
            more: Other fields: name, device, when, reason, tolerance, file, lines.

        Raises:
            OptionError: A key is unknown, or a limit makes no sense for it.
        """
        tolerance = more.get("tolerance", 0.0)
        if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)):
            raise OptionError(f"tolerance is a share such as 0.05, not {short_repr(tolerance)}")
        if not 0 <= tolerance <= _MOST_TOLERANCE:
            raise OptionError(
                f"tolerance is a share from 0 to {_MOST_TOLERANCE}, not {short_repr(tolerance)}"
            )
        parsed = []
        for key, value in limits.items():
            measure = find_measure(key)
            if value is None:
                continue
            try:
                parsed.append((measure.key, Limit.parse(value, measure.kind)))
            except OptionError as error:
                raise OptionError(f"{key}: {error}") from error
        return cls(tuple(parsed), **more)

    def __len__(self) -> int:
        return len(self.limits)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the limits."""
        return tuple(key for key, _ in self.limits)

    @property
    def empty_keys(self) -> tuple[str, ...]:
        """Keys that a file has without a limit."""
        return tuple(key for key, _ in self.lines if key not in self.keys)

    def limit(self, key: str) -> Limit | None:
        """Return the limit of a key, or None."""
        return dict(self.limits).get(key)

    def line(self, key: str) -> int | None:
        """Return the line of a key, from 1; None outside of a file."""
        return dict(self.lines).get(key)

    def without(self, keys: Iterable[str]) -> Contract:
        """Return the contract without limits on these keys."""
        gone = set(keys)
        return replace(self, limits=tuple(pair for pair in self.limits if pair[0] not in gone))

    def merged(self, other: Contract) -> Contract:
        """Return these limits, with those of another one in their places and behind them."""
        limits = {**dict(self.limits), **dict(other.limits)}
        return Contract(
            tuple(limits.items()),
            other.name or self.name,
            other.device or self.device,
            other.when or self.when,
            other.reason or self.reason,
            other.tolerance or self.tolerance,
            other.file or self.file,
            tuple({**dict(self.lines), **dict(other.lines)}.items()),
        )
