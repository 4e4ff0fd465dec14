"""Regenerates every figure of docs/results/simulation.md.

    python benchmarks/simulation/prove.py [--quick]

Runs the programs of this folder one after the other and prints what they print; what takes long is
written to `benchmarks/results/` beside it. Real traces are those of `TORCHTRACEAP_CORPUS`; made
ones need nothing. `--quick` takes fewer made programs: a minute in place of ten.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER.parent / "results"


def programs(quick: bool) -> list[list[str]]:
    """Each with its arguments."""
    today = time.strftime("%Y-%m-%d")

    def written(name: str) -> list[str]:
        return [] if quick else ["--output", str(RESULTS / f"{today}-simulation-{name}.json")]

    return [
        ["run.py"],
        ["sabotage.py", *written("sabotage")],
        ["injected.py", "--seeds", "5" if quick else "40", *written("injected")],
        ["pairs.py"],
        ["twins.py", "--first", "1000", "--seeds", "5" if quick else "30", *written("twins")],
        ["profiler_overhead.py"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer made programs, nothing written")
    failed = []
    for program, *arguments in programs(parser.parse_args().quick):
        print(f"\n# {' '.join([program, *arguments])}\n", flush=True)
        command = [sys.executable, str(FOLDER / program), *arguments]
        if subprocess.run(command, check=False).returncode:
            failed.append(program)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
