"""Properties that hold for every trace, well-nested, odd or broken."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from torchtraceap import _core
from torchtraceap.errors import ParseError
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.trace import Trace

Event = dict[str, Any]
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TOLERANCE_NS = 1000

HOST_NAMES = (
    "aten::add",
    "aten::mm",
    "aten::item",
    "Optimizer.step#SGD.step",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "Torch-Compiled Region: 0/0",
    "autograd::engine::evaluate_function: MmBackward0",
    "ProfilerStep#3",
    "",
)
CALLS = (
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaMalloc",
    "hipGraphLaunch",
)
KERNELS = (
    "gemm",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
    "elementwise",
    "Memcpy HtoD (Pageable -> Device)",
    "Memset (Device)",
)
CATEGORY_OF = {"M": "gpu_memcpy"}


@st.composite
def host_events(draw: st.DrawFn, tid: int) -> list[Event]:
    """A well-nested stack of ranges on one thread, launch calls at the leaves."""
    events: list[Event] = []

    def fill(start: int, end: int, depth: int) -> None:
        at = start
        for _ in range(draw(st.integers(0, 3))):
            if end - at < 4:
                return
            first = draw(st.integers(at, end - 2))
            last = draw(st.integers(first + 1, end))
            leaf = depth >= 2 or draw(st.booleans())
            name = draw(st.sampled_from(CALLS if leaf else HOST_NAMES))
            category = (
                "cuda_runtime" if leaf else draw(st.sampled_from(["cpu_op", "user_annotation"]))
            )
            events.append(
                {
                    "ph": "X",
                    "cat": category,
                    "name": name,
                    "pid": 1,
                    "tid": tid,
                    "ts": first,
                    "dur": last - first,
                    "args": {},
                }
            )
            if not leaf:
                fill(first, last, depth + 1)
            at = last

    fill(0, draw(st.integers(10, 5000)), 0)
    return events


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = []
    for tid in range(draw(st.integers(1, 3))):
        events += draw(host_events(tid))
    correlation = 1
    for event in list(events):
        if event["cat"] != "cuda_runtime":
            event["args"]["External id"] = draw(st.integers(1, 20))
            continue
        event["args"]["correlation"] = correlation
        for _ in range(draw(st.integers(0, 2))):
            name = draw(st.sampled_from(KERNELS))
            category = (
                "gpu_memcpy" if "Memcpy" in name else "gpu_memset" if "Memset" in name else "kernel"
            )
            stream = draw(st.sampled_from([7, 20]))
            events.append(
                {
                    "ph": "X",
                    "cat": category,
                    "name": name,
                    "pid": 0,
                    "tid": stream,
                    "ts": event["ts"] + draw(st.integers(0, 300)),
                    "dur": draw(st.integers(0, 200)),
                    "args": {
                        "device": 0,
                        "stream": stream,
                        "correlation": correlation,
                        "bytes": draw(st.sampled_from([4, 65536, 1 << 24])),
                    },
                }
            )
        correlation += 1
    if draw(st.booleans()):  # an orphan
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": "orphan",
                "pid": 0,
                "tid": 7,
                "ts": 5,
                "dur": 3,
                "args": {"device": 0, "stream": 7, "correlation": 999999},
            }
        )
    if not events:
        events.append({"ph": "i", "name": "alone", "pid": 1, "tid": 1, "ts": 0})
    return events


def to_text(events: list[Event]) -> bytes:
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


def load(text: bytes, chunk_bytes: int = 1 << 20, threads: int = 1) -> Trace:
    table = _core.read_trace_bytes(text, "property", threads=threads, chunk_bytes=chunk_bytes)
    return Trace([RankTrace(table, 0)])


def documents(trace: Trace) -> tuple[Any, Any]:
    return trace.summary().to_dict(), trace.diagnose(windows=50).to_dict()


@SETTINGS
@given(traces())
def test_children_lie_in_their_parents(events: list[Event]) -> None:
    rank = load(to_text(events)).ranks[0]
    start, end = rank.table.ts_ns, rank.table.ts_ns + rank.table.dur_ns
    parent = rank.tree.parent
    rows = np.flatnonzero(parent != _core.NO_ROW)
    assert (parent[rows] < rows).all()
    assert (start[rows] >= start[parent[rows]]).all()
    assert (end[rows] <= end[parent[rows]] + TOLERANCE_NS).all()
    assert (rank.table.track[rows] == rank.table.track[parent[rows]]).all()


@SETTINGS
@given(traces())
def test_times_add_up(events: list[Event]) -> None:
    trace = load(to_text(events))
    for timeline in (trace.summary().timeline, *(s.timeline for s in trace.summary().steps)):
        parts = (
            timeline.compute_ns
            + timeline.exposed_communication_ns
            + timeline.exposed_memcpy_ns
            + timeline.idle_ns
        )
        assert parts == timeline.span_ns
        assert timeline.busy_ns + timeline.idle_ns == timeline.span_ns
    rank = trace.ranks[0]
    bounds = rank.tree.profiled
    idle = _core.explain_idle(rank.table, rank.tree, bounds=bounds)
    assert sum(idle.totals.values()) == rank.timeline(bounds=bounds).idle_ns
    assert (idle.end_ns > idle.start_ns).all()
    assert (idle.start_ns[1:] >= idle.end_ns[:-1]).all()


@SETTINGS
@given(traces(), st.randoms(use_true_random=False))
def test_the_order_of_events_changes_nothing(events: list[Event], rng: random.Random) -> None:
    shuffled = list(events)
    rng.shuffle(shuffled)
    assert documents(load(to_text(events))) == documents(load(to_text(shuffled)))


def shift_times(value: Any, shift_ns: int) -> Any:
    """Moves every time of a document, by the names and places that INTERFACE gives them."""
    if isinstance(value, dict):
        return {
            k: (
                v + shift_ns
                if k in ("start_ns", "end_ns") and v is not None
                else [t + shift_ns for t in v]
                if k == "bounds_ns"
                else [[a + shift_ns, b + shift_ns] for a, b in v]
                if k == "intervals"
                else shift_times(v, shift_ns)
            )
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [shift_times(v, shift_ns) for v in value]
    return value


@SETTINGS
@given(traces(), st.sampled_from([1, 1_000_000, 1_623_142_623_460_111]))
def test_a_time_shift_changes_nothing_else(events: list[Event], shift_us: int) -> None:
    moved = [{**e, "ts": e["ts"] + shift_us} for e in events]
    assume(any(event["ph"] == "X" for event in events))  # else there is no time to move
    before, after = documents(load(to_text(events))), documents(load(to_text(moved)))
    for document in (*before, *after):
        document.pop("diagnostics", None)
    assert tuple(shift_times(d, shift_us * 1000) for d in before) == after


@SETTINGS
@given(traces(), st.integers(1, 4000), st.integers(1, 3), st.sampled_from([None, 0, 2]))
def test_chunk_borders_change_nothing(
    events: list[Event], chunk_bytes: int, threads: int, indent: int | None
) -> None:
    text = json.dumps(
        {"traceEvents": events, "tail": [{"ph": 1}, {"ph": 2}]}, indent=indent
    ).encode()
    whole, pieces = load(text), load(text, chunk_bytes, threads)
    assert _core.trace_json(whole.ranks[0].table) == _core.trace_json(pieces.ranks[0].table)
    assert documents(whole) == documents(pieces)


@SETTINGS
@given(traces())
def test_writing_and_reading_is_the_identity(events: list[Event]) -> None:
    text = to_text(events)
    table = load(text).ranks[0].table
    again = load(_core.trace_json(table)).ranks[0].table
    for name in (
        "ts_ns",
        "dur_ns",
        "kind",
        "phase",
        "flags",
        "device",
        "stream",
        "correlation",
        "external_id",
    ):
        assert (getattr(table, name) == getattr(again, name)).all(), name
    as_read = [json.loads(table.event_json(row)) for row in range(len(table))]
    assert as_read == [json.loads(again.event_json(row)) for row in range(len(again))]
    key = lambda e: json.dumps(e, sort_keys=True)  # noqa: E731
    assert sorted(as_read, key=key) == sorted(events, key=key)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces(), st.data())
def test_damage_is_survived(events: list[Event], data: st.DataObject) -> None:
    """Bytes cut out, put in or changed: an error of one sentence, or results that add up."""
    text = bytearray(to_text(events))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, max(len(text) - 1, 0)))
        junk = data.draw(
            st.sampled_from([b"", b'"', b"\\", b",", b"}", b"]", b"\x00", b"\xff", b"NaN"])
        )
        text[at : at + data.draw(st.integers(0, 3))] = junk
    chunk_bytes = data.draw(st.sampled_from([64, 1 << 20]))
    try:
        trace = load(bytes(text), chunk_bytes)
    except ParseError as error:
        assert "\n" not in str(error)
        return
    summary, diagnosis = documents(trace)
    timeline = summary["timeline"]
    assert timeline["busy_ns"] + timeline["idle_ns"] == timeline["span_ns"]
    assert set(diagnosis["verdicts"].values()) <= {"present", "absent", "unknown"}
    table = trace.ranks[0].table
    assert len(table) <= table.total_objects
    for row in range(len(table)):
        json.loads(table.event_json(row))
