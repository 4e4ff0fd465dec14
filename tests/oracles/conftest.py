"""The corpus of real traces: `TORCHTRACEAP_CORPUS`, else ../shared/traces beside the project."""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("TORCHTRACEAP_CORPUS", ROOT.parent / "shared" / "traces"))
sys.path.append(str(ROOT / "benchmarks" / "simulation"))  # what only benchmarks and tests need


def corpus_files() -> list[str]:
    """Names of all trace files of the corpus, relative to it; empty where it is absent."""
    files = [*CORPUS.rglob("*.json"), *CORPUS.rglob("*.json.gz")]
    names = sorted(str(path.relative_to(CORPUS)) for path in files)
    return [name for name in names if "_reference" not in name]


@pytest.fixture
def corpus() -> Path:
    if not CORPUS.is_dir():
        pytest.skip(f"no corpus of traces at {CORPUS}; set TORCHTRACEAP_CORPUS")
    return CORPUS


@pytest.fixture
def corpus_file(corpus: Path, request: pytest.FixtureRequest) -> Path:
    """Parametrised indirectly with a name relative to the corpus."""
    path = corpus / request.param
    if not path.exists():
        pytest.skip(f"{path} is not in this corpus")
    return path


def dlrm_execution_trace(rank: int, folder: Path) -> Path:
    """Unpacks one rank's execution trace beside the corpus into a folder; skips without it."""
    packed = CORPUS.parent / "oracles" / "dlrm_8xV100_param" / "dlrm_pytorch_et.tar.gz"
    if not packed.exists():
        pytest.skip(f"no execution traces at {packed}")
    name = f"dlrm_pytorch_et/dlrm_eg_{rank}.json"
    with tarfile.open(packed) as archive:
        member = archive.extractfile(name)
        assert member is not None, f"{packed} lacks {name}"
        path = folder / f"dlrm_eg_{rank}.json"
        path.write_bytes(member.read())
    return path
