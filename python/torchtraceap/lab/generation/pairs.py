"""`draw_pair`: a run with a fault or a look-alike, and its twin without.

Note [Ranks]: of a run of several ranks one is recorded, or all are. Ranks run the same program, so
a fault is injected into all of them; but a fault of one rank is injected into that rank alone,
which is late, and the others wait for it in their collectives.

Note [Twins]: both are written by the same path from the same steps, with the same speeds, the same
noise and the same clock; they differ in what was injected. So the difference of their lengths is
what that costs, whatever reacted to it.

Note [Drawn again]: a draw is taken if the fault costs 3 % of the trace or more, if the lengths of
the traces, of their steps and of the steps' ranges on the host agree on that cost, and for a
look-alike if the length and the steps differ by less than 0.4 % of a step; that holds for every
rank that is recorded. Else another is drawn, with more to lose, or for a look-alike with less and a
slower GPU, and after some draws another fault is taken. Nothing else is looked at: no rule is
asked. A host that runs ahead for as long as it likes has steps of its own; then the next draw has
it read a value at the end of each, in the twin as well.

Note [Growing late]: each piece of GPU work that both runs have is late in the faulty one by the
difference of its times. Along the stream, and on to the end of the recording, that lateness grows
from nothing to the whole cost. It grows where time is lost: where the stream stands still, or does
injected work. It shrinks again where the twin waits for something that is there already in the
faulty run, such as a host that is late by itself: that much of what was lost before was no loss. It
is taken off the last stretch in which the lateness grew, from its begin on.

Note [Merged]: intervals that are close to each other are joined, the closest first, as long as what
that adds is at most 3 % of the cost: a slow host loses time in each of thousands of calls.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap._core import EventKind
from torchtraceap.core import Array, covered_ns
from torchtraceap.datasets import GRIDS, POSITIVE
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.lab.generation.bases import Base
from torchtraceap.lab.generation.data_parallel import (
    can_spread,
    draw_data_parallel,
)
from torchtraceap.lab.generation.graph_faults import GraphFault, read_item
from torchtraceap.lab.generation.program import Program
from torchtraceap.lab.generation.recorder import Clock, record_scene
from torchtraceap.lab.generation.scene import Block, Injection, NoPlaceError, Outcome, Scene
from torchtraceap.tables import build_windows, iterations_of
from torchtraceap.trace import RankTrace

if TYPE_CHECKING:
    from torchtraceap.lab.generation.scene import Outcome

__all__ = [
    "NO_FAULT",
    "Pair",
    "Side",
    "covered_windows",
    "draw_pair",
    "lost_intervals",
    "window_labels",
]


_LEAST_COST, _MOST_COST = 0.03, 1.5
"""Bounds of a fault's cost over the twin's length."""
_MOST_LOOK_ALIKE = 0.004
"""Largest cost of a look-alike over the length of a step."""
_AGREE = 0.06
"""Share of the cost by which the lengths of steps and of intervals may differ from it."""
_IDLE = 0.7
"""Least share of the cost in which the GPU is idle, for a fault that makes it wait; in the rest it
does more work, while it was behind."""
_DRAWS = 4
"""Draws of one fault."""
_READS = 0.3
"""Share of loops that read a value at the end of each step."""
_RANKS = (1, 1, 1, 2, 4)
"""Numbers of ranks of runs of which one rank is recorded."""
_CLOCK_NS = 10**15
"""Clocks of recordings differ by up to that (11 days)."""
_APART_NS = (1e3, 2e6)
"""Clocks of ranks of one run differ by that: on one machine, or on several."""
_RATE = 5e-6
"""Largest difference of the rates of clocks."""


class _UnfitError(Exception):
    """A draw that is not taken. Another may be taken with so many times as much to lose, or if the
    host waits for the end of each step."""

    def __init__(self, change: float, *, reads: bool = False) -> None:
        super().__init__()
        self.change, self.reads = change, reads


@dataclass(frozen=True)
class Side:
    """A recorded rank, with the fault and without."""

    rank: int
    faulty: RankTrace
    twin: RankTrace
    type: str
    """Type of the fault as this rank shows it, or the type that a look-alike resembles."""
    role: str | None
    """Role where one rank is late: "late" for that rank, "waits" for the others."""
    cost_ns: int
    intervals: Array
    """int64 `[n, 2]`, on the faulty trace's clock."""
    severity: float
    """The cost over the length of the twin."""


