"""torchtraceap: hand it the trace that `torch.profiler` wrote, it says where the time is lost.

>>> import torchtraceap as ttap
>>> trace = ttap.load("trace.json.gz")  # a file, a folder of ranks, or a list
>>> ttap.diagnose(trace)                # prints, shows in Jupyter, .findings, .to_html()

Importing this package imports neither torch nor pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import_module("torchtraceap._core")
except ImportError as error:
    raise ImportError(
        f"the compiled core of torchtraceap does not load ({error}); build it with `pip install .`"
    ) from error

from torchtraceap import errors
from torchtraceap._version import __version__
from torchtraceap.diagnose import build_diagnosis as _build_diagnosis
from torchtraceap.loading import PathLike
from torchtraceap.results import Diagnosis, Finding, Summary, Timeline
from torchtraceap.trace import Trace, load

if TYPE_CHECKING:
    from torchtraceap.collect import on_trace_ready, profile

__all__ = [
    "Diagnosis",
    "Finding",
    "Summary",
    "Timeline",
    "Trace",
    "__version__",
    "diagnose",
    "errors",
    "load",
    "on_trace_ready",
    "profile",
]


def diagnose(trace: Trace | PathLike | Sequence[PathLike], *, windows: int = 100) -> Diagnosis:
    """Which anti-patterns cost time in a trace, on what evidence, and what to change.

    Args:
        trace: A loaded trace, or what `load` takes.
        windows: Number of windows of equal time that get scores.
    """
    loaded = trace if isinstance(trace, Trace) else load(trace)
    return _build_diagnosis(loaded, windows=windows)


def __getattr__(name: str) -> Any:
    """The recording helpers, imported when they are asked for."""
    if name in ("on_trace_ready", "profile"):
        from torchtraceap import collect

        return getattr(collect, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
