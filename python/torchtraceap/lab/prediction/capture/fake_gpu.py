"""Emulates a GPU for a program that runs without one.

Tensors stay where they are when they are sent to a GPU: a capture takes every tensor for the GPU's,
except those that the program sends to the host within a step (Note [What is moved]). Streams,
events and synchronization do nothing. Arrays and lists read from tensors without values contain
ones.

Note [What is moved]: tensors that the program sends to the host (`x.cpu()`, `x.to("cpu")`,
`module.cpu()`) are on the host from then on, with results computed from them alone, until they are
sent back; each way is a copy. A tensor made of Python numbers on a GPU (`torch.tensor(2.0,
device="cuda")`) is made on the host and copied. Moves before the step, and those of torch's own
code to a tensor's reported device (Note [Who asks]), don't count.

Note [Who asks]: a program is told that there is a GPU with its tensors, so that it takes the same
path as on one. torch's own code is told the truth, since it would call what a CPU build lacks.
"""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
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

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["emulate_gpu", "hide_fake_tensors"]

_GPUS = ("cuda", "xpu", "mps", "hip", "musa", "npu")
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
    devices = _Devices(reads, recorder)
    init_scaler = partialmethod(_init_scaler, torch.amp.GradScaler.__init__)
    patches: list[tuple[Any, str, Any]] = [
        *((torch.cuda, name, value) for name, value in _IN_CUDA.items()),
        *((torch.cuda.nvtx, name, _NoOp) for name in ("range_push", "range_pop", "mark", "range")),
        (torch.cuda, "is_available", _is_available),
        (torch, "Generator", _Generator),
        (torch, "set_default_device", _do_nothing),
        (torch, "load", partial(_load_to_host, torch.load)),
        (torch.amp.GradScaler, "__init__", init_scaler),
        (torch, "compile", partial(_skip_compilation, said)),
        *(
            (module, "_get_capturable_supported_devices", _constant(["cpu", "cuda"]))
            for name, module in list(sys.modules.items())
            if name.startswith("torch.optim.")
        ),
        (DataLoader, "__init__", partialmethod(_init_loader, DataLoader.__init__)),
        # torch clips many tensors at once on a GPU by default.
        (clip_grad, "_has_foreach_support", _are_dense),
        (swa_utils, "_get_foreach_kernels_supported_devices", lambda: ["cpu"]),
        # A tensor without values would read its elements one by one.
        (FakeTensor, "tolist", lambda tensor: devices.read(tensor).tolist()),
        *(
            (torch.nn.Module, name, devices.module_move(name, getattr(torch.nn.Module, name)))
            for name in ("to", "cpu", "cuda")
        ),
        # FakeTensor answers this itself, without calling the mode.
        (FakeTensor, "device", property(devices.device_of)),
    ]
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(_patched(owner, name, value))
        stack.enter_context(torch.compiler.set_stance("force_eager"))  # of what is compiled already
        stack.callback(log.setLevel, level)
        log.setLevel(logging.CRITICAL)  # what goes wrong there is raised as well
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


def _load_to_host(load: Callable[..., Any], file: Any, map_location: Any = None, **kw: Any) -> Any:
    if callable(map_location) or isinstance(map_location, dict) or _is_gpu(map_location):
        map_location = None
    return load(file, map_location or _HOST, **kw)


def _init_scaler(
    self: Any, begin: Callable[..., None], device: str = "cuda", *args: Any, **kwargs: Any
) -> None:
    """Keep a gradient scaler enabled although there is no GPU."""
    begin(self, "cpu" if _is_gpu(device) else device, *args, **kwargs)


_WORKER_OPTIONS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


_PLACE_OF_WORKERS = 5
"""Position of num_workers among the arguments of DataLoader."""


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


_MEMORY = 80 << 30
_PROPERTIES = types.SimpleNamespace(
    name="NVIDIA GPU", major=8, minor=0, total_memory=_MEMORY, multi_processor_count=108
)
"""Properties of a typical GPU.

They decide nothing but kernels, which are chosen later for the requested device.
"""


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