@dataclass(frozen=True)
class Pair:
    """Two runs, and their labels without ids."""

    fault: GraphFault
    world_size: int
    strategy: str | None
    """Strategy by which ranks share the work; None for one rank."""
    late_rank: int | None
    """The rank for which the others wait, for a fault of one rank."""
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class _Draw:
    """The draws that both runs of a pair share."""

    scene: Scene
    """The run with the fault, which is not injected yet."""
    twin: Scene
    fault: GraphFault
    ns: float
    recorded: tuple[int, ...]
    late: int
    """The rank into which a fault of one rank is injected."""
    reads: bool
    """True if the host reads one value at the end of each step, such as the loss."""
    token: str


def draw_pair(base: Base, faults: Sequence[GraphFault], seed: str, ranks: int = 1) -> Pair:
    """Return the first draw that can be taken.

    Args:
        base: The run.
        faults: Faults that may be drawn, in order of preference.
        seed: The same seed gives the same pair.
        ranks: Number of recorded ranks: one, of a run of one or several, or all.

    Raises:
        OptionError: None of the faults fits.
    """
    for number, fault in enumerate(faults):
        if not fault.look_alike and not base.types.isdisjoint((fault.type, fault.own_type)):
            continue
        scale, reads = 1.0, False
        for turn in range(_DRAWS):
            try:
                token = f"{seed}/{number}/{turn}"
                return _pair(base, _draw(base, fault, token, ranks, scale, reads))
            except NoPlaceError:
                scale *= 0.5 if fault.look_alike else 1.0
            except _UnfitError as error:
                scale *= error.change
                reads |= error.reads
    names = ", ".join(fault.name for fault in faults)
    raise OptionError(f"{base.name}: no place was found for any of {names}")


def _draw(
    base: Base, fault: GraphFault, seed: str, recorded: int, scale: float, reads: bool
) -> _Draw:
    rng = random.Random(seed)
    program = base.program(rng)
    if not program.is_usable:
        raise NoPlaceError
    ranks = _count_ranks(base, program, fault, recorded, rng)
    # GPU work hides a look-alike.
    gpu = (1 / scale if fault.look_alike else 1.0) * float(np.exp(rng.gauss(0.1, 0.4)))
    link = float(np.exp(rng.uniform(0, 1.2)))
    host, noise_seed = float(np.exp(rng.gauss(0, 0.25))), rng.randrange(1 << 31)
    share = float(np.exp(rng.uniform(np.log(0.05), np.log(0.5)))) * scale
    if fault.look_alike:
        share = rng.uniform(0.02, 0.08) * scale
    has_own = ranks == 1 or len(program.collectives)
    good = None if has_own else draw_data_parallel(rng, program, ranks, scale)
    good, bad = (good, good) if good is None or fault.spread is None else fault.spread(rng, good)
    ns = share * program.step_ns * max(host, gpu)
    reads = rng.random() < _READS or reads
    shown = tuple(range(ranks)) if recorded > 1 else (rng.randrange(ranks),)
    others = [rank for rank in range(ranks) if recorded > 1 or rank not in shown]
    late = rng.choice(others) if others else 0
    scene, twin = (
        Scene(program, ranks, host=host, gpu=gpu, link=link, seed=noise_seed) for _ in range(2)
    )
    if good is not None and bad is not None:
        bad.inject(scene)
        good.inject(twin)
    return _Draw(scene, twin, fault, ns, shown, late, reads, seed + "/put")


def _count_ranks(
    base: Base, program: Program, fault: GraphFault, recorded: int, rng: random.Random
) -> int:
    """Return the number of ranks of a run.

    Raises:
        NoPlaceError: The fault, or as many recorded ranks, need what the program does not have.
    """
    wanted = recorded if recorded > 1 else rng.choice(_RANKS)
    if len(program.collectives):
        if fault.spread is not None or recorded not in (1, base.world_size):
            raise NoPlaceError
        if fault.of_one_rank and base.world_size < 2:
            raise NoPlaceError
        return base.world_size
    if fault.spread is not None or fault.of_one_rank:
        wanted = max(wanted, 2)
    if wanted == 1 or can_spread(program):
        return wanted
    if recorded > 1 or fault.spread is not None or fault.of_one_rank:
        raise NoPlaceError
    return 1


