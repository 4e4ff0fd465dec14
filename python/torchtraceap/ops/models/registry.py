"""Models by operator name: from the arguments of a call to its work.

A model is a function from an `OpCall` to a `Work`. It raises `UnknownWorkError` with the reason
where the trace says too little: no numbers rather than wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable
from torchtraceap.ops.models.arguments import OpCall, UnknownWorkError

__all__ = [
    "Model",
    "Work",
    "model_of",
    "register",
    "register_unknown_work",
    "work_of",
    "work_of_call",
]


@dataclass(frozen=True, slots=True)
class Work(Renderable):
    """What a call computes and moves, counted once for each tensor (compulsory traffic)."""

    flops: float | None
    """Floating-point operations; a multiplication and an addition are two. None: not known."""
    bytes_read: float
    bytes_written: float
    dtype: str = "fp32"
    """The type in which it computes: fp64, fp32, fp16, bf16, fp8, int8, fp4; else no peak."""
    unit: str = "vector"
    """"matrix" if tensor or matrix cores can do it, else "vector"."""
    upper_bound: bool = False
    """The numbers are the most that it can be, not exact: lengths or indices are not recorded."""
    notes: tuple[str, ...] = ()
    allow_tf32: bool | None = None
    """Whether fp32 may be computed as tf32; None where the call does not say."""
    padding: float = 1.0
    """What kernels compute over what is needed, as they work in whole tiles; no part of `flops`."""

    @property
    def computed(self) -> float | None:
        """Floating-point operations of a kernel in whole tiles."""
        return None if self.flops is None else self.flops * self.padding

    @property
    def bytes(self) -> float:
        return self.bytes_read + self.bytes_written


Model = Callable[[OpCall], Work]
# Beyond what any machine computes or moves: shapes of a file may be anything.
_MOST_WORK = 1e30
_Function = TypeVar("_Function", bound=Model)


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """A row of the registry."""

    model: Model
    composite: bool
    has_numbers: bool = True
    """Some calls have: the model is more than a reason."""
    needs_batch: bool = False
    """It asks for the name of the range that says what a serving engine works on."""


_MODELS: dict[str, RegisteredModel] = {}


def register(
    *names: str, composite: bool = False, needs_batch: bool = False
) -> Callable[[_Function], _Function]:
    """Makes a function the model of operators, in place of an earlier one.

    `register("mylib::op")(lambda call: Work(...))`, or as a decorator. A name stands for its
    in-place form (with `_` at the end) too, unless that one has a row of its own.

    Args:
        names: Of operators, with namespace.
        composite: It usually calls other operators that have models. It then counts only where
            no such operator below it launched GPU work.
        needs_batch: It asks for `OpCall.batch`.
    """

    def add(model: _Function) -> _Function:
        for name in names:
            _MODELS[name] = RegisteredModel(model, composite, needs_batch=needs_batch)
        cached_work_of.cache_clear()
        return model

    return add


def register_unknown_work(reason: str, *names: str) -> None:
    """Says why operators have no numbers, whatever their arguments are."""

    def model(call: OpCall) -> Work:
        raise UnknownWorkError(reason)

    for name in names:
        _MODELS[name] = RegisteredModel(model, composite=False, has_numbers=False)
    cached_work_of.cache_clear()


def model_of(name: str) -> RegisteredModel | None:
    """The row of an operator: its own, else that of the name without `_` or overload."""
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
    """The work of one call and an empty reason, or None and the reason why it is not known.

    Args:
        name: Of the operator.
        dims, types, strides, concrete: As in a trace's `Input Dims`, `Input type`,
            `Input Strides` and `Concrete Inputs`: lists, or their JSON text; None where absent.
        kernels: Names of the kernels that it launched, where known.
        batch: Name of the range around it in which a serving engine says what it works on.

    Never raises: a model that fails gives its error as the reason.
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
    """The ranks of a job make the same calls."""
    return work_of_call(OpCall(name, dims, types, strides, concrete, kernels, batch))


def work_of_call(call: OpCall) -> tuple[Work | None, str]:
    """As `work_of`, of arguments that were read already."""
    entry = model_of(call.name)
    if entry is None:
        return None, "no model for this operator"
    try:
        work = entry.model(call)
        if max(work.flops or 0, work.bytes) > _MOST_WORK:
            return None, "its sizes are beyond any machine"
        return work, ""
    except UnknownWorkError as reason:
        return None, str(reason)
    except Exception as error:
        # A model may be a user's own; a mistake in it must not end the whole analysis.
        return None, f"its model failed with {type(error).__name__}: {error}"
