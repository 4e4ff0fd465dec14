"""Make the event table of a trace, and its label, from rows of a data set (writer.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.stored import parse_json
from torchtraceap.datasets.arrow import ARGUMENTS, LABEL_COLUMNS
from torchtraceap.errors import SchemaError
from torchtraceap.trace.event_columns import Texts, Values, event_table

__all__ = ["decode_label", "decode_trace"]


def decode_label(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the label of a trace, on the trace's clock, from its row of `traces`."""
    origin_ns = row["origin_ns"]
    costs: dict[str, list[list[int]]] = {}
    for cost in row["costs"]:
        interval = [cost["start_ns"] + origin_ns, cost["end_ns"] + origin_ns]
        costs.setdefault(cost["type"], []).append(interval)
    return {key: row[key] for key in (*LABEL_COLUMNS, "steps")} | {
        "source": {"kind": row["source"], "base": row["base"]},
        "intervals": costs.get(row["type"], []),
        "costs": costs,
    }


def decode_trace(
    row: Mapping[str, Any], gpu: Any, host: Any, names: Mapping[int, str], path: str = ""
) -> _core.EventTable:
    """Return the event table of a trace.

    Args:
        row: The row of `traces`.
        gpu: Its rows of `gpu_events`, an Arrow table.
        host: Its rows of `host_events`.
        names: Names by hash.
        path: Stands for the file in messages.

    Raises:
        SchemaError: The rows do not belong together.
    """
    try:
        return _decode(row, gpu, host, names, path)
    except SchemaError as error:
        if path in str(error):
            raise
        raise SchemaError(f"{path}: {error}") from None


def _decode(
    row: Mapping[str, Any], gpu: Any, host: Any, names: Mapping[int, str], path: str
) -> _core.EventTable:
    both = [
        _Part(gpu, ARGUMENTS["gpu_events"], {}),
        _Part(host, ARGUMENTS["host_events"], {"id": "flow_id"}),
    ]
    tracks, track = row["tracks"], _join(both, "track")[0]
    if len(track) and not 0 <= track.min() <= track.max() < len(tracks):
        raise SchemaError(f"{path}: an event is beyond the {len(tracks)} tracks of the trace")
    starts, timed = _join(both, "start_ns")
    hashes, codes = np.unique(_join(both, "name")[0], return_inverse=True)
    try:
        name = Texts(codes, [names[number] for number in hashes.tolist()])
    except KeyError as error:
        raise SchemaError(f"{path}: no name has the hash {error}") from None
    return event_table(
        name,
        np.where(timed, starts + row["origin_ns"], 0),
        _join(both, "dur_ns")[0],
        category=_texts([part.texts("category") for part in both]),
        pid=[tracks[code]["pid"] for code in track.tolist()],
        tid=[tracks[code]["tid"] for code in track.tolist()],
        phase=["X"] * len(gpu) + host.column("phase").to_pylist(),
        args=_values([(part, part.args) for part in both], "args", path),
        members=_values([(part, part.members) for part in both], "members", path),
        metadata=parse_json(row["metadata"], f"{path}: metadata", wide=True),
        path=path,
    )


class _Part:
    """Rows of GPU events, or of the others, as columns of an event table."""

    def __init__(self, rows: Any, args: Mapping[str, str], members: Mapping[str, str]) -> None:
        self.rows = rows
        self.args, self.members = args, members
        """Columns by key, of numbers."""

    def numbers(self, name: str) -> tuple[Array, Array]:
        """Values `[n]`, and which events have one."""
        column = self.rows.column(name)
        known: Array = column.is_valid().to_numpy()
        values: Array = column.fill_null(0).to_numpy()
        return values, known

    def texts(self, name: str) -> Texts:
        """A column of texts."""
        column = self.rows.column(name).combine_chunks()
        codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Texts(codes, column.dictionary.to_pylist())

    def column(self, name: str | None) -> Any:
        """A masked array of numbers, or a list of sizes; all masked where there is no column."""
        if name is None:
            rows = len(self.rows)
            return np.ma.MaskedArray(np.zeros(rows, dtype=np.int64), mask=np.ones(rows, dtype=bool))
        if name in ("grid", "block"):
            return self.rows.column(name).to_pylist()
        values, known = self.numbers(name)
        return np.ma.MaskedArray(values, mask=~known)


def _join(parts: Iterable[_Part], name: str) -> tuple[Array, Array]:
    values, known = zip(*(part.numbers(name) for part in parts), strict=True)
    return np.concatenate(values), np.concatenate(known)


def _texts(parts: Sequence[Texts]) -> Texts:
    """Return columns of texts behind each other."""
    codes, texts = [], list[str]()
    for part in parts:
        codes.append(np.where(part.codes >= 0, part.codes + len(texts), -1))
        texts += part.texts
    return Texts(np.concatenate(codes), texts)


def _values(
    parts: Sequence[tuple[_Part, Mapping[str, str]]], rest: str, path: str
) -> dict[str, Values]:
    """Return columns by key: those of numbers, and what is left of the events as JSON."""
    found: dict[str, Values] = {}
    for key in dict.fromkeys(key for _, columns in parts for key in columns):
        cells = [part.column(columns.get(key)) for part, columns in parts]
        if any(isinstance(cell, list) for cell in cells):
            found[key] = _encode_json(_json_cells(cells))
        else:
            mask = np.concatenate([np.ma.getmaskarray(cell) for cell in cells])
            found[key] = np.ma.MaskedArray(np.concatenate([cell.data for cell in cells]), mask)
    rests = _texts([part.texts(rest) for part, _ in parts])
    objects = [
        parse_json(text, f"{path}: {rest}, text {number}", wide=True)
        for number, text in enumerate(rests.texts)
    ]
    for key in dict.fromkeys(key for each in objects for key in each):
        column = _encode_json([json.dumps(each[key]) if key in each else None for each in objects])
        codes = np.append(column.codes, -1)[rests.codes]
        if key in found:  # only some events have a number here
            number = found[key]
            texts = (
                [number.texts[code] if code >= 0 else None for code in number.codes.tolist()]
                if isinstance(number, Texts)
                else _json_cells([number])
            )
            for place in np.flatnonzero(codes >= 0).tolist():
                texts[place] = column.texts[codes[place]]
            found[key] = _encode_json(texts)
        else:
            found[key] = Texts(codes, column.texts, is_json=True)
    return found


def _json_cells(columns: Iterable[Any]) -> list[str | None]:
    """Return values of lists or masked arrays as JSON, None for what is missing."""
    values = (
        value
        for column in columns
        for value in (column if isinstance(column, list) else column.tolist())
    )
    return [None if value is None else json.dumps(value) for value in values]


def _encode_json(cells: Sequence[str | None]) -> Texts:
    """Return texts of JSON, of which few are different, as codes."""
    number: dict[str | None, int] = {None: -1}
    for cell in cells:
        number.setdefault(cell, len(number) - 1)
    codes = np.array([number[cell] for cell in cells], dtype=np.int64)
    return Texts(codes, [text for text in number if text is not None], is_json=True)
