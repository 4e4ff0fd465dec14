"""Hand-made traces for the tests of the command line and of the reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
HOSTILE = (
    "</script><script>window.hacked=1</script>",
    '<img src=x onerror="window.hacked=2">',
    "'\"><svg onload=window.hacked=3>",
    "{{ 7*7 }} ${window.hacked=4}",
    "\u2028\u2029\x1b[31mred\x07 \u202ereversed",
    "javascript:window.hacked=5",
)


class TraceMaker:
    """Adds events in microseconds and keeps count of correlation ids."""

    def __init__(self, *, rank: int | None = None, world_size: int = 1) -> None:
        self.events: list[Event] = []
        self.top: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "Test GPU", "computeMajor": 8}],
        }
        if rank is not None:
            self.top["distributedInfo"] = {
                "backend": "nccl",
                "rank": rank,
                "world_size": world_size,
            }
        self._correlation = 0

    def host(self, category: str, name: str, start: float, length: float, **args: Any) -> None:
        """A complete event on the main thread."""
        event = {"ph": "X", "cat": category, "name": name, "pid": 100, "tid": 100}
        self.events.append(event | {"ts": start, "dur": length, "args": args})

    def gpu(
        self,
        category: str,
        name: str,
        start: float,
        length: float,
        *,
        launch: float,
        call: str = "cudaLaunchKernel",
        call_length: float = 8,
        **args: Any,
    ) -> None:
        """A GPU event and the runtime call that launched it."""
        self._correlation += 1
        link = {"correlation": self._correlation}
        self.host("cuda_runtime", call, launch, call_length, **link)
        where = {"device": 0, "stream": 7, **link}
        event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": "stream 7"}
        self.events.append(event | {"ts": start, "dur": length, "args": where | args})

    def write(self, path: Path) -> Path:
        """Writes the file and returns its path."""
        path.write_text(json.dumps(self.top | {"traceEvents": self.events}), encoding="utf-8")
        return path


def slow_loader(*, steps: int = 4, rank: int | None = None, world_size: int = 1) -> TraceMaker:
    """Each step of 100 ms loads its batch for 45 ms on the main thread while the GPU idles."""
    maker = TraceMaker(rank=rank, world_size=world_size)
    for step in range(steps):
        at = 1_000_000 + step * 100_000
        maker.host("user_annotation", f"ProfilerStep#{step}", at, 100_000)
        maker.host("user_annotation", LOADER, at + 100, 45_000)
        maker.host("cpu_op", "aten::stack", at + 200, 44_000)
        maker.host("cpu_op", "aten::linear", at + 46_000, 9_000)
        for i in range(8):
            launch = at + 46_100 + i * 1_000
            start = at + 46_200 + i * 6_600
            maker.gpu("kernel", "ampere_sgemm_128x64", start, 6_590, launch=launch)
    return maker


def healthy(*, steps: int = 4) -> TraceMaker:
    """The GPU never waits: launches run far ahead of the kernels."""
    maker = TraceMaker()
    for step in range(steps):
        at = 1_000_000 + step * 100_000
        maker.host("user_annotation", f"ProfilerStep#{step}", at, 100_000)
        maker.host("cpu_op", "aten::linear", at + 10, 40_000)
        for i in range(10):
            launch = at + 20 + i * 2_000 if step or i else at - 5_000
            maker.gpu("kernel", "ampere_bf16_gemm", at + i * 10_000, 10_000, launch=launch)
    return maker


def products(*, device: str) -> TraceMaker:
    """Matrix products of a few shapes, each step the same, on a device of that name."""
    maker = TraceMaker()
    maker.top["deviceProperties"][0]["name"] = device
    for step in range(4):
        at = 1_000_000 + step * 10_000
        maker.host("user_annotation", f"ProfilerStep#{step}", at, 10_000)
        for i, size in enumerate((512, 1024, 2048)):
            shapes = {
                "Input Dims": [[size, size], [size, size]],
                "Input type": ["c10::BFloat16", "c10::BFloat16"],
            }
            start = at + 100 + i * 3_000
            maker.host("cpu_op", "aten::mm", start, 50, **shapes)
            maker.gpu("kernel", f"gemm_{size}", start + 100, size, launch=start + 10)
    return maker


def without_places() -> TraceMaker:
    """GPU events that say neither their device nor their stream."""
    maker = slow_loader(steps=2)
    for event in maker.events:
        for key in ("device", "stream"):
            event["args"].pop(key, None)
    return maker


def host_only() -> TraceMaker:
    """A CPU run."""
    maker = TraceMaker()
    for i in range(20):
        maker.host("cpu_op", "aten::linear", 1_000 + i * 100, 90)
    return maker


def hostile() -> TraceMaker:
    """A slow loader whose every name tries to become markup, script or a terminal command."""
    maker = slow_loader()
    for i, name in enumerate(HOSTILE):
        at = 1_000_000 + i * 3_000
        maker.host("user_annotation", name, at + 200, 2_500)
        maker.gpu("kernel", name, at + 400_000, 2_000, launch=at + 390_000)
        maker.events.append(
            {"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "args": {"name": name}}
        )
    for event in maker.events:
        if event["name"] == LOADER:
            event["name"] = LOADER + HOSTILE[0]
        if str(event["name"]).startswith("ProfilerStep#"):
            event["name"] = f"{event['name']}"
    maker.top["deviceProperties"][0]["name"] = HOSTILE[1]
    maker.top["distributedInfo"] = {"backend": HOSTILE[0]}
    return maker


def hostile_calls() -> TraceMaker:
    """A slow loader whose kernels, operators and ranges have such names in every step."""
    maker = slow_loader()
    names = {"kernel": HOSTILE[0], "cpu_op": HOSTILE[1], "cuda_runtime": HOSTILE[2]}
    for event in maker.events:
        event["name"] = names.get(event["cat"], event["name"])
    return maker


def host_training(*, fetch: str = LOADER, devices: bool = False) -> TraceMaker:
    """Steps of 100 ms that compute on the host: 45 ms for the batch, 30 forward, 20 backward."""
    maker = TraceMaker()
    if not devices:
        maker.top["deviceProperties"] = []
    for step in range(4):
        at = 1_000_000 + step * 100_000
        maker.host("user_annotation", f"ProfilerStep#{step}", at, 100_000)
        maker.host("user_annotation", fetch, at, 45_000)
        maker.host("cpu_op", "aten::conv2d", at + 45_000, 30_000)
        maker.host("cpu_op", "aten::mkldnn_convolution", at + 45_100, 29_000)
        name = "autograd::engine::evaluate_function: ConvolutionBackward0"
        maker.host("cpu_op", name, at + 75_000, 20_000)
        maker.host("cpu_op", "aten::convolution_backward", at + 75_100, 19_000)
        maker.host("user_annotation", "Optimizer.step#SGD.step", at + 95_000, 5_000)
        maker.host("cpu_op", "aten::_foreach_add_", at + 95_100, 4_800)
    return maker
