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
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache

from torchtraceap.core.records import dataclass
from torchtraceap.errors import ParseError
from torchtraceap.trace.execution.reader import Access, Node

__all__ = ["KINDS", "MAX_DEPENDENCIES", "MAX_VISITS", "Dependency", "find_dependencies"]

MAX_DEPENDENCIES = 1 << 22
"""The most dependencies of one execution trace: calls that all touch the same bytes may depend on
each other in all pairs."""
MAX_VISITS = 1 << 26
"""The most visits of byte ranges by all accesses: a storage in pieces may be read as a whole by
every call."""

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
_NO_CALL = -1
_MOST_BYTES = (1 << 63) - 1
_MOVED_PER_VISIT = 1024  # what follows in a list is moved that much faster than it is looked at
_NO_WORK = frozenset({"detach", "detach_"})  # shadows of the operators of that name
_COMMUNICATION_RECORD = re.compile(r"record_param_comms$|(nccl|gloo|mpi|ucc|xccl|hccl):")
_OPERATOR_SCOPES = (0, 1)  # RecordScope::FUNCTION, BACKWARD_FUNCTION


@dataclass(slots=True)
class _Effect:
    """The storages that a call reads, writes and, in `fresh`, makes."""

    reads: list[Access]
    writes: list[Access]
    fresh: set[int]
    allocates: bool = False
    """Writes nothing to what it makes."""


def _unite(a: set[int], b: set[int]) -> set[int]:
    """Return all of both, which are not used any more; the smaller goes into the larger, so that
    what lies deep is not moved at each level."""
    large, small = (a, b) if len(a) >= len(b) else (b, a)
    large |= small
    return large


def find_dependencies(nodes: Sequence[Node]) -> list[Dependency]:
    """Find all direct dependencies, in order of the consumer's end.

    Ids rise in the order in which calls began, on all threads; a call has ended when the last of
    those below it has. Linear in accesses, and in the ranges that they meet.

    Args:
        nodes: Nodes by id.

    Raises:
        ParseError: There are more than MAX_DEPENDENCIES, or MAX_VISITS of ranges.
    """
    return _Tracker(nodes).run()


