"""DOC"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING

from torchtraceap import _core
from torchtraceap.core.results import Finding, Saving
from torchtraceap.core.threads import map_on_threads
from torchtraceap.tables.gpu.recorded_device import matrix_types, matrix_units

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["WORDS", "PerRank", "circumstances_of", "detect", "judge", "known", "present_findings"]


PerRank = Sequence[tuple["RankTrace", _core.Finding]]
"""What one rule says of each rank."""


def detect(trace: Ranks) -> dict[str, PerRank]:
    """What each rule says of each rank, by type; ranks see what the others' traces tell of them.
    Computed once."""
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
    """What the rules say of the types that are present, by type."""
    return {name: parts for name, parts in detect(trace).items() if judge(parts) == "present"}


def known(parts: PerRank) -> PerRank:
    """The ranks whose trace has the signal."""
    return [(rank, found) for rank, found in parts if found.verdict != "unknown"]


def judge(parts: PerRank) -> str:
    """One verdict for all ranks: "present", "absent" or "unknown".

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


_LOADER = "enumerate(DataLoader)"
_WAITS = ("host_sync_in_loop", "explicit_synchronize", "blocking_copy", "recompilation")
"""Findings that no CUDA graph bears."""
_GRAPH_FIXES = ("cpu_bound", "tiny_kernels")
"""Findings for which the replay tries a CUDA graph."""


def circumstances_of(
    trace: Ranks,
    by_type: Mapping[str, PerRank],
    findings: Sequence[Finding],
    wanted: Set[str],
) -> frozenset[str]:
    """Those of the wanted words that hold.

    Args:
        trace: The trace.
        by_type: What each rule says of each rank.
        findings: Those that are present, with their savings.
        wanted: Words that matter; nothing is looked up for others.
    """
    holds: Mapping[str, Callable[[], bool]] = {
        "compiled": partial(_applies, by_type["recompilation"]),
        "inference": partial(_is_inference, by_type["unfused_optimizer"]),
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


def _is_inference(parts: PerRank) -> bool:
    """Without host operators nobody knows."""
    return not _applies(parts) and all(found.verdict != "unknown" for _, found in parts)


def _is_on_host(trace: Ranks) -> bool:
    return all(rank.computes_on_host for rank in trace.ranks)


def _has_no_loader(trace: Ranks) -> bool:
    return not any(_LOADER in name for rank in trace.ranks for name in rank.table.strings)


def _bears_no_graph(findings: Sequence[Finding]) -> bool:
    """The replay says so, or waits are found."""
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
