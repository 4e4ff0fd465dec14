"""`Step`: one iteration of a workload, with a part that is made in two ways, good and bad.

A twin is built from the same seed and data as its sibling and differs in that part only. The part
lies inside a marker in both, as often in one as in the other, so that neither the markers' own cost
nor their number tells the twins apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
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
    build_model,
    loss_and_scores,
    make_batch,
)
from torchtraceap.lab.collection.workloads.platforms import autocast
from torchtraceap.lab.collection.workloads.samples import StoredSamples

__all__ = ["PIECES", "SITES", "STEPS", "WORKERS", "Context", "Step", "measured", "register"]

SITES = 4
"""Layers at which something is put in, at most."""
WORKERS = "fork"
"""How workers of loaders start, as by default on Linux: the process itself was spawned."""
PIECES = 32
"""Rows of a batch are handled in at most so many pieces, to keep the traces small."""
_BATCHES = 2
_LOST = 0.7
"""Of a step: what a fault of chosen strength costs the host."""

Hook = Callable[[int, Tensor], Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """What both twins of a pair share."""

    workload: Workload
    scale: Scale
    device: torch.device
    seed: int
    workers: int
    backend: str
    """Of torch.compile."""
    decode_passes: int = 1
    host_work_s: float = 0.001
    """Python work at each site, and the like, at level 1."""

    @property
    def on_gpu(self) -> bool:
        return bool(self.device.type == "cuda")

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The workload's precision, for the forward pass."""
        return autocast(self.workload.precision, self.device)

    def make_batches(self) -> list[Batch]:
        """Different batches in ordinary host memory, which a step cycles through."""
        generator = torch.Generator().manual_seed(self.seed)
        return [make_batch(self.workload, self.scale, generator) for _ in range(_BATCHES)]

    def synchronize(self) -> None:
        """Waits for the GPU, if there is one."""
        if self.on_gpu:
            torch.cuda.synchronize()


STEPS: dict[str, type[Step]] = {}
"""By form."""


def register(form: str) -> Callable[[type[Step]], type[Step]]:
    """Makes a step known under the name of its form."""

    def add(step: type[Step]) -> type[Step]:
        STEPS[form] = step
        return step

    return add