class _Tracker:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.node: node for node in nodes}
        self._children = dict.fromkeys(self._nodes, 0)
        for node in nodes:
            if node.parent in self._children:
                self._children[node.parent] += 1
        self._calls = _Calls(nodes)
        # True for a node that has tensors, or is below one: accesses below it matter.
        self._wants: dict[int, bool] = {}
        for node in nodes:
            chain = [node]
            while chain[-1].node not in self._wants and chain[-1].parent in self._nodes:
                chain.append(self._nodes[chain[-1].parent])
            for call in reversed(chain):
                above = self._wants.get(call.parent, False)
                self._wants.setdefault(call.node, above or bool(call.inputs or call.outputs))
        self._touched: dict[int, tuple[set[int], set[int]]] = {}
        """The storages that calls below a call touched, and those that they made and filled."""
        self._producers: dict[int, list[tuple[Access, list[int]]]] = {}
        self._entered: set[int] = set()
        self._storages: dict[int, _Storage] = {}
        self._visits = [0]
        self._found: dict[tuple[int, int, int, int], Dependency] = {}

    def run(self) -> list[Dependency]:
        for node in self._nodes.values():
            # Note who made the inputs, before anything below the call can change them.
            chain = [node]
            while (above := self._nodes.get(chain[-1].parent)) and above.node not in self._entered:
                chain.append(above)
            for call in reversed(chain):
                if call.node in self._entered:
                    continue
                self._entered.add(call.node)
                if (effect := self._effect(call)) is not None:
                    self._producers[call.node] = [
                        (read, self._storage(read.storage).writers(read)) for read in effect.reads
                    ]
            # End the call if it has none below, and those above it that it was the last call of.
            ended: Node | None = node if not self._children[node.node] else None
            while ended is not None:
                self._account(ended)
                ended = self._nodes.get(ended.parent)
                if ended is not None:
                    self._children[ended.node] -= 1
                    ended = ended if not self._children[ended.node] else None
        return list(self._found.values())

    def _account(self, node: Node) -> None:
        """Add the dependencies of a call that has ended."""
        touched, made = self._touched.pop(node.node, (set(), set()))
        effect = self._effect(node)
        if effect is not None:
            own = self._reads(node, self._producers.pop(node.node, []), touched)
            written, filled = self._writes(node, effect, touched, made)
            made |= filled
            touched |= own | written
        if self._wants.get(node.parent):
            any_above, made_above = self._touched.get(node.parent, (set(), set()))
            self._touched[node.parent] = _unite(any_above, touched), _unite(made_above, made)

    def _reads(
        self, node: Node, producers: Iterable[tuple[Access, list[int]]], below: set[int]
    ) -> set[int]:
        own: set[int] = set()
        for read, writers in producers:
            if read.storage in below:
                continue
            for writer in writers:
                self._add(writer, node, _RAW, read)
            self._storage(read.storage).read(node.node, read)
            own.add(read.storage)
        return own

    def _writes(
        self, node: Node, effect: _Effect, below: set[int], made_below: set[int]
    ) -> tuple[set[int], set[int]]:
        """Return the storages that the call itself writes, and those that it makes and fills."""
        own: set[int] = set()
        made: set[int] = set()
        for write in effect.writes:
            fresh = write.storage in effect.fresh
            if write.storage in (made_below if fresh else below):
                continue
            if fresh:
                # What calls below it seemed to share with the past of this storage is void.
                past = self._storages.pop(write.storage, None)
                for key in past.dependencies if past else ():
                    if self._calls.is_inside(key[1], node.node):
                        self._found.pop(key, None)
                made.add(write.storage)
            storage = self._storage(write.storage)
            for reader in storage.readers(write):
                self._add(reader, node, _WAR, write)
            for writer in storage.writers(write):
                self._add(writer, node, _WAW, write)
            storage.write(node.node, write)
            own.add(write.storage)
        return own, set() if effect.allocates else made

    def _add(self, producer: int, node: Node, kind: int, access: Access) -> None:
        if self._calls.is_inside(node.node, producer):
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
            min(size + (before.overlap_bytes if before else 0), _MOST_BYTES),
            access.device,
        )
        if len(self._found) > MAX_DEPENDENCIES:
            raise ParseError(f"its calls depend on each other in over {MAX_DEPENDENCIES:,} ways")

    def _storage(self, storage: int) -> _Storage:
        return self._storages.setdefault(storage, _Storage(self._visits))

    def _effect(self, node: Node) -> _Effect | None:
        """Return what a call does to storages; None for one that stands for others' work."""
        communicates = _COMMUNICATION_RECORD.match(node.name)
        if node.scope not in _OPERATOR_SCOPES and not communicates:
            return None
        if node.name in _NO_WORK or not (node.inputs or node.outputs):
            return None
        if communicates:
            inside = node.node in self._calls.in_collectives
            return None if inside else _Effect(list(node.inputs), list(node.inputs), set())
        input_storages = {access.storage for access in node.inputs}
        written, only = _written_arguments(node.name, node.schema)
        reads = [access for access in node.inputs if access.argument not in only]
        writes = [access for access in node.inputs if access.argument in written]
        fresh = {access.storage for access in node.outputs} - input_storages
        new = [access for access in node.outputs if access.storage in fresh]
        if _ALLOCATES.match(node.name):
            # The storage is new, but nothing is in it.
            empty = [Access(a.storage, 0, 0, a.argument, a.device) for a in new]
            return _Effect([], empty, fresh, allocates=True)
        if node.outputs and not new and not writes:
            return _Effect([], [], set())  # a view
        return _Effect(reads, [*writes, *new], fresh)


