"""Models of graphs, physics, point clouds, tables and time series."""

from __future__ import annotations

import math

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


def _identity(output: Tensor) -> Tensor:
    return output


# ------------------------------------------------------------------------- graphs


class _Messages(nn.Module):
    """A message passing layer that sums messages from neighbors."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.say = nn.ModuleList(perceptron(2 * width, width, width) for _ in range(depth))
        self.take = nn.ModuleList(nn.GRUCell(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for say, take in zip(self.say, self.take, strict=True):
            told = say(torch.cat([x[source], x[target]], 1))
            heard = torch.zeros_like(x).index_add_(0, target, told.to(x.dtype))
            x = take(heard, x)
        return self.head(x)


@workload(
    task="node classification",
    domain="other",
    exercises="Gathers and index_add over edges, whose sums are atomic on a GPU.",
)
def gnn(batch: int = 200, size: str = "tiny") -> Made:
    """A message passing network (arXiv 1704.01212); the batch is the number of nodes, with eight
    edges each."""
    width, depth = pick(size, (32, 2), (256, 6))
    edges = (classes(8 * batch, batch), classes(8 * batch, batch))
    net = _Messages(width, depth)
    return supervised(net, (torch.randn(batch, width), *edges), classes(batch, 8))


class _Spectral(nn.Module):
    """Layers that multiply a sparse matrix with features."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor, index: Tensor, value: Tensor) -> Tensor:
        matrix = torch.sparse_coo_tensor(
            index, value, (len(x), len(x)), check_invariants=False, is_coalesced=True
        )
        for layer in self.layers:
            with torch.autocast(x.device.type, enabled=False):
                x = torch.sparse.mm(matrix, x.float())
            x = functional.dropout(layer(x).relu(), 0.1, self.training)
        return self.head(x)


