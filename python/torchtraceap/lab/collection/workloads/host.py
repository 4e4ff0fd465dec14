"""Steps that lose time by the host: Python work, many small launches, and compiled code that breaks
apart or is compiled again. `lab/generation/faults.py` describes each fault by name.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.collection.workloads.models import Batch, loss_and_scores
from torchtraceap.lab.collection.workloads.steps import (
    PIECES,
    SITES,
    LayerStep,
    Step,
    register,
)

__all__: list[str] = []

_BRIEF_S = 2e-5
_DEEP = 64
"""Tiny modules in a row."""
_MOST_COMPILATIONS = 256
_TARGETS = 512


def _spin(seconds: float) -> int:
    """Do Python work of about that length; the interpreter is busy throughout."""
    end = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < end:
        count += sum(range(50))
    return count


@register("python_between")
class _PythonBetween(LayerStep):
    levels = 4

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        if self.bad:
            _spin(self.context.host_work_s * self.level)
        return x


@register("brief_python")
class _BriefPython(LayerStep):
    def at_layer(self, place: int, x: Tensor) -> Tensor:
        if self.bad:
            _spin(_BRIEF_S)
        return x


@register("unfused_operators")
class _UnfusedOperators(LayerStep):
    levels = 4
    tight = True

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        for _ in range(self.level):
            if self.bad:
                inner = 0.7978845608 * (x + 0.044715 * (x * x * x))
                x = 0.5 * x * (1.0 + torch.tanh(inner))
            else:
                x = functional.gelu(x, approximate="tanh")
        return x


@register("image_by_image")
class _ImageByImage(Step):
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
    parts = ("update",)
    tight = True

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.bad:
            return torch.optim.AdamW(parameters, lr=1e-4, foreach=False, fused=False)
        return super().make_optimizer(parameters)


@register("average_by_tensor")
class _AverageByTensor(Step):
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
    parts = ("forward", "backward")

    def step(self) -> None:
        with torch.autograd.set_detect_anomaly(self.bad):
            super().step()


@register("heavy_hooks")
class _HeavyHooks(Step):
    parts = ("forward",)
    levels = 4

    def prepare(self) -> None:
        super().prepare()
        modules = [m for m in self.model.modules() if m is not self.model]
        pause_s = 4 * self.context.host_work_s / max(1, len(modules))

        def watch(module: nn.Module, inputs: Any, output: Any) -> None:
            if self.bad:
                _spin(pause_s * self.level)

        for module in modules:
            module.register_forward_hook(watch)


@register("tiny_modules")
class _TinyModules(Step):
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


# ------------------------------------------------------------------------- compiled code


class _Compiled(Step):
    """A step whose forward pass is compiled."""

    cost = "breaks"
    parts = ("forward",)

    def prepare(self) -> None:
        super().prepare()
        torch._dynamo.reset()  # twins run one after the other; none may find the other's code
        self.hook_layers(self.at_layer)
        self.compiled = torch.compile(
            self.run, backend=self.context.backend, dynamic=False, fullgraph=self.is_whole
        )

    @property
    def is_whole(self) -> bool:
        """True if it must be one graph, as the twin without a fault."""
        return not self.bad

    def run(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        """Return loss and scores; this is compiled."""
        return loss_and_scores(self.context.workload, self.model, inputs)

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        """Return what replaces the output of a layer."""
        return x

    def forward(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        # All layers share the code that follows a break, so each shape is compiled separately.
        with torch._dynamo.config.patch(recompile_limit=_MOST_COMPILATIONS):
            result: tuple[Tensor, Tensor] = self.compiled(inputs)
        return result

    def close(self) -> None:
        torch._dynamo.reset()


@register("explicit_break")
class _ExplicitBreak(_Compiled):
    def at_layer(self, place: int, x: Tensor) -> Tensor:
        if self.bad:
            torch._dynamo.graph_break()
        return x


@register("log_in_forward")
class _LogInForward(_Compiled):
    def prepare(self) -> None:
        self.logged: list[float] = []
        self.kept = torch.zeros(SITES, device=self.context.device)
        super().prepare()

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        value = x.detach().abs().mean()
        if self.bad:
            _write(self.logged, value)
        else:
            self.kept[place] = value
        return x


@torch.compiler.disable
def _write(logged: list[float], value: Tensor) -> None:
    logged.append(float(value))
    del logged[:-SITES]


@register("branch_on_value")
class _BranchOnValue(_Compiled):
    def at_layer(self, place: int, x: Tensor) -> Tensor:
        large = x.detach().mean() > 1e6
        if not self.bad:
            return torch.where(large, x * 0.5, x)
        return x * 0.5 if large else x


@register("numpy_call")
class _NumpyCall(_Compiled):
    def at_layer(self, place: int, x: Tensor) -> Tensor:
        part = x.detach().flatten()[:256]
        factor = _clipped_in_numpy(part) if self.bad else part.clamp(-1, 1).mean()
        return x + 1e-6 * factor


@torch.compiler.disable
def _clipped_in_numpy(part: Tensor) -> float:
    return float(part.float().cpu().numpy().clip(-1, 1).mean())


@register("disabled_operator")
class _DisabledOperator(_Compiled):
    def at_layer(self, place: int, x: Tensor) -> Tensor:
        return _gate(x) if self.bad else x * torch.sigmoid(x)


@torch.compiler.disable
def _gate(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class _Recompiled(_Compiled):
    """A step that is compiled again every time."""

    cost = "host"
    is_whole = True


@register("changing_shapes")
class _ChangingShapes(_Recompiled):
    def fetch(self) -> Batch:
        batch = super().fetch()
        many = _TARGETS - self.cursor % _TARGETS if self.bad else _TARGETS
        return {**batch, "__targets": torch.ones(many)}

    def run(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        batch = {key: value for key, value in inputs.items() if key != "__targets"}
        loss, scores = super().run(batch)
        return loss + 0.0 * inputs["__targets"].sum(), scores


@register("failing_guards")
class _FailingGuards(_Recompiled):
    mode = "step"

    def fetch(self) -> Batch:
        self.mode = f"step {self.cursor}" if self.bad else "step"
        return super().fetch()

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        return x + 1.0 if self.mode == "none" else x


@register("break_outside")
class _BreakOutside(_Compiled):
    is_whole = True

    def forward(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        result = super().forward(inputs)
        if self.bad and self.cursor <= 1:
            torch.compile(_summary, backend=self.context.backend)(result[1])
        return result


def _summary(scores: Tensor) -> Any:
    mean = scores.mean()
    torch._dynamo.graph_break()
    return mean + scores.amax()
