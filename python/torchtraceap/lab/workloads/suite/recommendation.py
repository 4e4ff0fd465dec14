"""Recommendation models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.workloads.declaration import workload
from torchtraceap.lab.workloads.suite.layers import (
    Block,
    Made,
    adam,
    classes,
    perceptron,
    pick,
    supervised,
    trained,
)  # fmt: skip


def _clicks(batch: int) -> Tensor:
    return torch.rand(batch).round()


def _click_loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(output.float(), target)


class _Dlrm(nn.Module):
    """The DLRM network: sums over bags of ids, and products of all pairs of vectors."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bottom = perceptron(13, 4 * width, width)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs)
        self.top = perceptron(width + pairs.shape[1], 4 * width, 1)

    def forward(self, dense: Tensor, ids: Tensor, starts: Tensor) -> Tensor:
        x = self.bottom(dense)
        bags = [table(ids[i], starts[i]) for i, table in enumerate(self.tables)]
        all_ = torch.stack([x, *(bag.to(x.dtype) for bag in bags)], 1)
        crossed = torch.bmm(all_, all_.mT)[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, crossed], 1)).squeeze(1)


@workload(
    task="click prediction",
    domain="recommendation",
    exercises="embedding_bag over many tables, products of all pairs, indexed triangles.",
)
def dlrm(batch: int = 64, size: str = "tiny") -> Made:
    """DLRM (arXiv 1906.00091), with bags of 1 to 7 ids in each table."""
    tables, rows, width = pick(size, (8, 1000, 16), (26, 200_000, 64))
    starts = torch.randint(1, 8, (tables, batch)).cumsum(1)
    longest = int(starts[:, -1].max())
    ids = classes(tables, rows, longest)
    inputs = (torch.randn(batch, 13), ids, starts - starts[:, :1])
    return supervised(
        _Dlrm(tables, rows, width), inputs, _clicks(batch), _click_loss,
        lambda weights: torch.optim.SGD(weights, lr=0.01),
    )  # fmt: skip


class _Towers(nn.Module):
    """Two towers that embed users and items; each user's item is contrasted with those of all
    others."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.people = nn.Embedding(rows, width, sparse=True)
        self.things = nn.Embedding(rows, width, sparse=True)

    def forward(self, person: Tensor, thing: Tensor) -> Tensor:
        a = functional.normalize(self.people(person), dim=1)
        return 20 * a @ functional.normalize(self.things(thing), dim=1).T


@workload(
    task="retrieval",
    domain="recommendation",
    exercises="Sparse gradients of embeddings and SparseAdam; negatives from the batch.",
)
def two_tower(batch: int = 64, size: str = "tiny") -> Made:
    """Two towers with a softmax over the batch."""
    rows, width = pick(size, (5000, 32), (1_000_000, 128))
    ids = (classes(batch, rows), classes(batch, rows))
    return supervised(
        _Towers(rows, width), ids, torch.arange(batch),
        optimizer=lambda weights: torch.optim.SparseAdam(list(weights), lr=1e-3),
    )  # fmt: skip


class _Factors(nn.Module):
    """A factorization machine (first order, and second order by squares of sums) with a perceptron
    on the same vectors."""

    def __init__(self, fields: int, rows: int, width: int) -> None:
        super().__init__()
        self.once, self.vectors = nn.Embedding(fields * rows, 1), nn.Embedding(fields * rows, width)
        self.register_buffer("starts", rows * torch.arange(fields))
        self.deep = nn.Sequential(nn.BatchNorm1d(fields * width), perceptron(fields * width, 64, 1))

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids + self.starts
        v = self.vectors(ids)
        pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        return self.once(ids).sum((1, 2)) + pairs + self.deep(v.flatten(1)).squeeze(1)


@workload(
    task="click prediction",
    domain="recommendation",
    exercises="One wide table for all fields, squares of sums, one-dimensional batch norm.",
)
def deepfm(batch: int = 64, size: str = "tiny") -> Made:
    """DeepFM (arXiv 1703.04247)."""
    fields, rows, width = pick(size, (10, 500, 8), (39, 100_000, 16))
    net = _Factors(fields, rows, width)
    return supervised(net, classes(batch, rows, fields), _clicks(batch), _click_loss, adam)


class _Crosses(nn.Module):
    """Low-rank cross layers that multiply with their input, shared by experts."""

    def __init__(self, fields: int, rows: int, width: int, depth: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(fields))
        wide = fields * width
        self.down = nn.Parameter(0.1 * torch.randn(depth, 4, wide, 8))
        self.up = nn.Parameter(0.1 * torch.randn(depth, 4, 8, wide))
        self.gates = nn.ModuleList(nn.Linear(wide, 4) for _ in range(depth))
        self.head = nn.Linear(wide, 1)

    def forward(self, ids: Tensor) -> Tensor:
        start = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        x = start
        for down, up, gate in zip(self.down, self.up, self.gates, strict=True):
            each = torch.einsum("bw,ewr->ber", x, down).tanh()
            each = torch.einsum("ber,erw->bew", each, up)
            x = x + start * torch.einsum("be,bew->bw", gate(x).softmax(1), each)
        return self.head(x).squeeze(1)


@workload(
    task="click prediction",
    domain="recommendation",
    exercises="Crosses of low rank by einsum, gates over experts, a table for each field.",
)
def dcn(batch: int = 64, size: str = "tiny") -> Made:
    """DCN-V2 (arXiv 2008.13535)."""
    fields, rows, width, depth = pick(size, (8, 500, 8, 2), (39, 100_000, 16, 3))
    net = _Crosses(fields, rows, width, depth)
    return supervised(net, classes(batch, rows, fields), _clicks(batch), _click_loss)


class _Interest(nn.Module):
    """Attention from the offered item to each item of the history."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.things = nn.Embedding(rows, width, padding_idx=0)
        self.share = perceptron(4 * width, 32, 1, activation=nn.PReLU)
        self.head = perceptron(2 * width, 64, 1, activation=nn.PReLU)

    def forward(self, history: Tensor, offered: Tensor) -> Tensor:
        past, now = self.things(history), self.things(offered)
        wide = now[:, None].expand_as(past)
        share = self.share(torch.cat([past, wide, past - wide, past * wide], -1))
        share = share.masked_fill((history == 0)[..., None], 0)
        return self.head(torch.cat([(share * past).sum(1), now], -1)).squeeze(1)


