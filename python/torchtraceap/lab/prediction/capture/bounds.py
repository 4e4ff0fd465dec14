"""Upper bounds for outputs whose sizes depend on values.

Sizes follow ATen's own rules with every condition true and every value distinct. The rules run
where tensors have no values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from torchtraceap.lab.prediction.capture.modes import bind_arguments

__all__ = ["is_typical", "largest_output"]

_Given: TypeAlias = dict[str, Any]


def largest_output(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the largest output of an operator; None if there is no rule for it."""
    rule = _RULES.get(func)
    return None if rule is None else rule(bind_arguments(func, args, kwargs))


def is_typical(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether the bound is the usual size.

    That is the case if no index exceeds the declared size, targets fill their room, or lengths are
    known.
    """
    if func is torch.ops.aten._pack_padded_sequence.default:
        return not isinstance(args[1], FakeTensor)
    return func in _USUAL


def _nonzero(given: _Given) -> torch.Tensor:
    tensor = given["self"]
    # A GPU returns the indices in column-major order.
    return tensor.new_empty((tensor.dim(), tensor.numel()), dtype=torch.int64).t()


def _masked_select(given: _Given) -> torch.Tensor:
    tensor, _ = torch.broadcast_tensors(given["self"], given["mask"])
    return tensor.new_empty((tensor.numel(),))


def _index(given: _Given) -> torch.Tensor:
    """Bound `index`: a mask counts as one index for each of its dimensions."""
    indices: list[torch.Tensor | None] = []
    for index in given["indices"]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            indices.append(index)
            continue
        one = index.new_zeros((index.numel(),), dtype=torch.int64)
        indices += [one] * index.dim()
    found: torch.Tensor = torch.ops.aten.index.Tensor(given["self"], indices)
    return found


def _unique(given: _Given) -> tuple[torch.Tensor, ...]:
    tensor = given["self"]
    flat = tensor.new_empty((tensor.numel(),))
    return flat, *_numbers(tensor, tensor.shape, flat.shape)


def _unique_along(given: _Given) -> tuple[torch.Tensor, ...]:
    tensor, length = given["self"], given["self"].shape[given["dim"]]
    return torch.empty_like(tensor), *_numbers(tensor, (length,), (length,))


def _unique_in_a_row(given: _Given) -> tuple[torch.Tensor, ...]:
    return _unique(given) if given["dim"] is None else _unique_along(given)


def _numbers(tensor: torch.Tensor, *shapes: Any) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.new_empty(shape, dtype=torch.int64) for shape in shapes)


def _repeated(given: _Given) -> torch.Tensor:
    repeats = given["repeats"]
    size = given["output_size"]
    found: torch.Tensor = repeats.new_empty((repeats.numel() if size is None else size,))
    return found


def _bincount(given: _Given) -> torch.Tensor:
    weights = given["weights"]
    dtype = torch.int64 if weights is None else weights.dtype
    found: torch.Tensor = given["self"].new_empty((max(given["minlength"], 1),), dtype=dtype)
    return found


def _ctc_loss(given: _Given) -> tuple[torch.Tensor, torch.Tensor]:
    """Bound the loss of each sequence and the log probabilities of all paths."""
    log_probs, targets = given["log_probs"], given["targets"]
    steps, batch, _ = log_probs.shape
    longest = targets.shape[1] if targets.dim() == 2 else -(-targets.shape[0] // batch)
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, 2 * longest + 1))


def _pack_padded_sequence(given: _Given) -> tuple[torch.Tensor, torch.Tensor]:
    """Bound the packed steps and the number of sequences in each step."""
    x, lengths = given["input"], given["lengths"]
    steps, batch = (x.shape[1], x.shape[0]) if given["batch_first"] else x.shape[:2]
    with _disable_current_modes():
        known = [steps] * batch if isinstance(lengths, FakeTensor) else lengths.tolist()
        sizes = torch.tensor([sum(n > step for n in known) for step in range(max(known))])
    return x.new_empty((sum(known), *x.shape[2:])), sizes


_RULES: dict[Any, Callable[[_Given], Any]] = {
    torch.ops.aten.nonzero.default: _nonzero,
    torch.ops.aten.masked_select.default: _masked_select,
    torch.ops.aten.index.Tensor: _index,
    torch.ops.aten._unique2.default: _unique,
    torch.ops.aten._unique.default: lambda given: _unique(given)[:2],
    torch.ops.aten.unique_dim.default: _unique_along,
    torch.ops.aten.unique_consecutive.default: _unique_in_a_row,
    torch.ops.aten.repeat_interleave.Tensor: _repeated,
    torch.ops.aten.bincount.default: _bincount,
    torch.ops.aten._ctc_loss.default: _ctc_loss,
    torch.ops.aten._ctc_loss.Tensor: _ctc_loss,
    torch.ops.aten._pack_padded_sequence.default: _pack_padded_sequence,
}
_USUAL = frozenset(
    (
        torch.ops.aten.bincount.default,
        torch.ops.aten._ctc_loss.default,
        torch.ops.aten._ctc_loss.Tensor,
    )
)
