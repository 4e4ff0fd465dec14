"""Slowdowns that are planted into programs, each with the answers that are right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from programs import Feed, Program
from torch import Tensor, nn

__all__ = ["PLANTS", "Plant"]


@dataclass(frozen=True)
class Plant:
    """One kind of slowdown."""

    name: str
    apply: Callable[[Program], None]
    right: str
    """A regular expression that the top contributor's name or path has to match."""
    held_out: bool
    """Rules were never tried on it before the measurement."""


PLANTS: dict[str, Plant] = {}


def plant(right: str, *, held_out: bool) -> Callable[..., Callable[[Program], None]]:
    def register(apply: Callable[[Program], None]) -> Callable[[Program], None]:
        name = apply.__name__
        PLANTS[name] = Plant(name, apply, right, held_out)
        return apply

    return register


class _Behind(nn.Module):
    """Does something with what a part gives."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return self.work(self.part(x))

    def work(self, y: Tensor) -> Tensor:
        raise NotImplementedError


# ------------------------------------------------------------------------------ development


@plant(r"sort", held_out=False)
def extra_sort(program: Program) -> None:
    """One more operator."""

    class Sorted(_Behind):
        def work(self, y: Tensor) -> Tensor:
            return y + 1e-6 * torch.sort(y.detach(), dim=0).values

    program.model.feed = Sorted(program.model.feed)


@plant(r"linalg_|geqrf|orgqr", held_out=False)
def extra_factorisation(program: Program) -> None:
    """A larger operator, as of an optimiser."""

    def work(model: nn.Module) -> None:
        for parameter in model.feed.parameters():
            if parameter.dim() == 2:
                torch.linalg.qr(parameter.grad)

    program.after_backward = work


@plant(r"aten::item|_local_scalar_dense|aten::select|Reads", held_out=False)
def item_reads(program: Program) -> None:
    """Values read one by one."""

    class Reads(_Behind):
        def work(self, y: Tensor) -> Tensor:
            flat = y.detach().flatten()
            total = sum(flat[i].item() for i in range(150))
            return y + 1e-9 * total

    program.model.feed = Reads(program.model.feed)


@plant(r"sleep|DataLoader|__getitem__|Slow", held_out=False)
def loader_sleep(program: Program) -> None:
    """A data set that waits."""

    class Slow(type(program.samples)):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            time.sleep(0.002)
            return super().__getitem__(index)

    program.samples = Slow(program.samples.shape)


class Doubled(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x.double()).float()


@plant(r"Doubled|Feed|aten::(addmm|mm|linear|matmul|to|_to_copy)", held_out=False)
def dtype_double(program: Program) -> None:
    """A part in double precision."""
    program.model.feed = Doubled(program.model.feed)


@plant(r"Thrice|Feed|aten::(addmm|mm|linear)", held_out=False)
def more_calls(program: Program) -> None:
    """A part that runs three times."""

    class Thrice(nn.Module):
        def __init__(self, part: nn.Module) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: Tensor) -> Tensor:
            return self.part(self.part(self.part(x)))

    program.model.feed = Thrice(program.model.feed)


@plant(r"[Oo]ptimizer|AdamW|adamw", held_out=False)
def optimizer_loop(program: Program) -> None:
    """An optimiser that walks over parameters with extra work."""

    class Penalised(torch.optim.AdamW):
        @torch.no_grad()
        def step(self, closure: object = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    for _ in range(6):
                        parameter.grad.add_(parameter, alpha=1e-6)
            super().step()

    program.make_optimizer = lambda parameters: Penalised(parameters, lr=1e-3)


# ------------------------------------------------------------------------------ held out


@plant(r"Feed|aten::(addmm|mm|linear)|AddmmBackward", held_out=True)
def larger_shape(program: Program) -> None:
    """A part that is four times as wide."""
    old = program.model.feed
    program.model.feed = Feed(old.up.in_features, 4 * old.up.out_features)


@plant(r"BySample|Feed|aten::(select|stack|unbind|cat|addmm|mm|linear)", held_out=True)
def python_loop(program: Program) -> None:
    """Samples one by one."""

    class BySample(nn.Module):
        def __init__(self, part: nn.Module) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.part(sample) for sample in x.split(max(1, len(x) // 8))])

    program.model.feed = BySample(program.model.feed)


@plant(
    r"ByHand|aten::(mean|var|pow|sub|mul|div|rsqrt|sqrt|tanh|erf|add|expand)|"
    r"(Mean|Pow|Sub|Mul|Div|Tanh|Erf|Add|Rsqrt)\w*Backward",
    held_out=True,
)
def unfused(program: Program) -> None:
    """Norm and GELU by elementwise operators."""

    class ByHand(Feed):
        def forward(self, x: Tensor) -> Tensor:
            mean = x.mean(-1, keepdim=True)
            y = (x - mean) * torch.rsqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-5)
            y = self.up(y * self.norm.weight)
            y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y.pow(3))))
            return x + self.down(y)

    old = program.model.feed
    program.model.feed = ByHand(old.up.in_features, old.up.out_features)


@plant(r"Copied|aten::(clone|copy_|contiguous)|Clone", held_out=True)
def copies(program: Program) -> None:
    """Copies that nobody needs."""

    class Copied(_Behind):
        def work(self, y: Tensor) -> Tensor:
            for _ in range(12):
                y = y.transpose(0, 1).contiguous().transpose(0, 1).contiguous()
            return y

    program.model.feed = Copied(program.model.feed)


@plant(r"Spins|spin|Feed", held_out=True)
def host_spin(program: Program) -> None:
    """Python that computes."""

    def spin() -> int:
        return sum(i * i for i in range(15_000))

    class Spins(_Behind):
        def work(self, y: Tensor) -> Tensor:
            return y + 1e-20 * (spin() % 7)

    program.model.feed = Spins(program.model.feed)


@plant(r"isnan|isfinite|aten::(any|all|ne|abs|eq|item|is_nonzero)|checked", held_out=True)
def gradient_checks(program: Program) -> None:
    """Every gradient is looked at."""

    def checked(model: nn.Module) -> None:
        for parameter in model.parameters():
            for _ in range(3):
                if torch.isnan(parameter.grad).any():
                    raise ValueError

    program.after_backward = checked


@plant(r"topk|unique|histc|quantile|aten::sort", held_out=True)
def statistics(program: Program) -> None:
    """Statistics of activations by forward hook."""

    def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
        torch.quantile(output.detach().flatten()[:4096], 0.9)

    program.model.feed.register_forward_hook(hook)


_ = F
