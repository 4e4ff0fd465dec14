"""The traces that host times are fitted on, and what of them enters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torchtraceap as ttap
from torchtraceap.lab.prediction.lowering.loop import recorded_parts
from torchtraceap.lab.prediction.lowering.recorded_host import RecordedCalls, recorded_calls


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
