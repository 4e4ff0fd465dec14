"""Critical paths of real traces: HTA's numbers, tiling, and what the traces are known for.

HTA's numbers were measured with its main branch and with release 0.5.0 (pandas 2.1), zero-weight
launch edges switched on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.tables.steps.hta_path import build_hta_path

from .conftest import corpus_files

ALEX_NET = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"


@dataclass(frozen=True)
class Published:
    """What HTA finds: nodes and edges of the graph; nodes, events, µs and shares of the path."""

    file: str
    annotation: str
    instance: int
    nodes: int
    edges: int
    path_nodes: int
    path_events: int
    duration_us: int | None
    shares: dict[str, float]  # percent
    release: str = "main"
    tied_edges: int = 0
    """HTA counts a queue over launches and starts that it sorts by whole microseconds with an
    unstable sort. So many kernels have a launch and a start in one microsecond of which it may take
    either first; each decides whether one kernel-kernel edge exists."""


CPU, GPU = "cpu_bound", "gpu_compute_bound"
KERNEL_GAP, LAUNCH = "gpu_kernel_kernel_overhead", "gpu_kernel_launch_overhead"
SIMPLE_ADD = "hta/simple_add_critical_path.json.gz"
ALEX = "hta/alexnet_critical_path.json.gz"
EVENTS = "hta/cuda_event_sync.json.gz"
MULTI = "hta/cuda_event_sync_multi_stream.json.gz"
RESNET = "hta/resnet_ddp_v100_ns_resolution.json.gz"
AMD = "hta/mi250_minitoy_training.json.gz"
NCCL = "hta/nccl_a100_rank_of_2.json.gz"
DDP = "hta/ddp_a100_rank_of_8_control.json.gz"
NANOGPT = "modded_nanogpt/overlap_hook.json.gz"
QWEN = "tracelens/h100/qwen_inference.json.gz"
STEP = "ProfilerStep"

PUBLISHED = [
    Published(SIMPLE_ADD, ALEX_NET, 1, 414, 440, 315, 159, 241724, {CPU: 99.779}),
    Published(ALEX, ALEX_NET, 1, 418, 456, 149, 77, 35834, {CPU: 89.418, GPU: 10.359}),
    Published(EVENTS, "", 0, 54, 57, 40, 21, 2411, {}),
    Published(MULTI, "", 0, 78, 85, 59, 31, 1178, {}),
    Published(RESNET, STEP, 1, 11228, 12444, 2983, 1494, 97176, {GPU: 96.317}),
    Published(AMD, STEP, 0, 204, 202, 82, 41, None, {}),
    Published(NCCL, STEP, 0, 15616, 15998, 13076, 6538, 190909, {}, tied_edges=8),
    Published(DDP, STEP, 0, 19886, 21084, 10429, 5216, 39243, {CPU: 70.96}, tied_edges=32),
    # Measured with release 0.5.0.
    Published(SIMPLE_ADD, ALEX_NET, 0, 436, 462, 337, 170, 294696, {CPU: 99.819}, "0.5.0"),
    Published(ALEX, ALEX_NET, 0, 440, 478, 171, 88, 78776, {CPU: 95.186}, "0.5.0"),
    Published(MULTI, "", 0, 78, 85, 59, 31, 1178, {CPU: 87.012, LAUNCH: 1.188}, "0.5.0"),
    Published(RESNET, STEP, 0, 11230, 12357, 3053, 1529, 96853, {GPU: 96.572}, "0.5.0", 3),
    Published(RESNET, STEP, 1, 11228, 12443, 2983, 1494, 96575, {GPU: 96.916}, "0.5.0"),
    Published(AMD, STEP, 1, 80, 79, 66, 33, 741, {CPU: 100.0}, "0.5.0"),
    Published(NCCL, STEP, 0, 15616, 15999, 6160, 3080, 101646, {CPU: 100.0}, "0.5.0", 8),
    Published(NCCL, STEP, 1, 15600, 15979, 6146, 3073, 101398, {CPU: 100.0}, "0.5.0", 8),
    Published(DDP, STEP, 0, 19886, 21091, 4985, 2494, 59158, {KERNEL_GAP: 71.267}, "0.5.0", 32),
    Published(DDP, STEP, 1, 19846, 21149, 5017, 2510, 59087, {KERNEL_GAP: 73.415}, "0.5.0", 37),
    # Steps with copies on the GPU's tracks: the host's are counted first.
    Published(NANOGPT, STEP, 1, 6304, 7279, 2079, 1041, 62186, {GPU: 90.972}, "0.5.0"),
    Published(NANOGPT, STEP, 3, 5806, 6712, 1937, 970, 61511, {GPU: 90.538}, "0.5.0"),
    Published(QWEN, STEP, 1, 10872, 12046, 2810, 1406, 33503, {GPU: 87.01}, "0.5.0", 1),
]


@pytest.mark.parametrize("expected", PUBLISHED, ids=lambda p: f"{p.file}-{p.instance}-{p.release}")
def test_hta(corpus: Path, expected: Published) -> None:
    path = corpus / expected.file
    if not path.exists():
        pytest.skip(f"{path} is not in this corpus")
    table = build_hta_path(
        ttap.load(path).rank(),
        annotation=expected.annotation,
        instances=(expected.instance, expected.instance),
        release=expected.release,
    )
    facts = table.facts
    assert facts["nodes"] == expected.nodes
    assert abs(facts["edges"] - expected.edges) <= expected.tied_edges
    assert facts["path_nodes"] == expected.path_nodes
    assert facts["path_events"] == expected.path_events
    if expected.duration_us is not None:
        assert facts["total_ns"] == 1000 * expected.duration_us
    shares = dict(zip(table.to_list("cause"), table.to_list("time_share"), strict=True))
    for cause, percent in expected.shares.items():
        assert round(100 * shares[cause], 3) == pytest.approx(percent, abs=0.0011)


def test_hta_edge_types(corpus: Path) -> None:
    path = corpus / SIMPLE_ADD
    if not path.exists():
        pytest.skip(f"{path} is not in this corpus")
    table = build_hta_path(ttap.load(path).rank(), annotation=ALEX_NET, instances=(1, 1))
    assert list(table.facts["edges_by_type"].values()) == [350, 23, 40, 25, 2]
    assert table.facts["path_edges"] == 314


@pytest.mark.parametrize("name", corpus_files())
def test_path_tiles_every_trace(corpus: Path, name: str) -> None:
    table = ttap.load(corpus / name).critical_path(by="event")
    assert table["duration_ns"].sum() == table.facts["total_ns"]
    assert (table["start_ns"][1:] == table["end_ns"][:-1]).all()
    assert table.facts["bound_by"] is not None


@pytest.mark.parametrize("name", corpus_files())
def test_every_trace_has_an_answer_in_compatibility_mode(corpus: Path, name: str) -> None:
    trace = ttap.load(corpus / name)
    try:
        table = trace.critical_path(compat="hta")
    except ttap.errors.OptionError as error:
        assert "HTA's graph" in str(error)
    else:
        assert table["time_ns"].sum() == table.facts["total_ns"]


BOUND_BY = [
    (RESNET, "gpu_compute_bound"),
    ("modded_nanogpt/overlap_before.json.gz", "gpu_compute_bound"),
    ("luatil/compiled_training_cudagraph.json.gz", "gpu_compute_bound"),
    ("segment_anything_fast/amg_baseline.json.gz", "gpu_compute_bound"),
    ("pytorch_benchmark/copies_pageable.json", "copy_bound"),
    ("pytorch_benchmark/copies_pinned.json", "copy_bound"),
    ("tracelens/h100/vit_nsfw_inference.json.gz", "cpu_bound"),
    ("tracelens/mi300/bert_inference.json.gz", "cpu_bound"),
    (NCCL, "cpu_bound"),
]


@pytest.mark.parametrize(("name", "bound"), BOUND_BY)
def test_what_bounds_a_known_trace(corpus: Path, name: str, bound: str) -> None:
    path = corpus / name
    if not path.exists():
        pytest.skip(f"{path} is not in this corpus")
    assert ttap.load(path).critical_path().facts["bound_by"] == bound


def _shares(path: Path) -> dict[str, Any]:
    shares: dict[str, Any] = ttap.load(path).critical_path().facts["bound_shares"]
    return shares


def test_workers_take_data_loading_off_the_path(corpus: Path) -> None:
    single, several = (corpus / f"kineto/resnet50_num_workers_{n}.json.gz" for n in (0, 4))
    if not (single.exists() and several.exists()):
        pytest.skip(f"{single} and {several} are not in this corpus")
    # Its author states 416 ms of fetching in 1049 ms; with workers 10 ms are left.
    assert _shares(single)["data_loading"] > 0.35
    assert _shares(several).get("data_loading", 0.0) < 0.03


def test_the_late_rank_is_on_the_path(corpus: Path) -> None:
    folder = corpus / "torchrec_4ranks_late_rank"
    if not folder.exists():
        pytest.skip(f"{folder} is not in this corpus")
    table = ttap.load(folder).critical_path(by="name")
    by_rank = {entry["rank"]: entry["share"] for entry in table.facts["rank_shares"]}
    assert by_rank[2] > 0.9
    assert table.facts["bound_by"] == "cpu_bound"
    assert table.to_list("name")[0] == "# running sparse arch"
