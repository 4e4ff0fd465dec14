"""`drawn_pair`: a trace with a fault or a decoy, its twin without, and what the difference is.

Note [Twins]: both are written by the same path from the same steps, with the same speeds, the same
noise and the same clock; what differs is what was put in. So the difference of their lengths is
what that costs, whatever reacted to it.

Note [Drawn again]: a draw is taken if the fault costs 3 % of the trace or more, if the lengths of
the traces, of their steps and of the steps' ranges on the host agree on that cost, and of a decoy
if the length and the steps differ by less than 0.4 % of a step. Else another is drawn, with more to
lose, or of a decoy with less and a slower GPU, and after some draws in another form. Nothing else
is looked at: no rule is asked. A host that runs ahead for as long as it likes has steps of its own;
then the next draw has it read a value at the end of each, in the twin as well.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchtraceap._core import EventKind
from torchtraceap.aliases import Array
from torchtraceap.analysis.iterations import iterations_of
from torchtraceap.analysis.windows import build_windows
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.generation.bases import Base
from torchtraceap.generation.data_parallel import DataParallel, can_spread, drawn
from torchtraceap.generation.faults import read_item
from torchtraceap.generation.loss import covered_windows, lost_intervals
from torchtraceap.generation.planting import Form, NoPlaceError, Planting
from torchtraceap.generation.program import Program
from torchtraceap.generation.recording import Header, recorded
from torchtraceap.generation.scene import Outcome, Scene, Speeds
from torchtraceap.ranks import RankTrace

__all__ = ["WINDOWS", "Pair", "drawn_pair"]

WINDOWS = (50, 100, 200)
_LEAST_COST, _MOST_COST = 0.03, 1.5
"""Of the twin's length."""
_MOST_DECOY = 0.004
"""Of a step."""
_AGREE = 0.06
"""Of the cost: the length of the steps and of the intervals agree with it within that."""
_DRAWS = 4
"""In one form."""
_READS = 0.3
"""Of loops, those that read a value at the end of each step."""
_RANKS = (1, 1, 1, 2, 4)
_CLOCK_NS = 10**15
"""The clocks of recordings differ by up to that (11 days)."""


class _UnfitError(Exception):
    """A draw that is not taken; with so many times as much to lose another may be, or if the host
    waits for the end of each step."""

    def __init__(self, change: float, *, reads: bool = False) -> None:
        super().__init__()
        self.change, self.reads = change, reads


@dataclass(frozen=True)
class Pair:
    """Two traces, and their labels without ids."""

    faulty: RankTrace
    twin: RankTrace
    form: Form
    device: str | None
    world_size: int
    rank: int
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
class _Draw:
    """What is the same for both."""

    program: Program
    speeds: Speeds
    form: Form
    ns: float
    ranks: int
    rank: int
    good: DataParallel | None
    bad: DataParallel | None
    reads: bool
    """The host reads one value at the end of each step, such as the loss."""
    token: str


def drawn_pair(base: Base, forms: Sequence[Form], seed: str) -> Pair:
    """The first draw that can be taken.

    Args:
        base: The run.
        forms: Those that may be drawn, the first first.
        seed: The same gives the same pair.

    Raises:
        OptionError: None of the forms fits.
    """
    for number, form in enumerate(forms):
        if form.type in base.types and not form.decoy:
            continue
        scale, reads = 1.0, False
        for turn in range(_DRAWS):
            try:
                return _pair(base, _draw(base, form, f"{seed}/{number}/{turn}", scale, reads))
            except NoPlaceError:
                scale *= 0.5 if form.decoy else 1.0
            except _UnfitError as error:
                scale *= error.change
                reads |= error.reads
    names = ", ".join(form.name for form in forms)
    raise OptionError(f"{base.name}: no place was found for any of {names}")