_SILENT_FUNCTIONS = """
synchronize empty_cache set_device init ipc_collect manual_seed manual_seed_all
reset_peak_memory_stats set_rng_state set_rng_state_all
"""
_COUNTERS = """
current_device memory_allocated max_memory_allocated memory_reserved max_memory_reserved
"""
_IN_CUDA: dict[str, Any] = {
    **dict.fromkeys(
        ("Stream", "Event", "stream", "current_stream", "default_stream", "device"), _NoOp
    ),
    # Distinct functions, since torch.compile identifies them by the object.
    **{name: partial(_do_nothing) for name in _SILENT_FUNCTIONS.split()},
    **{name: _constant(0) for name in _COUNTERS.split()},
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
        if args and isinstance(args[0], torch.Tensor):
            args = (self._move_first_argument(func, args, kwargs, sys._getframe(1)), *args[1:])
        if func in _STAYS:
            return args[0]
        if func in _READS and isinstance(args[0], FakeTensor):
            return self.read(args[0])
        is_constructor = func in _MADE_OF_NUMBERS and args and not isinstance(args[0], torch.Tensor)
        if is_constructor and _is_gpu(kwargs.get("device")):
            made = func(*args, **{**kwargs, "device": _HOST})
            recorder = self._active_recorder()
            if recorder is None or not is_program_frame(sys._getframe(1)):
                return made
            recorder.move_to_host(made)
            return _move_tensor(recorder, made, to_gpu=True, non_blocking=False)
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
        if not is_program_frame(asks) or self._is_on_host(tensor):
            return found
        return True if isinstance(found, bool) else _GPU if found == _HOST else found

    def _active_recorder(self) -> Recorder | None:
        """Return the recorder while the step runs, else None."""
        recorder = self._recorder()
        return recorder if recorder is not None and recorder.in_step else None

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        recorder = self._active_recorder()
        return recorder is not None and recorder.is_kept_on_host(tensor)

    def _move_first_argument(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], caller: FrameType
    ) -> torch.Tensor:
        """Return the first argument, moved to the side that the call asks for."""
        tensor: torch.Tensor = args[0]
        recorder = self._active_recorder()
        if recorder is None:
            return tensor
        on_host = recorder.is_kept_on_host(tensor)
        if func is torch.Tensor.pin_memory and on_host:
            recorder.pin(tensor)
        device: Any
        if func is torch.Tensor.cpu:
            device, place = "cpu", len(args)
        elif func is torch.Tensor.cuda:
            device, place = "cuda", 2
        elif func is torch.Tensor.to:
            device = kwargs.get("device", args[1] if len(args) > 1 else kwargs.get("other"))
            place = 2 if isinstance(device, torch.Tensor) else 3
        else:
            return tensor
        is_named = device is not None and not isinstance(device, torch.dtype)
        if not is_named or not is_program_frame(caller):
            return tensor
        to_gpu = (
            not self._is_on_host(device) if isinstance(device, torch.Tensor) else _is_gpu(device)
        )
        if to_gpu != on_host:
            return tensor
        behind = kwargs.get("non_blocking", args[place] if len(args) > place else False)
        non_blocking = bool(behind) and func is not torch.Tensor.cpu
        return _move_tensor(recorder, tensor, to_gpu=to_gpu, non_blocking=non_blocking)

    def module_move(self, name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of `Module.to`, `cpu` or `cuda` that moves parameters within a
        step."""

        def moves(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            recorder = self._active_recorder()
            if recorder is None:
                return usual(module, *args, **kwargs)
            if name != "to":
                _move_module(recorder, module, name == "cuda", non_blocking=False)
                return module
            with torch._C.DisableTorchFunction():  # or the GPU would be replaced
                device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
            if device is not None:
                _move_module(recorder, module, _is_gpu(device), non_blocking=non_blocking)
            if dtype is not None:
                usual(module, dtype)
            return module if layout is None else usual(module, memory_format=layout)

        return moves

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
_MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray)


def _is_gpu(device: Any) -> bool:
    """Return whether a device argument names a GPU; a plain number does."""
    if isinstance(device, bool):
        return False
    if isinstance(device, torch.device):
        return device.type in _GPUS
    return isinstance(device, int) or (isinstance(device, str) and device.startswith(_GPUS))


# ------------------------------------------------------------------------------- moves


def _move_tensor(
    recorder: Recorder, tensor: torch.Tensor, *, to_gpu: bool, non_blocking: bool
) -> torch.Tensor:
    """Return the tensor on the other side and record the copy; its gradient is copied back."""
    if tensor.requires_grad and torch.is_grad_enabled():
        found: torch.Tensor = ToCopy.apply(tensor, recorder, to_gpu, non_blocking)
        return found
    return _copy(recorder, tensor, to_gpu, non_blocking)


def _move_module(
    recorder: Recorder, module: torch.nn.Module, to_gpu: bool, *, non_blocking: bool
) -> None:
    """Move parameters and buffers that are on the other side, with one copy each.

    torch would exchange a parameter's object for one without values, which it can't where somebody
    holds on to it; so each stays the object that it is.
    """
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if recorder.is_kept_on_host(tensor) == to_gpu:
                recorder.write_move(tensor, tensor, to_gpu=to_gpu, non_blocking=non_blocking)


class ToCopy(torch.autograd.Function):
    """A differentiable copy whose node has the name of autograd's own."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, recorder: Recorder, to_gpu: bool, non_blocking: bool
    ) -> torch.Tensor:
        ctx.moved = recorder, to_gpu, non_blocking
        return _copy(recorder, tensor, to_gpu, non_blocking)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        recorder, to_gpu, non_blocking = ctx.moved
        if recorder.is_kept_on_host(gradient) == to_gpu:  # it is there already
            return gradient, None, None, None
        return _copy(recorder, gradient, not to_gpu, non_blocking), None, None, None


def _copy(
    recorder: Recorder, tensor: torch.Tensor, to_gpu: bool, non_blocking: bool
) -> torch.Tensor:
    with recorder.paused():
        made = tensor.detach().clone()
    recorder.write_move(tensor, made, to_gpu=to_gpu, non_blocking=non_blocking)
    return made
