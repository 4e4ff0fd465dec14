"""Measures the host speed of this machine without a GPU.

The time that Python, modules and the dispatcher take between operators, and that of operators that
compute nothing, is the same with and without a GPU. torch.profiler records a small model here, and
its CPU kernels are left out, since they tell nothing of launches.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.prediction.lowering.recorded_host import RecordedCalls, recorded_calls
from torchtraceap.ops.models.families import family_of
from torchtraceap.trace.load import load

if TYPE_CHECKING:
    import torch

__all__ = ["PROBE_DEVIATION", "probe"]

PROBE_DEVIATION = 0.25
"""Deviation of the logarithm.

Host times of GPU runs scaled from small twins on another machine's CPU were 0.74 to 1.47 times the
measured ones, after one common factor.
"""

_LAYERS, _WIDTH, _STEPS = 8, 8, 5
_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "plain": (),
        "stack": ("record_shapes", "with_stack"),
        "full": ("record_shapes", "with_stack", "with_modules", "with_flops", "profile_memory"),
    }
)


def probe(run: Callable[[], object] | None = None, *, profiler: str = "full") -> RecordedCalls:
    """Record a few steps on this machine's CPU for `HostModel.calibrated`.

    Worth something where the GPU's host has a processor like this one's.

    Args:
        run: Makes one step, best of a model with the layers of that to be predicted and tiny
            widths; by default of a small transformer.
        profiler: The options of the profiler whose host times are wanted: "plain", "stack" or
            "full" (as in `host.PROFILERS`).

    Returns:
        Gaps between operators, and times of views; NaN for the operators that compute.

    Raises:
        MissingDependencyError: Without torch.
        OptionError: Nobody knows such a profiler, or the step calls no operator.
    """
    if profiler not in _OPTIONS:
        raise OptionError(f"no profiler {profiler!r} to probe with: {', '.join(_OPTIONS)}")
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("a probe runs a model, for which torch is needed") from error

    step = run or _small_transformer()
    activities = [torch.profiler.ProfilerActivity.CPU]
    options: dict[str, Any] = dict.fromkeys(_OPTIONS[profiler], True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.json"
        step()
        with torch.profiler.profile(activities=activities, **options) as recording:
            for _ in range(_STEPS):
                step()
        recording.export_chrome_trace(str(path))
        calls = recorded_calls(load(path).rank())
    if not len(calls):
        raise OptionError("the probe's step calls no operator")
    computes = np.array([family_of(call.name) != "view" for call in calls.call_contexts])
    return replace(calls, to_launch=np.where(computes, np.nan, calls.to_launch))


def _small_transformer() -> Callable[[], object]:
    """Return a step of a small transformer encoder."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(_WIDTH, 4, 2 * _WIDTH, dropout=0.0, batch_first=True)
    # In training the layer runs single operators, in evaluation a fused one.
    model: torch.nn.Module = nn.TransformerEncoder(layer, _LAYERS).train()
    values = torch.zeros(1, 4, _WIDTH)

    def step() -> object:
        with torch.no_grad():
            return model(values)

    return step
