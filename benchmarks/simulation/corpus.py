"""The corpus of real traces, as the programs of this folder go through it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torchtraceap as ttap
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["default_corpus", "runs", "traces"]

ROOT = Path(__file__).resolve().parents[2]
RANK_SETS = ("param/dlrm_8ranks", "torchrec_4ranks_late_rank")
"""Folders whose files are the ranks of one run."""


def default_corpus() -> Path:
    """`TORCHTRACEAP_CORPUS`, or where the tests look for it."""
    return Path(os.environ.get("TORCHTRACEAP_CORPUS", ROOT.parent / "shared" / "traces"))


def traces(corpus: Path) -> Iterator[tuple[str, ttap.Trace]]:
    """Sets of ranks as one trace each, every other file as a trace of its own."""
    sets = [corpus / name for name in RANK_SETS]
    files = [*corpus.rglob("*.json"), *corpus.rglob("*.json.gz")]
    alone = [path for path in files if path.parent not in sets and "_reference" not in str(path)]
    for path in [*(folder for folder in sets if folder.is_dir()), *sorted(alone)]:
        try:
            yield str(path.relative_to(corpus)), ttap.load(path)
        except ttap.errors.TraceError:
            continue


def runs(corpus: Path) -> Iterator[tuple[str, SimulatedRun]]:
    """The graph of each trace."""
    for name, trace in traces(corpus):
        yield name, SimulatedRun(trace)
