"""Figures of a data card as SVG: bars, and a table whose cells are the darker the larger they are.

They have a white ground and no scripts, so that every viewer shows the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["bars", "grid"]

_FONT = 'font-family="sans-serif" font-size="12"'
_ROW, _WIDTH, _LEFT, _TOP = 20, 720, 230, 34
_BLUE = "#2b6cb0"


def bars(title: str, values: Mapping[str, float], unit: str = "") -> str:
    """A horizontal bar for each value.

    Args:
        title: Above them.
        values: By label, 0 or more.
        unit: Behind the numbers.
    """
    most = max(values.values(), default=0.0) or 1.0
    room = _WIDTH - _LEFT - 90
    parts = []
    for place, (label, value) in enumerate(values.items()):
        top, length = _TOP + place * _ROW, room * value / most
        number = f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
        parts += [
            _text(_LEFT - 8, top + 13, label, "end"),
            f'<rect x="{_LEFT}" y="{top + 2}" width="{length:.1f}" height="{_ROW - 5}"'
            f' fill="{_BLUE}"/>',
            _text(_LEFT + length + 6, top + 13, f"{number} {unit}".strip()),
        ]
    return _framed(title, len(values), parts)


def grid(title: str, rows: Mapping[str, Mapping[str, int]], columns: Sequence[str]) -> str:
    """Counts by row and column.

    Args:
        title: Above them.
        rows: Counts by column, by the label of the row; what is missing is 0.
        columns: In order.
    """
    cell = (_WIDTH - _LEFT - 10) / max(1, len(columns))
    most = max((count for of in rows.values() for count in of.values()), default=0) or 1
    parts = [
        _text(_LEFT + (place + 0.5) * cell, _TOP + 13, name, "middle")
        for place, name in enumerate(columns)
    ]
    for line, (label, of) in enumerate(rows.items(), 1):
        top = _TOP + line * _ROW
        parts.append(_text(_LEFT - 8, top + 14, label, "end"))
        for place, name in enumerate(columns):
            count, left = of.get(name, 0), _LEFT + place * cell
            shade = 0.85 * count / most
            colour = "#ffffff" if shade > 0.5 else "#1a202c"
            parts += [
                f'<rect x="{left:.1f}" y="{top}" width="{cell - 1:.1f}" height="{_ROW - 1}"'
                f' fill="{_BLUE}" fill-opacity="{shade:.3f}"/>',
                _text(left + cell / 2, top + 14, f"{count:,}", "middle", colour),
            ]
    return _framed(title, len(rows) + 1, parts)


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "#1a202c") -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" fill="{colour}" {_FONT}>'
        f"{escape(text)}</text>"
    )


def _framed(title: str, lines: int, parts: Sequence[str]) -> str:
    height = _TOP + lines * _ROW + 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="10" y="20" fill="#1a202c" font-family="sans-serif" font-size="14" '
        f'font-weight="bold">{escape(title)}</text>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"
