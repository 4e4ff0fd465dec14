"""Programs with a known flaw, as traces: a host that issues work, streams that run it in order.

What the fix is worth follows from how the program runs. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
CALL = 5.0
DELAY = 5.0
GAP = 1.0
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


@dataclass
class FlawedProgram:
    """Keeps the clocks of the host and of its streams; each method goes on in program order."""

    device: str = "NVIDIA A100-SXM4-40GB"
    host_us: float = 100.0
    events: list[Event] = field(default_factory=list)
    _free_us: dict[int, float] = field(default_factory=dict)
    _correlation: int = 0

    def work(self, length: float) -> None:
        """Python between calls."""
        self.host_us += length

    @contextmanager
    def range(self, name: str, cat: str = "cpu_op", **args: Any) -> Iterator[None]:
        """What is done inside lies in a row of that name."""
        start = self.host_us
        self.host_us += 1
        yield
        self.host_us += 1
        self._add(cat, name, start, self.host_us - start, 1, args)

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        with self.range(f"ProfilerStep#{number}", "user_annotation"):
            yield

    def launch(
        self,
        name: str,
        length: float,
        *,
        stream: int = 7,
        cat: str = "kernel",
        call: str = "cudaLaunchKernel",
        call_us: float = CALL,
        **args: Any,
    ) -> float:
        """Returns when the work ends."""
        self._correlation += 1
        ids = {"correlation": self._correlation}
        start = max(self.host_us + CALL + DELAY, self._free_us.get(stream, 0.0) + GAP)
        self._add("cuda_runtime", call, self.host_us, call_us, 1, ids)
        self.host_us += call_us
        on_gpu = {**ids, "device": 0, "stream": stream, **args}
        self._add(cat, name, start, length, stream, on_gpu, pid=0)
        self._free_us[stream] = start + length
        return start + length

    def copy(self, direction: str, memory: str, size: int, length: float, **more: Any) -> None:
        """A copy of "HtoD" or "DtoH"; pageable ones are awaited in the call."""
        ends = {"HtoD": f"{memory} -> Device", "DtoH": f"Device -> {memory}"}
        name = f"Memcpy {direction} ({ends[direction]})"
        called = self.host_us
        end = self.launch(
            name, length, cat="gpu_memcpy", call="cudaMemcpyAsync", bytes=size, **more
        )
        if memory == "Pageable":
            self.host_us = end + 2
            call = next(e for e in reversed(self.events) if e["cat"] == "cuda_runtime")
            call["dur"] = self.host_us - called

    def synchronize(self, name: str = "cudaStreamSynchronize") -> None:
        """Until everything launched has ended."""
        self._correlation += 1
        end = max([self.host_us + 2, *(free + 2 for free in self._free_us.values())])
        ids = {"correlation": self._correlation}
        self._add("cuda_runtime", name, self.host_us, end - self.host_us, 1, ids)
        self.host_us = end

    def _add(
        self,
        cat: str,
        name: str,
        start: float,
        length: float,
        tid: int,
        args: dict[str, Any],
        pid: int = 1,
    ) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
            | {"ts": start, "dur": length, "args": args}
        )

    def document(self) -> dict[str, Any]:
        """As the profiler writes it."""
        properties = [{"id": 0, "name": self.device, "computeMajor": 8, "computeMinor": 0}]
        return {"deviceProperties": properties, "traceEvents": self.events}
