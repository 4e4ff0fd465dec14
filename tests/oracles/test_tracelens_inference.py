"""The inference report against TraceLens's own of the public piecewise trace of vLLM."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.compat.tracelens.inference import inference_sheets, merged_rank

ROOT = Path(__file__).parents[2]
CORPUS = Path(os.environ.get("TORCHTRACEAP_CORPUS", ROOT.parent / "shared" / "traces"))
TRACE = CORPUS / "tracelens/inference/vllm_piecewise_cudagraph.json.gz"
SERVING = CORPUS.parent / "serving"
CAPTURE = SERVING / "vllm_piecewise_capture"
REFERENCE = SERVING / "vllm_piecewise_inference_report"

pytestmark = pytest.mark.skipif(
    not (TRACE.exists() and REFERENCE.is_dir()), reason="the public trace or its report is absent"
)
KEYS = {
    "ops_summary": ("name", "parent_module", "Count", "Categories", "call_stack_first"),
    "ops_summary_by_category": ("op category", "parent_module", "Count", "call_stack_first"),
    "ops_unique_args": (
        "name", "op category", "parent_module", "process_name", "thread_name", "Input Dims",
        "Input type", "Input Strides", "Concrete Inputs", "num_kernels", "operation_count",
        "call_stack",
    ),
    "unified_perf_summary": ("name", "op category", "Input Dims", "operation_count"),
    "gpu_timeline": ("type",),
}  # fmt: skip
FIGURES = {
    "ops_summary": ("total_direct_kernel_time_sum", "total_subtree_kernel_time_sum"),
    "ops_summary_by_category": ("total_direct_kernel_time_ms",),
    "ops_unique_args": ("total_direct_kernel_time_sum", "total_direct_kernel_time_max"),
    "unified_perf_summary": ("Kernel Time (µs)_sum", "GFLOPS", "Data Moved (MB)"),
    "gpu_timeline": ("time ms",),
}
OF_FAMILIES = ("Kernel Time (µs)_sum", "GFLOPS_first", "Data Moved (MB)_first")


@pytest.fixture(scope="module")
def sheets() -> dict[str, dict[str, list[Any]]]:
    return inference_sheets(ttap.load(TRACE).ranks[0], CAPTURE)


def rows_of(name: str) -> list[dict[str, str]]:
    with (REFERENCE / f"{name}.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def close(ours: Any, theirs: str) -> bool:
    if theirs == "":
        return ours is None or ours != ours
    return ours is not None and float(ours) == pytest.approx(float(theirs), rel=1e-4, abs=1e-9)


def found(name: str, sheet: dict[str, list[Any]]) -> list[bool]:
    rows = rows_of(name)
    params = tuple(column for column in rows[0] if column.startswith("param: "))
    keys = KEYS.get(name, ("name", *params, "name_count", "num_kernels"))
    figures = FIGURES.get(name, OF_FAMILIES)
    count = len(next(iter(sheet.values()), []))
    ours: dict[tuple[str, ...], list[int]] = {}
    for place in range(count):
        values = (sheet[key][place] for key in keys)
        key = tuple("" if value is None else str(value) for value in values)
        ours.setdefault(key, []).append(place)
    return [
        any(
            all(close(sheet[figure][place], row[figure]) for figure in figures)
            for place in ours.get(tuple(row[key] for key in keys), ())
        )
        for row in rows
    ]


@pytest.mark.parametrize("name", sorted(path.stem for path in REFERENCE.glob("*.csv")))
def test_all_rows_are_theirs(name: str, sheets: dict[str, dict[str, list[Any]]]) -> None:
    assert all(found(name, sheets[name]))
    of_stacks = {"entry_point", "call_stack_full"} & {*rows_of(name)[0]}
    assert set(sheets[name]) == set(rows_of(name)[0]) - of_stacks


def test_the_merged_trace_keeps_every_gpu_event() -> None:
    part = ttap.load(TRACE).ranks[0]
    merged = merged_rank(part, CAPTURE)
    for column in ("ts_ns", "dur_ns"):
        theirs, ours = (
            getattr(each.table, column)[each.tree.gpu_rows].tolist() for each in (merged, part)
        )
        assert theirs == ours
    assert len(merged.tree.linked_gpu_rows) == len(part.tree.linked_gpu_rows)


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "out")
    command = ["report", str(TRACE), "--tracelens-inference", folder]
    assert main([*command, "--capture", str(CAPTURE)]) == 0
    assert "wrote 10 tables" in capsys.readouterr().err
    assert (tmp_path / "out/ops_unique_args.csv").exists()
    assert main(["report", str(TRACE), "--html", "x.html", "--capture", str(CAPTURE)]) == 2
