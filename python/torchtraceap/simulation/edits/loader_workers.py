"""`loader_workers=N`: other processes make the batches.

Note [Contention]: workers take processor time and memory bandwidth from the training process. So
while they run, what the host does outside of fetches takes longer. How much longer does not depend
on how long a fetch was: workers that fall behind are busy all the time, whatever a batch costs. In
four public pairs of ResNet-50 (one workstation, without and with 4 workers) the rest of the step
took 8, 10, 15 and 18 % longer; the mean of any three is off by 3 to 7 points for the fourth. So
none at best, a fifth at least; but no more than what the fetches took, or nobody would keep them.

Where the run computes on the host, workers take the very cores that it computes on. A fetch is the
work of one core, and what C cores do gets longer by a C-th of it. How many there are no trace says,
and a fetch that waits for a disk takes none: nothing at best, half of what the fetches took at
least (two cores, all busy).

Note [Pace]: workers make batches at a rate of their own. In a run that waits for them the time from
one late batch to the next, over the number of batches, is what they need for one together.
"""

from __future__ import annotations

import re

import numpy as np

from torchtraceap._core import EventKind
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns, format_share, pluralize
from torchtraceap.core.sums import distinct, median, total
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NotApplicableError,
)
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["LoaderWorkers"]

SLOWDOWN = (0.0, 0.2)
"""Additional host time beside workers as a share, at best and at least. See Note [Contention]."""
SHARED_CORES = (0.0, 0.5)
"""Share of the fetches that a host which computes gets longer, at best and at least. See Note
[Contention]."""
CROWDED = (1.0, 1.33)
"""Time of a batch in one of several workers over its time alone, at best and at least."""
TAKE_NS = (200_000, 2_000_000)
"""Time to take a finished batch off the queue: mapping shared memory, waking up."""
LONE_FETCH = 0.13
"""Share by which a single recorded fetch may be off the mean of 8 in 10 loaders. Assumed: a batch
is the sum of many samples, whose times vary by a tenth together."""
MOST_WORKERS = 64
"""Most workers that a pattern of late batches can show."""
FEWEST_ROUNDS = 3
"""Rounds of bursts that show a number of workers."""
REGULAR = 0.3
"""Share of the variation of single intervals that may be left in the length of a round."""
LEAST_WAIT = (0.25, 0.5)
"""Share of the mean wait of a round of workers' fetches that no round waits less than, surely and
likely. Assumed: batches of half the usual time are rare."""
_SOURCE = "slowdown next to workers: four public pairs of ResNet-50 with 0 and 4 workers"
_HOST = (EventKind.CPU_OP, EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)
_SINGLE = r"SingleProcess.*__next__"
_SEVERAL = r"MultiProcess.*__next__"
_LOADER_SETUP = r"data/dataloader\.py\(\d+\): __init__"
_PROCESS_START = r"multiprocessing/process\.py\(\d+\): start"


