"""`drawn_pair`: a run with a fault or a decoy, its twin without, and what the difference is.

Note [Ranks]: of a run of several ranks one is recorded, or all are. Ranks run the same program, so
what is put into it is in all of them; but a form of one rank is put into that rank alone, which is
late, and the others wait for it in their collectives.

Note [Twins]: both are written by the same path from the same steps, with the same speeds, the same
noise and the same clock; what differs is what was put in. So the difference of their lengths is
what that costs, whatever reacted to it.

Note [Drawn again]: a draw is taken if the fault costs 3 % of the trace or more, if the lengths of
the traces, of their steps and of the steps' ranges on the host agree on that cost, and of a decoy
if the length and the steps differ by less than 0.4 % of a step; that holds for every rank that is
recorded. Else another is drawn, with more to lose, or of a decoy with less and a slower GPU, and
after some draws in another form. Nothing else is looked at: no rule is asked. A host that runs
ahead for as long as it likes has steps of its own; then the next draw has it read a value at the
end of each, in the twin as well.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchtraceap._core import EventKind
from torchtraceap.core.aliases import Array
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.lab.generation.bases import Base
from torchtraceap.lab.generation.data_parallel import DataParallel, can_spread, drawn
from torchtraceap.lab.generation.faults import read_item
from torchtraceap.lab.generation.lost_time import covered_windows, lost_intervals
from torchtraceap.lab.generation.placement import Form, NoPlaceError, Planting
from torchtraceap.lab.generation.program import Program
from torchtraceap.lab.generation.recorder import Clock, Header, recorded
from torchtraceap.lab.generation.scene import Outcome, Scene, Speeds
from torchtraceap.tables.steps.iterations import iterations_of
from torchtraceap.tables.windows import build_windows
from torchtraceap.trace.ranks import RankTrace

__all__ = ["WINDOWS", "Pair", "Side", "drawn_pair"]

WINDOWS = (50, 100, 200)
_LEAST_COST, _MOST_COST = 0.03, 1.5
"""Of the twin's length."""
_MOST_DECOY = 0.004
"""Of a step."""
_AGREE = 0.06
"""Of the cost: the length of the steps and of the intervals agree with it within that."""
_IDLE = 0.7
"""Of the cost of what the host does, the part in which the GPU has nothing to do; the rest is its
own time for more work, while it was behind."""
_DRAWS = 4
"""In one form."""
_READS = 0.3
"""Of loops, those that read a value at the end of each step."""
_RANKS = (1, 1, 1, 2, 4)
"""Of runs of which one rank is recorded."""
_CLOCK_NS = 10**15
"""The clocks of recordings differ by up to that (11 days)."""
_APART_NS = (1e3, 2e6)
"""Clocks of ranks of one run are so far apart: on one machine, or on several."""
_RATE = 5e-6
"""By so much they go faster or slower than others, at most."""


class _UnfitError(Exception):
    """A draw that is not taken; with so many times as much to lose another may be, or if the host
    waits for the end of each step."""

    def __init__(self, change: float, *, reads: bool = False) -> None:
        super().__init__()
        self.change, self.reads = change, reads


@dataclass(frozen=True)
class Side:
    """A rank that is recorded, with the fault and without."""

    rank: int
    faulty: RankTrace
    twin: RankTrace
    type: str
    """Of the fault as this rank shows it, or of a decoy what it looks like."""
    role: str | None
    """Where one rank is late: "late" for that, "waits" for the others."""
    cost_ns: int
    intervals: Array
    """int64 `[n, 2]`, of the faulty trace's clock."""
    severity: float
    """The cost over the length of the twin."""

    def windows(self, count: int) -> list[int]:
        """Labels of the faulty trace's windows."""
        bounds = build_windows(self.faulty, count=count).bounds_ns
        return covered_windows(bounds, self.intervals)


@dataclass(frozen=True)
class Pair:
    """Two runs, and their labels without ids."""

    form: Form
    device: str | None
    world_size: int
    strategy: str | None
    """How ranks share the work; None for one rank."""
    late_rank: int | None
    """That which the others wait for, of a form of one rank."""
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class _Draw:
    """What is the same for both."""

    program: Program
    speeds: Speeds
    form: Form
    ns: float
    ranks: int
    recorded: tuple[int, ...]
    late: int
    """The rank that a form of one rank is put into."""
    good: DataParallel | None
    bad: DataParallel | None
    reads: bool
    """The host reads one value at the end of each step, such as the loss."""
    token: str

    @property
    def put_into(self) -> Sequence[int]:
        """Ranks; see Note [Ranks]."""
        return (self.late,) if self.form.of_one_rank else range(self.ranks)


