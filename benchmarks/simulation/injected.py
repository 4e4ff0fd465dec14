"""Stalls at random places of made programs: does an edit that removes one give its cost back?

    python benchmarks/simulation/injected.py [--seeds 30] [--output FILE]

A job (`made_training.py`) runs twice on a machine of its own, with and without one stall: the
training thread stands still, or waits for the device; a kernel, a copy or a collective takes
longer; work starts late; a batch is late. The difference of the two runs is the truth. From the
trace with the stall a replay of the recording without it says what it costs, and `simulate` tells
what a step takes without it in a steady state. Errors are the difference to the truth over the
length of the stall. A stall that costs nothing, because something else took as long, has to come
back as nothing.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from made_machine import Machine, Stall
from made_training import WARM_UP, Job, Loader, Upload, record
from torchtraceap.core.aliases import Array
from torchtraceap.core.codes import EventKind
from torchtraceap.simulation.edits.base import Change, EditedGraph
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.simulate import Simulation
from twins import among, draw_job, draw_machine, draw_spread, load_machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

__all__ = ["KINDS", "Injection", "inject", "without"]

KINDS = ("host", "sync", "late", "kernel", "copy", "collective", "fetch")
_GPU = (EventKind.KERNEL, EventKind.GPU_MEMCPY, EventKind.GPU_MEMSET)


@dataclass(frozen=True)
class Injection:
    """One stall; times in us over the whole recording."""

    kind: str
    seed: int
    step: int
    place: int
    stall_us: float
    true_us: float
    """What it costs the run."""
    replayed_us: float
    """What a replay of the recording without it says."""
    told_us: float | None
    """What `simulate` tells, saving x steps; None where it is refused or below the noise."""

    @property
    def error(self) -> float:
        return (self.replayed_us - self.true_us) / self.stall_us

    @property
    def told_error(self) -> float | None:
        return None if self.told_us is None else (self.told_us - self.true_us) / self.stall_us


class WithoutStall:
    """An edit that takes one stall out of a run."""

    name = "without_stall"

    def __init__(self, stall: Stall) -> None:
        self.stall = stall

    def apply(self, run: SimulatedRun) -> EditedGraph:
        return EditedGraph(without(run, self.stall))


def inject(kind: str, seed: int) -> Injection | None:
    """A stall of this kind at a random place; None where the program has no such place."""
    rng = random.Random(f"{kind}/{seed}")
    job = draw_loop(rng, kind)
    how: dict[str, Any] = {"seed": seed, **draw_machine(rng, job)}
    # What runs beside a longer collective is not the stall.
    how["link"] = replace(how["link"], beside_collectives=1.0)
    clean = record(job, **how)
    stall = _draw_stall(rng, kind, clean)
    if stall is None:
        return None
    stalled = record(job, **how, stalls=(stall,))
    with tempfile.TemporaryDirectory() as folder:
        run = SimulatedRun(load_machine(stalled, Path(folder)))
    saved_ns = _end_ns(run, Change()) - _end_ns(run, without(run, stall))
    true_us = stalled.end_us() - clean.end_us()
    length_us = stall.found["dur"] if kind == "sync" and stall.found else stall.us
    step = stall.step - WARM_UP
    told_us = _told_us(run, stall)
    return Injection(kind, seed, step, stall.number, length_us, true_us, saved_ns / 1e3, told_us)


def _told_us(run: SimulatedRun, stall: Stall) -> float | None:
    simulation = Simulation(run, [WithoutStall(stall)])
    outcome = simulation.edits[0]
    if outcome.predicted_ns is None or "steps' own noise" in outcome.note:
        return None
    steps = len(run.chosen_steps) / len(run.ranks)
    return (simulation.measured_ns - outcome.predicted_ns) / 1e3 * steps


def _end_ns(run: SimulatedRun, change: Change) -> int:
    """When the work of the last step of any rank ends."""
    times = run.replay(change.delta())
    return max(int(times[steps[-1].work].max()) for steps in run.steps_by_rank)


def draw_loop(rng: random.Random, kind: str) -> Job:
    """A loop that has something of this kind."""
    job = draw_spread(rng) if kind == "collective" or rng.random() < 0.3 else draw_job(rng)
    job = replace(job, steps=max(job.steps, 3))
    if kind == "copy":
        size, pinned = int(among(rng, 1e5, 5e7)), rng.random() < 0.5
        job = replace(job, upload=Upload(size, pinned))
    if kind == "fetch":
        job = replace(job, loader=Loader(among(rng, 500, 20_000)))
    return job


def _draw_stall(rng: random.Random, kind: str, clean: Machine) -> Stall | None:
    """One of at least 2 ms and of up to ten steps, neither in the first nor in the last step."""
    step = rng.randrange(WARM_UP + 1, len(clean.members[0].step_begins) - 1)
    us = among(rng, 2_000, max(4_000, 10 * clean.step_us()))
    rank = rng.randrange(clean.ranks)
    if kind in ("fetch",):
        return Stall(kind, step, us=us, rank=rank)
    launched = clean.members[rank].step_work[step]
    places = [place for place, work in enumerate(launched) if _fits(work.row, kind)]
    if not places:
        return None
    name = "work" if kind in ("kernel", "copy", "collective") else kind
    return Stall(name, step, rng.choice(places), 0.0 if kind == "sync" else us, rank)


def _fits(row: dict[str, Any], kind: str) -> bool:
    is_collective = row["name"].startswith("ncclDevKernel")
    wanted = {
        "kernel": row["cat"] == "kernel" and not is_collective,
        "copy": row["cat"] == "gpu_memcpy",
        "collective": is_collective,
    }
    return wanted.get(kind, not (kind == "late" and is_collective))


def without(run: SimulatedRun, stall: Stall) -> Change:
    """The run without the stall, and nothing else."""
    change = Change()
    rank = stall.rank
    view = views(run)[rank]
    if stall.kind == "fetch":
        _shorten_fetch(view, change, stall)
        return change
    assert stall.found is not None
    row = _row_of(view, stall.found)
    if stall.kind == "sync":
        view.remove_calls(change, np.array([row]))
        return change
    point = {"work": view.end_of}.get(stall.kind, view.begin_of)[row]
    # Late work may be late behind its launch or behind the work before: whichever came last.
    kinds = {"host": ("program_order",), "work": ("execution",)}.get(stall.kind, ())
    edges = view.edges_into(np.array([point]), *kinds)
    if stall.kind == "work" and run.meetings is not None:
        edges = _transfer(run, rank, row, edges)
    change.set_lags(edges, np.maximum(run.cost_ns[edges] - 1e3 * stall.us, 0))
    return change


def _row_of(view: RankView, event: dict[str, Any]) -> int:
    on_gpu = view.is_kind(*_GPU)
    wanted = on_gpu if event["cat"] in ("kernel", "gpu_memcpy") else ~on_gpu
    same = view.table.correlation == event["args"]["correlation"]
    return int(np.flatnonzero(wanted & same & view.has_points)[0])


def _transfer(run: SimulatedRun, rank: int, row: int, own: Array) -> Array:
    """The edges that carry the data of the collective that a row takes part in, on every rank."""
    meetings = run.meetings
    assert meetings is not None
    member = np.flatnonzero((meetings.rank == rank) & (meetings.row == row))
    if not len(member):
        return own
    meeting = int(np.searchsorted(meetings.offsets, member[0], side="right")) - 1
    edges = []
    for place in range(meetings.offsets[meeting], meetings.offsets[meeting + 1]):
        view = views(run)[int(meetings.rank[place])]
        end = np.array([view.end_of[meetings.row[place]]])
        into = view.edges_into(end, "execution", "rendezvous")
        edges.append(into[run.graph.lag_ns[into] > 0])
    return np.concatenate(edges)


def _shorten_fetch(view: RankView, change: Change, stall: Stall) -> None:
    rows = view.outermost(view.rows_named("__next__", EventKind.USER_ANNOTATION))
    row = rows[np.argsort(view.table.ts_ns[rows])][[stall.step - WARM_UP]]
    edges, _ = view.work_edges(row)
    longest = edges[[int(view.cost_of(edges).argmax())]]
    change.set_lags(longest, view.cost_of(longest) - 1e3 * stall.us)


def table(found: list[Injection]) -> str:
    head = (
        "| stall | programs | cost something | replay: largest error | told | within 2 % | "
        "largest error |\n|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *(_line(kind, [i for i in found if i.kind == kind]) for kind in KINDS)])


def _line(kind: str, found: list[Injection]) -> str:
    errors = np.abs([injection.error for injection in found])
    cost = sum(injection.true_us > 0.02 * injection.stall_us for injection in found)
    told = np.abs([i.told_error for i in found if i.told_error is not None])
    cells = [kind, str(len(found)), str(cost), f"{errors.max():.2%}", str(len(told))]
    cells += [f"{np.mean(told <= 0.02):.0%}", f"{told.max():.1%}"] if len(told) else ["-", "-"]
    return f"| {' | '.join(cells)} |"


def injections(kinds: list[str], seeds: range, tell: Callable[[Injection], None]) -> None:
    for kind in kinds:
        for seed in seeds:
            injection = inject(kind, seed)
            if injection is not None:
                tell(injection)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=30, help="programs for each kind of stall")
    parser.add_argument("--kinds", nargs="*", default=[*KINDS], choices=KINDS)
    parser.add_argument("--each", action="store_true", help="a line for each stall")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: list[Injection] = []
    injections(options.kinds, range(options.seeds), found.append)
    for injection in found if options.each else ():
        print(f"{injection.error:+8.2%} {injection}")
    print(table(found))
    if options.output:
        write_results(options.output, indent=None, injections=[asdict(each) for each in found])


if __name__ == "__main__":
    main()
