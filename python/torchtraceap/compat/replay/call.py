"""The recorded call of an operator: shapes, types, strides, values, and how large they may be.

Values that a trace holds as text are parsed and never evaluated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.records import dataclass
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "MAX_AXES",
    "MAX_BYTES",
    "MAX_NUMBERS",
    "MAX_PIECES",
    "MAX_ROUNDS",
    "MAX_STEPS",
    "MAX_TENSORS",
    "TOO_LARGE",
    "NotReplayableError",
    "RecordedCall",
    "Value",
    "call_from_texts",
    "copy_ends",
    "parse_value",
    "quote",
    "text_of_args",
    "with_surroundings",
]

MAX_AXES = 64
"""Most axes of a tensor, as in PyTorch."""
MAX_BYTES = 1 << 39
"""Most bytes of all inputs together, and of what a step of a call makes: more than any GPU has."""
MAX_TENSORS = 1024
"""Most tensors in a list; the profiler records 30."""
MAX_NUMBERS = 1 << 16
"""Most numbers in a list."""
MAX_PIECES = 1 << 16
"""Most results of one step, as of `unbind`."""
MAX_ROUNDS = 1 << 16
"""Largest number that counts rounds, not sizes of what comes out."""
MAX_STEPS = 1 << 16
"""Most operators below a replayed one."""

TOO_LARGE = f"more than {MAX_BYTES >> 30} GiB"

Token = None | str | bool | int | float | complex
Value = None | bool | int | float | complex | list["Value"]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan))"
    r"(?P<imaginary>j?)(?![\w.])|(?P<word>True|False|None)(?!\w)|(?P<mark>[\[\](),]))",
    re.ASCII,
)
_WORDS: dict[str, bool | None] = {"True": True, "False": False, "None": None}
_MAX_CHARACTERS = 1 << 20
_MAX_DIGITS = 40
DIMS_KEYS = ("Input Dims", "Input dims")
TYPES_KEY, STRIDES_KEY, VALUES_KEY = "Input type", "Input Strides", "Concrete Inputs"
NO_SCALARS = "the trace has no Concrete Inputs (recorded since PyTorch 2.1 with record_shapes=True)"

_MAX_SIZE = 1 << 48
_MAX_BELOW = 256


class NotReplayableError(Exception):
    """The call cannot be rebuilt; the message is the reason, for a person."""


def quote(text: str, most: int = 80) -> str:
    """Text of a trace for a message: ASCII, in quotes, and not long."""
    return ascii(text if len(text) <= most else text[: most - 3] + "...")


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
    gpu_names: tuple[str, ...] = ()
    """Names of the GPU events that it launched, as far as they were looked for."""
    tensors_below: tuple[tuple[tuple[int, ...], str], ...] = ()
    """Shape and type of tensors that operators below it took, as far as they were looked for."""


def text_of_args(rank: RankTrace, row: int) -> tuple[str | None, ...]:
    """JSON texts of sizes, types, strides and values of a row."""
    rows = np.asarray([row], dtype=np.int64)
    return tuple(
        next((text for key in keys if (text := _texts(rank, (key,), rows)[0]) is not None), None)
        for keys in (DIMS_KEYS, (TYPES_KEY,), (STRIDES_KEY,), (VALUES_KEY,))
    )


def _texts(rank: RankTrace, keys: Iterable[str], rows: Any) -> list[str | None]:
    """Return the texts of rows under the first key that has any."""
    for key in keys:
        codes, texts = rank.table.text_codes(key, rows)
        if texts:
            return [texts[code] if code >= 0 else None for code in codes]
    return [None] * len(rows)


def call_from_texts(name: str, texts: Iterable[str | None]) -> RecordedCall:
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
    values: list[Any] = []
    unread: list[str | None] = []
    for raw, kind in zip(raw_values, types, strict=True):
        text = raw if raw is None or isinstance(raw, str) else json.dumps(raw)
        value: Any = None
        literal = True
        if kind == "" and text:
            value = text
        elif text:
            try:
                value = parse_value(text)
            except ValueError:
                literal = False
        values.append(value)
        unread.append(None if literal else text)
    return RecordedCall(
        name,
        dims,
        types,
        strides,
        tuple(values),
        values_text is not None,
        tuple(unread),
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
    """Return the sizes of a tensor, or of each tensor of a list."""
    if isinstance(entry, list) and entry and all(isinstance(inner, list) for inner in entry):
        return tuple(_plain_sizes(inner) for inner in entry)
    return _plain_sizes(entry)


def _plain_sizes(entry: Any) -> tuple[int, ...]:
    is_list = isinstance(entry, list)
    whole = is_list and all(type(size) is int and 0 <= size <= _MAX_SIZE for size in entry)
    if not whole or len(entry) > MAX_AXES:
        raise NotReplayableError(f"{ascii(entry)[:60]} is no shape")
    return tuple(entry)


def with_surroundings(call: RecordedCall, rank: RankTrace, row: int) -> RecordedCall:
    """Return a call with the GPU events launched below its row, and tensors of operators below."""
    tree = rank.tree
    position = int(tree.host_position[row])
    if position >= len(tree.host_rows):
        return call
    end = min(int(tree.subtree_end[position]), position + _MAX_BELOW)
    rows = tree.host_rows[position:end].astype(np.int64)
    offsets = tree.launched_offsets
    launched = [tree.launched_rows[offsets[r] : offsets[r + 1]] for r in rows]
    gpu_rows = np.concatenate(launched) if launched else np.zeros(0, dtype=np.uint32)
    names = dict.fromkeys(rank.table.name_of(int(r)) for r in gpu_rows[:_MAX_BELOW])
    columns = [_texts(rank, keys, rows[1:]) for keys in (DIMS_KEYS, (TYPES_KEY,))]
    tensors: list[tuple[tuple[int, ...], str]] = []
    for pair in dict.fromkeys(zip(*columns, strict=True)):
        if None in pair:
            continue
        try:
            dims, types = (_array(str(text), "") for text in pair)
            shapes = [_sizes(entry) for entry in dims]
        except NotReplayableError:
            continue
        tensors += ((shape, str(kind)) for shape, kind in zip(shapes, types, strict=False))
    return replace(call, gpu_names=tuple(names), tensors_below=tuple(tensors))


def copy_ends(call: RecordedCall) -> tuple[str, str] | None:
    """Return source and target of a copy between host and device: "pinned", "cpu" or "device"."""
    for name in call.gpu_names:
        direction, memory = _core.classify_copy(name)
        host = "pinned" if memory == _core.HostMemory.PINNED else "cpu"
        if direction == _core.CopyDirection.HOST_TO_DEVICE:
            return host, "device"
        if direction == _core.CopyDirection.DEVICE_TO_HOST:
            return "device", host
    return None


# ------------------------------------------------------------------------------ literals


def parse_value(text: str) -> Value:
    """A number, True, False, None, or a flat list of these.

    Numbers are written as C++ prints them: "2." is a float, so are "inf" and "nan"; complex numbers
    are "1.+2.j" or "(1,2)".

    Raises:
        ValueError: The text is anything else; it is never evaluated.
    """
    tokens = _tokens(text)
    value, end = _list(tokens, 1) if tokens[:1] == ["["] else _scalar(tokens, 0)
    if end != len(tokens):
        raise ValueError(f"{text[:60]!r} is no literal")
    return value


def _tokens(text: str) -> list[Token]:
    """Return marks as texts, and everything else as its value."""
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"a literal of {len(text)} characters")
    tokens: list[Token] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text[:60]!r} is no literal")
        position = match.end()
        if match["mark"]:
            tokens.append(match["mark"])
        elif match["word"]:
            tokens.append(_WORDS[match["word"]])
        else:
            digits = match["number"]
            whole = digits.lstrip("+-").isdecimal()
            if whole and len(digits) > _MAX_DIGITS:
                raise ValueError(f"a number of {len(digits)} digits")
            number = int(digits) if whole else float(digits)
            before = tokens[-1] if tokens else None
            if not match["imaginary"]:
                tokens.append(number)
            elif isinstance(before, int | float):  # its real part
                tokens[-1] = before + number * 1j
            else:
                tokens.append(number * 1j)
    return tokens


def _list(tokens: list[Token], start: int) -> tuple[Value, int]:
    """Return the list that was opened before token `start`, and the place behind it."""
    values: list[Value] = []
    if tokens[start : start + 1] == ["]"]:
        return values, start + 1
    while True:
        value, start = _scalar(tokens, start)
        values.append(value)
        mark = tokens[start : start + 1]
        if mark == ["]"]:
            return values, start + 1
        if mark != [","]:
            raise ValueError("a list without an end")
        start += 1


def _scalar(tokens: list[Token], start: int) -> tuple[Value, int]:
    head = tokens[start : start + 5]
    if head and not isinstance(head[0], str):
        return head[0], start + 1
    if len(head) == 5 and [head[0], head[2], head[4]] == ["(", ",", ")"]:
        parts = [part for part in (head[1], head[3]) if isinstance(part, int | float)]
        if len(parts) == 2 and all(math.isfinite(part) for part in parts):
            return complex(*parts), start + 5
    raise ValueError("a literal is missing")
