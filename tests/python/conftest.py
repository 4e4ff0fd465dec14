"""Fixtures for all tests in Python: traces of a few events, the bundled trace, real traces.

`write_trace` writes events to a file, `bundled` is the trace in the repository, and a test with an
argument `corpus_file` runs once for each real trace in the folder `TORCHTRACEAP_CORPUS`. Modules
beside this file make larger inputs; docs/testing.md lists them and says where a test belongs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Hypothesis must not fail a test for being slow: a busy machine is no defect.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("TORCHTRACEAP_CORPUS", ROOT.parent / "shared" / "traces"))
# Helpers that tests share with benchmarks, such as hostile traces and checks of replays.
for shared in ("simulation", "scaling", "detectors"):
    sys.path.append(str(ROOT / "benchmarks" / shared))
BUNDLED = ROOT / "examples" / "traces" / "resnet50_num_workers_0.json.gz"

# A shell may export the width of its terminal, which would change the text of reports.
os.environ.pop("COLUMNS", None)

WriteTrace = Callable[..., Path]


@pytest.fixture
def write_trace(tmp_path: Path) -> WriteTrace:
    """Return a function that writes events (a list, or a whole document) to a file and returns its
    path."""

    def write(content: Any, name: str = "trace.json") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"traceEvents": content} if isinstance(content, list) else content
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def bundled() -> Path:
    """The ResNet-50 trace that the repository carries."""
    return BUNDLED


def corpus_files() -> list[str]:
    """Trace files of the corpus, relative to it; empty where it is absent."""
    files = [*CORPUS.rglob("*.json"), *CORPUS.rglob("*.json.gz")]
    names = sorted(str(path.relative_to(CORPUS)) for path in files)
    return [name for name in names if "_reference" not in name]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `corpus_file` runs on each file, or is skipped where there is none."""
    if "corpus_file" not in metafunc.fixturenames:
        return
    names = corpus_files()
    reason = f"no real traces at {CORPUS}; set TORCHTRACEAP_CORPUS"
    missing = [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="no-corpus")]
    chosen = [pytest.param(CORPUS / name, id=name) for name in names]
    metafunc.parametrize("corpus_file", chosen or missing)
