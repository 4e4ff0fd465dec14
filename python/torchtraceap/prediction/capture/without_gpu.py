"""What a program asks of a GPU, answered where there is none.

Tensors stay where they are when they are sent to a GPU: a capture takes everything for a GPU's.
Streams, events and synchronisation do nothing. What a program reads of tensors without values as an
array or a list is ones.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils import clip_grad
from torch.optim import swa_utils
from torch.overrides import TorchFunctionMode

__all__ = ["as_if_on_a_gpu", "taken_for_plain_tensors"]

_GPUS = ("cuda", "xpu", "mps", "hip", "musa", "npu")
_HOST = torch.device("cpu")


@contextmanager
def as_if_on_a_gpu(reads: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Within, programs for GPUs run on the host.

    Args:
        reads: Told of each tensor without values that the program reads as a whole.
    """
    with ExitStack() as stack:
        for name, value in _IN_CUDA.items():
            stack.enter_context(_replaced(torch.cuda, name, value))
        stack.enter_context(_replaced(torch, "Generator", _Generator))
        # Many tensors at once, as torch does on a GPU where it is not told otherwise.
        stack.enter_context(_replaced(clip_grad, "_has_foreach_support", _are_dense))
        supported = "_get_foreach_kernels_supported_devices"
        stack.enter_context(_replaced(swa_utils, supported, lambda: ["cpu"]))
        log = logging.getLogger("torch._subclasses.fake_tensor")
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)  # what goes wrong there is raised as well
        devices = _Devices(reads)
        # A tensor without values would read its elements one by one.
        stack.enter_context(
            _replaced(FakeTensor, "tolist", lambda tensor: devices.read(tensor).tolist())
        )
        stack.enter_context(devices)
        yield


@contextmanager
def taken_for_plain_tensors() -> Iterator[None]:
    """Within, transformers does not take tensors without values for those of a compiler, for which
    it would build other masks."""
    module = sys.modules.get("transformers.utils.import_utils")
    if module is None or not hasattr(module, "is_fake_tensor"):
        yield
        return
    with _replaced(module, "is_fake_tensor", lambda _: False):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name, None)
    if before is None:
        yield
        return
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _Nothing:
    """A stream, an event or a guard of either: every method does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _are_dense(tensors: Sequence[torch.Tensor | None], _: Any) -> bool:
    return all(each is None or each.layout == torch.strided for each in tensors)


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> Any:
        make: Any = super().__new__
        return make(cls, "cpu" if _is_gpu(device) else device)


_IN_CUDA: dict[str, Any] = {
    **dict.fromkeys(("Stream", "Event", "stream", "current_stream", "default_stream"), _Nothing),
    # Functions of their own: torch.compile tells what it finds by the object.
    **{
        name: partial(_nothing)
        for name in ("synchronize", "empty_cache", "set_device", "reset_peak_memory_stats")
    },
}


class _Devices(TorchFunctionMode):
    """Puts the host wherever a GPU is named."""

    def __init__(self, reads: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _STAYS:
            return args[0]
        if func in _READS and isinstance(args[0], FakeTensor):
            return self.read(args[0])
        if "device" in kwargs and _is_gpu(kwargs["device"]):
            kwargs = {**kwargs, "device": _HOST}
        if any(isinstance(each, torch.device) and _is_gpu(each) for each in args):
            args = tuple(_HOST if isinstance(a, torch.device) and _is_gpu(a) else a for a in args)
        elif func is torch.Tensor.to and len(args) > 1 and _is_gpu(args[1]):
            args = (args[0], _HOST, *args[2:])
        return func(*args, **kwargs)

    def read(self, tensor: torch.Tensor) -> Any:
        """Ones, as an array."""
        from torch.utils._python_dispatch import _disable_current_modes

        self._reads(tensor)
        plain = torch.float32 if tensor.dtype is torch.bfloat16 else tensor.dtype
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return torch.ones((), dtype=plain).expand(tensor.shape).clone().numpy()


_STAYS = (torch.Tensor.cuda, torch.Tensor.pin_memory)
_READS = (torch.Tensor.numpy, torch.Tensor.__array__)


def _is_gpu(device: Any) -> bool:
    """Whether something names a GPU; a bare number does."""
    if isinstance(device, bool):
        return False
    if isinstance(device, torch.device):
        return device.type in _GPUS
    return isinstance(device, int) or (isinstance(device, str) and device.startswith(_GPUS))
