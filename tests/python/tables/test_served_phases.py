"""Tables of one phase of a serving engine (`--phase`), and its steady state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_model import Served

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.errors import OptionError


@pytest.fixture
def two_phases(tmp_path: Path) -> Path:
    """Five iterations of decode, then two of prefill, then three of decode, in one trace."""
    parts = [
        Served(iterations=5),
        Served(iterations=2, annotation="execute_context_2(512)_generation_0(0)", gap_us=50.0),
        Served(iterations=3),
    ]
    events: list[dict[str, Any]] = []
    shift, number = 0.0, 0
    for part in parts:
        trace = part.trace()
        for event in trace["traceEvents"]:
            event["ts"] += shift
            if "correlation" in event["args"]:
                event["args"]["correlation"] += number
            events.append(event)
        shift = max(event["ts"] + event["dur"] for event in trace["traceEvents"])
        number += 100
    path = tmp_path / "served.json"
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": []}))
    return path


def gpu_ns(trace: ttap.Trace) -> int:
    return int(trace.kernels(by="event")["duration_ns"].sum())


def test_phases_split_the_gpu_work(two_phases: Path) -> None:
    whole = ttap.load(two_phases)
    decode, prefill = whole.in_phase("decode"), whole.in_phase("prefill")
    assert len(decode.kernels(by="event")) + len(prefill.kernels(by="event")) == len(
        whole.kernels(by="event")
    )
    assert gpu_ns(decode) + gpu_ns(prefill) == gpu_ns(whole)
    assert gpu_ns(decode) == 4 * gpu_ns(prefill)  # eight iterations, and two


def test_time_of_other_phases_is_neither_busy_nor_idle(two_phases: Path) -> None:
    whole = ttap.load(two_phases)
    timelines = [whole.in_phase(phase).summary().timeline for phase in ("decode", "prefill")]
    everything = whole.summary().timeline
    assert sum(each.busy_ns for each in timelines) == everything.busy_ns
    # A span begins with GPU work, so prefill lacks the bubble in front of its first iteration.
    bubble_ns = whole.serving().iterations["bubble_ns"].tolist()[5]
    assert bubble_ns > 0
    assert sum(each.span_ns for each in timelines) == everything.span_ns - bubble_ns
    assert sum(each.idle_ns for each in timelines) == everything.idle_ns - bubble_ns


def test_an_iteration_takes_what_it_takes_in_the_whole(two_phases: Path) -> None:
    whole = ttap.load(two_phases).steps()
    kinds = np.array(whole["kind"].tolist())
    for phase, count in (("decode", 8), ("prefill", 2)):
        cut = ttap.load(two_phases).in_phase(phase).steps()
        assert len(cut) == count
        mine = kinds == phase
        assert cut["iteration_ns"].tolist() == whole["iteration_ns"][mine].tolist()
        assert cut["start_ns"].tolist() == whole["start_ns"][mine].tolist()


@pytest.mark.parametrize(
    "command",
    ["ops", "kernels", "events", "summary", "roofline", "collectives", "launches", "modules",
     "stacks", "sequences", "grids", "memory", "host", "steps", "ranks", "critical-path",
     "quality", "expected", "tree"],
)  # fmt: skip
def test_every_table_takes_a_phase(
    command: str, two_phases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(two_phases), "--phase", "decode", "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_sql_takes_a_phase(two_phases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    query = "select count(*) from steps"
    assert main(["sql", str(two_phases), query, "--phase", "prefill", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [[2]]


def test_a_phase_that_is_not_there_is_refused(
    two_phases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = ttap.load(two_phases)
    with pytest.raises(OptionError, match=r"no iteration is of phase 'diffusion'.*8 decode, 2 pr"):
        trace.in_phase("diffusion")
    with pytest.raises(OptionError, match="no phase 'decoding'"):
        trace.in_phase("decoding")
    assert main(["ops", str(two_phases), "--phase", "idle"]) == 2
    assert "iterations: 8 decode" in capsys.readouterr().err
