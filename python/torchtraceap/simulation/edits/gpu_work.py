"""The computations of GPU events by the models of operators, and durations that edits put in.

The package's own measurements are imported when an edit asks for one: few do, and a diagnosis
should start fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device
from torchtraceap.ops.models import OpCall, Work, family_of
from torchtraceap.simulation.edits.view import RankView
from torchtraceap.tables.ops.calls import Calls, GpuCalls

if TYPE_CHECKING:
    from torchtraceap.ops.durations.estimate import Estimate

__all__ = [
    "EventWorks",
    "HostRates",
    "collective_ns",
    "families_of",
    "host_link_ratio",
    "host_rates",
    "matrix_work_ns",
    "product_bounds",
    "works_of",
]


@dataclass(frozen=True, slots=True)
class EventWorks:
    """The works of a rank, and the GPU events of each."""

    kinds: tuple[Any, ...]
    """One for each operator name with arguments: `name`, `texts`, `kernels`, `work`."""
    kind_of: Array
    """int64 `[rows]`: index in `kinds` of a GPU row whose work is known; -1 for others."""

    def work(self, kind: int) -> Work:
        work: Work = self.kinds[kind].work
        return work

    def call(self, kind: int) -> OpCall:
        """Return the operator with its arguments."""
        known = self.kinds[kind]
        dims, types, strides, concrete = known.texts
        return OpCall(known.name, dims, types, strides, concrete, known.kernels)


def works_of(view: RankView) -> EventWorks:
    """Return the works of a rank, cached."""
    return view.cached("works", lambda: _event_works(view))


def _event_works(view: RankView) -> EventWorks:
    calls = Calls(view.part, None)
    on_gpu = GpuCalls(view.part, calls)
    of_row = np.full(len(view.table), -1, dtype=np.int64)
    counted = calls.has_work[calls.rows]
    of_row[calls.rows[counted]] = calls.group[counted]
    owner = on_gpu.rows[on_gpu.event_call].astype(np.int64)
    known = owner < len(view.table)
    kind_of = np.full(len(view.table), -1, dtype=np.int64)
    kind_of[on_gpu.events[known]] = of_row[owner[known]]
    return EventWorks(tuple(calls.kinds), kind_of)


def families_of(view: RankView, rows: Array) -> Array:
    """Return the family of each GPU event, by its operator and kernel."""
    calls = view.launch_of(rows)
    operator = np.where(calls >= 0, view.tree.op[np.maximum(calls, 0)], _core.NO_ROW)
    has_operator = operator != _core.NO_ROW
    op_name = np.full(len(rows), -1, dtype=np.int64)
    op_name[has_operator] = view.table.name[operator[has_operator]]
    pairs = op_name * len(view.names) + view.table.name[rows]
    unique, place = np.unique(pairs, return_inverse=True)
    names = [
        family_of(view.names[op] if op >= 0 else "", (view.names[kernel],))
        for op, kernel in (divmod(pair, len(view.names)) for pair in unique.tolist())
    ]
    return np.array(names, dtype=object)[place] if names else np.zeros(0, dtype=object)


# ------------------------------------------------------------------------- measured durations


@dataclass(frozen=True, slots=True)
class HostRates:
    """Rates of pinned copies of a direction, byte/s."""

    cap: float
    """The rate of the fastest device that the trace may be of."""
    most: float
    least: float
    source: str


def host_rates(direction: str, devices: Sequence[Device]) -> HostRates:
    """Return rates of the link to the host, of the slowest of several devices.

    Args:
        direction: HtoD or DtoH.
        devices: Devices on which the trace may be recorded; at least one has a known link.
    """
    from torchtraceap.ops.durations.copies import host_link

    found = (host_link(device, direction) for device in devices)
    links = [link for link in found if link is not None]
    slowest = min(links, key=lambda link: link.most)
    source = f"share of the {slowest.name} rate; host not measured"
    if len(devices) > 1:
        source = f"device not known: {source.replace('the ', 'the slowest plausible ', 1)}"
    return HostRates(max(link.most for link in links), slowest.most, slowest.least, source)


def host_link_ratio(direction: str, old: Device, new: Device) -> float | None:
    """Return the time of a copy between host and device on a new over that on an old device; None
    where a link is not known."""
    from torchtraceap.ops.durations.copies import host_link

    before, after = host_link(old, direction), host_link(new, direction)
    return before.usual / after.usual if before and after else None


def collective_ns(kind: str, size: float, ranks: int, device: Device | None) -> Estimate | None:
    """Estimate the time of a collective of `size` bytes; None where no table has it."""
    if device is None or ranks < 2 or not size > 0:
        return None
    from torchtraceap.ops.durations.collectives import estimate_collective
    from torchtraceap.ops.durations.estimate import UnknownDurationError

    try:
        return estimate_collective(kind, size, ranks, device, links=False)
    except UnknownDurationError:
        return None


def matrix_work_ns(
    families: Sequence[str], works: Sequence[Work], dtypes: Sequence[str], device: Device
) -> npt.NDArray[np.float64]:
    """Estimate times of products and convolutions in some types.

    Returns:
        float64 `[3, n]`, ns: the time and the bounds of 80 % of such; NaN for unknown work.
    """
    from torchtraceap.ops.durations.families import estimate_works

    estimates = estimate_works(
        families,
        [np.nan if work.computed is None else work.computed for work in works],
        [work.bytes for work in works],
        dtypes,
        device,
        units=["matrix"] * len(works),
    )
    return np.stack([estimates.ns, estimates.low_ns, estimates.high_ns])


def product_bounds(
    call: OpCall, old: tuple[str, Device], new: tuple[str, Device]
) -> tuple[float, float] | None:
    """Return the least and most of a product's time in a type on a device over that in another, by
    the models of products; None for other operators.

    Errors of the models on both sides cancel, so that the interval is that of the new time alone.
    """
    from torchtraceap.ops.durations.estimate import UnknownDurationError
    from torchtraceap.ops.durations.gemm import estimate_gemm
    from torchtraceap.ops.durations.operators import product_shape
    from torchtraceap.ops.models.arguments import UnknownWorkError

    try:
        shape = product_shape(call)
        if shape is None or min(shape) < 1:
            return None
        batch, m, n, k = shape
        before = estimate_gemm(m, n, k, *old, batch)
        after = estimate_gemm(m, n, k, *new, batch)
    except (UnknownDurationError, UnknownWorkError):
        return None
    return after.low_ns / before.ns, after.high_ns / before.ns
