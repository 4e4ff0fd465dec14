"""The rules on every rank, one verdict for all, and the circumstances that advice has to fit.

This is the only place that runs the rules: `diagnose` merges what they say into findings, `diff`
compares what they say of two recordings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from torchtraceap import _core
from torchtraceap.core.results import Finding, Saving
from torchtraceap.core.threads import map_on_threads
from torchtraceap.tables.gpu.recorded_device import matrix_types, matrix_units

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["WORDS", "PerRank", "circumstances_of", "detect", "judge", "known", "present_findings"]


PerRank = Sequence[tuple["RankTrace", _core.Finding]]
"""The finding of one rule on each rank."""


def detect(trace: Ranks) -> dict[str, PerRank]:
    """Return the finding of each rule on each rank, by type; computed once. Ranks see what the
    traces of the others tell of them."""
    return trace.cached("what the rules say", lambda: _detect(trace))


def _detect(trace: Ranks) -> dict[str, PerRank]:
    peers: Sequence[_core.PeerView | None] = [None] * len(trace.ranks)
    if len(trace.ranks) > 1:
        from torchtraceap.tables.matching import peer_views

        peers = peer_views(trace)

    def detect_one(index: int) -> list[_core.Finding]:
        rank, view = trace.ranks[index], peers[index]
        units = matrix_units(rank.table)
        return _core.detect(rank.table, rank.tree, peers=view, matrix_units=units)

    by_rank = map_on_threads(detect_one, range(len(trace.ranks)))
    return {
        parts[0].type: list(zip(trace.ranks, parts, strict=True))
        for parts in zip(*by_rank, strict=True)
    }


def present_findings(trace: Ranks) -> dict[str, PerRank]:
    """Return the findings of the types that are present, by type."""
    return {name: parts for name, parts in detect(trace).items() if judge(parts) == "present"}


def known(parts: PerRank) -> PerRank:
    """Return the findings of the ranks whose trace has the signal."""
    return [(rank, found) for rank, found in parts if found.verdict != "unknown"]


def judge(parts: PerRank) -> str:
    """Return one verdict for all ranks: "present", "absent" or "unknown".

    A rule's word stands for a lone rank. For several, present means that a rank says so and that
    the summed cost is material; absent, that it stays immaterial even if the ranks that could not
    be checked were lost as a whole.
    """
    if len(parts) == 1:
        return parts[0][1].verdict
    material_ns = _core.MATERIAL_SHARE * sum(rank.profiled_ns for rank, _ in parts)
    checked = known(parts)
    cost_ns = sum(found.cost_ns for _, found in checked)
    if any(found.verdict == "present" for _, found in checked):
        if cost_ns >= material_ns:
            return "present"
    else:
        cost_ns = 0
    hidden_ns = sum(rank.profiled_ns for rank, found in parts if found.verdict == "unknown")
    if not checked or (hidden_ns and cost_ns + hidden_ns >= material_ns):
        return "unknown"
    return "absent"


# ------------------------------------------------------------------------------- circumstances

WORDS = frozenset(
    (
        "compiled",
        "inference",
        "no_loader",
        "no_graph",
        "no_tf32",
        "no_bf16",
        "on_host",
        "unknown_device",
    )
)
"""Words of the knowledge base for what holds of a trace; `circumstances_of` says what they mean."""
_LOADER = "enumerate(DataLoader)"
_WAITS = ("host_sync_in_loop", "explicit_synchronize", "blocking_copy", "recompilation")
"""Findings with which no CUDA graph is possible."""
_GRAPH_FIXES = ("cpu_bound", "tiny_kernels")
"""Findings for which the replay tries a CUDA graph."""


def circumstances_of(
    trace: Ranks,
    by_type: Mapping[str, PerRank],
    findings: Sequence[Finding],
    wanted: Set[str],
) -> frozenset[str]:
    """Return those of the wanted words that hold of a trace: advice has to fit them.

    - `compiled`: a part of the program runs compiled;
    - `inference`: no backward pass and no optimizer runs;
    - `no_loader`: no batch comes from torch's DataLoader;
    - `no_graph`: the steps wait for the GPU, or their shapes change, so that no CUDA graph holds
      them;
    - `no_tf32`, `no_bf16`: the matrix units of a device in the trace don't take that type;
    - `on_host`: the run computes on the host;
    - `unknown_device`: the trace names no device of which that could be told.

    Where a trace does not show one, it does not hold: then the advice for any trace stands.

    Args:
        trace: The trace.
        by_type: The findings of each rule on each rank.
        findings: The findings that are present, with their savings.
        wanted: Words that matter; nothing is looked up for others.
    """
    return frozenset(word for word in wanted if _holds(word, trace, by_type, findings))


def _holds(
    word: str, trace: Ranks, by_type: Mapping[str, PerRank], findings: Sequence[Finding]
) -> bool:
    match word:
        case "compiled":
            return any(found.applies for _, found in by_type["recompilation"])
        case "inference":
            parts = by_type["unfused_optimizer"]  # without host operators nobody knows
            return not any(found.applies or found.verdict == "unknown" for _, found in parts)
        case "no_loader":
            names = (name for rank in trace.ranks for name in rank.table.strings)
            return not any(_LOADER in name for name in names)
        case "no_graph":
            return any(
                finding.type in _WAITS
                or (finding.type in _GRAPH_FIXES and _graph_failed(finding.saving))
                for finding in findings
            )
        case "on_host":
            return all(rank.computes_on_host for rank in trace.ranks)
    types = [matrix_types(rank.table) for rank in trace.ranks]
    if word == "unknown_device":
        return all(taken is None for taken in types)
    number_type = word.removeprefix("no_")
    return any(taken is not None and number_type not in taken for taken in types)


def _graph_failed(saving: Saving | None) -> bool:
    """Return True if the replay tried a graph, and could not have one."""
    if saving is None or saving.edit == "cuda_graph":
        return False
    return saving.simulated or saving.note.startswith("not simulated: ")
