"""Runs the fuzz targets: for some seconds, or until enough runs are counted.

    python tools/fuzz [--seconds 60]
    python tools/fuzz --count benchmarks/results/DATE-fuzz.json [--runs 10000000]

Needs a sanitizer build (`make build-asan`) and atheris (`pip install '.[fuzz]'`). Corpora, logs and
inputs that were findings lie in BUILD/fuzz. Exits with 1 after a finding, and prints the command
that repeats it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from count import Count, run_count
from runner import ROOT, TARGETS, Fuzzer, FuzzError, Target, make_seeds


def main() -> int:
    arguments = _arguments()
    build = arguments.build.resolve()
    try:
        fuzzers = [Fuzzer(target, build) for target in _targets(arguments.target)]
        seeds = make_seeds(build)
        if arguments.count:
            run_count(fuzzers, Count(arguments.count, arguments.runs), arguments.jobs, seeds)
        else:
            _run_once(fuzzers, arguments, seeds)
        for fuzzer in fuzzers if arguments.merge else []:
            before, after = fuzzer.merge(seeds)
            print(f"{fuzzer.target.name}: {before} inputs merged to {after}")
    except FuzzError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tools/fuzz", description=__doc__, formatter_class=form)
    parser.add_argument("--build", type=Path, default=ROOT / "build/asan")
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at once")
    parser.add_argument("--seed", type=int, default=1, help="0: another one each time")
    parser.add_argument("--target", action="append", choices=[t.name for t in TARGETS])
    parser.add_argument("--merge", action="store_true", help="minimise the corpora afterwards")
    parser.add_argument("--count", type=Path, help="JSON file of runs, made or taken up again")
    parser.add_argument("--runs", type=int, default=10_000_000, help="of a count")
    return parser.parse_args()


def _targets(names: Sequence[str] | None) -> list[Target]:
    """Those asked for; where atheris has no wheels, those in Python are left out by default."""
    has_wheel = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    if names or has_wheel or importlib.util.find_spec("atheris"):
        return [t for t in TARGETS if not names or t.name in names]
    print("targets in Python are left out: there is no atheris for this machine")
    return [t for t in TARGETS if not t.in_python]


def _run_once(
    fuzzers: Sequence[Fuzzer], arguments: argparse.Namespace, seeds: Sequence[Path]
) -> None:
    share = max(arguments.seconds // len(fuzzers), 1)

    def run(fuzzer: Fuzzer) -> None:
        outcome = fuzzer.run(share, arguments.seed, seeds)
        print(
            f"{fuzzer.target.name}: {outcome.runs:,} runs in {outcome.seconds:.0f} s, "
            f"{outcome.coverage:,} edges covered, {fuzzer.inputs():,} inputs kept",
            flush=True,
        )

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(run, fuzzers))


if __name__ == "__main__":
    sys.exit(main())
