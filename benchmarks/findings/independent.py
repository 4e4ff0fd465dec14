"""Faults put into public traces by moving events, with nothing of the product in between.

    python benchmarks/findings/independent.py TRACE ... [--only FORM ...] [--share 0.2] [--seed N]
                                              [--output FILE]

Events are dictionaries. Work of a GPU begins behind its launch, behind the work before it on its
stream, and behind what it waited for on another stream; a call that waits ends behind the work that
it waited for; whatever else a thread does takes as long as it did. A fault stands between two
operators of the main thread, at several places, and everything behind it comes later by as much as
these rules say; with a seed, places are drawn, and lengths from half to one and a half of what is
asked. The *truth* is by how much the trace gets longer: what the GPU still hides costs
nothing, and a fault that costs less than 1 % must not be found.

- `type`: the type is present; or it costs nothing and is not.
- `place`: 0.7 of the cost lies where the trace loses time, which is between the begin of a block
  and the first work launched behind it, and wherever later work falls further behind; and it meets
  0.7 of the blocks that lose time before that work.
- `cost`: the truth lies between the low and the high end of the saving, each a tenth wider.
- `price`: the cost of the finding is within a quarter of the truth.

A type that is there already is left out, for nothing tells then what was planted. Named at the end
of a line are types that are present now, were not before, and are no symptom of the fault.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torchtraceap as ttap

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

Event = dict[str, Any]
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_OLD = {"operator": "cpu_op", "runtime": "cuda_runtime", "memcpy": "gpu_memcpy",
        "memset": "gpu_memset"}  # fmt: skip
_LATENCY_US = 6.0
_PYTHON_US = 12.0
"""The time that the host needs between two operators of a block."""
_SLACK_US = 20.0
"""Work that begins so much later than its launch and its stream allow waits for something else."""


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event["dur"])


class Job:
    """The events of one trace, and what each waits for."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        read = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        self.document = {k: v for k, v in read.items() if k != "traceEvents"}
        self.meta = [e for e in read["traceEvents"] if e.get("ph") == "M"]
        complete = [e for e in read["traceEvents"] if e.get("ph") == "X" and "dur" in e]
        for event in complete:
            category = str(event.get("cat")).lower()
            event["cat"] = _OLD.get(category, category)
            event["ts"], event["dur"] = float(event["ts"]), float(event["dur"])
        left_out = ("gpu_user_annotation", "trace")
        complete = [e for e in complete if e["cat"] not in left_out]
        complete.sort(key=lambda e: e["ts"])
        self.gpu = [e for e in complete if e["cat"] in _GPU]
        self.host = [e for e in complete if e["cat"] not in _GPU]
        calls = {_id(e): e for e in self.host if e["cat"] in _CALLS and _id(e)}
        self.launch = [calls.get(_id(e)) for e in self.gpu]
        self.next_id = 1 + max((_id(e) for e in complete), default=0)
        streams = Counter((e["pid"], e["tid"], e["args"].get("stream")) for e in self.gpu)
        (self.device, self.track, self.stream), _ = streams.most_common(1)[0]
        ops = [e for e in self.host if e["cat"] == "cpu_op"]
        steps = [e for e in ops + self.host if str(e["name"]).startswith("ProfilerStep")]
        self.main = Counter((e["pid"], e["tid"]) for e in steps or ops).most_common(1)[0][0]
        self.step_starts = sorted({e["ts"] for e in steps})
        self.seed: int | None = None
        self.longer_by_itself_us = 0.0
        """The time by which moving events without a fault makes the trace longer."""
        self._waits_of_gpu()
        self._waits_of_host()

    def _waits_of_gpu(self) -> None:
        """The events that each GPU event begins behind, with the distance."""
        last: dict[Any, int] = {}
        by_end = sorted(range(len(self.gpu)), key=lambda i: _end(self.gpu[i]))
        ends = [_end(self.gpu[i]) for i in by_end]
        self.behind: list[list[int]] = []
        self.residual: list[float] = []
        for i, event in enumerate(self.gpu):
            key = (event["pid"], event["tid"])
            before = [last[key]] if key in last else []
            call = self.launch[i]
            ready = max([_end(self.gpu[j]) for j in before] + ([call["ts"]] if call else []) or [0])
            place = bisect_right(ends, event["ts"]) - 1
            if event["ts"] - ready > _SLACK_US and place >= 0 and ends[place] > ready:
                before.append(by_end[place])
                ready = ends[place]
            self.behind.append(before)
            self.residual.append(event["ts"] - ready if before or call else 0.0)
            last[key] = i

    def _waits_of_host(self) -> None:
        """The last work that ended in each call that waits."""
        by_end = sorted(range(len(self.gpu)), key=lambda i: _end(self.gpu[i]))
        ends = [_end(self.gpu[i]) for i in by_end]
        self.wait: dict[int, int] = {}
        for event in self.host:
            if event["cat"] in _CALLS and event["dur"] > 5:
                name = event["name"]
                if "Synchronize" in name or "Memcpy" in name or "Free" in name:
                    place = bisect_right(ends, _end(event)) - 1
                    if place >= 0 and ends[place] > event["ts"] + 1:
                        self.wait[id(event)] = by_end[place]

    def places(self, count: int) -> list[float]:
        """Begins of operators of the main thread with no operator around: as many in each step, or
        without steps spread over the middle of the trace."""
        free, until = [], 0.0
        for event in self.host:
            if event["cat"] not in ("cpu_op", *_CALLS):
                continue
            name = str(event["name"])
            if name.startswith(("ProfilerStep", "Optimizer.", "enumerate(DataLoader)")):
                continue
            here = (event["pid"], event["tid"]) == self.main and event["cat"] == "cpu_op"
            if here and event["ts"] > until + 0.2:
                free.append(event["ts"] - 0.1)
            until = max(until, _end(event))
        launches = [call["ts"] for call in self.launch if call]
        borders = self.step_starts if len(self.step_starts) > 1 else []
        borders = [*borders, launches[-1]] if borders else [
            launches[len(launches) // 6], launches[-len(launches) // 6]
        ]  # fmt: skip
        chosen: set[float] = set()
        each = -(-count // (len(borders) - 1))
        drawn = None if self.seed is None else random.Random(self.seed)
        for first, last in pairwise(borders):
            within = [t for t in free if first < t < last]
            if drawn:
                chosen |= set(drawn.sample(within, min(each, len(within))))
                continue
            chosen |= {within[len(within) * (i + 1) // (each + 1)] for i in range(each) if within}
        return sorted(chosen)

    def lengths(self, count: int, us: float) -> list[float]:
        """How long the fault takes at each of so many places."""
        drawn = None if self.seed is None else random.Random(self.seed)
        return [us * drawn.uniform(0.5, 1.5) if drawn else us for _ in range(count)]


def _id(event: Event) -> int:
    value = event.get("args", {}).get("correlation", 0)
    return value if isinstance(value, int) and 0 < value < 1 << 31 else 0


@dataclass
class Block:
    """The events of a fault at one place. `host` is the host's time; at `idle_at` all work ends."""

    job: Job
    host: float
    idle_at: float
    stream_at: float
    events: list[Event] = field(default_factory=list)

    def on_host(self, category: str, name: str, start: float, end: float, **args: Any) -> None:
        pid, tid = self.job.main
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
                            "ts": start, "dur": end - start, "args": args})  # fmt: skip

    def call(self, name: str, us: float) -> int:
        self.job.next_id += 1
        self.on_host("cuda_runtime", name, self.host, self.host + us, correlation=self.job.next_id)
        self.host += us
        return self.job.next_id

    def wait(self, name: str = "cudaStreamSynchronize") -> None:
        """Wait for the main stream, or with another name for all of the device."""
        until = self.stream_at if name == "cudaStreamSynchronize" else self.idle_at
        self.call(name, max(until - self.host, 0.0) + 3)

    def op(self, name: str, body: Callable[[], None]) -> None:
        """An operator around what `body` does, and Python behind it."""
        start = self.host
        self.host += 4
        body()
        self.host += 3
        self.on_host("cpu_op", name, start, self.host)
        self.host += _PYTHON_US

    def work(
        self, call: str, name: str, us: float, category: str = "kernel", side: bool = False,
        **args: Any,
    ) -> float:  # fmt: skip
        """A call and its work on the main stream or one beside it; returns when that has ended."""
        launched = self.host
        number = self.call(call, 5)
        stream = self.job.stream if not side else 77
        track = self.job.track if not side else 77
        start = launched + _LATENCY_US if side else max(launched + _LATENCY_US, self.stream_at)
        self.events.append({
            "ph": "X", "cat": category, "name": name, "pid": self.job.device, "tid": track,
            "ts": start, "dur": us,
            "args": {"correlation": number, "stream": stream, "device": self.job.device, **args},
        })  # fmt: skip
        if not side:
            self.stream_at = start + us
        self.idle_at = max(self.idle_at, start + us)
        return start + us

    def copy(self, us: float, name: str, size: int, *, side: bool = False) -> float:
        return self.work(
            "cudaMemcpyAsync", name, us, "gpu_memcpy", side,
            bytes=size, **{"memory bandwidth (GB/s)": size * 1e-3 / us},
        )  # fmt: skip


# --------------------------------------------------------------------------------- the forms


@dataclass(frozen=True)
class Form:
    """A fault: what it does at one place for so many microseconds, and what may be said of it."""

    fill: Callable[[Block, float], None]
    types: tuple[str, ...]
    """Right answers; none for a decoy."""
    symptoms: tuple[str, ...] = ()
    places: int = 8
    decoy_of: tuple[str, ...] = ()
    ranks: bool = False
    """True if it needs a job of several ranks."""


def _item(b: Block, us: float) -> None:
    def read() -> None:
        b.on_host("cpu_op", "aten::_local_scalar_dense", b.host, max(b.host, b.stream_at) + 18)
        b.copy(1.5, "Memcpy DtoH (Device -> Pageable)", 4)
        b.wait()

    for _ in range(max(1, int(us / 400))):
        b.op("aten::item", read)


def _synchronize(b: Block, us: float) -> None:
    b.wait("cudaDeviceSynchronize")
    b.host += _PYTHON_US


def _pinned(b: Block, us: float) -> None:
    def copy() -> None:
        b.copy(us, "Memcpy HtoD (Pinned -> Device)", int(us * 24_000))
        b.wait()

    b.op("aten::copy_", copy)


def _pageable(b: Block, us: float) -> None:
    def copy() -> None:
        end = b.copy(us, "Memcpy HtoD (Pageable -> Device)", int(us * 6_000))
        call = next(e for e in b.events if e["args"].get("correlation") == b.job.next_id)
        call["dur"] = end - call["ts"]
        b.host = end
        b.wait()

    b.op("aten::to", copy)


def _readback(b: Block, us: float) -> None:
    def copy() -> None:
        b.copy(us, "Memcpy DtoH (Device -> Pageable)", int(us * 6_000))
        b.wait()

    b.op("aten::to", copy)


def _small_uploads(b: Block, us: float) -> None:
    def upload() -> None:
        b.copy(1.4, "Memcpy HtoD (Pageable -> Device)", 256)
        b.wait()

    end = b.host + us
    while b.host < end:
        b.op("aten::copy_", upload)
        b.host += 15


def _free_and_malloc(b: Block, us: float) -> None:
    def allocate() -> None:
        for _ in range(3):
            b.call("cudaFree", max(b.idle_at - b.host, 0.0) + us / 8)
        for _ in range(5):
            b.call("cudaMalloc", us / 8)

    b.op("aten::empty", allocate)


def _compile_again(b: Block, us: float) -> None:
    def graph() -> None:
        b.work("cudaLaunchKernel", "triton_poi_fused_add_0", 4)

    for number in ("0", "1"):  # a region with a number above 0 was compiled before
        start = b.host
        if number == "1":
            b.on_host("cpu_op", "_compile.compile_inner (dynamo_timed)", start, start + us)
            b.host += us
        b.op("CompiledFunction", graph)
        b.on_host("cpu_op", f"Torch-Compiled Region: 9/{number}", b.host - 40, b.host - 1)


def _optimizer(b: Block, us: float) -> None:
    def update() -> None:
        b.work("cudaLaunchKernel", "void at::native::vectorized_elementwise_kernel<4, Mul>", 2.0)

    start, names = b.host, ("aten::mul_", "aten::add_", "aten::addcmul_", "aten::addcdiv_")
    while b.host < start + us:
        for name in names:
            b.op(name, update)
    b.on_host("user_annotation", "Optimizer.step#Adam.step", start - 1, b.host)


def _pause(b: Block, us: float) -> None:
    b.host += us


def _small_kernels(b: Block, us: float) -> None:
    def point() -> None:
        b.work("cudaLaunchKernel", "void at::native::vectorized_elementwise_kernel<4, Add>", 2.0)

    end = b.host + us
    while b.host < end:
        b.op("aten::add", point)


def _loader(b: Block, us: float) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    b.on_host("user_annotation", name, b.host, b.host + us)
    b.on_host("cpu_op", "aten::stack", b.host + us * 0.6, b.host + us * 0.9)
    b.host += us + 2


def _memset(b: Block, us: float) -> None:
    def fill() -> None:
        end = b.work("cudaMemset", "Memset (Device)", 2, "gpu_memset", bytes=1 << 20)
        call = next(e for e in b.events if e["args"].get("correlation") == b.job.next_id)
        b.host = end + 2
        call["dur"] = b.host - call["ts"]

    b.op("aten::zero_", fill)


def _made_on_host(b: Block, us: float) -> None:
    def draw() -> None:
        b.host += us * 0.6

    b.op("aten::randn", draw)
    b.host -= _PYTHON_US - 2
    _pageable(b, us * 0.4)


def _hidden_upload(b: Block, us: float) -> None:
    def copy() -> None:
        b.copy(us, "Memcpy HtoD (Pinned -> Device)", int(us * 24_000), side=True)

    b.op("aten::copy_", copy)


def _results_read(b: Block, us: float) -> None:
    def copy() -> None:
        b.copy(us, "Memcpy DtoH (Device -> Pinned)", int(us * 24_000))
        b.wait()

    b.op("aten::to", copy)


def _workers_too_slow(b: Block, us: float) -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    b.on_host("user_annotation", name, b.host, b.host + us)
    b.host += us + 2


def _graph_break(b: Block, us: float) -> None:
    def graph() -> None:
        b.work("cudaLaunchKernel", "triton_poi_fused_add_0", 6)

    start = b.host
    b.op("CompiledFunction", graph)
    b.host += us
    resumed = b.host
    b.host += 2
    b.op("CompiledFunction", graph)
    b.on_host("cpu_op", "Torch-Compiled Region: 7/0", resumed, b.host - 2)
    b.on_host("cpu_op", "Torch-Compiled Region: 6/0", start - 1, b.host)


def _small_collectives(b: Block, us: float) -> None:
    end = b.host + us

    def reduce() -> None:
        b.call("cudaStreamWaitEvent", 1)
        b.work(
            "cudaLaunchKernelExC", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 14,
            **{"Collective name": "allreduce", "In msg nelems": 128, "Out msg nelems": 128,
               "dtype": "Float", "Group size": 8},
        )  # fmt: skip

    while b.host < end:
        b.op("c10d::allreduce_", reduce)


def _idle_read(b: Block, us: float) -> None:
    if b.idle_at < b.host:  # the GPU has nothing to do: a value costs what its call takes
        _item(b, 1)


def _few_constants(b: Block, us: float) -> None:
    def upload() -> None:
        b.copy(1.4, "Memcpy HtoD (Pageable -> Device)", 64)

    for _ in range(2):
        b.op("aten::copy_", upload)


_COPIES = ("high_memcpy",)
_HOST = ("cpu_bound",)
FORMS = {
    "item_in_loop": Form(_item, ("host_sync_in_loop",), (*_COPIES, *_HOST), 24),
    "synchronize": Form(_synchronize, ("explicit_synchronize",), _HOST, 24),
    "pinned_but_blocking": Form(_pinned, ("blocking_copy",), (*_COPIES, *_HOST)),
    "pageable_upload": Form(_pageable, ("no_memory_pin",), (*_COPIES, *_HOST)),
    "pageable_readback": Form(_readback, ("pageable_readback",), (*_COPIES, *_HOST)),
    "small_uploads": Form(_small_uploads, ("small_copies",), (*_COPIES, *_HOST), 12),
    "free_and_malloc": Form(_free_and_malloc, ("allocator_thrash",), _HOST),
    "compile_again": Form(_compile_again, ("recompilation",), _HOST, 3),
    "unfused_optimizer": Form(
        _optimizer, ("unfused_optimizer",), ("tiny_kernels", *_HOST, "unfused_pointwise"), 3
    ),
    "pause": Form(_pause, ("host_silence",), (), 4),
    "small_kernels": Form(_small_kernels, ("tiny_kernels", "cpu_bound"), ("unfused_pointwise",), 4),
    "loader": Form(_loader, ("single_process_data_loading",), (), 4),
    "memset": Form(_memset, ("synchronous_memset",), _HOST),
    "made_on_host": Form(_made_on_host, ("created_on_host",), ("no_memory_pin", *_COPIES, *_HOST)),
    "results_read": Form(_results_read, _COPIES, _HOST),
    "workers_too_slow": Form(_workers_too_slow, ("worker_starvation",), (), 4),
    "graph_break": Form(_graph_break, ("graph_break",), _HOST, 4),
    "small_collectives": Form(_small_collectives, ("small_nccl_kernels",), _HOST, 4, ranks=True),
    "late_rank": Form(
        _pause,
        ("straggler",),
        ("nccl_blocks_main_stream", "nccl_compute_not_overlapped", "host_silence", "cpu_bound"),
        4,
        ranks=True,
    ),
    "hidden_upload": Form(_hidden_upload, (), decoy_of=("blocking_copy", "no_memory_pin")),
    "idle_read": Form(_idle_read, (), decoy_of=("host_sync_in_loop",)),
    "few_constants": Form(_few_constants, (), decoy_of=("small_copies", "no_memory_pin")),
}


# --------------------------------------------------------------------------------- the replay


@dataclass
class Planted:
    """A trace with a fault: the document, by how many microseconds it is longer, and where."""

    document: Event
    longer_us: float
    windows: list[tuple[float, float]]
    """The time from the begin of each block to the first work launched behind it."""
    lost: list[tuple[float, float]]
    """The places where work of the main stream falls further behind."""
    moved: list[float]
    """The times at which the GPU events begin now."""


def plant(job: Job, form: Form | None, us: float = 0.0, peer: Planted | None = None) -> Planted:
    """Move the events of a trace so that a fault finds room at its places. With a peer, its
    collectives end no earlier than this one's would if they began with the peer's."""
    actions: list[tuple[float, int, str, int]] = []
    for i, call in enumerate(job.launch):
        actions.append((call["ts"] if call else job.gpu[i]["ts"], 1, "work", i))
    waits = {i: e for i, e in enumerate(job.host) if id(e) in job.wait}
    actions += [(e["ts"], 2, "begin", i) for i, e in waits.items()]
    actions += [(_end(e), 0, "end", i) for i, e in waits.items()]
    places = job.places(form.places) if form else []
    lengths = job.lengths(len(places), us)
    actions += [(at, 3, "block", i) for i, at in enumerate(places)]
    shifts: list[tuple[float, float]] = [(float("-inf"), 0.0)]  # from this time on, by so much
    moved = [0.0] * len(job.gpu)
    length = [e["dur"] for e in job.gpu]
    stream_at: dict[Any, float] = defaultdict(float)
    began: dict[int, float] = {}
    blocks: list[tuple[float, float]] = []
    waits_for_peer: list[tuple[float, float]] = []
    new: list[Event] = []
    idle_at, shift = 0.0, 0.0
    for at, _, what, i in sorted(actions):
        if what == "work":
            event, call = job.gpu[i], job.launch[i]
            key = (event["pid"], event["tid"])
            before = [moved[j] + length[j] for j in job.behind[i]]
            if job.behind[i] and stream_at[key] > before[0]:
                before[0] = stream_at[key]  # work of a block stands between
            ready = max(before + ([at + shift] if call else []) or [event["ts"]])
            moved[i] = ready + job.residual[i]
            if peer and "nccl" in str(event["name"]).lower():
                length[i] = max(length[i], peer.moved[i] + length[i] - moved[i])
                if length[i] > event["dur"] + _SLACK_US:
                    waits_for_peer.append((moved[i], moved[i] + length[i]))
            stream_at[key] = max(stream_at[key], moved[i] + length[i])
            idle_at = max(idle_at, moved[i] + length[i])
        elif what == "begin":
            began[i] = at + shift
            shifts.append((at, shift))
        elif what == "end":
            j = job.wait[id(job.host[i])]
            done = moved[j] + length[j] + (at - _end(job.gpu[j]))
            shift = max(began[i] + 1.0, done) - at
            shifts.append((at, shift))
        elif form:
            key = (job.device, job.track)
            block = Block(job, at + shift, idle_at, stream_at[key])
            form.fill(block, lengths[i])
            blocks.append((at + shift, at))
            shift = block.host - at
            shifts.append((at, shift))
            stream_at[key], idle_at = block.stream_at, max(idle_at, block.idle_at)
            new += block.events
    times = [t for t, _ in shifts]

    def on_host(t: float) -> float:
        return t + shifts[bisect_right(times, t) - 1][1]

    events = list(job.meta)
    for event in job.host:
        start = on_host(event["ts"])
        events.append({**event, "ts": start, "dur": max(on_host(_end(event)) - start, 0.0)})
    events += [{**e, "ts": moved[i], "dur": length[i]} for i, e in enumerate(job.gpu)]
    behind = sorted((c["ts"], moved[i]) for i, c in enumerate(job.launch) if c)
    launched = [t for t, _ in behind]
    windows = waits_for_peer
    for start, at in blocks:
        place = bisect_left(launched, at)
        following = [w for _, w in behind[place : place + 50]]
        windows.append((start, min(following, default=start)))
    lost: list[tuple[float, float]] = []
    delay = 0.0
    for i, event in enumerate(job.gpu):
        if (event["pid"], event["tid"]) == (job.device, job.track):
            if moved[i] - event["ts"] > delay + 0.5:
                lost.append((moved[i] - (moved[i] - event["ts"] - delay), moved[i]))
            delay = moved[i] - event["ts"]
    events += new
    events.sort(key=lambda e: e.get("ts", 0))
    ends = max(_end(e) for e in job.gpu + job.host)
    ends_now = max(_end(e) for e in events if e.get("ph") == "X")
    for event in events:
        if event.get("ph") == "X":
            event["ts"], event["dur"] = round(event["ts"], 3), round(event["dur"], 3)
    return Planted({**job.document, "traceEvents": events}, ends_now - ends, windows, lost, moved)


# --------------------------------------------------------------------------------- the judge


@dataclass(frozen=True)
class Row:
    """The answer of a diagnosis about one form in one trace."""

    trace: str
    form: str
    truth_share: float
    type: bool
    place: bool | None
    cost: bool | None
    price: bool | None
    details: str
    false: tuple[str, ...]


def diagnose(*documents: Event) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        for rank, document in enumerate(documents):
            if len(documents) > 1:
                world = {"rank": rank, "world_size": len(documents), "backend": "nccl"}
                document = {**document, "distributedInfo": world}
            (Path(folder) / f"rank{rank}.json").write_text(json.dumps(document))
        return ttap.load(folder).diagnose()


def judge(name: str, job: Job, before: Any, key: str, asked: float) -> Row | None:
    form = FORMS[key]
    was = {f.type for f in before.findings}
    if was & {*form.types, *form.decoy_of} or not job.places(form.places):
        return None
    if form.ranks and not any("nccl" in str(e["name"]).lower() for e in job.gpu):
        return None
    span = max(_end(e) for e in job.gpu + job.host) - job.host[0]["ts"]
    us = max(span * asked / len(job.places(form.places)), 12_000 if key == "pause" else 100)
    planted = plant(job, form, us)
    planted.longer_us -= job.longer_by_itself_us
    share = planted.longer_us / (span + planted.longer_us)
    documents = [planted.document]
    if key == "late_rank":  # beside a rank that is the same and waits
        waiting = plant(job, None, peer=planted)
        documents = [waiting.document, planted.document]
        planted.windows = waiting.windows
    after = diagnose(*documents)
    now = {f.type: f for f in after.findings}
    fine = {*form.types, *form.symptoms}
    false = tuple(t for t in now if t not in was and t not in fine)
    hits = [now[t] for t in form.types if t in now]
    if form.decoy_of and share >= 0.01:
        return None  # it costs something here
    if share < 0.01:
        wrong = [t for t in (*form.decoy_of, *form.types) if t in now]
        return Row(name, key, share, not wrong, None, None, None, "silent", false)
    if share < 0.03:
        return None  # present or not: both are right
    if not hits:
        return Row(
            name, key, share, False, False, False, False, f"now {sorted(set(now) - was)}", false
        )
    found = max(hits, key=lambda f: f.cost_ns)
    steps: float = len(job.step_starts)
    if steps < 2 and after.step:  # inferred: as many as fill the trace
        steps = (span + planted.longer_us) * 1e3 / after.step.measured_ns
    return Row(name, key, share, True, *_place_and_cost(found, planted, steps), false)


def _united(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    united: list[tuple[float, float]] = []
    for start, end in sorted((a - 20, b + 20) for a, b in intervals):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(united[-1][1], end)
        else:
            united.append((start, end))
    return united


def _shared(costs: list[tuple[float, float]], start: float, end: float) -> float:
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in costs)


def _place_and_cost(found: Any, planted: Planted, steps: float) -> tuple[bool, bool, bool, str]:
    costs = [(a * 1e-3, b * 1e-3) for a, b in found.intervals.tolist()]
    truth = _united([*planted.windows, *planted.lost])
    inside = sum(_shared(costs, start, end) for start, end in truth)
    losing = [w for w in planted.windows if _shared(planted.lost, *w) > 0] or planted.windows
    met = sum(_shared(costs, start, end) > 0 for start, end in losing)
    cost = found.cost_ns * 1e-3
    precision, recall = inside / max(cost, 1e-9), met / max(len(losing), 1)
    saving = found.saving
    low, high = (saving.low_ns * 1e-3, saving.high_ns * 1e-3) if saving else (0.0, 0.0)
    if saving and saving.per_step:
        low, high = low * steps, high * steps
    holds = low * 0.9 <= planted.longer_us <= high * 1.1
    fair = 0.75 <= cost / planted.longer_us <= 1.25
    text = (
        f"cost {cost / planted.longer_us:.2f} of the truth, saving {low / planted.longer_us:.2f} to"
        f" {high / planted.longer_us:.2f}, precision {precision:.2f} recall {recall:.2f}"
    )
    return precision >= 0.7 and recall >= 0.7, holds, fair, text


def main() -> None:
    parser = argparse.ArgumentParser(description="faults put into traces by moving events")
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--share", type=float, default=0.2, help="of the trace, for all places")
    parser.add_argument("--seed", type=int, help="draws places and lengths; default: evenly spread")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for path in options.traces:
        job = Job(path)
        job.seed = options.seed
        unchanged = plant(job, None)
        job.longer_by_itself_us = unchanged.longer_us
        before = diagnose(unchanged.document)
        for key in options.only:
            row = judge(path.name.removesuffix(".gz"), job, before, key, options.share)
            if row is None:
                continue
            rows.append(row)
            marks = "".join(
                "-" if m is None else "ny"[m] for m in (row.type, row.place, row.cost, row.price)
            )
            print(f"{row.trace:34.34} {key:20} {row.truth_share:5.1%} {marks} {row.details}"
                  f" {' '.join(row.false)}", flush=True)  # fmt: skip
    for what in ("type", "place", "cost", "price"):
        marks = [getattr(row, what) for row in rows if getattr(row, what) is not None]
        print(f"{what}: {sum(marks)} of {len(marks)}, {sum(marks) / max(len(marks), 1):.2f}")
    if options.output:
        write_results(options.output, rows=[asdict(row) for row in rows])


if __name__ == "__main__":
    main()
