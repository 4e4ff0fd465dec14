"""Plans a run: every GPU, number of GPUs and strategy, by time, memory and price.

A job is a transformer given by its sizes, whose splits `choose_parallelism` searches; or anything
that `predict` accepts, whose strategies are given. A workload is captured once for each strategy
and number of ranks, and then laid out on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.core import format_bytes, pluralize, read_json
from torchtraceap.errors import OptionError
from torchtraceap.lab.jobs.jobs import NODE_BANDWIDTH, RECOMPUTE, Cluster, Transformer, check_size
from torchtraceap.lab.planning.captured import Capturer, plan_captured
from torchtraceap.lab.planning.job import Job
from torchtraceap.lab.planning.result import (
    PlanOption,
    RefusedOption,
    TooLarge,
    TrainingPlan,
    cost_of,
)
from torchtraceap.lab.planning.sizes import plan_sizes
from torchtraceap.ops import Device, device_named

if TYPE_CHECKING:
    import torch

    from torchtraceap.lab.prediction.sources import CapturedStep
    from torchtraceap.trace import Trace

__all__ = ["plan"]

_MOST_CELLS = 4096
"""Limit on devices times numbers of GPUs."""
_MAX_CONFIG_BYTES = 1 << 24
_TIGHT = 0.05
"""Share of a GPU's memory below which what is left free is called little."""


def plan(
    model: Any,
    inputs: Any = None,
    *,
    devices: Sequence[str | Device] | Mapping[str, float | None],
    gpus: Sequence[int] = (1,),
    tokens: float | None = None,
    samples: float | None = None,
    batch: int | None = None,
    strategies: Sequence[str] = (),
    sort: str | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    dtype: object = None,
    calibrate: Iterable[Trace] = (),
    micro_batches: Sequence[int] = (),
    recompute: Sequence[str] = RECOMPUTE,
    zero: Sequence[int] = (0, 1, 3),
    flash_attention: bool = True,
    gpus_per_node: int = 8,
    node_bandwidth: float = NODE_BANDWIDTH,
) -> TrainingPlan:
    """Compare GPUs, numbers of them and strategies for a run: time, memory and price.

    Args:
        model: Sizes of a transformer (a mapping, a configuration, the path of a config.json), or
            anything that `predict` takes: a model with `inputs`, a workload, a recorded step.
        inputs, loss, optimizer, dtype: Of a model; see `predict`.
        devices: GPUs by name or id; as a mapping with the price of an hour of one GPU.
        gpus: Numbers of GPUs to try.
        tokens, samples: Length of the run; one of the two.
        batch: Of sizes: sequences of a step over all GPUs, which are needed. Else: the leading
            dimension of the inputs of one rank.
        strategies: Of several GPUs, to try; by default ddp and fsdp2. Splits of sizes are
            searched.
        sort: "price" or "time"; by default price if prices are given.
        calibrate: Traces that calibrate durations and host times; not of sizes.
        micro_batches, recompute, zero, flash_attention, gpus_per_node, node_bandwidth: Of sizes;
            see `choose_parallelism` and `Cluster`.

    Raises:
        OptionError: Options that make no sense.
        MissingDependencyError: Without torch, unless the model is given by its sizes.
    """
    if isinstance(devices, str | Device):
        raise OptionError(f"devices are a list of GPUs or a mapping to prices, not {devices!r}")
    chips = [each if isinstance(each, Device) else device_named(each) for each in devices]
    prices = _prices(devices, chips)
    job = Job(_amount("samples", samples), _amount("tokens", tokens), prices)
    if (samples is None) == (tokens is None):
        raise OptionError("say how long the run is: tokens or samples")
    counts = list(dict.fromkeys(gpus))
    for count in counts:
        check_size("gpus", count)
    if not chips or not counts or len(chips) * len(counts) > _MOST_CELLS:
        raise OptionError(f"1 to {_MOST_CELLS:,} devices times numbers of GPUs can be compared")
    by = sort or ("price" if prices else "time")
    if by not in ("price", "time"):
        raise OptionError(f'sort is "price" or "time", not {by!r}')
    bare = [chip.name for chip in chips if chip.name not in prices]
    if bare and (prices or by == "price"):
        raise OptionError(f"give a price for every device or for none: {', '.join(bare)} has none")
    options: list[PlanOption] = []
    too_large: list[TooLarge] = []
    refused: list[RefusedOption] = []
    sizes = _sizes_of(model)
    if sizes is None:
        capture = _capturer(model, inputs, loss, optimizer, dtype)
        source, options, too_large, refused = plan_captured(
            capture, chips, counts, job, strategies=strategies, batch=batch, dtype=dtype,
            recorded=model, calibrate=tuple(calibrate),
        )  # fmt: skip
        notes = ["Steps are those of a run that nobody records; loading is not in them."]
    else:
        source = "sizes"
        if batch is None:
            raise OptionError("sizes need a batch: the sequences of a step over all GPUs")
        if strategies:
            raise OptionError("splits of sizes are searched; strategies are of workloads")
        for device in chips:
            for count in counts:
                try:
                    cluster = Cluster(device, count, gpus_per_node, node_bandwidth)
                except OptionError as error:
                    refused.append(RefusedOption(device.name, count, "", str(error)))
                    continue
                fitting, large, impossible = plan_sizes(
                    sizes, cluster, device, job, global_batch=batch, micro_batches=micro_batches,
                    recompute=recompute, zero=zero, flash_attention=flash_attention,
                )  # fmt: skip
                options += fitting
                too_large += large
                refused += impossible
        notes = [
            "Training in half precision with Adam; splits are searched by a model of Megatron."
        ]
    ordered = _with_frontier(options, by)
    return TrainingPlan(
        source=source,
        samples=job.samples,
        tokens=job.tokens,
        coverage=0.8 if source == "sizes" else 0.9,
        sorted_by=by,
        options=tuple(ordered),
        too_large=tuple(too_large),
        refused=tuple(refused),
        would_change=tuple(_changes_of(ordered, prices)),
        notes=(
            *notes,
            "What the allocator, libraries and collectives take next to tensors is guessed.",
        ),
    )


