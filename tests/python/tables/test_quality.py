"""What a recording can be trusted for, on small recordings made here and on the shared cases."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import ROOT
from recorder import VENDORS, Json, Recorder

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import ParseError
from torchtraceap.report.timeline_data import pack_timeline

sys.path.insert(0, str(ROOT / "benchmarks" / "findings"))
import damage

CASES = Path(os.environ.get("TORCHTRACEAP_CASES", ROOT.parent / "shared" / "cases"))
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")


def codes(trace: ttap.Trace) -> dict[str, int]:
    counts: dict[str, int] = {}
    for note in trace.summary().quality.notes:
        counts[note.code] = counts.get(note.code, 0) + note.count
    return counts


def present(trace: ttap.Trace) -> set[str]:
    return {finding.type for finding in trace.diagnose().findings}


# ------------------------------------------------------------------------------ impossible times


@pytest.mark.parametrize("vendor", VENDORS)
def test_kernels_over_later_work_are_left_out(tmp_path: Path, vendor: str) -> None:
    recorder = Recorder(vendor)

    def stretch(step: int, kernel: int, event: Json) -> Json:
        if (step, kernel) in ((1, 3), (2, 20), (4, 0)):
            event["dur"] = 2.1e6 + 1e5 * step
        return event

    recorder.steps(6, 30, 80.0, edit=stretch)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"impossible_duration": 3}
    timeline = trace.timeline()
    assert timeline.busy_ns == (6 * 30 - 3) * 80_000
    assert timeline.span_ns < 15_000_000
    steps = trace.summary().steps
    assert len(steps) == 6 and all(2_400_000 < s.duration_ns < 2_420_000 for s in steps)
    assert not present(trace)
    assert trace.diagnose().busy_share > 0.98
    (line,) = trace.quality().rows()
    assert "impossible_duration" in line


def test_overlaps_of_microseconds_and_long_kernels_stay(tmp_path: Path) -> None:
    recorder = Recorder()

    def overlap(step: int, kernel: int, event: Json) -> Json:
        event["dur"] += 90.0 if kernel % 2 else 0.0  # a dependent launch begins early
        return event

    end = recorder.steps(5, 20, 100.0, edit=overlap)
    # A kernel a thousand times as long as the others, but nothing begins before it has ended.
    recorder.gpu(recorder.call("cudaLaunchKernel", end, 3), end + 9, 1e5, name="persistent")
    recorder.call("cudaDeviceSynchronize", end + 4, 1e5 + 8)
    recorder.gpu(recorder.call("cudaLaunchKernel", end + 1e5 + 20, 3), end + 1e5 + 30, 100)
    assert codes(recorder.load(tmp_path)) == {}


def test_branches_of_a_graph_may_cover_each_other(tmp_path: Path) -> None:
    recorder = Recorder()
    now = 0.0
    for _ in range(8):
        correlation = recorder.call("cudaGraphLaunch", now, 10)
        recorder.gpu(correlation, now + 20, 4000.0, name="branch")
        for kernel in range(30):
            recorder.gpu(correlation, now + 25 + 100 * kernel, 20.0, name="other branch")
        recorder.call("cudaStreamSynchronize", now + 12, 4010)
        now += 4100
    trace = recorder.load(tmp_path)
    assert codes(trace) == {}
    assert trace.timeline().busy_ns == 8 * 4_000_000


@pytest.mark.parametrize("vendor", VENDORS)
def test_records_at_time_zero_are_left_out(tmp_path: Path, vendor: str) -> None:
    recorder = Recorder(vendor, base=1.7e15)

    def zero(step: int, kernel: int, event: Json) -> Json:
        if (step * 25 + kernel) % 11 == 0:
            event["ts"] = event["dur"] = 0
        return event

    recorder.steps(5, 25, 90.0, edit=zero)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"impossible_duration": 12}
    assert "clock_offset" not in {entry.code for entry in trace.diagnostics}
    assert 11_100_000 < trace.timeline().span_ns < 11_400_000
    assert not present(trace)


def test_records_that_come_twice_count_once(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.steps(5, 20, 100.0)
    kernels = [event for event in recorder.events if event["cat"] == "kernel"]
    again = [{**event, "args": dict(event["args"])} for event in kernels]
    once = recorder.load(tmp_path)
    recorder.events += again
    trace = recorder.load(tmp_path)
    assert codes(once) == {} and codes(trace) == {"impossible_duration": len(again)}
    assert trace.timeline().busy_ns == once.timeline().busy_ns
    assert trace.diagnose().idle_ns == once.diagnose().idle_ns
    assert sum(trace.kernels()["count"]) == sum(once.kernels()["count"])


def test_records_alike_of_other_launches_stay(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.steps(5, 20, 100.0)
    for stream in (20, 21):  # two streams begin and end together
        correlation = recorder.call("cudaLaunchKernel", 20_000, 3)
        recorder.gpu(correlation, 20_010.0, 50.0, name="twin", stream=stream)
    assert codes(recorder.load(tmp_path)) == {}


def test_zero_is_a_time_among_relative_ones(tmp_path: Path) -> None:
    recorder = Recorder(base=0.0)
    recorder.steps(4, 20, 100.0)
    recorder.gpu(recorder.correlation + 50, 0.0, 5.0)
    assert "impossible_duration" not in codes(recorder.load(tmp_path))


def test_a_record_outside_of_the_trace_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder()

    def far(step: int, kernel: int, event: Json) -> Json:
        if (step, kernel) == (2, 5):
            event["ts"] -= 5e9
        return event

    recorder.steps(5, 20, 100.0, edit=far)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"impossible_duration": 1}
    assert trace.timeline().span_ns < 11_000_000


def test_what_was_left_out_is_written_back(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.steps(
        4, 20, 100.0,
        edit=lambda s, k, e: {**e, "dur": 3e6} if (s, k) == (1, 1) else e,
    )  # fmt: skip
    trace = recorder.load(tmp_path)
    (tmp_path / "copy.json").write_bytes(_core.trace_json(trace.ranks[0].table))
    events = json.loads((tmp_path / "copy.json").read_text())["traceEvents"]
    assert sum(event.get("dur") == 3e6 for event in events) == 1


def test_frames_whose_return_was_not_seen(tmp_path: Path) -> None:
    recorder = Recorder()
    end = recorder.steps(6, 20, 100.0)
    marks = [e for e in recorder.events if str(e["name"]).startswith("ProfilerStep")]
    for mark in marks:
        at = mark["ts"] - recorder.base
        recorder.host("python_function", "train.py(10): step", at + 0.2, mark["dur"] - 0.4)
        for call in range(3):
            name = "<built-in method gate of PyCapsule object>"
            recorder.host("python_function", name, at + 3.6 + 4 * call, end - at - 3.6 - 4 * call)
    trace = recorder.load(tmp_path)
    counts = {entry.code: entry.count for entry in trace.diagnostics}
    assert counts["unclosed_frames"] == 18
    step = trace.summary().step
    assert step is not None and 2_000_000 < step.host_ns < 2_020_000
    assert codes(trace) == {}


def test_the_call_that_ends_the_recording_is_closed(tmp_path: Path) -> None:
    recorder = Recorder()
    end = recorder.steps(6, 20, 100.0)
    recorder.host("python_function", "train.py(3): main", 0.0, end + 50)
    recorder.host("python_function", "profiler.py(700): step", end - 6, 56)
    trace = recorder.load(tmp_path)
    assert "unclosed_frames" not in {entry.code for entry in trace.diagnostics}


# ------------------------------------------------------------------------------ lost records


@pytest.mark.parametrize("vendor", VENDORS)
def test_steps_without_records_are_neither_busy_nor_idle(tmp_path: Path, vendor: str) -> None:
    recorder = Recorder(vendor)
    recorder.steps(9, 25, 100.0, edit=lambda s, k, e: e if s >= 4 else None)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"launches_without_gpu_work": 100}
    diagnosis = trace.diagnose()
    assert not diagnosis.findings
    assert diagnosis.verdicts["cpu_bound"] != "present"
    assert diagnosis.busy_share > 0.98
    assert [step.name for step in diagnosis.summary.steps] == [
        f"ProfilerStep#{n}" for n in range(4, 9)
    ]
    quality = diagnosis.to_dict()["quality"]
    assert quality["recorded_share"] == pytest.approx(5 / 9, abs=0.01)
    assert quality["comparable"] is False
    text = str(diagnosis)
    assert "recording: 5 of 9 steps have GPU records; 100 launches without a GPU record" in text
    assert "Healthy" not in text


def test_the_page_hatches_what_is_missing(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.steps(8, 25, 100.0, edit=lambda s, k, e: None if s in (3, 4) else e)
    trace = recorder.load(tmp_path)
    part = trace.ranks[0]
    blob, _ = pack_timeline(
        part.table,
        part.tree,
        kind_names=_core.kind_names(),
        inputs=[],
        gpu=_core.gpu_intervals(part.table, part.tree),
    )
    packed = gzip.decompress(blob)
    header = json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])
    ((start_ns, end_ns),) = header["missing"]
    assert 4_900_000 < end_ns - start_ns < 5_100_000
    page = trace.diagnose().to_html()
    assert "6 of 8 steps have GPU records" in page


def test_a_hole_in_the_middle(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.steps(8, 25, 100.0, edit=lambda s, k, e: None if s in (3, 4) else e)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"launches_without_gpu_work": 50}
    assert not present(trace)
    timeline = trace.timeline()
    assert timeline.idle_ns < 0.02 * timeline.span_ns
    step = trace.summary().step
    # Six have their records; the first of them is warm-up.
    assert step is not None and step.steps == 5
    assert 2_500_000 <= step.measured_ns < 2_530_000


def test_a_cut_before_the_end(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.steps(10, 20, 100.0, edit=lambda s, k, e: e if s < 2 else None)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"launches_without_gpu_work": 160}
    assert not present(trace)
    assert trace.summary().quality.recorded_share == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("vendor", VENDORS)
def test_kernels_of_which_none_is_recorded(tmp_path: Path, vendor: str) -> None:
    recorder = Recorder(vendor)
    copy = {"nvidia": "cudaMemcpyAsync", "amd": "hipMemcpyAsync", "intel": "urEnqueueUSMMemcpy"}
    end = recorder.steps(5, 30, 100.0, edit=lambda s, k, e: None)
    for n in range(8):
        at = n * end / 8 + 130
        recorder.gpu(
            recorder.call(copy[vendor], at, 5), at + 8, 40.0,
            name="Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy", stream=9,
        )  # fmt: skip
    diagnosis = recorder.load(tmp_path).diagnose()
    assert diagnosis.verdicts["cpu_bound"] == "unknown"
    assert not diagnosis.findings
    assert "not recorded" in str(diagnosis)


def test_a_captured_graph_loses_nothing(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.call("cudaStreamBeginCapture", 0, 5)
    for kernel in range(40):
        recorder.call("cudaLaunchKernel", 10 + 5 * kernel, 3)
    recorder.call("cudaStreamEndCapture", 220, 5)
    recorder.call("cudaGraphInstantiate", 230, 50)
    now = 300.0
    for _ in range(12):
        correlation = recorder.call("cudaGraphLaunch", now, 8)
        for kernel in range(40):
            recorder.gpu(correlation, now + 12 + 50 * kernel, 49.0)
        recorder.call("cudaStreamSynchronize", now + 9, 2000)
        now += 2015
    assert codes(recorder.load(tmp_path)) == {}


def test_a_graph_captured_without_a_record_of_it(tmp_path: Path) -> None:
    recorder = Recorder()
    for kernel in range(40):
        recorder.call("cudaLaunchKernel", 10 + 5 * kernel, 3)
    now = 300.0
    for _ in range(12):
        correlation = recorder.call("cudaGraphLaunch", now, 8)
        for kernel in range(40):
            recorder.gpu(correlation, now + 12 + 50 * kernel, 49.0)
        recorder.call("cudaStreamSynchronize", now + 9, 2000)
        now += 2015
    assert codes(recorder.load(tmp_path)) == {}


def test_replayed_graphs_without_records(tmp_path: Path) -> None:
    recorder = Recorder("amd")
    now = 0.0
    for step in range(16):
        recorder.host("user_annotation", f"ProfilerStep#{step}", now, 9990)
        correlation = recorder.call("hipGraphLaunch", now + 50, 30)
        if step in (0, 15):
            for kernel in range(60):
                recorder.gpu(correlation, now + 90 + 150 * kernel, 149.0)
        recorder.call("hipStreamSynchronize", now + 100, 9500)
        now += 10_000
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"launches_without_gpu_work": 14}
    assert not present(trace)
    assert [step.name for step in trace.summary().steps] == ["ProfilerStep#0", "ProfilerStep#15"]


def test_some_single_losses_stay_silent(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.steps(10, 50, 30.0, edit=lambda s, k, e: None if k == 20 else e)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {}
    assert trace.summary().quality.recorded_share == 1.0


def copies(recorder: Recorder, count: int, start: float, lost: Any, *, name: str) -> float:
    """Copies or fills that block the host, each for 60 us; `lost` says which have no record."""
    for n in range(count):
        at = start + 65.0 * n
        correlation = recorder.call(name, at, 60)
        if not lost(n):
            recorder.gpu(
                correlation, at + 10, 45.0, name="Memcpy DtoH (Device -> Pageable)",
                category="gpu_memcpy",
            )  # fmt: skip
    return start + 65.0 * count


def test_copies_that_are_lost_in_a_row(tmp_path: Path) -> None:
    recorder = Recorder()
    end = recorder.steps(4, 25, 100.0)
    end = copies(recorder, 200, end, lambda n: n < 150, name="cudaMemcpyAsync")
    recorder.steps(4, 25, 100.0, start=end)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"launches_without_gpu_work": 150}
    assert not trace.summary().quality.comparable
    assert trace.diagnose().busy_share > 0.9


def test_copies_that_are_lost_here_and_there(tmp_path: Path) -> None:
    recorder = Recorder()
    end = recorder.steps(4, 25, 100.0)
    whole = copies(recorder, 200, end, lambda n: n % 4 == 0, name="cudaMemcpyAsync")
    recorder.steps(4, 25, 100.0, start=whole)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"launches_without_gpu_work": 50}
    assert "cpu_bound" not in present(trace)
    # Where a lost copy may have run nothing is idle.
    assert trace.timeline().idle_ns < 200 * 22_000


def test_fills_and_single_copies_without_records_stay_silent(tmp_path: Path) -> None:
    recorder = Recorder()
    end = recorder.steps(4, 25, 100.0)
    end = copies(recorder, 100, end, lambda n: n % 2 == 0, name="cudaMemsetAsync")
    end = copies(recorder, 200, end, lambda n: n in (20, 90), name="cudaMemcpyAsync")
    recorder.steps(4, 25, 100.0, start=end)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {}
    assert trace.summary().quality.comparable


def test_copies_captured_with_kernels(tmp_path: Path) -> None:
    recorder = Recorder()
    for kernel in range(40):  # no call says that a graph is recorded
        recorder.call("cudaLaunchKernel", 10 + 9 * kernel, 3)
        recorder.call("cudaMemcpyAsync", 14 + 9 * kernel, 3)
    now = 500.0
    for _ in range(12):
        correlation = recorder.call("cudaGraphLaunch", now, 8)
        for kernel in range(40):
            recorder.gpu(correlation, now + 12 + 50 * kernel, 49.0)
        recorder.call("cudaStreamSynchronize", now + 9, 2000)
        now += 2015
    assert codes(recorder.load(tmp_path)) == {}


def test_lost_launches_beside_graphs_that_have_their_records(tmp_path: Path) -> None:
    recorder = Recorder()
    now = 0.0
    for _ in range(12):
        for kernel in range(10):
            at = now + 4 * kernel
            correlation = recorder.call("cudaLaunchKernel", at, 3)
            if kernel % 3:
                recorder.gpu(correlation, now + 5 + 20 * kernel, 19.0)
        correlation = recorder.call("cudaGraphLaunch", now + 50, 8)
        for kernel in range(300):
            recorder.gpu(correlation, now + 210 + 50 * kernel, 49.0)
        recorder.call("cudaStreamSynchronize", now + 60, 15_200)
        now += 15_300
    assert codes(recorder.load(tmp_path)) == {"launches_without_gpu_work": 48}


def test_work_of_a_host_far_ahead_that_is_lost_is_not_comparable(tmp_path: Path) -> None:
    recorder = Recorder()
    for step in range(10):
        recorder.host("user_annotation", f"ProfilerStep#{step}", 100.0 * step, 98.0)
        for kernel in range(20):
            launched = 20 * step + kernel
            correlation = recorder.call("cudaLaunchKernel", 100.0 * step + 4 * kernel, 3)
            if step < 6:  # the GPU needs ten times as long as the host
                recorder.gpu(correlation, 5 + 50.0 * launched, 49.5)
    quality = recorder.load(tmp_path).summary().quality
    assert [note.code for note in quality.notes] == ["launches_without_gpu_work"]
    assert not quality.comparable


def test_losses_beside_work_queued_before_the_recording(tmp_path: Path) -> None:
    def recorded(first_id: int) -> dict[str, int]:
        """The GPU is busy with 300 kernels without a launch; of 400 launches 200 lack theirs."""
        recorder = Recorder()
        for kernel in range(300):
            recorder.gpu(first_id + kernel, 50.0 * kernel, 49.0)
        recorder.correlation = 1000
        for kernel in range(400):
            correlation = recorder.call("cudaLaunchKernel", 8.0 * kernel, 3)
            if kernel >= 200:
                recorder.gpu(correlation, 50.0 * (300 + kernel), 49.0)
        return codes(recorder.load(tmp_path))

    assert recorded(first_id=500) == {"launches_without_gpu_work": 200}
    assert "launches_without_gpu_work" not in recorded(first_id=5000)  # links are missing


def test_a_first_step_without_others_to_compare_is_not_bound_by_the_host(tmp_path: Path) -> None:
    def verdict(recorded_steps: int, cut: bool) -> str:
        recorder = Recorder()
        for step in range(4):
            now = 4000.0 * step
            for kernel in range(30):
                at = now + 10 + 4 * kernel + (800 if step == 0 and kernel else 0)
                recorder.host("cpu_op", "aten::mm", at, 3.5)
                correlation = recorder.call("cudaLaunchKernel", at + 1, 2)
                recorder.gpu(correlation, now + 20 + 100 * kernel + 900 * (kernel > 0), 99.0)
            recorder.host("user_annotation", f"ProfilerStep#{step}", now, 3999)
        if cut:
            begun_us = recorder.base + 4000 * recorded_steps
            recorder.events = [
                e for e in recorder.events if e["cat"] == "kernel" or e["ts"] < begun_us
            ]
        return recorder.load(tmp_path).diagnose().verdicts["cpu_bound"]

    assert verdict(4, cut=False) == "absent"
    assert verdict(1, cut=True) == "unknown"


def test_warm_up_is_unknown_where_the_kernels_that_show_it_are_lost(tmp_path: Path) -> None:
    def verdict(lost: bool) -> str:
        recorder, now = Recorder(), 0.0
        for turn in range(3):  # a loop without marks: memory is taken and given back in the first
            for kernel in range(30):
                name = f"kernel {kernel}"
                recorder.host("cpu_op", "aten::mm", now, 9)
                correlation = recorder.call("cudaLaunchKernel", now + 1, 3)
                if not (lost and turn > 0):
                    recorder.gpu(correlation, now + 5, 20.0, name=name)
                now += 30
                if turn == 0 and kernel in (5, 10, 15, 20, 25):
                    call = "cudaFree" if kernel in (10, 20) else "cudaMalloc"
                    recorder.call(call, now, 900)
                    now += 910
        diagnosis = recorder.load(tmp_path).diagnose()
        return {**diagnosis.verdicts, **diagnosis.further_verdicts}["allocator_thrash"]

    assert verdict(lost=False) == "absent"
    assert verdict(lost=True) == "unknown"


def training(steps: int) -> Recorder:
    """Each step ends in a collective that nothing covers."""
    recorder = Recorder()
    recorder.members["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 2}
    for step in range(steps):
        now = 3000.0 * step
        for kernel in range(20):
            at = now + 5 + 4 * kernel
            recorder.host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", at, 3.6)
            recorder.host("cpu_op", "aten::mm", at + 0.2, 3.2)
            correlation = recorder.call("cudaLaunchKernel", at + 0.5, 2)
            recorder.gpu(correlation, now + 10 + 100 * kernel, 99.0)
        recorder.gpu(
            recorder.call("cudaLaunchKernelExC", now + 90, 4), now + 2011, 900.0,
            name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            stream=20,
        )  # fmt: skip
        recorder.call("cudaDeviceSynchronize", now + 100, 2815)
    return recorder


def test_collectives_behind_the_end_of_the_host_record_have_no_phase(tmp_path: Path) -> None:
    whole, cut = training(10), training(10)
    begun_us = cut.base + 4 * 3000
    cut.events = [e for e in cut.events if e["cat"] == "kernel" or e["ts"] < begun_us]
    known = whole.load(tmp_path).diagnose()
    trace = cut.load(tmp_path)
    assert codes(trace) == {"gpu_work_without_launch": 6 * 21}
    diagnosis = trace.diagnose()
    assert diagnosis.finding("nccl_blocks_main_stream")
    for name in ("nccl_compute_not_overlapped", "nccl_blocks_main_stream"):
        finding, before = diagnosis.finding(name), known.finding(name)
        assert before is not None
        assert finding is None or finding.cost_ns <= before.cost_ns


def test_no_lead_is_lost_across_work_without_records(tmp_path: Path) -> None:
    def recorded(lost: bool) -> Recorder:
        """Values are read behind 5 ms of work, and then each kernel is launched late; a blocking
        copy in the middle of these ends what the reads have cost the host."""
        recorder, now = Recorder(), 0.0
        for _ in range(4):
            for kernel in range(50):
                correlation = recorder.call("cudaLaunchKernel", now + 4 * kernel, 3)
                recorder.gpu(correlation, now + 10 + 100 * kernel, 99.0)
            recorder.host("cpu_op", "aten::item", now + 205, 4820)
            recorder.host("cpu_op", "aten::_local_scalar_dense", now + 206, 4818)
            correlation = recorder.call("cudaMemcpyAsync", now + 207, 6)
            copied = recorder.gpu(
                correlation, now + 5012, 1.5, name="Memcpy DtoH (Device -> Pinned)",
                category="gpu_memcpy",
            )  # fmt: skip
            copied["args"]["bytes"] = 4
            recorder.call("cudaStreamSynchronize", now + 214, 4804)
            now += 5030
            for kernel in range(40):
                correlation = recorder.call("cudaLaunchKernel", now, 3)
                if not (lost and 10 <= kernel < 22):
                    recorder.gpu(correlation, now + 8, 20.0)
                now += 150
        return recorder

    def cost_ns(recorder: Recorder) -> int:
        finding = recorder.load(tmp_path).diagnose().finding("host_sync_in_loop")
        return finding.cost_ns if finding else 0

    assert cost_ns(recorded(False)) > 0
    assert 0 < cost_ns(recorded(True)) <= 4 * 11 * 130_000


def test_a_run_on_the_host_lacks_nothing(tmp_path: Path) -> None:
    recorder = Recorder()
    for n in range(100):
        recorder.host("cpu_op", "aten::mm", 100.0 * n, 95.0)
    assert codes(recorder.load(tmp_path)) == {}


# ------------------------------------------------------------------------------ comparisons


def test_lost_records_are_no_improvement(tmp_path: Path, cli: Any = None) -> None:
    before, after = Recorder(), Recorder()
    before.steps(9, 25, 100.0)
    after.steps(9, 25, 100.0, edit=lambda s, k, e: e if s >= 5 else None)
    a = ttap.load(before.write(tmp_path / "a.json.gz"))
    b = ttap.load(after.write(tmp_path / "b.json.gz"))
    table = ttap.diff(a, b)
    document = table.to_dict()
    assert document["quality"]["comparable"] is False
    assert "not comparable" in document["why_not"]
    assert document["difference_ns"] == 0
    slower = dict(zip(table["name"], table["delta_ns"].tolist(), strict=True))
    assert all(abs(ns) < 5_000 for ns in slower.values()), slower
    same = ttap.diff(a, a).to_dict()
    assert same["why_not"] is None and same["quality"]["comparable"] is True


def test_gates_fail_where_records_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchtraceap.cli import main

    fine, lacking = Recorder(), Recorder()
    fine.steps(9, 25, 100.0)
    lacking.steps(9, 25, 100.0, edit=lambda s, k, e: e if s >= 5 else None)
    a = str(fine.write(tmp_path / "a.json.gz"))
    b = str(lacking.write(tmp_path / "b.json.gz"))
    contract = tmp_path / "contract.yaml"
    contract.write_text("step_time: <= 1 s\n")
    assert main(["diff", a, a, "--gate", "5", "--json"]) == 0
    assert main(["diff", a, b, "--gate", "5", "--json"]) == 1
    capsys.readouterr()
    assert main(["check", a, "--contract", str(contract), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    assert main(["check", b, "--contract", str(contract), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is False
    assert document["results"][0]["status"] == "inconclusive"


# ------------------------------------------------------------------------------ edges


def skewed(folder: Path, begins_us: list[float], works_us: list[float]) -> ttap.Trace:
    """Ranks whose recordings begin at different times, or which take different times before the
    first of seven all-gathers; each ends when the last rank has come."""
    last = max(b + w for b, w in zip(begins_us, works_us, strict=True)) + 40
    for rank, (begin, work) in enumerate(zip(begins_us, works_us, strict=True)):
        recorder = Recorder(base=7e9 + 0.5 * rank)
        recorder.members["distributedInfo"] = {
            "backend": "nccl", "rank": rank, "world_size": len(begins_us),
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg"}],
        }  # fmt: skip
        now = begin
        for step in range(7):
            start = now
            if step == 0 and work:
                correlation = recorder.call("cudaLaunchKernel", now, 3)
                recorder.gpu(correlation, now + 5, work - 6, name="own work")
                now += work
            recorder.host(
                "cpu_op", "record_param_comms", now, 9,
                **{"Collective name": "_allgather_base", "In msg nelems": 4096, "dtype": "Float",
                   "Out msg nelems": 4096 * len(begins_us), "Group size": len(begins_us),
                   "Process Group Name": "0", "Process Group Description": "default_pg"},
            )  # fmt: skip
            correlation = recorder.call("cudaLaunchKernelExC", now + 3, 4)
            ready = last if step == 0 else now + 50
            event = recorder.gpu(
                correlation, now + 9, ready - now - 9,
                name="ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", stream=20,
            )  # fmt: skip
            event["args"] |= {
                "Collective name": "_allgather_base", "In msg nelems": 4096, "dtype": "Float",
                "Out msg nelems": 4096 * len(begins_us), "Group size": len(begins_us),
                "Process Group Name": "0", "Process Group Description": "default_pg",
            }  # fmt: skip
            at = ready
            for kernel in range(20):
                called = now + 14 + 8 * kernel
                recorder.host("cpu_op", "aten::mm", called, 7)
                recorder.gpu(
                    recorder.call("cudaLaunchKernel", called + 2, 4), max(at, called + 8), 140.0
                )
                at = max(at, called + 8) + 140.0
            recorder.call("cudaDeviceSynchronize", now + 180, at - now - 178)
            recorder.host("user_annotation", f"ProfilerStep#{step}", start, at + 3 - start)
            now = at + 5
        recorder.write(folder / f"rank{rank}.json.gz")
    return ttap.load(folder)


def test_recordings_that_begin_at_different_times(tmp_path: Path) -> None:
    trace = skewed(tmp_path, [0.0, 41_000.0, 22_000.0], [0.0, 0.0, 0.0])
    assert codes(trace) == {"recording_start_skew": 2}
    diagnosis = trace.diagnose()
    assert not diagnosis.findings
    assert diagnosis.bound_by == "gpu_compute"
    assert "straggler" not in str(list(trace.ranks_table().rows()))


def test_a_rank_that_is_late_in_its_first_step(tmp_path: Path) -> None:
    trace = skewed(tmp_path, [0.0, 0.0, 0.0], [0.0, 41_000.0, 0.0])
    assert codes(trace) == {}
    assert "straggler" in present(trace)


@pytest.mark.parametrize(("wait_us", "noted"), [(3.1e6, True), (12.0, False)])
def test_an_all_reduce_of_one_rank_that_waits_at_the_start(
    tmp_path: Path, wait_us: float, noted: bool
) -> None:
    recorder = Recorder("amd")
    now = 0.0
    for step in range(20):
        at = now
        recorder.gpu(recorder.call("hipLaunchKernel", now, 4), now + 8, 4000.0)
        length = wait_us if step == 0 else 12.0
        recorder.gpu(
            recorder.call("hipLaunchKernel", now + 6, 4), now + 4009, length,
            name="void vllm::cross_device_reduce_1stage<c10::BFloat16, 4>(RankData*)",
        )  # fmt: skip
        recorder.call("hipDeviceSynchronize", now + 12, 4000 + length)
        now += 4025 + length
        recorder.host("user_annotation", f"ProfilerStep#{step}", at, now - 1 - at)
    trace = recorder.load(tmp_path)
    assert codes(trace) == ({"recording_start_skew": 1} if noted else {})
    diagnosis = trace.diagnose()
    assert not diagnosis.findings
    assert diagnosis.bound_by == "gpu_compute" and diagnosis.busy_share > 0.98
    assert diagnosis.time_ns["compute"] > 0.98 * diagnosis.profiled_ns


def test_a_call_that_waits_at_the_start_for_what_is_not_recorded(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.call("cudaStreamSynchronize", 0.0, 30_000)
    recorder.steps(5, 20, 100.0, start=30_010)
    trace = recorder.load(tmp_path)
    # The wait lies before the first step, where nothing is judged: no note is needed.
    assert codes(trace) == {}
    bare = Recorder()
    bare.call("cudaStreamSynchronize", 0.0, 30_000)
    now = 30_010.0
    for _ in range(200):
        bare.host("cpu_op", "aten::mm", now, 9)
        bare.gpu(bare.call("cudaLaunchKernel", now + 2, 4), now + 8, 99.0)
        now += 100
    trace = ttap.load(bare.write(tmp_path / "bare.json.gz"))
    assert codes(trace) == {"starts_inside_work": 1}
    assert not present(trace)


def launched_ahead(start: float, until: float = 4.0) -> Recorder:
    """Launch 300 kernels; the first call ends at `until`, the first kernel runs at `start`, us."""
    recorder = Recorder()
    rows = [recorder.call("cudaLaunchKernel", 0.0, until)]
    rows += [recorder.call("cudaLaunchKernel", until + 10.0 * n, 4) for n in range(299)]
    for number, row in enumerate(rows):
        recorder.gpu(row, start + 100 * number, 99.0)
    return recorder


def test_work_that_stays_in_the_queue_behind_what_is_not_recorded(tmp_path: Path) -> None:
    trace = launched_ahead(50_000.0).load(tmp_path)
    assert codes(trace) == {"starts_inside_work": 1}
    diagnosis = trace.diagnose()
    assert not diagnosis.findings and diagnosis.busy_share > 0.99
    assert diagnosis.time_ns.get("unknown", 0) == 0


@pytest.mark.parametrize(("start", "until"), [(8.0, 4.0), (50_008.0, 50_000.0)])
def test_a_first_launch_that_is_quick_or_takes_long_itself_is_no_queue(
    tmp_path: Path, start: float, until: float
) -> None:
    """Loading a module takes the call, not the queue."""
    assert codes(launched_ahead(start, until).load(tmp_path)) == {}


def test_a_second_stream_that_waits_for_the_first_is_no_queue(tmp_path: Path) -> None:
    recorder = launched_ahead(8.0)
    recorder.gpu(recorder.call("cudaLaunchKernel", 5.0, 4), 30_100.0, 50.0, stream=9)
    assert codes(recorder.load(tmp_path)) == {}


def test_launches_whose_work_ran_after_the_recording(tmp_path: Path) -> None:
    recorder = Recorder()
    end = recorder.steps(10, 40, 100.0)
    for kernel in range(30):
        recorder.host("cpu_op", "aten::mm", end + 4 * kernel, 3.5)
        recorder.call("cudaLaunchKernel", end + 4 * kernel + 1, 2)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"ends_inside_work": 30}
    assert trace.summary().quality.comparable
    assert not present(trace)


def test_half_of_the_work_is_no_end(tmp_path: Path) -> None:
    recorder = Recorder()
    end = recorder.steps(10, 40, 500.0)
    for kernel in range(400):
        recorder.call("cudaLaunchKernel", end + 4 * kernel, 2)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"launches_without_gpu_work": 400}
    assert not trace.summary().quality.comparable


def test_a_recording_without_load(tmp_path: Path) -> None:
    recorder = Recorder()
    for n in range(200):
        recorder.host("python_function", "threading.py(300): wait", 1e5 * n, 99_000)
    for n in range(4):
        at = 4e6 * n + 10
        recorder.host("cpu_op", "aten::add", at, 8)
        recorder.gpu(recorder.call("cudaLaunchKernel", at + 2, 4), at + 10, 6.0)
    trace = recorder.load(tmp_path)
    assert codes(trace) == {"no_load": 4}
    diagnosis = trace.diagnose()
    assert not diagnosis.findings
    assert "hardly anything ran" in str(diagnosis).lower()


def test_a_short_burst_of_work_is_load(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.host("python_function", "threading.py(300): wait", 0.0, 2e6)
    recorder.steps(10, 100, 100.0, start=1e5)
    assert "no_load" not in codes(recorder.load(tmp_path))


# ------------------------------------------------------------------------------ ranks and jobs


@pytest.mark.parametrize("devices", [(0, 1), (0, 0)])
def test_processes_in_one_file_are_ranks(tmp_path: Path, devices: tuple[int, int]) -> None:
    parts = [
        Recorder("amd", pid=51, device=devices[0]),
        Recorder("amd", pid=77, device=devices[1], base=7e9 + 3),
    ]
    parts[0].steps(5, 12, 50.0)
    parts[1].steps(5, 12, 120.0)
    parts[0].events += parts[1].events
    trace = parts[0].load(tmp_path)
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    summary = trace.summary()
    assert summary.events.gpu == summary.events.gpu_linked == 120
    assert [r.timeline.busy_ns for r in summary.ranks] == [3_000_000, 7_200_000]
    assert len(summary.steps) == 10
    assert "ambiguous_correlations" not in {entry.code for entry in summary.diagnostics}
    assert codes(trace)["several_processes"] == 2


def test_workers_beside_the_process_that_launches(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.steps(4, 20, 100.0)
    recorder.pid = 99
    for n in range(50):
        recorder.host("cpu_op", "aten::stack", 100.0 * n, 90)
    trace = recorder.load(tmp_path)
    assert len(trace.ranks) == 1 and codes(trace) == {}


def two_jobs(tmp_path: Path, first: Recorder, second: Recorder) -> list[Path]:
    first.steps(4, 20, 100.0)
    second.steps(4, 20, 110.0)
    return [first.write(tmp_path / "a.json.gz"), second.write(tmp_path / "b.json.gz")]


def test_files_of_two_makers_are_no_job(tmp_path: Path) -> None:
    paths = two_jobs(tmp_path, Recorder("nvidia"), Recorder("amd"))
    with pytest.raises(ParseError, match=r"2 jobs \(several_jobs\).*1\. .*; 2\. .*"):
        ttap.load(paths)


def test_other_gpus_at_another_time_are_no_job(tmp_path: Path) -> None:
    second = Recorder("nvidia", base=9e12)
    second.members["deviceProperties"][0]["name"] = "Tesla T4"
    with pytest.raises(ParseError, match="several_jobs"):
        ttap.load(two_jobs(tmp_path, Recorder("nvidia"), second))


def test_the_same_events_twice_are_no_job(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.steps(4, 20, 100.0)
    paths = [recorder.write(tmp_path / f"{name}.json.gz") for name in "ab"]
    with pytest.raises(ParseError, match="several_jobs"):
        ttap.load(paths)


def test_other_sizes_of_the_world_are_no_job(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    first.members["distributedInfo"] = {"rank": 0, "world_size": 2}
    second.members["distributedInfo"] = {"rank": 1, "world_size": 4}
    with pytest.raises(ParseError, match="several_jobs"):
        ttap.load(two_jobs(tmp_path, first, second))


def test_recordings_of_other_times_are_doubtful(tmp_path: Path) -> None:
    trace = ttap.load(two_jobs(tmp_path, Recorder(), Recorder(base=9e12)))
    assert codes(trace) == {"several_jobs": 2}
    assert "recording: files may be of several jobs" in str(trace.diagnose())


def test_ranks_of_one_job_are_silent(tmp_path: Path) -> None:
    trace = ttap.load(two_jobs(tmp_path, Recorder(), Recorder(base=7e9 + 100)))
    assert codes(trace) == {}


# ------------------------------------------------------------------------------ shared cases


@needs_cases
@pytest.mark.parametrize(
    ("case", "counts"),
    [
        ("overlong_kernels", {"impossible_duration": 3}),
        ("zero_timestamps", {"impossible_duration": 18}),
        (
            "gpu_records_in_two_of_32_steps",
            {"impossible_duration": 1, "launches_without_gpu_work": 30},
        ),
        ("first_kernels_dropped", {"launches_without_gpu_work": 180}),
        ("xpu_kernels_missing", {"launches_without_gpu_work": 200}),
        ("jax_cut_at_its_limit", {"launches_without_gpu_work": 1620}),
        ("profiler_start_skew", {"recording_start_skew": 3}),
        ("custom_all_reduce_waits_at_start", {"recording_start_skew": 1}),
        ("recording_without_load", {"no_load": 3}),
        ("two_ranks_in_one_file", {"several_processes": 2}),
        ("unclosed_c_calls", {}),
    ],
)
def test_shared_cases(case: str, counts: dict[str, int]) -> None:
    trace = ttap.load(CASES / case)
    assert codes(trace) == counts
    diagnosis = trace.diagnose()
    assert not diagnosis.findings
    assert diagnosis.verdicts["cpu_bound"] != "present"


@needs_cases
def test_what_the_shared_cases_measure() -> None:
    timeline = ttap.load(CASES / "overlong_kernels").timeline()
    assert 19_600_000 <= timeline.busy_ns <= 19_900_000
    assert 15_900_000 <= ttap.load(CASES / "zero_timestamps").timeline().span_ns <= 16_300_000
    unclosed = ttap.load(CASES / "unclosed_c_calls").summary().step
    assert unclosed is not None and 4_000_000 < unclosed.host_ns < 4_100_000
    ranks = ttap.load(CASES / "two_ranks_in_one_file").summary().ranks
    assert [rank.timeline.busy_ns for rank in ranks] == [8_000_000, 16_000_000]
    share = ttap.load(CASES / "jax_cut_at_its_limit").summary().quality.recorded_share
    assert share == pytest.approx(0.1, abs=0.01)


@needs_cases
def test_a_rank_without_its_compute_stream() -> None:
    diagnosis = ttap.load(CASES / "amd_compute_stream_missing").diagnose()
    (note,) = diagnosis.summary.quality.notes
    assert (note.code, note.rank, note.count) == ("launches_without_gpu_work", 1, 80)
    assert all(1 not in finding.ranks for finding in diagnosis.findings)


@needs_cases
def test_a_shared_case_of_two_recordings() -> None:
    folder = CASES / "diff_with_lost_records"
    sides = [ttap.load(folder / f"{when}.json.gz") for when in ("before", "after")]
    document = ttap.diff(*sides).to_dict()
    assert document["why_not"] and not document["quality"]["comparable"]
    assert abs(document["difference_ns"]) < 5_000


# ------------------------------------------------------------------------------ planted faults

BASES = sorted((ROOT / "examples/traces").glob("*.json.gz"))  # without collectives
KINDS = [kind for kind in damage.KINDS if kind != "skew"]


@pytest.mark.parametrize("base", BASES, ids=lambda path: path.name[:24])
@pytest.mark.parametrize(
    "kind", [k for k in damage.KINDS if k != "skew"]
)  # these have no collectives
def test_damaged_records_of_real_traces(tmp_path: Path, base: Path, kind: str) -> None:
    document = damage.read(base)
    clean = ttap.load(base)
    assert not codes(clean)
    code = damage.KINDS[kind](document, Random(kind))
    assert code is not None
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(document))
    row = damage.judge(base.name, kind, code, path, clean.diagnose())
    assert row.told in (True, None)
    assert not row.false and not row.healthy and not row.refused
