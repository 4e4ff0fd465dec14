"""The traces that host times are fitted on, and what of them enters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

import torchtraceap as ttap
from torchtraceap._core import EventKind
from torchtraceap.core.aliases import Array
from torchtraceap.lab.prediction.lowering.loop import PARTS
from torchtraceap.lab.prediction.lowering.recorded_host import RecordedCalls, recorded_calls
from torchtraceap.trace.ranks import RankTrace

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_DDP = "DistributedDataParallel.forward"


@dataclass(frozen=True)
class Source:
    """A public trace."""

    path: str
    machine: str
    device: str
    """Its GPU."""
    model: str
    profiler: str
    """"full": Python stacks, shapes, memory; "stack": Python stacks and shapes; "plain"."""
    repository: str


# Eager runs in a warm process. Left out: compiled runs, traces of a first iteration (views of
# tokenomics' take 20 us, operators of TraceLens's normalisation layers load their code), traces
# that were thinned before they were published.
SOURCES = (
    Source(
        "tracelens/h100/vit_nsfw_inference.json.gz", "h100", "H100 SXM", "vit", "full", "TraceLens"
    ),
    Source(
        "tracelens/h100/qwen_inference.json.gz", "h100", "H100 SXM", "qwen", "full", "TraceLens"
    ),
    Source(
        "tracelens/h100/timesformer_inference.json.gz",
        "h100",
        "H100 SXM",
        "timesformer",
        "full",
        "TraceLens",
    ),
    Source(
        "tracelens/mi300/bert_inference.json.gz", "mi300x-vf", "MI300X", "bert", "full", "TraceLens"
    ),
    Source(
        "tracelens/mi300/qwen_inference.json.gz", "mi300x-vf", "MI300X", "qwen", "full", "TraceLens"
    ),
    Source(
        "tracelens/mi300/timesformer_inference.json.gz",
        "mi300x-vf",
        "MI300X",
        "timesformer",
        "full",
        "TraceLens",
    ),
    Source(
        "tracelens/mi300/resnet_ddp_act_checkpoint_training.json.gz",
        "mi300x",
        "MI300X",
        "resnet",
        "stack",
        "TraceLens",
    ),
    Source(
        "tracelens/b200/eager_training_rank.json.gz",
        "b200",
        "B200",
        "transformer",
        "stack",
        "TraceLens",
    ),
    Source(
        "hta/ddp_a100_rank_of_8_control.json.gz",
        "a100-fb",
        "A100 SXM 80GB",
        "dlrm-like",
        "plain",
        "HTA",
    ),
    Source(
        "hta/nccl_a100_rank_of_2.json.gz", "a100-fb2", "A100 SXM 80GB", "resnet", "plain", "HTA"
    ),
    Source(
        "hta/resnet_ddp_v100_ns_resolution.json.gz",
        "v100-fb",
        "V100 SXM2 32GB",
        "resnet",
        "plain",
        "HTA",
    ),
    Source(
        "kineto/resnet50_num_workers_0.json.gz",
        "v100-dgx",
        "V100 SXM2 32GB",
        "resnet",
        "plain",
        "kineto",
    ),
    Source(
        "kineto/resnet50_num_workers_4.json.gz",
        "v100-dgx",
        "V100 SXM2 32GB",
        "resnet",
        "plain",
        "kineto",
    ),
    Source("param/dlrm_8ranks/rank0.json", "v100-dlrm", "V100 SXM2 32GB", "dlrm", "plain", "param"),
    Source("param/dlrm_8ranks/rank3.json", "v100-dlrm", "V100 SXM2 32GB", "dlrm", "plain", "param"),
    Source("param/dlrm_8ranks/rank6.json", "v100-dlrm", "V100 SXM2 32GB", "dlrm", "plain", "param"),
    Source(
        "param/linear_training_2080ti.json.gz",
        "rtx2080ti",
        "RTX 2080 Ti",
        "linear",
        "plain",
        "param",
    ),
    Source(
        "segment_anything_fast/amg_baseline.json.gz",
        "a100-sam",
        "A100 SXM 40GB",
        "sam",
        "plain",
        "segment-anything-fast",
    ),
)


def recorded_parts(part: RankTrace) -> dict[str, float]:
    """Return medians over the steps of a trace, ns, for the parts of `PARTS` it shows."""
    table, tree = part.table, part.tree
    marked = [step for step in tree.steps if step.row is not None]
    if tree.main_track is None or not marked:
        return {}
    work = np.isin(table.kind, [EventKind.CPU_OP, EventKind.RUNTIME, EventKind.DRIVER])
    work &= table.track == tree.main_track
    found: dict[str, list[float]] = {name: [] for name in PARTS}
    pairs = pairwise(marked)
    found["between_steps"] = [float(b.start_ns - a.end_ns) for a, b in pairs]
    loads = _named(part, "enumerate(DataLoader)#_MultiProcessing")
    # A wrapper's work before the model's forward doesn't count for a step without a wrapper.
    is_plain = not len(_named(part, "enumerate(DataLoader)")) and not len(_named(part, _DDP))
    work[[step.row for step in marked if step.row is not None]] = False
    for step in marked:
        inside = np.flatnonzero(work & (table.ts_ns >= step.start_ns) & (table.ts_ns < step.end_ns))
        if len(inside):
            ends = table.ts_ns[inside] + table.dur_ns[inside]
            found["end_of_step"].append(float(step.end_ns - ends.max()))
            if is_plain:
                found["begin_of_step"].append(float(table.ts_ns[inside].min() - step.start_ns))
    found["loader"] = table.dur_ns[loads].astype(float).tolist()
    # Calls that only free the gradients, without filling tensors with zeros, enclose nothing.
    parameters = len(_named(part, _ACCUMULATE)) / len(marked)
    rows = _named(part, "Optimizer.zero_grad#")
    places = tree.host_position[rows].astype(np.int64)
    freeing = rows[tree.subtree_end[places] == places + 1]
    if parameters:
        found["zero_grad"] = [float(ns) / parameters for ns in table.dur_ns[freeing].tolist()]
    return {name: float(np.median(each)) for name, each in found.items() if each}


def _named(part: RankTrace, prefix: str) -> Array:
    """Return operators and annotations whose name has the prefix."""
    table = part.table
    begins = np.array([text.startswith(prefix) for text in table.strings], dtype=bool)
    kinds = np.isin(table.kind, [EventKind.CPU_OP, EventKind.USER_ANNOTATION])
    rows: Array = np.flatnonzero(begins[table.name] & kinds)
    return rows


@dataclass(frozen=True)
class HostData:
    """What a trace recorded."""

    source: Source
    calls: RecordedCalls
    parts: dict[str, float]
    """Times around a step, as `recorded_parts` gives them."""


def load_sources(folder: Path) -> list[HostData]:
    """All that the folder holds."""
    return [_loaded(folder, source) for source in SOURCES if (folder / source.path).exists()]


def _loaded(folder: Path, source: Source) -> HostData:
    part = ttap.load(folder / source.path).rank()
    return HostData(source, recorded_calls(part), recorded_parts(part))
