"""Allow-list redaction: what a language model is told of names.

Names that are PyTorch's, CUDA's or a known library's pass (`known_names`); every other one becomes
a placeholder, `name_1`, `name_2` and so on in the order in which names are first seen. What a model
answers is mapped back on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from torchtraceap.explanation.known_names import known_form
from torchtraceap.explanation.pack import Pack, PackTable

__all__ = ["Redaction", "redact"]

_PLACEHOLDER = re.compile(r"(?<![A-Za-z0-9_])name_([1-9][0-9]{0,8})(?![A-Za-z0-9_])")


class Redaction:
    """The placeholders of one run, which may see many packs.

    A name that looks like a placeholder gets one of its own, so that none stands for two things.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._names: list[str] = []

    def shown(self, name: str) -> str:
        """Return the text that stands for a name: the name, its known part, or a placeholder."""
        known = known_form(name)
        if known is not None:
            return known
        place = self._places.get(name)
        if place is None:
            self._names.append(name)
            place = self._places[name] = len(self._names)
        return f"name_{place}"

    def restore(self, text: str, written: Callable[[str], str] = str) -> str:
        """The text with names for placeholders; those that stand for nothing stay.

        Args:
            text: Prose.
            written: Function that writes a name as the text does.
        """

        def name_of(match: re.Match[str]) -> str:
            place = int(match[1])
            return written(self._names[place - 1]) if place <= len(self._names) else match[0]

        return _PLACEHOLDER.sub(name_of, text)


def redact(pack: Pack, redaction: Redaction) -> Pack:
    """The pack with what stands for its names; tables are seen first, then rows."""
    return replace(
        pack,
        tables=tuple(_redact_table(table, redaction) for table in pack.tables),
        rows=tuple(replace(row, name=redaction.shown(row.name)) for row in pack.rows),
    )


def _redact_table(table: PackTable, redaction: Redaction) -> PackTable:
    return replace(
        table,
        lines=tuple(
            replace(line, names=tuple(redaction.shown(name) for name in line.names))
            for line in table.lines
        ),
    )
