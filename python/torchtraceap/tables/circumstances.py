"""What holds of a trace, in the words that the knowledge base asks for: advice has to fit them.

- `compiled`: a part of the program runs compiled;
- `inference`: a serving engine runs, or operators without a backward pass and an optimizer;
- `xla`: the program is compiled by XLA (JAX, TensorFlow), not PyTorch's;
- `ddp`: DistributedDataParallel exchanges the gradients;
- `no_gradients`: most of the exposed collectives that were found are all-to-alls, or go from one
  rank to another: they carry activations, lookups or tokens;
- `no_loader`: no batch comes from torch's DataLoader;
- `no_graph`: the steps wait for the GPU, or their shapes change, so that no CUDA graph holds them;
- `no_tf32`, `no_bf16`: the matrix units of a device in the trace don't take that type;
- `on_host`: the run computes on the host;
- `unknown_device`: the trace names no device of which that could be told.

What a trace does not show holds of none: then the advice for any trace stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING

from torchtraceap import _core
from torchtraceap.core.results import Finding, Saving
from torchtraceap.tables.detection import PerRank
from torchtraceap.tables.gpu.recorded_device import matrix_types
from torchtraceap.tables.matching import rank_collectives

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks

__all__ = ["WORDS", "circumstances_of"]

_LOADER = "enumerate(DataLoader)"
_WAITS = ("host_sync_in_loop", "explicit_synchronize", "blocking_copy", "recompilation")
"""Findings with which no CUDA graph is possible."""
_EXPOSED = ("nccl_blocks_main_stream", "nccl_compute_not_overlapped")
_WITHOUT_GRADIENTS = ("all_to_all", "all_to_all_v", "send", "recv", "send_recv")
_GRAPH_FIXES = ("cpu_bound", "tiny_kernels")
"""Findings for which the replay tries a CUDA graph."""


def circumstances_of(
    trace: Ranks,
    by_type: Mapping[str, PerRank],
    findings: Sequence[Finding],
    wanted: Set[str],
) -> frozenset[str]:
    """Return those of the wanted words that hold.

    Args:
        trace: The trace.
        by_type: What each rule says of each rank.
        findings: Those that are present, with their savings.
        wanted: Words that matter; nothing is looked up for others.
    """
    holds: Mapping[str, Callable[[], bool]] = {
        "compiled": partial(_applies, by_type["recompilation"]),
        "inference": partial(_is_inference, trace),
        "xla": partial(_is_xla, trace),
        "ddp": partial(_uses_ddp, trace),
        "no_gradients": partial(_carry_no_gradients, trace, findings),
        "no_loader": partial(_has_no_loader, trace),
        "no_graph": partial(_bears_no_graph, findings),
        "no_tf32": partial(_lacks, trace, "tf32"),
        "no_bf16": partial(_lacks, trace, "bf16"),
        "on_host": partial(_is_on_host, trace),
        "unknown_device": partial(_is_unknown, trace),
    }
    return frozenset(word for word in wanted if holds[word]())


WORDS = frozenset(
    (
        "compiled",
        "inference",
        "xla",
        "ddp",
        "no_gradients",
        "no_loader",
        "no_graph",
        "no_tf32",
        "no_bf16",
        "on_host",
        "unknown_device",
    )
)


def _applies(parts: PerRank) -> bool:
    return any(found.applies for _, found in parts)


def _is_inference(trace: Ranks) -> bool:
    return all(rank.tree.workload.role not in ("training", "unknown") for rank in trace.ranks)


def _is_xla(trace: Ranks) -> bool:
    return all(rank.tree.workload.framework == "xla" for rank in trace.ranks)


def _uses_ddp(trace: Ranks) -> bool:
    return any("ddp" in rank.tree.workload.parallelism for rank in trace.ranks)


def _is_on_host(trace: Ranks) -> bool:
    return all(rank.computes_on_host for rank in trace.ranks)


def _carry_no_gradients(trace: Ranks, findings: Sequence[Finding]) -> bool:
    """Return whether at least half of the collectives that are evidence, by time, do not."""
    evidence = [each for found in findings if found.type in _EXPOSED for each in found.evidence]
    if not evidence:
        return False
    core, names = rank_collectives(trace), _core.collective_kind_names()
    numbers = [rank.rank for rank in trace.ranks]
    parts = zip(core.rank.tolist(), core.row.tolist(), core.kind.tolist(), strict=True)
    kinds = {(numbers[rank], row): names[kind] for rank, row, kind in parts}
    of_kind = [(kinds.get((each.rank, each.row), ""), each.duration_ns) for each in evidence]
    without_ns = sum(ns for kind, ns in of_kind if kind in _WITHOUT_GRADIENTS)
    return 2 * without_ns >= max(1, sum(ns for kind, ns in of_kind if kind))


def _has_no_loader(trace: Ranks) -> bool:
    return not any(_LOADER in name for rank in trace.ranks for name in rank.table.strings)


def _bears_no_graph(findings: Sequence[Finding]) -> bool:
    """Return whether the replay says so, or waits are found and it has no use for a graph."""
    uses = [finding.saving for finding in findings if finding.saving is not None]
    if any(saving.edit == "cuda_graph" and saving.believed_ns > 0 for saving in uses):
        return False  # the plan has one, if need be behind the fix of the waits
    return any(
        finding.type in _WAITS or (finding.type in _GRAPH_FIXES and _is_refused(finding.saving))
        for finding in findings
    )


def _is_refused(saving: Saving | None) -> bool:
    """Did the replay try a graph, and could not have one?"""
    if saving is None or saving.edit == "cuda_graph":
        return False
    return saving.simulated or saving.note.startswith("not simulated: ")


def _lacks(trace: Ranks, number_type: str) -> bool:
    known = [types for rank in trace.ranks if (types := matrix_types(rank.table)) is not None]
    return any(number_type not in types for types in known)


def _is_unknown(trace: Ranks) -> bool:
    return all(matrix_types(rank.table) is None for rank in trace.ranks)
