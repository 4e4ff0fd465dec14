"""Emulates a GPU for a program that runs without one.

Tensors stay where they are when they are sent to a GPU: a capture takes every tensor for the GPU's,
except those that the program sends to the host within a step (`transfers.py`). Streams, events and
synchronization do nothing. Arrays and lists read from tensors without values contain ones.

Note [Who asks]: a program is told that there is a GPU with its tensors, so that it takes the same
path as on one. torch's own code is told the truth, since it would call what a CPU build lacks.
"""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils import clip_grad
from torch.optim import swa_utils
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from torchtraceap.lab.prediction.capture.modes import reported_device
from torchtraceap.lab.prediction.capture.source_lines import is_program_frame, is_torch_frame
from torchtraceap.lab.prediction.capture.transfers import (
    RequestedMove,
    is_constructor,
    move_module,
    move_tensor,
    requested_move,
)

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["emulate_gpu", "hide_fake_tensors"]

_GPUS = ("cuda", "xpu", "mps", "hip", "musa", "npu")
_OPTIMIZERS = "torch.optim."
_HOST = torch.device("cpu")
_GPU = torch.device("cuda", 0)


@contextmanager
def emulate_gpu(
    reads: Callable[[torch.Tensor], None],
    said: Callable[[str], None],
    recorder: Callable[[], Recorder | None] = lambda: None,
) -> Iterator[None]:
    """Run programs for GPUs on the host within the context.

    Args:
        reads: Called with each tensor without values that the program reads as a whole.
        said: Called with notes for a person.
        recorder: Returns the recorder of the running step, if any.
    """
    with ExitStack() as stack:
        for name, value in _IN_CUDA.items():
            stack.enter_context(_patched(torch.cuda, name, value))
        for name in ("range_push", "range_pop", "mark", "range"):
            stack.enter_context(_patched(torch.cuda.nvtx, name, _NoOp))
        stack.enter_context(_patched(torch.cuda, "is_available", _is_available))
        stack.enter_context(_patched(torch, "Generator", _Generator))
        stack.enter_context(_patched(torch, "set_default_device", _do_nothing))
        stack.enter_context(_patched(torch, "load", partial(_load, torch.load)))
        scaler = partialmethod(_init_scaler, torch.amp.GradScaler.__init__)
        stack.enter_context(_patched(torch.amp.GradScaler, "__init__", scaler))
        stack.enter_context(_patched(torch, "compile", partial(_skip_compilation, said)))
        stack.enter_context(torch.compiler.set_stance("force_eager"))  # of what is compiled already
        for module in [each for name, each in sys.modules.items() if name.startswith(_OPTIMIZERS)]:
            capturable = "_get_capturable_supported_devices"
            stack.enter_context(_patched(module, capturable, _constant(["cpu", "cuda"])))
        loader = partialmethod(_init_loader, DataLoader.__init__)
        stack.enter_context(_patched(DataLoader, "__init__", loader))
        # torch clips many tensors at once on a GPU by default.
        stack.enter_context(_patched(clip_grad, "_has_foreach_support", _are_dense))
        supported = "_get_foreach_kernels_supported_devices"
        stack.enter_context(_patched(swa_utils, supported, lambda: ["cpu"]))
        log = logging.getLogger("torch._subclasses.fake_tensor")
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)  # what goes wrong there is raised as well
        devices = _Devices(reads, recorder)
        # A tensor without values would read its elements one by one.
        stack.enter_context(
            _patched(FakeTensor, "tolist", lambda tensor: devices.read(tensor).tolist())
        )
        for name in ("to", "cpu", "cuda"):
            own = devices.module_move(name, getattr(torch.nn.Module, name))
            stack.enter_context(_patched(torch.nn.Module, name, own))
        # FakeTensor answers this itself, without calling the mode.
        stack.enter_context(_patched(FakeTensor, "device", property(devices.device_of)))
        stack.enter_context(devices)
        yield


@contextmanager
def hide_fake_tensors() -> Iterator[None]:
    """Hide fake tensors from transformers, which would build masks for a compiler."""
    module = sys.modules.get("transformers.utils.import_utils")
    if module is None or not hasattr(module, "is_fake_tensor"):
        yield
        return
    with _patched(module, "is_fake_tensor", lambda _: False):
        yield


@contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name, None)
    if before is None:
        yield
        return
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _NoOp:
    """A stream, event or context manager whose methods do nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        """Return 1 ms, since a program may divide by it."""
        return 1.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _do_nothing

    def __enter__(self) -> _NoOp:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


def _are_dense(tensors: Sequence[torch.Tensor | None], _: Any) -> bool:
    return all(each is None or each.layout == torch.strided for each in tensors)


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> Any:
        make: Any = super().__new__
        return make(cls, "cpu" if _is_gpu(device) else device)


def _skip_compilation(said: Callable[[str], None], model: Any = None, **_: Any) -> Any:
    """Replace `torch.compile` by its argument."""
    said("what torch.compile compiles is captured as if it was not compiled")
    return (lambda function: function) if model is None else model


def _is_available() -> bool:
    """Return whether CUDA is available; see Note [Who asks]."""
    return not is_torch_frame(sys._getframe(1))


def _load(load: Callable[..., Any], file: Any, map_location: Any = None, **kwargs: Any) -> Any:
    if callable(map_location) or isinstance(map_location, dict):
        map_location = None
    return load(file, _HOST if _is_gpu(map_location) else map_location or _HOST, **kwargs)


def _init_scaler(
    self: Any, begin: Callable[..., None], device: str = "cuda", *args: Any, **kwargs: Any
) -> None:
    """Keep a gradient scaler enabled although there is no GPU."""
    begin(self, "cpu" if _is_gpu(device) else device, *args, **kwargs)


_WORKER_OPTIONS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def _init_loader(self: Any, begin: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Load in this process, since tensors without values can't cross processes."""
    kwargs = {name: value for name, value in kwargs.items() if name not in _WORKER_OPTIONS}
    if len(args) > _PLACE_OF_WORKERS:
        args = (*args[:_PLACE_OF_WORKERS], 0, *args[_PLACE_OF_WORKERS + 1 :])
    else:
        kwargs["num_workers"] = 0
    if "pin_memory" in kwargs:
        kwargs["pin_memory"] = False
    begin(self, *args, **kwargs)


_PLACE_OF_WORKERS = 5
"""Position of num_workers among the arguments of DataLoader."""
_MEMORY = 80 << 30
_PROPERTIES = types.SimpleNamespace(
    name="NVIDIA GPU", major=8, minor=0, total_memory=_MEMORY, multi_processor_count=108
)
"""Properties of a typical GPU.

They decide nothing but kernels, which are chosen later for the requested device.
"""


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


_IN_CUDA: dict[str, Any] = {
    **dict.fromkeys(
        ("Stream", "Event", "stream", "current_stream", "default_stream", "device"), _NoOp
    ),
    # Distinct functions, since torch.compile identifies them by the object.
    **{
        name: partial(_do_nothing)
        for name in [
            "synchronize",
            "empty_cache",
            "set_device",
            "init",
            "ipc_collect",
            "manual_seed",
            "manual_seed_all",
            "reset_peak_memory_stats",
            "set_rng_state",
            "set_rng_state_all",
        ]
    },
    **{
        name: _constant(0)
        for name in [
            "current_device",
            "memory_allocated",
            "max_memory_allocated",
            "memory_reserved",
            "max_memory_reserved",
        ]
    },
    "device_count": _constant(1),
    "get_device_name": _constant(_PROPERTIES.name),
    "get_device_capability": _constant((_PROPERTIES.major, _PROPERTIES.minor)),
    "get_device_properties": _constant(_PROPERTIES),
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "is_bf16_supported": _constant(True),
    "mem_get_info": _constant((_MEMORY, _MEMORY)),
}


