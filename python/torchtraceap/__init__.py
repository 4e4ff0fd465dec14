"""torchtraceap: hand it the trace that `torch.profiler` wrote, it says where the time is lost.

>>> import torchtraceap as ttap
>>> trace = ttap.load("trace.json.gz")  # a file, a folder of ranks, or a list
>>> ttap.diagnose(trace)                # prints, shows in Jupyter, .findings, .to_html()

Importing this package imports neither torch nor pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import_module("torchtraceap._core")
except ImportError as error:
    raise ImportError(
        f"the compiled core of torchtraceap does not load ({error}); build it with `pip install .`"
    ) from error

from torchtraceap import errors
from torchtraceap import report as _report
from torchtraceap._version import __version__
from torchtraceap.aliases import PathLike
from torchtraceap.diagnose import build_diagnosis as _build_diagnosis
from torchtraceap.loading import load
from torchtraceap.results import Diagnosis, Finding, Summary, Timeline
from torchtraceap.table import ColumnTable
from torchtraceap.trace import Trace

if TYPE_CHECKING:
    from torchtraceap import models
    from torchtraceap.analysis.memory_timeline import read_memory_timeline
    from torchtraceap.collect import on_trace_ready, profile
    from torchtraceap.execution_trace import load_execution_trace
    from torchtraceap.simulation.edits.base import Edit
    from torchtraceap.simulation.simulate import Simulation

_report.register()

_LAZY = {
    "load_execution_trace": "torchtraceap.execution_trace",
    "models": "torchtraceap.models",
    "on_trace_ready": "torchtraceap.collect",
    "profile": "torchtraceap.collect",
    "read_memory_timeline": "torchtraceap.analysis.memory_timeline",
}
"""Imported when they are asked for: name and module."""

__all__ = [
    "ColumnTable",
    "Diagnosis",
    "Finding",
    "Summary",
    "Timeline",
    "Trace",
    "__version__",
    "diagnose",
    "diff",
    "errors",
    "load",
    "load_execution_trace",
    "models",
    "on_trace_ready",
    "profile",
    "read_memory_timeline",
    "simulate",
]


def diagnose(trace: Trace | PathLike | Sequence[PathLike], *, windows: int = 100) -> Diagnosis:
    """Which anti-patterns cost time in a trace, on what evidence, and what to change.

    Args:
        trace: A loaded trace, or what `load` takes.
        windows: Number of windows of equal time that get scores.
    """
    loaded = trace if isinstance(trace, Trace) else load(trace)
    return _build_diagnosis(loaded, windows=windows)


def diff(
    before: Trace | PathLike | Sequence[PathLike],
    after: Trace | PathLike | Sequence[PathLike],
    *,
    by: str = "op",
) -> ColumnTable:
    """What makes the steps of `after` slower or faster than those of `before`.

    Every nanosecond of the difference belongs to one row; the column `delta_ns` sums to
    `facts["difference_ns"]`.

    Args:
        before: A loaded trace, or what `load` takes.
        after: The same.
        by: "op", "kernel", "cause" or "finding".
    """
    from torchtraceap.analysis.diff import build_diff

    first, second = (t if isinstance(t, Trace) else load(t) for t in (before, after))
    return build_diff(first, second, by=by)


def simulate(
    trace: Trace | PathLike | Sequence[PathLike], edits: Iterable[str | Edit] | None = None
) -> Simulation:
    """What a step would take if findings were fixed, replayed from its dependencies.

    Args:
        trace: A loaded trace, or what `load` takes.
        edits: Names such as "loader_workers=4", or objects of your own; by default every fix that
            needs no decision.
    """
    loaded = trace if isinstance(trace, Trace) else load(trace)
    return loaded.simulate(edits)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LAZY[name])
    return module if name == "models" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
