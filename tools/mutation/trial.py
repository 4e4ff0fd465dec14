"""A mutant against its tests: in a forked process whose libraries are loaded and whose package is
not yet."""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mutants import Mutant, mutated
from tests_of_lines import NO_NOISE, ROOT

# What the package and its tests import: loaded once in the parent.
_LIBRARIES = (
    "numpy.ma", "pandas", "pyarrow.parquet", "pyarrow.csv", "duckdb", "jinja2", "rich.console",
    "hypothesis.strategies", "hypothesis.extra.numpy", "hypothesis.internal.conjecture.engine",
    "openpyxl", "yaml",
)  # fmt: skip
_LEAST_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: `killed`, `timeout`, `survived` or `untested`."""

    verdict: str
    tests: int
    seconds: float


def warm_up() -> None:
    """Imports what all mutants share; never the package itself."""
    sys.dont_write_bytecode = False  # without compiled files each child would compile the package
    sys.pycache_prefix = str(ROOT / "build" / "mutation" / "pycache")
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in _LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    if "torchtraceap" in sys.modules:
        raise RuntimeError("the package is loaded already: no mutant would be seen")
    gc.collect()
    gc.freeze()  # what is loaded here is never garbage: collections in a child skip it


def try_mutant(mutant: Mutant, batches: list[list[str]], expected_s: float) -> Outcome:
    """Runs the tests on the changed source.

    Args:
        mutant: The change.
        batches: Ids of tests, in the order in which they run.
        expected_s: What they take on the unchanged source.
    """
    if not batches:
        return Outcome("untested", 0, 0.0)
    began = time.monotonic()
    folder = tempfile.mkdtemp(prefix="mutant-")
    child = os.fork()
    if child == 0:
        os._exit(_in_child(mutant, batches, Path(folder)))
    status = _wait(child, began + _LEAST_TIMEOUT_S + 5 * expected_s)
    shutil.rmtree(folder, ignore_errors=True)
    verdict = "timeout" if status is None else "survived" if status == 0 else "killed"
    return Outcome(verdict, sum(map(len, batches)), round(time.monotonic() - began, 2))


def _wait(child: int, until: float) -> int | None:
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _in_child(mutant: Mutant, batches: list[list[str]], folder: Path) -> int:
    os.setpgid(0, 0)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        sys.meta_path.insert(0, _Changed(mutant))
        for number, tests in enumerate(batches):
            files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
            options = ["-x", "-q", "--assert=plain", *NO_NOISE, f"--basetemp={folder}/{number}"]
            status = pytest.main([*options, *files], plugins=[_Only(tests)])
            if status != 0:
                return 1
    except BaseException:
        return 1
    return 0


class _Only:
    """Runs these tests, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._order]
        items.sort(key=lambda item: self._order[item.nodeid])


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the changed source in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        parts = list(mutant.path.with_suffix("").parts[1:])  # without python/
        self._is_package = parts[-1] == "__init__"
        self._name = ".".join(parts[:-1] if self._is_package else parts)

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        path = ROOT / self._mutant.path
        spec = importlib.machinery.ModuleSpec(
            name, self, origin=str(path), is_package=self._is_package
        )
        spec.has_location = True
        if self._is_package:
            spec.submodule_search_locations = [str(path.parent)]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        path = ROOT / self._mutant.path
        tree = mutated(path.read_text(encoding="utf-8"), self._mutant.index)
        exec(compile(tree, str(path), "exec"), module.__dict__)
