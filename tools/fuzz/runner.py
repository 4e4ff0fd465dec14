"""The targets, and a run of one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "TARGETS", "FuzzError", "Fuzzer", "Outcome", "Target", "make_seeds"]

ROOT = Path(__file__).resolve().parents[2]
_CPP = ROOT / "tests/cpp/fuzz"
_PYTHON = ROOT / "tests/python/fuzz"
_MAX_INPUT_BYTES = 2048
_LIMITS = ("-timeout=10", "-rss_limit_mb=2048")
# Both would take most of the time where a run covers thousands of edges: a search for leaks after
# each run, and frequencies of all that inputs reach. Leaks are looked for when the program ends.
_FAST = ("-detect_leaks=0", "-entropic=0")
# Stacks of allocations cost a tenth of the time; the command that repeats a finding has them.
# What was given back is kept for about one run, so that it stays in the cache: a third of the time.
_ASAN = "malloc_context_size=0:quarantine_size_mb=1:thread_local_quarantine_size_kb=64"


class FuzzError(Exception):
    """A finding, or a target that does not do its work."""

    def __init__(self, text: str, artifact: str | None = None) -> None:
        super().__init__(text)
        self.artifact = artifact
        """Path of the input; None where no input is to blame."""


@dataclass(frozen=True)
class Target:
    name: str
    least_coverage: int
    """Edges that the seeds reach at least: the fuzzer does not see what is not instrumented."""
    share: float
    """Of the runs of a count."""
    seeds: Path
    in_python: bool = False
    max_bytes: int = _MAX_INPUT_BYTES

    def command(self, build: Path) -> list[str]:
        if self.in_python:
            return [sys.executable, str(_PYTHON / f"{self.name}.py")]
        return [str(build / "tests/cpp/fuzz" / self.name), f"-dict={_CPP / 'trace.dict'}"]


TARGETS = (
    Target("fuzz_read", 1500, 0.65, _CPP / "corpus"),
    Target("fuzz_analysis", 8000, 0.25, _CPP / "corpus"),
    Target("fuzz_documents", 300, 0.05, _PYTHON / "corpus", in_python=True),
    Target("fuzz_recordings", 500, 0.05, _PYTHON / "recordings", in_python=True, max_bytes=4096),
)


@dataclass(frozen=True)
class Outcome:
    runs: int
    seconds: float
    coverage: int
    """Edges."""


class Fuzzer:
    """One target with its folders in BUILD/fuzz."""

    def __init__(self, target: Target, build: Path) -> None:
        self.target = target
        self._command = target.command(build)
        self._logs = build / "fuzz"
        self.corpus = build / "fuzz/corpus" / target.name
        self._found = build / "fuzz/found"
        for folder in (self.corpus, self._found):
            folder.mkdir(parents=True, exist_ok=True)

    def run(self, seconds: int, seed: int, seeds: Sequence[Path], lane: int = 0) -> Outcome:
        """Fuzzes for some seconds.

        Args:
            seconds: How long, beyond reading the corpus.
            seed: Of the random numbers; 0: another one each time.
            seeds: Folders of inputs beside the target's own; for the targets of traces.
            lane: Number of those that run at once.

        Raises:
            FuzzError: A run was a finding, or the target covers next to nothing.
        """
        log = self._logs / f"{self.target.name}-{lane}.log"
        options = [f"-seed={seed}", f"-max_total_time={seconds}", "-print_final_stats=1"]
        started = time.monotonic()
        failed = self._start([*options, "-print_funcs=0"], seeds, log)
        text = log.read_text("utf-8", "replace")
        if failed:
            raise self._finding(text, log)
        return self._outcome(text, time.monotonic() - started, log)

    def merge(self, seeds: Sequence[Path]) -> tuple[int, int]:
        """Keeps what reaches something that nothing smaller does; inputs before and after."""
        small = self.corpus.with_name(f"{self.corpus.name}.merged")
        shutil.rmtree(small, ignore_errors=True)
        small.mkdir()
        log = self._logs / f"{self.target.name}-merge.log"
        if self._start(["-merge=1", str(small)], seeds, log):
            raise FuzzError(f"{self.target.name}: the corpus could not be merged: {log}")
        before = self.inputs()
        shutil.rmtree(self.corpus)
        small.rename(self.corpus)
        return before, self.inputs()

    def inputs(self) -> int:
        return sum(1 for _ in self.corpus.iterdir())

    def _start(self, options: Sequence[str], seeds: Sequence[Path], log: Path) -> bool:
        """Whether the program failed."""
        beside = () if self.target.in_python else seeds
        folders = [str(path) for path in (self.corpus, self.target.seeds, *beside)]
        found = f"-artifact_prefix={self._found}/{self.target.name}-"
        environment = {"ASAN_OPTIONS": _ASAN, **os.environ}
        with log.open("wb") as out:
            limits = (f"-max_len={self.target.max_bytes}", *_LIMITS)
            command = [*self._command, *limits, *_FAST, found, *options, *folders]
            try:
                done = subprocess.run(command, stdout=out, stderr=out, env=environment, check=False)
            except OSError as error:
                raise FuzzError(f"{self.target.name} cannot be run: {error}") from None
        return done.returncode != 0

    def _finding(self, text: str, log: Path) -> FuzzError:
        last = "\n".join(text.splitlines()[-60:])
        written = re.search(r"Test unit written to (\S+)", text)
        if not written:
            return FuzzError(f"{last}\n==> {self.target.name} ended early; its words: {log}")
        repeat = " ".join([*self._command, written[1]])
        return FuzzError(
            f"{last}\n==> {self.target.name}: a finding. To repeat it:\n{repeat}", written[1]
        )

    def _outcome(self, text: str, seconds: float, log: Path) -> Outcome:
        coverage = max((int(edges) for edges in re.findall(r"cov: (\d+)", text)), default=0)
        runs = re.search(r"number_of_executed_units:\s*(\d+)", text)
        if coverage < self.target.least_coverage or not runs:
            raise FuzzError(
                f"{self.target.name} covers {coverage} edges, where at least "
                f"{self.target.least_coverage} were expected: what it tests is not instrumented, "
                f"or its seeds are missing; its words: {log}"
            )
        return Outcome(int(runs[1]), seconds, coverage)


def make_seeds(build: Path) -> list[Path]:
    """Cut from TORCHTRACEAP_CORPUS where it is, else from the bundled traces; once for a build."""
    corpus = Path(os.environ.get("TORCHTRACEAP_CORPUS") or ROOT.parent / "shared/traces")
    source = corpus if corpus.is_dir() else ROOT / "examples/traces"
    out = build / "fuzz/seeds" / ("corpus" if source == corpus else "examples")
    if not out.is_dir():
        part = out.with_name(f"{out.name}.part")
        program = str(ROOT / "tools/fuzz/seeds.py")
        size = ["--max-bytes", str(_MAX_INPUT_BYTES)]
        subprocess.run([sys.executable, program, *size, str(part), str(source)], check=True)
        part.rename(out)
    return [out]
