"""`evidence`: the share of each window that the costs of present findings cover, unlearned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core.intervals import covered_ns, union
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import PAPER_TYPES, Int64Array
from torchtraceap.core.sums import totals
from torchtraceap.diagnosis.scoring import WindowScores, common_bounds
from torchtraceap.tables.detection import PerRank, present_findings

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks

__all__ = ["EvidenceScorer", "load", "rank_shares", "shares"]


@dataclass(frozen=True, slots=True)
class EvidenceScorer:
    """Shares of windows that the rules' cost intervals cover."""

    name: str = "evidence"
    version: str = "1"

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """Return the covered share of that part of each window in which ranks were profiled.

        `types` has the paper's eight, 0 where one is not present, and each further type that is.
        """
        present = present_findings(trace)
        bounds_ns = common_bounds(trace, count)
        types = dict.fromkeys((*PAPER_TYPES, *present))
        return WindowScores(
            bounds_ns=tuple(bounds_ns.tolist()),
            scores=shares(trace, list(present.values()), bounds_ns),
            types={
                name: shares(trace, [present[name]] if name in present else [], bounds_ns)
                for name in types
            },
        )


def load() -> EvidenceScorer:
    return EvidenceScorer()


def shares(
    trace: Ranks, chosen: Sequence[PerRank], bounds_ns: Int64Array
) -> npt.NDArray[np.float64]:
    """Return the part of the profiled time of all ranks that findings cover, float64 `[windows]`.

    Args:
        trace: The ranks.
        chosen: Findings of some types, each of every rank. Overlaps count once.
        bounds_ns: int64 `[windows + 1]`.
    """
    spans = [np.asarray([rank.tree.profiled], dtype=np.int64) for rank in trace.ranks]
    length_ns = totals(np.stack([covered_ns(span, bounds_ns) for span in spans]), 0)
    cost_ns = np.zeros(len(bounds_ns) - 1)
    for place in range(len(trace.ranks)):
        cost_ns += _cost_ns(chosen, place, bounds_ns)
    return _ratio(cost_ns, length_ns)


def rank_shares(
    present: Mapping[str, PerRank], place: int, bounds_ns: Int64Array, types: Sequence[str]
) -> npt.NDArray[np.float64]:
    """Return the part of each window that present findings of one rank cover, by type; in the last
    column that of any type, of `types` or not; float64 `[windows, types + 1]`.

    Args:
        present: Findings of all ranks, by type (`present_findings`).
        place: Index of the rank among them.
        bounds_ns: int64 `[windows + 1]`.
        types: Types of the columns.
    """
    chosen = [[present[name]] if name in present else [] for name in types]
    length_ns = np.diff(bounds_ns)
    shares = np.zeros((len(length_ns), len(types) + 1))
    for column, of in enumerate([*chosen, list(present.values())]):
        if of:
            shares[:, column] = _ratio(_cost_ns(of, place, bounds_ns), length_ns)
    return shares


def _cost_ns(chosen: Sequence[PerRank], place: int, bounds_ns: Int64Array) -> Int64Array:
    """Return the time that findings of one rank cover, overlaps counted once, int64 `[windows]`."""
    found = [parts[place][1] for parts in chosen]
    return covered_ns(union([of.intervals for of in found if of.verdict != "unknown"]), bounds_ns)


def _ratio(cost_ns: npt.NDArray[np.number[Any]], length_ns: Int64Array) -> npt.NDArray[np.float64]:
    """Return ratios in [0, 1]; 0 where there is no time."""
    ratio = np.divide(cost_ns, length_ns, out=np.zeros(len(length_ns)), where=length_ns > 0)
    clipped: npt.NDArray[np.float64] = np.clip(ratio, 0.0, 1.0)
    return clipped
