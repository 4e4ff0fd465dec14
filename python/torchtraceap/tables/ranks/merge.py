"""`merge_ranks`: all ranks in one trace, on one clock, for Perfetto."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchtraceap import _core
from torchtraceap.core.writing import check_target, replacing
from torchtraceap.errors import OptionError
from torchtraceap.tables.ranks.matching import MatchedCollectives, match_collectives

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks

__all__ = ["merge_ranks"]


def merge_ranks(trace: Ranks, path: str | os.PathLike[str]) -> MatchedCollectives:
    """Writes every event of every rank as one trace, gzip when the name ends in ".gz".

    Clocks are aligned by the ends of collectives where they disagree by more than that can tell.
    Process names begin with their rank; process, correlation, flow and External ids are renumbered
    so that no two ranks share one. What was merged is written down, so that `load` takes the file
    for the ranks again.

    Args:
        trace: One or several ranks.
        path: Where to write it.

    Returns:
        The matched collectives, whose clocks say what was moved.

    Raises:
        OptionError: Another ending, or the path is that of a file that was read.
        OutputError: The file can't be written.
    """
    target = Path(path)
    if not target.name.lower().endswith((".json", ".json.gz")):
        raise OptionError(f"{target}: the name must end in .json or .json.gz")
    inputs = [rank.path for rank in trace.ranks]
    check_target(target, inputs)
    matched = match_collectives(trace)
    ranks = [
        (rank.table, number, clock.offset_ns, clock.drift)
        if clock.applied
        else (rank.table, number, 0, 0.0)
        for rank, number, clock in zip(
            trace.ranks, matched.rank_numbers, matched.clocks, strict=True
        )
    ]
    with replacing(target, inputs=inputs) as staged:
        _core.write_merged_trace(ranks, staged, epoch_ns=matched.core.clock_epoch_ns)
    return matched
