"""JSON of any length, read value by value: no more of it is held than one value is long."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from torchtraceap.errors import MissingFileError, ParseError

__all__ = ["MAX_BYTES", "MAX_VALUE_CHARACTERS", "DamageError", "Text", "open_text"]

MAX_BYTES = 4 << 30
"""Most decompressed bytes of a file."""
MAX_VALUE_CHARACTERS = 16 << 20
"""Most characters of one value: a node, or a member beside the nodes."""
_PART_BYTES = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
_LONGEST_WORD = 16  # above an escape and -Infinity
_GZIP = b"\x1f\x8b"


class DamageError(ValueError):
    """The text is no JSON from here on, or it ends."""


@contextmanager
def open_text(path: Path) -> Iterator[Text]:
    """The text of a file, plain or gzip.

    Raises:
        MissingFileError: There is no such file.
        ParseError: It cannot be read, or is too long.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            yield Text(cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file, path)
    except FileNotFoundError:
        raise MissingFileError(f"no such file: {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ParseError(f"{path} cannot be read: {error}") from None


class Text:
    """A place in the text, and what stands there."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path = stream, path
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._json = json.JSONDecoder()
        self._bytes = 0
        self._text, self._place, self._ended = "", 0, False

    def skip(self, character: str) -> bool:
        """Go behind a character if it is next but for spaces."""
        if self._next() != character:
            return False
        self._place += 1
        return True

    def key(self) -> str:
        """Read the key of a member, with its colon."""
        key = self.value()
        if not isinstance(key, str) or not self.skip(":"):
            raise DamageError("expected a key")
        return key

    def value(self) -> Any:
        """Read the next value."""
        self._next()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._place)
            except RecursionError:
                raise DamageError("values are nested too deep") from None
            except json.JSONDecodeError as error:
                if not (self._may_be_cut(error) and self._extend()):
                    raise DamageError(str(error)) from None
                continue
            except ValueError as error:  # a number of more digits than Python reads
                raise DamageError(str(error)) from None
            # A number may go on in what has not been read.
            if end < len(self._text) or not self._extend():
                self._place = end
                return value

    def expect_end(self) -> None:
        if self._next():
            raise DamageError("text behind the end")

    def head(self, characters: int) -> str:
        """Return the beginning of the text; nothing is read past it."""
        while len(self._text) < characters and self._read_on():
            pass
        return self._text[:characters]

    def find(self, word: str) -> bool:
        """Go behind the next occurrence of a word; to the end if there is none."""
        while (place := self._text.find(word, self._place)) < 0:
            self._place = max(self._place, len(self._text) - len(word) + 1)
            if not self._read_on():
                return False
        self._place = place + len(word)
        return True

    def _next(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._read_on():
                return ""

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """The error may come from where the text that is here ends."""
        return error.pos > len(self._text) - _LONGEST_WORD or error.msg.startswith("Unterminated")

    def _extend(self) -> bool:
        """Twice as much of the value that begins here; whether there is more."""
        length = len(self._text) - self._place
        if length > MAX_VALUE_CHARACTERS:
            raise DamageError(f"a value is longer than {MAX_VALUE_CHARACTERS >> 20} MiB")
        wanted = min(2 * length, MAX_VALUE_CHARACTERS + 1)
        more = self._read_on()
        while more and len(self._text) - self._place < wanted:
            more = self._read_on()
        return len(self._text) - self._place > length

    def _read_on(self) -> bool:
        """Drop what is read, and read another part of the file; return False at its end."""
        if self._ended:
            return False
        part = self._stream.read(_PART_BYTES)
        self._bytes += len(part)
        if self._bytes > MAX_BYTES:
            raise ParseError(f"{self._path} holds more than {MAX_BYTES >> 30} GiB")
        self._ended = not part
        self._text = self._text[self._place :] + self._decoder.decode(part, final=self._ended)
        self._place = 0
        return True
