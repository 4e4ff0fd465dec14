"""The result of a prediction: the document of `torchtraceap predict --json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core import (
    Column,
    ColumnTable,
    Json,
    PathLike,
    PredictedTime,
    Result,
    Timeline,
    add_renderer,
    lazy_renderer,
    replacing,
    write_paths,
)
from torchtraceap.errors import OptionError
from torchtraceap.lab.memory import MemoryFit, MemoryNeed
from torchtraceap.lab.prediction.capture.calls import (
    Capture,
    Phase,
    Storages,
    TensorInfo,
    tensors_in,
)
from torchtraceap.trace import looks_like_trace_name

if TYPE_CHECKING:
    from torchtraceap.diagnosis import Diagnosis
    from torchtraceap.trace import Trace

__all__ = [
    "Communication",
    "OpShare",
    "Prediction",
    "StepMemory",
    "UnknownOp",
    "known_memory",
    "memory_need",
]


SCHEMA = "torchtraceap.prediction/1"


@dataclass(frozen=True, slots=True)
class OpShare(Result):
    """Calls of one launching operator with the same shapes."""

    name: str
    shapes: tuple[Any, ...]
    count: int
    kernels: int
    """Pieces of GPU work of all calls."""
    gpu_ns: int
    low_ns: int
    high_ns: int
    method: str
    """"table": measured on the device; "model": work over the device's rates; "calibrated": by a
    trace; "assumed": no model knows it."""


@dataclass(frozen=True, slots=True)
class UnknownOp(Result):
    """An operator that no model knows."""

    name: str
    count: int
    assumed_ns: int
    """Assumed time of all its calls, ns."""


@dataclass(frozen=True, slots=True)
class Communication(Result):
    """How long collectives run on the GPU of a rank, in two parts, ns."""

    transfer_ns: int
    """Collectives transfer, all ranks having come."""
    wait_ns: int
    """Collectives run and none transfers: the GPU waits for other ranks."""
    exposed_transfer_ns: int
    """The part of it in which nothing is computed."""
    exposed_wait_ns: int
    """The part of it in which nothing is computed."""


@dataclass(frozen=True, repr=False)
class Prediction(Result):
    """A predicted step of a model on a GPU where it did not run."""

    source: str
    """workload, cpu_profile, gpu_trace or execution_trace."""
    device: str
    dtype: str | None
    """Type that the model was converted to; None if unchanged."""
    world_size: int
    strategy: str | None
    calibrated_by: tuple[str, ...]
    versions: Mapping[str, str]
    step: PredictedTime
    """Wall time of a profiled step in the steady state; the bounds are the 5 and 95 % quantiles."""
    unprofiled: PredictedTime
    """The same of a step that nobody records."""
    gpu: Timeline
    """GPU time of a step by the definitions of `summary`, the mean over ranks and steps."""
    communication: Communication
    """What `communication_ns` and `exposed_communication_ns` of `gpu` consist of."""
    host_ns: int
    """Host time of a step if it never waits, ns."""
    bound_by: str
    """gpu, host, borderline, communication or data."""
    memory_bytes: StepMemory | None
    memory_fit: MemoryFit | None
    """Whether the memory suffices; None if the need or the memory of the device is not known."""
    ops: tuple[OpShare, ...]
    sequence: tuple[str, ...]
    """The launching operators of a step in host order."""
    unknown: tuple[UnknownOp, ...]
    notes: tuple[str, ...]
    trace: Trace = field(compare=False)
    """The predicted steps as a profiler would have recorded them, one rank of each kind."""
    trace_of_slowest: Callable[[], Trace] = field(compare=False)
    """Makes the same trace of the slowest rank of each kind, which waits for no other of it."""

    def to_dict(self) -> Json:
        """Return the document of `torchtraceap predict --json`."""
        found = Result.to_dict(self)
        del found["trace"], found["trace_of_slowest"]
        return {"schema": SCHEMA, **found, "versions": dict(self.versions)}

    def diagnose(self) -> Diagnosis:
        """Diagnose the predicted trace of the slowest ranks, in which waits for them are no
        communication."""
        return self.trace_of_slowest().diagnose()

    def table(self) -> ColumnTable:
        """Return the launching operators, longest first."""
        texts = {
            "op": [op.name for op in self.ops],
            "shapes": [
                " ".join("x".join(map(str, shape)) or "scalar" for shape in op.shapes)
                for op in self.ops
            ],
            "method": [op.method for op in self.ops],
        }
        figures = ("count", "kernels", "gpu_ns", "low_ns", "high_ns")
        columns: dict[str, Column] = {key: np.array(found) for key, found in texts.items()}
        for name in figures:
            columns[name] = np.array([getattr(op, name) for op in self.ops], dtype=np.int64)
        return ColumnTable(
            columns,
            shown=("op", "shapes", *figures, "method"),
            first=("op", "gpu_ns", "count", "method"),
        )

    def write_trace(self, path: PathLike) -> list[Path]:
        """Write the predicted steps in Kineto's format.

        Args:
            path: `.json` or `.json.gz` for the first rank; else a folder with a file for one rank
                of each kind.

        Raises:
            OptionError: Another ending.
            OutputError: Writing fails.
        """
        if looks_like_trace_name(Path(path)):
            if not str(path).endswith((".json", ".json.gz")):
                raise OptionError(f"{path}: a trace is written as .json or .json.gz")
            with replacing(path) as staged:
                _core.write_trace(self.trace.ranks[0].table, staged)
            return [Path(path)]
        writers = [partial(_core.write_trace, rank.table) for rank in self.trace.ranks]
        names = [f"rank_{rank.rank or 0}.json.gz" for rank in self.trace.ranks]
        return write_paths(path, zip(names, writers, strict=True))

    def __repr__(self) -> str:
        step = self.step
        return (
            f"Prediction(device={self.device!r}, step_ns={step.predicted_ns}, "
            f"low_ns={step.low_ns}, high_ns={step.high_ns}, bound_by={self.bound_by!r})"
        )


add_renderer(
    f"{__name__}.Prediction",
    "tables",
    lazy_renderer("torchtraceap.lab.prediction.text", "prediction_tables"),
)


_BLOCK = 512
"""Granularity of CUDA's allocator, bytes."""


