"""Runs of a served model with a planted fault, and how much longer they take than without it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from served_model import Served, _event

__all__ = ["FAULTS", "LOOK_ALIKES", "ServedRun", "healthy_run", "planted_run"]

SCHEDULE = "vllm/v1/core/sched/scheduler.py(300): schedule"
PREPARE = "vllm/v1/worker/gpu_model_runner.py(900): _prepare_inputs"
DETOKENIZE = "vllm/v1/engine/detokenizer.py(90): update"
DRAFT = "vllm/v1/worker/gpu_model_runner.py(2100): propose_draft_token_ids"
ENGINES = ("vllm", "sglang", "atom", "tensorrt-llm")


@dataclass(frozen=True)
class ServedRun:
    """Iterations of a served model, on a host and a GPU that run beside each other. Times in us.

    The engine plans an iteration while the GPU runs the one before (`overlapped`), or waits for its
    tokens first. Kernels take `kernel_us` in a graph of `graph_batch` rows; each row adds
    `row_us` to the whole iteration.
    """

    layers: int = 12
    iterations: int = 12
    batch: int = 64
    graph_batch: int = 64
    engine: str = "vllm"
    frames: bool = True
    device: str = "NVIDIA H100 80GB HBM3"
    kernel_us: float = 12.0
    row_us: float = 0.0
    gap_us: float = 1.0
    """Between nodes of a graph."""
    pieces: int = 1
    """Graphs of an iteration; 0: kernels are launched one by one."""
    launch_us: float = 8.0
    overlapped: bool = True
    scheduling_us: float = 200.0
    copied: bool = True
    """Tokens are copied to the host, which waits for them."""
    sampling_us: float = 10.0
    """Host time between the arrival of tokens and the next launch beside scheduling."""
    mixed: tuple[int, ...] = ()
    """Iterations that also read a piece of a prompt."""
    mixed_factor: float = 1.0
    prefills: tuple[int, ...] = ()
    """Iterations that read prompts alone."""
    prefill_factor: float = 1.0
    prefill_requests: int = 1
    captures: tuple[int, ...] = ()
    """Iterations in front of which a graph is captured."""
    capture_us: float = 0.0
    drafts: int = 0
    """Kernels of a draft model in each iteration, launched one by one."""
    draft_host_us: float = 0.0
    """Host time in front of each of them."""
    draft_kernel_us: float = 5.0
    grids: bool = True
    seed: int = 0

    def annotation(self, number: int) -> str:
        """Return the engine's annotation of an iteration."""
        batch, mixed = self.batch, number in self.mixed
        if number in self.prefills:
            count = self.prefill_requests
            return {
                "vllm": f"execute_context_{count}(512)_generation_0(0)",
                "sglang": f"step[EXTEND bs={count} toks=512]",
                "atom": f"prefill[bs={count} tok=512 ctx=[512]]",
                "tensorrt-llm": f"[Executor] _forward_step {number}: {count} ctx reqs, "
                "512 ctx tokens, 0 gen reqs",
            }[self.engine]
        if self.engine == "sglang":
            if mixed:
                return f"step[MIXED bs={batch + 1} c=1 g={batch}]"
            return f"step[DECODE bs={batch}]"
        if self.engine == "atom":
            if mixed:
                return f"decode[bs={batch + 1}/{self.graph_batch + 1} tok=900 p=1 d={batch} spec=0]"
            return f"decode[bs={batch}/{self.graph_batch} tok={batch} d={batch}]"
        if self.engine == "tensorrt-llm":
            context = "1 ctx reqs, 512 ctx tokens" if mixed else "0 ctx reqs"
            return f"[Executor] _forward_step {number}: {context}, {batch} gen reqs"
        if mixed:
            return f"execute_context_1(512)_generation_{batch}({batch})"
        tokens = 3 * batch if self.drafts else batch
        return f"execute_context_0(0)_generation_{batch}({tokens})"

    def trace(self) -> tuple[dict[str, Any], float]:
        """Return the trace, and when the GPU has done the last iteration."""
        return _Recorder(self).record()


