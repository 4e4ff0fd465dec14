"""Every idle interval of the GPU with its cause."""

from __future__ import annotations

import numpy as np

from torchtraceap import _core
from torchtraceap.core.columns import TextCodes
from torchtraceap.core.table import ColumnTable
from torchtraceap.trace.ranks import RankTrace

__all__ = ["IdleTable", "build_idle"]


class IdleTable(ColumnTable):
    """Idle intervals of the GPU: start_ns, end_ns, cause, explained_by and next_gpu_row.

    The last two are rows of the event table, `_core.NO_ROW` where there is none.
    """

    def __init__(self, core: _core.IdleBreakdown) -> None:
        super().__init__(
            {
                "start_ns": core.start_ns,
                "end_ns": core.end_ns,
                "cause": TextCodes(core.cause.astype(np.int8), _core.idle_cause_names()),
                "explained_by": core.explained_by,
                "next_gpu_row": core.next_gpu_row,
            }
        )
        self.totals_ns: dict[str, int] = core.totals
        """Idle time by cause, ns; sums to the idle time exactly."""


def build_idle(part: RankTrace, *, profiled: bool = False) -> IdleTable:
    """Over the profiled time, or from the first to the last GPU event."""
    return IdleTable(part.idle(part.tree.profiled if profiled else None))
