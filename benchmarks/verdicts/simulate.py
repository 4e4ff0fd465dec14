#!/usr/bin/env python3
"""Rules on made-up machines, whose noise is known: false alarms and power.

The machines are those of `machines.py`; steps within a run differ by 1 %. Also what conditions on
size do (see Note [Significant and small]), and the test alone without them.

Usage: simulate.py [--trials 20000] [--seed 1]
"""

from __future__ import annotations

import argparse

import numpy as np
from machines import MACHINES, Machine

from torchtraceap.core.aliases import Array
from torchtraceap.lab.bench.statistics.rules import RULES, Rule
from torchtraceap.lab.bench.statistics.sequential import (
    VERDICTS,
    Plan,
    abba,
    decide_many,
    log_ratios,
)

EFFECTS = (0.0, 0.01, 0.02, 0.03, 0.05)
PAIRS = 40
SAME_TIMES = 5
"""Times as many comparisons where nothing changed: alarms are rare."""
STEP_NOISE = 0.01
STEPS = 10
RULE_TRIALS = 2000
KINDS = {
    **MACHINES,
    "drift that bends (worst for ABBA)": Machine(run=0.0, drift=0.01, slow=0.0, memory=0.5),
    "loud": Machine(run=0.05, drift=0.05, slow=0.1),
}


def drawn(machine: Machine, trials: int, seed: int) -> Array:
    """Log ratios of A/A comparisons, `[trials, pairs]`."""
    generator = np.random.default_rng(seed)
    logs = machine.logs(trials, 2 * PAIRS, generator)
    return log_ratios(logs, abba(PAIRS, generator, trials))


def shares(ratios: Array, effect: float, plan: Plan) -> tuple[dict[str, float], float]:
    code, used = decide_many(ratios + np.log1p(effect), plan)
    found = np.bincount(code, minlength=len(VERDICTS)) / len(code)
    return dict(zip(VERDICTS, found.tolist(), strict=True)), float(used.mean())


def fewer(ratios: Array) -> Array:
    return ratios[: len(ratios) // SAME_TIMES]


def ours(name: str, ratios: Array) -> None:
    print(f"### {name}: ours, minimal effect 2 %, alpha 1 %\n")
    print("| true effect | slower | faster | equivalent | undecided | pairs |")
    print("|---|---|---|---|---|---|")
    for effect in EFFECTS:
        found, used = shares(ratios if not effect else fewer(ratios), effect, Plan())
        words = " | ".join(
            f"{100 * found[each]:.2f} %" for each in ("slower", "faster", "equivalent", "undecided")
        )
        print(f"| {100 * effect:.0f} % | {words} | {used:.1f} |")
    print()


def conditions(name: str, ratios: Array) -> None:
    """What an estimate of half the minimal effect, and equivalence, change."""
    plans = {
        "as it is": Plan(),
        "any size": Plan(least_share=0.0),
        "the whole minimal effect": Plan(least_share=1.0),
        "the test alone": Plan(minimal_effect=1e-9, least_share=0.0),
    }
    print(f"### {name}: an alarm needs an estimate of\n")
    print("| condition | alarms at 0 % | slower at 2 % | at 3 % |")
    print("|---|---|---|---|")
    for title, plan in plans.items():
        same, _ = shares(ratios, 0.0, plan)
        two, three = (shares(fewer(ratios), effect, plan)[0]["slower"] for effect in (0.02, 0.03))
        alarms = same["slower"] + same["faster"]
        print(f"| {title} | {100 * alarms:.2f} % | {100 * two:.1f} % | {100 * three:.1f} % |")
    print()


def others(name: str, machine: Machine, seed: int) -> None:
    print(f"### {name}: other rules, A block before B block\n")
    print("| rule | " + " | ".join(f"{100 * effect:.0f} %" for effect in EFFECTS) + " |")
    print("|---|" + "---|" * len(EFFECTS))
    for rule in RULES.values():
        cells = [f"{100 * alarms(rule, machine, effect, seed):.1f} %" for effect in EFFECTS]
        print(f"| {rule.name} | {' | '.join(cells)} |")
    print()


def alarms(rule: Rule, machine: Machine, effect: float, seed: int) -> float:
    """Of any kind where there is no effect, else slower."""
    generator = np.random.default_rng(seed)
    logs = machine.logs(RULE_TRIALS, 2 * rule.runs, generator)
    logs[:, rule.runs :] += np.log1p(effect)
    size = (RULE_TRIALS, 2 * rule.runs, STEPS)
    steps = np.exp(logs[..., None] + generator.normal(0, STEP_NOISE, size))
    wanted = ("slower",) if effect else ("slower", "faster")
    said = (rule.say(list(each[: rule.runs]), list(each[rule.runs :]))[0] for each in steps)
    return sum(word in wanted for word in said) / RULE_TRIALS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(
        f"{options.trials} comparisons each, at 0 % {SAME_TIMES} times as many, of other rules "
        f"{RULE_TRIALS}; seed {options.seed}\n"
    )
    for name, machine in KINDS.items():
        ratios = drawn(machine, SAME_TIMES * options.trials, options.seed)
        ours(name, ratios)
        conditions(name, ratios)
        others(name, machine, options.seed)


if __name__ == "__main__":
    main()
