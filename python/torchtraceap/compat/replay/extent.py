"""Bound how much a call makes before it runs: by a run on tensors that have sizes and no memory.

PyTorch's device "meta" runs the shape calculation of an operator and of all that it is composed
of. Only where that tells nothing (results whose size depends on values) the numbers among the
arguments bound it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchtraceap.compat.replay.call import (
    MAX_BYTES,
    MAX_PIECES,
    MAX_STEPS,
    TOO_LARGE,
    NotReplayableError,
)
from torchtraceap.compat.replay.plan import CallPlan, DeviceName, Make, TorchName

__all__ = ["made_bytes"]

# Split along an axis into pieces: the name of the argument that says how long a piece is.
_SPLITS = {
    "split.Tensor": "split_size",
    "split_copy.Tensor": "split_size",
    "unbind.int": None,
    "unbind_copy.int": None,
    "unsafe_split.Tensor": "split_size",
}
_LARGEST_ELEMENT = 16


def made_bytes(plan: CallPlan) -> int:
    """The most bytes that one step of the call makes.

    Raises:
        NotReplayableError: More than is bounded, or more steps.
    """
    steps = _Steps()
    operator = plan.operator
    try:
        namespace = getattr(torch.ops, operator.namespace)
        overload = getattr(getattr(namespace, operator.name), operator.overload or "default")
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            positional = [_without_memory(node) for _, node in plan.positional]
            named = {name: _without_memory(node) for name, node in plan.keyword}
            with torch.no_grad(), steps:
                overload(*positional, **named)
    except Exception:
        # Torch's shape calculations raise all kinds of errors: for arguments that do not fit,
        # which the call itself will say, and for sizes that depend on values.
        if steps.refusal is None:
            return max(steps.largest, _bound_by_numbers(plan))
    if steps.refusal is not None:
        raise NotReplayableError(steps.refusal)
    return steps.largest


def _without_memory(node: Any) -> Any:
    if isinstance(node, Make):
        dtype = getattr(torch, node.dtype)
        return torch.empty_strided(node.shape, node.strides, dtype=dtype, device="meta")
    if isinstance(node, TorchName):
        return getattr(torch, node.name)
    if isinstance(node, DeviceName):
        return "meta"
    return [_without_memory(inner) for inner in node] if isinstance(node, list) else node


class _Steps(TorchDispatchMode):
    """A counter of the operators below a call, which bounds the memory that each makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.refusal: str | None = None
        self._count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self._count += 1
        if self._count > MAX_STEPS:
            self._refuse(f"it takes more than {MAX_STEPS} operators below it")
        if _pieces(func, args, kwargs or {}) > MAX_PIECES:
            self._refuse(f"it makes more than {MAX_PIECES} tensors")
        before = _storages((args, kwargs or {}))
        results = func(*args, **(kwargs or {}))
        after = _storages(results)
        size = sum(max(after[key] - before.get(key, 0), 0) for key in after)
        # Elements that strides of 0 repeat count as well.
        elements = (tensor.numel() * tensor.element_size() for tensor in _tensors(results))
        seen = int(max(elements, default=0))
        if max(size, seen) > MAX_BYTES:
            self._refuse(f"it makes {max(size, seen) / 2**30:.3g} GiB: {TOO_LARGE}")
        self.largest = max(self.largest, size)
        return results

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        raise NotReplayableError(reason)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tensors(inner)


def _storages(value: Any) -> dict[int, int]:
    """Return the storages of tensors and their bytes: an output may grow."""
    storages = (tensor.untyped_storage() for tensor in _tensors(value))
    return {storage._cdata: storage.nbytes() for storage in storages}


def _pieces(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the number of tensors that a split makes; 1 for all else."""
    name = func.__name__
    if name not in _SPLITS:
        return 1
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    tensor, axis = given["self"], given.get("dim", 0)
    if not -tensor.dim() <= axis < tensor.dim():
        return 1
    length = max(given[_SPLITS[name]], 1) if _SPLITS[name] else 1
    return -(-int(tensor.shape[axis]) // length)


def _bound_by_numbers(plan: CallPlan) -> int:
    """Return the bytes of a result whose sizes are numbers among the arguments.

    Raises:
        NotReplayableError: More than is bounded.
    """
    nodes = [node for _, node in (*plan.positional, *plan.keyword)]
    numbers = [number for node in nodes for number in _whole_numbers(node)]
    size = math.prod(max(number, 1) for number in numbers) * _LARGEST_ELEMENT
    if size > MAX_BYTES:
        raise NotReplayableError(
            "what it makes cannot be told before it runs, and the numbers among its arguments "
            f"allow {TOO_LARGE}"
        )
    return size


def _whole_numbers(node: Any) -> list[int]:
    if isinstance(node, list):
        return [number for inner in node for number in _whole_numbers(inner)]
    return [node] if type(node) is int else []
