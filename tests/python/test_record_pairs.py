"""The recorder of labelled pairs: costs from marks, marks that leave no trace, a run on the CPU."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

DEVICE = Path(__file__).parents[2] / "benchmarks" / "device"
sys.path.insert(0, str(DEVICE))

import pair_traces  # noqa: E402
import record_pairs  # noqa: E402
from pair_traces import MARK, ORIGIN_NS  # noqa: E402

Event = dict[str, Any]
HOST, THREAD = 4711, 4713


# -- a trace made by hand ------------------------------------------------------------------------


def host(name: str, start: int, end: int, *, cat: str = "cpu_op", **args: Any) -> Event:
    ts, dur = Decimal(start) / 1000, Decimal(end - start) / 1000
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": HOST,
        "tid": THREAD,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def gpu(name: str, start: int, end: int, correlation: int, *, cat: str = "kernel") -> Event:
    args = {"correlation": correlation, "stream": 7, "device": 0, "External id": 5 * correlation}
    if cat == "gpu_memcpy":
        args["bytes"] = 1 << 20
    return host(name, start, end, cat=cat, **args) | {"pid": 0, "tid": 7}


def launch(start: int, end: int, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    return host(name, start, end, cat="cuda_runtime", correlation=correlation)


def mark(start: int, end: int, identity: int = 40) -> list[Event]:
    args = {"External id": identity, "Ev Idx": identity, "Record function id": identity}
    annotation = host(MARK + "part", start, end, cat="user_annotation", **args)
    on_gpu = host(MARK + "part", start, end, cat="gpu_user_annotation") | {"pid": 0, "tid": 7}
    return [annotation, on_gpu]


def flow(phase: str, at: Event, number: int, cat: str = "ac2g") -> Event:
    place = {key: at[key] for key in ("pid", "tid", "ts")}
    return {"ph": phase, "cat": cat, "name": cat, "id": number, "bp": "e", **place}


def step(start: int, end: int, number: int = 2) -> Event:
    return host(f"ProfilerStep#{number}", start, end, cat="user_annotation")


def trace(*events: Event | list[Event]) -> dict[str, Any]:
    flat = [e for part in events for e in (part if isinstance(part, list) else [part])]
    return {"schemaVersion": 1, "host_name": "box", "traceEvents": flat}


def cost_of(kind: str, document: dict[str, Any]) -> list[tuple[int, int]]:
    pair_traces.use_nanoseconds(document)
    cost = pair_traces.compute_cost(kind, pair_traces.understand(document))
    return [(start - ORIGIN_NS, end - ORIGIN_NS) for start, end in cost]


# -- intervals -----------------------------------------------------------------------------------


def test_interval_arithmetic() -> None:
    assert pair_traces.union([(5, 9), (1, 3), (3, 4), (7, 7)]) == [(1, 4), (5, 9)]
    assert pair_traces.intersect([(0, 10), (20, 30)], [(5, 25)]) == [(5, 10), (20, 25)]
    assert pair_traces.subtract([(0, 10), (20, 30)], [(5, 25), (29, 40)]) == [(0, 5), (25, 29)]
    assert pair_traces.subtract([(0, 10)], []) == [(0, 10)]
    assert pair_traces.subtract([], [(0, 10)]) == []
    assert pair_traces.length([(0, 10), (5, 15)]) == 15


# -- costs ---------------------------------------------------------------------------------------


def test_loading_costs_where_the_gpu_idles_during_the_fetch() -> None:
    document = trace(
        step(0, 1000), mark(100, 400), launch(10, 20, 1), gpu("k", 20, 200, 1),
        launch(450, 460, 2), gpu("k", 500, 900, 2),
    )  # fmt: skip
    assert cost_of("single_process_data_loading", document) == [(200, 400)]


def test_an_unpinned_copy_costs_itself_and_the_idle_time_behind() -> None:
    document = trace(
        step(0, 1000), mark(100, 400),
        launch(110, 390, 1, "cudaMemcpyAsync"),
        gpu("Memcpy HtoD (Pageable -> Device)", 150, 350, 1, cat="gpu_memcpy"),
        launch(420, 430, 2), gpu("k", 450, 700, 2),
        launch(500, 510, 3), gpu("Memcpy HtoD (Pageable -> Device)", 750, 800, 3, cat="gpu_memcpy"),
    )  # fmt: skip
    assert cost_of("no_memory_pin", document) == [(150, 450)]


def test_a_pinned_copy_at_the_same_place_costs_nothing_unpinned() -> None:
    document = trace(
        step(0, 1000), mark(100, 400), launch(110, 120, 1),
        gpu("Memcpy HtoD (Pinned -> Device)", 150, 350, 1, cat="gpu_memcpy"),
    )  # fmt: skip
    assert cost_of("no_memory_pin", document) == []


def test_copies_cost_where_nothing_computes_and_while_the_host_waits_in_them() -> None:
    document = trace(
        step(0, 1000), mark(100, 600),
        launch(90, 95, 1), gpu("k", 100, 300, 1),
        launch(110, 500, 2, "cudaMemcpyAsync"),
        gpu("Memcpy DtoH (Device -> Pageable)", 250, 350, 2, cat="gpu_memcpy"),
        gpu("Memcpy DtoD (Device -> Device)", 400, 420, 2, cat="gpu_memcpy"),
        launch(650, 660, 3), gpu("k", 700, 900, 3),
    )  # fmt: skip
    # exposed part of the copy, the idle time behind it, the host still inside the call
    assert cost_of("high_memcpy", document) == [(300, 400), (420, 500)]


def compiled(*codes: tuple[int, int, int], end: int) -> list[Event]:
    """Nested regions as torch writes them: each holds all that follow it."""
    events = []
    for number, (start, code_start, code_end) in enumerate(codes):
        events.append(host(f"Torch-Compiled Region: {number}/0", start, end - number))
        events.append(host("CompiledFunction", code_start, code_end))
        name = "## Call CompiledFxGraph fabc ##"
        events.append(host(name, code_start + 1, code_end - 1, cat="user_annotation"))
    return events


def test_a_break_costs_from_compiled_code_to_the_next_region() -> None:
    document = trace(
        step(0, 2000), mark(100, 900),
        compiled((110, 150, 300), (500, 520, 700), end=800),
        launch(200, 210, 1), gpu("triton_a", 220, 350, 1),
        launch(400, 410, 2), gpu("leftover", 430, 600, 2),
        launch(600, 610, 3), gpu("triton_b", 620, 1500, 3),
    )  # fmt: skip
    # idle 350-430 inside the gap 300-500, and all of the eager kernel launched in it
    assert cost_of("graph_break", document) == [(350, 600)]


def test_one_compiled_region_is_no_break() -> None:
    document = trace(
        step(0, 2000), mark(100, 900), compiled((110, 150, 700), end=800), mark(1000, 1900),
        compiled((1010, 1050, 1700), end=1800), launch(200, 210, 1), gpu("triton", 220, 350, 1),
    )  # fmt: skip
    assert cost_of("graph_break", document) == []


def test_a_busy_host_costs_the_idle_time_there_and_before_its_launches() -> None:
    document = trace(
        step(0, 1000), mark(100, 400), launch(50, 60, 1), gpu("k", 60, 150, 1),
        launch(380, 390, 2), gpu("tiny", 420, 430, 2),
        launch(500, 510, 3), gpu("k", 600, 900, 3),
    )  # fmt: skip
    assert cost_of("cpu_bound", document) == [(150, 420)]


def test_without_gpu_events_the_place_itself_is_the_cost() -> None:
    document = trace(step(0, 1000), mark(100, 400), host("aten::add", 50, 60))
    assert cost_of("high_memcpy", document) == [(100, 400)]
    with pytest.raises(ValueError, match="no profiled step"):
        cost_of("high_memcpy", trace(host("aten::add", 50, 60)))


# -- cleaning ------------------------------------------------------------------------------------


def marked_document() -> dict[str, Any]:
    op_args = [
        {"External id": number, "Ev Idx": number - 1, "Sequence number": 10 * number}
        for number in (3, 41, 90)
    ]
    ops = [host("aten::add", 1000 * i, 1000 * i + 900, **a) for i, a in enumerate(op_args)]
    call, kernel = launch(100, 200, 77), gpu("k", 300, 400, 77)
    kernel["args"]["External id"] = 41
    marks = mark(1000, 1950, 40)
    thread_name = {
        "ph": "M", "name": "thread_name", "pid": HOST, "tid": THREAD, "ts": Decimal("0.5"),
        "args": {"name": f"thread {THREAD} (python)"},
    }  # fmt: skip
    return trace(
        step(0, 3000), ops, call, kernel, marks, thread_name,
        flow("s", call, 77), flow("f", kernel, 77), flow("s", marks[0], 5), flow("f", marks[1], 5),
        flow("s", ops[0], 1 << 41), flow("s", ops[0], 9, "fwdbwd"), flow("f", ops[2], 9, "fwdbwd"),
        host("triton_poi", 2100, 2200, kernel_file="/tmp/torchinductor_ada/ab/cab.py",
             kinds=["/home/ada/x.py", "a/b"], occupancy=Decimal("0.25")),
    )  # fmt: skip


def cleaned(**options: bool) -> dict[str, Any]:
    document = marked_document()
    pair_traces.use_nanoseconds(document)
    data = pair_traces.dump_trace(pair_traces.clean_trace(document, **options))
    result = json.loads(gzip.decompress(data))
    assert isinstance(result, dict)
    return result


def test_marks_leave_nothing_behind() -> None:
    result = cleaned()
    events = result["traceEvents"]
    assert MARK not in json.dumps(result) and "box" not in json.dumps(result)
    ops = [e for e in events if e["name"] == "aten::add"]
    assert [e["args"]["External id"] for e in ops] == [1, 2, 3]
    assert [e["args"]["Ev Idx"] for e in ops] == [0, 1, 2]
    assert [e["args"]["Sequence number"] for e in ops] == [0, 1, 2]
    flows = [(e["ph"], e["cat"], e["id"]) for e in events if e["ph"] in "sf"]
    assert sorted(flows) == [
        ("f", "ac2g", 1), ("f", "fwdbwd", 1), ("s", "ac2g", 1), ("s", "ac2g", 1 << 40),
        ("s", "fwdbwd", 1),
    ]  # fmt: skip


def test_links_survive_the_new_numbers() -> None:
    events = cleaned()["traceEvents"]
    kernel = next(e for e in events if e.get("cat") == "kernel")
    call = next(e for e in events if e.get("cat") == "cuda_runtime")
    assert kernel["args"]["correlation"] == call["args"]["correlation"] == 1
    op = next(
        e for e in events if e.get("args", {}).get("External id") == kernel["args"]["External id"]
    )
    assert op["name"] == "aten::add"


def test_times_start_at_one_second_and_stay_exact() -> None:
    document = marked_document()
    for event in document["traceEvents"]:
        event["ts"] += Decimal("4428476383717.443")
    pair_traces.use_nanoseconds(document)
    events = pair_traces.clean_trace(document)["traceEvents"]
    starts = {e["name"]: round(e["ts"] * 1000) for e in events if e["ph"] == "X"}
    assert starts["ProfilerStep#2"] == ORIGIN_NS and starts["k"] == ORIGIN_NS + 300
    texts = [json.dumps(e["ts"]) for e in events]
    assert all(len(text.partition(".")[2]) <= 3 for text in texts)


def test_processes_threads_and_folders_are_neutral() -> None:
    result = cleaned()
    text = json.dumps(result)
    assert str(HOST) not in text and str(THREAD) not in text and "ada" not in text
    events = result["traceEvents"]
    assert {(e["pid"], e["tid"]) for e in events} == {(1000, 1000), (0, 7)}
    name = next(e for e in events if e["name"] == "thread_name")
    assert name["args"]["name"] == "thread 1000 (python)"
    triton = next(e for e in events if e["name"] == "triton_poi")
    assert triton["args"]["kernel_file"] == "cab.py" and triton["args"]["kinds"] == ["x.py", "a/b"]
    assert triton["args"]["occupancy"] == 0.25


def test_flows_can_be_left_out_and_marks_cannot_be_left_in() -> None:
    assert not any(e["ph"] in "stf" for e in cleaned(keep_flows=False)["traceEvents"])
    with pytest.raises(ValueError, match="mark"):
        pair_traces.dump_trace({"traceEvents": mark(0, 1)[:1]})


# -- a run on the CPU ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(few_steps: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pairs of two tiny workloads, one with worker processes and one compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("pairs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.compile's own
        record(folder, "segmenter", "mixer:explicit_break")
    return folder


@pytest.fixture(autouse=True, scope="module")
def few_steps() -> Iterator[None]:
    """The times are not what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_pairs, "WARM_STEPS", 2)
        patch.setattr(record_pairs, "TIMED_BLOCKS", 1)
        patch.setattr(record_pairs, "BLOCK_STEPS", 2)
        yield


