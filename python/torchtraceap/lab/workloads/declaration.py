"""The decorator `@workload`, which describes a function that makes a workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torchtraceap.errors import OptionError

__all__ = ["DOMAINS", "workload", "workload_declaration"]

DOMAINS = ("vision", "language", "recommendation", "reinforcement_learning", "speech", "other")
"""The six domains of TorchBench's paper (arXiv 2304.14226)."""

_Making = TypeVar("_Making", bound=Callable[..., Any])


def workload(
    *, task: str, domain: str, exercises: str, needs: Sequence[str] = ()
) -> Callable[[_Making], _Making]:
    """Mark a function that makes a workload; the function stays unchanged.

    The suite's own are listed by their source alone (`registry.workloads`), so that each of these
    is written as a literal there.

    Args:
        task: What the model is for: "classification", "language modelling".
        domain: One of `DOMAINS`.
        exercises: One sentence: which operators or habits it brings that others don't.
        needs: Modules that are imported beside torch.

    Raises:
        OptionError: There is no such domain.
    """
    if domain not in DOMAINS:
        raise OptionError(f"there is no domain {domain!r}: {', '.join(DOMAINS)}")

    def mark(making: _Making) -> _Making:
        making._workload = {  # type: ignore[attr-defined]
            "task": task, "domain": domain, "exercises": exercises, "needs": tuple(needs)
        }  # fmt: skip
        return making

    return mark


def workload_declaration(making: object) -> dict[str, Any]:
    """Return the description that `@workload` gave a function; empty if it is not marked."""
    found = getattr(making, "_workload", None)
    return dict(found) if isinstance(found, dict) else {}
