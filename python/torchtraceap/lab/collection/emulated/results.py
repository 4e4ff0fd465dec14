"""What rank 0 gets if all ranks hold the same data: sums are multiples, gathers are copies."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch import distributed as dist

from torchtraceap.errors import OptionError

__all__ = ["Copies", "reduction_factor"]

_UNCHANGING = (
    dist.ReduceOp.AVG,
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
    dist.ReduceOp.BAND,
    dist.ReduceOp.BOR,
)


@dataclass(frozen=True, slots=True)
class Copies:
    """`target` becomes copies of `factor * source`, one behind the other, as many as fit.

    The one form of all results, which a kernel can write as well. Both are contiguous, or the same
    dense tensor, and of one type and device.
    """

    source: Tensor
    target: Tensor
    factor: float = 1.0

    @property
    def changes_nothing(self) -> bool:
        """The result is there already."""
        same = self.source.data_ptr() == self.target.data_ptr()
        whole = self.source.numel() == self.target.numel()
        return self.target.numel() == 0 or (same and whole and self.factor == 1)

    def write(self) -> None:
        """Does it by operators of torch."""
        if self.changes_nothing:
            return
        factor = int(self.factor) if self.factor.is_integer() else self.factor
        if self.source is self.target:  # in any layout, as gradients of convolutions have
            self.target.mul_(factor)
            return
        source = self.source.reshape(-1)
        if factor != 1:
            source = source * factor
        for part in self.target.view(-1).split(max(1, source.numel())):
            part.copy_(source[: part.numel()])


def reduction_factor(operation: dist.ReduceOp, ranks: int) -> float:
    """By what equal values of so many ranks are multiplied when they are reduced.

    Raises:
        OptionError: The result of this reduction is no multiple.
    """
    kind = operation.op
    if kind == dist.ReduceOp.SUM:
        return float(ranks)
    if kind == dist.ReduceOp.PREMUL_SUM:
        return float(ranks * operation.factor)
    if kind in _UNCHANGING:
        return 1.0
    raise OptionError(f"emulated collectives can't reduce by {kind.name}")
