"""torchtraceap: hand it the trace that `torch.profiler` wrote, it says where the time is lost.

>>> import torchtraceap as ttap
>>> trace = ttap.load("trace.json.gz")  # a file, a folder of ranks, or a list
>>> ttap.diagnose(trace)                # prints, shows in Jupyter, .findings, .to_html()

Importing this package loads neither NumPy nor the compiled core: what a name needs is imported
when it is asked for. It never imports torch or pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchtraceap import errors
from torchtraceap._version import __version__
from torchtraceap.core.rendering import add_renderer_finder

if TYPE_CHECKING:
    from torchtraceap import datasets
    from torchtraceap.contracts.record import ContractBroken, ContractWarning, contract
    from torchtraceap.core.aliases import PathLike
    from torchtraceap.core.results import Finding, Summary, Timeline, Windows
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.lab.bench.measured import measured
    from torchtraceap.lab.jobs.parallelism import choose_parallelism
    from torchtraceap.lab.planning import TrainingPlan, plan
    from torchtraceap.lab.prediction import Loading, Prediction, predict
    from torchtraceap.lab.sharding import choose_sharding
    from torchtraceap.ops import durations, models
    from torchtraceap.record import integrations, on_trace_ready, profile
    from torchtraceap.record.watch import watch
    from torchtraceap.simulation.edits.base import Edit
    from torchtraceap.simulation.simulate import Simulation
    from torchtraceap.tables.gpu.memory_timeline import read_memory_timeline
    from torchtraceap.trace.execution import load_execution_trace
    from torchtraceap.trace.loader import load
    from torchtraceap.trace.trace import Trace

_LAZY = {
    "ColumnTable": "torchtraceap.core.table",
    "ContractBroken": "torchtraceap.contracts.record",
    "ContractWarning": "torchtraceap.contracts.record",
    "Diagnosis": "torchtraceap.diagnosis.result",
    "Finding": "torchtraceap.core.results",
    "Loading": "torchtraceap.lab.prediction",
    "Prediction": "torchtraceap.lab.prediction",
    "Summary": "torchtraceap.core.results",
    "Timeline": "torchtraceap.core.results",
    "Trace": "torchtraceap.trace.trace",
    "TrainingPlan": "torchtraceap.lab.planning",
    "Windows": "torchtraceap.core.results",
    "choose_parallelism": "torchtraceap.lab.jobs.parallelism",
    "choose_sharding": "torchtraceap.lab.sharding",
    "contract": "torchtraceap.contracts.record",
    "load": "torchtraceap.trace.loader",
    "load_execution_trace": "torchtraceap.trace.execution",
    "measured": "torchtraceap.lab.bench.measured",
    "on_trace_ready": "torchtraceap.record",
    "plan": "torchtraceap.lab.planning",
    "predict": "torchtraceap.lab.prediction",
    "profile": "torchtraceap.record",
    "read_memory_timeline": "torchtraceap.tables.gpu.memory_timeline",
    "watch": "torchtraceap.record.watch",
}
"""Names of other modules that are ours too."""
_LAZY_MODULES = {
    "datasets": "torchtraceap.datasets",
    "durations": "torchtraceap.ops.durations",
    "integrations": "torchtraceap.record.integrations",
    "models": "torchtraceap.ops.models",
    "tracelens": "torchtraceap.compat.tracelens",
}

__all__ = [
    "ColumnTable",
    "ContractBroken",
    "ContractWarning",
    "Diagnosis",
    "Finding",
    "Loading",
    "Prediction",
    "Summary",
    "Timeline",
    "Trace",
    "TrainingPlan",
    "Windows",
    "__version__",
    "choose_parallelism",
    "choose_sharding",
    "contract",
    "datasets",
    "diagnose",
    "diff",
    "durations",
    "errors",
    "integrations",
    "load",
    "load_execution_trace",
    "measured",
    "models",
    "on_trace_ready",
    "plan",
    "predict",
    "profile",
    "read_memory_timeline",
    "score",
    "simulate",
    "watch",
]


def diagnose(
    trace: Trace | PathLike | Sequence[PathLike], *, windows: int = 100, scorer: str | None = None
) -> Diagnosis:
    """Which anti-patterns cost time in a trace, on what evidence, and what to change.

    Args:
        trace: A loaded trace, or what `load` takes.
        windows: Number of windows of equal time that get scores.
        scorer: Who scores them, by name; the default one for None.
    """
    return _loaded(trace).diagnose(windows=windows, scorer=scorer)


def score(
    trace: Trace | PathLike | Sequence[PathLike],
    *,
    windows: int = 100,
    scorer: str | None = None,
    device: str = "cpu",
) -> Windows:
    """How likely each window of a trace holds lost time, in all and by type.

    Args:
        trace: A loaded trace, or what `load` takes.
        windows: Number of windows of equal time.
        scorer: Who scores them, by name; the default one for None.
        device: Where the scorer's network runs: "cpu", or "cuda" for `paper` and `v2`.
    """
    return _loaded(trace).score(windows=windows, scorer=scorer, device=device)


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
    from torchtraceap.tables.compare.diff import build_diff

    return build_diff(_loaded(before), _loaded(after), by=by)


def simulate(
    trace: Trace | PathLike | Sequence[PathLike], edits: Iterable[str | Edit] | None = None
) -> Simulation:
    """What a step would take if findings were fixed, replayed from its dependencies.

    Args:
        trace: A loaded trace, or what `load` takes.
        edits: Names such as "loader_workers=4", or objects of your own; by default every fix that
            needs no decision.
    """
    return _loaded(trace).simulate(edits)


def _loaded(trace: Trace | PathLike | Sequence[PathLike]) -> Trace:
    from torchtraceap.trace.loader import load
    from torchtraceap.trace.trace import Trace

    return trace if isinstance(trace, Trace) else load(trace)


def _register_renderers() -> None:
    from torchtraceap.report import register

    register()


add_renderer_finder(_register_renderers)


def __getattr__(name: str) -> Any:
    if name == "_core":
        return _loaded_core()
    if name in _LAZY_MODULES:
        return import_module(_LAZY_MODULES[name])
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def _loaded_core() -> Any:
    """The compiled core; the modules that need it come here for it."""
    try:
        return import_module("torchtraceap._core")
    except ImportError as error:
        raise ImportError(
            f"the compiled core of torchtraceap does not load ({error}); "
            "build it with `pip install .`"
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
