"""Captures a step by running it on tensors without values.

Note [Where it is caught]: calls are recorded below autograd, where composite operators have been
decomposed into those that a device implements. Operators that torch decomposes differently on a
GPU, attention and dropout, are recorded above autograd, where they are still whole
(`composite_ops.py`).
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
    input_tensors,
    restored,
    run_step,
    watch_optimizers,
)
from torchtraceap.lab.prediction.capture.source_lines import error_location
from torchtraceap.lab.workloads.workload import Workload, check_workload

if TYPE_CHECKING:
    import torch

    from torchtraceap.lab.prediction.capture.values import ValuesMode

Run: TypeAlias = "Callable[[Workload, Recorder], torch.nn.Module]"
"""Runs steps of a workload of which the last is recorded; returns the model that the process
holds."""

__all__ = ["Run", "capture_step", "inspect_workload", "recording"]

T = TypeVar("T")


def capture_step(make: Callable[[], Any], run: Run | None = None) -> Capture:
    """Return the calls of one step of a workload, without computing anything if possible.

    Args:
        make: Makes the workload, see `Workload`. Large tensors that it makes take no memory.
        run: Runs a step; by default as a single process, see `run_step`.

    Raises:
        OptionError: `make` returns no workload.
        CaptureError: The step can't be run; the message says what failed, and in which line.
    """
    tried = _attempt(make, run)
    if tried.capture is not None and not tried.assumed:
        return tried.capture
    computed = None
    if tried.parameter_bytes <= _MOST_BYTES:
        computed = _attempt(make, run, computed=True)
        if computed.capture is not None:
            why = f"without values, {tried.error}"
            if tried.capture is not None:
                why = f"values decide on what the program does ({', '.join(tried.assumed)})"
            note = f"{why}: it was computed here"
            return replace(computed.capture, notes=(*computed.capture.notes, note))
    reason = "it is too large" if computed is None else computed.error
    if tried.capture is None:
        message = (
            f"without values, {tried.error}; computed here, {reason}; if it runs on a CPU, a "
            "profile of that with record_shapes=True can be predicted from instead"
        )
        causes = [] if computed is None else [tried.cause, computed.cause]
        places = {(type(each), error_location(each)) for each in causes if each is not None}
        if computed is not None and len(places) == 1:  # the program's own error
            message = computed.error
        raise CaptureError(message) from tried.cause
    note = (
        f"values decide on what the program does ({', '.join(tried.assumed)}): conditions are "
        "taken to hold, numbers to be 1 and sizes to be as large as can be, since the step could "
        f"not be computed here: {reason}"
    )
    return replace(tried.capture, notes=(*tried.capture.notes, note))


_MOST_BYTES = 1 << 30
"""Largest size of the parameters of a step that is computed; gradients and state take more."""
_MOST_SECONDS = 30.0
"""Time limit for computing a step."""
_MOST_SAID = 3
"""Limit on the source locations that a note names."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The outcome of running a step."""

    capture: Capture | None
    error: str = ""
    """Error message with its source location."""
    cause: Exception | None = None
    assumed: tuple[str, ...] = ()
    """Unknown values that decide what the program does."""
    parameter_bytes: int = 0


def _attempt(make: Callable[[], Any], run: Run | None, *, computed: bool = False) -> _Attempt:
    """Run a step, with or without values.

    Raises:
        OptionError: `make` returns no workload.
    """
    size, doing = 0, "the workload could not be made"
    with _capture_mode(computed=computed) as values:
        import torch
        from torch.nn.parameter import is_lazy

        from torchtraceap.lab.prediction.capture.fake_gpu import hide_fake_tensors

        try:
            workload = check_workload(make())
            if any(map(is_lazy, (*workload.model.parameters(), *workload.model.buffers()))):
                with torch.no_grad():
                    workload.forward()  # lazy modules create their parameters
            size = sum(each.numel() * each.element_size() for each in workload.model.parameters())
            with ExitStack() as stack:
                stack.enter_context(restored(workload.model, with_parameters=computed))
                stack.enter_context(values.without_parameters(workload.model))
                doing = "the step could not be run"
                recorder = values.recorder = Recorder(values.blank)
                if computed:
                    recorder.limit_time(_MOST_SECONDS)
                stack.enter_context(hide_fake_tensors())
                stack.enter_context(recording(recorder))
                model = (run or run_step)(workload, recorder)
                held = recorder.storages(model)
                inputs = recorder.describe(input_tensors(workload))
        except OptionError:
            raise
        except Exception as error:  # whatever a program raises
            said = (str(error).strip() or "no reason given").splitlines()[0][:300]
            if not isinstance(error, TraceError):
                said = f"{type(error).__name__}: {said}"
            place = error_location(error)
            told = f"{doing} ({said}, at {place})" if place else f"{doing} ({said})"
            return _Attempt(None, told, error, _shortened(values.assumed), size)
    notes = (*values.notes, *recorder.notes)
    capture = Capture(tuple(recorder.calls), notes, held, inputs)
    return _Attempt(capture, assumed=_shortened(values.assumed), parameter_bytes=size)


def _shortened(places: Iterable[str]) -> tuple[str, ...]:
    """Return the first locations and how many more there are."""
    found = tuple(places)
    more = len(found) - _MOST_SAID
    return found if more <= 0 else (*found[:_MOST_SAID], f"and {more} more")


def inspect_workload(make: Callable[[], Any], look: Callable[[Workload], T]) -> T:
    """Return what a function finds in a workload that is not run.

    Args:
        make: Makes the workload.
        look: Receives the workload and returns the result.

    Raises:
        OptionError: `make` returns no workload.
    """
    with _capture_mode():
        return look(check_workload(make()))


@contextmanager
def _capture_mode(*, computed: bool = False) -> Iterator[ValuesMode]:
    """Emulate a GPU within the context, on tensors without values unless they are computed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "a capture runs the model, for which torch is needed"
        ) from error
    from torchtraceap.lab.prediction.capture.autocast import autocast_as_on_a_gpu
    from torchtraceap.lab.prediction.capture.fake_gpu import emulate_gpu
    from torchtraceap.lab.prediction.capture.values import ValuesMode

    values = ValuesMode(computed=computed)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # A copy of a layer asks whether its tensors, which have no values, have an address.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        warnings.filterwarnings("ignore", "Sparse invariant checks")
        warnings.filterwarnings("ignore", "Using `torch.compile")  # beside what watches modules
        # Conversion to a tensor without values reads every attribute.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        stack.enter_context(autocast_as_on_a_gpu())
        stack.enter_context(emulate_gpu(values.read_tensor, values.note, lambda: values.recorder))
        stack.enter_context(values)
        yield values


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record the operators that are called within."""
    from torchtraceap.lab.prediction.capture.composite_ops import composite_calls
    from torchtraceap.lab.prediction.capture.modes import dispatch_mode

    with ExitStack() as stack:
        stack.enter_context(recorder.watched_modules())
        stack.enter_context(watch_optimizers(recorder))
        stack.enter_context(composite_calls(recorder))
        stack.enter_context(dispatch_mode(recorder))
        recorder.in_step = True
        stack.callback(setattr, recorder, "in_step", False)
        yield
