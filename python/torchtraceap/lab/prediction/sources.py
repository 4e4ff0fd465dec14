"""Sources of a prediction: a model, a workload, or a recorded step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.core import parse_dtype
from torchtraceap.errors import MissingDependencyError, OptionError, TraceError
from torchtraceap.lab.prediction.capture.calls import Capture, CaptureError
from torchtraceap.lab.workloads.workload import Workload, check_workload, find_workload

if TYPE_CHECKING:
    import torch

    from torchtraceap.lab.prediction.capture.gpu_trace import CapturedProfile
    from torchtraceap.lab.prediction.parallel.placement import Plan
    from torchtraceap.ops import Device

__all__ = ["CapturedStep", "captured_step"]

_MOST_SAID = 400
_TF32 = ("tf32", "tensorfloat32")
"""Names of the type in which tensor cores compute fp32; tensors stay as they are."""
_LABELS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A captured step of each kind of rank."""

    source: str
    """workload, cpu_profile, gpu_trace or execution_trace."""
    captures: tuple[Capture, ...]
    kind_of_rank: tuple[int, ...]
    profile: CapturedProfile | None = None
    """Measured times, for a trace with a GPU."""


def captured_step(
    source: Any,
    inputs: Any = None,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    dtype: object = None,
    batch: int | None = None,
    world_size: int = 1,
    strategy: str | None = None,
    device: str | Device,
    sharding: Plan | None = None,
    routing_skew: float = 0.0,
) -> CapturedStep:
    """Capture a step from any source that `predict` accepts.

    Raises:
        OptionError: No source, or options that it can't take.
        CaptureError: No step can be captured of it.
        MissingDependencyError: Torch is needed and not there.
    """
    from torchtraceap.lab.prediction.capture.values import routing
    from torchtraceap.lab.prediction.parallel import capture_ranks, parse_strategy, place_tables
    from torchtraceap.lab.prediction.parallel.strategy import EMBEDDING

    plan = parse_strategy(strategy or ("ddp" if world_size > 1 else None), world_size)
    shares_tables = plan.size(EMBEDDING) > 1
    if sharding is not None and not shares_tables:
        raise OptionError("a plan of a sharding is for the strategy embedding of several ranks")
    if batch is not None and batch < 1:
        raise OptionError(f"a batch of {batch} makes no sense")
    # A text is the path of a file if there is one, or if it can't name a workload.
    if isinstance(source, (str, Path)) and (Path(source).exists() or ":" not in str(source)):
        if inputs is not None or loss is not None or optimizer is not None:
            raise OptionError("inputs, loss and optimizer are of a model; a recorded step has them")
        if routing_skew:
            raise OptionError("a recorded step has its routing; a skew is for a workload")
        return _capture_recorded(str(source), dtype, batch, world_size, strategy)
    in_tf32 = str(dtype).lower() in _TF32
    make = prepared_workload(source, inputs, loss, optimizer, None if in_tf32 else dtype, batch)
    try:
        with routing(routing_skew):
            placement = place_tables(make, world_size, device, sharding) if shares_tables else None
            found = capture_ranks(make, plan, placement)
    except TraceError:
        raise
    except Exception as error:  # whatever a user's own program raises
        said = " ".join(str(error).split())
        raise CaptureError(
            f"the step could not be run: {type(error).__name__}: {said[:_MOST_SAID]}"
        ) from error
    captures = tuple(map(_in_tf32, found.captures)) if in_tf32 else found.captures
    return CapturedStep("workload", captures, found.kind_of_rank)


def _capture_recorded(
    path: str, dtype: object, batch: int | None, world_size: int, strategy: str | None
) -> CapturedStep:
    from torchtraceap.lab.prediction.capture.gpu_trace import CapturedProfile
    from torchtraceap.lab.prediction.capture.source import capture_source, execution_traces_in
    from torchtraceap.lab.prediction.parallel.recorded import change_ranks, rank_count
    from torchtraceap.lab.prediction.parallel.strategy import parse_strategy

    files = execution_traces_in(path)
    if files:
        if strategy is not None or world_size not in (1, len(files)):
            raise OptionError(
                f"{path} holds the execution traces of {len(files)} ranks; another number or "
                "strategy is predicted from one of their traces, or from a workload"
            )
        captures = _capture_ranks(files, path, batch)
        if dtype is not None:
            captures = [_with_dtype(capture, dtype) for capture in captures]
        return CapturedStep("execution_trace", tuple(captures), tuple(range(len(files))))
    kind, found = capture_source(path, batch=batch, ranks=world_size if world_size > 1 else None)
    profile = found if isinstance(found, CapturedProfile) else None
    capture = found.changed or found.capture if isinstance(found, CapturedProfile) else found
    ranks = rank_count(capture)
    if strategy is not None or world_size not in (1, ranks):
        plan = parse_strategy(strategy or "ddp", world_size)
        capture, places = change_ranks(capture, plan, path)
        ranks = plan.world_size
        if profile is not None:
            recorded = profile.capture
            if None in places:
                recorded, _ = change_ranks(recorded, plan, path)
            measured = (0 if place is None else profile.measured_ns[place] for place in places)
            profile = replace(profile, capture=recorded, measured_ns=tuple(measured))
    if dtype is not None:
        capture = _with_dtype(capture, dtype)
    return CapturedStep(kind, (capture,), (0,) * ranks, profile)


