"""What a diagnosis puts first agrees with its bar, its plan and its ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import report_samples as samples
from report_samples import TraceMaker

import torchtraceap as ttap
from torchtraceap.diagnosis.verdict import LEAST_SHARE, largest_part
from torchtraceap.report.view import build_view

BOUNDS = {"gpu_compute", "communication", "copies", "host", "data", "mixed", "unknown"}
GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*/trace.json"))


def diagnose(maker: TraceMaker, folder: Path) -> ttap.Diagnosis:
    return ttap.diagnose(maker.write(folder / "trace.json"))


def assert_one_story(diagnosis: ttap.Diagnosis) -> None:
    """Headline, bar, findings and plan say one thing."""
    view = build_view(diagnosis)
    parts = diagnosis.time_ns
    assert sum(parts.values()) == (diagnosis.profiled_ns if parts else 0)
    assert diagnosis.bound_by in BOUNDS
    if view.segments:
        assert max(view.segments, key=lambda s: s.time_ns).key == largest_part(parts)
    if diagnosis.lead:
        assert_leads(diagnosis)
    assert view.headline.startswith("Healthy") == view.is_healthy
    assert {fix.type for fix in diagnosis.plan} <= {f.type for f in diagnosis.findings}


def assert_leads(diagnosis: ttap.Diagnosis) -> None:
    """The first finding is large enough to be what is said first, and its fix begins the plan."""
    lead = diagnosis.findings[0]
    assert diagnosis.lead and lead.type == diagnosis.lead.type
    lost = [ns for key, ns in diagnosis.time_ns.items() if key != "compute"]
    assert 3 * lead.cost_ns >= max([*lost, *(f.cost_ns for f in diagnosis.findings)])
    assert lead.cost_share >= LEAST_SHARE
    assert lead.saving and lead.saving.believed_ns > 0
    if diagnosis.plan and lead.saving.simulated:
        assert diagnosis.plan[0].type == lead.type


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_a_golden_trace_has_one_story(path: Path) -> None:
    assert_one_story(ttap.diagnose(path))


def test_the_bundled_trace_has_one_story(bundled: Path) -> None:
    diagnosis = ttap.diagnose(bundled)
    assert_one_story(diagnosis)
    said = build_view(diagnosis).headline
    assert said == (
        "The training process loads its own data: 34 % of the time, next to 55 % compute"
    )


def test_a_real_trace_has_one_story(corpus_file: Path) -> None:
    assert_one_story(ttap.diagnose(corpus_file))


def silent_host(*, copies: int) -> TraceMaker:
    """Steps of 100 ms in which the GPU works for 10: unknown host work takes most of the rest, and
    blocking reads from the GPU 3 ms."""
    maker = TraceMaker()
    for step in range(4):
        at = 1_000_000 + step * 100_000
        maker.host("user_annotation", f"ProfilerStep#{step}", at, 100_000)
        maker.host("cpu_op", "aten::linear", at + 10, 90)
        maker.gpu("kernel", "ampere_bf16_gemm", at + 100, 10_000, launch=at + 20)
        maker.host("cpu_op", "mylib::parse", at + 20_000, 75_000)
        for i in range(copies):
            start = at + 11_000 + i * 600
            maker.host("cpu_op", "aten::item", start, 550)
            maker.gpu(
                "gpu_memcpy",
                "Memcpy DtoH (Device -> Pageable)",
                start + 20,
                500,
                launch=start + 10,
                call="cudaMemcpyAsync",
                call_length=530,
                bytes=4,
            )
    return maker


def test_a_small_finding_does_not_lead_where_much_is_lost_otherwise(tmp_path: Path) -> None:
    diagnosis = diagnose(silent_host(copies=5), tmp_path)
    assert_one_story(diagnosis)
    small = [f for f in diagnosis.findings if f.cost_share < LEAST_SHARE]
    assert small
    assert diagnosis.lead is None or diagnosis.lead.type not in {f.type for f in small}


def copying(name: str) -> TraceMaker:
    maker = TraceMaker()
    for i in range(20):
        at = 1_000 + i * 1_000
        maker.host("cpu_op", "aten::copy_", at, 30)
        maker.gpu("gpu_memcpy", name, at + 40, 950, launch=at + 10, call="cudaMemcpyAsync")
    return maker


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "memcpy"),
        ("Memcpy PtoP (Device -> Device)", "device_memcpy"),
        ("Memcpy DtoD (Device -> Device)", "device_memcpy"),
    ],
)
def test_only_copies_of_the_host_are_called_so(tmp_path: Path, name: str, part: str) -> None:
    diagnosis = diagnose(copying(name), tmp_path)
    assert diagnosis.bound_by == "copies" and largest_part(diagnosis.time_ns) == part
    assert build_view(diagnosis).explanation.endswith("bound by copies")


def test_copies_of_both_kinds_are_told_apart(tmp_path: Path) -> None:
    maker = copying("Memcpy HtoD (Pinned -> Device)")
    for i in range(20):
        at = 1_500 + i * 1_000  # of which 490 us lie beside the other copy
        maker.gpu("gpu_memcpy", "Memcpy PtoP (Device -> Device)", at, 500, launch=at - 400)
    parts = diagnose(maker, tmp_path).time_ns
    assert parts["memcpy"] == 20 * 950_000
    assert parts["device_memcpy"] == 20 * 10_000


def test_one_of_several_ranks_is_named(tmp_path: Path) -> None:
    samples.healthy().write(tmp_path / "rank0.json")
    slow = samples.slow_loader()
    slow.write(tmp_path / "rank1.json")
    for rank in range(2):
        path = tmp_path / f"rank{rank}.json"
        document = json.loads(path.read_text("utf-8"))
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        path.write_text(json.dumps(document), "utf-8")
    diagnosis = ttap.diagnose(tmp_path)
    headline = build_view(diagnosis).headline
    assert "(rank 1 of 2): " in headline
    assert "of all ranks' time" in headline
    why = diagnosis.findings[0].why
    assert why.startswith("Rank 1: ")
    alone = ttap.diagnose(tmp_path / "rank1.json").findings[0]
    assert why.removeprefix("Rank 1: ") == alone.why  # that rank's figures, not a sum


def test_checks_that_cannot_apply_are_not_called_fine(tmp_path: Path) -> None:
    diagnosis = diagnose(samples.healthy(), tmp_path)
    inapplicable = set(diagnosis.not_applicable)
    assert {"straggler", "small_nccl_kernels", "unfused_optimizer", "graph_break"} <= inapplicable
    passed = {entry.type for entry in build_view(diagnosis).passed}
    assert passed
    assert not passed & inapplicable
    verdicts = diagnosis.verdicts | diagnosis.further_verdicts
    assert {verdicts[name] for name in inapplicable} == {"absent"}


def test_collectives_make_their_checks_apply(tmp_path: Path) -> None:
    maker = samples.healthy()
    maker.gpu("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1_500_000, 900, launch=1_490_000)
    assert "straggler" not in diagnose(maker, tmp_path).not_applicable


def test_the_document_says_what_the_report_says(tmp_path: Path) -> None:
    maker = samples.slow_loader()
    maker.top |= {"cuda_runtime_version": 12040, "driver_version": {"no": "number"}}
    diagnosis = diagnose(maker, tmp_path)
    document = diagnosis.to_dict()
    assert document["headline"] == build_view(diagnosis).headline
    assert document["lead"] == {"type": "single_process_data_loading", "beside": True}
    assert document["bound_by"] == "host"
    assert document["busy_share"] == pytest.approx(diagnosis.busy_share)
    assert sum(document["time_ns"].values()) == document["profiled_ns"]
    assert document["device"] == "Test GPU"
    assert document["versions"] == {"schemaVersion": 1, "cuda_runtime_version": 12040}


def test_what_a_file_calls_a_version_may_be_anything(tmp_path: Path) -> None:
    maker = samples.slow_loader()
    maker.top |= {"a_version": "x" * 1000, "b_version": [1], "c_version": True, "d_version": "2.1"}
    maker.top["distributedInfo"] = {"nccl_version": "2.21.5", "rank": 0}
    versions = diagnose(maker, tmp_path).to_dict()["versions"]
    assert versions == {"schemaVersion": 1, "d_version": "2.1", "nccl_version": "2.21.5"}
