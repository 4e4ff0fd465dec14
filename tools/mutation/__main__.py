#!/usr/bin/env python3
"""Do the tests notice small wrong changes? `tools/mutation map`, then `tools/mutation run`.

`map` runs the tests once and notes which runs which line. `run` draws changes to the sources, runs
for each the tests of its lines, and says which changes no test noticed. The real traces are never
used: what counts is what a plain clone tests.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parents[1] / "python"),
    str(HERE.parents[1] / "tests" / "python"),
]
os.environ["TORCHTRACEAP_CORPUS"] = os.devnull

from mutants import Mutant, draw, mutants_of  # noqa: E402
from tests_of_lines import (  # noqa: E402
    ROOT,
    SUITE,
    Chooser,
    LineMap,
    record,
    same_examples_each_time,
)
from trial import Outcome, try_mutant, warm_up  # noqa: E402

PACKAGE = Path("python/torchtraceap")
TARGETS = ("analysis", "simulation", "columns.py", "table.py", "event_frame.py")
KNOWN = HERE / "known_survivors.json"  # survivors that no test should kill, with the reason
_GOALS = {"killed": True, "timeout": True, "survived": False, "untested": False}


def main() -> int:
    options = _options()
    os.chdir(ROOT)
    sources = _sources(options.target)
    if options.task == "map":
        recorded = record(sources, options.tests or list(SUITE))
        if options.tests and options.map.exists():
            recorded = _renewed(LineMap.read(options.map), recorded, options.tests)
        recorded.write(options.map)
        return 0
    recorded = LineMap.read(options.map)
    if stale := recorded.stale(set(sources)):
        print(f"changed since `map`: {', '.join(stale)}", file=sys.stderr)
        return 2
    return _run(options, sources, recorded)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/mutation", description=__doc__)
    parser.add_argument("task", choices=("map", "run"))
    parser.add_argument("tests", nargs="*", help="map: only these, into a map that exists")
    parser.add_argument("--target", action="append", help="file or folder in the package")
    parser.add_argument("--map", type=Path, default=ROOT / "build" / "mutation" / "map.json")
    parser.add_argument("--count", type=int, default=400, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for one mutant")
    parser.add_argument("--only", help="part of a mutant's key: `steps.py::build_steps`")
    parser.add_argument("--again", type=Path, help="only the survivors of this result")
    parser.add_argument("--out", type=Path, help="JSON with the result")
    return parser.parse_args()


def _sources(targets: list[str] | None) -> list[Path]:
    found: set[Path] = set()
    for target in targets or TARGETS:
        path = PACKAGE / target
        found |= (
            set(path.rglob("*.py")) if path.is_dir() else {path} & set(path.parent.glob("*.py"))
        )
    return sorted(found)


def _renewed(old: LineMap, new: LineMap, files: list[str]) -> LineMap:
    for test in list(old.lines):
        if any(test.startswith(file) for file in files):
            del old.lines[test]
    old.lines.update(new.lines)
    old.seconds.update(new.seconds)
    return old


def _run(options: argparse.Namespace, sources: list[Path], recorded: LineMap) -> int:
    same_examples_each_time()
    warm_up()
    mutants = [mutant for source in sources for mutant in mutants_of(source, source)]
    drawn = draw(mutants, options.count, options.seed)
    if options.only:
        drawn = [mutant for mutant in mutants if options.only in mutant.key]
    if options.again:
        before = {
            s["key"] for s in json.loads(options.again.read_text(encoding="utf-8"))["survivors"]
        }
        drawn = [mutant for mutant in drawn if mutant.key in before]
    chooser = Chooser(recorded)
    began = time.monotonic()
    results: list[tuple[Mutant, Outcome]] = []
    for mutant in drawn:
        if len(results) % 50 == 49:
            print(f"{len(results) + 1} of {len(drawn)}", flush=True)
        batches = chooser.batches(mutant, options.budget)
        outcome = try_mutant(mutant, batches, chooser.seconds(batches))
        results.append((mutant, outcome))
        if not _GOALS[outcome.verdict]:
            where = f"{mutant.path}:{mutant.line}"
            print(f"{outcome.verdict} {where} [{outcome.tests}] {mutant.key}", flush=True)
    report = _report(mutants, results, time.monotonic() - began)
    print(_table(report))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def _report(
    mutants: list[Mutant], results: list[tuple[Mutant, Outcome]], seconds: float
) -> dict[str, Any]:
    known = json.loads(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {}
    sites = Counter(str(mutant.path) for mutant in mutants)
    modules: dict[str, Counter[str]] = {}
    for mutant, outcome in results:
        of_module = modules.setdefault(str(mutant.path), Counter(sites=sites[str(mutant.path)]))
        of_module.update(["drawn", outcome.verdict])
    totals: Counter[str] = sum((counts for counts in modules.values()), Counter())
    survivors = [
        {
            "key": mutant.key,
            "verdict": outcome.verdict,
            "at": f"{mutant.path}:{mutant.line}",
            "function": mutant.function,
            "operator": mutant.operator,
            "change": mutant.change,
            "tests": outcome.tests,
            "reason": known.get(mutant.key),
        }
        for mutant, outcome in results
        if not _GOALS[outcome.verdict]
    ]
    noticed = totals["killed"] + totals["timeout"]
    unexplained = totals["drawn"] - sum(survivor["reason"] is not None for survivor in survivors)
    return {
        "command": " ".join(["python", "tools/mutation", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "python": platform.python_version(),
        "seconds": round(seconds, 1),
        "totals": dict(totals),
        "killed_share": round(noticed / max(totals["drawn"], 1), 4),
        "killed_share_without_known": round(noticed / max(unexplained, 1), 4),
        "modules": {module: dict(counts) for module, counts in sorted(modules.items())},
        "survivors": survivors,
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _table(report: dict[str, Any]) -> str:
    columns = ("sites", "drawn", "killed", "timeout", "survived", "untested")
    lines = [f"{'':44}" + "".join(f"{name:>10}" for name in columns)]
    for module, counts in [*report["modules"].items(), ("all", report["totals"])]:
        lines.append(f"{module:44}" + "".join(f"{counts.get(name, 0):>10}" for name in columns))
    lines.append(f"noticed: {report['killed_share']:.1%} in {report['seconds']} s")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