def _with_dtype(capture: Capture, dtype: object) -> Capture:
    from torchtraceap.lab.prediction.capture.calls import with_dtype

    if str(dtype).lower() in _TF32:
        return _in_tf32(capture)
    return with_dtype(capture, _dtype_name(dtype))


def _in_tf32(capture: Capture) -> Capture:
    return replace(capture, products_in_tf32=True, convolutions_in_tf32=True)


def _capture_ranks(files: Sequence[Path], path: str, batch: int | None) -> list[Capture]:
    """Capture a step of each of the ranks that recorded an execution trace."""
    from torchtraceap.lab.prediction.capture.execution import capture_execution_trace
    from torchtraceap.lab.prediction.parallel.recorded import rank_count

    captures = [capture_execution_trace(file, batch, len(files)) for file in files]
    most = max(map(rank_count, captures))
    if most > len(files):
        raise OptionError(
            f"{path} holds the execution traces of {len(files)} ranks, and their collectives are "
            f"among {most}: all are needed, or one file alone"
        )
    return captures


def prepared_workload(
    source: Any,
    inputs: Any,
    loss: Callable[[Any], torch.Tensor] | None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None,
    dtype: object,
    batch: int | None,
) -> Callable[[], Workload]:
    """Return a function that makes the workload, converted as requested.

    Args:
        source: A model, a function that makes a workload, or the name of one.
        inputs, loss, optimizer: Inputs, loss and optimizer of a model.
        dtype: Type of all floating point numbers.
        batch: Leading dimension of the inputs.

    Raises:
        OptionError: The source is none of these, or its arguments don't match.
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
    make: Callable[[], Any] = source
    if is_model:
        make = partial(dict, model=source, inputs=inputs, loss=loss, optimizer=optimizer)
    elif isinstance(source, str):
        make = find_workload(source)
    elif not callable(source):
        raise OptionError(
            "a model, a function that makes a workload or its name is needed, "
            f"not {type(source).__name__}"
        )
    to = None if dtype is None else getattr(torch, _dtype_name(dtype))

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(to) if tensor.is_floating_point() else tensor

    def prepare() -> Workload:
        workload = check_workload(make())
        if to is not None:
            changed = _map_tensors(workload.inputs, convert)
            workload = replace(workload, model=workload.model.to(to), inputs=changed)
        return workload if batch is None else _with_batch(workload, batch)

    return prepare


def _dtype_name(dtype: object) -> str:
    """Return torch's name of a floating point type."""
    known = parse_dtype(str(dtype))
    name = _LABELS.get(str(dtype), known.name if known else "")
    if name not in _LABELS.values():
        raise OptionError(f"dtype {dtype!r}: one of {', '.join(_LABELS)}, tf32 is needed")
    return name


def _with_batch(workload: Workload, batch: int) -> Workload:
    """Return the workload with another leading dimension of the inputs that share the first
    one's."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [each for each in tree_leaves(workload.inputs) if isinstance(each, torch.Tensor)]
    before = next((tensor.shape[0] for tensor in tensors if tensor.dim()), None)
    if before is None:
        raise OptionError("no input has a leading dimension that a batch could be")

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != before:
            return tensor
        return tensor[:1].expand(batch, *tensor.shape[1:]).contiguous()

    return replace(workload, inputs=_map_tensors(workload.inputs, resize))


def _map_tensors(inputs: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    import torch
    from torch.utils._pytree import tree_map_only

    found = tree_map_only(torch.Tensor, change, inputs)
    return dict(found) if isinstance(found, Mapping) else found
