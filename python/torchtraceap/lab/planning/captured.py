"""Options of a job that is captured: a model, a workload, or a recorded step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import floor, isfinite
from typing import TYPE_CHECKING, Any

from torchtraceap.core import dataclass
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.lab.memory import MemoryNeed, fit_memory
from torchtraceap.lab.planning.job import Job
from torchtraceap.lab.planning.result import PlanOption, RefusedOption, TooLarge
from torchtraceap.lab.prediction.capture.calls import Capture
from torchtraceap.lab.prediction.lowering.durations import op_call
from torchtraceap.lab.prediction.lowering.operators import launching_ops
from torchtraceap.lab.prediction.parallel.strategy import (
    DATA,
    EMBEDDING,
    PIPELINE,
    SHARDED,
    TENSOR,
    parse_strategy,
)
from torchtraceap.lab.prediction.predictor import StepEstimate, estimate_captured
from torchtraceap.lab.prediction.result import StepMemory, memory_need
from torchtraceap.lab.prediction.sources import CapturedStep
from torchtraceap.ops import Device, UnknownDurationError, work_of_call

if TYPE_CHECKING:
    from torchtraceap.trace import Trace

__all__ = ["plan_captured"]

_STRATEGIES = ("ddp", "fsdp2")
"""Strategies of several GPUs if none are given."""

_REFUSALS = (OptionError, TraceError, UnknownDurationError)
"""Errors that a table of options tells where it has no option."""

Capturer = Callable[[int, str | None, int | None, Device], CapturedStep]
"""Captures a step for so many ranks, a strategy, a batch (None: its own) and a device."""


def plan_captured(
    capture: Capturer,
    devices: Sequence[Device],
    gpus: Sequence[int],
    job: Job,
    *,
    strategies: Sequence[str] = (),
    batch: int | None = None,
    dtype: object = None,
    recorded: Any = None,
    calibrate: Sequence[Trace] = (),
) -> tuple[str, list[PlanOption], list[TooLarge], list[RefusedOption]]:
    """Return the kind of source, options of all devices, numbers of GPUs and strategies, those
    that are too large, and what is refused.

    A step is captured once for a number of GPUs and a strategy, whatever the devices.
    """
    cells = [
        (count, way)
        for count in gpus
        for way in ((None,) if count == 1 else strategies or _STRATEGIES)
    ]
    options: list[PlanOption] = []
    too_large: list[_Cell] = []
    refused: list[RefusedOption] = []
    source = "workload"
    growth = _Growth(capture, batch, devices[0])
    for count, way in cells:
        # Only the placement of embedding tables makes a capture depend on the device.
        is_placed = way is not None and EMBEDDING in way
        for chips in [[each] for each in devices] if is_placed else [devices]:
            try:
                captured = capture(count, way, batch, chips[0])
                shape = _Shape.of(captured, way, count)
            except _REFUSALS as error:
                said = count, way or "", str(error)
                refused += [RefusedOption(chip.name, *said) for chip in chips]
                continue
            source, ranks = captured.source, len(captured.kind_of_rank)
            for device in chips:
                try:
                    found = estimate_captured(
                        captured, device, dtype=dtype, calibrate=calibrate,
                        recorded=recorded if captured.profile is not None else None,
                    )  # fmt: skip
                except _REFUSALS as error:
                    refused.append(RefusedOption(device.name, count, way or "", str(error)))
                    continue
                cell = _Cell(device, ranks, way, shape, found)
                fit = found.memory_fit
                if fit is not None and not fit.fits:
                    too_large.append(cell)
                else:
                    options.append(_option(cell, job, captured, growth.largest(cell)))
    large = [_too_large(cell, growth.largest(cell), options) for cell in too_large]
    return source, options, large, refused


@dataclass(frozen=True, slots=True)
class _Shape:
    """Samples of a captured step."""

    rank_batch: int
    """Samples of one rank, the leading dimension of its inputs."""
    replicas: int
    """Ranks with inputs of their own."""
    sample_tokens: int | None
    """Tokens of a sample: the second dimension of inputs that are whole numbers."""
    grows_with_batch: bool
    """True if a rank's activations are those of a single process."""

    @classmethod
    def of(cls, captured: CapturedStep, way: str | None, count: int) -> _Shape:
        """Read the shape of a step from its inputs.

        Raises:
            OptionError: No input has a leading dimension.
        """
        plan = parse_strategy(way or ("ddp" if count > 1 else None), count)
        inputs = [each for each in captured.captures[0].inputs if each.shape]
        if not inputs:
            raise OptionError("no input has a leading dimension that a batch could be")
        whole = [each for each in inputs if each.dtype.rank <= 1 and len(each.shape) == 2]
        return cls(
            inputs[0].shape[0],
            plan.size(DATA) * plan.size(SHARDED) * plan.size(EMBEDDING),
            whole[0].shape[1] if whole else None,
            plan.size(TENSOR) * plan.size(PIPELINE) * plan.size(EMBEDDING) == 1,
        )


