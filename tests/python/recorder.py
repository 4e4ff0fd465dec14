"""Writes small recordings of the profiler, event by event, for tests of what they show."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torchtraceap as ttap

VENDORS = {
    "nvidia": ("cudaLaunchKernel", "cudaDeviceSynchronize", "cuda_runtime", "NVIDIA H100"),
    "amd": ("hipLaunchKernel", "hipDeviceSynchronize", "cuda_runtime", "AMD Instinct MI300X"),
    "intel": ("urEnqueueKernelLaunch", "urQueueFinish", "xpu_runtime", "Intel(R) Arc(TM) B580"),
}
Json = dict[str, Any]


class Recorder:
    """Writes Kineto events; times in microseconds."""

    def __init__(
        self, vendor: str = "nvidia", *, pid: int = 700, device: int = 0, base: float = 7e9
    ) -> None:
        self.launch_name, self.sync_name, self.category, name = VENDORS[vendor]
        self.pid, self.device, self.base = pid, device, base
        self.events: list[Json] = []
        self.members: Json = {"deviceProperties": [{"id": device, "name": name}]}
        self.correlation = 100

    def host(self, category: str, name: str, ts: float, dur: float, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": self.pid, "tid": self.pid,
             "ts": self.base + ts, "dur": dur, "args": args}
        )  # fmt: skip

    def call(self, name: str, ts: float, dur: float) -> int:
        self.correlation += 1
        self.host(self.category, name, ts, dur, correlation=self.correlation)
        return self.correlation

    def gpu(
        self, correlation: int, ts: float, dur: float, *, name: str = "gemm", stream: int = 7,
        category: str = "kernel",
    ) -> Json:  # fmt: skip
        args = {"device": self.device, "stream": stream, "correlation": correlation}
        event = {"ph": "X", "cat": category, "name": name, "pid": self.device, "tid": stream,
                 "ts": self.base + ts, "dur": dur, "args": args}  # fmt: skip
        self.events.append(event)
        return event

    def steps(
        self,
        steps: int,
        kernels: int,
        kernel_us: float,
        *,
        edit: Callable[[int, int, Json], Json | None] = lambda step, kernel, event: event,
        start: float = 0.0,
        op: str = "aten::mm",
    ) -> float:
        """A GPU-bound loop: the host launches, then waits. `edit` changes a GPU record or drops
        it. Returns where the last step ends."""
        now = start
        for step in range(steps):
            gpu = now + 9
            for kernel in range(kernels):
                at = now + 4 * kernel
                self.host("cpu_op", op, at, 3.5)
                correlation = self.call(self.launch_name, at + 1, 2)
                event = self.gpu(correlation, gpu, kernel_us)
                self.events.pop()
                kept = edit(step, kernel, event)
                if kept is not None:
                    self.events.append(kept)
                gpu += kernel_us
            waited = now + 4 * kernels + 1
            self.call(self.sync_name, waited, gpu - waited)
            self.host("user_annotation", f"ProfilerStep#{step}", now, gpu + 1 - now)
            now = gpu + 2
        return now

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            gzip.compress(json.dumps({**self.members, "traceEvents": self.events}).encode())
        )
        return path

    def load(self, tmp_path: Path) -> ttap.Trace:
        return ttap.load(self.write(tmp_path / "trace.json.gz"))
