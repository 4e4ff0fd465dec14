#!/usr/bin/env python3
"""How often `bench bisect` names the culprit of planted git histories.

    PYTHONPATH=python .venv/bin/python benchmarks/bisect/measure.py [--out FILE]

Twenty histories (`made_histories.py`) of 8 to 24 commits, made from seeds: a culprit of +6 to
+20 % at a random place, neutral edits, some with a commit that doesn't run. Each is bisected, and
once more the way of TorchBench: one run for each commit, 7 % between two is a change. What is done
is kept in `--work`, so the program goes on after an interruption where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from made_histories import Planted, make_history

from torchtraceap.lab.bench.bisect import Settings, bisect
from torchtraceap.lab.bench.revisions import Repository, Revision, UnusableRevisionError
from torchtraceap.lab.bench.rounds import Journal, RevisionRuns

SINGLE_THRESHOLD = 0.07
TORCHBENCH = "one run each, 7 %"
OURS = "bench bisect"


def single_runs(line: list[Revision], runner: RevisionRuns) -> tuple[set[int], int]:
    """Culprits by one run for each revision, halving wherever the ends of a part differ."""
    taken: dict[int, int] = {}

    def ns(place: int) -> int | None:
        if place not in taken:
            try:
                taken[place] = runner.measure(line[place])
            except UnusableRevisionError:
                taken[place] = 0
            runner.drop(line[place])
        return taken[place] or None

    def culprits(first: int, last: int) -> set[int]:
        before, after = ns(first), ns(last)
        if before is None or after is None or abs(after / before - 1) <= SINGLE_THRESHOLD:
            return set()
        if last - first == 1:
            return {last}
        middle = (first + last) // 2
        while ns(middle) is None and middle > first + 1:
            middle -= 1
        if ns(middle) is None:
            return {last} if last - first <= 2 else culprits(first + 2, last)
        return culprits(first, middle) | culprits(middle, last)

    return culprits(0, len(line) - 1), len(taken)


def judged(planted: Planted, work: Path) -> dict[str, Any]:
    repository = Repository(planted.folder)
    line = repository.range(f"{planted.commits[0]}..{planted.commits[-1]}")
    program = [sys.executable, "program.py"]
    with repository.checkouts() as checkouts:
        runner = RevisionRuns(checkouts, program, timeout_s=120, kept=[line[0], line[-1]])
        state = work / f"{planted.seed}.state.jsonl"
        started = time.perf_counter()
        journal = Journal(state, {"history": planted.seed})
        found = bisect(line, runner, Settings(seed=planted.seed), journal=journal)
        seconds = time.perf_counter() - started
        started = time.perf_counter()
        single, single_count = single_runs(line, runner)
        single_seconds = time.perf_counter() - started
    place = next((i for i, r in enumerate(line) if r == found.culprit), None)
    return {
        "seed": planted.seed,
        "kind": planted.kind,
        "commits": len(line),
        "culprit": planted.culprit,
        "effect": round(planted.effect, 4),
        "broken": planted.broken,
        "load": round(os.getloadavg()[0], 1),
        OURS: {
            "answer": _answer(found.verdict, place, planted, [line.index(r) for r in found.range]),
            "verdict": found.verdict,
            "place": place,
            "range": [line.index(revision) for revision in found.range],
            "several_steps": found.several_steps,
            "change": found.change.to_dict() if found.change else None,
            "runs": found.runs,
            "seconds": round(seconds, 1),
        },
        TORCHBENCH: {
            "answer": _single_answer(single, planted),
            "places": sorted(single),
            "runs": single_count,
            "seconds": round(single_seconds, 1),
        },
    }


def _answer(verdict: str, place: int | None, planted: Planted, inside: list[int]) -> str:
    if verdict == "found":
        return "right" if place == planted.culprit else "wrong"
    if verdict == "range":
        if planted.culprit not in inside:
            return "wrong"
        # Nobody can tell a culprit from the broken commit before it.
        beside = planted.broken is not None and set(inside) == {planted.broken, planted.culprit}
        return "right" if beside else "range"
    return "abstained"


def _single_answer(single: set[int], planted: Planted) -> str:
    if not single:
        return "abstained"
    return "right" if single == {planted.culprit} else "wrong"


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    told = {}
    for way in (OURS, TORCHBENCH):
        answers = [row[way]["answer"] for row in rows]
        told[way] = {
            **{word: answers.count(word) for word in ("right", "range", "abstained", "wrong")},
            "share_right": round(answers.count("right") / max(1, len(rows)), 3),
            "runs": sum(row[way]["runs"] for row in rows),
            "seconds": round(sum(row[way]["seconds"] for row in rows), 1),
        }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0..19", help="first and last seed [0..19]")
    parser.add_argument("--work", default="out/bisect", help="what is made and kept [out/bisect]")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("..")
    work = Path(options.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in range(int(first), int(last or first) + 1):
        kept = work / f"{seed}.json"
        if not kept.exists():
            folder = work / f"history{seed}"
            planted = make_history(seed, folder) if not folder.exists() else remade(seed, work)
            kept.write_text(json.dumps(judged(planted, work)), encoding="utf-8")
        row = json.loads(kept.read_text("utf-8"))
        rows.append(row)
        ours, single = row[OURS], row[TORCHBENCH]
        print(f"{seed:>3} {row['kind']:<7}{row['commits']:>3} commits {100 * row['effect']:>5.1f} %"
              f"  {ours['answer']:<10}{ours['runs']:>5} runs {ours['seconds']:>7.1f} s"
              f"   one run each: {single['answer']}", flush=True)  # fmt: skip
    told = summary(rows)
    print(json.dumps(told, indent=1))
    if options.out:
        document = {
            "command": " ".join(["benchmarks/bisect/measure.py", *sys.argv[1:]]),
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{platform.machine()}, {os.cpu_count()} processors",
            "summary": told,
            "histories": rows,
        }
        Path(options.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def remade(seed: int, work: Path) -> Planted:
    """A history that an interrupted run has begun to make is made anew: it has the same commits."""
    import shutil

    shutil.rmtree(work / f"history{seed}")
    return make_history(seed, work / f"history{seed}")


if __name__ == "__main__":
    main()
