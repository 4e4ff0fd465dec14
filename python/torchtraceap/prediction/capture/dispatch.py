"""A step run on tensors without values, every operator that reaches the dispatcher written down.

Note [Where it is caught]: below autograd, where composite operators have come apart into those
that a device implements. What torch takes apart in another way on a GPU is caught above, where it
is still whole: attention and dropout, which on a CPU become several operators (`whole.py`).

Note [Steady state]: the first step of an optimiser makes its state. So a training step is run
twice, and the second is written down.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torchtraceap.dtypes import DType, dtype_named
from torchtraceap.errors import MissingDependencyError
from torchtraceap.prediction.capture.calls import (
    Call,
    Capture,
    CaptureError,
    Phase,
    TensorInfo,
    Value,
    tensors_in,
)
from torchtraceap.prediction.workload import Workload, made_workload

if TYPE_CHECKING:
    import torch

__all__ = ["Recorder", "capture_step"]

_IN_NAMES = re.compile(r"[^\w.\[\]-]+")


def capture_step(make: Callable[[], Any]) -> Capture:
    """The calls of one step of a workload, of which nothing is computed.

    Args:
        make: Makes the workload, see `Workload`. Large tensors that it makes take no memory.

    Raises:
        OptionError: It makes no workload.
        CaptureError: The model needs values that fake tensors don't have.
    """
    _require_torch()
    from torchtraceap.prediction.capture.values import ValuesMode

    with ValuesMode() as values:
        workload = made_workload(make())
        values.forget_parameters(workload.model)
        recorder = values.recorder = Recorder()
        with recorder.recording():
            _run(workload, recorder)
    return Capture(tuple(recorder.calls), tuple(recorder.notes))


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "a capture runs the model, for which torch is needed"
        ) from error


def _run(workload: Workload, recorder: Recorder) -> None:
    import torch

    if workload.loss is None:
        workload.model.eval()
        with torch.no_grad():  # inference mode would keep composite operators in one piece
            workload.forward()
        return
    workload.model.train()
    optimizer = None
    if workload.optimizer is not None:
        optimizer = workload.optimizer(workload.model.parameters())
        _as_on_a_gpu(optimizer)
    for _ in range(2 if optimizer else 1):  # see Note [Steady state]
        recorder.calls.clear()
        with recorder.in_phase(Phase.OPTIMIZER):
            workload.model.zero_grad()
        loss = workload.loss(workload.forward())
        with recorder.in_phase(Phase.BACKWARD):
            loss.backward()
        if optimizer is not None:
            with recorder.in_phase(Phase.OPTIMIZER):
                optimizer.step()
            recorder.keep_on_host(_counts(optimizer))


def _as_on_a_gpu(optimizer: torch.optim.Optimizer) -> None:
    """On a GPU torch updates many tensors at once unless told otherwise; on a CPU it does not."""
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True


def _counts(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """How many steps each parameter has seen: torch keeps that on the host, unless the optimiser is
    fused or is to be captured in a CUDA graph."""
    on_gpu = {
        id(parameter)
        for group in optimizer.param_groups
        if group.get("fused") or group.get("capturable")
        for parameter in group["params"]
    }
    for parameter, state in optimizer.state.items():
        if "step" in state and id(parameter) not in on_gpu and hasattr(state["step"], "stride"):
            yield state["step"]


class Recorder:
    """Writes down calls while `recording()`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.notes: dict[str, None] = {}
        """What was assumed; each once, in order."""
        self._phase = Phase.FORWARD
        self._modules: list[str] = []
        self._storages = _Storages()
        self._on_host: set[int] = set()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Of what is called within."""
        from torchtraceap.prediction.capture.modes import dispatch_mode
        from torchtraceap.prediction.capture.whole import whole_calls

        with ExitStack() as stack:
            stack.enter_context(self._watched_modules())
            stack.enter_context(whole_calls(self))
            stack.enter_context(dispatch_mode(self))
            yield

    @contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """What is called within belongs to this part of the step."""
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    @contextmanager
    def _watched_modules(self) -> Iterator[None]:
        from torch.nn.modules import module as hooks

        def enter(module: torch.nn.Module, _: Any) -> None:
            self._modules.append(type(module).__name__)

        def leave(*_: Any) -> None:
            self._modules.pop()

        entered = hooks.register_module_forward_pre_hook(enter)
        left = hooks.register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            entered.remove()
            left.remove()

    def keep_on_host(self, tensors: Iterable[torch.Tensor]) -> None:
        """These are on the host even where the model is on a GPU."""
        self._on_host.update(map(self._storages.number, tensors))

    def note(self, text: str) -> None:
        """Something was assumed."""
        self.notes[text] = None

    def write(
        self,
        name: str,
        overload: str,
        inputs: dict[str, Any],
        outputs: tuple[Any, ...],
        *,
        is_view: bool = False,
    ) -> None:
        """Writes a call down.

        Args:
            name: As Kineto names the operator.
            overload: Of its schema.
            inputs: By names of the schema.
            outputs: What it returned.
            is_view: It computes nothing.
        """
        given = {key: self._value(value) for key, value in inputs.items()}
        made = tuple(map(self._value, outputs))
        on_host = self._stays_on_host([*tensors_in((*given.values(), *made))])
        self.calls.append(
            Call(name, overload, given, made, self._phase, tuple(self._modules), is_view, on_host)
        )

    def _stays_on_host(self, tensors: Sequence[TensorInfo]) -> bool:
        """Single numbers of the host meet others; with a tensor of a GPU they go to the GPU."""
        is_number = all(not tensor.shape for tensor in tensors)
        return is_number and any(tensor.storage in self._on_host for tensor in tensors)

    def _value(self, value: Any) -> Value:
        import torch

        if isinstance(value, torch.Tensor):
            return TensorInfo(
                tuple(map(int, value.shape)),
                tuple(map(int, value.stride())) if value.layout == torch.strided else (),
                _dtype(value.dtype),
                self._storages.number(value),
            )
        if isinstance(value, (list, tuple)):
            return tuple(map(self._value, value))
        if isinstance(value, (bool, int, float, str)) or value is None:
            return value
        if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
            raise CaptureError("a size that depends on values can't be captured without them")
        return _IN_NAMES.sub(" ", str(value))[:100]


class _Storages:
    """Numbers of storages. Those that are gone lose theirs: their place in memory is used again."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._count = 0

    def number(self, tensor: torch.Tensor) -> int:
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._numbers.get(key)
        if known is not None and not known[1].expired():
            return known[0]
        self._count += 1
        self._numbers[key] = self._count, StorageWeakRef(storage)
        return self._count


def _dtype(dtype: torch.dtype) -> DType:
    found = dtype_named(str(dtype))
    if found is None:
        raise CaptureError(f"tensors of {dtype} are not known")
    return found
