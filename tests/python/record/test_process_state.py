"""Whether the process was running at all: what is recorded beside the trace, and what rules make
of it."""

from __future__ import annotations

import gc
import gzip
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.record.export import copy_without_private_data
from torchtraceap.record.process_state import ProcessState, state_events

MAIN, MS = 7, 1000.0


def host_run(*more: dict[str, Any], steps: int = 3, silent_ms: float = 40) -> dict[str, Any]:
    """Steps of 100 ms on the host that compute but for a silence in their middle."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, ts: float, dur: float) -> None:
        events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": MAIN,
                       "ts": ts, "dur": dur, "args": {}})  # fmt: skip

    for i in range(steps):
        at, half = i * 100 * MS, (100 - silent_ms) / 2 * MS
        add("user_annotation", f"ProfilerStep#{i + 1}", at, 100 * MS)
        for begin in (at, at + half + silent_ms * MS):
            add("cpu_op", "aten::mm", begin, half)
    return {"traceEvents": [*events, *more]}


def thread(at_ms: float, ran_ms: float, waited_ms: float, tid: int = MAIN) -> dict[str, Any]:
    args = {"ran_ns": round(ran_ms * 1e6), "waited_ns": round(waited_ms * 1e6)}
    return {"ph": "C", "name": "processor time of a thread", "pid": 1, "tid": tid,
            "ts": at_ms * MS, "args": args}  # fmt: skip


def machine(at_ms: float, throttled_ms: float = 0, runnable: int = 1) -> dict[str, Any]:
    args = {"runnable": runnable, "throttled_ns": round(throttled_ms * 1e6)}
    return {"ph": "C", "name": "state of the machine", "pid": 1, "tid": 0,
            "ts": at_ms * MS, "args": args}  # fmt: skip


def collection(at_ms: float, ms: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "garbage_collection", "name": "garbage collection", "pid": 1,
            "tid": MAIN, "ts": at_ms * MS, "dur": ms * MS, "args": {"generation": 2}}  # fmt: skip


def costs_ms(tmp_path: Path, document: dict[str, Any]) -> dict[str, int]:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document), "utf-8")
    found = ttap.load(path).diagnose()
    return {finding.type: round(finding.cost_ns / 1e6) for finding in found.findings}


def silence(*more: dict[str, Any]) -> dict[str, Any]:
    """Return the run with samples every 10 ms of a thread that always runs, but for `more`."""
    return host_run(*[thread(10 * i, 10 * i, 0) for i in range(31)], *more)


def test_silence_without_a_processor_is_starvation(tmp_path: Path) -> None:
    samples, ran, waited = [], 0.0, 0.0
    for i in range(31):  # it waits during the silence, which is 30 to 70 ms of each step
        samples.append(thread(10 * i, ran, waited))
        is_silent = 3 <= i % 10 < 7
        ran, waited = ran + (not is_silent) * 10, waited + is_silent * 10
    marks = [machine(100 * i, runnable=23) for i in range(4)]
    document = {**host_run(*samples, *marks), "ttap_process": {"cores": 2, "usable_cores": 2}}

    assert costs_ms(tmp_path, document) == {"cpu_starvation": 120}
    sentence = ttap.load(tmp_path / "trace.json").diagnose().findings[0].why
    assert "(40.0 % " in sentence and "23 threads ready to run on 2 processors" in sentence


def test_silence_of_a_thread_that_sleeps_stays_silence(tmp_path: Path) -> None:
    asleep = host_run(*[thread(10 * i, 6 * i, 0) for i in range(31)])
    assert costs_ms(tmp_path, asleep) == {"host_silence": 120}
    assert costs_ms(tmp_path, silence()) == {"host_silence": 120}


def test_waits_of_threads_that_nobody_waits_for_do_not_count(tmp_path: Path) -> None:
    others = [thread(10 * i, 0, 10 * i, tid=99) for i in range(31)]
    assert costs_ms(tmp_path, silence(*others)) == {"host_silence": 120}


def test_collections_are_taken_off_silence(tmp_path: Path) -> None:
    whole = [collection(100 * i + 30, 39) for i in range(3)]
    assert costs_ms(tmp_path, silence(*whole)) == {"gc_pause": 117}
    half = [collection(100 * i + 30, 20) for i in range(3)]
    assert costs_ms(tmp_path, silence(*half)) == {"gc_pause": 60, "host_silence": 60}
    # Python's own threads may write a range of that name: it is no collection.
    named = [{**each, "cat": "user_annotation"} for each in whole]
    assert "gc_pause" not in costs_ms(tmp_path, silence(*named))


@pytest.mark.parametrize("counts_as_waiting", [True, False])
def test_throttled_time_is_told_from_starvation(tmp_path: Path, counts_as_waiting: bool) -> None:
    """Kernels before 6.18 count it as waiting, later ones don't count it at all."""
    samples, ran, waited = [], 0.0, 0.0
    for i in range(31):
        samples.append(thread(10 * i, ran, waited))
        is_silent = 3 <= i % 10 < 7
        ran, waited = ran + (not is_silent) * 10, waited + is_silent * counts_as_waiting * 10
    throttled = [machine(100 * i, 40 * i) for i in range(4)]

    assert costs_ms(tmp_path, host_run(*samples, *throttled)) == {"cpu_throttled": 120}


