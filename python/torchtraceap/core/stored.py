"""Read what was stored: files and cells of JSON that another run, program or person wrote.

All of it is read here, so that all of it is bounded: what is read is a file of a limited size, text
is UTF-8, numbers fit into 64 bits, nothing is nested deeply, no key comes twice, and every error
names the file, and the row where there is one.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.formatting import short_repr
from torchtraceap.errors import MissingFileError, OptionError, SchemaError

__all__ = [
    "check_fields",
    "check_file",
    "hash_file",
    "parse_json",
    "parse_value",
    "read_json",
    "read_json_lines",
    "read_stored",
    "read_toml",
    "text_lines",
]

MOST_BYTES = 256 << 20
"""The size of a file; what is larger is no settings, labels or results."""
DEEPEST = 200
"""How deeply lists and objects may be nested."""

Kind = type | tuple[type, ...]

_NAMES = {dict: "an object", list: "a list", str: "a text", int: "an integer", float: "a number",
          bool: "true or false", type(None): "null"}  # fmt: skip
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{\]}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_stored(path: PathLike, *, most: int = MOST_BYTES, partly: bool = False) -> bytes:
    """Return the content of a file, or if `partly` its first `most` bytes; a pipe or device, which
    may never end, is refused.

    Raises:
        MissingFileError: There is no such file.
        SchemaError: It is no file, has more than `most` bytes, or can't be read.
    """
    try:
        # A pipe without a writer would wait for one.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as stream:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise SchemaError(f"{path}: is no file")
            data = stream.read(most if partly else most + 1)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file") from None
    except OSError as error:
        raise SchemaError(f"{path}: can't be read: {error.strerror or error}") from None
    if len(data) > most:
        raise SchemaError(f"{path}: has more than {most:,} bytes")
    return data


def check_file(path: PathLike) -> None:
    """Check that a library may open a path: a pipe or device may never end.

    Raises:
        MissingFileError: There is no such file.
        SchemaError: It is no file.
    """
    read_stored(path, most=0, partly=True)


def hash_file(path: PathLike) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits.

    Raises:
        MissingFileError, SchemaError: As `check_file`.
    """
    import hashlib

    check_file(path)
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json(path: PathLike, *, most: int = MOST_BYTES) -> dict[str, Any]:
    """Return the object in a file of JSON; see `read_stored` and `parse_json`."""
    return parse_json(read_stored(path, most=most), os.fspath(path))


def read_json_lines(path: PathLike) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines, each with its file and line for messages."""
    for number, line in enumerate(read_stored(path).split(b"\n"), 1):
        if line.strip():
            place = f"{path}, line {number}"
            yield place, parse_json(line, place)


def read_toml(path: PathLike) -> dict[str, Any]:
    """Return the tables of a file of TOML.

    Raises:
        MissingFileError: There is no such file.
        OptionError: It can't be read, or is no TOML: such files hold options.
    """
    import tomllib

    try:
        data = read_stored(path)
    except SchemaError as error:
        raise OptionError(str(error)) from None
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path}: is no TOML: {error}") from None


def parse_json(text: str | bytes, place: str, *, wide: bool = False) -> dict[str, Any]:
    """Return the object of a text of JSON.

    Args:
        text: The text, or its UTF-8.
        place: The file and row in messages.
        wide: Integers may leave 64 bits, as those of a trace may.

    Raises:
        SchemaError: It is no JSON, or no object; a number leaves 64 bits or is not finite, a key
            comes twice, a text holds half a character, or it is nested more than `DEEPEST`.
    """
    found = parse_value(text, place, wide=wide)
    if not isinstance(found, dict):
        raise SchemaError(f"{place}: expected an object, found {short_repr(found)}")
    return found


def parse_value(text: str | bytes, place: str, *, wide: bool = False) -> Any:
    """Return the value of a text of JSON, whatever its type is; see `parse_json`."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        _check_depth(text)
        value = (_WIDE_DECODER if wide else _DECODER).decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise SchemaError(f"{place}: is no text in UTF-8") from None
    except ValueError as error:
        raise SchemaError(f"{place}: is no JSON: {error}") from None
    return value


def check_fields(found: Mapping[str, Any], kinds: Mapping[str, Kind], place: str) -> None:
    """Check that an object has some fields, with values of their types.

    Args:
        found: The object.
        kinds: The type, or the types, of each field; an integer is a float too.
        place: The file and row in messages.

    Raises:
        SchemaError: It lacks a field, or one is of another type.
    """
    if missing := [name for name in kinds if name not in found]:
        raise SchemaError(f"{place}: lacks {', '.join(missing)}")
    for name, kind in kinds.items():
        if not _is_of(found[name], kind):
            wanted = " or ".join(_NAMES[k] for k in (kind if isinstance(kind, tuple) else (kind,)))
            raise SchemaError(
                f"{place}: {name}: expected {wanted}, found {short_repr(found[name])}"
            )


def text_lines(text: str) -> list[str]:
    """Return the lines of a text of a program or person; `str.splitlines` also breaks at
    separators that are part of a line there, such as U+2028 or a form feed."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _is_of(value: Any, kind: Kind) -> bool:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if isinstance(value, bool):
        return bool in kinds or object in kinds
    return isinstance(value, kinds) or (isinstance(value, int) and float in kinds)


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    depth = 0
    for found in _BRACKETS.finditer(text):
        sign = found[0][0]
        depth += (sign in "[{") - (sign in "]}")
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {short_repr(twice)} comes twice")
    return found


def _integer(digits: str) -> int:
    value = int(digits) if len(digits) < 21 else 1 << 64
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"the number {short_repr(digits)} does not fit into 64 bits")
    return value


def _real(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{short_repr(digits)} is no finite number")
    return value


_DECODER, _WIDE_DECODER = (
    json.JSONDecoder(
        object_pairs_hook=_unique, parse_int=integer, parse_float=_real, parse_constant=_real
    )
    for integer in (_integer, int)
)