def drawn_pair(base: Base, forms: Sequence[Form], seed: str, ranks: int = 1) -> Pair:
    """The first draw that can be taken.

    Args:
        base: The run.
        forms: Those that may be drawn, the first first.
        seed: The same gives the same pair.
        ranks: How many are recorded: one, of a run of one or several, or all.

    Raises:
        OptionError: None of the forms fits.
    """
    for number, form in enumerate(forms):
        if not form.decoy and not base.types.isdisjoint((form.type, form.own_type)):
            continue
        scale, reads = 1.0, False
        for turn in range(_DRAWS):
            try:
                token = f"{seed}/{number}/{turn}"
                return _pair(base, _draw(base, form, token, ranks, scale, reads))
            except NoPlaceError:
                scale *= 0.5 if form.decoy else 1.0
            except _UnfitError as error:
                scale *= error.change
                reads |= error.reads
    names = ", ".join(form.name for form in forms)
    raise OptionError(f"{base.name}: no place was found for any of {names}")


def _draw(base: Base, form: Form, seed: str, recorded: int, scale: float, reads: bool) -> _Draw:
    rng = random.Random(seed)
    program = base.program(rng)
    if not program.is_usable:
        raise NoPlaceError
    ranks = _count_ranks(base, program, form, recorded, rng)
    # What hides a decoy is work of the GPU.
    gpu = (1 / scale if form.decoy else 1.0) * float(np.exp(rng.gauss(0.1, 0.4)))
    link = float(np.exp(rng.uniform(0, 1.2)))
    speeds = Speeds(float(np.exp(rng.gauss(0, 0.25))), gpu, rng.randrange(1 << 31), link)
    share = float(np.exp(rng.uniform(np.log(0.05), np.log(0.5)))) * scale
    if form.decoy:
        share = rng.uniform(0.02, 0.08) * scale
    is_laid = ranks > 1 and not len(program.collectives)
    good = drawn(rng, program, ranks, scale) if is_laid else None
    good, bad = (good, good) if good is None or form.spread is None else form.spread(rng, good)
    ns = share * program.step_ns * max(speeds.host, speeds.gpu)
    reads = rng.random() < _READS or reads
    shown = tuple(range(ranks)) if recorded > 1 else (rng.randrange(ranks),)
    others = [rank for rank in range(ranks) if recorded > 1 or rank not in shown]
    late = rng.choice(others) if others else 0
    return _Draw(
        program, speeds, form, ns, ranks, shown, late, good, bad, reads, seed + "/put"
    )  # fmt: skip


def _count_ranks(
    base: Base, program: Program, form: Form, recorded: int, rng: random.Random
) -> int:
    """Of the run.

    Raises:
        NoPlaceError: The form, or as many recorded ranks, need what the program does not have.
    """
    wanted = recorded if recorded > 1 else rng.choice(_RANKS)
    if len(program.collectives):
        if form.spread is not None or recorded not in (1, base.world_size):
            raise NoPlaceError
        if form.of_one_rank and base.world_size < 2:
            raise NoPlaceError
        return base.world_size
    if form.spread is not None or form.of_one_rank:
        wanted = max(wanted, 2)
    if wanted == 1 or can_spread(program):
        return wanted
    if recorded > 1 or form.spread is not None or form.of_one_rank:
        raise NoPlaceError
    return 1


def _pair(base: Base, draw: _Draw) -> Pair:
    form = draw.form
    twin = _scene(draw, draw.good)
    if form.in_twin is not None:
        clean = twin.play()
        for rank in draw.put_into:
            form.in_twin(_planting(draw, twin, clean, rank))
    _read_at_ends(draw, twin)
    clean = _played(twin)
    scene = _scene(draw, draw.bad)
    for rank in draw.put_into:
        form.put(_planting(draw, scene, clean, rank))
    _read_at_ends(draw, scene)
    outcome = _played(scene)
    for rank in draw.recorded:
        bounds = twin.bounds_of(rank)
        times = clean.times_ns[bounds[0] : bounds[1]]
        cost_ns = outcome.end_ns(*bounds) - clean.end_ns(*bounds)
        _check_cost(draw, cost_ns, int(times.max() - times.min()))
    clocks = _clocks(draw)
    sides = tuple(
        _side(base, draw, rank, clocks[rank], (scene, outcome), (twin, clean))
        for rank in draw.recorded
    )
    late = draw.late if form.of_one_rank else None
    strategy = None if draw.ranks == 1 else base.strategy or "ddp"
    return Pair(form, base.device, draw.ranks, strategy, late, sides)


