"""Where a program keeps its tensors: what it moves between the GPU and the host within a step.

Note [What is moved]: a capture takes everything for a GPU's. What the program itself sends to the
host (`x.cpu()`, `x.to("cpu")`, `module.cpu()`) is on the host from then on, with what is computed
of it alone, until it is sent back: each way is a copy. A tensor that is made of Python's numbers on
a GPU (`torch.tensor(2.0, device="cuda")`) is made on the host and copied. What moves before the
step, and what torch's own code sends to where it was told that a tensor is
(`without_gpu.py`, Note [Who asks]), is no move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchtraceap.lab.prediction.capture.calls import Move

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["AskedMove", "asked_move", "is_made_of_numbers", "move_module", "moved"]

_MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray)


@dataclass(frozen=True, slots=True)
class AskedMove:
    """Where a call wants a tensor to be."""

    device: Any
    non_blocking: bool


def asked_move(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AskedMove | None:
    """What a call says of a device; None where it names none."""
    if func is torch.Tensor.cpu:
        return AskedMove("cpu", False)
    if func is torch.Tensor.cuda:
        behind = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        return AskedMove("cuda", bool(behind))
    if func is not torch.Tensor.to:
        return None
    device = kwargs.get("device", args[1] if len(args) > 1 else kwargs.get("other"))
    if device is None or isinstance(device, torch.dtype):
        return None
    place = 2 if isinstance(device, torch.Tensor) else 3
    behind = kwargs.get("non_blocking", args[place] if len(args) > place else False)
    return AskedMove(device, bool(behind))


def is_made_of_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call makes a tensor of what Python holds."""
    return func in _MADE_OF_NUMBERS and bool(args) and not isinstance(args[0], torch.Tensor)


def moved(recorder: Recorder, tensor: torch.Tensor, to_gpu: bool, asked: AskedMove) -> torch.Tensor:
    """The tensor on the other side, and the copy written down; its gradient goes the way back."""
    if tensor.requires_grad and torch.is_grad_enabled():
        found: torch.Tensor = ToCopy.apply(tensor, recorder, to_gpu, asked)
        return found
    return _copied(recorder, tensor, to_gpu, asked)


def move_module(
    recorder: Recorder, module: torch.nn.Module, to_gpu: bool, *, non_blocking: bool
) -> None:
    """Parameters and buffers that are on the other side, moved: each is a copy.

    torch would exchange a parameter's object for one without values, which it can't where somebody
    holds on to it; so each stays the object that it is.
    """
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if recorder.is_kept_on_host(tensor) == to_gpu:
                pinned = recorder.is_pinned(tensor)
                recorder.write_move_of(tensor, Move(to_gpu, pinned, non_blocking))


class ToCopy(torch.autograd.Function):
    """A move that gradients go back through, under the name that autograd's own node has."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, recorder: Recorder, to_gpu: bool, asked: AskedMove
    ) -> torch.Tensor:
        ctx.moved = recorder, to_gpu, asked
        return _copied(recorder, tensor, to_gpu, asked)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        recorder, to_gpu, asked = ctx.moved
        if recorder.is_kept_on_host(gradient) == to_gpu:  # it is there already
            return gradient, None, None, None
        return _copied(recorder, gradient, not to_gpu, asked), None, None, None


def _copied(
    recorder: Recorder, tensor: torch.Tensor, to_gpu: bool, asked: AskedMove
) -> torch.Tensor:
    with recorder.paused():
        made = tensor.detach().clone()
    pinned = recorder.is_pinned(tensor)
    recorder.write_move(tensor, made, Move(to_gpu, pinned, asked.non_blocking))
    return made
