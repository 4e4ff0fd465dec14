"""A count of runs without a finding, in a file that can be taken up again."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner import ROOT, Fuzzer, FuzzError, Outcome, Target

__all__ = ["Count", "run_count"]

_SLICE_SECONDS = 120
"""So much is lost at most when a count is stopped."""


class Count:
    """Runs by target; every slice is written at once.

    A finding is written too. The runs before it stay what they are: runs of the commit that is
    noted beside each slice.
    """

    def __init__(self, path: Path, wanted: int) -> None:
        self._path = path
        self._wanted = wanted
        self._lock = threading.Lock()
        self._running: dict[str, int] = {}
        self.document: dict[str, Any] = (
            json.loads(path.read_text("utf-8")) if path.exists() else _new_document()
        )

    def next(self, fuzzers: Sequence[Fuzzer]) -> Fuzzer | None:
        """Whose turn it is: the one that is farthest behind and that fewest lanes run."""

        def behind(fuzzer: Fuzzer) -> tuple[int, float]:
            target = fuzzer.target
            return self._running.get(target.name, 0), self._runs(target) / target.share

        with self._lock:
            waiting = [f for f in fuzzers if self._runs(f.target) < self._wanted * f.target.share]
            chosen = min(waiting, key=behind, default=None)
            if chosen:
                self._running[chosen.target.name] = self._running.get(chosen.target.name, 0) + 1
            return chosen

    def add(self, target: Target, outcome: Outcome) -> None:
        with self._lock:
            self._running[target.name] -= 1
            totals = self.document["totals"]
            totals[target.name] = self._runs(target) + outcome.runs
            note = {
                "target": target.name,
                "runs": outcome.runs,
                "seconds": round(outcome.seconds, 1),
            }
            self.document["slices"].append({**note, "coverage": outcome.coverage, **_when()})
            self._write()
            done = ", ".join(f"{name} {runs:,}" for name, runs in sorted(totals.items()))
            print(f"{sum(totals.values()):,} of {self._wanted:,} runs: {done}", flush=True)

    def add_finding(self, target: Target, error: FuzzError) -> None:
        with self._lock:
            artifact = error.artifact and Path(error.artifact).name
            self.document["findings"].append({"target": target.name, "input": artifact, **_when()})
            self._write()

    def _runs(self, target: Target) -> int:
        return int(self.document["totals"].get(target.name, 0))

    def _write(self) -> None:
        beside = self._path.with_name(f"{self._path.name}.part")
        beside.write_text(json.dumps(self.document, indent=1) + "\n", "utf-8")
        beside.replace(self._path)


def run_count(fuzzers: Sequence[Fuzzer], count: Count, jobs: int, seeds: Sequence[Path]) -> None:
    """Runs slices, `jobs` at once, until each target has its share.

    Raises:
        FuzzError: A run was a finding; the other lanes end with their slice.
    """
    stop = threading.Event()

    def lane(number: int) -> None:
        while not stop.is_set() and (fuzzer := count.next(fuzzers)):
            try:
                count.add(fuzzer.target, fuzzer.run(_SLICE_SECONDS, 0, seeds, number))
            except FuzzError as error:
                stop.set()
                count.add_finding(fuzzer.target, error)
                raise

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(lane, number) for number in range(jobs)]:
            done.result()


def _new_document() -> dict[str, Any]:
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    return {
        "command": " ".join(["python", "tools/fuzz", *sys.argv[1:]]),
        "machine": {
            "cpu": names[0] if names else platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "totals": {},
        "findings": [],
        "slices": [],
    }


def _when() -> dict[str, str]:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"commit": commit, "date": datetime.now(UTC).isoformat(timespec="seconds")}
