#!/usr/bin/env python3
"""Measure on drawn histories how often the interval of a culprit's change holds the truth.

Times are drawn: noise from run to run, drift (autoregressive, 0.9), one run in twenty slow by 5 %
on average, each commit 0.1 % off its neighbors. For comparison the estimate at the look at which
the culprit was confirmed, as it was told before.

Usage: estimates.py [--histories 200]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.lab.bench.bisect import Change, Settings, bisect
from torchtraceap.lab.bench.revisions import Revision
from torchtraceap.lab.bench.rounds import Journal
from torchtraceap.lab.bench.statistics.sequential import look_at

NOISE = (0.005, 0.015, 0.03)


class Drawn:
    """Revisions whose times are drawn."""

    def __init__(self, levels: Array, sigma: float, seed: int) -> None:
        self.line = [Revision(f"{i:040x}", f"edit {i}") for i in range(len(levels))]
        self._levels = {r.id: float(level) for r, level in zip(self.line, levels, strict=True)}
        self._draw, self._sigma, self._drift = np.random.default_rng(seed), sigma, 0.0

    def measure(self, revision: Revision) -> int:
        draw, sigma = self._draw, self._sigma
        self._drift = 0.9 * self._drift + draw.normal() * sigma / 2
        slow = draw.exponential(0.05) if draw.random() < 0.05 else 0.0
        log = self._levels[revision.id] + sigma * draw.normal() + self._drift + slow
        return round(1e8 * math.exp(log))

    def measure_together(
        self, revisions: Sequence[Revision], order: Sequence[int], seed: int
    ) -> dict[str, int]:
        return {revisions[i].id: self.measure(revisions[i]) for i in order}

    def trace(self, revision: Revision, target: Path) -> Path | None:
        return None

    def count(self, revision: Revision, key: str, target: Path) -> int:
        raise NotImplementedError

    def drop(self, revision: Revision) -> None:
        pass


def early(journal: Journal, test: str, before: Revision, after: Revision, plan: Settings) -> Change:
    """The change as the look told it at which the culprit was confirmed."""
    for number, count in enumerate(plan.looks):
        rounds = [journal.round(test, each) or {} for each in range(count)]
        values = np.array([math.log(ns[after.id] / ns[before.id]) for ns in rounds])
        if look_at(values, plan, number).verdict != "undecided":
            break
    return Change.of(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=200)
    given = parser.parse_args()
    for sigma in NOISE:
        held, widths, bias, found = [0, 0], ([], []), ([], []), 0
        runs = []
        for seed in range(given.histories):
            draw = np.random.default_rng(seed)
            count = int(draw.integers(8, 25))
            place = int(draw.integers(1, count))
            levels = 0.001 * draw.normal(size=count)
            levels[place:] += math.log1p(float(draw.uniform(0.04, 0.12)))
            made, journal, plan = Drawn(levels, sigma, seed + 1000), Journal(None, {}), Settings()
            answer = bisect(made.line, made, plan, journal=journal)
            if answer.culprit != made.line[place] or answer.change is None:
                continue
            found += 1
            runs.append(answer.runs)
            truth = math.expm1(levels[place] - levels[place - 1])
            ends = made.line[place - 1], made.line[place]
            tests = [f"{attempt} confirm {place}" for attempt in (2, 1)]
            test = next(each for each in tests if journal.round(each, plan.looks[-1] - 1))
            for way, change in enumerate((early(journal, test, *ends, plan), answer.change)):
                low = -1.0 if change.low is None else change.low
                high = math.inf if change.high is None else change.high
                held[way] += low <= truth <= high
                widths[way].append(high - low)
                bias[way].append(change.best - truth)
        for way, name in enumerate(("at the deciding look", "up to the last look")):
            print(f"noise {100 * sigma:g} %, {name}: {held[way]} of {found} intervals hold the "
                  f"truth, median width {100 * np.median(widths[way]):.2f} %, "
                  f"bias {100 * np.mean(bias[way]):+.3f} %, {np.mean(runs):.0f} runs")  # fmt: skip


if __name__ == "__main__":
    main()
