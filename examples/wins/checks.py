"""Values checked on the host in every step: each check waits for the GPU.

TorchBench's paper, section 4.2, a regression that its continuous integration found: distributions
checked their arguments twice, and soft actor-critic became 11 % slower; pytorch/pytorch#67725 took
the second check away. Here all checks of a policy that is known to be right are left out.
"""

import torch
from torch import nn
from torch.distributions import Normal

SEEN, ACTIONS, WIDTH, BATCH = 64, 16, 1024, 8192


class Actor(nn.Module):
    """A policy: actions drawn from a normal distribution, and how likely they were."""

    def __init__(self, *, checks: bool) -> None:
        super().__init__()
        self.checks = checks
        self.body = nn.Sequential(
            nn.Linear(SEEN, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        )
        self.mean, self.log_std = nn.Linear(WIDTH, ACTIONS), nn.Linear(WIDTH, ACTIONS)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(seen)
        std = self.log_std(hidden).clamp(-5, 2).exp()
        policy = Normal(self.mean(hidden), std, validate_args=self.checks)
        action = policy.rsample()
        return action, policy.log_prob(action).sum(-1)


class ActorCritic(nn.Module):
    def __init__(self, *, checks: bool) -> None:
        super().__init__()
        self.actor = Actor(checks=checks)
        self.critic = nn.Sequential(
            nn.Linear(SEEN + ACTIONS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, 1),
        )  # fmt: skip

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        action, log_likelihood = self.actor(seen)
        worth = self.critic(torch.cat([seen, action], -1)).squeeze(-1)
        return (0.2 * log_likelihood - worth).mean()


def workload(batch: int, *, checks: bool) -> dict:
    return {
        "model": ActorCritic(checks=checks),
        "inputs": (torch.randn(batch, SEEN),),
        "loss": lambda loss: loss,
        "optimizer": torch.optim.Adam,
    }


def bad(batch: int = BATCH) -> dict:
    return workload(batch, checks=True)


def good(batch: int = BATCH) -> dict:
    return workload(batch, checks=False)
