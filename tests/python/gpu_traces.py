"""Hand-made GPU traces for the tests of tables: append events, load the trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torchtraceap as ttap

__all__ = ["GpuTrace"]


class GpuTrace:
    """Events of one host thread and one device; times in microseconds."""

    def __init__(self, *, runtime: str = "cuda_runtime") -> None:
        self.events: list[dict[str, Any]] = []
        self._runtime = runtime
        self._next = 100

    def host(self, cat: str, name: str, ts: float, dur: float, **args: Any) -> GpuTrace:
        return self._add(cat, name, ts, dur, 1, args)

    def op(self, name: str, ts: float, dur: float, **args: Any) -> GpuTrace:
        return self.host("cpu_op", name, ts, dur, **args)

    def call(self, name: str, ts: float, dur: float, **args: Any) -> GpuTrace:
        return self.host(self._runtime, name, ts, dur, **args)

    def gpu(
        self, name: str, ts: float, dur: float, *, cat: str = "kernel", stream: int = 7, **args: Any
    ) -> GpuTrace:
        """A GPU event; without a correlation it is an orphan."""
        return self._add(cat, name, ts, dur, stream, {"device": 0, "stream": stream, **args}, pid=0)

    def launch(
        self,
        name: str,
        at: tuple[float, float],
        runs: tuple[float, float],
        *,
        call: str = "cudaLaunchKernel",
        cat: str = "kernel",
        stream: int = 7,
        **args: Any,
    ) -> GpuTrace:
        """A call and its GPU event, both as (start, duration)."""
        self._next += 1
        self.call(call, *at, correlation=self._next)
        return self.gpu(name, *runs, cat=cat, stream=stream, correlation=self._next, **args)

    def memory(self, ts: float, change: int, **args: Any) -> GpuTrace:
        """A `[memory]` instant."""
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1}
        return self.raw(event | {"tid": 1, "ts": ts, "args": {"Bytes": change, **args}})

    def raw(self, event: dict[str, Any]) -> GpuTrace:
        self.events.append(event)
        return self

    def load(self, folder: Path, **members: Any) -> ttap.Trace:
        """Reads the events; `members` stand beside them, such as `deviceProperties`."""
        path = folder / "trace.json"
        path.write_text(json.dumps({"traceEvents": self.events, **members}), encoding="utf-8")
        return ttap.load(path)

    def _add(
        self, cat: str, name: str, ts: float, dur: float, tid: int, args: dict[str, Any],
        *, pid: int = 1,
    ) -> GpuTrace:  # fmt: skip
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
        return self.raw(event | {"args": args})
