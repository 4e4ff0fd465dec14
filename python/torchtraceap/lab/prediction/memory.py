"""Memory need of a step from the lifetimes of its tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchtraceap.core import Result
from torchtraceap.lab.prediction.capture.calls import (
    Capture,
    Phase,
    Storages,
    TensorInfo,
    tensors_in,
)

__all__ = ["MemoryNeed", "known_memory", "memory_need"]

_BLOCK = 512
"""Granularity of CUDA's allocator, bytes."""


@dataclass(frozen=True, slots=True)
class MemoryNeed(Result):
    """GPU memory of a step's tensors, bytes.

    The allocator's slack, the context and the libraries' workspaces come on top.
    """

    parameters: int
    """Parameters and buffers."""
    gradients: int
    optimizer: int
    activations: int
    """Peak of all other tensors."""
    peak: int


def memory_need(capture: Capture) -> MemoryNeed | None:
    """Return the memory of a captured step; None if the capture doesn't know when memory is
    freed."""
    held = capture.storages
    if held is None:
        return None
    known = held.parameters | held.gradients | held.optimizer
    peak = _peak_bytes(capture, held, frozenset())
    return MemoryNeed(
        parameters=_bytes(held, held.parameters),
        gradients=_bytes(held, held.gradients),
        optimizer=_bytes(held, held.optimizer),
        activations=_peak_bytes(capture, held, known),
        peak=peak,
    )


def known_memory(capture: Capture) -> str | None:
    """Describe the known memory of a recorded step in words; None if it trains nothing.

    Gradients say how large the parameters are that they are of. What an optimizer's calls take and
    none of them makes are parameters, gradients and its state. When activations come and go a
    record of operators doesn't say.
    """
    trained = sum(_rounded(each.tensor) for each in capture.gradients)
    if not trained:
        return None
    taken, made = dict[int, int](), set[int]()
    for call in capture.calls:
        if call.phase is Phase.OPTIMIZER and not call.on_host:
            for tensor in tensors_in(call.inputs.values()):
                if tensor.storage > 0 and tensor.storage not in made and tensor.shape:
                    taken.setdefault(tensor.storage, _rounded(tensor))
            made.update(tensor.storage for tensor in tensors_in(call.outputs))
    state = sum(taken.values()) - 2 * trained
    optimizer = (
        f"the optimiser's state {state:,}"
        if state >= 0 and taken
        else "the optimiser's state is not told"
    )
    return (
        f"Memory: parameters that are trained take {trained:,} bytes, gradients as many, "
        f"{optimizer}; when activations come and go is not recorded, so no peak is told."
    )


def _rounded(tensor: TensorInfo) -> int:
    return -(-tensor.elements * tensor.dtype.size // _BLOCK) * _BLOCK


def _bytes(held: Storages, storages: Iterable[int]) -> int:
    return sum(-(-held.bytes[each] // _BLOCK) * _BLOCK for each in storages)


def _peak_bytes(capture: Capture, held: Storages, without: frozenset[int]) -> int:
    """Return the peak of the storages that are not excluded, bytes."""
    alive = {each for each in held.at_begin if each not in without}
    total = _bytes(held, alive)
    most = total
    freed = iter(held.freed)
    gone = next(freed, None)
    for made, call in enumerate(capture.calls):
        while gone is not None and gone[0] <= made:
            if gone[1] in alive:
                alive.remove(gone[1])
                total -= _bytes(held, [gone[1]])
            gone = next(freed, None)
        if call.on_host or call.is_view:
            continue
        if call.move is not None and not call.move.to_gpu:
            left = alive.intersection(tensor.storage for tensor in tensors_in(call.outputs))
            alive -= left  # a module's parameter, which stays the object that it is
            total -= _bytes(held, left)
            continue
        for tensor in tensors_in(call.outputs):
            if tensor.storage not in alive and tensor.storage not in without:
                alive.add(tensor.storage)
                total += _bytes(held, [tensor.storage])
        most = max(most, total)
    return most
