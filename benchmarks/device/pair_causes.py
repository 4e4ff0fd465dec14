"""Planted causes: each form is a training step with one part in two ways, the good and the bad.

A twin is built from the same seed and data as its sibling and differs in that part only. The part
lies inside a mark (`record_function`) in both, as often in one as in the other, so that neither the
marks' own cost nor their number tells the twins apart.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from pair_traces import MARK
from pair_workloads import PROBES, WORKLOADS, Batch, Size, build_workload, match_scores
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

PREFETCHED_BATCHES = 2
VIRTUAL_EPOCH = 1_000_000  # samples: no epoch ends while a twin runs
QUANTUM = 32.0  # stored samples are bytes; values are multiples of 1 / QUANTUM
PIECES = 32  # rows of a batch are handled in at most so many pieces, to keep the traces small


@dataclasses.dataclass(frozen=True)
class Context:
    """What both twins of a pair share."""

    workload: str
    size: Size
    device: torch.device
    seed: int
    workers: int
    compile_backend: str
    decode_passes: int = 1
    host_work_s: float = 0.001
    """Pure Python work per probe, and the like, at level 1."""

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def make_batches(self) -> list[Batch]:
        """Two different batches in ordinary host memory, which the twin cycles through."""
        generator = torch.Generator().manual_seed(self.seed)
        return [WORKLOADS[self.workload].make_batch(self.size, generator) for _ in range(2)]


def pinned(batch: Batch) -> Batch:
    return {key: value.pin_memory() for key, value in batch.items()}


# -- data on the host ------------------------------------------------------------------------------


class StoredSamples(Dataset[Any]):
    """Compressed samples, as image files are; reading one costs the host real work."""

    def __init__(self, batches: list[Batch], passes: int, decode_here: bool) -> None:
        self.passes = passes
        self.decode_here = decode_here
        self.layout = [(key, value.dtype, value.shape[1:]) for key, value in batches[0].items()]
        self.blobs = [
            [store(value[row]) for value in batch.values()]
            for batch in batches
            for row in range(len(next(iter(batch.values()))))
        ]

    def __len__(self) -> int:
        return VIRTUAL_EPOCH

    def __getitem__(self, index: int) -> Any:
        blobs = self.blobs[index % len(self.blobs)]
        return self.decode(blobs) if self.decode_here else blobs

    def decode(self, blobs: list[bytes]) -> Batch:
        sample: Batch = {}
        for blob, (key, dtype, shape) in zip(blobs, self.layout, strict=True):
            for _ in range(self.passes):
                data = bytearray(zlib.decompress(blob))
            if dtype.is_floating_point:
                value = torch.frombuffer(data, dtype=torch.int8).to(dtype).div_(QUANTUM)
            else:
                value = torch.frombuffer(data, dtype=dtype)
            sample[key] = value.reshape(shape)
        return sample

    def collate(self, samples: list[Any]) -> Batch:
        decoded = samples if self.decode_here else [self.decode(blobs) for blobs in samples]
        return {key: torch.stack([s[key] for s in decoded]) for key, _, _ in self.layout}


def store(value: Tensor) -> bytes:
    if value.is_floating_point():
        value = (value * QUANTUM).round().clamp(-127, 127).to(torch.int8)
    value = value.contiguous()
    data = ctypes.string_at(value.data_ptr(), value.numel() * value.element_size())
    return zlib.compress(data, 1)


class WholeBatches(Dataset[Batch]):
    """Ready batches in ordinary memory; fetching one costs next to nothing."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return VIRTUAL_EPOCH

    def __getitem__(self, index: int) -> Batch:
        return self.batches[index % len(self.batches)]


# -- a training step -------------------------------------------------------------------------------


