"""Steps that are bound by the host."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.collection.workloads.models import Batch
from torchtraceap.lab.collection.workloads.steps import PIECES, Step, register

__all__: list[str] = []

_BRIEF_S = 2e-5
_DEEP = 64
"""Tiny modules in a row."""


def _spin(seconds: float) -> int:
    """Python work of about that length; the interpreter is busy throughout."""
    end = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < end:
        count += sum(range(50))
    return count


class _Layers(Step):
    parts = ("layer",)

    def prepare(self) -> None:
        super().prepare()
        self.hook_layers(self._hook)

    def _hook(self, place: int, x: Tensor) -> Tensor:
        with self.marked("layer"):
            return self.at_layer(x)

    def at_layer(self, x: Tensor) -> Tensor:
        """What goes on in the layer's place."""
        raise NotImplementedError


@register("python_between")
class _PythonBetween(_Layers):
    """Python work behind layers, while nothing is launched."""

    levels = 4

    def at_layer(self, x: Tensor) -> Tensor:
        if self.bad:
            _spin(self.context.host_work_s * self.level)
        return x


@register("brief_python")
class _BriefPython(_Layers):
    """A few microseconds of Python behind layers, which the queue hides."""

    def at_layer(self, x: Tensor) -> Tensor:
        if self.bad:
            _spin(_BRIEF_S)
        return x


@register("unfused_operators")
class _UnfusedOperators(_Layers):
    """An activation written out in single operators behind layers."""

    levels = 4
    tight = True

    def at_layer(self, x: Tensor) -> Tensor:
        for _ in range(self.level):
            x = _written_out(x) if self.bad else functional.gelu(x, approximate="tanh")
        return x


def _written_out(x: Tensor) -> Tensor:
    cube = x * x * x
    inner = 0.7978845608 * (x + 0.044715 * cube)
    return 0.5 * x * (1.0 + torch.tanh(inner))


@register("image_by_image")
class _ImageByImage(Step):
    """A loop over the images of a batch, two at a time: one alone is no batch to normalise."""

    parts = ("forward",)

    def forward(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        size = len(next(iter(inputs.values())))
        if not self.bad or size < 4:
            return super().forward(inputs)
        found = [
            super(_ImageByImage, self).forward({k: v[i : i + 2] for k, v in inputs.items()})
            for i in range(0, size - size % 2, 2)
        ]
        return torch.stack([loss for loss, _ in found]).mean(), found[0][1]


@register("metrics_by_sample")
class _MetricsBySample(Step):
    """Metrics computed sample by sample: a few tiny kernels each."""

    parts = ("finish",)
    levels = 8
    tight = True

    def finish(self, scores: Tensor) -> None:
        rows = scores.flatten(1)
        if not self.bad:
            self.metrics = _metrics(rows)
            return
        for _ in range(self.level):
            pieces = [_metrics(piece) for piece in rows.chunk(PIECES)]
            self.metrics = [torch.cat(column) for column in zip(*pieces, strict=True)]


def _metrics(rows: Tensor) -> list[Tensor]:
    return [rows.amax(1), rows.mean(1), (rows > 0).float().mean(1)]


@register("unfused_optimizer")
class _UnfusedOptimizer(Step):
    """An optimiser that updates tensor by tensor."""

    parts = ("update",)
    tight = True

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.bad:
            return torch.optim.AdamW(parameters, lr=1e-4, foreach=False, fused=False)
        return super().make_optimizer(parameters)


@register("average_by_tensor")
class _AverageByTensor(Step):
    """Running averages of the weights kept tensor by tensor: a tiny kernel each."""

    parts = ("finish",)
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


@register("one_core")
class _OneCore(Step):
    """One core and one thread for the host, which prepares the batch as well."""

    parts = ("fetch",)
    levels = 4

    def prepare(self) -> None:
        super().prepare()
        self.threads = torch.get_num_threads()
        self.cores = os.sched_getaffinity(0)
        if self.bad:
            torch.set_num_threads(1)
            os.sched_setaffinity(0, {min(self.cores)})

    def fetch(self) -> Batch:
        if self.bad:
            _spin(self.context.host_work_s * self.level)
        return super().fetch()

    def close(self) -> None:
        torch.set_num_threads(self.threads)
        os.sched_setaffinity(0, self.cores)


@register("anomaly_mode")
class _AnomalyMode(Step):
    """Autograd's anomaly detection left on."""

    parts = ("forward", "backward")

    def step(self) -> None:
        with torch.autograd.set_detect_anomaly(self.bad):
            super().step()


@register("heavy_hooks")
class _HeavyHooks(Step):
    """Hooks at all modules, each with Python work."""

    parts = ("forward",)
    levels = 4

    def prepare(self) -> None:
        super().prepare()
        modules = [m for m in self.model.modules() if m is not self.model]
        for module in modules:
            module.register_forward_hook(self._watch)
        self.pause_s = 4 * self.context.host_work_s / max(1, len(modules))

    def _watch(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self.bad:
            _spin(self.pause_s * self.level)


@register("tiny_modules")
class _TinyModules(Step):
    """A head of many tiny modules in a row, where one does the same."""

    parts = ("finish",)
    levels = 8
    tight = True

    def prepare(self) -> None:
        super().prepare()
        many = [nn.Linear(8, 8, bias=False, device=self.context.device) for _ in range(_DEEP)]
        self.many = nn.Sequential(*many)
        self.one = nn.Linear(8, 8, bias=False, device=self.context.device)

    def finish(self, scores: Tensor) -> None:
        rows = functional.adaptive_avg_pool1d(scores.flatten(1)[:, None], 8)[:, 0]
        for _ in range(self.level if self.bad else 1):
            self.pooled = self.many(rows) if self.bad else self.one(rows)
