"""Reading a PyTorch execution trace: its nodes, checked.

Two layouts of a node exist: `parent`, `inputs`, `rf_id`, ... beside each other (schemas up to
1.0.x), and Chakra's `ctrl_deps`, `inputs.values` and a list `attrs` (from 1.0.2-chakra on).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtraceap.errors import MissingFileError, ParseError

__all__ = ["Access", "Node", "read_nodes"]

_MAX_BYTES = 4 << 30
_MAX_DEPTH = 16
_NO_ID = -1


@dataclass(frozen=True, slots=True)
class Access:
    """A tensor among the arguments: the bytes of its storage from the first to the last element."""

    storage: int
    start: int
    end: int
    argument: int
    """Its place among the arguments."""
    device: str

    @property
    def is_empty(self) -> bool:
        return self.end <= self.start


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
    """Of RecordFunction: 0 operator, 1 backward node, 7 annotation."""
    schema: str
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class NodeFile:
    """What a file holds."""

    schema: str
    pid: int
    nodes: tuple[Node, ...]
    """By id, that is, in the order in which the calls began."""
    notes: tuple[str, ...]


def read_nodes(path: Path) -> NodeFile:
    """Reads a file, JSON or gzip.

    A file that ends early (the observer was never unregistered) gives the nodes that are whole.

    Raises:
        MissingFileError: There is no such file.
        ParseError: It is no execution trace, or its nodes contradict each other.
    """
    document, notes = _parse(_text_of(path), path)
    entries = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ParseError(f"{path} is no execution trace: it has no list 'nodes'")
    by_id: dict[int, Node] = {}
    bad = repeated = 0
    for entry in entries:
        node = _node(entry) if isinstance(entry, dict) else None
        if node is None:
            bad += 1
        elif by_id.setdefault(node.node, node) is not node:
            repeated += 1
    if not by_id:
        raise ParseError(f"{path} is no execution trace: none of its {len(entries)} nodes is valid")
    _check_cycles(by_id, path)
    if bad:
        notes.append(f"{bad} entries are no nodes and were left out")
    if repeated:
        notes.append(f"{repeated} nodes repeat the id of another and were left out")
    nodes = tuple(by_id[key] for key in sorted(by_id))
    pid = _int(document.get("pid"), _NO_ID)
    return NodeFile(str(document.get("schema", "")), pid, nodes, tuple(notes))


def _text_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise MissingFileError(f"no such file: {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ParseError(f"{path} cannot be read: {error}") from None
    if len(content) > _MAX_BYTES:
        raise ParseError(f"{path} holds more than {_MAX_BYTES >> 30} GiB")
    return content


def _parse(content: bytes, path: Path) -> tuple[Any, list[str]]:
    try:
        return _loads(content), []
    except (ValueError, RecursionError) as error:
        entries = list(_whole_entries(content.decode("utf-8", errors="replace")))
        if not entries:
            raise ParseError(f"{path} is no JSON: {error}") from None
        head = content[:4096].decode("utf-8", errors="replace")
        document = {
            "nodes": entries,
            "schema": _after(head, '"schema"'),
            "pid": _after(head, '"pid"'),
        }
        return document, [
            f"the file is damaged or ends early: its first {len(entries)} nodes are read"
        ]


def _loads(content: bytes) -> Any:
    try:
        import orjson
    except ImportError:
        return json.loads(content)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return json.loads(content)  # takes NaN and Infinity, which PyTorch writes


def _whole_entries(text: str) -> Iterator[Any]:
    """Entries of the list `nodes` up to the first that is not whole."""
    place = text.find("[", text.find('"nodes"') + 1)
    if '"nodes"' not in text or place < 0:
        return
    decoder = json.JSONDecoder()
    place += 1
    while True:
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        try:
            entry, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return
        yield entry


def _after(text: str, key: str) -> Any:
    """The value behind a key in the head of a damaged file."""
    place = text.find(key)
    colon = text.find(":", place)
    if place < 0 or colon < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text[colon + 1 :].lstrip())[0]
    except (ValueError, RecursionError):
        return None


def _node(entry: Mapping[str, Any]) -> Node | None:
    identity, name = _int(entry.get("id"), _NO_ID), entry.get("name")
    if identity < 0 or not isinstance(name, str):
        return None
    attributes = _attributes(entry)
    parent = _int(entry.get("ctrl_deps", entry.get("parent")), _NO_ID)
    return Node(
        identity,
        name,
        _NO_ID if parent == identity else parent,
        _int(attributes.get("rf_id"), _NO_ID),
        _int(attributes.get("tid"), _NO_ID),
        _int(attributes.get("fw_parent"), 0),
        _int(attributes.get("fw_tid"), 0),
        _int(attributes.get("seq_id"), _NO_ID),
        _int(attributes.get("scope"), _NO_ID),
        str(attributes.get("op_schema") or ""),
        _accesses(entry, "input"),
        _accesses(entry, "output"),
    )


def _attributes(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    attributes = entry.get("attrs")
    if not isinstance(attributes, list):
        return entry
    pairs = (pair for pair in attributes if isinstance(pair, dict))
    return {str(pair.get("name")): pair.get("value") for pair in pairs}


def _int(value: Any, default: int) -> int:
    """Ids are numbers, in some versions written as texts or as a list of one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and value.isascii() and value.lstrip("-").isdecimal():
        value = int(value[:20])
    whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if whole and -(1 << 63) <= value < 1 << 63 else default


def _accesses(entry: Mapping[str, Any], which: str) -> tuple[Access, ...]:
    both = entry.get(which + "s")
    if isinstance(both, dict):
        values, shapes, strides = (both.get(key) for key in ("values", "shapes", "strides"))
    else:
        values, shapes, strides = both, entry.get(which + "_shapes"), None
    if not isinstance(values, list):
        return ()
    found: list[Access] = []
    for place, value in enumerate(values):
        _collect(value, _at(shapes, place), _at(strides, place), place, found, 0)
    return tuple(found)


def _at(values: Any, place: int) -> Any:
    return values[place] if isinstance(values, list) and place < len(values) else None


def _collect(
    value: Any, shape: Any, stride: Any, argument: int, found: list[Access], depth: int
) -> None:
    """Tensors in a value: [tensor id, storage id, offset, elements, bytes of one, device]."""
    if not isinstance(value, list) or depth > _MAX_DEPTH:
        return
    if len(value) == 6 and isinstance(value[5], str) and all(type(v) is int for v in value[:5]):
        access = _access(value, shape, stride, argument)
        if not access.is_empty:
            found.append(access)
        return
    for place, inner in enumerate(value):
        _collect(inner, _at(shape, place), _at(stride, place), argument, found, depth + 1)


def _access(value: list[Any], shape: Any, stride: Any, argument: int) -> Access:
    _, storage, offset, elements, item_bytes, device = value
    extent = elements
    if _are_sizes(shape) and _are_sizes(stride) and len(shape) == len(stride) and 0 not in shape:
        extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    start = offset * item_bytes
    return Access(storage, start, start + max(extent, 0) * item_bytes, argument, device)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _check_cycles(nodes: Mapping[int, Node], path: Path) -> None:
    """Raises ParseError if some nodes are each other's ancestors."""
    checked: set[int] = set()
    for start in nodes:
        chain: list[int] = []
        current = start
        on_chain: set[int] = set()
        while current in nodes and current not in checked:
            if current in on_chain:
                raise ParseError(f"{path}: node {current} is its own ancestor")
            on_chain.add(current)
            chain.append(current)
            current = nodes[current].parent
        checked.update(chain)