@dataclass(frozen=True, slots=True)
class StepMemory(MemoryNeed):
    """The tensors of a captured step."""

    peak: int
    """Bytes at the moment when all of them together take the most."""


def memory_need(capture: Capture) -> StepMemory | None:
    """Return the memory of a captured step; None if the capture doesn't know when memory is
    freed."""
    held = capture.storages
    if held is None:
        return None
    known = held.parameters | held.gradients | held.optimizer
    peak = _peak_bytes(capture, held, frozenset())
    return StepMemory(
        parameters=_bytes(held, held.parameters),
        gradients=_bytes(held, held.gradients),
        optimizer=_bytes(held, held.optimizer),
        activations=_peak_bytes(capture, held, known),
        peak=peak,
    )


def known_memory(capture: Capture) -> str | None:
    """Describe the known memory of a recorded step in words; None if it trains nothing.

    Gradients say how large the parameters are that they are of. What an optimizer's calls take and
    none of them makes are parameters, gradients and its state. When activations come and go a
    record of operators doesn't say.
    """
    trained = sum(_rounded(each.tensor) for each in capture.gradients)
    if not trained:
        return None
    taken, made = dict[int, int](), set[int]()
    for call in capture.calls:
        if call.phase is Phase.OPTIMIZER and not call.on_host:
            for tensor in tensors_in(call.inputs.values()):
                if tensor.storage > 0 and tensor.storage not in made and tensor.shape:
                    taken.setdefault(tensor.storage, _rounded(tensor))
            made.update(tensor.storage for tensor in tensors_in(call.outputs))
    state = sum(taken.values()) - 2 * trained
    optimizer = (
        f"the optimizer's state {state:,}"
        if state >= 0 and taken
        else "the optimizer's state is not told"
    )
    return (
        f"Memory: parameters that are trained take {trained:,} bytes, gradients as many, "
        f"{optimizer}; when activations come and go is not recorded, so no peak is told."
    )


def _rounded(tensor: TensorInfo) -> int:
    return -(-tensor.elements * tensor.dtype.size // _BLOCK) * _BLOCK


def _bytes(held: Storages, storages: Iterable[int]) -> int:
    return sum(-(-held.bytes[each] // _BLOCK) * _BLOCK for each in storages)


def _peak_bytes(capture: Capture, held: Storages, without: frozenset[int]) -> int:
    """Return the peak of the storages that are not excluded, bytes."""
    alive = {each for each in held.at_begin if each not in without}
    total = _bytes(held, alive)
    most = total
    freed = iter(held.freed)
    gone = next(freed, None)
    for made, call in enumerate(capture.calls):
        while gone is not None and gone[0] <= made:
            if gone[1] in alive:
                alive.remove(gone[1])
                total -= _bytes(held, [gone[1]])
            gone = next(freed, None)
        if call.on_host or call.is_view:
            continue
        if call.move is not None and not call.move.to_gpu:
            left = alive.intersection(tensor.storage for tensor in tensors_in(call.outputs))
            alive -= left  # a module's parameter, which stays the object that it is
            total -= _bytes(held, left)
            continue
        for tensor in tensors_in(call.outputs):
            if tensor.storage not in alive and tensor.storage not in without:
                alive.add(tensor.storage)
                total += _bytes(held, [tensor.storage])
        most = max(most, total)
    return most