def _pair(base: Base, draw: _Draw) -> Pair:
    """Play both runs and record them."""
    fault, scene, twin = draw.fault, draw.scene, draw.twin
    put_into = (draw.late,) if fault.of_one_rank else range(scene.ranks)
    if fault.in_twin is not None:
        clean = twin.replay()
        for rank in put_into:
            fault.in_twin(Injection(twin, random.Random(draw.token), rank, draw.ns, clean))
    clean = _play(draw, twin)
    for rank in put_into:
        fault.inject(Injection(scene, random.Random(draw.token), rank, draw.ns, clean))
    outcome = _play(draw, scene)
    for rank in draw.recorded:
        bounds = twin.bounds_of(rank)
        times = clean.times_ns[bounds[0] : bounds[1]]
        cost_ns = outcome.end_ns(*bounds) - clean.end_ns(*bounds)
        _check_cost(draw, cost_ns, int(times.max() - times.min()))
    rng = random.Random(draw.token + "/clock")
    common_ns = rng.randrange(_CLOCK_NS) // 1_000 * 1_000
    clocks = [Clock(common_ns)]
    if scene.ranks > 1:
        apart_ns = float(np.exp(rng.uniform(*np.log(_APART_NS))))
        origin_ns = int(scene.program.graph.time_ns.min())
        clocks = [
            Clock(common_ns + round(rng.gauss(0, apart_ns)), origin_ns, rng.uniform(-_RATE, _RATE))
            for _ in range(scene.ranks)
        ]
    sides = tuple(_side(base, draw, rank, clocks[rank], outcome, clean) for rank in draw.recorded)
    late = draw.late if fault.of_one_rank else None
    strategy = None if scene.ranks == 1 else base.strategy or "ddp"
    return Pair(fault, scene.ranks, strategy, late, sides)


def _play(draw: _Draw, scene: Scene) -> Outcome:
    """Return the replay of a scene, with reads at the ends of steps.

    Reads come last: work that is injected at one slot of a stream stands there in the order in
    which it came.
    """
    program = scene.program
    for step in program.steps if draw.reads else ():
        last = int(np.flatnonzero(program.main.step == step)[-1])
        for rank in range(scene.ranks):
            read_item(Block(scene, rank, program.main, last))
    try:
        return scene.replay()
    except SchemaError as error:  # of several threads one may wait for what is launched behind it
        raise NoPlaceError from error


def _check_cost(draw: _Draw, cost_ns: int, length_ns: int) -> None:
    """Raise an error if a cost is out of bounds. See Note [Drawn again]."""
    share = cost_ns / length_ns
    if draw.fault.look_alike:
        if abs(share) > _MOST_LOOK_ALIKE / len(draw.twin.program.steps):
            raise _UnfitError(0.5)
    elif share < _LEAST_COST:
        raise _UnfitError(3.0)
    elif share > _MOST_COST:
        raise _UnfitError(0.4)


def _side(
    base: Base, draw: _Draw, rank: int, clock: Clock, outcome: Outcome, clean: Outcome
) -> Side:
    """Return a rank as it is recorded with the fault and without."""
    fault = draw.fault
    parts = [
        record_scene(base, scene, times, rank, clock, f"{draw.token}/{which}/{rank}")
        for scene, times, which in ((draw.scene, outcome, "put"), (draw.twin, clean, "twin"))
    ]
    lengths = []
    for part in parts:  # from the first to the last complete event, without the profiler's own span
        rows = part.table.complete & (part.table.kind != EventKind.PROFILER_TRACE)
        ts_ns = part.table.ts_ns[rows]
        lengths.append(int((ts_ns + part.table.dur_ns[rows]).max() - ts_ns.min()))
    steps = [int(iterations_of(part).length_ns.sum()) for part in parts]
    on_host = [int(iterations_of(part).host_ns.sum()) for part in parts]
    cost_ns = lengths[0] - lengths[1]
    in_steps_ns = steps[0] - steps[1] if min(steps) > 0 else cost_ns
    intervals = np.zeros((0, 2), dtype=np.int64)
    if fault.look_alike:
        _check_cost(draw, in_steps_ns, lengths[1])
    else:
        found = lost_intervals(outcome, clean, draw.scene.course_of(rank))
        intervals = clock.show(found - draw.scene.program.run.offsets_ns[0])
        lost_ns = int((intervals[:, 1] - intervals[:, 0]).sum())
        if max(abs(in_steps_ns - cost_ns), abs(lost_ns - cost_ns)) > _AGREE * cost_ns:
            raise _UnfitError(1.0)
        if min(steps) > 0 and abs(on_host[0] - on_host[1] - cost_ns) > _AGREE * cost_ns:
            raise _UnfitError(1.0, reads=True)
        idle_ns = parts[0].timeline().idle_ns - parts[1].timeline().idle_ns
        if fault.idles and idle_ns < _IDLE * cost_ns:
            raise _UnfitError(1.5, reads=True)
    _check_cost(draw, cost_ns, lengths[1])
    role = None
    if fault.of_one_rank:
        role = "late" if rank == draw.late else "waits"
    shown = fault.own_type if role == "late" and fault.own_type else fault.type
    return Side(
        rank, parts[0], parts[1], shown, role, cost_ns, intervals, cost_ns / lengths[1]
    )  # fmt: skip


