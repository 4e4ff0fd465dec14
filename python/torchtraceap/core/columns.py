"""Columns of a table: arrays as they are, texts and JSON as codes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass

__all__ = [
    "Column",
    "JsonCodes",
    "TextCodes",
    "csv_quoting",
    "encode_json",
    "encode_texts",
    "in_order_of_use",
    "recode",
    "spreadsheet_cell",
    "unique_texts",
]


@dataclass(frozen=True, slots=True)
class TextCodes:
    """A text column with repeating values: indices into the distinct texts; -1 is absent."""

    codes: Array
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: Array | slice) -> Self:
        """Return the column for some rows."""
        return type(self)(self.codes[rows], self.texts)

    def compact(self) -> Self:
        """Return the column without unused texts; a column may hold all texts of its trace."""
        used = np.zeros(len(self.texts) + 1, dtype=bool)  # absent, -1, is the last
        used[self.codes] = True
        chosen = np.flatnonzero(used[:-1])
        if len(chosen) == len(self.texts):
            return self
        codes = np.full(len(used), -1, dtype=np.int32)
        codes[chosen] = np.arange(len(chosen))
        return type(self)(codes[self.codes], [self.texts[i] for i in chosen.tolist()])

    def to_numpy(self) -> Array:
        """Return object `[n]` of str, None where absent."""
        column = self.compact() if len(self.texts) > len(self.codes) else self
        texts = np.empty(len(column.texts) + 1, dtype=object)
        texts[:-1] = column.texts
        return texts[column.codes]

    def to_list(self) -> list[Any]:
        """Return plain values for JSON, None where absent."""
        values: list[Any] = self.to_numpy().tolist()
        return values


@dataclass(frozen=True, slots=True)
class JsonCodes(TextCodes):
    """A column of lists or objects, kept as JSON text: files get the text, JSON the value."""

    def to_list(self) -> list[Any]:
        column = self.compact()
        values = [*(_parse_json(text) for text in column.texts), None]
        return [values[code] for code in column.codes.tolist()]


def _parse_json(text: str) -> Any:
    """Return the value; a trace may hold anything, so text that is no JSON stays text, and so does
    what is nested too deep for a value of a row of a document."""
    try:
        value = json.loads(text, strict=False)
        json.dumps([[[[value]]]], allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


Column = Array | TextCodes
"""Integers, floats (NaN is absent), bool, `np.ma` arrays (masked is absent), texts or JSON."""


def encode_texts(values: Iterable[str | None]) -> TextCodes:
    """Return texts as codes, in order of first use."""
    distinct: dict[str, int] = {}
    codes = [-1 if text is None else distinct.setdefault(text, len(distinct)) for text in values]
    return TextCodes(np.asarray(codes, dtype=np.int32), list(distinct))


def encode_json(values: Iterable[Any]) -> JsonCodes:
    """Return lists, objects or plain values as JSON text; None is absent."""
    texts = (None if v is None else json.dumps(v, separators=(",", ":")) for v in values)
    column = encode_texts(texts)
    return JsonCodes(column.codes, column.texts)


def in_order_of_use(codes: Array) -> tuple[Array, Array]:
    """Return the distinct codes `[m]` of an integer array `[n]` by their first place, and the place
    of each code among them, `[n]`. The codes of a trace's texts themselves differ from one reading
    to the next where several threads read."""
    found, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return found[order], place[inverse.reshape(-1)]


def recode(codes: Array, texts: Sequence[str]) -> TextCodes:
    """Return the same column with each text once."""
    distinct: dict[str, int] = {}
    mapping = [distinct.setdefault(text, len(distinct)) for text in texts]
    return TextCodes(np.asarray(mapping, dtype=np.int32)[codes], list(distinct))


def unique_texts(column: TextCodes) -> TextCodes:
    """Return the column with equal texts once, as pandas needs them: texts that differ only in
    bytes that are no UTF-8 look the same."""
    if len(set(column.texts)) == len(column.texts):
        return column
    recoded = recode(np.arange(len(column.texts)), column.texts)
    codes = np.append(recoded.codes, np.int32(-1))[column.codes]
    return TextCodes(codes, recoded.texts)


def csv_quoting(texts: Iterable[str]) -> Literal[0, 2]:
    """Return how the module `csv` has to quote texts (`csv.QUOTE_...`). It does not quote a
    carriage return by itself if lines end in a line feed, and readers then end the row there."""
    return csv.QUOTE_NONNUMERIC if any("\r" in text for text in texts) else csv.QUOTE_MINIMAL


# Characters that begin a formula in a spreadsheet, also as East Asian keyboards write them.
_FORMULA_STARTS = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def spreadsheet_cell(text: str) -> str:
    """Return a text that a spreadsheet shows instead of computing it: an apostrophe stands before
    what would begin a formula."""
    return f"'{text}" if text[:1] in _FORMULA_STARTS else text
