"""How much memory a step needs, from when its tensors come and go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchtraceap.prediction.capture.calls import Capture, Storages, tensors_in
from torchtraceap.results import Result

__all__ = ["MemoryNeed", "memory_need"]

_BLOCK = 512
"""The allocator of CUDA rounds up to it."""


@dataclass(frozen=True, slots=True)
class MemoryNeed(Result):
    """Bytes of a GPU's memory that the tensors of a step take. The allocator's slack, the context
    and the libraries' workspaces come on top."""

    parameters: int
    """Buffers included."""
    gradients: int
    optimizer: int
    activations: int
    """The most that all other tensors take at once."""
    peak: int


def memory_need(capture: Capture) -> MemoryNeed | None:
    """Of a captured step; None where the capture does not know when memory is freed."""
    held = capture.storages
    if held is None:
        return None
    known = held.parameters | held.gradients | held.optimizer
    peak = _most(capture, held, frozenset())
    return MemoryNeed(
        parameters=_bytes(held, held.parameters),
        gradients=_bytes(held, held.gradients),
        optimizer=_bytes(held, held.optimizer),
        activations=_most(capture, held, known),
        peak=peak,
    )


def _bytes(held: Storages, storages: Iterable[int]) -> int:
    return sum(-(-held.bytes[each] // _BLOCK) * _BLOCK for each in storages)


def _most(capture: Capture, held: Storages, without: frozenset[int]) -> int:
    """The most bytes at once, of storages that are not left out."""
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
        for tensor in tensors_in(call.outputs):
            if tensor.storage not in alive and tensor.storage not in without:
                alive.add(tensor.storage)
                total += _bytes(held, [tensor.storage])
        most = max(most, total)
    return most