@dataclass(frozen=True, slots=True)
class _Cell:
    """A step on a device, by a number of GPUs and a strategy."""

    device: Device
    ranks: int
    way: str | None
    """The strategy; None if none is given."""
    shape: _Shape
    found: StepEstimate


_FAR = 32
"""Times its own batch at which the memory of a step is looked at as well."""


class _Growth:
    """How the memory of a single process grows with its batch.

    The peak is the highest of several moments of a step, each of which grows linearly: a small
    batch peaks in the optimizer, a large one in the backward pass. So it is captured with one and
    two, and with 32 and 64 times its batch, and the higher of the two lines counts.
    """

    def __init__(self, capture: Capturer, batch: int | None, device: Device) -> None:
        self._capture, self._batch, self._device = capture, batch, device
        self._lines: list[tuple[float, float]] | None = None
        """Intercept (bytes beyond the captured need) and slope (bytes per sample) of each line."""

    def largest(self, cell: _Cell) -> int | None:
        """Return the largest batch of a rank that fits; None if that is not known."""
        fit = cell.found.memory_fit
        if fit is None or not cell.shape.grows_with_batch:
            return None
        if self._lines is None:
            self._lines = list(self._captured_lines(cell.shape.rank_batch))
        room = [floor((fit.free - least) / each) for least, each in self._lines if each > 0]
        return max(0, min(room)) if room else None

    def _captured_lines(self, batch: int) -> Iterator[tuple[float, float]]:
        first = self._needed(self._batch)
        for times in (1, _FAR):
            one = first if times == 1 else self._needed(times * batch)
            two = self._needed(2 * times * batch)
            if first is None or one is None or two is None:
                return
            each = (two - one) / (times * batch)
            yield one - first - times * batch * each, each

    def _needed(self, batch: int | None) -> float | None:
        """Return the need of a step; None if the program can't take such a batch."""
        try:
            need = memory_need(self._capture(1, None, batch, self._device).captures[0])
        except (OptionError, TraceError):
            return None
        fit = None if need is None else fit_memory(need.peak, need.activations, self._device)
        return None if fit is None else fit.needed


def _option(cell: _Cell, job: Job, captured: CapturedStep, largest: int | None) -> PlanOption:
    found, shape = cell.found, cell.shape
    return job.option(
        cell.device,
        cell.ranks,
        cell.way or ("ddp" if cell.ranks > 1 else "one process"),
        batch=shape.rank_batch * shape.replicas,
        micro_batch=shape.rank_batch,
        largest_micro_batch=largest,
        step=found.step,
        sample_tokens=shape.sample_tokens,
        utilization=_utilization(captured, cell.device, found.step.predicted_ns),
        memory=None if found.memory_bytes is None else _need(found.memory_bytes),
        memory_fit=found.memory_fit,
        bound_by=found.bound_by,
        unmeasured=tuple(f"no model knows {name}" for name in found.unknown[:3]),
    )


def _need(memory: StepMemory) -> MemoryNeed:
    return MemoryNeed(memory.parameters, memory.gradients, memory.optimizer, memory.activations)


def _too_large(cell: _Cell, largest: int | None, options: Sequence[PlanOption]) -> TooLarge:
    """Return a step that does not fit, with the ways to make it fit that are known."""
    need, fit = cell.found.memory_bytes, cell.found.memory_fit
    assert need is not None and fit is not None
    name, ranks = cell.device.name, cell.ranks
    ways = [f"a batch of {largest} on each GPU"] if largest else []
    ways += [each.strategy for each in options if (each.device, each.gpus) == (name, ranks)]
    return TooLarge(
        name, ranks, cell.way or "one process", cell.shape.rank_batch, _need(need), fit,
        tuple(ways),
    )  # fmt: skip


def _utilization(captured: CapturedStep, device: Device, step_ns: int) -> float | None:
    """Return the share of a step in which all matrix products would be done at the device's peak;
    None if a rate is not known."""
    kinds = [
        sum(1e9 * flops / rate for flops, rate in _matrix_work(each, device))
        for each in captured.captures
    ]
    if not all(isfinite(ns) and ns > 0 for ns in kinds):
        return None
    ranks = captured.kind_of_rank
    return sum(kinds[kind] for kind in ranks) / len(ranks) / step_ns


def _matrix_work(capture: Capture, device: Device) -> Iterator[tuple[float, float]]:
    """Yield FLOPs of each matrix product and the rate of its type, 0 < rate <= inf."""
    for op in launching_ops(capture):
        work, _ = work_of_call(op_call(op))
        if work is not None and work.flops and work.unit == "matrix":
            in_tf32 = work.dtype == "fp32" and capture.allows_tf32(op.name)
            rate = (device.matrix.get("tf32") if in_tf32 else None) or (
                device.matrix.get(work.dtype) or device.vector.get(work.dtype)
            )
            yield work.flops, rate or float("nan")
