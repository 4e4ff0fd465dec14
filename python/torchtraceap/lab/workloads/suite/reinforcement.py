"""Reinforcement learning agents; the environment is random data."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.workloads.declaration import workload
from torchtraceap.lab.workloads.suite.layers import (
    Block,
    Made,
    Residual,
    adam,
    classes,
    conv,
    perceptron,
    pick,
    trained,
)  # fmt: skip


def _frozen_copy(net: nn.Module) -> nn.Module:
    """Return a copy that is never trained."""
    return copy.deepcopy(net).requires_grad_(False)


def _update_target(target: nn.Module, online: nn.Module, share: float = 0.005) -> None:
    """Move the target network a little toward the trained one."""
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), share)


def _sum(output: Tensor) -> Tensor:
    return output.sum()


def _frames(batch: int, side: int) -> Tensor:
    """Return random frames as bytes, as an emulator gives them."""
    return torch.randint(0, 256, (batch, 4, side, side), dtype=torch.uint8)


class _Atari(nn.Module):
    """The network of the Nature paper."""

    def __init__(self, side: int, width: int, outputs: int) -> None:
        super().__init__()
        layers = (
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten()
        )  # fmt: skip
        self.body = nn.Sequential(*layers)
        after = ((side - 8) // 4 - 2) // 2
        self.head = perceptron(64 * (after + 1) ** 2, width, outputs)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.body(frames.to(torch.float32).div_(255)))


class _Dqn(nn.Module):
    """Double Q-learning: the trained network chooses, its copy gives the value."""

    def __init__(self, side: int, width: int, actions: int) -> None:
        super().__init__()
        self.online = _Atari(side, width, actions)
        self.target = _frozen_copy(self.online)

    def forward(
        self, now: Tensor, action: Tensor, reward: Tensor, after: Tensor, done: Tensor
    ) -> tuple[Tensor, Tensor]:
        value = self.online(now).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.online(after).argmax(1, keepdim=True)
            wanted = reward + 0.99 * ~done * self.target(after).gather(1, best).squeeze(1)
        return value, wanted


@workload(
    task="control from pixels",
    domain="reinforcement_learning",
    exercises="Frames as bytes made floats on the device, three passes for one backward.",
)
def dqn(batch: int = 8, size: str = "tiny") -> Made:
    """Double DQN (arXiv 1509.06461)."""
    side, width = pick(size, (44, 64), (84, 512))
    inputs = (
        _frames(batch, side), classes(batch, 6), torch.randn(batch),
        _frames(batch, side), torch.rand(batch) < 0.1,
    )  # fmt: skip
    return trained(
        _Dqn(side, width, 6), inputs, lambda pair: functional.smooth_l1_loss(*pair),
        lambda weights: torch.optim.RMSprop(weights, lr=2.5e-4, centered=True),
    )  # fmt: skip


class _C51(nn.Module):
    """A distribution of returns, projected on fixed values."""

    def __init__(self, states: int, width: int, actions: int) -> None:
        super().__init__()
        self.online = perceptron(states, width, width, actions * 51)
        self.target = _frozen_copy(self.online)
        self.register_buffer("values", torch.linspace(-10, 10, 51))

    def forward(self, now: Tensor, action: Tensor, reward: Tensor, after: Tensor) -> Tensor:
        with torch.no_grad():
            ahead = self.target(after).float().unflatten(1, (-1, 51)).softmax(2)
            best = (ahead * self.values).sum(2).argmax(1)
            share = ahead[torch.arange(len(ahead), device=ahead.device), best]
            place = ((reward[:, None] + 0.99 * self.values).clamp(-10, 10) + 10) / 0.4
            low = place.floor().clamp(max=49)
            wanted = torch.zeros_like(share)
            wanted.scatter_add_(1, low.long(), share * (low + 1 - place))
            wanted.scatter_add_(1, low.long() + 1, share * (place - low))
        logits = self.online(now).unflatten(1, (-1, 51))
        chosen = logits.take_along_dim(action[:, None, None], 1).squeeze(1)
        return -(wanted * chosen.float().log_softmax(1)).sum(1)


@workload(
    task="distributional control",
    domain="reinforcement_learning",
    exercises="A distribution projected by floor and scatter_add, take_along_dim.",
)
def c51(batch: int = 64, size: str = "tiny") -> Made:
    """Categorical DQN (arXiv 1707.06887)."""
    states, width = pick(size, (16, 64), (128, 1024))
    inputs = (
        torch.randn(batch, states), classes(batch, 6), torch.randn(batch),
        torch.randn(batch, states),
    )  # fmt: skip
    return trained(_C51(states, width, 6), inputs, lambda each: each.mean(), adam)


class _Critic(nn.Module):
    """A policy over actions and a value from one body."""

    def __init__(self, states: int, width: int, actions: int) -> None:
        super().__init__()
        self.body = perceptron(states, width, width, activation=nn.Tanh)
        self.policy, self.value = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.body(states)
        return self.policy(seen).float(), self.value(seen).float().squeeze(-1)


class _A2c(nn.Module):
    """Returns of a short rollout, computed backwards in time."""

    def __init__(self, states: int, width: int) -> None:
        super().__init__()
        self.net = _Critic(states, width, 6)

    def forward(self, states: Tensor, action: Tensor, reward: Tensor, done: Tensor) -> Tensor:
        logits, value = self.net(states)
        gain, gains = value[-1].detach(), []
        for step in range(len(reward) - 1, -1, -1):
            gain = reward[step] + 0.99 * gain * (1 - done[step])
            gains.append(gain)
        ahead = torch.stack(gains[::-1]) - value[:-1]
        policy = torch.distributions.Categorical(logits=logits[:-1])
        gained = policy.log_prob(action) * ahead.detach()
        return 0.5 * ahead.square().mean() - gained.mean() - 0.01 * policy.entropy().mean()


@workload(
    task="control",
    domain="reinforcement_learning",
    exercises="A loop backwards over time, torch.distributions with their checks on the host.",
)
def a2c(batch: int = 8, size: str = "tiny") -> Made:
    """Advantage actor-critic (arXiv 1602.01783) over runs of several environments."""
    states, width, length = pick(size, (16, 64, 8), (128, 512, 32))
    inputs = (
        torch.randn(length + 1, batch, states), classes(length, 6, batch),
        torch.randn(length, batch), (torch.rand(length, batch) < 0.1).float(),
    )  # fmt: skip
    return trained(_A2c(states, width), inputs, _sum)


class _Ppo(nn.Module):
    """A policy of normal distributions with clipped updates."""

    def __init__(self, states: int, width: int, actions: int) -> None:
        super().__init__()
        self.net, self.spread = _Critic(states, width, actions), nn.Parameter(torch.zeros(actions))

    def forward(self, states: Tensor, action: Tensor, before: Tensor, gain: Tensor) -> Tensor:
        mean, value = self.net(states)
        policy = torch.distributions.Normal(mean, self.spread.exp(), validate_args=False)
        ratio = (policy.log_prob(action).sum(-1) - before).exp()
        ahead = (gain - value).detach()
        ahead = (ahead - ahead.mean()) / (ahead.std() + 1e-8)
        kept = torch.minimum(ratio * ahead, ratio.clamp(0.8, 1.2) * ahead)
        spread = policy.entropy().sum(-1).mean()
        return -kept.mean() + 0.5 * (gain - value).square().mean() - 0.001 * spread


@workload(
    task="continuous control",
    domain="reinforcement_learning",
    exercises="Ratios of likelihoods, clamps and minima of many small tensors, mean and spread.",
)
def ppo(batch: int = 256, size: str = "tiny") -> Made:
    """Proximal policy optimization (arXiv 1707.06347)."""
    states, width, actions = pick(size, (24, 64, 6), (376, 512, 17))
    inputs = (
        torch.randn(batch, states), torch.randn(batch, actions),
        -torch.rand(batch) * actions, torch.randn(batch),
    )  # fmt: skip
    return trained(_Ppo(states, width, actions), inputs, _sum, adam)


class _Sac(nn.Module):
    """Two critics, a stochastic policy and a temperature in one loss."""

    def __init__(self, states: int, width: int, actions: int) -> None:
        super().__init__()
        self.policy = perceptron(states, width, width, 2 * actions)
        self.critics = nn.ModuleList(
            perceptron(states + actions, width, width, 1) for _ in range(2)
        )
        self.targets, self.warmth = _frozen_copy(self.critics), nn.Parameter(torch.zeros(()))
        self.wanted = float(-actions)

    def forward(self, now: Tensor, action: Tensor, reward: Tensor, after: Tensor) -> Tensor:
        warmth = self.warmth.exp()
        if torch.is_grad_enabled():
            _update_target(self.targets, self.critics)
        with torch.no_grad():
            then, likely = self._drawn(after)
            ahead = self._least(self.targets, after, then) - warmth * likely
            wanted = reward + 0.99 * ahead
        here = torch.cat([now, action], -1)
        critic = torch.stack([(net(here).squeeze(-1) - wanted).square() for net in self.critics])
        chosen, likely = self._drawn(now)
        weights = {name: each.detach() for name, each in self.critics[0].named_parameters()}
        pair = (torch.cat([now, chosen], -1),)
        value = torch.func.functional_call(self.critics[0], weights, pair).squeeze(-1)
        warm = -self.warmth * (likely.detach() + self.wanted).mean()
        return critic.sum(0).mean() + (warmth.detach() * likely - value).mean() + warm

    def _drawn(self, states: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.policy(states).float().chunk(2, -1)
        spread = spread.clamp(-5, 2).exp()
        noise = torch.randn_like(mean)
        raw = mean + spread * noise
        likely = (
            -0.5 * noise.square()
            - spread.log()
            - 2 * (0.6931 - raw - functional.softplus(-2 * raw))
        )
        return raw.tanh(), likely.sum(-1)

    def _least(self, critics: nn.Module, states: Tensor, action: Tensor) -> Tensor:
        pair = torch.cat([states, action], -1)
        return torch.stack([net(pair) for net in critics.children()]).amin(0).squeeze(-1)


@workload(
    task="continuous control",
    domain="reinforcement_learning",
    exercises="Six small networks in a step, a copy that follows by _foreach_lerp_.",
)
def sac(batch: int = 128, size: str = "tiny") -> Made:
    """Soft actor-critic (arXiv 1812.05905)."""
    states, width, actions = pick(size, (24, 64, 6), (376, 1024, 17))
    inputs = (
        torch.randn(batch, states), torch.rand(batch, actions) * 2 - 1, torch.randn(batch),
        torch.randn(batch, states),
    )  # fmt: skip
    return trained(_Sac(states, width, actions), inputs, _sum, adam)


class _Ddpg(nn.Module):
    """A deterministic policy that follows the critic, with noise on target actions."""

    def __init__(self, states: int, width: int, actions: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(perceptron(states, width, actions), nn.Tanh())
        self.critic = perceptron(states + actions, width, 1)
        self.policy_target, self.critic_target = (
            _frozen_copy(self.policy),
            _frozen_copy(self.critic),
        )

    def forward(self, now: Tensor, action: Tensor, reward: Tensor, after: Tensor) -> Tensor:
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(action)).clamp_(-0.5, 0.5)
            then = (self.policy_target(after) + noise).clamp_(-1, 1)
            ahead = self.critic_target(torch.cat([after, then], -1)).squeeze(-1)
        value = self.critic(torch.cat([now, action], -1)).squeeze(-1)
        weights = {name: each.detach() for name, each in self.critic.named_parameters()}
        pair = (torch.cat([now, self.policy(now)], -1),)
        climbed = torch.func.functional_call(self.critic, weights, pair)
        return functional.mse_loss(value, reward + 0.99 * ahead) - climbed.mean()


@workload(
    task="continuous control",
    domain="reinforcement_learning",
    exercises="In-place clamps, noise drawn in the step, a frozen critic under gradients.",
)
def ddpg(batch: int = 128, size: str = "tiny") -> Made:
    """DDPG (arXiv 1509.02971) with smoothed targets of TD3."""
    states, width, actions = pick(size, (24, 64, 6), (376, 1024, 17))
    inputs = (
        torch.randn(batch, states), torch.rand(batch, actions) * 2 - 1, torch.randn(batch),
        torch.randn(batch, states),
    )  # fmt: skip
    return trained(_Ddpg(states, width, actions), inputs, _sum, adam)


class _Decisions(nn.Module):
    """Returns, states and actions as one sequence of tokens."""

    def __init__(self, states: int, width: int, depth: int, actions: int) -> None:
        super().__init__()
        self.gain, self.state = nn.Linear(1, width), nn.Linear(states, width)
        self.action, self.head = nn.Linear(actions, width), nn.Linear(width, actions)
        self.layers = nn.Sequential(*(Block(width, causal=True) for _ in range(depth)))

    def forward(self, gain: Tensor, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.stack([self.gain(gain), self.state(state), self.action(action)], 2)
        seen = self.layers(tokens.flatten(1, 2)).unflatten(1, (-1, 3))
        return self.head(seen[:, :, 1]).tanh(), action


@workload(
    task="offline control",
    domain="reinforcement_learning",
    exercises="Interleaved tokens by stack and flatten, a transformer over trajectories.",
)
def decision_transformer(batch: int = 8, size: str = "tiny") -> Made:
    """Decision transformer (arXiv 2106.01345)."""
    states, width, depth, length = pick(size, (16, 48, 2, 12), (128, 512, 6, 64))
    inputs = (
        torch.randn(batch, length, 1), torch.randn(batch, length, states),
        torch.rand(batch, length, 6) * 2 - 1,
    )  # fmt: skip
    return trained(
        _Decisions(states, width, depth, 6),
        inputs,
        lambda pair: functional.mse_loss(pair[0], pair[1]),
    )


class _World(nn.Module):
    """Imagined states from a recurrent cell with straight-through categorical samples."""

    def __init__(self, width: int, actions: int, groups: int = 8, many: int = 8) -> None:
        super().__init__()
        self.groups = groups
        self.encoder = nn.Sequential(conv(3, width, 3, 2), conv(width, width, 3, 2), nn.Flatten())
        self.cell = nn.GRUCell(groups * many + actions, width)
        self.after, self.before = nn.LazyLinear(groups * many), nn.Linear(width, groups * many)
        self.decoder = nn.Sequential(
            nn.Linear(width + groups * many, width * 16), nn.Unflatten(1, (width, 4, 4)),
            nn.ConvTranspose2d(width, 3, 4, 4),
        )  # fmt: skip

    def forward(self, frames: Tensor, action: Tensor) -> Tensor:
        seen = self.encoder(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        hidden = seen.new_zeros(seen.shape[1], self.cell.hidden_size)
        total = torch.zeros((), device=seen.device)
        for sight, move, frame in zip(seen, action, frames, strict=True):
            after = self.after(torch.cat([hidden, sight], -1)).float()
            after, before = (
                each.unflatten(1, (self.groups, -1))
                for each in (after, self.before(hidden).float())
            )
            drawn = functional.gumbel_softmax(after, hard=True).flatten(1)
            made = self.decoder(torch.cat([hidden, drawn.to(hidden.dtype)], -1))
            told = functional.kl_div(
                before.log_softmax(-1),
                after.log_softmax(-1),
                reduction="batchmean",
                log_target=True,
            )
            total = total + functional.mse_loss(made, frame) + 0.1 * told
            hidden = self.cell(
                torch.cat([drawn.to(hidden.dtype), move.to(hidden.dtype)], -1), hidden
            )
        return total / len(frames)


@workload(
    task="world model",
    domain="reinforcement_learning",
    exercises="Gumbel draws, KL divergence and a decoder in each step of a recurrence.",
)
def world_model(batch: int = 4, size: str = "tiny") -> Made:
    """A world model after DreamerV2 (arXiv 2010.02193), with images of 16 pixels."""
    width, length = pick(size, (24, 6), (512, 50))
    inputs = (torch.randn(length, batch, 3, 16, 16), torch.randn(length, batch, 4))
    net = _World(width, 4)
    with torch.no_grad():
        net(*inputs)  # so that its lazy layer knows its width
    return trained(net, inputs, _sum, adam)


class _Zero(nn.Module):
    """A policy over moves and the value of the game from a board."""

    def __init__(self, width: int, depth: int, side: int) -> None:
        super().__init__()
        body = [Residual(conv(width, width), conv(width, width)) for _ in range(depth)]
        self.body = nn.Sequential(conv(17, width), *body)
        self.moves = nn.Sequential(
            conv(width, 2, 1), nn.Flatten(), nn.Linear(2 * side**2, side**2 + 1)
        )
        value = (conv(width, 1, 1), nn.Flatten(), perceptron(side**2, 64, 1), nn.Tanh())
        self.value = nn.Sequential(*value)

    def forward(self, board: Tensor, moves: Tensor, won: Tensor) -> Tensor:
        seen = self.body(board)
        chosen = -(moves * self.moves(seen).float().log_softmax(1)).sum(1).mean()
        return chosen + (self.value(seen).squeeze(1) - won).square().mean()


@workload(
    task="board games",
    domain="reinforcement_learning",
    exercises="A deep narrow residual tower on a small board: many launches of little work.",
)
def alphazero(batch: int = 8, size: str = "tiny") -> Made:
    """The network of AlphaZero (arXiv 1712.01815)."""
    width, depth, side = pick(size, (16, 6, 9), (256, 19, 19))
    inputs = (
        torch.rand(batch, 17, side, side).round(), torch.rand(batch, side**2 + 1).softmax(1),
        torch.rand(batch) * 2 - 1,
    )  # fmt: skip
    return trained(_Zero(width, depth, side), inputs, _sum)
