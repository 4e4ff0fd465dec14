#!/usr/bin/env python3
"""Measure false alarms and power of `torchtraceap ci` on drawn times and on kept runs.

Drawn are the machines of `machines.py` and a loud one, whose pairs run one side after the other;
the clock alone, and with retired instructions whose runs differ by 0.2 %, as where they are
counted. Replayed are the pairs of `measure.py`, from a drawn place on: those in which both sides
are the same program (as either could have been called the head, each sign is drawn anew), the same
with +5 % added, and those whose head really does 3 % more work.

Usage: pull_requests.py [--kept FILE] [--trials 2000] [--seed 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from machines import MACHINES, Machine

from torchtraceap.core.aliases import Array
from torchtraceap.lab.bench.ci import LOOKS, Question
from torchtraceap.lab.bench.revisions import Revision
from torchtraceap.lab.bench.statistics.sequential import (
    EQUIVALENT,
    FASTER,
    SLOWER,
    UNDECIDED,
    VERDICTS,
    Plan,
    abba,
    judge,
    log_ratios,
)

EFFECTS = (0.0, 0.03, 0.05)
MANY = 10
"""Times as many comparisons where nothing changed: alarms are rare."""
KINDS = {**MACHINES, "loud": Machine(run=0.05, drift=0.05, slow=0.1)}
INSTRUCTIONS = 0.002
PLAN: Plan = Question(Revision("base"), Revision("head"), ()).plan


def decide(measures: list[Array]) -> tuple[Array, Array]:
    """Return verdicts and pairs of many comparisons, of which the first measure is the clock.

    The rule is that of `Sequential.decided_by`, for all rows at once; a test compares the two.
    """
    rows, most = measures[0].shape
    code, used = np.full(rows, UNDECIDED), np.full(rows, min(most, LOOKS[-1]))
    open_ = np.arange(rows)
    for number, pairs in enumerate(LOOKS):
        if pairs > most:
            break
        clock, _, best, _, _ = judge(measures[0][open_, :pairs], PLAN, number)
        found = clock.copy()
        points = np.where(best > 0, SLOWER, FASTER)
        is_large = np.abs(best) >= PLAN.least_share * PLAN.bound
        for other in measures[1:]:
            said = judge(other[open_, :pairs], PLAN, number)[0]
            found = np.where((found == UNDECIDED) & is_large & (said == points), said, found)
        decided = found != UNDECIDED
        code[open_[decided]], used[open_[decided]] = found[decided], pairs
        open_ = open_[~decided]
    return code, used


def told(code: Array, used: Array) -> dict[str, Any]:
    shares = np.bincount(code, minlength=len(VERDICTS)) / len(code)
    return {
        "comparisons": len(code),
        **{VERDICTS[each]: float(shares[each]) for each in (SLOWER, FASTER, EQUIVALENT, UNDECIDED)},
        "pairs": float(used.mean()),
        "pairs_of_95_percent": int(np.quantile(used, 0.95)),
    }


def drawn(name: str, trials: int, seed: int) -> list[dict[str, Any]]:
    rows = []
    for effect in EFFECTS:
        generator = np.random.default_rng([seed, round(1000 * effect)])
        count = trials * (1 if effect else MANY)
        clock, quiet = [], []
        for _ in range(0, count, 500):  # so many at once fit into memory
            logs = KINDS[name].logs(500, 2 * LOOKS[-1], generator)
            clock.append(log_ratios(logs, abba(LOOKS[-1], generator, 500)))
            quiet.append(generator.normal(0, INSTRUCTIONS * 2**0.5, (500, LOOKS[-1])))
        for what, others in (("clock", 0), ("clock and instructions", 1)):
            found = [
                decide([each + np.log1p(effect) for each in (a, b)[: 1 + others]])
                for a, b in zip(clock, quiet, strict=True)
            ]
            code, used = (np.concatenate(parts) for parts in zip(*found, strict=True))
            rows.append({"machine": name, "effect": effect, "by": what, **told(code, used)})
    return rows


def replayed(kept: Path, comparisons: int, seed: int) -> list[dict[str, Any]]:
    """Compare a program with itself, by kept pairs with signs drawn anew."""
    rounds = json.loads(kept.read_text("utf-8"))["rounds"]
    rows = []
    for program in sorted({each["program"] for each in rounds}):
        own = [each["runs"] for each in rounds if each["program"] == program]
        for effect in EFFECTS:
            # The +3 % of the kept runs is real: their step does so many more units of work.
            variant = "+3 %" if effect == 0.03 else "same"
            ratios = np.array([each[variant]["log_ratio"] for each in own])
            generator = np.random.default_rng([seed, len(program)])
            most = max(look for look in LOOKS if look <= len(ratios))
            starts = generator.integers(0, len(ratios) - most + 1, comparisons)
            windows = ratios[starts[:, None] + np.arange(most)]
            if variant == "same":
                windows = windows * generator.choice((-1.0, 1.0), windows.shape) + np.log1p(effect)
            found = told(*decide([windows]))
            rows.append({"program": program, "effect": effect, "kept_pairs": len(ratios), **found})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--comparisons", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = [row for name in KINDS for row in drawn(name, given.trials, given.seed)]
    if given.kept:
        rows += replayed(given.kept, given.comparisons, given.seed)
    for row in rows:
        print(json.dumps(row))
    if given.json:
        document = {"looks": LOOKS, "alpha_of_each_measure": PLAN.alpha, "seed": given.seed}
        given.json.write_text(json.dumps({**document, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