@workload(
    task="click prediction",
    domain="recommendation",
    exercises="Attention by a small perceptron over histories with padding, PReLU.",
)
def din(batch: int = 32, size: str = "tiny") -> Made:
    """Deep interest network (arXiv 1706.06978)."""
    rows, width, length = pick(size, (2000, 16, 20), (1_000_000, 64, 100))
    history = classes(batch, rows, length).masked_fill_(torch.rand(batch, length) < 0.3, 0)
    inputs = (history, classes(batch, rows))
    return supervised(_Interest(rows, width), inputs, _clicks(batch), _click_loss, adam)


class _Sequence(nn.Module):
    """A transformer that ranks the next item of a history above a random one."""

    def __init__(self, rows: int, width: int, length: int, depth: int) -> None:
        super().__init__()
        self.things = nn.Embedding(rows, width, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList(Block(width, 2, causal=True) for _ in range(depth))

    def forward(self, past: Tensor, true: Tensor, false: Tensor) -> Tensor:
        x = self.things(past) + self.places
        for layer in self.layers:
            x = layer(x)
        return torch.stack([(x * self.things(each)).sum(-1) for each in (true, false)])


@workload(
    task="sequential recommendation",
    domain="recommendation",
    exercises="Causal attention over histories, drawn negatives, softplus of differences.",
)
def sasrec(batch: int = 16, size: str = "tiny") -> Made:
    """SASRec (arXiv 1808.09781), with a ranking loss."""
    rows, width, length, depth = pick(size, (2000, 32, 24, 2), (1_000_000, 128, 200, 2))
    histories = tuple(classes(batch, rows, length) for _ in range(3))
    return trained(
        _Sequence(rows, width, length, depth), histories,
        lambda scores: functional.softplus((scores[1] - scores[0]).float()).mean(),
    )  # fmt: skip


class _Tasks(nn.Module):
    """Experts that several tasks share, with gates for each task and learned task weights."""

    def __init__(self, inputs: int, width: int, experts: int, tasks: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(perceptron(inputs, width, width) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(inputs, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(perceptron(width, 32, 1) for _ in range(tasks))
        self.unsure = nn.Parameter(torch.zeros(tasks))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.stack([expert(x) for expert in self.experts], 2)
        mixed = [seen @ gate(x).softmax(-1)[..., None] for gate in self.gates]
        found = [tower(each.squeeze(2)) for tower, each in zip(self.towers, mixed, strict=True)]
        return torch.cat(found, 1), self.unsure


def _weighted_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    logits, unsure = output
    each = functional.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(0)
    return (each * torch.exp(-unsure) + unsure).sum()


@workload(
    task="multi-task ranking",
    domain="recommendation",
    exercises="Several experts, gates and losses in one step, weighed by learned numbers.",
)
def mmoe(batch: int = 64, size: str = "tiny") -> Made:
    """Multi-gate mixture of experts, with losses weighed by their uncertainty."""
    inputs, width, experts, tasks = pick(size, (32, 32, 4, 3), (512, 512, 16, 8))
    net = _Tasks(inputs, width, experts, tasks)
    return supervised(
        net, torch.randn(batch, inputs), torch.rand(batch, tasks).round(), _weighted_loss,
        lambda weights: torch.optim.NAdam(weights, lr=1e-3),
    )  # fmt: skip


class _Neural(nn.Module):
    """A product and a perceptron of the same pair of embeddings."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.people, self.things = nn.Embedding(rows, 2 * width), nn.Embedding(rows, 2 * width)
        self.deep, self.head = perceptron(2 * width, width, width), nn.Linear(2 * width, 1)

    def forward(self, person: Tensor, thing: Tensor) -> Tensor:
        (a, b), (c, d) = self.people(person).chunk(2, 1), self.things(thing).chunk(2, 1)
        return self.head(torch.hstack([a * c, self.deep(torch.hstack([b, d]))])).squeeze(1)


@workload(
    task="collaborative filtering",
    domain="recommendation",
    exercises="The smallest step of the suite: the host decides how long it takes; Adamax.",
)
def ncf(batch: int = 64, size: str = "tiny") -> Made:
    """Neural collaborative filtering (arXiv 1708.05031)."""
    rows, width = pick(size, (2000, 16), (500_000, 64))
    return supervised(
        _Neural(rows, width), (classes(batch, rows), classes(batch, rows)), _clicks(batch),
        _click_loss, lambda weights: torch.optim.Adamax(weights, lr=2e-3),
    )  # fmt: skip
