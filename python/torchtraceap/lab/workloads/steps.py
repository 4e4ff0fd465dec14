"""Repeatable steps of a workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.workloads.registry import Source, find
from torchtraceap.lab.workloads.workload import Workload, check_workload

if TYPE_CHECKING:
    import torch

__all__ = ["MODES", "PRECISIONS", "Step", "make_step", "on_device"]

MODES = ("train", "eval")
PRECISIONS = ("fp32", "tf32", "bf16")


class _Runnable(Protocol):
    """An object that makes steps, of a workload or of a TorchBench model."""

    batch: int | None
    model: Any

    def step(self) -> Any: ...


class Step:
    """A step that can run repeatedly. As a context manager, or with `close()`, it restores settings
    of torch."""

    def __init__(self, runs: _Runnable, device: torch.device, settings: ExitStack) -> None:
        self.batch = runs.batch
        """Samples in a step; None where nothing says."""
        self.model = runs.model
        """The module that is run, on its device; None of a TorchBench model without one."""
        self.device = device
        self._runs: _Runnable | None = runs
        self._settings = settings

    def step(self) -> Any:
        """Run a step and return its loss, or the model's output; a GPU may still be working on it.

        Raises:
            OptionError: It is closed.
        """
        if self._runs is None:
            raise OptionError("this step is closed")
        return self._runs.step()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Restore settings of torch, and release model and data."""
        self._runs, self.model = None, None
        self._settings.close()

    def __enter__(self) -> Step:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def make_step(
    workload: str | Source | Workload | Mapping[str, Any],
    *,
    mode: str = "train",
    device: str = "cpu",
    precision: str = "fp32",
    compiled: bool = False,
    batch: int | None = None,
    size: str = "tiny",
) -> Step:
    """Make a step of a workload that is ready to run.

    A step of training is forward, loss, backward, optimiser, and gradients set to None; one of
    evaluation is a forward pass under `inference_mode`.

    Args:
        workload: Its name (`registry.find`), or what was found or made.
        mode: "train" or "eval".
        device: "cpu", "cuda" or "cuda:1".
        precision: "fp32" (on a GPU without TF32 anywhere), "tf32" (a GPU's matrix products and
            convolutions), "bf16" (by autocast: weights stay in fp32).
        compiled: The model goes through `torch.compile`.
        batch: Samples in a step; None: as the workload comes.
        size: "tiny" or "full", where the workload has both.

    Raises:
        OptionError: There is no such workload, or it can't be run so here.
        MissingDependencyError: It needs what is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("a workload is run by torch, which is not there") from error
    if mode not in MODES:
        raise OptionError(f"a step is {' or '.join(MODES)}, not {mode!r}")
    if precision not in PRECISIONS:
        raise OptionError(f"a precision is one of {', '.join(PRECISIONS)}, not {precision!r}")
    target = _device(device)
    if precision == "tf32" and target.type != "cuda":
        raise OptionError("tf32 is a mode of NVIDIA's tensor cores: on a CPU take fp32 or bf16")
    if isinstance(workload, str):
        workload = find(workload)
    with ExitStack() as settings:
        if target.type == "cuda":
            settings.enter_context(_tf32(precision == "tf32"))
        runs: _Runnable
        if isinstance(workload, Source) and workload.is_torchbench:
            if size != "tiny":
                raise OptionError("models of TorchBench have one size")
            runs = _TorchBench(workload.making, mode, target, precision, compiled, batch)
        else:
            made, samples = _make(workload, target, batch, size)
            kind = _Training if mode == "train" else _Forward
            runs = kind(made, samples, precision == "bf16", compiled, target)
        torch.manual_seed(0)  # dropout and the like: the same in each process
        return Step(runs, target, settings.pop_all())


def on_device(value: Any, device: Any) -> Any:
    """Return the value with all its tensors on a device, through tuples, lists, dicts and data
    classes."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: on_device(each, device) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        moved = [on_device(each, device) for each in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    return value


# ------------------------------------------------------------------------- what runs


