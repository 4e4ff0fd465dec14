"""`pin_memory`: copies run from and to page-locked memory, and the host doesn't wait for them.

Note [Who pins]: a loader with worker processes has a thread that moves batches to page-locked
memory beside the training thread. Without them the training thread does it: the bytes over the rate
at which one core copies. That is at least what pageable copies of the trace reach, which the driver
moves to a page-locked buffer of its own on the way. Where no loader is seen, memory may be
page-locked from the start (best), or the training thread pins (cautious).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from torchtraceap._core import CopyDirection, EventKind, HostMemory
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns
from torchtraceap.core.order import distinct, median
from torchtraceap.core.sums import total
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits import measured_durations as lookups
from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.registry import register
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.gpu.recorded_device import plausible_devices

__all__ = ["PinMemory"]

_DIRECTIONS = {"HtoD": CopyDirection.HOST_TO_DEVICE, "DtoH": CopyDirection.DEVICE_TO_HOST}
DIRECTIONS = tuple(_DIRECTIONS)
SMALL_BYTES = 64 << 10
"""Reads up to this size are values."""
TIMED_BYTES = 1 << 20
"""Copies of at least so many bytes show the rate of the link."""
START_NS = 1_000.0
"""What any copy takes."""
HOST_COPY_RATE = 10e9
"""byte/s: what one core copies where both sides are in memory, on hosts of the last ten years."""
_PINNED_ANSWER = "the copies in this trace read and write page-locked memory already"


@register(
    "pin_memory",
    value="HtoD|DtoH",
    default=True,
    fixes=(
        "no_memory_pin=HtoD",
        "blocking_copy=HtoD",
        "pageable_readback=DtoH",
        "high_memcpy",
    ),
    parts=DIRECTIONS,
)
class PinMemory:
    """`pin_memory=True` in the loader, `non_blocking=True` in the copy.

    Copies take bytes / rate of pinned copies, the host goes on at once. Without loader processes
    the host moves each batch to page-locked memory itself; see Note [Who pins]. Cautious: results
    of device-to-host copies are needed at once, and the rate is the least that such links show.
    """

    def __init__(self, direction: str | None = None) -> None:
        known = {name.lower(): name for name in DIRECTIONS}
        if direction is not None and direction.lower() not in known:
            raise OptionError(f"pin_memory: HtoD, DtoH or nothing, not {direction!r}")
        self.directions = (known[direction.lower()],) if direction else DIRECTIONS
        self.name = f"pin_memory={self.directions[0]}" if direction else "pin_memory"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        plans = [_Copies(view, d) for view in views(run) for d in self.directions]
        plans = [plan for plan in plans if len(plan.pageable) or len(plan.blocking)]
        if not plans:
            raise NotApplicableError(_why_not(run, self.directions))
        for plan in plans:
            plan.apply(best, 0, waits_stay=False)
            plan.apply(cautious, 1, waits_stay=plan.direction == "DtoH")
        sources = dict.fromkeys(plan.source for plan in plans if len(plan.pageable))
        return EditedGraph(best, cautious, source="; ".join(sources), note=_note(plans))


_WORKERS = r"MultiProcessingDataLoaderIter.*__next__"
_ALONE = r"SingleProcessDataLoaderIter.*__next__"
_HOST = (EventKind.CPU_OP, EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)


_INNER = (0.1, 0.9)
"""Of the rates that a trace shows, least and most."""
_KNOWN_MEMORY = (HostMemory.PAGEABLE, HostMemory.PINNED)


class _Copies:
    """Copies of one direction on one rank."""

    def __init__(self, view: RankView, direction: str) -> None:
        self.view, self.direction = view, direction
        rows = view.copies(_DIRECTIONS[direction])
        memory = view.tree.host_memory[rows]
        pageable, pinned = memory == HostMemory.PAGEABLE, memory == HostMemory.PINNED
        if direction == "DtoH":  # single values are remove_host_sync's
            pageable &= view.bytes_of[rows] > SMALL_BYTES
        self.pageable, self.pinned = rows[pageable], rows[pinned]
        self.blocking = self._awaited(self.pinned) if direction == "HtoD" else self.pinned[:0]

    @property
    def rates(self) -> tuple[float, float]:
        """byte/s of copies from page-locked memory, at best and at least."""
        return self._pinned_rates[0]

    @property
    def source(self) -> str:
        """Where they are from."""
        return self._pinned_rates[1]

    def durations(self, rate: int) -> Array:
        """ns of pageable copies at the higher (0) or lower (1) rate, none slower than it was."""
        before = self.view.table.dur_ns[self.pageable].astype(np.float64)
        shortest = float(before.min()) if len(before) else 0.0
        sizes = self.view.bytes_of[self.pageable]
        predicted = np.maximum(sizes / self.rates[rate] * 1e9, min(shortest, START_NS))
        durations: Array = np.minimum(before, np.where(sizes > 0, predicted, before))
        return durations

    def apply(self, change: Change, rate: int, *, waits_stay: bool) -> None:
        """`rate`: 0 for the higher, 1 for the lower of the two rates."""
        view = self.view
        before_ns = np.maximum(view.table.dur_ns[self.pageable], 1)
        view.scale_gpu(change, self.pageable, self.durations(rate) / before_ns)
        if waits_stay:
            return
        calls = view.launch_of(np.concatenate([self.pageable, self.blocking]))
        calls = distinct(calls[calls >= 0])
        change.drop(view.waits_of(calls))
        syncs = view.waits_behind(calls)
        view.remove_calls(change, syncs)
        view.set_host_work(change, calls, self._call_cost_ns())
        self._start_at_once(change)
        self._pin(change, rate)

    def _start_at_once(self, change: Change) -> None:
        """A pageable copy begins when the driver has moved its first part, inside the call; a
        pinned one as any work: behind its call, or behind the work before it."""
        view = self.view
        begins = view.begin_of[self.pageable]
        launches = view.edges_into(begins, "launch")
        inside = ~view.is_end(view.source_of(launches))
        latency_ns = view.launch_latency_ns(self.pinned)
        at_most = np.where(inside, self._call_cost_ns() + latency_ns, latency_ns)
        change.set_lags(launches, np.minimum(view.cost_of(launches), at_most))
        order = view.edges_into(begins, "stream_order", "copy_engine")
        change.set_lags(order, np.minimum(view.cost_of(order), view.gap_ns))

    def _pin(self, change: Change, rate: int) -> None:
        """The training thread pins before it calls."""
        view = self.view
        calls = view.launch_of(self.pageable)
        added_ns = np.bincount(
            calls[calls >= 0], weights=self.pinning_ns[rate][calls >= 0], minlength=1
        )
        calls = distinct(calls[calls >= 0])
        calls = calls[added_ns[calls] > 0]
        calls = calls[np.argsort(view.begin_of[calls])]
        edges = view.edges_into(view.begin_of[calls], "program_order")
        place = np.searchsorted(view.begin_of[calls], view.destination_of(edges))
        change.set_lags(edges, view.cost_of(edges) + added_ns[calls][place])

    @cached_property
    def pinning_ns(self) -> Array:
        """float64 `[2, pageable]`: of the training thread, at best and at least. See Note [Who
        pins]."""
        view = self.view
        none = np.zeros((2, len(self.pageable)))
        if self.direction != "HtoD" or len(view.rows_named(_WORKERS, *_HOST)):
            return none
        sizes = view.bytes_of[self.pageable]
        own = self._own_rate()
        both = np.stack([sizes / max(own, HOST_COPY_RATE), sizes / own]) * 1e9
        return both if len(view.rows_named(_ALONE, *_HOST)) else np.stack([none[0], both[1]])

    def _awaited(self, copies: Array) -> Array:
        """Copies whose host waits for them in a call right behind."""
        calls = self.view.launch_of(copies)
        known = np.flatnonzero(calls >= 0)
        has_sync = self.view.next_wait(calls[known]) >= 0
        return copies[known[has_sync]]

    def _call_cost_ns(self) -> int:
        calls = self.view.launch_of(self.pinned)
        calls = distinct(calls[calls >= 0])
        if len(calls):
            return int(median(self.view.work_ns(calls)))
        return self.view.launch_cost_ns

    @cached_property
    def _pinned_rates(self) -> tuple[tuple[float, float], str]:
        """byte/s at best and at least, and where they are from: this trace, else the link of the
        device. Never more than a link carries."""
        view = self.view
        link = lookups.host_rates(self.direction, plausible_devices(view.table))
        back = view.copies(*_DIRECTIONS.values())
        back = back[view.tree.host_memory[back] == HostMemory.PINNED]
        for rows, which in ((self.pinned, ""), (back, ", the other way")):
            rates = self._rates_of(rows)
            if len(rates):
                low, high = np.minimum(np.quantile(rates, _INNER), link.cap).tolist()
                return (high, low), f"pinned copies of the trace{which}"
        return (link.most, min(link.most, max(link.least, self._own_rate()))), link.source

    def _rates_of(self, rows: Array) -> Array:
        """float64: byte/s of copies that are large enough to show it."""
        sizes, times = self.view.bytes_of[rows], self.view.table.dur_ns[rows]
        large = (sizes >= TIMED_BYTES) & (times > 0)
        rates: Array = sizes[large] / times[large] * 1e9
        return rates

    def _own_rate(self) -> float:
        """byte/s of the pageable copies themselves."""
        sizes, times = self.view.bytes_of[self.pageable], self.view.table.dur_ns[self.pageable]
        return max(1.0, float(sizes.sum() / max(times.sum(), 1) * 1e9))


def _note(plans: Sequence[_Copies]) -> str:
    parts = []
    for direction in DIRECTIONS:
        mine = [plan for plan in plans if plan.direction == direction and len(plan.pageable)]
        if mine:
            rows = [(plan.view, plan.pageable) for plan in mine]
            size = sum(total(view.bytes_of[copies]) for view, copies in rows)
            before = sum(total(view.table.dur_ns[copies]) for view, copies in rows)
            after = sum(total(plan.durations(0)) for plan in mine)
            parts.append(
                f"{sum(len(copies) for _, copies in rows)} pageable {direction} copies of "
                f"{size / 1e6:.1f} MB take {format_ns(after)} instead of {format_ns(before)}"
            )
    low_ns, high_ns = sum(plan.pinning_ns.sum(axis=1) for plan in plans).tolist()
    if high_ns:
        takes = format_ns(round(high_ns))
        takes = f"{format_ns(round(low_ns))} to {takes}" if low_ns else f"up to {takes}"
        parts.append(f"without worker processes the training thread pins the batches: {takes}")
    awaited = sum(len(plan.blocking) for plan in plans)
    if awaited:
        parts.append(f"no longer awaited: {awaited} of the pinned ones")
    return "; ".join(parts)


def _why_not(run: SimulatedRun, directions: tuple[str, ...]) -> str:
    for view in views(run):
        copies = view.copies(*(_DIRECTIONS[direction] for direction in directions))
        if len(copies) and not np.isin(view.tree.host_memory[copies], _KNOWN_MEMORY).any():
            return "the copies in this trace don't say what host memory they use"
        if len(copies):
            return _PINNED_ANSWER
    return "the trace has no copies between host and device"
