"""`Step`: one iteration of a workload, with one part made in two ways, good and bad.

A twin is built from the same seed and data as its sibling and differs in that part only. The part
lies inside a marker in both, as often in one as in the other, so that neither the markers' own cost
nor their number tells the twins apart.

Note [Virtual]: a green context of CUDA has some of the multiprocessors, and what is launched on its
stream runs on those alone. Autograd launches the backward pass on the streams of the forward pass,
so the process's current stream is made that of the context; to make the context itself current
would limit this thread alone, and autograd has others. Copies and the profiler are as before. That
work is really slower is measured before anything is recorded: the API is a young one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torchtraceap.lab.collection.manifest import Scale, Workload
from torchtraceap.lab.collection.workloads.models import (
    Batch,
    StoredSamples,
    build_model,
    loss_and_scores,
    make_batch,
)
from torchtraceap.record import RecordingError

__all__ = [
    "PIECES",
    "SITES",
    "STEPS",
    "WORKERS",
    "Context",
    "LayerStep",
    "Step",
    "calibrate",
    "register",
    "use_platform",
]

SITES = 4
"""Most layers at which something is injected."""
WORKERS = "fork"
"""Start method of workers of loaders, the default on Linux; the process itself was spawned."""
PIECES = 32
"""Most pieces in which rows of a batch are handled, to keep the traces small."""
_BATCHES = 2
_LOST = 0.7
"""Share of a step that a fault of chosen strength costs the host."""

_LOOSE, _TIGHT = 0.5, 0.85
"""Share of a step for which the host launches: below it the GPU always has work waiting, also under
the profiler, which makes launching half as slow again."""
_TRIAL = 4096
"""Rows and columns of a product whose time the multiprocessors bound."""
_LONGEST_S = 0.06
_LARGEST_BYTES = 96 << 20

Hook = Callable[[int, Tensor], Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """The settings that both twins of a pair share."""

    workload: Workload
    scale: Scale
    device: torch.device
    seed: int
    workers: int
    backend: str
    """Backend of torch.compile."""
    decode_passes: int = 1
    host_work_s: float = 0.001
    """Python work at each site, and the like, at level 1."""

    @property
    def on_gpu(self) -> bool:
        return bool(self.device.type == "cuda")

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context of the workload's precision, for the forward pass."""
        if self.workload.precision != "bf16":
            return contextlib.nullcontext()
        found: contextlib.AbstractContextManager[Any] = torch.autocast(
            self.device.type, dtype=torch.bfloat16
        )
        return found

    def make_batches(self) -> list[Batch]:
        """Make different batches in ordinary host memory, which a step cycles through."""
        generator = torch.Generator().manual_seed(self.seed)
        return [make_batch(self.workload, self.scale, generator) for _ in range(_BATCHES)]

    def synchronize(self) -> None:
        """Wait for the GPU, if there is one."""
        if self.on_gpu:
            torch.cuda.synchronize()


STEPS: dict[str, type[Step]] = {}
"""Steps by the name of their fault (`lab/generation/faults.py`)."""


def register(fault: str) -> Callable[[type[Step]], type[Step]]:
    """Register a step under the name of its fault."""

    def add(step: type[Step]) -> type[Step]:
        STEPS[fault] = step
        return step

    return add