class _Devices(TorchFunctionMode):
    """A mode that puts tensors on the host wherever a program names a GPU."""

    def __init__(
        self, reads: Callable[[torch.Tensor], None], recorder: Callable[[], Recorder | None]
    ) -> None:
        super().__init__()
        self._reads, self._recorder = reads, recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _GETTERS:
            return self._reported(args[0], func(*args), sys._getframe(1))
        args = self._place_first_argument(func, args, kwargs, sys._getframe(1))
        if func in _STAYS:
            return args[0]
        if func in _READS and isinstance(args[0], FakeTensor):
            return self.read(args[0])
        if is_constructor(func, args) and _is_gpu(kwargs.get("device")):
            made = func(*args, **{**kwargs, "device": _HOST})
            return self._upload(made) if is_program_frame(sys._getframe(1)) else made
        if "device" in kwargs and _is_gpu(kwargs["device"]):
            kwargs = {**kwargs, "device": _HOST}
        if any(isinstance(each, torch.device) and _is_gpu(each) for each in args):
            args = tuple(_HOST if isinstance(a, torch.device) and _is_gpu(a) else a for a in args)
        elif func is torch.Tensor.to and len(args) > 1 and _is_gpu(args[1]):
            args = (args[0], _HOST, *args[2:])
        return func(*args, **kwargs)

    def device_of(self, tensor: FakeTensor) -> torch.device:
        """Return the device that a tensor without values reports."""
        found = reported_device(tensor)
        told = self._reported(tensor, found, sys._getframe(1))
        assert isinstance(told, torch.device)
        return told

    def _reported(
        self, tensor: torch.Tensor, found: bool | torch.device, asks: FrameType
    ) -> bool | torch.device:
        """Return the reported or the true device; see Note [Who asks]."""
        is_true = not is_program_frame(asks) or self._is_on_host(tensor)
        if is_true:
            return found
        return True if isinstance(found, bool) else _GPU if found == _HOST else found

    def _active_recorder(self) -> Recorder | None:
        """Return the recorder while the step runs, else None."""
        recorder = self._recorder()
        return recorder if recorder is not None and recorder.in_step else None

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        recorder = self._active_recorder()
        return recorder is not None and recorder.is_kept_on_host(tensor)

    def _place_first_argument(
        self, func: Any, args: tuple[Any, ...], kwargs: Any, caller: FrameType
    ) -> tuple[Any, ...]:
        """Return the arguments, the first one moved to the side that the call asks for."""
        recorder = self._active_recorder()
        if recorder is None or not args or not isinstance(args[0], torch.Tensor):
            return args
        on_host = recorder.is_kept_on_host(args[0])
        if func is torch.Tensor.pin_memory and on_host:
            recorder.pin(args[0])
        requested = requested_move(func, args, kwargs)
        if requested is None or not is_program_frame(caller):
            return args
        device = requested.device
        to_gpu = (
            not self._is_on_host(device) if isinstance(device, torch.Tensor) else _is_gpu(device)
        )
        if to_gpu != on_host:
            return args
        return (move_tensor(recorder, args[0], to_gpu, requested), *args[1:])

    def module_move(self, name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of `Module.to`, `cpu` or `cuda` that moves parameters within a
        step."""

        def moves(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            recorder = self._active_recorder()
            if recorder is None:
                return usual(module, *args, **kwargs)
            if name != "to":
                move_module(recorder, module, name == "cuda", non_blocking=False)
                return module
            with torch._C.DisableTorchFunction():  # or the GPU would be replaced
                device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
            if device is not None:
                move_module(recorder, module, _is_gpu(device), non_blocking=non_blocking)
            if dtype is not None:
                usual(module, dtype)
            return module if layout is None else usual(module, memory_format=layout)

        return moves

    def _upload(self, made: torch.Tensor) -> torch.Tensor:
        recorder = self._active_recorder()
        if recorder is None:
            return made
        recorder.move_to_host(made)
        return move_tensor(recorder, made, True, RequestedMove(_GPU, False))

    def read(self, tensor: torch.Tensor) -> Any:
        """Return an array of ones in place of the values."""
        from torch.utils._python_dispatch import _disable_current_modes

        self._reads(tensor)
        plain = torch.float32 if tensor.dtype is torch.bfloat16 else tensor.dtype
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return torch.ones((), dtype=plain).expand(tensor.shape).clone().numpy()


_GETTERS = frozenset(getattr(torch.Tensor, name).__get__ for name in ("device", "is_cuda"))


_STAYS = (torch.Tensor.cuda, torch.Tensor.pin_memory)
_READS = (torch.Tensor.numpy, torch.Tensor.__array__)


def _is_gpu(device: Any) -> bool:
    """Return whether a device argument names a GPU; a plain number does."""
    if isinstance(device, bool):
        return False
    if isinstance(device, torch.device):
        return device.type in _GPUS
    return isinstance(device, int) or (isinstance(device, str) and device.startswith(_GPUS))
