"""Which figure notices what: replays of real traces with durations and dependencies spoilt.

    python benchmarks/simulation/sabotage.py [CORPUS] [--each] [--output FILE]

A figure that stays good whatever is done to the graph proves nothing. So every trace of the corpus
is replayed as it is, with all GPU work at 0, 0.5 and 2 times, all host work at 0 and 2 times, and
with every edge of one kind dropped; each time all figures are taken that say how good a replay is:

- *in-sample*: the host's range of a step, replayed from the run's own durations (what is mostly
  published as replay error);
- *iteration*: the same of the iteration that predictions use;
- *held out*: each step with what the others cost, where a trace has two or more;
- *GPU*, *host*: what share of the step reacts to the work of either.

Note [Noticed]: an error notices what brings it beyond 5 % (held out: beyond 10 % and three times
the noise of the steps) in a trace where it is within that as things are; a share what moves it by
ten points. `missed` are the traces in which an edit is predicted on a spoilt graph and none of the
figures says so: all of them stay, though the predicted step without GPU work, or without host work,
is not the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from corpus import default_corpus, runs
from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.simulation.run import KINDS, SimulatedRun

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

__all__ = ["Figures", "Sabotage", "figures_of", "sabotages"]

MOST_ERROR = 0.05
MOST_HELD_OUT, MOST_NOISES = 0.10, 3.0
MOST_SHIFT = 0.10
_OWN = ("execution", "program_order")
_STEP = 0.05


@dataclass(frozen=True)
class Sabotage:
    """Durations of some edges times a factor, or edges dropped."""

    name: str
    edges: Array
    factor: float = 1.0
    drops: bool = False

    def delta(self, lags_ns: Array | None = None) -> _core.GraphDelta:
        """Of the run with these lags, or its own."""
        delta = _core.GraphDelta()
        if lags_ns is not None:
            lags = lags_ns.copy()
            lags[self.edges] = np.rint(lags[self.edges] * self.factor)
            delta.set_lags(np.arange(len(lags)), lags)
        if self.drops:
            delta.drop_all(self.edges)
        return delta


@dataclass(frozen=True)
class Figures:
    """What would be told of a run; errors are shares, None where they can't be had."""

    trace: str
    sabotage: str
    in_sample: float
    iteration: float
    held_out: float | None
    baseline: float | None
    """The mean of the other steps, as a prediction."""
    noise: float | None
    gpu_share: float
    host_share: float
    fixed_ns: tuple[float, float]
    """The step with half of the GPU's work, and with half of the host's."""


def sabotages(run: SimulatedRun) -> Iterator[Sabotage]:
    """None at first; edges of kinds that the run has."""
    yield Sabotage("as it is", run.edges_of())
    gpu, host = run.edges_of("execution"), run.edges_of("program_order")
    for factor in (0.0, 0.5, 2.0):
        yield Sabotage(f"GPU work x {factor:g}", gpu, factor)
    for factor in (0.0, 2.0):
        yield Sabotage(f"host work x {factor:g}", host, factor)
    for kind in KINDS:
        edges = run.edges_of(kind)
        if kind not in _OWN and len(edges):
            yield Sabotage(f"without {kind}", edges, drops=True)


def figures_of(run: SimulatedRun, name: str, sabotage: Sabotage) -> Figures:
    """All figures of the spoilt run against what was measured."""
    lags = run.graph.lag_ns
    delta = sabotage.delta(lags)
    measured = run.steady_ns()
    iteration = run.steady_ns(delta, with_residuals=False) / measured - 1 if measured else 0.0
    held_out, baseline, noise = _held_out(run, sabotage)
    gpu_share, host_share, *fixed = _reactions(run, sabotage)
    return Figures(
        name, sabotage.name, _in_sample(run, delta), iteration, held_out, baseline, noise,
        gpu_share, host_share, (fixed[0], fixed[1]),
    )  # fmt: skip


def _in_sample(run: SimulatedRun, delta: _core.GraphDelta) -> float:
    """Median over the steps' host ranges."""
    times, before = run.replay(delta, with_residuals=False), run.graph.time_ns
    ranges = [(times[s.end] - times[s.begin], before[s.end] - before[s.begin]) for s in run.steps]
    errors = [got / known - 1 for got, known in ranges if known]
    return float(np.median(errors)) if errors else 0.0


def _held_out(
    run: SimulatedRun, sabotage: Sabotage
) -> tuple[float | None, float | None, float | None]:
    """Error, that of the mean of the other steps, and the noise of the steps: means over steps."""
    counted = np.array([step.counted for step in run.steps], dtype=bool)
    ranks = np.array([step.rank for step in run.steps], dtype=np.int64)
    several = counted & (np.bincount(ranks[counted], minlength=len(run.ranks))[ranks] > 1)
    tested = np.flatnonzero(several & (run.measured_ns > 0))
    if not run.per_step or not len(tested):
        return None, None, None
    number = np.full(len(counted) + 1, _core.NO_ROW, dtype=np.uint32)
    number[np.flatnonzero(counted)] = np.arange(counted.sum())
    steps = number[np.minimum(run.step_of_point, len(counted))]
    lags = _core.held_out_lags(run.graph, steps, int(counted.sum()))
    replayed = run.lengths_ns([sabotage.delta(lags)], with_residuals=False)[0, tested]
    known = run.measured_ns[tested].astype(np.float64)
    others, noise = _other_steps(known, ranks[tested])
    error = float(np.abs(replayed / known - 1).mean())
    return error, float(np.abs(others / known - 1).mean()), noise


