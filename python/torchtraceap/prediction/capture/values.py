"""Small tensors with values, large ones without.

Note [Which tensors have values]: parameters and what is computed of them has a shape alone, so that
a model of any size is captured in seconds on a laptop. Small tensors, such as masks, positions and
rates of layers, are computed: what the program reads of them decides what it does next. What is
made of small ones and is large has no values either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves, tree_map

from torchtraceap.prediction.capture.calls import CaptureError
from torchtraceap.prediction.capture.modes import (
    PlainMode,
    all_arguments,
    asked_device,
    is_distributed,
)

if TYPE_CHECKING:
    from torchtraceap.prediction.capture.dispatch import Recorder

__all__ = ["MOST_ELEMENTS", "ValuesMode"]

MOST_ELEMENTS = 1 << 16
"""A tensor with more has no values."""


class _FakeMode(FakeTensorMode):
    def __deepcopy__(self, memo: dict[int, Any]) -> _FakeMode:
        """Tensors refer to their mode, and a copy of one belongs to the same."""
        return self


class ValuesMode(PlainMode):
    """What is called within computes on small tensors, and on others gives shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder: Recorder | None = None
        """While a step is recorded."""
        self._blank = False
        self.fake = _FakeMode(allow_non_fake_inputs=True)

    @contextmanager
    def blank(self) -> Iterator[None]:
        """What is made within has no values, small or not."""
        before, self._blank = self._blank, True
        try:
            yield
        finally:
            self._blank = before

    def forget_parameters(self, model: torch.nn.Module) -> None:
        """Small ones have no values from here on either; those that are shared stay so."""
        without: dict[int, torch.nn.Parameter] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is None:
                    continue
                if id(parameter) not in without:
                    without[id(parameter)] = self._forgotten(parameter)
                module._parameters[name] = without[id(parameter)]

    def _forgotten(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        if isinstance(parameter, FakeTensor):
            return parameter
        plain = self.fake.from_tensor(parameter.detach(), static_shapes=True)
        return torch.nn.Parameter(plain, requires_grad=parameter.requires_grad)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_distributed(types):
            return NotImplemented  # comes again, with what this rank has of them
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return asked_device(args[0])
        args = tree_map(self._convertible, args)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        has_values = not (self._blank or any(isinstance(tensor, FakeTensor) for tensor in given))
        if has_values and (_writes(func) or not self._is_large(func, args, kwargs)):
            return func(*args, **kwargs)
        return self._without_values(func, args, kwargs)

    def _convertible(self, value: Any) -> Any:
        """A view of reals as complex numbers can't be followed to what it is a view of."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        if not value.is_complex() or not value._is_view():
            return value
        with self.fake:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)

    def _without_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            # As in `with self.fake: func()`, without what entering it costs each call.
            return self.fake.dispatch(func, (), args, kwargs)
        except DataDependentOutputException:
            kind = str(func._schema.returns[0].type)
            if kind == "bool":
                return self._read(torch.bool)
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise CaptureError(f"{func} needs values that are not there") from None
            return self._read(args[0].dtype)
        except DynamicOutputShapeException as error:
            made = self._of_usual_shape(func, args, kwargs)
            if made is not None:
                return made
            raise CaptureError(
                f"the shape of what {func} gives depends on values; a CPU profile of the step, "
                "recorded with record_shapes=True, has them"
            ) from error
        finally:
            # Modules that change their type swap tensors, which must not be known elsewhere.
            self.fake.fake_tensor_converter.meta_converter.tensor_memo.clear()

    def _of_usual_shape(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What comes out if values are as they should be; None where that is not known."""
        shapes = _USUAL_SHAPES.get(func)
        if shapes is None:
            return None
        given = all_arguments(func, args, kwargs)
        with self.fake:
            made = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes(given)]
        return tuple(made) if len(made) > 1 else made[0]

    def read_as_a_whole(self, tensor: torch.Tensor) -> None:
        """The host copies a tensor without values, as a list or an array."""
        if self.recorder is not None:
            self._read(tensor.dtype)
            self.recorder.write("aten::_local_scalar_dense", "default", {"self": tensor}, ())

    def _read(self, dtype: torch.dtype) -> bool | int | float | complex:
        """What the host reads of a tensor without values. A check in a constructor finds nothing
        amiss; in a step conditions hold."""
        if self.recorder is None:
            return False if dtype is torch.bool else 1
        self.recorder.note(
            "a value that the host reads from a large tensor is taken to be 1 or true"
        )
        return True if dtype is torch.bool else 1

    def _is_large(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether something that comes out has too many elements for values."""
        if func.is_view:
            return False
        try:
            with self.fake:
                found = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return False  # as large as what goes in, which is small
        made = [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        return any(tensor.numel() > MOST_ELEMENTS for tensor in made)


_Made = list[tuple[tuple[int, ...], torch.dtype]]


def _ctc_loss(given: dict[str, Any]) -> _Made:
    """The loss of each sequence, and the logarithms of all ways through it."""
    steps, batch, _ = given["log_probs"].shape
    targets = given["targets"]
    longest = targets.shape[1] if targets.dim() == 2 else -(-targets.shape[0] // batch)
    dtype = given["log_probs"].dtype
    return [((batch,), dtype), ((batch, steps, 2 * longest + 1), dtype)]


def _bincount(given: dict[str, Any]) -> _Made:
    weights = given["weights"]
    return [((max(given["minlength"], 1),), torch.int64 if weights is None else weights.dtype)]


_USUAL_SHAPES: dict[Any, Callable[[dict[str, Any]], _Made]] = {
    torch.ops.aten._ctc_loss.default: _ctc_loss,
    torch.ops.aten._ctc_loss.Tensor: _ctc_loss,
    torch.ops.aten.bincount.default: _bincount,
}
"""Of operators whose outputs have sizes that depend on values, but are known if targets are no
longer than there is room for, and no index is larger than was said."""


def _writes(func: Any) -> bool:
    return any(
        argument.alias_info and argument.alias_info.is_write for argument in func._schema.arguments
    )