def test_nothing_recorded_is_unknown_only_where_the_host_falls_silent(tmp_path: Path) -> None:
    (tmp_path / "silent.json").write_text(json.dumps(host_run()), "utf-8")
    (tmp_path / "busy.json").write_text(json.dumps(host_run(silent_ms=1)), "utf-8")
    silent, busy = (ttap.load(tmp_path / f"{name}.json").diagnose() for name in ("silent", "busy"))

    for name in ("cpu_starvation", "cpu_throttled", "gc_pause"):
        assert silent.further_verdicts[name] == "unknown"
        assert busy.further_verdicts[name] == "absent"
    assert [each.type for each in silent.findings] == ["host_silence"]


@pytest.mark.parametrize("value", [-1, 2**63 - 1, "x", None, 1e300, [1]])
def test_counters_may_claim_anything(tmp_path: Path, value: Any) -> None:
    wrong = [{**thread(10 * i, 0, 0), "args": {"ran_ns": value, "waited_ns": value}}
             for i in range(5, 9)]  # fmt: skip
    odd = [{**machine(10 * i), "args": {"throttled_ns": value, "runnable": value}} for i in (2, 9)]
    found = costs_ms(tmp_path, silence(*wrong, *odd))
    assert sum(found.values()) <= 300


# ------------------------------------------------------------------------------- the recorder


def test_a_state_is_sampled_and_becomes_events() -> None:
    state = ProcessState()
    state.start()
    time.sleep(0.05)
    gc.collect()
    state.sample()
    held = [[] for _ in range(200_000)]
    for each in held:
        each.append(each)
    held.clear()
    del each
    gc.collect()
    document = state.finish()

    assert document == state.finish()
    assert state._on_collection not in gc.callbacks
    assert len(document["samples"]) == 3
    assert len({tid for _, _, tid, _, _ in document["threads"]} & {threading.get_native_id()}) == 1
    assert len(document["threads"]) > 5  # also between the steps
    assert document["collections"]
    events = json.loads(f"[{state_events(json.loads(json.dumps(document)), 0).decode()}]")
    names = {event["name"] for event in events}
    assert {"processor time of a thread", "state of the process", "garbage collection"} <= names


@pytest.mark.parametrize("events", ["", '{"ph":"X","cat":"cpu_op","name":"a","ts":1.5,"dur":1}'])
def test_events_are_added_to_the_array_on_the_clock_of_the_trace(
    tmp_path: Path, events: str
) -> None:
    source = tmp_path / "raw.json"
    text = '{"args": {"x": "traceEvents"}, "baseTimeNanoseconds": 1000, "traceEvents": [%s]}'
    source.write_text(text % events, "utf-8")
    state = {"pid": 1, "machine": {"cores": 2}, "threads": [(3000, 1, 1, 5, 6), (9000, 1, 1, 7, 9)],
             "samples": [], "collections": [(5000, 2000, 1, 2, 0)]}  # fmt: skip
    with (tmp_path / "out").open("wb") as target:
        copy_without_private_data(source, target, use_gzip=True, state=state)
    document = json.loads(gzip.decompress((tmp_path / "out").read_bytes()))

    assert document["ttap_process"] == {"cores": 2}
    first, second, collected, *rest = document["traceEvents"]
    assert (first["ts"], first["args"]) == (2.0, {"ran_ns": 0, "waited_ns": 0})
    assert (second["ts"], second["args"]) == (8.0, {"ran_ns": 2, "waited_ns": 3})
    assert (collected["ts"], collected["dur"]) == (4.0, 2.0)
    assert len(rest) == (1 if events else 0)


def test_a_recording_holds_the_state_and_convert_keeps_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with ttap.profile(tmp_path / "run.json", wait=0, warmup=1, active=3, diagnose=False) as run:
        for _ in range(4):
            torch.rand(900, 900) @ torch.rand(900, 900)
            time.sleep(0.03)
            run.step()
    from torchtraceap.cli import main

    assert main(["convert", str(run.path), str(tmp_path / "again.json")]) == 0
    for name in ("run.json", "again.json"):
        document = json.loads((tmp_path / name).read_text("utf-8"))
        counters = [e for e in document["traceEvents"] if e["ph"] == "C"]
        steps = [e for e in document["traceEvents"] if e["name"].startswith("ProfilerStep")]
        times = [e["ts"] for e in counters if e["name"] == "state of the process"]
        assert "cores" in document["ttap_process"]
        for step in steps:  # a sample at each border, within some ms on a busy machine
            end = step["ts"] + step["dur"]
            assert min(abs(end - at) for at in times) < 20 * MS
    found = {each.type for each in run.diagnosis.findings}
    assert found & {"host_silence", "cpu_starvation"}  # the machine may be busy
