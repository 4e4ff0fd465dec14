"""Options of a transformer that is given by its sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from torchtraceap.core import PredictedTime
from torchtraceap.errors import OptionError
from torchtraceap.lab.jobs.jobs import Cluster, TrainingJob, Transformer
from torchtraceap.lab.jobs.parallelism import Parallelism, choose_parallelism, job_fit, plain_job
from torchtraceap.lab.jobs.terms import job_memory
from torchtraceap.lab.memory import MemoryFit
from torchtraceap.lab.planning.job import Job
from torchtraceap.lab.planning.result import PlanOption, RefusedOption, TooLarge
from torchtraceap.ops import Device

__all__ = ["plan_sizes"]

_SPLITS = 3
"""Splits of a number of GPUs that become options."""
_WAYS = 4
"""Changes that are named where a job is too large."""


def plan_sizes(
    model: Transformer,
    cluster: Cluster,
    device: Device,
    job: Job,
    *,
    global_batch: int,
    micro_batches: Sequence[int],
    recompute: Sequence[str],
    zero: Sequence[int],
    flash_attention: bool,
) -> tuple[list[PlanOption], list[TooLarge], list[RefusedOption]]:
    """Return the fastest splits of a model over a cluster, the plain one if it is too large, and
    what is refused; for arguments see `choose_parallelism`."""
    gpus = cluster.gpus
    try:
        found = choose_parallelism(
            model,
            cluster,
            global_batch=global_batch,
            micro_batches=micro_batches,
            recompute=recompute,
            zero=zero,
            flash_attention=flash_attention,
        )
    except OptionError as error:
        return [], [], [RefusedOption(device.name, gpus, "", str(error))]
    options = list(_options(found, device, job))
    plain = replace(plain_job(model, gpus, flash_attention), data=gpus)
    fit = job_fit(plain, device)
    too_large = []
    if fit is not None and not fit.fits:
        too_large.append(
            TooLarge(
                device.name,
                gpus,
                "data parallel" if gpus > 1 else "one GPU",
                1,
                job_memory(plain),
                fit,
                _fits_with(plain, device, cluster.gpus_per_node),
            )
        )
    reasons = Counter(one.reason for one in found.refused).most_common(1)
    refused = [] if options else [RefusedOption(device.name, gpus, "", why) for why, _ in reasons]
    return options, too_large, refused


def _options(found: Parallelism, device: Device, job: Job) -> Iterator[PlanOption]:
    """Yield the fastest strategies, one of each split over tensor and pipeline parallelism."""
    seen: set[tuple[int, int]] = set()
    for strategy in found.strategies:
        own = strategy.job
        if (own.tensor, own.pipeline) in seen:
            continue
        seen.add((own.tensor, own.pipeline))
        yield job.option(
            device,
            found.gpus,
            _words(own),
            batch=own.global_batch,
            micro_batch=own.micro_batch,
            largest_micro_batch=_largest_micro_batch(own, device),
            step=PredictedTime(
                round(strategy.step_ns), round(strategy.low_ns), round(strategy.high_ns)
            ),
            sample_tokens=own.sequence,
            utilization=strategy.utilization,
            memory=strategy.memory,
            memory_fit=job_fit(own, device),
            bound_by=strategy.bound_by,
            unmeasured=strategy.unmeasured,
        )
        if len(seen) == _SPLITS:
            return


def _words(job: TrainingJob) -> str:
    """Describe how a job is split."""
    parts = [f"tp {job.tensor}"] if job.tensor > 1 else []
    if job.pipeline > 1:
        parts.append(f"pp {job.pipeline}" + (f" x {job.chunks}" if job.chunks > 1 else ""))
    if job.data > 1 or not parts:
        parts.append(f"dp {job.data}")
    parts += [f"ZeRO {job.zero}"] if job.zero else []
    parts += ["sequence"] if job.sequence_parallel else []
    parts += [f"recompute {job.recompute}"] if job.recompute != "none" else []
    return ", ".join(parts)


# ------------------------------------------------------------------------------- memory


def _with_micro_batch(job: TrainingJob, micro: int) -> TrainingJob:
    """Return a job with another micro-batch and as many of them."""
    return replace(job, micro_batch=micro, global_batch=micro * job.data * job.microbatches)


def _largest_micro_batch(job: TrainingJob, device: Device) -> int | None:
    """Return the largest micro-batch that fits; None if the device's memory is not known."""
    one, two = (job_fit(_with_micro_batch(job, micro), device) for micro in (1, 2))
    if one is None or two is None:
        return None
    return 1 + max(one.free // max(two.needed - one.needed, 1), -1)


def _fits_with(plain: TrainingJob, device: Device, per_node: int) -> tuple[str, ...]:
    """Return the ways to make a job fit, those with the fewest changes first."""
    single = list(_changes(plain, per_node))
    found, solved = list[str](), set[str]()
    for count in range(1, 4):
        for chosen in combinations(single, count):
            kinds = [kind for kind, _, _ in chosen]
            if len(set(kinds)) < count or solved.intersection(kinds):
                continue  # the mildest change of a kind suffices
            changed = _changed(plain, {key: value for _, _, own in chosen for key, value in own})
            fit: MemoryFit | None = None if changed is None else job_fit(changed, device)
            if fit is not None and fit.fits:
                found.append(" and ".join(name for _, name, _ in chosen))
                solved.update(kinds if count == 1 else ())
        if len(found) >= _WAYS or (found and count > 1):
            break
    return tuple(found[:_WAYS])


_Change = tuple[str, str, tuple[tuple[str, Any], ...]]


def _changes(plain: TrainingJob, per_node: int) -> Iterator[_Change]:
    """Yield kind, name and fields of each change that saves memory, the mildest of a kind first."""
    for stage in (1, 2, 3):
        if plain.data > 1:
            yield "zero", f"ZeRO stage {stage}", (("zero", stage),)
    if not plain.flash_attention:
        yield "recompute", "selective recomputation", (("recompute", "selective"),)
    yield "recompute", "full recomputation", (("recompute", "full"),)
    for ranks in (2, 4, 8):
        if ranks <= min(per_node, plain.gpus):
            yield "tensor", f"{ranks}-way tensor parallelism", (("tensor", ranks),)
    for stages in (2, 4, 8, 16):
        if stages <= plain.gpus:
            yield "pipeline", f"{stages} pipeline stages", (("pipeline", stages),)


def _changed(plain: TrainingJob, fields: dict[str, Any]) -> TrainingJob | None:
    """Return a job with changes on as many GPUs; None if it can't be divided so."""
    tensor, pipeline = (fields.get(name, 1) for name in ("tensor", "pipeline"))
    if plain.gpus % (tensor * pipeline):
        return None
    data = plain.gpus // (tensor * pipeline)
    if data == 1 and fields.get("zero"):
        return None
    try:
        return replace(plain, **fields, data=data, global_batch=data * max(pipeline, 1))
    except OptionError:
        return None