@workload(
    task="node classification",
    domain="other",
    exercises="Products of a sparse and a dense matrix, a sparse tensor built in each step.",
)
def gcn(batch: int = 200, size: str = "tiny") -> Made:
    """A graph convolutional network (arXiv 1609.02907); the batch is the number of nodes."""
    width, depth = pick(size, (32, 2), (256, 4))
    edges = torch.unique(classes(8 * batch, batch * batch))
    index = torch.stack([edges // batch, edges % batch])
    inputs = (torch.randn(batch, width), index, torch.rand(len(edges)))
    return supervised(_Spectral(width, depth), inputs, classes(batch, 8))


class _Edges(nn.Module):
    """Attention over each node's edges, with a softmax by scattered maxima and sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.enter, self.score = nn.Linear(width, width), nn.Linear(2 * width // heads, 1)
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        seen = self.enter(x).unflatten(1, (self.heads, -1))
        score = self.score(torch.cat([seen[source], seen[target]], -1)).float()
        score = functional.leaky_relu(score, 0.2).squeeze(-1)
        at = target[:, None].expand_as(score)
        most = score.new_full((len(x), self.heads), -1e9)
        most = most.scatter_reduce(0, at, score.detach(), "amax")
        share = (score - most[target]).exp()
        total = torch.zeros_like(most).index_add(0, target, share)
        told = (share / total[target])[..., None].to(seen.dtype) * seen[source]
        return self.head(
            functional.elu(torch.zeros_like(seen).index_add(0, target, told).flatten(1))
        )


@workload(
    task="node classification",
    domain="other",
    exercises="scatter_reduce of maxima, softmax over edges, ELU.",
)
def gat(batch: int = 200, size: str = "tiny") -> Made:
    """A graph attention network (arXiv 1710.10903); the batch is the number of nodes, with eight
    edges each."""
    width, heads = pick(size, (32, 4), (256, 8))
    edges = (classes(8 * batch, batch), torch.arange(batch).repeat(8))
    net = _Edges(width, heads)
    return supervised(net, (torch.randn(batch, width), *edges), classes(batch, 8), optimizer=adam)


class _Molecule(nn.Module):
    """The energy of atoms by their distances, and forces as its gradient."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(10, width)
        self.filters = nn.ModuleList(perceptron(16, width, width) for _ in range(depth))
        self.atoms = nn.ModuleList(perceptron(width, width, width) for _ in range(depth))
        self.energy = perceptron(width, width, 1, activation=nn.Softplus)
        self.register_buffer("steps", torch.linspace(0, 5, 16))

    def forward(self, kinds: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            places = places.clone().requires_grad_()
            apart = places[:, :, None] - places[:, None]
            far = (apart.square().sum(-1) + 1e-3).sqrt()
            waves = torch.exp(-(far[..., None] - self.steps).square())
            x = self.kinds(kinds)
            for filters, atoms in zip(self.filters, self.atoms, strict=True):
                x = x + atoms(torch.einsum("bijw,bjw->biw", filters(waves).to(x.dtype), x))
            energy = self.energy(x).float().sum((1, 2))
            (slope,) = torch.autograd.grad(energy.sum(), places, create_graph=self.training)
        return energy, -slope


def _energy_and_forces(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    pairs = zip(output, target, strict=True)
    return torch.stack([functional.mse_loss(a, b) for a, b in pairs]).sum()


@workload(
    task="molecular dynamics",
    domain="other",
    exercises="A gradient inside the forward pass, and its own gradient in the backward one.",
)
def schnet(batch: int = 2, size: str = "tiny") -> Made:
    """A network after SchNet (arXiv 1706.08566)."""
    width, depth, atoms = pick(size, (24, 2, 12), (128, 6, 64))
    inputs = (classes(batch, 10, atoms), 3 * torch.randn(batch, atoms, 3))
    target = (torch.randn(batch), torch.randn(batch, atoms, 3))
    return supervised(_Molecule(width, depth), inputs, target, _energy_and_forces)


# ------------------------------------------------------------------------- physics


class _Rays(nn.Module):
    """Density and color along rays, composited to pixels."""

    def __init__(self, width: int, depth: int, waves: int) -> None:
        super().__init__()
        self.waves = waves
        self.body = perceptron(6 * waves, *[width] * depth)
        self.out = nn.Linear(width, 4)

    def forward(self, start: Tensor, way: Tensor, far: Tensor) -> Tensor:
        points = start[:, None] + far[..., None] * way[:, None]
        scaled = points[..., None] * (2.0 ** torch.arange(self.waves, device=points.device))
        told = torch.cat([scaled.sin(), scaled.cos()], -1).flatten(-2)
        out = self.out(self.body(told).relu()).float()
        colour, density = out[..., :3].sigmoid(), functional.softplus(out[..., 3])
        step = functional.pad(far.diff(dim=1), (0, 1), value=1e3)
        opaque = 1 - torch.exp(-density * step)
        clear = torch.cumprod(torch.cat([torch.ones_like(far[:, :1]), 1 - opaque + 1e-7], 1), 1)
        return ((opaque * clear[:, :-1])[..., None] * colour).sum(1)


@workload(
    task="view synthesis",
    domain="other",
    exercises="Sines of scaled places, cumprod along rays, a perceptron over many points.",
)
def nerf(batch: int = 64, size: str = "tiny") -> Made:
    """NeRF (arXiv 2003.08934); the batch is the number of rays."""
    width, depth, waves, samples = pick(size, (48, 4, 6, 24), (256, 8, 10, 128))
    far = torch.rand(batch, samples).sort(1).values
    rays = (torch.randn(batch, 3), functional.normalize(torch.randn(batch, 3)), far)
    net = _Rays(width, depth, waves)
    return supervised(net, rays, torch.rand(batch, 3), functional.mse_loss, adam)


class _Burgers(nn.Module):
    """The residual of Burgers' equation by the network's own derivatives."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = perceptron(2, *[width] * depth, 1, activation=nn.Tanh)

    def forward(self, time: Tensor, place: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            time, place = (each.clone().requires_grad_() for each in (time, place))
            value = self.net(torch.stack([time, place], 1)).squeeze(1)
            slope_t, slope_x = torch.autograd.grad(value.sum(), (time, place), create_graph=True)
            (bend,) = torch.autograd.grad(slope_x.sum(), place, create_graph=self.training)
            return slope_t + value * slope_x - 0.01 / math.pi * bend


@workload(
    task="differential equations",
    domain="other",
    exercises="Second derivatives of a network, and their gradients: backward three times.",
)
def pinn(batch: int = 256, size: str = "tiny") -> Made:
    """A physics-informed network for Burgers' equation (arXiv 1711.10561)."""
    width, depth = pick(size, (20, 4), (256, 8))
    points = (torch.rand(batch), torch.rand(batch) * 2 - 1)
    return trained(_Burgers(width, depth), points, lambda left: left.square().mean(), adam)


class _Flow(nn.Module):
    """Integration of a learned vector field by Runge-Kutta steps."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.field, self.steps = perceptron(width, 2 * width, width, activation=nn.Tanh), steps

    def forward(self, state: Tensor) -> Tensor:
        step = 1 / self.steps
        for _ in range(self.steps):
            one = self.field(state)
            two = self.field(state + step / 2 * one)
            three = self.field(state + step / 2 * two)
            four = self.field(state + step * three)
            state = torch.add(state, one + 2 * two + 2 * three + four, alpha=step / 6)
        return state


@workload(
    task="differential equations",
    domain="other",
    exercises="The same small network dozens of times in a row, additions with a factor.",
)
def neural_ode(batch: int = 64, size: str = "tiny") -> Made:
    """A neural differential equation (arXiv 1806.07366) with fixed steps."""
    width, steps = pick(size, (16, 8), (256, 40))
    return supervised(
        _Flow(width, steps), torch.randn(batch, width), torch.randn(batch, width),
        functional.mse_loss, lambda weights: torch.optim.RAdam(weights, lr=1e-3),
    )  # fmt: skip


class _Fourier(nn.Module):
    """Learned factors for the lowest frequencies, added to a pointwise layer."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        factors = torch.randn(width, width, modes, modes, 2) / width
        self.factors, self.point = nn.Parameter(factors), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        m = self.modes
        turned = torch.fft.rfft2(x.float())
        low = torch.einsum(
            "bihw,iohw->bohw", turned[..., :m, :m], torch.view_as_complex(self.factors)
        )
        whole = torch.zeros_like(turned)
        whole[..., :m, :m] = low
        return functional.gelu(torch.fft.irfft2(whole, s=x.shape[-2:]) + self.point(x))


@workload(
    task="differential equations",
    domain="other",
    exercises="Fourier transforms there and back, complex einsum, writing into a slice.",
)
def fno(batch: int = 4, size: str = "tiny") -> Made:
    """A Fourier neural operator (arXiv 2010.08895)."""
    width, depth, modes, side = pick(size, (8, 3, 6, 24), (64, 4, 16, 128))
    net = nn.Sequential(
        nn.Conv2d(1, width, 1),
        *(_Fourier(width, modes) for _ in range(depth)),
        nn.Conv2d(width, 1, 1),
    )
    fields = torch.randn(batch, 1, side, side)
    return supervised(net, fields, torch.randn(batch, 1, side, side), functional.mse_loss, adam)


# ------------------------------------------------------------------------- points, tables


class _Points(nn.Module):
    """Neighborhoods of the farthest points, each processed by one perceptron."""

    def __init__(self, width: int, middles: int, near: int) -> None:
        super().__init__()
        self.middles, self.near = middles, near
        self.local, self.all = (
            perceptron(3, width, width),
            perceptron(width + 3, 2 * width, 2 * width),
        )
        self.head = nn.Linear(2 * width, 40)

    def forward(self, points: Tensor) -> Tensor:
        rows = torch.arange(len(points), device=points.device)[:, None]
        chosen = [torch.zeros_like(rows[:, 0])]
        far = torch.full(points.shape[:2], 1e9, device=points.device)
        for _ in range(self.middles - 1):
            last = points[rows[:, 0], chosen[-1]]
            far = torch.minimum(far, (points - last[:, None]).square().sum(-1))
            chosen.append(far.argmax(1))
        middles = points[rows, torch.stack(chosen, 1)]
        near = torch.cdist(middles, points).topk(self.near, largest=False).indices
        around = points[rows[..., None], near] - middles[:, :, None]
        seen = self.local(around).amax(2)
        return self.head(self.all(torch.cat([seen, middles.to(seen.dtype)], -1)).amax(1))


@workload(
    task="point clouds",
    domain="other",
    exercises="Farthest points one after the other, nearest by cdist and topk, fancy indexing.",
)
def pointnet(batch: int = 4, size: str = "tiny") -> Made:
    """A network after PointNet++ (arXiv 1706.02413) with one level."""
    width, points, middles, near = pick(size, (32, 128, 16, 8), (256, 4096, 512, 32))
    net = _Points(width, middles, near)
    return supervised(net, torch.randn(batch, points, 3), classes(batch, 40))


@workload(
    task="anomaly detection",
    domain="other",
    exercises="An autoencoder of linear layers, dropout and layer norms; ASGD.",
)
def tabular_autoencoder(batch: int = 128, size: str = "tiny") -> Made:
    """An autoencoder of table rows with a narrow bottleneck."""
    columns, width = pick(size, (40, 64), (512, 2048))
    net = nn.Sequential(
        nn.Dropout(0.1), nn.Linear(columns, width), nn.LayerNorm(width), nn.Mish(),
        nn.Linear(width, 8), nn.Linear(8, width), nn.LayerNorm(width), nn.Mish(),
        nn.Linear(width, columns),
    )  # fmt: skip
    rows = torch.randn(batch, columns)
    return supervised(
        net, rows, rows, functional.mse_loss, lambda weights: torch.optim.ASGD(weights, lr=1e-3)
    )


class _Columns(nn.Module):
    """A transformer with a token per column."""

    def __init__(self, numbers: int, kinds: int, width: int, depth: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(numbers, width))
        self.shift, self.kinds = (
            nn.Parameter(torch.zeros(numbers, width)),
            nn.Embedding(kinds * 20, width),
        )
        self.register_buffer("starts", 20 * torch.arange(kinds))
        self.layers = nn.Sequential(*(Block(width, times=2) for _ in range(depth)))
        self.head = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        tokens = torch.addcmul(self.shift, numbers[..., None], self.scale)
        tokens = torch.cat([tokens, self.kinds(kinds + self.starts)], 1)
        return self.head(self.layers(tokens).mean(1)).squeeze(1)


@workload(
    task="tables",
    domain="other",
    exercises="Numbers and kinds as tokens of a short transformer, Poisson loss.",
)
def ft_transformer(batch: int = 16, size: str = "tiny") -> Made:
    """FT-Transformer (arXiv 2106.11959) with a Poisson loss for counts."""
    numbers, kinds, width, depth = pick(size, (12, 4, 32, 2), (64, 32, 192, 3))
    inputs = (torch.randn(batch, numbers), classes(batch, 20, kinds))
    net = _Columns(numbers, kinds, width, depth)
    return supervised(
        net, inputs, classes(batch, 5).float(),
        lambda output, target: functional.poisson_nll_loss(output, target),
    )  # fmt: skip


# ------------------------------------------------------------------------- series


class _Series(nn.Module):
    def __init__(self, width: int, ahead: int) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(8, width, batch_first=True), nn.Linear(width, 2 * ahead)

    def forward(self, past: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.head(self.layer(past)[1][0][-1]).float().chunk(2, 1)
        return mean, functional.softplus(spread) + 1e-3


@workload(
    task="forecasting",
    domain="other",
    exercises="One LSTM layer over a window, a Gaussian likelihood.",
)
def lstm_forecast(batch: int = 16, size: str = "tiny") -> Made:
    """A probabilistic forecast after DeepAR (arXiv 1704.04110)."""
    width, length, ahead = pick(size, (32, 24, 6), (512, 336, 96))
    past, target = torch.randn(batch, length, 8), torch.randn(batch, ahead)
    return supervised(
        _Series(width, ahead), past, target,
        lambda output, wanted: functional.gaussian_nll_loss(output[0], wanted, output[1]), adam,
    )  # fmt: skip


class _Gate(nn.Module):
    """A gated residual layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers, self.norm = (
            perceptron(width, width, 2 * width, activation=nn.ELU),
            nn.LayerNorm(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + functional.glu(self.layers(x)))


class _Fusion(nn.Module):
    """Variable selection, a recurrent layer, attention to the past, and quantile outputs."""

    def __init__(self, variables: int, width: int, ahead: int) -> None:
        super().__init__()
        self.enter = nn.ModuleList(nn.Linear(1, width) for _ in range(variables))
        self.gates = nn.ModuleList(_Gate(width) for _ in range(variables))
        self.choice, self.ahead = nn.Linear(variables * width, variables), ahead
        self.time = nn.GRU(width, width, batch_first=True)
        self.look = nn.MultiheadAttention(width, 4, batch_first=True)
        self.last, self.head = _Gate(width), nn.Linear(width, 3)

    def forward(self, past: Tensor) -> Tensor:
        pairs = zip(past.unbind(-1), self.enter, self.gates, strict=True)
        seen = torch.stack([gate(enter(each[..., None])) for each, enter, gate in pairs], -1)
        share = self.choice(seen.flatten(2)).softmax(-1)
        x = self.time((seen * share[:, :, None]).sum(-1))[0]
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        x = x + self.look(x, x, x, attn_mask=later, need_weights=False)[0]
        return self.head(self.last(x[:, -self.ahead :]))


def _quantile_loss(output: Tensor, target: Tensor) -> Tensor:
    apart = target[..., None] - output
    levels = torch.tensor([0.1, 0.5, 0.9], device=output.device)
    return torch.maximum(levels * apart, (levels - 1) * apart).mean()


@workload(
    task="forecasting",
    domain="other",
    exercises="A small network for each variable, nn.MultiheadAttention, quantile loss.",
)
def tft(batch: int = 4, size: str = "tiny") -> Made:
    """A network after the temporal fusion transformer (arXiv 1912.09363)."""
    variables, width, length, ahead = pick(size, (6, 16, 24, 6), (24, 256, 192, 24))
    past, target = torch.randn(batch, length, variables), torch.randn(batch, ahead)
    return supervised(_Fusion(variables, width, ahead), past, target, _quantile_loss)


# ------------------------------------------------------------------------- learning itself


class _Learner(nn.Module):
    """The loss after one inner step of learning, for several tasks at once."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = perceptron(1, width, width, 1, activation=nn.Tanh)

    def forward(self, known: Tensor, asked: Tensor) -> Tensor:
        weights = dict(self.net.named_parameters())

        def learned(x: Tensor, y: Tensor, then: Tensor) -> Tensor:
            def wrong(each: dict[str, Tensor]) -> Tensor:
                return functional.mse_loss(torch.func.functional_call(self.net, each, (x,)), y)

            slopes = torch.func.grad(wrong)(weights)
            moved = {name: each - 0.1 * slopes[name] for name, each in weights.items()}
            return torch.func.functional_call(self.net, moved, (then,))

        with torch.inference_mode(False):
            (x, y), then = known.clone().unbind(0), asked.clone()
            return torch.func.vmap(learned)(x, y, then)


@workload(
    task="meta-learning",
    domain="other",
    exercises="torch.func: gradients inside vmap, and gradients of what they gave.",
)
def maml(batch: int = 8, size: str = "tiny") -> Made:
    """Model-agnostic meta-learning (arXiv 1703.03400); the batch is the number of tasks."""
    width, shots = pick(size, (32, 10), (512, 100))
    known, asked = torch.randn(2, batch, shots, 1), torch.randn(batch, shots, 1)
    target = torch.randn(batch, shots, 1)
    return supervised(_Learner(width), (known, asked), target, functional.mse_loss, adam)


class _Process(nn.Module):
    """The likelihood of values under a Gaussian process of learned features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net, self.noise = perceptron(8, width, 2), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        seen = self.net(x).float()
        alike = torch.exp(-0.5 * torch.cdist(seen, seen).square())
        eye = torch.eye(len(x), device=x.device)
        factor = torch.linalg.cholesky(alike + (functional.softplus(self.noise) + 0.1) * eye)
        solved = torch.cholesky_solve(y[:, None], factor)
        return 0.5 * (y @ solved[:, 0]) / len(x) + factor.diagonal().log().mean()


@workload(
    task="regression",
    domain="other",
    exercises="Cholesky factors, triangular solves and their gradients.",
)
def gaussian_process(batch: int = 96, size: str = "tiny") -> Made:
    """Deep kernel learning (arXiv 1511.02222); the batch is the number of points."""
    width = pick(size, 32, 512)
    return trained(_Process(width), (torch.randn(batch, 8), torch.randn(batch)), _identity, adam)


class _Transport(nn.Module):
    """The entropy-regularized cost of transporting one set of points to another."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.net, self.rounds = perceptron(2, width, width, 2), rounds

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        cost = torch.cdist(self.net(x).float(), y).square()
        u, v = torch.zeros_like(cost[:, 0]), torch.zeros_like(cost[0])
        for _ in range(self.rounds):
            u = -torch.logsumexp(v - cost / 0.5, 1)
            v = -torch.logsumexp(u[:, None] - cost / 0.5, 0)
        return (torch.exp(u[:, None] + v - cost / 0.5) * cost).sum() / len(x)


@workload(
    task="optimal transport",
    domain="other",
    exercises="Rounds of logsumexp over rows and columns of a matrix.",
)
def sinkhorn(batch: int = 96, size: str = "tiny") -> Made:
    """A generator that learns by Sinkhorn divergences (arXiv 1706.00292)."""
    width, rounds = pick(size, (32, 10), (512, 50))
    points = (torch.randn(batch, 2), torch.randn(batch, 2))
    return trained(_Transport(width, rounds), points, _identity)


class _Wide(nn.Module):
    """Layers that are recomputed in the backward pass."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


@workload(
    task="representation learning",
    domain="other",
    exercises="Activation checkpointing: each layer's forward runs again in the backward.",
)
def checkpointed(batch: int = 4, size: str = "tiny") -> Made:
    """A transformer with activation checkpointing that fills in masked values."""
    width, depth, length = pick(size, (48, 3, 24), (1024, 24, 1024))
    x = torch.randn(batch, length, width)
    hidden = x.masked_fill(torch.rand(batch, length, 1) < 0.3, 0)
    return supervised(_Wide(width, depth), hidden, x, functional.mse_loss)
