"""Lists the commands whose answers are recorded, grouped by what they read.

Every command is a line of words as a user would type it. `{in}` is the input, `{before}` and
`{after}` are those of a pair, and `{out}` is an empty folder whose files belong to the answer.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VIEWS: dict[str, tuple[str, ...]] = {
    "tree": (),
    "events": (),
    "ops": ("name", "category", "args", "call"),
    "modules": (),
    "stacks": ("gpu", "host"),
    "kernels": ("name", "canonical", "overlap", "event"),
    "sequences": (),
    "grids": ("name", "grid", "event"),
    "launches": ("call", "kernel", "op", "stream", "idle", "event", "queue"),
    "roofline": ("args", "family", "call"),
    "expected": ("args", "class", "event"),
    "memory": ("direction", "copy", "bandwidth", "counter", "allocator", "timeline"),
    "host": ("thread", "op", "frame"),
    "steps": (),
    "collectives": (),
    "ranks": ("rank", "op", "alltoall", "clock"),
    "critical-path": ("cause", "name", "event"),
}
"""The tables of a trace, each with its values of `--by`."""

_FURTHER_TABLES = (
    "kernels {in} --short --json",
    "roofline {in} --device H100-SXM --json",
    "roofline {in} --compat tracelens --json",
    "expected {in} --device H100-SXM --json",
    "expected {in} --calibrated --json",
    "critical-path {in} --compat hta --json",
    "critical-path {in} --step 0 --json",
    "tree {in} --max-depth 3 --max-lines 300",
    "ops {in} --csv {out}/ops.csv",
    "ops {in} --by args --all-columns --limit 40",
)
_DIAGNOSES = (
    "summary {in} --json",
    "summary {in} --linked-only --json",
    "summary {in}",
    "diagnose {in} --json",
    "diagnose {in} --html {out}/report.html",
    "diagnose {in} --windows 50 --scorer evidence --fail-on unknown --json",
    "score {in} --scorer evidence --json",
    "score {in} --scorer structural --json",
    "score {in} --scorer fused --windows 200 --json",
    "score {in}",
    "simulate {in} --json",
    "simulate {in} --plan --edit cuda_graph --edit mixed_precision --edit loader_workers=4 --json",
    "simulate {in} --edit device=H100-SXM --json",
    "simulate {in} --trace {out}/edited.json",
    "simulate {in}",
    "explain {in} --json",
    "explain {in} --dry-run --llm-model none --llm-base-url http://127.0.0.1:9/v1",
    "explain {in}",
    "explain-idle {in} --json",
    "explain-idle {in} --window 10 --json",
    "check {in} --contract limits.yaml --json",
    "check {in} --contract limits.yaml --no-price --junit {out}/check.xml "
    "--sarif {out}/check.sarif --markdown {out}/check.md --github",
    "sql {in} 'select name, count from ops order by count desc, name limit 20' --json",
    "annotate {in} {out}/annotated.json",
    "annotate {in} {out}/annotated.pftrace",
)
_ONE_RANK = (
    "convert {in} {out}/converted.json",
    "report {in} --tracelens-csv {out}",
    "report {in} --tracelens-csv {out} --detect-recompute",
)
# These load torch, which the others should not find loaded.
_WITH_TORCH = (
    "replay {in} --json",
    "replay {in} --op aten::mm --script {out}/reproduce.py",
    "predict {in} --device H100-SXM --diagnose --trace {out}/predicted.json --json",
)
_MANY_RANKS = ("merge {in} {out}/merged.json",)
_PAIR = (
    *(
        f"diff {{before}} {{after}} --by {view} --json"
        for view in ("op", "kernel", "ancestor", "cause", "finding")
    ),
    "diff {before} {after}",
    "diff {before} {after} --html {out}/diff.html",
    "diff {before} {after} --gate 5 --tracelens-csv {out} --json",
    "score {before} {after} --scorer evidence --json",
)
_DEVICE = "--device 'H100 SXM'"
_JOB = "--layers 24 --hidden 2048 --heads 16 --sequence 2048 --gpus 16 --batch 128"
_WITHOUT_TRACE = (
    *(
        f"estimate {what} --bytes 256MB --ranks 8 {_DEVICE} --json"
        for what in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    ),
    "estimate all_reduce --bytes 64MiB --ranks 16 --nodes 2 --device 'A100 SXM 80GB' --json",
    f"estimate gemm --m 4096 --n 4096 --k 4096 --dtype bf16 {_DEVICE} --json",
    f"estimate gemm --m 512 --n 512 --k 64 --dtype fp32 {_DEVICE}",
    "estimate attention --batch 4 --heads 16 --queries 2048 --head-size 64 --dtype bf16 "
    f"--causal {_DEVICE} --json",
    f"estimate elementwise --op gelu --elements 1000000 --dtype fp16 {_DEVICE} --json",
    f"estimate softmax --rows 4096 --columns 1024 --dtype fp32 {_DEVICE} --json",
    f"estimate layer_norm --rows 4096 --columns 1024 --dtype fp32 {_DEVICE} --json",
    f"estimate copy --bytes 64MB --direction HtoD --pinned {_DEVICE} --json",
    f"estimate embedding_bag --batch 4096 --table 1000000x64x20 {_DEVICE} --json",
    f"plan {_JOB} --device 'A100 SXM 80GB=1.6' --device 'H100 SXM=2.5' --tokens 1T --json",
    f"parallelism {_JOB} --device 'A100 SXM 80GB' --json",
    f"parallelism {_JOB} --device 'A100 SXM 80GB' --flash-attention --zero 0,1,3",
    f"shard tables.json {_DEVICE} --ranks 4 --json",
    f"shard tables.json {_DEVICE} --ranks 4 --column-wise --memory 10GB",
    "memory-timeline memory.raw.json.gz --json",
    "memory-timeline memory.json --json",
    "simulate --list --json",
    "simulate --list",
    "bench list --json",
    "bench list --domain vision",
    "bench show --store nothing --json",
    "collect --list",
    "generate {out} --count 4 --seed 1",
    "predict examples/wins/zero_grad.py:bad --device H100-SXM --trace {out}/bad.json --json",
    "predict examples/wins/host_work.py:bad --device H100-SXM --device A100-SXM4-80GB --json",
    "predict examples/wins/offload.py:bad --device H100-SXM --world-size 4 --strategy ddp "
    "--strategy fsdp2 --json",
    "completion bash",
    "completion zsh",
    "completion fish",
    "--help",
)
_COMMANDS = (
    "diagnose",
    "report",
    "explain",
    "mcp",
    "check",
    "bench",
    "score",
    "simulate",
    "explain-idle",
    "estimate",
    "parallelism",
    "plan",
    "predict",
    "shard",
    "generate",
    "evaluate",
    "judge",
    "dataset",
    "train",
    "collect",
    "summary",
    "convert",
    "diff",
    "memory-timeline",
    "merge",
    "annotate",
    "sql",
    "replay",
    "completion",
    *VIEWS,
)
_DATA_SET = (
    "dataset info {in} --json",
    "dataset info {in}",
    "dataset export {in} 0000-00 {out}/trace.json",
    "evaluate {in} --scorer evidence --scorer structural --scorer fused --windows 100 --json",
    "judge {in} --way types --json",
    "judge {in} --way found --json",
)

_PAIRS = (
    ("kineto/resnet50_num_workers_0.json.gz", "kineto/resnet50_num_workers_4.json.gz"),
    ("kineto/h100_overlap_before_fix.json", "kineto/h100_overlap_after_fix.json"),
    ("gpu_puzzlers/d2h_sync.json.gz", "gpu_puzzlers/d2h_sync_fixed.json.gz"),
    ("gpu_puzzlers/dtoh_blocking.json.gz", "gpu_puzzlers/dtoh_non_blocking.json.gz"),
    ("modded_nanogpt/overlap_before.json.gz", "modded_nanogpt/overlap_hook.json.gz"),
    ("pytorch_benchmark/copies_pageable.json", "pytorch_benchmark/copies_pinned.json"),
    ("segment_anything_fast/amg_baseline.json.gz", "segment_anything_fast/amg_fast.json.gz"),
    ("tracelens/mi300/qwen_inference.json.gz", "tracelens/h100/qwen_inference.json.gz"),
    (
        "tracelens/mi300/timesformer_inference.json.gz",
        "tracelens/h100/timesformer_inference.json.gz",
    ),
    ("torchrec_4ranks_late_rank/rank0.json.gz", "torchrec_4ranks_late_rank/rank2.json.gz"),
    ("hta/sampled_rank_0_of_128.json.gz", "hta/sampled_rank_1_of_128.json.gz"),
)
_RANK_FOLDERS = ("torchrec_4ranks_late_rank", "param/dlrm_8ranks", "tokenomics")
# Files beside the traces that are no traces.
_NO_TRACES = ("cpu_op_map",)


@dataclass(frozen=True)
class Unit:
    """An input that one process records, and the commands that read it."""

    name: str
    inputs: dict[str, str]
    commands: tuple[str, ...]


def _tables() -> Iterator[str]:
    for name, views in VIEWS.items():
        for view in views or (None,):
            by = f" --by {view}" if view else ""
            yield f"{name} {{in}}{by} --json"
        yield f"{name} {{in}} --limit 15"
    yield from _FURTHER_TABLES


def units(corpus: Path, examples: Path) -> list[Unit]:
    """Return what is recorded; the inputs are paths below `traces/` and `examples/`."""
    of_trace = (*_DIAGNOSES, *_tables())
    found = [
        Unit("without_trace", {}, (*_WITHOUT_TRACE, *(f"{name} --help" for name in _COMMANDS))),
        Unit("mini_dataset", {"in": "examples/mini_dataset"}, _DATA_SET),
    ]
    for root, folder in (("traces", corpus), ("examples", examples / "traces")):
        shown = root if root == "traces" else "examples/traces"
        for path in sorted([*folder.rglob("*.json"), *folder.rglob("*.json.gz")]):
            name = path.relative_to(folder).as_posix()
            if not path.name.startswith(_NO_TRACES):
                commands = (*of_trace, *_ONE_RANK, *_WITH_TORCH)
                found.append(Unit(f"{root}/{name}", {"in": f"{shown}/{name}"}, commands))
    for name in _RANK_FOLDERS:
        if (corpus / name).is_dir():
            commands = (*of_trace, *_MANY_RANKS)
            found.append(Unit(f"ranks/{name}", {"in": f"traces/{name}"}, commands))
    for before, after in _PAIRS:
        if (corpus / before).exists() and (corpus / after).exists():
            pair = {"before": f"traces/{before}", "after": f"traces/{after}"}
            found.append(Unit(f"pairs/{before}", pair, _PAIR))
    bundled = [f"examples/traces/resnet50_num_workers_{count}.json.gz" for count in (0, 4)]
    found.append(
        Unit("pairs/examples", dict(zip(("before", "after"), bundled, strict=True)), _PAIR)
    )
    return found


def write_inputs(folder: Path) -> None:
    """Writes the small files that commands read beside the traces."""
    (folder / "limits.yaml").write_text(_LIMITS, "utf-8")
    (folder / "tables.json").write_text(json.dumps(_TABLES_TO_SHARD), "utf-8")
    (folder / "memory.raw.json.gz").write_bytes(gzip.compress(json.dumps(_MEMORY).encode()))
    sizes = [[0, 100, 0, 0, 0, 0, 0, 0, 0], [0, 100, 0, 0, 0, 50, 0, 0, 0]]
    (folder / "memory.json").write_text(json.dumps([[7, 9], sizes]), "utf-8")


# Every key of a contract, with limits of which some are broken by any run.
_LIMITS = """\
launches_per_step: "<=10"
syncs: 0
h2d_bytes: "<=1 MiB"
d2h_bytes: "<=1 MiB"
copied_bytes: "<=1 MiB"
collectives: {all_reduce: 2, other: 0}
collective_bytes: "<=1 MiB"
recompiles: 0
graph_breaks: 0
operators: "<=100"
allocator_calls: 0
peak_allocated_bytes: "<=1 MiB"
gpu_idle: "<=1%"
gpu_busy: ">=99%"
exposed_communication: "<=1%"
exposed_memcpy: "<=1%"
step_time: "<=1 ms"
gpu_time_per_step: "<=1 ms"
findings: none
"""
_TABLES_TO_SHARD = [
    {"name": "users", "rows": 10_000_000, "dim": 64, "pooling_factor": 1.0, "dtype": "fp32"},
    {"name": "items", "rows": 2_000_000, "dim": 128, "pooling_factor": 5.0, "dtype": "fp32"},
    {"name": "history", "rows": 1_000_000, "dim": 64, "pooling_factor": 40.0, "dtype": "fp16"},
    {"name": "context", "rows": 1_000, "dim": 32, "pooling_factor": 2.0, "dtype": "fp32"},
    {"name": "words", "rows": 500_000, "dim": 256, "pooling_factor": 10.0, "dtype": "fp16"},
]
# Rows of `export_memory_timeline`: time, action, bytes and category.
_MEMORY = [
    [-1, 1, 100, 0],
    [1000, 2, 50, 4],
    [1000, 3, -50, 4],
    [1000, 3, 50, 5],
    [3000, 4, -50, 5],
    [2000, 2, 10, 7],
]
