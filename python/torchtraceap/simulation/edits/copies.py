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
from torchtraceap.core.sums import distinct, median, total
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.base import (
    Change,
    EditedGraph,
    NotApplicableError,
)
from torchtraceap.simulation.edits.gpu_work import host_rates
from torchtraceap.simulation.edits.view import RankView, views
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
"""The time that any copy takes."""
HOST_COPY_RATE = 10e9
"""Rate of one core where both sides are in memory, on hosts of the last ten years, byte/s."""
_WORKERS = r"MultiProcessingDataLoaderIter.*__next__"
_ALONE = r"SingleProcessDataLoaderIter.*__next__"
_HOST = (EventKind.CPU_OP, EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)
_INNER = (0.1, 0.9)
"""Quantiles of the rates in a trace that count as least and most."""
_KNOWN_MEMORY = (HostMemory.PAGEABLE, HostMemory.PINNED)


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
            for view in views(run):
                copies = view.copies(*(_DIRECTIONS[direction] for direction in self.directions))
                if not len(copies):
                    continue
                if np.isin(view.tree.host_memory[copies], _KNOWN_MEMORY).any():
                    raise NotApplicableError(
                        "the copies in this trace read and write page-locked memory already"
                    )
                raise NotApplicableError(
                    "the copies in this trace don't say what host memory they use"
                )
            raise NotApplicableError("the trace has no copies between host and device")
        for plan in plans:
            plan.apply(best, 0, waits_stay=False)
            plan.apply(cautious, 1, waits_stay=plan.direction == "DtoH")
            # At best awaited copies go to a stream of their own, one batch ahead, and hide there.
            plan.view.scale_gpu(best, plan.blocking, np.zeros(len(plan.blocking)))
        sources = dict.fromkeys(plan.source for plan in plans if len(plan.pageable))
        return EditedGraph(best, cautious, source="; ".join(sources), note=_note(plans))


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
        self.blocking = self.pinned[:0]
        """Pinned copies for which the host waits in a call right after."""
        if direction == "HtoD":
            calls = view.launch_of(self.pinned)
            known = np.flatnonzero(calls >= 0)
            self.blocking = self.pinned[known[view.next_wait(calls[known]) >= 0]]

    def durations(self, rate: int) -> Array:
        """Return times of pageable copies at the higher (0) or lower (1) rate, none longer than it
        was, ns."""
        before = self.view.table.dur_ns[self.pageable].astype(np.float64)
        shortest = float(before.min()) if len(before) else 0.0
        sizes = self.view.bytes_of[self.pageable]
        predicted = np.maximum(sizes / self.rates[rate] * 1e9, min(shortest, START_NS))
        durations: Array = np.minimum(before, np.where(sizes > 0, predicted, before))
        return durations

    def apply(self, change: Change, rate: int, *, waits_stay: bool) -> None:
        """Pin the copies, at the higher (0) or lower (1) rate."""
        view = self.view
        before_ns = np.maximum(view.table.dur_ns[self.pageable], 1)
        view.scale_gpu(change, self.pageable, self.durations(rate) / before_ns)
        if waits_stay:
            return
        calls = view.launch_of(np.concatenate([self.pageable, self.blocking]))
        calls = distinct(calls[calls >= 0])
        change.drop(view.waits_of(calls))
        view.remove_calls(change, view.waits_behind(calls))
        pinned_calls = view.launch_of(self.pinned)
        pinned_calls = distinct(pinned_calls[pinned_calls >= 0])
        cost_ns = view.launch_cost_ns
        if len(pinned_calls):
            cost_ns = int(median(view.work_ns(pinned_calls)))
        view.set_host_work(change, calls, cost_ns)
        # A pageable copy begins when the driver has moved its first part, inside the call; a
        # pinned one like any work: after its call, or after the work before it.
        begins = view.begin_of[self.pageable]
        launches = view.edges_into(begins, "launch")
        inside = ~view.is_end(view.source_of(launches))
        latency_ns = view.launch_latency_ns(self.pinned)
        at_most = np.where(inside, cost_ns + latency_ns, latency_ns)
        change.set_lags(launches, np.minimum(view.cost_of(launches), at_most))
        order = view.edges_into(begins, "stream_order", "copy_engine")
        change.set_lags(order, np.minimum(view.cost_of(order), view.gap_ns))
        self._add_pinning(change, rate)

    def _add_pinning(self, change: Change, rate: int) -> None:
        """Make the training thread pin before it calls."""
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
        """Time in which the training thread pins, at best and at least, float64 `[2, pageable]`.
        See Note [Who pins]."""
        view = self.view
        none = np.zeros((2, len(self.pageable)))
        if self.direction != "HtoD" or len(view.rows_named(_WORKERS, *_HOST)):
            return none
        sizes = view.bytes_of[self.pageable]
        own = self._own_rate()
        both = np.stack([sizes / max(own, HOST_COPY_RATE), sizes / own]) * 1e9
        return both if len(view.rows_named(_ALONE, *_HOST)) else np.stack([none[0], both[1]])

    @property
    def rates(self) -> tuple[float, float]:
        """Rates of copies from page-locked memory, at best and at least, byte/s."""
        return self._pinned_rates[0]

    @property
    def source(self) -> str:
        """The source of the rates."""
        return self._pinned_rates[1]

    @cached_property
    def _pinned_rates(self) -> tuple[tuple[float, float], str]:
        """Rates with their source: this trace, else the link of the device. Never more than a link
        carries."""
        view = self.view
        link = host_rates(self.direction, plausible_devices(view.table))
        back = view.copies(*_DIRECTIONS.values())
        back = back[view.tree.host_memory[back] == HostMemory.PINNED]
        for rows, which in ((self.pinned, ""), (back, ", the other way")):
            sizes, times = view.bytes_of[rows], view.table.dur_ns[rows]
            large = (sizes >= TIMED_BYTES) & (times > 0)
            if large.any():
                rates = sizes[large] / times[large] * 1e9
                low, high = np.minimum(np.quantile(rates, _INNER), link.cap).tolist()
                return (high, low), f"pinned copies of the trace{which}"
        return (link.most, min(link.most, max(link.least, self._own_rate()))), link.source

    def _own_rate(self) -> float:
        """Return the rate of the pageable copies themselves, byte/s."""
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