def _draw(base: Base, form: Form, seed: str, scale: float, reads: bool) -> _Draw:
    rng = random.Random(seed)
    program = base.program(rng)
    if not program.is_usable:
        raise NoPlaceError
    ranks = rng.choice(_RANKS)
    if form.spread is not None:
        ranks = max(ranks, 2)
    if ranks > 1 and not can_spread(program):
        if form.spread is not None:
            raise NoPlaceError
        ranks = 1
    # What hides a decoy is work of the GPU.
    gpu = (1 / scale if form.decoy else 1.0) * float(np.exp(rng.gauss(0.1, 0.4)))
    speeds = Speeds(float(np.exp(rng.gauss(0, 0.25))), gpu, rng.randrange(1 << 31))
    share = float(np.exp(rng.uniform(np.log(0.05), np.log(0.5)))) * scale
    if form.decoy:
        share = rng.uniform(0.02, 0.08) * scale
    good = drawn(rng, program, ranks, scale) if ranks > 1 else None
    good, bad = (good, good) if good is None or form.spread is None else form.spread(rng, good)
    token = seed + "/put"
    ns = share * program.step_ns * max(speeds.host, speeds.gpu)
    reads = rng.random() < _READS or reads
    return _Draw(program, speeds, form, ns, ranks, rng.randrange(ranks), good, bad, reads, token)


def _pair(base: Base, draw: _Draw) -> Pair:
    form, rank = draw.form, draw.rank
    twin = _scene(draw, draw.good)
    if form.in_twin is not None:
        form.in_twin(_planting(draw, twin, twin.play()))
    _read_at_ends(draw, twin)
    clean = _played(twin)
    scene = _scene(draw, draw.bad)
    form.put(_planting(draw, scene, clean))
    _read_at_ends(draw, scene)
    outcome = _played(scene)
    bounds = twin.bounds_of(rank)
    times = clean.times_ns[bounds[0] : bounds[1]]
    cost_ns = outcome.end_ns(*bounds) - clean.end_ns(*bounds)
    _check_cost(draw, cost_ns, int(times.max() - times.min()))
    return _written(base, draw, (scene, outcome), (twin, clean))


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


def _planting(draw: _Draw, scene: Scene, clean: Outcome) -> Planting:
    rng = random.Random(draw.token)
    return Planting(scene, rng, draw.rank, draw.ns, draw.good, clean)


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


def _written(
    base: Base, draw: _Draw, put: tuple[Scene, Outcome], twin: tuple[Scene, Outcome]
) -> Pair:
    rng = random.Random(draw.token + "/clock")
    header = Header(draw.rank, draw.ranks, rng.randrange(_CLOCK_NS) // 1_000 * 1_000)
    parts = [recorded(base, *each, header) for each in (put, twin)]
    lengths = [_length_ns(part) for part in parts]
    steps = [int(iterations_of(part).length_ns.sum()) for part in parts]
    on_host = [int(iterations_of(part).host_ns.sum()) for part in parts]
    cost_ns = lengths[0] - lengths[1]
    in_steps_ns = steps[0] - steps[1] if min(steps) > 0 else cost_ns
    intervals = np.zeros((0, 2), dtype=np.int64)
    if draw.form.decoy:
        _check_cost(draw, in_steps_ns, lengths[1])
    else:
        ahead_ns = header.offset_ns - draw.program.run.offsets_ns[0]
        course = put[0].course_of(draw.rank)
        intervals = lost_intervals(put[1], twin[1], course) + ahead_ns
        lost_ns = int((intervals[:, 1] - intervals[:, 0]).sum())
        if max(abs(in_steps_ns - cost_ns), abs(lost_ns - cost_ns)) > _AGREE * cost_ns:
            raise _UnfitError(1.0)
        if min(steps) > 0 and abs(on_host[0] - on_host[1] - cost_ns) > _AGREE * cost_ns:
            raise _UnfitError(1.0, reads=True)
    _check_cost(draw, cost_ns, lengths[1])
    return Pair(
        parts[0], parts[1], draw.form, base.device, draw.ranks, draw.rank,
        cost_ns, intervals, cost_ns / lengths[1],
    )  # fmt: skip


def _length_ns(part: RankTrace) -> int:
    """From the first to the last complete event, without the profiler's own span."""
    table = part.table
    rows = table.complete & (table.kind != EventKind.PROFILER_TRACE)
    ts_ns = table.ts_ns[rows]
    return int((ts_ns + table.dur_ns[rows]).max() - ts_ns.min())