def _other_steps(known: Array, ranks: Array) -> tuple[Array, float]:
    """The mean of the rank's other steps, by step; the mean coefficient of variation."""
    count, sums = np.bincount(ranks)[ranks], np.bincount(ranks, known)[ranks]
    of_rank = [known[ranks == rank] for rank in np.unique(ranks)]
    noise = [float(lengths.std(ddof=1) / lengths.mean()) for lengths in of_rank]
    return (sums - known) / (count - 1), float(np.mean(noise))


def _reactions(run: SimulatedRun, sabotage: Sabotage) -> list[float]:
    """Shares of GPU and host by central differences, and the step with half of either's work."""
    deltas = []
    spoilt = run.cost_ns.copy()
    spoilt[sabotage.edges] = np.rint(spoilt[sabotage.edges] * sabotage.factor)
    for kind in _OWN:
        edges = run.edges_of(kind)
        for scale in (1 - _STEP, 1 + _STEP, 0.5):
            lags = spoilt.copy()
            lags[edges] = np.rint(lags[edges] * scale)
            delta = _core.GraphDelta()
            delta.set_lags(np.arange(len(lags)), lags)
            if sabotage.drops:
                delta.drop_all(sabotage.edges)
            deltas.append(delta)
    less_gpu, more_gpu, half_gpu, less_host, more_host, half_host = run.replays(
        deltas
    ).steady_ns.tolist()
    before = max((less_gpu + more_gpu) / 2, 1.0)
    shares = [(more - less) / (2 * _STEP * before) for less, more in
              ((less_gpu, more_gpu), (less_host, more_host))]  # fmt: skip
    return [*shares, half_gpu, half_host]


# ------------------------------------------------------------------------- what notices what


FIGURES = ("in_sample", "iteration", "held_out", "gpu_share", "host_share")


def noticed(before: Figures, after: Figures, figure: str) -> bool | None:
    """See Note [Noticed]; None where the figure can't be had, or is bad as things are."""
    was, now = getattr(before, figure), getattr(after, figure)
    if was is None or now is None:
        return None
    if figure.endswith("_share"):
        return bool(abs(now - was) > MOST_SHIFT)
    most = MOST_ERROR
    if figure == "held_out":
        most = max(MOST_HELD_OUT, MOST_NOISES * (before.noise or 0.0))
    return None if abs(was) > most else bool(abs(now) > most)


def _matters(before: Figures, after: Figures) -> bool:
    """Predictions on the spoilt graph differ: by more than 5 % of a step."""
    pairs = zip(before.fixed_ns, after.fixed_ns, strict=True)
    return any(abs(now - was) > MOST_ERROR * max(was, 1.0) for was, now in pairs)


def table(found: list[Figures]) -> str:
    """Return the table of docs/results/simulation.md: traces in which a figure notices sabotage."""
    as_is = {figures.trace: figures for figures in found if figures.sabotage == "as it is"}
    names = dict.fromkeys(figures.sabotage for figures in found)
    head = (
        "| spoilt | traces | matters | in-sample | iteration | held out | GPU share | host share | "
        "matters, unnoticed |\n|---|---|---|---|---|---|---|---|---|"
    )
    lines = [head]
    for name in list(names)[1:]:
        pairs = [(as_is[f.trace], f) for f in found if f.sabotage == name]
        lines.append(_line(name, pairs))
    return "\n".join(lines)


def _line(name: str, pairs: list[tuple[Figures, Figures]]) -> str:
    matter = [pair for pair in pairs if _matters(*pair)]
    cells = [name, str(len(pairs)), str(len(matter))]
    for figure in FIGURES:
        seen = [noticed(*pair, figure) for pair in matter]
        known = [bool(answer) for answer in seen if answer is not None]
        cells.append(f"{sum(known)} of {len(known)}")
    missed = sum(not any(noticed(*pair, figure) for figure in FIGURES[1:]) for pair in matter)
    return f"| {' | '.join([*cells, str(missed)])} |"


def each(found: list[Figures]) -> str:
    """A line for each trace and sabotage."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.2%}"

    lines = [f"{'trace':46} {'spoilt':26} in-sample iteration held-out baseline noise gpu host"]
    for f in found:
        figures = (f.in_sample, f.iteration, f.held_out, f.baseline, f.noise)
        shares = f"{f.gpu_share:.2f} {f.host_share:.2f}"
        lines.append(f"{f.trace[-46:]:46} {f.sabotage:26} {' '.join(map(share, figures))} {shares}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("corpus", type=Path, nargs="?", default=default_corpus())
    parser.add_argument("--each", action="store_true", help="every trace, besides the table")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found = [
        figures_of(run, name, sabotage)
        for name, run in runs(options.corpus)
        if run.steps and run.measured_ns.any()
        for sabotage in sabotages(run)
    ]
    if options.each:
        print(each(found))
    print(table(found))
    if options.output:
        write_results(options.output, indent=None, figures=[asdict(each) for each in found])


if __name__ == "__main__":
    main()