def _clocks(draw: _Draw) -> list[Clock]:
    """Of all ranks."""
    rng = random.Random(draw.token + "/clock")
    common_ns = rng.randrange(_CLOCK_NS) // 1_000 * 1_000
    if draw.ranks == 1:
        return [Clock(common_ns)]
    apart_ns = float(np.exp(rng.uniform(*np.log(_APART_NS))))
    origin_ns = int(draw.program.graph.time_ns.min())
    return [
        Clock(common_ns + round(rng.gauss(0, apart_ns)), origin_ns, rng.uniform(-_RATE, _RATE))
        for _ in range(draw.ranks)
    ]


def _scene(draw: _Draw, spread: DataParallel | None) -> Scene:
    """Without a fault but for how ranks exchange gradients."""
    scene = Scene(draw.program, draw.speeds, draw.ranks)
    if spread is not None:
        spread.lay(scene)
    return scene


def _read_at_ends(draw: _Draw, scene: Scene) -> None:
    """Last: what is put in at one slot of a stream stands there in the order in which it came."""
    program = draw.program
    for step in program.steps if draw.reads else ():
        last = int(np.flatnonzero(program.main.step == step)[-1])
        for rank in range(draw.ranks):
            read_item(scene.block(rank, program.main, last))


def _played(scene: Scene) -> Outcome:
    """Where several threads launch, work may wait for what is launched behind it: no program."""
    try:
        return scene.play()
    except SchemaError as error:
        raise NoPlaceError from error


def _planting(draw: _Draw, scene: Scene, clean: Outcome, rank: int) -> Planting:
    rng = random.Random(draw.token)
    return Planting(scene, rng, rank, draw.ns, draw.good, clean)


def _check_cost(draw: _Draw, cost_ns: int, length_ns: int) -> None:
    """See Note [Drawn again]."""
    share = cost_ns / length_ns
    if draw.form.decoy:
        if abs(share) > _MOST_DECOY / len(draw.program.steps):
            raise _UnfitError(0.5)
    elif share < _LEAST_COST:
        raise _UnfitError(3.0)
    elif share > _MOST_COST:
        raise _UnfitError(0.4)


def _side(
    base: Base,
    draw: _Draw,
    rank: int,
    clock: Clock,
    put: tuple[Scene, Outcome],
    twin: tuple[Scene, Outcome],
) -> Side:
    """A rank as it is recorded with the fault and without."""
    headers = [
        Header(rank, draw.ranks, clock, f"{draw.token}/{which}/{rank}") for which in ("put", "twin")
    ]
    sides = zip((put, twin), headers, strict=True)
    parts = [recorded(base, *side, header) for side, header in sides]
    lengths = [_length_ns(part) for part in parts]
    steps = [int(iterations_of(part).length_ns.sum()) for part in parts]
    on_host = [int(iterations_of(part).host_ns.sum()) for part in parts]
    cost_ns = lengths[0] - lengths[1]
    in_steps_ns = steps[0] - steps[1] if min(steps) > 0 else cost_ns
    intervals = np.zeros((0, 2), dtype=np.int64)
    if draw.form.decoy:
        _check_cost(draw, in_steps_ns, lengths[1])
    else:
        found = lost_intervals(put[1], twin[1], put[0].course_of(rank))
        intervals = clock.shown(found - draw.program.run.offsets_ns[0])
        lost_ns = int((intervals[:, 1] - intervals[:, 0]).sum())
        if max(abs(in_steps_ns - cost_ns), abs(lost_ns - cost_ns)) > _AGREE * cost_ns:
            raise _UnfitError(1.0)
        if min(steps) > 0 and abs(on_host[0] - on_host[1] - cost_ns) > _AGREE * cost_ns:
            raise _UnfitError(1.0, reads=True)
        idle_ns = parts[0].timeline().idle_ns - parts[1].timeline().idle_ns
        if draw.form.idles and idle_ns < _IDLE * cost_ns:
            raise _UnfitError(1.5, reads=True)
    _check_cost(draw, cost_ns, lengths[1])
    role = None
    if draw.form.of_one_rank:
        role = "late" if rank == draw.late else "waits"
    shown = draw.form.own_type if role == "late" and draw.form.own_type else draw.form.type
    severity = cost_ns / lengths[1]
    return Side(rank, parts[0], parts[1], shown, role, cost_ns, intervals, severity)


def _length_ns(part: RankTrace) -> int:
    """From the first to the last complete event, without the profiler's own span."""
    table = part.table
    rows = table.complete & (table.kind != EventKind.PROFILER_TRACE)
    ts_ns = table.ts_ns[rows]
    return int((ts_ns + table.dur_ns[rows]).max() - ts_ns.min())
