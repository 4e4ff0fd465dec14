"""Numbers and events of evidence packs, against the trace itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.explanation.pack import Pack
from torchtraceap.explanation.pack_builder import MOST_GROUPS, build_pack
from torchtraceap.explanation.segments import Segment, find_segments
from torchtraceap.ops.kernel_names import canonical_name

CASES = list[tuple[Segment, Pack]]


@pytest.fixture(scope="module")
def diagnosis(bundled: Path) -> Diagnosis:
    return ttap.diagnose(bundled)


@pytest.fixture(scope="module")
def cases(diagnosis: Diagnosis) -> CASES:
    return [(segment, build_pack(diagnosis, segment)) for segment in find_segments(diagnosis)]


def test_every_name_stands_for_one_thing(cases: CASES) -> None:
    for _, pack in cases:
        lines = [line for table in pack.tables for line in table.lines]
        metrics = [m.name for m in (*pack.metrics, *(m for line in lines for m in line.metrics))]
        assert len(metrics) == len(set(metrics)) == len(pack.every_metric())
        assert all(line.row in {"", *pack.rows} for line in lines)


def test_rows_are_events_of_the_trace(diagnosis: Diagnosis, cases: CASES) -> None:
    table = diagnosis.trace.ranks[0].table
    for _, pack in cases:
        assert pack.rows
        for row in pack.rows.values():
            assert table.name_of(row.row) == row.name
            assert int(table.ts_ns[row.row]) == row.start_ns
            assert int(table.dur_ns[row.row]) == row.duration_ns


def test_groups_hold_the_gpu_work_of_the_segment(diagnosis: Diagnosis, cases: CASES) -> None:
    kernels = diagnosis.trace.kernels(by="event").to_pandas()
    for segment, pack in cases:
        start_ns = kernels["start_ns"]
        inside = kernels[(start_ns >= segment.start_ns) & (start_ns < segment.end_ns)]
        groups = next(table for table in pack.tables if table.title.startswith("GPU work"))
        counted = sum(line.metrics[0].exact for line in groups.lines)
        total_ns = sum(line.metrics[1].exact for line in groups.lines)
        if len(groups.lines) < MOST_GROUPS:
            assert (counted, total_ns) == (len(inside), inside["duration_ns"].sum())
        largest = groups.lines[0]
        own = inside[inside["name"].map(canonical_name) == largest.names[0]]
        assert largest.metrics[1].exact <= own["duration_ns"].sum()


def test_features_stand_beside_those_of_the_trace(diagnosis: Diagnosis, cases: CASES) -> None:
    features = diagnosis.trace.features(count=100).to_pandas()
    for segment, pack in cases:
        metrics = pack.every_metric()
        busy = features["busy_share"]
        inside = busy[segment.first : segment.last + 1].mean()
        assert metrics["window.busy_share"].exact == pytest.approx(inside)
        assert metrics["window.busy_share.median"].exact == pytest.approx(busy.median())
        rank = (busy < inside).mean() + 0.5 * (busy == inside).mean()
        assert metrics["window.busy_share.rank"].exact == pytest.approx(rank, abs=1e-9)


def test_gaps_are_the_idle_time_of_the_segment(diagnosis: Diagnosis, cases: CASES) -> None:
    idle = diagnosis.trace.idle(profiled=True).to_pandas()
    for segment, pack in cases:
        clipped = np.minimum(idle["end_ns"], segment.end_ns) - np.maximum(
            idle["start_ns"], segment.start_ns
        )
        assert pack.every_metric()["segment.idle"].exact == clipped.clip(0).sum()
        gaps = next(table for table in pack.tables if table.title.startswith("longest gaps"))
        lengths = [line.metrics[0].exact for line in gaps.lines]
        longest = clipped.sort_values(ascending=False).head(len(lengths))
        assert lengths == longest.tolist()


def test_without_tables_the_same_numbers_of_the_segment(diagnosis: Diagnosis, cases: CASES) -> None:
    for segment, pack in cases:
        plain = build_pack(diagnosis, segment, tables=False)
        assert not plain.tables
        left_out = {metric.name for metric in set(pack.metrics) - set(plain.metrics)}
        assert set(plain.metrics) <= set(pack.metrics)
        assert left_out and all(name.startswith("window.") for name in left_out)
