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
    assert diagnosis.bound_by == "data_loading"
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
    maker.events = [event for event in maker.events if event["name"] != samples.LOADER]
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
