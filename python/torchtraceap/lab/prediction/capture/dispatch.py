"""A step run on tensors without values, every operator that reaches the dispatcher written down.

Note [Where it is caught]: below autograd, where composite operators have come apart into those
that a device implements. What torch takes apart in another way on a GPU is caught above, where it
is still whole: attention and dropout, which on a CPU become several operators (`whole.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from torchtraceap.errors import MissingDependencyError, OptionError, TraceError
from torchtraceap.lab.prediction.capture.calls import Capture, CaptureError
from torchtraceap.lab.prediction.capture.recorder import Recorder
from torchtraceap.lab.prediction.capture.run import (
    run_step,
    tensors_of_inputs,
    unchanged,
    watched_optimizers,
)
from torchtraceap.lab.prediction.capture.source_lines import place_of_error
from torchtraceap.lab.workloads.workload import Workload, made_workload

if TYPE_CHECKING:
    import torch

    from torchtraceap.lab.prediction.capture.values import ValuesMode

Run: TypeAlias = "Callable[[Workload, Recorder], torch.nn.Module]"
"""Runs steps of a workload, the last one to be written down; returns the model that the process
holds."""

__all__ = ["Run", "capture_step", "recording", "survey"]

T = TypeVar("T")


def capture_step(make: Callable[[], Any], run: Run | None = None) -> Capture:
    """The calls of one step of a workload, of which nothing is computed if that is possible.

    Args:
        make: Makes the workload, see `Workload`. Large tensors that it makes take no memory.
        run: How a step goes; None as one process without others has it, see `run_step`.

    Raises:
        OptionError: It makes no workload.
        CaptureError: The step can't be run; the message says what failed, and in which line.
    """
    tried = _tried(make, run)
    if tried.capture is not None and not tried.assumed:
        return tried.capture
    computed = None
    if tried.parameter_bytes <= _MOST_BYTES:
        computed = _tried(make, run, computed=True)
        if computed.capture is not None:
            why = f"without values, {tried.error}"
            if tried.capture is not None:
                why = f"values decide on what the program does ({', '.join(tried.assumed)})"
            note = f"{why}: it was computed here"
            return replace(computed.capture, notes=(*computed.capture.notes, note))
    reason = "it is too large" if computed is None else computed.error
    if tried.capture is None:
        raise _not_captured(tried, computed, reason) from tried.cause
    note = (
        f"values decide on what the program does ({', '.join(tried.assumed)}): conditions are "
        "taken to hold, numbers to be 1 and sizes to be as large as can be, since the step could "
        f"not be computed here: {reason}"
    )
    return replace(tried.capture, notes=(*tried.capture.notes, note))


_MOST_BYTES = 1 << 30
"""Of the parameters of a step that is computed; with gradients and state four times as many."""
_MOST_SECONDS = 30.0
"""What computing a step may take."""
_MOST_SAID = 3
"""Places of a program that a note names."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """What came of running a step."""

    capture: Capture | None
    error: str = ""
    """What failed, with what was said and where."""
    cause: Exception | None = None
    assumed: tuple[str, ...] = ()
    """What was not known and decides on what the program does."""
    parameter_bytes: int = 0


def _tried(make: Callable[[], Any], run: Run | None, *, computed: bool = False) -> _Tried:
    """Runs a step, with values or without.

    Raises:
        OptionError: It makes no workload.
    """
    from torchtraceap.lab.prediction.capture.fake_gpu import taken_for_plain_tensors

    size, doing = 0, "the workload could not be made"
    with _prepared(computed=computed) as values:
        try:
            workload = made_workload(make())
            _initialize(workload)
            size = sum(each.numel() * each.element_size() for each in workload.model.parameters())
            with ExitStack() as stack:
                stack.enter_context(unchanged(workload.model, with_parameters=computed))
                stack.enter_context(values.without_parameters(workload.model))
                doing = "the step could not be run"
                recorder = values.recorder = Recorder(values.blank)
                if computed:
                    recorder.limit_time(_MOST_SECONDS)
                stack.enter_context(taken_for_plain_tensors())
                stack.enter_context(recording(recorder))
                model = (run or run_step)(workload, recorder)
                held = recorder.storages(model)
                inputs = recorder.describe(tensors_of_inputs(workload))
        except OptionError:
            raise
        except Exception as error:  # whatever a program raises
            told = f"{doing} ({_said(error)})"
            return _Tried(None, told, error, _some(values.assumed), size)
    notes = (*values.notes, *recorder.notes)
    capture = Capture(tuple(recorder.calls), notes, held, inputs)
    return _Tried(capture, assumed=_some(values.assumed), parameter_bytes=size)


def _some(places: Iterable[str]) -> tuple[str, ...]:
    """The first of them, and how many there are besides."""
    found = tuple(places)
    more = len(found) - _MOST_SAID
    return found if more <= 0 else (*found[:_MOST_SAID], f"and {more} more")


def _said(error: Exception) -> str:
    """What an error says, of which type, and where it came up."""
    said = (str(error).strip() or "no reason given").splitlines()[0][:300]
    if not isinstance(error, TraceError):
        said = f"{type(error).__name__}: {said}"
    place = place_of_error(error)
    return f"{said}, at {place}" if place else said


def _not_captured(tried: _Tried, computed: _Tried | None, reason: str) -> CaptureError:
    if computed is not None and _same(tried.cause, computed.cause):  # the program's own
        return CaptureError(computed.error)
    return CaptureError(
        f"without values, {tried.error}; computed here, {reason}; if it runs on a CPU, a profile "
        "of that with record_shapes=True can be predicted from instead"
    )


def _same(one: Exception | None, other: Exception | None) -> bool:
    """Whether two errors are of one type, and in one place."""
    return (
        one is not None
        and other is not None
        and type(one) is type(other)
        and place_of_error(one) == place_of_error(other)
    )


def survey(make: Callable[[], Any], look: Callable[[Workload], T]) -> T:
    """What is to be known of a workload that is not run.

    Args:
        make: As of `capture_step`.
        look: Is shown it.

    Raises:
        OptionError: It makes no workload.
    """
    with _prepared():
        return look(made_workload(make()))


@contextmanager
def _prepared(*, computed: bool = False) -> Iterator[ValuesMode]:
    """Within, torch does what it does on a GPU, on tensors without values unless these are to be
    computed."""
    _require_torch()
    from torchtraceap.lab.prediction.capture.autocast import autocast_as_on_a_gpu
    from torchtraceap.lab.prediction.capture.fake_gpu import as_if_on_a_gpu
    from torchtraceap.lab.prediction.capture.values import ValuesMode

    values = ValuesMode(computed=computed)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # A copy of a layer asks whether its tensors, which have no values, have an address.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        warnings.filterwarnings("ignore", "Sparse invariant checks")
        warnings.filterwarnings("ignore", "Using `torch.compile")  # beside what watches modules
        # What becomes a tensor without values is looked at from all sides.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        stack.enter_context(autocast_as_on_a_gpu())
        stack.enter_context(
            as_if_on_a_gpu(values.read_as_a_whole, values.note, lambda: values.recorder)
        )
        stack.enter_context(values)
        yield values


def _initialize(workload: Workload) -> None:
    """Lazy modules learn the shapes of their parameters in a first call."""
    import torch
    from torch.nn.parameter import is_lazy

    if any(map(is_lazy, (*workload.model.parameters(), *workload.model.buffers()))):
        with torch.no_grad():
            workload.forward()


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "a capture runs the model, for which torch is needed"
        ) from error


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record the operators that are called within."""
    from torchtraceap.lab.prediction.capture.composite_ops import whole_calls
    from torchtraceap.lab.prediction.capture.modes import dispatch_mode

    with ExitStack() as stack:
        stack.enter_context(recorder.watched_modules())
        stack.enter_context(watched_optimizers(recorder))
        stack.enter_context(whole_calls(recorder))
        stack.enter_context(dispatch_mode(recorder))
        recorder.in_step = True
        stack.callback(setattr, recorder, "in_step", False)
        yield
