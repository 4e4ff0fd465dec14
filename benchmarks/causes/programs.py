"""Small training programs for the CPU, each with places where a slowdown can be planted.

Every model has a part called `feed` (a `Feed`) in its middle; a step fetches a batch from a loader,
runs forward and backward and updates the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

__all__ = ["MODELS", "Feed", "Norm", "Program"]


class Norm(nn.Module):
    """Layer norm of the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight)


class Feed(nn.Module):
    """Two linear layers with a GELU between and what was there added."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Perceptron(nn.Module):
    inputs = (128, 128)

    def __init__(self, hidden: int = 256) -> None:
        super().__init__()
        self.first = nn.Linear(128, 192)
        self.feed = Feed(192, hidden)
        self.last = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.feed(torch.relu(self.first(x))))


class Convolutions(nn.Module):
    inputs = (8, 3, 24, 24)

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 1, 1), nn.BatchNorm2d(32)
        )
        self.feed = Feed(32, hidden)
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolutions(x).flatten(2).transpose(1, 2)
        return self.last(self.feed(y).mean(1))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.out(y.reshape(batch, length, width))


class Transformer(nn.Module):
    inputs = (4, 48, 64)

    def __init__(self, hidden: int = 192) -> None:
        super().__init__()
        self.attention = Attention(64, 4)
        self.feed = Feed(64, hidden)
        self.more = Attention(64, 4)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return self.last((self.more(self.feed(x))).mean(1))


class Recurrent(nn.Module):
    inputs = (16, 12, 48)

    def __init__(self, hidden: int = 192) -> None:
        super().__init__()
        self.gru = nn.GRU(48, 64, batch_first=True)
        self.feed = Feed(64, hidden)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.feed(self.gru(x)[0]).mean(1))


class Recommender(nn.Module):
    inputs = (256, 8)

    def __init__(self, hidden: int = 192) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(500, 16) for _ in range(8))
        self.feed = Feed(128, hidden)
        self.last = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        codes = x.abs().mul(1000).long().clamp(max=499)
        parts = [table(codes[:, i : i + 1]) for i, table in enumerate(self.tables)]
        return self.last(self.feed(torch.cat(parts, 1)))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "perceptron": Perceptron,
    "convolutions": Convolutions,
    "transformer": Transformer,
    "recurrent": Recurrent,
    "recommender": Recommender,
}


class Samples(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Batches by number."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.x = torch.randn(shape)
        self.y = torch.randint(0, 10, shape[:1])

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x, self.y


class Program:
    """A training step whose parts a plan may replace."""

    def __init__(self, model: str, *, hidden: int | None = None) -> None:
        torch.manual_seed(0)
        given = {} if hidden is None else {"hidden": hidden}
        self.model = MODELS[model](**given)
        self.samples = Samples(self.model.inputs)
        self.make_optimizer: Callable[..., torch.optim.Optimizer] = lambda parameters: (
            torch.optim.AdamW(parameters, lr=1e-3)
        )
        self.after_backward: Callable[[nn.Module], None] = lambda model: None
        self._batches: Iterator[tuple[Tensor, Tensor]] | None = None
        self.optimizer: torch.optim.Optimizer | None = None

    def step(self) -> None:
        if self.optimizer is None:
            self.optimizer = self.make_optimizer(self.model.parameters())
        if self._batches is None:
            loader = torch.utils.data.DataLoader(self.samples, batch_size=None)
            self._batches = iter(loader)
        x, y = next(self._batches)
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.after_backward(self.model)
        self.optimizer.step()
