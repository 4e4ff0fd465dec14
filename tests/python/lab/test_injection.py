"""Faults put between the events of recorded traces: for tests alone, where the labels say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.datasets.labels import TYPES, costs_of, window_costs, window_labels
from torchtraceap.lab.building.build import group_traces
from torchtraceap.lab.building.plan import GROUP, Group, plan_groups
from torchtraceap.lab.generation.event_faults import FILLS, Block
from torchtraceap.lab.generation.faults import EVENT_FAULTS, Fault
from torchtraceap.trace.ranks import RankTrace

ROOT = Path(__file__).resolve().parents[3]
BASE = str(ROOT / "examples/traces/resnet50_num_workers_4.json.gz")
GROUP_OF_BASE = Group(7, "real", 0, None, True, BASE, "event_space")


@pytest.mark.parametrize("fault", EVENT_FAULTS.values(), ids=lambda fault: fault.name)
def test_a_block_lasts_as_long_as_its_fault_costs(fault: Fault) -> None:
    block = Block(100.0, (1, 1), (0, 7), 5)
    FILLS[fault.name](block, 20_000.0)
    assert all(event["dur"] >= 0 and event["ts"] >= 100 for event in block.events)
    if not fault.look_alike:
        lost = sum(end - begin for begin, end in block.truth)
        assert 0.8 * 20_000 <= lost <= 1.2 * 20_000


@pytest.mark.slow  # generates traces and diagnoses them
def test_traces_with_a_fault_are_longer_by_what_the_labels_say() -> None:
    found = list(group_traces(GROUP_OF_BASE, 1))
    again = list(group_traces(GROUP_OF_BASE, 1))
    assert [label for label, _ in found] == [label for label, _ in again]
    assert len(found) == GROUP
    parts = {label["id"]: part for label, part in found}
    for label, part in found:
        assert (label["split"], label["source"]["kind"]) == ("real", "event_space")
        if label["twin"] is None:
            assert not label["intervals"]
            continue
        twin = parts[label["twin"]]
        longer_ns = part.profiled_ns - twin.profiled_ns
        assert label["decoy"] or longer_ns >= 0.9 * label["cost_ns"] > 0
        cost = window_costs(costs_of(label), _bounds(part))
        assert window_labels(cost)[0].any() == (not label["decoy"])
        assert len(part.table) > len(twin.table) or label["form"] == "host_silence"
        assert label["looks_like"] in TYPES
        assert label["looks_like"] not in label["already"]


def _bounds(part: RankTrace) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(ttap.Trace([part]).windows(count=100).bounds_ns)


def test_what_is_made_of_recorded_traces_is_for_tests_alone() -> None:
    real = [group for group in plan_groups(64, [BASE]) if group.base is not None]
    assert {group.split for group in real} == {"real"}
    assert {group.way for group in real} == {"real_graph", "event_space"}
    assert all(group.is_test for group in real)
