"""Made-up traces of serving engines, of which iterations, layers and operators are known."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Kernel = tuple[str, str, str | None]
"""Operator, kernel and the role that a reader should find."""

ATTENTION: list[Kernel] = [
    ("vllm::fused_add_rms_norm", "vllm::fused_add_rms_norm_kernel<bf16>", "norm"),
    ("aten::mm", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "qkv"),
    ("_C::rotary_embedding", "vllm::rotary_embedding_kernel<bf16, true>", "rope"),
    ("_C_cache_ops::reshape_and_cache", "vllm::reshape_and_cache_kernel<bf16>", "kv_write"),
    ("vllm::unified_attention", "flash::flash_fwd_splitkv_kernel<128>", "attention"),
    ("vllm::unified_attention", "flash::flash_fwd_combine_kernel<128>", "attention"),
    ("aten::mm", "nvjet_tst_64x16_64x16_2x1_v_bz_TNN", "attention_output"),
    ("vllm::all_reduce", "vllm::cross_device_reduce_1stage<bf16, 8>", "all_reduce"),
]  # fmt: skip
DENSE: list[Kernel] = [
    ("_C::fused_add_rms_norm", "vllm::fused_add_rms_norm_kernel<bf16>", "norm"),
    ("aten::mm", "nvjet_tst_128x8_64x16_4x1_v_bz_TNT", "gate_up"),
    ("_C::silu_and_mul", "vllm::act_and_mul_kernel<bf16, silu>", "activation"),
    ("aten::mm", "nvjet_tst_64x32_64x16_2x1_v_bz_TNN", "down"),
    ("vllm::all_reduce", "vllm::cross_device_reduce_1stage<bf16, 8>", "all_reduce"),
]
EXPERTS: list[Kernel] = [
    ("_C::fused_add_rms_norm", "vllm::fused_add_rms_norm_kernel<bf16>", "norm"),
    ("aten::mm", "nvjet_sm90_router_TNT", "router"),
    ("_moe_C::topk_softmax", "vllm::moe::topkGatingSoftmax<8, 256>", "router"),
    ("deep_ep::low_latency_dispatch", "deep_ep::internode_ll::dispatch<true, 7168>", "dispatch"),
    ("deep_gemm::m_grouped_gemm", "deep_gemm::m_grouped_gemm_kernel<4096, 7168>", "experts_up"),
    ("_C::silu_and_mul_quant", "vllm::silu_mul_fp8_quant_kernel", "activation"),
    ("deep_gemm::m_grouped_gemm", "deep_gemm::m_grouped_gemm_kernel<7168, 2048>", "experts_down"),
    ("deep_ep::low_latency_combine", "deep_ep::internode_ll::combine<7168>", "combine"),
]  # fmt: skip
HEAD: list[Kernel] = [
    ("aten::embedding", "at::native::vectorized_gather_kernel<16, long>", "embedding"),
]
TAIL: list[Kernel] = [
    ("_C::fused_add_rms_norm", "vllm::fused_add_rms_norm_kernel<bf16>", "norm"),
    ("aten::mm", "nvjet_tst_256x8_64x16_4x1_v_bz_TNT", "lm_head"),
]


@dataclass
class Served:
    """A model of `dense` layers, then `experts` layers, decoded from one CUDA graph.

    Times are in microseconds; every iteration waits `gap_us` on the host before its graph.
    """

    dense: int = 4
    experts: int = 0
    iterations: int = 6
    batch: int = 64
    annotation: str = "execute_context_0(0)_generation_{batch}({batch})"
    gap_us: float = 300.0
    delays_us: dict[int, tuple[str, float]] = field(default_factory=dict)
    """By iteration: the frame in which the host spends additional time before its graph."""
    node_ids: bool = False
    streams: int = 1
    seed: int = 0

    def layers(self) -> list[list[Kernel]]:
        return [ATTENTION + DENSE] * self.dense + [ATTENTION + EXPERTS] * self.experts

    def kernels(self) -> list[tuple[Kernel, int | None]]:
        """Return the kernels of one replay with their layers."""
        found: list[tuple[Kernel, int | None]] = [(kernel, None) for kernel in HEAD]
        for number, layer in enumerate(self.layers()):
            found += [(kernel, number) for kernel in layer]
        return found + [(kernel, None) for kernel in TAIL]

    def trace(self) -> dict[str, Any]:
        """Return the trace of the replays."""
        rng = random.Random(self.seed)
        events: list[dict[str, Any]] = []
        host = gpu = 1000.0
        for number in range(self.iterations):
            frame, delay = self.delays_us.get(number, ("", 0.0))
            schedule = host
            if delay:
                events.append(_event("python_function", frame, host, delay))
                host += delay
            events.append(
                _event(
                    "python_function",
                    "vllm/v1/core/sched/scheduler.py(1): schedule",
                    host,
                    self.gap_us,
                )
            )
            host += self.gap_us
            assert schedule < host
            name = self.annotation.format(batch=self.batch)
            call, correlation = host + 5.0, 100 + number
            events.append(_event("user_annotation", name, host, 60.0))
            events.append(
                _event("cuda_runtime", "cudaGraphLaunch", call, 40.0, correlation=correlation)
            )
            gpu = max(gpu, call + 50.0)
            clocks = [gpu] * self.streams
            for node, ((_, kernel, _), _layer) in enumerate(self.kernels()):
                stream = rng.randrange(self.streams)
                length = 20.0 if "gemm" in kernel or "nvjet" in kernel else 5.0
                start = max(clocks) if self.streams == 1 else clocks[stream]
                args = {"correlation": correlation, "device": 0, "stream": 7 + stream}
                if self.node_ids:
                    args |= {"graph id": 3, "graph node id": 5000 + node}
                event = _event("kernel", kernel, start, length, pid=0, tid=7 + stream)
                event["args"] = args
                events.append(event)
                clocks[stream] = start + length
            gpu = max(clocks)
            # The host waits for the tokens before it schedules the next iteration.
            host += 60.0
            events.append(_event("cuda_runtime", "cudaStreamSynchronize", host, gpu - host))
            host = gpu
        return {"traceEvents": events, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}

    def capture(self, *, named: bool = True, batch: int | None = None) -> dict[str, Any]:
        """Return the trace of the capture: an operator and a launch call for each kernel."""
        now = 1000.0
        events = [_event("cuda_runtime", "cudaStreamBeginCapture", now, 1.0)]
        now += 5.0
        for (operator, kernel, _), layer in self.kernels():
            if layer is not None:
                module = f"nn.Module: DecoderLayer_{layer}"
                events.append(_event("python_function", module, now, 9.5))
            operation = _event("cpu_op", operator, now + 1.0, 8.0)
            operation["args"] = {"Input Dims": [[self.batch, 4096]]}
            launch = _event("cuda_runtime", "cudaLaunchKernel", now + 3.0, 2.0)
            if named:
                launch["args"]["kernel"] = kernel
            events += [operation, launch]
            now += 10.0
        events.append(_event("cuda_runtime", "cudaStreamEndCapture", now, 1.0))
        mark = _event(
            "user_annotation", f"capture_{batch or self.batch}_FULL", 999.0, now + 5.0 - 999.0
        )
        return {"traceEvents": [mark, *events]}

    def eager(self, *, prefill: bool = False) -> dict[str, Any]:
        """Return the trace of a run without graphs, two iterations; a prefill uses other tiles and
        attention that is not split."""
        now = gpu = 1000.0
        events: list[dict[str, Any]] = []
        correlation = 1
        for _ in range(2):
            begin = now
            for (operator, kernel, _role), layer in self.kernels():
                if prefill and "combine_kernel" in kernel:
                    continue
                name = kernel.replace("x8_64x16", "x256_64x64").replace("_splitkv", "")
                if layer is not None:
                    module = f"nn.Module: DecoderLayer_{layer}"
                    events.append(_event("python_function", module, now, 9.5))
                events.append(_event("cpu_op", operator, now + 1.0, 8.0))
                events.append(
                    _event("cuda_runtime", "cudaLaunchKernel", now + 3.0, 2.0,
                           correlation=correlation)
                )  # fmt: skip
                gpu = max(gpu, now + 6.0)
                args = {"correlation": correlation, "device": 0, "stream": 7}
                event = _event("kernel", name if prefill else kernel, gpu, 5.0, pid=0, tid=7)
                events.append({**event, "args": args})
                gpu, now, correlation = gpu + 5.0, now + 10.0, correlation + 1
            batch = "execute_context_2(512)_generation_0(0)" if prefill else self.annotation
            mark = _event("user_annotation", batch.format(batch=self.batch), begin, now - begin)
            events.append(mark)
            now = gpu = max(now, gpu) + 50.0
        return {"traceEvents": events, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}

    def annotations(self, *, whole: bool = True) -> dict[int, list[Any]]:
        """Return what `torch.cuda.graph_annotations` notes of each node, by its id, with that of
        the graph if `whole`."""
        found: dict[int, list[Any]] = {}
        for node, ((operator, _, role), layer) in enumerate(self.kernels()):
            module = role if layer is None else f"model.layers.{layer}.{role}"
            fields = {"name": operator, "module_fqn": module, "Group size": 8, "stream": 60}
            found[(3 << 32) * whole + 5000 + node] = [fields]
        return found

    def stacks(self) -> dict[str, str]:
        """Return the Python stack of the launch of each node."""
        frames = (f"model.py:{10 + node}:forward" for node in range(len(self.kernels())))
        keys = (str((3 << 32) + 5000 + node) for node in range(len(self.kernels())))
        return {key: f"{frame}\nrun.py:1:main" for key, frame in zip(keys, frames, strict=True)}

    def write(self, folder: Path, **capture: Any) -> Path:
        """Write the trace, and beside it that of the capture; return the path of the former."""
        captures = folder / "capture_traces"
        captures.mkdir(parents=True)
        (captures / "graph.json").write_text(json.dumps(self.capture(**capture)))
        path = folder / "trace.json"
        path.write_text(json.dumps(self.trace()))
        return path


def _event(
    category: str,
    name: str,
    start: float,
    length: float,
    *,
    pid: int = 1,
    tid: int = 1,
    **args: Any,
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
        "ts": round(start, 3), "dur": round(length, 3), "args": args,
    }  # fmt: skip
