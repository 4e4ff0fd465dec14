"""Tensor dependencies between the calls of an execution trace.

Note [Who touches a tensor]: calls nest, and a tensor given to `aten::linear` is given to the
`aten::addmm` below it too. It is read by the innermost call that has it among its arguments. A new
tensor is written by the innermost call that returns it, but for mere allocations: `aten::addmm`
rather than the `aten::copy_` below it that puts the bias in place. A view touches nothing: its
output lies in the storage of an input that it does not write.

Note [Storages]: an access is a range of bytes of a storage, so slices of one buffer that don't
overlap are independent. PyTorch numbers storages by address and uses numbers again after a storage
was freed; an output whose storage is not among the inputs is therefore new, without a past.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from torchtraceap.execution_trace.reader import Access, Node

__all__ = ["KINDS", "Dependency", "find_dependencies"]

KINDS = ("read_after_write", "write_after_read", "write_after_write")
_RAW, _WAR, _WAW = range(3)


@dataclass(frozen=True, slots=True)
class Dependency:
    """The consumer must wait for the producer."""

    producer: int
    consumer: int
    kind: int
    """Index in `KINDS`."""
    storage: int
    overlap_bytes: int
    device: str


# Calls that hand out memory without writing to it.
_ALLOCATES = re.compile(r"aten::(new_)?empty(_like|_strided|_permuted)?$|aten::resize_$")
# In-place operators that do not read what they overwrite.
_OVERWRITES = re.compile(
    r"aten::(fill|zero|copy|normal|uniform|random|bernoulli|exponential|geometric|log_normal|cauchy)_$"
)
_NO_WORK = frozenset({"detach", "detach_"})  # shadows of the operators of that name
_COMMUNICATION_RECORD = re.compile(r"record_param_comms$|(nccl|gloo|mpi|ucc|xccl|hccl):")
_OPERATOR_SCOPES = (0, 1)  # RecordScope::FUNCTION, BACKWARD_FUNCTION


@dataclass(slots=True)
class _Effect:
    """What a call reads and writes; `fresh` are storages that it makes."""

    reads: list[Access]
    writes: list[Access]
    fresh: set[int]
    allocates: bool = False
    """Writes nothing to what it makes."""


@dataclass(slots=True)
class _Touched:
    """Storages that calls below a call touched, and those that they made and filled."""

    any: set[int] = field(default_factory=set)
    made: set[int] = field(default_factory=set)

    def update(self, other: _Touched) -> None:
        self.any |= other.any
        self.made |= other.made


def find_dependencies(nodes: Sequence[Node]) -> list[Dependency]:
    """All direct dependencies, in order of the consumer's end.

    Ids rise in the order in which calls began, on all threads; a call has ended when the last of
    those below it has. Linear in accesses times the ranges in a storage.

    Args:
        nodes: By id.
    """
    return _Tracker(nodes).run()


class _Tracker:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.node: node for node in nodes}
        self._children = dict.fromkeys(self._nodes, 0)
        for node in nodes:
            if node.parent in self._children:
                self._children[node.parent] += 1
        self._wants = _below_operators(nodes, self._nodes)
        self._touched: dict[int, _Touched] = {}
        self._producers: dict[int, list[tuple[Access, list[int]]]] = {}
        self._entered: set[int] = set()
        self._storages: dict[int, _Storage] = {}
        self._found: dict[tuple[int, int, int, int], Dependency] = {}

    def run(self) -> list[Dependency]:
        for node in self._nodes.values():
            self._enter(node)
            if not self._children[node.node]:
                self._exit(node)
        return list(self._found.values())

    def _enter(self, node: Node) -> None:
        """Notes who made the inputs, before anything below the call can change them."""
        chain = [node]
        while (above := self._nodes.get(chain[-1].parent)) and above.node not in self._entered:
            chain.append(above)
        for call in reversed(chain):
            if call.node in self._entered:
                continue
            self._entered.add(call.node)
            effect = self._effect(call)
            if effect is not None:
                self._producers[call.node] = [
                    (read, self._storage(read.storage).writers(read)) for read in effect.reads
                ]

    def _exit(self, node: Node) -> None:
        """Ends a call, and those above it that this was the last call of."""
        current: Node | None = node
        while current is not None:
            self._account(current)
            above = self._nodes.get(current.parent)
            if above is None:
                return
            self._children[above.node] -= 1
            current = above if not self._children[above.node] else None

    def _account(self, node: Node) -> None:
        touched = self._touched.pop(node.node, None) or _Touched()
        effect = self._effect(node)
        if effect is not None:
            producers = self._producers.pop(node.node, [])
            below = frozenset(touched.any)
            self._reads(node, producers, touched)
            self._writes(node, effect, below, touched)
        if self._wants.get(node.parent):
            self._touched.setdefault(node.parent, _Touched()).update(touched)

    def _reads(
        self, node: Node, producers: Iterable[tuple[Access, list[int]]], touched: _Touched
    ) -> None:
        below = frozenset(touched.any)
        for read, writers in producers:
            if read.storage in below:
                continue
            for writer in writers:
                self._add(writer, node, _RAW, read)
            self._storage(read.storage).read(node.node, read)
            touched.any.add(read.storage)

    def _writes(
        self, node: Node, effect: _Effect, below: frozenset[int], touched: _Touched
    ) -> None:
        made: set[int] = set()
        for write in effect.writes:
            fresh = write.storage in effect.fresh
            if write.storage in (touched.made if fresh else below):
                continue
            if fresh:
                self._forget(write.storage, node)
                made.add(write.storage)
            storage = self._storage(write.storage)
            for reader in storage.readers(write):
                self._add(reader, node, _WAR, write)
            for writer in storage.writers(write):
                self._add(writer, node, _WAW, write)
            storage.write(node.node, write)
            touched.any.add(write.storage)
        if not effect.allocates:
            touched.made |= made

    def _forget(self, storage: int, node: Node) -> None:
        """A call made this storage: what calls below it seemed to share with its past is void."""
        past = self._storages.pop(storage, None)
        for key in past.dependencies if past else ():
            if self._is_above(node.node, self._nodes[key[1]]):
                self._found.pop(key, None)

    def _add(self, producer: int, node: Node, kind: int, access: Access) -> None:
        if producer == node.node or self._is_above(producer, node) or producer not in self._nodes:
            return
        key = (producer, node.node, kind, access.storage)
        size = access.end - access.start
        before = self._found.get(key)
        self._storage(access.storage).dependencies.append(key)
        self._found[key] = Dependency(
            producer,
            node.node,
            kind,
            access.storage,
            size + (before.overlap_bytes if before else 0),
            access.device,
        )

    def _is_above(self, candidate: int, node: Node) -> bool:
        current: Node | None = node
        while current is not None and current.node != candidate:
            current = self._nodes.get(current.parent)
        return current is not None

    def _storage(self, storage: int) -> _Storage:
        return self._storages.setdefault(storage, _Storage())

    def _effect(self, node: Node) -> _Effect | None:
        if node.scope not in _OPERATOR_SCOPES and not _COMMUNICATION_RECORD.match(node.name):
            return None
        if not node.inputs and not node.outputs:
            return None
        if node.name in _NO_WORK or (
            _COMMUNICATION_RECORD.match(node.name) and self._below_collective(node)
        ):
            return None
        return _effect_of(node)

    def _below_collective(self, node: Node) -> bool:
        current = self._nodes.get(node.parent)
        while current is not None and not current.name.startswith("c10d::"):
            current = self._nodes.get(current.parent)
        return current is not None


def _below_operators(nodes: Sequence[Node], by_id: Mapping[int, Node]) -> dict[int, bool]:
    """Whether a node or one above it has tensors, so that what is touched below it matters."""
    wants: dict[int, bool] = {}
    for node in nodes:
        chain = [node]
        while chain[-1].node not in wants and chain[-1].parent in by_id:
            chain.append(by_id[chain[-1].parent])
        for call in reversed(chain):
            above = wants.get(call.parent, False)
            wants.setdefault(call.node, above or bool(call.inputs or call.outputs))
    return wants


def _effect_of(node: Node) -> _Effect:
    input_storages = {access.storage for access in node.inputs}
    written, only = _written_arguments(node.name, node.schema)
    if _COMMUNICATION_RECORD.match(node.name):
        return _Effect(list(node.inputs), list(node.inputs), set())
    reads = [access for access in node.inputs if access.argument not in only]
    writes = [access for access in node.inputs if access.argument in written]
    fresh = {access.storage for access in node.outputs} - input_storages
    allocates = _ALLOCATES.match(node.name) is not None
    new = [access for access in node.outputs if access.storage in fresh]
    if allocates:
        # The storage is new, but nothing is in it.
        empty = [Access(a.storage, 0, 0, a.argument, a.device) for a in new]
        return _Effect([], empty, fresh, allocates=True)
    if node.outputs and not new and not writes:
        return _Effect([], [], set())  # a view
    return _Effect(reads, [*writes, *new], fresh)


@lru_cache(maxsize=8192)
def _written_arguments(name: str, schema: str) -> tuple[frozenset[int], frozenset[int]]:
    """Places of the arguments that are written, and of those that are written but not read."""
    texts = _argument_texts(schema)
    marked = {place for place, text in enumerate(texts) if re.search(r"\(\w+!\)", text)}
    outputs = {place for place, text in enumerate(texts) if re.search(r"\bout(put\w*)?$", text)}
    if name.startswith("c10d::") and name.endswith("_"):
        return frozenset({0}), frozenset(outputs & {0})
    if not schema and name.endswith("_"):
        marked = {0}
    only = outputs & marked
    return frozenset(marked), frozenset(only | ({0} if _OVERWRITES.match(name) else set()))


def _argument_texts(schema: str) -> list[str]:
    """Type and name of each argument, without defaults."""
    opened = schema.find("(")
    if opened < 0:
        return []
    texts, depth, start = [], 0, opened + 1
    for place in range(opened, len(schema)):
        character = schema[place]
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        if (character == "," and depth == 1) or (character == ")" and depth == 0):
            texts.append(schema[start:place].strip().split("=")[0])
            start = place + 1
        if character == ")" and depth == 0:
            break
    return [text for text in texts if text and text != "*"]


@dataclass(slots=True)
class _Range:
    start: int
    end: int
    node: int


@dataclass(slots=True)
class _Storage:
    """Last writer of each range, and who has read it since."""

    _written: list[_Range] = field(default_factory=list)
    _read: list[_Range] = field(default_factory=list)
    dependencies: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Keys of those found through it."""

    def writers(self, access: Access) -> list[int]:
        return _overlapping(self._written, access)

    def readers(self, access: Access) -> list[int]:
        return _overlapping(self._read, access)

    def read(self, node: int, access: Access) -> None:
        self._read.append(_Range(access.start, access.end, node))

    def write(self, node: int, access: Access) -> None:
        self._written = _without(self._written, access)
        self._read = _without(self._read, access)
        if not access.is_empty:
            self._written.append(_Range(access.start, access.end, node))


def _overlapping(ranges: Iterable[_Range], access: Access) -> list[int]:
    hits = (r.node for r in ranges if r.start < access.end and access.start < r.end)
    return list(dict.fromkeys(hits))


def _without(ranges: Iterable[_Range], access: Access) -> list[_Range]:
    """What is left of the ranges outside of an access."""
    left = []
    for r in ranges:
        if r.end <= access.start or access.end <= r.start:
            left.append(r)
            continue
        if r.start < access.start:
            left.append(_Range(r.start, access.start, r.node))
        if access.end < r.end:
            left.append(_Range(access.end, r.end, r.node))
    return left