def record(folder: Path, *only: str, **options: object) -> None:
    arguments = ["--device", "cpu", "--in-process", "--out", str(folder), "--workers", "1"]
    for name, value in options.items():
        arguments += ["--" + name.replace("_", "-"), str(value)]
    assert record_pairs.main([*arguments, "--only", *only]) == 0


def labels(folder: Path) -> dict[str, Any]:
    document = json.loads((folder / "labels.json").read_text())
    assert isinstance(document, dict)
    return document


def read(path: Path) -> dict[str, Any]:
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert isinstance(document, dict)
    return document


def test_both_twins_are_recorded_and_labelled(recorded: Path) -> None:
    document = labels(recorded)
    assert document["missing"] == []
    twins = [(t["workload"], t["form"], t["twin"]) for t in document["traces"]]
    forms = [("mixer", "explicit_break"), ("segmenter", "decode_in_main")]
    forms.append(("segmenter", "pageable_workers"))
    assert twins == [(*form, twin) for form in forms for twin in ("bad", "good")]
    for entry in document["traces"]:
        good = entry["twin"] == "good"
        accepted = entry["ratio"] >= record_pairs.ACCEPTED_RATIO
        accepted &= entry["type"] not in record_pairs.NEEDS_GPU
        expected = "good" if good else entry["type"] if accepted else "benign"
        assert entry["label"] == expected
        assert entry["step_ns"] > 0 and len(entry["steps"]) == 3
        assert (entry["cause"] == "") == good
        assert set(entry["environment"]) >= {"torch", "python", "device"}


