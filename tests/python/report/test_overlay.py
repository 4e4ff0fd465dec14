"""The overlay for Perfetto: the trace stays whole, and what was found is drawn where it was."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.core.formatting import format_part
from torchtraceap.errors import OptionError
from torchtraceap.report.annotate import build_counters, build_slices

DEMO = Path(__file__).parents[3] / "examples/traces/resnet50_num_workers_0.json.gz"
CORRELATED = '{"ph":"X","cat":"%s","name":"%s","pid":%d,"tid":7,"ts":%s,"dur":%s,"args":{%s}}'


@pytest.fixture(scope="module")
def trace() -> ttap.Trace:
    return ttap.load(DEMO)


@pytest.fixture(scope="module")
def written(trace: ttap.Trace, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("overlay") / "demo.json"
    trace.annotate(path)
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def ours(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event.get("cat") == "torchtraceap"]


def test_the_trace_itself_is_whole(trace: ttap.Trace, written: dict[str, Any]) -> None:
    original = json.loads(gzip.decompress(DEMO.read_bytes()), strict=False)["traceEvents"]

    def texts(events: list[dict[str, Any]]) -> Counter[str]:
        return Counter(json.dumps(event, sort_keys=True) for event in events)

    assert not texts(original) - texts(written["traceEvents"])
    assert len(original) == trace.summary().events.total


def test_findings_and_idle_causes_stand_where_they_were(
    trace: ttap.Trace, written: dict[str, Any]
) -> None:
    finding = trace.diagnose().findings[0]
    drawn = [event for event in ours(written) if event["name"] == finding.title]
    assert len(drawn) == len(finding.intervals)
    total_us = sum(event["dur"] for event in drawn)
    assert total_us == pytest.approx(finding.cost_ns / 1000)
    idle = trace.idle()
    assert len([e for e in ours(written) if "explained_by" in e.get("args", {})]) <= idle.num_rows
    named = {event["name"] for event in ours(written)}
    causes = named & set(map(format_part, idle["cause"].tolist()))
    assert "data loading" in causes


def test_tracks_never_mix_with_those_of_the_trace(written: dict[str, Any]) -> None:
    pids = {event["pid"] for event in ours(written)}
    theirs = {e.get("pid") for e in written["traceEvents"] if e.get("cat") not in ("torchtraceap",)}
    names = [
        e["pid"] for e in written["traceEvents"] if str(e.get("args", {})).find("torchtraceap:") > 0
    ]
    assert pids == set(names) and not pids & (theirs - set(names))


def test_slices_of_a_track_do_not_overlap(trace: ttap.Trace) -> None:
    tracks = build_slices(trace.diagnose(), None)
    assert {track.group for track in tracks} >= {
        "findings",
        "why the GPU idles",
        "critical path",
    }
    for track in tracks:
        assert (track.end_ns >= track.start_ns).all()
        assert (track.start_ns[1:] >= track.end_ns[:-1]).all(), track.track


def test_counters_are_in_order(trace: ttap.Trace) -> None:
    counters = build_counters(trace.diagnose(), None)
    assert {"score of the window", "GPU busy (%)"} <= {counter.name for counter in counters}
    assert any(counter.name.startswith("queue of stream") for counter in counters)
    assert any(counter.name == "HtoD (GB/s)" for counter in counters)
    for counter in counters:
        assert (counter.time_ns[1:] >= counter.time_ns[:-1]).all(), counter.name
        assert len(counter.time_ns) == len(counter.value)


def test_a_trace_without_a_gpu(tmp_path: Path) -> None:
    source = tmp_path / "cpu.json"
    source.write_text('{"traceEvents":[' + CORRELATED % ("cpu_op", "aten::mm", 1, 5, 3, "") + "]}")
    ttap.load(source).annotate(tmp_path / "out.json.gz")
    assert ttap.load(tmp_path / "out.json.gz").events().num_rows >= 1


def test_an_ending_that_nobody_knows(trace: ttap.Trace, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"\.pftrace"):
        trace.annotate(tmp_path / "out.txt")


def test_perfettos_own_format(trace: ttap.Trace, tmp_path: Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    path = tmp_path / "demo.pftrace"
    trace.annotate(path)
    read = protos.Trace.FromString(path.read_bytes())
    kinds = [p.track_event.type for p in read.packet if p.HasField("track_event")]
    begins, ends = (
        kinds.count(protos.TrackEvent.TYPE_SLICE_BEGIN),
        kinds.count(protos.TrackEvent.TYPE_SLICE_END),
    )
    slices = sum(len(track.start_ns) for track in build_slices(trace.diagnose(), None))
    assert begins == ends == trace.summary().events.complete + slices
    names = {p.track_descriptor.name for p in read.packet if p.HasField("track_descriptor")}
    assert "torchtraceap: findings" in names