class Twin:
    """One side of a pair. The methods below are the parts that a form may make differently."""

    kind: ClassVar[str] = ""
    form: ClassVar[str] = ""
    site: ClassVar[str] = ""
    """The part that is marked."""
    cause: ClassVar[str] = ""
    levels: ClassVar[int] = 1
    """How often the cause may be doubled until it costs enough."""
    tight: ClassVar[bool] = False
    """The host must be nearly busy in the good twin for this cause to cost anything."""

    def __init__(self, context: Context, bad: bool, level: int = 1) -> None:
        self.context, self.bad, self.level = context, bad, level
        self.model = build_workload(context.workload, context.size, context.seed).to(context.device)
        self.optimizer = self.make_optimizer(list(self.model.parameters()))
        self.batches = context.make_batches()
        if context.on_gpu:
            self.side = torch.cuda.Stream()
            self.finished: list[torch.cuda.Event] = []
        self.cursor = 0
        self.ahead: tuple[Batch, Any] | None = None
        self.prepare()

    def prepare(self) -> None:
        """Sets up what the form needs; by default pinned batches."""
        if self.context.on_gpu:
            self.batches = [pinned(batch) for batch in self.batches]

    def close(self) -> None:
        """Ends worker processes."""

    def make_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    @contextlib.contextmanager
    def marked(self, part: str) -> Iterator[None]:
        if part != self.site:
            yield
            return
        with torch.profiler.record_function(MARK + part):
            yield

    def step(self) -> None:
        """One iteration."""
        with self.marked("fetch"):
            batch = self.fetch()
        with self.marked("upload"):
            inputs = self.upload(batch)
        with self.marked("forward"):
            loss, scores = self.forward(inputs)
        loss.backward()
        with self.marked("update"):
            self.optimizer.step()
        self.optimizer.zero_grad()
        with self.marked("finish"):
            self.finish(scores.detach())
        self.hold_back()

    def fetch(self) -> Batch:
        self.cursor += 1
        return self.batches[self.cursor % len(self.batches)]

    def upload(self, batch: Batch) -> Batch:
        """Copies the batch on a side stream while the one before it is worked on."""
        if not self.context.on_gpu:
            return batch
        current = torch.cuda.current_stream()
        if self.ahead is None:
            self.ahead = self.start_copy(batch)
        inputs, arrived = self.ahead
        current.wait_event(arrived)
        for value in inputs.values():
            value.record_stream(current)
        self.ahead = self.start_copy(batch)
        return inputs

    def start_copy(self, batch: Batch) -> tuple[Batch, Any]:
        with torch.cuda.stream(self.side):
            copies = {
                key: value.to(self.context.device, non_blocking=True)
                for key, value in batch.items()
            }
        return copies, self.side.record_event()

    def blocking_upload(self, batch: Batch) -> Batch:
        return {key: value.to(self.context.device) for key, value in batch.items()}

    def forward(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = self.model(inputs)
        return result

    def finish(self, scores: Tensor) -> None:
        """Work after the update, such as averages of weights or metrics."""

    def hold_back(self) -> None:
        """Keeps the host at most one step ahead of the GPU, without draining its queue."""
        if self.context.on_gpu:
            self.finished.append(torch.cuda.current_stream().record_event())
            if len(self.finished) > 1:
                self.finished.pop(0).synchronize()


FORMS: dict[str, type[Twin]] = {}


def register(twin: type[Twin]) -> type[Twin]:
    FORMS[twin.form] = twin
    return twin


# -- single_process_data_loading -------------------------------------------------------------------


class LoadingTwin(Twin):
    kind = "single_process_data_loading"
    site = "fetch"
    levels = 3
    decode_here: ClassVar[bool] = True

    def prepare(self) -> None:
        context = self.context
        passes = context.decode_passes * self.level
        data = StoredSamples(self.batches, passes, self.decode_here)
        workers = 0 if self.bad else context.workers
        more = (
            {"persistent_workers": True, "prefetch_factor": PREFETCHED_BATCHES} if workers else {}
        )
        self.loader = iter(
            DataLoader(
                data,
                batch_size=context.size.batch,
                num_workers=workers,
                collate_fn=data.collate,
                pin_memory=context.on_gpu,
                **more,  # type: ignore[arg-type]
            )
        )

    def fetch(self) -> Batch:
        batch: Batch = next(self.loader)
        return batch

    def close(self) -> None:
        del self.loader


@register
class DecodeInMain(LoadingTwin):
    form = "decode_in_main"
    cause = "num_workers=0: the training process decodes every sample itself"


@register
class CollateInMain(LoadingTwin):
    form = "collate_in_main"
    decode_here = False
    cause = "num_workers=0 with a collate function that decodes the whole batch"


def measure_decoding(context: Context) -> float:
    """Seconds that decoding one batch takes with one pass."""
    data = StoredSamples(context.make_batches(), 1, True)
    start = time.perf_counter()
    data.collate([data[i] for i in range(context.size.batch)])
    return time.perf_counter() - start


# -- no_memory_pin ---------------------------------------------------------------------------------


@register
class PageableWorkers(Twin):
    kind = "no_memory_pin"
    form = "pageable_workers"
    site = "upload"
    cause = "DataLoader workers with pin_memory=False and a blocking copy to the device"

    def prepare(self) -> None:
        workers = self.context.workers
        self.loader = iter(
            DataLoader(
                WholeBatches(self.batches),
                batch_size=None,
                num_workers=workers,
                persistent_workers=True,
                prefetch_factor=PREFETCHED_BATCHES,
                pin_memory=self.context.on_gpu and not self.bad,
            )
        )

    def fetch(self) -> Batch:
        batch: Batch = next(self.loader)
        return batch

    def upload(self, batch: Batch) -> Batch:
        return self.blocking_upload(batch) if self.bad else super().upload(batch)

    def close(self) -> None:
        del self.loader


@register
class ResidentPageable(Twin):
    kind = "no_memory_pin"
    form = "resident_pageable"
    site = "upload"
    cause = "batches in ordinary host memory, copied to the device when they are needed"

    def prepare(self) -> None:
        if not self.bad:
            super().prepare()

    def upload(self, batch: Batch) -> Batch:
        return self.blocking_upload(batch) if self.bad else super().upload(batch)


@register
class PiecewiseUpload(ResidentPageable):
    form = "piecewise_upload"
    cause = "every few samples copied to the device on their own from ordinary host memory"

    def upload(self, batch: Batch) -> Batch:
        if not self.bad:
            return super().upload(batch)
        device = self.context.device
        return {
            key: torch.cat([piece.to(device) for piece in value.chunk(PIECES)])
            for key, value in batch.items()
        }


# -- high_memcpy -----------------------------------------------------------------------------------


@register
class ActivationLog(Twin):
    kind = "high_memcpy"
    form = "activation_log"
    site = "probe"
    cause = "activations copied to the host after every stage, for statistics"
    levels = 4
    values = 1 << 19

    def prepare(self) -> None:
        super().prepare()
        self.statistics: list[Tensor] = []
        self.model.probe = self.log

    def log(self, place: int, x: Tensor) -> Tensor:
        with self.marked("probe"):
            part = x.detach().flatten()[: self.values * self.level]
            self.statistics.append((part.cpu() if self.bad else part).abs().amax())
        if len(self.statistics) > 2 * PROBES:
            del self.statistics[:PROBES]
        return x


@register
class HostMatching(Twin):
    kind = "high_memcpy"
    form = "host_matching"
    site = "match"
    cause = "a few images' scores at a time copied to the host, matched, and weights copied back"
    levels = 4

    def prepare(self) -> None:
        super().prepare()
        self.model.match = self.match

    def match(self, scores: Tensor) -> Tensor:
        with self.marked("match"):
            if not self.bad:
                return match_scores(scores)
            pieces = scores.chunk(4 * self.level)
            return torch.cat([match_scores(piece.cpu()).to(scores.device) for piece in pieces])


@register
class HostAverage(Twin):
    kind = "high_memcpy"
    form = "host_average"
    site = "finish"
    cause = "the running average of the weights kept on the host: all weights copied every step"

    def prepare(self) -> None:
        super().prepare()
        weights = [p.detach() for p in self.model.parameters()]
        self.average = [w.cpu().clone() if self.bad else w.clone() for w in weights]

    def finish(self, scores: Tensor) -> None:
        weights: list[Tensor] = [p.detach() for p in self.model.parameters()]
        if self.bad:
            weights = [w.cpu() for w in weights]
        torch._foreach_lerp_(self.average, weights, 0.01)


# -- graph_break -----------------------------------------------------------------------------------


class CompiledTwin(Twin):
    kind = "graph_break"
    site = "forward"

    def prepare(self) -> None:
        super().prepare()
        torch._dynamo.reset()  # twins run one after the other; none may find the other's code
        self.model.probe = self.make_probe()
        self.compiled = torch.compile(
            self.model,
            backend=self.context.compile_backend,
            dynamic=False,
            fullgraph=not self.bad,
        )

    def make_probe(self) -> Callable[[int, Tensor], Tensor]:
        raise NotImplementedError

    def forward(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = self.compiled(inputs)
        return result


@register
class DataDependentBranch(CompiledTwin):
    form = "data_dependent_branch"
    cause = "an if on a tensor's value after every stage of a compiled model"

    def make_probe(self) -> Callable[[int, Tensor], Tensor]:
        def branch(place: int, x: Tensor) -> Tensor:
            if x.detach().mean() > 1e6:
                return x * 0.5
            return x

        def select(place: int, x: Tensor) -> Tensor:
            return torch.where(x.detach().mean() > 1e6, x * 0.5, x)

        return branch if self.bad else select


@register
class HostLog(CompiledTwin):
    form = "host_log"
    cause = "a statistic written to a Python list after every stage of a compiled model"

    def make_probe(self) -> Callable[[int, Tensor], Tensor]:
        logged: list[float] = []
        device = self.context.device
        kept = torch.zeros(PROBES, device=device)

        @torch.compiler.disable
        def write(value: Tensor) -> None:
            logged.append(float(value))
            del logged[:-PROBES]

        def log_on_host(place: int, x: Tensor) -> Tensor:
            write(x.detach().abs().mean())
            return x

        def log_on_device(place: int, x: Tensor) -> Tensor:
            kept[place] = x.detach().abs().mean()
            return x

        return log_on_host if self.bad else log_on_device


@register
class ExplicitBreak(CompiledTwin):
    form = "explicit_break"
    cause = "a graph break after every stage of a compiled model"

    def make_probe(self) -> Callable[[int, Tensor], Tensor]:
        def split(place: int, x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return x

        def whole(place: int, x: Tensor) -> Tensor:
            return x

        return split if self.bad else whole


# -- cpu_bound -------------------------------------------------------------------------------------


@register
class PythonBetween(Twin):
    kind = "cpu_bound"
    form = "python_between"
    site = "probe"
    cause = "pure Python work after every stage, while nothing is launched"
    levels = 4

    def prepare(self) -> None:
        super().prepare()
        self.model.probe = self.work

    def work(self, place: int, x: Tensor) -> Tensor:
        with self.marked("probe"):
            if self.bad:
                spin(self.context.host_work_s * self.level)
        return x


def spin(seconds: float) -> int:
    """Python work of about that length; the interpreter is busy throughout."""
    end = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < end:
        count += sum(range(50))
    return count


@register
class PerTensorAverage(Twin):
    kind = "cpu_bound"
    form = "per_tensor_average"
    site = "finish"
    cause = "running averages of the weights kept tensor by tensor: a tiny kernel each"
    levels = 6
    tight = True

    def prepare(self) -> None:
        super().prepare()
        self.average = [p.detach().clone() for p in self.model.parameters()]

    def finish(self, scores: Tensor) -> None:
        weights = [p.detach() for p in self.model.parameters()]
        if not self.bad:
            torch._foreach_lerp_(self.average, weights, 0.01)
            return
        for _ in range(self.level):
            for average, weight in zip(self.average, weights, strict=True):
                average.lerp_(weight, 0.01)


@register
class PerSampleMetrics(Twin):
    kind = "cpu_bound"
    form = "per_sample_metrics"
    site = "finish"
    cause = "metrics computed sample by sample: a few tiny kernels each"
    levels = 4
    tight = True

    def finish(self, scores: Tensor) -> None:
        rows = scores.flatten(1)
        if not self.bad:
            self.metrics = measure_rows(rows)
            return
        for _ in range(self.level):
            pieces = [measure_rows(piece) for piece in rows.chunk(PIECES)]
            self.metrics = [torch.cat(column) for column in zip(*pieces, strict=True)]


def measure_rows(rows: Tensor) -> list[Tensor]:
    return [rows.amax(1), rows.mean(1), (rows > 0).float().mean(1)]


@register
class UnfusedOptimizer(Twin):
    kind = "cpu_bound"
    form = "unfused_optimizer"
    site = "update"
    cause = "an optimiser that updates tensor by tensor (foreach=False)"
    tight = True

    def make_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        if self.bad:
            return torch.optim.AdamW(parameters, lr=1e-4, foreach=False, fused=False)
        return super().make_optimizer(parameters)


def make_twin(form: str, context: Context, *, bad: bool, level: int = 1) -> Twin:
    return FORMS[form](context, bad, level)