def test_files_are_small_valid_and_without_marks(recorded: Path) -> None:
    for entry in labels(recorded)["traces"]:
        path = recorded / entry["file"]
        assert path.stat().st_size == entry["bytes"] <= 300_000
        document = read(path)
        text = json.dumps(document)
        assert MARK not in text and "host_name" not in text and str(Path.home()) not in text
        events = document["traceEvents"]
        steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
        assert len(steps) == 3
        identities = sorted({e["args"]["Ev Idx"] for e in events if "Ev Idx" in e.get("args", {})})
        assert identities == list(range(len(identities))) and len(identities) > 100
        first, last = steps[0]["ts"] * 1000, max(e["ts"] + e["dur"] for e in steps) * 1000
        for start, end in entry["intervals"]:
            assert round(first) <= start < end <= round(last)


def test_the_cost_lies_at_the_planted_place(recorded: Path) -> None:
    by_name = {(t["form"], t["twin"]): t for t in labels(recorded)["traces"]}
    fetch = by_name["decode_in_main", "bad"]
    events = read(recorded / fetch["file"])["traceEvents"]
    fetches = pair_traces.union(
        (round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000))
        for e in events
        if "_SingleProcessDataLoaderIter.__next__" in e["name"]
    )
    shared = pair_traces.intersect(fetches, [tuple(i) for i in fetch["intervals"]])
    assert pair_traces.length(shared) > 0.9 * pair_traces.length(fetches)
    good_events = read(recorded / by_name["decode_in_main", "good"]["file"])["traceEvents"]
    assert any("_MultiProcessingDataLoaderIter" in e["name"] for e in good_events)
    broken, whole = by_name["explicit_break", "bad"], by_name["explicit_break", "good"]
    assert broken["compiled_runs"] > whole["compiled_runs"] == 3
    assert broken["cost_ns"] > 0 == whole["cost_ns"]


