"""Steps of compiled models that break apart, or are compiled again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtraceap.lab.collection.workloads.models import Batch, loss_and_scores
from torchtraceap.lab.collection.workloads.steps import SITES, Step, register

__all__: list[str] = []

_MOST_COMPILATIONS = 256
_TARGETS = 512


class _Compiled(Step):
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
        """The twin without a fault must be one graph."""
        return not self.bad

    def run(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        """What is compiled."""
        return loss_and_scores(self.context.workload, self.model, inputs)

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        """What goes on behind a layer."""
        return x

    def forward(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        # What follows a break is code that all layers share: each shape is compiled for itself.
        with torch._dynamo.config.patch(recompile_limit=_MOST_COMPILATIONS):
            result: tuple[Tensor, Tensor] = self.compiled(inputs)
        return result

    def close(self) -> None:
        torch._dynamo.reset()


@register("explicit_break")
class _ExplicitBreak(_Compiled):
    """A graph break behind layers."""

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        if self.bad:
            torch._dynamo.graph_break()
        return x


@register("log_in_forward")
class _LogInForward(_Compiled):
    """A statistic written to a Python list behind layers."""

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
    """An if on a tensor's value behind layers."""

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        large = x.detach().mean() > 1e6
        if not self.bad:
            return torch.where(large, x * 0.5, x)
        return x * 0.5 if large else x


@register("numpy_call")
class _NumpyCall(_Compiled):
    """A function of a library that works on NumPy's arrays, behind layers."""

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        part = x.detach().flatten()[:256]
        factor = _clipped_in_numpy(part) if self.bad else part.clamp(-1, 1).mean()
        return x + 1e-6 * factor


@torch.compiler.disable
def _clipped_in_numpy(part: Tensor) -> float:
    return float(part.float().cpu().numpy().clip(-1, 1).mean())


@register("disabled_operator")
class _DisabledOperator(_Compiled):
    """An operator that is kept from being compiled, behind layers."""

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        return _gate(x) if self.bad else x * torch.sigmoid(x)


@torch.compiler.disable
def _gate(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class _Recompiled(_Compiled):
    """Compiled again in every step."""

    cost = "host"
    is_whole = True


@register("changing_shapes")
class _ChangingShapes(_Recompiled):
    """Another number of targets in every batch, not padded."""

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
    """A Python text that the code depends on, and that every step changes."""

    mode = "step"

    def fetch(self) -> Batch:
        self.mode = f"step {self.cursor}" if self.bad else "step"
        return super().fetch()

    def at_layer(self, place: int, x: Tensor) -> Tensor:
        return x + 1.0 if self.mode == "none" else x


@register("break_outside")
class _BreakOutside(_Compiled):
    """Whole code in the step; what breaks is a summary of the first one."""

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
