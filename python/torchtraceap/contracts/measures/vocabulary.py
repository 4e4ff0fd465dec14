"""The words: what can be measured in a trace, in which unit, and what it needs.

Note [Keys]: a count or a size without a suffix is the total inside the profiled time, that is from
the first to the last step, or the whole trace where it has none. With `_per_step` it is that of one
step: the worst of the counted ones (Note [Counted steps] in tables/steps/iterations.py), and a
limit on it holds for each of them. Shares are of the profiled time. With several ranks a value is
that of the worst rank.
"""

from __future__ import annotations

from difflib import get_close_matches

from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError

__all__ = [
    "COLLECTIVES",
    "MEASURES",
    "PER_STEP",
    "Measure",
    "base_of",
    "find_measure",
    "is_per_step",
    "near_match",
]

PER_STEP = "_per_step"
COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "send",
    "recv",
    "send_recv",
    "barrier",
    "dispatch",
    "combine",
    "unknown",
)
"""Kinds of collectives, as the core names them; all-to-alls of uneven parts are all_to_all too."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A quantity that can be measured."""

    key: str
    kind: str
    """"count", "bytes", "share", "time", "findings" or "counts by name"."""
    unit: str
    """Unit of the value: "" (a number), "bytes", "share" (a fraction of 1) or "ns"."""
    needs: str
    """Requirement on the trace, for a person."""
    what: str
    """One sentence."""

    @property
    def is_exact(self) -> bool:
        """It repeats from run to run, on any device: counts and sizes, and no times."""
        return self.kind in ("count", "bytes", "counts by name")


_CALLS = "runtime calls: ProfilerActivity.CUDA; without a GPU they are told from operators"
_COPIES = "GPU events: ProfilerActivity.CUDA"
_GPU = "GPU events: ProfilerActivity.CUDA"
_OPERATORS = "operators: ProfilerActivity.CPU"

_COUNTED = (
    (
        "launches",
        "count",
        _CALLS,
        "calls that launch a kernel or a graph of kernels; copies and memsets are none",
    ),
    (
        "syncs",
        "count",
        _CALLS,
        "calls in which the host waits for the GPU: synchronizations, and copies that block",
    ),
    ("h2d_bytes", "bytes", _COPIES, "bytes copied from the host to the GPU"),
    ("d2h_bytes", "bytes", _COPIES, "bytes copied from the GPU to the host"),
    ("copied_bytes", "bytes", _COPIES, "bytes of all copies, in any direction; memsets are none"),
    (
        "collectives",
        "counts by name",
        "communication kernels, or ranges of a CPU backend (gloo, mpi)",
        "collectives by kind, each once",
    ),
    (
        "collective_bytes",
        "bytes",
        "communication kernels with their sizes",
        "bytes of the messages of all collectives",
    ),
    ("recompiles", "count", _OPERATORS, "compilations of what was compiled before"),
    ("graph_breaks", "count", _OPERATORS, "places where compiled code was left and entered again"),
    ("operators", "count", _OPERATORS, "calls of operators, those inside of others too"),
    (
        "allocator_calls",
        "count",
        "runtime calls: ProfilerActivity.CUDA",
        "calls that take memory from the driver or give it back",
    ),
    (
        "peak_allocated_bytes",
        "bytes",
        "memory events: profile_memory=True",
        "the most that the caching allocator had handed out at once",
    ),
)
_OTHERS = (
    ("gpu_idle", "share", "share", _GPU, "share of the profiled time in which no GPU event runs"),
    ("gpu_busy", "share", "share", _GPU, "share of the profiled time in which a GPU event runs"),
    (
        "exposed_communication",
        "share",
        "share",
        _GPU,
        "share of the profiled time in which communication runs and no compute kernel does",
    ),
    (
        "exposed_memcpy",
        "share",
        "share",
        _GPU,
        "share of the profiled time in which copies run, and no kernel does",
    ),
    (
        "step_time",
        "time",
        "ns",
        "steps: profiler.step()",
        "what a step takes, host and GPU together: the median of the counted steps",
    ),
    (
        "gpu_time_per_step",
        "time",
        "ns",
        f"steps: profiler.step(); {_GPU}",
        "time in which a GPU event runs inside a step: the median of the counted steps",
    ),
    ("findings", "findings", "", "what each rule asks for", "anti-patterns that are present"),
)


def _all() -> dict[str, Measure]:
    found = []
    for key, kind, needs, what in _COUNTED:
        unit = "bytes" if kind == "bytes" else ""
        found.append(Measure(key, kind, unit, needs, what))
        steps = f"{needs}; steps: profiler.step()"
        of_step = f"{what}, in the worst of the counted steps"
        found.append(Measure(key + PER_STEP, kind, unit, steps, of_step))
    found += [Measure(*entry) for entry in _OTHERS]
    return {measure.key: measure for measure in found}


MEASURES: dict[str, Measure] = _all()
"""Measures by key."""


def is_per_step(key: str) -> bool:
    """Return True if the key is a count of one step."""
    return key.endswith(PER_STEP) and MEASURES[key].kind != "time"


def base_of(key: str) -> str:
    """Return the key without its suffix for a step."""
    return key.removesuffix(PER_STEP) if is_per_step(key) else key


def find_measure(key: object) -> Measure:
    """Return the measure of that key.

    Raises:
        OptionError: The key is unknown; the message names the key that is most like it.
    """
    found = MEASURES.get(key) if isinstance(key, str) else None
    if found is None:
        raise OptionError(f"{key!r} is nothing that can be measured{near_match(key, MEASURES)}")
    return found


def near_match(word: object, known: object) -> str:
    """Return the end of an error message: "; did you mean ...?", or the known words."""
    words = [str(each) for each in known]  # type: ignore[attr-defined]
    near = get_close_matches(str(word)[:100].lower(), words, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(words)}"