def test_a_second_call_goes_on_where_the_first_stopped(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = labels(recorded)
    record(recorded, "segmenter:decode_in_main")
    assert "there already" in capsys.readouterr().out and labels(recorded) == before
    (recorded / "segmenter-decode_in_main-bad.json.gz").write_bytes(b"damaged")
    record(recorded, "segmenter:decode_in_main")
    entries = labels(recorded)["traces"]
    assert len(entries) == len(before["traces"])
    assert (recorded / "segmenter-decode_in_main-bad.json.gz").stat().st_size > 1000


def test_what_is_missing_is_said(recorded: Path, tmp_path: Path) -> None:
    record(tmp_path, "gpt:python_between", minutes=0.4)
    assert labels(tmp_path)["missing"][0]["reason"] == "no time left"
    record(tmp_path, "segmenter:pageable_workers", max_file_kb=2)
    reasons = {m["workload"]: m["reason"] for m in labels(tmp_path)["missing"]}
    assert reasons["segmenter"].startswith("too large")
    assert labels(tmp_path)["traces"] == [] and not list(tmp_path.glob("*.gz"))
    with pytest.raises(SystemExit) as stopped:
        record(tmp_path, "vgg")
    assert stopped.value.code == 2


@pytest.mark.skipif(
    importlib.util.find_spec("torchtraceap._core") is None, reason="torchtraceap is not built"
)
def test_the_files_load_and_can_be_judged(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torchtraceap as ttap

    for entry in labels(recorded)["traces"]:
        trace = ttap.load(recorded / entry["file"])
        summary = trace.summary()
        assert summary.events.total == len(read(recorded / entry["file"])["traceEvents"])
        assert [(s.name, s.start_ns, s.duration_ns) for s in summary.steps] == [
            (s["name"], s["start_ns"], s["end_ns"] - s["start_ns"]) for s in entry["steps"]
        ]
    assert record_pairs.main(["--check", "--out", str(recorded)]) in (0, 1)
    assert "6 traces" in capsys.readouterr().out
