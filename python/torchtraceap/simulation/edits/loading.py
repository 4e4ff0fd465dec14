"""`loader_workers=N`: other processes make the batches."""

from __future__ import annotations

import numpy as np

from torchtraceap._core import EventKind
from torchtraceap.aliases import Array
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.registry import register
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.units import format_ns

__all__ = ["LoaderWorkers"]

REALISED = (0.76, 0.84)
"""Share of the simulated saving in four public pairs of traces (ResNet-50, 0 and 4 workers): the
workers take CPU time and memory bandwidth from the training process."""
TAKE_NS = (200_000, 2_000_000)
"""To take a finished batch off the queue: mapping shared memory, waking up."""
_SOURCE = "four public pairs of ResNet-50 with 0 and 4 workers"
_HOST = (EventKind.CPU_OP, EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)
_SINGLE = r"SingleProcess.*__next__"
_SEVERAL = r"MultiProcess.*__next__"


@register(
    "loader_workers",
    value="N",
    default="4",
    fixes=("single_process_data_loading=4", "worker_starvation=8"),
)
class LoaderWorkers:
    """`num_workers=N`: a fetch takes a finished batch; a batch is ready every time / N.

    Cautious: taking one costs 2 ms rather than 0.2. Where workers exist already, their number is
    not in the trace: from one to N are possible.
    """

    def __init__(self, workers: str | None = None) -> None:
        try:
            self.workers = int(workers or 4)
        except ValueError:
            self.workers = 0
        if not 1 <= self.workers <= 1024:
            raise OptionError(f"loader_workers: a number from 1 to 1024, not {workers!r}")
        self.name = f"loader_workers={self.workers}"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        fetch_ns: list[Array] = []
        for view in views(run):
            rows = _fetches(view, _SINGLE)
            if len(rows):
                self._hand_over(view, best, rows, TAKE_NS[0])
                self._hand_over(view, cautious, rows, TAKE_NS[1])
                fetch_ns.append(view.work_ns(rows))
        if not fetch_ns:
            return self._more_workers(run)
        length_ns = int(np.median(np.concatenate(fetch_ns)))
        note = (
            f"{sum(map(len, fetch_ns))} fetches of {format_ns(length_ns)} (median) move to "
            f"{self.workers} processes, which make one every {format_ns(length_ns // self.workers)}"
        )
        return EditedGraph(best, cautious, REALISED, _SOURCE, note)

    def _hand_over(self, view: RankView, change: Change, rows: Array, take_ns: int) -> None:
        length_ns = view.work_ns(rows)
        view.set_host_work(change, rows, take_ns)
        self._pace(view, change, rows, length_ns / self.workers)

    def _pace(self, view: RankView, change: Change, rows: Array, every_ns: Array) -> None:
        """Batches follow each other no faster than the workers make them."""
        change.add(view.end_of[rows[:-1]], view.end_of[rows[1:]], every_ns[1:])

    def _more_workers(self, run: SimulatedRun) -> EditedGraph:
        best = Change()
        fetches = 0
        for view in views(run):
            rows = _fetches(view, _SEVERAL)
            lengths = view.work_ns(rows)
            late = lengths > TAKE_NS[1]
            fetches += int(late.sum())
            if late.any():
                ends = view.table.ts_ns[rows] + view.table.dur_ns[rows]
                view.set_host_work(best, rows, TAKE_NS[0])
                every_ns = np.diff(ends, prepend=ends[:1]) / self.workers
                self._pace(view, best, rows, every_ns)
        if not fetches:
            raise NotApplicableError(_why_not(run))
        note = (
            f"{fetches} fetches waited for worker processes; how many there are is not in the "
            f"trace: at best one, which {self.workers} replace"
        )
        return EditedGraph(best, Change(), REALISED, _SOURCE, note)


def _fetches(view: RankView, pattern: str) -> Array:
    """By their end: whichever thread takes them, batches come one after the other."""
    rows = view.outermost(view.rows_named(pattern, *_HOST))
    ends_ns = view.table.ts_ns[rows] + view.table.dur_ns[rows]
    return rows[np.argsort(ends_ns, kind="stable")]


def _why_not(run: SimulatedRun) -> str:
    if any(len(_fetches(view, _SEVERAL)) for view in views(run)):
        return "worker processes load the data already, and no fetch had to wait for them"
    return "no fetch of torch's DataLoader is in the trace"
