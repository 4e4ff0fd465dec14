"""`pin_memory`: copies run from and to page-locked memory, and the host doesn't wait for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits import lookups
from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.units import format_ns

__all__ = ["PinMemory"]

Array = npt.NDArray[Any]

DIRECTIONS = ("HtoD", "DtoH")
SMALL_BYTES = 64 << 10
"""Reads up to this size are values."""
TIMED_BYTES = 1 << 20
"""Copies of at least so many bytes show the rate of the link."""
START_NS = 1_000.0
"""What any copy takes."""
_PINNED_ANSWER = "the copies in this trace read and write page-locked memory already"


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
        best, cautious, notes, sources = Change(), Change(), [], []
        for view in views(run):
            for direction in self.directions:
                plan = _Copies(view, direction)
                if not len(plan.pageable) and not len(plan.blocking):
                    continue
                plan.apply(best, 0, waits_stay=False, host_copies=False)
                by_hand = direction == "HtoD" and not len(view.rows_named(_WORKERS, *_HOST))
                plan.apply(cautious, 1, waits_stay=direction == "DtoH", host_copies=by_hand)
                notes.append(plan.note)
                sources += [plan.source] if len(plan.pageable) else []
        if not notes:
            raise NotApplicableError(_why_not(run, self.directions))
        source = "; ".join(dict.fromkeys(sources))
        return EditedGraph(best, cautious, source=source, note="; ".join(dict.fromkeys(notes)))


_WORKERS = r"MultiProcessingDataLoaderIter.*__next__"
_HOST = ("cpu_op", "user_annotation", "python_function")


class _Copies:
    """Copies of one direction on one rank."""

    def __init__(self, view: RankView, direction: str) -> None:
        self.view, self.direction = view, direction
        rows = view.gpu_rows[view.is_kind("gpu_memcpy")[view.gpu_rows]]
        rows = rows[view.has_name(_DIRECTION_WORDS[direction])[rows]]
        pageable, pinned = view.has_name("pageable")[rows], view.has_name("pinned")[rows]
        if direction == "DtoH":  # single values are remove_host_sync's
            pageable &= view.bytes_of[rows] > SMALL_BYTES
        self.pageable, self.pinned = rows[pageable], rows[pinned]
        self.blocking = self._awaited(self.pinned) if direction == "HtoD" else self.pinned[:0]
        self.rates, self.source = self._pinned_rates()

    def _durations(self, rate: float) -> Array:
        """ns of the pageable copies at a rate in byte/s, no copy slower than it was."""
        before = self.view.table.dur_ns[self.pageable].astype(np.float64)
        shortest = float(before.min()) if len(before) else 0.0
        predicted = self.view.bytes_of[self.pageable] / rate * 1e9
        durations: Array = np.minimum(before, np.maximum(predicted, min(shortest, START_NS)))
        return durations

    @property
    def note(self) -> str:
        count, size = len(self.pageable), int(self.view.bytes_of[self.pageable].sum())
        parts = []
        if count:
            before = self.view.table.dur_ns[self.pageable].sum()
            after = self._durations(self.rates[0]).sum()
            parts.append(
                f"{count} pageable {self.direction} copies of {size / 1e6:.1f} MB take "
                f"{format_ns(int(after))} instead of {format_ns(int(before))}"
            )
        if len(self.blocking):
            parts.append(f"{len(self.blocking)} pinned copies are no longer awaited")
        return ", ".join(parts)

    def apply(self, change: Change, rate: int, *, waits_stay: bool, host_copies: bool) -> None:
        """`rate`: 0 for the higher, 1 for the lower of the two rates."""
        view = self.view
        before_ns = np.maximum(view.table.dur_ns[self.pageable], 1)
        view.scale_gpu(change, self.pageable, self._durations(self.rates[rate]) / before_ns)
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


_DIRECTION_WORDS = {
    "HtoD": r"HtoD|HostToDevice|HOST_TO_DEVICE",
    "DtoH": r"DtoH|DeviceToHost|DEVICE_TO_HOST",
}


def _why_not(run: SimulatedRun, directions: tuple[str, ...]) -> str:
    words = "|".join(_DIRECTION_WORDS[direction] for direction in directions)
    for view in views(run):
        copies = view.gpu_rows[view.has_name(words)[view.gpu_rows]]
        if len(copies) and not view.has_name("pageable|pinned")[copies].any():
            return "the copies in this trace don't say what host memory they use"
        if len(copies):
            return _PINNED_ANSWER
    return "the trace has no copies between host and device"