class LoaderWorkers:
    """`num_workers=N`: a fetch takes a finished batch; a batch is ready every time / N.

    Cautious: taking one costs 2 ms rather than 0.2, and the host is slower beside workers; see
    Note [Contention]. Where workers exist already, their number follows from the trace (processes
    that the loader starts in it, or bursts of batches); else up to N are possible, and likely as
    few as explain which batches were ready while others were awaited.
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
                fetch_ns.append(view.work_ns(rows))
                lone = LONE_FETCH if len(rows) == 1 else 0.0
                for form, change in enumerate((best, cautious)):
                    _take(run, view, change, rows, form)
                    # In the trace that is written fetches are those of a loader with workers.
                    for name in distinct(view.table.name[rows]).tolist():
                        mine = rows[view.table.name[rows] == name]
                        text = re.sub("SingleProcess", "MultiProcessing", view.names[name])
                        view.replace(change, mine, text)
                    crowded = CROWDED[form] if self.workers > 1 else 1.0
                    usual = 1 + lone if form else 1 - lone
                    _pace(view, change, rows, fetch_ns[-1] * usual * crowded / self.workers)
        if not fetch_ns:
            return self._more_workers(run)
        length_ns = int(median(np.concatenate(fetch_ns)))
        on_host = all(view.part.computes_on_host for view in views(run))
        beside = (
            f"on cores that also compute they cost up to {format_share(SHARED_CORES[1])} of that"
            if on_host
            else f"next to them the host takes up to {1 + SLOWDOWN[1]:g} times as long"
        )
        note = (
            f"{sum(map(len, fetch_ns))} fetches of {format_ns(length_ns)} (median) move to "
            f"{self.workers} processes, which make one every {format_ns(length_ns // self.workers)}"
            f"; {beside}"
        )
        return EditedGraph(best, cautious, source=_SOURCE, note=note)

    def _more_workers(self, run: SimulatedRun) -> EditedGraph:
        """Add workers to those that the loader has."""
        best, cautious, likely = Change(), Change(), Change()
        late = 0
        numbers: list[int | None] = []
        fewest: list[int] = []
        for view in views(run):
            rows = _fetches(view, _SEVERAL)
            # A batch was late where dependencies say so; of the first ones the length must tell.
            waited = np.isin(rows, run.graph.owner[_paced_edges(run, view)])
            waited |= view.work_ns(rows) > TAKE_NS[1]
            if not waited.any():
                continue
            late += int(waited.sum())
            # Processes that the loader started last during the recording, else bursts of batches.
            setup = view.outermost(view.rows_named(_LOADER_SETUP, EventKind.PYTHON_FUNCTION))
            starts = view.rows_named(_PROCESS_START, EventKind.PYTHON_FUNCTION)
            place = view.inside(view.begin_of[starts].astype(np.int64), setup)
            started = int((place == place.max()).sum()) if (place >= 0).any() else 0
            number = started or _burst(_ends_ns(view, rows))
            numbers.append(number)
            every_ns = _service_ns(view, rows, waited)
            if number is None:
                surely, usual = _plausible_workers(view.table.dur_ns[rows], self.workers)
                fewest.append(surely)
                self._speed_up(run, view, best, rows, every_ns, surely, 0)
                self._speed_up(run, view, likely, rows, every_ns, usual, 0)
            elif number < self.workers:
                self._speed_up(run, view, best, rows, every_ns, number, 0)
                self._speed_up(run, view, cautious, rows, every_ns, number, 1)
        if not late:
            if any(len(_fetches(view, _SEVERAL)) for view in views(run)):
                raise NotApplicableError(
                    "worker processes load the data already, and no fetch had to wait for them"
                )
            raise NotApplicableError("no fetch of torch's DataLoader is in the trace")
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers) and min(known) >= self.workers:
            raise NotApplicableError(f"the loader has {pluralize(min(known), 'worker')} already")
        if fewest:
            number_note = (
                f"how many there are is not in the trace: at best {min(fewest)}, which "
                f"{self.workers} replace, at least as many already"
            )
        else:
            low, high = min(known), max(known)
            old = str(low) if low == high else f"{low} to {high}"
            number_note = f"{old} of them become {self.workers}"
        note = f"{late} fetches waited for worker processes; {number_note}"
        guess = () if known else (likely,)
        return EditedGraph(best, cautious, guess, source=_SOURCE, note=note)

    def _speed_up(
        self,
        run: SimulatedRun,
        view: RankView,
        change: Change,
        rows: Array,
        every_ns: Array,
        number: float,
        form: int,
    ) -> None:
        """Replace `number` recorded workers by more; batches come that much faster."""
        share = number / self.workers
        _take(run, view, change, rows, form, 1 - share)
        crowded = 1 + (CROWDED[form] - 1) * (1 - share)
        paced = _paced_edges(run, view)
        change.set_lags(paced, run.cost_ns[paced] * share * crowded)
        _pace(view, change, rows, every_ns * share * crowded)


def _take(
    run: SimulatedRun,
    view: RankView,
    change: Change,
    rows: Array,
    form: int,
    share: float = 1.0,
) -> None:
    """Make fetches take finished batches; the rest of the host gets slower, by a share of the
    usual."""
    bounds = run.point_bounds[view.index]
    host = view.edges_into(np.arange(*bounds), "program_order")
    inside, _ = view.work_edges(rows)
    rest = np.setdiff1d(host, inside, assume_unique=True)
    before_ns = run.cost_ns[rest]
    gain_ns = total(np.maximum(view.table.dur_ns[rows] - TAKE_NS[form], 0))
    gain = gain_ns / max(total(before_ns), 1)
    on_host = view.part.computes_on_host
    slower = SHARED_CORES[form] * gain * share if on_host else min(SLOWDOWN[form] * share, gain)
    if slower > 0:
        change.set_lags(rest, before_ns * (1 + slower))
    view.set_host_work(change, rows, TAKE_NS[form])


def _pace(view: RankView, change: Change, rows: Array, every_ns: Array) -> None:
    """Limit the rate of batches to that of the workers: from fetch to fetch, and from the last of
    the recorded steps to the first after them."""
    change.add(view.end_of[rows[:-1]], view.end_of[rows[1:]], every_ns[1:])
    first_ns = every_ns[0] or every_ns[1:].sum() / max(len(rows) - 1, 1)
    change.carry(view.end_of[rows[-1:]], view.end_of[rows[:1]], first_ns)


def _fetches(view: RankView, pattern: str) -> Array:
    """Return fetches by their end: batches come one after the other, on whichever thread."""
    rows = view.outermost(view.rows_named(pattern, *_HOST))
    return rows[np.argsort(_ends_ns(view, rows), kind="stable")]


def _ends_ns(view: RankView, rows: Array) -> Array:
    return view.table.ts_ns[rows] + view.table.dur_ns[rows]


def _paced_edges(run: SimulatedRun, view: RankView) -> Array:
    """Return the edges by which late batches of the rank follow each other, as measured."""
    return view.edges_into(np.arange(*run.point_bounds[view.index]), "worker_pace")


def _service_ns(view: RankView, rows: Array, waited: Array) -> Array:
    """Return the time of the workers together for each batch, float64 `[fetches]`, ns. See Note
    [Pace]."""
    ends_ns = _ends_ns(view, rows)
    marks = distinct(np.concatenate([[0], np.flatnonzero(waited)]))
    each_ns = np.diff(ends_ns[marks]) / np.diff(marks)
    service = np.zeros(len(rows))
    service[1 : marks[-1] + 1] = np.repeat(each_ns, np.diff(marks))
    return service


# ------------------------------------------------------------------------- recorded workers


def _plausible_workers(waits_ns: Array, wanted: int) -> tuple[int, float]:
    """Return the least and the likely number of workers, where nothing shows it: that for which no
    round of them waits less than a share of the mean, less than `wanted`.

    One worker makes batches one after the other: each w-th waits for the same one.
    """
    sums = np.concatenate([[0.0], np.cumsum(waits_ns, dtype=np.float64)])
    counts = []
    for least in LEAST_WAIT:
        count = 1
        for number in range(1, len(waits_ns)):
            rounds = sums[number:] - sums[:-number]
            if rounds.min() >= least * rounds.mean():
                count = number
                break
        counts.append(count)
    most = max(wanted - 1, 1)
    surely, usual = min(counts[0], most), float(min(counts[1], most))
    if 2 * counts[1] > len(waits_ns):  # no two rounds were seen: the middle of what is possible
        usual = (usual * wanted) ** 0.5
    return surely, usual


def _burst(ends_ns: Array) -> int | None:
    """Return the period of the intervals between fetches: workers that began together end together,
    so that of w batches one is waited for and w - 1 are there. None without a period."""
    every_ns = np.diff(ends_ns).astype(np.float64)
    if not len(every_ns) or every_ns.mean() <= 0:
        return None
    spread = every_ns.std() / every_ns.mean()
    most = min(MOST_WORKERS, len(every_ns) // FEWEST_ROUNDS)
    for period in range(2, most + 1):
        rounds = ends_ns[period:] - ends_ns[:-period]
        # Of independent intervals the spread of a sum falls with the root of their number.
        left = rounds.std() / rounds.mean() * np.sqrt(period)
        if left < REGULAR * spread and spread > REGULAR:
            return period
    return None
