"""Predictions against pairs of traces: before a fix, and after it.

    python benchmarks/simulation/pairs.py [--json]

Each line: what was measured before and after (means of the steps, and the median after, which a few
slow steps leave alone), what is predicted from the trace before alone, with its interval, and what
two trivial predictions would have said. *Sum of kernels* adds up the GPU
events that are left; *subtraction* takes what the edit removes off the measured time, as if nothing
overlapped. Traces are those of `TORCHTRACEAP_CORPUS`; pairs that are absent are left out.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import torchtraceap as ttap
from corpus import default_corpus
from torchtraceap.simulation.edits.base import Change, join_changes
from torchtraceap.simulation.edits.view import views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.simulate import Simulation, simulate


@dataclass(frozen=True)
class Pair:
    """`after` is None where no trace shows the fixed program."""

    name: str
    before: str
    after: str | None
    edits: tuple[str, ...]
    exact: bool = True
    """The two programs differ in these edits alone; otherwise only the direction counts."""
    seen: bool = False
    """A constant or a form of an edit came from pairs of this kind, or was changed after a look at
    it: it proves less than the others."""


PAIRS = (
    Pair(
        "ResNet-50, 0 to 4 workers",
        "kineto/resnet50_num_workers_0.json.gz",
        "kineto/resnet50_num_workers_4.json.gz",
        ("loader_workers=4",),
        seen=True,
    ),
    Pair(
        "device-to-host copies, pinned",
        "gpu_puzzlers/dtoh_blocking.json.gz",
        "gpu_puzzlers/dtoh_non_blocking.json.gz",
        ("pin_memory=DtoH",),
        seen=True,
    ),
    Pair(
        "copies both ways, pinned",
        "pytorch_benchmark/copies_pageable.json",
        "pytorch_benchmark/copies_pinned.json",
        ("pin_memory",),
        seen=True,
    ),
    Pair(
        "reduce-scatter in the backward",
        "modded_nanogpt/overlap_before.json.gz",
        "modded_nanogpt/overlap_hook.json.gz",
        ("overlap_collectives",),
    ),
    Pair(
        "reads in a loop",
        "gpu_puzzlers/d2h_sync.json.gz",
        "gpu_puzzlers/d2h_sync_fixed.json.gz",
        ("remove_host_sync",),
        exact=False,
    ),
    Pair(
        "Segment Anything, all at once",
        "segment_anything_fast/amg_baseline.json.gz",
        "segment_anything_fast/amg_fast.json.gz",
        (
            "mixed_precision",
            "remove_host_sync",
            "pin_memory",
            "fuse_pointwise",
            "channels_last",
        ),
        exact=False,
        seen=True,
    ),
    Pair("late rank", "torchrec_4ranks_late_rank", None, ("straggler_to_median",)),
    Pair("tensor parallel on one stream", "tokenomics", None, ("overlap_collectives",)),
)


@dataclass(frozen=True)
class Result:
    """Times of a step, ns."""

    name: str
    edits: str
    exact: bool
    seen: bool
    steps: int
    noise_ns: float | None
    """Of the steps before; None where one step shows none."""
    iteration_error: float
    before_ns: int
    after_ns: int | None
    after_median_ns: int | None
    after_noise_ns: float | None
    predicted_ns: int | None
    """None: the simulator refuses; `reason` says why."""
    low_ns: int | None
    high_ns: int | None
    sum_of_kernels_ns: float
    subtraction_ns: float
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over the mean after, less 1."""
        return _off(self.predicted_ns, self.after_ns)

    @property
    def median_error(self) -> float | None:
        return _off(self.predicted_ns, self.after_median_ns)

    @property
    def both_noises_ns(self) -> float:
        """Of the difference between before and after; unknown noise counts as none."""
        return float(np.hypot(self.noise_ns or 0.0, self.after_noise_ns or 0.0))


def _off(predicted_ns: int | None, after_ns: int | None) -> float | None:
    return None if predicted_ns is None or after_ns is None else predicted_ns / after_ns - 1