class Step:
    """One side of a pair. The methods are the parts that a fault may make differently."""

    cost: ClassVar[str] = "host"
    """Rule of `markers.py`."""
    parts: ClassVar[tuple[str, ...]] = ()
    """Marked parts: fetch, upload, forward, backward, update, finish, layer."""
    levels: ClassVar[int] = 1
    """Number of levels of the fault's strength."""
    world_size = 1
    strategy: str | None = None
    """Strategy by which ranks share the work, where there are several."""
    tight: ClassVar[bool] = False
    """True if the host must be nearly busy in the good twin for the fault to cost anything."""

    def __init__(self, context: Context, bad: bool) -> None:
        self.context, self.bad, self.level = context, bad, 1
        self.batches = context.make_batches()
        model = build_model(context.workload, context.scale, context.seed)
        self.model = model.to(context.device)
        self.optimizer = self.build_optimizer()
        self.side = torch.cuda.Stream() if context.on_gpu else None
        self.finished: list[Any] = []
        self.cursor = self._marks = 0
        self.ahead: tuple[Batch, Any] | None = None
        self.prepare()

    def prepare(self) -> None:
        """Set up what the fault needs; by default pinned batches."""
        if self.context.on_gpu:
            self.batches = [{k: v.pin_memory() for k, v in b.items()} for b in self.batches]

    def close(self) -> None:
        """End worker processes, and restore what was changed in this one."""

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of the weights."""
        return torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def build_optimizer(self) -> torch.optim.Optimizer | None:
        """Return the optimizer of the model, if it has weights to train."""
        weights = [p for p in self.model.parameters() if p.requires_grad]
        return self.make_optimizer(weights) if weights else None

    @contextlib.contextmanager
    def marked(self, part: str) -> Iterator[None]:
        """Put a marker around a part, if it is one that the fault changes."""
        if part not in self.parts:
            yield
            return
        with torch.profiler.record_function(f"__m{self._marks}"):
            yield
        self._marks += 1

    def step(self) -> None:
        """Run one iteration."""
        self._marks = 0
        with self.marked("fetch"):
            batch = self.fetch()
        with self.marked("upload"):
            inputs = self.upload(batch)
        with torch.set_grad_enabled(self.optimizer is not None):
            with self.marked("forward"), self.context.autocast():
                loss, scores = self.forward(inputs)
            if self.optimizer is not None:
                with self.marked("backward"):
                    self.backward(loss)
                with self.marked("update"):
                    self.optimizer.step()
                self.optimizer.zero_grad()
        with torch.no_grad(), self.marked("finish"):
            self.finish(scores)
        # Keep the host at most one step ahead of the GPU, without draining its queue.
        if self.context.on_gpu:
            self.finished.append(torch.cuda.current_stream().record_event())
            if len(self.finished) > 1:
                self.finished.pop(0).synchronize()

    def fetch(self) -> Batch:
        """Return the next batch on the host."""
        self.cursor += 1
        return self.batches[self.cursor % len(self.batches)]

    def upload(self, batch: Batch) -> Batch:
        """Copy the batch on a side stream while the one before it is worked on."""
        if self.side is None:
            return batch
        current = torch.cuda.current_stream()
        if self.ahead is None:
            self.ahead = self._start_copy(batch)
        inputs, arrived = self.ahead
        current.wait_event(arrived)
        for value in inputs.values():
            value.record_stream(current)
        self.ahead = self._start_copy(batch)
        return inputs

    def _start_copy(self, batch: Batch) -> tuple[Batch, Any]:
        device = self.context.device
        with torch.cuda.stream(self.side):
            copies = {key: value.to(device, non_blocking=True) for key, value in batch.items()}
            arrived = torch.cuda.current_stream().record_event()
        return copies, arrived

    def blocking_upload(self, batch: Batch) -> Batch:
        """Copy the batch, and wait for it."""
        return {key: value.to(self.context.device) for key, value in batch.items()}

    def forward(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        """Return loss and scores."""
        return loss_and_scores(self.context.workload, self.model, inputs)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients."""
        loss.backward()

    def finish(self, scores: Tensor) -> None:
        """Do work after the update, such as averages of weights or metrics."""

    def hook_layers(self, hook: Hook) -> None:
        """Pass the outputs of some layers, drawn by the seed, through a function.

        They are layers that run once in a forward pass and return one tensor.
        """
        calls: dict[nn.Module, list[Any]] = {}  # outputs of modules, in the order of first calls

        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            calls.setdefault(module, []).append(output)

        batch = {key: value.to(self.context.device) for key, value in self.batches[0].items()}
        inner = [module for module in self.model.modules() if module is not self.model]
        handles = [module.register_forward_hook(note) for module in inner]
        try:
            with torch.no_grad():
                loss_and_scores(self.context.workload, self.model, batch)
        finally:
            for handle in handles:
                handle.remove()
        fitting = []
        for module, (first, *more) in calls.items():
            is_tensor = isinstance(first, Tensor) and not more
            if is_tensor and first.is_floating_point() and first.ndim > 1:
                fitting.append(module)
        rng = random.Random(self.context.seed)
        chosen = set(map(id, rng.sample(fitting, min(SITES, len(fitting)))))
        for place, layer in enumerate(each for each in fitting if id(each) in chosen):

            def call(module: nn.Module, inputs: Any, output: Tensor, place: int = place) -> Tensor:
                return hook(place, output)

            layer.register_forward_hook(call)