def _prices(
    devices: Sequence[str | Device] | Mapping[str, float | None], chips: Sequence[Device]
) -> dict[str, float]:
    """Return the price of an hour by the name of the device.

    Raises:
        OptionError: A price is no number above 0.
    """
    given = devices.values() if isinstance(devices, Mapping) else [None] * len(chips)
    found = {}
    for chip, price in zip(chips, given, strict=True):
        if price is not None:
            found[chip.name] = _amount(f"the price of {chip.name}", price) or 0.0
    return found


def _amount(name: str, value: float | None) -> float | None:
    """Return a number above 0 or None.

    Raises:
        OptionError: It is something else.
    """
    if value is None:
        return None
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < inf:
        raise OptionError(f"{name}: a number above 0 is needed, not {value!r}")
    return float(value)


def _sizes_of(model: Any) -> Transformer | None:
    """Return the sizes of a model that is given by them, else None.

    Raises:
        OptionError: A configuration lacks a size.
    """
    if isinstance(model, str | Path) and str(model).endswith(".json") and Path(model).is_file():
        if Path(model).stat().st_size > _MAX_CONFIG_BYTES:
            return None
        told = read_json(model, most=_MAX_CONFIG_BYTES)
        is_config = isinstance(told, dict) and not {"traceEvents", "nodes"} & set(told)
        return Transformer.of(told) if is_config else None
    if isinstance(model, Transformer | Mapping):
        return Transformer.of(model)
    names = ("hidden_size", "n_embd", "d_model", "dim", "hidden")
    has_sizes = not callable(model) and any(hasattr(model, name) for name in names)
    return Transformer.of(model) if has_sizes else None


def _capturer(
    model: Any,
    inputs: Any,
    loss: Callable[[Any], torch.Tensor] | None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None,
    dtype: object,
) -> Capturer:
    """Return what captures a step of the model."""
    from torchtraceap.lab.prediction.sources import captured_step

    def capture(count: int, way: str | None, batch: int | None, device: Device) -> CapturedStep:
        return captured_step(
            model, inputs, loss=loss, optimizer=optimizer, dtype=dtype, batch=batch,
            world_size=count, strategy=way, device=device,
        )  # fmt: skip

    return capture


# ------------------------------------------------------------------------------- the choice


def _with_frontier(options: Sequence[PlanOption], by: str) -> list[PlanOption]:
    """Return options, the best first, with those marked of which none is faster and as cheap.

    Without prices the hours of all GPUs are what a run costs.
    """
    ordered = sorted(
        options, key=lambda each: (cost_of(each) if by == "price" else 0.0, each.run_seconds)
    )
    least, kept = inf, set[int]()
    for place in sorted(range(len(ordered)), key=lambda place: ordered[place].run_seconds):
        if cost_of(ordered[place]) < least:
            least = cost_of(ordered[place])
            kept.add(place)
    return [replace(each, on_frontier=place in kept) for place, each in enumerate(ordered)]


def _changes_of(options: Sequence[PlanOption], prices: Mapping[str, float]) -> list[str]:
    """Say what would make another option the best one."""
    if not options:
        return []
    best = options[0]
    found = []
    other = next((each for each in options if each.device != best.device), None)
    if other is not None and best.price is not None and other.price is not None:
        limit = prices[best.device] * other.price / best.price
        if limit > prices[best.device]:
            found.append(
                f"{best.device} is the cheapest while an hour of it costs less than "
                f"{limit:,.2f}; beyond that {other.gpus} x {other.device} is."
            )
    near = [
        each
        for each in options[1:]
        if each.run_seconds * each.step.low_ns / each.step.predicted_ns
        < best.run_seconds * best.step.high_ns / best.step.predicted_ns
        and (
            best.price is None
            or each.price is None
            or each.price * each.step.low_ns / each.step.predicted_ns
            < best.price * best.step.high_ns / best.step.predicted_ns
        )
    ]
    if near:
        first = near[0]
        found.append(
            f"{pluralize(len(near), 'other option')} may be as good, by the intervals; the next is "
            f"{first.gpus} x {first.device} ({first.strategy})."
        )
    fit = best.memory_fit
    if fit is not None and fit.free < _TIGHT * fit.capacity:
        found.append(
            f"The best one leaves {format_bytes(fit.free)} of a GPU's memory free, which is little."
        )
    return found
