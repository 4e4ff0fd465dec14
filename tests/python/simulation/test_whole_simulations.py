"""Whole simulations and savings of jobs with many flaws: what each edit predicts, between which
bounds, and in which words.

Numbers worked out by hand are in test_simulation_edits. Here nothing of an outcome is left out:
`tests/golden/simulations` has all of it. `python
tests/python/simulation/test_whole_simulations.py` rewrites these files; read the difference before
you keep it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fix_programs import NCCL, FlawedProgram
from made_job import load_job
from rank_samples import describe, late_rank
from test_whole_tables import differences
from test_whole_tables import document as table_document

import torchtraceap as ttap
from torchtraceap.simulation.edits.base import default_edits

EXPECTED = Path(__file__).resolve().parents[2] / "golden" / "simulations"
VALUES = (
    "pin_memory=HtoD", "pin_memory=DtoH", "loader_workers=1", "loader_workers=8",
    "mixed_precision=tf32", "mixed_precision=fp16", "bucket_size_mb=1", "device=H200",
    "device=A100 PCIe 40 GB",
)  # fmt: skip
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
FLOATS = {"Input type": ["float", "float"]}


def load(document: dict[str, Any], folder: Path) -> ttap.Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return ttap.load(path)


# ------------------------------------------------------------------------------ programs


def loading(p: FlawedProgram, step: int) -> None:
    with p.range(LOADER, "user_annotation"):
        p.work(3_000 + 10 * step)
    with p.range("aten::copy_"):
        p.copy("HtoD", "Pageable", 2_500_000, 900, **{"memory bandwidth (GB/s)": 2.8})
    p.launch("gemm", 2_000)
    with p.range("aten::copy_"):
        p.copy("HtoD", "Pinned", 250_000, 20)
    with p.range("aten::item"), p.range("aten::_local_scalar_dense"):
        p.copy("DtoH", "Pageable", 4, 2)
        p.synchronize()
    p.launch("gemm", 200)
    p.synchronize("cudaDeviceSynchronize")
    with p.range("cudaMalloc", "cuda_runtime"):
        p.work(40)


def computing(p: FlawedProgram, step: int) -> None:
    for size in (512, 1024):
        dims = [[size, size], [size, 2 * size]]
        with p.range("aten::mm", **FLOATS, **{"Input Dims": dims}):
            p.launch("ampere_sgemm_128x64_tn", size / 2, grid=[size // 16, 1, 1])
    with p.range("aten::cudnn_convolution", **FLOATS):
        p.launch("void cudnn::ops::nchwToNhwcKernel<float, float>", 30)
        p.launch("implicit_convolve_sgemm", 300 + step)
        p.launch("void cudnn::ops::nhwcToNchwKernel<float, float>", 25)
    for number, name in enumerate(("aten::add", "aten::mul", "aten::relu")):
        with p.range(name):
            p.launch("vectorized_elementwise_kernel", 100 + 10 * number, grid=[64, 1, 1])
    for number in range(12):
        with p.range(f"aten::op{number % 3}"):
            p.work(15)
            p.launch("reduce_kernel", 4)


def updating(p: FlawedProgram, step: int) -> None:
    with p.range("Optimizer.zero_grad#SGD.zero_grad", "user_annotation"):
        p.launch("FillFunctor", 20)
    with p.range("torch.distributed.ddp.reducer::search_unused_parameters", "user_annotation"):
        p.work(70)
    with p.range("Optimizer.step#Adam.step", "user_annotation"):
        for number in range(56):
            with p.range(("aten::mul_", "aten::add_", "aten::addcdiv_", "aten::sqrt")[number % 4]):
                p.work(6)
                p.launch("vectorized_elementwise_kernel", 3)
    p.synchronize()


def compiling(p: FlawedProgram, step: int) -> None:
    with p.range("Torch-Compiled Region: 0/0", "user_annotation"):
        with p.range("CompiledFunction"):
            p.launch("triton_poi_fused_add_0", 50)
        p.work(300)
        if step % 2:
            with p.range("_compile.compile_inner (dynamo_timed)", "user_annotation"):
                p.work(120)
        with p.range("Torch-Compiled Region: 1/0", "user_annotation"), p.range("CompiledFunction"):
            p.launch("triton_poi_fused_add_1", 50)
    p.synchronize()


def communicating(p: FlawedProgram, step: int) -> None:
    p.launch("gemm_a", 500)
    for size in (1 << 18, 1 << 19, 1 << 21):
        args = describe("allreduce", size, [0, 1])
        with p.range("record_param_comms", **args):
            p.launch(NCCL, size / 4_000, **args)
        p.launch("gemm_b", 150)
    for _ in range(6):
        p.launch(NCCL, 12, **describe("allreduce", 512, [0, 1]))
    p.synchronize()


def fetching(p: FlawedProgram, step: int) -> None:
    """Worker processes load, and are late."""
    with p.range(LOADER.replace("Single", "Multi"), "user_annotation"):
        p.work(2_500 if step % 3 else 100)
    p.launch("gemm", 1_500)
    p.synchronize()


def exchanging(p: FlawedProgram, step: int) -> None:
    """Gradients are reduced behind the backward pass, one small and three large buckets."""
    for number in range(6):
        with p.range("autograd::engine::evaluate_function: AddmmBackward0"):
            p.launch("gemm", 100 + number)
            if number == 5:
                for megabytes in (1, 2, 30, 40):
                    args = describe("allreduce", megabytes << 18, [0, 1])
                    p.launch(NCCL, 20 + 10 * megabytes, **args)
    with p.range("Optimizer.step#SGD.step", "user_annotation"):
        p.launch("multi_tensor_apply_kernel", 50)
    p.synchronize()


def overlapping(p: FlawedProgram, step: int) -> None:
    """Products beside a collective take 1.3 times as long; then one waits for a collective."""
    for _ in range(5):
        p.launch("gemm", 100, grid=[8, 1, 1])
    p.synchronize()
    p.launch(NCCL, 900, stream=20, **describe("allreduce", 1 << 20, [0, 1]))
    for _ in range(5):
        p.launch("gemm", 130, grid=[8, 1, 1])
    p.synchronize()
    communicating(p, step)


def job_of(*bodies: Callable[[FlawedProgram, int], None]) -> Callable[[Path], ttap.Trace]:
    """Seven steps; the later ones do a little more."""

    def build(folder: Path) -> ttap.Trace:
        program = FlawedProgram()
        for number in range(7):
            with program.step(number):
                for body in bodies:
                    body(program, number)
        return load(program.document(), folder)

    return build


JOBS: dict[str, Callable[[Path], ttap.Trace]] = {
    "loading": job_of(loading, computing),
    "computing": job_of(computing),
    "updating": job_of(computing, updating),
    "compiling": job_of(compiling),
    "communicating": job_of(communicating),
    "fetching": job_of(fetching, computing),
    "exchanging": job_of(exchanging),
    "overlapping": job_of(overlapping),
    "everything": job_of(loading, computing, updating, compiling, communicating),
    "two_ranks": lambda folder: load_job(folder / "job", waits_us=(0, 2, 0, 4, 2, 0)),
    "late_rank": lambda folder: late_rank().load(folder / "job"),
}


def simulation(trace: ttap.Trace) -> dict[str, Any]:
    found = trace.simulate([*default_edits(), *VALUES]).to_dict()
    found["edits"].sort(key=lambda edit: edit["edit"])
    return found


def savings(trace: ttap.Trace) -> dict[str, Any]:
    """What a diagnosis says of savings and of their plan."""
    found = trace.diagnose(windows=2).to_dict()
    kept = ("type", "cost_ns", "cost_share", "saving")
    findings = [{key: finding[key] for key in kept} for finding in found["findings"]]
    kept = ("measured_ns", "replayed_ns", "noise_ns", "per_step")
    replay = {key: found["replay"][key] for key in kept} if found["replay"] else None
    return {
        "step": found["step"],
        "replay": replay,
        "findings": findings,
        "plan": found["plan"],
    }


def chains(trace: ttap.Trace) -> list[dict[str, Any]]:
    """What the ten longest idle intervals wait for."""
    rank = trace.ranks[-1].rank
    idle = sorted(trace.idle(rank).records(), key=lambda row: row["start_ns"] - row["end_ns"])
    ranges = [(row["start_ns"], row["end_ns"]) for row in idle[:10]]
    return [table_document(trace.explain_idle(*chosen, rank=rank)) for chosen in ranges]


def document(trace: ttap.Trace) -> dict[str, Any]:
    content = {
        "simulation": simulation(trace),
        "savings": savings(trace),
        "chains": chains(trace),
    }
    plain: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return plain


def lines_of(content: Any, depth: int = 0) -> str:
    """JSON with an edit, a finding or a chain to a line."""
    if not isinstance(content, (dict, list)) or depth == 3 or not content:
        return json.dumps(content)
    inner = ["" if isinstance(content, list) else f"{json.dumps(key)}: " for key in content]
    values = content if isinstance(content, list) else content.values()
    indent = " " * (depth + 1)
    rows = [f"{indent}{k}{lines_of(v, depth + 1)}" for k, v in zip(inner, values, strict=True)]
    opened, closed = "[]" if isinstance(content, list) else "{}"
    return f"{opened}\n" + ",\n".join(rows) + f"\n{indent[1:]}{closed}"


@pytest.mark.parametrize("name", JOBS)
def test_whole_simulation(name: str, tmp_path: Path) -> None:
    expected = json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))
    assert not differences(document(JOBS[name](tmp_path)), expected)


def test_every_file_is_of_a_job() -> None:
    assert {path.stem for path in EXPECTED.glob("*.json")} == set(JOBS)


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    for job, make in JOBS.items():
        with tempfile.TemporaryDirectory() as made:
            text = lines_of(document(make(Path(made))))
        (EXPECTED / f"{job}.json").write_text(text + "\n", encoding="utf-8")