def predict(pair: Pair, folder: Path) -> Result:
    """Simulates the fix on the trace before; the trace after is only measured."""
    simulation = simulate(ttap.load(folder / pair.before), pair.edits)
    refused = {edit.edit: edit.note for edit in simulation.edits if not edit.applies}
    outcome = None if refused else simulation.together(pair.edits)
    best = _best_of(simulation, pair.edits)
    after = _after(pair, folder)
    return Result(
        name=pair.name,
        edits=", ".join(pair.edits),
        exact=pair.exact,
        seen=pair.seen,
        steps=len(simulation.steps),
        noise_ns=simulation.noise_ns,
        iteration_error=simulation.trust.iteration_error,
        before_ns=simulation.measured_ns,
        after_ns=after.measured_ns if after else None,
        after_median_ns=after.median_ns if after else None,
        after_noise_ns=after.noise_ns if after else None,
        predicted_ns=outcome.predicted_ns if outcome else None,
        low_ns=outcome.low_ns if outcome else None,
        high_ns=outcome.high_ns if outcome else None,
        sum_of_kernels_ns=sum_of_kernels(simulation.run, best),
        subtraction_ns=simulation.measured_ns - removed_ns(simulation.run, best),
        reason="; ".join(f"{name}: {note}" for name, note in refused.items()),
    )


def _after(pair: Pair, folder: Path) -> Simulation | None:
    if pair.after is None or not (folder / pair.after).exists():
        return None
    return simulate(ttap.load(folder / pair.after), ())


def _best_of(simulation: Simulation, names: tuple[str, ...]) -> Change:
    graphs = [graph for name, graph in simulation.applied.items() if name in names]
    return join_changes(simulation.run, [graph.best for graph in graphs])


def sum_of_kernels(run: SimulatedRun, change: Change) -> float:
    """GPU events of a step and rank, added up, with the edit."""
    costs = run.cost_ns.copy()
    touched, lags = change.lags
    costs[touched] = lags
    total = 0
    for view in views(run):
        edges = view.duration_edges(view.gpu_rows)
        total += int(costs[edges[edges >= 0]].sum())
    return total / max(len(run.steps), 1)


def removed_ns(run: SimulatedRun, change: Change) -> float:
    """What the edit takes off work and waits, of a step and rank, as if nothing overlapped."""
    touched, lags = change.lags
    shorter = (run.cost_ns[touched] - lags).sum()
    dropped = change.dropped
    waits = dropped[np.isin(dropped, run.edges_of("host_wait"))]
    ends = run.destination[waits].astype(np.int64)
    # A wait of a call lasted from the point before its end to the end.
    waited = (run.graph.time_ns[ends] - run.graph.time_ns[ends - 1]).sum()
    return float(shorter + waited) / max(len(run.steps), 1)


def tables(results: list[Result]) -> str:
    """As docs/results/simulation.md has them."""
    head = (
        "| pair | unseen | n | noise | before | after | median after | predicted | interval | "
        "error |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    trivial = "| pair | edit | sum of kernels | subtraction |\n|---|---|---|---|"
    lines = [head, *map(_line, results), "", trivial, *map(_trivial_line, results), ""]
    refused = (f"{r.name}: not predicted, {r.reason}" for r in results if r.reason)
    return "\n".join([*lines, *refused]).rstrip()


def _ms(ns: float | None) -> str:
    return "-" if ns is None else f"{ns / 1e6:.2f}"


def _line(r: Result) -> str:
    cells = [r.name, "no" if r.seen else "yes", str(r.steps), _ms(r.noise_ns), _ms(r.before_ns)]
    cells += [_ms(r.after_ns), _ms(r.after_median_ns), _ms(r.predicted_ns)]
    cells += ["refused" if r.low_ns is None else f"{_ms(r.low_ns)} to {_ms(r.high_ns)}"]
    return f"| {' | '.join([*cells, '-' if r.error is None else f'{r.error:+.1%}'])} |"


def _trivial_line(r: Result) -> str:
    def off(ns: float) -> str:
        return _ms(ns) if r.after_ns is None else f"{_ms(ns)} ({ns / r.after_ns - 1:+.1%})"

    cells = [r.name, f"`{r.edits}`", off(r.sum_of_kernels_ns), off(r.subtraction_ns)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    options = parser.parse_args()
    folder = default_corpus()
    results = [predict(pair, folder) for pair in PAIRS if (folder / pair.before).exists()]
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        print(tables(results))


if __name__ == "__main__":
    main()
