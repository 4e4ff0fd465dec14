"""Numbers for a person; everything else speaks integer nanoseconds and bytes."""

from __future__ import annotations

from collections.abc import Callable

__all__ = [
    "counted",
    "exact_us",
    "format_bytes",
    "format_count",
    "format_fact",
    "format_ns",
    "format_rate",
    "format_share",
]

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


def format_ns(ns: int) -> str:
    """Three significant digits with the unit that fits, such as "12.3 ms"."""
    for size, unit in _UNITS:
        value = ns / size
        if abs(value) >= 0.9995 or unit == "ns":  # 999.96 µs reads 1.00 ms
            break
    if unit == "ns":
        return f"{ns} ns"
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def exact_us(ns: int) -> str:
    """Microseconds as a decimal number, exact, such as "-0.5" for -500 ns."""
    whole, rest = divmod(abs(ns), 1000)
    sign = "-" if ns < 0 else ""
    return f"{sign}{whole}.{rest:03d}".rstrip("0").rstrip(".")


def format_share(share: float) -> str:
    """A fraction as a percentage, such as "4.5 %"."""
    percent = 100 * share
    if 0 < abs(percent) < 0.05:
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < 99.95 else "100 %"


def format_bytes(size: float) -> str:
    """Binary multiples, such as "2.50 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"


def format_count(value: int) -> str:
    """A count with thousands separators."""
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """Such as "1 step", "1,200 steps"; the noun is one that takes an s."""
    return f"{format_count(value)} {noun}{'' if value == 1 else 's'}"


def format_rate(rate: float) -> str:
    """A plain number with three significant digits at most, such as "2.5" or "120"."""
    return f"{rate:.0f}" if abs(rate) >= 99.95 else f"{rate:.3g}"


def format_fact(kind: str, value: float | str) -> str:
    """A fact of a finding as text.

    Args:
        kind: `count`, `duration_ns`, `bytes`, `share`, `rate` or `text`, as `_core.Finding.facts`
            names it.
        value: In the unit that the kind says; a `str` for `text`.

    Raises:
        ValueError: A kind that there is not.
    """
    if isinstance(value, str) and kind == "text":
        return value
    if isinstance(value, str) or kind not in _FACT_WRITERS:
        raise ValueError(f"{value!r} is no fact of kind {kind!r}")
    return _FACT_WRITERS[kind](value)


_FACT_WRITERS: dict[str, Callable[[float], str]] = {
    "count": lambda value: str(int(value)),
    "duration_ns": lambda value: format_ns(int(value)),
    "bytes": format_bytes,
    "share": format_share,
    "rate": format_rate,
}
