"""`pin_memory`: copies run from and to page-locked memory, and the host doesn't wait for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtraceap._core import CopyDirection, EventKind, HostMemory
from torchtraceap.aliases import Array
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits import lookups
from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.registry import register
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.sums import total
from torchtraceap.units import format_ns

__all__ = ["PinMemory"]

_DIRECTIONS = {"HtoD": CopyDirection.HOST_TO_DEVICE, "DtoH": CopyDirection.DEVICE_TO_HOST}
DIRECTIONS = tuple(_DIRECTIONS)
SMALL_BYTES = 64 << 10
"""Reads up to this size are values."""
TIMED_BYTES = 1 << 20
"""Copies of at least so many bytes show the rate of the link."""
START_NS = 1_000.0
"""What any copy takes."""
_PINNED_ANSWER = "the copies in this trace read and write page-locked memory already"


@register(
    "pin_memory",
    value="HtoD|DtoH",
    default=True,
    fixes=("no_memory_pin=HtoD", "blocking_copy=HtoD", "high_memcpy"),
    parts=DIRECTIONS,
)
class PinMemory:
    """`pin_memory=True` in the loader, `non_blocking=True` in the copy.

    Copies take bytes / rate of pinned copies, the host goes on at once. Cautious: results of
    device-to-host copies are needed at once; without loader processes, whose pinning thread
    costs nothing here, the host still moves each batch to page-locked memory as fast as the
    pageable copy went.
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
            plan.apply(best, 0, waits_stay=False, host_copies=False)
            by_hand = plan.direction == "HtoD" and not len(plan.view.rows_named(_WORKERS, *_HOST))
            stays = plan.direction == "DtoH"
            plan.apply(cautious, 1, waits_stay=stays, host_copies=by_hand)
        sources = dict.fromkeys(plan.source for plan in plans if len(plan.pageable))
        return EditedGraph(best, cautious, source="; ".join(sources), note=_note(plans))


_WORKERS = r"MultiProcessingDataLoaderIter.*__next__"
_HOST = (EventKind.CPU_OP, EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)


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
        self.rates, self.source = self._pinned_rates()

    def durations(self, rate: int) -> Array:
        """ns of pageable copies at the higher (0) or lower (1) rate, none slower than it was."""
        before = self.view.table.dur_ns[self.pageable].astype(np.float64)
        shortest = float(before.min()) if len(before) else 0.0
        predicted = self.view.bytes_of[self.pageable] / self.rates[rate] * 1e9
        durations: Array = np.minimum(before, np.maximum(predicted, min(shortest, START_NS)))
        return durations

    def apply(self, change: Change, rate: int, *, waits_stay: bool, host_copies: bool) -> None:
        """`rate`: 0 for the higher, 1 for the lower of the two rates."""
        view = self.view
        before_ns = np.maximum(view.table.dur_ns[self.pageable], 1)
        view.scale_gpu(change, self.pageable, self.durations(rate) / before_ns)
        if waits_stay:
            return
        calls = view.launch_of(np.concatenate([self.pageable, self.blocking]))
        calls = np.unique(calls[calls >= 0])
        change.drop(view.waits_of(calls))
        syncs = view.waits_behind(calls)
        view.remove_calls(change, syncs)
        if not host_copies:
            view.set_host_work(change, calls, self._call_cost_ns())

    def _awaited(self, copies: Array) -> Array:
        """Copies whose host waits for them in a call right behind."""
        calls = self.view.launch_of(copies)
        known = np.flatnonzero(calls >= 0)
        has_sync = self.view.next_wait(calls[known]) >= 0
        return copies[known[has_sync]]

    def _call_cost_ns(self) -> int:
        calls = self.view.launch_of(self.pinned)
        calls = np.unique(calls[calls >= 0])
        if len(calls):
            return int(np.median(self.view.work_ns(calls)))
        return self.view.launch_cost_ns

    def _pinned_rates(self) -> tuple[tuple[float, float], str]:
        """byte/s at best and at least, and where they are from: this trace, measured tables, the
        link of the device, which may sit in a host of the generation before."""
        sizes, times = self.view.bytes_of[self.pinned], self.view.table.dur_ns[self.pinned]
        large = (sizes >= TIMED_BYTES) & (times > 0)
        if large.any():
            rate = float(np.median(sizes[large] / times[large] * 1e9))
            return (rate, rate), "pinned copies of the trace"
        found = lookups.copy_rate(self.direction, self.view.device)
        if found is None:
            return (np.inf, self._own_rate()), "no rate of pinned copies is known"
        return (found[0], max(found[0] / 2, self._own_rate())), found[1]

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