class _Calls:
    """The nesting of calls, by their places in the order of a walk down the tree."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        known = {node.node for node in nodes}
        below: dict[int, list[Node]] = {}
        for node in nodes:
            below.setdefault(node.parent if node.parent in known else _NO_CALL, []).append(node)
        self._place: dict[int, int] = {}
        self._end: dict[int, int] = {}
        self.in_collectives: set[int] = set()
        """Calls somewhere below one of `c10d::`."""
        open_calls = [(node, False) for node in reversed(below.get(_NO_CALL, []))]
        while open_calls:
            node, left = open_calls.pop()
            if left:
                self._end[node.node] = len(self._place)
                continue
            self._place[node.node] = len(self._place)
            open_calls.append((node, True))
            children = below.get(node.node, [])
            open_calls.extend((child, False) for child in children)
            if node.name.startswith("c10d::") or node.node in self.in_collectives:
                self.in_collectives.update(child.node for child in children)

    def is_inside(self, call: int, other: int) -> bool:
        """Return True if a call is another one, or somewhere below it."""
        return self._place[other] <= self._place[call] < self._end[other]


@lru_cache(maxsize=8192)
def _written_arguments(name: str, schema: str) -> tuple[frozenset[int], frozenset[int]]:
    """Return the places of the arguments that are written, and of those written but not read."""
    # Type and name of each argument, without defaults.
    texts, depth, start = [], 0, schema.find("(") + 1
    for place in range(start - 1, len(schema)) if start else ():
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
    texts = [text for text in texts if text and text != "*"]
    marked = {place for place, text in enumerate(texts) if re.search(r"\(\w+!\)", text)}
    outputs = {place for place, text in enumerate(texts) if re.search(r"\bout(put\w*)?$", text)}
    if name.startswith("c10d::") and name.endswith("_"):
        return frozenset({0}), frozenset(outputs & {0})
    if not schema and name.endswith("_"):
        marked = {0}
    only = outputs & marked
    return frozenset(marked), frozenset(only | ({0} if _OVERWRITES.match(name) else set()))


_Readers = tuple[int, int, "_Readers"] | None
"""Calls that read a range since it was written, as a linked list of time, call and
earlier readers."""


@dataclass(slots=True)
class _Range:
    """Bytes with one past. Times count accesses of the storage; 0 is never."""

    start: int
    end: int
    written: int
    writer: int
    readers: _Readers


class _Storage:
    """The last writer of each range, and the calls that have read it since."""

    def __init__(self, visits: list[int]) -> None:
        self._visits = visits
        """The number of times that a range of any storage was looked at, as a list of one."""
        self._time = 0
        self._starts: list[int] = []
        self._ranges: list[_Range] = []  # by start, without overlap
        self.dependencies: list[tuple[int, int, int, int]] = []
        """Keys of those found through it."""

    def writers(self, access: Access) -> list[int]:
        """Return the writers of an access, by time."""
        hits = {(r.written, r.writer) for r in self._meeting(access) if r.written}
        return list(dict.fromkeys(writer for _, writer in sorted(hits)))

    def readers(self, access: Access) -> list[int]:
        """Return the readers of an access, by the time of the first."""
        hits: set[tuple[int, int]] = set()
        for r in self._meeting(access):
            readers = r.readers
            while readers is not None:
                self._visit(1)
                hits.add(readers[:2])
                readers = readers[2]
        return list(dict.fromkeys(reader for _, reader in sorted(hits)))

    def read(self, node: int, access: Access) -> None:
        self._time += 1
        first, last = self._cut_ranges(access)
        covered: list[_Range] = []
        place = access.start
        for r in self._ranges[first:last]:
            if place < r.start:
                covered.append(_Range(place, r.start, 0, 0, None))
            covered.append(r)
            place = r.end
        if place < access.end:
            covered.append(_Range(place, access.end, 0, 0, None))
        for r in covered:
            r.readers = (self._time, node, r.readers)
        self._replace(first, last, covered)

    def write(self, node: int, access: Access) -> None:
        if access.is_empty:
            return
        self._time += 1
        first, last = self._cut_ranges(access)
        self._replace(first, last, [_Range(access.start, access.end, self._time, node, None)])

    def _visit(self, count: int) -> None:
        self._visits[0] += count
        if self._visits[0] > MAX_VISITS:
            raise ParseError(
                f"its accesses meet ranges of their storages more than {MAX_VISITS:,} times"
            )

    def _meeting(self, access: Access) -> Sequence[_Range]:
        first, last = self._span(access)
        return self._ranges[first:last]

    def _span(self, access: Access) -> tuple[int, int]:
        """Return the places of the ranges that share a byte with an access, from and to."""
        first = max(bisect_right(self._starts, access.start) - 1, 0)
        if first < len(self._ranges) and self._ranges[first].end <= access.start:
            first += 1
        last = max(bisect_left(self._starts, access.end), first)
        self._visit(1 + last - first)
        return first, last

    def _cut_ranges(self, access: Access) -> tuple[int, int]:
        """Return the places of the ranges, cut at the ends of the access."""
        first, last = self._span(access)
        if first < last and self._ranges[first].start < access.start:
            self._split(first, access.start)
            first, last = first + 1, last + 1
        if first < last and self._ranges[last - 1].end > access.end:
            self._split(last - 1, access.end)
        return first, last

    def _split(self, place: int, at: int) -> None:
        r = self._ranges[place]
        rest = _Range(at, r.end, r.written, r.writer, r.readers)
        self._replace(place, place + 1, [_Range(r.start, at, r.written, r.writer, r.readers), rest])

    def _replace(self, first: int, last: int, ranges: list[_Range]) -> None:
        self._visit(len(ranges) + (len(self._ranges) - last) // _MOVED_PER_VISIT)
        self._ranges[first:last] = ranges
        self._starts[first:last] = [r.start for r in ranges]
