"""Registry of the models that compute the work of a call from its arguments.

A model is a function from an `OpCall` to a `Work`. It raises `UnknownWorkError` with the reason if
the trace says too little, because no numbers are better than wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, TypeVar

from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable
from torchtraceap.ops.models.arguments import OpCall, UnknownWorkError

__all__ = [
    "Model",
    "Work",
    "load_models",
    "model_of",
    "register",
    "register_unknown_work",
    "work_of",
    "work_of_call",
]


@dataclass(frozen=True, slots=True)
class Work(Renderable):
    """Operations and bytes of a call; each tensor is counted once (compulsory traffic)."""

    flops: float | None
    """Floating-point operations; a multiplication and an addition are two. None if unknown."""
    bytes_read: float
    bytes_written: float
    dtype: str = "fp32"
    """Type of computation: fp64, fp32, fp16, bf16, fp8, int8 or fp4; other types have no peak."""
    unit: str = "vector"
    """"matrix" if tensor or matrix cores can compute it, else "vector"."""
    upper_bound: bool = False
    """True if the numbers are an upper bound because lengths or indices are not recorded."""
    notes: tuple[str, ...] = ()
    allow_tf32: bool | None = None
    """True if fp32 may be computed as tf32; None if the call does not say."""
    padding: float = 1.0
    """Operations of kernels in whole tiles over those needed; not included in `flops`."""

    @property
    def computed(self) -> float | None:
        """Floating-point operations of a kernel in whole tiles; None if unknown."""
        return None if self.flops is None else self.flops * self.padding

    @property
    def bytes(self) -> float:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


Model = Callable[[OpCall], Work]
# More operations or bytes than any machine handles; the shapes in a file may be garbage.
_MOST_WORK = 1e30
_Function = TypeVar("_Function", bound=Model)


@dataclass(frozen=True, slots=True)
class RegisteredModel(Renderable):
    """A model and its properties."""

    model: Model
    composite: bool
    """The operator usually calls other operators that have models."""
    has_numbers: bool = True
    """False if the model only gives the reason why the work is unknown."""
    needs_batch: bool = False
    """The model uses `OpCall.batch`."""


_MODELS: dict[str, RegisteredModel] = {}
_OWN = (
    "attention",
    "convolution",
    "elementwise",
    "gemm",
    "indexing",
    "normalization",
    "reduction",
)
"""Modules with models of PyTorch's operators."""
_LIBRARIES = (
    "fused_norm",
    "hyper_connections",
    "library_gemm",
    "moe",
    "paged_attention",
    "quantization",
    "rotary",
    "state_space",
)
"""Modules with models of libraries' operators alone, imported when a trace has such an operator."""
_LIBRARY_FUNCTIONS = ("FusedRoPEFunc", "MambaSplitConv1dScanCombinedFn")
"""Their operators that are named without a namespace."""


def register(
    *names: str, composite: bool = False, needs_batch: bool = False
) -> Callable[[_Function], _Function]:
    """Register a function as the model of operators, replacing any earlier one.

    Use it as a decorator or as `register("mylib::op")(lambda call: Work(...))`. A name also stands
    for its in-place form (with `_` at the end) unless that form is registered itself.

    Args:
        names: Names of operators with namespace.
        composite: The operator usually calls other operators that have models. It then counts only
            where no such operator below it launched GPU work.
        needs_batch: The model uses `OpCall.batch`.
    """

    def add(model: _Function) -> _Function:
        for name in names:
            _MODELS[name] = RegisteredModel(model, composite, needs_batch=needs_batch)
        cached_work_of.cache_clear()
        return model

    return add


def register_unknown_work(reason: str, *names: str) -> None:
    """Register the reason why the work of operators is unknown for any arguments."""

    def model(call: OpCall) -> Work:
        raise UnknownWorkError(reason)

    for name in names:
        _MODELS[name] = RegisteredModel(model, composite=False, has_numbers=False)
    cached_work_of.cache_clear()


def model_of(name: str) -> RegisteredModel | None:
    """Find the model of an operator by its name, or by the name without `_` or overload."""
    _load(_OWN)
    found = _registered(name)
    if found is None and _may_be_of_library(name):
        _load(_LIBRARIES)
        found = _registered(name)
    return found


def _may_be_of_library(name: str) -> bool:
    namespace, colons, _ = name.partition("::")
    return name in _LIBRARY_FUNCTIONS or (bool(colons) and namespace not in ("aten", "torch"))


def load_models() -> None:
    """Import the models of all operators, those of libraries too."""
    _load(_OWN)
    _load(_LIBRARIES)


@cache
def _load(modules: tuple[str, ...]) -> None:
    """Import modules with models; what was registered before stays."""
    before = dict(_MODELS)
    for name in modules:
        import_module(f"torchtraceap.ops.models.{name}")
    _MODELS.update(before)


def _registered(name: str) -> RegisteredModel | None:
    found = _MODELS.get(name)
    if found is None and name.endswith("_") and not name.endswith("__"):
        found = _MODELS.get(name[:-1])
    if found is None and name.count(".") == 1:
        found = _MODELS.get(name.partition(".")[0])
    if found is None and name.startswith("triton_"):
        found = _MODELS.get("triton_*")
    return found


def work_of(
    name: str,
    dims: Any = None,
    types: Any = None,
    strides: Any = None,
    concrete: Any = None,
    kernels: Sequence[str] = (),
    batch: str | None = None,
) -> tuple[Work | None, str]:
    """Compute the work of one call; this never raises.

    Args:
        name: Name of the operator.
        dims, types, strides, concrete: `Input Dims`, `Input type`, `Input Strides` and
            `Concrete Inputs` of a trace as lists or JSON text; None if absent.
        kernels: Names of the kernels that it launched, if known.
        batch: Name of the enclosing range in which a serving engine describes its batch.

    Returns:
        The work and an empty string, or None and the reason why the work is unknown. If a model
        fails, the reason is its error.
    """
    lists = (dims, types, strides, concrete)
    if all(value is None or isinstance(value, str) for value in lists):
        return cached_work_of(name, *lists, tuple(kernels), batch)
    return work_of_call(OpCall(name, *lists, kernels, batch))


@lru_cache(maxsize=1 << 13)
def cached_work_of(
    name: str,
    dims: str | None,
    types: str | None,
    strides: str | None,
    concrete: str | None,
    kernels: tuple[str, ...],
    batch: str | None,
) -> tuple[Work | None, str]:
    """Compute the work of a call from JSON texts, cached because ranks repeat the same calls."""
    return work_of_call(OpCall(name, dims, types, strides, concrete, kernels, batch))


def work_of_call(call: OpCall) -> tuple[Work | None, str]:
    """Compute the work of a call whose arguments were already parsed; see `work_of`."""
    entry = model_of(call.name)
    if entry is None:
        return None, "no model for this operator"
    try:
        work = entry.model(call)
        if max(work.flops or 0, work.bytes) > _MOST_WORK:
            return None, "its sizes are beyond any machine"
        if work.allow_tf32 is None and call.allow_tf32 is not None:
            work = replace(work, allow_tf32=call.allow_tf32)
        return work, ""
    except UnknownWorkError as reason:
        return None, str(reason)
    except Exception as error:
        # The model may be custom; an error in it must not abort the whole analysis.
        return None, f"its model failed with {type(error).__name__}: {error}"
