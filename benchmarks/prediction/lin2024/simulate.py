"""The algorithm: operators in order, a host clock and two streams for each rank."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from lin2024.overheads import Overheads
from torchtraceap.errors import OptionError

__all__ = ["BaselineOp", "BaselineTimes", "Piece", "simulate"]

_BETWEEN_KERNELS_NS = 1_000.0
# A copy without operators in it launches faster.
_COPY_LAUNCH_NS = 2_000.0


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel, copy or transfer of an operator."""

    ns: float
    is_collective: bool = False


@dataclass(frozen=True, slots=True)
class BaselineOp:
    """One top-level operator."""

    name: str
    pieces: tuple[Piece, ...] = ()
    """In the order of their launches; one at most is a collective."""
    reads: frozenset[int] = frozenset()
    """Tensors that it consumes."""
    writes: frozenset[int] = frozenset()
    """Outputs of its collective."""
    waits: bool = False
    """It waits for the collective before it."""
    blocks: bool = False
    """It copies between host and GPU, and the host waits for the compute stream."""
    is_plain_copy: bool = False
    """A copy without operators in it."""

    @property
    def has_collective(self) -> bool:
        return any(piece.is_collective for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class BaselineTimes:
    """An iteration of one rank."""

    step_ns: float
    host_ns: float
    """The same by the host's clock alone."""
    gpu_active_ns: float
    """Compute and exposed communication."""
    exposed_communication_ns: float


@dataclass(slots=True)
class _Rank:
    cpu: float
    compute: float
    communication: float
    pending: frozenset[int] | None = None
    """Outputs of the running collective."""
    active: float = 0.0
    exposed: float = 0.0
    running_since: list[float] = field(default_factory=list)
    """Begin of the running collective, if any."""

    @property
    def front(self) -> float:
        return max(self.compute, self.communication)

    def synchronise(self) -> None:
        """Both fronts at the later one; what no compute covered of the collective is exposed."""
        if self.running_since:
            self.exposed += max(0.0, self.communication - max(self.compute, self.running_since[0]))
            self.running_since.clear()
        self.compute = self.communication = self.front
        self.pending = None


def simulate(
    ranks: Sequence[Sequence[BaselineOp]],
    overheads: Sequence[Overheads],
    begins_ns: Sequence[float] | None = None,
) -> list[BaselineTimes]:
    """Iterations of all ranks together.

    Args:
        ranks: Operators of each, in order.
        overheads: Of the host of each.
        begins_ns: When each begins; by default all together, as in the source.

    Raises:
        OptionError: Ranks differ in how many collectives they take part in.
    """
    begins = [0.0] * len(ranks) if begins_ns is None else begins_ns
    runs = [_run(*given) for given in zip(ranks, overheads, begins, strict=True)]
    found: list[BaselineTimes | None] = [None] * len(runs)
    ends: list[float] = []
    for at, run in enumerate(runs):
        _go_on(run, None, at, ends, found)
    while ends:
        if len(ends) < len(runs):
            counts = [sum(op.has_collective for op in ops) for ops in ranks]
            raise OptionError(f"ranks take part in different numbers of collectives: {counts}")
        latest, ends = max(ends), []
        for at, run in enumerate(runs):
            _go_on(run, latest, at, ends, found)
    return [times for times in found if times is not None]


_Run = Generator[float, float, BaselineTimes]


def _go_on(
    run: _Run, latest: float | None, at: int, ends: list[float], found: list[BaselineTimes | None]
) -> None:
    """Lets a rank run to the end of its next collective, or to its own."""
    try:
        ends.append(next(run) if latest is None else run.send(latest))
    except StopIteration as stop:
        found[at] = stop.value


def _run(ops: Sequence[BaselineOp], times: Overheads, begin: float) -> _Run:
    """Yields its predicted end of each collective, and is sent the latest of all ranks."""
    rank = _Rank(begin, begin, begin)
    for op in ops:
        consumes = rank.pending is not None and bool(op.reads & rank.pending)
        if consumes or op.waits or op.has_collective:
            rank.synchronise()
        rank.cpu += times.t1
        if not op.pieces:
            rank.cpu += times.of("t5", op.name)
            continue
        rank.cpu += times.of("t2", op.name)
        launch = _COPY_LAUNCH_NS if op.is_plain_copy else times.t4
        for number, piece in enumerate(op.pieces):
            if number:
                rank.cpu += times.of("t5", op.name)
            _start(rank, piece, launch)
            rank.cpu += launch
        if op.has_collective:
            rank.communication = yield rank.communication
            rank.pending = op.writes
        rank.cpu += times.of("t3", op.name)
        if op.blocks:
            rank.cpu = max(rank.cpu, rank.compute)
    rank.synchronise()
    end = max(rank.cpu, rank.front)
    return BaselineTimes(end - begin, rank.cpu - begin, rank.active + rank.exposed, rank.exposed)


def _start(rank: _Rank, piece: Piece, launch: float) -> None:
    begin = rank.cpu + launch
    if piece.is_collective:
        begin = max(begin, rank.communication + _BETWEEN_KERNELS_NS, rank.compute)
        rank.communication = begin + piece.ns
        rank.running_since = [begin]
    else:
        begin = max(begin, rank.compute + _BETWEEN_KERNELS_NS)
        rank.compute = begin + piece.ns
        rank.active += piece.ns
