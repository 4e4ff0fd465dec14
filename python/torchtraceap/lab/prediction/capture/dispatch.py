"""Captures a step by running it on tensors without values.

Note [Where it is caught]: calls are recorded below autograd, where composite operators have been
decomposed into those that a device implements. Operators that torch decomposes differently on a
GPU, attention and dropout, are recorded above autograd, where they are still whole
(`composite_ops.py`).

`torch.autocast("cuda")` does nothing if torch finds no GPU. A capture replaces it by the CPU's
autocast, whose operators of lower precision are nearly the same; operators that only a GPU runs in
float32 are added (torch/csrc/autocast_mode.h, the lists AT_FORALL_FP32 and
AT_FORALL_FP32_SET_OPT_DTYPE of torch 2.13).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch.amp.autocast_mode import autocast
from torch.library import Library
from torch.utils._pytree import tree_map

from torchtraceap.errors import MissingDependencyError, OptionError, TraceError
from torchtraceap.lab.prediction.capture.calls import Capture, CaptureError
from torchtraceap.lab.prediction.capture.recorder import Recorder
from torchtraceap.lab.prediction.capture.run import (
    input_tensors,
    restored,
    run_step,
    watch_optimizers,
    with_values,
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
_MOST_WORK = 2e10
"""Limit on what is computed of a step, in elements that are read or written: half a minute on two
cores, though no clock decides, so that every machine captures the same."""
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
            with ExitStack() as stack:
                workload = stack.enter_context(with_values(check_workload(make())))
                if any(map(is_lazy, (*workload.model.parameters(), *workload.model.buffers()))):
                    with torch.no_grad():
                        workload.forward()  # lazy modules create their parameters
                parameters = workload.model.parameters()
                size = sum(each.numel() * each.element_size() for each in parameters)
                stack.enter_context(restored(workload.model, with_parameters=computed))
                stack.enter_context(values.without_parameters(workload.model))
                doing = "the step could not be run"
                recorder = values.recorder = Recorder(values.blank)
                if computed:
                    recorder.limit_work(_MOST_WORK)
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
    capture = Capture(
        tuple(recorder.calls),
        notes,
        held,
        inputs,
        products_in_tf32=torch.get_float32_matmul_precision() != "highest",
        convolutions_in_tf32=torch.backends.cudnn.allow_tf32,
    )
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
    from torchtraceap.lab.prediction.capture.dispatch import autocast_as_on_a_gpu
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


# Operators that run in float32, by name and overload.
_IN_FLOAT32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus layer_norm
native_layer_norm group_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss
nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss margin_ranking_loss
multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
binary_cross_entropy_with_logits dist pdist renorm logsumexp rms_norm
pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar upsample_nearest1d upsample_nearest2d
upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
""".split()  # noqa: SIM905
# Operators that compute in float32 unless the program passes a dtype.
_SET_FLOAT32 = """
softmax.int log_softmax.int cumprod cumsum prod prod.dim_int sum sum.dim_IntList
""".split()  # noqa: SIM905
_LOW = (torch.float16, torch.bfloat16)


@contextmanager
def autocast_as_on_a_gpu() -> Iterator[None]:
    """Make `torch.autocast("cuda")` work as on a GPU within the context."""
    before = autocast.__init__
    library = Library("aten", "IMPL")

    def begin(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or asked["get_autocast_dtype"]("cuda")
        before(self, device_type, dtype, *args, **kwargs)

    def asks(function: Callable[[str], Any]) -> Callable[..., Any]:
        return lambda device="cuda": function("cpu" if device == "cuda" else device)

    asked = {name: getattr(torch, name) for name in ("is_autocast_enabled", "get_autocast_dtype")}
    try:
        for name, function in asked.items():
            setattr(torch, name, asks(function))
        for name in (*_IN_FLOAT32, *_SET_FLOAT32):
            _register(library, name)
        autocast.__init__ = begin
        yield
    finally:
        autocast.__init__ = before
        for name, function in asked.items():
            setattr(torch, name, function)
        library._destroy()


def _register(library: Library, name: str) -> None:
    """Register an operator that computes in float32 unless a CPU does the same."""
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload or "default")
    key = torch._C.DispatchKey.AutocastCPU
    if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "AutocastCPU"):
        return

    def run(*args: Any, **kwargs: Any) -> Any:
        if name in _SET_FLOAT32:
            names = [argument.name for argument in function._schema.arguments]
            args, kwargs = (), {**dict(zip(names, args, strict=False)), **kwargs}
            if kwargs.get("dtype") is None and kwargs["self"].dtype in _LOW:
                kwargs["dtype"] = torch.float32
        else:
            args, kwargs = tree_map(_widened, args), tree_map(_widened, kwargs)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return function(*args, **kwargs)

    library.impl(function, run, key.name)


def _widened(value: Any) -> Any:
    is_low = isinstance(value, torch.Tensor) and value.dtype in _LOW
    return value.float() if is_low else value
