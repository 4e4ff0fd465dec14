"""Times, shares and counts for a person; everything else speaks integer nanoseconds."""

from __future__ import annotations

__all__ = ["counted", "format_bytes", "format_count", "format_ns", "format_share"]

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
