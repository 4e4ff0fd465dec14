"""Read the nodes of a PyTorch execution trace and check them.

Two layouts of a node exist: `parent`, `inputs`, `rf_id`, ... beside each other (schemas up to
1.0.x), and Chakra's `ctrl_deps`, `inputs.values` and a list `attrs` (from 1.0.2-chakra on). The
JSON is read value by value: no more of it is held than one value is long.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from torchtraceap.core.records import dataclass
from torchtraceap.errors import MissingFileError, ParseError

__all__ = [
    "MAX_BYTES",
    "MAX_ENTRIES",
    "MAX_TENSORS",
    "MAX_VALUE_CHARACTERS",
    "Access",
    "Arguments",
    "DamageError",
    "Node",
    "NodeFile",
    "Text",
    "open_text",
    "read_nodes",
]

MAX_ENTRIES = 1 << 22
"""The most entries of the list of nodes; long trainings record a hundred thousand."""
MAX_TENSORS = 1 << 23
"""The most arguments of all nodes that are tensors."""
MAX_BYTES = 4 << 30
"""The most decompressed bytes of a file."""
MAX_VALUE_CHARACTERS = 16 << 20
"""The most characters of one value: a node, or a member beside the nodes."""
_MAX_DEPTH = 16
_NO_ID = -1
_INTEGER = re.compile(r"-?[0-9]{1,40}")
_PART_BYTES = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
_LONGEST_WORD = 16  # above an escape and -Infinity
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Access:
    """A tensor among the arguments: the bytes of its storage from the first to the last element."""

    storage: int
    start: int
    end: int
    argument: int
    """The place among the arguments."""
    device: str

    @property
    def is_empty(self) -> bool:
        return self.end <= self.start


@dataclass(frozen=True, slots=True)
class Arguments:
    """The inputs of a call as the file has them, by position."""

    values: tuple[Any, ...]
    """Tensors are lists of ids; plain values as they are, None as "<None>"."""
    shapes: tuple[Any, ...]
    types: tuple[Any, ...]
    """Types such as "Tensor(float)", "GenericList[Tensor(float)]", "Int"."""
    strides: tuple[Any, ...] = ()
    """Empty before schema 1.1."""


@dataclass(frozen=True, slots=True)
class Node:
    """One recorded call."""

    node: int
    name: str
    parent: int
    """-1 for a root."""
    rf_id: int
    """Id of its record function, by which Kineto knows it too; -1 if absent."""
    thread: int
    forward_parent: int
    forward_thread: int
    sequence: int
    scope: int
    """Scope of RecordFunction: 0 operator, 1 backward node, 7 annotation."""
    schema: str
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    arguments: Arguments | None = None
    """None unless they were requested."""


@dataclass(frozen=True, slots=True)
class NodeFile:
    """The content of a file."""

    schema: str
    pid: int
    nodes: tuple[Node, ...]
    """Nodes by id, that is, in the order in which the calls began."""
    notes: tuple[str, ...]


def read_nodes(path: Path, *, with_arguments: bool = False) -> NodeFile:
    """Read a file, JSON or gzip.

    Args:
        path: The file.
        with_arguments: Keep the values, shapes and types of the nodes' inputs, which take several
            times the memory of all the rest.

    A file that ends early (the observer was never unregistered) gives the nodes that are whole.

    Raises:
        MissingFileError: There is no such file.
        ParseError: It is no execution trace, or its nodes contradict each other.
    """
    with open_text(path) as text:
        reader = _Reader(path, with_arguments)
        damage = reader.read(text)
    nodes = reader.by_id
    if not reader.has_list and not damage:
        raise ParseError(f"{path} is no execution trace: it has no list 'nodes'")
    if damage and not reader.entries:
        raise ParseError(f"{path} is no JSON: {damage}")
    if not nodes:
        raise ParseError(
            f"{path} is no execution trace: none of its {reader.entries} nodes is valid"
        )
    checked: set[int] = set()
    for start in nodes:
        chain: dict[int, None] = {}
        current = start
        while current in nodes and current not in checked:
            if current in chain:
                raise ParseError(f"{path}: node {current} is its own ancestor")
            chain[current] = None
            current = nodes[current].parent
        checked.update(chain)
    pid = reader.integer(reader.members.get("pid"), _NO_ID, "pid")
    schema = _text(reader.members.get("schema"))
    ordered = tuple(nodes[key] for key in sorted(nodes))
    return NodeFile(schema, pid, ordered, tuple(reader.notes(damage)))


class _Reader:
    """Read the file entry by entry, so that only its nodes are kept."""

    def __init__(self, path: Path, with_arguments: bool) -> None:
        self._path = path
        self._with_arguments = with_arguments
        self._where = ""
        self._tensors = self._bad = self._repeated = 0
        self.by_id: dict[int, Node] = {}
        self.members: dict[str, Any] = {}
        """Members of the file beside its nodes: schema, pid."""
        self.entries = 0
        self.has_list = False

    def read(self, text: Text) -> DamageError | None:
        """Read on to the end, or to what is damaged."""
        try:
            if not text.skip("{"):
                text.value()
            else:
                while not text.skip("}"):
                    key = text.key()
                    if key == "nodes" and text.skip("["):
                        self._read_entries(text)
                    else:
                        value = text.value()
                        if key in ("schema", "pid"):
                            self.members[key] = value
                    text.skip(",")
            text.expect_end()
        except DamageError as damage:
            if self.has_list or not text.find('"nodes"'):
                return damage
            try:
                text.find("[")
                self._read_entries(text)
            except DamageError:
                pass
            return damage
        return None

    def notes(self, damage: DamageError | None) -> list[str]:
        notes = []
        if damage:
            notes.append(
                f"the file is damaged or ends early: its first {self.entries} nodes are read"
            )
        if self._bad:
            notes.append(f"{self._bad} entries are no nodes and were left out")
        if self._repeated:
            notes.append(f"{self._repeated} nodes repeat the id of another and were left out")
        return notes

    def _read_entries(self, text: Text) -> None:
        self.has_list = True
        while not text.skip("]"):
            entry = text.value()
            text.skip(",")
            self.entries += 1
            if self.entries > MAX_ENTRIES:
                raise ParseError(f"{self._path} has more than {MAX_ENTRIES:,} nodes")
            node = self._node(entry) if isinstance(entry, dict) else None
            if node is None:
                self._bad += 1
            elif self.by_id.setdefault(node.node, node) is not node:
                self._repeated += 1

    def _node(self, entry: Mapping[str, Any]) -> Node | None:
        identity, name = _parse_id(entry.get("id")), entry.get("name")
        if identity is None or not 0 <= identity < 1 << 63 or not isinstance(name, str):
            return None
        self._where = f"node {identity}, "
        attributes: Mapping[str, Any] = entry
        if isinstance(listed := entry.get("attrs"), list):
            pairs = (pair for pair in listed if isinstance(pair, dict))
            attributes = {str(pair.get("name")): pair.get("value") for pair in pairs}
        arguments = None
        if self._with_arguments:
            both = entry.get("inputs")
            if isinstance(both, dict):
                lists = [both.get(key) for key in ("values", "shapes", "types", "strides")]
            else:
                lists = [both, entry.get("input_shapes"), entry.get("input_types"), None]
            arguments = Arguments(*(tuple(one) if isinstance(one, list) else () for one in lists))
        parent = self.integer(entry.get("ctrl_deps", entry.get("parent")), _NO_ID, "parent")

        def attribute(key: str, default: int = _NO_ID) -> int:
            return self.integer(attributes.get(key), default, key)

        return Node(
            identity,
            name,
            _NO_ID if parent == identity else parent,
            attribute("rf_id"),
            attribute("tid"),
            attribute("fw_parent", 0),
            attribute("fw_tid", 0),
            attribute("seq_id"),
            attribute("scope"),
            _text(attributes.get("op_schema")),
            self._accesses(entry, "input"),
            self._accesses(entry, "output"),
            arguments,
        )

    def integer(self, value: Any, default: int, what: str) -> int:
        """Return the integer that a value stands for; `default` if it is none.

        Raises:
            ParseError: It takes more than 64 bits.
        """
        whole = _parse_id(value)
        if whole is None:
            return default
        if not -(1 << 63) <= whole < 1 << 63:
            raise self._out_of_range(what, whole)
        return whole

    def _out_of_range(self, what: str, value: int) -> ParseError:
        shown = str(value) if abs(value) < 10**40 else f"one of {value.bit_length()} bits"
        return ParseError(
            f"{self._path}: {self._where}{what}: expected an integer of 64 bits, found {shown}"
        )

    def _accesses(self, entry: Mapping[str, Any], which: str) -> tuple[Access, ...]:
        both = entry.get(which + "s")
        if isinstance(both, dict):
            values, shapes, strides = (both.get(key) for key in ("values", "shapes", "strides"))
        else:
            values, shapes, strides = both, entry.get(which + "_shapes"), None
        if not isinstance(values, list):
            return ()
        found: list[Access] = []
        for place, value in enumerate(values):
            what = f"{which}s[{place}]"
            self._collect(
                value, _item_at(shapes, place), _item_at(strides, place), place, found, what
            )
        total = sum(access.end - access.start for access in found)
        if total >= 1 << 63:
            raise self._out_of_range(f"bytes of the {which}s", total)
        return tuple(found)

    def _collect(
        self, value: Any, shape: Any, stride: Any, argument: int, found: list[Access], what: str,
        depth: int = 0,
    ) -> None:  # fmt: skip
        """Collect the tensors of a value.

        Each is a list [tensor id, storage id, offset, elements, bytes of one, device].
        """
        if not isinstance(value, list) or depth > _MAX_DEPTH:
            return
        if len(value) == 6 and isinstance(value[5], str) and all(type(v) is int for v in value[:5]):
            _, storage, offset, elements, item_bytes, device = value
            sizes = _are_sizes(shape) and _are_sizes(stride) and len(shape) == len(stride)
            if sizes and 0 not in shape:
                pairs = zip(shape, stride, strict=True)
                elements = 1 + sum((size - 1) * step for size, step in pairs)
            start = offset * item_bytes
            end = start + max(elements, 0) * item_bytes
            access = Access(storage, start, end, argument, device)
            for part in (access.storage, access.start, access.end):
                if not -(1 << 63) <= part < 1 << 63:
                    raise self._out_of_range(what, part)
            self._tensors += 1
            if self._tensors > MAX_TENSORS:
                raise ParseError(f"{self._path} has more than {MAX_TENSORS:,} tensors")
            if not access.is_empty:
                found.append(access)
            return
        for place, inner in enumerate(value):
            inner_shape, inner_stride = _item_at(shape, place), _item_at(stride, place)
            self._collect(inner, inner_shape, inner_stride, argument, found, what, depth + 1)


def _parse_id(value: Any) -> int | None:
    """Return an id: a number, in some versions written as a text or as a list of one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else ""


def _item_at(values: Any, place: int) -> Any:
    return values[place] if isinstance(values, list) and place < len(values) else None


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


# ---------------------------------------------------------------------------------- text


class DamageError(ValueError):
    """The text is no JSON from here on, or it ends."""


@contextmanager
def open_text(path: Path) -> Iterator[Text]:
    """Open the text of a file, plain or gzip.

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
                # It may come from where the text that is here ends.
                is_last = error.pos > len(self._text) - _LONGEST_WORD
                may_be_cut = is_last or error.msg.startswith("Unterminated")
                if not (may_be_cut and self._extend()):
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
        """Return the next character that is no space; empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._read_on():
                return ""

    def _extend(self) -> bool:
        """Read twice as much of the value that begins here; return False if there is no more."""
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
