"""What each edit does to which edges, at best and at least, on programs of a few events.

`tests/golden/edit_changes` has every edge that a change touches. `python
tests/python/simulation/test_edit_changes.py` rewrites these files; read the difference before you
keep it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from changes import told
from fix_programs import NCCL, FlawedProgram
from rank_samples import Job, describe

import torchtraceap as ttap
from torchtraceap.simulation.edits import fusion, graphs
from torchtraceap.simulation.edits.base import NotApplicableError, make_edit
from torchtraceap.simulation.run import SimulatedRun

EXPECTED = Path(__file__).resolve().parents[2] / "golden" / "edit_changes"
Program = Callable[[FlawedProgram], None]
FLOATS = {"Input type": ["float", "float"]}
ELEMENTWISE = "vectorized_elementwise_kernel"
LOADER = "enumerate(DataLoader)#_{}ProcessDataLoaderIter.__next__"


# ------------------------------------------------------------------------------ waits, copies


def waiting(p: FlawedProgram) -> None:
    """Each kind of wait once: for a value, for a small copy, for a shape, for its own sake, for an
    upload, for a large result, at the end."""
    with p.range("aten::item"), p.range("aten::_local_scalar_dense"):
        p.copy("DtoH", "Pageable", 4, 2)
    p.launch("gemm_a", 100)
    with p.range("aten::item"), p.range("aten::_local_scalar_dense"):
        p.copy("DtoH", "Pageable", 8, 2)
        p.synchronize()
    p.launch("gemm_b", 100)
    with p.range("aten::cpu"):
        p.copy("DtoH", "Pageable", 64 << 10, 9)
    p.launch("gemm_c", 100)
    with p.range("aten::nonzero"):
        p.copy("DtoH", "Pageable", 16, 2)
    p.launch("gemm_d", 100)
    p.synchronize("cudaDeviceSynchronize")
    p.work(30)
    with p.range("aten::to"):
        p.copy("HtoD", "Pinned", 1 << 10, 20)
        p.synchronize()
    with p.range("aten::cpu"):
        p.copy("DtoH", "Pageable", (64 << 10) + 1, 9)
    with p.range("aten::cpu"):
        p.copy("DtoH", "Pinned", (64 << 10) + 1, 9)
        p.synchronize()
    p.launch("relu", 10)
    p.synchronize()


def copying(p: FlawedProgram) -> None:
    """Uploads of both kinds, awaited and not, and downloads of both kinds."""
    with p.range("aten::copy_"):
        p.copy("HtoD", "Pageable", 20_000_000, 4_000)
        p.synchronize()
    p.launch("gemm_a", 80)
    with p.range("aten::copy_"):
        p.copy("HtoD", "Pinned", 1 << 20, 50)
        p.synchronize()
    with p.range("aten::copy_"):
        p.copy("HtoD", "Pageable", 100, 3)
    p.launch("gemm_b", 80)
    with p.range("aten::copy_"):
        p.copy("HtoD", "Pinned", 4 << 20, 300)
    with p.range("aten::cpu"):
        p.copy("DtoH", "Pageable", 10_000_000, 3_000)
    with p.range("aten::cpu"):
        p.copy("DtoH", "Pageable", 64 << 10, 30)
    p.launch("relu", 10)


def copying_beside_workers(p: FlawedProgram) -> None:
    with p.range("_MultiProcessingDataLoaderIter.__next__"):
        p.work(10)
    with p.range("aten::copy_"):
        p.copy("HtoD", "Pageable", 20_000_000, 4_000)
    p.launch("gemm", 80)


def allocating(p: FlawedProgram) -> None:
    p.launch("gemm", 20)
    with p.range("cudaMalloc", "cuda_runtime"):
        p.work(300)
    p.work(5)
    p.synchronize("cudaFree")
    p.launch("relu", 10)


# ------------------------------------------------------------------------------ what goes


def zeroing(p: FlawedProgram) -> None:
    p.launch("gemm", 50)
    with p.range("aten::outer"), p.range("Optimizer.zero_grad#SGD.zero_grad", "user_annotation"):
        p.work(30)
        p.launch("fill", 40)
        p.launch("fill", 30, stream=8)
        p.synchronize()
    p.launch("relu", 5)
    with p.range("search_unused_parameters"):
        p.work(7)
    p.synchronize()


def converting(p: FlawedProgram) -> None:
    for number in range(2):
        p.launch("nchwToNhwcKernel", 100 + number)
        p.launch("conv", 200)


# ------------------------------------------------------------------------------ collectives


def reducing(p: FlawedProgram) -> None:
    """Small gradients in the backward pass and behind it, then the optimizer."""
    for number in range(4):
        with p.range("autograd::engine::evaluate_function: AddmmBackward0"):
            p.launch("gemm", 100 + number)
    with p.range("autograd::engine::evaluate_function: AddmmBackward0"):
        for size in (1 << 10, 1 << 11, 3 << 18):
            p.launch(NCCL, 20 + size / 4_096, **describe("allreduce", size, [0, 1]))
    p.launch("metric", 15)
    with p.range("Optimizer.step#SGD.step", "user_annotation"):
        p.launch("multi_tensor_apply_kernel", 50)
    p.synchronize()


def exchanging(p: FlawedProgram) -> None:
    """On a stream of their own, results needed at different times."""
    p.launch("gemm_a", 100)
    for _ in range(3):
        p.launch(NCCL, 15, stream=20, **describe("allreduce", 256, [0, 1]))
    p.launch(NCCL, 12, stream=20, **describe("allreduce", 256, [0, 1, 2, 3]))
    p.launch("ncclDevKernel_Broadcast", 12, stream=20, **describe("broadcast", 256, [0, 1]))
    p.launch("gemm_b", 10)
    p.synchronize()
    p.launch(NCCL, 15, **describe("allreduce", 256, [0, 1]))
    p.launch("gemm_c", 10)
    p.launch(NCCL, 15, **describe("allreduce", 256, [0, 1]))
    p.launch(NCCL, 25, **describe("allreduce", 256, [0, 1]))
    p.launch("gemm_d", 10)


def broadcasting(p: FlawedProgram) -> None:
    args = describe("broadcast", 256, [0, 1])
    with p.range("DistributedDataParallel.forward"):
        p.launch("ncclDevKernel_Broadcast", 12, **args)
        p.launch(NCCL, 15, **describe("allreduce", 256, [0, 1]))
        p.launch("gemm", 10)
    p.launch("ncclDevKernel_Broadcast", 12, **args)


# ------------------------------------------------------------------------------ launches


def updating(p: FlawedProgram) -> None:
    p.launch("gemm", 40)
    with p.range("Optimizer.step#Adam.step", "user_annotation"):
        for number in range(12):
            with p.range(("aten::mul_", "aten::add_", "aten::sqrt")[number % 3]):
                p.work(20)
                p.launch(ELEMENTWISE, 4 + number)
        p.launch("gemm", 5)
    with p.range("Optimizer.step#SGD.step", "user_annotation"):
        for _ in range(6):
            with p.range("aten::_foreach_add_"):
                p.launch(ELEMENTWISE, 4)


def pointwise(p: FlawedProgram) -> None:
    """Two chains: one that changes its grid, one behind a wait; a lone kernel on another stream."""
    with p.range("aten::mm"):
        p.launch("ampere_sgemm_128x64_tn", 500)
    for grid, name in ((64, "aten::add"), (64, "aten::mul"), (32, "aten::relu")):
        with p.range(name):
            p.work(3)
            p.launch(ELEMENTWISE, 200 + grid, grid=[grid, 1, 1])
    with p.range("aten::add"):
        p.launch(ELEMENTWISE, 150, stream=8, grid=[32, 1, 1])
    p.synchronize()
    for name in ("aten::add", "aten::mul"):
        with p.range(name):
            p.launch(ELEMENTWISE, 40, grid=[32, 1, 1])
    p.launch(ELEMENTWISE, 40, grid=[32, 1, 1])


def loading_code(p: FlawedProgram) -> None:
    """The second launch loads a module: that would only move to another launch."""
    for number, work_us in enumerate((0, 1_500, 0)):
        with p.range(f"aten::add{'_' * number}"):
            p.launch(ELEMENTWISE, 40, call_us=5 + work_us)
            p.work(work_us)


def launching(p: FlawedProgram) -> None:
    """Three segments: cut by uploads, and the optimizer's. Python calls operators, or does
    something of its own."""
    for number in range(3):
        p.work((30, 130, 20)[number])
        p.launch("gemm", 5 + number)
    p.copy("HtoD", "Pinned", 100, 2)
    for number in range(4):
        with p.range("aten::op"):
            p.launch("relu", 50, stream=7 + number % 2)
    p.copy("HtoD", "Pinned", 100, 2)
    p.launch("lone", 2)
    with p.range("Optimizer.step#SGD.step", "user_annotation"):
        for _ in range(3):
            p.work(10)
            p.launch("sgd", 3)
    p.synchronize()


def launching_and_waiting(p: FlawedProgram) -> None:
    for _ in range(3):
        p.launch("gemm", 5)
    with p.range("aten::item"):
        p.copy("DtoH", "Pageable", 4, 2)
    p.launch("gemm", 5)


def launching_by_values(p: FlawedProgram) -> None:
    for _ in range(3):
        with p.range("aten::nonzero"):
            p.launch("flag_kernel", 5)


def broken(p: FlawedProgram) -> None:
    with p.range("Torch-Compiled Region: 0/0", "user_annotation"):
        with p.range("CompiledFunction"):
            p.launch("triton_0", 50)
        p.work(60)
        with p.range("aten::add"):
            p.work(8)
        p.work(4)
        with (
            p.range("Torch-Compiled Region: 1/0", "user_annotation"),
            p.range("CompiledFunction"),
        ):
            p.launch("triton_1", 50)
    p.synchronize()


# ------------------------------------------------------------------------------ loading, devices


def loading(p: FlawedProgram) -> None:
    with p.range(LOADER.format("Single"), "user_annotation"):
        p.work(4_000 + 100 * len(p.events))
        with p.range("aten::stack"):
            p.work(998)
    p.launch("gemm", 200)
    p.synchronize()


def fetching(p: FlawedProgram) -> None:
    with p.range(LOADER.format("Multi"), "user_annotation"):
        p.work(1_980 + 10 * len(p.events))
    p.launch("gemm", 200)
    p.synchronize()


def products(p: FlawedProgram) -> None:
    """A product in fp32, one in fp16, a convolution without strides, other work in fp32."""
    dims = {"Input Dims": [[2048, 1024], [1024, 512]]}
    with p.range("aten::mm", **FLOATS, **dims):
        p.launch("ampere_sgemm_128x64_tn", 1_000)
    with p.range("aten::mm", **dims, **{"Input type": ["c10::Half", "c10::Half"]}):
        p.launch("ampere_fp16_s16816gemm", 100)
    for kernel in ("implicit_convolve_sgemm", "implicit_convolve_hmma"):
        with p.range("aten::cudnn_convolution", **FLOATS):
            p.launch(kernel, 300)
    with p.range("aten::add", **FLOATS, **{"Input Dims": [[4096, 4096], [4096, 4096]]}):
        p.launch(ELEMENTWISE, 120)
    p.launch("unknown", 1.5)
    p.copy("HtoD", "Pinned", 1 << 20, 50)
    p.copy("DtoH", "Pinned", 1 << 20, 60)
    p.launch(NCCL, 90)


def late_job(*late_us: float) -> Callable[[Path], ttap.Trace]:
    """Two all-reduces, to the second of which ranks come so much later than the first."""

    def build(folder: Path) -> ttap.Trace:
        job = Job(len(late_us))
        for number, at in enumerate((100.0, 6_100.0)):
            job.step(number, at, 5_900)
            for rank, late in enumerate(late_us):
                job.kernel(rank, at + 50, 1_000 + late)
                job.host(rank, "prepare", at + 1_080, 5)
                job.host(rank, "after", at + 5_000 + (50 if rank else 150), 100)
            job.all_reduce([at + 1_100 + late for late in late_us], at + 5_000)
        return job.load(folder / "job")

    return build


def steps_of(body: Program, count: int) -> Callable[[Path], ttap.Trace]:
    def build(folder: Path) -> ttap.Trace:
        program = FlawedProgram()
        for number in range(count):
            with program.step(number):
                body(program)
        path = folder / "trace.json"
        path.write_text(json.dumps(program.document()), encoding="utf-8")
        return ttap.load(path)

    return build


CASES: dict[str, tuple[Callable[[Path], ttap.Trace], tuple[str, ...]]] = {
    "waiting": (steps_of(waiting, 1), ("remove_host_sync", "pin_memory=HtoD")),
    "copying": (steps_of(copying, 1), ("pin_memory", "remove_host_sync")),
    "copying_beside_workers": (steps_of(copying_beside_workers, 1), ("pin_memory",)),
    "allocating": (steps_of(allocating, 1), ("no_allocator_calls",)),
    "zeroing": (steps_of(zeroing, 1), ("zero_grad_to_none", "no_unused_parameter_search")),
    "converting": (steps_of(converting, 2), ("channels_last",)),
    "reducing": (
        steps_of(reducing, 2),
        ("overlap_collectives", "merge_collectives", "bucket_size_mb=1"),
    ),
    "exchanging": (
        steps_of(exchanging, 1),
        ("overlap_collectives", "merge_collectives", "bucket_size_mb"),
    ),
    "broadcasting": (steps_of(broadcasting, 1), ("no_broadcast_buffers",)),
    "updating": (steps_of(updating, 1), ("fused_optimizer",)),
    "pointwise": (steps_of(pointwise, 1), ("fuse_pointwise",)),
    "loading_code": (steps_of(loading_code, 1), ("fuse_pointwise", "cuda_graph")),
    "launching": (steps_of(launching, 1), ("cuda_graph",)),
    "launching_and_waiting": (steps_of(launching_and_waiting, 2), ("cuda_graph",)),
    "launching_by_values": (steps_of(launching_by_values, 1), ("cuda_graph",)),
    "broken": (steps_of(broken, 1), ("merge_compiled_regions",)),
    "loading": (steps_of(loading, 3), ("loader_workers=2", "loader_workers")),
    "fetching": (steps_of(fetching, 3), ("loader_workers=2",)),
    "products": (
        steps_of(products, 1),
        ("mixed_precision", "mixed_precision=tf32", "device=H200"),
    ),
    "late": (late_job(0, 3_000, 200, 0), ("straggler_to_median",)),
    "late_pair": (late_job(500, 0), ("straggler_to_median",)),
}


def document(name: str, folder: Path) -> str:
    make, edits = CASES[name]
    run = SimulatedRun(make(folder))
    lines = []
    with patch.object(fusion, "FEWEST_KERNELS", 6), patch.object(graphs, "FEWEST_LAUNCHES", 3):
        for edit in edits:
            lines += [f"# {edit}", *_lines_of(run, edit)]
    return "\n".join(lines) + "\n"


def _lines_of(run: SimulatedRun, edit: str) -> list[str]:
    try:
        edited = make_edit(edit).apply(run)
    except NotApplicableError as error:
        return [f"not: {error}"]
    lines = [edited.note, edited.source, "best", *told(run, edited.best)]
    if edited.cautious is None:
        return [*lines, "cautious is the same"]
    return [*lines, "cautious", *told(run, edited.cautious)]


@pytest.mark.parametrize("name", CASES)
def test_edges_that_an_edit_changes(name: str, tmp_path: Path) -> None:
    expected = (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")
    assert document(name, tmp_path).splitlines() == expected.splitlines()


def test_every_file_is_of_a_case() -> None:
    assert {path.stem for path in EXPECTED.glob("*.txt")} == set(CASES)


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    for case in CASES:
        with tempfile.TemporaryDirectory() as made:
            text = document(case, Path(made))
        (EXPECTED / f"{case}.txt").write_text(text, encoding="utf-8")
