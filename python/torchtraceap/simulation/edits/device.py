"""`device`: the same program on another GPU."""

from __future__ import annotations

import numpy as np

from torchtraceap._core import CopyDirection, GpuClass
from torchtraceap.core.sums import distinct
from torchtraceap.ops.devices import Device, device_named
from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.collective_parts import parts_of
from torchtraceap.simulation.edits.gpu_work import (
    EventWorks,
    host_link_ratio,
    product_bounds,
    works_of,
)
from torchtraceap.simulation.edits.precision import NO_DEVICE, START_NS, changed_ratios
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.gpu.recorded_device import attainable_ns, computing_type

__all__ = ["OtherDevice"]

ATTAINABLE_MARGIN = 1.25
"""Ratios of attainable times are off by 7 to 19 % of a kernel's time (docs/results/durations.md);
errors of a job's kernels cancel only in part."""
FLOOR_NS = 2_000
"""Time to start and end a kernel on any GPU."""
_COPIES = {"HtoD": CopyDirection.HOST_TO_DEVICE, "DtoH": CopyDirection.DEVICE_TO_HOST}


class OtherDevice:
    """The same program on another GPU; the host stays.

    Products of matrices take the ratio of their models, other kernels of known work that of the
    times which both devices can attain, both with a margin for their error; the rest lies between
    the ratios of memory bandwidth and of arithmetic. Copies follow the host link, collectives the
    link between GPUs. Best: no kernel is shorter than 1 us. Cautious: its first 2 us stay, and
    where a link is unknown it stays as it is.
    """

    def __init__(self, name: str | None = None) -> None:
        self.device = device_named(name or "")
        self.name = f"device={name}"

    def apply(self, run: SimulatedRun) -> EditedGraph:
        best, cautious = Change(), Change()
        names = set()
        for view in views(run):
            old = view.device
            if old is None:
                raise NotApplicableError(NO_DEVICE)
            names.add(old.name)
            self._scale_compute(view, old, best, cautious)
            for direction, code in _COPIES.items():
                ratio = host_link_ratio(direction, old, self.device)
                if ratio is not None:
                    view.scale_gpu(best, view.copies(code), ratio)
                    view.scale_gpu(cautious, view.copies(code), max(ratio, 1.0))
        for parts in parts_of(run):
            before = parts.view.device
            links = [
                link
                for link in ("nvlink", "xgmi")
                if before is not None and link in before.links and link in self.device.links
            ]
            if before is not None and links:
                ratio = before.links[links[0]] / self.device.links[links[0]]
                parts.set_transfer(best, parts.transfer_ns * ratio)
                parts.set_transfer(cautious, parts.transfer_ns * ratio)
        note = f"from {', '.join(sorted(names))} to {self.device.name}; the host stays as it is"
        source = "ratios of models of products, else of attainable times"
        return EditedGraph(best, cautious, source=source, note=note)

    def _scale_compute(self, view: RankView, old: Device, best: Change, cautious: Change) -> None:
        works, rows = works_of(view), view.gpu_class(GpuClass.COMPUTE)
        bounds = np.ones((2, len(works.kinds)))
        kinds = works.kind_of[rows]
        for kind in distinct(kinds[kinds >= 0]).tolist():
            bounds[:, kind] = self._ratios(works, kind, old)
        # Other kernels lie between the ratios of memory bandwidth and of arithmetic.
        memory = arithmetic = old.bandwidth / self.device.bandwidth
        if "fp32" in old.vector and "fp32" in self.device.vector:
            arithmetic = old.vector["fp32"] / self.device.vector["fp32"]
        fast = np.full(len(rows), min(memory, arithmetic))
        slow = np.full(len(rows), max(memory, arithmetic))
        for bound, ratios in ((fast, bounds[0]), (slow, bounds[1])):
            known, ratio = changed_ratios(view, works, ratios)
            bound[np.searchsorted(rows, known)] = ratio
        floor = np.minimum(FLOOR_NS / np.maximum(view.table.dur_ns[rows], 1), 1.0)
        least = np.minimum(START_NS / np.maximum(view.table.dur_ns[rows], 1), 1.0)
        view.scale_gpu(best, rows, np.maximum(fast, least))
        view.scale_gpu(cautious, rows, floor + (1 - floor) * slow)

    def _ratios(self, works: EventWorks, kind: int, old: Device) -> tuple[float, float]:
        """Return the least and most of new time over old of a kind of work."""
        work, call = works.work(kind), works.call(kind)
        label = computing_type(work, old, call.kernels)
        known = product_bounds(call, (label, old), (label, self.device))
        if known is not None:
            return known
        old_ns, _ = attainable_ns(work, old, call.kernels)
        new_ns, _ = attainable_ns(work, self.device, call.kernels)
        ratio = new_ns / old_ns if old_ns > 0 and new_ns > 0 else 1.0
        return ratio * ATTAINABLE_MARGIN**-1, ratio * ATTAINABLE_MARGIN