class LayerStep(Step):
    """A step whose fault is at the outputs of some layers."""

    parts = ("layer",)

    def prepare(self) -> None:
        super().prepare()

        def hook(place: int, x: Tensor) -> Tensor:
            with self.marked("layer"):
                return self.at_layer(place, x)

        self.hook_layers(hook)

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        """Return what replaces the output of a layer."""
        raise NotImplementedError


# ------------------------------------------------------------------------- strength


def calibrate(context: Context, step: type[Step], compiled: bool) -> tuple[Context, float]:
    """Return the context with faults as strong as a healthy step allows, and that step's seconds.

    On a GPU the batch grows until the GPU, and not the host, bounds the healthy step; what is
    compiled keeps its small batch, as with a large one the GPU hides what a break costs.
    """
    share, step_s = _measure(context)
    wanted = _TIGHT if step.tight else _LOOSE
    while context.on_gpu and not compiled and share > wanted and step_s < _LONGEST_S:
        batch = int(context.scale.batch * (1.25 if step.tight else 1.5)) + 1
        larger = dataclasses.replace(context, scale=dataclasses.replace(context.scale, batch=batch))
        if sum(v.numel() * v.element_size() for v in larger.make_batches()[0].values()) > (
            _LARGEST_BYTES
        ):
            break
        context = larger
        share, step_s = _measure(context)
    data = StoredSamples(context.make_batches(), 1)
    start = time.perf_counter()
    data.collate([data[i] for i in range(context.scale.batch)])
    decoding_s = time.perf_counter() - start
    passes = max(1, round(_LOST * step_s / decoding_s))
    work_s = max(0.0005, _LOST * step_s / SITES)
    return dataclasses.replace(context, decode_passes=passes, host_work_s=work_s), step_s


@functools.lru_cache(maxsize=64)
def _measure(context: Context) -> tuple[float, float]:
    """Return the share of a healthy step for which the host launches, and the step's seconds."""
    healthy = Step(context, False)
    shares, seconds = [], []
    for _ in range(5):
        context.synchronize()
        healthy.finished.clear()
        start = time.perf_counter()
        healthy.step()
        launched = time.perf_counter()
        context.synchronize()
        seconds.append(time.perf_counter() - start)
        shares.append((launched - start) / seconds[-1])
    return statistics.median(shares[2:]), statistics.median(seconds[2:])


# ------------------------------------------------------------------------- platforms


def use_platform(workload: Workload, device: torch.device) -> object:
    """Limit this process to the multiprocessors that the workload may use. See Note [Virtual].

    Returns:
        An object that must be kept for as long as work runs.

    Raises:
        RecordingError: The precision or the limit is not to be had here; says why.
    """
    is_bf16 = workload.precision == "bf16" and device.type == "cuda"
    if is_bf16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise RecordingError(f"{torch.cuda.get_device_name()} does not compute in bf16")
    count = workload.multiprocessors
    if not count:
        return None
    if device.type != "cuda":
        raise RecordingError(f"{device.type}: only a GPU has multiprocessors to be limited")
    there = torch.cuda.get_device_properties(device).multi_processor_count
    if count >= there:
        raise RecordingError(f"{count} multiprocessors are no limit: the GPU has {there}")
    try:
        context = _green_context(count, device)
        stream = context.Stream()
    except (AttributeError, ImportError, RuntimeError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RecordingError(f"no green context of {count} multiprocessors: {reason}") from error
    whole_ms = _trial_ms(device)
    with torch.cuda.stream(stream):
        part_ms = _trial_ms(device)
    if part_ms < whole_ms * math.sqrt(there / count):  # nearer to no limit than to this one
        raise RecordingError(
            f"a green context of {count} multiprocessors of {there} limits nothing: both passes of "
            f"a product take {part_ms:.2f} ms in it, and {whole_ms:.2f} ms without"
        )
    torch.cuda.set_stream(stream)
    return context


def _green_context(count: int, device: torch.device) -> Any:
    """Return a context, of torch 2.11 or later, whose contexts have a stream."""
    from torch.cuda.green_contexts import GreenContext

    return GreenContext.create(num_sms=count, device_id=device.index or 0)


def _trial_ms(device: torch.device) -> float:
    """Return the time of both passes of a product on the current stream: autograd runs one of them
    elsewhere."""
    left = torch.randn(_TRIAL, _TRIAL, device=device, requires_grad=True)
    right = torch.randn(_TRIAL, _TRIAL, device=device)
    times = []
    for _ in range(5):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        (left @ right).sum().backward()
        after.record()
        after.synchronize()
        times.append(float(before.elapsed_time(after)))
    return statistics.median(times)
