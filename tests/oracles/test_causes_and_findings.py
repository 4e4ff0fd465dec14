"""One quantity, one figure: idle time by cause, and the findings that are about such a cause."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.codes import API_KINDS
from torchtraceap.core.intervals import covered_before, union
from torchtraceap.tables.detection import PerRank, detect

from .conftest import corpus_files

LOADERS = ("single_process_data_loading", "worker_starvation")
FIRST_OR_AGAIN = ("cold_start", "recompilation", "graph_recapture")


def idle_of(rank: ttap.RankTrace, cause: str) -> tuple[np.ndarray, np.ndarray]:
    """Intervals `[n, 2]` of a cause in the profiled time, and the rows behind them."""
    table = ttap.Trace([rank], []).idle(rank=None, profiled=True)
    chosen = np.asarray(table.to_list("cause"), dtype=object) == cause
    intervals = np.stack([table["start_ns"], table["end_ns"]], axis=1)[chosen]
    rows = np.ma.filled(np.ma.asarray(table["explained_by"]), _core.NO_ROW)[chosen]
    return intervals.astype(np.int64), rows


def claimed(by_type: dict[str, PerRank], types: tuple[str, ...], rank: int) -> np.ndarray:
    """The cost of some types on a rank, material or not."""
    found = [np.asarray(by_type[name][rank][1].intervals).reshape(-1, 2) for name in types]
    return union([each.astype(np.int64) for each in found])


def left_ns(claims: np.ndarray, intervals: np.ndarray) -> np.ndarray:
    """int64 `[n]`: what claims leave of each interval."""
    before = covered_before(claims, intervals)
    return (intervals[:, 1] - intervals[:, 0]) - (before[:, 1] - before[:, 0])


@pytest.mark.parametrize("corpus_file", corpus_files(), indirect=True)
def test_a_finding_has_the_figure_of_its_cause(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    by_type = detect(trace)
    for index, rank in enumerate(trace.ranks):
        if not len(rank.tree.gpu_rows):
            continue
        loading, _ = idle_of(rank, "data_loading")
        claims = claimed(by_type, LOADERS, index)
        # Nothing but data loading, and launches that come late by it (lost lead).
        late, _ = idle_of(rank, "host_wait")
        assert not left_ns(union([loading, late]), claims).any()
        if any(by_type[name][index][1].verdict == "present" for name in LOADERS):
            assert not left_ns(claims, loading).any()
        if by_type["cold_start"][index][1].verdict == "unknown":
            continue
        compiling, rows = idle_of(rank, "compilation")
        left = left_ns(claimed(by_type, FIRST_OR_AGAIN, index), compiling)
        tuning = np.isin(rank.table.kind[np.where(rows == _core.NO_ROW, 0, rows)], API_KINDS)
        assert not left[~tuning].any()
