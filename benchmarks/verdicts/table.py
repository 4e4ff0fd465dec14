#!/usr/bin/env python3
"""What each rule says of the runs that `measure.py` took, as tables of Markdown.

Usage: table.py [FILE.json] [--into PAGE.md]

Without a file, the newest of benchmarks/results; with a page, between its marks.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.writing import write_text
from torchtraceap.lab.bench.comparison.calibrate import build_calibration, share_of
from torchtraceap.lab.bench.statistics.rules import RULES, Rule
from torchtraceap.lab.bench.statistics.sequential import VERDICTS, Plan, decide, decide_many

RESULTS = Path(__file__).resolve().parents[1] / "results"
COMPARED = {"0 %": "same", "+2 %": "+2 %", "+3 %": "+3 %"}
PLAN = Plan()
Runs = dict[str, list[dict[str, Any]]]


def newest() -> Path:
    found = sorted(RESULTS.glob("*-verdicts.json"))
    if not found:
        sys.exit("no results: run measure.py")
    return found[-1]


def runs_of(document: dict[str, Any], program: str) -> Runs:
    """Of each variant, one run for each round, in the order of time."""
    rounds = [each for each in document["rounds"] if each["program"] == program]
    rounds.sort(key=lambda each: each["round"])
    return {variant: [r["runs"][variant] for r in rounds] for variant in rounds[0]["runs"]}


def medians(runs: list[dict[str, Any]]) -> Array:
    return np.array([run["median_ns"] for run in runs], np.float64)


def ours(runs: Runs, after: str) -> tuple[dict[str, float], float, int]:
    """Shares of verdicts over all windows of successive rounds, mean pairs, windows."""
    ratios = np.array([run["log_ratio"] for run in runs[after]])
    pairs = PLAN.looks[-1]
    windows = np.lib.stride_tricks.sliding_window_view(ratios, pairs)
    code, used = decide_many(windows, PLAN)
    shares = np.bincount(code, minlength=len(VERDICTS)) / len(code)
    return dict(zip(VERDICTS, shares.tolist(), strict=True)), float(used.mean()), len(code)


def rule_alarms(rule: Rule, runs: Runs, after: str) -> tuple[int, int]:
    """Alarms and comparisons: A from some rounds, B from those behind (one run a side: the same
    round, in the order in which it ran)."""
    a, b = ([np.array(r["step_ns"], float) for r in runs[side]] for side in ("unchanged", after))
    ahead = 0 if rule.runs == 1 else rule.runs
    starts = range(len(a) - ahead - rule.runs + 1)
    said = [rule.say(a[s : s + rule.runs], b[s + ahead : s + ahead + rule.runs])[0] for s in starts]
    wanted = ("slower", "faster") if after == "same" else ("slower",)
    return sum(word in wanted for word in said), len(said)


def program_table(document: dict[str, Any], program: str) -> list[str]:
    runs = runs_of(document, program)
    rounds = len(runs["unchanged"])
    if rounds < PLAN.looks[-1]:
        return [f"{program}: {rounds} rounds are too few for {PLAN.looks[-1]} pairs", ""]
    lines = [
        f"### {program}: {rounds} rounds, {6 * rounds} fresh processes",
        "",
        *planted(runs),
        "",
        "| rule | " + " | ".join(COMPARED) + " | runs a side |",
        "|---|" + "---|" * (len(COMPARED) + 1),
    ]
    cells, used = [], []
    for after in COMPARED.values():
        shares, pairs, _ = ours(runs, after)
        flagged = shares["slower"] + (shares["faster"] if after == "same" else 0.0)
        cells.append(f"{100 * flagged:.1f} % ({100 * shares['undecided']:.1f} % undecided)")
        used.append(f"{pairs:.1f}")
    lines.append(f"| ours | {' | '.join(cells)} | {' / '.join(used)} |")
    for rule in RULES.values():
        cells = []
        for after in COMPARED.values():
            alarms, number = rule_alarms(rule, runs, after)
            cells.append(f"{100 * alarms / number:.1f} %")
        lines.append(f"| {rule.name} | {' | '.join(cells)} | {rule.runs} |")
    apart = rounds // PLAN.looks[-1]
    lines += [
        "",
        f"Of the 0 % column any alarm counts, of the others slower. A comparison begins at every "
        f"round: {rounds - PLAN.looks[-1] + 1} windows of {PLAN.looks[-1]} rounds, of which "
        f"{apart} stand apart ({rounds // PLAN.looks[0]} of those that the first look decides). "
        "Ours lets steps take turns. Other rules see single runs; those with several runs a side "
        "take A from some rounds and B from those behind, further apart than they would alone.",
        "",
        *again(runs, program),
    ]
    return lines


def planted(runs: Runs) -> list[str]:
    found = []
    for after in COMPARED.values():
        ratios = np.array([run["log_ratio"] for run in runs[after]])
        middle = float(np.median(ratios))
        spread = 1.4826 * float(np.median(np.abs(ratios - middle)))
        found.append(f"{after} {100 * np.expm1(middle):+.2f} % (1 sd {100 * spread:.2f} %)")
    return [f"Median of all pairs, each variant against unchanged: {', '.join(found)}."]


def again(runs: Runs, program: str) -> list[str]:
    """A/A by drawing orders anew, as `bench calibrate` does, of the unchanged runs alone."""
    steps = [
        np.array(run["step_ns"], float)
        for pair in zip(runs["unchanged"], runs["same"], strict=True)
        for run in pair
    ]
    ratios = np.array([run["log_ratio"] for run in runs["same"]])
    found = build_calibration(program, steps, ratios=ratios, comparisons=2000)
    alarms = found.false_alarms
    noise = found.noise
    least = "beyond 100 %" if found.least_effect is None else f"{100 * found.least_effect:.1f} %"
    return [
        f"Unchanged runs with orders drawn anew ({found.comparisons} comparisons over "
        f"{found.runs} runs, {found.windows} windows apart): {100 * alarms.value:.2f} % false "
        f"alarms ({100 * alarms.low:.2f} to {100 * alarms.high:.2f} %). Run to run "
        f"{100 * noise.run:.2f} %, drift {100 * noise.drift:.2f} % (1 sd), least effect that "
        f"{PLAN.looks[-1]} pairs find in 90 %: {least}.",
        "",
    ]


def apart(runs: Runs, after: str) -> tuple[int, int]:
    """Alarms among comparisons made one behind the other, and their number: each begins where the
    one before it was decided, as long as all pairs that it may want are there."""
    ratios = np.array([run["log_ratio"] for run in runs[after]])
    wanted = ("slower", "faster") if after == "same" else ("slower",)
    alarms = number = start = 0
    while start + PLAN.looks[-1] <= len(ratios):
        last = decide(ratios[start : start + PLAN.looks[-1]], PLAN)[-1]
        start += last.pairs
        number += 1
        alarms += last.verdict in wanted
    return alarms, number


def apart_lines(document: dict[str, Any], programs: list[str]) -> list[str]:
    lines = [
        "Comparisons that share no run (each begins where the one before was decided), both "
        "programs together, with exact 95 % intervals:",
        "",
    ]
    for title, after in COMPARED.items():
        counted = [apart(runs_of(document, program), after) for program in programs]
        count, of = (sum(each) for each in zip(*counted, strict=True))
        if of:
            share = share_of(count, of)
            lines.append(
                f"- {title}: {count} of {of} flagged "
                f"({100 * share.low:.0f} to {100 * share.high:.0f} %)"
            )
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    path = options.file or newest()
    document = json.loads(path.read_text("utf-8"))
    programs = sorted({each["program"] for each in document["rounds"]})
    load = np.median([each["load"] for each in document["rounds"]])
    cores = document["environment"]["cpu"]["cores"]
    lines = [f"{path.name}; median load {load:.1f} on {cores} processors.", ""]
    for program in programs:
        lines += program_table(document, program)
    text = "\n".join([*lines, *apart_lines(document, programs)])
    if options.into is None:
        print(text)
        return
    page = options.into.read_text("utf-8")
    before, mark, rest = page.partition("<!-- begin verdicts")
    opening, arrow, old = rest.partition("-->")
    _, end, after = old.partition("<!-- end verdicts")
    if not (mark and arrow and end):
        sys.exit(f"{options.into}: has no marks")
    write_text(options.into, f"{before}{mark}{opening}{arrow}\n\n{text}\n{end}{after}")


if __name__ == "__main__":
    main()