_MERGED = 0.03

NO_FAULT: dict[str, Any] = {
    "twin": None, "type": None, "form": "none", "decoy": False, "looks_like": None,
    "late_rank": None, "role": None, "cost_ns": 0, "severity": 0.0, "intervals": [],
}  # fmt: skip
"""Members of the label of a twin."""


def lost_intervals(faulty: Outcome, twin: Outcome, points: Array) -> Array:
    """Return where a run loses the time that its twin does not, int64 `[n, 2]`, ns of the graph's
    clock. See Note [Growing late].

    Args:
        faulty: The run with the fault.
        twin: The run without it.
        points: Begins and ends of the work that both have, by time, and the end of the recording.
    """
    at_ns = np.maximum.accumulate(faulty.times_ns[points])
    late_ns = at_ns - np.maximum.accumulate(twin.times_ns[points])
    stretches: list[list[list[int]]] = []
    grows = False
    before_at, before = int(at_ns[0]) - max(int(late_ns[0]), 0), 0
    for at, late in zip(at_ns.tolist(), late_ns.tolist(), strict=True):
        more = late - before
        if more > 0 and at > before_at:
            if not grows:
                stretches.append([])
            stretches[-1].append([max(before_at, at - more), at])
            grows = True
        elif more < 0:
            grows = False
            left = -more
            while left > 0 and stretches:
                first = stretches[-1][0]
                taken = min(left, first[1] - first[0])
                first[0] += taken
                left -= taken
                if first[0] == first[1]:
                    stretches[-1].pop(0)
                if not stretches[-1]:
                    stretches.pop()
        before_at, before = at, late
    found = [interval for stretch in stretches for interval in stretch]
    return _join_close(np.array(found, dtype=np.int64).reshape(-1, 2))


def _join_close(intervals: Array) -> Array:
    """Join close intervals. See Note [Merged]."""
    if len(intervals) < 2:
        return intervals
    gaps = intervals[1:, 0] - intervals[:-1, 1]
    order = np.argsort(gaps, kind="stable")
    allowed = _MERGED * (intervals[:, 1] - intervals[:, 0]).sum()
    joined = np.zeros(len(gaps), dtype=bool)
    joined[order[np.cumsum(gaps[order]) <= allowed]] = True
    firsts = np.append(True, ~joined)
    lasts = np.append(~joined, True)
    return np.stack([intervals[firsts, 0], intervals[lasts, 1]], axis=1)


def covered_windows(bounds_ns: Array, intervals: Array) -> list[int]:
    """Return 1 for each window of which the intervals cover a tenth or more, else 0.

    Args:
        bounds_ns: int64 `[windows + 1]`.
        intervals: int64 `[n, 2]`, disjoint, by time.
    """
    covered = covered_ns(intervals, bounds_ns)
    found: list[int] = (covered >= POSITIVE * np.diff(bounds_ns)).astype(int).tolist()
    return found


def window_labels(part: RankTrace, intervals: Array) -> dict[str, list[int]]:
    """Return `covered_windows` of a trace for each number of windows."""
    return {
        str(count): covered_windows(build_windows(part, count=count).bounds_ns, intervals)
        for count in GRIDS
    }
