"""How far replays of a run can be trusted, as a sentence: for reports and `simulate` alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchtraceap.core.formatting import format_percent

__all__ = ["trust_text"]


def trust_text(trust: Mapping[str, Any], *, on_host: bool = False) -> str:
    """What tests the replays and what they react to, without a full stop.

    Args:
        trust: `Trust` as its JSON.
        on_host: The run computes on the host: there is no GPU time to react to.
    """
    own = f"from its dependencies {_off(trust['iteration_error'])}"
    return f"{own}; {_held_out(trust)}; {_follows(trust['sensitivity'], on_host)}"


def _off(error: float) -> str:
    return "off by < 0.1 %" if abs(error) < 0.001 else f"off by {error * 100:+.1f} %"


def _held_out(trust: Mapping[str, Any]) -> str:
    held = trust["held_out"]
    if held is None:
        return f"with other steps' costs unknown ({trust['held_out_note']})"
    error, mean, noise = (format_percent(held[k]) for k in ("error", "baseline_error", "noise"))
    return f"with other steps' costs by {error} (their mean: {mean}; steps vary by {noise})"


def _follows(sensitivity: Mapping[str, float], on_host: bool) -> str:
    gpu, host = (format_percent(min(1.0, sensitivity[k])) for k in ("gpu_share", "host_share"))
    if on_host:
        return f"it follows host time by {host}"
    return f"it follows GPU time by {gpu}, host time by {host}"
