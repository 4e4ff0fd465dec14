"""What a trace holds about the call of an operator: shapes, types, strides and values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import field
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.compat.replay.bounds import MAX_AXES
from torchtraceap.compat.replay.literals import parse_value
from torchtraceap.core.records import dataclass
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "NotReplayableError",
    "RecordedCall",
    "call_from_texts",
    "find_surroundings",
    "quoted",
    "text_of_args",
]

DIMS_KEYS = ("Input Dims", "Input dims")
TYPES_KEY, STRIDES_KEY, VALUES_KEY = "Input type", "Input Strides", "Concrete Inputs"
NO_SCALARS = "the trace has no Concrete Inputs (recorded since PyTorch 2.1 with record_shapes=True)"

_MAX_SIZE = 1 << 48


class NotReplayableError(Exception):
    """The call cannot be rebuilt; the message is the reason, for a person."""


def quoted(text: str, most: int = 80) -> str:
    """Text of a trace for a message: ASCII, in quotes, and not long."""
    return ascii(text if len(text) <= most else text[: most - 3] + "...")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the rows below a call tell about it."""

    gpu_names: tuple[str, ...] = ()
    """Names of the GPU events that it launched."""
    tensors: tuple[tuple[tuple[int, ...], str], ...] = ()
    """Shape and type of tensors that operators below it took."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """The arguments of a call, one entry each; `values` are parsed literals, None where absent."""

    name: str
    dims: tuple[Any, ...]
    """Sizes of a tensor, a list of sizes for a list of tensors, () for all else."""
    types: tuple[str, ...]
    strides: tuple[Any, ...] | None
    values: tuple[Any, ...]
    has_values: bool
    """The trace has Concrete Inputs for this call."""
    unread: tuple[str | None, ...] = ()
    """The text of a value that is no literal."""
    around: Surroundings = field(default_factory=Surroundings)


def text_of_args(rank: RankTrace, row: int) -> tuple[str | None, ...]:
    """JSON texts of sizes, types, strides and values of a row."""
    return tuple(
        next((text for key in keys if (text := _text_of(rank, key, row)) is not None), None)
        for keys in (DIMS_KEYS, (TYPES_KEY,), (STRIDES_KEY,), (VALUES_KEY,))
    )


def _text_of(rank: RankTrace, key: str, row: int) -> str | None:
    codes, texts = rank.table.text_codes(key, np.asarray([row], dtype=np.int64))
    return texts[codes[0]] if len(codes) and codes[0] >= 0 else None


def call_from_texts(
    name: str, texts: Iterable[str | None], around: Surroundings | None = None
) -> RecordedCall:
    """The recorded call, checked: nothing in a trace is trusted.

    Raises:
        NotReplayableError: Shapes are missing, or what is there is not what a profiler writes.
    """
    dims_text, types_text, strides_text, values_text = texts
    if dims_text is None or types_text is None:
        raise NotReplayableError("no shapes were recorded; record with record_shapes=True")
    dims = tuple(_sizes(entry) for entry in _array(dims_text, "Input Dims"))
    types = tuple(str(entry) for entry in _array(types_text, "Input type"))
    raw_values = _array(values_text, "Concrete Inputs") if values_text else [""] * len(types)
    strides = None
    if strides_text:
        strides = tuple(_sizes(entry) for entry in _array(strides_text, "Input Strides"))
    lengths = {len(dims), len(types), len(raw_values), len(strides or dims)}
    if len(lengths) != 1:
        raise NotReplayableError("the recorded shapes, types, strides and values differ in number")
    parsed = [_value(text, kind) for text, kind in zip(raw_values, types, strict=True)]
    return RecordedCall(
        name,
        dims,
        types,
        strides,
        tuple(value for value, _ in parsed),
        values_text is not None,
        tuple(unread for _, unread in parsed),
        around or Surroundings(),
    )


def _array(text: str, what: str) -> list[Any]:
    try:
        entries = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, list):
        raise NotReplayableError(f"{what} is no list")
    return entries


def _sizes(entry: Any) -> tuple[Any, ...]:
    """Sizes of a tensor, or of each tensor of a list."""
    if not isinstance(entry, list):
        raise NotReplayableError(f"{ascii(entry)[:60]} is no shape")
    if entry and all(isinstance(inner, list) for inner in entry):
        return tuple(_plain_sizes(inner) for inner in entry)
    return _plain_sizes(entry)


def _plain_sizes(entry: list[Any]) -> tuple[int, ...]:
    whole = all(type(size) is int and 0 <= size <= _MAX_SIZE for size in entry)
    if not whole or len(entry) > MAX_AXES:
        raise NotReplayableError(f"{ascii(entry)[:60]} is no shape")
    return tuple(entry)


def _value(text: Any, kind: str) -> tuple[Any, str | None]:
    """The value of an argument and, where it is no literal, its text."""
    if text == "" or text is None:
        return None, None
    if not isinstance(text, str):
        text = json.dumps(text)
    if kind == "":
        return text, None
    try:
        return parse_value(text), None
    except ValueError:
        return None, text


_MAX_BELOW = 256


def find_surroundings(rank: RankTrace, row: int) -> Surroundings:
    """GPU events launched below a row, and tensors that the operators below it took."""
    tree = rank.tree
    position = int(tree.host_position[row])
    if position >= len(tree.host_rows):
        return Surroundings()
    end = min(int(tree.subtree_end[position]), position + _MAX_BELOW)
    rows = tree.host_rows[position:end].astype(np.int64)
    offsets = tree.launched_offsets
    launched = [tree.launched_rows[offsets[r] : offsets[r + 1]] for r in rows]
    gpu_rows = np.concatenate(launched) if launched else np.zeros(0, dtype=np.uint32)
    names = dict.fromkeys(rank.table.name_of(int(r)) for r in gpu_rows[:_MAX_BELOW])
    return Surroundings(tuple(names), tuple(_tensors_below(rank, rows[1:])))


def _tensors_below(rank: RankTrace, rows: Any) -> Iterable[tuple[tuple[int, ...], str]]:
    if not len(rows):
        return
    columns = [_texts(rank, DIMS_KEYS, rows), _texts(rank, (TYPES_KEY,), rows)]
    for pair in dict.fromkeys(zip(*columns, strict=True)):
        if None in pair:
            continue
        try:
            dims, types = (_array(str(text), "") for text in pair)
            shapes = [_sizes(entry) for entry in dims]
        except NotReplayableError:
            continue
        yield from ((shape, str(kind)) for shape, kind in zip(shapes, types, strict=False))


def _texts(rank: RankTrace, keys: Iterable[str], rows: Any) -> list[str | None]:
    for key in keys:
        codes, texts = rank.table.text_codes(key, rows)
        if texts:
            return [texts[code] if code >= 0 else None for code in codes]
    return [None] * len(rows)


def copy_ends(call: RecordedCall) -> tuple[str, str] | None:
    """Where a copy between host and device came from and went to: "pinned", "cpu" or "device"."""
    for name in call.around.gpu_names:
        direction, memory = _core.classify_copy(name)
        host = "pinned" if memory == _core.HostMemory.PINNED else "cpu"
        if direction == _core.CopyDirection.HOST_TO_DEVICE:
            return host, "device"
        if direction == _core.CopyDirection.DEVICE_TO_HOST:
            return "device", host
    return None
