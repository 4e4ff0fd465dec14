"""Which test runs which line: recorded once, so that a mutant meets the tests that can notice it
and no others."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import hypothesis
import pytest
from mutants import Mutant

ROOT = Path(__file__).resolve().parents[2]
SUITE = ("tests/python", "tests/golden")
# What starts browsers, notebooks, torch or other processes runs no line of a mutant in this
# process.
LEFT_OUT = ("test_browser", "test_notebooks", "test_collect", "test_collecting", "test_layers")
# hypothesis is imported before pytest could rewrite its assertions.
NO_NOISE = (
    "-p",
    "no:cacheprovider",
    "-p",
    "no:unraisableexception",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)


def same_examples_each_time() -> None:
    """hypothesis draws the same examples at each run, and a busy machine fails no test."""
    hypothesis.settings.register_profile("mutation", derandomize=True, database=None, deadline=None)
    hypothesis.settings.load_profile("mutation")


def hash_of(path: Path) -> str:
    """What a recording holds for: the bytes of a source."""
    return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()[:16]


@dataclass
class LineMap:
    """Tests with their time and the lines of each source that they run."""

    hashes: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # test, source, lines

    @classmethod
    def read(cls, path: Path) -> LineMap:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(vars(self)), encoding="utf-8")

    def stale(self, paths: set[Path]) -> list[str]:
        """Sources that changed since the recording, or are not in it."""
        return sorted(str(path) for path in paths if self.hashes.get(str(path)) != hash_of(path))

    def by_line(self) -> dict[tuple[str, int], set[str]]:
        """Tests of each line."""
        found: dict[tuple[str, int], set[str]] = defaultdict(set)
        for test, sources in self.lines.items():
            for source, lines in sources.items():
                for line in lines:
                    found[source, line].add(test)
        return found


class Recorder:
    """A pytest plugin that notes the lines of each passing test."""

    def __init__(self, sources: list[Path]) -> None:
        self.map = LineMap({str(source): hash_of(source) for source in sources})
        self._names = {str(ROOT / source): str(source) for source in sources}
        self._seen: dict[CodeType, set[int]] = defaultdict(set)
        self._failed: set[str] = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._seen.clear()
        began = time.perf_counter()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        self.map.seconds[item.nodeid] = round(time.perf_counter() - began, 3)
        found: dict[str, set[int]] = defaultdict(set)
        for code, lines in self._seen.items():
            found[self._names[code.co_filename]] |= lines
        self.map.lines[item.nodeid] = {name: sorted(found[name]) for name in sorted(found)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """A test that fails or skips without any change tells nothing."""
        for test in self._failed:
            self.map.lines.pop(test, None)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in self._names:
            return None
        add = self._seen[frame.f_code].add

        def note(inside: FrameType, event: str, _: Any) -> Callable[..., Any]:
            if event == "line":
                add(inside.f_lineno)
            return note

        return note


def record(sources: list[Path], tests: list[str]) -> LineMap:
    """Runs the tests and notes what each runs."""
    recorder = Recorder(sources)
    same_examples_each_time()
    ignored = [f"--ignore={ROOT}/{SUITE[0]}/{name}.py" for name in LEFT_OUT]
    pytest.main(["-q", *NO_NOISE, *ignored, *tests], plugins=[recorder])
    return recorder.map


class Chooser:
    """The tests of a mutant, the best first."""

    def __init__(self, recorded: LineMap) -> None:
        self._map = recorded
        self._by_line = recorded.by_line()
        self._users = _users([Path(source) for source in recorded.hashes])

    def tests_of(self, mutant: Mutant) -> set[str]:
        """Tests that run its lines, or outside functions those of its name's users."""
        places = {(str(mutant.path), line) for line in mutant.lines}
        for name in mutant.names:
            places |= self._users[name]
        found = {test for place in places for test in self._by_line.get(place, ())}
        if found or mutant.lines:
            return found
        source = str(mutant.path)
        return {test for test, sources in self._map.lines.items() if source in sources}

    def batches(self, mutant: Mutant, budget_s: float) -> list[list[str]]:
        """Its tests in two runs: those of the file that is named after the source or nearest, then
        the others.

        Short tests come first, and what would take more than the budget is left out.
        """
        by_file: dict[str, list[str]] = defaultdict(list)
        total = 0.0
        for test in sorted(self.tests_of(mutant), key=lambda t: (self._map.seconds[t], t)):
            total += self._map.seconds[test]
            if total <= budget_s or not by_file:
                by_file[test.partition("::")[0]].append(test)

        def distance(file: str) -> tuple[bool, int]:
            return Path(file).stem != f"test_{mutant.path.stem}", -len(by_file[file])

        files = sorted(by_file, key=lambda file: (*distance(file), file))
        rest = [test for file in files[1:] for test in by_file[file]]
        return [batch for batch in (by_file[files[0]] if files else [], rest) if batch]

    def seconds(self, batches: list[list[str]]) -> float:
        """What the tests took when they were recorded."""
        return sum(self._map.seconds[test] for batch in batches for test in batch)


def _users(sources: list[Path]) -> dict[str, set[tuple[str, int]]]:
    """For each name the lines of the sources that read it; of a function or class, its own
    lines."""
    found: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for source in sources:
        for node in ast.walk(ast.parse((ROOT / source).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                name = node.id if isinstance(node, ast.Name) else node.attr
                found[name].add((str(source), node.lineno))
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                last = node.end_lineno or node.lineno
                found[node.name] |= {(str(source), line) for line in range(node.lineno, last + 1)}
    return found
