"""The processes that train together, as torchrun starts them; one by itself is a group of one.

Note [Equal to one process]: every process takes its share of each batch, and gradients are summed
over processes and divided by the weight of the whole batch. That is the gradient of one process
with the whole batch, whatever the shares weigh. All gradients go in one all-reduce: the networks
have a few million parameters, and ones that a batch does not reach need no special care.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from torchtraceap.errors import OptionError

__all__ = ["Processes", "join_processes"]

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """The rank of this process in its group."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_first(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return the part of a batch that this process takes."""
        return items[self.rank :: self.size]

    def sum_gradients(self, parameters: Iterable[nn.Parameter], weight: float) -> float:
        """Make gradients those of the whole batch, see Note [Equal to one process]. A batch without
        weight has gradients of 0.

        Args:
            parameters: With the gradients of a sum of losses over this process's share.
            weight: The weight of this share.

        Returns:
            The weight of the whole batch.
        """
        used = list(parameters)
        for parameter in used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        parts = [parameter.grad.reshape(-1) for parameter in used]
        flat = torch.cat([*parts, torch.tensor([weight], device=parts[0].device)])
        if self.size > 1:
            dist.all_reduce(flat)
        total = float(flat[-1])
        flat = flat / total if total > 0 else torch.zeros_like(flat)
        start = 0
        for parameter in used:
            parameter.grad.copy_(flat[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
        return total

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each number summed over the processes."""
        if self.size == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(summed)
        return list(summed.tolist())

    def agree(self, decision: bool) -> bool:
        """Return the decision of the first process: clocks differ, and nobody may wait for who has
        left."""
        return bool(self.sum([float(decision and self.is_first)])[0])


@contextmanager
def join_processes() -> Iterator[Processes]:
    """The group that torchrun's environment variables describe, left at the end of the block.

    Raises:
        OptionError: The variables make no sense.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_RANK", "0"))
    except ValueError as error:
        raise OptionError(f"RANK, LOCAL_RANK or WORLD_SIZE is no number: {error}") from error
    if size == 1:
        yield Processes(device=device)
        return
    if device == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield Processes(rank, size, device)
    finally:
        dist.destroy_process_group()
