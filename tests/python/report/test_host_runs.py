"""Runs that compute on the host are judged there; recordings that left a GPU out are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_samples as samples
from report_samples import TraceMaker

import torchtraceap as ttap
from torchtraceap.report.page import render_html
from torchtraceap.report.terminal import render_text
from torchtraceap.report.view import build_view

WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def diagnose(maker: TraceMaker, folder: Path) -> ttap.Diagnosis:
    return ttap.diagnose(maker.write(folder / "trace.json"))


def test_the_loader_of_a_run_on_the_host_is_found(tmp_path: Path) -> None:
    diagnosis = diagnose(samples.host_training(), tmp_path)
    assert diagnosis.computes_on == "host"
    assert diagnosis.verdicts["single_process_data_loading"] == "present"
    (finding,) = diagnosis.findings
    assert finding.cost_ns == 4 * 45_000_000
    assert "GPU" not in finding.why + finding.fix
    assert "pin_memory" not in finding.code
    assert not finding.missing_signals
    assert diagnosis.bound_by == "host"
    assert build_view(diagnosis).headline == (
        "The training process loads its own data: 45 % of the time"
    )


def test_workers_that_starve_a_run_on_the_host_are_found(tmp_path: Path) -> None:
    diagnosis = diagnose(samples.host_training(fetch=WORKERS), tmp_path)
    (finding,) = diagnosis.findings
    assert finding.type == "worker_starvation"
    assert finding.confidence >= 0.85
    assert "GPU" not in finding.why


def test_the_time_of_a_run_on_the_host_is_its_path(tmp_path: Path) -> None:
    diagnosis = diagnose(samples.host_training(), tmp_path)
    path = ttap.load(tmp_path / "trace.json").critical_path(by="cause")
    of_path = dict(zip(path["cause"].tolist(), path["time_ns"].tolist(), strict=True))
    assert {key: ns for key, ns in diagnosis.time_ns.items() if ns} == of_path
    assert sum(of_path.values()) == diagnosis.profiled_ns


def test_operators_stand_where_findings_of_the_gpu_would(tmp_path: Path) -> None:
    diagnosis = diagnose(samples.host_training(), tmp_path)
    shares = {part.label: part.share for part in build_view(diagnosis).operators}
    assert shares["aten::mkldnn_convolution"] == pytest.approx(0.29)
    assert next(iter(shares)) == "aten::mkldnn_convolution"
    assert "operators aten::mkldnn_convolution 29 %" in render_text(diagnosis)
    assert "What the host computes" in render_html(diagnosis)


def test_checks_of_a_gpu_are_one_line_on_the_host(tmp_path: Path) -> None:
    diagnosis = diagnose(samples.host_training(), tmp_path)
    (entry,) = [e for e in build_view(diagnosis).unchecked if not e.type]
    assert entry.title.endswith("checks of work on a GPU")
    assert diagnosis.verdicts["high_memcpy"] == "unknown"


def test_a_run_on_the_host_without_a_pattern_says_what_takes_it(tmp_path: Path) -> None:
    maker = samples.host_training()
    for event in maker.events:
        if event["name"] == samples.LOADER:
            event |= {"cat": "cpu_op", "name": "aten::mm"}
    headline = build_view(diagnose(maker, tmp_path)).headline
    assert headline.startswith("No known anti-pattern found in this run on the host: ")


def test_a_recording_that_left_the_gpu_out_is_not_judged_on_the_host(tmp_path: Path) -> None:
    diagnosis = diagnose(samples.host_training(devices=True), tmp_path)
    assert diagnosis.computes_on is None
    assert diagnosis.verdicts["single_process_data_loading"] == "unknown"
    assert "no GPU work" in build_view(diagnosis).headline


def test_a_run_that_calls_a_gpu_is_not_judged_on_the_host(tmp_path: Path) -> None:
    maker = samples.host_training()
    maker.host("cuda_runtime", "cudaLaunchKernel", 1_050_000, 5, correlation=1)
    assert diagnose(maker, tmp_path).computes_on is None


def test_a_thread_that_hardly_computes_is_no_run_on_the_host(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.top["deviceProperties"] = []
    maker.host("user_annotation", "ProfilerStep#1", 0, 100_000)
    maker.host("cpu_op", "aten::empty", 10, 5)
    assert diagnose(maker, tmp_path).computes_on is None


def looping_optimizer() -> TraceMaker:
    """Steps of 100 ms: 40 ms of a product, 60 ms of an optimizer over 20 parameters."""
    maker = TraceMaker()
    maker.top["deviceProperties"] = []
    for step in range(4):
        at = 1_000_000 + step * 100_000
        maker.host("user_annotation", f"ProfilerStep#{step + 2}", at, 100_000)
        maker.host("cpu_op", "aten::mm", at, 40_000)
        maker.host("user_annotation", "Optimizer.step#Adam.step", at + 40_000, 60_000)
        for parameter in range(20):
            for place, name in enumerate(("lerp_", "mul_", "addcmul_", "sqrt", "addcdiv_")):
                begin = at + 40_000 + parameter * 3_000 + place * 600
                maker.host("cpu_op", f"aten::{name}", begin, 200 if parameter % 2 else 400)
    return maker


def test_an_optimizer_on_the_host_is_fused_in_a_replay(tmp_path: Path) -> None:
    diagnosis = diagnose(looping_optimizer(), tmp_path)
    (finding,) = [f for f in diagnosis.findings if f.type == "unfused_optimizer"]
    assert "100 operators per step" in finding.why
    saving = finding.saving
    assert saving is not None
    assert (saving.method, saving.edit) == ("simulated", "fused_optimizer")
    # 400 us are twice what a call takes at least. One call for each of five operators and the data
    # of ten parameters stay at least; at best one call, and 7 accesses for 12.5.
    assert saving.low_ns == pytest.approx(59_600e3 - (5 * 200e3 + 50 * 200e3), rel=0.01)
    assert saving.high_ns == pytest.approx(59_600e3 - (200e3 + 50 * 200e3 * 7 / 12.5), rel=0.01)


def test_a_loader_on_the_host_competes_for_its_cores(tmp_path: Path) -> None:
    diagnosis = diagnose(samples.host_training(), tmp_path)
    (finding,) = diagnosis.findings
    assert finding.saving is not None
    assert finding.saving.method == "simulated"
    assert finding.saving.high_ns == pytest.approx(44_800e3, rel=0.01)
    assert finding.saving.low_ns == pytest.approx(43_000e3 / 2, rel=0.01)
    assert "up to 50" in finding.saving.note


def logging_run() -> TraceMaker:
    """Steps of 10 ms that print for 2 of them."""
    maker = TraceMaker()
    maker.top["deviceProperties"] = []
    for step in range(4):
        at = 1_000_000 + step * 10_000
        maker.host("user_annotation", f"ProfilerStep#{step + 2}", at, 10_000)
        maker.host("cpu_op", "aten::mm", at, 8_000)
        maker.host("python_function", "<built-in function print>", at + 8_000, 2_000)
    return maker


def test_what_cannot_be_simulated_on_the_host_says_why(tmp_path: Path) -> None:
    diagnosis = diagnose(logging_run(), tmp_path)
    (finding,) = diagnosis.findings
    assert finding.type == "synchronous_logging"
    assert finding.saving is not None
    assert finding.saving.edit == "no_logging"
    assert finding.saving.high_ns == pytest.approx(2_000_000, rel=0.01)
    path = tmp_path / "trace.json"
    edits = ttap.simulate(path, edits=["cuda_graph", "no_casts", "fused_optimizer"]).edits
    assert [edit.predicted_ns for edit in edits] == [None, None, None]
    assert all(edit.note for edit in edits)


def test_what_the_host_computes_is_no_loss(tmp_path: Path) -> None:
    maker = logging_run()
    for step in range(4):  # 8 of 10 ms are the backward pass
        name = "autograd::engine::evaluate_function: MmBackward0"
        maker.host("cpu_op", name, 1_000_000 + step * 10_000, 8_000)
    diagnosis = diagnose(maker, tmp_path)
    assert diagnosis.bound_by == "host"
    view = build_view(diagnosis)
    assert view.headline.startswith("The loop waits for its own logging: 20 % of the time")
    assert "GPU time" not in render_text(diagnosis, verbose=True)


def test_a_small_finding_is_not_denied_by_the_headline(tmp_path: Path) -> None:
    maker = samples.host_training()
    for event in maker.events:
        if event["name"] == samples.LOADER:
            event["dur"] = 4_000
    for step in range(4):
        maker.host("cpu_op", "aten::mm", 1_004_000 + step * 100_000, 41_000)
    diagnosis = diagnose(maker, tmp_path)
    assert diagnosis.findings
    headline = build_view(diagnosis).headline
    assert headline.startswith("No known anti-pattern explains much of this run on the host: ")


def test_titles_on_the_host_speak_of_no_device(tmp_path: Path) -> None:
    maker = looping_optimizer()
    for step in range(4):
        maker.host("cpu_op", "aten::cat", 1_000_000 + step * 100_000 + 5_000, 20_000)
    titles = [finding.title for finding in diagnose(maker, tmp_path).findings]
    assert not [title for title in titles if "device" in title or "GPU" in title]
