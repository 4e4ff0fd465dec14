"""What a prediction can start from, as a function that makes a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchtraceap.dtypes import dtype_named
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.prediction.workload import Workload, find_workload, made_workload

if TYPE_CHECKING:
    import torch

__all__ = ["prepared_workload"]


def prepared_workload(
    source: Any,
    inputs: Any,
    loss: Callable[[Any], torch.Tensor] | None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None,
    dtype: object,
    batch: int | None,
) -> Callable[[], Workload]:
    """A workload of the model, converted as it is asked for.

    Args:
        source: A model, a function that makes a workload, or the name of one.
        inputs, loss, optimizer: Of a model.
        dtype: For all floating point numbers.
        batch: For the leading dimension of the inputs.

    Raises:
        OptionError: None of these.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "a prediction runs the model, for which torch is needed"
        ) from error
    is_model = isinstance(source, torch.nn.Module)
    if is_model and inputs is None:
        raise OptionError("a model needs inputs: a tuple of arguments, or a dict by name")
    if not is_model and (inputs is not None or loss is not None or optimizer is not None):
        raise OptionError("inputs, loss and optimizer are of a model; a workload has its own")
    make = _maker(source, inputs, loss, optimizer, is_model)
    to = None if dtype is None else _torch_dtype(dtype)
    if batch is not None and batch < 1:
        raise OptionError(f"a batch of {batch} makes no sense")

    def prepared() -> Workload:
        workload = made_workload(make())
        if to is not None:
            workload = _converted(workload, to)
        return workload if batch is None else _with_batch(workload, batch)

    return prepared


def _maker(
    source: Any, inputs: Any, loss: Any, optimizer: Any, is_model: bool
) -> Callable[[], Any]:
    if is_model:
        given = {"model": source, "inputs": inputs, "loss": loss, "optimizer": optimizer}
        return lambda: given
    if isinstance(source, str):
        return find_workload(source)
    if callable(source):
        made: Callable[[], Any] = source
        return made
    raise OptionError(
        "a model, a function that makes a workload or its name is needed, "
        f"not {type(source).__name__}"
    )


def _torch_dtype(dtype: object) -> torch.dtype:
    import torch

    if isinstance(dtype, torch.dtype):
        return dtype
    known = dtype_named(str(dtype))
    labels = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
    name = labels.get(str(dtype), known.name if known else "")
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise OptionError(f"dtype {dtype!r}: one of {', '.join(labels)} is needed")
    return found


def _converted(workload: Workload, dtype: torch.dtype) -> Workload:
    """Model and inputs with other floating point numbers."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return replace(
        workload, model=workload.model.to(dtype), inputs=_of_tensors(workload.inputs, convert)
    )


def _with_batch(workload: Workload, batch: int) -> Workload:
    """Inputs with another leading dimension, those that share the one of the first."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [each for each in tree_leaves(workload.inputs) if isinstance(each, torch.Tensor)]
    before = next((tensor.shape[0] for tensor in tensors if tensor.dim()), None)
    if before is None:
        raise OptionError("no input has a leading dimension that a batch could be")

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != before:
            return tensor
        return tensor[:1].expand(batch, *tensor.shape[1:]).contiguous()

    return replace(workload, inputs=_of_tensors(workload.inputs, resized))


def _of_tensors(inputs: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    import torch
    from torch.utils._pytree import tree_map_only

    found = tree_map_only(torch.Tensor, change, inputs)
    return dict(found) if isinstance(found, Mapping) else found