class Step:
    """One side of a pair. The methods below are the parts that a form may make differently."""

    cost: ClassVar[str] = "host"
    """The rule of markers.py."""
    parts: ClassVar[tuple[str, ...]] = ()
    """Those that are marked: fetch, upload, forward, backward, update, finish, layer."""
    levels: ClassVar[int] = 1
    """How strong the fault may be."""
    world_size = 1
    strategy: str | None = None
    """How ranks share the work, where there are several."""
    tight: ClassVar[bool] = False
    """The host must be nearly busy in the good twin for this fault to cost anything."""

    def __init__(self, context: Context, bad: bool) -> None:
        self.context, self.bad, self.level = context, bad, 1
        self.batches = context.make_batches()
        model = build_model(context.workload, context.scale, context.seed)
        self.model = model.to(context.device)
        self.optimizer = self._optimizer()
        self.side = torch.cuda.Stream() if context.on_gpu else None
        self.finished: list[Any] = []
        self.cursor = self._marks = 0
        self.ahead: tuple[Batch, Any] | None = None
        self.prepare()

    def prepare(self) -> None:
        """Sets up what the form needs; by default pinned batches."""
        if self.context.on_gpu:
            self.batches = [{k: v.pin_memory() for k, v in b.items()} for b in self.batches]

    def close(self) -> None:
        """Ends worker processes, and gives back what was changed in this one."""

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Of the weights."""
        return torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def _optimizer(self) -> torch.optim.Optimizer | None:
        weights = [p for p in self.model.parameters() if p.requires_grad]
        return self.make_optimizer(weights) if weights else None

    @contextlib.contextmanager
    def marked(self, part: str) -> Iterator[None]:
        """A marker around a part, if it is one that the form changes."""
        if part not in self.parts:
            yield
            return
        with torch.profiler.record_function(f"__m{self._marks}"):
            yield
        self._marks += 1

    def step(self) -> None:
        """One iteration."""
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
        self._hold_back()

    def fetch(self) -> Batch:
        """The next batch on the host."""
        self.cursor += 1
        return self.batches[self.cursor % len(self.batches)]

    def upload(self, batch: Batch) -> Batch:
        """Copies the batch on a side stream while the one before it is worked on."""
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
        """Copies the batch, and waits for it."""
        return {key: value.to(self.context.device) for key, value in batch.items()}

    def forward(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        """Loss and scores."""
        return loss_and_scores(self.context.workload, self.model, inputs)

    def backward(self, loss: Tensor) -> None:
        """Gradients."""
        loss.backward()

    def finish(self, scores: Tensor) -> None:
        """Work after the update, such as averages of weights or metrics."""

    def _hold_back(self) -> None:
        """Keeps the host at most one step ahead of the GPU, without draining its queue."""
        if self.context.on_gpu:
            self.finished.append(torch.cuda.current_stream().record_event())
            if len(self.finished) > 1:
                self.finished.pop(0).synchronize()

    def hook_layers(self, hook: Hook) -> None:
        """Has the outputs of some layers, drawn by the seed, pass through a function."""
        for place, layer in enumerate(self._layers()):
            layer.register_forward_hook(_as_hook(hook, place))

    def _layers(self) -> list[nn.Module]:
        """Some that run once in a forward pass and give one tensor."""
        batch = {key: value.to(self.context.device) for key, value in self.batches[0].items()}
        calls = _calls(
            self.model, lambda: loss_and_scores(self.context.workload, self.model, batch)
        )
        fitting = [module for module, outputs in calls.items() if _is_one(outputs)]
        rng = random.Random(self.context.seed)
        chosen = set(map(id, rng.sample(fitting, min(SITES, len(fitting)))))
        return [module for module in fitting if id(module) in chosen]


def _as_hook(hook: Hook, place: int) -> Callable[..., Tensor]:
    def call(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return hook(place, output)

    return call


def _calls(model: nn.Module, run: Callable[[], object]) -> dict[nn.Module, list[Any]]:
    """What every module inside the model gave, in the order of their first call."""
    calls: dict[nn.Module, list[Any]] = {}

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        calls.setdefault(module, []).append(output)

    inner = [module for module in model.modules() if module is not model]
    handles = [module.register_forward_hook(note) for module in inner]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _is_one(outputs: list[Any]) -> bool:
    if len(outputs) != 1 or not isinstance(outputs[0], Tensor):
        return False
    return bool(outputs[0].is_floating_point() and outputs[0].ndim > 1)


# ------------------------------------------------------------------------- strength

_LOOSE, _TIGHT = 0.5, 0.85
"""Share of a step for which the host launches: below it the GPU always has work waiting, also under
the profiler, which makes launching half as slow again."""
_LONGEST_S = 0.06
_LARGEST_BYTES = 96 << 20


def measured(context: Context, step: type[Step], compiled: bool) -> tuple[Context, float]:
    """The context with faults as strong as a healthy step allows, and that step's seconds.

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
    passes = max(1, round(_LOST * step_s / _decoding_s(context)))
    work_s = max(0.0005, _LOST * step_s / SITES)
    return dataclasses.replace(context, decode_passes=passes, host_work_s=work_s), step_s


@functools.lru_cache(maxsize=64)
def _measure(context: Context) -> tuple[float, float]:
    """Share of a healthy step for which the host launches, and the step's seconds."""
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


def _decoding_s(context: Context) -> float:
    """Of one batch, with one pass."""
    data = StoredSamples(context.make_batches(), 1)
    start = time.perf_counter()
    data.collate([data[i] for i in range(context.scale.batch)])
    return time.perf_counter() - start
