"""Edits of work that somebody names: a kernel, a family, an operator or a stream that takes another
time, and a range that is gone.

Note [Names]: a name is the whole name of a kernel, operator or range; if none has it, what part of
the name it is, in any case. A kernel of templates is found by the part that people know it by.
"""

from __future__ import annotations

import re
from functools import partial
from math import inf

from torchtraceap._core import EventKind, GpuClass
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns, one_line, pluralize
from torchtraceap.core.sums import distinct, total
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.base import Change, EditedGraph, NotApplicableError
from torchtraceap.simulation.edits.gpu_work import families_of
from torchtraceap.simulation.edits.removal import RemoveRanges
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import SimulatedRun

__all__ = [
    "RemoveNamed",
    "ScaleWork",
    "computing_rows",
    "scale_family",
    "scale_kernel",
    "scale_operator",
    "scale_stream",
]

_RANGES = (EventKind.CPU_OP, EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)
_MOST_SHOWN = 3


def computing_rows(view: RankView) -> Array:
    """Return GPU events other than collectives, whose times hold waits for other ranks."""
    rows = view.gpu_rows
    chosen: Array = rows[view.tree.gpu_class[rows] != GpuClass.COMMUNICATION]
    return chosen


def pattern_of(run: SimulatedRun, text: str, *kinds: EventKind) -> str:
    """Return the pattern that names match; see Note [Names]."""
    whole = rf"^{re.escape(text)}$"
    if any(len(view.rows_named(whole, *kinds)) for view in views(run)):
        return whole
    return re.escape(text)


class ScaleWork:
    """GPU work of one kind takes `factor` times as long.

    Args:
        what: kernel, family, operator or stream.
        text: NAME:FACTOR.

    Raises:
        OptionError: The text is something else.
    """

    def __init__(self, what: str, text: str | None = None) -> None:
        chosen, _, factor = (text or "").rpartition(":")
        try:
            self._factor = float(factor)
        except ValueError:
            self._factor = -1.0
        if not chosen or not 0 <= self._factor < inf:
            raise OptionError(
                f"{what} takes a name and a factor from 0, such as {what}=NAME:0.5, not {text!r}"
            )
        if what == "stream" and not chosen.isdigit():
            raise OptionError(f"a stream is named by its number, not {chosen!r}")
        self.name = f"{what}={text}"
        self._what, self._chosen = what, chosen

    def apply(self, run: SimulatedRun) -> EditedGraph:
        change = Change()
        count = work_ns = 0
        names: set[str] = set()
        for view in views(run):
            rows = self._rows(run, view)
            view.scale_gpu(change, rows, self._factor)
            count, work_ns = count + len(rows), work_ns + total(view.table.dur_ns[rows])
            names.update(view.names[name] for name in distinct(view.table.name[rows]).tolist())
        if not count:
            raise NotApplicableError(
                f"no GPU event is of {self._what} {self._chosen!r}, collectives aside, which keep "
                "their times"
            )
        shown = ", ".join(one_line(name, 60) for name in sorted(names)[:_MOST_SHOWN])
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        note = (
            f"{pluralize(count, 'GPU event')} with {format_ns(work_ns)} take {self._factor:g} "
            f"times as long: {shown}{more}"
        )
        return EditedGraph(change, note=note)

    def _rows(self, run: SimulatedRun, view: RankView) -> Array:
        """Return the GPU rows of a rank."""
        rows = computing_rows(view)
        if self._what == "stream":
            values, present = view.table.int_column("stream")
            rows = rows[present[rows] & (values[rows] == int(self._chosen))]
        elif self._what == "family":
            rows = rows[families_of(view, rows) == self._chosen]
        elif self._what == "kernel":
            pattern = pattern_of(run, self._chosen, *_ON_GPU)
            rows = rows[view.has_name(pattern)[rows]]
        else:
            pattern = pattern_of(run, self._chosen, EventKind.CPU_OP)
            operators = view.outermost(view.rows_named(pattern, EventKind.CPU_OP))
            launched, _ = view.launched_inside(operators)
            rows = launched[view.tree.gpu_class[launched] != GpuClass.COMMUNICATION]
        return rows


_ON_GPU = (EventKind.KERNEL, EventKind.GPU_MEMCPY, EventKind.GPU_MEMSET)

scale_kernel = partial(ScaleWork, "kernel")
scale_family = partial(ScaleWork, "family")
scale_operator = partial(ScaleWork, "operator")
scale_stream = partial(ScaleWork, "stream")


class RemoveNamed(RemoveRanges):
    """Remove host ranges that somebody names, with the GPU work that they launched."""

    def __init__(self, text: str | None = None) -> None:
        if not text:
            raise OptionError("remove takes the name of a range, such as remove=validation")
        super().__init__(f"remove={text}", re.escape(text), "range", f" called {text!r}")

    def apply(self, run: SimulatedRun) -> EditedGraph:
        object.__setattr__(self, "pattern", pattern_of(run, self.name.partition("=")[2], *_RANGES))
        return super().apply(run)

    def rows(self, view: RankView) -> Array:
        return view.outermost(view.rows_named(self.pattern, *_RANGES))