class _Forward:
    """A forward pass without anything kept for a backward pass."""

    trains = False

    def __init__(
        self, made: Workload, batch: int | None, bf16: bool, compiled: bool, device: torch.device
    ) -> None:
        import torch

        self.batch = batch
        self.model = made.model.to(device).train(self.trains)
        self._inputs = on_device(made.inputs, device)
        self._autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        if bf16:
            self._autocast = partial(torch.autocast, device.type, torch.bfloat16)
        self._call = torch.compile(self.model) if compiled else self.model

    def step(self) -> Any:
        """Return the output."""
        import torch

        with torch.inference_mode(), self._autocast():
            return self._output()

    def _output(self) -> Any:
        if isinstance(self._inputs, dict):
            return self._call(**self._inputs)
        return self._call(*self._inputs)


class _Training(_Forward):
    """A training step: forward, loss, backward, optimizer."""

    trains = True

    def __init__(self, made: Workload, *rest: Any) -> None:
        super().__init__(made, *rest)
        loss = made.loss
        if loss is None:
            raise OptionError("this workload has no loss, so that it can't be trained: take eval")
        self._loss = loss
        trained = [each for each in self.model.parameters() if each.requires_grad]
        if made.optimizer is None or not trained:
            self._optimizer = None
        else:
            self._optimizer = made.optimizer(trained)

    def step(self) -> Any:
        """Return the detached loss."""
        with self._autocast():
            loss = self._loss(self._output())
        loss.backward()
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        else:
            self.model.zero_grad(set_to_none=True)
        return loss.detach()


class _TorchBench:
    """Steps of a TorchBench model, made as TorchBench's `run.py` makes them.

    Their contract: `Model(test, device, batch_size, extra_args)` with `invoke()`, else `train()`
    and `eval()`; `get_module()` returns the module and its inputs.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        mode: str,
        device: torch.device,
        precision: str,
        compiled: bool,
        batch: int | None,
    ) -> None:
        # TF32 is set outside of it; their default precision may be another than fp32.
        extra = ["--precision", "amp_bf16" if precision == "bf16" else "fp32"]
        extra += ["--torchdynamo", "inductor"] if compiled else []
        try:
            self._made = model(test=mode, device=str(device), batch_size=batch, extra_args=extra)
        except NotImplementedError as error:
            said = f": {error}" if str(error) else ""
            raise OptionError(f"this model of TorchBench doesn't do that{said}") from error
        except SystemExit as error:  # their arguments are parsed by argparse
            raise OptionError(f"this model of TorchBench doesn't take {' '.join(extra)}") from error
        self._mode = mode
        self.batch = getattr(self._made, "batch_size", batch)
        try:
            self.model: Any = self._made.get_module()[0]
        except (AttributeError, NotImplementedError):
            self.model = None

    def step(self) -> Any:
        """Run the model's step and return its result: nothing in training."""
        invoke = getattr(self._made, "invoke", None) or getattr(self._made, self._mode)
        return invoke()


# ------------------------------------------------------------------------- options


def _device(name: str) -> torch.device:
    import torch

    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"a device is cpu or cuda, not {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise OptionError(f"a device is cpu or cuda, not {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("there is no GPU that this build of torch can use: take cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"there is no {name}: GPUs here: {torch.cuda.device_count()}")
    return device


def _make(
    workload: Any, device: torch.device, batch: int | None, size: str
) -> tuple[Workload, int | None]:
    """Return the workload and its samples per step.

    A user's workload is made on its device, so that tensors of its loss are there too. The suite's
    losses hold no tensors, so its workloads are made on the host, with the same numbers everywhere.
    """
    import torch

    if not isinstance(workload, Source):
        if batch is not None or size != "tiny":
            raise OptionError("a batch or a size is of a workload by name, not of a made one")
        made = check_workload(workload)
        return made, _batch_size(made.inputs)
    own = workload.entry is not None and workload.entry.source == "suite"
    with nullcontext() if own or device.type == "cpu" else torch.device(device):
        made = workload.make(batch, size)
    return made, workload.batch(batch) or _batch_size(made.inputs)


def _batch_size(value: Any) -> int | None:
    """Return the first dimension of the first tensor."""
    import torch

    if isinstance(value, torch.Tensor):
        return int(value.shape[0]) if value.ndim else None
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        return next((found for each in value if (found := _batch_size(each)) is not None), None)
    return None


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Run products and convolutions of a GPU in TF32, or none of them; the settings are restored
    afterwards."""
    import torch

    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = allowed
    try:
        yield
    finally:
        for place, was in zip(places, before, strict=True):
            place.allow_tf32 = was