class _Recorder:
    def __init__(self, run: ServedRun) -> None:
        self.run, self.rng = run, random.Random(run.seed)
        self.events: list[dict[str, Any]] = []
        self.host = self.gpu = 1000.0
        self.correlation = 100

    def record(self) -> tuple[dict[str, Any], float]:
        run = self.run
        tokens_at: list[float] = []
        for number in range(run.iterations):
            if run.overlapped and number >= 2:
                self.wait_until(tokens_at[number - 2], copied=False)
            scheduling = run.scheduling_us * self.rng.uniform(0.9, 1.1)
            self.work(SCHEDULE, 0.5 * scheduling)
            self.work(PREPARE, 0.2 * scheduling)
            self.work(DETOKENIZE, 0.3 * scheduling)
            if number in run.captures:
                self.capture()
            begin = self.host
            self.host += 5.0
            self.forward(number)
            self.host += 5.0
            self.add("user_annotation", run.annotation(number), begin, self.host - begin)
            if run.drafts:
                self.draft()
            if run.copied:
                self.copy_tokens(wait=not run.overlapped)
            elif not run.overlapped:
                self.wait_until(self.gpu, copied=False)
            tokens_at.append(self.gpu)
            if not run.overlapped:
                self.host += run.sampling_us
        trace = {
            "traceEvents": self.events,
            "deviceProperties": [{"id": 0, "name": run.device, "numSms": 132}],
        }
        return trace, self.gpu

    def add(self, category: str, name: str, start: float, length: float, **args: Any) -> None:
        self.events.append(_event(category, name, start, length, **args))

    def work(self, frame: str, length: float) -> None:
        if self.run.frames and length:
            self.add("python_function", frame, self.host, length)
        self.host += length

    def call(self, name: str, length: float) -> float:
        """Record a call, and return when it ends."""
        self.correlation += 1
        self.add("cuda_runtime", name, self.host, length, correlation=self.correlation)
        self.host += length
        return self.host

    def on_gpu(self, category: str, name: str, start: float, length: float, **args: Any) -> None:
        event = _event(category, name, start, length, pid=0, tid=7)
        event["args"] = {"correlation": self.correlation, "device": 0, "stream": 7, **args}
        self.events.append(event)
        self.gpu = start + length

    def forward(self, number: int) -> None:
        run = self.run
        all_kernels = [kernel for (_, kernel, _), _ in Served(dense=run.layers).kernels()]
        kernels = [kernel for kernel in all_kernels if "cross_device" not in kernel]  # one GPU
        factor = run.mixed_factor if number in run.mixed else 1.0
        factor = run.prefill_factor if number in run.prefills else factor
        length = run.kernel_us + run.row_us * run.graph_batch / len(kernels)
        rows = run.graph_batch if run.pieces else run.batch
        size = -(-len(kernels) // max(1, run.pieces)) if run.pieces else 1
        for first in range(0, len(kernels), size):
            call = "cudaGraphLaunch" if run.pieces else "cudaLaunchKernel"
            launched = self.call(call, run.launch_us)
            for place, kernel in enumerate(kernels[first : first + size]):
                start = max(self.gpu + run.gap_us, launched + 2.0 if place == 0 else 0.0)
                args = {"grid": [self.blocks(kernel, rows), 1, 1]} if run.grids else {}
                jitter = self.rng.uniform(0.98, 1.02)
                self.on_gpu("kernel", kernel, start, factor * length * jitter, **args)

    @staticmethod
    def blocks(kernel: str, rows: int) -> int:
        return rows if any(word in kernel for word in ("norm", "rotary", "silu")) else 264

    def draft(self) -> None:
        self.wait_until(self.gpu, copied=False)  # it goes on with what was sampled
        begin = self.host
        for _ in range(self.run.drafts):
            self.host += self.run.draft_host_us
            launched = self.call("cudaLaunchKernel", 6.0)
            self.on_gpu(
                "kernel",
                "draft_head_gemm",
                max(self.gpu + 1.0, launched + 2.0),
                self.run.draft_kernel_us,
            )
        self.add("python_function", DRAFT, begin, self.host - begin)

    def copy_tokens(self, *, wait: bool) -> None:
        launched = self.call("cudaMemcpyAsync", 4.0)
        start = max(self.gpu + 1.0, launched + 1.0)
        name = "Memcpy DtoH (Device -> Pinned)"
        self.on_gpu("gpu_memcpy", name, start, 2.0, bytes=8 * self.run.batch)
        if wait:
            self.wait_until(self.gpu, copied=True)

    def wait_until(self, time: float, *, copied: bool) -> None:
        name = "cudaStreamSynchronize" if copied else "cudaEventSynchronize"
        length = max(time + 3.0 - self.host, 1.0)
        self.add("cuda_runtime", name, self.host, length)
        self.host += length

    def capture(self) -> None:
        length = self.run.capture_us
        for name, share in (
            ("cudaStreamBeginCapture", 0.0),
            ("cudaLaunchKernel", 0.5),
            ("cudaStreamEndCapture", 0.1),
            ("cudaGraphInstantiate", 0.4),
        ):
            self.add("cuda_runtime", name, self.host, max(1.0, share * length))
            self.host += max(1.0, share * length)


def healthy_run(seed: int) -> ServedRun:
    """Return a run without any fault."""
    rng = random.Random(seed)
    batch = rng.choice((24, 32, 48, 64, 96, 128, 256))
    kernel_us = rng.uniform(10.0, 20.0)
    return ServedRun(
        layers=rng.randint(6, 20),
        iterations=rng.randint(8, 16),
        batch=batch,
        graph_batch=batch,
        engine=rng.choice(ENGINES),
        frames=rng.random() < 0.8,
        kernel_us=kernel_us,
        gap_us=rng.uniform(0.1, 0.03 * kernel_us),
        pieces=rng.choice((1, 1, 1, 6)),
        scheduling_us=rng.uniform(100.0, 600.0),
        seed=seed,
    )


def _span_us(run: ServedRun) -> float:
    """Roughly how long an iteration takes on the GPU."""
    return 11.0 * run.layers * run.kernel_us


def _between_tokens(run: ServedRun, rng: random.Random) -> tuple[ServedRun, ServedRun]:
    slow = replace(
        run,
        overlapped=False,
        frames=True,
        copied=rng.random() < 0.5,
        scheduling_us=_span_us(run) * rng.uniform(0.15, 1.0),
    )
    return slow, replace(slow, overlapped=True, scheduling_us=100.0)


def _synchronous(run: ServedRun, rng: random.Random) -> tuple[ServedRun, ServedRun]:
    small = replace(run, layers=rng.randint(2, 4), kernel_us=rng.uniform(6.0, 12.0), pieces=1)
    late = replace(
        small, overlapped=False, frames=False, scheduling_us=0.0, copied=True,
        sampling_us=rng.uniform(20.0, 150.0),
    )  # fmt: skip
    return late, replace(late, overlapped=True)


def _eager(run: ServedRun, rng: random.Random) -> tuple[ServedRun, ServedRun]:
    small = replace(run, kernel_us=rng.uniform(4.0, 8.0), gap_us=0.5, scheduling_us=50.0)
    late = replace(small, pieces=0, launch_us=small.kernel_us + rng.uniform(4.0, 12.0))
    return late, replace(small, pieces=1)


def _pieces(run: ServedRun, rng: random.Random) -> tuple[ServedRun, ServedRun]:
    short = replace(run, kernel_us=rng.uniform(2.0, 4.0), gap_us=0.1, scheduling_us=50.0)
    pieces = 2 * run.layers
    late = replace(short, pieces=pieces, launch_us=6.5 * short.kernel_us + rng.uniform(10.0, 40.0))
    return late, replace(short, pieces=1)


def _padding(run: ServedRun, rng: random.Random) -> tuple[ServedRun, ServedRun]:
    graph = rng.choice((64, 128, 256))
    batch = rng.randint(graph // 2, int(0.8 * graph))
    row_us = rng.uniform(0.3, 0.9) * _span_us(run) / graph
    kernel_us = max(2.0, run.kernel_us - row_us * graph / (11.0 * run.layers))
    padded = replace(
        run, batch=batch, graph_batch=graph, row_us=row_us, kernel_us=kernel_us, pieces=1
    )
    return padded, replace(padded, graph_batch=batch)


def _recapture(run: ServedRun, rng: random.Random) -> tuple[ServedRun, ServedRun]:
    captures = tuple(sorted(rng.sample(range(1, run.iterations), rng.randint(2, 3))))
    late = replace(run, captures=captures, capture_us=_span_us(run) * rng.uniform(2.5, 5.0))
    return late, replace(run, captures=())


def _mixed(run: ServedRun, rng: random.Random) -> tuple[ServedRun, ServedRun]:
    if rng.random() < 0.5:
        # The first iteration that reads alone may be the beginning, behind the last may be nothing.
        reading = tuple(sorted(rng.sample(range(1, run.iterations - 1), rng.randint(1, 3))))
        late = replace(run, prefills=reading, prefill_factor=rng.uniform(2.0, 8.0), pieces=1)
        return late, replace(late, prefills=(), iterations=run.iterations - len(reading))
    mixed = tuple(sorted(rng.sample(range(run.iterations), rng.randint(1, 3))))
    late = replace(run, mixed=mixed, mixed_factor=rng.uniform(2.0, 8.0), pieces=1)
    return late, replace(late, mixed_factor=1.0)


def _draft(run: ServedRun, rng: random.Random) -> tuple[ServedRun, ServedRun]:
    late = replace(
        run, engine="vllm", frames=True, pieces=1, copied=False, scheduling_us=50.0,
        drafts=rng.randint(10, 30), overlapped=False, sampling_us=0.0,
        draft_host_us=_span_us(run) * rng.uniform(0.01, 0.04),
    )  # fmt: skip
    return late, replace(late, draft_host_us=0.0)


FAULTS = {
    "host_between_tokens": _between_tokens,
    "synchronous_sampling": _synchronous,
    "graph_not_used": _eager,
    "piecewise_gaps": _pieces,
    "graph_padding": _padding,
    "graph_recapture": _recapture,
    "prefill_stalls_decode": _mixed,
    "idle_draft": _draft,
}


def planted_run(fault: str, seed: int) -> tuple[ServedRun, float]:
    """Return a run with a fault, and how much longer it takes than its twin without it, us."""
    run, twin = FAULTS[fault](healthy_run(seed), random.Random(1000 + seed))
    return run, run.trace()[1] - twin.trace()[1]


LOOK_ALIKES = {
    "a batch padded by little": {"batch": 60, "graph_batch": 64},
    "tokens copied beside the next iteration": {"copied": True, "overlapped": True},
    "pieces that are launched ahead": {"pieces": 24, "launch_us": 4.0},
    "kernels that are launched ahead": {"pieces": 0, "launch_us": 4.0, "kernel_us": 20.0},
    "small pieces of prompts": {"mixed": (3, 4, 5), "mixed_factor": 1.2},
    "batches that are read as a whole": {
        "prefills": (1, 6),
        "prefill_factor": 5.0,
        "prefill_requests": 64,
    },
    "prompts at the end": {"prefills": (10, 11), "prefill_factor": 5.0},
    "a short prompt": {"prefills": (4,), "prefill_factor": 0.3},
    "one size that nobody foresaw": {"captures": (5,), "capture_us": 100.0},
    "a draft that keeps the GPU busy": {"drafts": 20, "draft_kernel_us": 15.0, "copied": False},
    "a scheduler that is slow beside the GPU": {"scheduling_us": 1200.0},
}
"""Changes of a healthy run after which nothing must be found."""
