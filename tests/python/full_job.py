"""A job of two ranks with something in every table: four steps of a small training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rank_samples import ALL_REDUCE, describe
from report_samples import TraceMaker

import torchtraceap as ttap

__all__ = ["full_job"]

DEVICE: dict[str, Any] = {
    "id": 0, "name": "NVIDIA A100-SXM4-40GB", "numSms": 108, "maxThreadsPerMultiprocessor": 2048,
    "warpSize": 32, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 167936,
    "computeMajor": 8, "computeMinor": 0, "totalGlobalMem": 42_000_000_000,
}  # fmt: skip
SHAPES = {
    "Input Dims": [[256, 512], [512, 128]],
    "Input type": ["float", "float"],
    "Input Strides": [[512, 1], [128, 1]],
    "Concrete Inputs": ["", ""],
}
LAUNCH = {
    "grid": [200, 2, 1],
    "block": [128, 1, 1],
    "registers per thread": 64,
    "shared memory": 4096,
    "blocks per SM": 3.7,
    "warps per SM": 14.8,
    "est. achieved occupancy %": 23,
}


def full_job(folder: Path) -> ttap.Trace:
    """Writes a file per rank and reads the folder."""
    for rank in (0, 1):
        maker = TraceMaker(rank=rank, world_size=2)
        maker.top["deviceProperties"] = [DEVICE]
        maker.host("python_function", "train.py(1): main", 0, 50_000)
        for step in range(4):
            _add_step(maker, 10_000.0 * step + 1_000, step, rank)
        maker.events.append(
            {"ph": "X", "cat": "kernel", "name": "orphan", "pid": 0, "tid": "stream 9",
             "ts": 45_000, "dur": 10, "args": {"device": 0, "stream": 9}}
        )  # fmt: skip
        maker.write(folder / f"rank{rank}.json")
    return ttap.load(folder)


def _add_step(maker: TraceMaker, at: float, step: int, rank: int) -> None:
    maker.host("user_annotation", f"ProfilerStep#{step}", at, 9_900)
    maker.host("python_function", "nn.Module: Net_0", at + 10, 3_000)
    maker.host("cpu_op", "aten::mm", at + 100, 500, **SHAPES)
    maker.gpu("kernel", "ampere_sgemm_128x64", at + 300, 900, launch=at + 200, **LAUNCH)
    for i in range(3):
        maker.host("cpu_op", "aten::add", at + 700 + 100 * i, 60, **SHAPES)
        kernel = "at::native::vectorized_elementwise_kernel"
        launch = at + 710 + 100 * i
        maker.gpu("kernel", kernel, at + 1_300 + 20 * i, 5, launch=launch, **LAUNCH)
    maker.gpu(
        "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at + 1_500, 100 + step,
        launch=at + 1_100, call="cudaMemcpyAsync", bytes=1 << 20,
    )  # fmt: skip
    maker.host("cuda_runtime", "cudaMalloc", at + 1_200, 50)
    maker.events.append(
        {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100,
         "tid": 100, "ts": at + 1_250,
         "args": {"Bytes": 1024, "Total Allocated": 4096 * (step + 1), "Device Id": 0,
                  "Device Type": 1, "Total Reserved": 8192, "Addr": 1 + step}}
    )  # fmt: skip
    for i, name in enumerate(("allreduce", "all_to_allv")):
        args = describe(name, 1 << 16, [0, 1])
        kernel = ALL_REDUCE
        if name == "all_to_allv":
            kernel = "ncclDevKernel_SendRecv(ncclDevComm*)"
            args |= {"In split size": [1 << 15, 1 << 15], "Out split size": [1 << 15, 1 << 15]}
        begin = at + 3_000 + 2_000 * i + (300 if rank else 0)
        maker.gpu(
            "kernel", kernel, begin, at + 4_500 + 2_000 * i - begin, launch=begin - 50, **args
        )
        maker.events[-1]["args"]["stream"] = maker.events[-1]["tid"] = 20
