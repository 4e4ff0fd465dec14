"""Result dataclasses: JSON of INTERFACE.md, reprs without data, HTML that escapes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples as samples
from conftest import WriteTrace
from page_reading import Page

import torchtraceap as ttap
from torchtraceap import errors
from torchtraceap.core import results
from torchtraceap.core.results import Finding, Timeline, Windows

TIMELINE_KEYS = {
    "span_ns",
    "busy_ns",
    "idle_ns",
    "compute_ns",
    "communication_ns",
    "memcpy_ns",
    "exposed_communication_ns",
    "exposed_memcpy_ns",
}


def assert_timeline(timeline: dict[str, int]) -> None:
    """Keys, types and the identity of the definitions."""
    assert set(timeline) == TIMELINE_KEYS
    assert all(type(value) is int and value >= 0 for value in timeline.values())
    parts = ("compute_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
    assert sum(timeline[part] for part in parts) == timeline["span_ns"]
    assert timeline["busy_ns"] + timeline["idle_ns"] == timeline["span_ns"]


def assert_summary(document: dict[str, Any]) -> None:
    """What INTERFACE.md says of `summary --json`."""
    assert document["schema"] == "torchtraceap.summary/1"
    for file in document["files"]:
        assert type(file["path"]) is str
        assert all(file[key] is None or type(file[key]) is int for key in ("rank", "world_size"))
    events = document["events"]
    assert events["gpu"] == events["gpu_linked"] + events["gpu_orphan"]
    assert events["total"] >= events["complete"] >= events["gpu"]
    assert sum(events["by_category"].values()) == events["complete"]
    for entry in document["diagnostics"]:
        assert set(entry) == {"code", "count", "first_byte_offset", "message"}
        assert entry["count"] > 0
    timelines = [document["timeline"]]
    timelines += [
        part["timeline"] for key in ("devices", "ranks", "steps") for part in document[key]
    ]
    for timeline in timelines:
        assert_timeline(timeline)
    for step in document["steps"]:
        assert step["timeline"]["span_ns"] == step["duration_ns"] > 0
    assert len(document["ranks"]) == len(document["files"])
    for key in TIMELINE_KEYS:
        assert document["timeline"][key] == sum(r["timeline"][key] for r in document["ranks"])


def test_summary_document(write_trace: WriteTrace) -> None:
    maker = samples.slow_loader(steps=3, rank=0)
    summary = ttap.load(maker.write(write_trace([]))).summary()
    document = json.loads(summary.to_json())
    assert document == summary.to_dict()
    assert_summary(document)
    assert document["files"][0]["rank"] == 0
    assert document["events"]["by_category"] == {
        "cpu_op": 6,
        "cuda_runtime": 24,
        "kernel": 24,
        "user_annotation": 6,
    }
    assert [step["name"] for step in document["steps"]] == [f"ProfilerStep#{i}" for i in range(3)]
    assert document["devices"][0]["name"] == "Test GPU"
    assert document["devices"][0]["streams"] == 1


def test_timeline_of_a_known_trace(write_trace: WriteTrace) -> None:
    """compute [0, 10), communication [5, 20), copy [15, 30) and again [40, 50) us."""
    maker = samples.TraceMaker()
    maker.gpu("kernel", "gemm", 0, 10, launch=-5)
    maker.gpu("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 5, 15, launch=-4)
    maker.gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 15, 15, launch=-3)
    maker.gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 40, 10, launch=-2)
    trace = ttap.load(maker.write(write_trace([])))
    expected = Timeline(
        span_ns=50_000,
        busy_ns=40_000,
        idle_ns=10_000,
        compute_ns=10_000,
        communication_ns=15_000,
        memcpy_ns=25_000,
        exposed_communication_ns=10_000,
        exposed_memcpy_ns=20_000,
    )
    assert trace.timeline() == expected
    assert trace.summary().timeline == expected
    assert expected.share(expected.idle_ns) == pytest.approx(0.2)


def test_events_without_a_device_have_the_timeline_of_the_rest(write_trace: WriteTrace) -> None:
    """The same events, once all without a device and once with others on device 1 beside them."""
    maker = samples.without_places()
    alone = ttap.load(maker.write(write_trace([]))).summary()
    assert [device.device for device in alone.devices] == [None]
    assert alone.devices[0].timeline == alone.timeline
    maker.gpu("kernel", "other", 5_000_000, 100, launch=4_999_000)
    maker.events[-1]["args"]["device"] = 1
    mixed = ttap.load(maker.write(write_trace([]))).summary()
    assert [device.device for device in mixed.devices] == [None, 1]
    assert mixed.devices[0].timeline == alone.timeline
    assert mixed.devices[1].timeline.span_ns == 100_000


def test_linked_only_leaves_orphans_out(write_trace: WriteTrace) -> None:
    maker = samples.TraceMaker()
    maker.gpu("kernel", "linked", 0, 10, launch=-5)
    maker.gpu("kernel", "orphan", 20, 10, launch=0)
    maker.events[-1]["args"]["correlation"] = 77_777
    trace = ttap.load(maker.write(write_trace([])))
    assert trace.summary().events.gpu_orphan == 1
    assert trace.summary().timeline.span_ns == 30_000
    assert trace.summary(linked_only=True).timeline.span_ns == 10_000
    assert trace.summary(linked_only=True).devices[0].timeline.span_ns == 10_000
    assert trace.timeline(linked_only=True).busy_ns == 10_000


def test_a_trace_without_gpu_events_has_an_empty_timeline(write_trace: WriteTrace) -> None:
    summary = ttap.load(samples.host_only().write(write_trace([]))).summary()
    assert summary.timeline == Timeline()
    assert summary.devices == ()
    assert_summary(summary.to_dict())


def test_several_ranks_are_summed(write_trace: WriteTrace, tmp_path: Path) -> None:
    for rank in range(2):
        samples.slow_loader(steps=2 + rank, rank=rank, world_size=2).write(
            tmp_path / f"{rank}.json"
        )
    summary = ttap.load(tmp_path).summary()
    assert_summary(summary.to_dict())
    assert len(summary.steps) == 5
    assert [device.rank for device in summary.devices] == [0, 1]
    assert summary.events.gpu == 40


def test_every_real_trace_has_a_summary(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    assert_summary(json.loads(trace.summary().to_json()))
    linked = trace.summary(linked_only=True)
    assert_timeline(linked.timeline.to_dict())
    assert linked.timeline.busy_ns <= trace.timeline().busy_ns
    idle = trace.idle()
    assert sum(idle.totals_ns.values()) == trace.timeline().idle_ns
    assert int((idle["end_ns"] - idle["start_ns"]).sum()) == trace.timeline().idle_ns


def test_results_are_frozen(write_trace: WriteTrace) -> None:
    diagnosis = ttap.load(samples.slow_loader().write(write_trace([]))).diagnose()
    for value in (diagnosis, diagnosis.summary, diagnosis.findings[0], diagnosis.windows):
        assert not hasattr(value, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)


def test_reprs_count_and_show_no_data(write_trace: WriteTrace) -> None:
    trace = ttap.load(samples.slow_loader().write(write_trace([])))
    diagnosis = trace.diagnose()
    values = (trace, diagnosis, diagnosis.findings[0], diagnosis.windows, diagnosis.summary,
              trace.tree(), trace.events(), trace.idle(), trace.rank())  # fmt: skip
    for value in values:
        text = repr(value)
        assert text.startswith(type(value).__name__ + "(")
        assert len(text) < 400
        assert "array" not in text


def test_html_escapes_everything_that_a_trace_says(write_trace: WriteTrace) -> None:
    trace = ttap.load(samples.hostile().write(write_trace([])))
    diagnosis = trace.diagnose()
    results = (trace, diagnosis, *diagnosis.findings, trace.events(), trace.tree(), trace.stacks())
    for page in (Page(result._repr_html_()) for result in results):
        tags = {tag for tag, _ in page.elements}
        names = {name for _, attributes in page.elements for name in attributes}
        assert tags.isdisjoint({"script", "img", "a", "iframe", "style"})
        assert not [name for name in names if name.startswith("on") or name in ("href", "src")]


def test_notebook_html_names_findings_and_what_was_not_checked(write_trace: WriteTrace) -> None:
    found = ttap.load(samples.slow_loader().write(write_trace([]))).diagnose()
    page = found._repr_html_()
    assert found.findings[0].title in page
    assert "num_workers" in page
    unknown = ttap.load(samples.host_only().write(write_trace([]))).diagnose()
    assert "Not checked" in unknown._repr_html_()


def test_timelines_add_up() -> None:
    total = Timeline(span_ns=3, busy_ns=2, idle_ns=1) + Timeline(span_ns=1, compute_ns=5)
    assert total == Timeline(span_ns=4, busy_ns=2, idle_ns=1, compute_ns=5)
    assert Timeline().share(1) == 0.0


def test_lengths_are_checked() -> None:
    with pytest.raises(ValueError, match="bounds"):
        Windows(bounds_ns=(0, 1), scores=np.zeros(2), types={})
    fields = {field.name: None for field in dataclasses.fields(Finding)}
    fields |= {"type": "x", "intervals": np.zeros((2, 2)), "interval_ranks": (None,)}
    with pytest.raises(ValueError, match="a rank each"):
        Finding(**fields)  # type: ignore[arg-type]


def test_every_public_field_is_documented_or_obvious() -> None:
    """A time that does not say its unit in its name would be a defect."""
    for name in results.__all__:
        cls = getattr(results, name)
        if not dataclasses.is_dataclass(cls):
            continue
        for field in dataclasses.fields(cls):
            if any(word in field.name for word in ("duration", "span", "start", "cost", "busy")):
                assert field.name.endswith(("_ns", "_share")), (name, field.name)


def test_errors_have_one_base() -> None:
    for name in errors.__all__:
        cls = getattr(errors, name)
        assert issubclass(cls, errors.TraceError)
        assert cls.__doc__
    assert issubclass(errors.ParseError, ValueError)
    assert issubclass(errors.OptionError, ValueError)
    assert str(errors.MissingFileError("x: no such file")) == "x: no such file"
