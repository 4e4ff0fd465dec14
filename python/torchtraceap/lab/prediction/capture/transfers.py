"""Copies between GPU and host within a step.

Note [What is moved]: a capture takes every tensor for the GPU's. Tensors that the program sends to
the host (`x.cpu()`, `x.to("cpu")`, `module.cpu()`) are on the host from then on, with results
computed from them alone, until they are sent back; each way is a copy. A tensor made of Python
numbers on a GPU (`torch.tensor(2.0, device="cuda")`) is made on the host and copied. Moves before
the step, and those of torch's own code to a tensor's reported device (`fake_gpu.py`, Note [Who
asks]), don't count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchtraceap.lab.prediction.capture.calls import Move

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["RequestedMove", "is_constructor", "move_module", "move_tensor", "requested_move"]

_MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray)


@dataclass(frozen=True, slots=True)
class RequestedMove:
    """The device that a call asks for."""

    device: Any
    non_blocking: bool


def requested_move(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> RequestedMove | None:
    """Return the device that a call names; None if it names none."""
    if func is torch.Tensor.cpu:
        return RequestedMove("cpu", False)
    if func is torch.Tensor.cuda:
        behind = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        return RequestedMove("cuda", bool(behind))
    if func is not torch.Tensor.to:
        return None
    device = kwargs.get("device", args[1] if len(args) > 1 else kwargs.get("other"))
    if device is None or isinstance(device, torch.dtype):
        return None
    place = 2 if isinstance(device, torch.Tensor) else 3
    behind = kwargs.get("non_blocking", args[place] if len(args) > place else False)
    return RequestedMove(device, bool(behind))


def is_constructor(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a call makes a tensor from Python values."""
    return func in _MADE_OF_NUMBERS and bool(args) and not isinstance(args[0], torch.Tensor)


def move_tensor(
    recorder: Recorder, tensor: torch.Tensor, to_gpu: bool, requested: RequestedMove
) -> torch.Tensor:
    """Return the tensor on the other side and record the copy; its gradient is copied back."""
    if tensor.requires_grad and torch.is_grad_enabled():
        found: torch.Tensor = ToCopy.apply(tensor, recorder, to_gpu, requested)
        return found
    return _copy(recorder, tensor, to_gpu, requested)


def move_module(
    recorder: Recorder, module: torch.nn.Module, to_gpu: bool, *, non_blocking: bool
) -> None:
    """Move parameters and buffers that are on the other side, with one copy each.

    torch would exchange a parameter's object for one without values, which it can't where somebody
    holds on to it; so each stays the object that it is.
    """
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if recorder.is_kept_on_host(tensor) == to_gpu:
                pinned = recorder.is_pinned(tensor)
                recorder.write_move_of(tensor, Move(to_gpu, pinned, non_blocking))


class ToCopy(torch.autograd.Function):
    """A differentiable copy whose node has the name of autograd's own."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, recorder: Recorder, to_gpu: bool, requested: RequestedMove
    ) -> torch.Tensor:
        ctx.moved = recorder, to_gpu, requested
        return _copy(recorder, tensor, to_gpu, requested)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        recorder, to_gpu, requested = ctx.moved
        if recorder.is_kept_on_host(gradient) == to_gpu:  # it is there already
            return gradient, None, None, None
        return _copy(recorder, gradient, not to_gpu, requested), None, None, None


def _copy(
    recorder: Recorder, tensor: torch.Tensor, to_gpu: bool, requested: RequestedMove
) -> torch.Tensor:
    with recorder.paused():
        made = tensor.detach().clone()
    pinned = recorder.is_pinned(tensor)
    recorder.write_move(tensor, made, Move(to_gpu, pinned, requested.non_blocking))
    return made
